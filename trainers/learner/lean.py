"""Layers of known models that keep less for the backward pass: on a CPU that is memory, and time to fill it.

transformers' own keep every step in between: a normalised row twice, once in float32, and what a gated feed-forward
part multiplies, four rows of its inner width. Here a norm keeps its input, and a feed-forward part its input and
the two products of it; the rest is made again, by the same operations in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_NORMS = frozenset({"LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})
_GATED = frozenset({"LlamaMLP", "Qwen2MLP", "Qwen3MLP"})


def use_lean_layers(model: nn.Module) -> None:
    """Change a model's norms and feed-forward parts in place; names, parameters and values stay as they are."""
    for module in model.modules():
        kind = type(module).__name__
        if kind in _NORMS:
            module.__class__ = _Norm
        elif kind in _GATED and _is_plain(module):
            module.__class__ = _Gated


def _is_plain(module: Any) -> bool:
    """Whether nothing stands around its matrices, as adapters do, and it is gated by SiLU."""
    products = (module.gate_proj, module.up_proj, module.down_proj)
    silu = isinstance(module.act_fn, nn.SiLU) or type(module.act_fn).__name__ == "SiLUActivation"
    return silu and all(type(product) is nn.Linear and product.bias is None for product in products)


class _Norm(nn.Module):
    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        out: Tensor = _RMSNorm.apply(hidden_states, self.weight, self.variance_epsilon)
        return out


class _Gated(nn.Module):
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _SwiGLU.apply(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
        return out


class _RMSNorm(torch.autograd.Function):
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last dimension (arXiv 1910.07467), in float32 inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = exact.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return weight * (exact * scale).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed = x.to(scale.dtype) * scale
        grad_weight = None
        if ctx.needs_input_grad[1]:
            rows = range(grad.dim() - 1)
            grad_weight = (grad * normed.to(grad.dtype)).sum(tuple(rows))
        inner = (grad * weight).to(scale.dtype)
        along = (inner * normed).mean(-1, keepdim=True)
        return inner.addcmul_(normed, along, value=-1).mul_(scale).to(x.dtype), grad_weight, None


class _SwiGLU(torch.autograd.Function):
    """``(silu(x gate) * (x up)) down`` (arXiv 2002.05202)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        gated, inner = x @ gate.T, x @ up.T
        ctx.save_for_backward(x, gate, up, down, gated, inner)
        return functional.silu(gated).mul_(inner) @ down.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, down, gated, inner = ctx.saved_tensors
        wants_x, wants_gate, wants_up, wants_down = ctx.needs_input_grad
        passed = functional.silu(gated)
        grad_down = _of_weight(grad, passed * inner) if wants_down else None
        grad_product = grad @ down
        grad_inner = passed.mul_(grad_product)
        grad_gated = torch.ops.aten.silu_backward(grad_product.mul_(inner), gated)
        return (
            (grad_gated @ gate).add_(grad_inner @ up) if wants_x else None,
            _of_weight(grad_gated, x) if wants_gate else None,
            _of_weight(grad_inner, x) if wants_up else None,
            grad_down,
        )


def _of_weight(grad: Tensor, inputs: Tensor) -> Tensor:
    """``grad.T @ inputs`` over all rows, which takes half as long again where the wider one is to be transposed."""
    grad, inputs = grad.flatten(0, -2), inputs.flatten(0, -2)
    if grad.shape[-1] <= inputs.shape[-1]:
        return grad.T.contiguous() @ inputs
    return (inputs.T.contiguous() @ grad).T.contiguous()
