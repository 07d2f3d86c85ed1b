"""The scheduler under random weather, against theory, and with a real engine."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from collector_helpers import END, Characters, collector_of, engine_of, slow_env, tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_fakes import AsyncEnv
from simulated_time import simulated

from benchmarks import async_vs_sync as theory
from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import EngineError, RequestError, Sampling
from trainers.engines.torch_engine import TorchEngine
from trainers.models.tiny import build_model
from trainers.rollout.curriculum import TaskOrder
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.seeds import derive_seed
from trainers.trajectory import Status, Trajectory

# ---------------------------------------------------------------- random weather


def weather(seed: int, failing: float) -> Any:
    """Replies of random lengths after random latencies; some fail: the engine, the environment, or by never ending."""

    def script(call: Call, version: int) -> Reply:
        rng = random.Random(f"{seed} {call.number}")
        latency, per_token = rng.random() ** 4 * 30, rng.random()
        if rng.random() < failing:
            match rng.randrange(5):
                case 0:
                    return Reply((), latency=latency, error=RequestError("not this one"))
                case 1:
                    return Reply((), latency=latency, error=EngineError("a hiccup"))
                case 2:
                    return Reply((), hangs=True)
                case fault:
                    return Reply(tokens(f"0 {['raise', 'hang'][fault - 3]}"), latency=latency, per_token=per_token)
        words = " ".join("x" * rng.randrange(1, 9) for _ in range(rng.randrange(1, 5)))
        reply = f"{rng.randrange(3)} {words} {rng.choice(['end', 'end', 'on', 'enough'])}"
        return Reply(tokens(reply), latency=latency, per_token=per_token)

    return script


@given(
    seed=st.integers(0, 2**32),
    staleness=st.sampled_from([0, 1, 4, 4, 4]),
    slack=st.floats(0, 1),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    modes=st.lists(st.sampled_from(["keep", "wait", "abort"]), min_size=6, max_size=6),
    failing=st.sampled_from([0.0, 0.1, 0.3]),
    options=st.fixed_dictionaries(
        {"partial": st.booleans(), "retries": st.integers(0, 2), "max_running": st.sampled_from([None, 1, 7])}
    ),
    filtering=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@simulated
async def test_collection_keeps_all_invariants(
    seed: int,
    staleness: int,
    slack: float,
    shape: tuple[int, int],
    modes: list[Any],
    failing: float,
    options: dict[str, Any],
    filtering: bool,
) -> None:
    """The oracle's clock: batch number b is trained on version b, whatever the collector believes."""
    size, groups = shape
    ended: list[Trajectory] = []
    delivered: list[int] = []
    window = 1 + int(slack * staleness * groups)
    options = options | {"n": size, "groups_per_batch": groups, "staleness": staleness, "window": window}
    options |= {"generation_timeout_s": 90.0, "episode_timeout_s": 300.0, "tasks": None, "on_trajectory": ended.append}
    options |= {"max_consecutive_errors": 10**6, "max_consecutive_filtered": 10**6}
    options |= {"filter_zero_variance": filtering and size > 1}

    async def train() -> dict[str, Any]:
        rng = random.Random(seed)
        backend = Backend(slow_env(seed), step_timeout=25.0, workers=rng.choice([None, 5]))
        async with backend, collector_of(engine_of(weather(seed, failing)), backend, **options) as collector:
            following = asyncio.ensure_future(collector.next_batch())
            for number, mode in enumerate(modes):
                batch = await following
                assert batch.number == batch.version == number
                for group in batch.groups:
                    delivered.append(int(group[0].group_id[1:]))
                    assert min(2, size) <= len(group) <= size
                    assert len({t.episode_id.split("-")[1] for t in group}) == len(group), "no sibling twice"
                    for trajectory in group:
                        assert trajectory.status.trainable
                        assert trajectory.oldest_version is not None
                        assert 0 <= number - trajectory.oldest_version <= staleness
                        sampled = trajectory.weight_version[trajectory.action_mask]
                        assert (sampled[1:] >= sampled[:-1]).all(), "weights never go back within an episode"
                following = asyncio.ensure_future(collector.next_batch())  # ahead of the update
                await asyncio.sleep(rng.random() * 40)
                await collector.update_weights(None, number + 1, mode)
            if following.done():  # one more batch was ready
                delivered.extend(int(group[0].group_id[1:]) for group in following.result().groups)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            frontier, stats = collector.frontier()["slots"], collector.stats()
        assert len(asyncio.all_tasks()) == 1, "nothing is left running"
        return {"frontier": frontier, "stats": stats}

    async with asyncio.timeout(1e6):
        result = await train()
    frontier, stats = result["frontier"], result["stats"]
    assert len(set(delivered)) == len(delivered), "delivered once"
    dropped = set(range(frontier["next_group"])) - set(delivered) - set(frontier["in_flight"])
    reported = sum(n for name, n in stats.items() if name.startswith("groups_dropped_"))
    assert len(dropped) == reported, "what is neither delivered nor in flight was dropped for a counted reason"
    assert not set(frontier["in_flight"]) & set(delivered)
    assert len({t.episode_id for t in ended}) == len(ended), "no episode is played twice under one name"
    played = {t.episode_id: t for t in ended}
    assert len(played) >= len(delivered) * min(2, size)


