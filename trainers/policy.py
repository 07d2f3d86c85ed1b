"""The policy that a run starts from: a model folder, or a tiny model and tokenizer built from scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from . import hub, tiny
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
    tokenizer = load_tokenizer(section, texts)
    if section.path == "tiny":
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
    folder = _folder(section.path, weights=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise _not_loaded(section, error) from error
    if len(tokenizer) > model.config.vocab_size:
        raise PolicyError(
            f"model.path={section.path}: its tokenizer has {len(tokenizer)} tokens, the model only "
            f"{model.config.vocab_size}; they do not belong together"
        )
    return Policy(model.eval(), tokenizer)


def load_tokenizer(section: ModelSection, texts: Callable[[], Iterable[str]]) -> Any:
    """The policy's tokenizer alone, without any weights.

    Args:
        section: Which model.
        texts: As in :func:`load`.

    Raises:
        PolicyError: It is missing, or has no chat template.
    """
    if section.path == "tiny":
        return tiny.build_tokenizer(texts(), section.vocab_size)
    folder = _folder(section.path, weights=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _not_loaded(section, error) from error
    if tokenizer.chat_template is None:
        raise PolicyError(f"model.path={section.path}: its tokenizer has no chat template, so no conversation fits it")
    # What transformers makes of a folder without tokenizer.json knows no words.
    if not tokenizer.encode("a", add_special_tokens=False):
        raise PolicyError(f"model.path={section.path}: its tokenizer knows no words; is tokenizer.json missing?")
    return tokenizer


def positions(section: ModelSection) -> int | None:
    """The longest context that a given model was made for; ``None`` where it does not say, and for `tiny`.

    Raises:
        PolicyError: Its configuration cannot be read.
    """
    if section.path == "tiny":
        return None
    folder = _folder(section.path, weights=False)
    try:
        text = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    except (OSError, ValueError) as error:
        raise _not_loaded(section, error) from error
    found = getattr(text, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


def _folder(path: str, *, weights: bool) -> Path:
    try:
        folder = hub.folder_of(path, weights=weights)
    except hub.HubError as error:
        raise PolicyError(f"model.path={path}: {error}") from error
    if not folder.is_dir():
        raise PolicyError(f"model.path={path}: no such folder")
    try:
        check_model_files(folder)
    except ValueError as error:
        raise PolicyError(f"model.path={error}") from error
    return folder


def _not_loaded(section: ModelSection, error: Exception) -> PolicyError:
    return PolicyError(
        f"model.path={section.path}: transformers cannot load it ({error}); give a folder with config.json, weights "
        "and tokenizer, a name on the Hugging Face hub, or `tiny`"
    )
