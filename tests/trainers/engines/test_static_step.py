"""Static steps, run one operation at a time on a CPU, against steps of any shape.

More random schedules than the suite has: ``TEXTENVS_SCHEDULES=10000 pytest tests/trainers/engines/test_static_step.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.trainers.engines.engine_kits import lively_model
from trainers.engines.base import Generation, Sampling
from trainers.engines.decoder import Decoder
from trainers.engines.scheduler import Request, Scheduler, Update
from trainers.engines.static_step import StaticStep

CONTEXT, STOP = 96, 7
SCHEDULES = int(os.environ.get("TEXTENVS_SCHEDULES", "10"))


@cache
def model(family: str = "qwen2", seed: int = 0) -> PreTrainedModel:
    return lively_model(family, seed, max_context=CONTEXT)


class Repeated:
    """Stands in for CUDA graphs: what was captured must find its memory where it was, whenever it runs again."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self.captures = decoder, 0

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        step()
        self.captures += 1
        before = self._addresses()

        def replay() -> None:
            assert self._addresses() == before, "a graph would use memory that is no longer there"
            step()

        return replay

    def _addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in (*self._decoder.parameters.values(), *self._decoder._kv)]


def make(static: bool, *, rows: int = 8, blocks: int = 60, of: type[Decoder] = Decoder, **more: Any) -> Scheduler:
    """Make a scheduler in float64, so that other orders of a sum do not show in the float32 log-probs."""
    family = "qwen2" if of is Decoder else "mistral"
    decoder = of(model(family), blocks, CONTEXT, dtype=torch.float64, threads=1)
    steps = (lambda *args: StaticStep(*args, capture=Repeated(decoder))) if static else None
    return Scheduler(decoder, rows, stop_token_ids=(STOP,), unused_token_ids=(3, 5), seed=3, static=steps, **more)


@dataclass
class Both:
    """The same commands for a scheduler with static steps and one without."""

    schedulers: list[Scheduler]
    requests: list[list[Request]] = field(default_factory=lambda: [[], []])
    outcomes: list[dict[int, Any]] = field(default_factory=lambda: [{}, {}])
    cancelled: set[int] = field(default_factory=set)

    def add(self, prompt: Sequence[int], sampling: Sampling, session: str | None) -> None:
        for scheduler, requests in zip(self.schedulers, self.requests, strict=True):
            requests.append(Request(np.array(prompt, np.int32), sampling, session))
            scheduler.add(requests[-1])

    def cancel(self, number: int) -> None:
        self.cancelled.add(number)
        for scheduler, requests in zip(self.schedulers, self.requests, strict=True):
            scheduler.cancel(requests[number])

    def each(self, command: Callable[[Scheduler], Any]) -> None:
        for scheduler in self.schedulers:
            command(scheduler)

    def step(self) -> None:
        for scheduler, requests, outcomes in zip(self.schedulers, self.requests, self.outcomes, strict=True):
            for item, outcome in scheduler.step():
                if isinstance(item, Request):
                    outcomes[requests.index(item)] = outcome
                else:
                    assert outcome is None, f"an update was refused: {outcome}"

    def finish(self) -> None:
        for _ in range(2000):
            if not any(scheduler.has_work for scheduler in self.schedulers):
                return
            self.step()
        raise AssertionError("there is work left after 2,000 steps")


def sampling_of(rng: np.random.Generator) -> Sampling:
    temperature = float(rng.choice([0.0, 0.7, 1.0]))
    cuts: dict[str, Any] = {}
    if rng.random() < 0.4:
        cuts = {"top_k": int(rng.integers(1, 20)), "top_p": float(rng.choice([0.6, 1.0])), "min_p": 0.02}
        cuts["return_kept"] = bool(rng.random() < 0.5)
    seed = None if rng.random() < 0.2 else int(rng.integers(2**63))
    return Sampling(temperature=temperature, max_new_tokens=int(rng.integers(1, 30)), seed=seed, **cuts)


def play(both: Both, rng: np.random.Generator, *, operations: int, roomy: bool) -> None:
    """Play a random schedule: requests that come, share prompts, are cancelled; updates, sleep, released sessions."""
    shared = rng.integers(8, 60, 40).tolist()
    version = 0
    for _ in range(operations):
        chance = rng.random()
        if chance < 0.25 and len(both.requests[0]) < 8 * (1 if roomy else 3):
            size = int(rng.integers(0, 40))
            prompt = [*shared[:size], *rng.integers(8, 60, int(rng.integers(1, 20))).tolist()]
            session = str(rng.choice(["a", "b"])) if rng.random() < 0.4 else None
            both.add(prompt, sampling_of(rng), session)
        elif chance < 0.30 and both.requests[0]:
            both.cancel(int(rng.integers(len(both.requests[0]))))
        elif chance < 0.36:
            version += 1
            mode = str(rng.choice(["keep", "wait", "abort"] if roomy else ["keep", "wait"]))
            weights = model(seed=version % 2 if roomy else 0).state_dict()
            both.each(lambda s, v=version, m=mode, w=weights: s.add(Update(w, v, m)))  # type: ignore[misc]
        elif chance < 0.39:
            both.each(lambda s: s.release("a"))
        elif chance < 0.42:
            asleep = bool(rng.random() < 0.5)
            both.each(lambda s, weights=asleep: s.free_memory(weights=weights))  # type: ignore[misc]
            if asleep:
                version += 1
                weights = model(seed=version % 2 if roomy else 0).state_dict()
                both.each(lambda s, v=version, w=weights: s.add(Update(w, v, "keep")))  # type: ignore[misc]
        else:
            both.step()
    both.finish()


def check(both: Both, *, versions: bool) -> None:
    static, present = both.outcomes
    assert static.keys() | both.cancelled == present.keys() | both.cancelled
    for number in static.keys() & present.keys():
        one, two = static[number], present[number]
        assert isinstance(one, Generation), one
        assert one.finish_reason == two.finish_reason
        names = ["token_ids", "logprobs", "sampled_logprobs", "kept_ids", "kept_counts"]
        for name in names + ["weight_version"] * versions:
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=f"{name} of {number}")


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_static_steps_change_no_reply(seed: int) -> None:
    """With rows and blocks for all, each token is drawn in the same step, so also by the same weights."""
    both = Both([make(True), make(False)])
    play(both, np.random.default_rng(seed), operations=50, roomy=True)
    check(both, versions=True)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_static_steps_survive_scarcity(seed: int) -> None:
    """Requests wait for rows and lose blocks; a row that ends is known one step later, so steps may differ."""
    both = Both([make(static, rows=3, blocks=9) for static in (True, False)])
    play(both, np.random.default_rng([1, seed]), operations=60, roomy=False)
    check(both, versions=False)
    for scheduler in both.schedulers:
        scheduler._pool.forget()
        assert scheduler._pool.free == scheduler._pool.total, "all blocks came back"
