"""torch.compile in the learner: of a model's blocks, and of the arithmetic on its logits.

Blocks are compiled one by one. They are the same code with other parameters, so one compilation serves all; FSDP2's
hooks and checkpointing stay outside, and what a block cannot compile splits it instead of failing. Lengths are symbols:
micro-batches of other lengths need no compilation of their own. What does differ is compiled again: with and without
gradients, trained and frozen, one row and several.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from trainers.config.model import ModelSection

_LOG = logging.getLogger(__name__)

BACKEND = "inductor"  #: torch.compile's; tests take one that generates no code
#: Compilations of one function; beyond torch's own limit, 8, it would run uncompiled.
_COMPILATIONS = 64
#: Parameters and updates below which the minute that it takes is not won back.
_SMALL, _SHORT = 50_000_000, 20
_TAKES_LIMIT = "recompile_limit" in inspect.signature(torch.compile).parameters
_CAPABILITY = (7, 0)  #: of the oldest GPUs that triton generates code for


def pays(section: ModelSection, device: torch.device, parameters: int, updates: int | None) -> bool:
    """Return whether to compile a model with so many parameters for so many updates, ``None`` where that is unknown."""
    if section.compile != "auto":
        return section.compile
    if device.type != "cuda" or parameters < _SMALL or (updates is not None and updates < _SHORT):
        return False
    # torch's own packages for CUDA bring triton on Linux alone.
    if importlib.util.find_spec("triton") is None or torch.cuda.get_device_capability(device) < _CAPABILITY:
        _LOG.warning("blocks are not compiled, which is slower: that needs triton, and a GPU that it knows")
        return False
    return True


def compile_blocks(layers: Sequence[nn.Module]) -> None:
    """Compile the forward passes of a model's blocks when they first run, in place; before FSDP2 and checkpointing."""
    for layer in layers:
        layer.forward = _compile(layer.forward, dynamic=True)  # type: ignore[method-assign]


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors, compiled when it first runs; a size becomes a symbol when it first differs."""
    return _compile(function, dynamic=None)


def _compile(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    # From torch 2.12 on, a thread does not see what another has set in the configuration; autograd has its own threads.
    limit: dict[str, Any] = {"recompile_limit": _COMPILATIONS} if _TAKES_LIMIT else {}
    if not _TAKES_LIMIT:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _COMPILATIONS)
    made: Callable[..., Any] = torch.compile(function, dynamic=dynamic, backend=BACKEND, **limit)
    return made
