"""Environments of verifiers as text environments."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from ...env import EnvironmentFailure
from ...event_loop import submit
from ...external import Answer, ExternalEnv, ExternalState
from ...gateway.channel import Ended
from ...gateway.conversations import Conversations
from ...gateway.model_call import ModelReply, message_key
from ...gateway.session import Observation, Session
from ...messages import Message, assistant, user
from ...options import PositiveInt, Seconds, checked
from ...task import Task
from ...tools.call_format import make_call
from .seeds import seed_of

_MISSING = "this needs verifiers 0.4: pip install 'verifiers>=0.4'"

try:
    from ...gateway.server import gateway  # which needs aiohttp, as verifiers does
except ImportError as error:
    raise ImportError(_MISSING) from error

log = logging.getLogger("textenvs")

_CLOSING_S = 10.0  # that an environment may take to end when the process does


class Verifiers(ExternalEnv[ExternalState]):
    """A verifiers environment, with the policy in the place of its model.

    The environment, its harness and its scoring run as they are, on this machine. Only the model is missing: where the
    harness calls it, the call's messages are the observation, and the reply to ``step`` is its answer. So a turn is a
    model call, and a call that extends no conversation begins a context. verifiers rewards a trace as a whole, and the
    reward comes on the last turn, with verifiers' names for its terms; of several traces that are to be learned from,
    each pays its own last reply. A rollout that verifiers calls truncated is ``truncated``; one that it records an
    error for fails (``info["failed"]``).

    Verifiers has tasks, and no seeds: a fork plays the same task again with the same replies, and where the environment
    then says something else, the step fails.

    Args:
        taskset: The id of the taskset, as for ``vf-eval``.
        config: More of the environment's configuration, as in JSON: what ``vf-eval`` takes under ``--env``, for example
            ``{"taskset": {"split": "train"}, "agent": {"harness": {"id": "textenvs_verifiers"}}}``. That harness, ours,
            calls the model from this process; verifiers' own start a program for it.
        size: How many tasks to take, where the taskset is endless, from its beginning.
        timeout: Seconds to wait for the environment between two calls of the model.
        max_assistant_turns: Truncate after so many replies; ``None`` leaves it to the environment.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: The configuration is refused, or a size below 1.
        ModuleNotFoundError: There is no such taskset.
        ImportError: verifiers is not installed.
    """

    has_success = False  # verifiers says why a rollout stopped, and not whether that was a success

    @checked
    def __init__(
        self,
        taskset: str,
        *,
        config: Mapping[str, Any] | None = None,
        size: PositiveInt = 1_000,
        timeout: Seconds = 600.0,
        max_assistant_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        whole = {**(config or {})}
        whole["taskset"] = {**whole.get("taskset", {}), "id": taskset}
        try:
            self.config = json.dumps(whole, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"config must be as in JSON, not {config!r}: {error}") from error
        self.timeout = float(timeout)
        tasks = _Tasks(self.config, taskset, size)
        super().__init__(tasks, max_assistant_turns=max_assistant_turns, render_mode=render_mode)

    def begin(self, task: Task) -> _Rollout:
        return _Rollout(_engine(self.config), seed_of(task), self.timeout)


class _Tasks:
    """The tasks of a verifiers taskset, as far as they are asked for. A pickle of it has the configuration alone."""

    def __init__(self, config: str, name: str, size: int) -> None:
        self._config = config
        self.name, self.source = f"verifiers' {name}", f"verifiers/{name}"
        self.size = _engine(config).count(size)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}: index {index} is outside its {self.size} tasks")
        task = _engine(self._config).task(index)
        prompt = (user(task.data.prompt_text or task.data.name or f"{self.name}, number {index}"),)
        return Task(f"{index}/{task.key}", self.source, prompt, None, extra={"seed": index})


class _Engine:
    """A verifiers environment that is being served.

    It lives in one task of the background event loop, because what it enters may have to be left where it was entered.
    """

    def __init__(self, config: str) -> None:
        self._vf, resolve = _verifiers()
        self.env = self._vf.load_environment(resolve(json.loads(config)))
        self._tasks: list[Any] = []
        self._more: Iterator[Any] = iter(self.env.taskset)
        self._lock = threading.Lock()
        #: Keys of the sessions of rollouts that are under way.
        self.sessions: set[str] = set()
        begun: Future[None] = Future()
        self._served = submit(self._serve(begun))
        self._served.add_done_callback(lambda _: begun.cancel())
        try:
            begun.result()
        except CancelledError:  # it ended before it had begun
            self._served.result()
            raise
        except BaseException:
            self._served.cancel()
            raise

    def close(self) -> None:
        """End the environment's servers and the rollouts; safe to call twice."""
        for key in list(self.sessions):
            gateway().close(key)
        try:
            self._loop.call_soon_threadsafe(self._end.set)
            self._served.result(_CLOSING_S)
        except Exception as error:
            log.warning("a verifiers environment did not end well: %s: %s", type(error).__name__, error)

    async def _serve(self, begun: Future[None]) -> None:
        async with self.env.serving():
            self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
            begun.set_result(None)
            await self._end.wait()

    def count(self, most: int) -> int:
        """Count the tasks, up to ``most`` where they are endless."""
        return len(self._read(None)) if self.env.taskset.bounded else most

    def task(self, index: int) -> Any:
        return self._read(index + 1)[index]

    def _read(self, count: int | None) -> list[Any]:
        """Return at least so many of the first tasks, or all; after an error of the taskset they are read anew."""
        with self._lock:
            try:
                self._tasks += itertools.islice(self._more, count and max(count - len(self._tasks), 0))
            except BaseException:  # its iterator has ended, which would look like the end of the tasks
                self._tasks, self._more = [], iter(self.env.taskset)
                raise
            return self._tasks

    def play(self, index: int, key: str) -> Future[Any]:
        """Begin a rollout, with the gateway as its model."""
        url, headers = f"{gateway().url}/v1", {"x-api-key": key}
        client = self._vf.EvalClientConfig(base_url=url, headers=headers, api_key_var="TEXTENVS_NO_KEY")
        return submit(self.env.run_episode(self.task(index), self._vf.ModelContext(model="policy", client=client)))


