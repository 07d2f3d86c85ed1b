"""The process of an SGLang server that the engine starts: its start, its end, and errors of both."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from trainers.config.engine import SGLangEngineSection, SGLangSection
from trainers.engines.base import EngineDeadError, Sampling
from trainers.engines.sglang import SGLangEngine

CONTEXT = 256
LONG = Sampling(max_new_tokens=200, ignore_stop=True)
QUICK: dict[str, Any] = {"health_timeout_s": 30.0, "start_timeout_s": 100.0}


def python_that(folder: Path, script: str) -> str:
    """Write an executable in place of SGLang's Python: it gets the launcher and the server's arguments."""
    path = folder / "python"
    path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def a_fake_server(folder: Path) -> str:
    fake = Path(__file__).with_name("fake_sglang.py")
    return python_that(folder, f'export PYTHONSAFEPATH=\nexec {sys.executable} {fake} "$@"\n')


def started(folder: Path, python: str, **options: Any) -> SGLangEngine:
    sglang = SGLangSection(python=python, **QUICK | options)
    engine = SGLangEngine(folder, SGLangEngineSection(max_context=CONTEXT, sglang=sglang))
    engine.health_interval_s = 0.05
    return engine


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("fault", ["killed", "stopped", "closed"])
async def test_own_server_ends_with_its_engine(folder: Path, tmp_path: Path, fault: str) -> None:
    options = {"health_timeout_s": 1.0} if fault == "stopped" else {}
    engine = started(folder, a_fake_server(tmp_path), **options)
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
                with pytest.raises(EngineDeadError, match=message) as caught:
                    await task
                assert '{"serving":' in str(caught.value)  # the end of its log
    finally:
        await engine.close()
    assert not alive(pid)


async def test_failed_start_quotes_the_log(folder: Path, tmp_path: Path) -> None:
    python = python_that(tmp_path, "echo ImportError: no module named luck\nexit 3\n")
    engine = started(folder, python)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match=r"(?s)did not start: it exited with code 3.*no module named luck"):
            await engine.ready()
    await engine.close()


async def test_server_that_never_gets_ready_is_given_up(folder: Path, tmp_path: Path) -> None:
    engine = started(folder, python_that(tmp_path, "exec sleep 60\n"), start_timeout_s=0.3)
    assert engine._server is not None
    with pytest.raises(EngineDeadError, match=r"not ready after 0\.3 s"):
        await engine.generate([1], LONG)
    await engine.close()
    assert not alive(engine._server.pid)
