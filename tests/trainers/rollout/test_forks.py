"""Forks of episodes: what they share with their root, where they are made, and that nothing else changes by them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from collector_helpers import collect, collector_of, engine_of, tokens, turn_of
from hypothesis import given
from hypothesis import strategies as st
from ray_here import local_ray
from rollout_fakes import AsyncEnv, Errand
from simulated_time import simulated
from trajectories import trajectory_of

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from textenvs import Turn
from textenvs.messages import Message
from trainers.algorithms.estimators import TurnGRPO
from trainers.algorithms.estimators.fork import Fork
from trainers.config.learning import ForkSection
from trainers.engines.base import EngineError
from trainers.rollout.batch import Batch
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.forks import ForkPlan
from trainers.rollout.group_scheduler import ConsecutiveErrorsError
from trainers.trajectory import Status, Trajectory, read_parquet, write_parquet

EVERY: dict[str, Any] = {"algorithm": Fork(), "fork": ForkSection(samples=2)}


def chatty(call: Call, version: int) -> Reply:
    """A reply that depends on the request's seed and prompt alone."""
    number = (call.sampling.seed or 0) % 10
    return Reply(tokens(f"{number} {'end' if number == 7 else 'on'}"), latency=1.0 + number)


def forked(script: Any = chatty, batches: int = 1, **options: Any) -> list[Batch]:
    options = EVERY | {"n": 2, "groups_per_batch": 2} | options
    return run_simulated(collect(engine_of(script), EnvSpec(Errand), batches, **options))


class LateErrand(Errand):
    """Pays at its end what each earlier turn earned: its number and 1, as another term."""

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        late = {number: {"late": number + 1.0} for number in range(self.state.assistant_turns - 1)}
        return replace(turn, earlier=late) if turn.terminated else turn


def test_late_rewards_reach_the_turns_that_earned_them() -> None:
    (batch,) = run_simulated(
        collect(engine_of(chatty), EnvSpec(LateErrand), **EVERY | {"n": 2, "groups_per_batch": 2})  # type: ignore[arg-type]
    )
    turns = 0
    for trajectory in batch.trained:
        late = [terms.get("late", 0.0) for terms in trajectory.turn_terms]
        own = [terms["reward"] for terms in trajectory.turn_terms]
        first, last = trajectory.forked_turn, len(late) - 1
        assert late == [first + number + 1.0 if number < last else 0.0 for number in range(len(late))]
        assert own == [0.0 + int(value) for value in own]
        np.testing.assert_allclose(trajectory.turn_rewards, np.add(late, own))
        turns += last
    assert turns > 4
    assert batch.of("fork")


def trees(batch: Batch) -> Iterator[tuple[Trajectory, list[Trajectory]]]:
    for root in batch.trajectories:
        yield root, [fork for fork in batch.of("fork") if fork.forked_from == root.episode_id]


def test_fork_has_root_context_and_own_turns() -> None:
    (batch,) = forked()
    assert batch.trained == [*batch.trajectories, *batch.of("fork")]
    different = 0
    for root, forks in trees(batch):
        assert [(fork.forked_turn) for fork in forks] == [t for t in range(root.num_turns) for _ in range(2)]
        assert (root.forked_from, root.forked_turn) == ("", 0)
        for fork in forks:
            assert (fork.group_id, fork.task_key) == (root.group_id, root.task_key)
            start = int(np.flatnonzero(root.turn_id == fork.forked_turn)[0])
            assert fork.token_ids[:start].tolist() == root.token_ids[:start].tolist()
            assert not fork.action_mask[:start].any()
            assert fork.action_mask[start]
            replies = [m["content"] for m in fork.messages if m["role"] == "assistant"]
            assert fork.turn_rewards.tolist() == [float(text.split(" ")[0]) for text in replies[fork.forked_turn :]]
            assert fork.num_turns == len(replies) - fork.forked_turn
            assert fork.terminated
            different += fork.token_ids.tolist() != root.token_ids.tolist()
        names = [fork.episode_id for fork in forks]
        assert len(set(names)) == len(names)
    assert different


