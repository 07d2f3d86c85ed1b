"""Differences between SGLang's versions; docs/versions.md says which of them were run."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.engines.versions import Releases


@dataclass(frozen=True)
class Protocol:
    """Properties of a version that the client adapts to."""

    #: Whether tensors come between ``/begin_weight_update`` and ``/end_weight_update``, which older versions lack
    has_sessions: bool
    #: Whether the cache can be flushed while retracted requests wait. Else running requests are aborted and go on anew
    flushes_while_waiting: bool


RELEASES = Releases(
    "SGLang",
    "sglang",
    {
        "0.5.19": Protocol(has_sessions=False, flushes_while_waiting=False),
        "0.5.21": Protocol(has_sessions=True, flushes_while_waiting=True),
    },
    newest="0.5.23",
)
