"""The policy a run starts from: tiny models of every family, model folders, and what cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
import torch
from transformers import AutoTokenizer

from trainers.config.model import ModelSection
from trainers.models import tiny
from trainers.models.policy import Policy, PolicyError, load, resolve_device

TEXTS = ["How many apples are there? There are 12 apples.", "#### 12", "user\nassistant\n"] * 3
SHAPE = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "vocab_size": 300}


def build(seed: int = 0, max_context: int = 96, **values: object) -> Policy:
    return load(ModelSection(**{**SHAPE, **values}), lambda: TEXTS, max_context=max_context, seed=seed)  # type: ignore[arg-type]


def no_texts() -> NoReturn:
    raise AssertionError("the texts are for tiny models alone")


def open_folder(path: Path | str, **values: object) -> Policy:
    return load(ModelSection(path=str(path), **values), no_texts, max_context=64, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_tiny_model_has_configured_shape(family):
    policy = build(family=family, intermediate=48)
    config = policy.model.config
    assert config.model_type == family
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (32, 48, 2)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert config.max_position_embeddings >= 96
    assert config.vocab_size == len(policy.tokenizer) <= 300
    assert config.eos_token_id == policy.tokenizer.eos_token_id
    ids = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": "There are 12 apples?"}], add_generation_prompt=True, return_dict=False
    )
    assert max(ids) < config.vocab_size
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits
    assert logits.shape == (1, len(ids), config.vocab_size)
    assert bool(torch.isfinite(logits).all())


def test_seed_decides_weights():
    def weights(seed: int) -> torch.Tensor:
        return torch.cat([parameter.flatten() for parameter in build(seed).model.parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_saved_folder_loads_as_same_policy(tmp_path, family):
    policy = build(family=family)
    tiny.save(tmp_path, policy.model, policy.tokenizer)
    loaded = open_folder(tmp_path)
    assert not loaded.model.training
    assert loaded.tokenizer.chat_template == policy.tokenizer.chat_template
    text = "There are 12 apples.<|im_end|>"
    assert loaded.tokenizer.encode(text) == policy.tokenizer.encode(text)
    for (name, before), (other, after) in zip(
        policy.model.state_dict().items(), loaded.model.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(before, after), name


def test_a_home_folder(tmp_path, monkeypatch):
    policy = build()
    tiny.save(tmp_path / "model", policy.model, policy.tokenizer)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_folder("~/model").model.config.hidden_size == 32


def test_a_missing_folder(tmp_path):
    with pytest.raises(PolicyError, match=r"model\.path=.*/nowhere: no such folder"):
        open_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("config.json", r"the folder has no config\.json$"),
        ("model.safetensors", r"transformers cannot load it .*give a folder with config\.json"),
        ("tokenizer.json", r"its tokenizer knows no words; is tokenizer\.json missing\?"),
    ],
)
def test_folder_that_lacks_something(tmp_path, missing, problem):
    policy = build()
    tiny.save(tmp_path, policy.model, policy.tokenizer)
    (tmp_path / missing).unlink()
    with pytest.raises(PolicyError, match=problem):
        open_folder(tmp_path)


def test_tokenizer_of_larger_model(tmp_path):
    tiny.save(tmp_path, build().model, tiny.build_tokenizer(TEXTS, special=[f"<{i}>" for i in range(50)]))
    with pytest.raises(PolicyError, match=r"its tokenizer has \d+ tokens, the model only \d+; they do not belong"):
        open_folder(tmp_path)


def test_unknown_model_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match="there is no such folder, .* hf download some/model"):
        open_folder("some/model")


def test_tokenizer_without_chat_template(tmp_path):
    policy = build()
    tiny.save(tmp_path, policy.model, policy.tokenizer)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.chat_template = None
    (tmp_path / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match=r"model\.path=.*: its tokenizer has no chat template"):
        open_folder(tmp_path)


def test_tokenizer_divides_texts_as_saved(tmp_path):
    tokenizer = tiny.build_tokenizer(["ab3c ab3c", "d4e5 d4e5"] * 9, 300, words=r"[a-z0-9]{2}|\s")
    tiny.save(tmp_path, tiny.build_model(len(tokenizer), hidden=32, layers=1), tokenizer)
    loaded = open_folder(tmp_path).tokenizer
    assert [loaded.decode([token]) for token in loaded.encode("ab3c d4e5")] == ["ab", "3c", " ", "d4", "e5"]


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(PolicyError, match=r"model\.device=cuda, but torch sees no GPU; use model\.device=cpu"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")


@pytest.mark.parametrize("length", [0, 7, 0.5])
def test_truncated_weights_file_is_reported(tmp_path, length):
    policy = build()
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(len(whole) * length) if length < 1 else length])
    with pytest.raises(PolicyError, match="transformers cannot load it"):
        open_folder(tmp_path)
