"""Preparation of a model for training: attention, adapters, cut matrices, checkpointing, compilation, shards.

The order matters. Adapters come before anything that must see them; tensor parallelism before FSDP2, which shards what
is left of a matrix; compilation before checkpointing, which runs what is compiled again, and both before FSDP2, whose
hooks stay outside. Until then a model has shapes alone: a rank reads what it keeps.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

from trainers.config.model import ModelSection
from trainers.config.running import RunSection
from trainers.learner.attention import OWN
from trainers.learner.compiled import compile_blocks, pays
from trainers.learner.cpu import compute_rounded, use_lean_layers, use_onednn
from trainers.learner.flops import FLOPs, count
from trainers.learner.fsdp import shard, transformer_layers
from trainers.learner.lora import add_adapters, base_state, round_frozen
from trainers.learner.models import Critic, Policy, checkpoint_gradients
from trainers.learner.parallel import Meshes, check_model, has_sliding_windows, make_meshes, refuse_sliding_windows
from trainers.learner.products import is_faster
from trainers.learner.tensor_parallel import cut_matrices
from trainers.models.source import ModelSource, materialize

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """Preparation of a learner's models; adapters and checkpointing are of trained ones only.

    Without ``meshes`` modules are plain; without ``attention`` transformers chooses. ``updates`` are those to come, as
    far as that is known.
    """

    model: ModelSection
    run: RunSection
    device: torch.device
    attention: str | None
    meshes: Meshes | None
    updates: int | None = None

    @classmethod
    def of(
        cls, model: ModelSection, run: RunSection, device: torch.device, config: Any, updates: int | None = None
    ) -> Setup:
        """Check what is configured against a model's own ``config``, then start the process group if one is needed.

        Raises ``ValueError``: the model cannot be trained as configured on this device, by so many ranks.
        """
        check_offload(model, run, device)
        check_model(config, run)
        return cls(model, run, device, attention_of(model, run, config), make_meshes(model, run, device), updates)

    @property
    def dtype(self) -> torch.dtype:
        """Type to compute in; float32 where the section leaves it open."""
        return torch.bfloat16 if self.model.dtype == "bfloat16" else torch.float32

    @property
    def varlen(self) -> bool:
        """True where attention reads packed rows by their lengths alone."""
        return self.attention != OWN or (self.device.type == "cuda" and self.dtype != torch.float32)

    def check_teacher(self, teacher: ModelSource, actor: ModelSource) -> None:
        """Raise ``ValueError`` where a teacher cannot read sequences in the layout that the actor reads."""
        check_model(teacher.config, self.run)
        same = attention_of(self.model, self.run, teacher.config) == self.attention
        if not same or can_read_trees(teacher.config) != can_read_trees(actor.config):
            raise ValueError(
                f"the teacher {teacher} ({teacher.config.model_type}) needs another attention than the policy "
                f"({actor.config.model_type}): take one of its family"
            )

    def make(self, role: str, source: ModelSource, chunk_size: int | None) -> tuple[Any, FLOPs]:
        """Build a role's model (two do not learn), with an update's FLOPs; ``ValueError``: it cannot be."""
        outer: Any = source.skeleton()
        learns = role not in ("reference", "teacher")
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
        if self.model.lora_rank and learns:
            add_adapters(backbone, self.model, self.run.seed)
            if isinstance(model, Policy):
                head.requires_grad_(False)
            round_frozen(model, self.dtype)
            head = model.value_head if isinstance(model, Critic) else outer.get_output_embeddings()
        flops = count(backbone, head)
        compiles = pays(self.model, self.device, sum(weight.numel() for weight in outer.parameters()), self.updates)
        eager_cpu = self.device.type == "cpu" and not compiles
        if self.meshes is not None and self.meshes.tensor is not None:
            cut_matrices(transformer_layers(model), self.meshes.tensor)
        elif eager_cpu and self.dtype == torch.float32 and is_faster():
            use_onednn(outer)
        if eager_cpu and self.dtype != torch.float32 and self.meshes is None:
            use_lean_layers(outer)
        if compiles:
            compile_blocks(transformer_layers(model))
            model.compiles = True
        if self.model.enable_gradient_checkpointing and learns:
            checkpoint_gradients(outer, offload=self.model.enable_activation_offload)
        if self.meshes is not None:
            offload = CPUOffloadPolicy(pin_memory=True) if self.run.offload else OffloadPolicy()
            shard(model, self.meshes, self.dtype, offload)
        materialize(model, self.device, torch.device("cpu") if self.run.offload else self.device)
        if self.meshes is None:
            model.to(self.device)  # adapters and the value head, which have their numbers
        prefix = "" if isinstance(model, Policy) else f"{outer.base_model_prefix}."
        source.fill((f"{prefix}{name}", value) for name, value in base_state(outer))
        if self.meshes is None and self.dtype != torch.float32:
            compute_rounded(model, self.dtype)
        return model, flops


def attention_of(model: ModelSection, run: RunSection, config: Any) -> str | None:
    """Choose the attention that fits the layout of sequences; ``None`` leaves the choice to transformers.

    Raises ``ValueError``: another one was requested (by transformers' name), or the model cannot have it.
    """
    requested, pieces = model.attn_implementation, run.ulysses_sequence_parallel_size > 1
    if pieces and requested is not None:
        raise ValueError(
            f"attn_implementation={requested!r} does not go with sequence parallelism, which exchanges heads for "
            f"pieces of the sequence around attention of its own"
        )
    needed = pieces or (model.use_remove_padding and requested is None)
    if needed:
        refuse_sliding_windows(config, "sequence parallelism" if pieces else "attention without padding")
    return OWN if needed or (requested is None and can_read_trees(config)) else requested


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


def reads_trees(model: ModelSection, config: Any) -> bool:
    """Return whether a model reads token trees as configured; log why not."""
    if model.attn_implementation is not None:
        why = f"model.attn_implementation={model.attn_implementation}"
    elif can_read_trees(config):
        return True
    else:
        why = f"model type {config.model_type}"
    _LOG.warning("%s does not go with token trees: what trajectories share is computed for each of them", why)
    return False


def check_offload(model: ModelSection, run: RunSection, device: torch.device) -> None:
    """Raise ``ValueError`` where something is to be kept on the CPU, and is computed there already."""
    if device.type == "cpu" and (run.offload or model.enable_activation_offload):
        raise ValueError("trainer.offload and model.enable_activation_offload are for cuda, and there is no GPU")
