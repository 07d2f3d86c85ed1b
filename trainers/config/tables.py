"""Which of verl's keys each command knows, and the rules for those that are computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from . import verl, verl_batches, verl_environments, verl_losses, verl_names, verl_parts
from .commands import EvaluateConfig, GenerateConfig
from .schema import PPOConfig, RunConfig
from .translate import Given, Result, Table

# In the order they are used.
_JOINT: Mapping[str, Callable[[Given], Iterator[Result]]] = {
    "batch": verl_batches.batch,
    "critic_batch": verl_batches.critic_batch,
    "as_the_actor": verl_batches.as_the_actor,
    "lengths": verl_batches.lengths,
    "micro": verl_batches.micro,
    "chat_template": verl_parts.chat_template,
    "clip": verl_losses.clip,
    "policy_loss": verl_losses.policy_loss,
    "rollout_correction": verl_losses.rollout_correction,
    "filtered": verl_batches.filtered,
    "adapter": verl_parts.adapter,
    "actor_warmup": verl_batches.actor_warmup,
    "critic_warmup": verl_batches.critic_warmup,
    "validation": verl_parts.validation,
    "norm_by_std": verl_losses.norm_by_std,
    "engine": verl_parts.engine,
    "environment": verl_environments.environment,
    "iterations": verl_batches.iterations,
    "validation_rows": verl_batches.validation_rows,
    "critic_model": verl_parts.critic_model,
    "reward_model": verl_parts.reward_model,
    "reward_manager": verl_parts.reward_manager,
    "workers": verl_parts.workers,
    "offload": verl_parts.offload,
    "cluster": verl_parts.cluster,
    "ray": verl_parts.ray,
    "nsight": verl_parts.nsight,
}

PPO = Table(verl.PPO, verl_names.DEFAULTS, _JOINT, whole="actor_rollout_ref.")
GENERATE = Table(
    verl.GENERATE,
    joint={
        "chat_template": verl_parts.chat_template,
        "prompts": verl_parts.prompts,
        "engine": verl_parts.generating_engine,
        "cluster": verl_parts.generating_cluster,
    },
    prefix="actor_rollout_ref.",
)
EVALUATE = Table(verl.EVALUATE)
NOTHING = Table()

#: By schema; a command that is not among them knows none.
TABLES: Mapping[type[RunConfig], Table] = {PPOConfig: PPO, GenerateConfig: GENERATE, EvaluateConfig: EVALUATE}


def table_of(schema: type[RunConfig]) -> Table:
    """The table of a command's schema."""
    return TABLES.get(schema, NOTHING)