def test_fork_continues_root_randomness() -> None:
    """A fork that replies as its root did gets the same answers as its root: both have the episode's seed."""
    (batch,) = forked(lambda call, version: Reply(tokens("1 on")))
    for root, forks in trees(batch):
        for fork in forks:
            assert fork.messages == root.messages


def test_roots_are_what_they_are_without_forks() -> None:
    (with_forks,), (without,) = forked(), forked(algorithm=TurnGRPO())
    assert with_forks.groups == without.groups
    assert without.of("fork") == []
    assert without.trained == without.trajectories


def test_forks_follow_from_seeds_also_after_restart() -> None:
    """Also their number, which a budget makes depend on the batches before."""
    rules = ForkSection(samples=1, budget=60)

    async def play(frontier: Any, batches: int) -> tuple[list[Batch], Any]:
        engine, collected = engine_of(chatty), []
        options = {"n": 2, "groups_per_batch": 2, "fork": rules, "algorithm": Fork()}
        async with Backend(EnvSpec(Errand)) as backend, collector_of(engine, backend, **options) as collector:
            if frontier is not None:
                collector.restore(frontier)
            for _ in range(batches):
                collected.append(await collector.next_batch())
                await collector.update_weights(None, engine.version + 1)
            return collected, collector.frontier()

    whole, _ = run_simulated(play(None, 4))
    first, frontier = run_simulated(play(None, 2))
    second, _ = run_simulated(play(frontier, 2))
    for one, other in zip(whole, (*first, *second), strict=True):
        assert [t.episode_id for t in one.trained] == [t.episode_id for t in other.trained]
        assert [t.token_ids.tolist() for t in one.trained] == [t.token_ids.tolist() for t in other.trained]
    assert not whole[0].of("fork"), "nothing is known of a fork's cost yet"
    assert any(batch.of("fork") for batch in whole[1:])


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_forks_are_same_wherever_environments_run(kind: Any) -> None:
    options = EVERY | {"n": 2, "groups_per_batch": 2}
    quick = engine_of(lambda call, version: Reply(chatty(call, version).token_ids))
    elsewhere = asyncio.run(collect(quick, EnvSpec(Errand), kind=kind, limits={"workers": 2}, **options))
    assert elsewhere[0].trained == forked()[0].trained


@pytest.mark.xdist_group("ray")
def test_forks_are_same_in_actors_of_ray(request: pytest.FixtureRequest) -> None:
    local_ray(request.config)
    quick = engine_of(lambda call, version: Reply(chatty(call, version).token_ids))
    options = EVERY | {"n": 2, "groups_per_batch": 1}
    elsewhere = asyncio.run(collect(quick, EnvSpec(Errand), kind="ray", limits={"workers": 2}, **options))
    assert elsewhere[0].trained == forked(groups_per_batch=1)[0].trained


def test_failed_fork_is_left_out_and_counted() -> None:
    def script(call: Call, version: int) -> Reply:
        if turn_of(call) == 1 and "-t1-f0" in (call.session or ""):
            return Reply(error=EngineError("no luck"))
        return chatty(call, version)

    (batch,), (all_well,) = forked(script), forked()
    failed = {(t.group_id, t.episode_id) for t in all_well.trained if "-t1-f0" in t.episode_id}
    assert failed
    assert batch.trained == [t for t in all_well.trained if (t.group_id, t.episode_id) not in failed]
    assert batch.stats["forks_lost"] == len(failed)
    assert batch.stats["forks_delivered"] == len(all_well.trained) - 4 - len(failed)
    assert batch.stats["cause_error_engine_EngineError"] == 2 * len(failed), "each was tried twice"


def test_failed_forks_count_among_errors_in_row() -> None:
    def script(call: Call, version: int) -> Reply:
        return Reply(error=EngineError("no luck")) if "-f" in (call.session or "") else chatty(call, version)

    with pytest.raises(ConsecutiveErrorsError, match="no luck"):
        forked(script, max_consecutive_errors=3)


