"""Programs that stay: every question is answered in a process of its own, whatever the process does."""

import subprocess
import sys

import pytest

from textenvs.sandbox import Worker
from textenvs.sandbox.answering import program

TEXT = """
import os, sys, time
from textenvs.sandbox.answering import Answers

state = []

def work(question):
    state.append(1)
    exec(question["code"], {**globals(), "pipes": [fd for fd in range(3, 9) if os.path.exists(f"/proc/self/fd/{fd}")]})
    return {"seen": len(state)}

answers = Answers()
print("this is no answer")
answers.serve(
    lambda question: None if question["code"] == "end" else
    answers.in_a_process(lambda: work(question), question.get("timeout_s", 20.0))
)
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "worker.py"
    path.write_text(TEXT)
    text = program(path).replace("_LONGEST = 64 << 20", "_LONGEST = 1 << 20")
    assert text != program(path)
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", "-S", "-c", text]  # this package cannot be imported there
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
    worker = Worker(subprocess.Popen(command, bufsize=0, start_new_session=True, **streams), max_bytes=1 << 22)
    yield worker
    worker.close()


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("pass", {"seen": 1}),
        ("print('no answer')", {"seen": 1}),
        ("1 / 0", {"error": "ZeroDivisionError: division by zero"}),
        ("os._exit(7)", {"stopped": "its process ended with exit code 7"}),
        ("os.kill(os.getpid(), 9)", {"stopped": "its process ended with signal 9"}),
        ("sys.exit(3)", {"stopped": "its process ended with exit code 0"}),
        ("[os.write(fd, b'[]') for fd in pipes]; os._exit(0)", {"stopped": "its process ended with exit code 0"}),
        ("while True: [os.write(fd, b'x' * 65536) for fd in pipes]", {"stopped": "its answer is too long"}),
    ],
)
def test_processes_leave_nothing_behind(worker, code, answer):
    assert worker.ask({"code": code}, 60.0) == answer
    assert worker.ask({"code": "pass"}, 60.0) == {"seen": 1}


def test_process_that_does_not_end_is_stopped(worker):
    answer = worker.ask({"code": "time.sleep(60)", "timeout_s": 0.2}, 60.0)
    assert answer == {"stopped": "it took longer than 0.2 s"}


def test_question_that_cannot_be_read_is_an_error(worker):
    assert worker.ask({"no": "code"}, 60.0) == {"error": "KeyError: 'code'"}
