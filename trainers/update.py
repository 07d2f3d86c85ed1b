"""A step of the actor on a mini-batch, and the numbers of an iteration's steps as one.

Only the episodes that the gradient depends on are computed with one. The entropy is of all: a group whose episodes
earned the same has no gradient and often a low entropy, which is how a policy collapses. What an update leaves out
costs a forward pass without a gradient, once an iteration, and none where ``actor.old_logprobs=recompute`` has made it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cluster.group import LearnerGroup
from .config.schema import ActorSection
from .credit import has_gradient, policy_loss
from .learner import Learner
from .trajectory import Trajectory, action_offsets


def over_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Numbers of an iteration's optimizer steps as one: their mean, and the most of ``peak_gib``."""
    columns = {name: [each[name] for each in steps if name in each] for name in dict.fromkeys(itertools.chain(*steps))}
    return {
        name: float(max(values) if name.endswith("/peak_gib") else np.mean(values)) for name, values in columns.items()
    }


def update_actor(
    learner: Learner | LearnerGroup,
    actor: ActorSection,
    part: Sequence[Trajectory],
    columns: Mapping[str, NDArray[np.float64]],
    mask: NDArray[np.bool_],
    spread: NDArray[np.float64],
    record: Sequence[str] = (),
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """A step of the actor on a mini-batch, of which only the episodes that the gradient depends on are computed.

    Weights are of the whole mini-batch; means are over what is computed, but for ``entropy``, which is over all tokens;
    what is recorded is NaN elsewhere. ``spread`` are the tokens' entropies as far as they are known (else NaN); it is
    returned with those of the episodes that the step leaves out.
    """
    offsets = action_offsets(part)
    needed = has_gradient(actor, columns["advantages"], mask, offsets)
    without = 1.0 - float(needed.mean())
    if not needed.any():  # the optimizer's momentum takes its step all the same
        counted = np.diff(np.concatenate([[0], np.cumsum(mask)])[offsets]) > 0
        needed[np.where(counted, [len(each.token_ids) for each in part], np.inf).argmin()] = True
    tokens = np.repeat(needed, np.diff(offsets))
    spread = spread.copy()
    left_out = [each for each, is_needed in zip(part, needed, strict=True) if not is_needed]
    spread[~tokens] = entropies_of(learner, left_out, spread[~tokens])  # before the step
    part = [each for each, is_needed in zip(part, needed, strict=True) if is_needed]
    columns = {name: column[tokens] for name, column in columns.items()}
    columns["share"] = columns["share"] / columns["share"].sum()
    metrics = learner.update_actor(part, columns, policy_loss(actor, bool(record)), record)
    for name in record:
        whole = np.full(len(tokens), np.nan, np.float32)
        whole[tokens] = metrics[name]
        metrics[name] = whole
    entropy = (metrics["entropy"] * tokens.sum() + spread[~tokens].sum()) / len(tokens)
    return metrics | {"entropy": float(entropy), "episodes_without_gradient": without}, spread


def entropies_of(
    learner: Learner | LearnerGroup, part: Sequence[Trajectory], entropies: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the entropies of all action tokens; where some are NaN, by a forward pass without a gradient."""
    if not np.isnan(entropies).any():
        return entropies
    return np.concatenate(learner.logprobs(part, entropy=True)[1]).astype(np.float64)


def named(role: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics as ``role/name``, those that are finite."""
    return {f"{role}/{name}": value for name, value in metrics.items() if math.isfinite(value)}