def test_forks_of_replayed_root_begin_in_new_episode() -> None:
    """The first attempt fails in its second turn: a fork of its first state would be of another episode."""

    def script(call: Call, version: int) -> Reply:
        if turn_of(call) == 1 and (call.session or "").endswith("s0-a0"):
            return Reply(error=EngineError("once"))
        return Reply(tokens("1 on"))

    (batch,) = forked(script, n=1, groups_per_batch=1)
    ((root, forks),) = trees(batch)
    assert root.episode_id.endswith("s0-a1")
    assert len(forks) == 2 * root.num_turns


def test_staleness_bound_holds_for_forks() -> None:
    def slow(call: Call, version: int) -> Reply:
        seconds = 5.0 if "-f" in (call.session or "") else 1.0
        return Reply(tokens(f"{(call.sampling.seed or 0) % 5} on"), latency=seconds)

    batches = forked(slow, batches=6, staleness=2, n=2, groups_per_batch=2)
    mixed = 0
    for batch in batches:
        for root, forks in trees(batch):
            for episode in (root, *forks):
                assert batch.version - int(episode.oldest_version or 0) <= 2
            mixed += any(fork.oldest_version != root.oldest_version for fork in forks)
    assert mixed, "otherwise this test shows nothing"


@simulated
async def test_aborted_fork_is_replayed_with_its_seed() -> None:
    engine, ended = engine_of(chatty), list[Trajectory]()
    options = {"n": 2, "groups_per_batch": 1, "staleness": 3, "retries": 0, **EVERY}
    options |= {"on_trajectory": ended.append}
    async with Backend(EnvSpec(Errand)) as backend, collector_of(engine, backend, **options) as collector:
        first = await collector.next_batch()
        await collector.update_weights(None, 1, mode="abort")
        batches, ended = [first, *[await collector.next_batch() for _ in range(3)]], ended
    aborted = [t.episode_id for t in ended if t.status is Status.ABORTED and t.forked_from]
    assert aborted
    assert "forks_lost" not in batches[-1].stats, "it does not count against their retries"
    trained = {t.episode_id: t for batch in batches for t in batch.trained}
    assert all(trained[f"{name.removesuffix('0')}1"].oldest_version == 1 for name in aborted)


def test_no_more_episodes_run_than_without_forks() -> None:
    most = {}
    for algorithm in (TurnGRPO(), Fork()):
        running = [0]

        async def play(algorithm: Any = algorithm, running: Any = running) -> None:
            engine = engine_of(chatty)
            generate = engine.generate

            async def counted(*args: Any) -> Any:
                running.append(int(engine.stats()["running"]) + 1)
                return await generate(*args)

            engine.generate = counted  # type: ignore[method-assign]
            options = {"n": 2, "groups_per_batch": 3, "algorithm": algorithm, "fork": ForkSection(samples=5)}
            async with Backend(EnvSpec(Errand)) as backend, collector_of(engine, backend, **options) as collector:
                await collector.next_batch()

        run_simulated(play())
        most[algorithm.adv_estimator] = max(running)
    assert most == {"turn_grpo": 6, "fork": 6}


@simulated
async def test_engine_keeps_root_until_last_fork() -> None:
    engine = engine_of(chatty)
    order: list[str] = []
    release = engine.release

    async def released(session: str) -> None:
        order.append(session.split("/")[1])
        await release(session)

    engine.release = released  # type: ignore[method-assign]
    options = {"n": 1, "groups_per_batch": 1, **EVERY}
    async with Backend(EnvSpec(Errand)) as backend, collector_of(engine, backend, **options) as collector:
        batch = await collector.next_batch()
        await asyncio.sleep(0)
        batch, order, _ = batch, order, engine.released
    ((root, forks),) = trees(batch)
    assert order[-1] == root.episode_id
    assert sorted(order) == sorted([root.episode_id, *(fork.episode_id for fork in forks)])


class GreedyFork(Fork):
    needs = Fork.needs | {"greedy"}


