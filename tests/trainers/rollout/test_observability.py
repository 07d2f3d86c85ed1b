"""Observability of the collector: stats against oracles of their definitions, and the trace against the stats."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from collector_helpers import collect, collector_of, engine_of, says, slow_env, tokens, turn_of, wordy
from hypothesis import given
from hypothesis import strategies as st
from rollout_fakes import AsyncEnv
from simulated_time import Clock, simulated
from trajectories import trajectory_of

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from trainers.engines.base import Sampling
from trainers.rollout.batch import Batch
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.length_bias import LengthBias
from trainers.rollout.loop_lag import LoopLag
from trainers.rollout.stats import PHASES, Load, Timeline
from trainers.rollout.trace import TraceFile
from trainers.trajectory import Trajectory

# ---------------------------------------------------------------- the engine's room


@given(
    room=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([*PHASES, None]), st.floats(0, 10)), max_size=40),
)
def test_busy_and_idle_shares_sum_to_one(room: int, steps: list[Any]) -> None:
    """The oracle looks at every interval anew."""
    clock = Clock()
    load = Load(room, clock)
    episodes: dict[int, Timeline] = {}
    at: dict[int, str] = {}
    busy = environment = idle = total = 0.0
    load.take()
    for episode, phase, seconds in steps:
        if episode not in episodes:
            episodes[episode], at[episode] = Timeline(load), "own"
        elif phase is None:
            episodes.pop(episode).close("completed", None)
            at.pop(episode)
        else:
            episodes[episode].phase(phase)
            at[episode] = phase
        generating, playing = list(at.values()).count("generate"), len(at)
        clock.now += seconds
        busy += seconds * min(generating, room)
        idle += seconds * max(0, room - playing)
        environment += seconds * (min(playing, room) - min(generating, room))
        total += seconds * room
    shares = load.take()
    if total == 0:
        assert shares == {}
        return
    expected = {"engine_busy": busy, "bubble_environment": environment, "bubble_books": idle}
    assert shares == pytest.approx({name: area / total for name, area in expected.items()})
    assert sum(shares.values()) == pytest.approx(1.0)


@given(steps=st.lists(st.tuples(st.sampled_from(PHASES), st.floats(0, 10)), max_size=20), queued=st.floats(0, 30))
def test_episodes_phases_add_up_to_its_life(steps: list[tuple[str, float]], queued: float) -> None:
    clock = Clock()
    timeline = Timeline(Load(1, clock))
    generating = 0.0
    for phase, seconds in steps:
        timeline.phase(phase)
        clock.now += seconds
        generating += seconds * (phase == "generate")
    timeline.generated(10, 5, {"queue_s": queued, "cached_tokens": 4.0})
    timeline.close("completed", None)
    assert sum(timeline.seconds.values()) == pytest.approx(clock.now)
    assert timeline.seconds["generate"] == pytest.approx(max(0.0, generating - queued)), "the engine's queue is no work"
    assert (timeline.counts["prompt_tokens"], timeline.counts["cached_tokens"]) == (10, 4)


# ---------------------------------------------------------------- replies


def test_share_of_replies_cut_at_limit() -> None:
    """The first of each episode's three replies is longer than the limit; the last is as long, and ends by itself."""
    replies = [tokens("x" * 50), tokens("1 on"), tokens("1 " + "x" * 33 + " end")]
    assert len(replies[2]) == 40
    (batch,) = run_simulated(collect(engine_of(lambda call, version: Reply(replies[turn_of(call)]))))
    assert {t.num_turns for t in batch.trajectories} == {3}
    assert batch.stats["replies_cut"] == pytest.approx(1 / 3)


# ---------------------------------------------------------------- length bias


