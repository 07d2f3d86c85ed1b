"""The queue in front of a model: limits, order and time, under any sequence of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.rewards.service import Batcher

events = st.lists(st.tuples(st.floats(0, 2), st.one_of(st.integers(0, 12), st.just("take"), st.just("remove"))))


@given(events, st.integers(1, 4), st.one_of(st.none(), st.integers(1, 10)), st.sampled_from([0.0, 1.0, 3.0]))
def test_requests_leave_once_in_order_within_limits(sequence, size, tokens, wait):
    batcher: Batcher[list[int]] = Batcher(size, tokens, wait)
    now, waiting, numbers = 0.0, [], iter(range(10**6))  # waiting: (item, tokens, since)
    for passed, what in sequence:
        now += passed
        if isinstance(what, int):
            item = [next(numbers)]
            batcher.add(item, what, now)
            waiting.append((item, what, now))
        elif what == "remove" and waiting:
            item, *_ = waiting.pop(len(waiting) // 2)
            batcher.remove(item)
        else:
            due = batcher.due(now)
            batch = batcher.take(now)
            assert bool(batch) == (due == 0.0)
            expected, total = [], 0
            for item, cost, since in waiting:
                total += cost
                if expected and (len(expected) == size or (tokens is not None and total > tokens)):
                    break
                expected.append((item, now - since))
            full = len(expected) < len(waiting) or len(expected) == size
            late = bool(waiting) and now - waiting[0][2] >= wait
            if batch:
                assert full or late
                assert batch == expected
                waiting = waiting[len(batch) :]
            else:
                assert not full
                assert not late
                assert due == (pytest.approx(waiting[0][2] + wait - now) if waiting else None)
        assert len(batcher) == len(waiting)
