"""TRL's ``GRPOTrainer`` on these environments: whole conversations through ``rollout_func``. See docs/adapters/trl.md.

:class:`TextEnvRollout` plays the episodes; :func:`textenv_reward` pays for them;
:class:`trainers.integrations.trl.credit.TurnCreditGRPOTrainer`, which alone imports TRL, gives turns their advantages.
"""

from .rollout import RolloutError, TextEnvRollout, term_rewards, textenv_reward

__all__ = ["RolloutError", "TextEnvRollout", "term_rewards", "textenv_reward"]
