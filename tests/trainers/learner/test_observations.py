"""The cross-entropy of observation tokens, against the model's own logits, one context at a time, in no rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_helpers import (
    caught_gradients,
    forks,
    naive_observations,
    naive_scores,
    observed,
    sections,
    small_model,
    some_masked_trajectories,
)
from test_packing import read, trajectories

from trainers.learner.learner import Learner
from trainers.learner.packing import action_rows, micro_batches
from trainers.trajectory import Trajectory, action_offsets, observation_offsets

#: Siblings, contexts, sampling masks, and forks, whose common part is read once in a tree.
ITEMS = observed([*some_masked_trajectories(), *forks(some_masked_trajectories())])
RNG = np.random.default_rng(11)
NUMBERS = {"a": RNG.normal(size=int(action_offsets(ITEMS)[-1]))}
WEIGHTS = RNG.random(int(observation_offsets(ITEMS)[-1]))
TEMPERATURE = 0.7


def policy_loss(logprobs: Any, entropy: Any, batch: Any) -> Any:
    return (batch["a"] * torch.exp(0.1 * logprobs) + 0.2 * entropy).sum(), {"seen": float(len(logprobs))}


def learner_of(layers: int = 1, **keys: Any) -> Learner:
    return Learner(small_model(layers=layers), **sections(temperature=TEMPERATURE, **keys))


def updated(
    learner: Learner, items: list[Trajectory], **options: Any
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    update = partial(learner.update_actor, items, NUMBERS, policy_loss, **options)
    return caught_gradients(learner.actor_optimizer, update)


def naive() -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Return the gradient of the loss with the observations' term, and what is to be reported."""
    model = small_model(layers=1)
    scores = [naive_scores(model, item, TEMPERATURE) for item in ITEMS]
    logprobs, entropies = (torch.cat(parts) for parts in zip(*scores, strict=True))
    answers = torch.cat([naive_observations(model, item) for item in ITEMS])
    a, weights = (torch.from_numpy(values).float() for values in (NUMBERS["a"], WEIGHTS))
    policy, _ = policy_loss(logprobs, entropies, {"a": a})
    term = -(weights * answers).sum()
    # By the formula of the derivative, not by autograd.
    pull = (0.1 * a * torch.exp(0.1 * logprobs)).abs() * (1 - logprobs.exp()) / TEMPERATURE
    own = weights * (1 - answers.exp())
    (policy + term).backward()
    reported = {
        "loss": policy + term,
        "observation_loss": term,
        "observation_nll": -answers.mean(),
        "observation_gradient": own.sum() / (own.sum() + pull.sum()),
        "observation_share": torch.tensor(len(answers) / (len(answers) + len(logprobs))),
    }
    gradients = {f"lm.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return gradients, {name: float(value.detach()) for name, value in reported.items()}


EXPECTED = naive()


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"max_tokens_per_micro_batch": 60, "chunk_size": 5},
        {"share_prefixes": False, "use_remove_padding": True, "max_tokens_per_micro_batch": 90},
        {"share_prefixes": False, "max_tokens_per_micro_batch": 1},
    ],
    ids=["trees", "small trees", "packed", "padded, one at a time"],
)
def test_gradient_is_that_of_dense_loss(keys: dict[str, Any]) -> None:
    expected, reported = EXPECTED
    gradients, metrics = updated(learner_of(**keys), ITEMS, observations=WEIGHTS)
    norm = sum(float(gradient.double().square().sum()) for gradient in expected.values()) ** 0.5
    for name, gradient in expected.items():
        assert float((gradients[name] - gradient).double().norm()) < 1e-5 * norm, name
    assert {name: metrics[name] for name in reported} == pytest.approx(reported, rel=1e-5)
    assert metrics["seen"] == len(NUMBERS["a"])


def test_mask_alone_changes_no_bit() -> None:
    """Their mask changes no bit: neither of the metrics, nor of the weights."""
    results = []
    for items in (ITEMS, [replace(item, observation_mask=item.observation_mask[:0]) for item in ITEMS]):
        learner = learner_of()
        metrics = learner.update_actor(items, NUMBERS, policy_loss)
        for name in ("tokens_per_s", "tflops", "peak_gib"):
            metrics.pop(name, None)
        results.append((metrics, [weight.numpy().tobytes() for weight in learner.weights().values()]))
    assert results[0] == results[1]
    assert not any(name.startswith("observation") for name in results[0][0])


def test_numbers_of_tokens_are_recorded() -> None:
    def loss(logprobs: Any, entropy: Any, batch: Any) -> Any:
        return (batch["a"] * logprobs).sum(), {"number": batch["a"]}

    record = ("number", "token_logprobs", "token_entropy")
    learner = learner_of(max_tokens_per_micro_batch=60)
    before = np.concatenate(learner.logprobs(ITEMS))
    metrics = learner.update_actor(ITEMS, NUMBERS, loss, record, WEIGHTS)
    np.testing.assert_allclose(metrics["number"], NUMBERS["a"], rtol=1e-6)
    np.testing.assert_allclose(metrics["token_logprobs"], before, atol=1e-5)


def test_no_observation_adds_nothing() -> None:
    nothing = [replace(item, observation_mask=np.zeros(len(item.token_ids), np.bool_)) for item in ITEMS]
    gradients, metrics = updated(learner_of(), nothing, observations=np.zeros(0))
    plain, _ = updated(learner_of(), ITEMS)
    assert all(torch.equal(gradients[name], plain[name]) for name in plain)
    assert "observation_nll" not in metrics
    assert metrics["observation_share"] == metrics["observation_gradient"] == metrics["observation_loss"] == 0


def test_unrecorded_observations_are_refused() -> None:
    items = [replace(item, observation_mask=item.observation_mask[:0]) for item in ITEMS]
    with pytest.raises(ValueError, match="no observation_mask: it was collected without"):
        learner_of().update_actor(items, NUMBERS, policy_loss, observations=np.zeros(0))
    with pytest.raises(ValueError, match=r"'observations'\] has 3 numbers for \d+ observation tokens"):
        learner_of().update_actor(ITEMS, NUMBERS, policy_loss, observations=np.zeros(3))


@given(trajectories(), st.integers(1, 60), st.sampled_from(["padded", "packed"]))
@settings(max_examples=15)
def test_each_observation_is_predicted_once_from_prefix(items, budget, layout) -> None:
    items = observed(items)
    (batches,) = micro_batches(action_rows(items, observations=True), budget, layout=layout)
    total, got = int(action_offsets(items)[-1]), read(batches)
    expected = []
    for item in items:
        for at in np.flatnonzero(item.observation_mask):
            start = max(s for s in item.segment_starts if s <= at)
            expected.append((item.token_ids[start:at].tolist(), int(item.token_ids[at])))
    assert {index - total: pair for index, pair in got.items() if index >= total} == dict(enumerate(expected))
    (plain,) = micro_batches(action_rows(items), 10**6, layout=layout)
    assert {index: pair for index, pair in got.items() if index < total} == read(plain)
    for batch in batches:
        actions = len(batch.index) - batch.observed
        assert (batch.index[:actions] < total).all()
        assert (batch.index[actions:] >= total).all()
