"""The embedded engine on the model that TRL trains: continuous batching, with a copy of the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ...engines.base import Sampling
from ...engines.torch_engine import TorchEngine
from ...learner.lora import adapter_layers, merged_state

_OTHERWISE = "use TextEnvRollout(engine='trl'), which generates as TRL does"


def refuse_if_unfit(trainer: Any) -> None:
    """Say why the embedded engine cannot serve this trainer, if it cannot.

    Raises:
        ValueError: Its weights are sharded, its adapters are not plain LoRA, or the engine cannot sample so.
    """
    args = trainer.args
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(f"the embedded engine needs whole weights, not those of FSDP or DeepSpeed: {_OTHERWISE}")
    if args.repetition_penalty not in (None, 1.0):
        raise ValueError(f"the embedded engine has no repetition_penalty ({args.repetition_penalty}): {_OTHERWISE}")
    if args.generation_kwargs:
        raise ValueError(
            f"the embedded engine does not take generation_kwargs ({', '.join(args.generation_kwargs)}): {_OTHERWISE}"
        )
    if args.use_vllm or args.use_transformers_continuous_batching:
        raise ValueError(f"TRL is configured to generate by an engine of its own: {_OTHERWISE}")
    if (peft := adapters_of(trainer)) is not None:
        plain = all(set(layer.lora_A) <= {"default", "ref"} for _, layer in adapter_layers(peft))
        dora = any(getattr(layer, "lora_magnitude_vector", None) for _, layer in adapter_layers(peft))
        if not plain or dora or not any(True for _ in adapter_layers(peft)):
            raise ValueError(f"the embedded engine merges plain LoRA adapters of the name 'default' only: {_OTHERWISE}")


def adapters_of(trainer: Any) -> Any:
    """The peft model that is trained; ``None`` where all parameters are."""
    model = model_of(trainer)
    return model if hasattr(model, "get_base_model") else None


def model_of(trainer: Any) -> Any:
    """The model without what accelerate put around it."""
    return trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)


def weights_of(trainer: Any) -> dict[str, Tensor]:
    """The weights now, by the model's own names, adapters merged."""
    with torch.no_grad():
        if (peft := adapters_of(trainer)) is not None:
            return dict(merged_state(peft.get_base_model()))
        return dict(model_of(trainer).state_dict())


def engine_for(trainer: Any, *, max_slots: int, max_context: int, threads: int | None) -> TorchEngine:
    """An engine with the trainer's weights, in the precision that it computes in.

    Raises:
        ValueError: The model is none that the engine serves; or as :func:`refuse_if_unfit`.
    """
    refuse_if_unfit(trainer)
    model = model_of(trainer)
    if adapters_of(trainer) is not None:
        model = copy.deepcopy(model).merge_and_unload()  # for its shape; the weights come with every rollout
    dtype = torch.bfloat16 if trainer.args.bf16 else torch.float16 if trainer.args.fp16 else None
    try:
        return TorchEngine(model, max_slots=max_slots, max_context=max_context, dtype=dtype, threads=threads)
    except ValueError as error:
        raise ValueError(f"the embedded engine does not serve this model: {error}. Otherwise, {_OTHERWISE}") from error


def sampling_of(trainer: Any, stop_token_ids: tuple[int, ...], max_new_tokens: int) -> Sampling:
    """TRL's sampling in our terms: it writes ``None`` where nothing is cut, and disables top-k by 0 or -1."""
    return Sampling(
        temperature=trainer.temperature,
        top_p=1.0 if trainer.top_p is None else trainer.top_p,
        top_k=max(trainer.top_k or 0, 0),
        min_p=trainer.min_p or 0.0,
        max_new_tokens=max_new_tokens,
        stop_token_ids=stop_token_ids,
    )
