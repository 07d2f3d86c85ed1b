"""A cache of states of a shell, by the memory that it keeps alive."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from .tree import Tree

T = TypeVar("T")
#: Bytes of a kept value without its contents, of each path in its tree, and of each entry without its content.
VALUE_BYTES, SLOT_BYTES, ENTRY_BYTES = 2048, 128, 512


class TreeCache(Generic[T]):
    """Values by key, each with a tree; the least recently used are dropped beyond ``most_bytes``. Safe in threads.

    States share most of their files, and a state keeps those alive that later ones have replaced. So every path and
    every entry that any of the kept trees has is counted, once, however many trees have it.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.clear()
        _caches.add(self)

    def clear(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[T, Tree, int]] = OrderedDict()
        #: How often a tree is kept, and in how many of these each path and entry is, by ``id``: all of them are alive.
        self._uses: Counter[int] = Counter()
        self.bytes = 0

    def get(self, key: bytes) -> T | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: bytes, value: T, tree: Tree, own_bytes: int) -> T:
        """Keep a value that holds ``tree`` and ``own_bytes`` bytes more; return it, or the one that the key has."""
        with self._lock:
            if key in self._kept:
                return self._kept[key][0]
            self._kept[key] = (value, tree, VALUE_BYTES + own_bytes)
            self.bytes += VALUE_BYTES + own_bytes
            if self._is_new(tree, SLOT_BYTES * len(tree)):  # most commands change no file
                for part, size in _parts(tree):
                    self._is_new(part, size)
            while self.bytes > self.most_bytes:
                self._drop()
        return value

    def _drop(self) -> None:
        _, (_, tree, own_bytes) = self._kept.popitem(last=False)
        self.bytes -= own_bytes
        if self._is_last(tree, SLOT_BYTES * len(tree)):
            for part, size in _parts(tree):
                self._is_last(part, size)

    def _is_new(self, part: object, size: int) -> bool:
        """Count one use more; return whether it is the first, which costs ``size`` bytes."""
        self._uses[id(part)] += 1
        if self._uses[id(part)] > 1:
            return False
        self.bytes += size
        return True

    def _is_last(self, part: object, size: int) -> bool:
        self._uses[id(part)] -= 1
        if self._uses[id(part)]:
            return False
        del self._uses[id(part)]
        self.bytes -= size
        return True

    def __len__(self) -> int:
        return len(self._kept)


def _parts(tree: Tree) -> Iterator[tuple[object, int]]:
    """Yield each path and entry, and its bytes."""
    for path, entry in tree.items():
        yield path, sys.getsizeof(path)
        yield entry, ENTRY_BYTES + len(entry.content)


_caches: weakref.WeakSet[TreeCache[Any]] = weakref.WeakSet()


def _clear_after_fork() -> None:
    """Start over in a child: another thread may have held the lock, in the middle of a change."""
    for cache in tuple(_caches):
        cache.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_after_fork)
