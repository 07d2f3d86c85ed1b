"""Advantage estimators: pure functions with one signature.

``estimator(batch, **hyperparameters) -> Advantages``, by name in :data:`ESTIMATORS`. Three rules hold for all of them:

* **A. Observation tokens are not steps.** The batch has none, so no recursion can run through them.
* **B. A baseline is subtracted from the reward-to-go and comes from other episodes.** Subtracting a per-turn mean from
  each turn's reward and summing is biased: the mean is only subtracted if one's *own* actions reach that turn.
* **C. Terminated is not truncated.** After termination there is nothing to earn. A truncated episode would have
  continued: with a critic its last state's value is added; without one it counts as it is or is left out, by
  ``truncated="count" | "drop"``.

Arguments that several take mean the same in all:

* ``gamma``, ``lam``, ``outcome_mix`` are in [0, 1]; outside, a ``ValueError`` is raised.
* ``truncated`` says whether truncated episodes count as they are or are left out.
* ``norm_by_std`` divides by the group's (population) standard deviation, and ``eps`` keeps that division finite.
* Estimators of groups compare episodes with the same ``batch.group``; a group of one gets 0.

``docs/algorithms.md`` has the worked examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trainers.algorithms.baselines import (
    Baseline,
    any_of,
    best_of_k,
    best_over_second,
    mean_baseline,
    optimal_token,
    sums,
)
from trainers.algorithms.batch import (
    ActionBatch,
    Advantages,
    Bools,
    Floats,
    Ints,
    MadeOf,
    Truncated,
    check_factors,
    discounted_sums,
    kept_episodes,
)
from trainers.algorithms.fork import fork, fork_values

# --- with a critic


def gae(batch: ActionBatch, *, gamma: float = 1.0, lam: float = 1.0) -> Advantages:
    r"""Generalised advantage estimation over action tokens (arXiv 1506.02438).

    ``delta_i = r_i + gamma V_{i+1} - V_i`` and ``A_i = delta_i + gamma lam A_{i+1}``, where ``i + 1`` is the episode's
    next *action* token, however long the observation between the two. After the last token ``V`` is 0 if the episode
    terminated and ``batch.bootstrap`` if it was truncated. The critic's target is ``A_i + V_i``.

    ``batch`` has ``values``, and ``bootstrap`` if an episode was truncated. ``gamma`` discounts a token; ``lam`` 1 is
    the Monte Carlo return minus the value, 0 the one-step error.
    """
    values, bootstrap = _critic(batch)
    advantages = _gae(batch.token_rewards, values, bootstrap, batch.token_offsets, gamma, lam)
    everything = np.ones(batch.num_tokens, np.bool_)
    return Advantages(advantages, everything, advantages + values, everything)


def turn_gae(batch: ActionBatch, *, gamma: float = 1.0, lam: float = 1.0) -> Advantages:
    """Generalised advantage estimation where a step is a turn (Turn-PPO, arXiv 2512.17008).

    A turn's state is what stands before its first token, with value ``V_k``; its reward is ``r_k``, minus its tokens'
    penalties. ``delta_k = r_k + gamma V_{k+1} - V_k``, ``A_k = delta_k + gamma lam A_{k+1}``, and every token of turn
    ``k`` gets ``A_k``. Only the values at turn starts are used, so the critic is trained only there (``value_mask``).
    ``gamma`` discounts a turn; ``batch`` is as in :func:`gae`.
    """
    values, bootstrap = _critic(batch)
    starts = batch.turn_starts
    by_turn = _gae(batch.net_turn_rewards, values[starts], bootstrap, batch.turn_offsets, gamma, lam)
    returns, value_mask = np.zeros(batch.num_tokens), np.zeros(batch.num_tokens, np.bool_)
    returns[starts] = by_turn + values[starts]
    value_mask[starts] = True
    return Advantages(by_turn[batch.turn_of_token], np.ones(batch.num_tokens, np.bool_), returns, value_mask)


def bilevel_gae(
    batch: ActionBatch, *, gamma: float = 1.0, lam: float = 1.0, turn_gamma: float = 0.99, turn_lam: float = 1.0
) -> Advantages:
    r"""Bi-level GAE: first over turns, then over the tokens inside each turn (VAGEN, arXiv 2510.16907).

    With ``e_k`` the last token of turn ``k``, over turns: ``delta_k = r_k + turn_gamma V_{e_{k+1}} - V_{e_k}`` and
    ``A_{e_k} = delta_k + turn_gamma turn_lam A_{e_{k+1}}``. Then inside each turn, backwards from ``A_{e_k}`` at its
    last token: ``A_i = gamma V_{i+1} - V_i + gamma lam A_{i+1}``. (The paper's text and its released code differ at the
    last token; this is the code: ``A_{e_k}`` replaces what token-level GAE would say there.) So an error of the critic
    late in the episode is discounted by the turns between, not by their tokens. The critic's target is ``A_i + V_i``.

    Without any discount and any lambda (all four 1) it *is* :func:`gae`. Tokens' penalties count where they fall.
    ``gamma`` and ``lam`` are inside a turn, ``turn_gamma`` (by default the released configuration's) and ``turn_lam``
    over turns.
    """
    check_factors(gamma=gamma, lam=lam, turn_gamma=turn_gamma, turn_lam=turn_lam)
    values, bootstrap = _critic(batch)
    rewards, ends = batch.token_rewards, batch.turn_ends
    before_end = np.bincount(batch.turn_of_token, rewards, minlength=len(ends)) - rewards[ends]
    following_turn = np.append(before_end[1:], 0.0)[: len(ends)]
    following_turn[batch.turn_offsets[1:][np.diff(batch.turn_offsets) > 0] - 1] = 0.0
    turn_rewards = rewards[ends] + turn_gamma * following_turn
    by_turn = _gae(turn_rewards, values[ends], bootstrap, batch.turn_offsets, turn_gamma, turn_lam)
    errors = rewards + gamma * np.append(values[1:], 0.0)[: len(values)] - values
    errors[ends] = by_turn
    advantages = discounted_sums(errors, np.append(batch.turn_starts, batch.num_tokens), gamma * lam)
    everything = np.ones(batch.num_tokens, np.bool_)
    return Advantages(advantages, everything, advantages + values, everything)


def _critic(batch: ActionBatch) -> tuple[Floats, Floats]:
    """Return the values, and the value after each episode's last token: 0 if it terminated."""
    if batch.values is None:
        raise ValueError("this estimator needs a critic: give the batch values [N], or choose rloo, grpo or turn_grpo")
    continues = batch.truncated & ~batch.terminated
    if batch.bootstrap is not None:
        return batch.values, np.where(continues, batch.bootstrap, 0.0)
    if continues.any():
        raise ValueError(
            f"episode {int(np.argmax(continues))} was truncated: give the batch bootstrap [E], the value of the state "
            "that each truncated episode ended in"
        )
    return batch.values, np.zeros(batch.num_episodes)


def _gae(rewards: Floats, values: Floats, bootstrap: Floats, offsets: Ints, gamma: float, lam: float) -> Floats:
    check_factors(gamma=gamma, lam=lam)
    following = np.append(values[1:], 0.0)[: len(values)]
    has_steps = np.diff(offsets) > 0
    following[offsets[1:][has_steps] - 1] = bootstrap[has_steps]
    return discounted_sums(rewards + gamma * following - values, offsets, gamma * lam)


# --- without a critic


def grpo(
    batch: ActionBatch, *, norm_by_std: bool = True, truncated: Truncated = "count", eps: float = 1e-6
) -> Advantages:
    """Group-relative advantage (DeepSeekMath, arXiv 2402.03300): ``A = (R - mean(R)) / (std(R) + eps)``.

    ``R`` is the episode's total reward; mean and population standard deviation are over its group, itself included.
    Every token of the episode gets ``A``. Without ``norm_by_std`` this is :func:`dr_grpo`.
    """
    counted = kept_episodes(batch, truncated)
    return _to_tokens(batch, counted, _relative(_totals(batch)[counted], batch.group[counted], norm_by_std, eps))


def dr_grpo(batch: ActionBatch, *, truncated: Truncated = "count") -> Advantages:
    """GRPO without the division (Dr. GRPO, "GRPO done right", arXiv 2503.20783): ``A = R - mean(R)``.

    The mean is over the group, the episode included, so the gradient is ``(G - 1) / G`` times that of :func:`rloo`:
    right in direction. Groups that are nearly solved or nearly hopeless are not blown up as by GRPO. The other half of
    the method is the aggregation: ``seq-mean-token-sum-norm`` instead of a mean over each episode's tokens.
    """
    return grpo(batch, norm_by_std=False, truncated=truncated)


def opo(batch: ActionBatch, *, truncated: Truncated = "count") -> Advantages:
    """On-policy RL with the optimal baseline (OPO, arXiv 2505.23585): ``A = R - sum(n R) / sum(n)`` over the group.

    ``n`` are the episodes' action tokens. The baseline of least variance weighs returns by the squared norm of the
    episode's score; the paper takes that to grow with the length. The sums hold the episode itself, with its own
    length: biased, less the larger the group.
    """
    counted = kept_episodes(batch, truncated)
    group, returns = batch.group[counted], _totals(batch)[counted]
    lengths = np.diff(batch.token_offsets)[counted].astype(np.float64)
    moved = returns - any_of(returns, group)  # so that equal returns become 0 to the last bit
    return _to_tokens(batch, counted, moved - sums(lengths * moved, group) / sums(lengths, group))


def gdpo(
    batch: ActionBatch,
    *,
    gdpo_reward_weights: tuple[float, ...] | None = None,
    norm_by_std: bool = True,
    truncated: Truncated = "count",
    eps: float = 1e-6,
) -> Advantages:
    """Group reward-decoupled normalisation (GDPO, arXiv 2601.05242): each named reward by itself, then the batch.

    ``A = sum_m w_m (R_m - mean(R_m)) / (std(R_m) + eps)``, with ``R_m`` the sum of the term ``m`` over the *whole
    episode* and means over its group; then :func:`normalize`. So a term that hardly varies counts as much as one that
    varies a lot. (The paper's second normalisation is over episodes; its released code's, and this one, over tokens.)
    No per-turn reward is normalised (rule B); ``batch.penalty`` does not count. ``w`` are ``gdpo_reward_weights``, one
    a term of the batch's ``terms``, or 1 each; else a ``ValueError``. A group of one gets what is left of 0 after the
    batch's mean.
    """
    if batch.terms is None:
        raise ValueError("gdpo needs terms [E, M], what each episode earned by name (see batch.episode_terms)")
    weights = np.ones(batch.terms.shape[1]) if gdpo_reward_weights is None else np.array(gdpo_reward_weights, float)
    if weights.shape != batch.terms.shape[1:]:
        raise ValueError(f"gdpo_reward_weights has {len(weights)} numbers for {batch.terms.shape[1]} terms")
    counted = kept_episodes(batch, truncated)
    total = np.zeros(int(counted.sum()))
    for weight, term in zip(weights, batch.terms.T, strict=True):
        total += weight * _relative(term[counted], batch.group[counted], norm_by_std, eps)
    return normalize(_to_tokens(batch, counted, total))


def grpo_passk(
    batch: ActionBatch, *, norm_by_std: bool = True, truncated: Truncated = "count", eps: float = 1e-6
) -> Advantages:
    """Credit the best episode of a group with its lead over the second best; 0 for the others (arXiv 2503.19595).

    This is verl's form. Without ``norm_by_std`` it is unbiased for the expected best return of a whole group, over its
    size: each is compared with the best of the *others*. A group whose best are equal gets 0.
    """
    return _by_group(
        batch, truncated, lambda returns: best_over_second(returns) / (returns.std() + eps if norm_by_std else 1.0)
    )


def passk(
    batch: ActionBatch, *, pass_k: int = 4, norm_by_std: bool = True, truncated: Truncated = "count", eps: float = 1e-6
) -> Advantages:
    """Pass@k training, the analytic advantage (arXiv 2508.10751), for rewards of any kind.

    Over all sets ``S`` of ``k`` episodes of the group, the reward is ``M(S) = max R``, and
    ``A_i = (E[M(S) | i in S] - E[M(S)]) / (std(M(S)) + eps)``; see :func:`.baselines.best_of_k`. With returns 0 and
    1 it is the paper's closed form, and with ``k = 1`` :func:`grpo`. Without the division it is right in direction for
    the expected best of ``k``: the gradient times ``(1 - k / G) / k``.

    A group of at most ``k`` gets 0. ``pass_k`` is ``k`` (the paper: 4).
    """
    if pass_k < 1:
        raise ValueError(f"pass_k must be at least 1, not {pass_k}")

    def gains(returns: Floats) -> Floats:
        by_episode, deviation = best_of_k(returns - returns[:1], pass_k)  # equal returns: 0 to the last bit
        return by_episode / (deviation + eps) if norm_by_std else by_episode

    return _by_group(batch, truncated, gains)


def reinforce_pp(batch: ActionBatch, *, gamma: float = 1.0, truncated: Truncated = "count") -> Advantages:
    """REINFORCE++ (arXiv 2501.03262): each token's reward-to-go, normalised over the whole batch.

    ``G_i = r_i - beta kl_i + gamma G_{i+1}`` over action tokens, to the end of the episode, then :func:`normalize`.
    (``beta kl_i`` is the batch's ``penalty``; the paper puts ``k1`` there.) The batch's mean is the baseline, so groups
    are not needed. It holds the episode itself and divides by a deviation: biased, less the larger the batch.
    ``gamma`` discounts a token.
    """
    counted = kept_episodes(batch, truncated)[batch.episode_of_token]
    to_go = discounted_sums(batch.token_rewards, batch.token_offsets, gamma)
    return normalize(Advantages(np.where(counted, to_go, 0.0), counted))


def reinforce_pp_baseline(batch: ActionBatch, *, truncated: Truncated = "count") -> Advantages:
    """REINFORCE++ with a baseline (arXiv 2501.03262): ``R - mean(R)`` of the group, normalised over the whole batch.

    Every token of an episode gets the same. Dividing by the batch's deviation instead of the group's (GRPO) weighs
    all tasks alike. The paper puts the KL in the loss here, as ``k2``. A group of one gets what is left of 0 after the
    batch's mean.
    """
    return normalize(dr_grpo(batch, truncated=truncated))


def remax(batch: ActionBatch, *, truncated: Truncated = "count") -> Advantages:
    """ReMax (arXiv 2310.10505): total reward minus that of greedy decoding on the same task.

    What greedy decoding earns does not depend on the episode's actions, so this is unbiased, also for single episodes.
    A greedy episode always counts, truncated or not; ``batch.greedy`` must be there.
    """
    if batch.greedy is None:
        raise ValueError("remax needs greedy [E], the total reward of a greedy episode of each episode's task")
    counted = kept_episodes(batch, truncated)
    return _to_tokens(batch, counted, (_totals(batch) - batch.greedy)[counted])


def rloo(batch: ActionBatch, *, baseline: Baseline = "group", truncated: Truncated = "count") -> Advantages:
    """Subtract the mean of the *other* episodes from the total reward (REINFORCE leave-one-out, arXiv 2402.14740).

    Unbiased, because the baseline does not depend on the episode itself. An episode without siblings has the baseline
    0 with ``group`` and the batch's alone with the others.

    Options of its own:
        baseline: ``group``: the mean ``g`` of its siblings. ``mixed``: ``(g + b) / 2``, where ``b`` is the mean of all
            the other episodes of the batch (of one ``batch.side``). In a small group ``g`` is noisy, and a group that
            only ever fails teaches nothing against ``g`` alone; ``b`` is steady but knows nothing of the task.
            ``shrunk``: ``g`` drawn towards the mean of the other groups, the further the less these differ beside what
            noise alone would do (James and Stein; for this use arXiv 2511.03710). How far is taken from the other
            groups, too. ``optimal_token``: for each token, the mean of the siblings that have such a token, weighed by
            how uncertain they were up to there (:func:`.baselines.optimal_token`). All leave the episode out, so all
            are unbiased.
    """
    counted = kept_episodes(batch, truncated)
    if baseline == "optimal_token":
        return _less_optimal_token(batch, counted, _totals(batch)[batch.episode_of_token], by_turn=False)
    group, returns = batch.group[counted], _totals(batch)[counted]
    expected = mean_baseline(returns, group, np.zeros_like(group), batch.sides[counted], baseline)
    return _to_tokens(batch, counted, returns - expected)


def turn_grpo(
    batch: ActionBatch,
    *,
    gamma: float = 1.0,
    baseline: Baseline = "group",
    zero_pad: bool = False,
    outcome_mix: float = 0.0,
    norm_by_std: bool = False,
    truncated: Truncated = "count",
    eps: float = 1e-6,
) -> Advantages:
    """Subtract the mean of the siblings that reached the same turn from each turn's reward-to-go.

    ``G_t = r_t + gamma G_{t+1}`` and ``A_t = G_t - mean(G_t of the other episodes of the group that have a turn t)``;
    every token of turn ``t`` gets ``A_t``. Whether a *sibling* reaches turn ``t`` does not depend on one's own actions,
    so the baseline is independent of them and the gradient is unbiased. An episode that is alone at its turn has no
    such sibling and no baseline there (0), which keeps it unbiased.

    Options of its own:
        gamma: Discount a turn.
        baseline: ``group``, ``mixed``, ``shrunk`` or ``optimal_token``, as in :func:`rloo`, at the same turn. With
            ``optimal_token`` advantages are of tokens, so the options below, which are of turns, are a ``ValueError``.
        zero_pad: Siblings that ended before turn ``t`` count in its mean, with 0. Also unbiased, and lone episodes have
            a baseline; noisier where most siblings do reach the turn.
        outcome_mix: ``lambda``: ``(1 - lambda) A_t + lambda A_0``. ``A_0`` is the advantage of the whole
            episode's outcome; 1 makes this rloo with discounted turns. With ``gamma = 1`` the mixture is unbiased.
        norm_by_std: Divide by the root mean square of the group's ``A_t`` (every turn counts once). With one turn an
            episode this is GRPO; like there, it weighs tasks by their difficulty and so is not unbiased.
    """
    check_factors(gamma=gamma, outcome_mix=outcome_mix)
    counted = kept_episodes(batch, truncated)
    episode = batch.episode_of_turn
    to_go = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, gamma)
    if baseline == "optimal_token":
        if zero_pad or outcome_mix or norm_by_std:
            raise ValueError("baseline optimal_token goes without zero_pad, outcome_mix and norm_by_std")
        return _less_optimal_token(batch, counted, to_go[batch.turn_of_token], by_turn=True)
    turns = np.flatnonzero(counted[episode])
    group, turn = batch.group[episode[turns]], turns - batch.turn_offsets[episode[turns]]
    to_go = to_go[turns]
    by_turn = to_go - mean_baseline(to_go, group, turn, batch.sides[episode[turns]], baseline, zero_pad)
    outcome = by_turn[np.arange(len(turns)) - turn]  # each entry's own episode at turn 0
    by_turn = (1.0 - outcome_mix) * by_turn + outcome_mix * outcome
    if norm_by_std:
        by_turn = _divide_by_rms(by_turn, group, eps)
    advantages = np.zeros(len(episode))
    advantages[turns] = by_turn
    return Advantages(advantages[batch.turn_of_token], counted[batch.episode_of_token])


