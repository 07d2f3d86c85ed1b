"""The checks of a run. docs/doctor.md has the table of their verdicts on planted faults and on healthy runs.

Each function's first line says what it detects, the rest its threshold and where that comes from. Several report only
where the reward does not grow meanwhile (:meth:`History.gain`): a healthy run that learns fast may look like a run with
a fault that learns nothing. Thresholds without a derivation are multiples of what healthy runs of
``python -m benchmarks.doctor`` show.
"""

from ..diagnosis import Check
from .environments import broken_programs, dead_environments, slow_environments
from .policy import cut_replies, entropy, frozen, gradient, kl, length, mismatch, staleness, template
from .rewards import expert, held_out, learns_nothing, no_signal, null_policy, reward_falls
from .signals import observation_loss, reaction_credit, teacher

#: In the order in which they are looked at.
CHECKS: tuple[Check, ...] = (
    expert,
    null_policy,
    no_signal,
    held_out,
    entropy,
    template,
    mismatch,
    staleness,
    cut_replies,
    length,
    kl,
    gradient,
    observation_loss,
    reaction_credit,
    teacher,
    dead_environments,
    broken_programs,
    slow_environments,
    frozen,
    reward_falls,
    learns_nothing,
)

__all__ = ["CHECKS"]
