"""Nsight Systems around learner ranks: what Ray starts them with. Pure: it knows neither Ray nor Nsight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_RANGE = "capture-range"


def captures(options: Mapping[str, Any]) -> bool:
    """Whether Nsight waits for cudaProfilerStart: a rank then says what is captured."""
    return options.get(_RANGE) == "cudaProfilerApi"


def nsight_of(options: Mapping[str, Any], steps: Sequence[int]) -> dict[str, str]:
    """Ray's ``nsight`` of a runtime environment: options of ``nsys profile``, all of them words.

    Nsight ends a process after its first range, unless told otherwise. So where ranges are captured, it is told of how
    many there are, and to let the process live.

    Args:
        options: As configured.
        steps: The iterations that are captured.
    """
    given = dict(options)
    if captures(options):
        given = {"capture-range-end": f"repeat-shots:{len(steps)}", "kill": "none"} | given
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
