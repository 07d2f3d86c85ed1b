"""Tensor parallelism by DTensor: attention heads and feed-forward units cut over ranks (arXiv 1909.08053).

Query, key, value, gate and up projections are cut by their outputs, the output and down projections by their inputs;
an all-reduce after each of the latter makes the hidden states whole again. Everything else, embeddings and head
included, is the same on all ranks of a tensor-parallel group, and gets the same gradient there.

Qwen3 normalises every head with one shared weight. A rank sees its own heads only, so that weight's gradient is summed
over the ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from trainers.learner.lora import adapter_layers

_BY_OUTPUT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_BY_INPUT = ("self_attn.o_proj", "mlp.down_proj")
_OF_HEADS = ("self_attn.q_norm", "self_attn.k_norm")


def cut_matrices(layers: list[nn.Module], mesh: DeviceMesh) -> None:
    """Cut the matrices of Qwen2, Qwen3 or Llama layers over a mesh, in place, adapters included.

    Before FSDP2, and after :func:`trainers.learner.parallel.check_model`.
    """
    for layer in layers:
        parallelize_module(layer, mesh, _plan(layer))
        for name in _OF_HEADS:
            if (norm := _find(layer, name)) is not None:
                _sum_gradients(norm, mesh.get_group())


def _plan(layer: nn.Module) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {}
    if not any(adapter_layers(layer)):
        # What enters is the same on all ranks. As one replicated DTensor, its gradient is summed once a block, not once
        # a projection. Adapters have matrices that are not cut, which take no DTensors.
        same: dict[str, Any] = {"hidden_states": Replicate()}
        plan["self_attn"] = PrepareModuleInput(
            input_kwarg_layouts=same, desired_input_kwarg_layouts=same, use_local_output=False
        )
        plan["mlp"] = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),), use_local_output=False
        )
    for name in (*_BY_OUTPUT, *_BY_INPUT):
        by_output = name in _BY_OUTPUT
        if _find(layer, f"{name}.base_layer") is None:
            plan[name] = ColwiseParallel() if by_output else RowwiseParallel()
        elif by_output:  # W + B A, both by their outputs: B is cut, A is not
            plan[f"{name}.base_layer"] = ColwiseParallel()
            plan[f"{name}.lora_B.default"] = ColwiseParallel()
        else:  # both by their inputs: A is cut, B is not
            plan[f"{name}.base_layer"] = RowwiseParallel()
            plan[f"{name}.lora_A.default"] = RowwiseParallel()
    return plan


def _find(layer: nn.Module, name: str) -> nn.Module | None:
    module: nn.Module | None = layer
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _sum_gradients(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Make the gradients of a module's parameters sums over a group."""
    forward = type(module).forward

    def run(*args: Any, **kwargs: Any) -> Any:
        own = dict(module._parameters)
        try:
            # The module computes with a parameter whose gradient passes through the sum.
            for name, parameter in own.items():
                module._parameters[name] = _SumGradient.apply(parameter, group)
            return forward(module, *args, **kwargs)
        finally:
            module._parameters.update(own)

    module.forward = run  # type: ignore[method-assign]


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None
