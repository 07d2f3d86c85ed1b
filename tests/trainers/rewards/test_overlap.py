"""The overlap of scoring and generation, against an oracle; and a reward model's cost in wall time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import reward_overlap
from benchmarks.simulation.clock import run_simulated
from trainers.rewards.service import Overlap

Spans = list[tuple[int, int]]
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1])), max_size=8)


def covered(of: Spans, second: int) -> bool:
    return any(begin <= second < end for begin, end in of)


@given(spans, spans, st.lists(st.integers(0, 80), max_size=5), st.integers(0, 40))
def test_overlap_is_the_share_of_scoring_seconds(
    batches: Spans, generating: Spans, looks: list[int], watched: int
) -> None:
    def generating_s(now: int) -> float:
        return float(sum(covered(generating, second) for second in range(now)))

    overlap, time = Overlap(), [0]
    events = sorted(
        [(begin, 1, "begin") for begin, _ in batches]
        + [(end, 0, "end") for _, end in batches]
        + [(look, 2, "look") for look in looks]
        + [(watched, 3, "watch")]
    )
    for now, _, what in events:
        time[0] = now
        match what:
            case "begin":
                overlap.begin(now)
            case "end":
                overlap.end(now)
            case "look":
                overlap.stats(now)
            case "watch":
                overlap.watch(lambda: generating_s(time[0]), now)
    time[0] = 100
    stats = overlap.stats(100)
    busy = [second for second in range(100) if covered(batches, second)]
    assert stats["computing_s"] == len(busy)
    seen = [second for second in busy if second >= watched]
    if not seen:
        assert "overlap" not in stats
    else:
        assert stats["overlap"] == pytest.approx(sum(covered(generating, s) for s in seen) / len(seen))


@pytest.mark.parametrize("per", ["episode", "turn"])
def test_concurrent_scoring_costs_at_most_a_tenth(per: str) -> None:
    none, beside, serial = (run_simulated(reward_overlap.run(mode, 2, per=per)) for mode in ("none", "async", "serial"))
    assert beside.seconds <= 1.1 * none.seconds
    assert serial.seconds > 1.8 * none.seconds, "or there was nothing to gain"
    assert len(beside.scores) == 2 * reward_overlap.EPISODES
    assert beside.scores == serial.scores, "the very same, in the same order"
    assert beside.stats["model/overlap"] > 0.9
