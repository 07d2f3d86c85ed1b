"""What the server and vLLM's computing processes both need. It imports next to nothing: each of them starts slowly."""

from __future__ import annotations

EXTENSION = "trainers.engines.vllm.server.extension.WorkerExtension"  #: ``worker_extension_cls``
BACKEND = "textenvs"  #: of weights, in ``weight_transfer_config``


def allow_low_temperatures() -> None:
    """Take temperatures as they are; vLLM raises those below 0.01, silently for whoever reads the log-probs.

    Parameters are made in the server and decoded again in the engine's process, so both must do this.
    """
    from vllm import sampling_params

    sampling_params._MAX_TEMP = 0.0
