"""The entropy bonus that holds a policy's entropy up to a target."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainers.algorithms.kl import EntropyBonus

entropies = st.lists(st.floats(0, 5, allow_nan=False), max_size=30)


@given(entropies, st.floats(0, 1), st.floats(0.01, 4), st.floats(1e-4, 0.1))
def test_entropy_weight_follows_target(seen, weight, target, step):
    bonus = EntropyBonus(weight, target, step)
    for entropy in seen:
        before = bonus.weight
        bonus.update(entropy)
        if entropy < target:
            assert bonus.now == bonus.weight == before + step
        else:
            assert (bonus.now, bonus.weight) == (0.0, max(0.0, before - step))


@given(entropies, st.floats(0, 1))
def test_without_target_it_is_constant(seen, weight):
    bonus = EntropyBonus(weight)
    for entropy in seen:
        bonus.update(entropy)
    assert bonus.now == weight
    assert not bonus.state_dict()


@given(entropies, entropies)
def test_entropy_bonus_resumes_exactly(before, after):
    whole, first = EntropyBonus(0.0, 1.0), EntropyBonus(0.0, 1.0)
    for entropy in before:
        whole.update(entropy)
        first.update(entropy)
    resumed = EntropyBonus(0.0, 1.0)
    resumed.load_state_dict(first.state_dict())
    for entropy in after:
        whole.update(entropy)
        resumed.update(entropy)
    assert (resumed.weight, resumed.now) == (whole.weight, whole.now)


def climbed(bonus: EntropyBonus, steps: int = 3000, lr: float = 0.5) -> np.ndarray:
    """Entropies of a softmax over eight arms, the first of which pays, on the gradient of reward and bonus."""
    logits, pays, seen = np.zeros(8), np.eye(8)[0], []
    for _ in range(steps):
        p = np.exp(logits - logits.max())
        p /= p.sum()
        entropy = -float(p @ np.log(p))
        seen.append(entropy)
        logits += lr * p * (pays - p @ pays + bonus.now * (-np.log(p) - entropy))
        bonus.update(entropy)
    return np.array(seen[-500:])


def test_policy_that_would_become_certain_stays_at_target():
    assert climbed(EntropyBonus(0.0)).max() < 0.05
    held = climbed(EntropyBonus(0.0, target=0.7))
    assert abs(held.mean() - 0.7) < 0.07
