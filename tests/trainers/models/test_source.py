"""Sources of a learner's models: the numbers of every family, ties, buffers, missing tensors, and the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from trainers.learner import Learner
from trainers.models.source import ModelSource, materialize
from trainers.models.tiny import build_model

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 8},
    "Llama": {},
    "Mistral": {"sliding_window": 4},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "Mixtral": {"num_local_experts": 4},
    "GPT2": {"n_positions": 64},
}


def model_of(family: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SHAPE, **options)
    return AutoModelForCausalLM.from_config(config).eval()


def read(source: Any) -> Any:
    model = (made := ModelSource(source)).skeleton()
    assert all(parameter.is_meta for parameter in model.parameters()), "nothing is there before it is read"
    materialize(model, CPU, CPU)
    made.fill(model.state_dict(keep_vars=True).items())
    return model


@pytest.mark.parametrize("form", ["object", "one file", "several files"])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_model_that_was_saved(family: str, form: str, tmp_path: Any) -> None:
    model = model_of(family, **FAMILIES[family])
    model.generation_config.temperature = 0.25
    model.generation_config.do_sample = True
    model.save_pretrained(tmp_path, max_shard_size="10KB" if form == "several files" else "1GB")
    loaded = read(model if form == "object" else tmp_path)
    input_ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        assert torch.equal(loaded(input_ids).logits, model(input_ids).logits)
    tied = [one.get_output_embeddings().weight is one.get_input_embeddings().weight for one in (loaded, model)]
    assert tied[0] == tied[1]
    assert loaded.generation_config.temperature == 0.25
    ModelSource(model).check_head()
    own = {id(parameter) for parameter in model.parameters()}
    assert not own & {id(parameter) for parameter in loaded.parameters()}


def test_single_file_precedes_index(tmp_path: Any) -> None:
    first, second = (build_model(64, hidden=32, layers=1, seed=seed) for seed in (0, 1))
    first.save_pretrained(tmp_path, max_shard_size="10KB")
    assert list(tmp_path.glob("*.index.json"))
    second.save_pretrained(tmp_path / "whole")
    (tmp_path / "whole" / "model.safetensors").rename(tmp_path / "model.safetensors")
    reference, loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict(), read(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in reference.items())


@pytest.mark.parametrize("where", ["object", "folder"])
@pytest.mark.parametrize("family", ["Gemma2", "Granite", "Cohere"])
def test_models_with_nonlinear_heads_are_refused(family: str, where: str, tmp_path: Any) -> None:
    model = model_of(family, **({"logits_scaling": 8.0} if family == "Granite" else {}))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{family}ForCausalLM does more to its logits"):
        Learner(model if where == "object" else tmp_path)


def test_missing_or_misshapen_tensors_are_named(tmp_path: Any) -> None:
    model = build_model(64, hidden=32, layers=1)
    model.save_pretrained(tmp_path)
    name, file = "model.layers.0.mlp.up_proj.weight", tmp_path / "model.safetensors"
    state = load_file(file)
    for rows in (5, 200):
        save_file({**state, name: torch.zeros(rows, 32)}, file, metadata={"format": "pt"})
        with pytest.raises(ValueError, match=rf"up_proj\.weight is \({rows}, 32\), and the model's is \(128, 32\)"):
            Learner(tmp_path)
    save_file({key: value for key, value in state.items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no model\.layers\.0\.mlp\.up_proj\.weight"):
        Learner(tmp_path)
