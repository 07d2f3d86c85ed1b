"""Throughput of the collector, over that of the same waiting, or the same requests, without it.

Two ratios, at most about 1:

* ``turns``: 256 episodes in flight whose user takes 100 ms a turn, 5 % of them 1 s; replies come at once (scripted
  engine). The collector's turns/s over those of a bare loop: 256 tasks that sleep the same latencies, and nothing else.
* ``tokens``: 64 episodes of ``textenv/gsm8k-interact`` in flight on the torch engine. The collector's tokens/s over the
  engine's own, given the same requests again: 64 clients, each an episode's requests one after the other.

The machine may be noisy: the sides take turns, and a ratio is the median over the rounds.

    python benchmarks/collector_throughput.py [turns] [tokens] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import torch

import textenvs
from benchmarks.simulation.scripted import Reply, ScriptedEngine
from textenvs import Task, TextEnv, Turn
from textenvs.messages import Message, text_of, user
from trainers.cli import tuned_gc
from trainers.config.engine import TorchEngineSection
from trainers.config.rollout import RolloutSection
from trainers.engines.base import Engine, Generation, Sampling
from trainers.engines.torch_engine import TorchEngine
from trainers.models.tiny import build_model, build_tokenizer
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.renderer import Renderer

TURNS = 4


def latencies(seed: int) -> Iterator[float]:
    """Yield the seconds that users take: 0.1, and 1 one time in twenty."""
    rng = random.Random(seed)
    while True:
        yield 1.0 if rng.random() < 0.05 else 0.1


class Questions:
    """An endless task set, all of it the same question."""

    name, size = "one question", None

    def __getitem__(self, index: int) -> Task:
        return Task(str(index), "benchmark", (user("What is 3 + 4?"),), "7")


class SlowUser(TextEnv[Any]):
    """A user who thinks before each answer."""

    turns_played = 0  # by all of them

    def __init__(self) -> None:
        super().__init__(Questions())

    def opening(self, task: Task) -> list[Message]:
        self.latencies = latencies(self.state.task_index)
        return list(task.prompt)

    async def respond(self, reply: Message) -> Turn:
        """Never content, until the last turn."""
        await asyncio.sleep(next(self.latencies))
        SlowUser.turns_played += 1
        if self.state.assistant_turns == TURNS:
            return Turn(reward=1.0, terminated=True, stop="solved")
        return Turn([user("No. Please try that again.")], reward=0.0)


def make_renderer() -> tuple[Renderer, Any]:
    tokenizer = build_tokenizer(["What is 3 + 4? No. Please try that again. The answer is 7."], vocab_size=300)
    return Renderer(tokenizer), tokenizer


async def rate(count: Callable[[], int], seconds: float) -> tuple[float, float]:
    """Measure how fast ``count`` grows, after a while to get under way, and the seconds of CPU it costs each time."""
    await asyncio.sleep(1.5)
    begin, cpu, before = time.perf_counter(), time.process_time(), count()
    await asyncio.sleep(seconds)
    grown = count() - before
    return grown / (time.perf_counter() - begin), (time.process_time() - cpu) / grown


@asynccontextmanager
async def working(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()  # it should never end: show why it did
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def bare_turns(in_flight: int, seconds: float) -> tuple[float, float]:
    """Turns/s of tasks that only sleep, and CPU seconds a turn."""
    turns, episodes = 0, itertools.count()

    async def client() -> None:
        nonlocal turns
        while True:
            for latency in itertools.islice(latencies(next(episodes)), TURNS):
                await asyncio.sleep(latency)
                turns += 1

    async with working(*(client() for _ in range(in_flight))):
        return await rate(lambda: turns, seconds)


async def collector_turns(in_flight: int, seconds: float) -> tuple[float, float]:
    """Turns/s of the collector, with a trainer that takes no time, and CPU seconds a turn.

    Batches of 512 episodes in strict order: the capacity must hold what waits for the slowest episode of a batch.
    """
    renderer, tokenizer = make_renderer()
    reply = [*tokenizer("The answer is 6.")["input_ids"], renderer.stop_token_ids[0]]
    engine = ScriptedEngine(lambda call: Reply(reply), vocab_size=len(tokenizer))

    async def train(collector: Collector) -> None:
        while True:
            batch = await collector.next_batch()
            await collector.update_weights(None, batch.version + 1)

    rollout = RolloutSection(n=8, groups_per_batch=in_flight // 4, staleness=3, max_running=in_flight)
    async with (
        Backend(EnvSpec(SlowUser)) as backend,
        Collector(engine, renderer, backend, tasks=None, rollout=rollout) as collector,
        working(train(collector)),
    ):
        return await rate(lambda: SlowUser.turns_played, seconds)


class Recorder:
    """An engine that remembers what it was asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sessions: dict[str, list[tuple[list[int], Sampling]]] = {}
        self.tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """Ask the engine, and remember."""
        assert session is not None
        self.sessions.setdefault(session, []).append((list(token_ids), sampling))
        generation = await self.engine.generate(token_ids, sampling, session)
        self.tokens += len(generation.token_ids)
        return generation


