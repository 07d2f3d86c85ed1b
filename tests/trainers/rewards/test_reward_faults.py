"""Faults of a reward model, seen from the training loop: no 0 is invented, and training continues.

The collector, its statistics and the service are the real ones, on simulated time; the engine is scripted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.letters import Letters
from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from textenvs.messages import Messages, assistant, user
from trainers.config.reward_model import RewardModelSection
from trainers.config.rollout import RolloutSection
from trainers.rewards import BackendError, RewardService, ScoringRequest, Traits, reward_of
from trainers.rollout.batch import Batch
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec
from trainers.trajectory import Status, Trajectory

GROUPS, SIBLINGS = 3, 2


class TwoTurns:
    """An environment of two turns without rewards."""

    async def areset(self, *, seed: int, options: dict[str, Any]) -> Any:
        self.messages: Messages = (user(f"task {options['task_index']}"),)
        return self.messages, {"task_key": str(options["task_index"])}

    async def astep(self, action: str) -> Any:
        over = len(self.messages) == 3
        self.messages = (*self.messages, assistant(action), *(() if over else (user("go on"),)))
        return self.messages, 0.0, over, False, {}

    async def aclose(self) -> None: ...


def truth(messages: Messages) -> float:
    """Return a score in 0.5..1, never an invented 0."""
    return 0.5 + random.Random(" ".join(m["content"] for m in messages)).random() / 2


def script(call: Call) -> Reply:
    rng = random.Random(f"{call.session} {len(call.token_ids)}")
    return Reply([*(rng.randrange(97, 123) for _ in range(rng.randrange(2, 9))), 2], latency=rng.random() * 3)


class Model:
    """A model that takes half a second per batch; ``fault`` may replace its scores, or raise."""

    def __init__(
        self, fault: Callable[[Sequence[ScoringRequest]], Any] = lambda requests: None, concurrency: int = 1
    ) -> None:
        self.fault, self.traits = fault, Traits(concurrency, low=0.5, high=1.0)
        self.up = True

    async def score(self, requests: Sequence[ScoringRequest]) -> Any:
        await asyncio.sleep(0.5)
        if not self.up:
            raise ConnectionError("connection refused")
        replaced = self.fault(requests)
        return [truth(request.messages) for request in requests] if replaced is None else replaced

    async def healthy(self) -> bool:
        return self.up

    async def close(self) -> None: ...


async def train(
    backend: Any, batches: int = 3, beside: Callable[[], Any] | None = None, **options: Any
) -> tuple[list[Batch], list[Trajectory], dict[str, float]]:
    """Run the trainer's loop without training; return batches, all ended episodes, and the service's statistics."""
    ended: list[Trajectory] = []
    section = RewardModelSection(**{"max_batch_size": 4, "retries": 1} | options)
    async with (
        RewardService({"m": backend}, {"m": section}) as service,
        Backend(EnvSpec(TwoTurns)) as environments,
        Collector(
            ScriptedEngine(script, vocab_size=128),
            Letters(),  # type: ignore[arg-type]
            environments,
            tasks=None,
            rollout=RolloutSection(n=SIBLINGS, groups_per_batch=GROUPS, retries=3, max_response_length=20),
            rewards={"m": reward_of(service, "m")},
            on_trajectory=ended.append,
        ) as collector,
    ):
        service.watch(collector.generating_s)
        other = None if beside is None else asyncio.ensure_future(beside())
        collected = []
        for _ in range(batches):
            collected.append(await collector.next_batch())
            await collector.update_weights(None, collected[-1].version + 1)
        if other is not None:
            other.cancel()
        return collected, ended, service.stats()


def check(batches: list[Batch], count: int = 3) -> None:
    """Assert that every delivered episode has its own score."""
    assert len(batches) == count
    for batch in batches:
        assert len(batch.groups) == GROUPS
        for trajectory in batch.trajectories:
            assert trajectory.status is Status.COMPLETED
            assert trajectory.turn_rewards.tolist() == [0.0, pytest.approx(truth(trajectory.messages))]


@pytest.mark.parametrize("result", [math.nan, math.inf, 0.0, 7.0, "great", None, BackendError("answered in prose")])
def test_invalid_score_marks_only_its_episode(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    bad = {1, 4, 5}
    seen = 0

    def fault(requests: Sequence[ScoringRequest]) -> Any:
        nonlocal seen
        answers: list[Any] = []
        for request in requests:
            answers.append(result if seen in bad else truth(request.messages))
            seen += 1
        return answers

    batches, ended, stats = run_simulated(train(Model(fault), retries=0))
    check(batches)
    failed = [episode for episode in ended if episode.status is not Status.COMPLETED]
    assert [episode.status for episode in failed] == [Status.ERROR_REWARD] * 3
    assert all(not episode.turn_rewards.any() or episode.turn_rewards.min() >= 0 for episode in failed)
    assert stats["m/unscored"] == 3
    assert sum(batch.stats.get("episodes_error_reward", 0) for batch in batches) == 3
    assert "the reward model 'm' gave no score" in "".join(batches[0].problems.values())
    assert "the reward model 'm' gave no score (1 so far)" in caplog.text


def test_outage_costs_time_but_no_episode(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trainers")
    model = Model()

    async def outage() -> None:
        await asyncio.sleep(2)
        model.up = False
        await asyncio.sleep(30)
        model.up = True

    async def timed(beside: Any) -> tuple[Any, float]:
        result = await train(model, beside=beside)
        return result, asyncio.get_running_loop().time()

    (batches, ended, stats), seconds = run_simulated(timed(outage))
    _, undisturbed = run_simulated(timed(None))
    check(batches)
    assert {episode.status for episode in ended} == {Status.COMPLETED}
    assert stats["m/unscored"] == 0
    assert 25 < stats["m/down_s"] < 45
    assert seconds < undisturbed + 45
    assert "'m' is down, and requests wait for it, up to 300 s: ConnectionError: connection refused" in caplog.text
    assert "'m' is back after" in caplog.text


def test_permanently_failing_model_stops_the_run() -> None:
    def fault(requests: Sequence[ScoringRequest]) -> Any:
        raise RuntimeError("CUDA error: device-side assert")

    with pytest.raises(Exception, match="device-side assert"):
        run_simulated(train(Model(fault), retries=0))


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 3), st.booleans(), st.floats(0, 0.4))
def test_delivered_episodes_have_their_own_score(seed, size, concurrency, remembers, failing) -> None:
    rng = random.Random(seed)

    def fault(requests: Sequence[ScoringRequest]) -> Any:
        if rng.random() < failing:
            raise RuntimeError("out of memory")
        kinds = [math.nan, 0.0, BackendError("no verdict"), BackendError("too long", final=True)]
        return [rng.choice(kinds) if rng.random() < failing / 4 else truth(request.messages) for request in requests]

    model = Model(fault, concurrency)

    async def weather() -> None:
        while True:
            await asyncio.sleep(rng.uniform(1, 20))
            model.up = False
            await asyncio.sleep(rng.uniform(0, 10))
            model.up = True

    options = {"max_batch_size": size, "cache_size": 100 * remembers, "retries": 3}
    batches, _, stats = run_simulated(train(model, 2, weather, **options))
    check(batches, 2)
    assert 0 <= stats.get("m/overlap", 0.0) <= 1


def test_turn_scores_belong_to_their_turns() -> None:
    batches, _, _ = run_simulated(train(Model(), per_turn=True))
    for trajectory in batches[0].trajectories:
        expected = [truth(trajectory.messages[: 2 * turn + 2]) for turn in range(2)]
        assert trajectory.turn_rewards.tolist() == pytest.approx(expected)
