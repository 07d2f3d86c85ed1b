"""The optimizer against AdamW's formula; the schedule against its own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from trainers.learner.optim import Optimizer, lr_at
from trainers.section import OptimizerSection


def test_constant_after_linear_warm_up():
    section = OptimizerSection(lr=0.5, lr_warmup_steps=4)
    assert [lr_at(section, step) for step in range(7)] == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5]


def test_cosine_falls_to_its_floor_and_stays():
    section = OptimizerSection(lr=1.0, lr_warmup_steps=2, lr_schedule="cosine")
    falling = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(5)]
    assert [lr_at(section, step, 6) for step in range(9)] == pytest.approx([0.5, 1.0, *falling, 0.1, 0.1])


def test_cosine_needs_its_end():
    with pytest.raises(ValueError, match="needs total_steps"):
        Optimizer(nn.Linear(2, 1), OptimizerSection(lr_schedule="cosine"))


def test_updates_follow_formula():
    """AdamW (arXiv 1711.05101, algorithm 2) by hand, with clipping; vectors are not decayed."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    section = OptimizerSection(lr=0.1, betas=(0.8, 0.9), weight_decay=0.2, grad_clip=1.0, lr_warmup_steps=2)
    optimizer = Optimizer(model, section)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(p) for name, p in expected.items()}
    second = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step in range(1, 5):
        size = 3 if step % 2 else 0.1  # above what is clipped, and below it
        gradients = {name: torch.randn_like(p) * size for name, p in expected.items()}
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].clone()
        metrics = optimizer.step("a test")
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        lr = 0.1 * min(1.0, step / 2)
        assert metrics == pytest.approx({"grad_norm": norm, "lr": lr})
        for name, gradient in gradients.items():
            clipped = gradient * min(1.0, 1.0 / norm)
            first[name] = 0.8 * first[name] + 0.2 * clipped
            second[name] = 0.9 * second[name] + 0.1 * clipped**2
            decay = 0.2 if expected[name].ndim > 1 else 0.0
            scaled = first[name] / (1 - 0.8**step) / ((second[name] / (1 - 0.9**step)).sqrt() + 1e-8)
            expected[name] = expected[name] * (1 - lr * decay) - lr * scaled
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name])
        assert parameter.grad is None


def test_nonfinite_gradient_changes_nothing():
    model = nn.Linear(2, 1)
    optimizer = Optimizer(model, OptimizerSection(lr=0.1))
    tensors = [*model.parameters(), *(tensor for state in optimizer.state().values() for tensor in state.values())]

    def step(value):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        optimizer.step("a test")

    step(1.0)
    before = [tensor.detach().clone() for tensor in tensors]
    with pytest.raises(FloatingPointError, match="is nan in update 1 of a test"):
        step(math.nan)
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters()), "the next gradient is not added to it"
    assert optimizer.step_count == 1


def test_optimizer_ignores_frozen_parameters():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert Optimizer(model, OptimizerSection()).state().keys() == {"weight"}
