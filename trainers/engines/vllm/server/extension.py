"""What vLLM's workers import before they load a model: ``worker_extension_cls`` names the class in here.

Importing it puts the sampler of :mod:`.sampler` and the weights' backend of :mod:`.transfer` in place. It also works
for a ``vllm serve`` of one's own: ``--worker-extension-cls trainers.engines.vllm.server.extension.WorkerExtension
--weight-transfer-config '{"backend": "textenvs"}'`` with ``VLLM_USE_V2_MODEL_RUNNER=0``.
"""

from __future__ import annotations

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers import utils as layers
from vllm.platforms import current_platform
from vllm.v1.worker import gpu_model_runner

from trainers.engines.vllm.server.lifetime import die_with_the_parent
from trainers.engines.vllm.server.sampler import Sampler
from trainers.engines.vllm.server.shared import BACKEND, allow_low_temperatures
from trainers.engines.vllm.server.transfer import Transfer


class WorkerExtension:
    """Mixed into vLLM's worker."""

    def die_with_the_server(self) -> None:
        """See :func:`.lifetime.die_with_the_parent`; for processes that were forked and not spawned."""
        die_with_the_parent()


def keep_weights_loadable() -> None:
    """On a CPU, compute with the weights as they are, not with packed copies.

    vLLM packs the matrices of linear layers for oneDNN (or for SGLang's kernels) when the model is loaded, and frees
    the originals. New weights then have nowhere to go: ``load_weights`` fails, ``reload_weights`` succeeds and goes on
    computing with the old ones.
    """
    if current_platform.is_cpu():
        layers.ops._supports_onednn = False
        layers.check_cpu_sgl_kernel = lambda *args, **kwargs: False


def _install() -> None:
    gpu_model_runner.Sampler = Sampler
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, Transfer)
    allow_low_temperatures()
    keep_weights_loadable()


_install()
