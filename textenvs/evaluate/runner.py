"""Play the episodes of an evaluation, many at a time.

Each of ``concurrency`` workers has an environment of its own and takes the next job when its episode is over. Errors
are data: a simulator, a service or an environment that fails, or takes too long, gives a *failed* record; only
failures in a row stop the evaluation.

With a time limit for steps, hooks run in threads. A thread cannot be stopped: a hanging one is abandoned with its
environment, and its worker gets a new one. An asynchronous hook that blocks the event loop has no limit.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from math import fsum
from operator import add
from typing import Any, TextIO, TypeVar

from ..chat.errors import BudgetExceeded, CacheError
from ..env import EnvironmentFailure, ResetResult, StepResult, TextEnv, check_numbers
from ..event_loop import together
from ..messages import Message, Messages, clean_text, copy_messages
from ..options import PositiveInt, Seconds, checked
from ..play import play as play_episode
from ..text import excerpt, printable, quoted
from ..threads import Calls, StepTimeoutError
from ..tool_env import ToolState
from ..turn import SOLVED, has_success, own_terms
from ..users.moves import METRIC
from .plan import Job
from .policies import OutOfContext, Player, Policy, PolicyFailure, Reply, Stopped, ToolSchemas
from .records import Record

Number = TypeVar("Number", int, float)

#: Stops of failed episodes that the environment did not report itself.
ENV_FAILED, POLICY_FAILED, TIMED_OUT = "env_failed", "policy_failed", "timed_out"
#: The stop of an episode whose conversation exceeds the policy's context: truncated, and not failed.
MAX_CONTEXT = "max_context"
_FAILURE_CHARS = 1000  # of the words for what failed
# A turn's own numbers among the metrics, which say nothing of the episode; a record has its counts of calls.
_OF_A_TURN = {"tool_calls", "tool_errors", METRIC}
_ON_TERMINAL_S, _ELSEWHERE_S = 0.5, 30.0  # between two lines about progress: on a terminal, in a log file


@dataclass
class Stats:
    """Counts of an evaluation; the runner adds to them."""

    total: int = 0  # how many episodes are to be played
    running: int = 0
    turns: int = 0
    completion_tokens: int = 0
    episodes: int = 0
    judged: int = 0  # those that did not fail and could be solved
    solved: int = 0
    failed: int = 0

    def finished(self, record: Record) -> None:
        self.episodes += 1
        self.judged += not record.failed and record.success is not None
        self.solved += bool(record.success)
        self.failed += record.failed

    def line(self, seconds: float) -> str:
        parts = [f"{self.episodes}/{self.total} episodes", f"{self.running} running", f"{self.turns} turns"]
        if self.completion_tokens:
            parts.append(f"{self.completion_tokens / max(seconds, 1e-3):.0f} tokens/s")
        if self.judged:
            parts.append(f"{self.solved / self.judged:.1%} solved")
        if self.failed:
            parts.append(f"{self.failed} FAILED")
        return ", ".join([*parts, f"{seconds:.0f} s"])


@asynccontextmanager
async def show_progress(stats: Stats, stream: TextIO | None = None) -> AsyncIterator[None]:
    """Show the counts within the block: one line that is rewritten on a terminal, else a line now and then."""
    stream = sys.stderr if stream is None else stream
    terminal, started = stream.isatty(), time.monotonic()

    async def show() -> None:
        while True:
            await asyncio.sleep(_ON_TERMINAL_S if terminal else _ELSEWHERE_S)
            line = printable(stats.line(time.monotonic() - started))
            if terminal:
                line = f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K"
            print(line, end="" if terminal else "\n", file=stream, flush=True)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        if terminal:
            print("\r\x1b[K", end="", file=stream, flush=True)


@checked
async def run(
    jobs: Iterable[Job],
    make_env: Callable[[], TextEnv[Any]],
    policy: Policy,
    *,
    on_record: Callable[[Record], None],
    concurrency: PositiveInt = 16,
    max_failures: PositiveInt = 8,
    step_timeout_s: Seconds | None = None,
    episode_timeout_s: Seconds | None = None,
    stats: Stats | None = None,
) -> None:
    """Play all jobs, ``concurrency`` at a time, and report each when it is over.

    Failures that directly follow one another are reported when a success, or the end, follows: where the evaluation
    stops because of them (``max_failures``), they are not reported, so that they are played again. ``make_env`` is
    called once a worker. Steps, resets and whole episodes have no time limit where it is ``None``.

    Raises:
        Stopped: Too many failures in a row, or the policy cannot continue.
    """
    remaining_jobs = iter(jobs)
    streak: list[Record] = []
    stats = Stats() if stats is None else stats
    stopping = False

    def finished(record: Record) -> None:
        nonlocal stopping
        stats.finished(record)
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
        calls = Calls(make_env(), step_timeout_s)
        try:
            job: Job | None = first
            while job is not None:
                stats.running += 1
                try:
                    record = await play(job, calls, policy, episode_timeout_s=episode_timeout_s, stats=stats)
                finally:
                    stats.running -= 1
                finished(record)
                job = next(remaining_jobs, None)
                if calls.hangs and job is not None:
                    calls = Calls(make_env(), step_timeout_s)
                await asyncio.sleep(0)  # scripts never wait, and others have a turn
        finally:
            await calls.close()

    # The range comes first, so that no job is taken without a worker for it.
    await together(*(work(job) for _, job in zip(range(concurrency), remaining_jobs, strict=False)))
    while streak:
        on_record(streak.pop(0))


async def play(
    job: Job,
    calls: Calls,
    policy: Policy,
    *,
    episode_timeout_s: float | None = None,
    stats: Stats | None = None,
) -> Record:
    """Play one episode; raises ``Stopped`` where the policy, or a simulated user or judge, cannot continue."""
    episode = _Episode(job, calls, policy, stats or Stats())
    clock = asyncio.timeout(episode_timeout_s)
    options = {"task_index": job.task_index}
    try:
        async with clock:
            await play_episode(
                calls.env, episode.ask, seed=job.seed, options=options, calls=episode, on_turn=episode.count
            )
    except _Over as over:
        return episode.cut_off(over)
    except TimeoutError:
        if not clock.expired():
            raise
        return episode.cut_off(_Over(TIMED_OUT, f"the episode took longer than {episode_timeout_s:g} s"))
    return episode.record


class _Over(Exception):
    """End an episode because of an error: its stop, and the failure."""

    def __init__(self, stop: str, failure: str | None) -> None:
        super().__init__(stop, failure)
        self.stop, self.failure = stop, failure


class _Episode:
    """A record in progress, and the environment's calls with their errors as data."""

    def __init__(self, job: Job, calls: Calls, policy: Policy, stats: Stats) -> None:
        self.env = calls.env
        self.record = Record(job.task, job.sample, job.seed, job.task_index, task_key="", data_source="")
        self._calls = calls
        self._policy = policy
        self._player: Player | None = None
        self._reply = Reply("")  # the last one
        self._size, self._role = 0, ""  # of the conversation before it: its size, and whose it is
        self._places = _ReplyPlaces()
        self._roles: list[str] = []  # of several: whose each turn was
        self._stats = stats

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> ResetResult:
        with _environments_errors():
            messages, info = await self._calls.reset(seed, options)
        success = False if has_success(info) else None
        self.record = replace(self.record, task_key=info["task_key"], data_source=info["data_source"], success=success)
        return messages, info

    async def step(self, action: Any) -> StepResult:
        with _environments_errors():
            return await self._calls.step(action)

    async def ask(self, conversation: Messages) -> str | Message:
        if self._player is None:
            self._player = self._policy.start(self.env, self.record.seed)
        self._size, self._role = len(conversation), self.env.state.role
        with _environments_errors():
            tools = tools_of(self.env)  # of a program, those of its call
        try:
            self._reply = reply = await self._player(conversation, tools)
        except Stopped:
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
        return reply.action

    def count(self, result: StepResult) -> None:
        reply = self._reply
        self._stats.turns += 1
        self._stats.completion_tokens += reply.completion_tokens or 0
        conversation, reward, terminated, truncated, info = result
        old, state = self.record, self.env.state
        terms = {**old.terms, **{name: old.terms.get(name, 0.0) + value for name, value in info["terms"].items()}}
        self._roles.append(self._role)
        with _environments_errors():
            check_numbers("an episode's rewards and terms, summed,", {"return": old.total + reward, **terms})
            check_numbers("the metrics", info["metrics"])
            self._places.add(self._size, state.contexts)
        self.record = replace(
            old,
            success=None if old.success is None else terminated and info["stop"] == SOLVED,
            turn_rewards=_paid(old.turn_rewards, info, reward),
            terms=terms,
            metrics={**old.metrics, **{k: v for k, v in info["metrics"].items() if k not in _OF_A_TURN}},
            tool_calls=state.calls_made if isinstance(state, ToolState) else None,
            tool_errors=state.tool_errors if isinstance(state, ToolState) else None,
            terminated=terminated,
            truncated=truncated,
            **{name: info[name] for name in ("assistant_turns", "user_turns", "stop", "failed")},
            failure=_words(info.get("failure" if info["failed"] else "reason")),
            prompt_tokens=_add(old.prompt_tokens, reply.prompt_tokens),
            completion_tokens=_add(old.completion_tokens, reply.completion_tokens),
            cut_replies=old.cut_replies + reply.cut,
            cost=_add(old.cost, reply.cost),
            messages=conversation,
            contexts=tuple(map(copy_messages, state.contexts)),
            reply_places=self._places.listed(),
            context_roles=self._context_roles(),
            role_terms=_by_role(old.role_terms, info, self._roles) if len(self.env.roles) > 1 else {},
            user_messages=info.get("user_messages", ()),
            notes=_noted(old, reply),
        )

    def cut_off(self, over: _Over) -> Record:
        return replace(
            self.record,
            success=None if self.record.success is None else False,
            truncated=True,
            stop=over.stop,
            failed=over.failure is not None,
            failure=_words(None if over.failure is None else clean_text(over.failure)),
            messages=copy_messages(self.env.state.messages),
            contexts=tuple(map(copy_messages, self.env.state.contexts)),
            context_roles=self._context_roles(),
        )

    def _context_roles(self) -> tuple[str, ...]:
        state = self.env.state
        return (*state.context_roles, state.role) if len(self.env.roles) > 1 else ()


