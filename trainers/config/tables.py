"""Which of verl's keys each command knows."""

from __future__ import annotations

from collections.abc import Mapping

from .commands import EvaluateConfig, GenerateConfig
from .schema import PPOConfig, RunConfig
from .translate import EVALUATE, GENERATE, NOTHING, PPO, Table

#: By schema; a command that is not among them knows none.
TABLES: Mapping[type[RunConfig], Table] = {PPOConfig: PPO, GenerateConfig: GENERATE, EvaluateConfig: EVALUATE}


def table_of(schema: type[RunConfig]) -> Table:
    """The table of a command's schema."""
    return TABLES.get(schema, NOTHING)
