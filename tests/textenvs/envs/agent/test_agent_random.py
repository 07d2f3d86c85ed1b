"""Random programs of two roles: every observation is what the program sent, and every call has its own reply once."""

import http.client
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.envs.agent import Agent
from textenvs.envs.agent.episode import tools_of
from textenvs.messages import assistant, system, tool, user
from textenvs.task import Task
from textenvs.tools.call_format import call
from textenvs.tools.formats import make_format

SCHEMAS = [
    {"type": "function", "function": {"name": name, "description": "Work.", "parameters": {"type": "object"}}}
    for name in ("double", "halve")
]
TOOLSETS = ([], SCHEMAS[:1], SCHEMAS)
FORMATS = [make_format("hermes", tools_of(schemas)) for schemas in TOOLSETS]
ROLES = ("ask", "check")
TASK = Task("a", "test", (user("?"),), None)


def number_of(messages):
    """Return the number of a call, which its last message has."""
    return int(re.fullmatch(r"#(\d+)", messages[-1]["content"])[1])


def calls_tool(number):
    return number % 3 == 0


def written(number, tools):
    """Return the policy's reply to a call."""
    made = [call("double", a=number)] if tools and calls_tool(number) else []
    return FORMATS[tools].write(f"Reply {number}.", made)


class Talk:
    """A conversation of a role: its messages as the client has them, and as the policy is to see them."""

    def __init__(self, role, tools, sent=(), shown=()):
        self.role, self.tools, self.sent, self.shown = role, tools, list(sent), list(shown)

    def copy(self, replies=None, tools=None, role=None):
        """Return a copy up to a number of replies."""
        ends = [0, *(place + 1 for place, message in enumerate(self.sent) if message["role"] == "assistant")]
        end = ends[-1] if replies is None else ends[replies % len(ends)]
        return Talk(role or self.role, self.tools if tools is None else tools, self.sent[:end], self.shown[:end])

    def observation(self):
        if not self.tools:
            return tuple(self.shown)
        return (system(FORMATS[self.tools].instructions()), *self.shown)


class Run:
    """One run of a random program."""

    def __init__(self, plan, url, key):
        self.plan, self.address, self.key = plan, urlsplit(url), key
        self.lock = threading.Lock()
        self.numbers = 0
        self.talks = []
        self.expected, self.cancelled, self.replies = {}, set(), {}

    def play(self):
        for step in self.plan:
            talks = [self.prepared(*action) for action in step]
            with ThreadPoolExecutor(len(step)) as pool:
                list(pool.map(self.ask, talks, [action[-1] for action in step]))
        if self.cancelled:  # such calls become turns before a later one or never: only then can all be paid
            self.ask(self.prepared("begin", 0, 0, "plain"), "plain")

    def prepared(self, kind, which, tools, how):
        """Return the conversation of the next call, which has a number of its own."""
        old = self.talks[which % len(self.talks)] if self.talks else None
        self.numbers += 1
        number = self.numbers
        if old is None or kind == "begin":
            talk = Talk(ROLES[0] if old is None else ROLES[which % 2], tools)
        elif kind == "hand over":
            talk = old.copy(role=ROLES[which % 2])
        elif kind == "branch":
            talk = old.copy(replies=which)
        elif kind == "tools":
            talk = old.copy(tools=tools)
        elif kind == "rewrite":
            talk = old.copy()
            talk.sent[:1] = talk.shown[:1] = [user(f"Edited {number}.")]
        else:
            talk = old.copy()
        last = talk.sent[-1] if talk.sent else {}
        content = f"#{number}"
        if last.get("tool_calls"):
            key = last["tool_calls"][0]["id"]
            talk.sent.append({"role": "tool", "tool_call_id": key, "content": content})
            talk.shown.append(tool(content, key, "double"))
        else:
            talk.sent.append(user(content))
            talk.shown.append(user(content))
        self.expected[number] = (talk.observation(), talk.tools, talk.role)
        return talk

    def ask(self, talk, how):
        number = number_of(talk.sent)
        model, key = ("gpt", f"{self.key}/{talk.role}") if number % 2 else (f"policy/{talk.role}", self.key)
        fields = {"tools": TOOLSETS[talk.tools] or None, "stream": how == "stream"}
        body = json.dumps({"model": model, "messages": talk.sent, **fields})
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        if how in ("retry", "cancel"):
            headers["Idempotency-Key"] = str(number)
            self.cancelled |= {number} if how == "cancel" else set()
            with_socket = http.client.HTTPConnection(self.address.netloc)
            with_socket.request("POST", f"{self.address.path}/chat/completions", body, headers)
            with_socket.close()
            if how == "cancel":
                return
        connection = http.client.HTTPConnection(self.address.netloc, timeout=60)
        connection.request("POST", f"{self.address.path}/chat/completions", body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status == 200, text
        reply = streamed(text) if how == "stream" else json.loads(text)["choices"][0]["message"]
        with self.lock:
            assert number not in self.replies
            self.replies[number] = reply
            talk.sent.append(reply)
            talk.shown.append(assistant(written(number, talk.tools)))
            self.talks.append(talk)


def streamed(text):
    reply = {"role": "assistant", "content": ""}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[len("data: ") :])["choices"]:
            reply["content"] += choice["delta"].get("content") or ""
            for made in choice["delta"].get("tool_calls") or ():
                calls = reply.setdefault("tool_calls", [])
                if made["index"] == len(calls):
                    calls.append({"id": made["id"], "type": "function", "function": {**made["function"]}})
                else:
                    calls[made["index"]]["function"]["arguments"] += made["function"]["arguments"]
    return reply


