"""The conformance kit of vLLM: one server for the session, and a new client of it for each test."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from trainers.engines.vllm.client import VLLMEngine, start_server
from trainers.engines.vllm.process import ServerProcess

PYTHON = os.environ.get("TEXTENVS_VLLM_PYTHON", str(Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"))
BLOCK = 32  # tokens; the least that vLLM takes on a CPU
SLOTS = 32
START_S = 600.0  # it takes half a minute, on a machine that has nothing else to do


class VLLM:
    """Keeps a server for models like ``model``: started where there is none, or none any more."""

    def __init__(self, model: PreTrainedModel, max_context: int) -> None:
        need_python()
        self.model, self._context = model, max_context
        self._server: ServerProcess | None = None

    async def engine(self, model: PreTrainedModel, max_slots: int = SLOTS) -> VLLMEngine:
        """A client that knows nothing of those before it; the server's cache is empty after the first weights."""
        if self._server is None or not self._server.running:
            self._server = start_server(
                self.model,
                python=PYTHON,
                max_slots=SLOTS,
                max_context=self._context,
                threads=1,
                kv_cache_gib=0.25,
                block_size=BLOCK,
            )
        return await VLLMEngine.connect(self._server, model, owner=False, timeout=START_S)

    def kill(self, engine: Any) -> None:
        """As the kernel does when memory runs out."""
        os.kill(engine.server.pid, signal.SIGKILL)

    def stop(self) -> None:
        """At the end of the session."""
        if self._server is not None:
            self._server.stop()


def need_python() -> None:
    """Fail where there is no vLLM."""
    if not Path(PYTHON).exists():
        pytest.fail(
            f"there is no {PYTHON}: `make venv-vllm` makes it, TEXTENVS_VLLM_PYTHON names another, and "
            '`-m "not engines"` leaves these tests out'
        )


def started(model: PreTrainedModel, max_context: int) -> Iterator[VLLM]:
    """For a fixture of the session."""
    vllm = VLLM(model, max_context)
    # Not in the first test: that has a time limit of its own.
    asyncio.run(_start(vllm, model))
    yield vllm
    vllm.stop()


async def _start(vllm: VLLM, model: PreTrainedModel) -> None:
    engine = await vllm.engine(model)
    await engine.close()
