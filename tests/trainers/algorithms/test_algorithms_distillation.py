"""A teacher's advantages: by enumeration of all episodes of a small policy, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainers.algorithms.distillation import DistillSection, distillation_metrics, distilled, log_ratios
from trainers.algorithms.losses import PPO
from trainers.learner.top_tokens import top_kl

WORDS, LENGTH = 3, 3
OFFSETS = np.array([0, LENGTH])


class Tree:
    """A policy with logits of its own in each state, which is what was sampled before."""

    def __init__(self, seed: int) -> None:
        states = [state for size in range(LENGTH) for state in itertools.product(range(WORDS), repeat=size)]
        generator = torch.Generator().manual_seed(seed)
        self.number = {state: number for number, state in enumerate(states)}
        self.logits = torch.randn(len(states), WORDS, generator=generator, dtype=torch.float64, requires_grad=True)

    def log_p(self) -> Tensor:
        return torch.log_softmax(self.logits, -1)

    def of(self, episode: tuple[int, ...]) -> Tensor:
        """Return the log-probability of each token of an episode."""
        log_p = self.log_p()
        return torch.stack([log_p[self.number[episode[:t]], episode[t]] for t in range(LENGTH)])


def episodes() -> Iterator[tuple[int, ...]]:
    return itertools.product(range(WORDS), repeat=LENGTH)


def expected_gradient(policy: Tree, teacher: Tree, section: DistillSection) -> Tensor:
    """Return the mean over all episodes, by their probabilities, of the gradient of PPO's loss with the advantages."""
    total = torch.zeros_like(policy.logits)
    loss = PPO()
    for episode in episodes():
        own = policy.of(episode)
        old = own.detach()
        ratios = log_ratios(old.numpy(), teacher.of(episode).detach().numpy(), np.ones(LENGTH, np.bool_))
        advantages = torch.from_numpy(distilled(section, ratios, OFFSETS))
        surrogate = loss.token_loss(own, old, advantages, torch.zeros(LENGTH, dtype=torch.long)).loss.sum()
        (gradient,) = torch.autograd.grad(surrogate, policy.logits)
        total += old.sum().exp() * gradient
    return total


def kl_of_states(policy: Tree, teacher: Tree, *, held: bool) -> Tensor:
    """Return the sum of the states' KLs by the probability of each state, which is ``held`` fixed or is not."""
    log_p, log_t = policy.log_p(), teacher.log_p().detach()
    total = torch.zeros((), dtype=torch.float64)
    for state, number in policy.number.items():
        visited = torch.zeros((), dtype=torch.float64)
        for t in range(len(state)):
            visited = visited + log_p[policy.number[state[:t]], state[t]]
        visited = visited.detach() if held else visited
        total = total + visited.exp() * (log_p[number].exp() * (log_p[number] - log_t[number])).sum()
    return total


POLICY, TEACHER = Tree(1), Tree(2)


def gradient_of(loss: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, POLICY.logits)
    return gradient


@pytest.mark.parametrize(("discount", "held"), [(0.0, True), (1.0, False)])
def test_gradient_is_unbiased_for_reverse_kl(discount: float, held: bool) -> None:
    section = DistillSection(teacher="reference", coef=0.7, discount=discount, clip=None)
    exact = 0.7 * gradient_of(kl_of_states(POLICY, TEACHER, held=held))
    torch.testing.assert_close(expected_gradient(POLICY, TEACHER, section), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, WORDS])
