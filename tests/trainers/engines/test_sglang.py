"""The SGLang engine against a fake server: requests and faults.

The conformance suite checks its replies and the compatibility with a real server.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_kits import lively_model
from fake_sglang import VOCAB, FakeSGLang, ServerBehavior
from hypothesis import given
from hypothesis import strategies as st

from trainers.cluster.memory import last_of
from trainers.config.engine import SGLangEngineSection, SGLangSection
from trainers.engines.base import EngineDeadError, EngineError, RequestError, Sampling
from trainers.engines.replica import Limits
from trainers.engines.replicas import Replicas
from trainers.engines.sglang import SGLangEngine
from trainers.engines.sglang.command import server_command
from trainers.engines.sglang.engine import generate_body, payload, server_seed
from trainers.engines.transport import LocalSource, plan_of
from trainers.engines.weights import ChecksumRule, Checksums, read_parameters

CONTEXT = 256
LONG = Sampling(max_new_tokens=200, ignore_stop=True)
QUICK: dict[str, Any] = {"health_timeout_s": 30.0, "start_timeout_s": 100.0}


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return dict(lively_model(seed=1).state_dict())


@asynccontextmanager
async def serving(
    folder: Path,
    behavior: ServerBehavior | None = None,
    *,
    version: int = 0,
    unused: Sequence[int] = (),
    transport: Any = "auto",
    bucket_bytes: int = 2**20,
    **options: Any,
) -> AsyncIterator[tuple[FakeSGLang, SGLangEngine]]:
    server = FakeSGLang(behavior)
    url = await server.start()
    sglang = SGLangSection(base_url=(url,), **QUICK | options)
    section = SGLangEngineSection(max_context=CONTEXT, weight_transport=transport, sglang=sglang)
    engine = SGLangEngine(folder, section, version=version, unused_token_ids=unused)
    engine.health_interval_s = 0.05
    engine._updater.bucket_bytes = bucket_bytes
    try:
        async with asyncio.timeout(100):
            yield server, engine
    finally:
        await engine.close()
        await server.stop()


async def started(server: FakeSGLang, count: int = 1, tokens: int = 1) -> None:
    """Wait until ``count`` requests have ``tokens`` tokens."""
    while sum(len(request.tokens) >= tokens for request in server.live.values()) < count:
        await asyncio.sleep(0.002)


async def test_unused_ids_are_biased_away(folder: Path) -> None:
    async with serving(folder, unused=[7, 60]) as (server, engine):
        await engine.generate([1, 2, 3], Sampling(max_new_tokens=4))
        (body,) = (body for path, body in server.log if path == "/generate")
    assert body["sampling_params"]["logit_bias"] == {"7": -1e30, "60": -1e30}


# Versions of weights


async def test_generates_and_takes_weights_in_buckets(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    async with serving(folder, bucket_bytes=2**14) as (server, engine):
        made = await engine.generate([1, 2, 3], Sampling(max_new_tokens=4))
        assert made.token_ids.tolist() == [3, 4, 5, 6]
        np.testing.assert_allclose(made.logprobs, [-0.53, -0.54, -0.55, -0.56])
        assert (made.finish_reason, set(made.weight_version)) == ("length", {0})
        await engine.update_weights(weights, 5)
        for name, value in weights.items():
            assert name == "lm_head.weight" or torch.equal(server.weights[name], value)
        after = await engine.generate([1], Sampling(max_new_tokens=2))
        assert set(after.weight_version) == {5}
        assert server.paths().count("/update_weights_from_tensor") > 2
        assert isinstance(server.weight_version, str)


async def test_versions_of_an_interrupted_request(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    async with serving(folder) as (server, engine):
        task = asyncio.create_task(engine.generate([1], LONG))
        await started(server, tokens=10)
        await engine.update_weights(weights, 5)
        versions = (await task).weight_version
        assert set(versions) == {0, 5}
        assert (np.diff(versions) >= 0).all()
        assert ("/pause_generation", {"mode": "retract"}) in server.log


async def test_weights_of_another_client_are_an_error(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        await engine.ready()
        server.weight_version = "a stranger's"
        with pytest.raises(EngineError, match="a stranger's"):
            await engine.generate([1], Sampling(max_new_tokens=2))


@pytest.mark.parametrize(
    ("behavior", "wrong"),
    [
        (ServerBehavior(dp_size=2), "2 data-parallel replicas"),
        (ServerBehavior(max_req_input_len=100), "--context-length 264"),
        (ServerBehavior(missing=("/server_info",)), "version: Field required"),
    ],
)
async def test_unsuitable_server_is_refused(folder: Path, behavior: ServerBehavior, wrong: str) -> None:
    async with serving(folder, behavior) as (_, engine):
        with pytest.raises(EngineDeadError, match=wrong):
            await engine.generate([1], LONG)


# Requests


async def test_models_end_token_does_not_end_requests(folder: Path) -> None:
    """Only requested stop tokens end a reply; SGLang also stops at the model's own, and gets a further request."""
    async with serving(folder, ServerBehavior(eos=10)) as (server, engine):
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
    async with serving(folder, ServerBehavior(deterministic=False)) as (server, engine):
        await engine.generate([1], Sampling(max_new_tokens=1, seed=3, min_p=0.5))
        assert engine.honours_seeds is False
        (parameters,) = (body["sampling_params"] for path, body in server.log if path == "/generate")
        assert "sampling_seed" not in parameters
        assert parameters["min_p"] == 0.5
    async with serving(folder) as (server, engine):
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


