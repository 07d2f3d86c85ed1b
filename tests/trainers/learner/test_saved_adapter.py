"""An adapter that peft saved, to begin with: what is read of it, what it then says, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_helpers import VOCAB, sections, small_model, some_trajectories
from safetensors.torch import load_file, save_file

from trainers.command_line import resolve
from trainers.command_line.load import ConfigError
from trainers.config.model import ModelSection
from trainers.learner import Learner
from trainers.learner.lora import merge_saved
from trainers.models.hub import read_adapter
from trainers.models.tiny import build_tokenizer, save

peft = pytest.importorskip("peft")
TRAJECTORIES = some_trajectories()
TARGETS = ("q_proj", "down_proj")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by peft alone, with matrices that matter."""
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=list(TARGETS), task_type="CAUSAL_LM", lora_dropout=0.1)
    model = peft.get_peft_model(small_model(), config)
    torch.manual_seed(5)
    for name, value in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(value, std=0.3)
    path = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(path)
    return path


def section_of(folder: Path | None, **changed: Any) -> ModelSection:
    path = folder and str(folder)
    own = {"lora_rank": 4, "lora_alpha": 6, "target_modules": TARGETS, "lora_adapter_path": path}
    return ModelSection(**(own | changed), device="cpu")


def learner_of(folder: Path | None, **keys: Any) -> Learner:
    return Learner(small_model(), **sections(**keys) | {"model": section_of(folder)}, reference=True)


def scores(learner: Learner, **options: Any) -> Any:
    return np.concatenate(learner.logprobs(TRAJECTORIES, **options))


def copied(folder: Path, path: Path, **changed: Any) -> Path:
    """The folder with another configuration."""
    shutil.copytree(folder, path, dirs_exist_ok=True)
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | changed))
    return path


def test_outputs_match_pefts_own_model(folder: Path) -> None:
    peft_model = peft.PeftModel.from_pretrained(small_model(), str(folder)).eval()
    learner = learner_of(folder)
    ids = torch.arange(1, 13)[None] % VOCAB
    with torch.no_grad():
        expected = torch.log_softmax(peft_model(ids).logits.double(), -1)
        actual = torch.log_softmax(learner.actor.lm(ids).logits.double(), -1)
        plain = torch.log_softmax(small_model()(ids).logits.double(), -1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert (expected - plain).abs().max() > 0.01, "the adapter matters"
    merged = Learner(peft_model.merge_and_unload())
    np.testing.assert_allclose(scores(learner), scores(merged), atol=1e-5)
    np.testing.assert_array_equal(scores(learner, model="reference"), scores(Learner(small_model())))


def test_published_weights_are_merged(folder: Path) -> None:
    expected = peft.PeftModel.from_pretrained(small_model(), str(folder)).merge_and_unload().state_dict()
    weights = learner_of(folder).weights()
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    model = small_model()
    merge_saved(model.base_model, section_of(folder))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items()), "to the last bit"


def test_critic_begins_with_it_too_and_both_learn(folder: Path) -> None:
    learner = learner_of(folder, critic=True, lr=1e-2)
    layer = "layers.1.mlp.down_proj"
    saved = load_file(folder / "adapter_model.safetensors")[f"base_model.model.model.{layer}.lora_B.weight"]
    critic = learner.critic.backbone.get_submodule(layer).lora_B["default"].weight  # type: ignore[union-attr]
    assert torch.equal(critic, saved)
    before = scores(learner)
    learner.update_sft(TRAJECTORIES)
    assert np.abs(scores(learner) - before).max() > 1e-4


def test_our_own_export_comes_back(folder: Path, tmp_path: Path) -> None:
    learner = learner_of(folder, lr=1e-2)
    learner.update_sft(TRAJECTORIES)
    learner.export_adapter(tmp_path / "adapter")
    np.testing.assert_array_equal(scores(learner_of(tmp_path / "adapter")), scores(learner))


def test_checkpoint_goes_on_without_folder_it_began_with(folder: Path, tmp_path: Path) -> None:
    learner = learner_of(folder, lr=1e-2)
    learner.update_sft(TRAJECTORIES)
    learner.save(tmp_path / "saved")
    new = learner_of(None)
    new.load(tmp_path / "saved")
    np.testing.assert_array_equal(scores(new), scores(learner))


