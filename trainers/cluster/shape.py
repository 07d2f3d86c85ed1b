"""Inputs of the plan beside the configuration: the machine, and the shape of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.cluster.memory import Machine, ModelShape, PlanError, available
from trainers.config.model import ModelSection
from trainers.learner.parallel import world_size
from trainers.models import hub, tiny


def this_machine() -> Machine:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sizes = [torch.cuda.get_device_properties(number).total_memory for number in range(count)]
    free = [torch.cuda.mem_get_info(number)[0] for number in range(count)]
    return Machine(count, min(sizes, default=None), min(free, default=None), available(), world_size())


def shape_of(section: ModelSection) -> ModelShape | None:
    """Return the policy's shape from its configuration; ``None`` if it is not on this disk. Raises PlanError."""
    if section.path == "tiny":
        with torch.device("meta"):  # no memory, no numbers
            return shape_of_model(tiny.build_model(section.vocab_size, **tiny.shape_of(section)))
    try:
        path = hub.folder_of(section.path, weights=False)
    except hub.HubError as error:
        raise PlanError(f"model.path={section.path}: {error}") from error
    if not (path / "config.json").is_file():
        return None
    try:
        hub.check_model_files(path)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(path, trust_remote_code=False), trust_remote_code=False
            )
        return shape_of_model(model)
    except Exception:  # loading the model reports the error
        return None


def shape_of_model(model: Any) -> ModelShape:
    """Return the shape of a model, whose parameters may be on the meta device."""
    text = model.config.get_text_config()
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    parameters: Mapping[int, int] = {id(weight): weight.numel() for weight in model.parameters()}
    blocks = {
        id(weight)
        for module in model.modules()
        if isinstance(module, GradientCheckpointingLayer)
        for weight in module.parameters()
    }
    linear: Counter[str] = Counter()
    for name, module in model.base_model.named_modules():
        if isinstance(module, torch.nn.Linear):
            linear[name.rpartition(".")[2]] += module.in_features + module.out_features
    return ModelShape(
        parameters=sum(parameters.values()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        kv_width=kv_heads * head_dim,
        vocab=text.vocab_size,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=width if isinstance(width := getattr(text, "intermediate_size", None), int) else 0,
        outside=sum(size for weight, size in parameters.items() if weight not in blocks),
        linear=tuple(sorted(linear.items())),
        positions=text.max_position_embeddings,
    )
