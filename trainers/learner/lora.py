"""LoRA (arXiv 2106.09685) through peft: frozen matrices ``W``, and ``scale * B @ A`` of low rank that is trained.

The adapters stand inside the model (:func:`add_adapters`), which stays the transformers class that it is. The model
without them is the reference (:class:`WithoutAdapters`): no second copy. Engines get merged weights ``W + scale * B A``
under the model's own names, or the base once and then the adapter alone (:mod:`trainers.engines.weights`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.config.model import ModelSection
from trainers.engines.weights import merge, pairs_of
from trainers.learner.models import Policy
from trainers.models.hub import read_adapter

_NAME = "default"  #: of the adapter; a model has one


def adapter_record(model: ModelSection, seed: int) -> dict[str, Any]:
    """Return the adapters' description for a checkpoint, without those to start from: it has their current values."""
    targets, without = model.target_modules, sorted(model.exclude_modules)
    record: dict[str, Any] = {"rank": model.lora_rank, "alpha": model.lora_alpha, "seed": seed}
    record["target_modules"] = targets if isinstance(targets, str) else sorted(targets)
    return record | ({"exclude_modules": without} if without else {})  # older checkpoints do not have it


def target_names(backbone: nn.Module, section: ModelSection) -> list[str]:
    """Return the last parts of the names of layers that get an adapter; ``ValueError``: one is missing, or no layer."""
    available = {name.rpartition(".")[2] for name, module in backbone.named_modules() if isinstance(module, nn.Linear)}
    selected = available if section.target_modules == "all-linear" else set(section.target_modules)
    without = set(section.exclude_modules)
    for key, names in (("target_modules", selected), ("exclude_modules", without)):
        if missing := sorted(names - available):
            raise ValueError(
                f"lora {key} {', '.join(missing)}: this model has no linear layer of that name; it has "
                f"{', '.join(sorted(available))}"
            )
    if not selected - without:
        raise ValueError("lora exclude_modules leaves no layer to train")
    return sorted(selected - without)


def saved_pairs(backbone: Any, section: ModelSection) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the matrices ``A`` and ``B`` of a saved adapter, by the layer's name in the backbone; none without one.

    Raises ``ValueError``: the adapter cannot be read, or is another one than the section says, or of another model.
    """
    if section.lora_adapter_path is None:
        return {}
    saved = read_adapter(section.lora_adapter_path)
    for key, stored, requested in (("rank", saved.rank, section.lora_rank), ("alpha", saved.alpha, section.lora_alpha)):
        if stored != requested:
            raise ValueError(f"the adapter in {saved.folder} has {key} {stored:g}, and lora {key} is {requested:g}")
    targets = target_names(backbone, section)
    shapes = {
        f"{backbone.base_model_prefix}.{name}": (layer.in_features, layer.out_features)
        for name, layer in backbone.named_modules()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in targets
    }
    pairs = {name.removesuffix(".weight"): pair for name, pair in pairs_of(saved.tensors()).items()}
    for whose, names in (("this model", shapes.keys() - pairs.keys()), ("the adapter", pairs.keys() - shapes.keys())):
        if names:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(
                f"the adapter in {saved.folder} is of other layers than lora target_modules and exclude_modules say: "
                f"only {whose} has {some}"
            )
    for name, (a, b) in pairs.items():
        inside, outside = shapes[name]
        if (tuple(a.shape), tuple(b.shape)) != ((saved.rank, inside), (outside, saved.rank)):
            raise ValueError(
                f"the adapter in {saved.folder} is of another model: {name} has {tuple(b.shape)} times "
                f"{tuple(a.shape)}, and is {outside} times {inside} here"
            )
        if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise ValueError(f"the adapter in {saved.folder} holds values that are not finite, in {name}")
    return {name.removeprefix(f"{backbone.base_model_prefix}."): pair for name, pair in pairs.items()}


@torch.no_grad()
def merge_saved(backbone: Any, section: ModelSection) -> None:
    """Merge a saved adapter into a backbone, in place, as the actor begins; raises as :func:`saved_pairs`."""
    for name, (a, b) in saved_pairs(backbone, section).items():
        weight = backbone.get_submodule(name).weight
        weight.copy_(merge(weight, a.to(weight.device), b.to(weight.device), section.lora_scale))


def add_adapters(backbone: Any, section: ModelSection, seed: int) -> None:
    """Freeze a backbone and put adapters into its linear layers, in place; the same on every rank.

    ``seed`` is of the matrices ``A``; ``B`` begins at 0, so that new adapters change nothing.

    Raises ModuleNotFoundError: peft is not installed; ``ValueError``: see :func:`target_names` and :func:`saved_pairs`.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("LoRA needs peft: pip install 'textenvs[lora]'", name="peft") from error

    targets, saved = target_names(backbone, section), saved_pairs(backbone, section)
    backbone.requires_grad_(False)
    config = LoraConfig(
        r=section.lora_rank,
        lora_alpha=section.lora_alpha,  # type: ignore[arg-type]  # a divisor's numerator: any number does
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, backbone, adapter_name=_NAME)
        with torch.no_grad():
            for _, layer in adapter_layers(backbone):  # peft puts them where the matrices are, which may have no memory
                for side in (layer.lora_A[_NAME], layer.lora_B[_NAME]):
                    side.weight = nn.Parameter(torch.zeros(side.weight.shape))
                nn.init.kaiming_uniform_(layer.lora_A[_NAME].weight, a=math.sqrt(5))  # as peft begins
            for name, matrices in saved.items():
                layer = backbone.get_submodule(name)
                for side, value in zip((layer.lora_A, layer.lora_B), matrices, strict=True):
                    side[_NAME].weight.copy_(value)
    backbone.eval()


def round_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Keep what is frozen in ``dtype``, which it is computed in anyway, in place; tied parameters stay tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.requires_grad or not parameter.is_floating_point():
                continue
            if parameter not in made:
                made[parameter] = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
            module._parameters[name] = made[parameter]


def adapter_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers with an adapter, by their name in ``model``."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Switch adapters off in the block. Not by peft's switch, which changes what requires gradients."""
    layers = [layer for _, layer in adapter_layers(model)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


class WithoutAdapters:
    """A policy as it was before its adapters learned anything: the frozen reference, at no memory cost."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Score as :meth:`Policy.forward` does."""
        with adapters_off(self._policy):
            result: tuple[Tensor, ...] = self._policy(*args, **kwargs)
        return result


def base_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the state dict without adapters, by the names that the model has without them; the model's own tensors."""
    for name, value in model.state_dict(keep_vars=True).items():
        if ".lora_A." not in name and ".lora_B." not in name:
            yield name.replace(".base_layer.", "."), value


def adapter_matrices(layer: Any) -> tuple[Tensor, Tensor]:
    """Return ``A`` and ``B`` of a layer with an adapter; the model's own tensors."""
    return layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight


def write_adapter(folder: Path, model: nn.Module, state: dict[str, Tensor], section: ModelSection, base: str) -> None:
    """Write an adapter as peft, vLLM and SGLang read it: ``state`` whole, by peft's names; ``base`` names the model."""
    from safetensors.torch import save_file

    targets = sorted({name.rpartition(".")[2] for name, _ in adapter_layers(model)})
    alpha = int(section.lora_alpha) if math.floor(section.lora_alpha) == section.lora_alpha else section.lora_alpha
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": section.lora_rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": targets,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
