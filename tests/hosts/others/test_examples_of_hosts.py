"""The examples of these hosts run by themselves, and show what they say that they show."""

import re
import runpy
import socket
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def output_of(monkeypatch, capsys):
    """Runs an example in this process, which has imported its library already."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def output_of(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return output_of


def test_openenv(output_of):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    printed = output_of("openenv/play.py", str(port))
    first, second = re.findall(r"reward ([+-]\d\.\d\d), done (\w+)", printed)
    assert (first[1], second[1]) == ("False", "True")
    assert f"generic client: {float(first[0])}" in printed
    assert "a fork goes the same way: True" in printed


def test_verifiers(output_of):
    printed = output_of("verifiers/evaluate.py")
    rewards = re.findall(r"textenv/clarify#\d: reward ([+-]\d\.\d\d), by turns \[(.*?)\].*ok True", printed)
    assert len(rewards) == 4
    for total, turns in rewards:
        assert float(total) == round(sum(map(float, turns.split(", "))), 2)
