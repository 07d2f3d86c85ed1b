"""Many ranks as one: process groups, meshes, FSDP2, and whole tensors again. The same code on gloo/CPU and NCCL/CUDA.

Gradients of ranks are *summed*, never averaged: a loss is a sum of tokens that are weighted for the whole mini-batch.
FSDP's own divisor of 1 needs NCCL's ``PREMUL_SUM``; asked to use plain sums, it works on gloo too.

The mesh always names its device type: without one, torch picks CUDA wherever it sees a GPU, gloo or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainers.learner.models import Critic, Policy

FSDPMode = Literal["auto", "always", "never"]


def make_mesh(mode: FSDPMode, device: torch.device, dtype: torch.dtype) -> DeviceMesh | None:
    """The mesh to shard on, or ``None`` for plain modules.

    Starts the process group if there is none: from torchrun's environment, or of this process alone.

    Args:
        mode: ``auto``: plain modules on one rank in float32, else sharded; ``always``; ``never``.
        device: Where the rank computes.
        dtype: Of the computation. Mixed precision is FSDP's (float32 parameters, cast for use).

    Raises:
        ValueError: ``never`` with several ranks or with another dtype than float32, or an unknown mode.
    """
    if mode not in ("auto", "always", "never"):
        raise ValueError(f"fsdp must be 'auto', 'always' or 'never', not {mode!r}")
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    plain = world == 1 and dtype == torch.float32
    if mode == "never" and not plain:
        raise ValueError(f"fsdp='never' is for one rank in float32, not for {world} in {dtype}; use fsdp='auto'")
    if mode == "never" or (mode == "auto" and plain):
        return None
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return init_device_mesh(device.type, (world,), mesh_dim_names=("shard",))


def rank_device(device: str | torch.device) -> torch.device:
    """The device of this rank: a GPU without a number becomes the one that torchrun gave this rank."""
    device = torch.device(device)
    if device.type == "cuda":
        if str(device) == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


def shard(model: Policy | Critic, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Shard a model's parameters over the ranks, in place: each layer a group, and one of the rest.

    Args:
        model: In float32, which stays the precision of parameters, gradients and their reduction.
        mesh: One-dimensional.
        dtype: Of the layers' computation. The value head computes in float32 whatever this is.

    Raises:
        ValueError: The model does not say what its layers are.
    """
    backbone: Any = model.lm if isinstance(model, Policy) else model.backbone
    names = set(backbone._no_split_modules or ())
    layers = [module for module in backbone.modules() if type(module).__name__ in names]
    if not layers:
        raise ValueError(f"{type(backbone).__name__} names no layers to shard (_no_split_modules is {sorted(names)})")
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if isinstance(model, Critic):
        fully_shard(model.value_head, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32))
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor, on every rank; of a sharded one, all ranks must ask together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Ranks:
    """What the ranks of a mesh do together besides sharded models; without a mesh, one rank does nothing."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        self._group = None if mesh is None else mesh.get_group()
        self.count = 1 if mesh is None else mesh.size()
        self.number = 0 if mesh is None else mesh.get_rank()

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes what is written once."""
        return self.number == 0

    def add(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in place."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def add_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The sums of all ranks' numbers, by name; not every rank needs to have every name."""
        if self.count == 1:
            return dict(numbers)
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, dict(numbers), group=self._group)
        names: Iterable[str] = dict.fromkeys(name for theirs in everyone for name in theirs)
        return {name: sum(theirs.get(name, 0.0) for theirs in everyone) for name in names}

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.count > 1:
            dist.barrier(group=self._group)
