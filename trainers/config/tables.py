"""Which of verl's keys each command knows, and the rules for those that are computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from . import verl, verl_batches, verl_parts
from .commands import EvaluateConfig, GenerateConfig
from .schema import PPOConfig, RunConfig
from .translate import Given, Result, Table

# In the order they are used.
_JOINT: Mapping[str, Callable[[Given], Iterator[Result]]] = {
    "batch": verl_batches.batch,
    "critic_batch": verl_batches.critic_batch,
    "critic_epochs": verl_batches.critic_epochs,
    "lengths": verl_batches.lengths,
    "micro": verl_batches.micro,
    "chat_template": verl_parts.chat_template,
    "clip": verl_parts.clip,
    "actor_warmup": verl_batches.actor_warmup,
    "critic_warmup": verl_batches.critic_warmup,
    "validation": verl_parts.validation,
    "norm_by_std": verl_parts.norm_by_std,
    "engine": verl_parts.engine,
    "environment": verl_parts.environment,
    "iterations": verl_batches.iterations,
    "validation_rows": verl_batches.validation_rows,
    "critic_model": verl_parts.critic_model,
    "reward_model": verl_parts.reward_model,
    "offload": verl_parts.offload,
    "cluster": verl_parts.cluster,
    "ray": verl_parts.ray,
    "nsight": verl_parts.nsight,
}

PPO = Table(verl.PPO, verl.DEFAULTS, _JOINT, whole="actor_rollout_ref.")
GENERATE = Table(
    verl.GENERATE,
    joint={
        "chat_template": verl_parts.chat_template,
        "engine": verl_parts.generating_engine,
        "cluster": verl_parts.generating_cluster,
    },
)
EVALUATE = Table(verl.EVALUATE)
NOTHING = Table()

#: By schema; a command that is not among them knows none.
TABLES: Mapping[type[RunConfig], Table] = {PPOConfig: PPO, GenerateConfig: GENERATE, EvaluateConfig: EVALUATE}


def table_of(schema: type[RunConfig]) -> Table:
    """The table of a command's schema."""
    return TABLES.get(schema, NOTHING)
