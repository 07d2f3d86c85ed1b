"""Servers that give memory back while the learner learns, and take it again: weights first, keys and values last.

The fakes refuse weights without memory for them, and to compute before all memory is there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine_kits import lively_model
from served_engines import serving

from trainers.engines.base import EngineDeadError, EngineError, Sampling
from trainers.engines.transport import LocalSource

SERVERS = ["vllm", "sglang"]
FOUR = Sampling(max_new_tokens=4)


def on_a_gpu(name: str, folder: Path, **options: Any) -> Any:
    """Serve as on a GPU, where memory can be given back; weights travel in requests."""
    faults = {"described": {"device": "cuda"}} if name == "vllm" else {"device": "cuda"}
    return serving(name, folder, faults=faults, transport="http", **options)


@pytest.mark.parametrize("name", SERVERS)
async def test_new_weights_come_before_the_cache(name: str, folder: Path) -> None:
    async with on_a_gpu(name, folder) as (server, engine):
        await engine.generate([1], FOUR)
        await engine.sleep()
        await engine.sleep()
        assert {"weights", "kv_cache"} <= server.released
        waiting = asyncio.create_task(engine.generate([1], FOUR))
        await engine.update_weights(lively_model().state_dict(), 1)
        assert "weights" not in server.released
        assert "kv_cache" in server.released
        assert not server.live
        await engine.wake()
        await engine.wake()
        assert not server.released
        assert set((await waiting).weight_version) == {1}


@pytest.mark.parametrize("name", SERVERS)
async def test_released_weights_must_be_replaced(name: str, folder: Path) -> None:
    async with on_a_gpu(name, folder) as (server, engine):
        await engine.sleep()
        with pytest.raises(EngineError, match="has no weights: it gave their memory back"):
            await engine.wake()

        def lost() -> Any:
            raise OSError("the learner is gone")
            yield

        with pytest.raises(OSError, match="the learner is gone"):
            await engine.update_weights(LocalSource(LocalSource.of(lively_model().state_dict()).specs, lost), 1)
        with pytest.raises(EngineError, match="has no weights"):
            await engine.wake()
        await engine.update_weights(lively_model().state_dict(), 1)
        await engine.wake()
        assert set((await engine.generate([1], FOUR)).weight_version) == {1}


@pytest.mark.parametrize("name", SERVERS)
async def test_failed_updates_of_released_weights_end_the_engine(name: str, folder: Path) -> None:
    async with on_a_gpu(name, folder) as (server, engine):
        await engine.sleep()
        server.refuse[server.steps["take"]] = ["out of memory", "out of memory"]
        with pytest.raises(EngineDeadError, match="are a mixture: .*out of memory"):
            await engine.update_weights(lively_model().state_dict(), 1)


@pytest.mark.parametrize("name", SERVERS)
async def test_stopped_engines_hold_requests(name: str, folder: Path) -> None:
    """Without giving memory back, which a CPU cannot; new weights drop the KV of the old ones."""
    async with serving(name, folder) as (server, engine):
        with pytest.raises(EngineError, match="gives no memory back"):
            await engine.sleep()
        await engine.sleep(release=False)
        waiting = asyncio.create_task(engine.generate([1], FOUR))
        await engine.update_weights(lively_model().state_dict(), 1)
        assert (len(server.live), engine.stats()["waiting"]) == (0, 1)
        await engine.wake()
        assert set((await waiting).weight_version) == {1}


@pytest.mark.parametrize("name", SERVERS)
async def test_server_that_cannot_sleep_computes_on(name: str, folder: Path) -> None:
    async with on_a_gpu(name, folder) as (server, engine):
        await engine.ready()
        server.refuse[{"vllm": "/sleep", "sglang": "/release_memory_occupation"}[name]] = ["it has no sleep mode"]
        with pytest.raises(EngineError, match="it has no sleep mode"):
            await engine.sleep()
        assert len((await engine.generate([1], FOUR)).token_ids) == 4
