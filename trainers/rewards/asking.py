"""Models of a reward service as rewards that come later: what a collector asks at each turn.

For example::

    service = RewardService({"helpful": backend})
    collector = Collector(..., rewards={"helpful": reward_of(service, "helpful")})
    service.watch(collector.generating_s)
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from .service import RewardService, ScoringRequest

if TYPE_CHECKING:
    from trainers.rollout.rewards import TurnContext


def reward_of(
    service: RewardService,
    model: str,
    *,
    per: Literal["episode", "turn"] = "episode",
    weight: float = 1.0,
    truth: Callable[[TurnContext], Any] | None = None,
) -> Callable[[TurnContext, int], Awaitable[float] | None]:
    """A function for ``Collector(rewards=...)``; scoring starts when it is called, and nothing waits for it.

    Args:
        service: Where the model is.
        model: Its name there.
        per: ``episode``: once, when it is over, the whole conversation; the reward is that of the last turn. ``turn``:
            after each reply, the conversation up to it; the reward is that turn's.
        weight: What the score is multiplied by.
        truth: Finds the task's ground truth, where the model wants it.

    Raises:
        ValueError: An option outside the above.
    """
    if per not in ("episode", "turn"):
        raise ValueError(f"per must be episode or turn, not {per!r}")
    if not math.isfinite(weight):
        raise ValueError(f"weight must be finite, not {weight}")

    def reward(so_far: TurnContext, turn: int) -> Awaitable[float] | None:
        if per == "episode" and not so_far.over:
            return None
        messages, said = so_far.messages, None
        if per == "turn":
            places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
            if not places:
                raise ValueError("the environment's conversation has no reply of the assistant's to score")
            messages, said = messages[: places[-1] + 1], len(places) - 1
        known = None if truth is None else truth(so_far)
        return asked(ScoringRequest(messages, said, so_far.data_source, known))

    async def asked(request: ScoringRequest) -> float:
        return weight * await service.score(model, request)

    return reward
