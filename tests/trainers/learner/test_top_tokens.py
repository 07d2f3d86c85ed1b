"""The KL of a policy from a teacher over some tokens and a remainder: against whole distributions, and dense models."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_helpers import (
    VOCAB,
    caught_gradients,
    forks,
    naive_observations,
    naive_scores,
    naive_top,
    observed,
    sections,
    small_model,
    some_masked_trajectories,
    top_tokens,
)
from torch import Tensor

from trainers.learner.learner import Learner
from trainers.learner.logprobs import Support, top_logprobs
from trainers.learner.top_tokens import TopTokens, top_kl
from trainers.trajectory import action_offsets, observation_offsets

# ------------------ the formula, in float64


def logits_of(seed: int, states: int = 4, tokens: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randn(states, tokens, generator=generator, dtype=torch.float64)


def kl_over(policy: Tensor, teacher: Tensor, ids: Tensor) -> Tensor:
    """Return :func:`top_kl` of two models' logits."""
    log_p, log_t = (logits.log_softmax(-1).gather(1, ids.clamp(min=0)) for logits in (policy, teacher))
    return top_kl(log_p, log_t, ids)


def whole_kl(policy: Tensor, teacher: Tensor) -> Tensor:
    log_p, log_t = policy.log_softmax(-1), teacher.log_softmax(-1)
    return (log_p.exp() * (log_p - log_t)).sum(-1)


@pytest.mark.parametrize("left_out", [0, 1])
def test_all_tokens_give_whole_kl_and_gradient(left_out: int) -> None:
    """All but one do, too: that one is the remainder. In any order, with places that have no token."""
    policy, teacher = logits_of(1).requires_grad_(), logits_of(2)
    ids = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(row)) for row in range(4)])
    ids = torch.cat([torch.full((4, 1), -1), ids[:, left_out:]], 1)
    ours, exact = kl_over(policy, teacher, ids), whole_kl(policy, teacher)
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-13)
    (gradient,), (expected,) = (torch.autograd.grad(value.sum(), policy) for value in (ours, exact))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-13)