kinds = st.sampled_from(["extend", "extend", "begin", "branch", "tools", "rewrite", "hand over"])
actions = st.tuples(kinds, st.integers(0, 9), st.integers(0, 2), st.sampled_from(["plain", "stream", "retry"]))
others = st.tuples(kinds, st.integers(0, 9), st.integers(0, 2), st.sampled_from(["plain", "stream"]))
alone = st.tuples(actions)
together = st.builds(lambda first, rest: (first, *rest), actions, st.lists(others, min_size=1, max_size=2))
cancelled = st.builds(lambda action: ((*action[:3], "cancel"),), actions)


def play(plan, forks):
    """Play a program, whose first call comes alone; return its run, and all observations.

    It pays each call its number, by role. ``forks`` is the turn in which it is forked; 0: it is not.
    """
    runs = []

    def program(task, url, key):
        run = Run(plan, url, key)
        runs.append(run)
        run.play()
        order = sorted(run.expected) if forks else turns  # a fork's program has turns of its own
        return {role: [float(number) for number in order if run.expected[number][2] == role] for role in ROLES}

    env = Agent(program, tasks=[TASK], max_assistant_turns=None, roles=ROLES)
    observation, info = env.reset(seed=0)
    observations, turns, stop = [], [], None
    while stop is None:
        observations.append(observation)
        number = number_of(observation)
        turns.append(number)
        _, tools, role = runs[0].expected[number]
        assert info["role"] == role
        reply = written(number, tools)
        fork = env.fork() if len(observations) == forks else None
        result = env.step(reply)
        observation, reward, *_, info = result
        if fork is not None:
            assert fork.step(reply) == result
            fork.close()
        assert not info["failed"], info["failure"]
        stop = info["stop"]
    assert stop == "solved"
    paid = {turn: terms["reward"] for turn, terms in info.get("earlier", {}).items()}
    paid[len(turns) - 1] = reward - sum(paid.values())
    assert [paid[turn] for turn in range(len(turns))] == turns
    env.close()
    return runs[0], observations


def check(run, observations):
    numbers = [number_of(observation) for observation in observations]
    assert len(set(numbers)) == len(numbers), "a call became two turns"
    assert set(numbers) | run.cancelled == set(run.expected), "a call is lost"
    for number, observation in zip(numbers, observations, strict=True):
        assert observation == run.expected[number][0]
    assert set(run.replies) == set(run.expected) - run.cancelled
    for number, reply in run.replies.items():
        assert reply["content"] == f"Reply {number}."
        tools = run.expected[number][1]
        made = [made["function"]["arguments"] for made in reply.get("tool_calls") or ()]
        assert [json.loads(text) for text in made] == ([{"a": number}] if tools and calls_tool(number) else [])


@settings(max_examples=25)
@given(st.lists(alone, min_size=1, max_size=8), st.integers(1, 8))
def test_program_with_one_call_at_a_time_forks(plan, forks):
    check(*play(plan, forks))


@settings(max_examples=25)
@given(alone, st.lists(alone | together | cancelled, min_size=1, max_size=6))
def test_parallel_calls_have_their_own_replies(first, plan):
    check(*play([first, *plan], 0))
