"""Selection of the groups of a batch whose rewards vary most."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np

from ..trajectory import Trajectory, tied


def most_varied(groups: Sequence[Collection[Trajectory]], top_p: float) -> list[int]:
    """Return the places of the groups to keep, ascending: the fewest that have ``top_p`` of the sum of deviations.

    The SNR-aware filter of RAGEN-2 (arXiv 2604.06268), in the form that its authors' code calls ``top_p`` and
    ``linear``: groups are ranked by the standard deviation of their episodes' returns (n - 1 in the denominator), and
    those with the greatest are kept until their sum is at least ``top_p`` of the sum over all groups. Of equal groups
    the earlier is kept first. A group without a difference is never kept, so the answer is empty where no group has
    one. The margin of that code (``selection_eps``, which is in units of the reward) is left out.

    ``top_p`` is in (0, 1]; groups have at least one episode each.
    """
    deviations = [0.0 if tied(group) else float(np.std([t.total_reward for t in group], ddof=1)) for group in groups]
    ranked = sorted(range(len(groups)), key=lambda place: -deviations[place])
    sums = list(accumulate((deviations[place] for place in ranked), initial=0.0))
    enough = top_p * sums[-1]
    return sorted(place for place, before in zip(ranked, sums, strict=False) if before < enough and deviations[place])
