"""Differences between vLLM's versions; docs/versions.md says which of them were run.

The workers import this too.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainers.engines.versions import Releases


@dataclass(frozen=True)
class Protocol:
    """Properties of a version that the client and the workers adapt to."""

    #: Whether answers have ``weight_versions``. Else the workers' sampler adds to each token how many updates they had
    reports_weights: bool
    #: Whether a request is refused with 503 while ``/pause?mode=abort`` holds. Else it waits for ``/resume``
    refuses_while_paused: bool

    @property
    def logprobs(self) -> int:
        """Number of log-probabilities to request; where it is 2, the second one carries the number of updates."""
        return 0 if self.reports_weights else 2


#: vLLM 0.33 was read, and never ran.
RELEASES = Releases(
    "vLLM",
    "vllm",
    {
        "0.26": Protocol(reports_weights=False, refuses_while_paused=False),
        "0.32": Protocol(reports_weights=True, refuses_while_paused=False),
        "0.33": Protocol(reports_weights=True, refuses_while_paused=True),
    },
    newest="0.33",
)
