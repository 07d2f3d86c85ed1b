"""The work of both sides: tasks, lengths of replies, rewards, the model, the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from textenvs import Task, TextEnv, Turn
from textenvs.messages import Message, text_of, user
from trainers.algorithms.batch import ActionBatch
from trainers.algorithms.estimators import DrGRPO
from trainers.algorithms.losses import PPO, token_weights
from trainers.models.tiny import build_model, build_tokenizer
from trainers.trajectory import Trajectory

ANSWER = "No, that is not right. Please try again."
LR, CLIP = 1e-5, 0.2
Clock = Callable[[], float]
WANTED = {"single": 0.75, "turns": 0.4, "memory": 0.5, "large": 0.8, "large-memory": 0.5}


@dataclass(frozen=True)
class Work:
    """The work of an iteration.

    Args:
        name: Of the kind of work.
        turns: Replies an episode.
        shortest: Tokens of a reply at least.
        longest: And at most.
        tasks: Groups.
        group: Episodes of each.
    """

    name: str
    turns: int
    shortest: int
    longest: int
    tasks: int = 32
    group: int = 8

    @property
    def episodes(self) -> int:
        """Episodes of an iteration."""
        return self.tasks * self.group

    def lengths(self, number: int) -> NDArray[np.int64]:
        """Return the number of tokens of each reply of this iteration, ``[episodes, turns]``."""
        rng = np.random.default_rng((number, self.turns))
        return rng.integers(self.shortest, self.longest + 1, (self.episodes, self.turns))


_ALL = (Work("single", 1, 48, 48), Work("turns", 4, 8, 64), Work("large", 2, 8, 64, tasks=8))
WORKS = {work.name: work for work in _ALL}


@dataclass(frozen=True)
class Shape:
    """The shape of the model."""

    hidden: int = 256
    layers: int = 4
    intermediate: int = 704
    vocabulary: int | None = None  # of the tokenizer
    family: str = "qwen2"
    heads: int = 4
    kv_heads: int = 2
    bfloat16: bool = False  # computed so; weights are built in float32

    def build(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        """Build a model of random weights, always the same."""
        return build_model(
            self.vocabulary or len(tokenizer),
            family=self.family,
            heads=self.heads,
            kv_heads=self.kv_heads,
            hidden=self.hidden,
            layers=self.layers,
            intermediate=self.intermediate,
            max_context=1024,
        )

    def for_trl(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        """Build the same weights, in the type that TRL computes in."""
        model = self.build(tokenizer)
        return model.bfloat16() if self.bfloat16 else model


TINY = Shape(hidden=32, layers=1, intermediate=64)
#: SmolLM2's 135 M parameters, in bfloat16.
LARGE = Shape(576, 30, 1536, vocabulary=49_152, family="llama", heads=9, kv_heads=3, bfloat16=True)


def question(number: int) -> str:
    """Return the question of one task; all have as many tokens."""
    return f"What is {number % 1000:03d} + {(37 * number + 11) % 1000:03d}?"


def score(text: str) -> float:
    """Return a reward that differs between siblings; it has no meaning."""
    return sum(map(ord, text)) % 8 / 8


class Questions:
    """An endless set of tasks."""

    name, size = "questions", None

    def __getitem__(self, index: int) -> Task:
        return Task(str(index), "benchmark", (user(question(index)),), "")


class Talk(TextEnv[Any]):
    """An environment that rejects every answer until the last turn."""

    def __init__(self, turns: int) -> None:
        super().__init__(Questions())
        self._turns = turns

    def opening(self, task: Task) -> list[Message]:
        return list(task.prompt)

    def respond(self, reply: Message) -> Turn:
        """Give the same answer every time."""
        if self.state.assistant_turns == self._turns:
            return Turn(reward=score(text_of(reply)), terminated=True, stop="solved")
        return Turn([user(ANSWER)], reward=score(text_of(reply)))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of 290 tokens."""
    return build_tokenizer([question(0), ANSWER])


def surrogate(logprobs: Tensor, entropy: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's clipped ratio as a weighted sum of tokens; see ``Learner.update_actor``."""
    columns = batch["old"], batch["advantage"], batch["trajectory"]
    losses = PPO(clip_ratio_low=CLIP, clip_ratio_high=CLIP).token_loss(logprobs, *columns)
    return (batch["weight"] * losses.loss).sum(), {}


def columns(trajectories: Sequence[Trajectory]) -> dict[str, NDArray[Any]]:
    """Return the columns of all action tokens: advantages, weights of a mean over tokens, sampled log-probabilities."""
    batch = ActionBatch.from_trajectories(trajectories)
    return {
        "advantage": DrGRPO().advantages(batch).advantages,
        "weight": token_weights("token-mean", batch.token_offsets),
        "old": np.concatenate([t.logprobs[t.action_mask] for t in trajectories]),
    }
