"""Seeds as functions of names and numbers: no generator has a state to save."""

from __future__ import annotations

import hashlib
import json


def derive_seed(*parts: int | str, bits: int = 63) -> int:
    """Derive a seed in ``[0, 2**bits)``, the same in every process; ``1`` and ``"1"`` are different parts."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - bits)


def environment_seed(seed: int, group: int) -> int:
    """Return the seed of the environments of this group's episodes, in a run with this seed."""
    return derive_seed(seed, "environment", group, bits=32)
