"""A ``GRPOTrainer`` in which each turn's tokens have an advantage of their own, and each context is a row.

TRL gives all tokens of an episode the same advantage; its loss takes ``[rows, tokens]`` as well (trl 1.16,
``GRPOTrainer._compute_loss``). This subclass replaces them in what ``_generate_and_score_completions`` returns, and
masks the tokens that the estimator leaves out. The episodes that :class:`.TextEnvRollout` plays go the way of our own
loop, :func:`trainers.advantages.estimate`, so contexts and roles count as they do there.

An episode of several contexts or roles is a batch row for each of them. The first rows are those that TRL expects, one
an episode: of the context that it ended in. The rest follow; they are in TRL's log-probabilities and in its loss, and
not in its rewards (``_calculate_rewards``), whose groups and means count episodes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...advantages import estimate
from ...algorithms.estimators import TurnGRPO
from ...algorithms.estimators.base import Estimator
from ...rollout.batch import roots_and_forks
from ...trajectory import Trajectory, action_offsets
from ..context_rows import ContextRow, context_rows, has_failed
from .rollout import Played, TextEnvRollout, textenv_reward
from .rows import columns_of, filler_row, outcome_of, tokens_of

try:
    from accelerate.utils import gather_object
    from trl import GRPOTrainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("this needs TRL: pip install 'textenvs[trl]'", name=error.name) from error


#: Losses of TRL that sum over tokens, so that an episode weighs the same in one row and in several.
SUMS = ("bnpo", "cispo", "dapo", "vespo")


class TurnCreditGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """``GRPOTrainer`` with advantages of turns and rows of contexts; ``rollout_func`` is a :class:`.TextEnvRollout`.

    :func:`.textenv_reward` must be among ``reward_funcs``, as it is, with a weight above 0: its turn rewards are what
    is credited. The rewards of other functions count to an episode's last turn. ``algorithm`` is the estimator's
    section, such as ``RLOO(truncated="drop")``. ``None`` is ``turn_grpo`` (each turn's reward-to-go against the
    siblings that reached the turn), scaled as ``scale_rewards`` says: by the group's root mean square (``group``), to
    the batch's mean 0 and deviation 1 (``batch``), or not (``none``). All else is as of ``GRPOTrainer``.

    Where an episode has several contexts or roles, ``loss_type`` must be one that sums over tokens (``dapo``, TRL's
    default); a step's rows are then more than ``per_device_train_batch_size``.

    Raises ``ValueError``: ``textenv_reward`` is missing, rewards are normalised before they are added up, the rollout
    is another, or the algorithm needs what TRL does not have (a critic, greedy episodes, forks, baselines of roles) or
    has keys that nothing here reads; RuntimeError: this version of TRL lacks the methods that are replaced here.
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
        if not isinstance(self.rollout_func, TextEnvRollout):
            raise ValueError("TurnCreditGRPOTrainer needs a TextEnvRollout as rollout_func: it credits its episodes")
        self._rollout: TextEnvRollout = self.rollout_func
        self._per_function: torch.Tensor | None = None
        self._episodes = 0  # of the running batch and this process

    def _calculate_rewards(
        self, inputs: list[Any], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        rows = (column[: self._episodes] for column in (inputs, prompts, completions, completion_ids_list))
        rewards: torch.Tensor = super()._calculate_rewards(*rows)
        self._per_function = rewards.detach().cpu()  # of all processes
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        training = self.model.training  # type: ignore[union-attr]
        played, rows, padding = self._play([row["prompt"] for row in inputs], training)
        # Outcomes are written into the rows of the dataset, as TRL does it; the other rows of an episode need none.
        padded = [*inputs, *(dict(inputs[0]) for _ in range(len(rows) + padding - len(inputs)))]
        with self._batch(played, rows, padding):
            output: dict[str, Any] = super()._generate_and_score_completions(padded)
        everyone: list[Sequence[Trajectory]] = gather_object([[*roles] for roles in played.episodes])
        group: Any = self.num_generations if training else self.num_generations_eval
        estimated = self._estimated(everyone, group)
        first = self.accelerator.process_index * len(inputs)
        numbers = itertools.chain.from_iterable(estimated[first : first + len(inputs)])
        own = {id(role): next(numbers) for roles in played.episodes for role in roles}
        advantages = torch.zeros(output["completion_ids"].shape)
        keep = torch.ones(output["completion_ids"].shape, dtype=torch.bool)
        for number, row in enumerate(rows):
            of_tokens, trained = own[id(row.trajectory)]
            size = row.completion.stop - row.completion.start
            if of_tokens.size:
                advantages[number, :size] = torch.from_numpy(row.of_actions(of_tokens, 0.0)).float()
                keep[number, :size] = torch.from_numpy(row.of_actions(trained, True))
        output["advantages"] = advantages.to(output["advantages"].device)
        if not all(mask.all() for roles in estimated for _, mask in roles):  # of all processes: they gather together
            # Left out of the loss, and of the number that it divides by.
            mask = output["tool_mask"] = output["tool_mask"] * keep.to(output["tool_mask"])
            counted = (output["completion_mask"] * mask).sum()
            output["num_items_in_batch"] = self.accelerator.gather(counted).sum()
        return output

    def _play(self, prompts: Sequence[Any], training: bool) -> tuple[Played, list[ContextRow], int]:
        """Return the episodes, their rows (first one of each, then the others), and how many rows are to be added."""
        if reason := self._rollout.several(prompts):
            self._check_loss(reason)
        if self.use_vllm and self.state.global_step != self._last_loaded_step:  # as TRL does before a rollout
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step
        played = self._rollout.play(prompts, self)
        by_episode = [[row for role in roles for row in reversed(context_rows(role))] for roles in played.episodes]
        rows = [*(row for row, *_ in by_episode), *(row for _, *rest in by_episode for row in rest)]
        most = max(gather_object([len(rows)]))  # processes have equally many, and so have the parts of a batch
        if most > len(prompts):
            self._check_loss("an episode has several contexts or roles")
        arguments: Any = self.args
        parts = arguments.steps_per_generation if training else 1
        return played, rows, -(-most // parts) * parts - len(rows)

    def _check_loss(self, reason: str) -> None:
        if self.loss_type not in SUMS:
            raise ValueError(
                f"{reason}, so it is several rows, and loss_type={self.loss_type!r} weighs rows: use one that sums "
                f"over tokens ({', '.join(SUMS)})"
            )

    @contextlib.contextmanager
    def _batch(self, played: Played, rows: Sequence[ContextRow], padding: int) -> Iterator[None]:
        """Let TRL take these rows for what its rollout returns, and log the first row of each episode."""
        self._episodes, size = len(played.episodes), len(rows) + padding
        tokens = [*(tokens_of(row, played.filler) for row in rows), *[filler_row(played.filler)] * padding]
        outcomes = columns_of([outcome_of(row) for row in rows[: self._episodes]])
        columns = columns_of(tokens) | outcomes | ({} if played.has_logprobs else {"logprobs": None})
        logs: dict[str, Any] = {name: self._logs[name] for name in ("prompt", "completion")}
        self._logs.update({name: deque() for name in logs})
        self.rollout_func = lambda prompts, trainer: columns
        try:
            yield
        finally:
            self.rollout_func = self._rollout
            for name, log in logs.items():
                log.extend(row for number, row in enumerate(self._logs[name]) if number % size < self._episodes)
            self._logs.update(logs)

    def _estimated(
        self, episodes: Sequence[Sequence[Trajectory]], group: int
    ) -> list[list[tuple[NDArray[np.float64], NDArray[np.bool_]]]]:
        """Return :func:`token_advantages` of each trajectory of each episode; roles are compared with their like."""
        names = [
            str(number // group) + role.group_id.removeprefix(roles[0].group_id)
            for number, roles in enumerate(episodes)
            for role in roles
        ]
        numbers = iter(token_advantages(self._algorithm, self._rewarded(episodes), names))
        return [[next(numbers) for _ in roles] for roles in episodes]

    def _rewarded(self, episodes: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
        """Return all trajectories with their rewards weighted, and with other functions' rewards at the last turn.

        Those are of the role that began, whose row the functions were given.
        """
        assert self._per_function is not None
        weights = self.reward_weights.cpu()
        other_functions = [i for i in range(len(self.reward_funcs)) if i != self._own]
        rest = (self._per_function * weights)[:, other_functions].nansum(dim=1).tolist()
        weighted = []
        for roles, extra in zip(episodes, rest, strict=True):
            rewards = [float(weights[self._own]) * role.turn_rewards for role in roles]
            rewards[0][-1:] += extra
            weighted += [replace(role, turn_rewards=turns) for role, turns in zip(roles, rewards, strict=True)]
        return weighted


def token_advantages(
    algorithm: Estimator, episodes: Sequence[Trajectory], groups: Sequence[str]
) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Compute the advantage of each sampled token of each episode, and whether the policy is trained on it.

    Tokens are in the order of :attr:`Trajectory.actions`. Episodes of equal ``groups`` are compared, each counted once,
    however many contexts it has. Failed ones are left out; their arrays are empty.
    """
    played = {n: replace(t, group_id=groups[n]) for n, t in enumerate(episodes) if not has_failed(t)}
    numbers = [(np.zeros(0), np.zeros(0, np.bool_)) for _ in episodes]
    if played:
        estimated = estimate(algorithm, roots_and_forks(played.values()))
        ends = action_offsets(list(played.values()))[1:-1]
        parts = np.split(estimated.scaled, ends), np.split(estimated.advantages.policy_mask, ends)
        for number, of_tokens, mask in zip(played, *parts, strict=True):
            numbers[number] = of_tokens, mask
    return numbers
