"""What a configuration is allowed to ask for and its user should know: a line each, printed when a run starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .learning import AlgorithmSection
    from .schema import RunConfig

#: Where each way of moving rewards learns another policy than the one that earns most.
_MISLEADING_CREDIT = {
    "spread": "what is done decides how many turns follow",
    "discounted": "what is done decides when a reward comes",
}


def notices(config: RunConfig) -> Iterator[str]:
    """The warnings of this configuration."""
    algorithm: AlgorithmSection | None = getattr(config, "algorithm", None)
    if algorithm is None:
        return
    credit = algorithm.reward_credit
    if credit in _MISLEADING_CREDIT and (credit != "discounted" or algorithm.reward_credit_decay > 0):
        yield (
            f"warning: algorithm.reward_credit={credit} learns another policy than the one that earns most wherever "
            f"{_MISLEADING_CREDIT[credit]} (docs/credit.md has an example); as_earned and last do not"
        )
