"""From a batch of episodes to its gradient: everything that the learner computes in an iteration, in reading order.

    update = Update(config)
    result = update.step(batch.episodes, learner, iteration=0)

:meth:`Update.forward` makes the models' numbers of each action token: log-probabilities before the first step,
corrections for the engine's, the KL to the reference, a teacher's advantages, values. :meth:`Update.prepare` adds the
advantages. :meth:`Update.optimize` takes the optimizer steps of the critic and the actor on mini-batches of them.
Estimators, losses and corrections are :mod:`trainers.algorithms`; the configuration chooses among them here. The
training loop and :mod:`trainers.replay` both call this; trainers of others take :func:`.advantages.estimate` alone.

Arrays are of a batch of ``E`` episodes with ``N`` action tokens, in the order of the episodes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .advantages import advantage_metrics, critic_metrics, estimate, greedy_totals, with_teacher
from .algorithms import off_policy
from .algorithms.baselines import RoleBaselines
from .algorithms.batch import Advantages, gather, tree_of
from .algorithms.distillation import distillation_metrics, distilled, log_ratios
from .algorithms.kl import EntropyBonus, KLController, kl_estimate, mean_kl
from .algorithms.losses import PolicyLoss, token_weights
from .algorithms.losses.observation import observation_weights
from .algorithms.losses.value import value_loss
from .algorithms.reaction import MovesError
from .cluster.group import LearnerGroup
from .config import PPOConfig
from .config.learning import CriticSection
from .engines.teacher import ServedTeacher
from .learner import Learner
from .learner.scoring import Scorer
from .learner.teachers import as_taught, taught_tokens
from .learner.top_tokens import TopTokens
from .report.episodes import Explained
from .rollout.batch import BatchEpisode
from .trajectory import Trajectory, action_offsets, observation_offsets

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
#: One in this process, or one of several ranks.
AnyLearner: TypeAlias = Learner | LearnerGroup

#: Numbers of each token that ``Learner.update_actor`` returns where the batch is to be explained.
RECORDED = ("token_logprobs", "token_entropy", "token_ratio", "token_clipped", "token_loss")


@dataclass(frozen=True, eq=False)
class Forward:
    """The models' numbers for a batch, before the first optimizer step."""

    columns: Mapping[str, Floats]  #: float ``[N]`` by name, see :class:`Prepared`
    counted: Bools | None  #: bool ``[N]``; the tokens that corrections keep; ``None`` for all
    numbers: Mapping[str, NDArray[np.floating] | None]  #: for :func:`estimate`
    metrics: Mapping[str, float]
    teacher: Floats | None = None  #: float ``[N]``; the teacher's advantages; ``None`` without one
    teacher_top: TopTokens | None = None  #: its scores of each state's tokens, where the loss has the KL of states


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch that is ready for its optimizer steps."""

    episodes: Sequence[Trajectory]  #: to train on, as credited
    #: Float ``[N]`` by name: ``old_logprobs`` and ``advantages``, and where they are used ``entropy``, ``importance``,
    #: ``ref_logprobs``, ``old_values`` and ``returns``
    columns: Mapping[str, Floats]
    advantages: Advantages  #: as the estimator returned them, restricted to the tokens that are trained on
    metrics: Mapping[str, float]
    greedy: Mapping[str, float]  #: total reward of the greedy episode of each group
    teacher_top: TopTokens | None = None  #: of :class:`Forward`


@dataclass(frozen=True, eq=False)
class UpdateResult:
    """The outcome of an iteration's optimizer steps."""

    metrics: dict[str, float]
    steps: Sequence[Mapping[str, float]]  #: metrics of each optimizer step
    explained: Explained | None = None  #: for the files of episodes, where it was asked for


