"""Several servers from a configuration: each has the weights, and is replaced or awaited individually."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_sglang import FakeSGLang
from fake_vllm import FakeVLLM
from transformers import PreTrainedModel

from benchmarks.simulation.scripted import Reply, ScriptedEngine
from trainers.builders import SetupError, engines
from trainers.builders.engines import check_engine, engine_of
from trainers.command_line.load import resolve
from trainers.config import PPOConfig
from trainers.engines.base import EngineDeadError, Sampling
from trainers.engines.replicas import Replicas
from trainers.engines.sglang import SGLangEngine
from trainers.engines.vllm.engine import VLLMEngine
from trainers.models.policy import Policy
from trainers.models.tiny import build_model, build_tokenizer
from trainers.rollout.renderer import Renderer

TWO = "base_url=[http://127.0.0.1:1, http://127.0.0.1:2]"


@pytest.fixture(scope="module")
def policy() -> Policy:
    tokenizer = build_tokenizer(["What is 3 + 4?"], vocab_size=300)
    return Policy(build_model(len(tokenizer), hidden=32, layers=1, max_context=256), tokenizer)


def weights_of(model: PreTrainedModel, factor: float) -> dict[str, Any]:
    return {name: value * factor for name, value in model.state_dict().items()}


def configured(*arguments: str) -> PPOConfig:
    config, _ = resolve(["engine.max_context=64", "rollout.max_response_length=8", *arguments], PPOConfig)
    return config


@pytest.mark.parametrize("name", ["vllm", "sglang"])
async def test_lost_external_server_rejoins_when_it_answers(name: str, policy: Policy, tmp_path: Path) -> None:
    vocab = {"vocab_size": policy.model.config.vocab_size}
    servers: list[Any] = [FakeVLLM(described=vocab) if name == "vllm" else FakeSGLang() for _ in range(2)]
    urls = [await server.start() for server in servers]
    options = [f"engine.{name}.verify=false"]
    config = configured(
        *(f"engine.name={name}", f"engine.{name}.base_url=[{', '.join(urls)}]", *options),
        f"trainer.default_local_dir={tmp_path}",
    )
    check_engine(config)
    engine = await engine_of(config, policy, Renderer(policy.tokenizer), version=3)
    reply = Sampling(max_new_tokens=4, ignore_stop=True)
    try:
        assert isinstance(engine, Replicas)
        kind = VLLMEngine if name == "vllm" else SGLangEngine
        assert all(isinstance(replica.engine, kind) for replica in engine._replicas)
        assert engine.version == 3
        async with asyncio.timeout(100):
            await asyncio.gather(*(engine.generate([1, 2], reply, f"s{i}") for i in range(8)))
            await servers[1].stop()
            while engine.stats()["replicas_up"] > 1:
                made = await asyncio.gather(*(engine.generate([1, 2], reply, f"s{i}") for i in range(8)))
                assert all(len(generation.token_ids) == 4 for generation in made)
            await engine.update_weights(weights_of(policy.model, 2.0), 4)
            await servers[1].start(int(urls[1].rpartition(":")[2]))  # its owner restarts it
            while engine.stats()["replicas_up"] < 2:
                await asyncio.sleep(0.02)
        assert [replica.engine.version for replica in engine._replicas] == [4, 4]
        assert engine.stats()["replicas_restarted"] == 1
        made = await asyncio.gather(*(engine.generate([1, 2], reply) for _ in range(8)))
        assert {int(version) for generation in made for version in generation.weight_version} == {4}
        assert engine.stats()["replica1_requests"] > 0
    finally:
        await engine.close()
        for server in servers:
            await server.stop()


@pytest.mark.parametrize("name", ["vllm", "sglang"])
async def test_own_servers_start_and_restart_individually(
    name: str, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripted engines record replica and version of each start."""
    starts: list[tuple[int, int]] = []

    async def scripted(
        config: PPOConfig, policy: Policy, renderer: Renderer, version: int, replica: int, *_: Any
    ) -> Any:
        starts.append((replica, version))
        return ScriptedEngine(lambda call: Reply([7, 8, 9]), vocab_size=300, max_context=64, version=version)

    monkeypatch.setattr(engines, "served_engine", scripted)
    config = configured(f"engine.name={name}", "engine.replicas=3", f"trainer.default_local_dir={tmp_path}")
    engine = await engine_of(config, policy, Renderer(policy.tokenizer), version=2)
    try:
        assert isinstance(engine, Replicas)
        assert sorted(starts) == [(0, 2), (1, 2), (2, 2)]
        await engine.update_weights({}, 5)
        engine._replicas[1].engine.die(RuntimeError("injected"))  # type: ignore[attr-defined]
        async with asyncio.timeout(100):
            while not engine.stats()["replicas_restarted"]:
                await asyncio.gather(*(engine.generate([1, 2], Sampling(max_new_tokens=3)) for _ in range(6)))
        assert sorted(starts) == [(0, 2), (1, 2), (1, 2), (2, 2)]
        assert [replica.engine.version for replica in engine._replicas] == [5, 5, 5]
    finally:
        await engine.close()


