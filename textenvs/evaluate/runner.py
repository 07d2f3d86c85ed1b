"""Playing the episodes of an evaluation, many at a time.

Each of ``concurrency`` workers has an environment of its own and takes the next job when its episode is over, so a long
episode holds up no other. What goes wrong is data: a simulator, a service or an environment that fails, or takes too
long, gives a *failed* record, and only failures in a row, which say that something is broken, stop the evaluation.

With a time limit for steps, hooks run in threads. A thread cannot be stopped: one that hangs is left behind with its
environment, and its worker gets a new one. An asynchronous hook that blocks the event loop has no limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from ..chat.errors import BudgetExceeded, CacheError
from ..env import EnvironmentFailure, TextEnv, check_numbers
from ..messages import Messages, clean_text, copy_messages
from ..options import check_timeout
from ..text import excerpt, quoted
from ..threads import Threads, reset_in_thread, step_in_thread
from ..tool_env import ToolState
from .plan import Job
from .policies import OutOfContext, Player, Policy, PolicyFailure, Reply, Stop, ToolSchemas
from .progress import Tally
from .records import Record

Number = TypeVar("Number", int, float)

#: The environment's word for success.
SOLVED = "solved"

#: Stops of failed episodes that the environment did not report itself.
ENV_FAILED, POLICY_FAILED, TIMED_OUT = "env_failed", "policy_failed", "timed_out"

#: The stop of an episode whose conversation has outgrown the policy's context: truncated, and not failed.
MAX_CONTEXT = "max_context"

_FAILURE_CHARS = 1000  # of the words for what failed
_CLOSE_S = 10.0  # how long an environment may take to close

# A turn's own numbers among the metrics of environments with tools; a record has the episode's.
_TOOL_COUNTS = {"tool_calls", "tool_errors"}


class Stopped(Exception):
    """The evaluation could not go on; the message has the cause. What was finished is kept."""


async def run(
    jobs: Iterable[Job],
    make_env: Callable[[], TextEnv[Any]],
    policy: Policy,
    *,
    on_record: Callable[[Record], None],
    concurrency: int = 16,
    max_failures: int = 8,
    step_timeout_s: float | None = None,
    episode_timeout_s: float | None = None,
    tally: Tally | None = None,
) -> None:
    """Play all jobs.

    Failures that directly follow one another are reported when a success, or the end, follows: where the evaluation
    stops because of them, they are not reported, so that they are played again.

    Args:
        jobs: What to play.
        make_env: Makes an environment; called once a worker. Each is closed at the end.
        policy: Who replies.
        on_record: Called with each finished episode, in the order in which they finish.
        concurrency: How many episodes are played at a time.
        max_failures: Stop after this many failed episodes in a row.
        step_timeout_s: Seconds that an environment may take for a reset or a step; ``None`` for no limit.
        episode_timeout_s: Seconds that an episode may take, with the policy's replies; ``None`` for no limit.
        tally: Counts what happens, while it happens.

    Raises:
        Stopped: Too many failures in a row, or the policy cannot go on.
        ValueError: ``concurrency`` or ``max_failures`` is below 1, or a time limit is not above 0.
    """
    for name, limit in (("step_timeout_s", step_timeout_s), ("episode_timeout_s", episode_timeout_s)):
        check_timeout(name, limit)
    for name, value in (("concurrency", concurrency), ("max_failures", max_failures)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    left = iter(jobs)
    streak: list[Record] = []
    threads = Threads(concurrency)
    tally = Tally() if tally is None else tally
    stopping = False

    def finished(record: Record) -> None:
        nonlocal stopping
        tally.finished(record)
        if not record.failed:
            while streak and not stopping:
                on_record(streak.pop(0))
            on_record(record)
        else:
            streak.append(record)
        if len(streak) >= max_failures and not stopping:
            stopping = True
            raise Stopped(f"{len(streak)} episodes in a row failed; the last one: {record.stop}: {record.failure}")

    async def work(first: Job) -> None:
        calls = Calls(make_env(), threads, step_timeout_s)
        try:
            job: Job | None = first
            while job is not None:
                tally.running += 1
                try:
                    record = await play(job, calls, policy, episode_timeout_s=episode_timeout_s, tally=tally)
                except Stop as stop:
                    raise Stopped(str(stop)) from stop
                finally:
                    tally.running -= 1
                finished(record)
                job = next(left, None)
                if calls.hangs and job is not None:
                    calls = Calls(make_env(), threads, step_timeout_s)
                await asyncio.sleep(0)  # scripts never wait, and others have a turn
        finally:
            await calls.close()

    workers: list[asyncio.Task[None]] = []
    try:
        for job in left:
            workers.append(asyncio.create_task(work(job)))
            if len(workers) == concurrency:
                break
        await asyncio.gather(*workers)
        while streak:
            on_record(streak.pop(0))
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class Calls:
    """The calls of one environment: on the event loop, or in threads where they may block or have a time limit.

    Args:
        env: The environment.
        threads: The threads of the evaluation.
        timeout_s: Seconds that a reset or a step may take; ``None`` for no limit.
    """

    def __init__(self, env: TextEnv[Any], threads: Threads, timeout_s: float | None = None) -> None:
        self.env = env
        self.hangs = False  # whether a thread was given up that may still be at work in the environment
        self._threads = threads
        self._timeout_s = timeout_s

    async def reset(self, seed: int, options: dict[str, Any]) -> Any:
        """:meth:`TextEnv.reset`."""
        if self._timeout_s is None and not self.env.blocking:
            return await self.env.areset(seed=seed, options=options)
        return await self._limited("reset", reset_in_thread(self.env, self._in_thread, seed=seed, options=options))

    async def step(self, action: Any) -> Any:
        """:meth:`TextEnv.step`."""
        if self._timeout_s is None and not self.env.blocking:
            return await self.env.astep(action)
        return await self._limited("step", step_in_thread(self.env, self._in_thread, action))

    async def close(self) -> None:
        """Close the environment, unless a call hangs in it."""
        if self.hangs:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                if self.env.blocking:
                    await self._in_thread(self.env.close)
                else:
                    await self.env.aclose()

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        begun = await self._threads.begin(call, beyond=True)  # each worker has one call at a time
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            self.hangs = not begun.done()
            raise

    async def _limited(self, what: str, work: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s) as clock:
                return await work
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise _Over(ENV_FAILED, f"the environment's {what} took longer than {self._timeout_s:g} s") from error


async def play(
    job: Job,
    calls: Calls,
    policy: Policy,
    *,
    episode_timeout_s: float | None = None,
    tally: Tally | None = None,
) -> Record:
    """Play one episode.

    Args:
        job: Which one.
        calls: Of the environment that plays it.
        policy: Replies.
        episode_timeout_s: Seconds that it may take; ``None`` for no limit.
        tally: Counts its turns.

    Raises:
        Stop: The policy, or a simulated user or judge of the environment, cannot go on.
    """
    episode = _Episode(job, calls, Tally() if tally is None else tally)
    clock = asyncio.timeout(episode_timeout_s)
    try:
        async with clock:
            await episode.open()
            player = policy.start(calls.env, job.seed)
            while not episode.over:
                await episode.step(await episode.ask(player))
    except _Over as over:
        return episode.cut_off(over)
    except TimeoutError:
        if not clock.expired():
            raise
        return episode.cut_off(_Over(TIMED_OUT, f"the episode took longer than {episode_timeout_s:g} s"))
    return episode.record


class _Over(Exception):
    """The episode ends here, because something went wrong."""

    def __init__(self, stop: str, failure: str | None) -> None:
        super().__init__(stop, failure)
        self.stop = stop
        self.failure = failure


class _Episode:
    """A record while it grows."""

    def __init__(self, job: Job, calls: Calls, tally: Tally) -> None:
        self.env = env = calls.env
        self.job = job
        self.over = False
        self.conversation: Messages = ()
        self.record = Record(job.task, job.sample, job.seed, job.task_index, task_key="", data_source="")
        self._calls = calls
        self._tally = tally
        self._tools = tools_of(env)

    async def open(self) -> None:
        seed, options = self.job.seed, {"task_index": self.job.task_index}
        with _environments_errors():
            self.conversation, info = await self._calls.reset(seed, options)
        self.record = replace(self.record, task_key=info["task_key"], data_source=info["data_source"])

    async def ask(self, player: Player) -> Reply:
        try:
            reply = await player(self.conversation, self._tools)
        except Stop:
            raise
        except OutOfContext as error:
            # A first request that does not fit says that the settings do not, and nothing about the policy.
            raise (
                _Over(MAX_CONTEXT, None) if self.record.assistant_turns else _Over(POLICY_FAILED, str(error))
            ) from error
        except PolicyFailure as error:
            raise _Over(POLICY_FAILED, str(error)) from error
        except Exception as error:
            raise _Over(POLICY_FAILED, describe_error(error)) from error
        if not self.env.action_space.contains(reply.action):
            raise _Over(POLICY_FAILED, f"{quoted(reply.action)} is neither text nor an assistant message")
        return reply

    async def step(self, reply: Reply) -> None:
        with _environments_errors():
            result = await self._calls.step(reply.action)
        self._tally.turns += 1
        self._tally.completion_tokens += reply.completion_tokens or 0
        self.conversation, reward, terminated, truncated, info = result
        old, state = self.record, self.env.state
        terms = dict(old.terms)
        for name, value in info["terms"].items():
            terms[name] = terms.get(name, 0.0) + value
        with _environments_errors():
            check_numbers("an episode's rewards and terms, summed,", {"return": old.total + reward, **terms})
            check_numbers("the metrics", info["metrics"])
        self.over = terminated or truncated
        self.record = replace(
            old,
            success=terminated and info["stop"] == SOLVED,
            turn_rewards=(*old.turn_rewards, reward),
            terms=terms,
            metrics={**old.metrics, **{k: v for k, v in info["metrics"].items() if k not in _TOOL_COUNTS}},
            assistant_turns=info["assistant_turns"],
            user_turns=info["user_turns"],
            tool_calls=state.calls_made if isinstance(state, ToolState) else None,
            tool_errors=state.tool_errors if isinstance(state, ToolState) else None,
            terminated=terminated,
            truncated=truncated,
            stop=info["stop"],
            failed=info["failed"],
            failure=excerpt(info["failure"], _FAILURE_CHARS) if info["failed"] else None,
            prompt_tokens=_add(old.prompt_tokens, reply.prompt_tokens),
            completion_tokens=_add(old.completion_tokens, reply.completion_tokens),
            cut_replies=old.cut_replies + reply.cut,
            cost=_add(old.cost, reply.cost),
            messages=self.conversation,
            notes=_noted(old, reply),
        )

    def cut_off(self, over: _Over) -> Record:
        return replace(
            self.record,
            success=False,
            truncated=True,
            stop=over.stop,
            failed=over.failure is not None,
            failure=None if over.failure is None else excerpt(clean_text(over.failure), _FAILURE_CHARS),
            messages=copy_messages(self.env.state.messages),
        )


@contextmanager
def _environments_errors() -> Iterator[None]:
    """What an environment raises ends its episode; a budget or a cache that is at its end ends the evaluation."""
    try:
        yield
    except (BudgetExceeded, CacheError) as error:
        raise Stop(f"a simulated user or judge cannot go on: {error}") from error
    except EnvironmentFailure as failure:
        raise _Over(failure.stop, failure.reason) from failure
    except _Over:
        raise
    except Exception as error:
        raise _Over(ENV_FAILED, describe_error(error)) from error


def tools_of(env: TextEnv[Any]) -> ToolSchemas:
    """The schemas that a policy must be given because the conversation does not have them."""
    return getattr(env, "tools_not_in_prompt", ()) or ()  # of a ToolEnv, here or elsewhere


def describe_error(error: BaseException) -> str:
    """An exception in one line: its type, what it says, and where it was raised."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {excerpt(str(error), _FAILURE_CHARS // 2)} ({place})"


def _noted(old: Record, reply: Reply) -> tuple[Any, ...]:
    """The notes of all turns, ``None`` for one without."""
    if reply.notes is None and not old.notes:
        return ()
    return (*old.notes, *[None] * (len(old.turn_rewards) - len(old.notes)), reply.notes)


def _add(total: Number | None, more: Number | None) -> Number | None:
    if total is None or more is None:
        return more if total is None else total
    return total + more