@pytest.mark.parametrize("moment", [0.0, 0.005, 0.03])
async def test_only_the_cancelled_request_is_aborted(folder: Path, moment: float) -> None:
    async with serving(folder) as (server, engine):
        await engine.ready()
        siblings = [asyncio.create_task(engine.generate([i], LONG)) for i in range(3)]
        task = asyncio.create_task(engine.generate([9], LONG))
        await asyncio.sleep(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        made = await asyncio.gather(*siblings)
        assert [len(generation.token_ids) for generation in made] == [200] * 3
        assert engine.stats()["running"] == 0
        assert not server.live


async def test_abort_overtaking_its_request_is_repeated(folder: Path) -> None:
    async with serving(folder, ServerBehavior(token_s=0.01)) as (server, engine):
        await engine.ready()
        server._go.clear()  # the request waits outside, where an abort does not find it
        task = asyncio.create_task(engine.generate([9], LONG))
        while "/generate" not in server.paths():
            await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while "/abort_request" not in server.paths():
            await asyncio.sleep(0.002)
        server._go.set()
        while engine.stats()["running"]:
            await asyncio.sleep(0.01)
        assert server.paths().count("/abort_request") >= 2


async def test_unrequested_abort_is_an_error(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        task = asyncio.create_task(engine.generate([9], LONG))
        await started(server)
        await server._abort_request({"abort_all": True})
        with pytest.raises(EngineError, match="aborted the request: Aborted"):
            await task


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((400, {"error": {"message": "too long", "code": 400}}), "too long"),
        ((400, {"error": "unknown field"}), "unknown field"),
        ((400, "plain words"), "plain words"),
        ((400, ""), "nothing"),
        ((400, {"strange": 1}), "strange"),
    ],
)
async def test_errors_of_every_shape_are_quoted(folder: Path, answer: Any, text: str) -> None:
    async with serving(folder, ServerBehavior(refuse={"/generate": [1, answer]})) as (_, engine):
        with pytest.raises(RequestError, match=text):
            await engine.generate([1], LONG)
        assert len((await engine.generate([1], LONG)).token_ids) == 200


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
        "<html>gateway</html>",
        [],
        [{}, {}],
        {},
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
        answer(weight_versions=[{"version": "a stranger's", "start": 0, "end": 2}]),
        answer(output_token_logprobs=[], completion_tokens=0),
        answer(
            output_token_logprobs=[[-1.0, 1, None]] * 9,
            completion_tokens=9,
            weight_versions=[{"version": "default", "start": 0, "end": 9}],
        ),
    ],
)
async def test_invalid_answers_do_not_stop_the_engine(folder: Path, garbage: Any) -> None:
    async with serving(folder, ServerBehavior(garbage=garbage)) as (server, engine):
        with pytest.raises(EngineError, match="SGLang server") as caught:
            await engine.generate([1], Sampling(max_new_tokens=8))
        assert not isinstance(caught.value, EngineDeadError)
        server.behavior.garbage = None
        assert len((await engine.generate([1], Sampling(max_new_tokens=8))).token_ids) == 8


