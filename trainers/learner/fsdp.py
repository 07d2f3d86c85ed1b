"""Many ranks as one: FSDP2, whole tensors again, and collective operations. The same code on gloo/CPU and NCCL/CUDA.

Gradients of ranks are *summed*, never averaged: a loss is a sum of tokens that are weighted for the whole mini-batch.
FSDP's own divisor of 1 needs NCCL's ``PREMUL_SUM``; with plain sums, it works on gloo too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainers.learner.models import Critic, Policy
from trainers.learner.parallel import Meshes


def rank_device(device: torch.device) -> torch.device:
    """Select this rank's device and return it: a GPU without a number becomes the one that torchrun assigned."""
    if device.type == "cuda":
        if str(device) == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(False)  # see trainers.engines.decoder
    return device


def transformer_layers(model: Policy | Critic) -> list[nn.Module]:
    """Return the blocks of a model, in order; ``ValueError`` where it does not name its layers."""
    backbone: Any = model.lm if isinstance(model, Policy) else model.backbone
    names = set(backbone._no_split_modules or ())
    layers = [module for module in backbone.modules() if type(module).__name__ in names]
    if not layers:
        raise ValueError(f"{type(backbone).__name__} names no layers to shard (_no_split_modules is {sorted(names)})")
    return layers


def shard(model: Policy | Critic, meshes: Meshes, dtype: torch.dtype, offload: OffloadPolicy | None = None) -> None:
    """Shard a model's parameters over the ranks, in place: each layer a group, and one of the rest.

    Parameters, gradients and their reduction stay float32, and so does the value head's computation; ``dtype`` is that
    of the layers. Raises ``ValueError``: the model does not say what its layers are.
    """
    options: dict[str, Any] = {"mesh": meshes.fsdp, "offload_policy": offload or OffloadPolicy()}
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in transformer_layers(model):
        fully_shard(layer, mp_policy=policy, **options)
    if isinstance(model, Critic):
        fully_shard(model.value_head, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32), **options)
    fully_shard(model, mp_policy=policy, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def can_forget(model: nn.Module) -> bool:
    """Return whether a pass of a model that raised can be forgotten: of a sharded one, from torch 2.13 on."""
    return not isinstance(model, FSDPModule) or hasattr(model, "reset_iter_state")


def forget(model: nn.Module) -> None:
    """Forget a pass of a model that raised, and its gradients; of one that :func:`can_forget`, on one rank."""
    for parameter in model.parameters():  # of a sharded model: those that are gathered now, which the reset leaves
        parameter.grad = None
    # A model that never ran has no state to reset, and the reset fails.
    if isinstance(model, FSDPModule) and model._get_fsdp_state()._is_root is not None:
        model.reset_iter_state()


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor, on every rank; for a sharded one, all ranks must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def tied_names(state: Iterable[tuple[str, Tensor]]) -> dict[str, tuple[str, ...]]:
    """Return all names of each tensor of a ``state_dict``, by its first one; tied ones are the same object."""
    names: dict[int, list[str]] = {}
    for name, value in state:
        names.setdefault(id(value), []).append(name)
    return {group[0]: tuple(group) for group in names.values()}


class OtherRankError(RuntimeError):
    """Another rank failed; the message has its error, which that rank raises itself."""


class Ranks:
    """Collective operations of ranks besides sharded models; without meshes, one rank does nothing.

    ``number`` of ``count`` is this rank's share of the data. Ranks that share sequences or matrices have the same
    number, compute the same trajectories, and get the same results. ``group``, of all ranks, is for objects and
    barriers; it is the default one by default.
    """

    def __init__(self, meshes: Meshes | None, group: dist.ProcessGroup | None = None) -> None:
        self.meshes = meshes
        self.group = group
        self._data = None if meshes is None else meshes.data.get_group()
        self.count = 1 if meshes is None else meshes.data.size()
        self.number = 0 if meshes is None else meshes.data.get_local_rank()
        self.world = 1 if meshes is None else dist.get_world_size()

    @property
    def first(self) -> bool:
        """This is the rank that writes files of which there is one."""
        return self.world == 1 or dist.get_rank() == 0

    def apart(self, timeout: timedelta | None = None) -> Ranks:
        """Return the same ranks over a gloo group of their own, for a thread beside the one that trains.

        All ranks must call this together. ``timeout`` is that of an operation; ``None`` is torch's own.
        """
        return Ranks(self.meshes, dist.new_group(backend="gloo", timeout=timeout)) if self.world > 1 else self

    def add(self, tensor: Tensor) -> Tensor:
        """Sum all shares' tensors, in place."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self._data)
        return tensor

    def add_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sum all shares' numbers, by name; not every rank needs to have every name."""
        if self.count == 1:
            return dict(numbers)
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, dict(numbers), group=self._data)
        names: Iterable[str] = dict.fromkeys(name for share in everyone for name in share)
        return {name: sum(share.get(name, 0.0) for share in everyone) for name in names}

    def least(self, number: int) -> int:
        """Return the smallest of all ranks' numbers."""
        if self.world == 1:
            return number
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, number, group=self.group)
        return int(min(everyone))

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        if self.world > 1:
            dist.barrier(group=self.group)

    def agree(self, error: BaseException | None = None) -> None:
        """Wait for all ranks; where one has failed, it raises its ``error``, and the others OtherRankError."""
        if self.world > 1:
            everyone: list[str | None] = [None] * self.world
            message = None if error is None else f"{type(error).__name__}: {error}"
            dist.all_gather_object(everyone, message, group=self.group)
            if error is None and (failed := [(rank, text) for rank, text in enumerate(everyone) if text is not None]):
                raise OtherRankError("; ".join(f"rank {rank} failed with {text}" for rank, text in failed))
        if error is not None:
            raise error

    def first_says(self, question: Callable[[], bool]) -> bool:
        """Return the first rank's answer, on all ranks."""
        answer = [question() if self.first else False]
        if self.world > 1:
            dist.broadcast_object_list(answer, src=0, group=self.group)
        return answer[0]

    def first_does(self, job: Callable[[], object]) -> None:
        """Run ``job`` on the first rank while the rest wait; it raises the job's error, and the rest OtherRankError."""
        error = None
        if self.first:
            try:
                job()
            except Exception as problem:
                error = problem
        self.agree(error)
