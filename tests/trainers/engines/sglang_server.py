"""One real SGLang server for all tests of a session, and engines on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from trainers.engines.sglang import SGLangEngine, SGLangOptions
from trainers.engines.sglang.process import ServerProcess, free_port

PYTHON = Path(os.environ.get("TEXTENVS_SGLANG_PYTHON", Path(__file__).parents[3] / ".venv-sglang/bin/python"))


class Server:
    """Started when it is first needed, and again when it was killed."""

    def __init__(self, folder: Path, context: int) -> None:
        self.folder, self.context = folder, context
        self.port = free_port()
        self.process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ensure(self) -> ServerProcess:
        if self.process is None or self.process.returncode is not None:
            arguments = {
                "--model-path": str(self.folder),
                "--host": "127.0.0.1",
                "--port": str(self.port),
                "--device": "cpu",
                "--dtype": "float32",
                "--context-length": str(self.context + 8),
                "--max-running-requests": "256",
                "--random-seed": "0",
            }
            self.process = ServerProcess(*SGLangOptions(python=str(PYTHON)).command(arguments))
        return self.process

    def options(self, **more: object) -> SGLangOptions:
        # A busy machine is not to be taken for a server that hangs; one that is killed is heard of at once in any case.
        patient = {"start_timeout_s": 500.0, "health_timeout_s": 60.0, "stall_timeout_s": 600.0}
        return SGLangOptions(base_url=self.url, **patient | more)  # type: ignore[arg-type]

    async def make(self, model: PreTrainedModel, max_slots: int = 64, **more: object) -> SGLangEngine:
        process = self.ensure()
        engine = SGLangEngine(
            self.folder, self.options(**more), max_context=self.context, weights=model.state_dict(), version=0
        )
        try:
            await engine.ready()
        except Exception as error:
            error.add_note(process.tail())
            raise
        return engine

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)


@contextmanager
def serving(folder: Path, model: PreTrainedModel, context: int) -> Iterator[Server]:
    if not PYTHON.exists():
        pytest.fail(
            f"there is no {PYTHON}: `make venv-sglang` makes it, TEXTENVS_SGLANG_PYTHON names another, and "
            '`-m "not engines"` leaves these tests out'
        )
    model.save_pretrained(folder)
    server = Server(folder, context)
    try:
        yield server
    finally:
        if server.process is not None:
            server.process.stop()