def episodes_of(length: int, count: int) -> list[Trajectory]:
    return [trajectory_of([0] * length)] * count


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=4, max_size=20),
    dropped=st.sets(st.integers(0, 19)),
    size=st.integers(1, 3),
    rng=st.randoms(use_true_random=False),
)
def test_length_bias_compares_delivered_with_admitted(
    lengths: list[tuple[int, int]], dropped: set[int], size: int, rng: random.Random
) -> None:
    remaining = [number for number in range(len(lengths)) if number not in dropped]
    order = list(remaining)
    rng.shuffle(order)

    def mean(numbers: list[int]) -> float:
        return sum(lengths[n][0] * lengths[n][1] for n in numbers) / sum(lengths[n][1] for n in numbers)

    bias, delivered, ends = LengthBias(), [], []
    expected = None
    for batch in [order[i : i + size] for i in range(0, len(order), size)]:
        delivered += batch
        ends.append(len(delivered))
        for n in batch:
            for sibling, episode in enumerate(episodes_of(*lengths[n])):
                timeline = Timeline(Load(1, Clock()))
                timeline.generated(1, lengths[n][0], {})
                bias.attempt(n, sibling, episode, timeline)
        reported = bias.deliver({n: episodes_of(*lengths[n]) for n in batch}, lambda n: n in dropped)
        for k in ends:  # the largest integer of batches whose equals by admission are all known
            if set(remaining[:k]) <= set(delivered):
                expected = mean(delivered[:k]) / mean(remaining[:k])
            else:
                break
        assert reported == (None if expected is None else pytest.approx(expected))


# ---------------------------------------------------------------- the event loop's lag


def test_blocked_loop_counts_whole_delay() -> None:
    """A second of block in two: half of all moments were late, by half a second on average."""

    class Late(asyncio.SelectorEventLoop):
        shift = 0.0

        def time(self) -> float:
            return self.shift

    loop = Late()
    try:
        lag = LoopLag(0.01)
        due = [0.0]
        loop.call_at = lambda when, *args: due.append(when)  # type: ignore[method-assign, assignment]
        asyncio.events._set_running_loop(loop)
        lag.start()
        for _ in range(100):  # on time
            loop.shift = due[-1]
            lag._probe(loop, due[-1])
        loop.shift = due[-1] + 1.0  # a second late
        lag._probe(loop, due[-1])
    finally:
        asyncio.events._set_running_loop(None)
        loop.close()
    stats = lag.take()
    assert stats["loop_lag_max_s"] == pytest.approx(1.0)
    assert stats["loop_lag_p50_s"] == pytest.approx(0.0, abs=0.02)
    assert stats["loop_lag_p99_s"] == pytest.approx(0.98, abs=0.02), "half of the moments were in the block"
    assert lag.take() == {}


async def test_lag_is_measured_while_collecting_and_no_longer() -> None:
    class Blocking(AsyncEnv):
        async def astep(self, action: str) -> Any:
            time.sleep(0.15)
            return self.step(action)

    batch = (await collect(engine_of(says("1 end")), EnvSpec(Blocking), n=1, groups_per_batch=1, lag_interval=0.005))[0]
    assert batch.stats["loop_lag_max_s"] >= 0.1
    assert batch.stats["loop_lag_p50_s"] <= batch.stats["loop_lag_p99_s"] <= batch.stats["loop_lag_max_s"]
    handles = [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled()]  # type: ignore[attr-defined]
    assert not [h for h in handles if "LoopLag" in repr(h)]


# ---------------------------------------------------------------- a batch's stats


