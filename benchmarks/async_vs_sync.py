"""The asynchronous collector against the batch-synchronous one, on simulated time, and both against theory.

An engine with a fixed number of places, replies and users with heavy-tailed latencies (lognormal and Pareto), a trainer
that takes as long as a part of a batch's generation. Three questions:

* ``of_ideal``: throughput at staleness 1 over the bound that no collector can exceed, an engine whose places are busy
  all the time (training is faster than that here).
* ``speedup``: episodes/s at staleness 1 over those at staleness 0; ``predicted`` is the same ratio from a plain event
  simulation (:func:`predict`) that shares no code with the collector.
* ``length_bias``: of the first batch, mean tokens of the episodes delivered over the mean of those admitted first,
  equally many; and the same for the naive order "first finished, first delivered" (by the plain simulation).

Each number is the mean over some seeds: a single straggler of a minute, in strict order, costs a run of a few batches
several percent, and whether there is one is luck.

    python benchmarks/async_vs_sync.py [--batches 12] [--seeds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.letters import Letters
from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from textenvs.messages import Message, assistant, user
from trainers.config.rollout import RolloutSection
from trainers.engines.base import Generation, Sampling
from trainers.rollout.batch import Batch
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec

PER_TOKEN = 0.25  # seconds
LONGEST = 60.0  # seconds of a reply or of a user's answer: contexts and patience are finite
TAILS: dict[str, Callable[[random.Random], float]] = {
    "lognormal": lambda rng: rng.lognormvariate(0.0, 1.0),
    "pareto": lambda rng: rng.paretovariate(2.0),
}


@dataclass(frozen=True)
class Workload:
    """Distributions of the durations of episodes.

    Args:
        replies: Distribution of a reply's seconds, one of ``TAILS``.
        users: Distribution of a user's seconds.
            seed: Of all durations.
    """

    replies: str = "lognormal"
    users: str = "pareto"
    seed: int = 0

    def episode(self, group: int, sibling: int) -> tuple[tuple[int, float], ...]:
        """Return, for each turn, the tokens of the reply and the seconds of the user."""
        return _episode(self, group, sibling)

    def tokens(self, group: int, sibling: int) -> int:
        return sum(tokens for tokens, _ in self.episode(group, sibling))


@cache
def _episode(workload: Workload, group: int, sibling: int) -> tuple[tuple[int, float], ...]:
    rng = random.Random(f"{workload} {group} {sibling}")
    reply, answer = TAILS[workload.replies], TAILS[workload.users]
    turns = rng.randint(1, 3)
    return tuple((math.ceil(min(reply(rng), LONGEST) / PER_TOKEN), min(answer(rng), LONGEST)) for _ in range(turns))


@dataclass(frozen=True)
class Setting:
    """The machine: places in the engine, episodes at a time, groups and siblings a batch, seconds of training.

    More episodes than places run, because users take time; but not so many that each turn waits in a long queue, or the
    longest episodes take many batches.
    """

    places: int = 16
    running: int = 56
    groups: int = 128
    siblings: int = 2
    train_s: float = 26.0


# ------------------ the plain event simulation


@dataclass(frozen=True)
class Outcome:
    """When each batch was delivered and when it was trained on, the groups of each, and the engine's share of work.

    Args:
        delivered: Seconds.
        trained: Seconds.
        groups: By number.
        busy: Of each batch, the mean share of the engine's places in use since the batch before.
    """

    delivered: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def rate(self, setting: Setting) -> float:
        """Episodes/s, without the first batch (an empty engine has to fill up)."""
        count = (len(self.trained) - 1) * setting.groups * setting.siblings
        return count / (self.trained[-1] - self.trained[0])

    def of_ideal(self, setting: Setting) -> float:
        """Work done over what the engine could have done in the time, without the first batch.

        Episodes/s are bounded by places / mean generation seconds of an episode; this is their ratio to the bound, free
        of which episodes happen to be delivered in the time, and which to be half done at its ends.
        """
        seconds = [later - earlier for earlier, later in pairwise(self.delivered)]
        return sum(share * s for share, s in zip(self.busy[1:], seconds, strict=True)) / sum(seconds)


def predict(workload: Workload, setting: Setting, staleness: int, batches: int, order: str = "admission") -> Outcome:
    """Predict the deliveries of a run, by events in time alone.

    Args:
        workload: What episodes take.
        setting: The machine.
        staleness: Batches that may be in the works beside the one that is trained on.
        batches: How many.
        order: ``"admission"``, or ``"finish"``: the naive order.
    """
    events: list[tuple[float, int, Callable[[], None]]] = []
    counter = itertools.count()
    now, free, running = 0.0, setting.places, 0
    waiting: deque[tuple[Iterator[tuple[int, float]], int, tuple[int, float]]] = deque()  # for a place
    admitted_episodes: deque[tuple[int, int]] = deque()  # not running yet
    open_siblings: dict[int, int] = {}  # of groups in flight
    done: list[int] = []  # groups in flight that are whole, as they finished
    admitted, training = 0, False
    outcome, used = Outcome(), 0.0  # places times seconds since the last delivery

    def after(seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(events, (now + seconds, next(counter), what))

    def ask(turns: Iterator[tuple[int, float]], group: int) -> None:
        nonlocal free, running
        turn = next(turns, None)
        if turn is None:
            running -= 1
            open_siblings[group] -= 1
            if not open_siblings[group]:
                done.append(group)
            return
        if free:
            free -= 1
            serve(turns, group, turn)
        else:
            waiting.append((turns, group, turn))

    def serve(turns: Iterator[tuple[int, float]], group: int, turn: tuple[int, float]) -> None:
        def replied() -> None:
            nonlocal free
            if waiting:
                serve(*waiting.popleft())
            else:
                free += 1
            after(turn[1], lambda: ask(turns, group))

        after(turn[0] * PER_TOKEN, replied)

    def trained() -> None:
        nonlocal training
        training = False
        outcome.trained.append(now)

    while len(outcome.trained) < batches:
        ready = sorted(done) if order == "admission" else done
        first = sorted(open_siblings)[: setting.groups] if order == "admission" else ready[: setting.groups]
        if not training and len(first) == setting.groups and set(first) <= set(ready):
            outcome.groups.append(first)
            for group in first:
                del open_siblings[group]
                done.remove(group)
            training = True
            after(setting.train_s, trained)
            passed = now - (outcome.delivered[-1] if outcome.delivered else 0.0)
            outcome.busy.append(used / (setting.places * passed))
            outcome.delivered.append(now)
            used = 0.0
        while len(open_siblings) < (staleness + 1 - training) * setting.groups:
            group, admitted = admitted, admitted + 1
            open_siblings[group] = setting.siblings
            admitted_episodes.extend((group, sibling) for sibling in range(setting.siblings))
        while admitted_episodes and running < setting.running:
            running += 1
            group, sibling = admitted_episodes.popleft()
            ask(iter(workload.episode(group, sibling)), group)
        at, _, what = heapq.heappop(events)
        used += (setting.places - free) * (at - now)
        now = at
        what()
    return outcome


def bias(workload: Workload, setting: Setting, delivered: Sequence[Sequence[int]]) -> float:
    """Mean tokens of the groups delivered over those of as many groups in order of admission."""
    groups = [group for batch in delivered for group in batch]

    def mean(numbers: Sequence[int]) -> float:
        return sum(workload.tokens(g, s) for g in numbers for s in range(setting.siblings)) / len(numbers)

    return mean(groups) / mean(range(len(groups)))


# ------------------ the collector


class Siblings(Letters):
    """A reply is its first token: which sibling speaks."""

    def decode(self, ids: Sequence[int]) -> str:
        return str(ids[0])


class User:
    """A user who takes the seconds that the workload says."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    async def areset(self, *, seed: int, options: dict[str, Any]) -> Any:
        self.group, self.turn = options["task_index"], 0
        self.messages: tuple[Message, ...] = (user("?"),)
        return self.messages, {"task_key": str(self.group)}

    async def astep(self, action: str) -> Any:
        """Wait for the user, and return the answer."""
        turns = self.workload.episode(self.group, int(action) - 10)
        await asyncio.sleep(turns[self.turn][1])
        self.turn += 1
        self.messages = (*self.messages, assistant(action), user("?"))
        return self.messages, 1.0, self.turn == len(turns), False, {}

    async def aclose(self) -> None:
        """Nothing to close."""


