"""The examples of these hosts run by themselves, and show what they say that they show."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def output_of(name, *arguments, before=()):
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    path = os.pathsep.join(map(str, [*before, ROOT]))
    env = os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=env, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_openenv():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    printed = output_of("openenv/play.py", str(port))
    first, second = re.findall(r"reward ([+-]\d\.\d\d), done (\w+)", printed)
    assert (first[1], second[1]) == ("False", "True")
    assert f"generic client: {float(first[0])}" in printed
    assert "a fork goes the same way: True" in printed


def test_verifiers():
    printed = output_of("verifiers/evaluate.py")
    rewards = re.findall(r"textenv/clarify#\d: reward ([+-]\d\.\d\d), by turns \[(.*?)\].*ok True", printed)
    assert len(rewards) == 4
    for total, turns in rewards:
        assert float(total) == round(sum(map(float, turns.split(", "))), 2)
