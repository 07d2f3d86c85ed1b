"""Play jobs: each once, many at a time, with errors as data."""

import asyncio
import gc
import io
import itertools
import re
import threading
import warnings
from dataclasses import replace

import pytest
from evaluate_envs import AsyncSay, BlockingSay, Say
from skip_time import skip
from toy_envs import Talk

from textenvs import Turn
from textenvs.chat import BudgetExceeded, CacheError
from textenvs.evaluate.plan import Job, jobs
from textenvs.evaluate.policies import (
    FunctionPolicy,
    OutOfContext,
    PolicyFailure,
    Reply,
    ScriptedPolicy,
    Stopped,
    load_function,
)
from textenvs.evaluate.records import Record
from textenvs.evaluate.runner import Stats, play, run, show_progress, tools_of
from textenvs.evaluate.summary import report, summarize
from textenvs.messages import assistant, user
from textenvs.threads import Calls

ROLES = {"solver": 6.0, "critic": 4.0}  # what their turns earn: 1 + 2 + 3 and 4, and the judge does not act
KINDS = (Say, AsyncSay, BlockingSay)


def played(planned, make_env, policy, **options):
    records = []
    asyncio.run(run(planned, make_env, policy, on_record=records.append, **options))
    return records


def calls(env):
    return Calls(env)


def by_place(records):
    assert len({record.place for record in records}) == len(records)
    return {record.place: record for record in records}


def test_roles_have_returns_of_their_own():
    policy = TaskPolicy(lambda task, turn: ["solver", "solver", "critic", "end"][turn])
    (record,) = played(jobs([0], 1, 0), Talk, policy)
    assert {role: terms["paid"] for role, terms in record.role_terms.items()} == ROLES
    assert record.context_roles == ("solver", "critic")
    assert (len(record.contexts), record.reply_places) == (1, ((0, 1), (0, 3), (0, 5), (1, 1)))
    assert Record.from_json(record.to_json()) == record
    assert {name: value for name, value in record.to_row().items() if name.startswith("return")} == {
        "return": 10.0,
        "return/solver": 6.0,
        "return/critic": 4.0,
    }
    summary = summarize([record])
    assert {role: own["return"]["value"] for role, own in summary["all"]["roles"].items()} == ROLES
    assert re.search(r"return of critic +\+4.000.*\n  paid +\+4.000", report(summary))


class TaskPolicy:
    """Replies as ``say(task number, turn)`` decides: text, an exception to raise, or something to await."""

    def __init__(self, say):
        self.say = say

    def start(self, env, seed):
        turns = iter(range(100))

        async def reply(conversation, tools):
            reply_or_error = self.say(env.state.task_index, next(turns))
            reply_or_error = await reply_or_error if asyncio.iscoroutine(reply_or_error) else reply_or_error
            if isinstance(reply_or_error, Exception):
                raise reply_or_error
            return reply_or_error if isinstance(reply_or_error, Reply) else Reply(reply_or_error)

        return reply

    async def aclose(self):
        pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("concurrency", [1, 4, 50])
def test_every_job_is_played_once(kind, concurrency):
    planned = list(jobs(range(6), 3, seed=1))
    policy = TaskPolicy(lambda task, turn: str(task) if turn == task % 3 else "no")
    records = by_place(played(planned, kind, policy, concurrency=concurrency))
    assert set(records) == {job.place for job in planned}
    assert records == by_place(played(planned, Say, policy, concurrency=1))


def test_record_has_environments_results():
    job = Job(task=4, sample=2, task_index=5, seed=77)
    replies = ["no", "five", "5"]
    record = asyncio.run(
        play(job, calls(Say()), TaskPolicy(lambda task, turn: Reply(replies[turn], 10, 2, turn == 1, 0.5)))
    )
    env = Say()
    env.reset(seed=77, options={"task_index": 5})
    steps = [env.step(reply) for reply in replies]
    assert record.messages == steps[-1][0]
    assert record.turn_rewards == tuple(step[1] for step in steps) == (0.0, -0.25, 0.75)
    assert record.terms == {"right": 1.0, "late": -0.5}
    assert sum(record.terms.values()) == record.total
    assert record.metrics == {"size": 1.0}
    assert (record.success, record.terminated, record.truncated, record.stop) == (True, True, False, "solved")
    assert (record.assistant_turns, record.user_turns) == (3, 2)
    assert (record.prompt_tokens, record.completion_tokens, record.cut_replies, record.cost) == (30, 6, 1, 1.5)
    assert (record.task_key, record.data_source, record.place) == ("number/5", "source1", (4, 2))
    assert not record.failed