class Places:
    """An engine that computes so many requests at a time; others wait, first come first served."""

    def __init__(self, engine: ScriptedEngine, places: int) -> None:
        self.engine = engine
        self.free = asyncio.Semaphore(places)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """Wait for a place, then ask the engine."""
        async with self.free:
            return await self.engine.generate(token_ids, sampling, session)


async def collect(
    workload: Workload, setting: Setting, staleness: int, batches: int, window: int = 1
) -> tuple[Outcome, list[Batch]]:
    """Run the same workload with the collector."""
    turns: dict[str, int] = {}

    def script(call: Call) -> Reply:
        assert call.session is not None
        group, sibling, _ = (int(part[1:]) for part in call.session.split("/")[1].split("-"))
        turn = turns[call.session] = turns.get(call.session, -1) + 1
        return Reply([10 + sibling] * workload.episode(group, sibling)[turn][0], per_token=PER_TOKEN)

    engine = Places(ScriptedEngine(script, vocab_size=64, max_context=1 << 20), setting.places)
    loop = asyncio.get_running_loop()
    outcome, collected = Outcome(), []
    rollout = RolloutSection(
        n=setting.siblings,
        groups_per_batch=setting.groups,
        staleness=staleness,
        window=window,
        max_running=setting.running,
        max_response_length=1 << 16,
        generation_timeout_s=None,
        episode_timeout_s=None,
    )
    async with (
        Backend(EnvSpec(User, {"workload": workload})) as backend,
        Collector(
            engine,
            Siblings(),  # type: ignore[arg-type]
            backend,
            tasks=None,
            rollout=rollout,
            engine_slots=setting.places,
        ) as collector,
    ):
        for _ in range(batches):
            batch = await collector.next_batch()
            outcome.delivered.append(loop.time())
            outcome.busy.append(batch.stats["engine_busy"])
            await asyncio.sleep(setting.train_s)
            await collector.update_weights(None, batch.version + 1)
            collected.append(batch)
            outcome.trained.append(loop.time())
            outcome.groups.append([int(group[0].task_key) for group in batch.groups])
    return outcome, collected


