"""Programs in this process: turns, rewards, ends, contexts, forks."""

import asyncio
import dataclasses
import gc
import json
import pickle
import threading
import time
import urllib.error

import pytest
from agent_kit import PARAMETERS, TASKS, TOOL, ask, make, talk

from textenvs.env import EnvironmentFailure
from textenvs.envs.agent import Agent
from textenvs.gateway.server import gateway
from textenvs.messages import assistant, user
from textenvs.tools.call_format import call

CALL = '<tool_call>\n{"name": "double", "arguments": {"a": 2}}\n</tool_call>'


def one_answer(task, url, key):
    return task.ground_truth in ask(url, key, user(task.question))["content"]


def with_openai(task, url, key):
    """Call tools as the documentation of OpenAI's client does."""
    import openai

    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": task.question}]
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        while True:
            completion = client.chat.completions.create(model="any", messages=messages, tools=[TOOL])
            reply = completion.choices[0].message
            messages.append(reply)
            if not reply.tool_calls:
                return {"right": float(task.ground_truth in reply.content), "short": 0.5}
            for made in reply.tool_calls:
                value = str(2 * json.loads(made.function.arguments)["a"])
                messages.append({"role": "tool", "tool_call_id": made.id, "content": value})


async def with_anthropic(task, url, key):
    import anthropic

    declared = {"name": "double", "description": "Double.", "input_schema": PARAMETERS}
    messages = [{"role": "user", "content": task.question}]
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
        while True:
            request = {
                "model": "any",
                "max_tokens": 9,
                "system": "Be brief.",
                "messages": messages,
                "tools": [declared],
            }
            async with client.messages.stream(**request) as stream:
                reply = await stream.get_final_message()
            messages.append({"role": "assistant", "content": reply.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": str(2 * block.input["a"])}
                for block in reply.content
                if block.type == "tool_use"
            ]
            if not results:
                return {"right": float(task.ground_truth in reply.content[0].text), "short": 0.5}
            messages.append({"role": "user", "content": results})


@pytest.mark.parametrize(
    "agent", [with_openai, pytest.param(with_anthropic, marks=pytest.mark.xdist_group("anthropic"))]
)
def test_stock_client_plays_with_tools(agent):
    env = make(agent)
    opening = env.state.messages
    assert [message["role"] for message in opening] == ["system", "user"]
    assert opening[0]["content"].startswith("Be brief.\n\nYou can call these tools:")
    conversation, reward, *_, info = env.step(f"Let me see.\n{CALL}")
    assert conversation[-1] == {"role": "tool", "content": "4", "tool_call_id": "call_0", "name": "double"}
    assert (reward, info["stop"]) == (0.0, None)
    _, reward, terminated, _, info = env.step("<think>Twice 2.</think>It is 4.")
    assert (reward, terminated, info["stop"]) == (1.5, True, "solved")
    assert info["terms"] == {"right": 1.0, "short": 0.5}


# ------------------------------------------------------------------ ends


def raising(task, url, key):
    ask(url, key, user("?"))
    raise LookupError("no such page")


def exiting(task, url, key):
    ask(url, key, user("?"))
    raise SystemExit(3)


def hanging(task, url, key):
    ask(url, key, user("?"))
    threading.Event().wait(60)


def silent(task, url, key):
    return 1.0


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def mute(task, url, key):
    ask(url, key, user("?"))
    raise Mute


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (raising, "LookupError: no such page"),
        (exiting, "SystemExit: 3"),
        (mute, "Mute: it cannot be written"),
        (hanging, "nor ended within 0.3 s"),
    ],
)
def test_broken_program_ends_the_episode(agent, words):
    env = make(agent)
    if agent is hanging:  # only now: on a busy machine a program may start slowly
        episode = env._live[2]
        episode._settings = dataclasses.replace(episode._settings, timeout=0.3)
    _, reward, terminated, truncated, info = env.step("x")
    assert (reward, terminated, truncated, info["stop"]) == (0.0, True, False, "program_error")
    assert not info["failed"]
    assert words in info["reason"]
    assert f"{__name__}:{agent.__name__}" in info["reason"]


