"""The extension that vLLM's workers import before they load a model (``--worker-extension-cls``).

Importing it installs the sampler of :mod:`.sampler` and the weights' backend of :mod:`.transfer`; see
docs/engines.md.
"""

from __future__ import annotations

import socket
from typing import Any

import torch
import vllm
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers import utils as layers
from vllm.platforms import current_platform
from vllm.v1.worker import gpu_model_runner

from trainers.engines.shared_memory import place_of
from trainers.engines.vllm.server.sampler import Sampler
from trainers.engines.vllm.server.transfer import Transfer, loads_in_place
from trainers.engines.weights import bits

BACKEND = "textenvs"  #: of weights, in ``--weight-transfer-config``


class WorkerExtension:
    """Mixed into vLLM's worker; its methods are called by ``/collective_rpc``."""

    def describe_to_the_trainer(self) -> dict[str, Any]:
        """Return the worker's properties for a client, as JSON; it requires the last three."""
        worker: Any = self
        config = worker.vllm_config
        return {
            "vllm": vllm.__version__,
            "vocab_size": config.model_config.get_vocab_size(),
            "max_context": config.model_config.max_model_len,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "device": worker.device.type,
            "place": place_of(worker.device),
            "in_place": loads_in_place(worker.model_runner.model),
            "sampler": isinstance(sampler := getattr(worker.model_runner, "sampler", None), Sampler),
            "updates": getattr(sampler, "updates", 0),
            "transfer": isinstance(worker.weight_transfer_engine, Transfer),
            # What is sampled after a part of a prompt is thrown away, and a seed's generator set back, which vLLM 0.32
            # cannot do on a CPU: that would end the engine.
            "reads_prompts": not (current_platform.is_cpu() and config.scheduler_config.enable_chunked_prefill),
        }

    def leave_out(self, spans: list[list[int]]) -> None:
        """Never sample the ids of these spans, ``[start, end)`` each; replaces those of an earlier call."""
        worker: Any = self
        ids = [token for start, end in spans for token in range(start, end)]
        worker.model_runner.sampler.unused = torch.tensor(ids, device=worker.device) if ids else None

    def connection_problem(self, address: str, port: int, timeout_s: float) -> str | None:
        """Return why this worker cannot connect to the learner there; ``None`` if it can."""
        try:
            socket.create_connection((address, port), timeout_s).close()
        except OSError as error:
            return str(error)
        return None

    def reads(self, path: str, content: str) -> bool:
        """Return whether this worker finds that content in a file; it discloses no file to who does not know it."""
        try:
            with open(path, encoding="utf-8") as file:
                return file.read(len(content) + 1) == content
        except (OSError, ValueError):
            return False

    def count_update(self) -> int:
        """Add one to the number of updates that the sampler reports with each token, and return it."""
        worker: Any = self
        worker.model_runner.sampler.updates += 1
        return int(worker.model_runner.sampler.updates)

    def weight_checksums(self) -> dict[str, int]:
        """Return the checksum of each parameter of this worker; see :func:`trainers.engines.weights.bits`."""
        worker: Any = self
        return {name: bits(value) for name, value in worker.model_runner.model.named_parameters()}


def keep_weights_loadable() -> None:
    """On a CPU, compute with the weights as they are, not with packed copies.

    vLLM packs the matrices of linear layers when the model is loaded, and frees the originals: ``load_weights`` then
    fails, and ``reload_weights`` succeeds and continues to compute with the old ones.
    """
    if current_platform.is_cpu():
        layers.ops._supports_onednn = False
        layers.check_cpu_sgl_kernel = lambda *args, **kwargs: False


gpu_model_runner.Sampler = Sampler
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, Transfer)
keep_weights_loadable()
