"""Siblings of a group open with the same tokens: read them once for all, and what follows for each.

A group of eight with a prompt as long as its replies costs 9 parts of 16. It is the same arithmetic, not another loss:
the prompt's keys and values are computed once, every sibling attends to them, and the gradients of all siblings meet in
them. Packing (:mod:`trainers.learner.packing`) decides where it pays; this is the forward pass.

It needs attention that takes a mask, a cache that is nothing but keys and values of all positions, and positions that
are told and not counted: :func:`can_share` knows the families that have them, and tries the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from trainers.learner.attention import CPU

Ints = NDArray[np.int64]

# Distances that attention counts along the keys (ALiBi) would count padding, and angles that depend on the longest
# position (dynamic, longrope) would differ between a beginning and what follows it. These have neither.
_FAMILIES = ("qwen2", "qwen3", "llama", "mistral")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, eq=False)
class Shared:
    """Beginnings of a micro-batch's rows.

    Args:
        input_ids: int64 ``[G, P]``, padded on the right.
        lengths: int64 ``[G]``, at least 1.
        row: int64 ``[B]``; which of them each row goes on from.
    """

    input_ids: Ints
    lengths: Ints
    row: Ints


@dataclass(frozen=True, eq=False)
class SharedInputs:
    """The same for a model.

    Args:
        input_ids: int64 ``[G, P]``.
        row: int64 ``[B]``.
        position_ids: int64 ``[B, L]``; of what follows.
        mask: ``[B or 1, 1, L, P + L]``; 0 where a token that follows may look, ``-inf`` elsewhere.
    """

    input_ids: Tensor
    row: Tensor
    position_ids: Tensor
    mask: Tensor


def shared_inputs(shared: Shared, width: int, device: torch.device) -> SharedInputs:
    """What the model is given.

    Args:
        shared: The beginnings.
        width: ``L``.
        device: Where.
    """
    lengths = torch.from_numpy(shared.lengths[shared.row]).to(device)
    positions = torch.arange(width, device=device)
    longest = shared.input_ids.shape[1]
    seen = lengths[:1] if bool((lengths == longest).all()) else lengths  # one mask for all
    first = torch.arange(longest, device=device) < seen[:, None, None]
    causal = positions <= positions[:, None]
    looks = torch.cat([first.expand(-1, width, -1), causal.expand(len(seen), -1, -1)], dim=-1)[:, None]
    return SharedInputs(
        input_ids=torch.from_numpy(shared.input_ids).to(device),
        row=torch.from_numpy(shared.row).to(device),
        position_ids=lengths[:, None] + positions,
        mask=torch.zeros(looks.shape, device=device).masked_fill_(~looks, float("-inf")),
    )


def run_shared(backbone: Any, input_ids: Tensor, shared: SharedInputs) -> Tensor:
    """The backbone's outputs, ``[G * P + B * L, H]``: of the beginnings, then of what follows.

    Args:
        backbone: A transformers model without a head, for which :func:`can_share` holds.
        input_ids: int64 ``[B, L]``; what follows.
        shared: The beginnings.
    """
    cache = DynamicCache(config=backbone.config)
    first = backbone(input_ids=shared.input_ids, past_key_values=cache, use_cache=True).last_hidden_state
    layers: list[Any] = cache.layers
    for layer in layers:
        layer.keys, layer.values = (part.index_select(0, shared.row) for part in (layer.keys, layer.values))
    rest = backbone(
        input_ids=input_ids,
        position_ids=shared.position_ids,
        attention_mask=shared.mask.to(first.dtype),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([first.flatten(0, 1), rest.flatten(0, 1)])


def plain_attention(config: Any) -> bool:
    """Whether a model's attention is that of known families, computed in a way that takes a mask."""
    return config.model_type in _FAMILIES and config._attn_implementation in ("sdpa", "eager", CPU)


@torch.no_grad()
def can_share(backbone: Any) -> bool:
    """Whether a model goes on from shared beginnings, also padded ones, as if it had read each row whole.

    Said of known families alone, and then tried on a few tokens.
    """
    config = backbone.config
    if not plain_attention(config):
        return False
    if config.rope_parameters["rope_type"] not in _ROPE_TYPES:
        return False
    if not all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers):
        return False  # windows
    rows = np.arange(27).reshape(3, 9) % config.vocab_size
    lengths = np.array([2, 5])
    rows[1, :2] = rows[0, :2]  # two that go on from two tokens, and one from five
    begins = np.zeros((2, 5), np.int64)
    begins[0, :2], begins[1] = rows[0, :2], rows[2, :5]
    shared = Shared(begins, lengths, np.array([0, 0, 1]))
    device = backbone.get_input_embeddings().weight.device
    whole = backbone(input_ids=torch.from_numpy(rows).to(device), use_cache=False).last_hidden_state
    follows = np.stack([rows[0, 2:6], rows[1, 2:6], rows[2, 5:9]])
    parts = run_shared(backbone, torch.from_numpy(follows).to(device), shared_inputs(shared, 4, device))
    expected = torch.cat([whole[0, 2:6], whole[1, 2:6], whole[2, 5:9]])
    return torch.allclose(parts[begins.size :], expected, rtol=1e-3, atol=1e-4)
