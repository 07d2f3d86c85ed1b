"""The engine for SGLang alone, against a fake server. Faults that all servers have: test_server_faults.py."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_kits import lively_model
from fake_server import VOCAB
from hypothesis import given
from hypothesis import strategies as st
from served_engines import LONG, section_of, serving, started

from trainers.cluster.memory import last_of
from trainers.engines.base import EngineDeadError, EngineError, RequestError, Sampling
from trainers.engines.replica import Limits
from trainers.engines.replicas import Replicas
from trainers.engines.sglang.command import server_command
from trainers.engines.sglang.engine import generate_body, read_reply, server_seed


async def test_unused_ids_are_biased_away(folder: Path) -> None:
    async with serving("sglang", folder, unused=[7, 60]) as (server, engine):
        await engine.generate([1, 2, 3], Sampling(max_new_tokens=4))
        (body,) = (body for path, body in server.log if path == "/generate")
    assert body["sampling_params"]["logit_bias"] == {"7": -1e30, "60": -1e30}


@pytest.mark.parametrize(
    ("faults", "wrong"),
    [
        ({"dp_size": 2}, "2 data-parallel replicas"),
        ({"max_req_input_len": 100}, "--context-length 776"),
        ({"missing": ("/server_info",)}, "version: Field required"),
    ],
)
async def test_unsuitable_server_is_refused(folder: Path, faults: dict[str, Any], wrong: str) -> None:
    async with serving("sglang", folder, faults=faults) as (_, engine):
        with pytest.raises(EngineDeadError, match=wrong):
            await engine.generate([1], LONG)


async def test_models_end_token_does_not_end_requests(folder: Path) -> None:
    """Only requested stop tokens end a reply; SGLang also stops at the model's own, and gets a further request."""
    async with serving("sglang", folder, faults={"eos": 10}) as (server, engine):
        made = await engine.generate([1, 2, 3], Sampling(max_new_tokens=12, seed=7))
        assert made.token_ids.tolist() == list(range(3, 15))
        assert made.finish_reason == "length"
        stopped = await engine.generate([1, 2, 3], Sampling(max_new_tokens=12, stop_token_ids=(10,)))
        assert (stopped.token_ids[-1], stopped.finish_reason) == (10, "stop")
        bodies = [body for path, body in server.log if path == "/generate"]
        seeds = [body["sampling_params"]["sampling_seed"] for body in bodies]
        assert seeds[0] == seeds[1] != seeds[2]
        assert len({body["rid"] for body in bodies}) == 3
        assert len({len(body["rid"]) for body in bodies}) == 1  # no name is the beginning of another


async def test_seeds_are_sent_to_servers_honouring_them(folder: Path) -> None:
    async with serving("sglang", folder, faults={"deterministic": False}) as (server, engine):
        await engine.generate([1], Sampling(max_new_tokens=1, seed=3, min_p=0.5))
        assert engine.honours_seeds is False
        (parameters,) = (body["sampling_params"] for path, body in server.log if path == "/generate")
        assert "sampling_seed" not in parameters
        assert parameters["min_p"] == 0.5
    async with serving("sglang", folder) as (server, engine):
        assert engine.honours_seeds is None
        for seed in (3, 3, None, None):
            await engine.generate([1], Sampling(max_new_tokens=1, seed=seed))
        sent = [body["sampling_params"]["sampling_seed"] for path, body in server.log if path == "/generate"]
        assert sent[0] == sent[1]
        assert len(set(sent)) == 3
        with pytest.raises(RequestError, match="min_p"):
            await engine.generate([1], Sampling(max_new_tokens=1, min_p=0.5))


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(0.7, -1, 1e-6), (0.0, 1, 1.0)])
def test_top_k_1_is_not_sent_as_greedy(temperature: float, top_k: int, top_p: float) -> None:
    sampling = Sampling(temperature=temperature, top_k=1)
    body = generate_body([5], sampling, stops=(), room=1, vocab_size=64, seed=None)
    assert (body["sampling_params"]["top_k"], body["sampling_params"]["top_p"]) == (top_k, top_p)


@given(st.integers())
def test_any_seed_maps_to_a_valid_one(seed: int) -> None:
    assert 0 <= server_seed(seed) < 2**63
    assert server_seed(seed) != server_seed(seed + 1)


async def test_abort_overtaking_its_request_is_repeated(folder: Path) -> None:
    async with serving("sglang", folder, faults={"token_s": 0.01}) as (server, engine):
        await engine.ready()
        server.outside = True  # the request waits outside, where an abort does not find it
        task = asyncio.create_task(engine.generate([9], LONG))
        while "/generate" not in server.paths():
            await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while "/abort_request" not in server.paths():
            await asyncio.sleep(0.002)
        server.outside = False
        while engine.stats()["running"]:
            await asyncio.sleep(0.01)
        assert server.paths().count("/abort_request") >= 2