def test_uncounted_tokens_are_unknown():
    record = asyncio.run(play(Job(0, 0, 0, 0), calls(Say()), ScriptedPolicy("expert")))
    assert (record.prompt_tokens, record.completion_tokens, record.cost) == (None, None, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("reply", "stop", "failure"),
    [
        ("#", "user_failed", "the user hung up"),
        ("!", "env_failed", "RuntimeError: a bug (.*evaluate_envs.py:"),
        (PolicyFailure("no answer after 5 tries"), "policy_failed", "no answer after 5 tries"),
        (ZeroDivisionError("mine"), "policy_failed", "ZeroDivisionError: mine"),
        (7, "policy_failed", "7 is neither text nor an assistant message"),
        ({"role": "user", "content": "x"}, "policy_failed", "is neither text nor"),
    ],
)
def test_failure_costs_only_its_episode(kind, reply, stop, failure):
    policy = TaskPolicy(lambda task, turn: reply if task == 2 and turn == 1 else "no" if turn == 0 else str(task))
    records = by_place(played(jobs(range(6), 1, seed=0), kind, policy, concurrency=2))
    bad = records.pop((2, 0))
    assert (bad.failed, bad.success, bad.truncated, bad.stop) == (True, False, True, stop)
    assert re.search(failure.replace("(", r"\("), bad.failure)
    assert bad.messages[-1]["role"] in ("user", "assistant")
    assert all(record.success and not record.failed for record in records.values())


def test_conversation_beyond_context_ends_and_counts():
    """Unless not even its beginning fits: that is the settings' fault."""
    full = OutOfContext("4097 tokens do not fit into 4096")
    policy = TaskPolicy(lambda task, turn: full if turn == (task == 1) else "no" if task == 1 else str(task))
    records = by_place(played(jobs(range(2), 1, seed=0), Say, policy))
    late, early = records[1, 0], records[0, 0]
    assert (late.failed, late.success, late.truncated, late.stop, late.failure) == (
        False,
        False,
        True,
        "max_context",
        None,
    )
    assert (late.turn_rewards, late.assistant_turns) == ((0.0,), 1)
    assert (early.failed, early.stop, early.failure) == (True, "policy_failed", str(full))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", ["opening", "respond"])
@pytest.mark.parametrize("error", [BudgetExceeded, CacheError])
def test_exhausted_budget_of_user_stops_evaluation(kind, hook, error):
    class Spent(kind):
        pass

    def raises(self, argument):
        raise error("nothing is left")

    setattr(Spent, hook, raises)
    records = []
    with pytest.raises(Stopped, match="a simulated user or judge cannot continue: nothing is left"):
        asyncio.run(run(jobs(range(3), 1, 0), Spent, ScriptedPolicy("expert"), on_record=records.append))
    assert records == []


@pytest.mark.parametrize("kind", KINDS)
def test_failed_reset_fails_episode(kind):
    records = by_place(played(jobs(range(3), 1, 0), lambda: kind(unopened=("1",)), ScriptedPolicy("expert")))
    assert (records[1, 0].failed, records[1, 0].stop, records[1, 0].failure) == (True, "tool_failed", "no database")
    assert records[0, 0].success
    assert records[2, 0].success


def test_consecutive_failures_stop_unreported():
    policy = TaskPolicy(lambda task, turn: str(task) if task in (0, 2) else PolicyFailure(f"down at {task}"))
    records = []
    with pytest.raises(Stopped, match="3 episodes in a row failed; the last one: policy_failed: down at 5"):
        asyncio.run(
            run(jobs(range(9), 1, 0), lambda: Say(9), policy, on_record=records.append, concurrency=1, max_failures=3)
        )
    # The failure between two successes is data; those that stopped it will be played again.
    assert [(record.task, record.failed) for record in records] == [(0, False), (1, True), (2, False)]


