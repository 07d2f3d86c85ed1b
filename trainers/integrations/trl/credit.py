"""A ``GRPOTrainer`` in which each turn's tokens have an advantage of their own.

TRL gives all tokens of an episode the same advantage; its loss takes ``[episodes, tokens]`` as well (trl 1.16,
``GRPOTrainer._compute_loss``). This subclass replaces them in what ``_generate_and_score_completions`` returns, masks
the tokens that the estimator leaves out, and listens to ``_calculate_rewards``. The turn rewards that
:class:`.TextEnvRollout` brought along go through an estimator of :mod:`trainers.algorithms.estimators`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...algorithms.batch import ActionBatch, Advantages
from ...algorithms.estimators import TurnGRPO, normalize
from .rollout import textenv_reward

try:
    from accelerate.utils import gather_object
    from trl import GRPOTrainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("this needs TRL: pip install 'textenvs[trl]'", name=error.name) from error

Estimate = Callable[[ActionBatch], Advantages]


class TurnCreditGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """``GRPOTrainer`` with advantages of turns; ``rollout_func`` is a :class:`.TextEnvRollout`.

    :func:`.textenv_reward` must be among ``reward_funcs``, as it is, with a weight above 0: its turn rewards are what
    is credited. The rewards of other functions count to an episode's last turn. ``estimate`` makes advantages of a
    batch, an estimator without a critic. ``None`` is ``turn_grpo`` (each turn's reward-to-go against the siblings that
    reached the turn), scaled as ``scale_rewards`` says: by the group's root mean square (``group``), to the batch's
    mean 0 and deviation 1 (``batch``), or not (``none``). All else is as of ``GRPOTrainer``.

    Raises ``ValueError``: ``textenv_reward`` is missing, or rewards are normalised before they are added up;
    RuntimeError: this version of TRL lacks the methods that are replaced here.
    """

    def __init__(self, *args: Any, estimate: Estimate | None = None, **kwargs: Any) -> None:
        for name in ("_generate_and_score_completions", "_calculate_rewards"):
            if not hasattr(GRPOTrainer, name):  # or what is here would never be called
                raise RuntimeError(f"this version of TRL has no GRPOTrainer.{name}: use trl>=1.16,<2")
        super().__init__(*args, **kwargs)
        if textenv_reward not in self.reward_funcs:
            raise ValueError(
                "TurnCreditGRPOTrainer needs textenv_reward among its reward_funcs: it credits those turn rewards "
                "(per-term functions would be added up over turns)"
            )
        self._own = self.reward_funcs.index(textenv_reward)
        weight = float(self.reward_weights[self._own])
        if not weight > 0:
            raise ValueError(f"the weight of textenv_reward must be above 0, not {weight}")
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError("TurnCreditGRPOTrainer needs multi_objective_aggregation='sum_then_normalize'")
        self._estimate = estimate or self._turn_grpo
        self._per_function: torch.Tensor | None = None

    def _turn_grpo(self, batch: ActionBatch) -> Advantages:
        advantages = TurnGRPO(baseline="group", norm_by_std=self.scale_rewards == "group").advantages(batch)
        return normalize(advantages) if self.scale_rewards == "batch" else advantages

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        rewards: torch.Tensor = super()._calculate_rewards(*args, **kwargs)
        self._per_function = rewards.detach().cpu()  # of all processes
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        model: Any = self.model
        training = model.training
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if missing := {"turn_rewards", "turn_ids", "failed"} - set(inputs[0]):
            raise ValueError(f"the rollout_func gives no {sorted(missing)}: TurnCreditGRPOTrainer needs TextEnvRollout")
        everyone = gather_object([_summary(row) for row in inputs])
        group: Any = self.num_generations if training else self.num_generations_eval
        assert self._per_function is not None
        first = self.accelerator.process_index * len(inputs)
        by_episode, trained = token_advantages(everyone, self._rewards_of(everyone), group, self._estimate)
        advantages = torch.zeros(output["completion_ids"].shape)
        keep = torch.ones(output["completion_ids"].shape, dtype=torch.bool)
        for number, row in enumerate(inputs, first):
            sampled = torch.tensor([turn >= 0 for turn in row["turn_ids"]])
            if by_episode[number].size:
                advantages[number - first, : len(sampled)][sampled] = torch.from_numpy(by_episode[number]).float()
                keep[number - first, : len(sampled)][sampled] = torch.from_numpy(trained[number])
        output["advantages"] = advantages.to(output["advantages"].device)
        if not all(mask.all() for mask in trained):  # of all processes: they gather together
            # Left out of the loss, and of the number that it divides by.
            mask = output["tool_mask"] = output["tool_mask"] * keep.to(output["tool_mask"])
            counted = (output["completion_mask"] * mask).sum()
            output["num_items_in_batch"] = self.accelerator.gather(counted).sum()
        return output

    def _rewards_of(self, episodes: Sequence[dict[str, Any]]) -> list[NDArray[np.float64]]:
        """Return each episode's turn rewards: weighted, with other functions' rewards at the last turn."""
        assert self._per_function is not None
        weights = self.reward_weights.cpu()
        other_functions = [i for i in range(len(self.reward_funcs)) if i != self._own]
        rest = (self._per_function * weights)[:, other_functions].nansum(dim=1).tolist()
        rewards = [float(weights[self._own]) * np.array(episode["turn_rewards"], np.float64) for episode in episodes]
        for turns, extra in zip(rewards, rest, strict=True):
            turns[-1:] += extra
        return rewards


def _summary(row: dict[str, Any]) -> dict[str, Any]:
    """Summarise an episode for other processes; a failed one has no turns."""
    failed = bool(row["failed"])
    turn_ids = np.array(row["turn_ids"])
    return {
        "turn_rewards": [] if failed else list(row["turn_rewards"]),
        "turn_sizes": [] if failed else np.bincount(turn_ids[turn_ids >= 0]).tolist(),
        "terminated": bool(row["terminated"]),
    }


def token_advantages(
    episodes: Sequence[dict[str, Any]], rewards: Sequence[NDArray[np.float64]], group: int, estimate: Estimate
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.bool_]]]:
    """Compute the advantage of each sampled token of each episode, and whether the policy is trained on it.

    ``episodes`` have ``turn_sizes`` (tokens of each turn) and ``terminated``; ``group`` of them follow each other;
    ``rewards`` are of their turns. Episodes without turns are not shown to ``estimate``; their arrays are empty.
    """
    played = [number for number, episode in enumerate(episodes) if episode["turn_sizes"]]
    sizes = [np.array(episodes[number]["turn_sizes"], np.int64) for number in played]
    result, trained = [np.zeros(0) for _ in episodes], [np.zeros(0, np.bool_) for _ in episodes]
    if not played:
        return result, trained
    token_offsets = np.cumsum([0, *(int(tokens_of_turns.sum()) for tokens_of_turns in sizes)])
    terminated = np.array([episodes[number]["terminated"] for number in played], np.bool_)
    batch = ActionBatch(
        token_offsets=token_offsets,
        turn_offsets=np.cumsum([0, *map(len, sizes)]),
        turn_index=np.concatenate(
            [np.repeat(np.arange(len(tokens_of_turns)), tokens_of_turns) for tokens_of_turns in sizes]
        ),
        turn_rewards=np.concatenate([rewards[number] for number in played]),
        terminated=terminated,
        truncated=~terminated,
        group=np.array([number // group for number in played], np.int64),
    )
    estimated = estimate(batch)
    for place, number in enumerate(played):
        tokens = slice(token_offsets[place], token_offsets[place + 1])
        result[number], trained[number] = estimated.advantages[tokens], estimated.policy_mask[tokens]
    return result, trained