class Update:
    """Computes an iteration's advantages and takes its optimizer steps.

    ``kl`` and ``entropy`` are the controllers that last over iterations, by default those of the configuration, and
    ``roles`` the means of roles; their state is part of a checkpoint.
    """

    def __init__(self, config: PPOConfig, kl: KLController | None = None, entropy: EntropyBonus | None = None) -> None:
        actor = config.actor
        assert actor.entropy_coeff is not None  # resolved
        self.config = config
        self.kl = kl or KLController(config.algorithm.kl_ctrl)
        self.entropy = entropy or EntropyBonus(actor.entropy_coeff, actor.entropy_target, actor.entropy_step)
        self.roles = RoleBaselines()
        self._moves_named = False  # whether a batch had a move of a user, before or after a resume
        address = actor.distill.address
        self.served_teacher = None if address is None else ServedTeacher(address, actor.distill.top_k)

    def state_dict(self) -> dict[str, Any]:
        return {
            "kl": self.kl.state_dict(),
            "entropy": self.entropy.state_dict(),
            "roles": self.roles.state_dict(),
            "moves_named": self._moves_named,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state; ``ValueError`` where it is of another kind of controller."""
        self.kl.load_state_dict(state["kl"])
        self.entropy.load_state_dict(state.get("entropy", {}))
        self.roles.load_state_dict(state.get("roles", {}))
        self._moves_named = bool(state.get("moves_named", False))

    def step(
        self,
        batch: Sequence[BatchEpisode],
        learner: AnyLearner,
        *,
        iteration: int,
        forward: Forward | None = None,
        explain: bool = False,
        on_step: Callable[[], object] = lambda: None,
        given_up: threading.Event | None = None,
    ) -> UpdateResult:
        """Return :meth:`optimize` of :meth:`prepare`; MovesError: neither this batch nor one before names a move.

        It is raised at the first batch with ``algorithm.reaction_credit``, also of a run that resumed with it. Where
        moves have been named, the doctor reports that they no longer are.
        """
        prepared = self.prepare(batch, learner, forward=forward, explain=explain)
        named = prepared.metrics.get("actor/reaction_named")
        self._moves_named |= bool(named)
        if named == 0.0 and not self._moves_named:
            raise MovesError(
                "algorithm.reaction_credit finds no move of a user in its first batch: the environment has no scripted "
                "user that names its moves (textenvs.users.moves), or it never answered. Set "
                "algorithm.reaction_credit.weight=0, or have a judge name them: reward_models.NAME.kind=moves"
            )
        return self.optimize(prepared, learner, iteration=iteration, on_step=on_step, given_up=given_up)

    # ------------------ numbers of each token, before the first step

    def forward(self, batch: Sequence[BatchEpisode], learner: AnyLearner) -> Forward:
        """Compute the models' numbers for the batch; the KL controller is updated with its mean KL."""
        episodes = [episode.credited for episode in batch if episode.role != "greedy"]
        columns, mask, metrics = self._old_logprobs(episodes, learner)
        penalty = self._reference_kl(episodes, learner, columns, metrics)
        teacher, top = self._teacher(episodes, learner, columns, metrics)
        values = bootstrap = None
        if learner.critic is not None:
            by_episode, bootstrap = learner.values(episodes)
            values = columns["old_values"] = _flat(by_episode)
        numbers = {"values": values, "bootstrap": bootstrap, "penalty": penalty}
        return Forward(columns, mask, numbers, metrics, teacher, top)

    def prepare(
        self,
        batch: Sequence[BatchEpisode],
        learner: AnyLearner,
        *,
        forward: Forward | None = None,
        explain: bool = False,
    ) -> Prepared:
        """Compute what the losses need of each token of the batch's episodes, as credited; greedy ones are left out.

        ``forward`` is what :meth:`forward` returned for this batch; ``None`` calls it. ``explain`` keeps the parts that
        the advantages are made of. The means of roles are updated with the batch's returns.
        """
        forward = forward or self.forward(batch, learner)
        columns, metrics = dict(forward.columns), dict(forward.metrics)
        estimated = estimate(
            self.config.algorithm, batch, forward.counted, explain=explain, roles=self.roles, **forward.numbers
        )
        advantages, columns["advantages"] = estimated.advantages, estimated.scaled
        metrics |= estimated.metrics
        if forward.teacher is not None:
            advantages, columns["advantages"] = with_teacher(self.config.actor.distill, estimated, forward.teacher)
            metrics |= advantage_metrics(advantages)
        if advantages.returns is not None:
            columns["returns"] = advantages.returns
            metrics |= critic_metrics(advantages, columns["old_values"])
        episodes = [episode.credited for episode in batch if episode.role != "greedy"]
        return Prepared(episodes, columns, advantages, metrics, greedy_totals(batch), forward.teacher_top)

    def _old_logprobs(
        self, episodes: Sequence[Trajectory], learner: AnyLearner
    ) -> tuple[dict[str, Floats], Bools | None, dict[str, float]]:
        """Log-probabilities that ratios start from, the tokens that are kept (``None``: all), and metrics."""
        rollout = gather(episodes, [t.logprobs for t in episodes]).astype(np.float64)
        if self.config.actor.old_logprobs != "recompute":
            return {"old_logprobs": rollout}, None, {}
        logprobs, entropies = learner.logprobs(episodes, entropy=True)  # one forward pass
        columns = {"old_logprobs": _flat(logprobs), "entropy": _flat(entropies)}
        weights, mask, mismatch = off_policy_correction(
            self.config.actor, columns["old_logprobs"], rollout, action_offsets(episodes)
        )
        if weights is not None:
            columns["importance"] = weights
        return columns, mask, {f"actor/{name}": value for name, value in mismatch.items()}

    def _reference_kl(
        self,
        episodes: Sequence[Trajectory],
        learner: AnyLearner,
        columns: dict[str, Floats],
        metrics: dict[str, float],
    ) -> Floats | None:
        """Add the reference's log-probabilities and the KL to it; return the penalty of each token's reward."""
        if learner.reference is None or not self.config.needs_kl:  # it may be there as a teacher alone
            return None
        columns["ref_logprobs"] = _flat(learner.logprobs(episodes, model="reference"))
        old, reference = (torch.from_numpy(columns[name]) for name in ("old_logprobs", "ref_logprobs"))
        estimate = kl_estimate(old, reference, self.config.algorithm.kl_penalty).numpy()
        # Of roots alone, so that a target means the same with forks and without.
        roots = [t for t in episodes if not t.forked_from]
        of_root = np.repeat([not t.forked_from for t in episodes], np.diff(action_offsets(episodes)))
        metrics["actor/ref_kl"] = mean_kl(estimate[of_root], action_offsets(roots))
        if not self.config.algorithm.use_kl_in_reward:
            return None
        metrics["actor/kl_coef"] = self.kl.beta
        penalty: Floats = self.kl.beta * estimate
        self.kl.update(metrics["actor/ref_kl"], len(roots))
        return penalty

    def _teacher(
        self,
        episodes: Sequence[Trajectory],
        learner: AnyLearner,
        columns: Mapping[str, Floats],
        metrics: dict[str, float],
    ) -> tuple[Floats | None, TopTokens | None]:
        """Return the advantages that the teacher gives the action tokens, and report how far the policy is from it.

        With ``actor.distill.top_k`` advantages are 0, and the teacher's scores of each state's tokens come with them.
        """
        section, top = self.config.actor.distill, None
        if section.teacher is None:
            return None, None
        privileged = section.privilege is not None
        if not section.top_k and section.teacher == "reference" and not privileged and "ref_logprobs" in columns:
            scores = columns["ref_logprobs"]
        else:
            shown = [as_taught(episode) for episode in episodes] if privileged else episodes
            model: Scorer = "teacher"
            if section.teacher in ("reference", "policy"):
                model = "reference" if section.teacher == "reference" else "actor"
            served = self.served_teacher
            if section.top_k and served is not None:  # the tokens are the teacher's: it names no others
                by_episode, ids, chosen = served.top_logprobs(shown)
                own = learner.top_logprobs(episodes, ids).top
                top = TopTokens(own.ids, np.where(own.ids < 0, np.float32(0.0), chosen))
            elif section.top_k:
                own = learner.top_logprobs(episodes, section.top_k).top
                by_episode, top = learner.top_logprobs(shown, own.ids, model=model)
            else:
                by_episode = learner.logprobs(shown, model=model) if served is None else served.logprobs(shown)
            scores = _flat(by_episode)
        taught = taught_tokens(episodes, privileged=privileged) & ~np.isnan(scores)  # NaN: too long for a server
        ratios = log_ratios(columns["old_logprobs"], scores, taught)
        metrics |= distillation_metrics(ratios, taught, clip=section.clip if top is None else None)
        if top is None:
            return distilled(section, ratios, action_offsets(episodes)), None
        if taught.any():
            metrics["actor/distill_mass"] = float(own.mass()[taught].mean())
        return np.zeros(len(taught)), top.only(taught)

    # ------------------ optimizer steps

    def optimize(
        self,
        prepared: Prepared,
        learner: AnyLearner,
        *,
        iteration: int,
        on_step: Callable[[], object] = lambda: None,
        given_up: threading.Event | None = None,
    ) -> UpdateResult:
        """Take the iteration's optimizer steps, the critic's and the actor's; the entropy controller is updated.

        ``iteration`` counts from 0: it seeds the order of the mini-batches, and ``critic.warmup`` ends by it.
        ``on_step`` is called after every step; a set ``given_up`` raises CancelledError before the next one.
        """
        config, metrics = self.config, dict(prepared.metrics)
        steps = _Steps(self, prepared, learner, iteration)
        for part in steps.mini_batches():
            if given_up is not None and given_up.is_set():
                raise asyncio.CancelledError
            steps.take(part)
            on_step()
        metrics |= steps.first | over_steps(steps.rows)
        if steps.entropies:
            means, counts = zip(*steps.entropies, strict=True)
            metrics["actor/entropy"] = float(np.average(means, weights=counts))
        if config.actor.entropy_target is not None and "actor/entropy" in metrics:
            metrics["actor/entropy_coeff"] = self.entropy.now  # the weight in this batch's loss
            self.entropy.update(metrics["actor/entropy"])
        explained = None
        if steps.recorded:
            by_term = "terms" in config.algorithm.needs
            explained = explained_of(prepared, steps.recorded, steps.rows, by_term)
        return UpdateResult(metrics, steps.rows, explained)


# ------------------ the steps of an iteration


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """A part of the batch for one optimizer step: an episode and its forks stay together, their weights add up."""

    episodes: list[Trajectory]
    tokens: NDArray[np.int64]  #: int ``[n]``; their places among the batch's action tokens
    tree: NDArray[np.int64]  #: int ``[e]``; the batch's :func:`~.algorithms.batch.tree_of`, of these episodes
    record: Sequence[str]  #: numbers of each token to keep: in the first epoch, where the batch is explained


class _Steps:
    """The optimizer steps of an iteration, and what is reported of them."""

    def __init__(self, update: Update, prepared: Prepared, learner: AnyLearner, iteration: int) -> None:
        config = update.config
        self.config, self.learner, self.prepared = config, learner, prepared
        self.actor = config.actor
        if self.actor.entropy_target is not None:
            self.actor = self.actor.model_copy(update={"entropy_coeff": update.entropy.now})
        self.trains_actor = iteration >= config.critic.warmup or learner.critic is None
        self.rng = np.random.default_rng((config.trainer.seed, iteration))
        mask = prepared.advantages.policy_mask
        self.columns = dict(prepared.columns)
        inputs = self.columns["old_logprobs"], self.columns["advantages"], mask
        if (selected := config.actor.select(*inputs, self.rng)) is not None:
            self.columns["selected"] = selected.astype(np.float64)
        # The entropy of each token: known where it was recomputed, else computed by a step or where none does.
        self.entropy = self.columns.pop("entropy", np.full(len(mask), np.nan))
        self.entropies: list[tuple[float, int]] = []  # of each step: the mean entropy, over so many tokens
        self.first: dict[str, float] = {}  # metrics that are of the first step alone
        self.rows: list[dict[str, float]] = []  # metrics of each step
        explain = prepared.advantages.made_of is not None
        self.recorded = {name: np.full(len(mask), np.nan) for name in ("step", "weight", *RECORDED)} if explain else {}

    def mini_batches(self) -> Iterator[MiniBatch]:
        """Yield the mini-batches of all epochs, each epoch in an order of its own."""
        episodes = self.prepared.episodes
        offsets, tree = action_offsets(episodes), tree_of(episodes)
        trees = [np.flatnonzero(tree == root) for root in np.unique(tree)]
        parts = min(self.config.actor.mini_batches, len(trees))  # episodes that failed for good are missing
        for epoch in range(self.config.actor.ppo_epochs):
            record = RECORDED if self.recorded and not epoch else ()
            for numbers in np.array_split(self.rng.permutation(len(trees)), parts):
                chosen = np.concatenate([trees[number] for number in numbers])
                tokens = np.concatenate([np.arange(offsets[e], offsets[e + 1]) for e in chosen])
                yield MiniBatch([episodes[e] for e in chosen], tokens, tree[chosen], record)

    def take(self, part: MiniBatch) -> None:
        """Take the steps of a mini-batch: the actor's, where it is trained, and the critic's, where there is one."""
        advantages, columns = self.prepared.advantages, {n: column[part.tokens] for n, column in self.columns.items()}
        metrics: dict[str, float] = {}
        if not self.trains_actor:
            pass
        elif advantages.policy_mask[part.tokens].any():
            metrics |= self._actor_step(part, columns)
        elif len(part.tokens):  # no token to train on; its entropy is reported all the same
            self.entropy[part.tokens] = entropies_of(self.learner, part.episodes, self.entropy[part.tokens])
            metrics["actor/entropy"] = float(self.entropy[part.tokens].mean())
        if "actor/entropy" in metrics:
            self.entropies.append((metrics["actor/entropy"], len(part.tokens)))
        if self.learner.critic is not None:
            assert advantages.value_mask is not None
            mask = advantages.value_mask[part.tokens]
            columns["weight"] = mask / max(mask.sum(), 1)
            loss = critic_loss(self.config.critic)
            metrics |= named("critic", self.learner.update_critic(part.episodes, columns, loss))
        self.rows.append(metrics)

    def _actor_step(self, part: MiniBatch, columns: Mapping[str, Floats]) -> dict[str, float]:
        advantages, tokens = self.prepared.advantages, part.tokens
        mask = advantages.policy_mask[tokens]
        weight = token_weights(
            self.config.actor.loss_agg_mode,
            action_offsets(part.episodes),
            mask,
            float(self.config.rollout.max_response_length),
            weights=None if advantages.weights is None else advantages.weights[tokens],
            tree=part.tree,
        )
        columns = {**columns, "weight": weight, "share": mask / mask.sum()}
        observations = None
        if self.actor.observation_loss:
            offsets = observation_offsets(part.episodes)
            observations = observation_weights(self.actor.observation_loss, offsets, part.tree)
        top = self.prepared.teacher_top
        numbers, self.entropy[tokens] = update_actor(
            self.learner,
            self.actor,
            part.episodes,
            columns,
            mask,
            self.entropy[tokens],
            part.record,
            observations,
            None if top is None else top[tokens],
        )
        # Before any step, tokens are outside the range by the engine's arithmetic or its older weights alone.
        if (outside := numbers.pop("outside_clip", None)) is not None:
            self.first.setdefault("actor/outside_clip_first", outside)
        mismatch = self.prepared.metrics.get("actor/mismatch_kl", numbers["approx_kl_k3"])
        self.first.setdefault("actor/rollout_kl", mismatch)
        if part.record:
            columns_of_tokens = {name: numbers.pop(name) for name in RECORDED}
            for name, values in {**columns_of_tokens, "step": len(self.rows), "weight": weight}.items():
                self.recorded[name][tokens] = values
        return named("actor", numbers)


def update_actor(
    learner: AnyLearner,
    actor: PolicyLoss,
    episodes: Sequence[Trajectory],
    columns: Mapping[str, Floats],
    mask: Bools,
    entropy: Floats,
    record: Sequence[str] = (),
    observations: Floats | None = None,
    teacher: TopTokens | None = None,
) -> tuple[dict[str, Any], Floats]:
    """Take the actor's step on a mini-batch, computing only the episodes that its gradient depends on.

    Weights are of the whole mini-batch; means are over the computed tokens, but for ``entropy``, which is over all: a
    group whose episodes earned the same has no gradient and often a low entropy, which is how a policy collapses.
    ``entropy`` ``[n]`` has the tokens' entropies where they are known, else NaN; those of the episodes that the step
    leaves out cost a forward pass without a gradient. Recorded numbers are NaN where nothing was computed.
    ``observations`` ``[M]`` are weights of all observation tokens; an episode with such tokens has a gradient.
    ``teacher`` has a teacher's scores of all ``n`` states, where the loss has their KL.

    Returns metrics with the recorded numbers, and the entropies ``[n]``, of which those of left-out episodes are known.
    """
    offsets = action_offsets(episodes)
    needed = has_gradient(actor, columns["advantages"], mask, offsets)
    if observations is not None:
        needed |= np.diff(observation_offsets(episodes)) > 0
    without = 1.0 - float(needed.mean())
    trained = np.diff(np.concatenate([[0], np.cumsum(mask)])[offsets]) > 0
    if not (needed & trained).any():  # the optimizer's momentum takes its step all the same
        needed[np.where(trained, [len(episode.token_ids) for episode in episodes], np.inf).argmin()] = True
    tokens = np.repeat(needed, np.diff(offsets))
    entropy = entropy.copy()
    left_out = [episode for episode, is_needed in zip(episodes, needed, strict=True) if not is_needed]
    entropy[~tokens] = entropies_of(learner, left_out, entropy[~tokens])  # before the step
    computed = [episode for episode, is_needed in zip(episodes, needed, strict=True) if is_needed]
    columns = {name: column[tokens] for name, column in columns.items()}
    columns["share"] = columns["share"] / columns["share"].sum()
    loss = partial(actor.batch_loss, record=bool(record))
    optional: dict[str, Any] = {} if observations is None else {"observations": observations}
    if teacher is not None:
        optional["teacher"] = teacher[tokens]
    metrics = learner.update_actor(computed, columns, loss, record, **optional)
    for name in record:
        whole = np.full(len(tokens), np.nan, np.float32)
        whole[tokens] = metrics[name]
        metrics[name] = whole
    mean = (metrics["entropy"] * tokens.sum() + entropy[~tokens].sum()) / len(tokens)
    return metrics | {"entropy": float(mean), "episodes_without_gradient": without}, entropy


def entropies_of(learner: AnyLearner, episodes: Sequence[Trajectory], entropies: Floats) -> Floats:
    """Return the entropies of all action tokens; where some are NaN, by a forward pass without a gradient."""
    if not np.isnan(entropies).any():
        return entropies
    return np.concatenate(learner.logprobs(episodes, entropy=True)[1]).astype(np.float64)


def has_gradient(section: PolicyLoss, advantages: Floats, mask: Bools, offsets: NDArray[np.int64]) -> Bools:
    """Return which episodes the policy's gradient depends on, bool ``[E]``; ``advantages`` and ``mask`` are ``[N]``.

    An advantage of 0 everywhere leaves every loss but ``kl_cov`` without a gradient; an entropy bonus and KLs have one
    for every token. ``offsets`` ``[E + 1]``: :func:`~trainers.trajectory.action_offsets`.
    """
    if section.entropy_coeff or section.use_kl_loss or section.always_has_gradient or section.distills:
        return np.ones(len(offsets) - 1, np.bool_)
    before = np.concatenate([[0], np.cumsum(mask & (advantages != 0))])
    return np.diff(before[offsets]) > 0


# ------------------ losses


def critic_loss(section: CriticSection) -> Any:
    """Build the squared error of the values, clipped where it is configured; see ``Learner.update_critic``."""

    def loss(values: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        error = value_loss(values, batch["old_values"], batch["returns"], clip=section.cliprange_value)
        return (batch["weight"] * error.loss).sum(), {"clipped": (batch["weight"] * error.stats["value_clipped"]).sum()}

    return loss


# ------------------ corrections


def off_policy_correction(
    section: PolicyLoss, old: Floats, rollout: Floats, offsets: NDArray[np.int64]
) -> tuple[Floats | None, Bools, dict[str, float]]:
    """Correct from the policy that sampled to the one that the update starts from: weights, kept tokens, metrics."""
    mode, cap = section.importance_correction, section.tis_cap
    weights = off_policy.importance_weights(mode, old, rollout, offsets, cap)
    band = section.rejection_low, section.rejection_high
    mask = off_policy.acceptance_mask(section.rejection, old, rollout, offsets, *band, section.rejection_kl)
    metrics = off_policy.mismatch(old, rollout)
    if weights is not None:
        metrics |= off_policy.weight_metrics(weights, mode, cap)
        if section.importance_batch_normalize:
            weights = off_policy.batch_normalized(weights, offsets, mode)
    if section.rejection != "none" and mask.size:
        metrics["rejected"] = 1.0 - float(mask.mean())
    return weights, mask, metrics


# ------------------ reports


def explained_of(
    prepared: Prepared, recorded: Mapping[str, Floats], steps: Sequence[Mapping[str, float]], by_term: bool
) -> Explained:
    """Collect what the files of episodes hold of a batch, with ``recorded`` numbers ``[N]`` (:data:`RECORDED`)."""
    columns: dict[str, NDArray[np.floating]] = {
        "learner_logprobs": recorded["token_logprobs"].astype(np.float32),
        "loss_weight": recorded["weight"],
    }
    columns |= {name: recorded[f"token_{name}"].astype(np.float32) for name in ("entropy", "ratio", "clipped", "loss")}
    columns |= advantage_columns(prepared)
    made, mask = prepared.advantages.made_of, prepared.advantages.policy_mask
    assert made is not None
    return Explained(
        columns,
        prepared.episodes,
        made.unscaled,
        mask,
        made.by_fork,
        prepared.greedy,
        recorded["step"],
        steps,
        by_term,
        made.by_reaction,
    )


def advantage_columns(prepared: Prepared) -> dict[str, Floats]:
    """Return the parts of each token's advantage, ``[N]`` each, by their names in the files of episodes."""
    made = prepared.advantages.made_of
    assert made is not None
    columns = {"advantage": prepared.advantages.advantages, "return": made.returns}
    if made.baseline is not None:
        columns["baseline"] = made.baseline
    if made.by_teacher is not None:
        columns["teacher_advantage"] = made.by_teacher
    if "importance" in prepared.columns:
        columns["importance_weight"] = prepared.columns["importance"]
    return columns


def over_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over an iteration's optimizer steps, but the maximum of ``peak_gib``."""
    columns = {name: [step[name] for step in steps if name in step] for name in dict.fromkeys(itertools.chain(*steps))}
    return {
        name: float(max(values) if name.endswith("/peak_gib") else np.mean(values)) for name, values in columns.items()
    }


def named(role: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the finite metrics as ``role/name``."""
    return {f"{role}/{name}": value for name, value in metrics.items() if math.isfinite(value)}


def _flat(parts: Sequence[NDArray[np.float32]]) -> Floats:
    return np.concatenate([np.zeros(0), *parts])
