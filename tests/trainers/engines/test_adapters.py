"""Adapters sent alone: an engine has exactly the numbers of merged weights."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from some_adapters import adapted, adapter_of, merged

from trainers.config.engine import TorchEngineSection
from trainers.engines.base import EngineDeadError, Generation, Sampling
from trainers.engines.replicas import Replicas
from trainers.engines.torch_engine import TorchEngine
from trainers.engines.transport import AdapterSource
from trainers.engines.weights import compact
from trainers.models.tiny import build_model

MODEL = build_model(64, hidden=32, layers=2, seed=1)  # qwen2: biases, and tied embeddings
STATE = MODEL.state_dict()
SAMPLING = Sampling(temperature=0.7, max_new_tokens=12, seed=3)


def an_engine(version: int = 0) -> TorchEngine:
    return TorchEngine(MODEL, TorchEngineSection(max_slots=2, max_context=64, threads=1), version=version)


async def reply_of(engine: Any) -> Generation:
    return await engine.generate([5, 9, 2, 40], SAMPLING)  # type: ignore[no-any-return]


def assert_same(one: Generation, other: Generation) -> None:
    np.testing.assert_array_equal(one.token_ids, other.token_ids)
    np.testing.assert_array_equal(one.logprobs, other.logprobs)


@pytest.mark.parametrize("exact", ["float32", "bfloat16"])
def test_reading_yields_merged_weights(exact: str) -> None:
    state = {name: value.to(getattr(torch, exact)).float() for name, value in STATE.items()}
    compacted = {name: compact(value) for name, value in state.items()}
    assert {value.dtype for value in compacted.values()} >= {getattr(torch, exact)}
    source = adapted(compacted, adapter=adapter_of(state)).merged()
    made = {name: value for names, value in source.read() for name in names}
    expected = merged(state)
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name].float(), value) for name, value in expected.items())


def test_numbers_that_need_float32_stay_float32() -> None:
    value = torch.tensor([1.0, 1.0 + 2**-20, -0.0])
    assert compact(value) is value
    assert compact(torch.tensor([float("nan")])).dtype == torch.float32
    assert torch.signbit(compact(torch.tensor([-0.0, 1.5]))).tolist() == [True, False]


async def test_torch_engine_computes_as_with_merged_weights() -> None:
    one, other = an_engine(), an_engine()
    before = await reply_of(one)
    for version, seed in enumerate((0, 1), 1):  # the second is not on top of the first
        await one.update_weights(adapted(STATE, seed), version)
        await other.update_weights(merged(STATE, seed), version)
        assert_same(reply := await reply_of(one), await reply_of(other))
        assert set(reply.weight_version.tolist()) == {version}
        assert reply.logprobs.tolist() != before.logprobs.tolist()
    await asyncio.gather(one.close(), other.close())
    with pytest.raises(EngineDeadError):
        await one.update_weights(adapted(STATE), 9)


def spoiled(fault: str) -> AdapterSource:
    adapter = adapter_of(STATE)
    first = next(iter(adapter))
    if fault == "other model":
        adapter = {name.replace("layers.1", "layers.7"): value for name, value in adapter.items()}
    elif fault == "half":
        del adapter[first]
    elif fault == "rank":
        adapter[first] = adapter[first][:-1]
    elif fault == "not finite":
        adapter[first] = adapter[first] * float("nan")
    elif fault == "names":
        adapter = {name.removeprefix("base_model."): value for name, value in adapter.items()}
    return adapted(STATE, adapter=adapter)


FAULTS = {
    "other model": r"has no model\.layers\.7",
    "half": "only one of its two",
    "rank": "does not fit its shape",
    "not finite": "not finite",
    "names": "no name of an adapter",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_unsuitable_adapters_leave_the_old_weights(fault: str) -> None:
    engine = an_engine()
    before = await reply_of(engine)
    with pytest.raises(ValueError, match=FAULTS[fault]):
        await engine.update_weights(spoiled(fault), 1)
    assert engine.version == 0
    assert_same(await reply_of(engine), before)
    await engine.close()


async def test_later_replica_has_base_and_adapters() -> None:
    # The replicas' first weights are not the base, as after a resumption from merged weights.
    base = build_model(64, hidden=32, layers=2, seed=5).state_dict()
    replicas = Replicas([an_engine(), an_engine()], restart=lambda _: an_engine())
    await replicas.update_weights(adapted(base, 0), 1)
    await replicas.update_weights(adapted(base, 1), 2)
    expected = await reply_of(replicas)
    lost = [replica.engine for replica in replicas._replicas]
    for engine in lost:
        engine._mailbox.end("injected")  # type: ignore[attr-defined]
    again = await asyncio.wait_for(reply_of(replicas), 60)
    assert_same(again, expected)
    assert set(again.weight_version.tolist()) == {2}
    whole = an_engine()
    await whole.update_weights(merged(base, 1), 1)
    assert_same(await reply_of(whole), expected)
    await asyncio.gather(replicas.close(), whole.close())
