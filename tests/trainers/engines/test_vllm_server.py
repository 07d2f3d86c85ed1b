"""Tests of a real vLLM server beside the conformance suite: its transports, adapters, sleep."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_kits import SERVED, lively_model
from real_server import check_teacher
from some_adapters import adapted, merged
from test_conformance import forward, picked
from vllm_server import Server

from benchmarks.memory import peak_of_session
from trainers.engines.base import EngineDeadError, Sampling
from trainers.engines.transport import LocalSource
from trainers.engines.vllm.engine import VLLMEngine

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("vllm"), pytest.mark.timeout(900)]

GREEDY = Sampling(temperature=0.0, max_new_tokens=12)


async def learns(engine: VLLMEngine, seed: int, version: int) -> None:
    """Update the engine, and check that it computes with the new weights."""
    model = lively_model(seed=seed, **SERVED)
    await engine.update_weights(model.state_dict(), version)
    made = await engine.generate([5, 6, 7], GREEDY)
    assert set(made.weight_version) == {version}
    full = forward(model, [5, 6, 7], made.token_ids)
    np.testing.assert_allclose(made.logprobs, picked(full, made.token_ids), atol=1e-4)


@pytest.mark.parametrize(
    ("transport", "in_place"), [("process_group", True), ("disk", True), ("http", True), ("ipc", False)]
)
async def test_weights_arrive_by_every_transport(vllm: Server, transport: Any, in_place: bool, tmp_path: Path) -> None:
    """Buckets far smaller than the model, twice; the conformance suite uses `ipc`. Not in place: as on a GPU."""
    engine = await vllm.make(lively_model(**SERVED), transport=transport, update_folder=str(tmp_path / "new"))
    engine._updater.bucket_bytes = 20_000
    assert engine._updater.in_place
    engine._updater.in_place = in_place
    try:
        await learns(engine, 1, 3)
        await learns(engine, 2, 4)
    finally:
        await engine.close()


async def test_server_keeps_no_copy_of_shared_weights(vllm: Server) -> None:
    """Nor makes one while an update lasts, where an update by value does; of both ways, the second update counts."""
    model = lively_model(seed=1, **SERVED)
    size = sum(value.nbytes for value in model.parameters()) / 2**20
    engine = await vllm.make(model)
    engine._updater.bucket_bytes = 2**30
    assert vllm.process is not None
    growth: dict[str, float] = {}
    try:
        for version, transport in enumerate(2 * ["ipc", "http"], 1):
            engine._updater.transport = transport
            with peak_of_session(vllm.process.pid) as usage:
                await engine.update_weights(model.state_dict(), version)
            growth[transport] = usage["private"]
    finally:
        await engine.close()
    assert growth["http"] > size
    assert growth["ipc"] < size / 2


async def test_adapters_equal_merged_weights(vllm: Server) -> None:
    state = lively_model(**SERVED).state_dict()
    engine = await vllm.make(lively_model(**SERVED))
    engine._updater.bucket_bytes = 20_000
    try:
        await engine.update_weights(merged(state, seed=2), 1)
        expected = await engine.generate([1, 2, 3], GREEDY)
        await engine.update_weights(adapted(state, seed=1), 2)
        other = await engine.generate([1, 2, 3], GREEDY)
        assert other.logprobs.tolist() != expected.logprobs.tolist()
        await engine.update_weights(adapted(state, seed=2), 3)
        made = await engine.generate([1, 2, 3], GREEDY)
        assert set(made.weight_version) == {3}
        assert made.token_ids.tolist() == expected.token_ids.tolist()
        np.testing.assert_allclose(made.logprobs, expected.logprobs, atol=1e-5)
        await learns(engine, 1, 4)
    finally:
        await engine.close()


async def test_teacher_scores_given_tokens(vllm: Server, caplog: pytest.LogCaptureFixture) -> None:
    model = lively_model(**SERVED)
    engine = await vllm.make(model)
    try:
        await asyncio.to_thread(check_teacher, vllm.url, model, vllm.context)
    finally:
        await engine.close()
    assert "is not compared with the policy's" in caplog.text  # the server has no tokenizer


async def test_real_server_sleeps_and_resumes_requests(vllm: Server) -> None:
    engine = await vllm.make(lively_model(**SERVED))
    try:
        expected = await engine.generate([1, 2, 3], GREEDY)
        running = asyncio.create_task(engine.generate([7], Sampling(max_new_tokens=300, seed=1, ignore_stop=True)))
        await asyncio.sleep(0)
        await engine.sleep(release=False)
        waiting = asyncio.create_task(engine.generate([1, 2, 3], GREEDY))
        await engine.wake()
        assert (await waiting).token_ids.tolist() == expected.token_ids.tolist()
        assert len((await running).token_ids) == 300
    finally:
        await engine.close()


async def test_incomplete_weights_end_the_engine(vllm: Server) -> None:
    """A tensor is left out twice: the checksums differ, and all waiters get the error."""
    engine = await vllm.make(lively_model(**SERVED))
    send = engine._updater._send
    name = "model.layers.1.mlp.down_proj.weight"

    async def leave_out(source: Any, kind: Any) -> Any:
        sent_specs = [spec for spec in source.specs if name not in spec.names]
        sums = await send(
            LocalSource(sent_specs, lambda: (entry for entry in source.read() if name not in entry[0])), kind
        )
        return sums | {name: (1,)}

    async def ask() -> None:  # repeatedly, so that the fault always meets a request in flight
        while True:
            await engine.generate([4, 5], Sampling(max_new_tokens=700, ignore_stop=True))

    engine._updater._send = leave_out  # type: ignore[method-assign, assignment]
    try:
        running = asyncio.create_task(ask())
        for waiting in (engine.update_weights(lively_model(seed=1, **SERVED).state_dict(), 1), running):
            with pytest.raises(EngineDeadError, match=r"mixture.*down_proj\.weight"):
                await waiting
        with pytest.raises(EngineDeadError, match="mixture"):
            await engine.generate([1], GREEDY)
    finally:
        await engine.close()
