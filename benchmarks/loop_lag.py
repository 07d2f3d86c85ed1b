"""Delays of the event loop with thousands of episodes in flight, and the cost of a turn.

Episodes of four turns with a scripted engine (replies after 1 to 9 s) and a user who takes 100 ms, one time in twenty
1 s, all on one event loop in real time, beside a trainer that takes no time. After a warm-up in which all start:

* ``loop_lag_*_s``: how late a callback runs (:class:`trainers.rollout.loop_lag.LoopLag`, a probe every 10 ms). On a
  busy machine this is mostly others' work.
* ``held_*_s``: CPU seconds of one turn of the event loop, in which nothing else runs: what of the lag is our own.

    python benchmarks/loop_lag.py [--episodes 2000] [--seconds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

from collector_throughput import SlowUser, make_renderer

from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from trainers.cli import tuned_gc
from trainers.config.rollout import RolloutSection
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.loop_lag import LoopLag

WANTED_P99_S = 0.05


class Watched(asyncio.SelectorEventLoop):
    """An event loop that notes the CPU seconds of each of its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[float] = []

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.held.append(time.thread_time() - began)


async def measure(episodes: int, seconds: float) -> dict[str, Any]:
    """Lag and cost with so many episodes in flight."""
    renderer, tokenizer = make_renderer()
    reply = [*tokenizer("The answer is 6.")["input_ids"], renderer.stop_token_ids[0]]

    def script(call: Call) -> Reply:
        return Reply(reply, latency=random.Random(call.number).uniform(1.0, 9.0))

    engine = ScriptedEngine(script, vocab_size=len(tokenizer))

    async def train(collector: Collector) -> None:
        while True:
            batch = await collector.next_batch()
            await collector.update_weights(None, batch.version + 1)

    rollout = RolloutSection(n=8, groups_per_batch=max(1, episodes // 16), staleness=4, max_running=episodes)
    async with (
        Backend(EnvSpec(SlowUser)) as backend,
        Collector(engine, renderer, backend, tasks=None, rollout=rollout) as collector,
    ):
        trainer, lag = asyncio.ensure_future(train(collector)), LoopLag(0.01)
        try:
            await asyncio.sleep(5.0)
            lag.start()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Watched)
            loop.held.clear()
            begin, cpu, turns = time.perf_counter(), time.process_time(), SlowUser.turns_played
            await asyncio.sleep(seconds)
            passed, cpu = time.perf_counter() - begin, time.process_time() - cpu
            turns = SlowUser.turns_played - turns
            held = sorted(loop.held)
            running = collector.stats()["running"]
        finally:
            lag.stop()
            trainer.cancel()
            await asyncio.gather(trainer, return_exceptions=True)
    return {
        "episodes": episodes,
        "running": running,
        "turns_per_s": round(turns / passed),
        "cpu_share": round(cpu / passed, 2),
        "cpu_ms_per_turn": round(1e3 * cpu / max(turns, 1), 3),
        **{name: round(value, 4) for name, value in lag.take().items()},
        "held_p99_s": round(held[int(0.99 * len(held))], 4),
        "held_max_s": round(held[-1], 4),
        "wanted_p99_s": WANTED_P99_S,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=Watched) as runner, tuned_gc():
        print(json.dumps(runner.run(measure(args.episodes, args.seconds))))


if __name__ == "__main__":
    main()
