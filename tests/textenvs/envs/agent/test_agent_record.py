"""`textenvs record`: a service plays a program, and its solved runs are demonstrations in any call format."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openai", reason="needs the extra 'chat'")
sys.path.append(str(Path(__file__).resolve().parents[2] / "chat"))

from agent_kit import ask  # noqa: E402
from fake_service import FakeService, Reply  # noqa: E402

from textenvs.cli import main  # noqa: E402
from textenvs.env import NoDemonstration  # noqa: E402
from textenvs.envs.agent import Agent  # noqa: E402
from textenvs.evaluate import policies as evaluated  # noqa: E402
from textenvs.evaluate.baselines import play_policy  # noqa: E402
from textenvs.evaluate.plan import Job  # noqa: E402
from textenvs.messages import user  # noqa: E402
from textenvs.task import Task  # noqa: E402

pytestmark = pytest.mark.xdist_group("agent record")  # one worker makes the record

PROGRAM = """
import json, urllib.request

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "double", "description": "Double.", "parameters": SCHEMA}}


def agent(task, url, key):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task.question}]
    while True:
        body = json.dumps({"messages": messages, "tools": [TOOL]}).encode()
        headers = {"Authorization": f"Bearer {key}"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers)) as response:
            reply = json.load(response)["choices"][0]["message"]
        messages.append(reply)
        if not reply.get("tool_calls"):
            return float(task.ground_truth in reply["content"])
        for call in reply["tool_calls"]:
            value = FACTOR * json.loads(call["function"]["arguments"])["a"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(value)})


FACTOR = 2
"""


def reply(request):
    """Double with the tool, then answer with its result; wrong for 5."""
    number = int(request["messages"][1]["content"].split()[1][:-1])
    if request["messages"][-1]["role"] == "tool":
        return "No idea." if number == 5 else f"It is {request['messages'][-1]['content']}."
    function = {"name": "double", "arguments": json.dumps({"a": number})}
    return Reply("Let me see.", tool_calls=[{"id": f"api_{number}", "type": "function", "function": function}])


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The folder of a record, with the program in it, and the requests that the service had."""
    folder = tmp_path_factory.mktemp("record")
    (folder / "recorded_program.py").write_text(PROGRAM)
    rows = [{"question": f"Twice {number}?", "answer": str(2 * number)} for number in (2, 3, 5)]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch, FakeService(reply) as service:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        words = ["record", "--agent", "recorded_program:agent", "--tasks", "tasks.jsonl", "--model", "better"]
        assert main([*words, "--base-url", service.url, "--out", "records", "--quiet"]) == 0
        yield folder, service.requests