@given(st.integers(0, 10**6), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_bias_is_the_kl_within_the_remainder(seed: int, count: int) -> None:
    """The chain rule says so: a lower bound, at least 0, that grows with more tokens."""
    policy, teacher = logits_of(seed), logits_of(seed + 1)
    ids = policy.topk(6).indices
    some, more, exact = (kl_over(policy, teacher, ids[:, :k]) for k in (count, count + 1, 6))
    rest = ids[:, count:]
    mass = policy.softmax(-1).gather(1, rest).sum(-1)
    within = whole_kl(policy.gather(1, rest), teacher.gather(1, rest))
    torch.testing.assert_close(some + mass * within, whole_kl(policy, teacher), rtol=0, atol=1e-12)
    assert bool(((some >= -1e-12) & (some <= more + 1e-12) & (more <= exact + 1e-12)).all())


def test_gradient_is_that_of_finite_differences() -> None:
    ids = torch.tensor([[0, 3, -1], [5, 1, 2], [-1, -1, -1], [4, -1, 0]])
    assert torch.autograd.gradcheck(partial(kl_over, teacher=logits_of(2), ids=ids), logits_of(1).requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_probabilities_have_finite_gradients(dtype: torch.dtype) -> None:
    """A token of probability 1, a token that the teacher never gives, and a state without any token."""
    policy = torch.tensor([[80.0, 0.0, -80.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]], dtype=dtype, requires_grad=True)
    teacher = torch.tensor([[0.0, 80.0, 0.0], [0.0, 0.0, -90.0], [3.0, 2.0, 1.0]], dtype=dtype)
    kl = kl_over(policy, teacher, torch.tensor([[0, 1], [2, 0], [-1, -1]]))
    assert kl[2] == 0
    (gradient,) = torch.autograd.grad(kl.sum(), policy)
    assert bool(torch.isfinite(gradient).all())
    assert not gradient[2].any()


# ------------------ the head


@pytest.mark.parametrize("chunk", [3, 100])
@pytest.mark.parametrize("masked", [False, True])
def test_head_scores_tokens_as_whole_logits_do(chunk: int, masked: bool) -> None:
    """Values and gradients, beside those of targets and entropies; the most likely tokens are of the support alone."""
    generator = torch.Generator().manual_seed(3)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((7, 5), (9, 5), (9,))
    )
    targets, unused = torch.randint(1, 4, (7,), generator=generator), torch.tensor([8])
    support = Support(torch.tensor([1, 2, 3, 5] * 3), np.array([4, 0, 0, 4, 0, 4, 0])) if masked else None
    head = partial(top_logprobs, hidden, weight, targets, bias=bias, temperature=0.7, chunk_size=chunk)
    head = partial(head, support=support, unused=unused)
    allowed = torch.ones(7, 9, dtype=torch.bool)
    allowed[:, 8] = False
    if masked:
        allowed[[0, 3, 5]] = torch.isin(torch.arange(9), torch.tensor([1, 2, 3, 5]))
    log_p = ((hidden @ weight.T + bias) / 0.7).masked_fill(~allowed, -torch.inf).log_softmax(-1)
    *_, ids, chosen = head(6)
    for row, own, scores, everything in zip(allowed, ids, chosen, log_p, strict=True):
        expected = everything.topk(min(6, int(row.sum())))
        assert own.tolist() == expected.indices.tolist() + [-1] * (6 - len(expected.indices))
        torch.testing.assert_close(scores[own >= 0], expected.values)
    logprobs, entropy, _, chosen = head(ids[:, 1:4])  # some are targets, too
    scale = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    total = (scale[0] * logprobs + scale[1] * entropy).sum() + (scale[2:].T * chosen).sum()
    exact_entropy = -(log_p.exp() * log_p.masked_fill(~allowed, 0.0)).sum(-1)
    exact = (scale[0] * log_p.gather(1, targets[:, None])[:, 0] + scale[1] * exact_entropy).sum()
    exact = exact + (scale[2:].T * log_p.gather(1, ids[:, 1:4])).sum()
    leaves = [hidden, weight, bias]
    for gradient, expected in zip(torch.autograd.grad(total, leaves), torch.autograd.grad(exact, leaves), strict=True):
        torch.testing.assert_close(gradient, expected)
    nothing = torch.autograd.grad(head(torch.full((7, 2), -1))[3].sum(), leaves)
    assert not any(gradient.any() for gradient in nothing)


# ------------------ the learner

#: Siblings, contexts, sampling masks, and forks, whose common part is read once in a tree.
ITEMS = observed([*some_masked_trajectories(), *forks(some_masked_trajectories())])
RNG = np.random.default_rng(11)
OFFSETS = action_offsets(ITEMS)
NUMBERS = {"a": RNG.normal(size=int(OFFSETS[-1]))}
WEIGHTS = RNG.random(int(observation_offsets(ITEMS)[-1]))
TEMPERATURE = 0.7


def policy_loss(logprobs: Any, entropy: Any, batch: Any) -> Any:
    loss = (batch["a"] * torch.exp(0.1 * logprobs) + 0.2 * entropy + batch["a"].abs() * batch["teacher_kl"]).sum()
    return loss, {"kl": batch["teacher_kl"].detach().sum()}


def learner_of(**keys: Any) -> Learner:
    return Learner(small_model(layers=1), **sections(temperature=TEMPERATURE, **keys))


def own_tokens() -> TopTokens:
    """Random scores of tokens that are within the sampling masks: the policy's most likely ones."""
    own, others = likely(), top_tokens(int(OFFSETS[-1]), 4)
    return TopTokens(np.where(others.ids < 0, np.int32(-1), own.ids), others.logprobs)


@cache
def likely() -> TopTokens:
    return learner_of().top_logprobs(ITEMS, 4).top


@cache
def naive(observations: bool) -> tuple[dict[str, Tensor], float, float]:
    model, teacher = small_model(layers=1), own_tokens()
    scores = [naive_scores(model, item, TEMPERATURE) for item in ITEMS]
    logprobs, entropies = (torch.cat(parts) for parts in zip(*scores, strict=True))
    slices = [slice(*pair) for pair in zip(OFFSETS[:-1], OFFSETS[1:], strict=True)]
    own = torch.cat([naive_top(model, i, teacher.ids[s], TEMPERATURE) for i, s in zip(ITEMS, slices, strict=True)])
    kl = top_kl(own, torch.from_numpy(teacher.logprobs), torch.from_numpy(teacher.ids))
    a = torch.from_numpy(NUMBERS["a"]).float()
    loss, _ = policy_loss(logprobs, entropies, {"a": a, "teacher_kl": kl})
    if observations:
        answers = torch.cat([naive_observations(model, item) for item in ITEMS])
        loss = loss - (torch.from_numpy(WEIGHTS).float() * answers).sum()
    loss.backward()
    gradients = {f"lm.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return gradients, float(loss.detach()), float(kl.sum().detach())


@pytest.mark.parametrize(
    ("keys", "observations"),
    [
        ({}, False),
        ({"max_tokens_per_micro_batch": 60, "chunk_size": 5}, True),
        ({"share_prefixes": False, "use_remove_padding": True, "max_tokens_per_micro_batch": 90}, False),
        ({"share_prefixes": False, "max_tokens_per_micro_batch": 1}, True),
    ],
    ids=["trees", "small trees", "packed", "padded, one at a time"],
)
def test_gradient_is_that_of_dense_loss(keys: dict[str, Any], observations: bool) -> None:
    expected, loss, kl = naive(observations)
    learner = learner_of(**keys)
    options = {"observations": WEIGHTS} if observations else {}
    update = partial(learner.update_actor, ITEMS, NUMBERS, policy_loss, teacher=own_tokens(), **options)
    gradients, metrics = caught_gradients(learner.actor_optimizer, update)
    norm = sum(float(gradient.double().square().sum()) for gradient in expected.values()) ** 0.5
    for name, gradient in expected.items():
        assert float((gradients[name] - gradient).double().norm()) < 1e-5 * norm, name
    assert (metrics["loss"], metrics["kl"]) == pytest.approx((loss, kl), rel=1e-5)


def test_learner_finds_most_likely_tokens_and_scores_them() -> None:
    """They are those of whole distributions, within sampling masks; a teacher scores the same ids in the same order."""
    learner, top = learner_of(reference=True), likely()
    scores = learner.top_logprobs(ITEMS, top.ids, model="reference")
    np.testing.assert_allclose(scores.top.logprobs, top.logprobs, atol=1e-5)  # it is the policy's copy
    assert (scores.top.ids == top.ids).all()
    everything = np.arange(VOCAB, dtype=np.int32)
    with torch.no_grad():
        for item, begin, end, own in zip(ITEMS, OFFSETS[:-1], OFFSETS[1:], scores.logprobs, strict=True):
            if begin == end:
                continue
            dense = naive_top(small_model(layers=1), item, np.tile(everything, (end - begin, 1)), TEMPERATURE)
            values = dense.topk(4).values.numpy()
            expected = np.where(values < -1e6, 0.0, values)
            np.testing.assert_allclose(top.logprobs[begin:end], expected, atol=1e-5)
            assert ((top.ids[begin:end] < 0) == (values < -1e6)).all()
            np.testing.assert_allclose(
                own,
                dense.gather(1, torch.from_numpy(item.token_ids[item.actions, None].astype(np.int64)))[:, 0],
                atol=1e-5,
            )


def test_scores_of_other_states_are_refused() -> None:
    few = top_tokens(3)
    with pytest.raises(ValueError, match=r"the teacher scored 3 states for \d+ action tokens"):
        learner_of().update_actor(ITEMS, NUMBERS, policy_loss, teacher=few)
    with pytest.raises(ValueError, match=r"there are ids of 3 states for \d+ action tokens"):
        learner_of().top_logprobs(ITEMS, few.ids)