class _ReplyPlaces:
    """The places of an episode's replies among its conversations, which are left and continue."""

    def __init__(self) -> None:
        self._contexts: tuple[Messages, ...] = ()
        self._numbers = [0]  # of the conversations in ``(*contexts, messages)``, in the order in which they began
        self._replies: list[tuple[int, int]] = []  # the number of a conversation, and a reply's place in it

    def add(self, place: int, contexts: tuple[Messages, ...]) -> None:
        """Add a turn: its reply's place in the current conversation, and the state's contexts after it."""
        self._replies.append((self._numbers[-1], place))
        before, self._contexts = self._contexts, contexts
        if contexts is before:
            return
        *numbers, current = self._numbers
        if len(contexts) > len(before):
            self._numbers = [*numbers, current, max(self._numbers) + 1]
            return
        pairs = zip(before, contexts, strict=True)  # the first one that has gone from its place continues
        place = next(i for i, (old, new) in enumerate(pairs) if old is not new)
        self._numbers = [*numbers[:place], *numbers[place + 1 :], current, numbers[place]]

    def listed(self) -> tuple[tuple[int, int], ...]:
        """Return :attr:`Record.reply_places <.records.Record.reply_places>`; none of a single conversation."""
        places = {number: place for place, number in enumerate(self._numbers)}
        return tuple((places[number], place) for number, place in self._replies) if self._contexts else ()