class _Rollout:
    """A rollout under way: it waits for the policy in its call of the model."""

    def __init__(self, engine: _Engine, index: int, timeout: float) -> None:
        self._timeout = timeout
        channel = self._channel = gateway().open(Session(images=True))
        engine.sessions.add(channel.key)
        episode = engine.play(index, channel.key)
        # The channel does not know the rollout, which may be collected.
        episode.add_done_callback(lambda ended: channel.program_ended(Ended(ended)))
        # Forks are seldom closed.
        self._end = weakref.finalize(self, _forget, engine.sessions, channel.key, episode)
        self._end.atexit = False
        try:
            opening = self._next()
            if not isinstance(opening, Observation):
                raise _failure("the rollout ended before it called the model")
            self._conversations = Conversations()
            self._replies: list[Any] = []  # their keys, by turn
            self.opening = self._conversations.begin(opening, opening.new)
        except BaseException:
            self.close()
            raise

    def reply(self, message: Message) -> Answer:
        self._replies.append(message_key(message))
        self._channel.answer(ModelReply(message, "tool_calls" if message.get("tool_calls") else "stop"))
        following = self._next()
        if isinstance(following, Observation):
            return Answer(**self._conversations.turn(message, following, following.new))
        return _ended(following, self._replies)

    def close(self) -> None:
        self._end()

    def _next(self) -> Observation | Any:
        """Return the next call of the model, or the traces of the rollout that has ended."""
        following = self._channel.observe(self._timeout)
        if following is None:
            raise _failure(f"the environment neither called the model nor ended in {self._timeout:g} seconds")
        return following if isinstance(following, Observation) else _traces(following.result)


def _failure(reason: str) -> EnvironmentFailure:
    return EnvironmentFailure("tool_failed", reason)


def _forget(sessions: set[str], key: str, episode: Future[Any]) -> None:
    """Give a rollout up, if it has not ended."""
    sessions.discard(key)
    gateway().close(key)
    episode.cancel()


def _traces(ended: Future[Any]) -> list[Any]:
    """Return the traces to learn from, at least one; errors of the episode are raised."""
    try:
        episode = ended.result()
    except (Exception, CancelledError) as error:
        raise _failure(f"verifiers: {type(error).__name__}: {error}") from error
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        reasons = "; ".join(f"{error.type}: {error.message}" for error in errors) or "no reason is given"
        raise _failure(f"verifiers: {reasons}")
    learners = [trace for trace in episode.traces if trace.agent.trainable]
    if not learners:
        raise _failure("verifiers: no trace of the episode is to be learned from")
    return learners


def _ended(traces: list[Any], replies: list[Any]) -> Answer:
    """Return the last turn: it pays what each trace earned to the trace's last reply."""
    truncated = [trace for trace in traces if trace.is_truncated]
    stop = str((truncated or traces)[-1].stop_condition or "done")
    earned: dict[int, dict[str, float]] = {len(replies) - 1: {}}
    payees: set[int] = set()
    for trace in traces:
        number = len(replies) - 1 if len(traces) == 1 else _last_turn(trace, replies, payees)
        terms = earned.setdefault(number, {})
        for name, reward in trace.rewards.items():
            if reward is not None:
                terms[name] = terms.get(name, 0.0) + reward.value
    values: dict[str, list[float]] = {}
    for trace in traces:
        for name, value in trace.metrics.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return Answer(
        terminated=not truncated,
        stop=None if truncated else stop,
        cut=stop if truncated else None,
        terms=earned.pop(len(replies) - 1),
        earlier=earned,
        metrics={name: sum(numbers) / len(numbers) for name, numbers in values.items() if numbers},
    )


def _last_turn(trace: Any, replies: list[Any], payees: set[int]) -> int:
    """Return the turn of a trace's last reply, the first of equal ones that no other trace has; else the last turn."""
    sampled = [node.message for node in trace.nodes if node.sampled]
    if not sampled:
        return len(replies) - 1
    calls = [make_call(call.name, call.arguments, call.id) for call in sampled[-1].tool_calls or ()]
    key = message_key(assistant(sampled[-1].content or "", calls))
    number = next((n for n, reply in enumerate(replies) if reply == key and n not in payees), len(replies) - 1)
    payees.add(number)
    return number


def _verifiers() -> tuple[Any, Any]:
    try:
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import resolve_env_config
    except ImportError as error:
        raise ImportError(_MISSING) from error
    return vf, resolve_env_config


#: By configuration: forks and copies share an engine. A forked process has none of them, and makes its own.
_engines: dict[str, _Engine] = {}
_making = threading.Lock()
os.register_at_fork(after_in_child=_engines.clear)


def _engine(config: str) -> _Engine:
    with _making:
        if config not in _engines:
            _engines[config] = _Engine(config)
        return _engines[config]


@atexit.register
def _close_engines() -> None:
    for engine in _engines.values():
        engine.close()