def test_program_may_report_a_failure_itself():
    def agent(task, url, key):
        ask(url, key, user("?"))
        raise EnvironmentFailure("tool_failed", "the database is gone")

    _, _, terminated, truncated, info = make(agent).step("x")
    assert (terminated, truncated, info["stop"], info["failed"]) == (False, True, "tool_failed", True)
    assert info["failure"] == "the database is gone"


def test_future_of_another_episode_is_named():
    async def agent(task, url, key):
        ask(url, key, user("?"))
        futures.append(asyncio.get_running_loop().create_future())
        return 1.0 if len(futures) == 1 else await futures[0]

    futures = []
    env = make(agent)
    assert env.step("x")[1] == 1.0
    env.reset(options={"task_index": 0})
    assert "has an event loop of its own in each episode: create its client" in env.step("x")[-1]["reason"]


def test_program_without_a_call_fails_reset():
    with pytest.raises(EnvironmentFailure, match="ended before it called the model"):
        make(silent)
    with pytest.raises(EnvironmentFailure, match="within 0.2 s"):
        make(lambda task, url, key: threading.Event().wait(2), timeout=0.2)


def test_call_after_the_end_is_refused():
    refused = []

    def agent(task, url, key):
        try:
            talk(task, url, key)
        except urllib.error.HTTPError as error:
            refused.append((error.code, json.load(error)["error"]["message"]))
        try:
            ask(url, key, user("?"))
        except urllib.error.HTTPError as error:
            refused.append((error.code, json.load(error)["error"]["message"]))
            ended.set()

    ended = threading.Event()
    env = make(agent, max_assistant_turns=1)
    _, _, terminated, truncated, info = env.step("x")
    assert (terminated, truncated, info["stop"]) == (False, True, "max_assistant_turns")
    assert ended.wait(60)
    assert refused[0] == (410, "this episode is over: its model gives no further reply")
    assert refused[1] == refused[0]


# ------------------------------------------------------------------ contexts


def beginning_anew(task, url, key):
    ask(url, key, user("One?"))
    ask(url, key, user("Two?"))
    return 1.0


def changing_tools(task, url, key):
    reply = ask(url, key, user("One?"))
    ask(url, key, user("One?"), reply, user("And?"), tools=[TOOL])
    return 1.0


async def parallel(task, url, key):
    await asyncio.gather(*(asyncio.to_thread(ask, url, key, user(text)) for text in ("One?", "Two?")))
    return 1.0


@pytest.mark.parametrize("agent", [beginning_anew, changing_tools, parallel])
def test_other_conversations_are_contexts(agent):
    env = make(agent)
    opening = env.state.messages
    observation, *_, info = env.step("x")
    assert not info["failed"]
    assert env.state.contexts == ((*opening, assistant("x")),)
    if agent is changing_tools:
        assert observation[0]["content"].startswith("You can call these tools:")
        assert observation[1:] == (user("One?"), assistant("x"), user("And?"))
        assert env.tool_schemas == [TOOL]
    else:
        assert sorted(m["content"] for m in (*opening, *observation)) == ["One?", "Two?"]
    assert env.step("y")[2]


def test_contexts_have_a_limit():
    env = make(beginning_anew, max_contexts=1)
    _, reward, terminated, truncated, info = env.step("x")
    assert (reward, terminated, truncated, info["stop"]) == (0.0, True, False, "program_error")
    assert "it may begin 1; raise the option max_contexts, or leave it out for no limit" in info["reason"]
    assert "message 0 (user) was 'One?' (user) and is 'Two?' now" in info["reason"]


def compacting(task, url, key):
    """Compact the history to a summary that the model writes, and go back to a sub-agent's conversation."""
    main = [user("One?")]
    main.append(ask(url, key, *main, tools=[TOOL]))
    main.append({"role": "tool", "tool_call_id": main[1]["tool_calls"][0]["id"], "content": "4"})
    summary = ask(url, key, *main, user("Summarise."), tools=[TOOL])
    aside = [{"role": "system", "content": "Check."}, user("2 + 2?")]
    aside.append(ask(url, key, *aside))
    compacted = [user(f"So far: {summary['content']}"), *main[1:]]
    ask(url, key, *compacted, tools=[TOOL])
    return float(ask(url, key, *aside, user("Sure?"))["content"] == "Yes.")


