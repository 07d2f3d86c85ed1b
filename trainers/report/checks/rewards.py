"""Checks of the reward: what can be earned, whether it tells replies apart, and whether it grows."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np

from ..diagnosis import RARE, RECENT, START, History, Symptom, trend, validation_gain, wilson
from .base import GOOD, check

_GENTLER = (
    "Lower actor.lr, or take more episodes an iteration (rollout.groups_per_batch): where few groups differ, a step is "
    "mostly noise; see the verdicts before this one (entropy, kl, mismatch, gradient); go back to an earlier "
    "checkpoint (trainer.resume_from_path)"
)
_ENOUGH = 20  # iterations before a run can be said to learn nothing
_WORTH = 0.3  # standard deviations of an episode's reward that would be worth having learned


@check("expert", "reference/expert")
def expert(history: History) -> Symptom | None:
    """Detect a scripted expert that earns less than is possible.

    It solves fewer than 95 % of its tasks (99 % interval; where any is solved at all: not every environment ends so),
    earns no more than random replies, or less than the policy on validation by 5 standard errors.
    """
    seen = history.reference
    episodes, solved = seen.get("reference/episodes", 1.0), seen.get("reference/expert_solved", 0.0)
    if solved > 0 and wilson(solved * episodes, episodes, 2.6)[1] < 0.95:
        return Symptom(
            "the environment's own expert does not solve its tasks: some cannot be solved, or are judged wrongly",
            f"solved {solved:.1%} of {episodes:g} episodes, mean return {seen['reference/expert']:+.3f}",
            f"Run `textenvs audit {history.option('env.id', 'ID')}` and read an episode of the expert that fails",
        )
    if seen["reference/expert"] <= seen.get("reference/random", -math.inf):
        return Symptom(
            "the environment's own expert earns no more than random replies: nothing is paid, or it is judged wrongly",
            f"expert {seen['reference/expert']:+.3f}, random replies {seen['reference/random']:+.3f}, over "
            f"{episodes:g} episodes each",
            f"Run `textenvs audit {history.option('env.id', 'ID')}`",
        )
    if history.val:
        row = history.val[max(history.val)]
        error = math.hypot(row.get("val/reward_se", 0.0), seen.get("reference/expert_se", 0.0))
        if row["val/reward"] > seen["reference/expert"] + RARE * max(error, 1e-6):
            return Symptom(
                "the policy earns more than the environment's expert: the expert is not the maximum, or the reward can "
                "be had without the task",
                f"validation {row['val/reward']:+.3f}, expert {seen['reference/expert']:+.3f}, error {error:.3f}",
                "Read conversations of the last validation (RUN/conversations); list the trick as one of the "
                "environment's attacks() and mend the reward",
            )
    return None


@check("null policy", "reference/null", "reference/null_limit")
def null_policy(history: History) -> Symptom | None:
    """Detect that a reply which ignores the task earns nearly what the expert earns.

    The best of the environment's attacks (silence, filler, parrot, ... and its own) earns more than the limit that
    ``textenvs audit`` holds it to, the expert's return less ``attack_margin`` of the range above random replies, by 3
    standard errors; or more than the expert itself.
    """
    seen = history.reference
    error = math.hypot(seen.get("reference/null_se", 0.0), seen.get("reference/expert_se", 0.0))
    if seen["reference/null"] <= seen["reference/null_limit"] + 3 * error:
        return None
    return Symptom(
        "a policy that ignores the task earns about as much as the expert: it is what will be learned",
        f"best cheap policy {seen['reference/null']:+.3f}, expert {seen.get('reference/expert', math.nan):+.3f}, "
        f"random replies {seen.get('reference/random', math.nan):+.3f}",
        f"Run `textenvs audit {history.option('env.id', 'ID')}`, which names the policy, and pay for the task alone",
    )


@check("no signal", "train/groups_tied")
def no_signal(history: History) -> Symptom | None:
    """Detect that all episodes of a group earned the same, in most groups: no reward tells replies apart.

    The share of such groups over the last 3 iterations (5 at the start), those among them that
    ``rollout.filter_zero_variance`` or ``rollout.filter_variance_top_p`` dropped, is above 75 % by its 99 % interval;
    or it is all of 5. Not where the run has come to solve nearly everything, or learns from a teacher alone.
    """
    if history.option("actor.distill.teacher", None) and not history.option("actor.distill.rewards", True):
        return None
    tied = history.latest("train/groups_tied", START)
    if len(tied) < START:
        return None
    groups = float(history.option("rollout.groups_per_batch", 16))
    late = len(history.steps) > START
    tied = tied[-3:] if late else tied
    dropped = history.grown("rollout/groups_dropped_zero_variance", len(tied))
    silent = float(tied.sum()) * groups + dropped
    if history.option("rollout.filter_variance_top_p", 1.0) < 1:  # a batch has fewer groups than it was asked for
        counts = (history.grown(f"rollout/groups_{end}", len(tied)) for end in ("delivered", "dropped_low_variance"))
        all_groups = max(sum(counts), 1.0) + dropped
    else:
        all_groups = len(tied) * groups + dropped
    if wilson(silent, all_groups, 2.6)[0] <= 0.75 and history.latest("train/groups_tied", START).min() < 1:
        return None
    reward, solved = float(history.latest("train/reward", 3).mean()), history.solved()
    if late and (solved >= GOOD or history.gain(slice(0, START)) > RARE):
        return None
    easy, judged = solved >= GOOD, bool(history.latest("train/solved", 1).size)
    share = f", solved {solved:.1%}" if judged else ""
    outcome = "" if not judged else f" ({'almost everything is' if easy else 'almost nothing may be'} solved)"
    named = f"; for example {', '.join(history.tied)}" if history.tied else ""
    return Symptom(
        f"in {silent / all_groups:.0%} of the groups all episodes earned the same, so no reward "
        f"tells one reply from another{outcome}",
        f"{silent:.0f} of {all_groups:.0f} groups, mean reward {reward:g}{share}{named}",
        f"Take {'harder' if easy else 'easier' if judged else 'other'} tasks (the environment's options, env.kwargs), "
        "a higher rollout.temperature, more episodes a group (rollout.n), or a reward with more steps between failure "
        "and success",
    )


@check("held-out check", "val/reward")
def held_out(history: History) -> Symptom | None:
    """Detect that the training reward rises and the held-out check does not.

    Since the first or one of the last 6 validations training has gained 5 standard errors, validation less than a
    quarter of that, and the difference of both gains is above 5 standard errors. Training is the mean of 3 iterations.
    """
    steps, errors = sorted(history.val), np.array(history.train["train/reward_se"])
    if len(steps) < 2 or not errors.size or max(history.steps) > steps[-1] + 2:
        return None
    rewards = history.comparable("reward")
    if rewards is None:
        return None
    for step in sorted({steps[0], *steps[-7:-1]}):
        done = bisect_right(history.steps, step)
        old, new = slice(max(0, done - 3), max(3, done)), slice(-3, None)
        if len(rewards) < max(3, done) + 3:
            continue
        rise = float(rewards[new].mean() - rewards[old].mean())
        error = math.sqrt(float((errors[new] ** 2).sum() + (errors[old] ** 2).sum())) / 3
        held, held_error = validation_gain(history.val[step], history.val[steps[-1]])
        if rise > RARE * error and held < rise / 4 and rise - held > RARE * math.hypot(error, held_error):
            return Symptom(
                "the training reward rises and the held-out check does not: the policy learns the training tasks by "
                "heart, or what pays there and not elsewhere",
                f"training {rise:+.3f} (error {error:.3f}), validation {held:+.3f} (error {held_error:.3f}) since "
                f"iteration {step}",
                "Give more tasks (data.train_size, data.train_files); where training has terms of its own "
                "(reward_model, custom_reward_function, multiturn_reward), compare train/terms/* with val/terms/*; see "
                "that env.kwargs and env.val_kwargs pay the same",
            )
    return None


@check("reward falls", "train/reward")
def reward_falls(history: History) -> Symptom | None:
    """Detect that the reward falls far below what it was.

    The mean of 3 iterations is below the best mean of 5 before by 5 standard errors and half a standard deviation of an
    episode's reward; or the last validation is below the best one by 5 standard errors and a quarter of that deviation.
    """
    rewards, spread = history.comparable("reward"), history.latest("train/reward_std", RECENT)
    if spread.size and len(history.val) >= 2:
        last, top = max(history.val), max(history.val, key=lambda step: history.val[step]["val/reward"])
        now, then = history.val[last], history.val[top]
        lost = then["val/reward"] - now["val/reward"]
        noise = math.hypot(now.get("val/reward_se", math.inf), then.get("val/reward_se", math.inf))
        if lost > max(RARE * noise, 0.25 * float(spread.max())):
            return Symptom(
                "the policy unlearns what it could do, on held-out tasks",
                f"{now['val/reward']:+.3f} at iteration {last}, {then['val/reward']:+.3f} at iteration {top}",
                _GENTLER,
            )
    if rewards is None or len(rewards) < START + 3 or not spread.size:
        return None
    means = np.convolve(rewards[:-3], np.ones(START) / START, "valid")
    best = int(means.argmax())
    gain = history.gain(slice(best, best + START))
    fall = float(means[best] - rewards[-3:].mean())
    if gain >= -RARE or fall < 0.5 * float(spread.max()):
        return None
    return Symptom(
        "the policy unlearns what it could do",
        f"{rewards[-3:].mean():+.3f} in the last 3 iterations, {means[best]:+.3f} in iterations "
        f"{history.steps[best]} to {history.steps[best + START - 1]}",
        _GENTLER,
    )


@check("learns nothing", "train/reward", "train/reward_std")
def learns_nothing(history: History) -> Symptom | None:
    """Detect that neither reward nor held-out check has a trend, after 20 iterations or more.

    The straight line through all iterations rises by less than 0.3 standard deviations of an episode's
    reward, with 97.5 % confidence, and by no more than twice its error; validation has not gained 1.3 standard errors.
    Few episodes an iteration need more iterations for that.
    """
    rewards = history.comparable("reward")
    if rewards is None or len(rewards) < _ENOUGH or history.solved() >= GOOD:
        return None
    change, error = trend(rewards)
    spread = float(np.median(history.latest("train/reward_std", len(rewards))))
    if change + 2 * error >= _WORTH * spread or change > 2 * error:
        return None
    held = ""
    if len(history.val) >= 2:
        gain, noise = validation_gain(history.val[min(history.val)], history.val[max(history.val)])
        if gain > 1.3 * noise:
            return None
        held = f"; validation {gain:+.3f} (95 % interval {gain - 1.96 * noise:+.3f} to {gain + 1.96 * noise:+.3f})"
    low, high = change - 1.96 * error, change + 1.96 * error
    worse = change < -2 * error
    return Symptom(
        f"the run has {'unlearned something' if worse else 'learned nothing'} in {len(rewards)} iterations",
        f"reward {change:+.3f} (95 % interval {low:+.3f} to {high:+.3f}), 0.3 deviations of an episode are "
        f"{_WORTH * spread:.3f}{held}",
        _GENTLER
        if worse
        else "See that rewards tell good replies from bad ones (`textenvs audit`, RUN/conversations), that groups "
        "differ (train/groups_tied), raise actor.lr or the episodes of an iteration (rollout.groups_per_batch, "
        "rollout.n)",
    )
