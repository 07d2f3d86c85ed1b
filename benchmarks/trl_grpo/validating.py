"""TRL's trainer and rollout with our validation and our learning rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from trainers.integrations.trl import TextEnvRollout
from trainers.integrations.trl.credit import TurnCreditGRPOTrainer
from trainers.trajectory import Trajectory


class ValidatingGRPOTrainer(TurnCreditGRPOTrainer):
    """A trainer whose evaluations are one function, and whose learning rates are ``ppo``'s.

    TRL's own evaluation averages over batches, which differ in size, samples as training does, and computes a loss.

    Args:
        *args: As of ``TurnCreditGRPOTrainer``.
        validation: From the trainer to the metrics of an evaluation, with their final names.
        schedule: From a step of the optimizer, from 0, to its share of the optimizer's own learning rate.
        **kwargs: As of ``TurnCreditGRPOTrainer``.
    """

    def __init__(
        self,
        *args: Any,
        validation: Callable[[Any], Mapping[str, float]],
        schedule: Callable[[int], float],
        **kwargs: Any,
    ) -> None:
        self._validation = validation
        self._share = schedule
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
        """Return the configured schedule: transformers' begins its warm-up with a step of rate 0."""
        if self.lr_scheduler is None:
            steps = optimizer or self.optimizer
            assert steps is not None
            self.lr_scheduler = LambdaLR(steps, self._share)
            self._created_lr_scheduler = True
        return self.lr_scheduler


class ValidatingRollout(TextEnvRollout):
    """A rollout that also validates, with the embedded engine."""

    def validate(self, prompts: Sequence[Any], trainer: Any, *, temperature: float, top_p: float) -> list[Trajectory]:
        """Play one episode for each prompt, all in one call, outside TRL's evaluation loop.

        Seeds are those of TRL's evaluations: the same prompts are sampled with the same seeds every time.

        Args:
            prompts: Of a dataset's rows; the same one several times is several episodes.
            trainer: The trainer whose weights play.
            temperature: Sampling temperature; 0 is greedy.
            top_p: Sample from the smallest set with this probability.

        Returns:
            The episodes in the order of the prompts, failed ones included.
        """
        specs, player = self._specs(prompts), self._player(trainer)
        episodes = [
            replace(
                episode, sampling=replace(episode.sampling, temperature=temperature, top_p=top_p, top_k=0, min_p=0.0)
            )
            for episode in self._episodes(specs, trainer, training=False)
        ]
        played, _ = self._play(player, specs, episodes, trainer)
        self._check(prompts, specs, played, training=False)
        return [own for own, *_ in played]