def test_compaction_and_sub_agents_are_contexts():
    env = make(compacting)
    observation, *_ = env.step(f"<think>Twice.</think>{CALL}")
    results = [env.step(text) for text in ("It was 4.", "Four.", "Well.", "Yes.")]
    first, aside, compacted, back, _ = observation, *(result[0] for result in results)
    assert first[-2:] == (
        {"role": "tool", "content": "4", "tool_call_id": "call_0", "name": "double"},
        user("Summarise."),
    )
    assert aside == ({"role": "system", "content": "Check."}, user("2 + 2?"))
    # The compacted history has the call as the policy writes calls.
    assert [message["role"] for message in compacted] == ["system", "user", "assistant", "tool"]
    assert compacted[1:3] == (user("So far: It was 4."), {**assistant(CALL), "reasoning_content": "Twice."})
    assert back == (*aside, assistant("Four."), user("Sure?"))
    assert results[-1][1:3] == (1.0, True)
    assert env.state.contexts == ((*first, assistant("It was 4.")), (*compacted, assistant("Well.")))


def branching(task, url, key):
    """Ask twice after the same reply, as a search over replies does."""
    start = [user("One?")]
    start.append(ask(url, key, *start))
    for text in ("Left?", "Right?"):
        ask(url, key, *start, user(text))
    return 1.0


def test_branches_begin_with_the_policys_own_words():
    env = make(branching)
    first, *_ = env.step("<think>Hm.</think> Well.")
    second, *_ = env.step("Left.")
    assert first[-2] == second[-2] == assistant("<think>Hm.</think> Well.")
    assert (first[-1], second[-1]) == (user("Left?"), user("Right?"))
    fork = env.fork()
    assert fork.step("Right.") == env.step("Right.")


# ------------------------------------------------------------------ forks


def test_forks_snapshots_and_copies_continue_alike():
    env = make(talk)
    env.step("a")
    fork, saved, moved = env.fork(), env.snapshot(), pickle.loads(pickle.dumps(env))
    results = [[one.step("b"), one.step("stop")] for one in (env, fork, moved)]
    env.restore(saved)
    assert results == [[env.step("b"), env.step("stop")]] * 3


def fickle(task, url, key):
    ask(url, key, user(f"{time.monotonic_ns()}?"))
    return 1.0


def test_program_that_varies_cannot_fork():
    env = make(fickle)
    *_, info = env.fork().step("x")
    assert "can neither be forked nor restored" in info["failure"]
    assert not env.step("x")[-1]["failed"]


def test_abandoned_episodes_leave_no_session():
    env = make(talk)
    before = gateway().sessions
    fork = env.fork()
    fork.step("a")
    assert gateway().sessions == before + 1
    del fork
    gc.collect()
    assert gateway().sessions == before
    env.close()
    assert gateway().sessions == before - 1


def test_blocking_coroutine_stops_no_other_program():
    blocked, go = threading.Event(), threading.Event()

    async def agent(task, url, key):
        ask(url, key, user("?"))
        blocked.set()
        go.wait(60)  # which blocks its event loop
        return 1.0

    env = make(agent)
    stepped = threading.Thread(target=env.step, args=("x",))
    stepped.start()
    assert blocked.wait(60)
    assert make(one_answer).step("4")[1] == 1.0
    go.set()
    stepped.join(60)
    assert env.state.terminated


# ------------------------------------------------------------------ tools and formats


def one_call(task, url, key, **options):
    reply = ask(url, key, user("?"), tools=[TOOL], **options)
    replies.append(reply)
    if reply.get("tool_calls"):
        results = [{"role": "tool", "tool_call_id": made["id"], "content": "4"} for made in reply["tool_calls"]]
        ask(url, key, user("?"), reply, *results, tools=[TOOL])
    return 1.0


