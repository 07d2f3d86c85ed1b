"""A teacher that a server holds: both servers' answers, broken connections, and answers that are none."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from chat_styles import tokenizer_of
from tokenizers import normalizers
from trajectories import in_contexts, trajectory_of, turns_of

from trainers.engines import teacher
from trainers.engines.base import EngineError
from trainers.engines.teacher import ServedTeacher, probes
from trainers.trajectory import Trajectory

Answer = Callable[[list[int]], Any]
TOKENIZER = tokenizer_of("llama 3")


def score(prompt: list[int], place: int) -> float:
    """Return a number that depends on all tokens up to a place."""
    return -sum((i + 1) * token for i, token in enumerate(prompt[: place + 1])) / 1000


def likely(prompt: list[int], place: int) -> list[tuple[float, int]]:
    """Return the most likely tokens at a place, in the order of their probabilities."""
    return [(-0.01, 1000 + prompt[place - 1]), (-0.02, 2000 + place)]


def of_vllm(prompt: list[int]) -> Any:
    entries = [
        {str(t): {"logprob": s} for s, t in (*likely(prompt, i), (score(prompt, i), token))}
        for i, token in enumerate(prompt)
        if i
    ]
    return {"choices": [{"prompt_logprobs": [None, *entries]}]}


def of_sglang(prompt: list[int]) -> Any:
    rows = [[None if not i else score(prompt, i), token, None] for i, token in enumerate(prompt)]
    top = [[[s, t, None] for s, t in likely(prompt, i)] if i else None for i in range(len(prompt))]
    return {"meta_info": {"input_token_logprobs": rows, "input_top_logprobs": top}}


@contextmanager
def server(
    kind: str, answer: Answer, broken: int = 0, limit: int = 100, tokenizer: Any = TOKENIZER
) -> Iterator[tuple[str, list[Any]]]:
    """Serve in a thread; the first ``broken`` requests get no answer. Yields the address, and what was requests.

    A prompt and the token that it generates are at most ``limit`` tokens. Without a ``tokenizer`` there is no
    ``/tokenize``.
    """
    requests: list[Any] = []
    left = [broken]

    async def handle(request: web.Request) -> web.Response:
        if left[0]:
            left[0] -= 1
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if request.path == "/get_model_info" and kind == "sglang":
            return web.json_response({"model_path": "m"})
        if request.path == "/v1/models" and kind == "vllm":
            return web.json_response({"data": [{"id": "m", "max_model_len": limit}]})
        if request.path == "/get_server_info" and kind == "sglang":
            return web.json_response({"context_length": limit + 5, "max_req_input_len": limit})
        if request.path == "/tokenize" and tokenizer is not None:
            body = await request.json()
            ids = tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"])
            return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": limit})
        if request.path == {"sglang": "/generate", "vllm": "/v1/completions"}.get(kind):
            body = await request.json()
            requests.append(body)
            prompt = body["prompt" if kind == "vllm" else "input_ids"]
            if len(prompt) + 1 > limit:
                return web.json_response({"error": "too long"}, status=400)
            result = answer(prompt)
            return result if isinstance(result, web.Response) else web.json_response(result)
        return web.json_response({"error": "none"}, status=404)

    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    address: list[str] = []

    async def main() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    started.wait()
    try:
        yield address[0], requests
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def episodes() -> list[Trajectory]:
    turns, starts = in_contexts([(0, 3, 2), (1, 2, 2), (0, 1, 3)])
    several = trajectory_of(turns, token_ids=np.arange(len(turns)) * 3 + 1, segment_starts=np.array(starts, np.int32))
    return [several, trajectory_of(turns_of((4, 2), tail=3)), trajectory_of([])]


@pytest.mark.parametrize(("kind", "answer"), [("vllm", of_vllm), ("sglang", of_sglang)])
def test_tokens_are_scored_in_their_contexts(kind: str, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "_WAIT_S", 0.0)
    with server(kind, answer, broken=2) as (address, requests):
        served = ServedTeacher(address)
        served.meet(99, TOKENIZER)
        requests.clear()
        results = served.logprobs(episodes())
    for item, got in zip(episodes(), results, strict=True):
        expected = []
        for place in item.actions:
            part = next(part for part in item.segments() if part.start <= place < part.stop)
            expected.append(score(item.token_ids[part].tolist(), place - part.start))
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    name = "prompt" if kind == "vllm" else "input_ids"
    assert sorted(len(body[name]) for body in requests) == [4, 6, 9]  # up to the last action token alone
    temperatures = {body.get("sampling_params", body)["temperature"] for body in requests}
    assert temperatures == {1.0}


@pytest.mark.parametrize(("kind", "answer"), [("vllm", of_vllm), ("sglang", of_sglang)])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_most_likely_tokens_are_named(kind: str, answer: Answer, count: int) -> None:
    """vLLM has the prompt's own token among them, which need not be one of the most likely."""
    with server(kind, answer) as (address, requests):
        logprobs, ids, top = ServedTeacher(address, count).top_logprobs(episodes())
    expected = []
    for item in episodes():
        for place in item.actions:
            part = next(part for part in item.segments() if part.start <= place < part.stop)
            prompt, at = item.token_ids[part].tolist(), int(place) - part.start
            rows = likely(prompt, at) + ([(score(prompt, at), prompt[at])] if kind == "vllm" else [])
            expected.append((sorted(rows, reverse=True) + [(0.0, -1)] * count)[:count])
    assert ids.tolist() == [[token for _, token in rows] for rows in expected]
    np.testing.assert_allclose(top, [[logprob for logprob, _ in rows] for rows in expected], rtol=1e-6)
    assert [len(part) for part in logprobs] == [len(item.actions) for item in episodes()]
    name = "prompt_logprobs" if kind == "vllm" else "top_logprobs_num"
    assert {body[name] for body in requests} == {count}


