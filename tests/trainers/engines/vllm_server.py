"""One real vLLM server for all tests of a session, and engines on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_server import RealServer, stopped_in_the_end
from transformers import PreTrainedModel

from trainers.config.engine import VLLMEngineSection, VLLMSection
from trainers.engines.vllm.command import server_command
from trainers.engines.vllm.engine import VLLMEngine

PYTHON = Path(os.environ.get("TEXTENVS_VLLM_PYTHON", Path(__file__).parents[3] / ".venv-vllm/bin/python"))
BLOCK = 32  # tokens; the least that vLLM takes on a CPU


class Server(RealServer):
    """vLLM's server."""

    engine, section = VLLMEngine, VLLMEngineSection

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        section = VLLMEngineSection(
            max_context=self.context,
            max_slots=32,
            threads=1,
            kv_cache_gib=0.25,
            vllm=VLLMSection(python=str(PYTHON), block_size=BLOCK),
        )
        command, environment = server_command(section, self.folder / "model", self.port)
        return command, environment | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # freed tensors leave its memory at once

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)  # its computing process would not notice


def need_python() -> None:
    """Fail where there is no vLLM."""
    if not PYTHON.exists():
        pytest.fail(
            f"there is no {PYTHON}: `make venv-vllm` makes it, TEXTENVS_VLLM_PYTHON names another, and "
            '`-m "not engines"` leaves these tests out'
        )


@contextmanager
def serving(folder: Path, model: PreTrainedModel, context: int) -> Iterator[Server]:
    need_python()
    model.save_pretrained(folder / "model")
    with stopped_in_the_end(Server(folder, context)) as server:
        yield server
