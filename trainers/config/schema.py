"""The configuration of a run, section by section; each section has every key with type, default, range and meaning.

The sections are frozen pydantic models; names are verl's where a field has a standard one. ``--help`` and
docs/configuration.md are made from what stands here. What several keys must agree on stands in :mod:`.checks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from . import unread
from .checks import learner_checks, model_checks, ppo_checks, template_checks
from .engines import EngineSection
from .environment import DataSection, EnvSection, PlayedEnvSection, TrainDataSection
from .learning import ActorSection, AlgorithmSection, CriticSection
from .model import (
    ModelSection,
    SupervisedSection,
    WarmStartSection,
    is_language_model,
    native_dtype,
    positions_of,
)
from .reward_model import RewardModelSection, named
from .rewards import EpisodeRewardFunctionSection, MultiturnRewardSection, OverlongBufferSection
from .rollout import RolloutSection, ValidationSection
from .running import ClusterSection, RayInitSection, SFTRunSection, TrainerSection
from .section import Section


class ConflictError(ValueError):
    """Values that are each allowed do not go together; ``conflicts`` are pairs of a key and what is wrong with it."""

    def __init__(self, conflicts: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {text}" for key, text in conflicts))
        self.conflicts = conflicts


class RunConfig(Section):
    """What all runs have; subclasses add sections, and checks across them.

    ``reads`` says which keys are read only where others have certain values (:mod:`.unread`).
    """

    reads: ClassVar[unread.Reads] = {}

    def checks(self) -> Iterator[tuple[str, str]]:
        """What does not go together: pairs of a key and what is wrong, in words."""
        return iter(())

    def chosen_defaults(self) -> Mapping[str, Any]:
        """Defaults that depend on other keys, by ``section.key``, for a key that is null or not given."""
        return {}

    @model_validator(mode="after")
    def _goes_together(self) -> RunConfig:
        for name, value in self.chosen_defaults().items():
            section, key = name.split(".")
            given = getattr(self, section)
            if getattr(given, key) is None or key not in given.model_fields_set:
                chosen = getattr(self, section).model_copy(update={key: value})
                object.__setattr__(self, section, chosen)  # frozen once it is made
        if conflicts := [*unread.unread_checks(self, self.reads), *self.checks()]:
            raise ConflictError(conflicts)
        return self


class PPOConfig(RunConfig):
    """Configuration of `python -m trainers.ppo`."""

    reads = unread.PPO

    env: PlayedEnvSection = PlayedEnvSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    warm_start: WarmStartSection = WarmStartSection()
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()
    validation: ValidationSection = ValidationSection()
    custom_reward_function: EpisodeRewardFunctionSection = EpisodeRewardFunctionSection()
    multiturn_reward: MultiturnRewardSection = MultiturnRewardSection()
    overlong_buffer: OverlongBufferSection = OverlongBufferSection()
    reward_model: RewardModelSection = RewardModelSection()
    reward_models: Annotated[dict[str, RewardModelSection], BeforeValidator(named)] = Field(default_factory=dict)
    """More reward models, each by a name that is its term's; `reward_models.NAME.kind=judge` and so on, with the keys
    of `reward_model` (`enable` is true, and `name` is NAME). What all of them pay adds up."""
    algorithm: AlgorithmSection = AlgorithmSection()
    actor: ActorSection = ActorSection()
    critic: CriticSection = CriticSection()
    trainer: TrainerSection = TrainerSection()
    cluster: ClusterSection = ClusterSection()
    ray_init: RayInitSection = RayInitSection()

    def checks(self) -> Iterator[tuple[str, str]]:
        """What does not go together: pairs of a key and what is wrong, in words."""
        return ppo_checks(self)

    def chosen_defaults(self) -> Mapping[str, Any]:
        """See :class:`RunConfig`; measured by ``benchmarks/precision_gap.py``."""
        by_episode = self.actor.policy_loss in ("gspo", "gspo_token")
        dtype = native_dtype(self.model.path, self.model.device)
        rounded = by_episode and (self.model.dtype or dtype) == "bfloat16"
        return {
            "model.dtype": dtype,
            "actor.old_logprobs": "recompute" if rounded else "rollout",
            "actor.entropy_coeff": 0.01 if self.model.path == "tiny" else 0.0,
            "cluster.backend": "ray" if self.cluster.learner_ranks > 1 or self.cluster.nnodes > 1 else "local",
            **(self._of_a_language_model() if is_language_model(self.model.path) else {}),
        }

    def _of_a_language_model(self) -> Mapping[str, Any]:
        """What the defaults for models of 0.8 million parameters would spoil, or make useless."""
        chosen: dict[str, Any] = {
            # As in verl and TRL; adapters learn with about ten times as much.
            "actor.lr": 1e-5 if self.model.lora_rank else 1e-6,
            "rollout.max_response_length": 256,
            "engine.max_context": min(2048, positions_of(self.model.path) or 2048),
        }
        if self.algorithm.adv_estimator in unread.WITH_CRITIC:
            chosen["critic.lr"] = 1e-5
        if self.warm_start.enable:
            chosen["warm_start.lr"] = 5e-5
        return chosen


class SFTSection(SupervisedSection):
    """Supervised training as a run of its own."""

    max_context: int = Field(512, ge=16, description="Positions of a `tiny` model.")


class SFTConfig(RunConfig):
    """Configuration of `python -m trainers.sft`."""

    reads = unread.SFT

    env: EnvSection = EnvSection()
    data: TrainDataSection = TrainDataSection()
    model: ModelSection = ModelSection()
    sft: SFTSection = SFTSection()
    trainer: SFTRunSection = SFTRunSection()

    def chosen_defaults(self) -> Mapping[str, Any]:
        """See :class:`RunConfig`."""
        dtype = native_dtype(self.model.path, self.model.device)
        return {"model.dtype": dtype, **({"sft.lr": 5e-5} if is_language_model(self.model.path) else {})}

    def checks(self) -> Iterator[tuple[str, str]]:
        """What does not go together: pairs of a key and what is wrong, in words."""
        yield from template_checks(self.data.chat_template_kwargs)
        yield from model_checks(self.model)
        yield from learner_checks(self.model, self.trainer)
        if self.model.lora_publish != "merged":
            yield "model.lora_publish", "has no effect here: supervised training publishes to no engine"
