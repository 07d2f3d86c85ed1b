"""Lean layers say what transformers' own say, values and gradients, and keep less."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainers.learner.cpu import use_lean_layers
from trainers.models.tiny import build_model


def layers(family: str, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(0)
    made = build_model(40, family=family, hidden=32, layers=1, heads=4, kv_heads=2, max_context=16).to(dtype)
    with torch.no_grad():
        for value in made.parameters():
            value.copy_(torch.randn_like(value))
    layer = made.base_model.layers[0]
    return [made, layer.input_layernorm, layer.mlp]


def run(module: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], int]:
    """Output, gradients, and the bytes that were kept for these beside inputs and parameters."""
    saved: dict[int, int] = {}
    inputs = {x.data_ptr(), *(value.data_ptr() for value in module.parameters())}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in inputs:
            saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        out = module(x)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    return [out, *torch.autograd.grad(out, [x, *module.parameters()], grad)], sum(saved.values())


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_lean_layers_match_transformers_with_less_memory(family, dtype, tolerance):
    for at in (1, 2):
        own, lean = layers(family, dtype), layers(family, dtype)
        use_lean_layers(lean[0])
        assert type(lean[at]) is not type(own[at])
        x = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        (expected, most), (actual, less) = run(own[at], x), run(lean[at], x)
        torch.testing.assert_close(actual[0], expected[0], rtol=0 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)
        for value, other in zip(actual, expected, strict=True):
            assert value.dtype == other.dtype
            assert (value - other).norm() <= tolerance * other.norm()
        assert less <= 0.6 * most


def test_frozen_parameters_get_no_gradient():
    made, _, mlp = layers("llama", torch.float32)
    use_lean_layers(made)
    mlp.up_proj.weight.requires_grad_(False)
    x = torch.randn(2, 3, 32)
    mlp(x).sum().backward()
    assert mlp.up_proj.weight.grad is None
    assert mlp.gate_proj.weight.grad is not None


def test_matrices_with_something_around_them_stay():
    made, norm, mlp = layers("llama", torch.float32)
    mlp.up_proj = nn.Sequential(mlp.up_proj)
    kind = type(mlp)
    use_lean_layers(made)
    assert type(mlp) is kind
    assert type(norm) is not type(layers("llama", torch.float32)[1])
