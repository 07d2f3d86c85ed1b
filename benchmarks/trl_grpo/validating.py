"""TRL's trainer with our validation and our learning rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from trainers.hosts.trl.credit import TurnCreditGRPOTrainer
from trainers.learner.optim import OptimizerSettings


class ValidatingGRPOTrainer(TurnCreditGRPOTrainer):
    """A trainer whose evaluations are one function, and whose learning rates are ``ppo``'s.

    TRL's own evaluation averages over batches, which differ in size, samples as training does, and computes a loss.

    Args:
        *args: As of ``TurnCreditGRPOTrainer``.
        validation: From the trainer to the metrics of an evaluation, with their final names.
        schedule: The learning rate of each step of the optimizer.
        **kwargs: As of ``TurnCreditGRPOTrainer``.
    """

    def __init__(
        self,
        *args: Any,
        validation: Callable[[Any], Mapping[str, float]],
        schedule: OptimizerSettings,
        **kwargs: Any,
    ) -> None:
        self._validation = validation
        self._share = replace(schedule, lr=1.0)  # of the optimizer's own rate
        super().__init__(*args, **kwargs)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Validate, and report as TRL does."""
        metrics = dict(self._validation(self))
        model: Any = self.model
        training = model.training
        model.eval()  # by which TRL's log knows an evaluation's metrics
        try:
            self.log(dict(metrics))
        finally:
            model.train(training)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """The configured schedule: transformers' begins its warm-up with a step of rate 0."""
        if self.lr_scheduler is None:
            rates, steps = self._share.lr_at, optimizer or self.optimizer
            assert steps is not None
            self.lr_scheduler = LambdaLR(steps, lambda step: rates(step))
            self._created_lr_scheduler = True
        return self.lr_scheduler
