"""Boxes for tests: each backend of this machine, or the proof that it is refused in words that help."""

import functools

import pytest

from textenvs.sandbox import Limits, Sandbox, SandboxUnavailable

#: Small enough that an attack is over soon, large enough for an interpreter.
SMALL = Limits(cpu_s=1, wall_s=30, memory_mb=128, processes=8, disk_mb=4, open_files=32, output_bytes=20_000)
#: For what is stopped by the clock whatever it does.
HASTY = Limits(cpu_s=30, wall_s=0.5, memory_mb=128, processes=8, disk_mb=4)


@functools.cache
def box_or_refusal(backend: str | None, limits: Limits) -> Sandbox | str:
    try:
        return Sandbox(backend=backend, limits=limits)
    except SandboxUnavailable as refusal:
        return str(refusal)


def box_of(backend: str | None = None, limits: Limits = SMALL) -> Sandbox:
    """Return the box; where there is none, check the refusal, and skip the test that needs it."""
    box = box_or_refusal(backend, limits)
    if isinstance(box, str):
        check_refusal(box, backend)
        pytest.skip("refused on this machine: " + box.splitlines()[1])
    return box


def check_refusal(text: str, backend: str | None = None) -> None:
    """Check that a refusal names the backends tried and the remedy."""
    for word in (f"- {backend or 'bubblewrap'}: ", "install bubblewrap", "user namespaces", "in a container"):
        assert word in text
    assert "allow_unsafe=True" in text
