"""Engines of servers: the one place where tests make their sections, and an engine with its fake server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine_kits import CONTEXT
from fake_server import FakeServer
from fake_sglang import FakeSGLang
from fake_vllm import FakeVLLM

from trainers.config.engine import SGLangEngineSection, SGLangSection, VLLMEngineSection, VLLMSection
from trainers.engines.base import Sampling
from trainers.engines.sglang import SGLangEngine
from trainers.engines.vllm.engine import VLLMEngine

LONG = Sampling(max_new_tokens=200, ignore_stop=True)
QUICK: dict[str, Any] = {"health_timeout_s": 30.0, "start_timeout_s": 100.0}
FAKES: dict[str, type[FakeServer]] = {"vllm": FakeVLLM, "sglang": FakeSGLang}


def section_of(name: str, engine: Mapping[str, Any] | None = None, **server: Any) -> Any:
    """Make the section of an engine, from its own keys and its server's."""
    common: dict[str, Any] = {"max_context": CONTEXT, **(engine or {})}
    if name == "vllm":
        return VLLMEngineSection(**common, vllm=VLLMSection(**server))
    return SGLangEngineSection(**common, sglang=SGLangSection(**server))


def engine_of(
    name: str,
    folder: Path,
    unused: Sequence[int] = (),
    bucket_bytes: int = 2**20,
    transport: str = "auto",
    weights: Any = None,
    **server: Any,
) -> Any:
    """Make an engine that notices faults quickly."""
    section = section_of(name, {"weight_transport": transport}, **QUICK | server)
    kind: Any = {"vllm": VLLMEngine, "sglang": SGLangEngine}[name]
    engine = kind(folder, section, unused_token_ids=unused, weights=weights)
    engine.health_interval_s = 0.05
    engine._updater.bucket_bytes = bucket_bytes
    return engine


@asynccontextmanager
async def serving(
    name: str, folder: Path, faults: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield a fake server with these ``faults``, and its engine."""
    server = FAKES[name](**faults or {})
    made = engine_of(name, folder, base_url=(await server.start(),), **options)
    try:
        async with asyncio.timeout(100):
            yield server, made
    finally:
        await made.close()
        await server.stop()


async def started(server: FakeServer, count: int = 1, tokens: int = 1) -> None:
    """Wait until ``count`` requests have ``tokens`` tokens."""
    while sum(len(request.tokens) >= tokens for request in server.live.values()) < count:
        await asyncio.sleep(0.001)
