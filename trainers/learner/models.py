"""The models of a learner: a policy that scores tokens, a critic that values states.

Both run a transformers backbone and read its outputs only where they are wanted. Nothing here knows a model family: the
head is whatever ``get_output_embeddings`` gives, and :func:`check_head` proves, on the model itself, that backbone and
head make the model's own logits (a family that scales or caps its logits is refused, not trained wrongly).

Models stay in evaluation mode: with dropout, the ratio of new to old probabilities would not start at 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.learner.logprobs import Kept, token_logprobs
from trainers.learner.prefixes import SharedInputs, run_shared
from trainers.untrusted_model import check_model_files

Source = str | Path | PreTrainedModel


def load_causal_lm(source: Source) -> Any:
    """A causal language model in float32 (the optimizer's precision), from a folder or name, or a copy of an object.

    No code of the folder is run, and no pickle of it is read.

    Raises:
        ValueError: See :func:`check_head` and :func:`~trainers.untrusted_model.check_model_files`, or a buffer of an
            object was rounded.
    """
    if isinstance(source, PreTrainedModel):
        _refuse_rounded_buffers(source)
        model = copy.deepcopy(source).float()
    else:
        check_model_files(source)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
    model.requires_grad_(True).eval()
    check_head(model)
    return model


def _refuse_rounded_buffers(model: PreTrainedModel) -> None:
    """Raise ``ValueError`` where ``model.to(dtype)`` rounded what no file holds, such as rotary frequencies.

    A folder saved from such a model would have others when it is loaded, which makes them from the configuration.
    """
    stored = model.state_dict().keys()
    for name, value in model.named_buffers():
        if name not in stored and value.is_floating_point() and value.dtype != torch.float32:
            raise ValueError(
                f"the model's buffer {name} was rounded to {str(value.dtype).removeprefix('torch.')}, and no saved "
                "folder holds it: load the model with from_pretrained(dtype=...), which leaves buffers as they are, "
                "instead of model.to(dtype)"
            )


@torch.no_grad()
def check_head(model: PreTrainedModel) -> None:
    """Compare the model's own logits with what the learner's head makes of its backbone, on a few tokens.

    Raises:
        ValueError: They differ: this family does more to its logits than a linear map.
    """
    input_ids = torch.arange(8, device=model.device)[None]
    own = model(input_ids=input_ids, use_cache=False).logits[0].float().log_softmax(-1)
    hidden = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state[0]
    head = model.get_output_embeddings()
    ours, _ = token_logprobs(hidden, head.weight, own.argmax(-1), bias=getattr(head, "bias", None))
    gap = float((own.amax(-1) - ours).abs().max())
    if not gap < 1e-3:
        raise ValueError(
            f"{type(model).__name__} does more to its logits than a linear head (log-probabilities differ by "
            f"{gap:.3g}; soft-capped or scaled logits?): the learner would train another model than engines sample from"
        )


class Policy(nn.Module):
    """Scores tokens with a causal language model.

    Args:
        lm: It becomes the policy's own.
        chunk_size: See :func:`trainers.learner.logprobs.token_logprobs`.
    """

    def __init__(self, lm: PreTrainedModel, chunk_size: int | None = None) -> None:
        super().__init__()
        self.lm = lm
        self.chunk_size = chunk_size

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float,
        kept: Kept | None = None,
        **attention: Any,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, each ``[n]``, of the targets after ``positions`` of ``[B, L]`` tokens.

        With ``kept`` they are of distributions over those tokens; see :func:`trainers.learner.logprobs.token_logprobs`.
        ``attention`` is for the backbone; see :meth:`trainers.learner.inputs.Inputs.attention`.
        """
        head = self.lm.get_output_embeddings()
        return token_logprobs(
            _hidden(self.lm.base_model, input_ids, positions, attention),
            head.weight,
            targets,
            bias=getattr(head, "bias", None),
            temperature=temperature,
            chunk_size=self.chunk_size,
            kept=kept,
        )


class Critic(nn.Module):
    """Values states with a backbone and a linear head. It starts at 0 everywhere, whatever the backbone says.

    Args:
        backbone: A transformers model without a head; it becomes the critic's own.
    """

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.get_input_embeddings().weight.shape[1]
        self.value_head = nn.Linear(width, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, input_ids: Tensor, positions: Tensor, **attention: Any) -> Tensor:
        """float32 ``[n]``: the values of the states at ``positions`` of ``[B, L]`` tokens."""
        hidden = _hidden(self.backbone, input_ids, positions, attention)
        values: Tensor = self.value_head(hidden.float())
        return values[:, 0].clone()  # not a view: FSDP hooks its backward pass onto what a module returns


def _hidden(backbone: Any, input_ids: Tensor, positions: Tensor, attention: Mapping[str, Any]) -> Tensor:
    """``[n, H]``: the backbone's outputs at flat positions; without a mask (see packing)."""
    shared: SharedInputs | None = attention.get("shared")
    if shared is not None:
        return run_shared(backbone, input_ids, shared).index_select(0, positions)
    hidden: Tensor = backbone(input_ids=input_ids, use_cache=False, **attention).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions)


def checkpoint_gradients(model: PreTrainedModel, *, offload: bool = False) -> None:
    """Keep only the inputs of each layer for the backward pass and compute the rest again.

    Args:
        model: Changed in place.
        offload: Keep those inputs on the CPU, in pinned memory.
    """
    # transformers 5.2x gave it a new name and deprecated the old one.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()
    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = True  # the layer's own flag, which switches this on; its dropout stays off
        if offload:
            layer._gradient_checkpointing_func = _on_cpu(layer._gradient_checkpointing_func)


def _on_cpu(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    """A checkpointing function that keeps what it saves (a layer's inputs, nothing inside it) on the CPU."""

    def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
            return checkpoint(function, *args, **kwargs)

    return run