async def test_single_own_server_restarts_with_current_weights(policy: Policy, tmp_path: Path) -> None:
    fake = Path(__file__).with_name("fake_sglang.py")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport PYTHONSAFEPATH=\nexec {sys.executable} {fake} "$@"\n')
    python.chmod(0o755)
    config = configured(
        *("engine.name=sglang", f"engine.sglang.python={python}", "engine.sglang.verify=false"),
        "engine.weight_transport=http",
        f"trainer.default_local_dir={tmp_path}",
    )
    engine = await engine_of(config, policy, Renderer(policy.tokenizer), version=2)
    try:
        async with asyncio.timeout(100):
            await engine.update_weights(weights_of(policy.model, 2.0), 3)
            running = asyncio.create_task(engine.generate([1, 2], Sampling(max_new_tokens=60, ignore_stop=True)))
            await asyncio.sleep(0)
            os.kill(engine._replicas[0].engine._server.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            made = await running
        assert len(made.token_ids) == 60
        assert set(made.weight_version) == {3}
        assert engine.stats()["replicas_restarted"] == 1
    finally:
        await engine.close()


async def test_lost_single_external_server_is_fatal(policy: Policy, tmp_path: Path) -> None:
    server = FakeSGLang()
    url = await server.start()
    config = configured(
        *("engine.name=sglang", f"engine.sglang.base_url={url}", "engine.sglang.verify=false"),
        f"trainer.default_local_dir={tmp_path}",
    )
    engine = await engine_of(config, policy, Renderer(policy.tokenizer))
    try:
        await server.stop()
        async with asyncio.timeout(100):
            with pytest.raises(EngineDeadError, match=f"{url} is gone"):
                await engine.generate([1, 2], Sampling(max_new_tokens=4))
    finally:
        await engine.close()
    assert engine._replicas[0].engine._closed  # type: ignore[attr-defined]


async def test_failed_server_closes_all_others(policy: Policy) -> None:
    good = FakeVLLM(described={"vocab_size": policy.model.config.vocab_size})
    bad = FakeVLLM(described={"vocab_size": 1})
    urls = [await server.start() for server in (good, bad)]
    config = configured("engine.name=vllm", f"engine.vllm.base_url=[{', '.join(urls)}]")
    before = asyncio.all_tasks()
    with pytest.raises(SetupError, match=f"{urls[1]}.*a model with 1 tokens"):
        await engine_of(config, policy, Renderer(policy.tokenizer))
    leftover = {task for task in asyncio.all_tasks() - before if "trainers" in str(task.get_coro())}
    assert not leftover
    for server in (good, bad):
        await server.stop()


@pytest.mark.parametrize(
    ("arguments", "engines"),
    [
        (["engine.name=vllm", f"engine.vllm.{TWO}"], 2),
        (["engine.name=sglang", f"engine.sglang.{TWO}"], 2),
        (["engine.name=vllm", "engine.vllm.base_url=http://x"], 1),
        (["engine.name=vllm", "engine.replicas=3"], 3),
        ([], 1),
    ],
)
def test_number_of_engines(arguments: list[str], engines: int) -> None:
    assert configured(*arguments).engine.engines == engines
