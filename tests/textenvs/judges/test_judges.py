"""Judges: what they are shown, what counts as a verdict, and what happens when there is none."""

import json
import re

import pytest
from fake_service import FakeService, Reply, hang, status
from pydantic import BaseModel, Field

from textenvs.chat import BudgetExceeded, close_clients
from textenvs.env import EnvironmentFailure
from textenvs.judges import Criterion, EquivalenceJudge, InteractivityJudge, LLMJudge, RubricJudge, conversation_data
from textenvs.messages import assistant, system, tool, user

pytest.importorskip("openai", reason="needs the extra 'chat'")

TALK = (system("SECRET rules"), user("hi"), assistant("<think>SECRET</think>What do you need?"))


class Verdict(BaseModel):
    reasons: str
    score: float = Field(ge=0, le=1)


def code(request):
    return re.search(r"^<data (\w+)>$", request["messages"][1]["content"], re.MULTILINE)[1]


def data(request):
    return json.loads(request["messages"][1]["content"].splitlines()[1])


def verdict(**fields):
    """A judge that gives this verdict, with the right code."""
    return lambda request: {"data_code": code(request), "reasons": "because", **fields}


@pytest.fixture
async def service():
    with FakeService(verdict(score=0.5)) as service:
        yield service
        await close_clients()


def spec(service, **options):
    return {"model": "tiny", "base_url": service.url, "max_retries": 1, "timeout_s": 60} | options


async def test_a_verdict(service):
    judge = LLMJudge(spec(service), "Judge this.", Verdict)
    got = await judge.judge({"conversation": conversation_data(TALK), "n": 3})
    assert type(got) is Verdict
    assert got == Verdict(reasons="because", score=0.5)
    request = service.requests[-1]
    assert data(request) == {
        "conversation": [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "What do you need?"}],
        "n": 3,
    }
    assert "SECRET" not in str(request)
    assert "Judge this." in request["messages"][0]["content"]
    assert request["temperature"] == 0.0
    await LLMJudge(spec(service, temperature=0.7), "Judge this.", Verdict).judge({})
    assert service.requests[-1]["temperature"] == 0.7


async def test_system_message_is_cacheable(service):
    judge = LLMJudge(spec(service), "Judge this.", Verdict)
    for text in ("a", "b"):
        await judge.judge({"x": text})
    one, two = (request["messages"][0] for request in service.requests)
    assert one == two


def test_tools_are_shown_where_asked_for():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = (*TALK, user("x"), assistant("", [call]), tool("42", "c", "f"), assistant("It is 42."))
    assert conversation_data(talk)[-1]["text"] == "It is 42."
    assert conversation_data(talk, tools=True)[-1]["text"] == "[calls f({})]\n[result of f: 42]\nIt is 42."


UNUSABLE = {
    "prose": "I would give it a 1.",
    "too high": verdict(score=1.0001),
    "NaN": lambda request: json.dumps(verdict(score=float("nan"))(request)),
    "infinite": lambda request: json.dumps(verdict(score=1)(request)).replace('"score": 1', '"score": 1e999'),
    "text": verdict(score="1"),
    "no score": verdict(),
    "two scores": lambda request: json.dumps(verdict(score=0)(request))[:-1] + ', "score": 1}',
    "more": verdict(score=1, also=2),
    "another code": verdict(score=1, data_code="000000000000"),
    "no code": {"reasons": "because", "score": 1},
    "prose around it": lambda request: "Verdict: " + json.dumps(verdict(score=1)(request)),
    "two verdicts": lambda request: 2 * json.dumps(verdict(score=1)(request)),
    "a list": lambda request: json.dumps([verdict(score=1)(request)]),
    "only thought": lambda request: "<think>" + json.dumps(verdict(score=1)(request)),
    "cut off": lambda request: Reply(json.dumps(verdict(score=1)(request)), finish_reason="length"),
}


@pytest.mark.parametrize("answer", UNUSABLE.values(), ids=UNUSABLE)
async def test_what_is_no_verdict_is_asked_for_again(service, answer):
    service.script(answer, answer)
    assert (await LLMJudge(spec(service), "Judge.", Verdict).judge({"x": 1})).score == 0.5
    assert len(service.requests) == 3


FAULTS = {"400": status(400), "500": status(500), "hang": hang()}


@pytest.mark.parametrize("answer", [UNUSABLE["prose"], UNUSABLE["too high"], *FAULTS.values()])
async def test_missing_verdict_is_a_failure(service, answer):
    service.answer = answer
    with pytest.raises(EnvironmentFailure) as caught:
        await LLMJudge(spec(service, timeout_s=0.3), "Judge.", Verdict, tries=2).judge({"x": "SECRET"})
    assert caught.value.stop == "judge_failed"
    assert "SECRET" not in caught.value.reason


