"""The blocks of keys and values: which are free, which requests share, which idle sessions keep."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count

ROOT = 0  #: what comes before the first block

#: The content of a block: its parent's number (:data:`ROOT` for the first of a sequence), and its own tokens as bytes.
Name = tuple[int, bytes]


class BlockPool:
    """Allocates ``total`` blocks of keys and values, and records the sessions that keep some between their requests.

    A full block can be *named* by its tokens and all before them: requests with the same tokens at the same place share
    it. Names are compared token by token, never by a hash. A block is free when nothing refers to it.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total))  # a heap: low blocks first; idle sessions fill the others in time
        self._references = [0] * total
        self._named: dict[Name, tuple[int, int]] = {}  # to the block, and the number by which its children name it
        self._names: dict[int, Name] = {}  # by block
        self._numbers = count(ROOT + 1)
        # What sessions keep, by number: the session and its blocks; the one idle for longest first.
        self._kept: OrderedDict[int, tuple[Hashable, list[int]]] = OrderedDict()
        self._sessions: dict[Hashable, list[int]] = {}  # keys of ``_kept``
        self._keeps = count()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def find(self, name: Name) -> tuple[int, int] | None:
        """Return the block of this name, with one more reference, and its number as a parent; ``None`` without one."""
        entry = self._named.get(name)
        if entry is not None:
            self._references[entry[0]] += 1
        return entry

    def name(self, block: int, name: Name) -> int:
        """Name a full block, so that it can be found; no other has the name. Returns its number as a parent."""
        self._named[name] = (block, next(self._numbers))
        self._names[block] = name
        return self._named[name][1]

    def take(self, number: int) -> list[int] | None:
        """Allocate blocks, each with a reference; evicts idle sessions if necessary. ``None`` if there are too few."""
        if not self.has_room(number):
            return None
        blocks = [heapq.heappop(self._free) for _ in range(number)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def has_room(self, number: int) -> bool:
        """Return whether so many blocks are free; evicts idle sessions if necessary."""
        while len(self._free) < number and self._kept:
            self._forget_kept(next(iter(self._kept)))
        return len(self._free) >= number

    def give_back(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                if (name := self._names.pop(block, None)) is not None:
                    del self._named[name]
                heapq.heappush(self._free, block)

    def keep(self, session: Hashable, blocks: list[int]) -> None:
        """Let an idle session keep these blocks, with their references.

        Of what it kept before and these, the longer stands for both where one extends the other. Else they are of two
        contexts, and the session may go back to either. At most ``total`` contexts are kept; of more, the one idle for
        longest is forgotten.
        """
        for number in list(self._sessions.get(session, ())):
            before = self._kept[number][1]
            common = min(len(before), len(blocks))
            if before[:common] != blocks[:common]:
                continue
            if len(before) > len(blocks):
                before, blocks = blocks, before
                self._kept[number] = session, before
            self._forget_kept(number)
        if blocks:
            number = next(self._keeps)
            self._kept[number] = session, blocks
            self._sessions.setdefault(session, []).append(number)
        if len(self._kept) > self.total:
            self._forget_kept(next(iter(self._kept)))

    def release(self, session: Hashable) -> None:
        for number in list(self._sessions.get(session, ())):
            self._forget_kept(number)

    def _forget_kept(self, number: int) -> None:
        session, blocks = self._kept.pop(number)
        self._sessions[session].remove(number)
        if not self._sessions[session]:
            del self._sessions[session]
        self.give_back(blocks)

    def forget(self) -> None:
        """Forget all stale keys and values: sessions keep no blocks, and no block is found by its name."""
        for session in list(self._sessions):
            self.release(session)
        self._named.clear()
        self._names.clear()
