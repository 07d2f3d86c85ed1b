"""Two attention heads that copy: with them, a tiny model continues repeated text before it has learned anything.

A head of the first layer writes, at each position, which token was before. One of the second layer attends to the
positions whose previous token is the present one, and writes the token that stands there. Together they are an
*induction head* (Elhage et al. 2021, https://transformer-circuits.pub/2021/framework/; Olsson et al. 2022,
arXiv:2209.11895). Large models find it early in their training; one of a million parameters does not within the few
million tokens that a run of minutes has, and then no name that stands in its prompt can appear in its replies.
"""

from __future__ import annotations

import math

import torch
from transformers import PreTrainedModel

from trainers.config.model import COPYING_NEEDS, can_copy

#: Rotary base of models that copy: with the usual 10,000, distant tokens rarely match.
ROPE_THETA = 1e6
#: In nats: how much more the right position gets than the mean one, of the first head and of the second.
_PREVIOUS, _MATCH = 20.0, 32.0
#: In standard deviations of an embedding: what the first head writes. By how much the second prefers what it copies to
#: the present token, which the model's own embedding would repeat.
_NOTE, _COPY = 2.0, 3.0
#: Factor of the output matrices of all other heads and of the feed-forward parts.
_OTHERS = 0.1
#: Rotary pairs that turn by more than `_FAST` radians at each position tell neighbours apart; pairs that turn by less
#: than `_SLOW` hardly change within a few hundred positions.
_FAST, _SLOW = 0.02, 2e-3


def add_copying(model: PreTrainedModel, *, seed: int = 0) -> None:
    """Set the first head of each of the first two layers, prepare the embeddings, and scale what others write down.

    Args:
        model: A Qwen2 of random weights: its queries and keys have biases, by which a head attends to a place.
        seed: Draws the directions in which the heads write.

    Raises:
        ValueError: The model is not what ``COPYING_NEEDS`` says.
    """
    config = model.config
    layers, heads, width = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    if not (can_copy(config.model_type, layers, heads, width) and config.tie_word_embeddings):
        raise ValueError(f"a model that copies is {COPYING_NEEDS}, and tied embeddings")
    size, std = width // heads, config.initializer_range
    half = size // 2
    rates = [ROPE_THETA ** (-pair / half) for pair in range(half)]  # a rotary pair is the dimensions i and i + half
    generator = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q.float()
    note, code, copied = directions[:, :size], directions[:, size : 2 * size].T, directions[:, -size:]
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    with torch.no_grad():
        for layer in model.model.layers:  # random writes would drown those of the two heads
            for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                projection.weight *= _OTHERS

        # Tokens are told apart by signs in `code`, so that all match themselves equally; `note` is for the first head.
        embedding = model.get_input_embeddings().weight
        embedding -= (embedding @ note) @ note.T
        embedding += (std * (embedding @ code.T).sign() - embedding @ code.T) @ code

        fast = [pair for pair in range(half) if rates[pair] > _FAST]
        size_of = math.sqrt(_PREVIOUS * math.sqrt(size) / len(fast))
        for projection in (first.q_proj, first.k_proj):
            projection.weight[:size] = 0.0
            projection.bias[:size] = 0.0
        for pair in fast:  # a key is turned by one position, and so meets the query of the next one
            first.q_proj.bias[pair] = size_of
            first.k_proj.bias[pair] = size_of * math.cos(rates[pair])
            first.k_proj.bias[pair + half] = size_of * math.sin(rates[pair])
        first.v_proj.weight[:size], first.v_proj.bias[:size] = code, 0.0
        first.o_proj.weight[:, :size] = _NOTE * std * note

        slow = [pair for pair in range(half) if rates[pair] < _SLOW]
        slow += [pair + half for pair in slow]
        size_of = math.sqrt(_MATCH * math.sqrt(size) / len(slow))
        for projection, source in ((second.q_proj, code), (second.k_proj, note.T)):
            projection.weight[:size], projection.bias[:size] = 0.0, 0.0
            projection.weight[slow] = size_of * source[: len(slow)]
        second.v_proj.weight[:size], second.v_proj.bias[:size] = copied.T, 0.0
        second.o_proj.weight[:, :size] = _COPY * width / size * std * copied
