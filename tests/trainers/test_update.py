"""The entropy that an update reports and steers by is that of all episodes, also of those without a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from trajectories import trajectory_of, turns_of

from trainers.algorithms.batch import Advantages
from trainers.algorithms.kl import EntropyBonus
from trainers.command_line import resolve
from trainers.learner import Learner
from trainers.models import tiny
from trainers.section import ActorSection
from trainers.trajectory import action_offsets
from trainers.update import Prepared, Update

RNG = np.random.default_rng(3)
#: Of different lengths, so that means of means are not the mean.
SIZES = (6, 30, 9, 14, 22, 7, 11, 5)
EPISODES = [trajectory_of(turns_of((4, n - 4)), token_ids=RNG.integers(0, 61, n), logprobs=-1) for n in SIZES]
OFFSETS = action_offsets(EPISODES)


def learner_of(lr: float = 1e-9) -> Learner:
    model = tiny.build_model(61, hidden=32, layers=1, heads=2, kv_heads=1, seed=5)
    with torch.no_grad():  # tokens and places differ in their entropies
        for weight in model.parameters():
            weight.mul_(6.0)
    return Learner(model, actor=ActorSection(lr=lr))


class Counted:
    """A learner whose passes without a gradient are counted."""

    def __init__(self, learner: Learner) -> None:
        self._learner, self.scored = learner, list[list[Any]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def logprobs(self, trajectories: Any, **options: Any) -> Any:
        self.scored.append(list(trajectories))
        return self._learner.logprobs(trajectories, **options)


def learned(
    learner: Any, with_gradient: list[int], *words: str, with_entropy: bool = False, masked: bool = True
) -> tuple[dict[str, float], EntropyBonus]:
    """Update on episodes of which these have advantages; return the metrics and the entropy controller."""
    config, _ = resolve(["actor.entropy_coeff=0", "actor.lr_warmup_steps=0", "actor.mini_batches=1", *words])
    advantages = np.concatenate(
        [np.full(size, 0.5 if e in with_gradient else 0.0) for e, size in enumerate(np.diff(OFFSETS))]
    )
    scores, spread = learner.logprobs(EPISODES, entropy=True)
    columns = {"old_logprobs": np.concatenate(scores).astype(np.float64), "advantages": advantages}
    if with_entropy:
        columns["entropy"] = np.concatenate(spread).astype(np.float64)
    update = Update(config)
    made = Advantages(advantages, np.full(OFFSETS[-1], masked))
    if isinstance(learner, Counted):
        learner.scored.clear()
    result = update.optimize(Prepared(EPISODES, columns, made, {}, {}), learner, iteration=0)
    return result.metrics, update.entropy


def entropies() -> list[np.ndarray]:
    return learner_of().logprobs(EPISODES, entropy=True)[1]


@pytest.mark.parametrize("words", [(), ("actor.mini_batches=3",), ("actor.mini_batches=3", "actor.ppo_epochs=2")])
@pytest.mark.parametrize("with_gradient", [[3], list(range(8)), []])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_entropy_is_of_all_tokens(words, with_gradient, with_entropy):
    metrics, _ = learned(learner_of(), with_gradient, *words, with_entropy=with_entropy)
    every = np.concatenate(entropies())
    assert metrics["actor/entropy"] == pytest.approx(float(every.mean()), rel=1e-4)
    alone = [values.mean() for e, values in enumerate(entropies()) if e in with_gradient]
    if len(with_gradient) == 1:
        assert abs(alone[0] / every.mean() - 1) > 0.02, "nothing would be seen"


def test_entropy_without_token_to_train_on():
    metrics, _ = learned(learner_of(), [2], masked=False)
    assert metrics["actor/entropy"] == pytest.approx(float(np.concatenate(entropies()).mean()), rel=1e-4)


def test_only_episodes_without_gradient_are_scored():
    learner = Counted(learner_of())
    learned(learner, [1, 4], "actor.ppo_epochs=2")
    assert [[EPISODES.index(trajectory) for trajectory in part] for part in map(sorted_by_place, learner.scored)] == [
        [0, 2, 3, 5, 6, 7]
    ]
    learned(learner, [1, 4], with_entropy=True)
    assert not learner.scored
    learned(learner, [1, 4], "actor.entropy_coeff=0.01")  # which has a gradient everywhere
    assert not learner.scored


def sorted_by_place(part: list[Any]) -> list[Any]:
    return sorted(part, key=lambda trajectory: next(e for e, other in enumerate(EPISODES) if other is trajectory))


def test_target_is_compared_with_all_tokens():
    """Seven episodes below the target and one above: the bonus must rise."""
    means = [float(values.mean()) for values in entropies()]
    every = float(np.concatenate(entropies()).mean())
    highest = int(np.argmax(means))
    target = (means[highest] + every) / 2
    assert every < target < means[highest]
    _, bonus = learned(learner_of(), [highest], f"actor.entropy_target={target}")
    assert bonus.below
    assert bonus.now > 0


def test_entropies_do_not_change_step():
    weights = []
    for with_entropy in (False, True):
        learner = learner_of(lr=1e-3)
        learned(learner, [1, 4], with_entropy=with_entropy)
        weights.append(learner.weights())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
