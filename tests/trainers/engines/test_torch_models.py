"""The models and types of the torch engine, and its refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from engine_kits import CONTEXT, VOCAB, enliven, lively_model
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    Lfm2Config,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Generation, Sampling
from trainers.engines.torch_engine import TorchEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=12)


def check_against_forward(model: Any, threads: int = 1, **options: Any) -> None:
    async def run() -> list[Generation]:
        engine = TorchEngine(model, TorchEngineSection(max_slots=4, max_context=128, threads=threads), **options)
        try:
            return await asyncio.gather(*(engine.generate(p, GREEDY) for p in prompts))
        finally:
            await engine.close()

    prompts = [[1], [5, 6, 7], list(range(40))]
    for prompt, made in zip(prompts, asyncio.run(run()), strict=True):
        ids = torch.tensor([[*prompt, *made.token_ids.tolist()]])
        with torch.no_grad():
            full = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert full.argmax(-1).tolist() == made.token_ids.tolist()
        np.testing.assert_allclose(full.max(-1).values, made.logprobs, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("qwen2", {"tie_word_embeddings": False}),
        ("qwen2", {"kv_heads": 4}),
        pytest.param("qwen2", {"kv_heads": 1}, marks=pytest.mark.slow),  # as all others here: fewer than of queries
        ("qwen3", {"head_dim": 16}),
        pytest.param("qwen3", {"attention_bias": True}, marks=pytest.mark.slow),  # Qwen2 and the next one have it
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
        ("llama", {"hidden_act": "gelu", "rms_norm_eps": 1e-3}),
        pytest.param(  # the next one scales, too
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
            marks=pytest.mark.slow,
        ),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                    "rope_theta": 10000.0,
                }
            },
        ),
    ],
)
def test_variants_of_the_families(family: str, shape: dict[str, Any]) -> None:
    for threads in (1, 2):  # keys and values gathered, and read in place
        check_against_forward(lively_model(family, **shape), threads)


def test_bfloat16_runs_close_to_float32() -> None:
    model = lively_model()

    async def run() -> Generation:
        engine = TorchEngine(model, TorchEngineSection(max_slots=2, threads=1), dtype=torch.bfloat16)
        try:
            return await engine.generate([1, 2, 3], GREEDY)
        finally:
            await engine.close()

    made = asyncio.run(run())
    ids = torch.tensor([[1, 2, 3, *made.token_ids.tolist()]])
    with torch.no_grad():
        full = model(ids).logits[0, 2:-1].log_softmax(-1)
    np.testing.assert_allclose(full[torch.arange(12), ids[0, 3:]], made.logprobs, atol=0.3)
    assert made.logprobs.dtype == np.float32


_TINY = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
_OTHERS: dict[str, PreTrainedConfig] = {
    "mistral": MistralConfig(**_TINY, sliding_window=16),
    "gemma3": Gemma3TextConfig(
        **_TINY, sliding_window=16, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=20
    ),
    "qwen2-sliding": Qwen2Config(**_TINY, use_sliding_window=True, sliding_window=16, max_window_layers=1),
    "qwen3-moe": Qwen3MoeConfig(**_TINY, **_EXPERTS, norm_topk_prob=True),
    "mixtral": MixtralConfig(**_TINY, num_local_experts=4, num_experts_per_tok=2),
    "gpt2": GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=4),
}


@pytest.mark.parametrize("family", _OTHERS)
def test_other_families_run_through_their_own_modules(family: str) -> None:
    """The window of 16 is shorter than most contexts, and a block's size; siblings share blocks as elsewhere."""
    check_against_forward(enliven(AutoModelForCausalLM.from_config(_OTHERS[family])).eval())


async def test_mixture_of_experts_updates_and_shares_prompts() -> None:
    one, two = (enliven(AutoModelForCausalLM.from_config(_OTHERS["qwen3-moe"]), seed) for seed in (0, 1))
    section = TorchEngineSection(max_slots=2, max_context=128, threads=1)
    moved, fresh = TorchEngine(one, section), TorchEngine(two, section)
    prompt = list(range(40))
    try:
        before = await moved.generate(prompt, GREEDY)
        await moved.update_weights(two.state_dict(), 1)
        after = [await moved.generate(prompt, GREEDY, session) for session in ("s", "s")]
        expected = await fresh.generate(prompt, GREEDY)
    finally:
        await moved.close()
        await fresh.close()
    assert before.token_ids.tolist() != expected.token_ids.tolist()
    for made in after:
        assert made.token_ids.tolist() == expected.token_ids.tolist()
        np.testing.assert_allclose(made.logprobs, expected.logprobs, atol=1e-5)
    assert [made.metrics["cached_tokens"] for made in after] == [0, 32]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (MambaConfig(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=1), "no attention"),
        (Gemma2Config(**_TINY), "softcap"),
        (Lfm2Config(**_TINY, layer_types=["full_attention", "conv"]), r"layers \[1\]"),
    ],
)
def test_unsupported_attention_is_refused(config: PreTrainedConfig, why: str) -> None:
    with pytest.raises(ValueError, match=f"'{config.model_type}'.*{why}|{why}.*'{config.model_type}'"):
        TorchEngine(AutoModelForCausalLM.from_config(config), TorchEngineSection(max_context=64))


def test_unsupported_features_are_refused() -> None:
    dynamic = lively_model("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    with pytest.raises(ValueError, match="'dynamic'"):
        TorchEngine(dynamic, TorchEngineSection())
    adapted = lively_model()
    adapted.model.layers[0].self_attn.q_proj.lora = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"q_proj\.lora"):
        TorchEngine(adapted, TorchEngineSection())


@pytest.mark.parametrize(
    ("section", "options", "message"),
    [
        ({"max_context": CONTEXT + 1}, {}, "max_context must be from 2 to"),
        ({}, {"prefill_budget": 0}, "prefill_budget"),
    ],
)
def test_sizes_out_of_range_are_refused(section: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorchEngine(lively_model(), TorchEngineSection(**section), **options)


def test_stop_token_outside_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="stop token id 64"):
        TorchEngine(lively_model(), TorchEngineSection(), stop_token_ids=(VOCAB,))
