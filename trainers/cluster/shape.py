"""Inputs of the plan beside the configuration: the machine, and the shape of the model."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trainers.cluster.memory import Machine, ModelShape, PlanError, available
from trainers.config.model import ModelSection
from trainers.learner.parallel import world_size
from trainers.models import hub, tiny
from trainers.models.shape import shape_of_model


def this_machine() -> Machine:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sizes = [torch.cuda.get_device_properties(number).total_memory for number in range(count)]
    free = [torch.cuda.mem_get_info(number)[0] for number in range(count)]
    return Machine(count, min(sizes, default=None), min(free, default=None), available(), world_size())


def shape_of(section: ModelSection) -> ModelShape | None:
    """Return the policy's shape from its configuration; ``None`` if it is not on this disk. Raises PlanError."""
    if section.path == "tiny":
        with torch.device("meta"):  # no memory, no numbers
            return shape_of_model(tiny.build_model(section.vocab_size, **tiny.shape_of(section) | {"copying": False}))
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
