"""The learner over the tokens that the sampler's cuts left, against the model's own logits, renormalised by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_helpers import masked, sections, some_masked_trajectories, trajectory
from test_learner import gradients_of, policy_loss, random_per_token, relative_difference, small_model

from trainers.learner.learner import Learner

TRAJECTORIES = some_masked_trajectories()


def naive_scores(model, item, temperature):
    """Return log-probability and entropy of every action token over its mask."""
    logprobs, entropies = [], []
    starts = np.concatenate([[0], np.cumsum(item.kept_counts)]) if len(item.kept_counts) else None
    for part in item.segments():
        ids = torch.from_numpy(item.token_ids[part].astype(np.int64))
        logits = model(input_ids=ids[None], use_cache=False).logits[0] / temperature
        for i in np.flatnonzero(item.action_mask[part]):
            at = part.start + i
            some = list(range(logits.shape[1]))
            if starts is not None and item.kept_counts[at]:
                some = item.kept_ids[starts[at] : starts[at + 1]].tolist()
            log_p = torch.log_softmax(logits[i - 1, some], -1)
            logprobs.append(log_p[some.index(int(ids[i]))])
            entropies.append(-(log_p.exp() * log_p).sum())
    return (torch.stack(logprobs), torch.stack(entropies)) if logprobs else (torch.zeros(0), torch.zeros(0))


@pytest.mark.parametrize("packed", [False, True])
def test_actor_and_reference_logprobs_use_mask(packed):
    model = small_model()
    learner = Learner(
        model, **sections(reference=True, temperature=0.7, max_tokens_per_micro_batch=64, use_remove_padding=packed)
    )
    logprobs, entropies = learner.logprobs(TRAJECTORIES, entropy=True)
    reference = learner.logprobs(TRAJECTORIES, model="reference")
    with torch.no_grad():
        for item, actual, spread, reference_scores in zip(TRAJECTORIES, logprobs, entropies, reference, strict=True):
            expected, their_spread = naive_scores(model, item, 0.7)
            np.testing.assert_allclose(actual, expected.numpy(), atol=1e-5)
            np.testing.assert_allclose(reference_scores, expected.numpy(), atol=1e-5)
            np.testing.assert_allclose(spread, their_spread.numpy(), atol=1e-5)


def test_masked_gradient_is_independent_of_cuts():
    numbers, model = random_per_token(), small_model()
    results = []
    for budget, chunk in ((48, 5), (1, 1), (10_000, 4096)):
        learner = Learner(
            small_model(), **sections(max_tokens_per_micro_batch=budget, chunk_size=chunk, temperature=0.8)
        )
        update = learner.update_actor
        results.append(gradients_of(learner, lambda update=update: update(TRAJECTORIES, numbers, policy_loss)))
    for item, a, b in zip(TRAJECTORIES, numbers["a"], numbers["b"], strict=True):
        logprobs, entropies = naive_scores(model, item, 0.8)
        if len(a):
            (torch.from_numpy(a) * torch.exp(0.1 * logprobs) + torch.from_numpy(b) * entropies).sum().backward()
    expected = {f"lm.{name}": parameter.grad for name, parameter in model.named_parameters()}
    for gradients in results:
        assert relative_difference(gradients, expected) < 1e-5


def test_siblings_with_shared_prefix_have_own_masks():
    """The first action tokens of siblings are the same and read once; their masks differ."""
    rng = np.random.default_rng(3)
    first = trajectory(rng, [[(6, 5), (2, 4)]])
    items = [masked(replace(first, group_id="g", episode_id=f"e{number}"), rng) for number in range(3)]
    assert len({item.kept_ids.tobytes() for item in items}) == 3
    model = small_model()
    with torch.no_grad():
        for share in (False, True):
            learner = Learner(model, **sections(share_prefixes=share, temperature=0.7, max_tokens_per_micro_batch=256))
            for item, scores in zip(items, learner.logprobs(items), strict=True):
                np.testing.assert_allclose(scores, naive_scores(model, item, 0.7)[0].numpy(), atol=1e-5)
