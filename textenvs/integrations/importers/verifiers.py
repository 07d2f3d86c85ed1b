"""Environments of verifiers as text environments."""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import json
import logging
import os
import queue
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...env import EnvironmentFailure
from ...event_loop import submit
from ...messages import Message, Messages, check_conversation, clean_messages, user
from ...options import PositiveInt, Seconds, checked
from ...task import Task
from .base import Answer, Imported

log = logging.getLogger("textenvs")

_CLOSING_S = 10.0  # that an environment may take to end when the process does


class Verifiers(Imported["_Rollout"]):
    """A verifiers environment, with the policy in the place of its model.

    The environment, its harness and its scoring run as they are, on this machine. Only the model is missing: where the
    harness calls it, the call's messages are the observation, and the reply to ``step`` is its answer. So a turn is a
    model call. verifiers rewards a rollout as a whole, and the reward comes on the last turn, with verifiers' names for
    its terms; an environment that our own adapter has made rewards every turn. A rollout that verifiers calls truncated
    is ``truncated``; one that it records an error for fails (``info["failed"]``).

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
        super().__init__(
            _Tasks(self.config, taskset, size), max_assistant_turns=max_assistant_turns, render_mode=render_mode
        )

    def begin(self, seed: int) -> _Rollout:
        """Start a rollout of a task, up to the first call of the model."""
        return _Rollout(_engine(self.config), seed, self.timeout)


class _Tasks:
    """The tasks of a verifiers taskset, as far as they are asked for."""

    def __init__(self, config: str, name: str, size: int) -> None:
        self._config = config
        engine = _engine(config)
        self.name = f"verifiers' {name}"
        self.source = f"verifiers/{name}"
        self.size = engine.count(size)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}: index {index} is outside its {self.size} tasks")
        task = _engine(self._config).task(index)
        prompt = (user(task.data.prompt_text or task.data.name or f"{self.name}, number {index}"),)
        return Task(f"{index}/{task.key}", self.source, prompt, None, extra={"seed": index})


class _Engine:
    """A verifiers environment that is being served, and the service that stands in for its model."""

    def __init__(self, config: str) -> None:
        vf, resolve = _verifiers()
        self.env = vf.load_environment(resolve(json.loads(config)))
        self._tasks: list[Any] = []
        self._more: Iterator[Any] = iter(self.env.taskset)
        self._lock = threading.Lock()
        self.calls: dict[str, _Calls] = {}
        with ExitStack() as stack:
            self._service = _Server(("127.0.0.1", 0), functools.partial(_Service, self.calls))
            stack.callback(self._service.server_close)
            threading.Thread(target=self._service.serve_forever, name="textenvs-verifiers", daemon=True).start()
            stack.callback(self._service.shutdown)
            stack.callback(self._serve())
            self._resources = stack.pop_all()
        self._process = os.getpid()

    def close(self) -> None:
        """End the environment's servers and the service; safe to call twice. A forked process has none of them."""
        if self._process != os.getpid():
            return
        for calls in list(self.calls.values()):
            calls.replies.put(None)
        try:
            self._resources.close()
        except Exception as error:
            log.warning("a verifiers environment did not end well: %s: %s", type(error).__name__, error)

    def _serve(self) -> Callable[[], None]:
        """Have the environment served, and give what ends that."""
        begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def serve() -> None:  # one task, because what it enters may have to be left where it was entered
            async with self.env.serving():
                end = asyncio.Event()
                begun.set_result((asyncio.get_running_loop(), end))
                await end.wait()

        served = submit(serve())
        try:
            either: tuple[Future[Any], ...] = (begun, served)
            wait(either, return_when=FIRST_COMPLETED)
            if not begun.done():
                served.result()
            loop, end = begun.result()
        except BaseException:
            served.cancel()
            raise

        def ending() -> None:
            loop.call_soon_threadsafe(end.set)
            served.result(_CLOSING_S)

        return ending

    def count(self, most: int) -> int:
        """How many tasks there are, up to ``most`` where there is no end."""
        if self.env.taskset.bounded:
            with self._lock:
                self._tasks += self._more
            return len(self._tasks)
        return most

    def task(self, index: int) -> Any:
        with self._lock:
            missing = index + 1 - len(self._tasks)
            self._tasks += itertools.islice(self._more, max(missing, 0))
        return self._tasks[index]

    def context(self, token: str) -> Any:
        """A model behind the service, for one rollout."""
        vf, _ = _verifiers()
        url = f"http://127.0.0.1:{self._service.server_port}/{token}/v1"
        return vf.ModelContext(model="policy", client=vf.EvalClientConfig(base_url=url, api_key_var="TEXTENVS_NO_KEY"))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A rollout that is given up closes its connections; all else is printed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Service(BaseHTTPRequestHandler):
    """Passes a call of the model on to its rollout, and the policy's reply back."""

    protocol_version = "HTTP/1.1"

    def __init__(self, calls: Mapping[str, _Calls], *args: Any) -> None:
        self.calls = calls
        super().__init__(*args)

    def do_POST(self) -> None:  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        calls = self.calls.get(self.path.split("/")[1])
        reply = None if calls is None else calls.answered(body)
        if reply is None:
            return self._send(410, {"error": {"message": "this episode is over", "type": "gone", "code": None}})
        message = {key: value for key, value in reply.items() if key != "name"}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in reply else "stop"}
        return self._send(
            200, {"id": "0", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        )

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        sent = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


class _Calls:
    """A rollout's calls of the model and the policy's replies. It does not know the rollout, which may be forgotten."""

    def __init__(self) -> None:
        self.events: queue.Queue[dict[str, Any] | Future[Any]] = queue.Queue()
        self.replies: queue.Queue[Message | None] = queue.Queue()

    def answered(self, body: dict[str, Any]) -> Message | None:
        """In the service's thread: a call of the model, until the policy replies (``None``: it never will)."""
        self.events.put(body)
        return self.replies.get()


class _Rollout:
    """A rollout under way: it waits for the policy in its call of the model."""

    def __init__(self, engine: _Engine, index: int, timeout: float) -> None:
        self._engine, self._timeout = engine, timeout
        self._token = uuid.uuid4().hex
        self._calls = engine.calls[self._token] = _Calls()
        self._traces: list[Any] = []
        self._rewarded: list[float] = []
        self._heard: Messages = ()
        self._episode: Future[Any] = submit(
            engine.env.run_episode(engine.task(index), engine.context(self._token), on_trace=self._traces.append)
        )
        self._episode.add_done_callback(self._calls.events.put)
        # Forks are seldom closed.
        self._end = weakref.finalize(self, _forget, engine.calls, self._token, self._calls, self._episode)
        self._end.atexit = False
        try:
            event = self._next()
            if isinstance(event, Future):
                self._check(event)
                raise EnvironmentFailure("tool_failed", "the rollout ended before it called the model")
            self._heard = self.opening = self._messages(event)
        except BaseException:
            self.close()
            raise

    def reply(self, message: Message) -> Answer:
        self._calls.replies.put(message)
        event = self._next()
        if isinstance(event, Future):
            return self._ended(event)
        messages, before = self._messages(event), (*self._heard, message)
        if messages[: len(self._heard)] != self._heard or len(messages) <= len(before):
            raise EnvironmentFailure(
                "tool_failed", "the harness has rewritten the conversation; nothing here can do that"
            )
        self._heard = messages
        terms = self._terms()
        reward = sum(terms.values())
        self._rewarded.append(reward)
        return Answer(messages[len(before) :], reward, terms=terms or None)

    def close(self) -> None:
        self._end()

    def _next(self) -> dict[str, Any] | Future[Any]:
        try:
            return self._calls.events.get(timeout=self._timeout)
        except queue.Empty:
            reason = f"the environment neither called the model nor ended in {self._timeout:g} seconds"
            raise EnvironmentFailure("tool_failed", reason) from None

    def _messages(self, body: Mapping[str, Any]) -> Messages:
        if body.get("stream"):
            raise EnvironmentFailure("tool_failed", "the harness asks for a stream, which is not offered here")
        try:
            return clean_messages(
                check_conversation([_plain(each) for each in body["messages"]], "a call of the model")
            )
        except (KeyError, ValueError) as error:
            raise EnvironmentFailure("tool_failed", f"the harness's messages cannot be read: {error}") from error

    def _terms(self) -> dict[str, float]:
        """This turn's terms, where the environment says them: ours do."""
        learner = next((trace for trace in reversed(self._traces) if trace.agent.trainable), None)
        told = learner.info.get("textenvs", {}).get("turn_terms", []) if learner is not None else []
        turn = len(self._rewarded)
        return dict(told[turn]) if turn < len(told) else {}

    def _check(self, event: Future[Any]) -> Any:
        """The trace of an episode that ended well."""
        try:
            episode = event.result()
        except (Exception, CancelledError) as error:
            raise EnvironmentFailure("tool_failed", f"verifiers: {type(error).__name__}: {error}") from error
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            told = "; ".join(f"{error.type}: {error.message}" for error in errors) or "no reason is given"
            raise EnvironmentFailure("tool_failed", f"verifiers: {told}")
        learners = [trace for trace in episode.traces if trace.agent.trainable]
        if len(learners) != 1:
            raise EnvironmentFailure(
                "tool_failed", f"verifiers: {len(learners)} traces are to be learned from, not one"
            )
        return learners[0]

    def _ended(self, event: Future[Any]) -> Answer:
        trace = self._check(event)
        record = trace.info.get("textenvs", {})
        terms = self._terms()
        if not record:
            terms = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        return Answer(
            reward=sum(terms.values()),
            terminated=not trace.is_truncated,
            truncated=trace.is_truncated,
            stop=str(record.get("stop") or trace.stop_condition or "done"),
            terms=terms or None,
            metrics={name: value for name, value in trace.metrics.items() if value is not None},
        )


def _forget(calls: dict[str, _Calls], token: str, own: _Calls, episode: Future[Any]) -> None:
    """Give a rollout up, if it has not ended."""
    calls.pop(token, None)
    own.replies.put(None)
    episode.cancel()


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a request in our words: a content that is all text joined, nothing that is null."""
    plain = {key: value for key, value in message.items() if value is not None and key != "reasoning_details"}
    content = plain.get("content", "")
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        content = "\n".join(part["text"] for part in content)
    plain["content"] = content
    if "tool_calls" in plain:
        plain["tool_calls"] = tuple(plain["tool_calls"])
    return plain


def _verifiers() -> tuple[Any, Any]:
    try:
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import resolve_env_config
    except ImportError as error:
        raise ImportError("this needs verifiers 0.4: pip install 'verifiers>=0.4'") from error
    return vf, resolve_env_config


_engines: dict[tuple[int, str], Future[_Engine]] = {}


def _engine(config: str) -> _Engine:
    """One for each configuration and process: forks and copies share it. It is closed when the process ends."""
    key, own = (os.getpid(), config), Future[_Engine]()
    engine = _engines.setdefault(key, own)
    if engine is own:  # the others wait for it
        try:
            made = _Engine(config)
        except BaseException as error:
            del _engines[key]
            own.set_exception(error)
            raise
        atexit.register(made.close)
        own.set_result(made)
    return engine.result()
