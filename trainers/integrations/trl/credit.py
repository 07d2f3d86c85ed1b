"""A ``GRPOTrainer`` in which each turn's tokens have an advantage of their own.

TRL gives all tokens of an episode the same advantage; its loss takes ``[episodes, tokens]`` as well (trl 1.16,
``GRPOTrainer._compute_loss``). This subclass replaces them in what ``_generate_and_score_completions`` returns, masks
the tokens that the estimator leaves out, and listens to ``_calculate_rewards``. The episodes that
:class:`.TextEnvRollout` brought along go the way of our own loop, :func:`trainers.update.estimate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...algorithms.estimators import TurnGRPO
from ...algorithms.estimators.base import Estimator
from ...rollout.collector import roots_and_forks
from ...trajectory import Trajectory, action_offsets
from ...update import estimate
from .rollout import has_failed, textenv_reward

try:
    from accelerate.utils import gather_object
    from trl import GRPOTrainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("this needs TRL: pip install 'textenvs[trl]'", name=error.name) from error


class TurnCreditGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """``GRPOTrainer`` with advantages of turns; ``rollout_func`` is a :class:`.TextEnvRollout`.

    :func:`.textenv_reward` must be among ``reward_funcs``, as it is, with a weight above 0: its turn rewards are what
    is credited. The rewards of other functions count to an episode's last turn. ``algorithm`` is the estimator's
    section, such as ``RLOO(truncated="drop")``. ``None`` is ``turn_grpo`` (each turn's reward-to-go against the
    siblings that reached the turn), scaled as ``scale_rewards`` says: by the group's root mean square (``group``), to
    the batch's mean 0 and deviation 1 (``batch``), or not (``none``). All else is as of ``GRPOTrainer``.

    Raises ``ValueError``: ``textenv_reward`` is missing, rewards are normalised before they are added up, or the
    algorithm needs what TRL does not have (a critic, greedy episodes, forks) or has keys that nothing here reads;
    RuntimeError: this version of TRL lacks the methods that are replaced here.
    """

    def __init__(self, *args: Any, algorithm: Estimator | None = None, **kwargs: Any) -> None:
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
        self._algorithm = algorithm or TurnGRPO(
            baseline="group", norm_by_std=self.scale_rewards == "group", norm_adv=self.scale_rewards == "batch"
        )
        if unmet := sorted(self._algorithm.needs & {"critic", "greedy", "role_baseline", "forks"}):
            raise ValueError(f"{self._algorithm.adv_estimator} needs {' and '.join(unmet)}, which TRL has not")
        if self._algorithm.use_kl_in_reward or self._algorithm.reward_credit != "as_earned":
            raise ValueError("TRL reads neither use_kl_in_reward nor reward_credit of an algorithm: leave them out")
        self._per_function: torch.Tensor | None = None

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        rewards: torch.Tensor = super()._calculate_rewards(*args, **kwargs)
        self._per_function = rewards.detach().cpu()  # of all processes
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        model: Any = self.model
        training = model.training
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "trajectory" not in inputs[0]:
            raise ValueError("the rollout_func gives no trajectory: TurnCreditGRPOTrainer needs TextEnvRollout")
        everyone: list[Trajectory] = gather_object([row["trajectory"] for row in inputs])
        group: Any = self.num_generations if training else self.num_generations_eval
        first = self.accelerator.process_index * len(inputs)
        by_episode, trained = token_advantages(self._algorithm, self._rewarded(everyone), group)
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

    def _rewarded(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """Return the episodes with their rewards weighted, and with other functions' rewards at the last turn."""
        assert self._per_function is not None
        weights = self.reward_weights.cpu()
        other_functions = [i for i in range(len(self.reward_funcs)) if i != self._own]
        rest = (self._per_function * weights)[:, other_functions].nansum(dim=1).tolist()
        rewards = [float(weights[self._own]) * episode.turn_rewards for episode in episodes]
        for turns, extra in zip(rewards, rest, strict=True):
            turns[-1:] += extra
        return [replace(episode, turn_rewards=turns) for episode, turns in zip(episodes, rewards, strict=True)]


def token_advantages(
    algorithm: Estimator, episodes: Sequence[Trajectory], group: int
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.bool_]]]:
    """Compute the advantage of each sampled token of each episode, and whether the policy is trained on it.

    ``group`` episodes that follow each other are compared. Failed ones are left out; their arrays are empty.
    """
    played = {n: replace(t, group_id=str(n // group)) for n, t in enumerate(episodes) if not has_failed(t)}
    advantages, trained = [np.zeros(0) for _ in episodes], [np.zeros(0, np.bool_) for _ in episodes]
    if played:
        estimated = estimate(algorithm, roots_and_forks(played.values()))
        ends = action_offsets(list(played.values()))[1:-1]
        parts = np.split(estimated.scaled, ends), np.split(estimated.advantages.policy_mask, ends)
        for number, of_tokens, mask in zip(played, *parts, strict=True):
            advantages[number], trained[number] = of_tokens, mask
    return advantages, trained
