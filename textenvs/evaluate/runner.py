"""Playing the episodes of an evaluation, many at a time.

Each of ``concurrency`` workers has an environment of its own and takes the next job when its episode is over, so a long
episode holds nobody up. What goes wrong is data: a simulator, a service or an environment that fails gives a *failed*
record, and only failures in a row, which say that something is broken, stop the evaluation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ..chat.errors import BudgetExceeded, CacheError
from ..env import EnvironmentFailure, TextEnv
from ..messages import Messages, clean_text, copy_messages
from ..tool_env import ToolState
from .plan import Job
from .policies import OutOfContext, Player, Policy, PolicyFailure, Reply, Stop, ToolSchemas
from .records import Record

Number = TypeVar("Number", int, float)

#: The environment's word for success.
SOLVED = "solved"

#: Stops of failed episodes that the environment did not report itself.
ENV_FAILED, POLICY_FAILED = "env_failed", "policy_failed"

#: The stop of an episode whose conversation has outgrown the policy's context: truncated, and not failed.
MAX_CONTEXT = "max_context"

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

    Raises:
        Stopped: Too many failures in a row, or the policy cannot go on.
        ValueError: ``concurrency`` or ``max_failures`` is below 1.
    """
    for name, value in (("concurrency", concurrency), ("max_failures", max_failures)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    left = iter(jobs)
    streak: list[Record] = []
    threads: ThreadPoolExecutor | None = None
    stopping = False

    def finished(record: Record) -> None:
        nonlocal stopping
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
        nonlocal threads
        env = make_env()
        if env.blocking and threads is None:
            threads = ThreadPoolExecutor(concurrency, "textenvs-evaluate")
        try:
            job: Job | None = first
            while job is not None:
                try:
                    record = await play(job, env, policy, threads if env.blocking else None)
                except Stop as stop:
                    raise Stopped(str(stop)) from stop
                finished(record)
                job = next(left, None)
                await asyncio.sleep(0)  # scripts never wait, and the loop has interrupts to notice
        finally:
            await env.aclose()

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
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)


async def play(job: Job, env: TextEnv[Any], policy: Policy, threads: ThreadPoolExecutor | None = None) -> Record:
    """Play one episode.

    Args:
        job: Which one.
        env: Plays it.
        policy: Replies.
        threads: Where an environment that blocks is stepped; ``None`` for one that does not.

    Raises:
        Stop: The policy, or a simulated user or judge of the environment, cannot go on.
    """
    episode = _Episode(job, env, threads)
    try:
        await episode.open()
        player = policy.start(env, job.seed)
        while not episode.over:
            await episode.step(await episode.ask(player))
    except _Over as over:
        return episode.cut_off(over)
    return episode.record


class _Over(Exception):
    """The episode ends here, because something went wrong."""

    def __init__(self, stop: str, failure: str | None) -> None:
        super().__init__(stop, failure)
        self.stop = stop
        self.failure = failure


class _Episode:
    """A record while it grows."""

    def __init__(self, job: Job, env: TextEnv[Any], threads: ThreadPoolExecutor | None) -> None:
        self.env = env
        self.job = job
        self.over = False
        self.conversation: Messages = ()
        self.record = Record(job.task, job.sample, job.seed, job.task_index, task_key="", data_source="")
        self._threads = threads
        self._tools = tools_of(env)

    async def open(self) -> None:
        seed, options = self.job.seed, {"task_index": self.job.task_index}
        with _environments_errors():
            if self._threads is None:
                self.conversation, info = await self.env.areset(seed=seed, options=options)
            else:
                reset = partial(self.env.reset, seed=seed, options=options)
                self.conversation, info = await asyncio.get_running_loop().run_in_executor(self._threads, reset)
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
            raise _Over(POLICY_FAILED, f"{reply.action!r:.200} is neither text nor an assistant message")
        return reply

    async def step(self, reply: Reply) -> None:
        with _environments_errors():
            if self._threads is None:
                result = await self.env.astep(reply.action)
            else:
                result = await asyncio.get_running_loop().run_in_executor(self._threads, self.env.step, reply.action)
        self.conversation, reward, terminated, truncated, info = result
        old, state = self.record, self.env.state
        terms = dict(old.terms)
        for name, value in info["terms"].items():
            terms[name] = terms.get(name, 0.0) + value
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
            failure=info.get("failure"),
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
            failure=None if over.failure is None else clean_text(over.failure),
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
    except Exception as error:
        raise _Over(ENV_FAILED, describe_error(error)) from error


def tools_of(env: TextEnv[Any]) -> ToolSchemas:
    """The schemas that a policy must be given because the conversation does not have them."""
    return getattr(env, "tools_apart", ()) or ()  # of a ToolEnv, here or elsewhere


def describe_error(error: BaseException) -> str:
    """An exception in one line: its type, what it says, and where it was raised."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error} ({place})"


def _noted(old: Record, reply: Reply) -> tuple[Any, ...]:
    """The notes of all turns, ``None`` for one without."""
    if reply.notes is None and not old.notes:
        return ()
    return (*old.notes, *[None] * (len(old.turn_rewards) - len(old.notes)), reply.notes)


def _add(total: Number | None, more: Number | None) -> Number | None:
    if total is None or more is None:
        return more if total is None else total
    return total + more
