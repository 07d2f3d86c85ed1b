"""Gymnasium spaces for text: any Unicode conversation, any assistant turn, any string.

:class:`gymnasium.spaces.Text` is bound to a character set, and its shared-memory path in ``AsyncVectorEnv`` returns
constant observations without an error. Here that path is a list in a manager's process: a text has no largest size.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.managers import ListProxy
from typing import Any, TypeVar

from gymnasium import spaces
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from .messages import Message, Messages, ToolCall, problem_with

T = TypeVar("T")

# Samples are for checks, not for training: short, printable, and with non-ASCII text so that nothing downstream
# can get away with assuming ASCII.
_SAMPLE_WORDS = ("yes", "no", "why", "#### 7", "12", "é", "数", "🙂", "\n", "<b>", "{", '"', "maybe", "3 + 4 = 7")


class _TextSpace(spaces.Space[T]):
    """Base of the spaces; two of one class are the same set."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> T:
        if mask is not None or probability is not None:
            raise ValueError("text has no finite set of choices, so sample() takes neither mask nor probability")
        return self._sample()

    def _sample(self) -> T:
        raise NotImplementedError

    def _words(self) -> str:
        rng = self.np_random
        return " ".join(_SAMPLE_WORDS[i] for i in rng.integers(0, len(_SAMPLE_WORDS), size=int(rng.integers(1, 8))))

    def from_jsonable(self, sample_n: list[Any]) -> list[T]:
        return [_tuples(sample) for sample in sample_n]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: Any) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class Conversation(_TextSpace[Messages]):
    """All conversations: tuples of chat messages (see :mod:`textenvs.messages`) of any length, including none."""

    def _sample(self) -> Messages:
        roles = ("user", "assistant")
        count = int(self.np_random.integers(1, 6))
        return tuple({"role": roles[i % 2], "content": self._words()} for i in range(count))  # type: ignore[typeddict-item]

    def contains(self, x: Any) -> bool:
        return isinstance(x, tuple) and all(problem_with(message) is None for message in x)


class AssistantTurn(_TextSpace[str | Message]):
    """An assistant's action in a turn: text (``str``), or give a whole assistant message (with tool calls)."""

    def _sample(self) -> str | Message:
        text = self._words()
        if self.np_random.random() < 0.75:
            return text
        call: ToolCall = {"id": "call_0", "type": "function", "function": {"name": "sample", "arguments": "{}"}}
        return {"role": "assistant", "content": text, "tool_calls": (call,)}

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) or (problem_with(x) is None and x.get("role") == "assistant")


class Unicode(_TextSpace[str]):
    """All strings: what a conversation is when a wrapper has made text of it."""

    def _sample(self) -> str:
        return self._words()

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


def _tuples(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_tuples(item) for item in value)
    return {name: _tuples(item) for name, item in value.items()} if isinstance(value, dict) else value


class SharedText(Sequence[Any]):
    """The last observations of ``n`` processes; a deep copy, which is what ``AsyncVectorEnv`` hands out, is a tuple."""

    def __init__(self, texts: ListProxy[Any]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: Any) -> Any:
        return self._texts[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        return tuple(self._texts[:])


def _create(space: spaces.Space[Any], n: int = 1, ctx: Any = multiprocessing) -> Any:
    manager = ctx.Manager()
    memory = manager.list([() if isinstance(space, Conversation) else ""] * n)
    memory.manager = manager  # whose process ends when nothing refers to it
    return memory


def _read(space: spaces.Space[Any], shared_memory: Any, n: int = 1) -> Any:
    return SharedText(shared_memory)


def _write(space: spaces.Space[Any], index: int, value: Any, shared_memory: Any) -> None:
    shared_memory[index] = value


for _kind in (Conversation, Unicode):
    create_shared_memory.register(_kind, _create)
    read_from_shared_memory.register(_kind, _read)
    write_to_shared_memory.register(_kind, _write)
