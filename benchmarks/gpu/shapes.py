"""Models of known shapes with random weights, made in code, and sequences of random tokens for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from trainers.models.tiny import build_model
from trainers.trajectory import Trajectory

_VOCABULARY = 151_936
#: By name; the numbers are those of the published ``config.json`` of Qwen2.5-0.5B and -1.5B, Qwen3-0.6B, -1.7B and -4B.
SHAPES: dict[str, dict[str, Any]] = {
    "toy": {"vocab_size": 512, "hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 64},
    "0.5b": {"hidden": 896, "layers": 24, "heads": 14, "kv_heads": 2, "intermediate": 4864},
    "1.5b": {"hidden": 1536, "layers": 28, "heads": 12, "kv_heads": 2, "intermediate": 8960},
    "0.6b": {"family": "qwen3", "hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "intermediate": 3072},
    "1.7b": {"family": "qwen3", "hidden": 2048, "layers": 28, "heads": 16, "kv_heads": 8, "intermediate": 6144},
    "4b": {"family": "qwen3", "hidden": 2560, "layers": 36, "heads": 32, "kv_heads": 8, "intermediate": 9728},
}
_QWEN3_HEAD = 128


def make_model(name: str, device: torch.device, **overrides: Any) -> PreTrainedModel:
    """Build a model in float32, on its device: billions of random numbers take minutes on a CPU.

    Args:
        name: Of :data:`SHAPES`.
        device: Where.
        overrides: More arguments of :func:`trainers.models.tiny.build_model`.
    """
    shape = {"vocab_size": _VOCABULARY, "max_context": 32768, **SHAPES[name], **overrides}
    if shape.get("family") == "qwen3":
        shape["head_dim"] = _QWEN3_HEAD
    with torch.device(device):
        return build_model(**shape)


@torch.no_grad()
def sharpened(model: PreTrainedModel) -> PreTrainedModel:
    """Enlarge query and key projections, so that attention matters."""
    for name, parameter in model.named_parameters():
        if "q_proj.weight" in name or "k_proj.weight" in name:
            parameter.mul_(4.0)
        elif "embed_tokens" in name:
            parameter.mul_(2.0)
    return model


def lengths_of(total: int, shortest: int, longest: int, seed: int = 0) -> list[int]:
    """Return lengths evenly spread between two, about ``total`` together."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while not lengths or sum(lengths) + (shortest + longest) // 2 <= total:
        lengths.append(int(rng.integers(shortest, longest + 1)))
    return lengths


def sequences(lengths: list[int], vocabulary: int, seed: int = 0) -> list[Trajectory]:
    """Return random sequences in which every token but the first is an action: the head is needed everywhere."""
    rng = np.random.default_rng(seed)
    return [from_tokens(rng.integers(0, vocabulary, length).astype(np.int32), 1) for length in lengths]


def forked(
    depth: int, sharing: float, total: int, vocabulary: int, *, leaves: int = 32, seed: int = 0
) -> list[Trajectory]:
    """Return episodes that are forks of one conversation, as many after each of its ``depth`` turns.

    Half of each turn are actions, and so is the text after the fork. A token that several episodes have is an action of
    each of them.

    Args:
        depth: Turns, each as long as the others.
        sharing: 1 - unique / total tokens, about; below what ``leaves`` allow.
        total: Tokens of all episodes together, about.
        vocabulary: Tokens are random.
        leaves: Episodes.
        seed: Of the tokens.

    Raises:
        ValueError: So many leaves cannot share as much.
    """
    # Of a conversation of length 1: what all forks have of it together, and by that the length of what follows.
    reread = leaves * (depth + 1) / (2 * depth)
    follows = ((1 - sharing) * reread - 1) / (leaves * sharing)
    if follows <= 0:
        raise ValueError(f"{leaves} forks of {depth} turns cannot share {sharing} of their tokens")
    length = total / (leaves * follows + reread)
    turn, rest = max(2, round(length / depth)), max(1, round(length * follows))
    rng = np.random.default_rng(seed)
    trunk = rng.integers(0, vocabulary, turn * depth).astype(np.int32)
    made = []
    for leaf in range(leaves):
        begin = trunk[: turn * (leaf % depth + 1)]
        tokens = np.concatenate([begin, rng.integers(0, vocabulary, rest).astype(np.int32)])
        at = np.arange(len(tokens))
        made.append(from_tokens(tokens, (at >= len(begin)) | (at % turn >= turn // 2)))
    return made


def from_tokens(tokens: np.ndarray, actions: int | np.ndarray) -> Trajectory:
    """Return one turn, with its actions as a mask, or all that follows a prompt of so many tokens."""
    action = np.arange(len(tokens)) >= actions if isinstance(actions, int) else actions
    return from_turns(tokens, np.where(action, 0, -1), turn_rewards=np.zeros(1))


def from_turns(tokens: Sequence[int] | np.ndarray, turn: Sequence[int] | np.ndarray, **fields: Any) -> Trajectory:
    """Return an episode that terminated, of tokens with their turns, -1 for those that are no actions."""
    turns = np.asarray(turn, np.int32)
    return Trajectory(
        token_ids=np.asarray(tokens, np.int32),
        action_mask=turns >= 0,
        weight_version=np.where(turns >= 0, 0, -1).astype(np.int32),
        turn_id=turns,
        terminated=True,
        **{"logprobs": np.zeros(len(turns), np.float32), **fields},
    )
