"""TRL's ``GRPOTrainer`` on the configuration of ``python -m trainers.ppo``: ``python -m benchmarks.trl_grpo``."""

from .trainer import TRLGRPOTrainer

__all__ = ["TRLGRPOTrainer"]