def test_sharded_it_is_same(folder: Path) -> None:
    np.testing.assert_allclose(scores(learner_of(folder, fsdp="always")), scores(learner_of(folder)), atol=1e-6)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lora_rank": 8}, "has rank 4, and lora rank is 8"),
        ({"lora_alpha": 16}, "has alpha 6, and lora alpha is 16"),
        ({"target_modules": "all-linear"}, r"only this model has model.layers.0.mlp.gate_proj"),
        ({"target_modules": ("q_proj",)}, r"only the adapter has model.layers.0.mlp.down_proj"),
        ({"exclude_modules": ("q_proj",)}, r"only the adapter has model.layers.0.self_attn.q_proj"),
    ],
)
def test_other_settings_than_its_own(folder: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Learner(small_model(), section_of(folder, **changed))


def test_model_of_another_width_or_depth(folder: Path) -> None:
    for shape, message in (
        ({"hidden": 48}, "of another model: .* is 48 times 192 here"),
        ({"layers": 1}, "only the adapter has"),
    ):
        with pytest.raises(ValueError, match=message):
            Learner(small_model(**shape), section_of(folder))


def test_nonfinite_values_and_broken_files_are_refused(folder: Path, tmp_path: Path) -> None:
    path = copied(folder, tmp_path)
    tensors = load_file(path / "adapter_model.safetensors")
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="not finite"):
        learner_of(path)
    (path / "adapter_model.safetensors").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="cannot be read"):
        learner_of(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peft_type": "IA3"}, "of the kind IA3"),
        ({"use_dora": True}, "use_dora is True"),
        ({"use_rslora": True}, r"alpha / sqrt\(rank\)"),
        ({"rank_pattern": {"q_proj": 8}}, "ranks of their own"),
        ({"modules_to_save": ["lm_head"]}, "trained whole"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the matrices under the adapter"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": None}, "lora_alpha is None"),
    ],
)
def test_more_than_plain_lora(folder: Path, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_adapter(copied(folder, tmp_path, **changed))


def test_folders_without_adapter(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no adapter_config.json"):
        read_adapter(tmp_path)
    path = copied(folder, tmp_path / "copy")
    for text in ("{", "[]", "\xff"):
        (path / "adapter_config.json").write_text(text, encoding="latin-1")
        with pytest.raises(ValueError, match=r"cannot be read|of the kind None"):
            read_adapter(path)


# ------------------------------------------------------------------ the configuration


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save(path, small_model(), build_tokenizer(["a b"]))
    return path


def configured(folder: Path, model_folder: Path, *arguments: str) -> ModelSection:
    defaults = ("model.lora_rank=4", "model.lora_alpha=6", f"model.target_modules=[{', '.join(TARGETS)}]")
    config, _ = resolve([f"model.path={model_folder}", f"model.lora_adapter_path={folder}", *defaults, *arguments])
    return config.model


def test_it_is_checked_before_model_is_loaded(folder: Path, model_folder: Path, tmp_path: Path) -> None:
    assert configured(folder, model_folder).lora_adapter_path == str(folder)
    assert configured(folder, model_folder, "model.target_modules=all-linear"), "which the model must tell"
    targets = "model.target_modules=[q_proj, down_proj, o_proj]"
    assert configured(folder, model_folder, targets, "model.exclude_modules=[o_proj]")
    for arguments, message in (
        (["model.lora_rank=8"], "model.lora_rank: is 8, and the adapter of model.lora_adapter_path has 4"),
        (["model.lora_alpha=16"], "model.lora_alpha: is 16, and the adapter of model.lora_adapter_path has 6"),
        (["model.lora_rank=0"], "r in its adapter_config.json"),
        ([targets], "model.target_modules: is q_proj, down_proj, o_proj, and .* down_proj, q_proj"),
        (["model.path=tiny"], "a saved adapter is of a saved model"),
        (["warm_start.enable=true"], "would merge what it trains"),
        ([f"model.lora_adapter_path={tmp_path}"], "has no adapter_config.json"),
    ):
        with pytest.raises(ConfigError, match=message):
            configured(folder, model_folder, *arguments)


def test_verls_name_of_it(folder: Path, model_folder: Path) -> None:
    section = "actor_rollout_ref.model"
    lora = [f"{section}.lora_rank=4", f"{section}.lora_alpha=6", f"{section}.target_modules=[{', '.join(TARGETS)}]"]
    needed = ["data.train_files=null", "trainer.total_iterations=1", "data.train_batch_size=256"]
    config, _ = resolve([f"{section}.path={model_folder}", f"{section}.lora_adapter_path={folder}", *lora, *needed])
    assert config.model.lora_adapter_path == str(folder)
    config, _ = resolve([f"{section}.path={model_folder}", f"{section}.lora_adapter_path=null", *needed])
    assert config.model.lora_adapter_path is None
