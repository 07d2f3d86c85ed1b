"""The collector around its scheduler: episodes, failures, updates, budgets, resuming; mostly on simulated time."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from collector_helpers import (
    Characters,
    collect,
    collector_of,
    engine_of,
    play_out,
    says,
    slow_env,
    task_of,
    tokens,
    turn_of,
    wordy,
)
from rollout_fakes import AsyncEnv
from simulated_time import simulated

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from trainers.algorithms.estimators import ReMax
from trainers.engines.base import EngineDeadError, RequestError
from trainers.rollout.batch import Batch
from trainers.rollout.curriculum import TaskOrder
from trainers.rollout.environments import Backend, EnvSpec, Kind
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.group_scheduler import ConsecutiveErrorsError, FilterExhaustedError
from trainers.rollout.seeds import derive_seed
from trainers.trajectory import Status, Trajectory

# ---------------------------------------------------------------- what a batch is


def test_batch_has_ordered_groups_with_turn_rewards() -> None:
    def script(call: Call, version: int) -> Reply:
        return Reply(tokens(f"0.{turn_of(call) + 1} on"), latency=5.0 if task_of(call) == 0 else 1.0)

    batches = run_simulated(collect(engine_of(script), batches=2, tasks=lambda group: group % 5))
    assert [(b.number, b.version, len(b.groups)) for b in batches] == [(0, 0, 3), (1, 1, 3)]
    groups = [group for batch in batches for group in batch.groups]
    for number, group in enumerate(groups):
        assert [t.episode_id for t in group] == [f"g{number}-s0-a0", f"g{number}-s1-a0"]
        for trajectory in group:
            assert trajectory.group_id == f"g{number}"
            assert trajectory.task_key == str(number % 5)
            assert (trajectory.status, trajectory.terminated, trajectory.stop) == (Status.COMPLETED, True, "solved")
            assert trajectory.turn_rewards.tolist() == [0.1, 0.2, 0.3]
            assert trajectory.turn_terms[1] == {"half": 0.1, "rest": 0.1}
            assert trajectory.metrics["turns"] == 3
            assert [m["role"] for m in trajectory.messages] == ["user", "assistant"] * 3
            assert set(trajectory.weight_version[trajectory.action_mask]) == {number // 3}


def test_siblings_share_environments_seed_and_differ_in_sampling() -> None:
    engine = engine_of(says("0 end"))
    (batch,) = run_simulated(collect(engine, n=3))
    openings = [{t.messages[0]["content"] for t in group} for group in batch.groups]
    assert [len(group) for group in openings] == [1, 1, 1], "the opening shows the seed"
    assert len(set.union(*openings)) == 3
    assert len({call.sampling.seed for call in engine.calls}) == len(engine.calls) == 9


def test_zero_staleness_batches_equal_synchronous_loop() -> None:
    """The oracle plays one episode after the other, group by group, batch by batch."""

    async def synchronous() -> list[list[list[Trajectory]]]:
        engine, renderer, order = engine_of(wordy), Characters(), TaskOrder(50, seed=7)
        batches, number = [], 0
        for version in range(4):
            batch = []
            for _ in range(3):
                group = []
                for sibling in range(4):
                    env = AsyncEnv()
                    seed = derive_seed(7, "sampling", number, sibling, 0)
                    env_seed = derive_seed(7, "environment", number, bits=32)
                    seen, info = await env.areset(seed=env_seed, options={"task_index": order(number)})
                    episode_tokens = EpisodeTokens(
                        renderer,  # type: ignore[arg-type]
                        seen,
                        episode_id=f"g{number}-s{sibling}-a0",
                        group_id=f"g{number}",
                        task_key=info["task_key"],
                    )
                    drawn = {"task_index": order(number), "env_seed": env_seed}
                    group.append(await play_out(engine, env, episode_tokens, seed, **drawn))
                number += 1
                batch.append(group)
            batches.append(batch)
            await engine.update_weights(None, version + 1)
        return batches

    expected = run_simulated(synchronous())
    batches = run_simulated(collect(engine_of(wordy), slow_env(), 4, n=4, seed=7))
    assert len({t.status for b in expected for g in b for t in g}) == 2, "the script makes episodes of both kinds"
    for reference, actual in zip(expected, batches, strict=True):
        assert [len(group) for group in actual.groups] == [4, 4, 4]
        for one, other in zip(itertools.chain(*reference), actual.trajectories, strict=True):
            assert one == other


# ---------------------------------------------------------------- staleness and order, while a trainer trains


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
@pytest.mark.parametrize(
    ("staleness", "window", "factor"),
    [(0, 1, 1.0), (1, 1, 1.0), (1, 3, 1.0), (3, 5, 1.0), (0, 1, 5 / 3), (1, 1, 5 / 3)],
)
@simulated
async def test_no_batch_is_older_than_bound(mode: Any, staleness: int, window: int, factor: float) -> None:
    """Batch number b is trained on version b: the trainer takes batches while it trains, and updates in between."""
    engine, batches = engine_of(wordy), []
    async with Backend(slow_env()) as backend:
        options = {"staleness": staleness, "window": window, "oversampling_factor": factor}
        options |= {"retries": 0, "max_running": 11}
        async with collector_of(engine, backend, **options) as collector:
            following = asyncio.ensure_future(collector.next_batch())
            for step in range(12):
                batches.append(await following)
                following = asyncio.ensure_future(collector.next_batch())  # ahead of the update
                await asyncio.sleep(random.Random(step).random() * 30)
                await collector.update_weights(None, step + 1, mode)
            following.cancel()
    ages = [b.number - t.oldest_version for b in batches for t in b.trajectories if t.oldest_version is not None]
    assert max(ages) <= staleness
    assert [b.version for b in batches] == list(range(12))
    numbers = [int(group[0].group_id[1:]) for b in batches for group in b.groups]
    assert len(numbers) == len(set(numbers))
    assert factor > 1 or all(place - number < window for place, number in enumerate(numbers))
    if staleness and mode != "wait":
        assert max(ages) > 0, "a bound that nothing comes near is not tested"
    last_stats = batches[-1].stats
    assert last_stats["staleness_max"] == max(b.number - t.oldest_version for b in batches[-1:] for t in b.trajectories)
    assert sum(share for name, share in last_stats.items() if name[10:].isdigit()) == pytest.approx(1.0)


@simulated
async def test_oversampling_delivers_first_complete_and_cancels_rest() -> None:
    """Task 0 never ends in time. It is cancelled with the batch it missed; its environment and its request are free."""
    seen: list[Trajectory] = []

    def script(call: Call, version: int) -> Reply:
        return Reply(tokens("0 end"), latency=1000.0 if task_of(call) == 0 else 1.0)

    engine = engine_of(script)
    async with Backend(EnvSpec(AsyncEnv)) as backend:
        options = {"tasks": None, "n": 2, "groups_per_batch": 2, "oversampling_factor": 1.5}
        options |= {"on_trajectory": seen.append}
        async with collector_of(engine, backend, **options) as collector:
            keys = []
            for version in range(3):
                batch = await collector.next_batch()
                assert batch.stats["running"] == 0, "what is withdrawn does not run any more"
                await collector.update_weights(None, version + 1)
                keys.append([group[0].task_key for group in batch.groups])
                assert {t.oldest_version for t in batch.trajectories} == {version}
            assert keys == [["1", "2"], ["3", "4"], ["6", "7"]], "5 was one too many for the second batch"
            assert batch.stats["groups_dropped_surplus"] == 3
            assert batch.stats["episodes_withdrawn"] >= 2
            assert asyncio.get_running_loop().time() < 100
            await asyncio.sleep(0.1)
            assert collector.stats()["env_leased"] == collector.stats()["running"]
            assert engine.stats()["running"] == collector.stats()["running"]
    assert all(t.task_key != "0" for t in seen)


@simulated
async def test_length_bias_shows_short_episodes_coming_first() -> None:
    """Groups 1 and 3 overtake 0 and 2. What was delivered first is compared when those are known, as late as that."""

    def script(call: Call, version: int) -> Reply:
        task = task_of(call)
        return Reply(tokens("0 to the end" if task in (0, 2) else "0 end"), latency={0: 50.0, 2: 200.0}.get(task, 1.0))

    short, long = len("0 end") + 1, len("0 to the end") + 1
    options = {"tasks": None, "n": 1, "groups_per_batch": 2, "staleness": 3, "window": 4}
    batches = await collect(engine_of(script), batches=3, **options)
    assert [[t.task_key for t in b.trajectories] for b in batches] == [["1", "3"], ["0", "4"], ["2", "5"]]
    first, second, third = [b.stats.get("length_bias") for b in batches]
    assert first is None, "group 0 is not known yet"
    assert second == pytest.approx(2 * short / (short + long))
    assert third == pytest.approx(1.0), "in the end everything is delivered"


# ---------------------------------------------------------------- failures are data


def failing(word: str, first: int = 1) -> Callable[[Call, int], Reply]:
    """The first episodes to speak say ``word``; all others end well, with rewards that differ."""
    count = itertools.count()
    return lambda call, version: Reply(tokens(f"1 {word}" if next(count) < first else "1 end"))


@pytest.mark.parametrize(
    ("word", "kind", "status", "cause", "message"),
    [
        ("hang", "inline", Status.TRUNCATED_TIME, "step_timeout", "step took longer than"),
        ("hang", "thread", Status.TRUNCATED_TIME, "step_timeout", "step took longer than"),
        ("hang", "process", Status.TRUNCATED_TIME, "step_timeout", "step took longer than"),
        ("die", "process", Status.ERROR_ENV, "step_died", "process died with exit code 7"),
        ("raise", "inline", Status.ERROR_ENV, "step_raised", "KeyError: 'a bug in the environment'"),
        ("raise", "thread", Status.ERROR_ENV, "step_raised", "KeyError: 'a bug in the environment'"),
        ("nan", "inline", Status.ERROR_ENV, "step_nonsense", "reward is nan"),
        ("failed", "inline", Status.ERROR_ENV, "user_failed", "no user"),
    ],
)
@pytest.mark.usefixtures("short_hangs")
async def test_environment_that_fails_is_status_and_batch_completes(
    word: str, kind: Kind, status: Status, cause: str, message: str
) -> None:
    seen: list[Trajectory] = []
    engine = engine_of(failing(word))
    limits = {"workers": 2}
    (batch,) = await collect(engine, kind=kind, limits=limits, on_trajectory=seen.append, groups_per_batch=2)
    assert [len(group) for group in batch.groups] == [2, 2]
    assert {t.status for t in batch.trajectories} == {Status.COMPLETED}
    (failed,) = [t for t in seen if t.status is not Status.COMPLETED]
    assert failed.status is status
    assert message in str(failed.error)
    assert failed.truncated
    assert not failed.terminated
    assert batch.stats[f"episodes_{status.value}"] == 1
    assert batch.stats["episodes_completed"] == 4
    assert batch.stats["retries"] == 1
    causes = {name: n for name, n in batch.stats.items() if name.startswith("cause_")}
    assert causes == {f"cause_{status.value}_{cause}": 1}
    assert list(batch.problems) == [f"{status.value}_{cause}"]
    assert batch.problems[f"{status.value}_{cause}"]
    again = failed.episode_id.replace("-a0", "-a1")
    assert again in {t.episode_id for t in batch.trajectories}
    assert len(engine.released) == len(seen), "every session is released"


def test_engine_refusal_is_a_status() -> None:
    seen: list[Trajectory] = []
    count = itertools.count()

    def script(call: Call, version: int) -> Reply:
        return Reply(tokens("1 end"), error=RequestError("not this one") if next(count) == 0 else None)

    (batch,) = run_simulated(collect(engine_of(script), on_trajectory=seen.append))
    (failed,) = [t for t in seen if t.status is Status.ERROR_ENGINE]
    assert failed.error == "RequestError: not this one"
    assert len(batch.trajectories) == 6


@simulated
async def test_dead_engine_stops_run_at_once() -> None:
    count = itertools.count()

    def script(call: Call, version: int) -> Reply:
        return Reply(tokens("1 end"), latency=1.0 if next(count) == 3 else 1e6, dies=True)

    with pytest.raises(EngineDeadError, match="at call 3"):
        await collect(engine_of(script))
    assert asyncio.get_running_loop().time() < 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generation_timeout_s": 5.0}, "the generation took longer than 5 s"),
        ({"episode_timeout_s": 7.0}, "the episode took longer than 7 s"),
    ],
)
def test_generations_and_episodes_have_their_time(options: dict[str, float], message: str) -> None:
    seen: list[Trajectory] = []
    count = itertools.count()
    engine = engine_of(lambda call, version: Reply(tokens("1 end"), hangs=next(count) == 0))
    run_simulated(collect(engine, on_trajectory=seen.append, **options))
    (late,) = [t for t in seen if t.status is not Status.COMPLETED]
    assert (late.status, late.error) == (Status.TRUNCATED_TIME, message)
    assert sorted(engine.released) == sorted({str(call.session) for call in engine.calls})
    assert engine.stats()["running"] == 0


def test_hang_between_turns_leaves_turns_before_it() -> None:
    seen: list[Trajectory] = []
    first: list[str] = []

    def script(call: Call, version: int) -> Reply:
        first.append(str(call.session))
        return Reply(tokens("0.5 on" if turn_of(call) == 0 else "1 hang" if call.session == first[0] else "1 end"))

    run_simulated(collect(engine_of(script), limits={"step_timeout": 3.0}, on_trajectory=seen.append))
    (late,) = [t for t in seen if t.status is Status.TRUNCATED_TIME]
    assert late.turn_rewards.tolist() == [0.5, 0.0], "the reply that met the failure has no reward"
    assert len(late.messages) == 3


@pytest.mark.parametrize(
    ("env", "cause"), [({}, "error_env.*a bug in the environment"), ({"fail_to_make": True}, "no such data")]
)
def test_errors_in_row_stop_run_with_cause(env: dict[str, bool], cause: str) -> None:
    with pytest.raises(ConsecutiveErrorsError, match=f"(?s)5 episodes in a row.*{cause}"):
        run_simulated(collect(engine_of(says("1 raise")), EnvSpec(AsyncEnv, env), max_consecutive_errors=5))


def test_bug_is_raised_as_it_is() -> None:
    def broken(trajectory: Trajectory) -> None:
        raise ZeroDivisionError("a bug of the callback")

    with pytest.raises(ZeroDivisionError, match="a bug of the callback"):
        run_simulated(collect(engine_of(says("1 end")), on_trajectory=broken))


def test_bug_in_episode_says_which() -> None:
    class Broken(Characters):
        def decode(self, ids: Sequence[int]) -> str:
            raise ZeroDivisionError("a bug of the renderer")

    options = {"renderer": Broken(), "tasks": 1, "n": 1, "groups_per_batch": 1}
    with pytest.raises(ZeroDivisionError) as raised:
        run_simulated(collect(engine_of(says("1 end")), **options))
    assert raised.value.__notes__ == ["in episode g0-s0-a0, task_index 0"]


def test_groups_without_difference_are_replaced_or_stop_run() -> None:
    def script(call: Call, version: int) -> Reply:
        spread = call.sampling.seed % 2 if task_of(call) % 3 == 0 and call.sampling.seed is not None else 0
        return Reply(tokens(f"{spread} end"))

    (batch,) = run_simulated(collect(engine_of(script), tasks=None, n=4, filter_zero_variance=True))
    assert all(len({t.total_reward for t in group}) == 2 for group in batch.groups)
    assert all(int(group[0].task_key) % 3 == 0 for group in batch.groups)
    assert batch.stats["groups_dropped_zero_variance"] == batch.stats["groups_zero_variance_solved"] >= 4
    with pytest.raises(FilterExhaustedError, match="10 groups in a row"):
        run_simulated(collect(engine_of(says("1 end")), filter_zero_variance=True, max_consecutive_filtered=9))


def test_batch_is_its_groups_of_most_variance() -> None:
    """Batches without a difference, which come first, are replaced; others are smaller, and none is waited for."""

    def script(call: Call, version: int) -> Reply:
        spread = call.sampling.seed % 2 if task_of(call) in (5, 6) and call.sampling.seed is not None else 0
        return Reply(tokens(f"{spread} end"))

    options = {"tasks": lambda group: group, "n": 4, "groups_per_batch": 2, "filter_variance_top_p": 0.9}
    (batch,) = run_simulated(collect(engine_of(script), **options))
    assert [group[0].task_key for group in batch.groups] == ["5"], "the batch of groups 4 and 5"
    assert batch.stats["groups_dropped_zero_variance"] == 5
    with pytest.raises(FilterExhaustedError, match="10 groups in a row"):
        run_simulated(collect(engine_of(says("1 end")), **options, max_consecutive_filtered=9))


def test_estimator_sees_comparison_of_group() -> None:
    """Members are credited together, after each was credited by itself; the greedy episode is none."""
    seen = []

    def compared(episodes: Sequence[Trajectory]) -> list[Trajectory]:
        seen.append([episode.total_reward for episode in episodes])
        return [replace(one, turn_rewards=one.turn_rewards + place) for place, one in enumerate(episodes)]

    options: dict[str, Any] = {
        "credit": lambda episode: replace(episode, turn_rewards=episode.turn_rewards + 100),
        "group_credit": compared,
        "algorithm": ReMax(),
    }
    (batch,) = run_simulated(collect(engine_of(says("1 end")), **options))
    roots = [episode for episode in batch.episodes if episode.role == "root"]
    earned = [root.trajectory.total_reward for root in roots]
    assert seen == [[100 + reward for reward in earned]]
    assert [root.credited.total_reward for root in roots] == [100 + r + place for place, r in enumerate(earned)]
    greedy = [episode.credited for episode in batch.episodes if episode.role == "greedy"]
    assert {episode.total_reward for episode in greedy} == {100 + earned[0]}


def test_greedy_option_plays_each_task_greedily() -> None:
    def script(call: Call, version: int) -> Reply:
        return Reply(tokens("7 end" if call.sampling.temperature == 0 else "1 end"))

    batches = run_simulated(collect(engine_of(script), batches=2, n=2, algorithm=ReMax(), temperature=0.8))
    for batch in batches:
        assert [len(group) for group in batch.groups] == [2, 2, 2]
        for group, greedy in zip(batch.groups, batch.of("greedy"), strict=True):
            assert greedy.group_id == group[0].group_id
            assert greedy.task_key == group[0].task_key
            assert greedy.episode_id == f"{greedy.group_id}-greedy-a0"
            assert greedy.messages[-1]["content"] != group[0].messages[-1]["content"]
    (plain,) = run_simulated(collect(engine_of(script), n=2, temperature=0.8))
    assert plain.of("greedy") == []
    assert [t.episode_id for t in plain.trajectories] == [t.episode_id for t in batches[0].trajectories]


# ---------------------------------------------------------------- budgets of tokens


SEED = derive_seed(0, "environment", 0, bits=32)
OPENING = len(Characters().render(({"role": "user", "content": f"task 0 seed {SEED}"},)))


def first_trajectory(
    script: Callable[[Call, int], Reply], max_context: int = 500, **options: Any
) -> tuple[Trajectory, ScriptedEngine]:
    engine = engine_of(script, max_context=max_context)
    options = {"tasks": 1, "n": 1, "groups_per_batch": 1} | options
    (batch,) = run_simulated(collect(engine, **options))
    return batch.groups[0][0], engine


def test_reply_cut_by_limit_continues_episode() -> None:
    trajectory, engine = first_trajectory(says("0.5 on and on"), max_response_length=4)
    assert trajectory.status is Status.COMPLETED
    assert trajectory.turn_rewards.tolist() == [0.5, 0.5, 0.5]
    assert {call.sampling.max_new_tokens for call in engine.calls} == {4}


def test_reply_cut_by_context_is_judged_first() -> None:
    trajectory, engine = first_trajectory(says("0.5 on and on"), max_context=OPENING + 4)
    assert engine.calls[-1].sampling.max_new_tokens == 4
    assert trajectory.status is Status.TRUNCATED_CONTEXT
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.turn_rewards.tolist() == [0.5]
    assert len(trajectory.token_ids) == OPENING + 4, "nothing of the observation fits"


def test_reply_cut_by_context_may_still_solve_task() -> None:
    trajectory, _ = first_trajectory(says("0.5 end of the world"), max_context=OPENING + 7)
    assert trajectory.status is Status.COMPLETED
    assert trajectory.terminated


@pytest.mark.parametrize("room", range(7, 24))
def test_trajectory_never_exceeds_context(room: int) -> None:
    trajectory, engine = first_trajectory(says("0.5 on"), max_context=OPENING + room)
    assert len(trajectory.token_ids) <= OPENING + room
    assert all(len(c.token_ids) + c.sampling.max_new_tokens <= OPENING + room for c in engine.calls)
    assert bool(trajectory.action_mask[trajectory.turn_ends()].all())
    assert trajectory.num_turns == len(engine.calls)
    if trajectory.status is Status.TRUNCATED_CONTEXT:
        assert len(trajectory.token_ids) == OPENING + room, "and shows as much as fits of what came last"


def test_response_budget_counts_from_opening() -> None:
    trajectory, _ = first_trajectory(says("0.5 on"), max_response_tokens=12)
    assert trajectory.status is Status.TRUNCATED_CONTEXT
    assert trajectory.num_turns == 1
    wide, _ = first_trajectory(says("0.5 on"), max_response_tokens=300)
    assert wide.num_turns == 3


def test_opening_that_does_not_fit_is_named() -> None:
    with pytest.raises(ConsecutiveErrorsError, match=r"the opening takes \d+ tokens, and the context has room for 9"):
        first_trajectory(says("0.5 on"), max_context=9)


# ---------------------------------------------------------------- resuming


def test_resumed_run_equals_uninterrupted_run() -> None:
    options: dict[str, Any] = {"tasks": 7, "seed": 3}

    async def run(stops: list[int], staleness: int) -> list[Batch]:
        """Batches of a run that is killed in the middle of things after each of ``stops`` batches."""
        batches: list[Batch] = []
        saved = None
        for stop in stops:
            engine = engine_of(wordy, version=len(batches))
            backend = Backend(slow_env())
            async with backend, collector_of(engine, backend, staleness=staleness, **options) as collector:
                if saved is not None:
                    collector.restore(json.loads(saved))
                while len(batches) < stop:
                    batches.append(await collector.next_batch())
                    await collector.update_weights(None, len(batches))
                    saved = json.dumps(collector.frontier())
                await asyncio.sleep(15)  # work that the kill undoes
        return batches

    whole = run_simulated(run([6], staleness=0))
    pieces = run_simulated(run([2, 3, 6], staleness=0))
    for one, other in zip(whole, pieces, strict=True):
        for straight, resumed in zip(one.trajectories, other.trajectories, strict=True):
            assert straight == resumed
    ahead = run_simulated(run([2, 3, 6], staleness=2))
    assert [int(g[0].group_id[1:]) for b in ahead for g in b.groups] == list(range(18)), "every group, once, in order"
    order = TaskOrder(7, seed=3)
    assert [int(g[0].task_key) for b in ahead for g in b.groups] == [order(n) for n in range(18)]
    assert [b.number for b in ahead] == list(range(6))


async def test_frontier_of_another_run_is_refused() -> None:
    async with Backend(EnvSpec(AsyncEnv)) as backend:
        frontier = collector_of(engine_of(wordy), backend, seed=1).frontier()
        with pytest.raises(ValueError, match="'seed': 1.*'seed': 2"):
            collector_of(engine_of(wordy), backend, seed=2).restore(frontier)