replies = []


def test_react_gives_results_as_observations():
    env = make(one_call, call_format="react")
    conversation, *_ = env.step('Thought: Now.\nAction: double\nAction Input: {"a": 2}')
    assert conversation[-1] == user("Observation: 4")


def test_whole_messages_keep_their_calls():
    env = make(one_call, call_format="native")
    assert env.tools_not_in_prompt == [TOOL]
    assert [message["role"] for message in env.state.messages] == ["user"]
    conversation, *_ = env.step(assistant("", [call("double", a=2)]))
    assert conversation[-1]["content"] == "4"


def test_tools_are_known_before_the_first_reset():
    env = Agent(one_call, tasks=TASKS, tools_in_prompt=False)
    assert env.tools_not_in_prompt == env.tool_schemas == [TOOL]
    assert [message["role"] for message in env.reset(seed=0)[0]] == ["user"]
    assert Agent(one_call, tasks=TASKS).tools_not_in_prompt == []


def test_unreadable_call_reaches_the_program_as_text():
    env, broken = make(one_call), '<tool_call>\n{"name": "double", "argum'
    env.step(broken)
    assert replies[-1]["content"] == broken
    assert "tool_calls" not in replies[-1]


def test_half_a_character_in_a_call_is_cleaned():
    make(one_call).step('<tool_call>\n{"name": "\\ud800", "arguments": {}}\n</tool_call>')
    assert replies[-1]["tool_calls"][0]["function"]["name"] == "\ufffd"


def test_wishes_on_the_reply_are_kept():
    def no_call(task, url, key):
        return one_call(task, url, key, tool_choice="none")

    def single(task, url, key):
        return one_call(task, url, key, parallel_tool_calls=False)

    def stopped(task, url, key):
        return one_call(task, url, key, stop=["\n", "END"])

    make(no_call).step(CALL)
    assert "tool_calls" not in replies[-1]
    make(single).step(f"{CALL}\n{CALL}")
    assert len(replies[-1]["tool_calls"]) == 1
    make(stopped).step("It is 4. END of it.\nReally.")
    assert replies[-1]["content"] == "It is 4. "


# ------------------------------------------------------------------ options


def test_tasks_are_rows_of_any_kind(tmp_path):
    rows = [{"question": "Twice 2?", "answer": 4, "hint": "add"}, {"prompt": [user("Twice 3?")]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = Agent(one_answer, tasks=tmp_path / "rows.jsonl").tasks
    assert [tasks[i].question for i in range(2)] == ["Twice 2?", "Twice 3?"]
    assert [(tasks[i].ground_truth, tasks[i].extra) for i in range(2)] == [(4, {"hint": "add"}), (None, {})]
    (tmp_path / "bad.jsonl").write_text('{"text": "?"}\n')
    with pytest.raises(ValueError, match="none of the columns question, prompt"):
        Agent(one_answer, tasks=tmp_path / "bad.jsonl")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent": one_answer, "command": "true"}, "not both"),
        ({"agent": "no.such:thing"}, "agent='no.such:thing': there is no module"),
        ({"agent": f"{__name__}:nothing"}, "has no 'nothing'"),
        ({"command": ""}, "command: it must be a command"),
        ({"command": "true", "files": "/no/such"}, "files: /no/such is no folder"),
        ({"files": "."}, "files are for a command"),
        ({"call_format": "xml"}, "call_format must be one of"),
        ({"timeout": 0}, "timeout"),
        ({"scorer": "x"}, "scorer must be a callable"),
    ],
)
def test_bad_options_are_refused_in_words(options, words):
    with pytest.raises(ValueError, match=words):
        Agent(**options)


def test_program_without_scripts_has_no_expert():
    env = make(talk)
    assert env.scripts == frozenset()
    with pytest.raises(NotImplementedError, match="expert="):
        env.demonstration(None)
    assert Agent().scripts == {"demonstration", "careless_reply"}
    assert [attack.name for attack in env.attacks()] == [attack.name for attack in Agent().attacks()][
        : len(env.attacks())
    ]
