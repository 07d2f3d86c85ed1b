"""Which replica has seen which prompt before: an index over prefixes of token sequences, in bounded memory.

A sequence is cut into blocks of ``block`` tokens. The key of a block is a hash of the block and of the key before it,
so that one key stands for everything up to there, and two sequences share exactly the keys of their common prefix (to
the block). The index knows for each key which replicas have it. vLLM names its cached blocks in the same way; here
nothing is cached, only remembered, and a guess that is wrong costs a prefill and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Keys = tuple[int, ...]

_BYTES = 4  # of a token


class PrefixIndex:
    """An index over the prefixes that ``replicas`` replicas have served.

    Args:
        replicas: How many there are.
        block: Tokens a block: a prefix is known to this precision.
        max_blocks: Keys to remember, about 200 bytes each. The least recently used are forgotten first, and of one
            sequence the end before the beginning.

    Raises:
        ValueError: A size that is not positive.
    """

    def __init__(self, replicas: int, *, block: int = 16, max_blocks: int = 65536) -> None:
        for name, size in (("replicas", replicas), ("block", block), ("max_blocks", max_blocks)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}")
        self.replicas = replicas
        self.block = block
        self.max_blocks = max_blocks
        self._holders: OrderedDict[int, int] = OrderedDict()  # key -> bits of the replicas; least recently used first

    def __len__(self) -> int:
        return len(self._holders)

    def keys(self, tokens: Sequence[int] | NDArray[np.integer], known: Keys = ()) -> Keys:
        """The keys of all whole blocks of a sequence.

        Args:
            tokens: Token ids ``[n]``.
            known: The keys of a prefix of ``tokens``, which are then not computed again.
        """
        data = np.asarray(tokens, np.int32).tobytes()
        keys = list(known)
        key, size = keys[-1] if keys else 0, self.block * _BYTES
        for start in range(len(keys) * size, len(data) - size + 1, size):
            # 64 bits; should two sequences ever meet in one key, a request is sent where it gains nothing.
            key = hash((key, data[start : start + size]))
            keys.append(key)
        return tuple(keys)

    def add(self, keys: Keys, replica: int) -> None:
        """``replica`` has computed the sequence with these keys."""
        holders, bit = self._holders, 1 << replica
        for key in reversed(keys):  # the beginning is used last, so it is forgotten last
            holders[key] = holders.get(key, 0) | bit
            holders.move_to_end(key)
        while len(holders) > self.max_blocks:
            holders.popitem(last=False)

    def shared(self, keys: Keys) -> list[int]:
        """How many tokens of the sequence each replica has computed before, as far as is known: ``[replicas]``."""
        shared = [0] * self.replicas
        alive, length = (1 << self.replicas) - 1, 0
        for key in keys:
            still = alive & self._holders.get(key, 0)
            if still != alive:
                self._note(shared, alive & ~still, length)
                alive = still
            if not alive:
                return shared
            length += self.block
        self._note(shared, alive, length)
        return shared

    def _note(self, shared: list[int], which: int, length: int) -> None:
        for replica in range(self.replicas):
            if which >> replica & 1:
                shared[replica] = length

    def forget(self, replica: int) -> None:
        """``replica`` has lost what it had."""
        kept = ((key, bits & ~(1 << replica)) for key, bits in self._holders.items())
        self._holders = OrderedDict((key, bits) for key, bits in kept if bits)

    def clear(self) -> None:
        """Nobody has anything any more."""
        self._holders.clear()
