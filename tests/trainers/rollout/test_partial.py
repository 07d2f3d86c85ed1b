"""Partial rollouts: replies that a weight update interrupts resume from their tokens under the new weights."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from collector_helpers import ROLES, collector_of, engine_of, tokens
from rollout_fakes import AsyncEnv
from simulated_time import simulated

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from trainers.rollout.batch import Batch
from trainers.rollout.environments import Backend, EnvSpec
from trainers.trajectory import Status, Trajectory

FULL = tokens("0.5 a long reply end")  # of 21 tokens, one a second


def reply_so_far(call: Call) -> list[int]:
    """Return the tokens of the reply so far, which follow the last assistant's role."""
    ids = list(call.token_ids)
    return ids[len(ids) - ids[::-1].index(ROLES["assistant"]) :]


def goes_on(call: Call, version: int) -> Reply:
    """The rest of the reply; the first batch, two episodes, is quick."""
    assert call.session is not None
    quick = call.session.split("/")[1].startswith("g0-")
    return Reply(FULL[len(reply_so_far(call)) :], per_token=0.01 if quick else 1.0)


async def run(
    engine: ScriptedEngine, updates: list[tuple[float, int]], ended: list[Trajectory], **options: Any
) -> Batch:
    """The second batch: two episodes, cut by updates at these times. The trainer owes one a batch it took."""
    options = {"n": 2, "groups_per_batch": 1, "staleness": 1, "retries": 0} | options
    backend, loop = Backend(EnvSpec(AsyncEnv)), asyncio.get_running_loop()
    async with backend, collector_of(engine, backend, on_trajectory=ended.append, **options) as collector:
        await collector.next_batch()
        for at, version in updates:
            await asyncio.sleep(at - loop.time())
            await collector.update_weights(None, version, "abort")
        return await collector.next_batch()


def test_cut_reply_continues_under_new_weights() -> None:
    engine, ended = engine_of(goes_on), []
    batch = run_simulated(run(engine, [(4.5, 1)], ended, partial=True))
    assert [t.episode_id for t in batch.trajectories] == ["g1-s0-a0", "g1-s1-a0"], "none is played again"
    for trajectory in batch.trajectories:
        assert trajectory.status is Status.COMPLETED
        assert trajectory.num_turns == 1
        assert trajectory.token_ids[trajectory.action_mask].tolist() == FULL, "not a token twice, and none lost"
        assert trajectory.weight_version[trajectory.action_mask].tolist() == [0] * 4 + [1] * 17
        assert trajectory.oldest_version == 0
        assert trajectory.turn_rewards.tolist() == [0.5]
    assert batch.stats["replies_continued"] == 2
    assert batch.stats["staleness_max"] == 1, "a mixed reply is as old as its oldest token"
    assert "retries_excused" not in batch.stats
    first, second = [call for call in engine.calls if call.session and "/g1-s0" in call.session]
    assert second.token_ids == (*first.token_ids, *FULL[:4])
    assert second.sampling.max_new_tokens == first.sampling.max_new_tokens - 4
    assert second.sampling.seed != first.sampling.seed, "or an engine may use the same random numbers twice"


def test_without_it_episode_is_played_again() -> None:
    engine, ended = engine_of(goes_on), []
    batch = run_simulated(run(engine, [(4.5, 1)], ended))
    assert [t.episode_id for t in batch.trajectories] == ["g1-s0-a1", "g1-s1-a1"]
    assert {int(v) for t in batch.trajectories for v in t.weight_version[t.action_mask]} == {1}
    assert batch.stats["cause_aborted_aborted"] == batch.stats["retries_excused"] == 2


def test_update_before_first_token_costs_nothing() -> None:
    engine, ended = engine_of(goes_on), []
    batch = run_simulated(run(engine, [(0.5, 1)], ended, partial=True))
    assert [t.weight_version[t.action_mask].tolist() for t in batch.trajectories] == [[1] * 21] * 2
    assert {t.status for t in ended} == {Status.COMPLETED}


def test_too_old_episode_is_replayed_and_counted() -> None:
    engine, ended = engine_of(goes_on), []
    batch = run_simulated(run(engine, [(4.5, 1)], ended, partial=True, partial_max_age=0))
    assert [t.episode_id for t in batch.trajectories] == ["g1-s0-a1", "g1-s1-a1"]
    assert batch.stats["cause_aborted_too_old"] == batch.stats["retries_excused"] == 2
    assert "1 versions old, more than partial_max_age=0" in batch.problems["aborted_too_old"]
    cut = [t for t in ended if t.status is Status.ABORTED]
    assert [t.weight_version[t.action_mask].tolist() for t in cut] == [[0] * 4] * 2
    young = run_simulated(run(engine_of(goes_on), [(4.5, 1)], [], partial=True, partial_max_age=1))
    assert [t.episode_id for t in young.trajectories] == ["g1-s0-a0", "g1-s1-a0"]


@pytest.mark.parametrize("partial", [False, True])
@simulated
async def test_request_during_update_is_excused(partial: bool) -> None:
    """The engine takes a while to cut: what began meanwhile is cut too, and was not there when the update was asked."""

    class Slow(ScriptedEngine):
        async def update_weights(self, weights: Any, version: int, mode: Any = "keep") -> None:
            await asyncio.sleep(3.0)
            await super().update_weights(weights, version, mode)

    def script(call: Call) -> Reply:
        assert call.session is not None
        number = int(call.session.split("/")[1][1:].split("-")[0])
        return Reply(FULL[len(reply_so_far(call)) :], per_token=0.01 if number == 0 else 0.05 if number == 1 else 1.0)

    engine = Slow(script, vocab_size=128)
    options: dict[str, Any] = {"n": 1, "groups_per_batch": 1, "staleness": 2, "retries": 0}
    options |= {"max_running": 1, "partial": partial}
    async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend, **options) as collector:
        await collector.next_batch()
        await collector.update_weights(None, 1, "abort")  # group 1 ends meanwhile, and group 2 begins
        await collector.next_batch()
        await collector.update_weights(None, 2)
        batch = await collector.next_batch()
    assert [t.episode_id for t in batch.trajectories] == ["g2-s0-a0" if partial else "g2-s0-a1"]
    assert "groups_dropped_too_few_siblings" not in batch.stats


def test_limits_are_of_whole_reply() -> None:
    batch = run_simulated(run(engine_of(goes_on), [(4.5, 1)], [], partial=True, max_response_length=6))
    assert [t.token_ids[t.action_mask].tolist()[:6] for t in batch.trajectories] == [FULL[:6]] * 2
    ended: list[Trajectory] = []
    options: dict[str, Any] = {"generation_timeout_s": 20.0, "max_consecutive_errors": 2}
    with pytest.raises(Exception, match="the generation took longer than 20 s"):
        run_simulated(run(engine_of(goes_on), [(4.5, 1)], ended, partial=True, **options))
    late = [t for t in ended if t.status is Status.TRUNCATED_TIME]
    assert [len(t.turn_rewards) for t in late] == [1, 1], "the tokens before the cut are there"
