"""The vLLM engine against a fake server: requests, wrong server options, and faults.

The conformance suite checks its replies and the compatibility with a real server. Behaviour common to all servers is
tested with SGLang's fake.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kits import CONTEXT, lively_model
from fake_vllm import FakeVLLM, ServerBehavior
from some_adapters import adapted, adapter_of

from trainers.config.engine import VLLMEngineSection, VLLMSection
from trainers.engines.base import EngineDeadError, EngineError, RequestError, Sampling
from trainers.engines.vllm.command import server_command
from trainers.engines.vllm.engine import VLLMEngine, read_metrics, read_reply
from trainers.engines.weights import FUSED, ChecksumRule, Checksums, bits, differing

QUICK: dict[str, Any] = {"health_timeout_s": 30.0, "start_timeout_s": 100.0}
LONG = Sampling(max_new_tokens=300, ignore_stop=True)
NAME = "model.layers.1.mlp.down_proj.weight"


@asynccontextmanager
async def serving(
    folder: Path,
    behavior: ServerBehavior | None = None,
    *,
    unused: Sequence[int] = (),
    bucket_bytes: int = 2**20,
    **options: Any,
) -> AsyncIterator[tuple[FakeVLLM, VLLMEngine]]:
    server = FakeVLLM(behavior)
    url = await server.start()
    weights = lively_model().state_dict()
    section = VLLMEngineSection(max_context=CONTEXT, vllm=VLLMSection(base_url=(url,), **QUICK | options))
    engine = VLLMEngine(folder, section, weights=weights, unused_token_ids=unused)
    engine.health_interval_s = 0.05
    engine._updater.bucket_bytes = bucket_bytes
    try:
        async with asyncio.timeout(100):
            yield server, engine
    finally:
        await engine.close()
        await server.stop()


# How it is started


@pytest.mark.parametrize(
    ("behavior", "message"),
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
        (ServerBehavior(described={"vocab_size": 65}), "a model with 65 tokens"),
        (ServerBehavior(described={"max_context": 700}), "--max-model-len 768"),
        (ServerBehavior(well=503), r"not ready after 0\.3 s"),
    ],
)
async def test_wrong_server_options_name_the_right_ones(folder: Path, behavior: ServerBehavior, message: str) -> None:
    async with serving(folder, behavior, start_timeout_s=0.3 if behavior.well != 200 else 100.0) as (server, engine):
        with pytest.raises(EngineDeadError, match=message):
            await engine.ready()
        assert not server.paused


def test_arguments_become_command_line_words() -> None:
    args = {
        "max_num_batched_tokens": 99,
        "enable_prefix_caching_x": False,
        "compilation_config": {"mode": 0},
        "x": None,
    }
    section = VLLMEngineSection(tensor_parallel_size=2, threads=3, vllm=VLLMSection(python=sys.executable, args=args))
    command, environment = server_command(section, Path("m"), 1234, packages=Path("p"))
    words = " ".join(command)
    for argument in (
        "--model m",
        "--tensor-parallel-size 2",
        "--max-num-batched-tokens 99",
        "--no-enable-prefix-caching-x",
        '--compilation-config {"mode": 0}',
        "--no-enable-chunked-prefill",
    ):
        assert argument in words
    assert "--x" not in command
    assert "--distributed-executor-backend" not in command
    assert environment["OMP_NUM_THREADS"] == "3"


async def test_server_left_mid_update_is_recovered(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        server.active = server.paused = server.asleep = True
        made = await engine.generate([1, 2], Sampling(max_new_tokens=3))
        assert (made.token_ids.tolist(), made.weight_version.tolist()) == ([2, 3, 4], [0, 0, 0])


# Answers


@pytest.mark.parametrize(
    ("unused", "spans"),
    [((), []), ((5,), [[5, 6]]), ((0, 1, 2, 7, 9, 10), [[0, 3], [7, 8], [9, 11]]), ((*range(40, 64),), [[40, 64]])],
)
async def test_workers_get_the_unused_ids(folder: Path, unused: tuple[int, ...], spans: list[list[int]]) -> None:
    async with serving(folder, unused=unused) as (server, engine):
        await engine.ready()
        assert server.left_out == spans


def body_of(spans: list[dict[str, Any]], count: int = 3, **choice: Any) -> dict[str, Any]:
    content = [{"logprob": -0.5 * i} for i in range(count)]
    made = {"token_ids": list(range(count)), "logprobs": {"content": content}, "finish_reason": "stop"}
    return {
        "choices": [{**made, "weight_versions": spans, **choice}],
        "usage": {"prompt_tokens_details": {"cached_tokens": 2}},
    }


def span(version: str, start: int, end: int) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


def test_answer_is_read_with_token_labels() -> None:
    made = read_reply(body_of([span("a:4", 0, 1), span("a:7", 1, 3)]))
    assert made.token_ids == [0, 1, 2]
    assert made.logprobs == [0.0, -0.5, -1.0]
    assert made.labels == ["a:4", "a:7", "a:7"]
    assert (made.finish_reason, made.cached_tokens) == ("stop", 2)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (body_of([span("a:4", 0, 2)]), "contradict"),
        (body_of([span("a:4", 0, 3)], logprobs={"content": []}), "contradict"),
        (body_of([span("a:4", 0, 3)], finish_reason="error"), "contradict"),
        ({**body_of([span("a:4", 0, 3)]), "usage": {"prompt_tokens_details": None}}, "--enable-prompt-tokens-details"),
        ({"choices": []}, "cannot be read"),
        ("<html>", "cannot be read"),
    ],
)
def test_invalid_answer_is_an_error(body: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_reply(body)


def test_counters_are_read_from_metrics() -> None:
    text = (
        "# HELP vllm:num_preemptions_total x\n"
        'vllm:num_preemptions_total{engine="0",model_name="a } b"} 3.0\n'
        'vllm:num_preemptions_total{engine="1",model_name="a } b"} 4.0\n'
        'vllm:num_preemptions_created{engine="0"} 1.7e9\nvllm:kv_cache_usage_perc{engine="0"} 0.25\ngarbage{ x\n'
    )
    assert read_metrics(text) == {"preemptions": 7.0, "kv_use": 0.25}
    assert read_metrics("<html>") == {}


# Weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksums_match_fused_storage_and_detect_changes(dtype: torch.dtype) -> None:
    state = {name: value.to(dtype) for name, value in lively_model().state_dict().items() if name != "lm_head.weight"}
    stored = dict(reversed(state.items()))
    for layer in (f"model.layers.{number}" for number in range(2)):
        for kind in ("weight", "bias"):
            parts = [stored.pop(f"{layer}.self_attn.{part}.{kind}") for part in FUSED["qkv_proj"]]
            stored[f"{layer}.self_attn.qkv_proj.{kind}"] = torch.cat(parts)
        parts = [stored.pop(f"{layer}.mlp.{part}.weight") for part in FUSED["gate_up_proj"]]
        stored[f"{layer}.mlp.gate_up_proj.weight"] = torch.cat(parts)
    stored["model.embed_tokens.weight"] = torch.nn.functional.pad(stored["model.embed_tokens.weight"], (0, 0, 0, 9))
    stored_sums = {name: (bits(value),) for name, value in stored.items()}
    renamed = {name.replace("gate_up_proj", "experts"): sums for name, sums in stored_sums.items()}
    for name, value in [("", None), *state.items()]:
        sums = Checksums(ChecksumRule())
        for parameter, whole in state.items():
            changed = whole.clone()
            if parameter == name:
                changed.view(-1)[-1] += 0.125
            sums.add(parameter, changed)
        expected = sums.result()
        if value is None:
            assert expected == stored_sums
            assert differing(expected, stored_sums) == differing(expected, renamed) == []
        else:
            assert len(differing(expected, stored_sums)) == 1
            assert differing(expected, renamed)


async def test_weights_arrive_between_pause_and_resume(folder: Path) -> None:
    new = lively_model(seed=1).state_dict()
    async with serving(folder, bucket_bytes=2**14) as (server, engine):
        await engine.ready()
        server.log.clear()
        made = server.made
        long = asyncio.create_task(engine.generate([1], LONG))
        while server.made == made:
            await asyncio.sleep(0.001)
        server.behavior.hung = True  # the request is under way when the update comes
        await engine.update_weights(new, 1)
        server.behavior.hung = False
        buckets = server.log.count("/update_weights")
        assert buckets > 3
        session = ["/start_weight_update", *["/update_weights"] * buckets, "/finish_weight_update"]
        assert server.log == ["/pause", *session, "/collective_rpc", "/resume"]
        assert all(torch.equal(server.weights[name], new[name]) for name in server.weights)
        assert set((await long).weight_version) == {0, 1}


async def test_base_of_adapters_is_sent_once(folder: Path) -> None:
    state = lively_model().state_dict()
    async with serving(folder) as (server, engine):
        await engine.ready()
        server.kinds.clear()
        await engine.update_weights(adapted(state, 0), 1)
        assert server.kinds == ["base", "adapter", "merge"]
        assert server.base.keys() == state.keys() - {"lm_head.weight"}
        await engine.update_weights(adapted(state, 1), 2)
        assert server.kinds[3:] == ["adapter", "merge"]
        assert server.adapter.keys() == adapter_of(state).keys()
        await engine.update_weights(adapted(state, 1, name="other"), 3)
        assert server.kinds[5:] == ["base", "adapter", "merge"]


@pytest.mark.parametrize("fault", ["refuses", "loses"])
async def test_mixed_weights_are_never_sampled(folder: Path, fault: str) -> None:
    async with serving(folder) as (server, engine):
        await engine.ready()
        server.behavior.hung = True  # the request is under way whenever the fault comes
        running = asyncio.create_task(engine.generate([1], LONG))
        while not server.running:
            await asyncio.sleep(0.001)
        if fault == "refuses":
            server.behavior.refuse["/update_weights"] = ["out of memory"] * 9
        else:
            server.behavior.lose, server.weights[NAME] = (NAME,), server.weights[NAME] + 1
        word = "out of memory" if fault == "refuses" else r"down_proj\.weight"
        for waiting in (engine.update_weights(lively_model(seed=1).state_dict(), 1), running):
            with pytest.raises(EngineDeadError, match=f"mixture: .*{word}"):
                await waiting
        assert server.paused


async def test_fused_experts_are_compared_by_their_sum(folder: Path) -> None:
    """Their names differ, so only the total sum can be compared, for a single worker."""
    new = lively_model(seed=1).state_dict()
    for lose in ((), (NAME,)):
        async with serving(folder, ServerBehavior(fused={"down_proj": "experts_w2"}, lose=lose)) as (server, engine):
            if lose:
                with pytest.raises(EngineDeadError, match=r"does not have the weights .*down_proj\.weight"):
                    await engine.update_weights(new, 1)
            else:
                await engine.update_weights(new, 1)


# Ends


async def test_dead_engine_process_in_server_is_noticed(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        await engine.ready()
        server.behavior.hung = True
        tasks = [asyncio.create_task(engine.generate([i], LONG)) for i in range(4)]
        while server.running < 4:
            await asyncio.sleep(0.001)
        server.behavior.well = 503
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) and "is gone" in str(result) for result in results)


async def test_cancel_and_close_end_server_requests(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        await engine.ready()
        server.behavior.hung = True
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


async def test_unsupported_requests_are_refused(folder: Path) -> None:
    async with serving(folder) as (_, engine):
        with pytest.raises(RequestError, match=r"below 0\.01"):
            await engine.generate([1], Sampling(temperature=0.009))
        with pytest.raises(EngineError, match="level=0"):
            await engine.sleep(1)


async def test_sleeping_engine_holds_requests(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        await engine.sleep(0)
        await engine.sleep(0)
        with pytest.raises(EngineError, match="wake it"):
            await engine.update_weights(lively_model().state_dict(), 1)
        waiting = asyncio.create_task(engine.generate([1], Sampling(max_new_tokens=4)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (server.asleep, server.running, engine.stats()["waiting"]) == (True, 0, 1)
        await engine.wake()
        await engine.wake()
        assert len((await waiting).token_ids) == 4
