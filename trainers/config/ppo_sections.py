"""The sections of a PPO run, with every key's type, default, range and description."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from ..algorithms.estimators import ESTIMATORS, Estimator, TurnGRPO
from ..algorithms.losses import LOSSES, PPO, PolicyLoss
from .alias import Alias
from .base import RunConfig
from .engine import Engine, TorchEngineSection
from .learning import CriticSection, ForkSection
from .model import (
    ModelSection,
    WarmStartSection,
)
from .reward_model import (
    EpisodeRewardFunctionSection,
    MultiturnRewardSection,
    OverlongBufferSection,
    RelativeLengthSection,
    RewardModel,
    named,
)
from .rollout import (
    DataSection,
    PlayedEnvSection,
    RolloutSection,
    ValidationSection,
)
from .running import ClusterSection, RayInitSection, TrainerSection
from .variants import Variants

_REWARD_MODEL = Alias(
    "reward_model",
    "Reward with a model. All keys of `reward_model` are those of one entry of `reward_models`: `reward_model.KEY` is "
    "`reward_models.NAME.KEY`, where NAME is `reward_model.name`, and this key adds it.",
)


class PPOSections(RunConfig):
    """The sections of a PPO run."""

    env: PlayedEnvSection = PlayedEnvSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    warm_start: WarmStartSection = WarmStartSection()
    engine: Engine = TorchEngineSection()
    rollout: RolloutSection = RolloutSection()
    validation: ValidationSection = ValidationSection()
    custom_reward_function: EpisodeRewardFunctionSection = EpisodeRewardFunctionSection()
    multiturn_reward: MultiturnRewardSection = MultiturnRewardSection()
    overlong_buffer: OverlongBufferSection = OverlongBufferSection()
    relative_length: RelativeLengthSection = RelativeLengthSection()
    reward_models: Annotated[dict[str, RewardModel], BeforeValidator(named), _REWARD_MODEL] = Field(
        default_factory=dict
    )
    """Reward models, by the names of their terms: `reward_models.NAME.kind=judge` and so on, with the keys of
    `reward_model` but `enable` (`name` is NAME). Their rewards are added."""
    algorithm: Annotated[Estimator, Variants("algorithm", "adv_estimator", "turn_grpo", ESTIMATORS)] = TurnGRPO()
    fork: ForkSection = ForkSection()
    actor: Annotated[PolicyLoss, Variants("actor", "policy_loss", "ppo", LOSSES)] = PPO()
    critic: CriticSection = CriticSection()
    trainer: TrainerSection = TrainerSection()
    cluster: ClusterSection = ClusterSection()
    ray_init: RayInitSection = RayInitSection()

    @property
    def needs_kl(self) -> bool:
        """True if the loss or the rewards take the KL to the reference model."""
        return self.actor.use_kl_loss or self.algorithm.use_kl_in_reward

    @property
    def needs_reference(self) -> bool:
        """True if there is a reference model: for a KL, or as the teacher."""
        return self.needs_kl or self.actor.distill.teacher == "reference"
