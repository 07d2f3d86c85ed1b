"""Curriculum: shares and starvation, resuming, starts in the middle, and the collector."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from collector_helpers import Characters, collector_of, engine_of, play_out, slow_env, wordy
from hypothesis import given
from hypothesis import strategies as st
from rollout_fakes import AsyncEnv
from simulated_time import simulated
from trajectories import trajectory_of, turns_of

from benchmarks.simulation.clock import run_simulated
from trainers.config.rollout import ComponentSection, CurriculumSection
from trainers.engines.base import Generation
from trainers.rollout.batch import Batch
from trainers.rollout.curriculum import Component, Curriculum, Start, TaskOrder
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.seeds import derive_seed, environment_seed
from trainers.trajectory import Status, Trajectory


def episode(success: bool, turns: int = 1, mark: int = 0) -> Trajectory:
    """Return an episode with one token an observation and two a reply."""
    return trajectory_of(
        turns_of(*[(1, 2)] * turns),
        [*[0.0] * (turns - 1), float(success)],
        token_ids=np.arange(3 * turns) + mark,
        truncated=not success,
        status=Status.COMPLETED if success else Status.TRUNCATED_TURNS,
        stop="solved" if success else None,
    )


def curriculum(weights: Sequence[float], size: int | None = None, **rules: Any) -> Curriculum:
    sections = [ComponentSection(weight=weight) for weight in weights]
    parts = [Component(f"c{i}", TaskOrder(size, seed=i), section) for i, section in enumerate(sections)]
    return Curriculum(parts, CurriculumSection(**rules), seed=3)


WEIGHTS = st.lists(st.floats(0.05, 20.0), min_size=1, max_size=5)


@given(WEIGHTS, st.integers(1, 80), st.sampled_from([None, 7]))
def test_fixed_shares_hold_within_one_group(weights: list[float], groups: int, size: int | None) -> None:
    chooser = curriculum(weights, size)
    choices = [chooser.choose(n) for n in range(groups)]
    for place, weight in enumerate(weights):
        tasks = [choice.task for choice in choices if choice.component == f"c{place}"]
        exact = groups * weight / sum(weights)
        assert exact - max(1, len(weights) - 1) - 1e-6 < len(tasks) < exact + 1 + 1e-6
        order = TaskOrder(size, seed=place)
        assert tasks == [order(number) for number in range(len(tasks))]


RESULTS = st.lists(st.lists(st.booleans(), max_size=4), min_size=1, max_size=60)


@given(WEIGHTS, RESULTS, st.floats(0.02, 1.0), st.integers(1, 6))
def test_no_component_starves_whatever_results(
    weights: list[float], results: list[list[bool]], floor: float, batch: int
) -> None:
    chooser = curriculum(weights, kind="signal", floor=floor, memory=3)
    counts: Counter[str] = Counter()
    shares: Counter[str] = Counter()
    for n in range(len(results)):
        shares.update(chooser.shares())
        assert sum(chooser.shares().values()) == pytest.approx(1)
        counts[chooser.choose(n).component] += 1
        if n % batch == batch - 1:
            chooser.observe({m: [episode(outcome) for outcome in results[m]] for m in range(n - batch + 1, n + 1)})
        for place, weight in enumerate(weights):
            name = f"c{place}"
            least = floor * weight / sum(weights) * (n + 1)
            assert shares[name] >= least - 1e-9
            assert shares[name] - max(1, len(weights) - 1) - 1e-6 < counts[name] < shares[name] + 1 + 1e-6


def test_shares_follow_unbiased_signal_estimate() -> None:
    """In the mean over all outcomes of n episodes it is 4p(1-p); and the shares are those of the formula."""
    for n, p in ((2, 0.3), (5, 0.5), (8, 0.05)):
        expected = 0.0
        for outcome in itertools.product([False, True], repeat=n):
            chooser = curriculum([1.0], kind="signal", memory=1)
            chooser.choose(0)
            chooser.observe({0: [episode(success) for success in outcome]})
            chance = p ** sum(outcome) * (1 - p) ** (n - sum(outcome))
            expected += chance * (2 * chooser.stats()["c0/signal"] - 1)  # the prior is 1, with the weight of one group
        assert expected == pytest.approx(4 * p * (1 - p))
    chooser = curriculum([1.0, 3.0], kind="signal", floor=0.2)
    outcomes = {"c0": [True, False], "c1": [True, True]}
    for n in range(4):
        choice = chooser.choose(n)
        chooser.observe({n: [episode(success) for success in outcomes[choice.component]]})
    stats = chooser.stats()
    gains = {"c0": 0.25 * stats["c0/signal"], "c1": 0.75 * stats["c1/signal"]}
    for name, weight in (("c0", 0.25), ("c1", 0.75)):
        assert chooser.shares()[name] == pytest.approx(0.2 * weight + 0.8 * gains[name] / sum(gains.values()))
    assert chooser.shares()["c0"] > 0.4


def test_numbers_of_only_environment_have_no_name() -> None:
    chooser = Curriculum([Component("", TaskOrder(4))], CurriculumSection(kind="signal", reverse_share=0.5))
    for n in range(20):
        chooser.choose(n)
        chooser.observe({n: [episode(True, turns=2), episode(n > 4)]})
    assert chooser.stats().keys() == {"share", "success", "signal", "starts", "tasks_passed"}


def test_always_and_never_solved_tasks_have_no_signal() -> None:
    chooser = curriculum([1.0], kind="signal", memory=8)
    for n in range(60):
        chooser.choose(n)
        chooser.observe({n: [episode(n % 2 == 0)] * 4})
    assert chooser.stats()["c0/success"] == pytest.approx(0.5, abs=0.1)
    assert chooser.stats()["c0/signal"] < 0.01


def test_repeated_tasks_without_signal_are_mostly_passed_over() -> None:
    chooser = curriculum([1.0], 10, kind="signal", floor=0.1)
    played: Counter[int] = Counter()
    for n in range(400):
        task = chooser.choose(n).task
        played[task] += 1
        chooser.observe({n: [episode(task < 5), episode(task < 5 or task == 7)]})
    assert played[7] > 5 * max(count for task, count in played.items() if task != 7)
    assert min(played.values()) >= 3, "the floor holds for tasks as well"


def test_tiny_floor_does_not_search_without_end() -> None:
    chooser = curriculum([1.0], 3, kind="signal", floor=1e-12)
    for n in range(100):
        before = chooser.stats().get("c0/tasks_passed", 0.0)
        chooser.choose(n)
        assert chooser.stats().get("c0/tasks_passed", 0.0) - before <= 1003
        chooser.observe({n: [episode(True)] * 2})


# ---------------------------------------------------------------- starts


def test_start_moves_towards_opening_while_it_is_solved() -> None:
    chooser = curriculum([1.0], reverse_share=0.5)
    long = episode(True, turns=4, mark=50)
    turns = []
    for n in range(14):
        choice = chooser.choose(n)
        if choice.start is None:
            siblings = [long, episode(False)] if n == 0 else [episode(False)] * 2
        else:
            turns.append(choice.start.turn)
            assert choice.task == choice.start.task == 0
            assert choice.start.env_seed == environment_seed(3, 0)
            assert choice.start.replies[0] == [51, 52]
            siblings = [episode(len(turns) != 2)] * 2  # from its second start it fails
        chooser.observe({n: siblings})
    assert turns == [3, 2, 3, 2, 1], "and then the opening is reached"
    assert chooser.stats()["c0/starts"] == 0


def test_unhelpful_start_is_dropped_withdrawn_start_stays() -> None:
    for successes, remaining in ((0, 0), (1, 1)):
        chooser = curriculum([1.0], reverse_share=0.9)
        chooser.choose(0)
        chooser.observe({0: [episode(True, turns=3), episode(False)]})
        number = next(n for n in itertools.count(1) if chooser.choose(n).start is not None)
        assert chooser.stats()["c0/starts"] == 0, "in use by one group"
        chooser.drop(number, [], unplayed=True)
        assert chooser.stats()["c0/starts"] == 1
        number = next(n for n in itertools.count(number + 1) if chooser.choose(n).start is not None)
        chooser.drop(number, [episode(i < successes) for i in range(4)])
        assert chooser.stats()["c0/starts"] == 0
        chooser.observe({})
        assert chooser.stats()["c0/starts"] == remaining


def test_newer_start_replaces_returning_one() -> None:
    chooser = curriculum([1.0], 1, reverse_share=0.5)
    solved = [episode(True, turns=3), episode(False)]
    chooser.choose(0)
    chooser.observe({0: solved})
    number = next(n for n in itertools.count(1) if chooser.choose(n).start is not None)
    assert chooser.choose(number + 1).start is None
    chooser.observe({number + 1: solved})
    chooser.drop(number, [], unplayed=True)
    assert chooser.stats()["c0/starts"] == 1, "one a task"


def test_success_reward_counts_what_replayed_replies_earned() -> None:
    """The whole episode is judged, wherever a group began; also after a checkpoint."""
    whole = episode(True, turns=4)
    whole = replace(whole, turn_rewards=np.array([0.1, 0.2, 0.3, 0.4]))

    def new() -> Curriculum:
        part = Component("a", TaskOrder(None), ComponentSection(success_reward=float(np.sum(whole.turn_rewards))))
        return Curriculum([part], CurriculumSection(reverse_share=0.9), seed=3)

    chooser, turns = new(), list[int]()
    chooser.choose(0)
    chooser.observe({0: [whole, replace(whole, turn_rewards=np.array([0.1, 0.2, 0.3, 0.0]))]})
    for n in range(1, 9):
        start = chooser.choose(n).start
        siblings = [episode(False)] * 2
        if start is not None:  # they earn the rest
            turns.append(start.turn)
            rest = episode(True, turns=4 - start.turn)
            siblings = [replace(rest, turn_rewards=whole.turn_rewards[start.turn :])] * 2
        state, chooser = json.loads(json.dumps(chooser.state([n]))), new()
        chooser.restore(state, [n])
        chooser.observe({n: siblings})
    assert turns == [3, 2, 1]


# ---------------------------------------------------------------- resuming


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 3)), min_size=4, max_size=60),
    st.integers(0, 50),
    st.sampled_from(["fixed", "signal"]),
    st.sampled_from([None, 6]),
    st.randoms(use_true_random=False),
)
def test_resuming_at_any_moment_changes_no_choice(
    events: list[tuple[int, int, int]], cut: int, kind: Any, size: int | None, order: Any
) -> None:
    """Events (successes, what happens, turns) in any order: admissions, drops and batches; JSON in between."""

    def new() -> Curriculum:
        return curriculum([1.0, 2.0, 0.5], size, kind=kind, reverse_share=0.4)

    straight, resumed = new(), new()
    flight: list[int] = []
    for place, (successes, what, turns) in enumerate(events):
        if place == cut:
            state, resumed = json.loads(json.dumps(resumed.state(flight))), new()
            resumed.restore(state, flight)
        flight.append(place)
        assert straight.choose(place) == resumed.choose(place)
        siblings = [episode(i < successes, turns) for i in range(3)]
        if what == 0 or len(flight) < 3:
            continue
        if what == 1:
            dropped = flight.pop(order.randrange(len(flight)))
            for chooser in (straight, resumed):
                chooser.drop(dropped, siblings, unplayed=turns == 1)
            continue
        batch = dict.fromkeys(flight[:2], siblings)
        del flight[:2]
        for chooser in (straight, resumed):
            chooser.observe(batch)
        assert straight.stats() == resumed.stats()
    assert json.dumps(straight.state(flight)) == json.dumps(resumed.state(flight))


def test_choices_ignore_order_within_batch() -> None:
    states = []
    for drops in ((1, 3), (3, 1)):
        chooser = curriculum([1.0, 1.0], kind="signal", reverse_share=0.3)
        for n in range(6):
            chooser.choose(n)
        for n in drops:
            chooser.drop(n, [episode(n == 3)] * 2)
        chooser.observe({n: [episode(True, 2), episode(n % 2 == 0)] for n in (0, 2, 4, 5)})
        states.append(json.dumps(chooser.state(())))
    assert states[0] == states[1]


def test_invalid_mixture_is_refused() -> None:
    one = Component("a", TaskOrder(None))
    for parts in ((), (one, one)):
        with pytest.raises(ValueError, match="at least one component, of unique names"):
            Curriculum(parts, CurriculumSection())
    chooser = Curriculum([one], CurriculumSection())
    with pytest.raises(ValueError, match="group 1 is not the next"):
        chooser.choose(1)
    chooser.choose(0)
    with pytest.raises(ValueError, match=r"groups \[5\] play"):
        Curriculum([one], CurriculumSection()).restore(chooser.state([0]), [0, 5])
    with pytest.raises(ValueError, match="mixture of a, not of b"):
        Curriculum([Component("b", TaskOrder(None))], CurriculumSection()).restore(chooser.state([0]), [0])


# ---------------------------------------------------------------- with the collector

SAY = {"near": "go on", "far": "and then"}
RULES = {"kind": "signal", "reverse_share": 0.5, "memory": 2}


def two(**rules: Any) -> Curriculum:
    parts = [Component("near", TaskOrder(20, seed=1)), Component("far", TaskOrder(None), ComponentSection(weight=2.0))]
    return Curriculum(parts, CurriculumSection(**RULES | rules), seed=7)


def backends(**options: Any) -> dict[str, Backend]:
    delay = slow_env().kwargs["delay"]
    return {name: Backend(EnvSpec(AsyncEnv, {"delay": delay, "say": say}), **options) for name, say in SAY.items()}


async def collected(batches: int, frontier: Any = None, version: int = 0, **options: Any) -> tuple[list[Batch], Any]:
    """Batches, and the frontier after them."""
    engine, results = engine_of(wordy, version=version), list[Batch]()
    defaults = {"tasks": two(), "seed": 7, "n": 4}
    async with collector_of(engine, backends(), **defaults | options) as collector:  # type: ignore[arg-type]
        if frontier is not None:
            collector.restore(json.loads(json.dumps(frontier)))
        for _ in range(batches):
            batch = await collector.next_batch()
            results.append(batch)
            await collector.update_weights(None, batch.version + 1)
        frontier = collector.frontier()
        await asyncio.sleep(15)  # work that is lost
        return results, frontier


async def _oracle(batches: int) -> list[list[list[Trajectory]]]:
    """One episode after the other; a start is reached by playing the same replies once more."""
    engine, renderer, chooser = engine_of(wordy), Characters(), two()
    results, number = [], 0
    for version in range(batches):
        groups: dict[int, list[Trajectory]] = {}
        choices = {n: chooser.choose(n) for n in range(number, number + 3)}
        for n, choice in choices.items():
            groups[n] = []
            start = choice.start
            for sibling in range(4):
                env = AsyncEnv(say=SAY[choice.component])
                env_seed = derive_seed(7, "environment", n, bits=32) if start is None else start.env_seed
                seen, info = await env.areset(seed=env_seed, options={"task_index": choice.task})
                names = {"group_id": f"g{n}", "task_key": info["task_key"], "episode_id": f"g{n}-s{sibling}-a0"}
                episode_tokens = EpisodeTokens(renderer, seen, **names)  # type: ignore[arg-type]
                metrics: dict[str, float] = {}
                for ids in [] if start is None else start.replies[: start.turn]:
                    nothing = np.zeros(len(ids))
                    text = episode_tokens.reply(Generation(np.array(ids), nothing, nothing.astype(int), "stop"))  # type: ignore[arg-type]
                    seen = (await env.astep(text))[0]
                    episode_tokens.observe(seen)
                if start is not None:
                    episode_tokens, metrics = episode_tokens.fork(**names), {"start_turn": float(start.turn)}
                seed = derive_seed(7, "sampling", n, sibling, 0)
                drawn = {"task_index": choice.task, "env_seed": env_seed}
                groups[n].append(await play_out(engine, env, episode_tokens, seed, metrics, **drawn))
        number += 3
        chooser.observe(groups)
        results.append([*groups.values()])
        await engine.update_weights(None, version + 1)
    return results


def test_without_staleness_mixture_with_starts_equals_synchronous_loop() -> None:
    expected = run_simulated(_oracle(8))
    batches, _ = run_simulated(collected(8))
    for reference, actual in zip(expected, batches, strict=True):
        assert actual.trajectories == [*itertools.chain(*reference)]
    starts = [choice.start for batch in batches for choice in batch.choices]
    assert sum(start is not None for start in starts) >= 4
    assert len({choice.component for batch in batches for choice in batch.choices}) == 2
    for batch in batches:
        for choice, group in zip(batch.choices, batch.groups, strict=True):
            assert all((choice.start is None) == ("start_turn" not in episode_.metrics) for episode_ in group)
            assert all(SAY["far" if choice.component == "near" else "near"] not in str(t.messages) for t in group)


def test_run_in_pieces_is_whole_run() -> None:
    whole, _ = run_simulated(collected(8))
    parts, frontier = run_simulated(collected(3))
    for count in (1, 4):
        rest, frontier = run_simulated(collected(count, frontier, len(parts)))
        parts += rest
    for one, other in zip(whole, parts, strict=True):
        assert one.choices == other.choices
        assert one.trajectories == other.trajectories


@pytest.mark.parametrize(
    "options",
    [
        {"staleness": 2, "window": 3},
        {"staleness": 1, "oversampling_factor": 5 / 3},
        {"staleness": 1, "filter_zero_variance": True, "max_consecutive_filtered": 999},
    ],
)
def test_stale_groups_and_starts_are_chosen_once(options: dict[str, Any]) -> None:
    chooser = two()
    parts, frontier = run_simulated(collected(4, tasks=chooser, **options))
    in_flight = frontier["slots"]["in_flight"]
    assert set(map(str, in_flight)) <= frontier["curriculum"]["chosen"].keys()
    rest, last = run_simulated(collected(6, frontier, 4, **options))
    numbers = [int(group[0].group_id[1:]) for batch in [*parts, *rest] for group in batch.groups]
    assert len(set(numbers)) == len(numbers)
    dropped = sum(count for name, count in last["slots"]["counters"].items() if name.startswith("groups_dropped_"))
    assert len(numbers) + dropped + len(last["slots"]["in_flight"]) == last["slots"]["next_group"]
    admitted = {name: state["admitted"] for name, state in last["curriculum"]["components"].items()}
    started = sum(choice.start is not None for batch in [*parts, *rest] for choice in batch.choices)
    assert last["slots"]["next_group"] >= sum(admitted.values()) - sum(
        state["passed"] for state in last["curriculum"]["components"].values()
    )
    assert started
    by_number = dict(zip(numbers, (c for b in [*parts, *rest] for c in b.choices), strict=True))
    for number in in_flight:  # what was in flight is played as it was chosen
        if number in by_number:
            chosen = frontier["curriculum"]["chosen"][str(number)]
            assert (chosen["component"], chosen["task"]) == (by_number[number].component, by_number[number].task)


@simulated
async def test_unreplayable_environment_fails_episode_with_advice() -> None:
    class Moody(AsyncEnv):
        made = 0

        async def areset(self, *, seed: int, options: dict[str, Any]) -> Any:
            Moody.made += 1
            self.say = f"visit {Moody.made}"
            return await super().areset(seed=seed, options=options)

    seen: list[Trajectory] = []
    chooser = Curriculum([Component("a", TaskOrder(None))], CurriculumSection(reverse_share=0.9), seed=7)
    options: dict[str, Any] = {"n": 4, "on_trajectory": seen.append}
    async with (
        Backend(EnvSpec(Moody)) as backend,
        collector_of(engine_of(wordy), {"a": backend}, tasks=chooser, seed=7, **options) as collector,  # type: ignore[arg-type]
    ):
        for version in range(1, 4):
            await collector.next_batch()
            await collector.update_weights(None, version)
    errors = [episode_.error for episode_ in seen if episode_.status is Status.ERROR_ENV]
    assert errors
    assert all("came to another conversation" in str(error) for error in errors)
    assert "env.curriculum.reverse_share=0" in str(errors[0])


async def test_backends_beside_each_other_share_their_workers() -> None:
    first = Backend(EnvSpec(AsyncEnv), "thread", workers=2)
    async with first, Backend(EnvSpec(AsyncEnv), "thread", beside=first) as second:
        for backend in (first, second, first, second):
            async with backend.lease() as one, first.lease() as other:
                await one.reset(0, {})
                await other.reset(0, {})
                assert sum(pool.stats()["leased"] for pool in (first, second)) == 2
                waiting = asyncio.ensure_future(second.lease().__aenter__())
                await asyncio.sleep(0.01)
                assert not waiting.done()
                waiting.cancel()
        assert (first.stats()["made"], second.stats()["made"]) == (2, 1)


def test_start_equals_models_context() -> None:
    start = Start.of(episode(True, turns=3, mark=10), 5, 9)
    assert start.turn == 2
    assert start.replies == [[11, 12], [14, 15]]
    assert len(set(start.contexts)) == 2
