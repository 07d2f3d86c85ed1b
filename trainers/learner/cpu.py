"""Faster or leaner computation of a model on a CPU; each function changes a model in place.

The first and the last are for models in one process alone.

* Layers that keep less for the backward pass. transformers' own keep every step in between: a normalised row twice,
  once in float32, and what a gated feed-forward part multiplies, four rows of its inner width. Here a norm keeps its
  input, and a feed-forward part its input and the two products of it; the rest is made again, by the same operations in
  the same order.
* Linear layers whose float32 products are oneDNN's (:mod:`trainers.learner.products`).
* Mixed precision: rounded copies compute, float32 parameters learn. It is what FSDP2 does with several ranks and on
  GPUs, without its casts in every forward and backward pass: a parameter is rounded once after it has changed.
  Gradients are rounded, too, and are added up over micro-batches in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trainers.learner.models import Critic, Policy
from trainers.learner.products import product

# ------------------------------------------------------------------ layers that keep less

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
    """Return whether nothing wraps its matrices, as adapters do, and it is gated by SiLU."""
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
    """RMS norm ``weight * x / sqrt(mean(x^2) + eps)`` of the last dimension (arXiv 1910.07467), in float32 inside."""

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
    """SwiGLU: ``(silu(x gate) * (x up)) down`` (arXiv 2002.05202)."""

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
    """Return ``grad.T @ inputs`` over all rows; half as long again where the wider one is to be transposed."""
    grad, inputs = grad.flatten(0, -2), inputs.flatten(0, -2)
    if grad.shape[-1] <= inputs.shape[-1]:
        return grad.T.contiguous() @ inputs
    return (inputs.T.contiguous() @ grad).T.contiguous()


# ------------------------------------------------------------------ oneDNN


def use_onednn(model: nn.Module) -> None:
    """Make a float32 model's linear layers on the CPU multiply with oneDNN, in place; parameters stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDNNLinear


class OneDNNLinear(nn.Linear):
    """``nn.Linear`` for float32 on the CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input @ weight.T + bias``."""
        output: Tensor = _Linear.apply(input, self.weight, self.bias)
        return output


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1]).contiguous()
        ctx.save_for_backward(rows, weight)
        return product(rows, weight, bias).view(*inputs.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        shape = (*grad.shape[:-1], rows.shape[-1])
        grad = grad.reshape(-1, grad.shape[-1]).contiguous()
        wants_inputs, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            product(grad, weight.T).view(shape) if wants_inputs else None,
            # Not by oneDNN, which copies both transposes first: that costs more than it wins.
            grad.T @ rows if wants_weight else None,
            grad.sum(0) if wants_bias else None,
        )


# ------------------------------------------------------------------ mixed precision


def compute_rounded(model: Policy | Critic, dtype: torch.dtype) -> None:
    """Let a model compute with rounded copies of its parameters, in place. Its value head stays as it is.

    Outside its ``forward`` the model has its float32 parameters: what an optimizer, a checkpoint and engines see.
    A layer must not be computed again in the backward pass.
    """
    copies = _Copies(model, dtype)
    forward = model.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        with copies.in_place():
            return forward(*args, **kwargs)

    model.forward = run  # type: ignore[method-assign]


class _Copies:
    def __init__(self, model: Policy | Critic, dtype: torch.dtype) -> None:
        exact = set() if isinstance(model, Policy) else set(model.value_head.parameters())
        self._places = [
            (module, name, parameter)
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter not in exact
        ]
        self._copies = {master: _copy(master, dtype) for _, _, master in self._places}  # a tied one has one
        self._seen = {master: master._version for master in self._copies}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with torch.no_grad():
            for master, copy in self._copies.items():
                if self._seen[master] != master._version:  # an optimizer's step, or a checkpoint
                    copy.copy_(master)
                    self._seen[master] = master._version
        try:
            for module, name, master in self._places:
                module._parameters[name] = self._copies[master]
            yield
        finally:
            for module, name, master in self._places:
                module._parameters[name] = master


def _copy(master: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    made = nn.Parameter(master.detach().to(dtype), requires_grad=master.requires_grad)
    if made.requires_grad:

        def add(copy: torch.Tensor) -> None:
            assert copy.grad is not None
            if master.grad is None:
                master.grad = copy.grad.to(master.dtype)
            else:
                master.grad.add_(copy.grad)
            copy.grad = None

        made.register_post_accumulate_grad_hook(add)
    return made