def gigpo(
    batch: ActionBatch,
    *,
    gamma: float = 1.0,
    step_weight: float = 1.0,
    norm_by_std: bool = True,
    truncated: Truncated = "count",
    eps: float = 1e-6,
) -> Advantages:
    """Group-in-group policy optimisation (GiGPO, arXiv 2505.10978): the episode among its group, the turn in its state.

    ``A_t = A^E + step_weight A^S_t``. ``A^E`` is :func:`grpo`'s. For ``A^S_t``, the turns of the group that began in
    the same *anchor state*, in whichever episode and at whichever turn, are compared like the episodes of a group:
    ``A^S_t = (G_t - mean(G)) / (std(G) + eps)`` with ``G_t = r_t + gamma G_{t+1}``. A turn alone in its state
    has ``A^S_t = 0``; where no state is met twice, GiGPO is GRPO.

    Biased: by the deviations, and because a state met twice in one episode is compared with its own future.

    ``batch`` has ``anchor``; ``gamma`` discounts a turn in ``G_t`` (the paper: 0.95); ``step_weight`` is the paper's
    ``omega``, at least 0 (there 1).
    """
    if batch.anchor is None:
        raise ValueError("gigpo needs anchor [K], the state that each turn began in (see batch.anchor_states)")
    if not 0.0 <= step_weight < float("inf"):
        raise ValueError(f"step_weight must be at least 0 and finite, not {step_weight!r}")
    of_episode = grpo(batch, norm_by_std=norm_by_std, truncated=truncated, eps=eps)
    counted = kept_episodes(batch, truncated)
    turns = np.flatnonzero(counted[batch.episode_of_turn])
    to_go = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, gamma)
    state = (batch.group[batch.episode_of_turn] * (batch.anchor.max(initial=0) + 1) + batch.anchor)[turns]
    of_turn = np.zeros(len(to_go))
    of_turn[turns] = _relative(to_go[turns], state, norm_by_std, eps)
    advantages = of_episode.advantages + step_weight * of_turn[batch.turn_of_token]
    return replace(of_episode, advantages=advantages)


