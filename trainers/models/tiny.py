"""Tiny models and tokenizers from scratch, offline: for `make train` and the tests.

The tokenizer is byte-level BPE, with digits as single tokens. The model is a transformers Qwen2, Qwen3 or Llama of a
given shape with seeded random weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.llama import LlamaConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from .copying import ROPE_THETA, add_copying

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
#: What a tokenizer merges: a word with the space before it. Every digit and every other character is separate.
WORDS = r" ?\p{L}+|\p{N}|\s|[^\s\p{L}\p{N}]"
_FAMILIES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}


def shape_of(section: Any) -> dict[str, Any]:
    """Return arguments of :func:`build_model` from a configuration's section ``model``, without the vocabulary size."""
    names = ("family", "hidden", "intermediate", "layers", "heads", "kv_heads", "copying")
    return {name: getattr(section, name) for name in names}


def build_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 512,
    chat_template: str = CHATML,
    special: Iterable[str] = (),
    words: str = WORDS,
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of at most ``vocab_size`` tokens, with its template's ``special`` ones.

    No token goes beyond a match of the regular expression ``words``.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    names = list(dict.fromkeys([*_SPECIAL, *special]))
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab_size, 256 + len(names)),
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    wrapped.chat_template = chat_template
    return wrapped


def build_model(
    vocab_size: int,
    *,
    family: str = "qwen2",
    hidden: int = 128,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int | None = None,
    max_context: int = 1024,
    eos_token_id: int | None = None,
    seed: int = 0,
    copying: bool = False,
    **overrides: Any,
) -> PreTrainedModel:
    """Return a randomly initialised causal language model in float32 on the CPU, in evaluation mode.

    With ``copying`` it continues repeated text from the start (:mod:`.copying`).
    """
    if family not in _FAMILIES:
        raise ValueError(f"unknown model family {family!r}; known are {', '.join(_FAMILIES)}")
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": intermediate or 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": max_context,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        **({"rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA}} if copying else {}),
        **overrides,
    }
    if family == "qwen2":
        shape.pop("head_dim")
    config = _FAMILIES[family](**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if copying:
        add_copying(model, seed=seed)
    return model.eval()


def save(path: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write model and tokenizer as a folder that transformers, vLLM and SGLang load."""
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
