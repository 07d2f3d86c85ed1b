"""The learner against naive oracles: the model's own full logits, one trajectory at a time."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from learner_helpers import (
    VOCAB,
    caught_gradients,
    masked,
    naive_scores,
    sections,
    small_model,
    some_masked_trajectories,
    some_trajectories,
    trajectory,
)

from trainers.config.learning import CriticSection
from trainers.learner.learner import Learner

TRAJECTORIES = some_trajectories()
COUNTS = [int(t.action_mask.sum()) for t in TRAJECTORIES]


def random_per_token(seed=5):
    rng = np.random.default_rng(seed)
    return {name: [rng.normal(size=n).astype(np.float32) for n in COUNTS] for name in ("a", "b")}


def policy_loss(logprobs, entropy, batch):
    """Nonlinear in the log-probability, so that a wrong pairing of tokens and numbers shows."""
    return (batch["a"] * torch.exp(0.1 * logprobs) + batch["b"] * entropy).sum(), {"seen": float(len(logprobs))}


def relative_difference(actual, reference):
    norm = sum(float(g.double().square().sum()) for g in reference.values()) ** 0.5
    return max(float((actual[name] - g).double().norm()) for name, g in reference.items()) / norm


@pytest.mark.parametrize("items", [TRAJECTORIES, some_masked_trajectories()], ids=["plain", "masked"])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2", {"temperature": 1.0}),
        ("qwen3", {"temperature": 0.7, "share_prefixes": False}),
        ("llama", {"temperature": 0.7, "use_remove_padding": True}),
    ],
)
def test_logprobs_and_entropies_match_own_logits(items, family, options):
    model = small_model(family)
    learner = Learner(model, **sections(reference=True, max_tokens_per_micro_batch=64, **options))
    logprobs, entropies = learner.logprobs(items, entropy=True)
    reference = learner.logprobs(items, model="reference")
    with torch.no_grad():
        for item, scores, spread, reference_scores in zip(items, logprobs, entropies, reference, strict=True):
            expected, expected_spread = naive_scores(model, item, options["temperature"])
            assert scores.dtype == np.float32
            assert scores.shape == (item.action_mask.sum(),)
            np.testing.assert_allclose(scores, expected.numpy(), atol=1e-5)
            np.testing.assert_allclose(reference_scores, expected.numpy(), atol=1e-5)
            np.testing.assert_allclose(spread, expected_spread.numpy(), atol=1e-5)


def test_untied_head_is_used():
    model = small_model(tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.normal_()
    got = Learner(model).logprobs(TRAJECTORIES[:1])
    with torch.no_grad():
        np.testing.assert_allclose(got[0], naive_scores(model, TRAJECTORIES[0], 1.0)[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("items", [TRAJECTORIES, some_masked_trajectories()], ids=["plain", "masked"])
def test_gradient_is_that_of_naive_loss_however_cut(items):
    model, numbers = small_model(), random_per_token()
    for item, a, b in zip(items, numbers["a"], numbers["b"], strict=True):
        logprobs, entropies = naive_scores(model, item, 0.8)
        if len(a):
            (torch.from_numpy(a) * torch.exp(0.1 * logprobs) + torch.from_numpy(b) * entropies).sum().backward()
    expected = {f"lm.{name}": parameter.grad for name, parameter in model.named_parameters()}
    reported = []
    for budget, chunk in ((10_000, 4096), (48, 5), (1, 1), (7, 16)):
        cuts = {"max_tokens_per_micro_batch": budget, "chunk_size": chunk}
        learner = Learner(small_model(), **sections(**cuts, temperature=0.8))
        gradients, metrics = caught_gradients(
            learner.actor_optimizer, partial(learner.update_actor, items, numbers, policy_loss)
        )
        assert relative_difference(gradients, expected) < 1e-5
        reported.append([metrics[name] for name in ("loss", "entropy", "seen", "tokens")])
        assert reported[-1] == pytest.approx(reported[0], rel=1e-5)
    assert reported[0][2] == sum(COUNTS)


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


def test_segments_do_not_see_each_other():
    rng = np.random.default_rng(1)
    item = trajectory(rng, [[(5, 4)], [(6, 3)]])
    other = copy.deepcopy(item)
    other.token_ids[:9] = (other.token_ids[:9] + 7) % VOCAB
    learner = Learner(small_model())
    original, changed = learner.logprobs([item])[0], learner.logprobs([other])[0]
    np.testing.assert_array_equal(original[4:], changed[4:])
    assert not np.allclose(original[:4], changed[:4])


def test_segment_that_starts_with_action_is_refused():
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError, match="context at token 9 starts with an action token"):
        Learner(small_model()).logprobs([trajectory(rng, [[(5, 4)], [(0, 3)]])])


def test_values_are_before_actions_and_at_end():
    learner = Learner(small_model(), **sections(critic=True, max_tokens_per_micro_batch=40))
    with torch.no_grad():
        learner.critic.value_head.weight.normal_()
        learner.critic.value_head.bias.fill_(0.25)
    values, bootstrap = learner.values(TRAJECTORIES)
    backbone, head = learner.critic.backbone, learner.critic.value_head
    assert bootstrap.shape == (len(TRAJECTORIES),)
    for item, scores, last in zip(TRAJECTORIES, values, bootstrap, strict=True):
        with torch.no_grad():
            outputs = np.zeros(len(item.token_ids), np.float32)
            for part in item.segments():
                ids = torch.from_numpy(item.token_ids[part].astype(np.int64))[None]
                everywhere = head(backbone(input_ids=ids, use_cache=False).last_hidden_state)[0, :, 0].numpy()
                outputs[part] = everywhere
        np.testing.assert_allclose(scores, outputs[item.actions - 1], atol=1e-5)
        np.testing.assert_allclose(last, everywhere[-1], atol=1e-5)


def test_critic_starts_at_zero_and_learns_its_targets():
    learner = Learner(small_model(), **sections(critic=CriticSection(lr=1e-2)))
    values, bootstrap = learner.values(TRAJECTORIES)
    assert not any(v.any() for v in values)
    assert not bootstrap.any()
    targets = [np.full(n, float(i % 3), np.float32) for i, n in enumerate(COUNTS)]

    def loss(values, batch):
        return ((values - batch["returns"]) ** 2).sum() / sum(COUNTS), {}

    losses = [learner.update_critic(TRAJECTORIES, {"returns": targets}, loss)["loss"] for _ in range(60)]
    assert losses[-1] < 0.05 * losses[0]


def test_reference_stays_and_actor_moves():
    learner = Learner(small_model(), **sections(reference=True, lr=1e-3))
    before = learner.logprobs(TRAJECTORIES)
    for first, reference in zip(before, learner.logprobs(TRAJECTORIES, model="reference"), strict=True):
        np.testing.assert_array_equal(first, reference)
    learner.update_actor(TRAJECTORIES, random_per_token(), policy_loss)
    for first, now in zip(before, learner.logprobs(TRAJECTORIES, model="reference"), strict=True):
        np.testing.assert_array_equal(first, now)
    assert not np.allclose(before[1], learner.logprobs(TRAJECTORIES)[1])


def test_model_that_was_passed_in_is_left_alone():
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    learner = Learner(model, **sections(lr=1e-2))
    learner.update_actor(TRAJECTORIES, random_per_token(), policy_loss)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_sft_learns_tokens_and_reports_their_nll():
    learner = Learner(small_model(), **sections(lr=1e-2, weight_decay=0.0, temperature=0.5))
    with torch.no_grad():
        expected = -torch.cat([naive_scores(small_model(), t, 1.0)[0] for t in TRAJECTORIES]).mean()
    history = [learner.update_sft(TRAJECTORIES) for _ in range(60)]
    assert history[0]["nll"] == pytest.approx(float(expected), rel=1e-5)
    assert history[0]["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert history[-1]["nll"] < 0.3 * history[0]["nll"]


def test_weights_are_whole_copy_in_models_naming():
    model = small_model()
    learner = Learner(model, **sections(lr=1e-2))
    weights = learner.weights()
    assert weights.keys() == model.state_dict().keys()
    learner.update_actor(TRAJECTORIES, random_per_token(), policy_loss)
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value), "weights() must not follow later updates"
        assert not weights[name].requires_grad
    model.load_state_dict(learner.weights())
    with torch.no_grad():
        expected = naive_scores(model, TRAJECTORIES[1], 1.0)[0].numpy()
    np.testing.assert_allclose(learner.logprobs(TRAJECTORIES)[1], expected, atol=1e-5)


def test_loss_sees_each_trajectory_whole_and_in_order():
    seen = {}

    def loss(logprobs, entropy, batch):
        for number in batch["trajectory"].unique().tolist():
            assert number not in seen
            seen[number] = batch["mark"][batch["trajectory"] == number].tolist()
        return logprobs.sum() * 0.0, {}

    marks = [np.arange(n, dtype=np.float32) + 100 * i for i, n in enumerate(COUNTS)]
    Learner(small_model(), **sections(max_tokens_per_micro_batch=30)).update_actor(TRAJECTORIES, {"mark": marks}, loss)
    assert seen == {i: mark.tolist() for i, mark in enumerate(marks) if len(mark)}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (lambda: [np.zeros(n + (i == 2)) for i, n in enumerate(COUNTS)], "trajectory 2 has 1 action tokens"),
        (lambda: np.zeros(sum(COUNTS) - 1), f"for {sum(COUNTS)} action tokens"),
        (
            lambda: [np.full(n, np.nan if i == 3 else 0.0) for i, n in enumerate(COUNTS)],
            "action token 0 of trajectory 3",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(column, message):
    with pytest.raises(ValueError, match=message):
        Learner(small_model()).update_actor(TRAJECTORIES, {"a": column(), "b": column()}, policy_loss)


def test_flat_array_equals_arrays_by_trajectory():
    def run(columns):
        return Learner(small_model()).update_actor(TRAJECTORIES, columns, policy_loss)["loss"]

    lists = random_per_token()
    flat = {name: np.concatenate(parts) for name, parts in lists.items()}
    for array in flat.values():
        array.setflags(write=False)
    assert run(flat) == run(lists)


def test_nothing_to_train_on_is_error():
    with pytest.raises(ValueError, match="none of the 1 trajectories has an action token"):
        Learner(small_model()).update_sft([next(item for item in TRAJECTORIES if not item.num_turns)])


def test_nonfinite_gradient_changes_nothing_and_names_episodes():
    learner = Learner(small_model(), **sections(lr=1e-2))
    before = learner.weights()

    def loss(logprobs, entropy, batch):
        return (logprobs * float("inf")).sum(), {}

    with pytest.raises(FloatingPointError, match=TRAJECTORIES[0].episode_id):
        learner.update_actor(TRAJECTORIES, {}, loss)
    for name, value in learner.weights().items():
        assert torch.equal(value, before[name])
    learner.update_sft(TRAJECTORIES)
    assert all(bool(torch.isfinite(value).all()) for value in learner.weights().values())


def test_what_is_missing_is_named():
    learner = Learner(small_model())
    with pytest.raises(ValueError, match="no critic"):
        learner.values(TRAJECTORIES)
    with pytest.raises(ValueError, match="no reference"):
        learner.logprobs(TRAJECTORIES, model="reference")


@pytest.mark.parametrize("temperature", [0.0, float("inf")])
def test_invalid_temperature_is_refused_before_building(temperature) -> None:
    with pytest.raises(ValueError, match=f"temperature must be above 0 and finite, not {temperature}"):
        Learner("no model is here", temperature=temperature)
