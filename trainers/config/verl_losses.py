"""Joint rules for verl's keys about estimators, losses and corrections. :mod:`.tables` names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from . import verl, verl_names
from .fields import Rejection
from .translate import BadValueError, Given, Result
from .yaml12 import dump

_ACTOR = "actor_rollout_ref.actor."
_CORRECTION = "algorithm.rollout_correction."


def clip(given: Given) -> Iterator[Result]:
    """The ratio's bounds, each by its own key or by one for both."""
    both = f"{_ACTOR}clip_ratio"
    for side in ("low", "high"):
        key = f"{both}_{side}"
        if given.has(key) or given.has(both):
            source = key if given.has(key) else both
            value = given.value(source)
            if side == "low" and _loss(given) in verl_names.OF_RATIOS and isinstance(value, int | float) and value > 1:
                value = 1.0  # a ratio is never below 0: no limit there, and 1 is no limit here
            yield Result(f"actor.clip_ratio_{side}", value, of=(source,))


def policy_loss(given: Given) -> Iterator[Result]:
    """The loss, and how token losses become one."""
    mode, aggregation = f"{_ACTOR}policy_loss.loss_mode", f"{_ACTOR}loss_agg_mode"
    theirs = _loss(given)
    if given.has(mode):
        yield Result("actor.policy_loss", verl_names.LOSSES.get(theirs, theirs), of=(mode,))
    if theirs in verl_names.OF_EPISODES:  # whatever is asked for, these have it there
        yield Result("actor.loss_agg_mode", "seq-mean-token-mean", of=(mode, aggregation))
    elif given.has(aggregation):
        yield Result("actor.loss_agg_mode", given.value(aggregation), of=(aggregation,))


def _loss(given: Given) -> str:
    return str(given.value(f"{_ACTOR}policy_loss.loss_mode") or "vanilla")


def norm_by_std(given: Given) -> Iterator[Result]:
    """Which advantages are normalized."""
    key = "algorithm.norm_adv_by_std_in_grpo"
    estimator = _estimator(given)
    if estimator in ("grpo", "grpo_passk") and given.has(key):
        yield Result("algorithm.norm_by_std", given.value(key), of=(key,))
    elif given.has(key):
        yield Result("", f"not used with algorithm.adv_estimator={estimator}", of=(key,))
    # Whitening over the batch is part of verl's GAE, and by definition of REINFORCE++; of none of the others.
    yield Result("algorithm.norm_adv", estimator == "gae")
    if estimator == "rloo":
        yield Result("algorithm.baseline", "group")


def _estimator(given: Given) -> Any:
    name = "algorithm.adv_estimator"
    given_name = given.verls[name].value if name in given.verls else verl_names.DEFAULTS[name]
    return verl.PPO[name].words.get(given_name, given_name) if isinstance(given_name, str) else given_name


def rollout_correction(given: Given) -> Iterator[Result]:
    """From the policy that sampled to the one that the update starts from: weights, and rejection."""
    bypass = f"{_CORRECTION}bypass_mode"
    on = given.value(bypass)
    if given.has(bypass):
        if not isinstance(on, bool):
            raise BadValueError(bypass, f"is {dump(on)}; it must be true or false")
        yield Result("actor.old_logprobs", "rollout" if on else "recompute", of=(bypass,))
    yield from _weights(given, on is True)
    yield from _rejection(given, on is True)
    loss, older = f"{_CORRECTION}loss_type", f"{_CORRECTION}use_policy_gradient"
    if given.value(loss) not in (None, "ppo_clip", "reinforce"):
        raise BadValueError(loss, f"is {dump(given.value(loss))}; it must be ppo_clip")
    for key, plain in ((loss, "ppo_clip"), (older, False)):
        if on is True and given.has(key) and given.value(key) != plain:
            yield Result(key, problem=f"is {dump(given.value(key))}; losses are clipped here: write {dump(plain)}")
        else:
            yield Result("", "read with bypass_mode=true alone" if on is not True else "losses are clipped", of=(key,))


def _weights(given: Given, bypass: bool) -> Iterator[Result]:
    """Importance weights."""
    level, cap, normalize = (
        f"{_CORRECTION}{name}" for name in ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
    )
    if not given.has(level):
        yield Result("", "no weights are asked for: rollout_is is null", of=(level, cap, normalize))
        return
    if bypass:
        why = "not used: with bypass_mode=true the loss's own ratio is that of learner to engine"
        yield Result("", why, of=(level, cap, normalize))
        return
    modes = {"token": "token_tis", "sequence": "sequence_tis"}
    if (mode := modes.get(str(given.value(level)))) is None:
        raise BadValueError(level, f"is {dump(given.value(level))}; it must be token, sequence or null")
    yield Result("actor.importance_correction", mode, of=(level,))
    if given.has(cap):
        if "_" in str(given.value(cap)):
            text = "weights outside two bounds are not dropped here: write the upper one, or reject with rollout_rs"
            raise BadValueError(cap, f"is {dump(given.value(cap))}; {text}")
        yield Result("actor.tis_cap", _number(given.value(cap), cap), of=(cap,))
    if given.has(normalize):
        yield Result("actor.importance_batch_normalize", given.value(normalize), of=(normalize,))


def _rejection(given: Given, bypass: bool) -> Iterator[Result]:
    """What is left out.

    The bounds of *k1* are of engine over learner there (its k1 is minus the log-ratio), so the band is turned over:
    ``low <= engine / learner <= high`` is ``1 / high <= learner / engine <= 1 / low``.
    """
    criterion, high, low, veto = (
        f"{_CORRECTION}{name}"
        for name in (
            *("rollout_rs", "rollout_rs_threshold", "rollout_rs_threshold_lower"),
            "rollout_token_veto_threshold",
        )
    )
    if given.has(veto):
        yield Result(veto, problem="a single token does not leave out its episode here: leave it at null")
    else:
        yield Result("", "the default", of=(veto,))
    if not given.has(criterion):
        yield Result("", "nothing is rejected: rollout_rs is null", of=(criterion, high, low))
        return
    if bypass:
        text = "with bypass_mode=true would compare anew at each step; here once, before the first: write bypass_mode="
        raise BadValueError(criterion, f"{text}false")
    name = str(given.value(criterion))
    ours = verl_names.REJECTIONS.get(name, name)
    if ours not in (known := get_args(Rejection)):
        text = (
            f"is {name}; it must be null or one of {', '.join({**verl_names.REJECTIONS, **dict.fromkeys(known[4:])})}"
        )
        raise BadValueError(criterion, text)
    if not given.has(high):
        raise BadValueError(high, f"must be given with rollout_rs={name}")
    yield Result("actor.rejection", ours, of=(criterion,))
    if ours not in verl_names.REJECTIONS.values():
        yield Result("actor.rejection_kl", _number(given.value(high), high), of=(high,))
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
    yield Result("actor.rejection_low", lower, of=(high, low))
    yield Result("actor.rejection_high", upper, of=(high, low))


def _number(value: Any, key: str) -> float:
    """A positive number, be it written as text.

    Raises:
        BadValueError: It is none.
    """
    try:
        number = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise BadValueError(key, f"is {dump(value)}; it must be a positive number")
    return number
