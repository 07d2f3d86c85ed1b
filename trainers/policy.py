"""The policy that a run starts from: a model folder, or a tiny model and tokenizer built from scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from . import tiny
from .config.schema import ModelSection
from .untrusted_model import check_model_files


class PolicyError(ValueError):
    """The model cannot be loaded or built; the message says why and what to do."""


@dataclass(frozen=True)
class Policy:
    """A causal language model in float32 on the CPU, and its tokenizer, which has a chat template.

    Learner and engines copy the model to the device and the type that they compute in. It is float32 whatever
    ``model.dtype`` is: the learner's master weights are copies of it, and must be what the file holds.
    """

    model: PreTrainedModel
    tokenizer: Any


def resolve_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one.

    Raises:
        PolicyError: ``cuda`` was asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise PolicyError("model.device=cuda, but torch sees no GPU; use model.device=cpu or auto")
    return torch.device(name)


def load(section: ModelSection, texts: Callable[[], Iterable[str]], *, max_context: int, seed: int) -> Policy:
    """Load or build the policy, in float32 on the CPU. No code of the folder is run, and no pickle of it is read.

    Args:
        section: Which model.
        texts: What the tokenizer of a tiny model learns its merges from; called for those alone.
        max_context: Positions that a tiny model must have.
        seed: Of a tiny model's weights.

    Raises:
        PolicyError: The folder is missing or incomplete, its tokenizer has no chat template or is another model's.
    """
    if section.path == "tiny":
        tokenizer: Any = tiny.build_tokenizer(texts(), section.vocab_size)
        model = tiny.build_model(
            len(tokenizer),
            family=section.family,
            hidden=section.hidden,
            intermediate=section.intermediate,
            layers=section.layers,
            heads=section.heads,
            kv_heads=section.kv_heads,
            max_context=max_context,
            eos_token_id=tokenizer.eos_token_id,
            seed=seed,
        )
        return Policy(model, tokenizer)
    path = Path(section.path).expanduser()
    # A name of the hub ("Qwen/Qwen2.5-0.5B-Instruct") is no local folder; transformers finds it or says why not.
    if path.is_absolute() and not path.is_dir():
        raise PolicyError(f"model.path={section.path}: no such folder")
    try:
        check_model_files(path)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"model.path={section.path}: transformers cannot load it ({error}); give a folder with config.json, "
            "weights and tokenizer, a hub name that can be downloaded or is cached, or `tiny`"
        ) from error
    if tokenizer.chat_template is None:
        raise PolicyError(f"model.path={section.path}: its tokenizer has no chat template, so no conversation fits it")
    if not tokenizer.encode(
        "a", add_special_tokens=False
    ):  # what transformers makes of a folder without tokenizer.json
        raise PolicyError(f"model.path={section.path}: its tokenizer knows no words; is tokenizer.json missing?")
    if len(tokenizer) > model.config.vocab_size:
        raise PolicyError(
            f"model.path={section.path}: its tokenizer has {len(tokenizer)} tokens, the model only "
            f"{model.config.vocab_size}; they do not belong together"
        )
    return Policy(model.eval(), tokenizer)
