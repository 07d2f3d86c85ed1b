"""For verl's trainers that make padded batches: ``trainer.use_v1=False``, one-step-off and fully asynchronous ones.

They put an episode's sum at its end, wherever its turns were rewarded. ``rollout.agent.agent_loop_manager_class=
trainers.integrations.verl.TextEnvAgentLoopManager`` puts the turn rewards back. The default trainer needs none of this.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker

from .agent_loop import rewards_at_turn_ends


class TextEnvAgentLoopWorker(AgentLoopWorker):  # type: ignore[misc]
    """verl's worker, with each turn's reward where the turn ends in ``rm_scores``."""

    def _postprocess(self, inputs: list[Any], *arguments: Any, **options: Any) -> Any:
        batch = super()._postprocess(inputs, *arguments, **options)
        if "rm_scores" in batch.batch.keys():  # noqa: SIM118  (a TensorDict is no dict)
            for row, output in enumerate(inputs):
                if "turn_spans" in output.extra_fields:  # an episode of another agent loop has none
                    length = batch.batch["rm_scores"].shape[1]
                    batch.batch["rm_scores"][row] = rewards_at_turn_ends(output.extra_fields, length)
        return batch


class TextEnvAgentLoopManager(AgentLoopManager):  # type: ignore[misc]
    """verl's manager, with these workers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.agent_loop_workers_class = ray.remote(TextEnvAgentLoopWorker)
        super().__init__(*arguments, **options)
