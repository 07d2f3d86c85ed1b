"""A served vLLM beyond the protocol: against a fake server, what was started wrongly and what breaks; and for real.

What a real server computes, the conformance suite shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
import vllm_serve
from conftest import CONTEXT, SERVED, lively_model
from fake_vllm import FakeVLLM, ServerBehavior
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from some_adapters import adapted, adapter_of, merged
from test_conformance import forward, picked
from transformers import PreTrainedModel

from trainers.engines.base import EngineDeadError, EngineError, RequestError, Sampling
from trainers.engines.vllm import control
from trainers.engines.vllm.control import read_metrics, read_reply
from trainers.engines.vllm.served import ServedOptions, ServedVLLM
from trainers.engines.vllm.whole import MixedError, RefusedError, Weights

QUICK: dict[str, Any] = {"health_interval_s": 0.05, "health_timeout_s": 5.0, "start_timeout_s": 100.0}
LONG = Sampling(max_new_tokens=300, ignore_stop=True)
NAME = "model.layers.1.mlp.down_proj.weight"


@asynccontextmanager
async def serving(manners: ServerBehavior | None = None, **options: Any) -> AsyncIterator[tuple[FakeVLLM, ServedVLLM]]:
    server = FakeVLLM(manners)
    url = await server.start()
    engine = await ServedVLLM.connect(ServedOptions(url, **QUICK | options), lively_model(), max_context=CONTEXT)
    try:
        async with asyncio.timeout(60):
            yield server, engine
    finally:
        await engine.close()
        await server.stop()


# How it was started


@pytest.mark.parametrize(
    ("manners", "said"),
    [
        (ServerBehavior(dev_mode=False), "VLLM_SERVER_DEV_MODE=1"),
        (ServerBehavior(extension=False), r"--worker-extension-cls trainers\.engines\.vllm\.server\.extension"),
        (ServerBehavior(described={"sampler": False}), "VLLM_USE_V2_MODEL_RUNNER=0"),
        (ServerBehavior(described={"transfer": False}), "--weight-transfer-config"),
        (
            ServerBehavior(described={"reads_prompts": False}),
            "--no-enable-chunked-prefill --max-num-batched-tokens 4096",
        ),
        (ServerBehavior(details=False), "--enable-prompt-tokens-details"),
        (ServerBehavior(world=2), "2 workers"),
        (ServerBehavior(described={"vocab_size": 65}), "a model with 65 tokens"),
        (ServerBehavior(described={"max_context": 700}), "--max-model-len 768"),
        (ServerBehavior(well=503), r"not ready after 0\.3 s"),
    ],
)
async def test_a_server_that_was_started_otherwise_is_told_how(manners: ServerBehavior, said: str) -> None:
    server = FakeVLLM(manners)
    options = ServedOptions(await server.start(), **QUICK | {"start_timeout_s": 0.3})
    with pytest.raises(EngineDeadError, match=said):
        await ServedVLLM.connect(options, lively_model(), max_context=CONTEXT)
    await server.stop()
    assert not server.paused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base_url": "localhost:8000"}, "http://"),
        ({"base_url": "http://x", "stall_timeout_s": 0.0}, "stall_timeout_s"),
        ({"base_url": "http://x", "update_folder": "/x"}, "transport=local"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ServedOptions(**options)


async def test_it_goes_on_with_a_server_that_another_client_left_in_the_middle() -> None:
    server = FakeVLLM()
    server.active = server.paused = server.asleep = True
    engine = await ServedVLLM.connect(ServedOptions(await server.start(), **QUICK), lively_model(), max_context=CONTEXT)
    made = await engine.generate([1, 2], Sampling(max_new_tokens=3))
    assert (made.token_ids.tolist(), made.weight_version.tolist()) == ([2, 3, 4], [0, 0, 0])
    await engine.close()
    await server.stop()


# Answers


def body_of(spans: list[dict[str, Any]], count: int = 3, **choice: Any) -> dict[str, Any]:
    content = [{"logprob": -0.5 * i} for i in range(count)]
    made = {"token_ids": list(range(count)), "logprobs": {"content": content}, "finish_reason": "stop"}
    return {
        "choices": [{**made, "weight_versions": spans, **choice}],
        "usage": {"prompt_tokens_details": {"cached_tokens": 2}},
    }


def span(version: str, start: int, end: int) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


def test_an_answer_is_read_with_the_version_of_each_token() -> None:
    made = read_reply(body_of([span("a:4", 0, 1), span("a:7", 1, 3)]), "a")
    assert made.token_ids.tolist() == [0, 1, 2]
    assert made.logprobs.tolist() == [0.0, -0.5, -1.0]
    assert made.weight_version.tolist() == [4, 7, 7]
    assert (made.finish_reason, made.cached_tokens) == ("stop", 2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (body_of([span("b:4", 0, 3)]), "b:4, which somebody else"),
        (body_of([span("default", 0, 3)]), "default, which somebody else"),
        (body_of([span("a:4", 0, 2)]), "does not go together"),
        (body_of([span("a:4", 0, 3)], logprobs={"content": []}), "does not go together"),
        (body_of([span("a:4", 0, 3)], finish_reason="error"), "does not go together"),
        (body_of([span("a:four", 0, 3)]), "cannot be read"),
        ({**body_of([span("a:4", 0, 3)]), "usage": {"prompt_tokens_details": None}}, "--enable-prompt-tokens-details"),
        ({"choices": []}, "cannot be read"),
        ("<html>", "cannot be read"),
    ],
)
def test_an_answer_that_is_none_is_an_error(body: Any, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        read_reply(body, "a")


def test_counters_are_found_among_the_metrics() -> None:
    text = (
        "# HELP vllm:num_preemptions_total x\n"
        'vllm:num_preemptions_total{engine="0",model_name="a } b"} 3.0\n'
        'vllm:num_preemptions_total{engine="1",model_name="a } b"} 4.0\n'
        'vllm:num_preemptions_created{engine="0"} 1.7e9\nvllm:kv_cache_usage_perc{engine="0"} 0.25\ngarbage{ x\n'
    )
    assert read_metrics(text) == {"preemptions": 7.0, "kv_use": 0.25}
    assert read_metrics("<html>") == {}


# Updates


class Steps:
    """Controls that fail where they are told to; a load that fails leaves half of it behind."""

    dead = EngineDeadError

    def __init__(self, faults: list[bool]) -> None:
        self.faults, self.has, self.running, self.label = faults, "old", True, 0

    def _maybe(self) -> None:
        if self.faults and self.faults.pop(0):
            raise RuntimeError("injected")

    async def pause(self, mode: str) -> None:
        self._maybe()
        self.running = False

    async def load(self, payload: Mapping[str, Any], version: int | None) -> None:
        assert not self.running
        self.has = "mixture"
        self._maybe()
        self.has = payload["path"]
        self.label = self.label if version is None else version

    async def resume(self) -> None:
        self.running = True


@given(st.lists(st.booleans(), max_size=12), st.booleans())
def test_weights_are_taken_whole_or_not_at_all_whatever_fails(faults: list[bool], first: bool) -> None:
    async def run() -> None:
        steps = Steps([])
        weights = Weights(steps)
        if not first:
            await weights.update({"path": "old"}, 1, "keep")
        steps.faults = list(faults)
        for version in range(2, 5):
            before = (steps.has, steps.label)
            try:
                await weights.update({"path": f"new {version}"}, version, "keep")
            except RefusedError:
                assert (steps.has, steps.label) == before
            except MixedError:
                return  # the engine ends; nothing was resumed unless the pause itself failed
            else:
                assert (steps.has, steps.label) == (f"new {version}", version)
            assert steps.running
            assert steps.has != "mixture"

    asyncio.run(run())


async def test_weights_travel_in_pieces_while_the_server_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_PIECE", 10_000)
    wanted = lively_model(seed=1).state_dict()
    async with serving() as (server, engine):
        server.log.clear()
        long = asyncio.create_task(engine.generate([1], LONG))
        while not server.running:
            await asyncio.sleep(0.001)
        await engine.update_weights(wanted, 1)
        pieces = server.log.count("/update_weights") - 1
        assert pieces > 3
        assert server.log == [
            *("/start_weight_update", *["/update_weights"] * pieces, "/finish_weight_update"),
            *("/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"),
        ]
        assert all(torch.equal(server.weights[name], wanted[name]) for name in server.weights)
        assert set((await long).weight_version) == {0, 1}


async def test_the_base_of_adapters_travels_once() -> None:
    state = lively_model().state_dict()
    async with serving() as (server, engine):
        await engine.update_weights(adapted(state, 0), 1)
        (base,) = (info["base"]["upload"] for info in server.loaded if "base" in info)
        assert load(server.uploads[base]).keys() == state.keys() - {"lm_head.weight"}
        sent = len(server.uploads)
        await engine.update_weights(adapted(state, 1), 2)
        assert len(server.uploads) == sent + 1
        assert server.loaded[-1]["base"]["upload"] == base
        assert server.weights.keys() == adapter_of(state).keys()
        await engine.update_weights(state, 3)  # the server may let the base go
        await engine.update_weights(adapted(state, 1), 4)
        assert server.loaded[-1]["base"]["upload"] != base


async def test_weights_that_broke_off_on_the_way_are_sent_again_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_PIECE", 10_000)
    wanted = lively_model(seed=1).state_dict()
    async with serving() as (server, engine):
        update, count = server._update_weights, 0

        def breaks_off(body: Any) -> None:
            nonlocal count
            count += 1
            if count == 3:
                server.active = False
                raise RuntimeError("out of memory")
            update(body)

        server._update_weights = breaks_off  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="did not arrive: .*out of memory; the old weights stay"):
            await engine.update_weights(wanted, 1)
        assert not server.paused
        await engine.update_weights(wanted, 1)
        assert all(torch.equal(server.weights[name], wanted[name]) for name in server.weights)


async def test_a_refused_update_goes_back_to_the_weights_from_before() -> None:
    old = lively_model().state_dict()
    async with serving() as (server, engine):
        server.log.clear()
        before = server.label
        update = server._update_weights

        def once(body: Any) -> None:
            if "piece" not in body["update_info"]:
                server._update_weights = update  # type: ignore[method-assign]
                server.weights, server.active = {}, False
                raise RuntimeError("weights were damaged on the way")
            update(body)

        server._update_weights = once  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="damaged on the way; the old weights stay"):
            await engine.update_weights(lively_model(seed=1).state_dict(), 1)
        assert torch.equal(server.weights[NAME], old[NAME])
        assert (engine.version, server.label, server.paused) == (0, before, False)
        await engine.update_weights(lively_model(seed=1).state_dict(), 2)
        assert set((await engine.generate([1], Sampling(max_new_tokens=2))).weight_version) == {2}


async def test_where_nothing_is_certain_any_more_the_engine_ends_and_the_server_stays_paused() -> None:
    async with serving() as (server, engine):
        running = asyncio.create_task(engine.generate([1], LONG))
        while not server.running:
            await asyncio.sleep(0.001)

        def never(body: Any) -> None:
            if "piece" not in body["update_info"]:
                server.active = False
                raise RuntimeError("out of memory")

        server._update_weights = never  # type: ignore[method-assign]
        for waiting in (engine.update_weights(lively_model(seed=1).state_dict(), 1), running):
            with pytest.raises(EngineDeadError, match=r"not certain.*from before failed too"):
                await waiting
        assert server.paused


# Ends


@pytest.mark.parametrize("how", ["stops", "dies inside"])
async def test_everybody_hears_of_a_server_that_is_gone(how: str) -> None:
    async with serving() as (server, engine):
        server.manners.hung = True
        tasks = [asyncio.create_task(engine.generate([i], LONG)) for i in range(4)]
        while server.running < 4:
            await asyncio.sleep(0.001)
        if how == "stops":
            await server.stop()
        else:
            server.manners.well = 503
        async with asyncio.timeout(5):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) and "is gone" in str(result) for result in results)
        with pytest.raises(EngineDeadError, match="is gone"):
            await engine.update_weights(lively_model().state_dict(), 1)


async def test_a_server_that_hangs_is_found_out_and_a_slow_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.engines.vllm.served._PROBE_S", 0.2)
    async with serving(stall_timeout_s=0.2, health_timeout_s=0.2) as (server, engine):
        server.manners.token_s = 0.1
        assert len((await engine.generate([1], Sampling(max_new_tokens=6))).token_ids) == 6
        server.manners.hung = True
        with pytest.raises(EngineDeadError, match="hangs: no token for"):
            await engine.generate([1], LONG)


async def test_an_update_that_waits_for_a_server_that_hangs_ends() -> None:
    async with serving(stall_timeout_s=0.2) as (server, engine):
        server.manners.hung = True
        running = asyncio.create_task(engine.generate([1], LONG))
        while not server.running:
            await asyncio.sleep(0.001)
        for waiting in (engine.update_weights(lively_model(seed=1).state_dict(), 1, "wait"), running):
            with pytest.raises(EngineDeadError, match="hangs: no token for .* an update waits"):
                await waiting


async def test_cancelling_and_closing_end_what_runs_on_the_server() -> None:
    async with serving() as (server, engine):
        server.manners.hung = True
        tasks = [asyncio.create_task(engine.generate([i], LONG)) for i in range(6)]
        while server.running < 6:
            await asyncio.sleep(0.001)
        for task in tasks[:3]:
            task.cancel()
        while server.running > 3:
            await asyncio.sleep(0.001)
        await engine.close()
        while server.running:
            await asyncio.sleep(0.001)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 3 + [EngineDeadError] * 3


async def test_requests_that_the_server_cannot_do_are_refused() -> None:
    async with serving() as (_, engine):
        with pytest.raises(RequestError, match="below 0.01"):
            await engine.generate([1], Sampling(temperature=0.009))
        with pytest.raises(EngineError, match="level=0"):
            await engine.sleep(1)
        await engine.sleep(0)
        with pytest.raises(EngineError, match="wake it"):
            await engine.update_weights(lively_model().state_dict(), 1)
        await engine.wake()
        assert len((await engine.generate([1], Sampling(max_new_tokens=4))).token_ids) == 4


# For real


@pytest.mark.engines
@pytest.mark.slow
@pytest.mark.xdist_group("served_vllm")
@pytest.mark.timeout(900)
async def test_a_real_server_takes_files_and_sleeps_and_goes_back(served_vllm: vllm_serve.Server) -> None:
    """What the conformance suite leaves out: weights through a file, sleep, and an update that fails on the way."""
    model, other = lively_model("qwen3", **SERVED), lively_model("qwen3", seed=1, **SERVED)
    for transport in ("local", "http"):
        engine = await served_vllm.make(model, transport=transport)
        try:
            async with asyncio.timeout(300):
                await _goes_back_and_sleeps(engine, other)
        finally:
            await engine.close()


async def _goes_back_and_sleeps(engine: ServedVLLM, other: PreTrainedModel) -> None:
    greedy = Sampling(temperature=0.0, max_new_tokens=12)
    before = await engine.generate([1, 2, 3], greedy)
    prepare = engine._publisher.prepare

    def spoiled(weights: Any, version: int) -> Any:
        payload = prepare(weights, version)
        payload.message["checksums"][""] += 1  # type: ignore[index]
        return payload

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._publisher, "prepare", spoiled)
        with pytest.raises(ValueError, match="damaged on the way, in outside the blocks; the old weights stay"):
            await engine.update_weights(other.state_dict(), 1)
    after = await engine.generate([1, 2, 3], greedy)
    assert after.token_ids.tolist() == before.token_ids.tolist()
    assert set(after.weight_version) == {0}
    await engine.sleep(0)
    waiting = asyncio.create_task(engine.generate([1, 2, 3], greedy))
    await asyncio.wait({waiting}, timeout=0.1)
    assert not waiting.done()
    await engine.wake()
    assert (await waiting).token_ids.tolist() == before.token_ids.tolist()
    state = other.state_dict()
    await engine.update_weights(merged(state), 1)
    wanted = await engine.generate([1, 2, 3], greedy)
    for version, seed in ((2, 1), (3, 2), (4, 0)):
        await engine.update_weights(adapted(state, seed), version)
    made = await engine.generate([1, 2, 3], greedy)
    assert made.token_ids.tolist() == wanted.token_ids.tolist()
    assert made.logprobs.tolist() == wanted.logprobs.tolist()
    assert set(made.weight_version) == {4}
    await engine.update_weights(other.state_dict(), 5)
    made = await engine.generate([1, 2, 3], greedy)
    wanted = picked(forward(other, [1, 2, 3], made.token_ids), made.token_ids)
    np.testing.assert_allclose(made.logprobs, wanted, atol=1e-4)
    assert set(made.weight_version) == {5}
