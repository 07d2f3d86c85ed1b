"""The soak of the terminal: a small run, and the rule that tells a leak from noise."""

import asyncio
import dataclasses
import random
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shells import shell_of

from benchmarks import terminal_soak
from benchmarks.resources import Resources, resources, temporary_folder
from benchmarks.terminal_soak import Soak, compared, table
from textenvs.sandbox.result import ShellLimits

FIELDS = [field.name for field in dataclasses.fields(Resources)]
USED = Resources(100.0, 80.0, 17, 5, 130, 180, 3, 0.5)


def rows_of(values, name):
    """Return measurements in which one figure has these values, and all others are constant."""
    return [(10.0 * at, 20 * at, dataclasses.replace(USED, **{name: value})) for at, value in enumerate(values)]


def flat(rows):
    return {line["figure"]: line["flat"] for line in compared(rows)}


@given(st.sampled_from(FIELDS), st.integers(8, 60), st.integers(0, 99))
def test_leaks_grow_and_noise_is_flat(name, count, seed):
    rng = random.Random(seed)
    noise = [200.0 + rng.choice([0, 5]) for _ in range(count)]
    quarter = count // 4
    noise[quarter : 2 * quarter] = [200.0, 205.0, *noise[quarter + 2 : 2 * quarter]]
    assert all(flat(rows_of(noise, name)).values())
    leaking = [value + 10.0 * at for at, value in enumerate(noise)]
    assert flat(rows_of(leaking, name)) == {figure: figure != name for figure in FIELDS}
    assert "grows" in table(compared(rows_of(leaking, name)))


def test_too_few_measurements_are_refused():
    with pytest.raises(ValueError, match="7 measurements are too few"):
        Soak(7, 0.1, 1)


def test_small_soak_ends_without_failures(monkeypatch):
    shell_of(ShellLimits())
    monkeypatch.setattr(terminal_soak, "HOSTILE", ("sleep 300 & disown", "kill -9 -1", "head -c 64M /dev/zero > big"))
    soak = Soak(8, 0.05, 2, templates=["pipeline"])
    asyncio.run(soak.run())
    assert soak.failures == []
    assert len(soak.rows) == 8
    assert soak.counts["episodes"] >= 2
    assert all(line["late"] > 0 for line in compared(soak.rows) if line["figure"] in ("processes", "open_files"))


def test_resources_count_open_and_temporary_files():
    with temporary_folder() as folder:
        before = resources(folder)
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(1 << 20))
            file.flush()
            used = resources(folder)
    assert used.open_files == before.open_files + 1
    assert (used.temporary, used.disk_mb) == (before.temporary + 1, 1.0)