def _totals(batch: ActionBatch) -> Floats:
    totals = np.bincount(batch.episode_of_turn, batch.net_turn_rewards, minlength=batch.num_episodes)
    return np.asarray(totals, np.float64)


def _to_tokens(batch: ActionBatch, counted: Bools, by_episode: Floats) -> Advantages:
    advantages = np.zeros(batch.num_episodes)
    advantages[counted] = by_episode
    return Advantages(advantages[batch.episode_of_token], counted[batch.episode_of_token])


def _less_optimal_token(batch: ActionBatch, counted: Bools, credited: Floats, by_turn: bool) -> Advantages:
    mask = counted[batch.episode_of_token]
    return Advantages(np.where(mask, credited - optimal_token(batch, credited, counted, by_turn), 0.0), mask)


def _by_group(batch: ActionBatch, truncated: Truncated, of_returns: Callable[[Floats], Floats]) -> Advantages:
    """Compute one number an episode from the returns of its group's episodes that count."""
    counted = kept_episodes(batch, truncated)
    returns, group = _totals(batch)[counted], batch.group[counted]
    out = np.zeros(len(returns))
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        out[members] = of_returns(returns[members])
    return _to_tokens(batch, counted, out)


def _relative(x: Floats, key: Ints, norm_by_std: bool, eps: float) -> Floats:
    """Subtract the mean of the entries with each entry's key, itself included; divide by deviations if requested."""
    moved = x - any_of(x, key)  # so that equal entries become 0 to the last bit
    centred = moved - sums(moved, key) / np.bincount(key)[key]
    return _divide_by_rms(centred, key, eps) if norm_by_std else centred