def test_phases_and_bubbles_of_known_run() -> None:
    """One episode at a time, two turns of 3 s with the engine and 1 s with the environment; 4 s of training a batch."""

    def script(call: Call, version: int) -> Reply:
        return Reply(tokens("1 on" if turn_of(call) == 0 else "1 end"), latency=3.0)

    async def train(collector: Any, batch: Batch) -> None:
        await asyncio.sleep(4.0)

    spec = EnvSpec(AsyncEnv, {"delay": lambda task, turn: 1.0})
    options = {"n": 1, "groups_per_batch": 2, "max_running": 1}
    first, second = run_simulated(collect(engine_of(script), spec, 2, after=train, **options))
    assert {name: first.stats[f"time_{name}_s"] for name in PHASES} == pytest.approx(
        {"queue": 0, "reset": 0, "generate": 6, "step": 2, "rewards": 0, "own": 0}
    )
    assert first.stats["wait_s"] == pytest.approx(16)
    assert first.stats["bubble_trainer"] == pytest.approx(1.0)
    assert first.stats["engine_busy"] == pytest.approx(12 / 16)
    assert second.stats["bubble_trainer"] == pytest.approx(16 / 20)
    assert second.stats["engine_busy"] == pytest.approx(12 / 20)
    assert second.stats["bubble_environment"] == pytest.approx(4 / 20)
    assert second.stats["bubble_books"] == pytest.approx(4 / 20), "while the trainer trains nothing may start"


@simulated
async def test_environment_wait_counts_as_queueing() -> None:
    depths = []

    async def look(collector: Any) -> None:
        await asyncio.sleep(3.0)
        depths.append(collector.stats())

    async with Backend(EnvSpec(AsyncEnv), workers=1) as backend:
        engine = engine_of(says("1 end", latency=2.0))
        async with collector_of(engine, backend, n=2, groups_per_batch=2, max_running=3) as collector:
            watcher = asyncio.ensure_future(look(collector))
            batch = await collector.next_batch()
            await watcher
    # Episodes 0..2 start at once and take turns; 3 starts when 0 is done: they wait 0, 2, 4 and 4 seconds.
    assert batch.stats["time_queue_s"] == pytest.approx((0 + 2 + 4 + 4) / 4)
    assert depths[0]["running"] == 3
    assert depths[0]["queue_environments"] == 2
    assert depths[0]["queue_episodes"] == 0
    assert depths[0]["queue_rewards"] == 0


def test_prefix_cache_rate_is_the_engines() -> None:
    engine = engine_of(says("1 on"))
    batch = run_simulated(collect(engine))[0]
    prompts = sum(len(call.token_ids) for call in engine.calls)
    assert batch.stats["prefix_cache_hit"] == pytest.approx(engine.stats()["cached_tokens"] / prompts)
    assert 0 < batch.stats["prefix_cache_hit"] < 1


# ---------------------------------------------------------------- the trace


