"""Cost of playing many episodes at once: steps/s over those of the same waiting without an environment.

A step waits 20 ms for its user, and one in twenty 200 ms. The policy takes no time. Four ratios:

* ``free_running``: 256 episodes at a time, ``play_episodes`` over a bare asyncio loop: 256 coroutines that wait the
  same times, keep a list of the messages, and do nothing else.
* ``lock_step``: the same episodes, ``play_episodes`` over the AsyncVectorEnv of GEM (gem-llm), whose steps wait for the
  slowest of a batch. Our own lock step (``TextVectorEnv.step``) is shown beside it.
* ``one_core``: 10,000 episodes at a time in one thread, ``play_episodes`` over the bare loop. Both are then limited by
  the core, not by the waiting, so this is the price of an environment's step.
* ``worlds``: the same of ``textenv/worlds``, whose policy waits as that user does and gives the scripted expert's
  replies. They are of 100 tasks and were recorded before, so no world is drawn while it is measured.

The machine may be noisy: the sides take turns, and a ratio is the median over the rounds. CPU time a step is shown too,
and its ratio: a busy machine changes it less, and where the core is the limit it says what the first ratio would be.

    python benchmarks/vector_throughput.py [free_running] [lock_step] [one_core] [worlds] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from textenvs import Task, TextEnv, TextVectorEnv, Turn, make
from textenvs.episodes import play_episodes
from textenvs.messages import Message, user

TURNS = 4  # of an episode
REPLY, ANSWER, QUESTION = "The answer is 6.", "No. Please try that again.", "What is 3 + 4?"
_rng = random.Random(0)
LATENCIES = [0.2 if _rng.random() < 0.05 else 0.02 for _ in range(1 << 16)]


def latency(episode: int, turn: int) -> float:
    """Return the seconds that the user takes for this turn: the same on every side."""
    return LATENCIES[(episode * TURNS + turn) % len(LATENCIES)]


class Counter:
    """Count of the steps that were played, by all that is measured."""

    steps = 0


class Questions:
    """An endless task set, all of it the same question."""

    name, size = "one question", None
    task = Task("the question", "benchmark", (user(QUESTION),), "7")

    def __getitem__(self, index: int) -> Task:
        return self.task


class SlowUser(TextEnv[Any]):
    """A user who thinks before each answer, and is never content."""

    def __init__(self) -> None:
        super().__init__(Questions())

    async def respond(self, reply: Message) -> Turn:
        state = self.state
        await asyncio.sleep(latency(state.task_index, state.assistant_turns - 1))
        Counter.steps += 1
        if state.assistant_turns == TURNS:
            return Turn(reward=1.0, terminated=True, stop="solved")
        return Turn([user(ANSWER)], reward=0.0)


def policy(conversation: Any) -> str:
    return REPLY


async def bare(in_flight: int) -> None:
    """Do the same waiting, with the same messages in a list."""
    episodes = itertools.count()

    async def client() -> None:
        for episode in episodes:
            conversation = [user(QUESTION)]
            for turn in range(TURNS):
                conversation.append({"role": "assistant", "content": REPLY})
                await asyncio.sleep(latency(episode, turn))
                Counter.steps += 1
                conversation.append({"role": "user", "content": ANSWER})

    await asyncio.gather(*(client() for _ in range(in_flight)))


async def free_running(in_flight: int) -> None:
    """Episodes of ours, each at its own pace."""
    async with aclosing(play_episodes(SlowUser(), policy, itertools.count(), concurrency=in_flight, seed=0)) as stream:
        async for episode in stream:
            if episode.error is not None:
                raise episode.error


def recorded_worlds(count: int) -> Callable[[int], Awaitable[None]]:
    """Return episodes of ``textenv/worlds``, each at its own pace, with the expert's replies of so many tasks."""
    env: Any = make("textenv/worlds")
    tasks, replies = [], {}
    for number in range(count):
        opening, _ = env.reset(seed=0, options={"task_index": number})
        tasks.append(env.task)
        key = opening[-1]["content"]
        replies[key] = []
        while not env.state.done:
            replies[key].append(env.demonstration(np.random.default_rng(0)))
            env.step(replies[key][-1])
    numbers = itertools.count()

    async def policy(conversation: Any) -> Any:
        await asyncio.sleep(latency(next(numbers), 0))
        Counter.steps += 1
        turn = sum(message["role"] == "assistant" for message in conversation)
        return replies[conversation[1]["content"]][turn]

    async def run(in_flight: int) -> None:
        stream = play_episodes(env, policy, itertools.cycle(tasks), concurrency=in_flight, seed=0)
        async with aclosing(stream):
            async for episode in stream:
                if episode.error is not None:
                    raise episode.error

    return run


async def our_lock_step(in_flight: int) -> None:
    """Our vector environment, a batch at a time; in a thread, because it waits."""
    envs = TextVectorEnv.of(SlowUser(), in_flight, autoreset_mode="SameStep")
    await asyncio.to_thread(envs.reset, seed=0, options={"task_index": list(range(in_flight))})
    while True:
        await asyncio.to_thread(envs.step, [REPLY] * in_flight)


