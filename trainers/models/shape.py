"""The shape of a model that is built, if only on the meta device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.models.memory import ModelShape


def shape_of_model(model: Any) -> ModelShape:
    """Return the shape of a model, whose parameters may be on the meta device."""
    text = model.config.get_text_config()
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    parameters: Mapping[int, int] = {id(weight): weight.numel() for weight in model.parameters()}
    blocks = {
        id(weight)
        for module in model.modules()
        if isinstance(module, GradientCheckpointingLayer)
        for weight in module.parameters()
    }
    linear: Counter[str] = Counter()
    for name, module in model.base_model.named_modules():
        if isinstance(module, torch.nn.Linear):
            linear[name.rpartition(".")[2]] += module.in_features + module.out_features
    return ModelShape(
        parameters=sum(parameters.values()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        kv_width=kv_heads * head_dim,
        vocab=text.vocab_size,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=width if isinstance(width := getattr(text, "intermediate_size", None), int) else 0,
        outside=sum(size for weight, size in parameters.items() if weight not in blocks),
        linear=tuple(sorted(linear.items())),
        positions=text.max_position_embeddings,
    )
