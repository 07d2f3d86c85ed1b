"""CollabLLM's families with a language model as the user, and one as the judge, against a service on this machine."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from collab_cases import every_id

import textenvs

sys.path.insert(0, str(Path(__file__).parents[2] / "chat"))
from fake_service import FakeService, status  # noqa: E402

pytest.importorskip("openai", reason="needs the extra 'chat'")

QUICK = {"max_retries": 0}


def says(message, state="goes_on"):
    return {"thought": "hm", "message": message, "state": state}


def judges(score):
    def verdict(request):
        number = re.search(r"<data (\w+)>", request["messages"][-1]["content"])[1]
        return {"reasons": "Well.", "score": score, "data_code": number}

    return verdict


def by_role(user_answers, verdict):
    """Return one service for both: a judge is recognised by its instructions."""
    answers = iter(user_answers)

    def answer(request):
        return verdict(request) if "impartial judge" in request["messages"][0]["content"] else next(answers)

    return answer


@every_id
def test_model_plays_user(env_id):
    with FakeService() as service:
        service.script(says("It is about my garden."), says("Perfect, thanks!", "satisfied"))
        env = textenvs.make(env_id, user={"model": "tiny", "base_url": service.url}, token_rate=0.0)
        env.reset(seed=0)
        conversation, reward, terminated, truncated, info = env.step("<think>secret</think>What is it about?")
        assert (conversation[-1]["content"], reward, terminated) == ("It is about my garden.", 0.0, False)
        assert set(info["metrics"]) == {
            "score",
            "delivered",
            "user_leak",
            "user_refused",
            "user_tries",
            *env.check_metrics,
        }
        conversation, reward, terminated, truncated, info = env.step(env.solution(env.state.task))
        assert conversation[-1]["content"] == "Perfect, thanks!"
        assert (reward, terminated, truncated, info["stop"]) == (pytest.approx(1.0), True, False, "solved")
        request = json.dumps(service.requests[0]["messages"])
        assert json.dumps(env.goal.single_turn_prompt)[1:-1] in request
        assert "secret" not in request
        assert env.state.task.ground_truth not in service.requests[0]["messages"][0]["content"].replace(
            env.goal.single_turn_prompt, ""
        )


def test_user_satisfied_with_wrong_delivery_leaves():
    with FakeService(says("Fine.", "satisfied")) as service:
        env = textenvs.make("textenv/collab-math", user={"model": "tiny", "base_url": service.url}, token_rate=0.0)
        env.reset(seed=0)
        *_, info = env.step(env.careless_reply(np.random.default_rng(0)))
        assert info["stop"] == "user_left"
        service.answer = says("No use.", "gave_up")
        env.reset(seed=0)
        *_, info = env.step("x")
        assert info["stop"] == "gave_up"


@pytest.mark.parametrize("by", ["user", "turns"])
def test_judge_is_called_once_at_end(by):
    with FakeService(judges(0.75)) as service:
        spec, turns = {"model": "tiny", "base_url": service.url}, 2 if by == "turns" else None
        options = {"token_rate": 0.0, "interactivity": 0.5, "max_assistant_turns": turns}
        env = textenvs.make("textenv/collab-math", judge=spec, **options)
        env.reset(seed=0)
        rng = np.random.default_rng(0)
        verdicts = []
        while not env.state.done:
            *_, info = env.step(env.demonstration(rng) if by == "user" else "Go on.")
            assert set(info["terms"]) == {env.score_name, "cost", "needless", "interactivity"}
            verdicts.append(info["terms"]["interactivity"])
        assert verdicts[:-1] == [0.0] * (len(verdicts) - 1)
        assert verdicts[-1] == 0.375
        assert len(service.requests) == 1
        prompt = service.requests[0]["messages"][-1]["content"]
        assert json.dumps(env.state.messages[-1]["content"]) in prompt, "the user's last words are part of it"


def test_failing_judge_fails_episode():
    with FakeService(status(500)) as service:
        env = textenvs.make(
            "textenv/collab-math", judge={"model": "tiny", "base_url": service.url, **QUICK}, max_assistant_turns=1
        )
        env.reset(seed=0)
        _, reward, _, truncated, info = env.step("x")
        assert (reward, truncated, info["stop"]) == (0.0, True, "judge_failed")


async def test_user_and_judge_in_forks():
    user_answers = [says("Well."), says("Hm."), says("Yes.", "satisfied"), says("No.", "gave_up")]
    with FakeService() as service:
        service.answer = by_role(user_answers, judges(1.0))
        spec = {"model": "tiny", "base_url": service.url}
        env = textenvs.make("textenv/collab-math", user=spec, judge=spec, token_rate=0.0)
        await env.areset(seed=0)
        await env.astep("a")
        fork = env.fork(1)
        await env.astep("b")
        *_, info = await fork.astep(fork.solution(fork.state.task))
        assert info["terms"] == {"accuracy": 1.0, "cost": 0.0, "interactivity": 1.0}
        assert (info["stop"], env.state.done) == ("solved", False)
        assert (await env.astep("c"))[-1]["stop"] == "gave_up"


@pytest.mark.parametrize("option", ["user", "judge"])
def test_model_options_are_checked_at_construction(option):
    with pytest.raises(ValueError, match=f"{option}: .* did you mean 'base_url'"):
        textenvs.make("textenv/collab-math", **{option: {"model": "tiny", "base_ur": "http://x"}})
    with pytest.raises(ValueError, match=f"{option}: a chat model is"):
        textenvs.make("textenv/collab-math", **{option: 5})
    with pytest.raises(ValueError, match="interactivity should be a finite number, not nan"):
        textenvs.make("textenv/collab-math", interactivity=float("nan"))


def test_expert_needs_scripted_user():
    env = textenvs.make("textenv/collab-math", user="tiny")
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="scripted user"):
        env.demonstration(np.random.default_rng(0))