def gem_lock_step() -> Callable[[int], Awaitable[None]]:
    """GEM's vector environment, a batch at a time, with the same user.

    Raises:
        ImportError: It is not installed; the message says how it is.
    """
    try:
        from gem.core import Env
        from gem.vector.async_vector_env import AsyncVectorEnv
    except ImportError as error:
        raise ImportError(
            f"GEM cannot be imported ({error}). Install it with: pip install 'textenvs[bench]' (Python 3.11), or "
            "pip install --no-deps gem-llm: what this compares with needs none of its dependencies"
        ) from error

    class GemUser(Env):  # type: ignore[misc]
        episodes = itertools.count()

        def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            self.episode, self.turn = next(self.episodes), 0
            return QUESTION, {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            time.sleep(latency(self.episode, self.turn))
            Counter.steps += 1
            self.turn += 1
            over = self.turn == TURNS
            return ANSWER, float(over), over, False, {}

    async def run(in_flight: int) -> None:
        envs = AsyncVectorEnv(env_ids=["slow"] * in_flight, env_fns=[GemUser] * in_flight)
        envs.reset(seed=0)
        try:
            while True:
                await asyncio.to_thread(envs.step, [REPLY] * in_flight)
        finally:
            envs.thread_pool_executer.shutdown(wait=False)

    return run


@dataclass
class Measured:
    """Figures of one side."""

    steps_per_s: float
    cpu_us_per_step: float
    kib_per_episode: float


async def measure(work: Callable[[int], Awaitable[None]], in_flight: int, seconds: float) -> Measured:
    """Measure how fast ``work`` steps, once it is under way, the cost of a step, and an episode's memory."""
    resident = resident_kib()
    begin = time.perf_counter()
    task = asyncio.ensure_future(work(in_flight))
    Counter.steps = 0
    while Counter.steps < 2 * in_flight and not task.done():  # every episode has started, and not at the same moment
        await asyncio.sleep(0.05)
    memory = (resident_kib() - resident) / in_flight
    seconds = max(seconds, time.perf_counter() - begin)
    begin, cpu, before = time.perf_counter(), time.process_time(), Counter.steps
    await asyncio.wait({task}, timeout=seconds)
    wall, cpu, steps = time.perf_counter() - begin, time.process_time() - cpu, Counter.steps - before
    if task.done():
        task.result()  # it should never end: show why it did
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return Measured(steps / wall, 1e6 * cpu / steps, memory)


def resident_kib() -> float:
    """Return the KiB of memory this process has now; NaN where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def compare(
    name: str, sides: Mapping[str, Callable[[int], Awaitable[None]]], in_flight: int, minimum: float, args: Any
) -> None:
    """Measure the sides in turns; the ratio is that of the first over the second."""
    rounds: list[dict[str, Measured]] = []
    for _ in range(args.rounds):
        rounds.append({side: asyncio.run(measure(work, in_flight, args.seconds)) for side, work in sides.items()})

    def median(side: str, what: str) -> float:
        return statistics.median(getattr(measured[side], what) for measured in rounds)

    measured_side, reference, *_ = sides
    ratios = [measured[measured_side].steps_per_s / measured[reference].steps_per_s for measured in rounds]
    result: dict[str, Any] = {"benchmark": name, "episodes": in_flight, "ratio": round(statistics.median(ratios), 3)}
    result |= {"wanted": minimum, "rounds": [round(ratio, 3) for ratio in ratios]}
    result["steps_per_s"] = {side: round(median(side, "steps_per_s")) for side in sides}
    result["cpu_us_per_step"] = {side: round(median(side, "cpu_us_per_step"), 1) for side in sides}
    costs = [measured[reference].cpu_us_per_step / measured[measured_side].cpu_us_per_step for measured in rounds]
    result["cpu_ratio"] = round(statistics.median(costs), 3)
    first = rounds[0][measured_side].kib_per_episode  # later rounds find memory that earlier ones gave back
    result["kib_per_episode"] = round(first, 1)
    print(json.dumps(result), flush=True)


def main() -> None:
    names = ("free_running", "lock_step", "one_core", "worlds")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("which", nargs="*", choices=[*names, []], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each side of a round, at least")
    args = parser.parse_args()
    which = args.which or names
    if "one_core" in which:  # first: memory is easiest to see before any was given back
        sides = {"free_running": free_running, "bare_loop": bare}
        compare("one_core", sides, 10_000, 0.5, args)
    if "worlds" in which:
        compare("worlds", {"worlds": recorded_worlds(100), "bare_loop": bare}, 10_000, 0.0, args)
    if "free_running" in which:
        sides = {"free_running": free_running, "bare_loop": bare}
        compare("free_running", sides, 256, 0.95, args)
    if "lock_step" in which:
        try:
            sides = {"free_running": free_running, "gem": gem_lock_step(), "our_lock_step": our_lock_step}
            compare("lock_step", sides, 256, 3.0, args)
        except ImportError as error:
            print(json.dumps({"benchmark": "lock_step", "skipped": str(error)}), flush=True)


if __name__ == "__main__":
    main()
