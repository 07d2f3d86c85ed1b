"""Attacks on a server in a process of its own, as the command line starts it."""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from contextlib import contextmanager

import pytest
from served import ask, get


class Process:
    """``textenvs serve`` with these arguments; ``url`` says where."""

    def __init__(self, *arguments):
        environment = {name: value for name, value in os.environ.items() if name != "TEXTENVS_TOKEN"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "textenvs", "serve", *arguments, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.url = ""
        for line in self.process.stdout:
            if match := re.search(r"serving at (http://\S+),", line):
                self.url = match[1]
                break
        assert self.url, "the server did not start"
        self.port = int(self.url.rpartition(":")[2])

    def resident(self):
        """MiB of resident memory."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@contextmanager
def serving(*arguments):
    server = Process(*arguments)
    try:
        yield server
    finally:
        server.stop()


def opened(server, env, **fields):
    """Return the answer to an opening, and its status."""
    status, _, answer = ask(server, "open", session=uuid.uuid4().hex, env=env, **fields)
    return status, answer


# ------------------------------------------------------------------ code in a row


# ------------------------------------------------------------------ memory


@pytest.fixture(scope="module")
def bounded():
    with serving("textenv/gsm8k-interact", "--max-memory-mb", "24") as server:
        yield server


def step(server, session, turn, action):
    status, _, answer = ask(server, "step", session=session, turn=turn, action=action)
    return status, answer


def test_memory_is_bounded_and_released(bounded):
    before = bounded.resident()
    sessions, refused, reply = [], Counter(), "-" * 1_000_000
    for number in range(36):
        status, answer = opened(bounded, "textenv/gsm8k-interact", seed=number)
        if status == 200:
            sessions.append(answer["session"])
            status, answer = step(bounded, sessions[-1], 0, reply)
        if status == 200:
            status, answer = step(bounded, sessions[-1], 1, reply)
        if status != 200:
            refused[answer["error"]["kind"]] += 1
    assert set(refused) == {"full"}
    assert refused["full"] > 10
    metrics = get(bounded, "/metrics")[1]
    assert metrics["most_held_bytes"] <= 26 * 2**20
    growth = bounded.resident() - before
    assert growth < 140, f"{growth:.0f} MiB"
    assert ask(bounded, "close", sessions=sessions)[0] == 200
    assert get(bounded, "/metrics")[1]["held_bytes"] < 2**16
    assert opened(bounded, "textenv/gsm8k-interact", seed=0)[0] == 200