def nested(spans: list[dict[str, Any]]) -> None:
    """Any two spans of a lane are apart or one inside the other."""
    stack: list[dict[str, Any]] = []
    for span in sorted(spans, key=lambda s: (s["ts"], -s["dur"])):
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= span["ts"] + 0.002:
            stack.pop()
        if stack:
            assert span["ts"] + span["dur"] <= stack[-1]["ts"] + stack[-1]["dur"] + 0.002, (span, stack[-1])
        stack.append(span)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, also of one that a killed run left; a last line that was cut is left out."""
    first, *lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    assert first == "["
    events = []
    for number, line in enumerate(lines, 1):
        try:
            events += [json.loads(line.removesuffix(","))] if line not in ("", "]") else []
        except ValueError:
            assert number == len(lines), f"line {number + 1} is no event: {line}"
    return events


@simulated
async def test_trace_nests_and_agrees_with_stats(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    ended: list[Trajectory] = []

    async def later(so_far: Any, turn: int) -> float:
        await asyncio.sleep(7.0)
        return 0.5

    trace = TraceFile(path, asyncio.get_running_loop().time)
    options = {"staleness": 1, "max_running": 5, "rewards": {"later": later}}
    batches = await collect(engine_of(wordy), slow_env(), 3, trace=trace, on_trajectory=ended.append, **options)
    trace.close()
    trace.close()
    events = json.loads(path.read_text())
    assert events == read_trace(path)
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append(event)
    for spans in lanes.values():
        nested(spans)
    assert len([lane for lane in lanes if lane[0] == processes["episodes"]]) == 5, "lanes are used again"

    def spans_of(track: str) -> list[dict[str, Any]]:
        return [e for (pid, _), spans in lanes.items() if pid == processes[track] for e in spans]

    whole = [e for e in spans_of("episodes") if e["name"] not in PHASES and e["args"]["status"] != "cancelled"]
    assert sorted(e["name"] for e in whole) == sorted(t.episode_id for t in ended), "each episode once"
    ids = {t.episode_id for batch in batches for t in batch.trajectories}
    assert ids <= {e["name"] for e in whole}
    # Seconds by phase: those of the stats, over all episodes that had ended when the last batch went out.
    last = [e for e in events if e["ph"] == "C"][-1]["ts"]
    reported: dict[str, float] = defaultdict(float)
    for batch in batches:
        count = sum(n for name, n in batch.stats.items() if name.startswith("episodes_"))
        for name in PHASES:
            reported[name] += count * batch.stats[f"time_{name}_s"]
    over = {(e["pid"], e["tid"], e["ts"], e["dur"]) for e in whole if e["ts"] + e["dur"] <= last + 0.01}
    drawn: dict[str, float] = defaultdict(float)
    for lane, spans in lanes.items():
        for span in spans:
            inside = any(
                (pid, tid) == lane and ts - 0.01 <= span["ts"] and span["ts"] + span["dur"] <= ts + dur + 0.01
                for pid, tid, ts, dur in over
            )
            if span["name"] in PHASES and inside:
                drawn[span["name"]] += span["dur"] / 1e6
    for name in ("queue", "reset", "generate", "step", "rewards"):
        assert drawn[name] == pytest.approx(reported[name], abs=1e-3), name
    assert drawn["rewards"] > 0
    turns = sum(t.num_turns for t in ended)
    rewards = [e for e in spans_of("later rewards") if e["dur"] == pytest.approx(7e6, abs=1)]
    assert len(rewards) >= turns, "one a turn, drawn beside the turns"
    assert [e["args"]["version"] for e in events if e["ph"] == "i"] == [1, 2, 3]


def test_what_killed_run_leaves_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    program = f"""
        import time
        from trainers.rollout.trace import TraceFile
        trace = TraceFile({str(path)!r})
        while True:
            lane = trace.lane("episodes")
            began = time.monotonic()
            trace.span(lane, "generate", began, time.monotonic())
            trace.span(lane, "e" * 100, began, time.monotonic(), {{"status": "completed"}})
            trace.give_back(lane)
        """
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], cwd=root) as process:
        try:
            deadline = time.monotonic() + 60
            while not (path.exists() and path.stat().st_size > 300_000):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()
    events = read_trace(path)
    assert len(events) > 1000
    assert not path.read_text().rstrip().endswith("]"), "it was killed before its end"
    content = path.read_bytes()
    path.write_bytes(
        content[: content.rindex(b"\n") + 12]
    )  # cut in the middle of the last line, also where the kill cut it
    assert read_trace(path) == events[: content.count(b"\n") - 1]
    trace = TraceFile(path)
    trace.close()
    assert trace.path == tmp_path / "trace-2.json", "what is there stays"
    assert json.loads(trace.path.read_text()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_full_disk_ends_trace_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = TraceFile(tmp_path / "trace.json", lambda: 0.0)
    trace._file.close()
    trace._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    for _ in range(2000):
        trace.instant("weights", {})
    trace.close()
    assert caplog.text.count("no more trace is written") == 1
    assert "No space left" in caplog.text


def test_evaluation_has_track_of_its_own(tmp_path: Path) -> None:
    async def run() -> TraceFile:
        trace = TraceFile(tmp_path / "trace.json", asyncio.get_running_loop().time)
        backend = Backend(EnvSpec(AsyncEnv))
        async with backend, collector_of(engine_of(wordy), backend, trace=trace) as collector:
            await collector.evaluate([1, 2], sampling=Sampling(max_new_tokens=9))
        trace.close()
        return trace

    events = read_trace(run_simulated(run()).path)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"evaluation"}
    assert {e["name"] for e in events if e["ph"] == "X"} >= {"eval0-t0-s0", "eval0-t1-s0"}
