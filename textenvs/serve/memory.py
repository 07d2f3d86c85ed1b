"""The bytes that a server holds for its clients, by who holds them: no I/O, and no clock.

What is counted is an estimate of memory, not of the wire: a text of a million characters may take four megabytes. Held
are the conversations of sessions with the answers that may be asked for again, requests that are at work, and answers
that are not yet read.

Invariants: the total is the sum of what all holders have, and so is each client's; growth beyond a limit is refused,
except where it has happened already (an answer that an environment gave); what is freed counts no more.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

from .protocol import Refusal
from .sessions import Limits

#: What a session takes beside its conversation: an environment's copy and its state.
SESSION = 8192
#: A request that takes no more than this is never refused for its size.
SMALL = 4096
_CONTAINER, _ENTRY = 64, 16


class Memory:
    """The account of one server.

    Args:
        limits: Of a client (``max_bytes_per_token``) and in all (``max_bytes``).

    Attributes:
        total: Bytes that are held.
        most: The most that ever were.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.total = 0
        self.most = 0
        self._held: dict[Hashable, tuple[str, int]] = {}
        self._owned: Counter[str] = Counter()

    def held(self, holder: Hashable) -> int:
        """Bytes that ``holder`` has."""
        return self._held.get(holder, ("", 0))[1]

    def owned(self, owner: str) -> int:
        """Bytes that all holders of a client have."""
        return self._owned[owner]

    def hold(self, holder: Hashable, owner: str, size: int) -> None:
        """Let ``holder`` have ``size`` bytes, in the place of what it had.

        Raises:
            Refusal: ``full``: it is more than before, and more than there is room for. Nothing has changed then.
        """
        growth = size - self.held(holder)
        if growth > 0 and (which := self._over(owner, growth)):
            raise Refusal(
                "full", f"the server has no memory for {growth} more bytes {which}; end sessions", retry_after_s=1.0
            )
        self.record(holder, owner, size)

    def admit(self, holder: Hashable, owner: str, size: int) -> None:
        """:meth:`hold` of a request; a small one always comes in: where there is no memory, sessions must be closed."""
        (self.record if size <= SMALL else self.hold)(holder, owner, size)

    def record(self, holder: Hashable, owner: str, size: int) -> None:
        """:meth:`hold` for what is there already, whatever the limits are."""
        growth = size - self.held(holder)
        self._held[holder] = (owner, size)
        self._owned[owner] += growth
        self.total += growth
        self.most = max(self.most, self.total)

    def free(self, holder: Hashable) -> None:
        """``holder`` has nothing any more; safe to call twice."""
        owner, size = self._held.pop(holder, ("", 0))
        self.total -= size
        self._owned[owner] -= size
        if not self._owned[owner]:
            del self._owned[owner]

    def over(self, owner: str) -> bool:
        """Whether a client has more than it may, or all have."""
        return self._over(owner, 0) is not None

    def _over(self, owner: str, growth: int) -> str | None:
        limits = self._limits
        if self.total + growth > limits.max_bytes:
            return f"beside {self.total} of at most {limits.max_bytes}"
        most = limits.max_bytes_per_token
        if most is not None and self._owned[owner] + growth > most:
            return f"of this token beside {self._owned[owner]} of at most {most}"
        return None


def weigh(value: Any) -> int:
    """Bytes of memory that plain data takes, about: texts exactly, and what holds them by their number."""
    size, rest = 0, [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            size += sys.getsizeof(each)
        elif isinstance(each, Mapping):
            size += _CONTAINER + 4 * _ENTRY * len(each)
            rest.extend(each)
            rest.extend(each.values())
        elif isinstance(each, (list, tuple)):
            size += _CONTAINER + _ENTRY * len(each)
            rest.extend(each)
        else:
            size += 2 * _ENTRY
    return size


def reserve(text: str | bytes) -> int:
    """Bytes of memory that a JSON text takes at most, with what it is decoded to, before it is decoded."""
    marks: Any = "[{,:" if isinstance(text, str) else (b"[", b"{", b",", b":")
    wide = not text.isascii() or ("\\u" if isinstance(text, str) else b"\\u") in text  # type: ignore[operator]
    width = 4 if wide else 1
    return (1 + width) * len(text) + _CONTAINER * sum(text.count(mark) for mark in marks)
