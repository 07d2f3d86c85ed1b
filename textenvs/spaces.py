"""Gymnasium spaces for text: any Unicode conversation, any assistant turn, any string.

None of them is a subclass of :class:`gymnasium.spaces.Text`. ``Text`` is bound to a character set (all of Unicode costs
seconds and hundreds of MiB), and its shared-memory path in ``AsyncVectorEnv`` returns constant observations without an
error. Here that path, Gymnasium's default, goes through a file for each environment (:class:`SharedText`), because a
text has no largest size to reserve memory for.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gymnasium import spaces
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from .messages import Message, Messages, ToolCall, problem_with

T = TypeVar("T")

# Samples are for checks, not for training: short, printable, and with non-ASCII text so that nothing downstream
# can get away with assuming ASCII.
_SAMPLE_WORDS = ("yes", "no", "why", "#### 7", "12", "é", "数", "🙂", "\n", "<b>", "{", '"', "maybe", "3 + 4 = 7")


class _TextSpace(spaces.Space[T]):
    """What the spaces have in common; two of one class are the same set."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed-size array form."""
        return False

    def __repr__(self) -> str:
        """The constructor call."""
        return f"{type(self).__name__}()"

    def __eq__(self, other: Any) -> bool:
        """Whether it is the same set."""
        return type(other) is type(self)

    def __hash__(self) -> int:
        """Equal spaces hash alike."""
        return hash(type(self))


class Conversation(_TextSpace[Messages]):
    """All conversations: tuples of chat messages (see :mod:`textenvs.messages`) of any length, including none."""

    def sample(self, mask: Any = None, probability: Any = None) -> Messages:
        """A random short conversation that alternates user and assistant."""
        _no_mask(mask, probability)
        roles = ("user", "assistant")
        count = int(self.np_random.integers(1, 6))
        return tuple({"role": roles[i % 2], "content": _words(self.np_random)} for i in range(count))  # type: ignore[typeddict-item]

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a tuple of well-formed messages."""
        return isinstance(x, tuple) and all(problem_with(message) is None for message in x)

    def to_jsonable(self, sample_n: Iterable[Messages]) -> list[Any]:
        """Lists of messages."""
        return [[dict(message) for message in sample] for sample in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[Messages]:
        """The inverse of :meth:`to_jsonable`."""
        return [tuple(_frozen(message) for message in sample) for sample in sample_n]


class AssistantTurn(_TextSpace[str | Message]):
    """What an assistant may do in a turn: say text (``str``), or give a whole assistant message (with tool calls)."""

    def sample(self, mask: Any = None, probability: Any = None) -> str | Message:
        """Random text, now and then as a message with a tool call."""
        _no_mask(mask, probability)
        text = _words(self.np_random)
        if self.np_random.random() < 0.75:
            return text
        call: ToolCall = {"id": "call_0", "type": "function", "function": {"name": "sample", "arguments": "{}"}}
        return {"role": "assistant", "content": text, "tool_calls": (call,)}

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string or a well-formed assistant message."""
        return isinstance(x, str) or (problem_with(x) is None and x["role"] == "assistant")

    def to_jsonable(self, sample_n: Iterable[str | Message]) -> list[Any]:
        """Strings and messages are JSON already."""
        return [sample if isinstance(sample, str) else dict(sample) for sample in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[str | Message]:
        """The inverse of :meth:`to_jsonable`."""
        return [sample if isinstance(sample, str) else _frozen(sample) for sample in sample_n]


class Unicode(_TextSpace[str]):
    """All strings: what a conversation is when a wrapper has made text of it."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Random short text."""
        _no_mask(mask, probability)
        return _words(self.np_random)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string."""
        return isinstance(x, str)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Strings are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[str]) -> list[str]:
        """The inverse of :meth:`to_jsonable`."""
        return list(sample_n)


class SharedText(Sequence[Any]):
    """What ``n`` processes last observed, each in a file of its own, for ``AsyncVectorEnv(shared_memory=True)``.

    As a sequence it reads the files at every access, as an array in shared memory would; a deep copy, which is what
    ``AsyncVectorEnv`` hands out unless ``copy=False``, is a tuple. The files go with the object that made them.

    Args:
        n: How many environments.
        empty: The observation of an environment that has not written one.
    """

    def __init__(self, n: int, empty: Any) -> None:
        self._n = n
        self._empty = empty
        self._folder = Path(tempfile.mkdtemp(prefix="textenvs-observations-"))
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def write(self, index: int, value: Any) -> None:
        """Set the observation of environment ``index``."""
        (self._folder / str(index)).write_bytes(pickle.dumps(value))

    def __len__(self) -> int:
        """The number of environments."""
        return self._n

    def __getitem__(self, index: Any) -> Any:
        """The last observation of one environment, or a tuple of those of a slice."""
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._n)))
        path = self._folder / str(range(self._n)[index])
        return pickle.loads(path.read_bytes()) if path.exists() else self._empty

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        """All observations as they are now."""
        return tuple(self)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process drops its copy of the object, too
        shutil.rmtree(folder, ignore_errors=True)


def _create(space: spaces.Space[Any], n: int = 1, ctx: Any = None) -> Any:
    return SharedText(n, () if isinstance(space, Conversation) else "")


def _read(space: spaces.Space[Any], shared_memory: Any, n: int = 1) -> Any:
    return shared_memory


def _write(space: spaces.Space[Any], index: int, value: Any, shared_memory: Any) -> None:
    shared_memory.write(index, value)


for _kind in (Conversation, Unicode):
    create_shared_memory.register(_kind, _create)
    read_from_shared_memory.register(_kind, _read)
    write_to_shared_memory.register(_kind, _write)


def _words(rng: Any) -> str:
    return " ".join(_SAMPLE_WORDS[i] for i in rng.integers(0, len(_SAMPLE_WORDS), size=int(rng.integers(1, 8))))


def _frozen(message: dict[str, Any]) -> Message:
    lists = {name: tuple(value) for name, value in message.items() if isinstance(value, list)}
    return {**message, **lists}  # type: ignore[typeddict-item, return-value]


def _no_mask(mask: Any, probability: Any) -> None:
    if mask is not None or probability is not None:
        raise ValueError("text spaces have no finite set of choices, so sample() takes neither mask nor probability")