def test_kl_of_states_has_exact_gradient(count: int) -> None:
    """Every visited state has the gradient of its KL, over all tokens and over all but one."""
    log_t = TEACHER.log_p().detach()
    ids = POLICY.logits.detach().topk(count).indices
    total = torch.zeros_like(POLICY.logits)
    for episode in episodes():
        visited = [POLICY.number[episode[:t]] for t in range(LENGTH)]
        own, others = (scores[visited].gather(1, ids[visited]) for scores in (POLICY.log_p(), log_t))
        batch = {
            "old_logprobs": POLICY.of(episode).detach(),
            **{name: torch.zeros(LENGTH, dtype=torch.float64) for name in ("advantages", "trajectory")},
            **{name: torch.ones(LENGTH, dtype=torch.float64) for name in ("weight", "share")},
            "teacher_kl": top_kl(own, others, ids[visited]),
        }
        section = DistillSection(teacher="reference", coef=0.7, top_k=count)
        loss, sums = PPO(distill=section).batch_loss(POLICY.of(episode), torch.zeros(LENGTH), batch)
        assert float(sums["distill_kl"]) == pytest.approx(float(batch["teacher_kl"].detach().sum()))
        total += POLICY.of(episode).sum().exp().detach() * gradient_of(loss)
    exact = 0.7 * gradient_of(kl_of_states(POLICY, TEACHER, held=True))
    gap = float((total - exact).abs().max())
    assert gap > 0.01 if count == 1 else gap < 1e-12


def test_kl_of_states_is_kl_of_episodes() -> None:
    parts = [POLICY.of(e).sum().exp() * (POLICY.of(e).sum() - TEACHER.of(e).sum()) for e in episodes()]
    whole = torch.stack(parts).sum()
    assert float(kl_of_states(POLICY, TEACHER, held=False).detach()) == pytest.approx(float(whole.detach()), rel=1e-12)


def test_bias_without_discount_is_of_later_states() -> None:
    """By the gradient of the states' distribution alone, which the documentation names."""
    section = DistillSection(teacher="reference", clip=None)
    whole = gradient_of(kl_of_states(POLICY, TEACHER, held=False))
    bias = expected_gradient(POLICY, TEACHER, section) - whole
    assert float(bias.abs().max()) > 0.01
    last = [number for state, number in POLICY.number.items() if len(state) == LENGTH - 1]
    assert float(bias[last].abs().max()) < 1e-12  # no state comes after these


def test_clip_biases_where_it_is_reached() -> None:
    unlimited, far, near = (DistillSection(teacher="reference", clip=clip) for clip in (None, 50.0, 0.1))
    exact = expected_gradient(POLICY, TEACHER, unlimited)
    torch.testing.assert_close(expected_gradient(POLICY, TEACHER, far), exact)
    assert float((expected_gradient(POLICY, TEACHER, near) - exact).abs().max()) > 0.01


@given(
    st.lists(st.lists(st.floats(-30, 30), max_size=5), max_size=4),
    st.floats(0.1, 3),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([None, 10.0]),
)
def test_advantages_are_discounted_sums(
    parts: list[list[float]], coef: float, discount: float, clip: float | None
) -> None:
    ratios = np.array([ratio for part in parts for ratio in part])
    section = DistillSection(teacher="policy", coef=coef, discount=discount, clip=clip)
    offsets = np.cumsum([0, *map(len, parts)])
    expected = []
    for part in parts:
        limited = [ratio if clip is None else max(-clip, min(clip, ratio)) for ratio in part]
        for t in range(len(part)):
            later = (discount ** (k - t) * limited[k] for k in range(t, len(part)))
            expected.append(coef * math.fsum(later))
    assert distilled(section, ratios, offsets) == pytest.approx(np.array(expected), abs=1e-9)


def test_metrics_are_of_taught_tokens() -> None:
    policy, teacher = np.log([0.5, 0.5, 0.5, 0.9]), np.log([0.5, 0.2, 1e-9, 0.1])
    taught = np.array([True, True, True, False])
    ratios = log_ratios(policy, teacher, taught)
    metrics = distillation_metrics(ratios, taught, DistillSection().clip)
    assert metrics == pytest.approx(
        {
            "actor/teacher_share": 0.75,
            "actor/teacher_kl": float((policy - teacher)[:3].mean()),
            "actor/teacher_disagrees": 2 / 3,
            "actor/teacher_clipped": 1 / 3,
        }
    )
    assert distillation_metrics(ratios[:0], taught[:0], 10.0) == {"actor/teacher_share": 0.0}
