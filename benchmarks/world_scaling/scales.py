"""Settings by machine: policies, environments, lengths of the training; and what is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from textenvs.envs.worlds.applications import applications

ENV = "textenv/worlds"
#: Applications that no policy is trained on.
HELD_OUT = ("routes", "tickets", "travel")
_TRAINED = tuple(name for name in applications() if name not in HELD_OUT)
#: Of the worlds that a policy is trained in; their seed is that of the training.
TRAINING: Mapping[str, Any] = {"split": "train", "goals": "train", "applications": _TRAINED}
#: By name: what differs from training. Each but ``own`` has worlds of its own, one a task. The tasks of ``own`` are
#: the first of two thousand million; training draws from all of these.
_SEED = 1000
AXES: Mapping[str, Mapping[str, Any]] = {
    "own": {},
    "worlds": {"seed": _SEED},
    "wordings": {"seed": _SEED, "split": "test"},
    "goals": {"seed": _SEED, "goals": "test"},
    "applications": {"seed": _SEED, "applications": HELD_OUT},
}


@dataclass(frozen=True)
class Scale:
    """Settings of a machine.

    Args:
        env: Options of every environment.
        model: The model to start from, or the shape of a tiny one (keys of the configuration's section ``model``). Tiny
            ones copy from the start: names of worlds that they have not seen can be read, but not learned by heart.
        context: Positions that an episode may have.
        reply: Tokens that a reply may have.
        demonstrations: How many conversations of the expert are played, at most; they are repeated.
        imitated: Tokens of the conversations that are imitated.
        prediction: The weight of the tokens that are no reply's, where a reply's count 1.
        imitation: Overrides of ``trainers.sft``.
        sampled: Tokens that PPO samples.
        reinforcement: Overrides of ``trainers.ppo``.
        device: Of the model.
    """

    env: Mapping[str, Any]
    model: str | Mapping[str, int]
    context: int
    reply: int
    demonstrations: int
    imitated: int
    prediction: float
    imitation: tuple[str, ...]
    sampled: int
    reinforcement: tuple[str, ...]
    device: str = "cpu"

    @property
    def digest(self) -> str:
        """A hash of all settings: policies and results of others are not reused."""
        return hashlib.sha256(repr((self, sorted(TRAINING.items()), AXES)).encode()).hexdigest()[:8]

    def training(self, worlds: int, seed: int) -> dict[str, Any]:
        """Return the options of the environment that a policy is trained in."""
        return {**self.env, **TRAINING, "seed": seed, "worlds": worlds}

    def played(self, axis: str, worlds: int, seed: int) -> dict[str, Any]:
        """Return the options of the environment that it is played in."""
        changes = AXES[axis]
        return {**self.training(worlds, seed), **({"worlds": None} if changes else {}), **changes}


#: Prompts of 200 tokens: two kinds of records, and no words that are the same in all worlds.
_SHORT = {"record_kinds": 2, "prompt": "short", "call_format": "mistral", "max_assistant_turns": 12}
_PPO = (
    *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0", "actor.mini_batches=1", "actor.entropy_coeff=0"),
    *("algorithm.adv_estimator=turn_grpo", "rollout.groups_per_batch=16", "rollout.n=4", "data.val_size=1"),
)
SCALES: Mapping[str, Scale] = {
    # A quarter of an hour of one core for imitation.
    "cpu": Scale(
        env=_SHORT,
        model={"hidden": 128, "layers": 4, "heads": 2, "kv_heads": 2, "copying": True, "vocab_size": 2048},
        context=1536,
        reply=64,
        demonstrations=20_000,
        imitated=3_000_000,
        prediction=0.3,
        imitation=("sft.batch_size=8", "sft.lr=2e-3", "sft.weight_decay=0.1"),
        sampled=100_000,
        reinforcement=(*_PPO, "actor.lr=2e-4"),
    ),
    "cuda": Scale(
        env=_SHORT,
        model={"hidden": 256, "layers": 6, "heads": 4, "kv_heads": 4, "copying": True, "vocab_size": 2048},
        context=1536,
        reply=64,
        demonstrations=50_000,
        imitated=300_000_000,
        prediction=0.3,
        imitation=("sft.batch_size=64", "sft.lr=1e-3", "sft.weight_decay=0.1"),
        sampled=10_000_000,
        reinforcement=(*_PPO, "actor.lr=1e-4", "rollout.groups_per_batch=64"),
        device="cuda",
    ),
    # An hour of one core for imitation, at 180 tokens a second; a GPU takes more with --imitated.
    "smollm2": Scale(
        env=_SHORT,
        model="smollm2",
        context=8192,
        reply=96,
        demonstrations=10_000,
        imitated=500_000,
        prediction=0.0,
        imitation=("sft.batch_size=4", "sft.lr=2e-4", "sft.weight_decay=0"),
        sampled=1_000_000,
        reinforcement=(*_PPO, "actor.lr=1e-6"),
        device="auto",
    ),
}