def _divide_by_rms(x: Floats, group: Ints, eps: float) -> Floats:
    """Divide centred ``x`` by its population standard deviation; at most ``sqrt(n)`` comes out, so nothing explodes."""
    return x / (np.sqrt(sums(x * x, group) / np.bincount(group)[group]) + eps)


# --- for all


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


Estimator = Callable[..., Advantages]

ESTIMATORS: dict[str, Estimator] = {
    estimator.__name__: estimator
    for estimator in (
        *(gae, turn_gae, bilevel_gae, grpo, dr_grpo, opo, gdpo, grpo_passk, passk, rloo),
        *(reinforce_pp, reinforce_pp_baseline, remax, turn_grpo, gigpo, fork),
    )
}
NEEDS_CRITIC = frozenset({"gae", "turn_gae", "bilevel_gae"})
#: These compare with a greedy episode of each task.
NEEDS_GREEDY = frozenset({"remax"})
#: These compare turns that began in the same state.
NEEDS_ANCHOR = frozenset({"gigpo"})
#: These compare with other replies in the same state, by forks of the episodes.
NEEDS_FORKS = frozenset({"fork"})
#: These see the named parts of rewards.
NEEDS_TERMS = frozenset({"gdpo"})


#: Estimators that compare whole episodes; the others compare what is earned from a turn, or a token, on.
_OF_EPISODES = frozenset(
    {"grpo", "dr_grpo", "opo", "gdpo", "grpo_passk", "passk", "rloo", "reinforce_pp_baseline", "remax", "gigpo"}
)
#: Those that add up several comparisons, or compare other numbers than returns: they have no one baseline.
_MIXED = frozenset({"gdpo", "grpo_passk", "passk", "gigpo"})


