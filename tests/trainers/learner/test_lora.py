"""LoRA: what is trained, what it equals, and what others read of it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from learner_helpers import VOCAB, caught_gradients, sections, small_model, some_trajectories, trajectory

from trainers.config.model import ModelSection
from trainers.learner import Learner
from trainers.learner.lora import adapter_layers, adapter_record

peft = pytest.importorskip("peft")
TRAJECTORIES = some_trajectories()
SETTINGS = {"lora_rank": 4, "lora_alpha": 8}


def trained(steps=2, **keys):
    learner = Learner(small_model(), **sections(**{**SETTINGS, "reference": True, "lr": 3e-2} | keys))
    for _ in range(steps):
        learner.update_sft(TRAJECTORIES)
    return learner


def scores(learner, **options):
    return np.concatenate(learner.logprobs(TRAJECTORIES, **options))


@pytest.fixture(scope="module")
def learner():
    return trained()


def test_new_adapter_changes_nothing():
    plain = scores(Learner(small_model()))
    new = trained(steps=0)
    np.testing.assert_allclose(scores(new), plain, atol=1e-6)
    np.testing.assert_array_equal(scores(new, model="reference"), plain)


def test_reference_is_model_without_its_adapter(learner):
    plain = scores(Learner(small_model()))
    np.testing.assert_array_equal(scores(learner, model="reference"), plain)
    assert np.abs(scores(learner) - plain).max() > 0.01, "the actor has learned"
    np.testing.assert_array_equal(scores(learner, model="reference"), plain)  # reading switches nothing for good


def test_merged_weights_are_policy_under_models_own_names(learner):
    model = small_model()
    weights = learner.weights()
    assert weights.keys() == model.state_dict().keys()
    model.load_state_dict(weights)
    np.testing.assert_allclose(scores(Learner(model)), scores(learner), atol=1e-5)


def test_only_adapters_learn(learner):
    trainable = {name for name, p in learner.actor.named_parameters() if p.requires_grad}
    assert trainable
    assert all(".lora_A." in name or ".lora_B." in name for name in trainable)
    assert learner.actor_optimizer.names.keys() == trainable
    base = small_model().state_dict()
    for name, value in learner.actor.lm.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(value, base[name.replace(".base_layer", "")]), name


def test_critic_learns_adapters_and_its_head():
    learner = trained(steps=0, critic=True)
    names = learner.critic_optimizer.names
    assert {"value_head.weight", "value_head.bias"} < names.keys()
    assert all(".lora_" in name or name.startswith("value_head.") for name in names)


def test_gradient_is_that_of_product():
    """d/dB = scale * G A^T and d/dA = scale * B^T G, with G the gradient of the merged matrix, by a full learner."""
    learner = trained(steps=1)
    full = small_model()
    full.load_state_dict(learner.weights())
    full = Learner(full)
    parts = {name: value.clone() for name, value in learner.actor.lm.state_dict().items()}
    gradients, exact = (
        caught_gradients(who.actor_optimizer, partial(who.update_sft, TRAJECTORIES))[0] for who in (learner, full)
    )
    layer = "model.layers.1.mlp.down_proj"
    g = exact[f"lm.{layer}.weight"]
    a, b = (parts[f"{layer}.lora_{which}.default.weight"] for which in "AB")
    scale = SETTINGS["lora_alpha"] / SETTINGS["lora_rank"]
    torch.testing.assert_close(gradients[f"lm.{layer}.lora_B.default.weight"], scale * g @ a.T, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(gradients[f"lm.{layer}.lora_A.default.weight"], scale * b.T @ g, rtol=1e-3, atol=1e-6)


def test_reward_moves_with_adapters_alone():
    """REINFORCE on a bandit: one token after a fixed prompt, rewarded when it is below half of the vocabulary."""
    # The frozen head must be able to say something: at the usual scale no token of a random model can stand out.
    model = small_model(initializer_range=0.2)
    learner = Learner(model, **sections(**SETTINGS, lr=2e-2))
    rng = np.random.default_rng(0)
    rewards = []
    for _ in range(25):
        episodes = [trajectory(rng, [[(3, 1)]]) for _ in range(64)]
        with torch.no_grad():
            logits = learner.actor.lm(torch.tensor([[1, 2, 3]])).logits[0, -1].double()
        tokens = rng.choice(VOCAB, 64, p=torch.softmax(logits, 0).numpy())
        for episode, token in zip(episodes, tokens, strict=True):
            episode.token_ids[:] = [1, 2, 3, token]
        earned = (tokens < VOCAB / 2).astype(np.float32)
        rewards.append(earned.mean())

        def loss(logprobs, entropy, batch):
            return -(batch["advantage"] * logprobs).mean(), {}

        learner.update_actor(episodes, {"advantage": earned - earned.mean()}, loss)
    assert rewards[0] < 0.7
    assert np.mean(rewards[-3:]) > 0.9


def test_peft_loads_adapter(learner, tmp_path):
    learner.export_adapter(tmp_path / "adapter")
    wrapped = peft.PeftModel.from_pretrained(small_model(), tmp_path / "adapter")
    merged = wrapped.merge_and_unload()
    for name, value in learner.weights().items():
        torch.testing.assert_close(merged.state_dict()[name], value, msg=name)
    from safetensors.torch import load_file

    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert stored.keys() == learner.weights(which="adapter").keys()


def test_adapter_checkpoint_is_small_and_resumes_exactly(tmp_path):
    learner = trained()
    learner.save(tmp_path / "one")
    first = {path.name: path.stat() for path in (tmp_path / "one" / "frozen").iterdir()}
    expected = learner.update_sft(TRAJECTORIES)["loss"]
    learner.save(tmp_path / "two")
    for path in (tmp_path / "two" / "frozen").iterdir():
        assert path.stat().st_ino == first[path.name].st_ino, "frozen tensors are written once"
    other = trained(steps=1)  # another adapter, and it starts from other matrices
    with torch.no_grad():
        for parameter in other.actor.parameters():
            parameter.mul_(1.1)
    other.load(tmp_path / "one")
    np.testing.assert_array_equal(scores(other, model="reference"), scores(learner, model="reference"))
    assert other.update_sft(TRAJECTORIES)["loss"] == expected
    other.save(tmp_path / "three")
    for path in (tmp_path / "three" / "frozen").iterdir():
        assert path.stat().st_ino == first[path.name].st_ino, "and linked to after a resumption as well"


def test_checkpoint_of_other_adapters_is_refused(tmp_path, learner):
    learner.save(tmp_path / "adapters")
    with pytest.raises(ValueError, match="has adapters .*'rank': 4.*but this learner has .*'rank': 2"):
        trained(steps=0, lora_rank=2).load(tmp_path / "adapters")


def test_layer_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="query_proj: this model has no linear layer of that name; it has .*q_proj"):
        trained(steps=0, lora_rank=2, target_modules=("q_proj", "query_proj"))


def test_layers_that_are_excluded_get_no_adapter():
    every = {name.rpartition(".")[2] for name in adapted(trained(steps=0))}
    without = trained(steps=0, lora_rank=2, exclude_modules=("q_proj", "up_proj"))
    assert {name.rpartition(".")[2] for name in adapted(without)} == every - {"q_proj", "up_proj"} != every
    with pytest.raises(ValueError, match="exclude_modules query_proj: this model has no linear layer"):
        trained(steps=0, lora_rank=2, exclude_modules=("query_proj",))
    with pytest.raises(ValueError, match="leaves no layer to train"):
        trained(steps=0, lora_rank=2, target_modules=("q_proj",), exclude_modules=("q_proj",))
    assert "exclude_modules" not in adapter_record(ModelSection(**SETTINGS), 0), "older checkpoints have none"


def adapted(learner):
    return [name for name, _ in adapter_layers(learner.actor)]


def test_no_adapter_to_give():
    plain = Learner(small_model())
    with pytest.raises(ValueError, match="has no adapter"):
        plain.weights(which="adapter")


# ------------------ what is frozen, in bfloat16


def test_frozen_weights_are_in_type_of_computation():
    learner = trained(dtype="bfloat16", critic=True)
    for model in (learner.actor, learner.critic):
        types = {(parameter.requires_grad, parameter.dtype) for parameter in model.parameters()}
        assert types == {(True, torch.float32), (False, torch.bfloat16)}
    assert {parameter.dtype for parameter in trained(steps=0).actor.parameters()} == {torch.float32}


def test_rounding_frozen_weights_changes_no_result(monkeypatch):
    """It is computed in bfloat16 in any case."""
    rounded = trained(dtype="bfloat16")
    monkeypatch.setattr("trainers.learner.setup.round_frozen", lambda model, dtype: None)
    exact = trained(dtype="bfloat16")
    np.testing.assert_array_equal(scores(rounded), scores(exact))
    np.testing.assert_array_equal(scores(rounded, model="reference"), scores(exact, model="reference"))


def test_weights_stream_in_float32(tmp_path):
    learner = trained(dtype="bfloat16")
    adapters, merged = learner.weights(which="adapter"), learner.weights()
    assert {value.dtype for value in merged.values()} == {torch.float32}
    model = small_model()
    for name, layer in adapter_layers(learner.actor.lm):
        a, b = (adapters[f"base_model.model.{name}.lora_{letter}.weight"] for letter in "AB")
        base = model.get_submodule(name).weight.detach().bfloat16().float()
        torch.testing.assert_close(merged[f"{name}.weight"], base + layer.scaling["default"] * (b @ a))
    learner.save(tmp_path / "one")
    expected = learner.update_sft(TRAJECTORIES)["loss"]
    other = trained(steps=1, dtype="bfloat16")
    other.load(tmp_path / "one")
    assert other.update_sft(TRAJECTORIES)["loss"] == expected