async def tokens_of_both(in_flight: int, episodes: int, threads: int) -> tuple[tuple[float, float], float]:
    """Tokens/s of the collector and of the engine alone, on the same requests and a model of 0.85 M parameters.

    And the CPU seconds of the engine alone over those with the collector: what the ratio would be on a single core.
    """
    env = textenvs.make("textenv/gsm8k-interact")
    texts = [text_of(message) for index in range(200) for message in env.reset(options={"task_index": index})[0]]
    tokenizer = build_tokenizer(texts, vocab_size=512)
    model = build_model(len(tokenizer), hidden=128, layers=3, intermediate=512)
    engine = TorchEngine(model, TorchEngineSection(max_slots=in_flight, max_context=512, threads=threads))
    warm_up = Sampling(max_new_tokens=48, ignore_stop=True)
    await asyncio.gather(*(engine.generate([3] * 40, warm_up) for _ in range(in_flight)))
    recorder = Recorder(engine)
    groups = episodes // 8
    rollout = RolloutSection(n=8, groups_per_batch=groups, max_running=in_flight, max_response_length=48)
    async with (
        Backend(EnvSpec("textenv/gsm8k-interact")) as backend,
        Collector(recorder, Renderer(tokenizer), backend, tasks=None, rollout=rollout) as collector,
    ):
        begin, cpu = time.perf_counter(), time.process_time()
        await collector.next_batch()
        collected = recorder.tokens / (time.perf_counter() - begin)
        collected_cpu = time.process_time() - cpu

    waiting = iter(recorder.sessions.items())
    tokens = 0

    async def client() -> None:
        nonlocal tokens
        for session, requests in waiting:
            for token_ids, request_sampling in requests:
                generation = await engine.generate(token_ids, request_sampling, f"again/{session}")
                tokens += len(generation.token_ids)
            await engine.release(f"again/{session}")

    begin, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(in_flight)))
    alone = tokens / (time.perf_counter() - begin)
    alone_cpu = time.process_time() - cpu
    assert tokens == recorder.tokens, "a request's seed makes its tokens"
    await engine.close()
    return (collected, alone), alone_cpu / collected_cpu


def report(
    name: str, pairs: list[tuple[float, float]], unit: str, minimum: float, extra_figures: dict[str, Any]
) -> None:
    ratio = statistics.median(one / other for one, other in pairs)
    sides = [round(statistics.median(side)) for side in zip(*pairs, strict=True)]
    result = {"benchmark": name, f"collector_{unit}": sides[0], f"reference_{unit}": sides[1]}
    result |= {"ratio": round(ratio, 3), "wanted": minimum, "rounds": [round(one / other, 3) for one, other in pairs]}
    print(json.dumps(result | extra_figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("which", nargs="*", choices=["turns", "tokens", []], default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each side of a round of 'turns'")
    parser.add_argument("--episodes", type=int, default=512, help="of each side of a round of 'tokens'")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if "turns" in args.which or not args.which:
        pairs, costs = [], []
        for _ in range(args.rounds):
            with tuned_gc():  # as in a training run
                collector_rate, cost = asyncio.run(collector_turns(256, args.seconds))
                bare_rate, _ = asyncio.run(bare_turns(256, args.seconds))
            pairs.append((collector_rate, bare_rate))
            costs.append(cost)
        extra_figures = {"cpu_ms_per_turn": round(1e3 * statistics.median(costs), 3)}
        report("turns", pairs, "turns_per_s", 0.90, extra_figures)
    if "tokens" in args.which or not args.which:
        both = [asyncio.run(tokens_of_both(64, args.episodes, args.threads)) for _ in range(args.rounds)]
        ratio = {"cpu_ratio": round(statistics.median(cpu for _, cpu in both), 3)}
        report("tokens", [speeds for speeds, _ in both], "tokens_per_s", 0.85, ratio)


if __name__ == "__main__":
    main()
