"""One real vLLM server for all tests of a session, and engines on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_server import PATIENT, RealServer, stopped_in_the_end
from transformers import PreTrainedModel

import trainers
from trainers.engines.vllm.engine import VLLMEngine
from trainers.engines.vllm.options import VLLMOptions

PYTHON = Path(os.environ.get("TEXTENVS_VLLM_PYTHON", Path(__file__).parents[3] / ".venv-vllm/bin/python"))
BLOCK = 32  # tokens; the least that vLLM takes on a CPU


class Server(RealServer):
    """vLLM's server."""

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        options = VLLMOptions(python=str(PYTHON), block_size=BLOCK, max_slots=32, threads=1, kv_cache_gib=0.25)
        return options.command(self.folder / "model", self.folder / "packages", self.port, self.context)

    def options(self, **extra: object) -> VLLMOptions:
        return VLLMOptions(base_url=self.url, **PATIENT | {"transport": "process_group"} | extra)

    async def make(
        self, model: PreTrainedModel, max_slots: int = 32, unused: Sequence[int] = (), **extra: object
    ) -> VLLMEngine:
        with self.running():
            engine = VLLMEngine(
                self.folder / "model",
                self.options(**extra),
                max_context=self.context,
                weights=model.state_dict(),
                version=0,
                unused_token_ids=unused,
            )
            await engine.ready()
            return engine

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
    (folder / "packages").mkdir()
    (folder / "packages" / "trainers").symlink_to(Path(trainers.__file__).resolve().parent)
    with stopped_in_the_end(Server(folder, context)) as server:
        yield server
