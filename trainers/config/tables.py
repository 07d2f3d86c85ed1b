"""Which of verl's keys each command knows, and the rules for those that are computed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import verl, verl_batches, verl_losses, verl_parts
from .commands import EvaluateConfig, GenerateConfig
from .schema import PPOConfig, RunConfig
from .translate import Given, Results, Table


def _named(*functions: Callable[[Given], Results]) -> dict[str, Callable[[Given], Results]]:
    return {function.__name__: function for function in functions}


PPO = Table(
    verl.PPO,
    verl.DEFAULTS,
    _named(
        *(verl_batches.batch, verl_batches.as_the_actor, verl_batches.lengths, verl_batches.micro),
        *(verl_parts.chat_template, verl_losses.clip, verl_losses.policy_loss, verl_losses.rollout_correction),
        *(verl_batches.filtered, verl_parts.adapter, verl_batches.actor_warmup, verl_batches.critic_warmup),
        *(verl_parts.validation, verl_losses.norm_by_std, verl_parts.engine, verl_parts.environment),
        *(verl_batches.iterations, verl_batches.validation_rows, verl_parts.critic_model, verl_parts.reward_model),
        *(verl_parts.reward_manager, verl_parts.workers, verl_parts.offload, verl_parts.cluster, verl_parts.ray),
        verl_parts.nsight,
    ),
    reads=PPOConfig.reads,
    whole="actor_rollout_ref.",
)
GENERATE = Table(
    verl.GENERATE,
    computed=_named(
        *(verl_parts.chat_template, verl_parts.prompts, verl_parts.generating_engine, verl_parts.generating_cluster)
    ),
    prefix="actor_rollout_ref.",
)
EVALUATE = Table(verl.EVALUATE)
NOTHING = Table()

#: By schema; a command that is not among them knows none.
TABLES: Mapping[type[RunConfig], Table] = {PPOConfig: PPO, GenerateConfig: GENERATE, EvaluateConfig: EVALUATE}


def table_of(schema: type[RunConfig]) -> Table:
    """The table of a command's schema."""
    return TABLES.get(schema, NOTHING)
