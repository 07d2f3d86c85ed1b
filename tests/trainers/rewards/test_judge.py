"""A judge behind the service: strict verdicts, prose that is asked again once, and never a 0."""

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
from trainers.config.reward_model import JudgeSection
from trainers.rewards import ModelOptions, RewardService, ScoringRequest, UnscoredError
from trainers.rewards.backends.judge import JudgeBackend

TALK = (user("What is 2+2?"), assistant("4"), user("Sure?"), assistant("Yes."), user("Thanks."))


def verdict(score: Any) -> Callable[[dict], dict]:
    """A well-formed verdict on whatever is asked."""
    return lambda body: {"data_code": code_of(body), "reasons": "r", "score": score}


def code_of(body: dict) -> str:
    found = re.search(r"<data (\w+)>", body["messages"][-1]["content"])
    assert found is not None
    return found[1]


def data_of(body: dict) -> dict[str, Any]:
    return json.loads(body["messages"][-1]["content"].split("\n")[1])


async def asked(judge: JudgeBackend, *requests: ScoringRequest, **options: Any) -> list[Any]:
    settings = replace(judge.model_options(), **options)
    async with RewardService({"j": judge}, {"j": settings}) as service:
        return await asyncio.gather(*(service.score("j", each) for each in requests), return_exceptions=True)


def judge_of(service: FakeService, **options: Any) -> JudgeBackend:
    chat = {"max_retries": 1, "timeout_s": 5.0}
    return JudgeBackend(JudgeSection(model="judge", base_url=service.url, chat=chat, **options))


@pytest.fixture(autouse=True)
async def clients():
    yield
    await close_clients()


async def test_a_verdict_is_a_score_and_a_turn_is_judged_by_what_was_known_then() -> None:
    with FakeService(verdict(0.25)) as service:
        judge = judge_of(service)
        assert await asked(judge, ScoringRequest(TALK), ScoringRequest(TALK, turn=0)) == [0.25] * 2
        lengths = sorted(len(data_of(body)["conversation"]) for body in service.requests)
        assert lengths == [2, 5]
        assert "from 0 to 1" in service.requests[0]["messages"][0]["content"]
        assert all(body["temperature"] == 0 for body in service.requests)


@pytest.mark.parametrize(
    "prose",
    ["I would say 0.9, well done.", '{"score": 0.9}', lambda b: {"data_code": code_of(b), "reasons": "", "score": 7}],
)
async def test_prose_is_asked_again_once_and_then_the_request_alone_has_no_score(prose: Any) -> None:
    def answer(body: dict) -> Any:
        bad = "BAD" in body["messages"][-1]["content"]
        return prose if bad else verdict(0.5)(body)

    with FakeService(answer) as service:
        bad = ScoringRequest((user("?"), assistant("BAD")))
        good, error = await asked(judge_of(service), ScoringRequest(TALK), bad)
        assert good == 0.5
        assert isinstance(error, UnscoredError)
        assert error.cause == "failed"
        about_bad = [body for body in service.requests if "BAD" in body["messages"][-1]["content"]]
        assert len(about_bad) == 2, "once, and once more"
        assert "could not be used" in about_bad[1]["messages"][0]["content"]


async def test_prose_once_costs_a_second_question_and_no_score() -> None:
    with FakeService(verdict(0.75)) as service:
        service.script("Nice!")
        assert await asked(judge_of(service), ScoringRequest(TALK)) == [0.75]


@pytest.mark.parametrize(("vote", "wanted"), [("mean", 0.4), ("median", 0.1)])
async def test_votes(vote: Any, wanted: float) -> None:
    with FakeService() as service:
        service.script(*(verdict(score) for score in (0.1, 1.0, 0.1)))
        judge = judge_of(service, votes=3, vote=vote)
        assert await asked(judge, ScoringRequest(TALK)) == [pytest.approx(wanted)]
        assert [body["temperature"] for body in service.requests] == [1.0] * 3


async def test_one_vote_that_is_not_had_is_no_score() -> None:
    with FakeService("prose") as service:
        service.script(verdict(0.1), verdict(1.0))
        (error,) = await asked(judge_of(service, votes=3), ScoringRequest(TALK))
        assert isinstance(error, UnscoredError)


async def test_an_outage_is_waited_for() -> None:
    with FakeService(verdict(0.5)) as service:
        service.script(*[status(503)] * 4)  # two attempts of the client's, and two looks at its health
        options: dict[str, Any] = {"probe_s": 0.02}
        assert await asked(judge_of(service), ScoringRequest(TALK), **options) == [0.5]


async def test_a_service_that_is_not_there_is_unavailable_in_the_end() -> None:
    with FakeService() as service:
        judge = judge_of(service)
    (error,) = await asked(judge, ScoringRequest(TALK), patience_s=0.3, probe_s=0.05)
    assert isinstance(error, UnscoredError)
    assert error.cause == "unavailable"


async def test_the_reference_is_shown_where_the_rubric_speaks_of_it_and_nowhere_else(tmp_path: Path) -> None:
    with FakeService(verdict(8.0)) as service:
        known = ScoringRequest(TALK, ground_truth="4")
        (tmp_path / "mine.txt").write_text('Compare "conversation" with "reference", {low} to {high}.')
        mine = judge_of(service, rubric=str(tmp_path / "mine.txt"), low=1, high=10)
        assert mine.model_options().low == 1
        said, missing = await asked(mine, known, ScoringRequest(TALK))
        assert said == 8.0
        assert "no ground truth" in str(missing)
        assert data_of(service.requests[-1])["reference"] == "4"
        assert "1 to 10." in service.requests[-1]["messages"][0]["content"]
        service.answer = verdict(1.0)
        await asked(judge_of(service), known)
        assert "reference" not in data_of(service.requests[-1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rubric": "kind"}, "one of correct, harmless, helpful, or a file"),
        ({"low": 1.0, "high": 1.0}, "must be below"),
        ({"high": float("inf")}, "finite"),
        ({"votes": 0}, "votes"),
        ({"vote": "sum"}, "vote"),
        ({"votes": 3, "chat": {"temperature": 0.0}}, "are one"),
        ({"tries": 0}, "tries"),
        ({"chat": {"tempature": 1.0}}, "did you mean 'temperature'"),
        ({"base_url": None, "chat": {"api_key_env": "NO_SUCH_KEY"}}, "NO_SUCH_KEY has no key"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        JudgeBackend(JudgeSection(**{"model": "m", "base_url": "http://x/v1"} | options))


def test_the_service_waits_as_long_as_the_client_may_take() -> None:
    chat = {"timeout_s": 10.0, "max_retries": 2, "concurrency": 7}
    options: ModelOptions = JudgeBackend(JudgeSection(model="m", base_url="http://x/v1", chat=chat)).model_options()
    assert options.timeout_s >= 3 * 10 + 2 * 120
    assert (options.concurrency, options.max_batch_size) == (7, 1)
