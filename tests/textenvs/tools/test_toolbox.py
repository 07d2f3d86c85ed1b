"""Tool calls run in order and concurrently, and every error is reported to the model."""

import asyncio
import pickle
import threading
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.env import EnvironmentFailure, EpisodeState
from textenvs.tools import Toolbox, ToolError, call, tool
from textenvs.tools.toolbox import ERRORS, shorten


@dataclass
class Notes(EpisodeState):
    lines: list[str] = field(default_factory=list)


@tool
def say(text: str) -> str:
    """Say something."""
    return text


@tool
def note(state: Notes, text: str) -> int:
    """Write something down."""
    state.lines.append(text)
    return len(state.lines)


@tool
async def note_slowly(state: Notes, text: str, pauses: int = 0) -> int:
    """Write something down after some pauses."""
    for _ in range(pauses):
        await asyncio.sleep(0)
    state.lines.append(text)
    return len(state.lines)


@tool
def give(what: str) -> object:
    """Give things that are not text."""
    return {"none": None, "list": [1, 2.5, "x"], "nan": float("nan"), "surrogate": "\ud800", "unsayable": object()}[
        what
    ]


@tool
def fail(how: str) -> str:
    """Fail in several ways."""
    raise {
        "refuse": ToolError("You may not."),
        "bug": KeyError("lost"),
        "machine": EnvironmentFailure("tool_failed", "the machine is gone"),
    }[how]


@tool(timeout_s=0.02)
async def dawdle() -> str:
    """Take too long."""
    await asyncio.sleep(5)
    return "late"


@tool(timeout_s=0.02)
def dawdle_in_a_thread() -> str:
    """Take too long without giving way."""
    time.sleep(0.15)
    return "late"


@tool
async def own_timeout() -> str:
    """Raise a TimeoutError of its own."""
    raise TimeoutError("the service did not answer")


def run(box, *calls, state=None):
    return asyncio.run(box.run(calls, state or Notes()))


BOX = Toolbox([say, note, note_slowly, give, fail, dawdle, dawdle_in_a_thread, own_timeout])


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (call("sya", text="x"), "unknown_tool", ["'sya' (did you mean 'say'?)", "note_slowly"]),
        ({**call("say"), "function": {"name": "say", "arguments": '{"text'}}, "bad_json", ["say", "not closed"]),
        (call("say", text=3), "bad_arguments", ["text", "string", "not 3"]),
        (call("say"), "bad_arguments", ["text is missing"]),
        (call("fail", how="refuse"), "refused", ["You may not."]),
        (call("fail", how="bug"), "exception", ["fail failed: KeyError: 'lost'"]),
        (call("give", what="unsayable"), "exception", ["Unable to serialize"]),
        (call("dawdle"), "timeout", ["dawdle took longer than 0.02 s"]),
        (call("dawdle_in_a_thread"), "timeout", ["dawdle_in_a_thread took longer"]),
        (call("own_timeout"), "exception", ["TimeoutError: the service did not answer"]),
    ],
)
def test_errors_reach_the_model(made, error, words):
    before, after = call("say", text="before"), call("say", text="after")
    first, result, last = run(BOX, before, made, after)
    assert (first.content, last.content) == ("before", "after")
    assert (result.ok, result.error) == (False, error)
    assert error in ERRORS
    assert result.call == made
    for word in words:
        assert word in result.content
    if not BOX.needs_loop([made]):
        assert BOX.run_now([made], Notes()) == (result,)


def test_infrastructure_failure_is_raised():
    for play in (lambda *calls: run(BOX, *calls), lambda *calls: BOX.run_now(calls, Notes())):
        with pytest.raises(EnvironmentFailure, match="machine is gone"):
            play(call("say", text="x"), call("fail", how="machine"))


def test_failure_cancels_remaining_calls():
    state = Notes()

    async def play():
        calls = [call("fail", how="machine"), call("note_slowly", text="late", pauses=5)]
        with pytest.raises(EnvironmentFailure):
            await BOX.run(calls, state)
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    asyncio.run(play())
    assert state.lines == []


def test_cancelling_cancels_the_calls():
    state = Notes()

    async def play():
        running = asyncio.ensure_future(BOX.run([call("note_slowly", text="x", pauses=50)] * 3, state))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(play())
    assert state.lines == []


@pytest.mark.parametrize(
    ("what", "content"), [("none", "null"), ("list", '[1,2.5,"x"]'), ("nan", '"NaN"'), ("surrogate", "\ufffd")]
)
def test_results_beyond_text_are_json(what, content):
    (result,) = BOX.run_now([call("give", what=what)], Notes())
    assert (result.content, result.ok) == (content, True)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=6))
def test_calls_with_state_run_in_order(plan):
    calls = [
        call("note", text=str(i)) if plain else call("note_slowly", text=str(i), pauses=pauses)
        for i, (plain, pauses) in enumerate(plan)
    ]
    state = Notes()
    results = run(BOX, *calls, state=state)
    assert state.lines == [str(i) for i in range(len(plan))]
    assert [result.value for result in results] == list(range(1, len(plan) + 1))


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
def test_calls_run_concurrently_up_to_limit(limit):
    running, most = 0, 0

    @tool
    async def wait(number: int) -> int:
        """Count who is here at the same time."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - number):  # the last is ready first
            await asyncio.sleep(0)
        running -= 1
        return number

    box = Toolbox([wait], max_concurrency=limit)
    results = run(box, *(call("wait", number=i) for i in range(6)))
    assert [result.value for result in results] == list(range(6))
    assert most == min(limit, 6)


def test_blocking_tools_wait_concurrently():
    everybody = threading.Barrier(3, timeout=60)

    @tool(blocking=True)
    def meet() -> str:
        """Wait for the other two."""
        everybody.wait()
        return threading.current_thread().name

    names = [result.content for result in run(Toolbox([meet]), *[call("meet")] * 3)]
    assert threading.current_thread().name not in names


def test_surplus_calls_are_reported_unrun():
    state = Notes()
    box = Toolbox([note], max_calls_per_turn=2)
    calls = [call("note", text=str(i)) for i in range(4)]
    for results in (box.run_now(calls, state), run(box, *calls, state=state)):
        assert [result.error for result in results] == [None, None, "too_many_calls", "too_many_calls"]
        assert "at most 2 calls" in results[-1].content
    assert state.lines == ["0", "1"] * 2


@given(st.text(max_size=400), st.integers(64, 200))
def test_long_results_keep_both_ends(text, limit):
    short = shorten(text, limit)
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
    else:
        head, _, rest = short.partition("\n[... ")
        count, _, tail = rest.partition(" characters left out ...]\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert int(count) == len(text) - len(head) - len(tail)


def test_results_and_errors_are_shortened():
    long = say.replace(max_chars=100)
    loud = fail.replace(max_chars=64)
    (result,) = Toolbox([long]).run_now([call("say", text="x" * 1000)], Notes())
    assert len(result.content) <= 100
    assert "characters left out" in result.content
    assert result.value == "x" * 1000
    assert len(Toolbox([loud]).run_now([call("fail", how="bug")], Notes())[0].content) <= 64


def test_toolbox_validates_its_arguments():
    with pytest.raises(ValueError, match="two tools are called 'say'"):
        Toolbox([say, say])
    with pytest.raises(TypeError, match="not a tool"):
        Toolbox([len])
    with pytest.raises(ValueError, match="max_concurrency"):
        Toolbox([say], max_concurrency=0)
    assert pickle.loads(pickle.dumps(BOX)).tools == BOX.tools
