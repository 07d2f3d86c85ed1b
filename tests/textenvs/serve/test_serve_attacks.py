"""Attacks on a server in a process of its own, as the command line starts it."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from contextlib import contextmanager
from functools import partial

import pytest
from served import ask, get, running

import textenvs
from textenvs.envs.reasoning_gym.tasks import ReasoningGymTasks


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
            if found := re.search(r"serving at (http://\S+),", line):
                self.url = found[1]
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
    """The answer to an opening, and its status."""
    status, _, answer = ask(server, "open", session=uuid.uuid4().hex, env=env, **fields)
    return status, answer


# ------------------------------------------------------------------ code in a row


def test_code_in_a_row_of_a_client_does_not_run(tmp_path):
    proof = tmp_path / "proof"
    code = f"__import__('os').system('id > {proof}')"
    about = {"source_dataset": "bitwise_arithmetic", "problem": code}
    row = {
        "data_source": "x",
        "prompt": [{"role": "user", "content": "?"}],
        "reward_model": {"style": "rule", "ground_truth": "1"},
        "extra_info": {"answer": "0x1", "metadata": about},
    }
    sorting = ReasoningGymTasks("number_sorting", size=5)[0].to_row()
    sorting["extra_info"]["answer"] = sorting["reward_model"]["ground_truth"] = code
    served = {
        name: partial(textenvs.make, "textenv/reasoning-gym", dataset=dataset)
        for name, dataset in (("bits", "bitwise_arithmetic"), ("sorting", "number_sorting"))
    }
    with running(served, allow=["tasks"]) as server:
        for name, hostile in (("bits", row), ("sorting", json.loads(json.dumps(sorting)))):
            status, answer = opened(server, name, options={"task": hostile})
            assert (status, answer["error"]["kind"]) == (422, "refused_reset")
            assert "raised ValueError" in answer["error"]["message"]
        # A task of the server's own is played as before, and code as an answer to it does not run either.
        status, answer = opened(server, "bits", seed=0, options={"task_index": 3})
        assert status == 200
        step = {"session": answer["session"], "turn": 0, "action": f"<answer>{code}</answer>"}
        status, _, answer = ask(server, "step", **step)
        assert (status, answer["reward"]) == (200, 0.0)
    assert not proof.exists()


# ------------------------------------------------------------------ memory


@pytest.fixture(scope="module")
def bounded():
    with serving("textenv/gsm8k-interact", "--max-memory-mb", "24") as server:
        yield server


def step(server, session, turn, action):
    status, _, answer = ask(server, "step", session=session, turn=turn, action=action)
    return status, answer


def test_replies_of_8_mb_are_refused_and_leave_nothing(bounded):
    status, answer = opened(bounded, "textenv/gsm8k-interact", seed=0)
    session = answer["session"]
    for _ in range(3):
        status, answer = step(bounded, session, 0, "-" * (8 * 2**20 - 300))
        assert (status, answer["error"]["kind"]) == (413, "too_large")
        assert "a reply has at most 1048576 bytes" in answer["error"]["message"]
    status, answer = step(bounded, session, 0, "#### 1")
    assert (status, answer["turn"]) == (200, 1)
    ask(bounded, "close", sessions=[session])


def test_memory_stays_below_a_bound_and_is_given_back(bounded):
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
