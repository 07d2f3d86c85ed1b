"""Lengths of trained and sampled episodes agree in every update mode, and the metric says where they do not.

Each reply has 4 or 60 tokens, with probability ½ each, decided by the request's seed. Weight updates come often enough
to cut most long replies and few short ones.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from collector_helpers import ROLES, collector_of, engine_of, tokens
from hypothesis import given
from hypothesis import strategies as st
from rollout_fakes import AsyncEnv

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from trainers.engines.base import Sampling
from trainers.rollout.batch import Batch
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.length_bias import Lengths

SHORT, LONG = 4, 60
MEAN = (SHORT + LONG) / 2
MODES = [("keep", False), ("wait", False), ("abort", False), ("abort", True)]


def by_seed(call: Call, version: int) -> Reply:
    """Return the rest of a begun reply, else a new one; its text depends on the seed, too."""
    ids, rng = list(call.token_ids), random.Random(call.sampling.seed)
    begun = ids[len(ids) - ids[::-1].index(ROLES["assistant"]) :]
    long = begun[0] == ord("L") if begun else rng.random() < 0.5
    text = "L" + "".join(rng.choice("abcdefgh") for _ in range(54)) + " end" if long else "end"
    whole = tokens(text)
    assert len(whole) == (LONG if long else SHORT)
    return Reply(whole[len(begun) :], per_token=0.1)


def by_call(call: Call, version: int) -> Reply:
    """An engine that does not honour seeds: every request draws anew."""
    return by_seed(Call(call.token_ids, Sampling(seed=call.number), call.session, call.number), version)


async def train(script: Any, mode: Any, batches: int, **options: Any) -> list[Batch]:
    """A trainer that takes a second for each batch."""
    options = {"tasks": None, "n": 1, "groups_per_batch": 8, "max_response_length": 99} | options
    collected = []
    async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine_of(script), backend, **options) as collector:
        for version in range(1, batches + 1):
            collected.append(await collector.next_batch())
            await asyncio.sleep(1.0)
            await collector.update_weights(None, version, mode)
    return collected


def lengths(batches: list[Batch]) -> list[int]:
    return [int(t.action_mask.sum()) for batch in batches for t in batch.trajectories]


@pytest.mark.parametrize("staleness", [pytest.param(1, marks=pytest.mark.slow), 2])  # the more, the more is cut
@pytest.mark.parametrize(("mode", "partial"), MODES)
def test_update_does_not_select_replies_by_length(mode: str, partial: bool, staleness: int) -> None:
    """800 replies: the standard error of the share is .018."""
    batches = run_simulated(train(by_seed, mode, 100, staleness=staleness, partial=partial))
    sampled = lengths(batches)
    assert set(sampled) == {SHORT, LONG}
    assert sampled.count(LONG) / len(sampled) == pytest.approx(0.5, abs=0.05)
    assert batches[-1].stats["length_bias"] == pytest.approx(1.0, abs=0.03)
    if mode == "abort" and not partial:
        assert batches[-1].stats["retries_excused"] > 50, "updates do cut replies here"


@pytest.mark.parametrize(
    ("planted", "script", "options"),
    [
        ("the engine draws anew after an abort", by_call, {"staleness": 2}),
        ("groups that take long are withdrawn", by_seed, {"staleness": 1, "oversampling_factor": 2.0}),
        ("replies that take longer than allowed are drawn anew", by_seed, {"generation_timeout_s": 5.9, "retries": 9}),
    ],
)
def test_length_bias_sees_bias_that_is_planted(planted: str, script: Any, options: dict[str, Any]) -> None:
    batches = run_simulated(train(script, "abort", 60, max_consecutive_errors=999, **options))
    sampled = lengths(batches)
    truth = sum(sampled) / len(sampled) / MEAN
    assert truth < 0.85, "or nothing is planted"
    assert batches[-1].stats["length_bias"] == pytest.approx(truth, abs=0.08)


def test_mean_length_treats_cut_as_lower_bound() -> None:
    """Four replies of 2, 4, 6 and 8 tokens. The last two are cut after 5: what is left is the mean up to there."""
    lengths = Lengths()
    for end, ended in ((2, True), (4, True), (5, False), (5, False)):
        lengths.add(0, end, ended)
    assert lengths.mean() == pytest.approx((2 + 4 + 5 + 5) / 4)
    lengths.add(5, 6, True)  # one that was cut went on, and is as good as not cut
    lengths.add(5, 8, True)
    assert lengths.mean() == pytest.approx((2 + 4 + 6 + 8) / 4)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_without_cuts_mean_length_is_mean(ends: list[int], rng: random.Random) -> None:
    """Also where an episode is seen in two parts."""
    lengths = Lengths()
    for end in ends:
        cut = rng.randrange(end)
        lengths.add(0, cut, False)
        lengths.add(cut, end, True)
    assert lengths.mean() == pytest.approx(sum(ends) / len(ends))
