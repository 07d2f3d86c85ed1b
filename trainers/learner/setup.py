"""Preparation of a model for training: attention, adapters, cut matrices, checkpointing, compilation, shards.

The order matters. Adapters come before anything that must see them; tensor parallelism before FSDP2, which shards what
is left of a matrix; compilation before FSDP2, whose hooks stay outside. Until then a model has shapes alone: a rank
reads what it keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

from trainers.learner.attention import OWN
from trainers.learner.cpu import compute_rounded, use_lean_layers, use_onednn
from trainers.learner.flops import FLOPs, count
from trainers.learner.fsdp import shard, transformer_layers
from trainers.learner.lora import LoRASettings, add_adapters, base_state, round_frozen
from trainers.learner.models import Critic, Policy, checkpoint_gradients
from trainers.learner.parallel import Meshes, Parallel, has_sliding_windows, refuse_sliding_windows
from trainers.learner.products import is_faster
from trainers.learner.tensor_parallel import cut_matrices
from trainers.models.source import ModelSource, materialize

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """Settings of all models of a :class:`trainers.learner.Learner`; adapters and checkpointing of trained ones only.

    Without ``meshes`` modules are plain; without ``attention`` transformers chooses.
    """

    device: torch.device
    dtype: torch.dtype
    meshes: Meshes | None
    offload: OffloadPolicy
    attention: str | None
    lora: LoRASettings | None
    checkpointing: bool
    activation_offload: bool
    compile: bool

    def make(self, role: str, source: ModelSource, chunk_size: int | None) -> tuple[Any, FLOPs]:
        """Build a role's model (``reference`` does not learn), with an update's FLOPs; ``ValueError``: it cannot be."""
        outer: Any = source.skeleton()
        learns = role != "reference"
        model: Policy | Critic
        if role == "critic":
            model = Critic(outer.base_model)
            outer = backbone = model.backbone
            head = model.value_head
        else:
            model = Policy(outer, chunk_size)
            backbone, head = outer.base_model, outer.get_output_embeddings()
        model.requires_grad_(learns)
        if self.attention is not None:
            outer.set_attn_implementation(self.attention)
        if self.lora is not None and learns:
            add_adapters(backbone, self.lora)
            if isinstance(model, Policy):
                head.requires_grad_(False)
            round_frozen(model, self.dtype)
            head = model.value_head if isinstance(model, Critic) else outer.get_output_embeddings()
        flops = count(backbone, head)
        if self.meshes is not None and self.meshes.tensor is not None:
            cut_matrices(transformer_layers(model), self.meshes.tensor)
        elif self.device.type == "cpu" and self.dtype == torch.float32 and is_faster() and not self.compile:
            use_onednn(outer)
        if self.device.type == "cpu" and self.dtype != torch.float32 and self.meshes is None and not self.compile:
            use_lean_layers(outer)
        if self.checkpointing and learns:
            checkpoint_gradients(outer, offload=self.activation_offload)
        if self.compile:
            for layer in transformer_layers(model):
                layer.compile(dynamic=True)
        if self.meshes is not None:
            shard(model, self.meshes, self.dtype, self.offload)
        offloaded = isinstance(self.offload, CPUOffloadPolicy)
        materialize(model, self.device, torch.device("cpu") if offloaded else self.device)
        if self.meshes is None:
            model.to(self.device)  # adapters and the value head, which have their numbers
        prefix = "" if isinstance(model, Policy) else f"{outer.base_model_prefix}."
        source.fill((f"{prefix}{name}", value) for name, value in base_state(outer))
        if self.meshes is None and self.dtype != torch.float32:
            compute_rounded(model, self.dtype)
        return model, flops


def attention_of(requested: str | None, remove_padding: bool, parallel: Parallel, configs: Sequence[Any]) -> str | None:
    """Choose the attention that fits the layout of sequences; ``None`` leaves the choice to transformers.

    Raises ``ValueError``: another one was requested (by transformers' name), or a model cannot have it.
    """
    if parallel.sequence > 1 and requested is not None:
        raise ValueError(
            f"attn_implementation={requested!r} does not go with sequence parallelism, which exchanges heads for "
            f"pieces of the sequence around attention of its own"
        )
    needed = parallel.sequence > 1 or (remove_padding and requested is None)
    for config in configs if needed else ():
        refuse_sliding_windows(config, "sequence parallelism" if parallel.sequence > 1 else "attention without padding")
    return OWN if needed or (requested is None and all(map(can_read_trees, configs))) else requested


#: Their attention takes arguments and position ids from outside, and no layer of theirs counts tokens by itself.
_TREES = ("qwen2", "qwen3", "llama", "mistral")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  #: whose angles do not depend on the longest position


def can_read_trees(config: Any) -> bool:
    """Return whether a model's outputs depend only on the ancestors of a token and their depths.

    Not so with sliding windows, which count neighbours in the row, with ALiBi, and with rotary angles that depend on
    the length; and not known of other families.
    """
    plain = config.model_type in _TREES and not has_sliding_windows(config)
    return plain and config.rope_parameters["rope_type"] in _ROPE_TYPES


def reads_trees(configs: Sequence[Any], requested: str | None, compile: bool) -> bool:
    """Return whether models read token trees with that attention; log why not."""
    if requested is not None or compile:
        why = f"attn_implementation={requested}" if requested is not None else "compile"
    elif all(map(can_read_trees, configs)):
        return True
    else:
        why = f"model type {', '.join(sorted({config.model_type for config in configs}))}"
    _LOG.warning("%s does not go with token trees: what trajectories share is computed for each of them", why)
    return False


def precision_of(dtype: str | None, device: torch.device) -> torch.dtype:
    """Return the type to compute in: ``dtype``, else bfloat16 on a GPU, float32 on a CPU; ``ValueError``: any other."""
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    name = dtype or ("bfloat16" if device.type == "cuda" else "float32")
    if name not in types:
        raise ValueError(f"dtype must be 'float32' or 'bfloat16', not {dtype!r}")
    return types[name]


def check_activation_offload(offload: bool, checkpointing: bool, device: torch.device) -> None:
    """Raise ``ValueError`` where the inputs of layers cannot be kept on the CPU."""
    if offload and not checkpointing:
        raise ValueError("activation_offload keeps what gradient_checkpointing keeps on the CPU: switch that on too")
    if offload and device.type == "cpu":
        raise ValueError("activation_offload moves activations to the CPU, where this model is already")