@pytest.mark.parametrize(
    ("kind", "answer", "problem"),
    [
        ("vllm", lambda prompt: {"choices": [{"prompt_logprobs": None}]}, "gave no log-probability for each token"),
        ("vllm", lambda prompt: of_vllm(prompt[:-1]), "gave no log-probability for each token"),
        ("sglang", lambda prompt: of_sglang(prompt[::-1]), "gave no log-probability for each token"),
        ("sglang", lambda prompt: web.json_response({"error": "too long"}, status=400), r"answers 400 \(too long\)"),
        ("other", of_vllm, "is neither vLLM nor SGLang"),
    ],
)
def test_answers_without_scores_are_refused(kind: str, answer: Answer, problem: str) -> None:
    with server(kind, answer) as (address, _), pytest.raises(EngineError, match=problem):
        ServedTeacher(address).meet(99, TOKENIZER)


def test_no_server_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "_WAIT_S", 0.0)
    with pytest.raises(EngineError, match="the teacher does not answer: GET http://127.0.0.1:9/get_model_info"):
        ServedTeacher("http://127.0.0.1:9").meet(99, TOKENIZER)


@pytest.mark.parametrize(("kind", "answer"), [("vllm", of_vllm), ("sglang", of_sglang)])
def test_too_long_context_has_no_scores(kind: str, answer: Answer) -> None:
    with server(kind, answer, limit=9) as (address, requests):
        served = ServedTeacher(address)
        served.meet(8, TOKENIZER)
        with pytest.raises(EngineError, match=r"takes 9 tokens, and engine.max_context=9 needs 10"):
            served.meet(9, TOKENIZER)
        requests.clear()
        results = served.logprobs(episodes())
    name = "prompt" if kind == "vllm" else "input_ids"
    assert sorted(len(body[name]) for body in requests) == [4, 6]  # without the one of 9
    for item, got in zip(episodes(), results, strict=True):
        expected = []
        for place in item.actions:
            (part,) = (part for part in item.segments() if part.start <= place < part.stop)
            last = max(action for action in item.actions if part.start <= action < part.stop)
            expected.append(last + 1 - part.start >= 9)
        assert np.isnan(got).tolist() == expected


@pytest.mark.parametrize(("kind", "answer"), [("vllm", of_vllm), ("sglang", of_sglang)])
@pytest.mark.parametrize("change", ["another end of turn", "another text", "one token more"])
def test_other_tokenizer_is_refused(kind: str, answer: Answer, change: str) -> None:
    """Tokenizers of one vocabulary may differ in their added tokens alone."""
    other: Any = copy.deepcopy(TOKENIZER)
    if change == "another end of turn":
        other = tokenizer_of("chatml")
    elif change == "one token more":
        other.add_tokens(["déjà"])
    else:
        other.backend_tokenizer.normalizer = normalizers.Lowercase()
    problem = r"has another tokenizer than the policy: of .*, token \d+ is \[\d*\]"
    with server(kind, answer, tokenizer=other) as (address, _), pytest.raises(EngineError, match=problem):
        ServedTeacher(address).meet(99, TOKENIZER)


def test_server_without_tokenizer_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with server("vllm", of_vllm, tokenizer=None) as (address, _):
        ServedTeacher(address).meet(99, TOKENIZER)
    (record,) = caplog.records
    assert f"the teacher at {address} is not compared with the policy's" in record.getMessage()
    assert "/tokenize answers 404 (none)" in record.getMessage()


def test_probes_hold_added_tokens_and_parts_of_all() -> None:
    texts = probes(TOKENIZER)
    assert all(name in texts[2] for name in TOKENIZER.get_added_vocab())
    assert len(set(TOKENIZER.encode("".join(texts)))) > 100
