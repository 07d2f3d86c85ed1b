"""A server's process: its start, its end, and its log; alone, and under an engine."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from served_engines import LONG, engine_of
from skip_time import skip

from trainers.engines.base import EngineDeadError, Sampling
from trainers.engines.server import ServerProcess

#: A server that starts a child of its own, says both ids and a file in vLLM's folder of sockets, and ignores SIGTERM.
SERVER = textwrap.dedent("""
    import os, signal, subprocess, sys, tempfile, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    print(os.getpid(), child.pid, tempfile.mkstemp(dir=os.environ["VLLM_RPC_BASE_PATH"])[1], flush=True)
    time.sleep(1000)
""")
STARTER = textwrap.dedent("""
    import sys, time
    from trainers.engines.server import ServerProcess
    process = ServerProcess([sys.executable, "-c", sys.argv[1]], {})
    print(process.log, flush=True)
    time.sleep(1000)
""")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0.05)


async def of(log: Path) -> tuple[list[int], Path]:
    """Return the ids of the server's processes, and its file."""
    await until(lambda: log.read_text().count("\n") == 1)
    *ids, file = log.read_text().split()
    assert Path(file).exists()
    return [int(word) for word in ids], Path(file)


@pytest.mark.parametrize("way", ["stopped", "collected", "its starter is killed"])
async def test_server_and_its_children_end(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.engines.server._GRACE_S", 0.1)
    if way == "its starter is killed":
        with subprocess.Popen([sys.executable, "-c", STARTER, SERVER], stdout=subprocess.PIPE, text=True) as starter:
            assert starter.stdout is not None
            log = Path(starter.stdout.readline().strip())
            started, file = await of(log)
            os.kill(starter.pid, signal.SIGKILL)
        await until(lambda: not any(map(running, started)))
        await until(lambda: not log.exists() and not file.parent.exists())
        return
    process = ServerProcess([sys.executable, "-c", SERVER], {})
    log = process.log
    started, file = await of(log)
    if way == "stopped":
        process.stop()
        assert process.ended == "was killed by SIGKILL"
        assert not log.exists()
    else:
        del process
        log.unlink()
    assert not file.parent.exists()
    await until(lambda: not any(map(running, started)))  # a killed process is there for a moment


async def test_tail_has_first_error_and_last_lines() -> None:
    script = "print('ValueError: the first cause'); [print('line', i) for i in range(40)]; exit(3)"
    process = ServerProcess([sys.executable, "-c", script], {})
    await until(lambda: process.ended is not None)
    assert process.ended == "exited with code 3"
    tail = process.tail()
    assert "ValueError: the first cause" in tail
    assert "line 39" in tail
    assert "line 10\n" not in tail
    process.stop()


def test_missing_program_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        ServerProcess(["/nowhere/server"], {})


# Under an engine


def python_that(folder: Path, script: str) -> str:
    """Write an executable in place of SGLang's Python: it gets the launcher and the server's arguments."""
    path = folder / "python"
    path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def a_fake_server(folder: Path) -> str:
    fake = Path(__file__).with_name("fake_sglang.py")
    # Slow: a request is under way for ten seconds.
    return python_that(folder, f'export PYTHONSAFEPATH=\nexec {sys.executable} {fake} "$@" --token-s 0.05\n')


@pytest.mark.parametrize("fault", ["killed", "stopped", "closed"])
async def test_own_server_ends_with_its_engine(folder: Path, tmp_path: Path, fault: str) -> None:
    engine = engine_of("sglang", folder, python=a_fake_server(tmp_path))
    assert engine._server is not None
    pid = engine._server.pid
    try:
        async with asyncio.timeout(100):
            made = await engine.generate([1, 2], Sampling(max_new_tokens=3))
            assert made.token_ids.tolist() == [2, 3, 4]
            if fault != "closed":
                task = asyncio.create_task(engine.generate([1], LONG))
                await asyncio.sleep(0.05)
                os.kill(pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
                message = "killed by SIGKILL" if fault == "killed" else "no answer within"
                if fault == "stopped":
                    engine._health_timeout_s = 0.5  # only now: a busy machine may take its time over what is answered
                    skip(asyncio.get_running_loop(), 30.0)  # past a check that is under way
                with pytest.raises(EngineDeadError, match=message) as caught:
                    await task
                assert '{"serving":' in str(caught.value)  # the end of its log
    finally:
        await engine.close()
    assert not running(pid)


async def test_failed_start_quotes_the_log(folder: Path, tmp_path: Path) -> None:
    python = python_that(tmp_path, "echo ImportError: no module named luck\nexit 3\n")
    engine = engine_of("sglang", folder, python=python)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match=r"(?s)did not start: it exited with code 3.*no module named luck"):
            await engine.ready()
    await engine.close()


async def test_server_that_never_gets_ready_is_given_up(folder: Path, tmp_path: Path) -> None:
    engine = engine_of("sglang", folder, python=python_that(tmp_path, "exec sleep 60\n"), start_timeout_s=0.3)
    assert engine._server is not None
    with pytest.raises(EngineDeadError, match=r"not ready after 0\.3 s"):
        await engine.generate([1], LONG)
    await engine.close()
    assert not running(engine._server.pid)
