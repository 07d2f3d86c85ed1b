"""Conversations to imitate: played by an environment's scripted expert, or read from files.

An expert never shows how to continue after a mistake, so some of its turns may be replaced by the environment's
scripted careless replies, which are imitated only on request.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textenvs.bounded_files import parse_json
from textenvs.data import TaskError
from textenvs.data.files import file_rows, without_nulls
from textenvs.env import NoDemonstration, TextEnv
from textenvs.messages import Messages, check_conversation, copy_messages, text_of
from textenvs.turn import messages_of_turn

from ..chat_template import RendererError, Tools
from ..engines.base import Generation
from ..trajectory import Status, Trajectory
from .episode_tokens import EpisodeTokens
from .renderer import Renderer

#: The most tasks in a row without a demonstration.
_WITHOUT = 1000


class DemonstrationError(ValueError):
    """Demonstrations cannot be played or read; the message says which, where, and what to do."""


class StuckError(DemonstrationError):
    """The environment took too long; the thread that plays it may still use it, so it must not be closed."""


@dataclass(frozen=True)
class Demonstration:
    """A conversation that ends with an assistant message, and the imitation weight of each assistant message."""

    messages: Messages
    imitate: tuple[float, ...]
    #: Schemas for the chat template; ``None``: those of the environment.
    tools: Tools = None
    where: str = field(default="", compare=False)  # its file and row, for errors


@dataclass(frozen=True)
class Example:
    """A demonstration in tokens; ``weights``, float32 ``[action tokens]``, are the imitation weights."""

    trajectory: Trajectory
    weights: NDArray[np.float32]


def play(
    env: TextEnv[Any],
    count: int,
    *,
    seed: int,
    tasks: int | None = None,
    mistake_rate: float = 0.0,
    mistake_weight: float = 0.0,
    step_timeout_s: float | None = None,
) -> Iterator[Demonstration]:
    """Yield ``count`` demonstrations by the environment's scripted expert, with careless replies among its turns.

    An episode has one for each of its conversations with replies to imitate, mostly one; those of the last are all
    yielded.
    Its hooks ``demonstration`` and ``careless_reply`` reply. ``seed`` decides tasks, the demonstrator's randomness and
    the places of mistakes; only the first ``tasks`` tasks are played, ``None`` for all. ``mistake_rate``, in [0, 1), is
    the probability, at each turn, of a careless reply instead of the expert's; ``mistake_weight`` the imitation weight
    of these, where the expert's replies have 1. At 0, careless replies at the end of an episode are dropped. Above 0
    the policy starts careless: with the odds ``mistake_weight * mistake_rate`` to ``1 - mistake_rate``. A reset, a
    reply or a step may take ``step_timeout_s`` seconds; after that the environment is abandoned in its thread. ``None``
    plays in the calling thread, without a limit.

    Raises ``ValueError``: ``mistake_rate`` or ``mistake_weight`` is outside its range; DemonstrationError: the
    environment has no such script, is played elsewhere, or called ``sys.exit``; StuckError: it took too long.
    """
    if not 0.0 <= mistake_rate < 1.0:
        raise ValueError(f"mistake_rate must be in [0, 1), not {mistake_rate}")
    if mistake_weight < 0.0:
        raise ValueError(f"mistake_weight must be at least 0, not {mistake_weight}")
    if tasks is not None and env.tasks.size is not None and tasks >= env.tasks.size:
        tasks = None
    played = number = without = 0
    with ExitStack() as stack:
        call: Callable[..., Any] = _called
        if step_timeout_s is not None:
            call = stack.enter_context(closing(_Thread(step_timeout_s)))
        while played < count:
            rng = np.random.default_rng((seed, number))
            number += 1
            try:
                talks = _episode(env, rng, tasks, (mistake_rate, mistake_weight), call)
            except NoDemonstration as error:
                without += 1
                if without >= _WITHOUT:
                    raise DemonstrationError(
                        f"{without} tasks in a row have no demonstration; the last: {error}"
                    ) from error
                continue
            except ConnectionError as error:
                raise DemonstrationError(
                    f"{error}: a server must run and show its scripted replies (textenvs serve --allow expert); "
                    "else give conversations to imitate (files with a column 'messages'), or switch the warm start off"
                ) from error
            if imitated := [talk for talk in talks if any(talk.weights)]:
                played, without = played + len(imitated), 0
                yield from map(_up_to_last_imitated, imitated)


def _called(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except SystemExit as error:
        raise DemonstrationError(f"the environment's {what} called sys.exit({error.code!r:.100})") from error


class _Thread:
    """Run :func:`_called` in one daemon thread for all calls; the process does not wait for one that hangs."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s, self._hangs = timeout_s, False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="textenvs-demonstrations", daemon=True)
        self._thread.start()

    def __call__(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result: Future[Any] = Future()
        self._calls.put((result, partial(_called, what, function, *args, **kwargs)))
        wait([result], self._timeout_s)
        if not result.done():
            self._hangs = True
            raise StuckError(
                f"the environment's {what} took longer than {self._timeout_s:g} s while its expert played; see what it "
                "waits for, or raise step_timeout_s (of warm_start, or of sft)"
            )
        return result.result()

    def close(self) -> None:
        """End the thread; a hanging one ends with its call."""
        self._calls.put(None)
        if not self._hangs:
            self._thread.join()

    def _work(self) -> None:
        while (task := self._calls.get()) is not None:
            result, call = task
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)


