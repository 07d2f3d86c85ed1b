"""The engine for vLLM alone, against a fake server. Faults that all servers have: test_server_faults.py."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from engine_kits import lively_model
from served_engines import section_of, serving
from some_adapters import adapted, adapter_of

from trainers.engines.base import EngineDeadError, EngineError, RequestError, Sampling
from trainers.engines.vllm.command import server_command
from trainers.engines.vllm.engine import read_metrics, read_reply
from trainers.engines.vllm.versions import RELEASES

NAME = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"missing": ("/is_sleeping",)}, "VLLM_SERVER_DEV_MODE=1"),
        ({"missing": ("/collective_rpc",)}, "VLLM_SERVER_DEV_MODE=1"),
        ({"extension": False}, r"--worker-extension-cls trainers\.engines\.vllm\.server\.extension"),
        ({"described": {"sampler": False}}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"described": {"transfer": False}}, "--weight-transfer-config"),
        ({"described": {"reads_prompts": False}}, "--no-enable-chunked-prefill --max-num-batched-tokens 4096"),
        ({"details": False}, "--enable-prompt-tokens-details"),
        ({"described": {"vocab_size": 65}}, "a model with 65 tokens"),
        ({"described": {"max_context": 700}}, "--max-model-len 768"),
    ],
)
async def test_wrong_server_options_name_the_right_ones(folder: Path, faults: dict[str, Any], message: str) -> None:
    async with serving("vllm", folder, faults=faults) as (server, engine):
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
    section = section_of("vllm", {"tensor_parallel_size": 2, "threads": 3}, python=sys.executable, args=args)
    command, environment = server_command(section, Path("m"), 1234)
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


@pytest.mark.parametrize(("python", "keeps"), [(None, True), (sys.executable, True), ("/bin/python3", False)])
def test_server_of_this_python_gets_its_packages(
    monkeypatch: pytest.MonkeyPatch, python: str | None, keeps: bool
) -> None:
    """vLLM may be in a folder of PYTHONPATH; another environment must not get this one's packages."""
    monkeypatch.setenv("PYTHONPATH", "/packages")
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(__spec__=object()))
    _, environment = server_command(section_of("vllm", {}, python=python), Path("m"), 1234)
    first, *rest = environment["PYTHONPATH"].split(os.pathsep)
    assert Path(first, "trainers", "engines").is_dir()
    assert rest == (["/packages"] if keeps else [])


async def test_server_left_mid_update_is_recovered(folder: Path) -> None:
    async with serving("vllm", folder) as (server, engine):
        server.in_session = server.paused = server.asleep = True
        made = await engine.generate([1, 2], Sampling(max_new_tokens=3))
        assert (made.token_ids.tolist(), made.weight_version.tolist()) == ([2, 3, 4], [0, 0, 0])


@pytest.mark.parametrize(
    ("unused", "spans"),
    [((), []), ((5,), [[5, 6]]), ((0, 1, 2, 7, 9, 10), [[0, 3], [7, 8], [9, 11]]), ((*range(40, 64),), [[40, 64]])],
)
async def test_workers_get_the_unused_ids(folder: Path, unused: tuple[int, ...], spans: list[list[int]]) -> None:
    async with serving("vllm", folder, unused=unused) as (server, engine):
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
    made = read_reply(body_of([span("a:4", 0, 1), span("a:7", 1, 3)]), RELEASES.choose("0.32"))
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
        read_reply(body, RELEASES.choose("0.32"))


def test_counters_are_read_from_metrics() -> None:
    text = (
        "# HELP vllm:num_preemptions_total x\n"
        'vllm:num_preemptions_total{engine="0",model_name="a } b"} 3.0\n'
        'vllm:num_preemptions_total{engine="1",model_name="a } b"} 4.0\n'
        'vllm:num_preemptions_created{engine="0"} 1.7e9\nvllm:kv_cache_usage_perc{engine="0"} 0.25\ngarbage{ x\n'
    )
    assert read_metrics(text) == {"preemptions": 7.0, "kv_use": 0.25}
    assert read_metrics("<html>") == {}


async def test_base_of_adapters_is_sent_once(folder: Path) -> None:
    state = lively_model().state_dict()
    async with serving("vllm", folder) as (server, engine):
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


async def test_fused_experts_are_compared_by_their_sum(folder: Path) -> None:
    """Their names differ, so only the total sum can be compared, for a single worker."""
    new = lively_model(seed=1).state_dict()
    for lose in ((), (NAME,)):
        async with serving("vllm", folder, faults={"fused": {"down_proj": "experts_w2"}, "lose": lose}) as (
            server,
            engine,
        ):
            if lose:
                with pytest.raises(EngineDeadError, match=r"does not have the weights .*down_proj\.weight"):
                    await engine.update_weights(new, 1)
            else:
                await engine.update_weights(new, 1)


async def test_unsupported_requests_are_refused(folder: Path) -> None:
    async with serving("vllm", folder) as (_, engine):
        with pytest.raises(RequestError, match=r"below 0\.01"):
            await engine.generate([1], Sampling(temperature=0.009))
