"""Checks of the policy and its updates: entropy, lengths, how far it moves, and whether the engine agrees."""

from __future__ import annotations

import math

import numpy as np

from ..diagnosis import RARE, START, History, Symptom, shifts, wilson
from .base import GAINED, GOOD, check


@check("entropy", "actor/entropy")
def entropy(history: History) -> Symptom | None:
    """Detect that the entropy of the policy's tokens collapses, or erupts.

    Collapse: 3 iterations below a third of what it was; eruption: 2 iterations above twice what it was and 0.2 nats
    more. By 5 robust standard deviations without a gain of 2 standard errors in the reward, or with a loss of as many:
    batches of harder tasks have more entropy, so the deviations alone are wide.
    """
    if history.solved() >= GOOD:
        return None
    for shift in shifts(history.train["actor/entropy"], 3):
        gain = history.gain(shift.where)
        if shift.ratio < 1 / 3 and shift.before > 0.05 and (gain < -GAINED or (shift.z < -RARE and gain < GAINED)):
            return Symptom(
                "the entropy collapses: the policy says the same on every try and explores no more",
                f"{shift.latest:.4f} nats a token, {shift.before:.4f} in {shift.name}",
                "Lower actor.lr; raise actor.clip_ratio_high or rollout.temperature; hold it up with "
                "actor.entropy_target, or try actor.policy_loss=clip_cov; go back to an earlier checkpoint "
                "(trainer.resume_from_path)",
            )
    for shift in shifts(history.train["actor/entropy"], 2):
        rise, gain = shift.before * shift.ratio - shift.before, history.gain(shift.where)
        if shift.ratio > 2 and rise > 0.2 and (gain < -GAINED or (shift.z > RARE and gain < GAINED)):
            return Symptom(
                "the entropy erupts: the policy falls apart into noise",
                f"{shift.latest:.3f} nats a token, {shift.before:.3f} in {shift.name}",
                "Lower actor.entropy_coeff and actor.lr; see that rollout and learner agree (actor/rollout_kl); "
                "go back to an earlier checkpoint (trainer.resume_from_path)",
            )
    return None


@check("template", "train/task_found", "train/task_chance")
def template(history: History) -> Symptom | None:
    """Detect that replies no longer depend on the task (template collapse).

    How often an episode's replies show which task it is of (:func:`~.metrics.task_found`), above chance and as a share
    of what is possible: in 3 iterations below a third of what it was, by 5 robust standard deviations, with a reward
    that does not gain. Entropy does not show it: replies may differ as much as before (arXiv 2604.06268).
    """
    share, chance = (np.array(history.train[name]) for name in ("train/task_found", "train/task_chance"))
    above = (share - chance) / (1 - chance)
    for shift in shifts(above.tolist(), 3, least=0.02):
        lost = shift.before > 0.2 and shift.ratio < 1 / 3 and shift.z < -RARE
        if lost and history.gain(shift.where) < GAINED:
            bits = _fano(float(share[-3:].mean()), float(chance[-1]))
            return Symptom(
                "replies no longer depend on the task (template collapse)",
                f"an episode's replies show its task in {share[-1]:.1%} of cases (chance {chance[-1]:.1%}), "
                f"{shift.before:.1%} above chance in {shift.name}; at least {bits:.2f} bits of information about it",
                "Read replies to different tasks side by side; take tasks with a signal "
                "(rollout.filter_zero_variance=true or rollout.filter_variance_top_p=0.9), lower actor.kl_loss_coef "
                "and actor.entropy_coeff, and see what pays without reading the task (`textenvs audit`)",
            )
    return None


def _fano(share: float, chance: float) -> float:
    """Return the bits about the task that such a share of matches proves, by Fano's inequality."""
    tasks = 1 / chance
    if share <= chance or tasks < 2:
        return 0.0
    miss = 1 - share
    noise = sum(-p * math.log2(p) for p in (share, miss) if p > 0)
    return max(0.0, math.log2(tasks) - noise - miss * math.log2(max(tasks - 1, 1)))


