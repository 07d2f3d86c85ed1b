"""Mixed precision of one rank on the CPU: rounded copies compute, float32 parameters learn.

What FSDP2 does with several ranks and on GPUs, without its casts in every forward and backward pass: a parameter is
rounded once after it has changed. Gradients are rounded, too, and are added up over micro-batches in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from trainers.learner.models import Critic, Policy


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
