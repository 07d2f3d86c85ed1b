"""A server's process: its end, and its log. Health checks: test_sglang.py, with a fake server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from trainers.engines.server import ServerProcess

#: A server that starts a child of its own, says both ids, and ignores SIGTERM.
SERVER = textwrap.dedent("""
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    print(os.getpid(), child.pid, flush=True)
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


async def pids(log: Path) -> list[int]:
    await until(lambda: log.read_text().count("\n") == 1)
    return [int(word) for word in log.read_text().split()]


@pytest.mark.parametrize("way", ["stopped", "collected", "its starter is killed"])
async def test_server_and_its_children_end(way: str) -> None:
    if way == "its starter is killed":
        with subprocess.Popen([sys.executable, "-c", STARTER, SERVER], stdout=subprocess.PIPE, text=True) as starter:
            assert starter.stdout is not None
            log = Path(starter.stdout.readline().strip())
            started = await pids(log)
            os.kill(starter.pid, signal.SIGKILL)
        await until(lambda: not any(map(running, started)))
        log.unlink()
        return
    process = ServerProcess([sys.executable, "-c", SERVER], {})
    log = process.log
    started = await pids(log)
    if way == "stopped":
        process.stop()
        assert process.ended == "was killed by SIGKILL"
        assert not log.exists()
    else:
        del process
        log.unlink()
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