def test_failures_at_the_end_are_reported():
    policy = TaskPolicy(lambda task, turn: str(task) if task < 4 else PolicyFailure("down"))
    records = played(jobs(range(6), 1, 0), Say, policy, concurrency=1, max_failures=3)
    assert [record.failed for record in records] == [False] * 4 + [True] * 2


def test_stopped_policy_stops_evaluation():
    policy = TaskPolicy(lambda task, turn: Stopped("the budget is spent") if task == 3 else str(task))
    records = []
    with pytest.raises(Stopped, match="the budget is spent"):
        asyncio.run(run(jobs(range(6), 1, 0), Say, policy, on_record=records.append, concurrency=1))
    assert [record.task for record in records] == [0, 1, 2]


def test_long_episode_blocks_no_other():
    async def main():
        others_done = asyncio.Event()

        async def wait(task):
            await others_done.wait()
            return str(task)

        records = []

        def keep(record):
            records.append(record.task)
            if len(records) == 5:
                others_done.set()

        policy = TaskPolicy(lambda task, turn: wait(task) if task == 0 else str(task))
        async with asyncio.timeout(60):
            await run(jobs(range(6), 1, 0), Say, policy, on_record=keep, concurrency=2)
        return records

    assert asyncio.run(main()) == [1, 2, 3, 4, 5, 0]


def test_concurrency_is_as_requested():
    now = most = 0
    five = asyncio.Event()

    async def count(task):
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 5:
            five.set()
        await five.wait()
        await asyncio.sleep(0)
        now -= 1
        return str(task)

    played(jobs(range(6), 4, 0), Say, TaskPolicy(lambda task, turn: count(task)), concurrency=5)
    assert most == 5


def test_non_waiting_evaluation_can_be_cancelled():
    endless = (Job(number, 0, number % 6, number) for number in itertools.count())
    with pytest.raises(TimeoutError):
        asyncio.run(
            asyncio.wait_for(run(endless, Say, ScriptedPolicy("expert"), on_record=lambda record: None), timeout=0.05)
        )


def test_environments_that_block_overlap():
    """All six wait for one another; one thread would never finish."""
    barrier = threading.Barrier(6, timeout=60)

    class Together(BlockingSay):
        def respond(self, reply):
            barrier.wait()
            return super().respond(reply)

    records = played(jobs(range(6), 1, 0), Together, ScriptedPolicy("expert"), concurrency=6)
    assert all(record.success for record in records)


@pytest.mark.parametrize("ending", ["well", "stopped", "cancelled", "bad disk"])
def test_environments_are_closed(ending):
    made = []

    def make():
        made.append(Say())
        return made[-1]

    def keep(record):
        if ending == "bad disk":
            raise OSError("disk full")

    async def main():
        if ending == "cancelled":
            asyncio.current_task().cancel()
        reply = PolicyFailure("down") if ending == "stopped" else "0"
        await run(
            jobs(range(6), 1, 0),
            make,
            TaskPolicy(lambda task, turn: reply),
            on_record=keep,
            max_failures=2,
            concurrency=3,
        )

    expected_error = {"stopped": Stopped, "cancelled": asyncio.CancelledError, "bad disk": OSError}.get(ending)
    if expected_error is None:
        asyncio.run(main())
    else:
        with pytest.raises(expected_error):
            asyncio.run(main())
    assert all(env.closed == 1 for env in made)
    assert made or ending == "cancelled"


# ------------------------------------------------------------------ policies


def test_functions_of_every_kind():
    def plain(conversation):
        return conversation[0]["content"][4:-1]

    async def slow(conversation, tools):
        await asyncio.sleep(0)
        assert tools == ()
        return assistant(plain(conversation))

    for function in (plain, slow, lambda *arguments: plain(arguments[0])):
        records = played(jobs(range(6), 1, 0), Say, FunctionPolicy(function))
        assert all(record.success for record in records)


