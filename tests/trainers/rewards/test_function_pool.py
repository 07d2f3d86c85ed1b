"""A user's reward function in processes: its result arrives, and its failures stay isolated."""

import asyncio
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.sandbox import worker as sandbox_worker
from trainers.config.reward_model import RewardFunctionSection
from trainers.rewards import FunctionError, FunctionPool, ScoreError

FUNCTIONS = """
import asyncio, os, sys, time
import beside

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("printed by the function")
    return {"score": beside.double(len(solution_str)), "right": solution_str == ground_truth, "why": "text"}

async def later(data_source, solution_str, ground_truth, extra_info):
    import numpy as np
    await asyncio.sleep(0)
    return np.float32(extra_info["x"])

def by_order(data_source, solution_str, ground_truth, extra_info):
    match solution_str:
        case "hang": time.sleep(1000)
        case "die": os._exit(7)
        case "raise": raise KeyError("a row of its own")
        case "nan": return float("nan")
        case "text": return "0.5"
        case "none": return None
        case "empty": return {}
        case "exit": sys.exit(3)
        case "read": return float(len(sys.stdin.read()))
        case "child":
            import subprocess
            subprocess.Popen(["sleep", "1000"])
            time.sleep(1000)
        case "fork":
            if child := os.fork():
                with open(extra_info["file"], "w") as file:
                    file.write(str(child))
                os._exit(7)
            time.sleep(1000)
    return os.getpid()

def echo(**question):
    return {"score": question["extra_info"], "text": question["solution_str"]}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    (folder / "beside.py").write_text("def double(x): return 2 * x\n")
    (folder / "functions.py").write_text(FUNCTIONS)
    return folder / "functions.py"


@pytest.fixture(scope="module")
def by_order(file):
    with FunctionPool(RewardFunctionSection(path=str(file), name="by_order", workers=1, timeout_s=60.0)) as pool:
        yield pool


def ask(pool, solution, **fields):
    return pool.submit(
        **{"data_source": "s", "solution_str": solution, "ground_truth": "abc", "extra_info": {}} | fields
    )


def test_numbers_arrive_and_text_does_not(file):
    with FunctionPool(RewardFunctionSection(path=str(file), workers=1)) as pool:
        assert ask(pool, "abc").result() == 6.0
        assert ask(pool, "").result() == 0.0


def test_an_async_function_and_a_numpy_number(file):
    with FunctionPool(RewardFunctionSection(path=str(file), name="later", workers=1)) as pool:
        assert asyncio.run(pool.score(data_source="", solution_str="", ground_truth="", extra_info={"x": 0.25})) == 0.25
        odd = {"x": np.int64(3), "rows": np.arange(3), "bytes": b"\0"}  # what Parquet rows may hold
        assert ask(pool, "", extra_info=odd).result() == 3.0


@pytest.mark.parametrize(
    ("order", "cause", "message"),
    [
        ("hang", "timeout", "took longer than 0.3 s"),
        ("child", "timeout", "took longer than 0.3 s"),
        ("die", "died", "exit code 7"),
        ("raise", "raised", "a row of its own"),
        ("nan", "raised", "nan, which is no finite number"),
        ("text", "raised", "'0.5', which is no finite number"),
        ("none", "raised", "None, which is no finite number"),
        ("empty", "raised", "a mapping without 'score'"),
        ("exit", "raised", "SystemExit: 3"),
    ],
)
def test_failure_is_reported_and_next_call_works(by_order, order, cause, message, monkeypatch):
    with monkeypatch.context() as hasty:
        if cause == "timeout":
            hasty.setattr(by_order, "section", by_order.section.model_copy(update={"timeout_s": 0.3}))
        with pytest.raises(ScoreError, match=message) as caught:
            ask(by_order, order).result()
    assert caught.value.cause == cause
    assert ask(by_order, "pid").result() > 0
    assert ask(by_order, "read").result() == 0.0, "its stdin must be empty, not full of questions"


def test_processes_serve_many_calls_up_to_limit(file):
    with FunctionPool(RewardFunctionSection(path=str(file), name="by_order", workers=2)) as pool:
        pids = {int(ask(pool, "pid").result()) for _ in range(5)}
        assert pids <= {worker.process.pid for worker in pool._pool._started}
        futures = [ask(pool, "pid") for _ in range(40)]
        assert len({future.result() for future in futures}) <= 2


def test_close_ends_calls_and_processes(file):
    pool = FunctionPool(RewardFunctionSection(path=str(file), name="by_order", workers=1, timeout_s=100.0))
    running = ask(pool, "hang")
    waiting = ask(pool, "pid")
    (pid,) = {worker.process.pid for worker in pool._pool._started}
    while not running.running():
        time.sleep(0.01)
    closer = threading.Thread(target=pool.close)
    closer.start()
    closer.join(timeout=60)
    assert not closer.is_alive()
    with pytest.raises(ScoreError):
        running.result(timeout=60)
    assert waiting.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    pool.close()


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("def score(): pass", "compute_score", "has no function compute_score; it has score"),
        ("compute_score = 3", "compute_score", "has no function compute_score"),
        ("import nothing_of_this_name", "compute_score", "nothing_of_this_name"),
        ("def compute_score(:", "compute_score", "SyntaxError"),
        ("import os; os._exit(1)", "compute_score", "exit code 1"),
        (None, "compute_score", "there is no file"),
    ],
)
def test_missing_function_is_reported_at_start(tmp_path, text, name, message):
    if text is not None:
        (tmp_path / "f.py").write_text(text)
    with pytest.raises(FunctionError, match=message):
        FunctionPool(RewardFunctionSection(path=str(tmp_path / "f.py"), name=name, workers=1))


@pytest.fixture(scope="module")
def echo(file):
    with FunctionPool(RewardFunctionSection(path=str(file), name="echo", workers=1)) as pool:
        yield pool


@given(st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9) | st.booleans(), st.text(max_size=50))
def test_arguments_and_scores_are_unchanged(echo, value, text):
    assert ask(echo, text, extra_info=value).result() == float(value)


def test_close_does_not_wait_for_loading(tmp_path):
    (tmp_path / "f.py").write_text(
        "import os, time\n"
        "if os.path.exists(__file__ + '.slow'): time.sleep(1000)\n"
        "def compute_score(**question): os._exit(7)\n"
    )
    pool = FunctionPool(RewardFunctionSection(path=str(tmp_path / "f.py"), workers=1))
    (tmp_path / "f.py.slow").touch()
    score = ask(pool, "")  # its process dies, and another is started
    while not pool._starting:
        time.sleep(0.01)
    pool.close()
    with pytest.raises(ScoreError):
        score.result(timeout=60)


def test_children_end_with_their_process(by_order, tmp_path, monkeypatch):
    """Fork a child that holds the answer pipe open, so the end of the process itself goes unseen."""
    pid = int(ask(by_order, "pid").result())
    score = ask(by_order, "fork", extra_info={"file": str(tmp_path / "pid")})
    while alive(pid):
        time.sleep(0.01)
    monkeypatch.setattr(sandbox_worker, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 60.0))
    with pytest.raises(ScoreError, match="took longer"):
        score.result(timeout=60)
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_process_with_failed_load_is_replaced(tmp_path):
    (tmp_path / "f.py").write_text(
        "import os, pathlib\n"
        "flag = pathlib.Path(__file__ + '.flag')\n"
        "if flag.exists():\n"
        "    flag.unlink()\n"
        "    raise OSError('not now')\n"
        "def compute_score(solution_str, **question): return os._exit(7) if solution_str == 'die' else 1.0\n"
    )
    with FunctionPool(RewardFunctionSection(path=str(tmp_path / "f.py"), workers=1)) as pool:
        (tmp_path / "f.py.flag").touch()
        with pytest.raises(ScoreError, match="not now"):
            ask(pool, "die").result()
        assert ask(pool, "").result() == 1.0
