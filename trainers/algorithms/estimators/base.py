"""The base of all advantage estimators: the keys that they share, and what each says about itself.

An estimator is a frozen section of the configuration, ``algorithm``, with a method :meth:`Estimator.advantages` from a
batch to the advantages of its action tokens. Three rules hold for all of them:

* **A. Observation tokens are not steps.** The batch has none, so no recursion can run through them.
* **B. A baseline is subtracted from the reward-to-go and comes from other episodes.** Subtracting a per-turn mean from
  each turn's reward and summing is biased: the mean is only subtracted if one's *own* actions reach that turn.
* **C. Terminated is not truncated.** After termination there is nothing to earn. A truncated episode would have gone
  on: with a critic its last state's value is added; without one the episode counts as it is or is left out, as
  ``truncated`` says.

``docs/algorithms.md`` has the worked examples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field

from trainers.algorithms.baselines import any_of, optimal_token, sums
from trainers.algorithms.batch import (
    ActionBatch,
    Advantages,
    Bools,
    Floats,
    Ints,
    MadeOf,
    discounted_sums,
    kept_episodes,
)
from trainers.algorithms.names import KLEstimator
from trainers.algorithms.reaction import ReactionCreditSection
from trainers.section import Fraction, Problems, Section
from trainers.trajectory import Trajectory

#: What the batch must hold for an estimator, besides the episodes: ``values`` of a critic, the return of a ``greedy``
#: episode of each task, the ``role_baseline`` of each episode's role, the reward ``terms`` by name, the ``anchor``
#: states that turns began in, which episodes are ``solved``, ``forks``.
Need: TypeAlias = Literal["critic", "greedy", "role_baseline", "terms", "anchor", "solved", "forks"]

#: Keeps the division by a standard deviation finite.
EPS = 1e-6


class KLControlSection(Section):
    """Weight of the KL penalty in the reward."""

    type: Literal["fixed", "adaptive"] = Field("fixed", description="`adaptive` steers the weight towards `target_kl`.")
    kl_coef: float = Field(0.001, ge=0, description="Weight; of an adaptive one, the initial weight.")
    horizon: float = Field(10000.0, gt=0, description="Episodes over which an adaptive weight reacts.")
    target_kl: float = Field(0.1, gt=0)
    """Target of an adaptive weight: KL in nats per token, each episode weighing the same."""


class Estimator(Section):
    """Advantages from rewards."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    #: Who gets an advantage of its own: all tokens of a turn, or of an episode, have the same.
    unit: ClassVar[Literal["token", "turn", "episode"]]
    #: Whether an episode is compared with the others of its group alone, so that a group of one teaches nothing
    compares_siblings: ClassVar[bool] = False
    #: Whether advantages add up several comparisons, or compare other numbers than returns: they have no one baseline
    mixes_baselines: ClassVar[bool] = False

    adv_estimator: str
    """`gae`, `turn_gae` and `bilevel_gae` train a critic; `reinforce_pp` compares with the batch, `remax` with a greedy
    episode of each task (one more to play), `rae` with a running mean of its role, `fork` with other replies in the
    same state (see `fork`); the others compare the episodes of a group."""
    reward_credit: str = Field("as_earned", min_length=1)
    """Assignment of an episode's rewards to its turns: `as_earned`, all to the `last` turn, `spread` over all turns,
    `discounted` back to earlier turns, or your own `FILE.py:FUNCTION`. See docs/credit.md."""
    reward_credit_decay: Fraction = 0.9
    """Share of a turn relative to the next one's, for `reward_credit=discounted`."""
    use_kl_in_reward: bool = Field(False, description="Subtract the KL to the reference from each token's reward.")
    kl_penalty: KLEstimator = Field("k1", description="Estimator of the KL; `k1` is unbiased; `low_var_kl` is `k3`.")
    kl_ctrl: KLControlSection = KLControlSection()
    reaction_credit: ReactionCreditSection = ReactionCreditSection()

    @abstractmethod
    def advantages(self, batch: ActionBatch) -> Advantages:
        """Return the advantages of a batch; ``ValueError`` where the batch lacks what the estimator needs."""

    def complete(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> ActionBatch:
        """Add what the batch must hold for this estimator and the episodes tell."""
        return batch

    def metrics(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Return numbers to report of a complete batch."""
        return {}

    def checks(self, group_size: int) -> Problems:
        """Yield conflicts of the estimator's keys, with groups of so many episodes: pairs of a key and the problem."""
        return iter(())

    def returns(self, batch: ActionBatch) -> Floats:
        """Return what each token's episode, turn or rest of the episode earned, float ``[N]``, for reports."""
        if self.unit == "episode":
            return totals(batch)[batch.episode_of_token]
        return discounted_sums(batch.token_rewards, batch.token_offsets, getattr(self, "gamma", 1.0))

    def unscaled(self, batch: ActionBatch, result: Advantages) -> Floats:
        """Return the advantages before they were divided by a deviation, float ``[N]``."""
        if getattr(self, "norm_by_std", False):
            return self.model_copy(update={"norm_by_std": False}).advantages(batch).advantages
        return result.advantages

    def made_of(self, batch: ActionBatch, result: Advantages) -> MadeOf:
        """Split the advantages into ``(return - baseline)``, up to a scale."""
        returns = self.returns(batch)
        if self.mixes_baselines:
            return MadeOf(returns, None, result.advantages)
        unscaled = self.unscaled(batch, result)
        return MadeOf(returns, np.where(result.policy_mask, returns - unscaled, np.nan), unscaled)


class UnscaledEstimator(Estimator):
    """An estimator that does not normalise over the batch by definition."""

    norm_adv: bool = False
    """Scale the batch's advantages to mean 0 and variance 1, which biases the gradient of small batches."""


class CriticFreeEstimator(Estimator):
    """An estimator without a critic."""

    truncated: Literal["count", "drop"] = "count"
    """Without a critic: episodes cut by a budget count as they are, or are dropped."""


# --- for several estimators


def totals(batch: ActionBatch) -> Floats:
    """Return the total reward of each episode, minus its tokens' penalties, float ``[E]``."""
    sums_of_turns = np.bincount(batch.episode_of_turn, batch.net_turn_rewards, minlength=batch.num_episodes)
    return np.asarray(sums_of_turns, np.float64)


def to_tokens(batch: ActionBatch, counted: Bools, by_episode: Floats) -> Advantages:
    """Give all tokens of each counted episode its number."""
    advantages = np.zeros(batch.num_episodes)
    advantages[counted] = by_episode
    return Advantages(advantages[batch.episode_of_token], counted[batch.episode_of_token])


def minus_optimal_token(batch: ActionBatch, counted: Bools, credited: Floats, by_turn: bool) -> Advantages:
    """Subtract :func:`~.baselines.optimal_token` from what each token is credited with."""
    mask = counted[batch.episode_of_token]
    return Advantages(np.where(mask, credited - optimal_token(batch, credited, counted, by_turn), 0.0), mask)


def by_group(
    batch: ActionBatch, truncated: Literal["count", "drop"], of_returns: Callable[[Floats], Floats]
) -> Advantages:
    """Compute a number for each episode from the returns of its group's episodes that count."""
    counted = kept_episodes(batch, truncated)
    returns, group = totals(batch)[counted], batch.group[counted]
    out = np.zeros(len(returns))
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        out[members] = of_returns(returns[members])
    return to_tokens(batch, counted, out)


def relative(x: Floats, key: Ints, norm_by_std: bool) -> Floats:
    """Subtract the mean of the entries with the same key, itself included; divide by their deviation if asked to."""
    moved = x - any_of(x, key)  # so that equal entries become 0 to the last bit
    centred = moved - sums(moved, key) / np.bincount(key)[key]
    return divide_by_rms(centred, key) if norm_by_std else centred


def scaled(x: Floats, deviation: Floats | float) -> Floats:
    """Divide by a standard deviation, kept away from 0 by :data:`EPS`."""
    return x / (deviation + EPS)


def divide_by_rms(x: Floats, group: Ints) -> Floats:
    """Divide centred ``x`` by its population standard deviation; at most ``sqrt(n)`` comes out, so nothing explodes."""
    return scaled(x, np.sqrt(sums(x * x, group) / np.bincount(group)[group]))


def normalize(result: Advantages, eps: float = 1e-8) -> Advantages:
    """Shift and scale the advantages to mean 0 and standard deviation 1 over the batch's trained tokens.

    With ``weights`` a token counts in both as much as in the loss. ``result`` is of the *global* batch: normalising a
    part of it would make the gradient depend on the split. Equal advantages become 0.
    """
    mask = result.policy_mask
    if not mask.any():
        return result
    weights = None if result.weights is None else result.weights[mask]
    moved = result.advantages - result.advantages[mask][0]  # so that equal advantages become 0 to the last bit
    centred = moved - np.average(moved[mask], weights=weights)
    deviation = np.sqrt(np.average(centred[mask] ** 2, weights=weights))
    return replace(result, advantages=np.where(mask, centred / (deviation + eps), 0.0))


def restrict(result: Advantages, counted: Bools) -> Advantages:
    """Train the policy on these tokens only (bool ``[N]``), of those that it would be trained on."""
    mask = result.policy_mask & counted
    return replace(result, advantages=np.where(mask, result.advantages, 0.0), policy_mask=mask)