def test_function_gets_its_own_conversation():
    def spoil(conversation):
        for message in conversation:
            message["content"] = "spoiled"
        return "no"

    (record,) = played([Job(0, 0, 1, 5)], Say, FunctionPolicy(spoil))
    (clean,) = played([Job(0, 0, 1, 5)], Say, FunctionPolicy(lambda conversation: "no"))
    # Only the last observation, which no policy sees, is as it was.
    assert replace(record, messages=()) == replace(clean, messages=())
    assert record.messages == clean.messages


def test_random_replies_depend_on_episode_alone():
    planned = list(jobs(range(6), 2, seed=9))
    one = by_place(played(planned, Say, ScriptedPolicy("random"), concurrency=1))
    assert one == by_place(played(planned[::-1], Say, ScriptedPolicy("random"), concurrency=5))
    assert len({repr(record.messages) for record in one.values()}) == len(planned)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:x", "there is no module 'no_such_module'"),
        ("json:lods", "module 'json' has no 'lods'"),
        ("json:__name__", "is a str, which cannot be called"),
    ],
)
def test_names_of_no_policy(name, message):
    with pytest.raises(ValueError, match=message):
        load_function(name)


# ------------------------------------------------------------------ tools


def test_schemas_are_given_unless_in_prompt():
    from textenvs.tool_env import ToolEnv
    from textenvs.tools import tool

    @tool
    def add(a: int, b: int) -> int:
        """Add.

        Args:
            a: One.
            b: Other.
        """
        return a + b

    class Tools(ToolEnv):
        def __init__(self, **options):
            super().__init__(Say().tasks, [add], **options)

    assert tools_of(Say()) == ()
    assert tools_of(Tools()) == ()
    for env in (Tools(call_format="native"), Tools(tools_in_prompt=False)):
        assert [schema["function"]["name"] for schema in tools_of(env)] == ["add"]


# ------------------------------------------------------------------ time limits, progress, huge numbers


class Hangs(Say):
    """Hangs on ``...`` past the time limit, until the test is over."""

    released = threading.Event()
    loop = None

    def respond(self, reply):
        if reply["content"] == "...":
            skip(self.loop, 60)
            self.released.wait(100)
        return super().respond(reply)


class AsyncHangs(Hangs):
    """The same, awaited."""

    async def respond(self, reply):
        if reply["content"] == "...":
            skip(self.loop, 60)
            await asyncio.Event().wait()
        return Say.respond(self, reply)


class BlockingHangs(Hangs):
    """The same, in an environment that says so."""

    blocking = True


@pytest.mark.parametrize("kind", [Hangs, AsyncHangs, BlockingHangs])
def test_hanging_step_costs_only_its_episode(kind):
    made = []

    def make():
        made.append(kind())
        return made[-1]

    def say(task, turn):
        Hangs.loop = asyncio.get_running_loop()
        return "..." if task in (1, 3) else str(task)

    planned = list(jobs(range(6), 1, 0))
    try:
        records = by_place(played(planned, make, TaskPolicy(say), concurrency=1, step_timeout_s=60.0))
    finally:
        Hangs.released.set()
        Hangs.released = threading.Event()
    assert [records[task, 0].success for task in range(6)] == [True, False, True, False, True, True]
    for task in (1, 3):
        assert records[task, 0].stop == "env_failed"
        assert records[task, 0].failure == "the environment's step took longer than 60 s"
        assert len(records[task, 0].messages) >= 2
    assert len(made) == (1 if kind is AsyncHangs else 3)  # nothing is played where a thread may still be at work


@pytest.mark.parametrize("kind", KINDS)
def test_results_ignore_time_limits(kind):
    def outcomes(**limits):
        policy = TaskPolicy(lambda task, turn: ["no", "#", "!", str(task)][(task + turn) % 4])
        return by_place(played(jobs(range(6), 3, 0), kind, policy, max_failures=99, **limits))

    assert outcomes(step_timeout_s=30.0, episode_timeout_s=30.0) == outcomes()


def test_slow_episode_fails():
    def say(task, turn):
        if task != 2:
            return str(task)
        skip(asyncio.get_running_loop(), 60)
        return asyncio.sleep(100)

    records = by_place(played(jobs(range(4), 1, 0), Say, TaskPolicy(say), concurrency=1, episode_timeout_s=60.0))
    assert [records[task, 0].stop for task in range(4)] == ["solved", "solved", "timed_out", "solved"]
    assert records[2, 0].failed
    assert records[2, 0].failure == "the episode took longer than 60 s"