@simulated
async def test_evaluation_and_greedy_episodes_are_not_forked() -> None:
    engine = engine_of(chatty)
    options = EVERY | {"n": 1, "groups_per_batch": 1, "algorithm": GreedyFork()}
    async with Backend(EnvSpec(Errand)) as backend, collector_of(engine, backend, **options) as collector:
        played = await collector.evaluate([0, 1])
        batch, played = await collector.next_batch(), played
    assert not any(t.forked_from for t in played)
    assert {fork.forked_from for fork in batch.of("fork")} == {batch.trajectories[0].episode_id}


def test_environment_without_snapshots_is_error_that_says_so() -> None:
    with pytest.raises(ConsecutiveErrorsError, match="snapshot"):
        run_simulated(collect(engine_of(chatty), EnvSpec(AsyncEnv), max_consecutive_errors=2, **EVERY))


def test_parquet_keeps_where_fork_was_made(tmp_path: Any) -> None:
    (batch,) = forked()
    write_parquet(tmp_path / "episodes.parquet", batch.trained)
    assert read_parquet(tmp_path / "episodes.parquet") == batch.trained


# ---------------------------------------------------------------- where forks are made


def root(name: str, rewards: list[float], sampled: list[int], group: str = "g") -> Trajectory:
    turns = np.repeat(np.arange(len(rewards)), sampled)
    return trajectory_of(turns, rewards, episode_id=name, group_id=group)


def fork_of(of: Trajectory, turn: int, reward: float, number: int) -> Trajectory:
    return replace(root(f"{of.episode_id}-{turn}-{number}", [reward], [2]), forked_from=of.episode_id, forked_turn=turn)


def observed(rules: ForkSection, forks: bool = True) -> ForkPlan:
    """After a batch of two roots of three turns: only the second reply makes a difference to what is earned."""
    plan = ForkPlan(rules, roots=2, seed=3)
    roots = [root("a", [0.0, 1.0, 0.0], [2, 4, 2]), root("b", [0.1, 0.9, 0.0], [2, 4, 2])]
    made = []
    for episode in roots if forks else []:
        made += [fork_of(episode, 0, 1.1, 0), fork_of(episode, 2, 0.0, 0)]
        made += [fork_of(episode, 1, -1.0, 0), fork_of(episode, 1, 3.0, 1)]
    plan.observe([roots], made)
    return plan


def test_every_turn_is_forked_without_budget() -> None:
    plan = ForkPlan(ForkSection(samples=3), roots=2, seed=3)
    assert [plan.samples(0, 0, turn) for turn in range(4)] == [3] * 4
    assert [observed(ForkSection(samples=3)).samples(0, 0, turn) for turn in range(5)] == [3] * 5


def test_variance_forks_where_returns_differ() -> None:
    plan = observed(ForkSection(where="variance"))
    assert [plan.samples(0, 0, turn) for turn in range(3)] == [0, 1, 0]
    # Without forks, the roots of a group tell: they differ a little at the second turn.
    assert [observed(ForkSection(where="variance"), forks=False).chance(turn) for turn in range(3)] == [0.0, 1.0, 0.0]


def test_variance_is_that_of_what_estimator_sees() -> None:
    """Every reply to the opening earns 1 at once, and then much or little, which a discount of 0 does not see."""
    for gamma, expected in ((1.0, [1.0, 0.0]), (0.0, [0.0, 1.0])):
        plan = ForkPlan(ForkSection(where="variance"), roots=1, seed=3, gamma=gamma)
        first = root("a", [1.0, 9.0], [1, 1])
        longer = [replace(root(f"a-{n}", [1.0, r], [1, 1]), forked_from="a") for n, r in enumerate((0.0, 50.0))]
        plan.observe([[first]], [*longer, fork_of(first, 1, 8.0, 0), fork_of(first, 1, 9.0, 1)])
        assert [plan.chance(turn) for turn in range(2)] == expected