def measure(workload: Workload, setting: Setting, batches: int) -> dict[str, float]:
    """Measure the numbers of one seed."""
    fast, _ = run_simulated(collect(workload, setting, 1, batches))
    slow, _ = run_simulated(collect(workload, setting, 0, batches))
    predicted = [predict(workload, setting, staleness, batches).rate(setting) for staleness in (1, 0)]
    naive = predict(workload, setting, 1, batches, order="finish")
    return {
        "of_ideal": fast.of_ideal(setting),
        "speedup": fast.rate(setting) / slow.rate(setting),
        "predicted": predicted[0] / predicted[1],
        "length_bias": bias(workload, setting, fast.groups[:1]),
        "length_bias_naive": bias(workload, setting, naive.groups[:1]),
    }


def compare(workload: Workload, setting: Setting, batches: int, seeds: int = 1) -> dict[str, Any]:
    """One row of the table: means over the seeds from the workload's on."""
    rows = [measure(replace(workload, seed=workload.seed + i), setting, batches) for i in range(seeds)]
    means = {name: round(statistics.mean(row[name] for row in rows), 3) for name in rows[0]}
    return {"replies": workload.replies, "users": workload.users, **means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for replies, users in itertools.product(TAILS, TAILS):
        result = compare(Workload(replies, users), Setting(), args.batches, args.seeds)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
