"""The reward service on simulated time: batches, cache, failures, a backend that goes down and comes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_time import simulated

from textenvs.messages import assistant, user
from trainers.config.reward_model import RewardModelSection
from trainers.rewards import BackendError, RewardService, ScoringRequest, Traits, UnscoredError


def request(text: str, **fields: Any) -> ScoringRequest:
    return ScoringRequest((user("?"), assistant(text)), **fields)


def truth(request: ScoringRequest) -> float:
    """Return the score of a request: a function of its text alone."""
    return random.Random(request.messages[-1]["content"]).random()


class Model:
    """A backend that takes ``base + per_request * n`` seconds, and plays ``script`` first."""

    def __init__(self, base: float = 1.0, per_request: float = 0.0, **traits: Any) -> None:
        self.base, self.per_request, self.traits = base, per_request, Traits(**traits)
        self.batches: list[list[str]] = []
        self.script: Callable[[Sequence[ScoringRequest]], Any] = lambda requests: None
        self.up = True
        self.closed = 0
        self.running = self.most_running = 0

    async def score(self, requests: Sequence[ScoringRequest]) -> Any:
        self.batches.append([request.messages[-1]["content"] for request in requests])
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.base + self.per_request * len(requests))
            if not self.up:
                raise ConnectionError("connection refused")
            scripted = self.script(requests)
            return [truth(request) for request in requests] if scripted is None else scripted
        finally:
            self.running -= 1

    async def healthy(self) -> bool:
        return self.up

    async def close(self) -> None:
        self.closed += 1


def service(model: Model, **options: Any) -> RewardService:
    return RewardService({"m": model}, {"m": RewardModelSection(**options)})


async def ask(door: RewardService, *requests: ScoringRequest) -> list[Any]:
    return await asyncio.gather(*(door.score("m", request) for request in requests), return_exceptions=True)


def now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------- batches


@simulated
async def test_successive_requests_are_batched() -> None:
    model = Model(base=0.2)
    async with service(model, max_batch_size=32, max_wait_s=0.05) as door:

        async def late(i: int) -> Any:
            await asyncio.sleep(0.001 * i)
            return await door.score("m", request(str(i)))

        began = now()
        scores = await asyncio.gather(*(late(i) for i in range(64)))
        assert now() - began == pytest.approx(0.031 + 2 * 0.2, abs=0.01), "two full batches, one after the other"
        assert list(scores) == [truth(request(str(i))) for i in range(64)]
        assert [len(batch) for batch in model.batches] == [32, 32]
        stats = door.stats()
        assert stats["m/batch_size"] == 32
        assert stats["m/busy_s"] == pytest.approx(0.4)


@simulated
async def test_lone_request_waits_at_most_max_wait() -> None:
    async with service(Model(base=1.0), max_wait_s=0.5) as door:
        began = now()
        await door.score("m", request("alone"))
        assert now() - began == pytest.approx(1.5)
        assert door.stats()["m/wait_s"] == pytest.approx(0.5)


@simulated
async def test_concurrent_batches_and_back_pressure() -> None:
    model = Model(concurrency=3, queue_size=4)
    async with service(model, max_batch_size=2, max_wait_s=0.0) as door:
        answers = asyncio.ensure_future(ask(door, *(request(str(i)) for i in range(40))))
        for _ in range(20):
            await asyncio.sleep(0.25)
            assert door.stats()["m/waiting"] <= 4
        assert all(isinstance(s, float) for s in await answers)
        assert model.most_running == 3


@simulated
async def test_tokens_limit_a_batch() -> None:
    model = Model()
    async with service(model, max_batch_tokens=8, max_wait_s=0.1) as door:  # two of four just fit
        four, long = [str(i) * 15 for i in range(4)], "x" * 400  # 4 tokens each with the "?", and 100
        await ask(door, *map(request, four), request(long))
    assert model.batches == [four[:2], four[2:], [long]]


# ---------------------------------------------------------------- cache


@simulated
async def test_equal_requests_are_computed_once() -> None:
    model = Model()
    async with service(model, cache_size=2) as door:
        first = await ask(door, *[request("a")] * 5, request("b"))
        assert model.batches == [["a", "b"]]
        assert door.stats()["m/joined"] == 4
        assert await ask(door, request("b"), request("a")) == [first[-1], first[0]]
        assert door.stats()["m/cache_hits"] == 2
        await ask(door, request("c"))
        await ask(door, request("a"), request("c"))
        assert len(model.batches) == 2
        await ask(door, request("b"))
        assert model.batches[-1] == ["b"], "the one used longest ago was forgotten"


def test_every_field_changes_the_key() -> None:
    base = {"turn": 1, "data_source": "x", "ground_truth": "7"}
    keys = {request("a", **base).key()} | {
        request("a", **base | change).key()
        for change in ({"turn": 2}, {"turn": None}, {"data_source": "y"}, {"ground_truth": "8"})
    }
    assert len(keys | {request("b", **base).key()}) == 6
    assert request("a", **base).key() == request("a", **base).key()


@simulated
async def test_cancelled_request_is_dropped_without_its_joiners() -> None:
    model = Model()
    async with service(model, max_batch_size=1, max_wait_s=0.0) as door:
        first, leaving, joined, withdrawn = (
            asyncio.ensure_future(door.score("m", request(text))) for text in ("1", "2", "2", "3")
        )
        await asyncio.sleep(0.5)
        leaving.cancel()
        withdrawn.cancel()
        await asyncio.gather(first, joined)
        await asyncio.sleep(5)
        assert model.batches == [["1"], ["2"]]
        assert await door.score("m", request("3")) == truth(request("3"))


# ---------------------------------------------------------------- failures


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 12)), max_size=40),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 5)), max_size=3),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    st.lists(st.booleans(), max_size=10),
)
@simulated
async def test_scores_are_independent_of_batching_and_faults(arrivals, outages, size, concurrency, remembers, failing):
    """Batched or single, cached or not, with outages of the backend and failing batches."""
    fails = iter(failing)
    model = Model(base=0.3, per_request=0.1, concurrency=concurrency)

    def script(requests: Sequence[ScoringRequest]) -> Any:
        if next(fails, False):
            raise RuntimeError("out of memory")

    model.script = script

    async def weather() -> None:
        for after, long in outages:
            await asyncio.sleep(after)
            model.up = False
            await asyncio.sleep(long)
            model.up = True

    async def client(after: float, text: int) -> None:
        await asyncio.sleep(after)
        assert await door.score("m", request(str(text))) == truth(request(str(text)))

    options = {"max_batch_size": size, "cache_size": 100 * remembers, "retries": 20}
    async with service(model, **options) as door:
        await asyncio.gather(weather(), *(client(*arrival) for arrival in arrivals))
        assert door.stats()["m/waiting"] == 0
        assert door.stats()["m/unscored"] == 0
    assert all(len(batch) <= size for batch in model.batches)
    if remembers:
        done = door.stats()
        assert done["m/cache_hits"] + done["m/joined"] == len(arrivals) - len({text for _, text in arrivals})


@simulated
async def test_breaking_request_fails_alone() -> None:
    model = Model()

    def script(requests: Sequence[ScoringRequest]) -> Any:
        if any(item.messages[-1]["content"] == "poison" for item in requests):
            raise RuntimeError("tensor of the wrong shape")

    model.script = script
    texts = [*map(str, range(15)), "poison"]
    async with service(model, retries=1) as door:
        *good, bad = await ask(door, *map(request, texts))
        assert list(good) == [truth(request(text)) for text in texts[:-1]]
        assert isinstance(bad, UnscoredError)
        assert bad.cause == "failed"
        assert "wrong shape" in str(bad)
        assert "2 times" in str(bad)


@simulated
async def test_single_failure_is_retried_alone() -> None:
    model = Model()
    answers = iter([[0.5, BackendError("empty answer"), 0.25], [0.75]])
    model.script = lambda requests: next(answers)
    async with service(model) as door:
        assert await ask(door, *map(request, "abc")) == [0.5, 0.75, 0.25]
    assert model.batches == [["a", "b", "c"], ["b"]]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (1.5, "outside of 0 to 1"),
        ({"score": 0.5}, "finite number"),
        ("great", "finite number"),
        (True, "finite number"),
        (None, "finite number"),
    ],
)
@simulated
async def test_nonsense_is_no_score(result: Any, why: str) -> None:
    model = Model(low=0.0, high=1.0)
    model.script = lambda requests: [result] * len(requests)
    async with service(model) as door:
        (error,) = await ask(door, request("a"))
        assert isinstance(error, UnscoredError)
        assert error.cause == "nonsense"
        assert why in str(error)
        assert door.stats()["m/unscored"] == 1
        model.script = lambda requests: None
        assert await ask(door, request("a")) == [truth(request("a"))], "and it is not cached"


@simulated
async def test_wrong_number_of_scores_fails_the_batch() -> None:
    model = Model()
    model.script = lambda requests: [0.5] if len(requests) > 1 else None
    async with service(model) as door:
        assert list(await ask(door, *map(request, "ab"))) == [truth(request(t)) for t in "ab"]


@simulated
async def test_hanging_backend_is_given_up() -> None:
    model = Model(base=1e6)
    async with service(model, timeout_s=10.0, retries=1) as door:
        (error,) = await ask(door, request("a"))
        assert isinstance(error, UnscoredError)
        assert "longer than 10 s" in str(error)
        assert now() == pytest.approx(20.0, abs=0.1)


@simulated
async def test_thirty_seconds_of_outage_cost_thirty_seconds() -> None:
    model = Model(base=0.1)
    async with service(model, max_batch_size=4) as door:
        model.up = False

        async def recover() -> None:
            await asyncio.sleep(30)
            model.up = True

        scores, _ = await asyncio.gather(ask(door, *(request(str(i)) for i in range(20))), recover())
        assert list(scores) == [truth(request(str(i))) for i in range(20)]
        assert 30 < now() < 45
        assert 25 < door.stats()["m/down_s"] < 45
        assert len(model.batches) < 20, "it was not hammered while it was down"


@simulated
async def test_patience_ends() -> None:
    model = Model(base=0.1)
    model.up = False
    async with service(model, max_batch_size=2, patience_s=60.0) as door:
        errors = await ask(door, *(request(str(i)) for i in range(6)))
        assert {error.cause for error in errors} == {"unavailable"}
        assert now() == pytest.approx(60.0, abs=1.0)
        model.up = True
        await asyncio.sleep(15)
        assert await door.score("m", request("again")) == truth(request("again"))


@simulated
async def test_only_downtime_counts_against_patience() -> None:
    model = Model(base=10.0)
    async with service(model, max_batch_size=1, patience_s=60.0) as door:
        answers = asyncio.ensure_future(ask(door, *(request(str(i)) for i in range(20))))
        await asyncio.sleep(95)  # most have waited longer than that for their turn
        model.up = False
        await asyncio.sleep(30)
        model.up = True
        assert list(await answers) == [truth(request(str(i))) for i in range(20)]


@simulated
async def test_close_fails_waiters_and_closes_backend_once() -> None:
    model = Model(base=100.0, queue_size=1)
    door = service(model, max_batch_size=1)
    answers = asyncio.ensure_future(ask(door, *map(request, "abcd")))
    await asyncio.sleep(1)
    await door.close()
    assert [error.cause for error in await answers] == ["closed"] * 4
    await door.close()
    assert model.closed == 1
    with pytest.raises(UnscoredError, match="closed"):
        await door.score("m", request("e"))


# ---------------------------------------------------------------- settings


async def test_unknown_models_are_named() -> None:
    with pytest.raises(ValueError, match="at least one"):
        RewardService({}, {})
    with pytest.raises(ValueError, match="'judge'"):
        RewardService({"m": Model()}, {"m": RewardModelSection(), "judge": RewardModelSection()})
    with pytest.raises(ValueError, match="no reward model 'judge'"):
        await service(Model()).score("judge", request("a"))
