"""Attacks on a server in a process of its own, as the command line starts it."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager

import pytest
from served import ask

from textenvs.tasks.reasoning_gym import ReasoningGymTasks


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
    status, _, answer = ask(server, "open", id=uuid.uuid4().hex, env=env, **fields)
    return status, answer


# ------------------------------------------------------------------ code in a row


@pytest.mark.parametrize("allowed", [False, True])
def test_code_in_a_row_of_a_client_does_not_run(tmp_path, allowed):
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
    what = ["bits@textenv/reasoning-gym", "dataset=bitwise_arithmetic"]
    what += ["sorting@textenv/reasoning-gym", "dataset=number_sorting"]
    with serving(*what, *(["--allow", "tasks"] if allowed else [])) as server:
        for name, hostile in (("bits", row), ("sorting", json.loads(json.dumps(sorting)))):
            status, answer = opened(server, name, options={"task": hostile})
            assert (status, answer["error"]["kind"]) == ((422, "refused_reset") if allowed else (403, "forbidden"))
            assert ("evaluates" if allowed else "--allow tasks") in answer["error"]["message"]
        # A task of the server's own is played as before, and code as an answer to it does not run either.
        status, answer = opened(server, "bits", seed=0, options={"task_index": 3})
        assert status == 200
        step = {"id": "1", "session": answer["ok"]["session"], "turn": 0, "action": f"<answer>{code}</answer>"}
        status, _, answer = ask(server, "step", **step)
        assert (status, answer["ok"]["reward"]) == (200, 0.0)
    assert not proof.exists()
