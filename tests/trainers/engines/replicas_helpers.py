"""Replicas of engines that misbehave, on simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from fragile import Fragile

from benchmarks.simulation.scripted import Call, Reply
from trainers.engines.base import Generation, Sampling
from trainers.engines.replica import Limits
from trainers.engines.replicas import Replicas

ANY = Sampling(max_new_tokens=100)
TOKENS = 10


def slow(call: Call) -> Reply:
    """Reply with ten tokens in ten seconds; answer a probe at once."""
    return Reply([1]) if call.token_ids == (0,) else Reply(range(1, TOKENS + 1), per_token=1.0)


def now() -> float:
    return asyncio.get_running_loop().time()


def patiently(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of Replicas, with limits gathered in ``limits``."""
    limits = {field.name: options.pop(field.name) for field in fields(Limits) if field.name in options}
    return {**options, "limits": Limits(**limits)}


def pair(script: Callable[[Call], Reply] = slow, count: int = 2, **options: Any) -> tuple[Replicas, list[Fragile]]:
    engines = [Fragile(script) for _ in range(count)]
    return Replicas(engines, **patiently(options)), engines


def start(replicas: Replicas, count: int, first: int = 1) -> list[asyncio.Task[Generation]]:
    return [asyncio.create_task(replicas.generate([i], ANY, f"s{i}")) for i in range(first, first + count)]
