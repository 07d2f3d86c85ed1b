"""Cost of a reward model in wall time: none at all, asynchronously, and one request after the other at the end.

A rollout of 64 episodes (1 to 3 turns, replies of lognormal length), and a reward model that takes 200 ms a batch,
whatever is in it. Three ways, each for some rollouts in a row:

* ``none``: no reward model.
* ``async``: a reward service, asked as each episode ends (or each turn, ``per=turn``).
* ``serial``: when the rollout is complete, its episodes are scored one by one.

On simulated time, which always gives the same; and for real, on the wall clock, with everything five times as fast,
where the reward model is a thread that sleeps.

    python benchmarks/reward_overlap.py [--rollouts 3] [--no-real]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.letters import Letters
from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from textenvs.messages import Message, assistant, text_of, user
from trainers.config.reward_model import RewardModelSection
from trainers.config.rollout import RolloutSection
from trainers.rewards import RewardService, ScoringRequest, Traits, reward_of
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec

Mode = Literal["none", "async", "serial"]
EPISODES, SIBLINGS = 64, 8
CALL_S = 0.2  # of the reward model, for any number of requests
PER_TOKEN = 0.02  # seconds
SPEED = 5.0  # of the real run


@dataclass(frozen=True)
class Result:
    """Figures of one way.

    Args:
        seconds: Wall time of all rollouts.
        scores: Of each episode, in order of delivery.
        stats: Of the reward service.
    """

    seconds: float
    scores: list[float]
    stats: dict[str, float]


class Talk:
    """A conversation that lasts until the policy says bye."""

    async def areset(self, *, seed: int, options: dict[str, Any]) -> Any:
        self.messages: tuple[Message, ...] = (user(f"task {options['task_index']}"),)
        return self.messages, {"task_key": str(options["task_index"])}

    async def astep(self, action: str) -> Any:
        over = "bye" in action
        self.messages = (*self.messages, assistant(action), *(() if over else (user("go on"),)))
        return self.messages, 0.0, over, False, {}

    async def aclose(self) -> None:
        """Nothing to close."""


class Model:
    """A reward model that takes its time for a batch, whatever is in it; ``real``: in a thread."""

    traits = Traits()

    def __init__(self, seconds: float, real: bool) -> None:
        self.seconds, self.real = seconds, real

    async def score(self, requests: Sequence[ScoringRequest]) -> list[float]:
        await (asyncio.to_thread(time.sleep, self.seconds) if self.real else asyncio.sleep(self.seconds))
        return [truth(request) for request in requests]

    async def healthy(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing to close."""


def truth(request: ScoringRequest) -> float:
    """Return the score of a conversation, a function of its text alone."""
    return random.Random(" ".join(text_of(message) for message in request.messages)).random()


async def run(mode: Mode, rollouts: int, *, per: Literal["episode", "turn"] = "episode", speed: float = 1.0) -> Result:
    """Make some rollouts in one of the three ways.

    Args:
        mode: Which.
        rollouts: How many; each begins when the one before is scored.
        per: What is scored.
        speed: So many times as fast; 1 is for simulated time.
    """

    def script(call: Call) -> Reply:
        assert call.session is not None
        name = call.session.split("/")[1]  # of the episode: the same in every run
        rng = random.Random(f"{name} {len(call.token_ids)}")
        turn = sum(1 for i in call.token_ids if i == 2)
        words = [ord(letter) for letter in str(rng.random())][: 1 + turn]
        count = max(4, min(250, round(rng.lognormvariate(4.3, 0.6))))
        last = turn == 2 or rng.random() < 0.4
        ending = [ord(letter) for letter in " bye"] if last else []
        return Reply([*words, *[ord("x")] * count, *ending, 2], per_token=PER_TOKEN / speed)

    model = Model(CALL_S / speed, real=speed != 1.0)
    section = RewardModelSection(max_batch_size=EPISODES, max_wait_s=0.02 / speed, per_turn=per == "turn")
    engine = ScriptedEngine(script, vocab_size=256, max_context=1 << 16)
    loop = asyncio.get_running_loop()
    async with Backend(EnvSpec(Talk)) as backend, RewardService({"model": model}, {"model": section}) as service:
        rewards = {"model": reward_of(service, "model")} if mode == "async" else None
        rollout = RolloutSection(n=SIBLINGS, groups_per_batch=EPISODES // SIBLINGS, max_response_length=1 << 12)
        async with Collector(
            engine,
            Letters(),  # type: ignore[arg-type]
            backend,
            tasks=None,
            rollout=rollout,
            rewards=rewards,
        ) as collector:
            service.watch(collector.generating_s)
            scores: list[float] = []
            began = loop.time()
            for _ in range(rollouts):
                batch = await collector.next_batch()
                for trajectory in batch.trajectories:
                    if mode == "serial":
                        requests = [ScoringRequest(trajectory.messages)]
                        if per == "turn":
                            requests = [
                                ScoringRequest(trajectory.messages[: place + 1])
                                for place, message in enumerate(trajectory.messages)
                                if message["role"] == "assistant"
                            ]
                        scores.append(sum([(await model.score([request]))[0] for request in requests]))
                    else:
                        scores.append(float(trajectory.turn_rewards.sum()))
                await collector.update_weights(None, batch.version + 1)
            return Result(loop.time() - began, scores, service.stats())


def compare(clock: Literal["simulated", "real"], per: Literal["episode", "turn"], rollouts: int) -> dict[str, Any]:
    """One row of the table."""
    simulated = clock == "simulated"
    results = {
        mode: (
            run_simulated(run(mode, rollouts, per=per))
            if simulated
            else asyncio.run(run(mode, rollouts, per=per, speed=SPEED))
        )
        for mode in ("none", "async", "serial")
    }
    seconds = {mode: result.seconds for mode, result in results.items()}
    stats = results["async"].stats
    return {
        "clock": clock,
        "per": per,
        **{f"{mode}_s": round(value, 2) for mode, value in seconds.items()},
        "async_over_none": round(seconds["async"] / seconds["none"], 3),
        "serial_over_none": round(seconds["serial"] / seconds["none"], 3),
        "overlap": round(stats["model/overlap"], 3),
        "batch_size": round(stats["model/batch_size"], 1),
        "same_scores": results["async"].scores == results["serial"].scores,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rollouts", type=int, default=3)
    parser.add_argument("--no-real", action="store_true", help="simulated time alone")
    args = parser.parse_args()
    for clock in ("simulated",) if args.no_real else ("simulated", "real"):
        for per in ("episode", "turn") if clock == "simulated" else ("episode",):
            row = compare(clock, per, args.rollouts)  # type: ignore[arg-type]
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
