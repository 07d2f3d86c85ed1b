"""A LoRA adapter that peft saved. What ``adapter_config.json`` asks for beyond plain LoRA is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
# What must be empty, zero or false, and what it would mean.
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
    "layer_replication": "layers stand in the model several times",
    "use_qalora": "adapters are quantised",
    "alora_invocation_tokens": "the adapter is on in a part of the text alone",
    "arrow_config": "several adapters are mixed",
}
# Ways to begin that leave the matrices under the adapter as they are; others (PiSSA, OLoRA, LoftQ, ...) change them.
_BEGINNINGS = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True)
class SavedAdapter:
    """What an adapter is, scaled by ``alpha / rank``; ``target_modules`` are last parts of names, if it says them."""

    folder: Path
    rank: int
    alpha: float
    target_modules: frozenset[str] | None

    def tensors(self) -> dict[str, Tensor]:
        """The matrices, by peft's names, on the CPU; ``ValueError`` where the file cannot be read."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.folder / _TENSORS)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{self.folder / _TENSORS} cannot be read: {error}") from error


def read_adapter(folder: str | Path) -> SavedAdapter:
    """What the adapter in a folder is, without its matrices; raises ``ValueError`` for all but plain LoRA."""
    folder = Path(folder).expanduser()
    for name in (_CONFIG, _TENSORS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a folder that peft saved an adapter in: it has no {name}")
    try:
        config: Any = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder / _CONFIG} cannot be read: {error}") from error
    if (kind := config.get("peft_type") if isinstance(config, dict) else None) != "LORA":
        raise ValueError(f"{folder} has an adapter of the kind {kind}; only LORA can be trained on")
    if problem := next(_problems(config), None):
        raise ValueError(f"{folder / _CONFIG}: {problem}")
    rank, alpha, targets = config["r"], config["lora_alpha"], config.get("target_modules")
    names = None
    if isinstance(targets, list) and targets and all(isinstance(each, str) for each in targets):
        names = frozenset(each.rpartition(".")[2] for each in targets)
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