def test_forgotten_turns_are_forked_again() -> None:
    plan = observed(ForkSection(where="variance"))
    assert plan.chance(0) == 0.0
    for _ in range(8):  # no forks; the opening then decides among the roots of a group
        plan.observe([[root("a", [5.0, 0.0, 0.0], [2, 4, 2]), root("b", [0.0, 0.0, 0.0], [2, 4, 2])]], [])
    assert plan.chance(0) == 1.0


@pytest.mark.parametrize("where", ["every", "variance"])
@pytest.mark.parametrize("budget", [1, 10, 25, 1000])
def test_budget_is_expected_tokens_of_forks(where: Any, budget: int) -> None:
    plan = observed(ForkSection(samples=2, where=where, budget=budget))
    # Two roots reach every turn, and sample 8, 6 and 2 tokens from there on; each state has two forks.
    costs = [2 * 2 * 8, 2 * 2 * 6, 2 * 2 * 2]
    expected = sum(plan.chance(turn) * cost for turn, cost in enumerate(costs))
    assert expected == pytest.approx(min(budget, sum(costs)))
    if where == "every":
        assert plan.chance(0) == plan.chance(1) == plan.chance(2)
    else:
        assert plan.chance(1) == pytest.approx(min(1.0, budget / costs[1])), "it has the highest variance"
    made = [plan.samples(group, 0, 1) for group in range(400)]
    assert set(made) <= {0, 2}
    assert np.mean(made) / 2 == pytest.approx(plan.chance(1), abs=0.08)


def test_budget_moves_to_decisive_turn() -> None:
    """The second turn decides what roots earn; a budget for forks of one turn does not stay at the first."""
    plan = ForkPlan(ForkSection(where="variance", budget=12), roots=2, seed=3)
    for number in range(6):
        roots = [root("a", [0.0, 1.0, 0.0], [2, 4, 2], "g"), root("b", [0.1, 0.9, 0.0], [2, 4, 2], "h")]
        forked = [turn for turn in range(3) if number and plan.chance(turn) > 0.5]
        worth = {0: [1.0, 1.0], 1: [-1.0, 3.0], 2: [0.0, 0.0]}
        made = [fork_of(episode, turn, r, i) for episode in roots for turn in forked for i, r in enumerate(worth[turn])]
        plan.observe([[episode] for episode in roots], made)
    assert [round(plan.chance(turn), 2) for turn in range(3)] == [0.0, 1.0, 0.0]


def test_first_batch_has_no_forks_under_budget() -> None:
    plan = ForkPlan(ForkSection(budget=100), roots=2, seed=0)
    assert [plan.samples(group, 0, 0) for group in range(5)] == [0] * 5


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3))
def test_fork_decision_ignores_own_batch(rewards: list[float]) -> None:
    """It is made from batches delivered before, the seed, and numbers: what a root will reply has no part in it."""
    rules = ForkSection(where="variance", budget=20)
    plan = observed(rules)
    before = [plan.samples(group, 0, turn) for group in range(9) for turn in range(3)]
    root("now", rewards, [1, 1, 1])
    assert [plan.samples(group, 0, turn) for group in range(9) for turn in range(3)] == before


def test_decisions_in_collector_do_not_depend_on_replies() -> None:
    """Two policies that differ in everything they say, after the same first batch: the same states are forked."""

    def policy(reward: int) -> Any:
        def script(call: Call, version: int) -> Reply:
            return Reply(tokens(f"{reward if version else 1} on"))

        return script

    made = []
    for reward in (2, 9):
        _, second = forked(policy(reward), 2, fork=ForkSection(budget=40))
        made.append([(fork.episode_id, fork.forked_turn) for fork in second.of("fork")])
    assert made[0] == made[1] != []


def test_plan_is_restored_from_its_state() -> None:
    plan = observed(ForkSection(where="variance", budget=20))
    other = ForkPlan(ForkSection(where="variance", budget=20), roots=2, seed=3)
    other.restore(plan.state())
    assert [other.chance(turn) for turn in range(4)] == [plan.chance(turn) for turn in range(4)]