@check("mismatch", "actor/rollout_kl")
def mismatch(history: History) -> Symptom | None:
    """Detect that rollout and learner disagree about the probabilities of the same tokens, by the same weights.

    KL between them before the first optimizer step above 0.01 nats a token in 2 iterations: four times what bfloat16
    makes of it (docs/engines.md, precision); with ``rollout.staleness`` the weights differ too, so there it must be
    five times what it was, by 5 robust standard deviations, and above 0.02.
    """
    stale = history.option("rollout.staleness", 0) > 0
    latest = history.latest("actor/rollout_kl", 2)
    if len(latest) < 2 or latest.min() <= (0.02 if stale else 0.01):
        return None
    if stale and not any(shift.ratio > 5 and shift.z > RARE for shift in shifts(history.train["actor/rollout_kl"], 2)):
        return None
    outside = history.latest("actor/outside_clip_first", 1)
    share = f", {outside[-1]:.1%} of tokens outside the clip range before the first step" if outside.size else ""
    return Symptom(
        "rollout and learner disagree: the engine samples from another distribution than the learner computes",
        f"KL {latest[-1]:.4f} nats a token{share}",
        "See that the engine gets the weights (perf/published_mib, engine.vllm.verify=true), has the learner's "
        "model.dtype, and that no server in between cuts the distribution (rollout.top_p, rollout.top_k without "
        "keep_sampling_mask); actor.old_logprobs=recompute with actor.importance_correction corrects what is left",
    )


@check("staleness", "rollout/staleness_mean")
def staleness(history: History) -> Symptom | None:
    """Detect that episodes are as old as ``rollout.staleness`` allows, and the learner does not wait for them.

    With a bound of 2 or more, the mean age of 5 iterations is within a quarter version of it, and the learner waits for
    episodes less than 10 % of the time: then a smaller bound gives fresher episodes at the same speed.
    """
    bound = history.option("rollout.staleness", 0)
    ages, waits = history.latest("rollout/staleness_mean", 5), history.latest("rollout/bubble_trainer", 5)
    if bound < 2 or len(ages) < 5 or ages.min() < bound - 0.25 or (waits.size and waits.mean() >= 0.1):
        return None
    return Symptom(
        "episodes are as stale as they may be: the learner is slower than the rollout, and trains on what is long "
        "out of date",
        f"mean age {ages[-1]:.2f} versions of rollout.staleness={bound}, the learner waits "
        f"{waits.mean() if waits.size else 0.0:.0%} of the time",
        "Lower rollout.staleness (1 loses no time here); or give the learner more (cluster.learner_ranks) or correct "
        "for it (actor.old_logprobs=recompute, actor.importance_correction)",
    )


@check("cut replies", "train/cut_paid")
def cut_replies(history: History) -> Symptom | None:
    """Detect that replies which were cut at their length limit are rewarded as if they had ended.

    At least one turn of 20 is both cut and paid more than 0, by the lower end of the 99 % interval over 3 iterations:
    then talking on is rewarded.
    """
    cut_rewarded, episodes, per = (history.latest(f"train/{name}", 3) for name in ("cut_paid", "episodes", "turns"))
    if len(cut_rewarded) < 3:
        return None
    turns = float((episodes * per).sum()) if len(episodes) == len(per) == 3 else 3.0
    share = float(cut_rewarded.mean())
    if wilson(share * turns, turns, 2.6)[0] <= 0.05:
        return None
    cut = history.latest("rollout/replies_cut", 1)
    return Symptom(
        "replies that reach their length limit are paid: the policy learns to talk past it",
        f"{share:.1%} of turns are cut and paid" + (f", {cut[-1]:.1%} are cut" if cut.size else ""),
        "Raise rollout.max_response_length, or let cutting cost something: rollout.cut_reply_penalty, overlong_buffer",
    )


@check("length", "train/turn_tokens")
def length(history: History) -> Symptom | None:
    """Detect that replies get longer or shorter and earn no more for it.

    In 3 iterations half as long again, or shorter than 0.6 times, what they were, by 5 robust standard deviations, with
    a gain of less than 2 standard errors.
    """
    for shift in shifts(history.train["train/turn_tokens"], 3, floor=0.05):
        if (shift.ratio > 1.5 or shift.ratio < 0.6) and abs(shift.z) > RARE and history.gain(shift.where) < GAINED:
            longer = shift.ratio > 1
            return Symptom(
                f"replies drift: they get {'longer' if longer else 'shorter'} and earn no more",
                f"{shift.latest:.1f} tokens a turn, {shift.before:.1f} in {shift.name}",
                "See how the loss weighs tokens (actor.loss_agg_mode=seq-mean-token-sum-norm favours no length)"
                + (
                    "; let length cost something (overlong_buffer, rollout.cut_reply_penalty)"
                    if longer
                    else "; see what a short reply earns (`textenvs audit`)"
                ),
            )
    return None