# Updates


@pytest.mark.parametrize("transport", ["http", "disk"])
async def test_weights_arrive_complete(
    folder: Path, weights: dict[str, torch.Tensor], transport: Any, tmp_path: Path
) -> None:
    async with serving(folder, transport=transport, update_folder=str(tmp_path)) as (server, engine):
        for version in (1, 2):
            await engine.update_weights(weights, version)
        assert all(torch.equal(server.weights[n], v) for n, v in weights.items() if n != "lm_head.weight")
        assert engine.version == 2
    assert list(tmp_path.iterdir()) == []


def _failures(where: str) -> ServerBehavior:
    return ServerBehavior(refuse={where: [1, (400, {"success": False, "message": "injected"})]})


@pytest.mark.parametrize("where", ["/pause_generation", "/begin_weight_update"])
async def test_update_refused_early_leaves_the_old_weights(
    folder: Path, weights: dict[str, torch.Tensor], where: str
) -> None:
    behavior = _failures(where)
    behavior.refuse[where][0] = 2  # opening a session is tried again once, after closing what may have been left open
    async with serving(folder, behavior) as (server, engine):
        with pytest.raises(EngineError, match="injected") as caught:
            await engine.update_weights(weights, 1)
        assert not isinstance(caught.value, EngineDeadError)
        assert (engine.version, server.weights) == (0, {})
        assert set((await engine.generate([1], LONG)).weight_version) == {0}
        behavior.refuse.clear()
        await engine.update_weights(weights, 1)
        assert set((await engine.generate([1], LONG)).weight_version) == {1}


@pytest.mark.parametrize("where", ["/update_weights_from_tensor", "/end_weight_update", "/flush_cache"])
async def test_partially_failed_update_is_repeated(folder: Path, weights: dict[str, torch.Tensor], where: str) -> None:
    async with serving(folder, _failures(where), bucket_bytes=2**14) as (server, engine):
        running = asyncio.create_task(engine.generate([1], LONG))
        await started(server)
        await engine.update_weights(weights, 1)
        assert all(torch.equal(server.weights[n], v) for n, v in weights.items() if n != "lm_head.weight")
        assert len((await running).token_ids) == 200
        assert server.paused is None


@pytest.mark.parametrize("fault", ["refuses", "loses"])
async def test_mixed_weights_are_never_sampled(folder: Path, weights: dict[str, torch.Tensor], fault: str) -> None:
    """The engine ends if the server refuses the rest, or silently drops a tensor."""
    behavior = ServerBehavior(lose=("model.layers.1.mlp.up_proj.weight",)) if fault == "loses" else ServerBehavior()
    async with serving(folder, behavior, bucket_bytes=2**14) as (server, engine):
        await engine.ready()
        if fault == "refuses":
            behavior.refuse["/update_weights_from_tensor"] = [99, (500, "out of memory")]
        running = asyncio.create_task(engine.generate([1], Sampling(max_new_tokens=200, ignore_stop=True)))
        await started(server)
        word = "out of memory" if fault == "refuses" else r"gate_up_proj\.weight"
        with pytest.raises(EngineDeadError, match=f"mixture.*{word}"):
            await engine.update_weights(weights, 1)
        with pytest.raises(EngineDeadError, match="mixture"):
            await running
        with pytest.raises(EngineDeadError, match="mixture"):
            await engine.generate([1], LONG)
        assert server.paused == "retract"


