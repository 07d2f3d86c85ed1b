"""A judge behind the service: strict verdicts, one retry after prose, and no invented 0."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_service import FakeService, status

from textenvs.chat import close_clients
from textenvs.messages import assistant, user
from trainers.config.reward_model import JudgeSection, RewardModelSection
from trainers.rewards import RewardService, ScoringRequest, UnscoredError
from trainers.rewards.backends.judge import JudgeBackend

TALK = (user("What is 2+2?"), assistant("4"), user("Sure?"), assistant("Yes."), user("Thanks."))


def verdict(score: Any) -> Callable[[dict], dict]:
    """Return a function that answers any request with a well-formed verdict."""
    return lambda body: {"data_code": code_of(body), "reasons": "r", "score": score}


def code_of(body: dict) -> str:
    match = re.search(r"<data (\w+)>", body["messages"][-1]["content"])
    assert match is not None
    return match[1]


def data_of(body: dict) -> dict[str, Any]:
    return json.loads(body["messages"][-1]["content"].split("\n")[1])


async def score_all(judge: JudgeBackend, *requests: ScoringRequest, **options: Any) -> list[Any]:
    async with RewardService({"j": judge}, {"j": RewardModelSection(**options)}) as service:
        return await asyncio.gather(*(service.score("j", request) for request in requests), return_exceptions=True)


def judge_of(service: FakeService, **options: Any) -> JudgeBackend:
    chat = {"max_retries": 1, "timeout_s": 60.0}
    judge = JudgeBackend(JudgeSection(model="judge", base_url=service.url, chat=chat, **options))
    judge.traits = replace(judge.traits, probe_s=0.02)
    return judge


@pytest.fixture(autouse=True)
async def clients():
    yield
    await close_clients()


async def test_verdict_is_score_of_conversation_or_turn() -> None:
    with FakeService(verdict(0.25)) as service:
        judge = judge_of(service)
        assert await score_all(judge, ScoringRequest(TALK), ScoringRequest(TALK, turn=0)) == [0.25] * 2
        lengths = sorted(len(data_of(body)["conversation"]) for body in service.requests)
        assert lengths == [2, 5]
        assert "from 0 to 1" in service.requests[0]["messages"][0]["content"]
        assert all(body["temperature"] == 0 for body in service.requests)


@pytest.mark.parametrize(
    "prose",
    ["I would say 0.9, well done.", '{"score": 0.9}', lambda b: {"data_code": code_of(b), "reasons": "", "score": 7}],
)
async def test_repeated_prose_leaves_its_request_unscored(prose: Any) -> None:
    def answer(body: dict) -> Any:
        bad = "BAD" in body["messages"][-1]["content"]
        return prose if bad else verdict(0.5)(body)

    with FakeService(answer) as service:
        bad = ScoringRequest((user("?"), assistant("BAD")))
        good, error = await score_all(judge_of(service), ScoringRequest(TALK), bad)
        assert good == 0.5
        assert isinstance(error, UnscoredError)
        assert error.cause == "ungradable"
        about_bad = [body for body in service.requests if "BAD" in body["messages"][-1]["content"]]
        assert len(about_bad) == 2, "once, and once more"
        assert "could not be used" in about_bad[1]["messages"][0]["content"]


async def test_single_prose_reply_is_retried() -> None:
    with FakeService(verdict(0.75)) as service:
        service.script("Nice!")
        assert await score_all(judge_of(service), ScoringRequest(TALK)) == [0.75]


@pytest.mark.parametrize(("vote", "expected"), [("mean", 0.4), ("median", 0.1)])
async def test_votes(vote: Any, expected: float) -> None:
    with FakeService() as service:
        service.script(*(verdict(score) for score in (0.1, 1.0, 0.1)))
        judge = judge_of(service, votes=3, vote=vote)
        assert await score_all(judge, ScoringRequest(TALK)) == [pytest.approx(expected)]
        assert [body["temperature"] for body in service.requests] == [1.0] * 3


async def test_missing_vote_is_no_score() -> None:
    with FakeService("prose") as service:
        service.script(verdict(0.1), verdict(1.0))
        (error,) = await score_all(judge_of(service, votes=3), ScoringRequest(TALK))
        assert isinstance(error, UnscoredError)


async def test_an_outage_is_waited_for() -> None:
    with FakeService(verdict(0.5)) as service:
        service.script(*[status(503)] * 4)  # two attempts of the client's, and two health checks
        assert await score_all(judge_of(service), ScoringRequest(TALK)) == [0.5]


async def test_absent_service_is_unavailable() -> None:
    with FakeService() as service:
        judge = judge_of(service)
    (error,) = await score_all(judge, ScoringRequest(TALK), patience_s=0.3)
    assert isinstance(error, UnscoredError)
    assert error.cause == "unavailable"


async def test_reference_is_shown_only_if_rubric_needs_it(tmp_path: Path) -> None:
    with FakeService(verdict(8.0)) as service:
        with_truth = ScoringRequest(TALK, ground_truth="4")
        (tmp_path / "mine.txt").write_text('Compare "conversation" with "reference", {low} to {high}.')
        judge = judge_of(service, rubric=str(tmp_path / "mine.txt"), low=1, high=10)
        assert judge.traits.low == 1
        score, missing = await score_all(judge, with_truth, ScoringRequest(TALK))
        assert score == 8.0
        assert "no ground truth" in str(missing)
        assert data_of(service.requests[-1])["reference"] == "4"
        assert "1 to 10." in service.requests[-1]["messages"][0]["content"]
        service.answer = verdict(1.0)
        await score_all(judge_of(service), with_truth)
        assert "reference" not in data_of(service.requests[-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rubric": "kind"}, "one of correct, harmless, helpful, or a file"),
        ({"low": 1.0, "high": 1.0}, "must be below"),
        ({"votes": 3, "chat": {"temperature": 0.0}}, "are one"),
        ({"chat": {"tempature": 1.0}}, "did you mean 'temperature'"),
        ({"base_url": None, "chat": {"api_key_env": "NO_SUCH_KEY"}}, "NO_SUCH_KEY has no key"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JudgeBackend(JudgeSection(**{"model": "m", "base_url": "http://x/v1"} | options))


def test_service_timeout_covers_client_retries() -> None:
    chat = {"timeout_s": 10.0, "max_retries": 2, "concurrency": 7}
    traits = JudgeBackend(JudgeSection(model="m", base_url="http://x/v1", chat=chat)).traits
    section = traits.resolved(RewardModelSection(max_wait_s=0.5))
    assert section.timeout_s is not None
    assert section.timeout_s >= 3 * 10 + 2 * 120
    assert (traits.concurrency, section.max_batch_size, section.max_wait_s) == (7, 1, 0.5)
