"""Whether a server has the weights it was sent: its checksums against ours.

On the CPU with one rank and a known type, ``/weights_checker`` gives what :func:`.weights.fingerprints` computes, so
each is compared. On GPUs SGLang hashes otherwise, and ranks hold parts: there each parameter's checksum must have
changed since the last update exactly where the parameter has, which an ignored or a lost tensor does not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .server_info import ServerInfo
from .weights import fingerprints

log = logging.getLogger("trainers")


class Verifier:
    """Compares; remembers the last update, and what it has complained about."""

    def __init__(self) -> None:
        self._ours: dict[str, str] = {}
        self._theirs: dict[str, tuple[str, ...]] = {}
        self._told = False

    def compare(self, prepared: Mapping[str, Tensor], answer: Any, info: ServerInfo) -> str | None:
        """What is wrong, or ``None``.

        Args:
            prepared: The weights as they were sent.
            answer: The server's, or ``None`` where it has no checksums; then nothing can be wrong, and a warning says
                so once.
            info: What the server is.
        """
        theirs = _by_name(answer)
        ours = fingerprints(prepared) if theirs else {}
        common = [name for name in ours if name in theirs]
        if not common:
            if not self._told:
                log.warning("the SGLang server (%s) says no checksums: updates are not verified", info.version)
                self._told = True
            return None
        if info.device == "cpu" and info.ranks == 1 and info.dtype is not None:
            wrong = [name for name in common if theirs[name] != (ours[name],)]
        else:
            wrong = [
                name
                for name in common
                if name in self._ours and name in self._theirs
                if (ours[name] != self._ours[name]) != (theirs[name] != self._theirs[name])
            ]
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            return f"the checksums of {', '.join(wrong[:3])}{more} differ"
        self._ours, self._theirs = ours, theirs
        return None


def _by_name(answer: Any) -> dict[str, tuple[str, ...]]:
    """Checksums by the server's names, one a rank."""
    found: dict[str, tuple[str, ...]] = {}
    ranks = answer.get("ranks") if isinstance(answer, Mapping) else None
    for rank in ranks if isinstance(ranks, list) else []:
        sums = rank.get("checksums") if isinstance(rank, Mapping) else None
        for name, value in sums.items() if isinstance(sums, Mapping) else ():
            found[name] = (*found.get(name, ()), str(value))
    return found
