"""Differences between SGLang's versions; docs/versions.md says which of them were run."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.engines.versions import Releases


@dataclass(frozen=True)
class Protocol:
    """Properties of a version that the client adapts to."""

    #: Whether tensors come between ``/begin_weight_update`` and ``/end_weight_update``, which older versions lack
    has_sessions: bool


RELEASES = Releases(
    "SGLang",
    "sglang",
    {"0.5.19": Protocol(has_sessions=False), "0.5.21": Protocol(has_sessions=True)},
    newest="0.5.23",
)