@pytest.mark.parametrize("limits", [{"step_timeout_s": 0}, {"episode_timeout_s": -1.0}, {"step_timeout_s": True}])
def test_invalid_time_limits_are_refused(limits):
    with pytest.raises(ValueError, match=next(iter(limits))):
        played([], Say, ScriptedPolicy("expert"), **limits)


def test_progress_is_counted_during_evaluation():
    stats, seen = Stats(6), []

    def say(task, turn):
        seen.append((stats.running, stats.turns, stats.episodes))
        return Reply("no" if turn == 0 else str(task), completion_tokens=5)

    played(jobs(range(6), 1, 0), Say, TaskPolicy(say), concurrency=2, stats=stats)
    assert {running for running, _, _ in seen} <= {1, 2}
    assert [turns for _, turns, _ in seen] == list(range(12))
    assert (stats.running, stats.turns, stats.completion_tokens) == (0, 12, 60)
    assert (stats.episodes, stats.solved, stats.failed) == (6, 6, 0)
    assert stats.line(10.0) == "6/6 episodes, 0 running, 12 turns, 6 tokens/s, 100.0% solved, 10 s"


def test_terminal_rewrites_line_file_appends(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    async def watched(stream):
        async with show_progress(Stats(3), stream):
            while stream.getvalue().count("0/3 episodes, 0 running, 0 turns") < 3:
                await asyncio.sleep(0.001)

    monkeypatch.setattr("textenvs.evaluate.runner._ON_TERMINAL_S", 0.001)
    monkeypatch.setattr("textenvs.evaluate.runner._ELSEWHERE_S", 0.001)
    for stream, between in ((Terminal(), "\r"), (io.StringIO(), "\n")):
        asyncio.run(watched(stream))
        assert ("\n" in stream.getvalue()) == (between == "\n")
        assert ("\x1b[K" in stream.getvalue()) == (between == "\r")


def test_overflowing_rewards_fail_their_episode():
    class Rich(Say):
        def respond(self, reply):
            return Turn([user("more")], terms={"a": 9e11, "b": -9e11})

    records = played(jobs([1], 1, 0), Rich, TaskPolicy(lambda task, turn: "x"))
    assert (records[0].stop, records[0].failed) == ("env_failed", True)
    assert "summed, must be finite numbers of at most 1e+12" in records[0].failure
    summarize(records)
    records[0].to_json()


def test_failure_text_is_short_and_printable():
    class Loud(Say):
        def respond(self, reply):
            raise RuntimeError("\x1b[2J" * 10**6)

    (record,) = played(jobs([1], 1, 0), Loud, TaskPolicy(lambda task, turn: "x"))
    assert len(record.failure) < 5000
    assert "\x1b" not in record.failure


@pytest.mark.parametrize("loop_is_over", [False, True])
@pytest.mark.parametrize("hook", ["opening", "respond"])
def test_cancelled_hook_leaves_no_unawaited_coroutine(hook, loop_is_over):
    entered, released = threading.Event(), threading.Event()

    class Waits(AsyncSay):
        """Once ``hook`` is replaced, it is at work in a thread before there is anything to await."""

    def waits(self, argument):
        entered.set()
        released.wait()
        return getattr(AsyncSay, hook)(self, argument)

    async def cancel():
        env = Waits()
        await env.areset(seed=0)
        setattr(Waits, hook, waits)
        calls = Calls(env, 60)
        called = asyncio.create_task(calls.reset(0, None) if hook == "opening" else calls.step("0"))
        await asyncio.to_thread(entered.wait)
        called.cancel()
        await asyncio.gather(called, return_exceptions=True)
        if not loop_is_over:
            released.set()
            while calls.hangs:
                await asyncio.sleep(0.01)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(cancel())
        released.set()
        for thread in threading.enumerate():
            if thread.name == "textenvs-hook":
                thread.join(60)
        gc.collect()
    assert [str(warning.message) for warning in warned] == []
