"""The checks of a run. docs/doctor.md has the table of their verdicts on planted faults and on healthy runs.

Each function's first line says what it detects, the rest its threshold and where that comes from. Several report only
where the reward does not grow meanwhile (:meth:`History.gain`): a healthy run that learns fast may look like a run with
a fault that learns nothing. Thresholds without a derivation are multiples of what healthy runs of
``python -m benchmarks.doctor`` show.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from ..trajectory import Status
from .diagnosis import RARE, RECENT, START, Check, History, Symptom, shifts, trend, validation_gain, wilson

_GOOD = 0.9  # share solved from which on a run has little left to learn
_GAINED = 2.0  # standard errors that count as a gain
_ENOUGH = 20  # iterations before a run can be said to learn nothing
_WORTH = 0.3  # standard deviations of an episode's reward that would be worth having learned

CHECKS: list[Check] = []


def _check(
    name: str, *needs: str
) -> Callable[[Callable[[History], Symptom | None]], Callable[[History], Symptom | None]]:
    def register(find: Callable[[History], Symptom | None]) -> Callable[[History], Symptom | None]:
        CHECKS.append(Check(name, needs, find))
        return find

    return register


@_check("expert", "reference/expert", "reference/expert_solved")
def expert(history: History) -> Symptom | None:
    """Detect a scripted expert that earns less than is possible.

    It solves fewer than 95 % of its tasks (99 % interval; where any is solved at all: not every environment says so),
    earns no more than random replies, or less than the policy on validation by 5 standard errors.
    """
    seen = history.reference
    episodes = seen.get("reference/episodes", 1.0)
    if (
        seen["reference/expert_solved"] > 0
        and wilson(seen["reference/expert_solved"] * episodes, episodes, 2.6)[1] < 0.95
    ):
        return Symptom(
            "the environment's own expert does not solve its tasks: some cannot be solved, or are judged wrongly",
            f"solved {seen['reference/expert_solved']:.1%} of {episodes:g} episodes, mean return "
            f"{seen['reference/expert']:+.3f}",
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


@_check("null policy", "reference/null", "reference/null_limit")
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


def _grown(history: History, name: str, iterations: int) -> float:
    """Return how much a total has grown in the last iterations; 0 where it was not there before them."""
    totals = history.latest(name, iterations + 1)
    return max(0.0, float(totals[-1] - totals[0])) if len(totals) > iterations else 0.0


@_check("no signal", "train/groups_tied")
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
    dropped = _grown(history, "rollout/groups_dropped_zero_variance", len(tied))
    silent = float(tied.sum()) * groups + dropped
    if history.option("rollout.filter_variance_top_p", 1.0) < 1:  # a batch has fewer groups than it was asked for
        counts = (_grown(history, f"rollout/groups_{end}", len(tied)) for end in ("delivered", "dropped_low_variance"))
        all_groups = max(sum(counts), 1.0) + dropped
    else:
        all_groups = len(tied) * groups + dropped
    if wilson(silent, all_groups, 2.6)[0] <= 0.75 and history.latest("train/groups_tied", START).min() < 1:
        return None
    reward, solved = float(history.latest("train/reward", 3).mean()), history.solved()
    if late and (solved >= _GOOD or history.gain(slice(0, START)) > RARE):
        return None
    easy = solved >= _GOOD
    named = f"; for example {', '.join(history.tied)}" if history.tied else ""
    return Symptom(
        f"in {silent / all_groups:.0%} of the groups all episodes earned the same, so no reward "
        f"tells one reply from another ({'almost everything is' if easy else 'almost nothing may be'} solved)",
        f"{silent:.0f} of {all_groups:.0f} groups, mean reward {reward:g}, solved {solved:.1%}{named}",
        f"Take {'harder' if easy else 'easier'} tasks (the environment's options, env.kwargs), a higher "
        "rollout.temperature, more episodes a group (rollout.n), or a reward with more steps between failure and "
        "success",
    )


@_check("held-out check", "val/reward")
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


@_check("entropy", "actor/entropy")
def entropy(history: History) -> Symptom | None:
    """Detect that the entropy of the policy's tokens collapses, or erupts.

    Collapse: 3 iterations below a third of what it was; eruption: 2 iterations above twice what it was and 0.2 nats
    more. By 5 robust standard deviations without a gain of 2 standard errors in the reward, or with a loss of as many:
    batches of harder tasks have more entropy, so the deviations alone are wide.
    """
    if history.solved() >= _GOOD:
        return None
    for shift in shifts(history.train["actor/entropy"], 3):
        gain = history.gain(shift.where)
        if shift.ratio < 1 / 3 and shift.before > 0.05 and (gain < -_GAINED or (shift.z < -RARE and gain < _GAINED)):
            return Symptom(
                "the entropy collapses: the policy says the same on every try and explores no more",
                f"{shift.latest:.4f} nats a token, {shift.before:.4f} in {shift.name}",
                "Lower actor.lr; raise actor.clip_ratio_high or rollout.temperature; hold it up with "
                "actor.entropy_target, or try actor.policy_loss=clip_cov; go back to an earlier checkpoint "
                "(trainer.resume_from_path)",
            )
    for shift in shifts(history.train["actor/entropy"], 2):
        rise, gain = shift.before * shift.ratio - shift.before, history.gain(shift.where)
        if shift.ratio > 2 and rise > 0.2 and (gain < -_GAINED or (shift.z > RARE and gain < _GAINED)):
            return Symptom(
                "the entropy erupts: the policy falls apart into noise",
                f"{shift.latest:.3f} nats a token, {shift.before:.3f} in {shift.name}",
                "Lower actor.entropy_coeff and actor.lr; see that rollout and learner agree (actor/rollout_kl); "
                "go back to an earlier checkpoint (trainer.resume_from_path)",
            )
    return None


@_check("template", "train/task_found", "train/task_chance")
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
        if lost and history.gain(shift.where) < _GAINED:
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


@_check("mismatch", "actor/rollout_kl")
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


@_check("staleness", "rollout/staleness_mean")
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


@_check("cut replies", "train/cut_paid")
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


@_check("length", "train/turn_tokens")
def length(history: History) -> Symptom | None:
    """Detect that replies get longer or shorter and earn no more for it.

    In 3 iterations half as long again, or shorter than 0.6 times, what they were, by 5 robust standard deviations, with
    a gain of less than 2 standard errors.
    """
    for shift in shifts(history.train["train/turn_tokens"], 3, floor=0.05):
        if (shift.ratio > 1.5 or shift.ratio < 0.6) and abs(shift.z) > RARE and history.gain(shift.where) < _GAINED:
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


@_check("kl", "actor/approx_kl_k3")
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
        if s.ratio > 5 and s.z > RARE and s.recent and history.gain(s.where) < _GAINED
    ]
    idle = len(history.steps) >= 2 * START and history.gain(slice(-2 * START, -START)) < _GAINED
    if (
        away.min() > 3 * target
        or (away.min() > 0.5 and idle and history.solved() < _GOOD)
        or (away.min() > 0.05 and jump)
    ):
        return Symptom(
            "the policy runs away from the reference",
            f"KL to the reference {away[-1]:.3f} nats a token" + (f", target {target:g}" if adaptive else ""),
            "Raise actor.kl_loss_coef (or algorithm.kl_ctrl.kl_coef), lower actor.lr; where it earns more meanwhile, "
            "read what it says (RUN/conversations)",
        )
    return None


@_check("gradient", "actor/grad_norm")
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


@_check("observation loss", "actor/grad_norm")
def observation_loss(history: History) -> Symptom | None:
    """Detect that the observations' loss drowns the reward, or finds nothing to learn from (where it is on).

    In 5 iterations at least 90 % of the gradient is its, by ``actor/observation_gradient``, and the reward has not
    gained 2 standard errors over the first 5; or for 3 iterations there was no observation token.
    """
    weight = history.option("actor.observation_loss", 0.0)
    tokens, shares = (history.latest(f"actor/observation_{name}", START) for name in ("share", "gradient"))
    if len(tokens) >= 3 and tokens[-3:].max() == 0:
        return Symptom(
            "actor.observation_loss has no token to learn from: no message answers a reply with such a role",
            f"no observation token in 3 iterations, actor.observation_loss={weight:g}",
            "See which roles the environment answers with (`textenvs play`) and set actor.observation_roles; episodes "
            "of one reply, or with a new context for every turn, have no observation after a reply: set "
            "actor.observation_loss=0",
        )
    enough = len(shares) == START and len(history.steps) >= START + 3
    if not enough or shares.min() < 0.9 or history.gain(slice(0, START)) >= _GAINED or history.solved() >= _GOOD:
        return None
    nll = history.latest("actor/observation_nll", 1)
    return Symptom(
        "actor.observation_loss drowns the reward: the policy learns what its environment says, and little else",
        f"{shares[-1]:.0%} of the gradient, actor.observation_loss={weight:g}"
        + (f", cross-entropy {nll[-1]:.3f} nats a token" if nll.size else ""),
        "Lower actor.observation_loss (0.005 to 0.05 were published), or leave a role whose messages cannot be "
        "predicted out of actor.observation_roles; see that rewards tell replies apart (train/groups_tied)",
    )


@_check("reaction credit", "actor/reaction_named")
def reaction_credit(history: History) -> Symptom | None:
    """Detect that no user's move is named any more, or that returns contradict the values of the moves.

    No turn has one in 3 iterations; or in 5 iterations the sign test is below one half by its 95 % interval, where the
    credit is no control.
    """
    named, highs = (history.latest(f"actor/reaction_{name}", START) for name in ("named", "agreement_high"))
    if len(named) >= 3 and named[-3:].max() == 0:
        return Symptom(
            "algorithm.reaction_credit has nothing to add: no turn has a move of the user",
            f"no move in 3 iterations, algorithm.reaction_credit.weight="
            f"{history.option('algorithm.reaction_credit.weight', 0.0):g}",
            "The environment has no scripted user, a model plays it and no judge names its moves "
            "(reward_models.NAME.kind=moves), or the policy no longer talks to it: set "
            "algorithm.reaction_credit.weight=0, or read conversations (RUN/conversations)",
        )
    control = history.option("algorithm.reaction_credit.control", "none")
    if len(highs) < START or highs.max() >= 0.5 or control != "none":
        return None
    return Symptom(
        "returns contradict the values of the user's moves: what the table calls good comes before less reward",
        f"the signs agree in {history.latest('actor/reaction_agreement', START).mean():.0%} of the turns",
        "See actor/reaction_advantage/MOVE, the estimator's own advantage of each move, and change the values of "
        "algorithm.reaction_credit.table, or set algorithm.reaction_credit.weight=0",
    )


@_check("teacher", "actor/teacher_share")
def teacher(history: History) -> Symptom | None:
    """Detect that a teacher has nothing to teach, or says little but that the policy's tokens are impossible.

    For 3 iterations no token had a teacher; or in 5 at least half of them were at ``actor.distill.clip``, and the
    reward has not gained 2 standard errors over the first 5.
    """
    shares, clipped = (history.latest(f"actor/teacher_{name}", START) for name in ("share", "clipped"))
    context = history.option("actor.distill.context", "none")
    if len(shares) >= 3 and shares[-3:].max() == 0:
        return Symptom(
            "actor.distill has no token to teach: the environment tells the teacher nothing in any state",
            f"no token with a teacher in 3 iterations, actor.distill.context={context}",
            "See what the environment's `privileged` returns, and choose another actor.distill.context",
        )
    enough = len(clipped) == START and len(history.steps) >= START + 3
    if not enough or clipped.min() < 0.5 or history.gain(slice(0, START)) >= _GAINED or history.solved() >= _GOOD:
        return None
    return Symptom(
        "the teacher finds most of the policy's tokens impossible: both are too far apart to learn from sampled tokens",
        f"{clipped[-1]:.0%} of the tokens at actor.distill.clip, actor.distill.context={context}",
        "Imitate the teacher's episodes first (`python -m trainers.sft`); see that the teacher can use what it is "
        "shown, and that its tokenizer and chat template are the policy's",
    )


@_check("dead environments", "rollout/env_made")
def dead_environments(history: History) -> Symptom | None:
    """Detect that environments hang, or episodes fail.

    In 3 iterations one hangs that did not before (``rollout/env_hung`` counts all), or more than 2 % of the episodes
    failed, by the lower end of the 99 % interval.
    """
    names = ("error_env", "error_engine", "error_reward", "truncated_time")
    counts = {s.value: history.latest_sum(f"rollout/episodes_{s.value}", 3) for s in Status if s is not Status.ABORTED}
    failed, total = sum(counts[name] for name in names), sum(counts.values())
    hung = history.latest("rollout/env_hung", 4)
    baseline = hung[0] if len(hung) == 4 and hung[0] <= hung[-1] else 0.0  # a run that resumes counts from 0
    hangs = bool(hung.size) and hung[-1] > baseline
    if not hangs and wilson(failed, total, 2.6)[0] <= 0.02:
        return None
    worst = max(names, key=counts.__getitem__)
    where = {
        "error_env": "The environment raises: its message is above",
        "error_engine": "The engine fails: its message is above",
        "error_reward": "A reward that comes later fails (reward_model, judge, custom_reward_function)",
        "truncated_time": "Steps or replies take too long (rollout.step_timeout_s, generation_timeout_s)",
    }
    return Symptom(
        "some hang for good" if hangs else "episodes fail, and are lost to training",
        f"{failed:.0f} of {total:.0f} episodes of the last iterations failed ({worst}), "
        f"{hung[-1] if hung.size else 0:.0f} environments hang",
        f"{where[worst]}. env.backend=process keeps a broken one apart from the others; play one by hand: "
        "`textenvs play`",
    )


@_check("slow environments", "rollout/time_step_s", "rollout/time_generate_s")
def slow_environments(history: History) -> Symptom | None:
    """Detect that episodes spend more time in the environment than in the engine.

    In the median of 5 iterations resets and steps take twice as long as generation, and 0.3 s an episode: below that it
    is the event loop that they wait for.
    """
    step, generate, reset = (history.latest(f"rollout/time_{name}_s", START) for name in ("step", "generate", "reset"))
    if not len(step) == len(generate) == len(reset) == START:
        return None
    own = step + reset
    if np.median(own / np.maximum(generate, 1e-9)) <= 2 or np.median(own) < 0.3:
        return None
    return Symptom(
        "episodes wait for them longer than for the engine",
        f"{step[-1]:.2f} s in steps and {reset[-1]:.2f} s in resets an episode, {generate[-1]:.2f} s in the engine",
        "Let them run beside each other (env.backend=thread or process, env.workers), play more episodes at a time "
        "(rollout.max_running, rollout.staleness=1), or find out what the environment waits for",
    )


@_check("policy stands still", "actor/approx_kl_k3", "actor/grad_norm")
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


_GENTLER = (
    "Lower actor.lr, or take more episodes an iteration (rollout.groups_per_batch): where few groups differ, a step is "
    "mostly noise; see the verdicts before this one (entropy, kl, mismatch, gradient); go back to an earlier "
    "checkpoint (trainer.resume_from_path)"
)


@_check("reward falls", "train/reward")
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


@_check("learns nothing", "train/reward", "train/reward_std")
def learns_nothing(history: History) -> Symptom | None:
    """Detect that neither reward nor held-out check has a trend, after 20 iterations or more.

    The straight line through all iterations rises by less than 0.3 standard deviations of an episode's
    reward, with 97.5 % confidence, and by no more than twice its error; validation has not gained 1.3 standard errors.
    Few episodes an iteration need more iterations for that.
    """
    rewards = history.comparable("reward")
    if rewards is None or len(rewards) < _ENOUGH or history.solved() >= _GOOD:
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