async def test_unrequested_abort_is_an_error(folder: Path) -> None:
    async with serving("sglang", folder) as (server, engine):
        task = asyncio.create_task(engine.generate([9], LONG))
        await started(server)
        await server._abort_request({"abort_all": True})
        with pytest.raises(EngineError, match="aborted the request: Aborted"):
            await task


META = {
    "finish_reason": {"type": "length"},
    "output_token_logprobs": [[-1.0, 3, None], [-1.0, 4, None]],
    "completion_tokens": 2,
    "weight_versions": [{"version": "default", "start": 0, "end": 2}],
}


def answer(**changed: Any) -> dict[str, Any]:
    return {"meta_info": {**META, **changed}}


@pytest.mark.parametrize(
    "garbage",
    [
        {"meta_info": {}},
        answer(output_token_logprobs=None),
        answer(completion_tokens=3),
        answer(output_token_logprobs=[[-1.0, 3, None], [-1.0, VOCAB, None]]),
        answer(output_token_logprobs=[[-1.0, 3, None], [-1.0, -1, None]]),
        answer(output_token_logprobs=[[None, 3, None], [-1.0, 4, None]]),
        answer(output_token_logprobs=[3, 4]),
        answer(finish_reason=None),
        answer(weight_versions=[]),
        answer(weight_versions=[{"version": "default"}]),
        answer(weight_versions=[{"version": "default", "start": 1, "end": 2}]),
    ],
)
def test_invalid_answer_is_an_error(garbage: Any) -> None:
    assert read_reply(answer(), VOCAB).token_ids == [3, 4]
    with pytest.raises(EngineError, match="SGLang server"):
        read_reply(garbage, VOCAB)


@pytest.mark.parametrize("count", [0, 9])
async def test_wrong_number_of_tokens_is_an_error(folder: Path, count: int) -> None:
    made = answer(
        output_token_logprobs=[[-1.0, 1, None]] * count,
        completion_tokens=count,
        weight_versions=[{"version": "default", "start": 0, "end": count}],
    )
    async with serving("sglang", folder, faults={"refuse": {"/generate": [(200, made)]}}) as (_, engine):
        with pytest.raises(EngineError, match="SGLang server .*(without a token|9 tokens where 8)") as caught:
            await engine.generate([1], Sampling(max_new_tokens=8))
        assert not isinstance(caught.value, EngineDeadError)


async def test_changes_are_compared_with_other_hashes(folder: Path) -> None:
    """Checksums of GPUs cannot be computed here, but one that stays equal for a changed weight is noticed."""
    weights = lively_model(seed=1).state_dict()
    changed = {name: value + 1 for name, value in weights.items()}
    lost = "model.layers.0.mlp.down_proj.weight"
    for lose in ((), (lost,)):
        async with serving("sglang", folder) as (server, engine):
            await engine.ready()
            engine._updater.device = "cuda"
            await engine.update_weights(weights, 1)
            server.lose = lose
            if lose:
                with pytest.raises(EngineDeadError, match="down_proj"):
                    await engine.update_weights(changed, 2)
            else:
                await engine.update_weights(changed, 2)


def test_multi_rank_server_gets_its_cores(tmp_path: Path) -> None:
    section = section_of("sglang", {"tensor_parallel_size": 2}, python=sys.executable)
    _, environment = server_command(section, tmp_path, 1234)
    assert len(environment["SGLANG_CPU_OMP_THREADS_BIND"].split("|")) == 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("share", [(), ("--mem-fraction-static", "0.25"), ("--mem-fraction-static=0.25",)])
def test_server_memory_is_bounded_by_requests_or_share(tmp_path: Path, device: str, share: tuple[str, ...]) -> None:
    """The plan counts this memory; by default SGLang takes all free memory, which the learner may need."""
    section = section_of("sglang", {"max_slots": 8, "max_context": 256}, python=sys.executable, server_args=share)
    words, _ = server_command(section, tmp_path, 1234, device=device)
    limit = last_of(words, "--max-total-tokens")
    assert limit == (None if share and device == "cuda" else str(8 * (256 + 8)))
    assert words[-len(share) :] == list(share) or not share


async def test_probe_detects_server_that_does_not_compute(folder: Path) -> None:
    async with serving("sglang", folder) as (server, engine):
        assert await engine.probe() == 0
        server.paused = True
        with pytest.raises(EngineError, match="/health answers 503"):
            await engine.probe()
        # A probe that answers late would end in other words, as one without an answer.
        replicas = Replicas([engine], limits=Limits(probe_interval=0.05, probe_timeout=60.0, stall_timeout=60.1))
        async with asyncio.timeout(100):
            with pytest.raises(EngineDeadError, match="replica 0.*/health answers 503"):
                await replicas.generate([1], LONG)
        await replicas.close()
