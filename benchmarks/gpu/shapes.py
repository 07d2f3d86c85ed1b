"""Models of known shapes with random weights, made in code, and sequences of random tokens for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from trainers.tiny import build_model
from trainers.trajectory import Trajectory

_VOCABULARY = 151_936
#: By name; the numbers are those of the published ``config.json`` of Qwen2.5-0.5B and -1.5B, Qwen3-0.6B, -1.7B and -4B.
SHAPES: dict[str, dict[str, Any]] = {
    "toy": {"vocab_size": 512, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 64},
    "0.5b": {"hidden": 896, "layers": 24, "heads": 14, "kv_heads": 2, "intermediate": 4864},
    "1.5b": {"hidden": 1536, "layers": 28, "heads": 12, "kv_heads": 2, "intermediate": 8960},
    "0.6b": {"family": "qwen3", "hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "intermediate": 3072},
    "1.7b": {"family": "qwen3", "hidden": 2048, "layers": 28, "heads": 16, "kv_heads": 8, "intermediate": 6144},
    "4b": {"family": "qwen3", "hidden": 2560, "layers": 36, "heads": 32, "kv_heads": 8, "intermediate": 9728},
}
_QWEN3_HEAD = 128


def make_model(name: str, device: torch.device, **overrides: Any) -> PreTrainedModel:
    """A model in float32, made where it will compute: billions of random numbers take minutes on a CPU.

    Args:
        name: Of :data:`SHAPES`.
        device: Where.
        overrides: More arguments of :func:`trainers.tiny.build_model`.
    """
    shape = {"vocab_size": _VOCABULARY, "max_context": 32768, **SHAPES[name], **overrides}
    if shape.get("family") == "qwen3":
        shape["head_dim"] = _QWEN3_HEAD
    with torch.device(device):
        return build_model(**shape)


def lengths_of(total: int, shortest: int, longest: int, seed: int = 0) -> list[int]:
    """Lengths evenly spread between two, about ``total`` together."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while not lengths or sum(lengths) + (shortest + longest) // 2 <= total:
        lengths.append(int(rng.integers(shortest, longest + 1)))
    return lengths


def sequences(lengths: list[int], vocabulary: int, seed: int = 0) -> list[Trajectory]:
    """Random sequences in which every token but the first is an action: the head is needed everywhere."""
    rng = np.random.default_rng(seed)
    return [from_tokens(rng.integers(0, vocabulary, length).astype(np.int32), 1) for length in lengths]


def from_tokens(tokens: np.ndarray, prompt: int) -> Trajectory:
    """One turn: a prompt of so many tokens, and the rest, which are actions."""
    action = np.arange(len(tokens)) >= prompt
    return Trajectory(
        token_ids=tokens,
        action_mask=action,
        logprobs=np.zeros(len(tokens), np.float32),
        weight_version=np.where(action, 0, -1).astype(np.int32),
        turn_id=np.where(action, 0, -1).astype(np.int32),
        turn_rewards=np.zeros(1),
        terminated=True,
    )
