"""Files of results: lines of JSON, and which measurements have theirs. Needs nothing but Python."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Results that are kept with the code.
KEPT = ROOT / "benchmarks" / "results"
_MEASURED = ("trainers", "benchmarks/gpu", "benchmarks/against_trl")


def key_of(part: str, what: Mapping[str, Any] | None) -> str:
    """Return the name of a measurement, or with ``None`` of a whole part, in a set of finished ones."""
    return json.dumps([part, what], sort_keys=True)


def read(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the lines of files of results. A line that was cut short, as by a lost machine, is left out."""
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if isinstance(result, dict):
                yield result


def files(out: Path | None = None) -> list[Path]:
    """Return the files of results that are kept, and ``out``."""
    saved = sorted(KEPT.glob("gpu-*.jsonl"))
    return saved + ([out] if out is not None and out.resolve() not in saved else [])


def finished(lines: Iterable[Mapping[str, Any]], device: str, code: str) -> frozenset[str]:
    """Return the measurements, and the parts, that have their results of this device and this :func:`source`."""
    return frozenset(
        key_of(line["part"], line["finished"])
        for line in lines
        if "finished" in line and (line.get("device"), line.get("source")) == (device, code)
    )


def durations(lines: Iterable[Mapping[str, Any]], device: str) -> dict[str, float]:
    """Return the seconds that measurements took on a device the last time, also with other code."""
    return {
        key_of(line["part"], line["finished"]): line["s"]
        for line in lines
        if "finished" in line and line.get("device") == device and "s" in line
    }


def faulty(line: Mapping[str, Any]) -> bool:
    """Return whether a line says that something is wrong; running out of memory is a result."""
    failed = str(line.get("failed", ""))
    return not line.get("good", True) or bool(failed and not failed.startswith("out of memory"))


@cache
def source() -> str:
    """Return a checksum of the measured code; a copy without its repository has it too."""
    digest = hashlib.sha256()
    for file in sorted(path for folder in _MEASURED for path in (ROOT / folder).rglob("*.py")):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@cache
def commit() -> str | None:
    """Return the commit, with a ``+`` where files have changed since; ``None`` without a repository."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
