"""The policy that a run starts from: a model folder, or a tiny model and tokenizer built from scratch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ..config.model import ModelSection, newest_model_of
from . import hub, tiny
from .source import ModelSource
from .tokenizer import read_tokenizer
from .vocabulary import end_token_ids, unused_token_ids


class PolicyError(ValueError):
    """The model cannot be loaded or built; the message says why and what to do."""


class Policy:
    """A causal language model and its tokenizer, which has a chat template.

    Learner and servers read the files of a given folder (:attr:`source`); the model as an object (:attr:`model`, on the
    CPU) is loaded on first use.
    """

    def __init__(self, model: PreTrainedModel | Path, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._folder = None if isinstance(model, PreTrainedModel) else model.absolute()
        self._model = model if isinstance(model, PreTrainedModel) else None
        self._skeleton: PreTrainedModel | None = None

    @property
    def source(self) -> Path | PreTrainedModel:
        """Source of a learner: the folder, if one holds this model, else the model."""
        return self._folder or self.model

    @property
    def skeleton(self) -> PreTrainedModel:
        """Model with configuration, layers and shapes; its parameters may have no memory (torch's ``meta``)."""
        if self._model is not None:
            return self._model
        if self._skeleton is None:
            assert self._folder is not None
            self._skeleton = ModelSource(self._folder).skeleton()
        return self._skeleton

    @property
    def model(self) -> PreTrainedModel:
        """Model in float32 on the CPU, whatever type the files or the configuration have."""
        if self._model is None:
            assert self._folder is not None
            with _loading(str(self._folder), self._folder):
                self._model = AutoModelForCausalLM.from_pretrained(
                    self._folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
                ).eval()
        assert self._model is not None
        return self._model

    @cached_property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end a reply for transformers' ``generate``: those of generation_config.json, if it exists."""
        source = ModelSource(self.source)
        return end_token_ids(source.generation_config, source.config.get_text_config().vocab_size)

    @cached_property
    def unused_token_ids(self) -> tuple[int, ...]:
        """Ids of the model without a token in the tokenizer, which are excluded from the policy."""
        size = self.skeleton.config.get_text_config().vocab_size
        return unused_token_ids(self.tokenizer, size, self.end_token_ids)

    def own(self) -> PreTrainedModel:
        """Return the model, to be changed in place: it no longer equals the folder's."""
        model, self._folder = self.model, None
        return model

    def keep_in(self, folder: Path) -> None:
        """Write model and tokenizer to a folder, if the model is in none yet; then it is the source."""
        if self._folder is None:
            tiny.save(folder, self.model, self.tokenizer)
            self._folder = folder.absolute()

    def link_to(self, folder: Path) -> None:
        """Link the files into a folder too, because their present one may be deleted; then it is the source."""
        assert self._folder is not None
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder, folder, copy_function=_link)
        self._folder = folder.absolute()

    def release(self) -> None:
        if self._folder is not None:
            self._model = None

    def __getstate__(self) -> dict[str, Any]:
        # Another process reads the folder itself.
        return self.__dict__ | {"_skeleton": None} | ({} if self._folder is None else {"_model": None})


def resolve_device(name: str) -> torch.device:
    """Return a device; ``auto`` is the GPU if there is one; ``PolicyError`` for ``cuda`` without a GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise PolicyError("model.device=cuda, but torch sees no GPU; use model.device=cpu or auto")
    return torch.device(name)


def load(section: ModelSection, texts: Callable[[], Iterable[str]], *, max_context: int, seed: int) -> Policy:
    """Load or build the policy. No code of a folder is run, and no pickle of it is read.

    ``texts``, positions (``max_context``) and ``seed`` are for a tiny model's tokenizer and weights. PolicyError: the
    folder is missing or incomplete, its tokenizer has no chat template or is another model's.
    """
    tokenizer = load_tokenizer(section, texts)
    if section.path == "tiny":
        shape, eos = tiny.shape_of(section), tokenizer.eos_token_id
        model = tiny.build_model(len(tokenizer), **shape, max_context=max_context, eos_token_id=eos, seed=seed)
        return Policy(model, tokenizer)
    folder = _folder(section.path, weights=True)
    policy = Policy(folder, tokenizer)
    with _loading(section.path, folder):
        ModelSource(folder).check_files()
        words = policy.skeleton.config.get_text_config().vocab_size
        _ = policy.end_token_ids  # report bad ids here, not in an engine later
    if len(tokenizer) > words:
        raise PolicyError(
            f"model.path={section.path}: its tokenizer has {len(tokenizer)} tokens, the model only {words}; they do "
            "not belong together"
        )
    return policy


def load_tokenizer(section: ModelSection, texts: Callable[[], Iterable[str]]) -> Any:
    """Return the policy's tokenizer alone, without any weights; see :func:`load`."""
    if section.path == "tiny":
        return tiny.build_tokenizer(texts(), section.vocab_size)
    folder = _folder(section.path, weights=False)
    with _loading(section.path, folder):
        tokenizer = read_tokenizer(folder)
        knows_words = bool(tokenizer.encode("a", add_special_tokens=False))
    if tokenizer.chat_template is None:
        raise PolicyError(f"model.path={section.path}: its tokenizer has no chat template, so no conversation fits it")
    # Without tokenizer.json, transformers returns a tokenizer without words.
    if not knows_words:
        raise PolicyError(f"model.path={section.path}: its tokenizer knows no words; is tokenizer.json missing?")
    return tokenizer


def end_token_ids_of(section: ModelSection) -> tuple[int, ...]:
    """Return :attr:`Policy.end_token_ids` of a given model without its weights; none for `tiny`."""
    if section.path == "tiny":
        return ()
    folder = _folder(section.path, weights=False)
    with _loading(section.path, folder):
        return Policy(folder, None).end_token_ids


def positions(section: ModelSection) -> int | None:
    """Return the longest context that a given model was made for; ``None`` if it does not say, and for `tiny`."""
    if section.path == "tiny":
        return None
    folder = _folder(section.path, weights=False)
    with _loading(section.path, folder):
        text = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    return longest if isinstance(longest, int) else None


def _folder(path: str, *, weights: bool) -> Path:
    try:
        folder = hub.folder_of(path, weights=weights)
    except hub.HubError as error:
        raise PolicyError(f"model.path={path}: {error}") from error
    if not folder.is_dir():
        raise PolicyError(f"model.path={path}: no such folder")
    if not (folder / "config.json").is_file():
        raise PolicyError(f"model.path={path}: the folder has no config.json{newest_model_of(path)}")
    try:
        hub.check_model_files(folder)
    except ValueError as error:
        raise PolicyError(f"model.path={error}") from error
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


@contextmanager
def _loading(path: str, folder: Path) -> Iterator[None]:
    """Raise all errors of transformers about a folder as ``PolicyError``: folders are untrusted input."""
    try:
        yield
    except PolicyError:
        raise
    except torch.OutOfMemoryError:  # caused by this machine, not by the folder
        raise
    except Exception as error:
        raise PolicyError(
            f"model.path={path}: transformers cannot load it ({hub.reason(folder, error)}); give a folder with "
            "config.json, weights and tokenizer, a name on the Hugging Face hub, or `tiny`"
        ) from error