@dataclass
class _Talk:
    """A conversation, and the imitation weight of each of its assistant messages; 0 for those that it began with."""

    messages: Messages
    weights: list[float]

    @classmethod
    def begun(cls, messages: Messages) -> _Talk:
        return cls(messages, [0.0] * _replies(messages))

    def goes_on(self, messages: Messages) -> _Talk:
        """Return it with an observation that begins with it."""
        return _Talk(messages, [*self.weights, *_Talk.begun(messages[len(self.messages) :]).weights])


def _replies(messages: Messages) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def _episode(
    env: TextEnv[Any],
    rng: np.random.Generator,
    tasks: int | None,
    mistakes: tuple[float, float],
    call: Callable[..., Any],
) -> list[_Talk]:
    """Return the conversations of an episode, in the order of their last use.

    ``mistakes`` are the rate and the weight of careless replies.
    """
    mistake_rate, mistake_weight = mistakes
    seed = int(rng.integers(2**31))
    options = None if tasks is None else {"task_index": int(rng.integers(tasks))}
    conversation, _ = call("reset", env.reset, seed=seed, options=options)
    talk = _Talk.begun(conversation)
    talks = [talk]
    done = False
    while not done:
        wrong = bool(rng.random() < mistake_rate)
        try:
            hook = "careless_reply" if wrong else "demonstration"
            reply = call(hook, getattr(env, hook), rng)
        except NoDemonstration:
            raise
        except NotImplementedError as error:
            raise DemonstrationError(
                f"{error}: give conversations to imitate (files with a column 'messages'), "
                + ("set mistake_rate (and careless_steps, of a warm start) to 0, " if wrong else "")
                + "or switch the warm start off"
            ) from error
        contexts = env.state.contexts
        _, _, terminated, truncated, _ = call("step", env.step, reply)
        done = terminated or truncated
        added, context = messages_of_turn(env.state, len(talk.messages), contexts)
        talk.messages = (*talk.messages, *added)
        talk.weights.append(mistake_weight if wrong else 1.0)
        if context is not None:
            place = _missing(talks, env.state.contexts)
            talk = _Talk.begun(context) if place is None else talks.pop(place).goes_on(context)
            talks.append(talk)
    return talks


def _missing(talks: list[_Talk], contexts: Sequence[Messages]) -> int | None:
    """Return which conversation continues: the one that is not among those that were left, in the same order."""
    if len(contexts) == len(talks):
        return None
    return next((place for place, messages in enumerate(contexts) if talks[place].messages != messages), len(contexts))


def _up_to_last_imitated(talk: _Talk) -> Demonstration:
    """Return a conversation up to the last imitated reply. An opening's own replies (few-shot) are not imitated."""
    last = max(number for number, weight in enumerate(talk.weights) if weight > 0)
    replies = [i for i, message in enumerate(talk.messages) if message["role"] == "assistant"]
    return Demonstration(talk.messages[: replies[last] + 1], tuple(talk.weights[: last + 1]))


def read(files: Sequence[str | Path]) -> Iterator[Demonstration]:
    """Yield conversations from ``.jsonl`` or ``.parquet`` files with a column ``messages``; all replies count as 1.

    A column ``tools`` has the schemas of a row's tools, as a list or its JSON text. A column ``weights`` has the
    imitation weight of each assistant message, at least 0: every token of the message counts so much.

    DemonstrationError names the file and the row that cannot be used.
    """
    for name in files:
        path = Path(name).expanduser()
        if path.suffix not in (".jsonl", ".parquet"):
            raise DemonstrationError(f"{path}: demonstrations are read from .jsonl or .parquet, not {path.suffix!r}")
        try:
            for number, row in file_rows(path, "a column 'messages'"):
                if isinstance(row, TaskError):
                    raise DemonstrationError(f"{path}: {row}")
                yield _demonstration(row, f"{path} row {number}")
        except TaskError as error:
            raise DemonstrationError(str(error)) from error