@check("kl", "actor/approx_kl_k3")
def kl(history: History) -> Symptom | None:
    """Detect that the policy runs away: from the one that sampled, within an update, or from the reference.

    In 2 iterations: KL of an update above 0.1 nats a token (PPO's usual targets are 0.01 to 0.05), or above 0.03 and
    five times what it was; or KL to the reference above three times ``algorithm.kl_ctrl.target_kl`` where the
    controller is adaptive, above 0.5 without a gain, or above 0.05 and five times what it was without a gain; by 5
    robust standard deviations.
    """
    update = history.latest("actor/approx_kl_k3", 2)
    jump = [s for s in shifts(history.train["actor/approx_kl_k3"], 2, least=1e-4) if s.ratio > 5 and s.z > RARE]
    if len(update) == 2 and (update.min() > 0.1 or (update.min() > 0.03 and jump)):
        return Symptom(
            "an update moves the policy too far",
            f"KL of an update {update[-1]:.3f} nats a token"
            + (f", {jump[0].before:.4f} in {jump[0].name}" if jump else ""),
            "Lower actor.lr, actor.ppo_epochs or actor.mini_batches; raise rollout.groups_per_batch; lower "
            "actor.clip_ratio_high",
        )
    away = history.latest("actor/ref_kl", 2)
    if len(away) < 2:
        return None
    adaptive = history.option("algorithm.kl_ctrl.type") == "adaptive"
    target = history.option("algorithm.kl_ctrl.target_kl", 0.1) if adaptive else math.inf
    jump = [
        s
        for s in shifts(history.train["actor/ref_kl"], 2, least=1e-3)
        if s.ratio > 5 and s.z > RARE and s.recent and history.gain(s.where) < GAINED
    ]
    idle = len(history.steps) >= 2 * START and history.gain(slice(-2 * START, -START)) < GAINED
    if (
        away.min() > 3 * target
        or (away.min() > 0.5 and idle and history.solved() < GOOD)
        or (away.min() > 0.05 and jump)
    ):
        return Symptom(
            "the policy runs away from the reference",
            f"KL to the reference {away[-1]:.3f} nats a token" + (f", target {target:g}" if adaptive else ""),
            "Raise actor.kl_loss_coef (or algorithm.kl_ctrl.kl_coef), lower actor.lr; where it earns more meanwhile, "
            "read what it says (RUN/conversations)",
        )
    return None


@check("gradient", "actor/grad_norm")
def gradient(history: History) -> Symptom | None:
    """Detect that the norm of the gradient spikes (one that is not finite ends the run).

    Above eight times the median of the iterations before, by 5 robust standard deviations of the logarithm, of which
    one is at least a quarter; or by 3 in 2 iterations, or with an advantage of four times what is usual.
    """
    huge = any(s.ratio > 4 and s.before > 1e-6 for s in shifts(history.train["actor/advantage_abs_max"], 1))
    norms = history.train["actor/grad_norm"]
    single = [s for s in shifts(norms, 1, floor=0.25) if s.z > RARE or huge]
    for shift in (*single, *(s for s in shifts(norms, 2, floor=0.25) if s.z > 3)):
        if shift.recent and shift.ratio > 8 and shift.before > 1e-6:
            return Symptom(
                "the gradient's norm spikes",
                f"{shift.latest:.3g}, {shift.before:.3g} in {shift.name}; it is cut at "
                f"actor.grad_clip={history.option('actor.grad_clip', 1.0)}",
                "Look at the iteration's rewards and advantages (actor/advantage_abs_max): one huge reward is enough. "
                "algorithm.norm_by_std=true or a bounded reward; lower actor.grad_clip or actor.lr",
            )
    return None


@check("policy stands still", "actor/approx_kl_k3", "actor/grad_norm")
def frozen(history: History) -> Symptom | None:
    """Detect that optimizer steps do not change the policy, though there is something to learn from.

    For 5 iterations the gradient is 0 or the KL of an update with several steps below 1e-9, with groups that differ:
    float32's own rounding makes about 1e-13 of it, and a learning rate that does anything more than 1e-7.
    """
    steps = history.option("actor.mini_batches", 1) * history.option("actor.ppo_epochs", 1)
    norms, moves, tied = (
        history.latest(name, START) for name in ("actor/grad_norm", "actor/approx_kl_k3", "train/groups_tied")
    )
    if min(map(len, (norms, moves, tied))) < START or tied.max() >= 1:
        return None
    still = norms.max() == 0 or (steps > 1 and moves.max() < 1e-9)
    if not still:
        return None
    rate = history.latest("actor/lr", 1)
    return Symptom(
        "optimizer steps do not change it",
        f"gradient norm {norms[-1]:.3g}, KL of an update {moves[-1]:.1e}"
        + (f", learning rate {rate[-1]:.1e}" if rate.size else ""),
        "Raise actor.lr; see that some weights are trained (model.lora_rank, model.target_modules) and that advantages "
        "are not all 0 (actor/advantage_std)",
    )
