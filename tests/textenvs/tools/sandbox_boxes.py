"""Boxes for tests: each backend of this machine, or the proof that it is refused in words that help."""

import functools

import pytest

from textenvs.tools.sandbox import Limits, Sandbox, SandboxUnavailable

#: Small enough that an attack is over soon, large enough for an interpreter.
SMALL = Limits(cpu_s=1, wall_s=4, memory_mb=128, processes=8, disk_mb=4, open_files=32, output_bytes=20_000)


@functools.cache
def box_or_refusal(backend: str | None) -> Sandbox | str:
    try:
        return Sandbox(backend=backend, limits=SMALL)
    except SandboxUnavailable as refusal:
        return str(refusal)


def box_of(backend: str | None = None) -> Sandbox:
    """The box; where there is none, the refusal is checked, and the test that asked is skipped by name."""
    found = box_or_refusal(backend)
    if isinstance(found, str):
        for word in (backend or "bubblewrap", "bubblewrap (Debian", "user namespaces", "container", "allow_unsafe=True"):
            assert word in found, found
        pytest.skip("refused on this machine: " + found.splitlines()[1])
    return found