async def test_too_long_for_the_judge_is_no_failure(service):
    service.answer = status(400, "prompt is too long: 9 > 8")
    with pytest.raises(EnvironmentFailure) as caught:
        await LLMJudge(spec(service), "Judge.", Verdict).judge({"x": 1})
    assert caught.value.stop == "judge_no_room"


async def test_verdict_in_fence_or_after_reasoning(service):
    for wrap in ("```json\n{}\n```", "<think>hm {{</think>{}", "\n {} \n"):
        service.answer = lambda request, wrap=wrap: wrap.replace("{}", json.dumps(verdict(score=0.25)(request)))
        assert (await LLMJudge(spec(service), "Judge.", Verdict).judge({"x": wrap})).score == 0.25


async def test_a_spent_budget_is_not_a_failed_judge(service):
    with pytest.raises(BudgetExceeded):
        await LLMJudge(spec(service, budget={"tokens": 1}), "Judge.", Verdict).judge({})


async def test_the_same_verdict_again_or_another_opinion(service, tmp_path):
    scores = iter([0.1, 0.2, 0.3])
    service.answer = lambda request: verdict(score=next(scores))(request)
    judge = LLMJudge(spec(service, cache=str(tmp_path / "cache.db")), "Judge.", Verdict)
    assert [(await judge.judge({"x": 1}, sample=sample)).score for sample in (0, 0, 1)] == [0.1, 0.1, 0.2]


async def test_interactivity(service):
    judge = InteractivityJudge(spec(service))
    assert await judge.score(TALK) == 0.5
    assert data(service.requests[-1])["conversation"] == conversation_data(TALK)
    service.answer = verdict(score=1.5)
    with pytest.raises(EnvironmentFailure):
        await judge.score(TALK)


async def test_equivalence(service):
    judge = EquivalenceJudge(spec(service))
    for same in (True, False):
        service.answer = verdict(final_answer="4", same=same)
        assert await judge.same("2+2?", "4", "four") is same
    assert data(service.requests[-1]) == {"question": "2+2?", "reference": "4", "answer": "four"}
    count = len(service.requests)
    assert await judge.same("2+2?", "4", " \n") is False
    assert len(service.requests) == count
    service.answer = verdict(final_answer="4", same="yes")
    with pytest.raises(EnvironmentFailure):
        await judge.same("2+2?", "4", "four")


async def test_rubric(service):
    rubric = [Criterion("clear", "it is clear"), Criterion("kind", "it is kind", weight=3.0)]
    judge = RubricJudge(spec(service), rubric, task="Judge the poem.")
    service.answer = verdict(clear=4, kind=1)
    got = await judge.score({"poem": "roses"})
    assert (got.parts, got.total, got.reasons) == ({"clear": 1.0, "kind": 0.25}, pytest.approx(1.75 / 4), "because")
    prompt = service.requests[-1]["messages"][0]["content"]
    assert all(part in prompt for part in ("Judge the poem.", "- clear: it is clear", "- kind: it is kind", "0", "4"))
    for bad in ({"clear": 5, "kind": 1}, {"clear": 1.5, "kind": 1}, {"clear": 1}, {"clear": 1, "kind": 1, "x": 1}):
        service.answer = verdict(**bad)
        with pytest.raises(EnvironmentFailure):
            await judge.score({"poem": "roses"})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LLMJudge("m", " ", Verdict), ValueError, "instructions"),
        (lambda: LLMJudge("m", "x", dict), TypeError, "pydantic model"),
        (lambda: LLMJudge({"modle": "m"}, "x", Verdict), ValueError, "did you mean 'model'"),
        (lambda: RubricJudge("m", []), ValueError, "criteria"),
        (lambda: RubricJudge("m", [Criterion("a", "x"), Criterion("a", "y")]), ValueError, "different names"),
        (lambda: Criterion("not a name", "x"), ValueError, "name"),
        (lambda: Criterion("reasons", "x"), ValueError, "name"),
        (lambda: Criterion("model_dump", "x"), ValueError, "name"),
        (lambda: Criterion("a", "x", weight=float("nan")), ValueError, "weight"),
    ],
)
def test_bad_options(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_verdict_with_our_own_field():
    class Clash(BaseModel):
        data_code: str

    with pytest.raises(ValueError, match="rename it"):
        LLMJudge("m", "x", Clash)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
async def test_what_is_not_json_is_not_judged(service, value):
    with pytest.raises(ValueError, match="must be JSON"):
        await LLMJudge(spec(service), "x", Verdict).judge({"x": value})