# ---------------------------------------------------------------- against theory


def test_heavy_tails_do_not_slow_asynchronous_collector() -> None:
    workload, setting, batches = theory.Workload("lognormal", "pareto"), theory.Setting(), 4
    fast, collected = run_simulated(theory.collect(workload, setting, 1, batches))
    slow, _ = run_simulated(theory.collect(workload, setting, 0, batches))
    assert fast.of_ideal(setting) >= 0.95
    assert slow.of_ideal(setting) < 0.7, "or there was nothing to gain"
    predicted = [theory.predict(workload, setting, staleness, batches) for staleness in (1, 0)]
    for measured, expected in zip((fast, slow), predicted, strict=True):
        assert measured.groups == expected.groups
        assert measured.trained == pytest.approx(expected.trained, rel=0.01), "batch by batch"
        assert measured.busy == pytest.approx(expected.busy, abs=0.01)
    assert fast.rate(setting) / slow.rate(setting) > 1.5
    # Which episodes come: the first batch of the naive order is short by more than 2 %, ours by nothing.
    naive = theory.predict(workload, setting, 1, 1, order="finish")
    assert theory.bias(workload, setting, naive.groups) < 0.98
    assert theory.bias(workload, setting, fast.groups[:1]) == 1.0
    assert collected[-1].stats["length_bias"] == pytest.approx(1.0)


def test_window_bounds_reported_length_bias() -> None:
    workload, setting = theory.Workload("pareto", "pareto"), theory.Setting(groups=64, train_s=13.0)
    simulated, collected = run_simulated(theory.collect(workload, setting, 1, 3, window=16))
    assert simulated.groups[0] != sorted(range(64)), "the window was used"
    numbers = list(itertools.chain(*simulated.groups))
    assert all(place - number < 16 for place, number in enumerate(numbers))
    naive = theory.predict(workload, setting, 1, 3, order="finish")
    windowed, unlimited = theory.bias(workload, setting, simulated.groups), theory.bias(workload, setting, naive.groups)
    assert abs(1 - windowed) < 0.07, "at most 15 of 192 groups came before their turn"
    assert abs(1 - unlimited) > 0.09, "where short groups come first without a limit"
    reported = [batch.stats["length_bias"] for batch in collected if "length_bias" in batch.stats]
    exact = [theory.bias(workload, setting, simulated.groups[:k]) for k in (1, 2, 3)]
    assert reported
    assert all(min(abs(value - k) for k in exact) < 1e-9 for value in reported), "it is the bias of some batches so far"


# ---------------------------------------------------------------- many at once


