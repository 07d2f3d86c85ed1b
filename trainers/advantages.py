"""From a batch to its advantages: the estimator, the credit of users' moves, a teacher.

:func:`estimate` is the one way there, also for trainers of others. :func:`with_teacher` adds a teacher, which takes a
learner or a server.

Arrays are of a batch of ``E`` episodes with ``N`` action tokens and ``K`` turns, in the order of the episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .algorithms.baselines import RoleBaselines
from .algorithms.batch import ActionBatch, Advantages, kept_episodes
from .algorithms.distillation import DistillSection
from .algorithms.estimators import RAE, Estimator, normalize, restrict
from .algorithms.estimators.base import totals
from .algorithms.reaction import ReactionCreditSection, moves_of
from .report.reactions import reaction_metrics
from .rollout.batch import BatchEpisode
from .rollout.seeds import derive_seed
from .trajectory import Trajectory

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Estimated:
    """The advantages of a batch of ``N`` action tokens."""

    advantages: Advantages  #: as the estimator returned them, restricted to the tokens that are trained on
    scaled: Floats  #: float ``[N]``; as the loss takes them: of mean 0 and deviation 1, with ``norm_adv``
    metrics: Mapping[str, float]


def estimate(
    algorithm: Estimator,
    batch: Sequence[BatchEpisode],
    counted: Bools | None = None,
    *,
    explain: bool = False,
    roles: RoleBaselines | None = None,
    **numbers: NDArray[np.floating] | None,
) -> Estimated:
    """Compute the advantages of a batch's episodes, as credited; greedy ones are what others are compared with.

    ``counted`` ``[N]`` says which tokens may be trained on, ``None`` for all. ``numbers`` are those of models: see
    ``values``, ``bootstrap`` and ``penalty`` of :class:`~.algorithms.batch.ActionBatch`. ``explain`` keeps the parts
    that the advantages are made of. ``roles``, for ``rae``, is updated with the batch's returns. ``ValueError``: the
    batch lacks what the algorithm needs.
    """
    trained = [episode for episode in batch if episode.role != "greedy"]
    agents = sorted({episode.agent for episode in trained})
    episodes, side = [e.credited for e in trained], [agents.index(e.agent) for e in trained]
    actions, metrics = ActionBatch.from_trajectories(episodes, side=side, **numbers), dict[str, float]()
    if "greedy" in algorithm.needs:
        greedy = greedy_totals(batch)
        actions = replace(actions, greedy=np.array([greedy[episode.group_id] for episode in episodes], np.float64))
        metrics["actor/greedy_reward"] = float(np.mean(list(greedy.values())))
    if isinstance(algorithm, RAE) and roles is not None:
        actions = replace(actions, role_baseline=_role_baseline(algorithm, actions, trained, roles))
        metrics |= {f"actor/role_baseline{name}": mean for name, mean in roles.means.items()}
    actions = algorithm.complete(actions, episodes)
    metrics |= {f"actor/{name}": value for name, value in algorithm.metrics(actions, episodes).items()}
    advantages = algorithm.advantages(actions)
    if explain:
        advantages = replace(advantages, made_of=algorithm.made_of(actions, advantages))
    if algorithm.reaction_credit.weight:
        advantages, reactions = with_reactions(algorithm.reaction_credit, actions, episodes, advantages)
        metrics |= {f"actor/{name}": value for name, value in reactions.items()}
    if counted is not None:
        advantages = restrict(advantages, counted)
    metrics |= advantage_metrics(advantages)
    scaled = normalize(advantages) if getattr(algorithm, "norm_adv", False) else advantages
    return Estimated(advantages, scaled.advantages, metrics)


def with_reactions(
    section: ReactionCreditSection, actions: ActionBatch, episodes: Sequence[Trajectory], advantages: Advantages
) -> tuple[Advantages, dict[str, float]]:
    """Add the credit of users' moves to the advantages of a batch; return them, and metrics.

    The shuffled control is a function of the episodes' names and seeds, so that a replay draws it again.
    """
    moves = moves_of(episodes)
    seed = derive_seed("reactions", *(f"{one.episode_id} {one.sampling_seed}" for one in episodes))
    credit = section.credit(actions, moves, advantages, np.random.default_rng(seed))
    metrics = reaction_metrics(section, actions, moves, advantages, credit)
    of_token = np.where(advantages.policy_mask, credit[actions.turn_of_token], 0.0)
    made = advantages.made_of
    if made is not None:
        by_reaction = np.where(moves >= 0, credit, np.nan)
        made = replace(made, unscaled=made.unscaled + of_token, by_reaction=by_reaction)
    return replace(advantages, advantages=advantages.advantages + of_token, made_of=made), metrics


def with_teacher(section: DistillSection, estimated: Estimated, teacher: Floats) -> tuple[Advantages, Floats]:
    """Add a teacher's advantages ``[N]`` to the rewards', or put them in their place; also to those that are scaled.

    Tokens that are not trained on keep an advantage of 0.
    """
    own, kept = np.where(estimated.advantages.policy_mask, teacher, 0.0), float(section.rewards)
    before, made = estimated.advantages, estimated.advantages.made_of
    if made is not None:
        made = replace(made, unscaled=kept * made.unscaled + own, by_teacher=own)
    advantages = replace(before, advantages=kept * before.advantages + own, made_of=made)
    return advantages, kept * estimated.scaled + own


def _role_baseline(
    algorithm: RAE, actions: ActionBatch, trained: Sequence[BatchEpisode], roles: RoleBaselines
) -> Floats:
    """Return the baseline of each episode's environment and role, ``[E]``, and add the episodes to ``roles``."""
    names = ["".join(f"/{part}" for part in (one.choice.component, one.agent) if part) for one in trained]
    return roles.observe(names, totals(actions), kept_episodes(actions, algorithm.truncated), algorithm.decay)


def greedy_totals(batch: Sequence[BatchEpisode]) -> dict[str, float]:
    """Return the total reward of each group's greedy episode, as credited, by ``group_id``."""
    greedy = (episode.credited for episode in batch if episode.role == "greedy")
    return {episode.group_id: episode.total_reward for episode in greedy}


def advantage_metrics(advantages: Advantages) -> dict[str, float]:
    """Return the deviation and the largest size of the trained tokens' advantages."""
    trained = advantages.advantages[advantages.policy_mask]
    return {
        "actor/advantage_std": float(trained.std()) if trained.size else 0.0,
        "actor/advantage_abs_max": float(np.abs(trained).max(initial=0.0)),
    }


def critic_metrics(advantages: Advantages, values: Floats) -> dict[str, float]:
    """Return the mean value and the share of the returns' variance that it explains: at most 1, 0 for their mean."""
    assert advantages.returns is not None
    assert advantages.value_mask is not None
    predicted, returns = values[advantages.value_mask], advantages.returns[advantages.value_mask]
    metrics = {"critic/value_mean": float(predicted.mean())}
    if (variance := float(np.var(returns))) > 0:
        metrics["critic/explained"] = 1.0 - float(np.var(returns - predicted)) / variance
    return metrics
