"""verl (0.9): an agent loop for any textenv, and estimators that see its turn rewards.

``actor_rollout_ref.model.external_lib=trainers.integrations.verl`` imports this in every process that needs it.
That registers the agent loop ``textenv`` (the rows' ``agent_name``) and the advantage estimator ``textenv_turn_grpo``
(``algorithm.adv_estimator``). See docs/adapters/verl.md.
"""

from .agent_loop import (
    EpisodeFailedError,
    TextEnvAgentLoop,
    TextEnvAgentLoopManager,
    TextEnvAgentLoopWorker,
    TextEnvOutput,
)
from .estimators import action_batch, textenv_turn_grpo

__all__ = [
    "EpisodeFailedError",
    "TextEnvAgentLoop",
    "TextEnvAgentLoopManager",
    "TextEnvAgentLoopWorker",
    "TextEnvOutput",
    "action_batch",
    "textenv_turn_grpo",
]
