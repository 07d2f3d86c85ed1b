"""Weights are trained and written as the file holds them, whatever the computation's precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from trainers.command_line import load_config, render, resolve
from trainers.config.model import ModelSection
from trainers.config.schema import PPOConfig, SFTConfig
from trainers.engines.decoder import FAMILIES, Decoder
from trainers.learner import Learner
from trainers.models import tiny
from trainers.models.policy import Policy, load
from trainers.models.source import ModelSource

SHAPE = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "vocab_size": 300}
DTYPES = ("float32", "bfloat16")


@pytest.fixture(autouse=True, scope="module")
def _no_process_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def open_policy(path: str | Path = "tiny", **values: Any) -> Policy:
    section = ModelSection(path=str(path), **{**SHAPE, **values})
    return load(section, lambda: ["How many? 12 apples."] * 3, max_context=64, seed=0)


def learner_of(policy: Policy, dtype: str) -> Learner:
    return Learner(policy.model, ModelSection(dtype=dtype))


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    """Parameters and all buffers, also those that no file holds."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def assert_same(one: Any, two: Any) -> None:
    actual, expected = tensors_of(one), tensors_of(two)
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert value.dtype == expected[name].dtype == torch.float32, name
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_loading_and_exporting_change_no_bit(tmp_path, family, dtype):
    """From scratch, exported, loaded, exported again: parameters and buffers, and transformers makes the same."""
    first = open_policy(family=family, dtype=dtype)
    folder = tmp_path / "0"
    tiny.save(folder, first.model, first.tokenizer)
    for number in (1, 2):
        policy = open_policy(folder, dtype=dtype)
        learner = learner_of(policy, dtype)
        folder = tmp_path / str(number)
        learner.export_hf(folder, policy.tokenizer)
        again = open_policy(folder, dtype=dtype)
        assert_same(first.model, policy.model)
        assert_same(first.model, again.model)
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        for name, value in made.named_buffers():
            assert torch.equal(value, again.model.get_buffer(name)), name
            assert torch.equal(value, learner.actor.lm.get_buffer(name)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored", [*DTYPES, "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_master_weights_are_what_file_holds(tmp_path, family, stored, dtype):
    """Test tensors of any type, also if config.json names another type."""
    made = open_policy(family=family)
    tiny.save(tmp_path, made.model, made.tokenizer)
    file = tmp_path / "model.safetensors"
    values = {name: value.to(getattr(torch, stored)) for name, value in load_file(file).items()}
    from safetensors.torch import save_file

    save_file(values, file, metadata={"format": "pt"})
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"float32"', '"bfloat16"'))
    assert "bfloat16" in config.read_text()
    learner = learner_of(open_policy(tmp_path, dtype=dtype), dtype)
    masters = learner.weights()
    for name, value in values.items():
        assert masters[name].dtype == torch.float32
        assert torch.equal(masters[name], value.float()), name


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_and_learner_share_rotary_angles(family):
    """The engine's tables are the float32 angles, rounded once at the end where it computes in bfloat16."""
    policy = open_policy(family=family, dtype="bfloat16")
    for dtype in (torch.float32, torch.bfloat16):
        decoder = Decoder(policy.model, 4, 64, dtype=dtype)
        rotary: Any = policy.model.get_submodule("model.rotary_emb")
        exact = np.outer(np.arange(64), rotary.inv_freq.double().numpy())
        cosines = decoder._cos[:, 0, : exact.shape[1]].double().numpy()
        assert np.abs(cosines - np.cos(exact)).max() < (1e-5 if dtype == torch.float32 else 2**-8)


def test_rounded_buffers_are_refused():
    model = tiny.build_model(300, hidden=32, layers=1).to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"buffer model\.rotary_emb\.\w*inv_freq was rounded to bfloat16.*from_pretra"):
        ModelSource(model)


# ------------------ where the ratio starts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", ["ppo", "cispo", "gspo", "gspo_token"])
def test_default_of_old_logprobs_follows_precision_and_loss(loss, dtype):
    """A value that is given stays; what is chosen is shown, read back as given, and what the checks see."""
    chosen = "recompute" if loss.startswith("gspo") and dtype == "bfloat16" else "rollout"
    arguments = [f"actor.policy_loss={loss}", f"model.dtype={dtype}", "algorithm.adv_estimator=grpo"]
    config, flags = resolve(arguments)
    assert config.actor.old_logprobs == chosen
    assert f"  old_logprobs: {chosen}  # chosen" in render(config, flags.sources), "shown, as a default"
    for value in ("rollout", "recompute"):
        assert resolve([*arguments, f"actor.old_logprobs={value}"])[0].actor.old_logprobs == value
    if chosen == "recompute":
        resolve([*arguments, "actor.importance_correction=sequence_tis"])


# ------------------ default precision


@pytest.mark.parametrize("native", [False, True])
def test_model_computes_in_type_machine_is_fast_in(tmp_path, native):
    """A tiny one does not, and what somebody says stays. The shape decides: no folder here has weights."""
    shape = '"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2'
    for name, text in (("small", f"{{{shape}}}"), ("large", f"{{{shape.replace('500', '100000')}}}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    fast = "bfloat16" if native else "float32"

    def dtype(*arguments, schema):
        return resolve(arguments, schema, lambda device: native)[0].model.dtype

    for path, expected in (("tiny", "float32"), ("small", "float32"), ("large", fast), ("owner/name", fast)):
        argument = f"model.path={tmp_path / path if path in ('small', 'large') else path}"
        for schema in (PPOConfig, SFTConfig):
            assert dtype(argument, schema=schema) == expected, (path, schema)
            assert dtype(argument, "model.dtype=float32", schema=schema) == "float32"


def test_language_model_has_own_defaults(tmp_path):
    """Configured values stay; a configuration that is written out and read back is the same."""
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1024}')
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(30 * 2**20)
    path = f"model.path={tmp_path}"
    config = resolve([path, "algorithm.adv_estimator=gae", "warm_start.enable=true"])[0]
    assert (config.actor.lr, config.critic.lr, config.warm_start.lr) == (1e-6, 1e-5, 5e-5)
    assert (config.rollout.max_response_length, config.engine.max_context) == (256, 1024)
    assert resolve([path, "model.lora_rank=8"])[0].actor.lr == 1e-5
    assert resolve([path, "actor.lr=1e-4", "engine.max_context=512"])[0].actor.lr == 1e-4
    assert load_config([path], schema=SFTConfig, usage="x")[0].sft.lr == 5e-5
    (tmp_path / "run.yaml").write_text(render(config))
    assert resolve(["--config", str(tmp_path / "run.yaml")])[0] == config
    tiny = resolve(["model.path=tiny"])[0]
    assert (tiny.actor.lr, tiny.rollout.max_response_length, tiny.engine.max_context) == (1e-4, 64, 512)
