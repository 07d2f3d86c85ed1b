"""Rules for verl's keys about estimators, losses and corrections. :mod:`.tables` names them."""

from __future__ import annotations

from typing import Any, get_args

from ..algorithms.names import Rejection
from . import verl
from .translate import BadValueError, Given, Results
from .yaml12 import dump

_ACTOR = "actor_rollout_ref.actor."
_CORRECTION = "algorithm.rollout_correction."


def clip(given: Given) -> Results:
    """The ratio's bounds, each by its own key or by one for both."""
    both = f"{_ACTOR}clip_ratio"
    for side in ("low", "high"):
        source = next((key for key in (f"{both}_{side}", both) if given.has(key)), None)
        if source is None:
            continue
        value = given.value(source)
        of_ratio = _loss(given) in verl.NAMES["losses_of_ratios"]
        if side == "low" and of_ratio and isinstance(value, int | float) and value > 1:
            value = 1.0  # a ratio is never below 0: no limit there, and 1 is no limit here
        yield f"actor.clip_ratio_{side}", value, (source,)


def policy_loss(given: Given) -> Results:
    """The loss, and how token losses become one."""
    mode, aggregation = f"{_ACTOR}policy_loss.loss_mode", f"{_ACTOR}loss_agg_mode"
    theirs = _loss(given)
    if given.has(mode):
        yield "actor.policy_loss", verl.NAMES["losses"].get(theirs, theirs), (mode,)
    if theirs in verl.NAMES["losses_of_episodes"]:  # whatever is asked for, these have it there
        yield "actor.loss_agg_mode", "seq-mean-token-mean", (mode, aggregation)
    else:
        yield from given.passed({aggregation: "actor.loss_agg_mode"})


def _loss(given: Given) -> str:
    return str(given.value(f"{_ACTOR}policy_loss.loss_mode") or "vanilla")


def norm_by_std(given: Given) -> Results:
    """Which advantages are normalized."""
    estimator = _estimator(given)
    if estimator in ("grpo", "grpo_passk"):
        yield from given.passed({"algorithm.norm_adv_by_std_in_grpo": "algorithm.norm_by_std"})
    # Whitening over the batch is part of verl's GAE, and by definition of REINFORCE++; of none of the others.
    yield "algorithm.norm_adv", estimator == "gae", ()
    if estimator == "rloo":
        yield "algorithm.baseline", "group", ()


def _estimator(given: Given) -> Any:
    name = "algorithm.adv_estimator"
    value = given.verls[name].value if name in given.verls else verl.DEFAULTS[name]
    return verl.PPO[name].words.get(value, value) if isinstance(value, str) else value


def rollout_correction(given: Given) -> Results:
    """From the policy that sampled to the one that the update starts from: weights, and rejection."""
    bypass, loss, older = (f"{_CORRECTION}{name}" for name in ("bypass_mode", "loss_type", "use_policy_gradient"))
    on = given.value(bypass)
    if not isinstance(on, bool | None):
        raise BadValueError(bypass, f"is {dump(on)}; it must be true or false")
    if on is not None:
        yield "actor.old_logprobs", "rollout" if on else "recompute", (bypass,)
    yield from _weights(given, on is True)
    yield from _rejection(given, on is True)
    if given.value(loss) not in (None, "ppo_clip", "reinforce"):
        raise BadValueError(loss, f"is {dump(given.value(loss))}; it must be ppo_clip")
    for key, plain in ((loss, "ppo_clip"), (older, False)):
        if on is True and given.has(key) and given.value(key) != plain:
            given.refuse(key, f"is {dump(given.value(key))}; losses are clipped here: write {dump(plain)}")


def _weights(given: Given, bypass: bool) -> Results:
    """Importance weights; with bypass_mode the loss's own ratio is that of learner to engine."""
    level, cap, normalize = (
        f"{_CORRECTION}{name}" for name in ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
    )
    if bypass or not given.has(level):
        return
    modes = {"token": "token_tis", "sequence": "sequence_tis"}
    if (mode := modes.get(str(given.value(level)))) is None:
        raise BadValueError(level, f"is {dump(given.value(level))}; it must be token, sequence or null")
    yield "actor.importance_correction", mode, (level,)
    if given.has(cap):
        if "_" in str(given.value(cap)):
            text = "weights outside two bounds are not dropped here: write the upper one, or reject with rollout_rs"
            raise BadValueError(cap, f"is {dump(given.value(cap))}; {text}")
        yield "actor.tis_cap", _number(given.value(cap), cap), (cap,)
    yield from given.passed({normalize: "actor.importance_batch_normalize"})


def _rejection(given: Given, bypass: bool) -> Results:
    """What is left out.

    The bounds of *k1* are of engine over learner there (its k1 is minus the log-ratio), so the band is turned over:
    ``low <= engine / learner <= high`` is ``1 / high <= learner / engine <= 1 / low``.
    """
    criterion, veto = f"{_CORRECTION}rollout_rs", f"{_CORRECTION}rollout_token_veto_threshold"
    high, low = f"{criterion}_threshold", f"{criterion}_threshold_lower"
    if given.has(veto):
        given.refuse(veto, "a single token does not leave out its episode here: leave it at null")
    if not given.has(criterion):
        return
    if bypass:
        text = "with bypass_mode=true would compare anew at each step; here once, before the first: write bypass_mode="
        raise BadValueError(criterion, f"{text}false")
    name, band = str(given.value(criterion)), verl.NAMES["rejections"]
    ours = band.get(name, name)
    if ours not in (known := get_args(Rejection)):
        text = f"is {name}; it must be null or one of {', '.join({**band, **dict.fromkeys(known[4:])})}"
        raise BadValueError(criterion, text)
    if not given.has(high):
        raise BadValueError(high, f"must be given with rollout_rs={name}")
    yield "actor.rejection", ours, (criterion,)
    if ours not in band.values():
        yield "actor.rejection_kl", _number(given.value(high), high), (high,)
        return
    turned, bounds = name.endswith("_k1"), str(given.value(high)).split("_")
    if len(bounds) > (2 if turned else 1):
        raise BadValueError(high, f"is {dump(given.value(high))}; it must be {'LOW_HIGH, or ' * turned}a number")
    upper = _number(bounds[-1], high)
    if len(bounds) == 2:
        lower = _number(bounds[0], high)
    else:
        lower = _number(given.value(low), low) if given.has(low) and not turned else 1 / upper
    if turned:
        lower, upper = 1 / upper, 1 / lower
    yield "actor.rejection_low", lower, (high, low)
    yield "actor.rejection_high", upper, (high, low)


def _number(value: Any, key: str) -> float:
    """A positive number, be it written as text."""
    try:
        number = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise BadValueError(key, f"is {dump(value)}; it must be a positive number")
    return number
