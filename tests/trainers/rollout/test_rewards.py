"""Rewards that come later: awaited beside the next turns, added to theirs, and never a silent 0."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest
from collector_helpers import collect, engine_of, says, tokens, turn_of

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from trainers.rollout.rewards import TurnContext
from trainers.trajectory import Status, Trajectory

ONE: dict[str, Any] = {"n": 1, "groups_per_batch": 1}


def three_turns(call: Call, version: int) -> Reply:
    """0.1, 0.2 and 0.3, three seconds each."""
    return Reply(tokens(f"0.{turn_of(call) + 1} on"), latency=3.0)


def test_late_reward_belongs_to_its_turn() -> None:
    contexts_: list[TurnContext] = []

    async def judge(so_far: TurnContext, turn: int) -> float:
        await asyncio.sleep(7.0)
        return turn + 1.0

    def score(so_far: TurnContext, turn: int) -> Awaitable[float]:
        contexts_.append(so_far)
        return judge(so_far, turn)

    (batch,) = run_simulated(collect(engine_of(three_turns), rewards={"judge": score}, **ONE))
    (trajectory,) = batch.trajectories
    assert trajectory.turn_rewards.tolist() == pytest.approx([1.1, 2.2, 3.3])
    assert [terms["judge"] for terms in trajectory.turn_terms] == [1.0, 2.0, 3.0]
    sums = [sum(terms.values()) for terms in trajectory.turn_terms]
    assert sums == pytest.approx(trajectory.turn_rewards.tolist()), "a reward is still the sum of its terms"
    assert batch.stats["wait_s"] == pytest.approx(9 + 7), "not 9 + 3 * 7"
    assert batch.stats["time_rewards_s"] == pytest.approx(7)
    assert [(s.over, s.reply, s.task_key, len(s.messages)) for s in contexts_] == [
        (False, "0.1 on", "0" if trajectory.task_key == "0" else trajectory.task_key, 3),
        (False, "0.2 on", trajectory.task_key, 5),
        (True, "0.3 on", trajectory.task_key, 6),
    ]
    assert all(s.futures is None for s in contexts_), "no score needs them"


@pytest.mark.parametrize("options", [{}, {"max_response_tokens": 9}], ids=["by the environment", "by a budget"])
def test_episode_score_is_requested_once(options: dict[str, Any]) -> None:
    async def graded(so_far: TurnContext) -> Mapping[str, float]:
        return {"accuracy": 0.25, "half": 1.0}

    def score(so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        return graded(so_far) if so_far.over else None

    (batch,) = run_simulated(collect(engine_of(three_turns), rewards={"grade": score}, **ONE, **options))
    (trajectory,) = batch.trajectories
    assert ["accuracy" in terms for terms in trajectory.turn_terms] == [False] * (trajectory.num_turns - 1) + [True]
    last = 0.1 * trajectory.num_turns
    assert trajectory.turn_rewards[-1] == pytest.approx(last + 1.25)
    assert trajectory.turn_terms[-1]["half"] == pytest.approx(last / 2 + 1.0), "a name that is there already grows"
    assert (trajectory.num_turns == 1) == bool(options)


def returns(value: Any) -> Any:
    async def answer() -> Any:
        return value

    return lambda so_far, turn: answer()


async def hang(so_far: TurnContext, turn: int) -> float:
    await asyncio.Event().wait()
    return 0.0


async def broken(so_far: TurnContext, turn: int) -> float:
    raise KeyError("no such model")


async def cancels(so_far: TurnContext, turn: int) -> float:
    raise asyncio.CancelledError


def refuses(so_far: TurnContext, turn: int) -> Awaitable[float]:
    raise ConnectionError("the service is down")


@pytest.mark.parametrize(
    ("score", "cause", "words"),
    [
        (hang, "reward_timeout", "turn 0 took longer than 5 s"),
        (broken, "reward_raised", "KeyError: 'no such model'"),
        (cancels, "reward_raised", "cancelled from inside"),
        (refuses, "reward_raised", "the service is down"),
        (returns(float("nan")), "reward_nonsense", "is nan: it must be a finite number"),
        (returns(10**400), "reward_nonsense", "it must be a finite number"),
        (returns(10**5000), "reward_nonsense", "a value of the type int"),
        (returns("much"), "reward_nonsense", "is 'much'"),
        (returns(None), "reward_nonsense", "is None"),
        (returns(True), "reward_nonsense", "is True"),
        (returns({"a": float("inf")}), "reward_nonsense", "inf"),
        (lambda so_far, turn: 1.0, "reward_raised", "can't be used in 'await' expression"),
    ],
)
def test_reward_that_fails_is_status_and_never_zero(score: Any, cause: str, words: str) -> None:
    ended: list[Trajectory] = []
    first = True

    def once(so_far: TurnContext, turn: int) -> Any:
        nonlocal first
        bad, first = first, False
        return score(so_far, turn) if bad else None

    options = {"rewards": {"judge": once}, "reward_timeout": 5.0, "on_trajectory": ended.append}
    (batch,) = run_simulated(collect(engine_of(says("1 on", latency=2.0)), **ONE, **options))
    failed, good = ended
    assert failed.status is Status.ERROR_REWARD
    assert words in str(failed.error)
    assert good in batch.trajectories
    assert good.turn_rewards.tolist() == [1, 1, 1]
    assert batch.stats[f"cause_error_reward_{cause}"] == 1
    if score is not hang:
        assert failed.num_turns <= 2, "a failure ends the episode at its next turn"


def test_who_waits_for_rewards_holds_no_environment() -> None:
    async def slow(so_far: TurnContext, turn: int) -> float:
        await asyncio.sleep(100.0)
        return 1.0

    options = {"rewards": {"slow": slow}, "limits": {"workers": 1}, "n": 4, "groups_per_batch": 1}
    (batch,) = run_simulated(collect(engine_of(says("1 end", latency=1.0)), **options))
    assert batch.stats["wait_s"] == pytest.approx(104), "four episodes one after the other, their rewards together"


def test_episode_that_failed_waits_for_no_reward() -> None:
    cancelled = 0

    async def slow(so_far: TurnContext, turn: int) -> float:
        nonlocal cancelled
        try:
            await asyncio.sleep(1000.0)
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return 1.0

    def script(call: Call, version: int) -> Reply:
        assert call.session is not None
        failing = "-a0" in call.session and turn_of(call) == 1
        return Reply(tokens("1 raise" if failing else "1 on"), latency=1.0)

    (batch,) = run_simulated(collect(engine_of(script), rewards={"slow": slow}, reward_timeout=None, **ONE))
    assert cancelled == 1
    assert batch.stats["episodes_error_env"] == 1
    assert batch.stats["wait_s"] == pytest.approx(2 + 3 + 1000)


def test_failure_is_not_kept_waiting_by_other_rewards() -> None:
    async def slow(so_far: TurnContext, turn: int) -> float:
        await asyncio.sleep(1000.0)
        return 1.0

    async def fails_once(so_far: TurnContext, turn: int) -> float:
        await asyncio.sleep(5.0)
        if not ended:
            raise KeyError("no such model")
        return 1.0

    ended: list[Trajectory] = []
    options = {"rewards": {"slow": slow, "judge": fails_once}, "reward_timeout": None, "on_trajectory": ended.append}
    (batch,) = run_simulated(collect(engine_of(says("1 end", latency=1.0)), **ONE, **options))
    assert [t.status for t in ended] == [Status.ERROR_REWARD, Status.COMPLETED]
    assert batch.stats["cause_error_reward_reward_raised"] == 1
    assert batch.stats["wait_s"] == pytest.approx(1 + 5 + 1 + 1000)


def test_unneeded_reward_work_is_cancelled() -> None:
    started: list[asyncio.Task[float]] = []
    left_over: list[bool] = []

    async def slow() -> float:
        await asyncio.sleep(1000.0)
        return 1.0

    def score(so_far: TurnContext, turn: int) -> Awaitable[float]:
        left_over.extend(not task.cancelled() for task in started)
        started.append(asyncio.ensure_future(slow()))
        return started[-1]

    def refuses_once(so_far: TurnContext, turn: int) -> Awaitable[float] | None:
        return refuses(so_far, turn) if len(started) == 1 else None  # before the other one's is awaited

    options = {"rewards": {"slow": score, "judge": refuses_once}, "reward_timeout": None}
    run_simulated(collect(engine_of(says("1 end", latency=1.0)), **ONE, **options))
    assert left_over[:1] == [False]


def test_scores_that_cannot_be_called_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rewards\['judge'\] must be a function"):
        run_simulated(collect(engine_of(says("1 end")), rewards={"judge": 3}))
