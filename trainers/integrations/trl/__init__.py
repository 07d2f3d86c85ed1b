"""TRL's ``GRPOTrainer`` on these environments: whole conversations through ``rollout_func``. See docs/adapters/trl.md.

:class:`TextEnvRollout` plays the episodes, token-exact; :func:`textenv_reward` pays for them;
:class:`trainers.integrations.trl.credit.TurnCreditGRPOTrainer` gives each turn's tokens an advantage of their own. Only
that last one imports TRL.
"""

from .rollout import RolloutError, TextEnvRollout, term_rewards, textenv_reward

__all__ = ["RolloutError", "TextEnvRollout", "term_rewards", "textenv_reward"]
