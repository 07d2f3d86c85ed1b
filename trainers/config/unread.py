"""Keys that are read only where another key has certain values; elsewhere they would silently do nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .yaml12 import dump

#: Estimators that learn a value function.
WITH_CRITIC = ("gae", "turn_gae", "bilevel_gae")

#: Estimators that discount.
DISCOUNTED = (*WITH_CRITIC, "reinforce_pp", "turn_grpo", "gigpo")


@dataclass(frozen=True)
class OnlyWith:
    """Keys that begin like one of ``keys`` are read only where ``switch`` has one of ``values``, or none of ``but``."""

    keys: tuple[str, ...]
    switch: str
    values: tuple[Any, ...] = ()
    but: tuple[Any, ...] = ()

    def reads(self, value: Any) -> bool:
        """Whether they are read where the switch has this value."""
        return value not in self.but if self.but else value in self.values


_RULES = (
    OnlyWith(("critic.",), "algorithm.adv_estimator", WITH_CRITIC),
    OnlyWith(("actor.kl_loss_coef", "actor.kl_loss_type"), "actor.use_kl_loss", (True,)),
    OnlyWith(("algorithm.kl_ctrl.",), "algorithm.use_kl_in_reward", (True,)),
    OnlyWith(("algorithm.lam",), "algorithm.adv_estimator", WITH_CRITIC),
    OnlyWith(("algorithm.gamma",), "algorithm.adv_estimator", DISCOUNTED),
    OnlyWith(("trainer.resume_from_path",), "trainer.resume_mode", ("resume_path",)),
    OnlyWith(
        ("model.lora_alpha", "model.target_modules", "model.exclude_modules", "model.lora_publish"),
        "model.lora_rank",
        but=(0,),
    ),
    OnlyWith(
        ("actor.clip_ratio_low", "actor.clip_ratio_high"),
        "actor.policy_loss",
        ("ppo", "gspo", "gspo_token", "cispo", "geo_mean", "dppo_tv", "dppo_kl", "clip_cov"),
    ),
    OnlyWith(("actor.clip_ratio_c",), "actor.policy_loss", ("ppo", "dppo_tv", "dppo_kl")),
    OnlyWith(("actor.tau_pos", "actor.tau_neg"), "actor.policy_loss", ("sapo",)),
    OnlyWith(("actor.clip_cov_",), "actor.policy_loss", ("clip_cov",)),
    OnlyWith(("actor.kl_cov_ratio", "actor.ppo_kl_coef"), "actor.policy_loss", ("kl_cov",)),
)
#: The sections that have such keys.
SECTIONS = ("critic", "actor", "algorithm.kl_ctrl")


def unread(key: str, value_of: Callable[[str], Any]) -> str | None:
    """Why a key would not be read; ``None`` if it would be.

    Args:
        key: Its whole name.
        value_of: From a key's name to its value.
    """
    for rule in _RULES:
        if key.startswith(rule.keys) and not rule.reads(value := value_of(rule.switch)):
            return f"has no effect with {rule.switch}={dump(value)}"
    return None
