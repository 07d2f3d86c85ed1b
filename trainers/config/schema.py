"""The configurations of runs: their sections, defaults that depend on other keys, and checks.

Frozen pydantic models, with verl's names where a field has a standard one. ``--help`` and docs/configuration.md are
generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ..section import Problems
from . import unread
from .base import RunConfig
from .checks import learner_checks, mixture_checks, ppo_checks, template_checks
from .model import (
    Bfloat16,
    ModelSection,
    SupervisedSection,
    is_language_model,
    model_checks,
    multiplies_bfloat16,
    native_dtype,
    positions_of,
)
from .ppo_sections import PPOSections
from .rollout import EnvSection, TrainDataSection
from .running import SFTRunSection


class PPOConfig(PPOSections):
    """Configuration of `python -m trainers.ppo`."""

    reads = unread.PPO

    def checks(self) -> Problems:
        return ppo_checks(self)

    def chosen_defaults(self, bfloat16: Bfloat16 = multiplies_bfloat16) -> Mapping[str, Any]:
        model, cluster = self.model, self.cluster
        dtype = native_dtype(model.path, model.device, bfloat16)
        by_episode = self.actor.policy_loss in ("gspo", "gspo_token")  # measured by benchmarks/precision_gap.py
        rounded = by_episode and (model.dtype or dtype) == "bfloat16"
        chosen: dict[str, Any] = {
            "model.dtype": dtype,
            "actor.old_logprobs": "recompute" if rounded else "rollout",
            "actor.entropy_coeff": 0.01 if model.path == "tiny" else 0.0,
            "cluster.backend": "ray" if cluster.learner_ranks > 1 or cluster.nnodes > 1 else "local",
        }
        if is_language_model(model.path):  # defaults for 0.8 million parameters do not suit it
            # As in verl and TRL; adapters learn with about ten times as much.
            chosen["actor.lr"] = 1e-5 if model.lora_rank else 1e-6
            chosen["rollout.max_response_length"] = 256
            chosen["engine.max_context"] = min(2048, positions_of(model.path) or 2048)
            if "critic" in self.algorithm.needs:
                chosen["critic.lr"] = 1e-5
            if self.warm_start.enable:
                chosen["warm_start.lr"] = 5e-5
        return chosen


class SFTSection(SupervisedSection):
    """Supervised training as a run of its own."""

    max_context: int = Field(512, ge=16, le=2**24, description="Positions of a `tiny` model.")


class SFTConfig(RunConfig):
    """Configuration of `python -m trainers.sft`."""

    reads = unread.SFT

    env: EnvSection = EnvSection()
    data: TrainDataSection = TrainDataSection()
    model: ModelSection = ModelSection()
    sft: SFTSection = SFTSection()
    trainer: SFTRunSection = SFTRunSection()

    def chosen_defaults(self, bfloat16: Bfloat16 = multiplies_bfloat16) -> Mapping[str, Any]:
        dtype = native_dtype(self.model.path, self.model.device, bfloat16)
        return {"model.dtype": dtype, **({"sft.lr": 5e-5} if is_language_model(self.model.path) else {})}

    def checks(self) -> Problems:
        yield from template_checks(self.data.chat_template_kwargs)
        yield from mixture_checks(self.env, self.data)
        yield from model_checks(self.model)
        yield from learner_checks(self.model, self.trainer)
        if self.model.lora_publish != "merged":
            yield "model.lora_publish", "has no effect here: supervised training publishes to no engine"
