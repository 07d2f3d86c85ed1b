"""The machine that a benchmark runs on, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def processor() -> str:
    """Return the name of this machine's processor, and how many there are."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} CPUs"
