"""Which block of keys and values holds which tokens: pure bookkeeping, no tensors.

A block has room for :data:`SIZE` positions. A full one can be *named* by its tokens and all that came before them; who
needs the same tokens at the same place then shares it, so that siblings of a group, turns of a session and forks of a
conversation keep one copy of what they have in common. A block is free again when nothing refers to it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

#: Positions of a block.
SIZE = 16
#: What comes before the first block.
ROOT = 0

#: What a block holds: its parent's number (:data:`ROOT` for the first of a sequence), and its own tokens as bytes.
Name = tuple[int, bytes]


def default_bytes(gpu: int | None) -> int:
    """Room for keys and values where none is given: a quarter of a GPU's (free) memory, and 1 GiB on a CPU.

    A CPU computes too slowly to need more: beyond, requests wait for each other.
    """
    return 2**30 if gpu is None else gpu // 4


def blocks_for(tokens: int) -> int:
    """How many blocks so many tokens need."""
    return -(-tokens // SIZE)


class BlockPool:
    """Allocates ``total`` blocks, and records the sessions that keep some between their requests.

    Names are compared token by token, never by a hash: a block found is always the right one.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total))  # a heap: low blocks first, so that little memory is ever touched
        self._references = [0] * total
        self._named: dict[Name, tuple[int, int]] = {}  # to the block, and the number by which its children name it
        self._names: dict[int, Name] = {}  # by block
        self._numbers = count(ROOT + 1)
        self._sessions: OrderedDict[str, list[int]] = OrderedDict()  # the one idle for longest first

    @property
    def free(self) -> int:
        """Blocks that nothing refers to."""
        return len(self._free)

    @property
    def sessions(self) -> int:
        """Sessions that keep blocks."""
        return len(self._sessions)

    def find(self, name: Name) -> tuple[int, int] | None:
        """The block of this name, with one more reference, and its number as a parent; ``None`` if there is none."""
        found = self._named.get(name)
        if found is not None:
            self._references[found[0]] += 1
        return found

    def name(self, block: int, name: Name) -> int:
        """The block is full, and others may find it. Returns its number as a parent.

        Where another has the name already that one keeps it, and children are named after it.
        """
        if name not in self._named:
            self._named[name] = (block, next(self._numbers))
            self._names[block] = name
        return self._named[name][1]

    def take(self, number: int) -> list[int] | None:
        """So many blocks with a reference each; idle sessions lose theirs for it. ``None`` if there are too few."""
        while len(self._free) < number and self._sessions:
            self.give_back(self._sessions.popitem(last=False)[1])
        if len(self._free) < number:
            return None
        taken = [heapq.heappop(self._free) for _ in range(number)]
        for block in taken:
            self._references[block] = 1
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """One reference less to each."""
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                if (name := self._names.pop(block, None)) is not None:
                    del self._named[name]
                heapq.heappush(self._free, block)

    def keep(self, session: str, blocks: list[int]) -> None:
        """A session is idle and keeps these blocks, with the references they have, and none that it kept before."""
        self.release(session)
        self._sessions[session] = blocks

    def release(self, session: str) -> None:
        """Forget a session; unknown ones are fine."""
        self.give_back(self._sessions.pop(session, ()))

    def forget(self) -> None:
        """All keys and values are stale: sessions keep nothing, and no block is found by its name any more."""
        for session in list(self._sessions):
            self.release(session)
        self._named.clear()
        self._names.clear()