@contextmanager
def _environments_errors() -> Iterator[None]:
    """End the episode at an environment's exception, and the evaluation at that of a budget or a cache."""
    try:
        yield
    except (BudgetExceeded, CacheError) as error:
        raise Stopped(f"a simulated user or judge cannot continue: {error}") from error
    except StepTimeoutError as error:
        raise _Over(ENV_FAILED, str(error)) from error
    except EnvironmentFailure as failure:
        raise _Over(failure.stop, failure.reason) from failure
    except Exception as error:
        raise _Over(ENV_FAILED, describe_error(error)) from error


def tools_of(env: TextEnv[Any]) -> ToolSchemas:
    """Return the schemas that a policy must be given because the conversation does not have them."""
    return getattr(env, "tools_not_in_prompt", ()) or ()  # of a ToolEnv, here or elsewhere


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line: its type, its message, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {excerpt(str(error), _FAILURE_CHARS // 2)} ({place})"


def _words(reason: str | None) -> str | None:
    return None if reason is None else excerpt(reason, _FAILURE_CHARS)


def _noted(old: Record, reply: Reply) -> tuple[Any, ...]:
    """Return the notes of all turns, ``None`` for a turn without."""
    if reply.notes is None and not old.notes:
        return ()
    return (*old.notes, *[None] * (len(old.turn_rewards) - len(old.notes)), reply.notes)


def _paid(before: tuple[float, ...], info: Mapping[str, Any], reward: float) -> tuple[float, ...]:
    """Return the rewards of turns with a step's own reward, and what it pays to earlier ones."""
    if not (earlier := info.get("earlier")):
        return (*before, reward)
    payments = (fsum(earlier.get(number, {}).values()) for number in range(len(before)))
    return (*map(add, before, payments), fsum(own_terms(info).values()))


def _by_role(
    before: Mapping[str, Mapping[str, float]], info: Mapping[str, Any], roles: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the terms of roles with what a step pays; ``roles`` say whose each turn is, its own the last."""
    total = {role: {**terms} for role, terms in before.items()}
    earlier = info.get("earlier", {})
    for number, terms in [*earlier.items(), (len(roles) - 1, own_terms(info))]:
        of_role = total.setdefault(roles[number], {})
        for name, value in terms.items():
            of_role[name] = of_role.get(name, 0.0) + value
    return total


def _add(total: Number | None, amount: Number | None) -> Number | None:
    return amount if total is None else total if amount is None else total + amount
