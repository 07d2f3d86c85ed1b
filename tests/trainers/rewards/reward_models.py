"""Tiny reward models with trained-looking heads, in folders, and conversations for them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
)

from textenvs.messages import Messages, assistant, user
from trainers.models.tiny import build_tokenizer

CONTEXT = 512
WORDS = ["the", "cat", "sat", "on", "mat", "and", "what", "is", "sum", "of", "two", "numbers", "answer", "helpful"]
FAMILIES: dict[str, Any] = {
    "qwen2": (Qwen2Config, Qwen2ForSequenceClassification),
    "llama": (LlamaConfig, LlamaForSequenceClassification),
    "value": (Qwen2Config, Qwen2ForTokenClassification),
    "bert": (BertConfig, BertForSequenceClassification),
}


def save_model(folder: Path, family: str = "qwen2", labels: int = 1, seed: int = 0) -> str:
    """Save a model of two layers; heads of 32, the least that vLLM takes on a CPU."""
    rng = random.Random(0)
    tokenizer = build_tokenizer((" ".join(rng.choices(WORDS, k=50)) for _ in range(20)), vocab_size=320)
    config_of, model_of = FAMILIES[family]
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": CONTEXT,
        "num_labels": labels,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family != "bert":
        shape |= {"num_key_value_heads": 1, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_of(config_of(**shape)).eval()
        for name, parameter in model.named_parameters():
            if name.startswith(("score", "classifier")):
                parameter.data.normal_(0, 1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def talk(number: int) -> Messages:
    """Return a conversation of one or two turns, whose length depends on ``number``."""
    rng = random.Random(number)

    def words() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 40)))

    first_turn = [user(words()), assistant(words())]
    return (*first_turn, user(words()), assistant(words())) if number % 2 else tuple(first_turn)
