"""The weight of the entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping


class EntropyBonus:
    """A constant weight; with a ``target``, one that holds the policy's entropy up to it (arXiv 2505.22312, its MAGIC).

    After each batch ``weight <- max(0, weight ± step)``: up where the batch's entropy was below the target, down where it
    was not. It counts only while the entropy is below.

    Args:
        weight: Of the bonus, where an adaptive one starts; at least 0.
        target: Nats a token, above 0; ``None`` keeps the weight constant.
        step: By how much an adaptive weight moves; above 0.
    """

    def __init__(self, weight: float, target: float | None = None, step: float = 0.005) -> None:
        self.weight, self.target, self.step = weight, target, step
        self.below = target is None

    @property
    def now(self) -> float:
        """The weight of this moment's batch."""
        return self.weight if self.below else 0.0

    def update(self, entropy: float) -> None:
        """Move the weight by a batch's mean entropy, nats a token."""
        if self.target is not None:
            self.below = entropy < self.target
            self.weight = max(0.0, self.weight + (self.step if self.below else -self.step))

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint keeps: nothing of a constant weight."""
        return {} if self.target is None else {"weight": self.weight, "below": float(self.below)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint; one of a run without a target has nothing to say, and the weight starts anew."""
        if self.target is not None and state:
            self.weight, self.below = float(state["weight"]), bool(state["below"])
