"""The soak of the terminal: a small run, and the rule that tells a leak from noise."""

import asyncio
import dataclasses
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shells import shell_of

from benchmarks import terminal_soak
from benchmarks.resources import Resources
from benchmarks.terminal_soak import Soak, compared, table
from textenvs.sandbox.result import ShellLimits

ROOT = Path(__file__).parents[2]
FIELDS = [field.name for field in dataclasses.fields(Resources)]
USED = Resources(100.0, 80.0, 17, 5, 130, 180, 3, 0.5)


def rows_of(values, name):
    """Return measurements in which one figure has these values, and all others are constant."""
    return [(10.0 * at, 20 * at, dataclasses.replace(USED, **{name: value})) for at, value in enumerate(values)]


def verdicts(rows):
    return {line["figure"]: line["verdict"] for line in compared(rows)}


@given(st.sampled_from(FIELDS), st.integers(8, 60), st.integers(0, 99))
def test_leaks_grow_and_noise_is_flat(name, count, seed):
    rng = random.Random(seed)
    noise = [200.0 + rng.choice([0, 5]) for _ in range(count)]
    warm = 3 * count // 8
    noise[warm : warm + 2] = [200.0, 205.0]
    assert {*verdicts(rows_of(noise, name)).values()} == {"flat"}
    leaking = [value + 10.0 * at for at, value in enumerate(noise)]
    assert verdicts(rows_of(leaking, name)) == {figure: "grows" if figure == name else "flat" for figure in FIELDS}
    assert "grows" in table(compared(rows_of(leaking, name)))


@given(st.sampled_from(FIELDS), st.integers(16, 60), st.floats(0.0, 60.0))
def test_much_noise_decides_nothing(name, count, growth):
    warm, length = 3 * count // 8, count // 4
    values = [200.0] * count
    values[warm] = 260.0
    values[-length:] = [200.0 + growth] * length
    assert verdicts(rows_of(values, name))[name] == "cannot tell"
    values[-length:] = [261.0] * length
    assert verdicts(rows_of(values, name))[name] == "grows"


@given(st.sampled_from(FIELDS), st.integers(8, 60), st.floats(0.0, 1e4))
def test_warm_up_is_no_growth_nor_noise(name, count, first):
    warm = 3 * count // 8
    values = [first + (200.0 - first) * min(1.0, at / warm) for at in range(count)]
    assert verdicts(rows_of(values, name))[name] == "flat"


@given(st.sampled_from(FIELDS), st.integers(8, 60))
def test_stated_smallest_growth_is_seen(name, count):
    warm, length = 3 * count // 8, count // 4
    early = 200.0 if name.endswith("_mb") else 200
    values = [early] * count
    (line,) = [line for line in compared(rows_of(values, name)) if line["figure"] == name]
    least = line["smallest_growth"] * 20 * (count - length - warm)  # 20 episodes a row
    for growth, verdict in ((least, "grows"), (line["allowed"], "flat")):
        values[-length:] = [early + type(early)(round(growth, 9))] * length
        assert verdicts(rows_of(values, name))[name] == verdict


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
    """In a process of its own, below which no process of another test begins or ends meanwhile."""
    script = """
import tempfile
from benchmarks.resources import resources, temporary_folder

with temporary_folder() as folder:
    before = resources(folder)
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(1 << 20))
        file.flush()
        used = resources(folder)
assert used.open_files == before.open_files + 1, (before, used)
assert used.temporary == before.temporary + 1
assert used.disk_mb >= 1.0
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