@simulated
async def test_mass_start_leaves_event_loop_responsive() -> None:
    """Between two turns of the event loop only so many open; all are under way before any time has passed."""
    opened: list[int] = []
    turn = 0

    class Opening(AsyncEnv):
        async def areset(self, *, seed: int, options: dict[str, Any]) -> Any:
            opened.append(turn)
            return await super().areset(seed=seed, options=options)

    def tick() -> None:
        nonlocal turn
        turn += 1
        if len(opened) < 500:
            asyncio.get_running_loop().call_soon(tick)

    engine = engine_of(lambda call, version: Reply(tokens("1 end"), latency=1.0))
    options = {"n": 5, "groups_per_batch": 100}
    async with Backend(EnvSpec(Opening)) as backend, collector_of(engine, backend, **options) as collector:
        tick()
        batch = await collector.next_batch()
        assert batch.stats["wait_s"] == pytest.approx(1.0)
        assert batch.stats["engine_busy"] == pytest.approx(1.0)
    assert len(opened) == 500
    assert max(opened.count(t) for t in set(opened)) <= 64


# ---------------------------------------------------------------- the synchronous loop, with a model


class Bytes(Characters):
    """The same renderer for a small vocabulary that any model can say anything in."""

    def decode(self, ids: Any) -> str:
        return "".join(chr(48 + i % 10) if i > 8 else " " for i in ids)


async def test_zero_staleness_model_equals_plain_loop() -> None:
    """One episode at a time: which requests share a step of the engine changes the last bit of a log-probability."""

    def make_engine() -> TorchEngine:
        torch_model = build_model(128, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64, seed=3)
        return TorchEngine(
            torch_model, TorchEngineSection(max_slots=2, max_context=256, threads=1), stop_token_ids=(END,)
        )

    def weights_of(engine: TorchEngine, version: int) -> dict[str, Any]:
        other = build_model(128, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64, seed=10 + version)
        return {name: value.detach() for name, value in other.state_dict().items()}

    async def plain() -> list[Trajectory]:
        engine, renderer, order, episodes = make_engine(), Bytes(), TaskOrder(5, seed=7), []
        for number in range(6):
            for sibling in range(2):
                env = AsyncEnv()
                seed = derive_seed(7, "sampling", number, sibling, 0)
                env_seed = derive_seed(7, "environment", number, bits=32)
                seen, info = await env.areset(seed=env_seed, options={"task_index": order(number)})
                name = f"g{number}-s{sibling}-a0"
                episode_tokens = EpisodeTokens(
                    renderer,  # type: ignore[arg-type]
                    seen,
                    episode_id=name,
                    group_id=f"g{number}",
                    task_key=info["task_key"],
                )
                terminated = False
                for turn in itertools.count():
                    sampling = Sampling(max_new_tokens=12, stop_token_ids=(END,), seed=derive_seed(seed, turn))
                    text = episode_tokens.reply(await engine.generate(episode_tokens.context, sampling, name))
                    seen, reward, terminated, _, info = await env.astep(text)
                    episode_tokens.reward(reward, info["terms"])
                    if terminated:
                        break
                    episode_tokens.observe(seen)
                drawn = {"task_index": order(number), "env_seed": env_seed, "sampling_seed": seed}
                ending = {"terminated": True, "truncated": False, "status": Status.COMPLETED, "stop": info["stop"]}
                episodes.append(episode_tokens.finish(**ending, **drawn, metrics=info["metrics"], messages=seen))
                await engine.release(name)
            if number % 2:  # a batch is two groups
                version = number // 2 + 1
                await engine.update_weights(weights_of(engine, version), version)
        await engine.close()
        return episodes

    async def collected() -> list[Trajectory]:
        engine, episodes = make_engine(), []
        options: dict[str, Any] = {"tasks": 5, "n": 2, "groups_per_batch": 2, "max_running": 1, "seed": 7}
        options["max_response_length"] = 12
        async with (
            Backend(EnvSpec(AsyncEnv)) as backend,
            collector_of(engine, backend, Bytes(), **options) as collector,
        ):
            for version in (1, 2, 3):
                batch = await collector.next_batch()
                episodes += batch.trajectories
                await collector.update_weights(weights_of(engine, version), version)
        await engine.close()
        return episodes

    expected, actual = await plain(), await collected()
    assert len(expected) == len(actual) == 12
    for one, other in zip(expected, actual, strict=True):
        assert one == other
    assert len({t.token_ids.tobytes() for t in actual}) > 6, "a model that always says the same proves little"
    assert {int(v) for t in actual for v in t.weight_version[t.action_mask]} == {0, 1, 2}
