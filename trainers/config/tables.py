"""Which of verl's keys each command knows, with the functions that their rules name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import verl, verl_batches, verl_losses, verl_parts
from .commands import EvaluateConfig, GenerateConfig
from .schema import PPOConfig, RunConfig
from .translate import Table

_FUNCTIONS = {**vars(verl_batches), **vars(verl_losses), **vars(verl_parts)}


def _table(rules: Mapping[str, verl.Rule], **more: Any) -> Table:
    return Table(rules, {rule.computed: _FUNCTIONS[rule.computed] for rule in rules.values() if rule.computed}, **more)


NOTHING = Table()
TABLES: Mapping[type[RunConfig], Table] = {
    PPOConfig: _table(verl.PPO, defaults=verl.DEFAULTS, reads=PPOConfig.reads, whole="actor_rollout_ref."),
    GenerateConfig: _table(verl.GENERATE, reads=GenerateConfig.reads, prefix="actor_rollout_ref."),
    EvaluateConfig: _table(verl.EVALUATE),
}