def _demonstration(row: Mapping[str, Any], where: str) -> Demonstration:
    if row.get("messages") is None:
        raise DemonstrationError(f"{where}: no column 'messages'; it has {list(row)}")
    try:
        conversation = check_conversation(row["messages"], where)
        if not conversation or conversation[-1]["role"] != "assistant":
            raise ValueError(f"{where}: the conversation must end with the assistant's message to imitate")
        if conversation[0]["role"] == "assistant":
            raise ValueError(f"{where}: the conversation starts with the assistant; there is nothing to reply to")
        for number, (before, message) in enumerate(pairwise(conversation), 1):
            if message["role"] != "assistant":
                continue
            if before["role"] == "assistant":
                raise ValueError(f"{where}: message {number}: the assistant speaks twice in a row; make it one message")
        tools = _tools(row.get("tools"), where)
        weights = _weights(row.get("weights"), _replies(conversation), where)
    except ValueError as error:
        raise DemonstrationError(str(error)) from error
    return Demonstration(conversation, weights, tools, where)


def _weights(value: Any, replies: int, where: str) -> tuple[float, ...]:
    """Return the imitation weights of a row's column ``weights``."""
    if value is None:
        return (1.0,) * replies
    problem = f"{where}: column 'weights' must be a list of numbers of at least 0, one for each assistant message"
    if not isinstance(value, (list, tuple)) or len(value) != replies:
        raise ValueError(
            f"{problem}: it has {replies}, not {len(value) if isinstance(value, (list, tuple)) else value}"
        )
    if any(type(weight) not in (int, float) or not 0 <= weight < math.inf for weight in value):
        raise ValueError(f"{problem}, not {list(value)}")
    if not any(value):
        raise ValueError(f"{where}: column 'weights' is 0 throughout: nothing is imitated; leave the row out")
    return tuple(map(float, value))


def _tools(value: Any, where: str) -> Tools:
    """Return the schemas in a row's column ``tools``, each as ``{"type": "function", "function": {...}}``."""
    if value is None or value == "":
        return None
    problem = f"{where}: column 'tools' must be a list of JSON schemas of functions, or its JSON text"
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise ValueError(f"{problem} ({error})") from None
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{problem}, not {type(value).__name__}")
    tools = []
    for number, entry in enumerate(value):
        schema = without_nulls(entry)
        function = schema.get("function", schema) if isinstance(schema, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"{problem}: tools[{number}] has no name of a function")
        tools.append(schema if "function" in schema else {"type": "function", "function": function})
    return tools


def encode(demonstration: Demonstration, renderer: Renderer, tokenizer: Any, tools: Tools = None) -> Example:
    """Return the conversation in the model's tokens, exactly as a rollout would have recorded it.

    A reply with calls or reasoning is imitated as the chat template renders it. ``tools`` are for a demonstration that
    has none of its own. DemonstrationError: a reply contains the token that ends a reply, or the template rejects the
    conversation of a file. RendererError: the template rejects a conversation that was played.
    """
    try:
        return _encoded(
            demonstration, renderer, tokenizer, tools if demonstration.tools is None else demonstration.tools
        )
    except RendererError as error:
        if not demonstration.where:
            raise
        hint = (
            "; or describe a row's tools in its system message, without a column 'tools'" if demonstration.tools else ""
        )
        raise DemonstrationError(f"{demonstration.where}: {error}{hint}") from error


def _encoded(demonstration: Demonstration, renderer: Renderer, tokenizer: Any, tools: Tools) -> Example:
    messages = copy_messages(demonstration.messages)
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    tokens = EpisodeTokens(renderer, messages[: turns[0]], episode_id="demonstration", tools=tools)
    weights: list[NDArray[np.float32]] = []
    for number, (index, weight) in enumerate(zip(turns, demonstration.imitate, strict=True)):
        message, end = messages[index], renderer.stop_token_ids[0]
        text = text_of(message)
        structured = bool(message.get("tool_calls") or message.get("reasoning_content"))
        if structured:
            text, end = renderer.written(messages[:index], message, tools)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if not set(ids).isdisjoint(renderer.stop_token_ids):
            raise DemonstrationError(
                f"a reply to imitate spells a token that ends replies; take it out: {text[:200]!r}"
            )
        ids.append(end)
        count = len(ids)
        tokens.reply(
            Generation(np.asarray(ids, np.int32), np.zeros(count, np.float32), np.zeros(count, np.int32), "stop"),
            message,
        )
        tokens.reward(0.0, {})
        weights.append(np.full(count, weight, np.float32))
        if number + 1 < len(turns):
            tokens.observe(messages[: turns[number + 1]])
    trajectory = tokens.finish(terminated=True, truncated=False, status=Status.COMPLETED, messages=messages)
    return Example(trajectory, np.concatenate(weights))