def test_tasks_without_end_are_not_recorded(tmp_path, capsys):
    words = ["record", "level=easy", "--model", "better", "--base-url", "http://localhost:1", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "have no end, so training would not meet the recorded ones again: give a file" in capsys.readouterr().err


def imitator(folder, **options):
    options = {"record": str(folder / "records"), "tasks": str(folder / "tasks.jsonl"), **options}
    return Agent("recorded_program:agent", timeout=60.0, **options)


def test_service_is_given_the_programs_tools(record):
    folder, requests = record
    assert len(requests) == 6
    for request in requests:
        assert [tool["function"]["name"] for tool in request["tools"]] == ["double"]
        assert request["messages"][0] == {"role": "system", "content": "Be brief."}
        assert all(not m.get("tool_calls") or m["tool_calls"][0]["id"][:4] == "api_" for m in request["messages"])
    episodes = [json.loads(line) for line in (folder / "records" / "episodes.jsonl").read_text().splitlines()]
    assert all(episode["messages"][2]["tool_calls"][0]["function"]["name"] == "double" for episode in episodes)


@pytest.mark.parametrize("call_format", ["hermes", "react", "native"])
def test_solved_runs_are_demonstrated(record, call_format):
    env, rng = imitator(record[0], call_format=call_format), np.random.default_rng(0)
    assert env.scripts == {"demonstration"}
    solved = set()
    for index in range(3):
        env.reset(seed=0, options={"task_index": index})
        try:
            while not env.state.done:
                env.step(env.fork().demonstration(rng) if env.state.assistant_turns else env.demonstration(rng))
        except NoDemonstration:
            assert env.task.question == "Twice 5?"
        else:
            assert (env.state.stop, env.state.assistant_turns) == ("solved", 2)
            solved.add(env.task.question)
    env.close()
    assert solved == {"Twice 2?", "Twice 3?"}


class Lines:
    """A policy that says its lines."""

    def __init__(self, *lines):
        self.lines = lines

    def start(self, env, seed):
        lines = iter(self.lines)

        async def reply(conversation, tools):
            return evaluated.Reply(next(lines))

        return reply


def own(text):
    return {"role": "assistant", "content": text}


#: Programs of several conversations: the messages of their calls.
SEVERAL = {
    "going back": [[user("One?")], [user("Two?")], [user("One?"), own("Reply 0."), user("Sure?")]],
    "equal calls": [[user("One?")], [user("One?")], [user("One?")]],
    "an edited history": [[user("One?")], [user("One?"), own("Edited."), user("Two?")], [user("One?")]],
    "an example": [[user("One?"), own("Example."), user("Two?")], [user("One?")], [user("Two?")]],
}


def calling(calls):
    def agent(task, url, key):
        for call in calls:
            ask(url, key, *call)
        return 1.0

    return agent


def write_record(folder, line):
    manifest = {"environment": {"id": "textenv/agent", "options": {"call_format": "native"}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "episodes.jsonl").write_text(line + "\n")


@pytest.mark.parametrize("calls", SEVERAL.values(), ids=SEVERAL)
def test_run_of_several_contexts_is_demonstrated(tmp_path, calls):
    """Messages of the assistant that the program has written itself are no replies of the model."""
    tasks = [Task("a", "test", (user("?"),), None)]
    native = Agent(calling(calls), tasks=tasks, call_format="native")
    (run,) = play_policy(native, Lines("Reply 0.", "Reply 1.", "Reply 2."), [Job(0, 0, 0, 1)])
    write_record(tmp_path, run.to_json())
    env, rng = Agent(calling(calls), tasks=tasks, record=str(tmp_path)), np.random.default_rng(0)
    env.reset(seed=0)
    replies = []
    while not env.state.done:
        replies.append(env.demonstration(rng))
        env.step(replies[-1])
    assert (replies, env.state.stop) == (["Reply 0.", "Reply 1.", "Reply 2."], "solved")


def test_calls_in_another_order_have_their_own_replies(tmp_path):
    tasks, calls = [Task("a", "test", (user("?"),), None)], [[user("One?")], [user("Two?")], [user("Three?")]]
    native = Agent(calling(calls), tasks=tasks, call_format="native")
    (run,) = play_policy(native, Lines("1", "2", "3"), [Job(0, 0, 0, 1)])
    write_record(tmp_path, run.to_json())
    env, rng = Agent(calling(calls[::-1]), tasks=tasks, record=str(tmp_path)), np.random.default_rng(0)
    env.reset(seed=0)
    replies = []
    while not env.state.done:
        replies.append(env.demonstration(rng))
        env.step(replies[-1])
    assert replies == ["3", "2", "1"]
    equal = calling([calls[1], calls[1], calls[0]])
    (run,) = play_policy(Agent(equal, tasks=tasks, call_format="native"), Lines("1", "2", "3"), [Job(0, 0, 0, 1)])
    write_record(tmp_path, run.to_json())
    env = Agent(calling([calls[0], calls[2], calls[1]]), tasks=tasks, record=str(tmp_path))
    env.reset(seed=0)
    env.step(env.demonstration(rng))
    with pytest.raises(NotImplementedError, match="no call of the record ends with 'Three\\?'"):
        env.demonstration(rng)
    env.step("x")
    with pytest.raises(NotImplementedError, match="another order, and .* there are several replies"):
        env.demonstration(rng)


def test_changed_program_is_refused_in_words(record, monkeypatch):
    import recorded_program

    monkeypatch.setattr(recorded_program, "FACTOR", 3)
    env, rng = imitator(record[0]), np.random.default_rng(0)
    env.reset(seed=0, options={"task_index": 0})
    env.step(env.demonstration(rng))
    with pytest.raises(NotImplementedError, match="in call 2, message 3 of the program was '4' and is '6' now"):
        env.demonstration(rng)
    env.close()


def test_other_reply_leaves_the_record(record):
    env, rng = imitator(record[0]), np.random.default_rng(0)
    env.reset(seed=0, options={"task_index": 0})
    env.step('<tool_call>\n{"name": "double", "arguments": {"a": 7}}\n</tool_call>')
    with pytest.raises(NotImplementedError, match="was '4' and is '14' now") as raised:
        env.demonstration(rng)
    assert not isinstance(raised.value, NoDemonstration)
    env.close()


def test_useless_records_are_refused_in_words(record, tmp_path):
    folder = record[0]
    with pytest.raises(ValueError, match=r"it has no episodes\.jsonl"):
        imitator(folder, record=str(tmp_path))
    with pytest.raises(ValueError, match="give either expert or record"):
        imitator(folder, expert="recorded_program:agent")
    for number, (name, old, new, words) in enumerate(
        (
            ("episodes.jsonl", '"success":true', '"success":false', "no run of the record is solved"),
            ("episodes.jsonl", '"assistant_turns":2', '"assistant_turns":9', "2 replies of the assistant for 9 turns"),
            ("manifest.json", '"native"', '"hermes"', "call format 'hermes'"),
            ("manifest.json", '"textenv/agent"', '"textenv/gsm8k"', "not of textenv/agent"),
        )
    ):
        damaged = tmp_path / str(number)
        damaged.mkdir()
        for file in ("manifest.json", "episodes.jsonl"):
            text = (folder / "records" / file).read_text()
            (damaged / file).write_text(text.replace(old, new) if file == name else text)
        with pytest.raises(ValueError, match=words):
            imitator(folder, record=str(damaged))


def test_trainer_imitates_solved_runs_alone(record):
    demonstrations = pytest.importorskip("trainers.rollout.demonstrations", exc_type=ImportError)
    env = imitator(record[0])
    played = list(demonstrations.play(env, 6, seed=0))
    questions = {demonstration.messages[1]["content"] for demonstration in played}
    assert questions == {"Twice 2?", "Twice 3?"}
    assert all(demonstration.imitate == (1.0, 1.0) for demonstration in played)
    env.close()