async def test_open_session_of_a_crashed_client_is_closed(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    async with serving(folder) as (server, engine):
        server.in_session = True
        await engine.update_weights(weights, 1)
        assert not server.in_session


async def test_cancelled_update_in_progress_is_completed(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    async with serving(folder) as (server, engine):
        await engine.ready()
        task = asyncio.create_task(engine.update_weights(weights, 1))
        while "/pause_generation" not in server.paths():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = asyncio.create_task(engine.generate([1], LONG))
        await engine.update_weights(weights, 3)  # waits for the cancelled update
        assert set((await after).weight_version) == {3}
        turns = [path for path in server.paths() if "generation" in path]
        assert turns == ["/pause_generation", "/continue_generation"] * 2
        waits = asyncio.create_task(engine.generate([1], LONG))
        await started(server)
        withdrawn = asyncio.create_task(engine.update_weights(weights, 4, "wait"))
        await asyncio.sleep(0.05)
        withdrawn.cancel()
        await asyncio.gather(withdrawn, return_exceptions=True)
        await waits
        assert engine.version == 3


async def test_changes_are_compared_with_other_hashes(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Checksums of GPUs cannot be computed here, but one that stays equal for a changed weight is noticed."""
    changed = {name: value + 1 for name, value in weights.items()}
    lost = "model.layers.0.mlp.down_proj.weight"
    for lose in ((), (lost,)):
        async with serving(folder) as (server, engine):
            await engine.ready()
            engine._updater.device = "cuda"
            await engine.update_weights(weights, 1)
            server.behavior.lose = lose
            if lose:
                with pytest.raises(EngineDeadError, match="down_proj"):
                    await engine.update_weights(changed, 2)
            else:
                await engine.update_weights(changed, 2)


def test_buckets_cover_all_tensors_within_the_limit(weights: dict[str, torch.Tensor]) -> None:
    specs = LocalSource.of(weights).specs
    for limit in (1, 5000, 20_000, 10**9):
        plan = plan_of(specs, limit)
        assert [spec for bucket in plan for spec in bucket] == list(specs)
        assert all(len(bucket) == 1 or sum(spec.nbytes for spec in bucket) <= limit for bucket in plan)
    slice_ = torch.zeros(10**6)[:10]
    assert len(payload([("x", slice_)])) < 10_000  # without what it was cut from


def test_parameters_match_the_checkpoint(folder: Path, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    parameters = read_parameters(folder, tied=True, kv_heads=2)
    parameters.check(weights)
    parameters.check(LocalSource.of(weights, {"lm_head.weight"}).specs)
    with pytest.raises(ValueError, match=r"missing model\.embed_tokens\.weight"):
        parameters.check(LocalSource.of(weights, {"model.embed_tokens.weight"}).specs)
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(ValueError, match="no safetensors"):
        read_parameters(tmp_path, tied=True, kv_heads=2)
    with pytest.raises(ValueError, match="has no"):
        read_parameters(tmp_path / "nowhere", tied=True, kv_heads=2)


def checksums_of(weights: dict[str, torch.Tensor], rule: ChecksumRule) -> dict[str, tuple[Any, ...]]:
    sums = Checksums(rule)
    for name, value in weights.items():
        sums.add(name, value)
    return sums.result()


@pytest.mark.parametrize("kind", ["bits", "sha256"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_have_checksums_of_their_parts(weights: dict[str, torch.Tensor], ranks: int, kind: Any) -> None:
    rule = ChecksumRule(kind, ranks, kv_heads=2)
    sent = {name: value for name, value in weights.items() if name != "lm_head.weight"}
    sums = checksums_of(sent, rule)
    assert len(sums) == len(sent) - 2 * (2 + 2 + 1)  # q, k, v with biases; gate, up; 2 layers
    assert {len(per_rank) for per_rank in sums.values()} == {ranks}
    assert checksums_of(dict(reversed(sent.items())), rule) == sums  # in whatever order they come
    down, keys = "model.layers.0.mlp.down_proj.weight", "model.layers.0.self_attn.k_proj.weight"
    changed = {**sent, down: sent[down].clone(), keys: sent[keys].clone()}
    changed[down][:, -1] += 1  # the last rank's column
    changed[keys][0] += 1  # the first head's row
    after = checksums_of(changed, rule)
    fused = keys.replace("k_proj", "qkv_proj")
    differ = {name: [a != b for a, b in zip(sums[name], after[name], strict=True)] for name in sums}
    assert {name for name, per_rank in differ.items() if any(per_rank)} == {down, fused}
    assert differ[down] == [rank == ranks - 1 for rank in range(ranks)]
    assert differ[fused] == [rank < max(1, ranks // 2) for rank in range(ranks)]


@pytest.mark.parametrize("kind", ["bits", "sha256"])
def test_checksums_include_vocabulary_padding(kind: Any) -> None:
    odd = {"model.embed_tokens.weight": torch.ones(65, 3)}
    filled = {"model.embed_tokens.weight": torch.cat([torch.ones(65, 3), torch.zeros(63, 3)])}
    rule = ChecksumRule(kind, 2)
    assert checksums_of(odd, rule) == checksums_of(filled, rule)


def test_multi_rank_server_gets_its_cores(tmp_path: Path) -> None:
    section = SGLangEngineSection(tensor_parallel_size=2, sglang=SGLangSection(python=sys.executable))
    _, environment = server_command(section, tmp_path, 1234)
    assert len(environment["SGLANG_CPU_OMP_THREADS_BIND"].split("|")) == 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("share", [(), ("--mem-fraction-static", "0.25"), ("--mem-fraction-static=0.25",)])
def test_server_memory_is_bounded_by_requests_or_share(tmp_path: Path, device: str, share: tuple[str, ...]) -> None:
    """The plan counts this memory; by default SGLang takes all free memory, which the learner may need."""
    sglang = SGLangSection(python=sys.executable, server_args=share)
    section = SGLangEngineSection(max_slots=8, max_context=256, sglang=sglang)
    words, _ = server_command(section, tmp_path, 1234, device=device)
    limit = last_of(words, "--max-total-tokens")
    assert limit == (None if share and device == "cuda" else str(8 * (256 + 8)))
    assert words[-len(share) :] == list(share) or not share


# Failures of the server


async def test_lost_server_fails_requests_at_once(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    async with serving(folder) as (server, engine):
        tasks = [asyncio.create_task(engine.generate([i], LONG)) for i in range(4)]
        await started(server, 4)
        update = asyncio.create_task(engine.update_weights(weights, 1, "wait"))
        await asyncio.sleep(0)
        await server.stop()
        async with asyncio.timeout(100):
            results = await asyncio.gather(*tasks, update, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) and "is gone" in str(result) for result in results)


async def test_hanging_server_is_noticed_within_seconds(folder: Path) -> None:
    async with serving(folder, health_timeout_s=1.0) as (server, engine):
        await engine.ready()
        task = asyncio.create_task(engine.generate([1], LONG))
        await started(server)
        server.hung = True
        server.behavior.token_s = 3600
        async with asyncio.timeout(100):
            with pytest.raises(EngineDeadError, match=r"is gone: GET .*no answer within"):
                await task
        server.hung = False


async def test_probe_detects_server_that_does_not_compute(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        assert await engine.probe() == 0
        server.paused = "in_place"
        with pytest.raises(EngineError, match="/health answers 503"):
            await engine.probe()
        replicas = Replicas([engine], limits=Limits(probe_interval=0.05, probe_timeout=0.05, stall_timeout=0.2))
        async with asyncio.timeout(100):
            with pytest.raises(EngineDeadError, match="replica 0.*/health answers 503"):
                await replicas.generate([1], LONG)
        await replicas.close()


async def test_broken_connection_costs_one_retry(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        await engine.ready()
        handlers = 0

        async def break_once(body: dict[str, Any]) -> Any:
            nonlocal handlers
            handlers += 1
            if handlers == 1:
                raise asyncio.CancelledError  # aiohttp drops the connection without an answer
            return await FakeSGLang._generate(server, body)

        server._generate = break_once  # type: ignore[method-assign]
        assert len((await engine.generate([1], LONG)).token_ids) == 200
        assert handlers == 2


async def test_close_aborts_requests_on_external_server(folder: Path) -> None:
    async with serving(folder) as (server, engine):
        tasks = [asyncio.create_task(engine.generate([i], LONG)) for i in range(4)]
        await started(server, 4)
        await engine.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) and "closed" in str(result) for result in results)
        assert not server.live