def made_of(name: str, batch: ActionBatch, result: Advantages, options: Mapping[str, Any]) -> MadeOf:
    """Split the advantages of estimator ``name`` into ``(return - baseline)``, up to a scale."""
    by_fork: Floats | None = None
    returns: Floats
    if name in NEEDS_CRITIC:
        assert batch.values is not None
        values = batch.values[batch.turn_starts[batch.turn_of_token]] if name == "turn_gae" else batch.values
        return MadeOf(result.advantages + values, values, result.advantages)
    if name in _OF_EPISODES:
        totals = np.bincount(batch.episode_of_turn, batch.net_turn_rewards, minlength=batch.num_episodes)
        returns = np.asarray(totals, np.float64)[batch.episode_of_token]
    elif name == "fork":
        q, by_fork = fork_values(batch, gamma=options.get("gamma", 1.0), truncated=options.get("truncated", "count"))
        returns = q[batch.turn_of_token]
    elif name == "turn_grpo":
        to_go = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, options.get("gamma", 1.0))
        returns = to_go[batch.turn_of_token]
    else:
        returns = discounted_sums(batch.token_rewards, batch.token_offsets, options.get("gamma", 1.0))
    if name in _MIXED or options.get("outcome_mix"):
        return MadeOf(returns, None, result.advantages, by_fork)
    unscaled = _unscaled(name, batch, result, returns, options)
    return MadeOf(returns, np.where(result.policy_mask, returns - unscaled, np.nan), unscaled, by_fork)


def _unscaled(name: str, batch: ActionBatch, result: Advantages, returns: Floats, options: Mapping[str, Any]) -> Floats:
    mask = result.policy_mask
    if name in ("reinforce_pp", "reinforce_pp_baseline") and mask.any():  # the batch's mean is in the baseline, too
        base_advantages = returns if name == "reinforce_pp" else ESTIMATORS["dr_grpo"](batch, **options).advantages
        return np.where(mask, base_advantages - base_advantages[mask].mean(), 0.0)
    if name == "grpo" or options.get("norm_by_std"):
        return ESTIMATORS[name](batch, **{**options, "norm_by_std": False}).advantages
    return result.advantages
