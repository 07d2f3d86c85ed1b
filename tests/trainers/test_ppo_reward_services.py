"""PPO with reward services, by its keys alone: they fail in many ways, training continues, no score is invented."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_pooling import FakePooling, in_a_thread
from fake_service import FakeService, cut
from ppo_runs import episodes_of, in_process, training_of, up_to
from reward_models import CONTEXT, save_model

from textenvs.judges.llm import conversation_data
from textenvs.messages import Messages
from trainers.config.reward_model import TokenizingSection
from trainers.rewards.backends.conversation import ConversationTokens, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("judge"))


def options(tmp_path: Path, key: str, *overrides: str) -> list[str]:
    quick = [
        "trainer.total_iterations=3",
        f"trainer.rollout_data_dir={tmp_path}/episodes",
        "rollout.groups_per_batch=4",
    ]
    return [*quick, *(f"{key}.{suffix}" for suffix in ("patience_s=60", "retries=0", *overrides))]


def check(tmp_path: Path, term: str, expected: Callable[[Messages], float], *, per_turn: bool = False) -> None:
    """Every score that was trained on is the one that a service in good health gives."""
    episodes = episodes_of(tmp_path / "episodes")
    assert len(episodes) == 24, "three batches of four groups of two"
    scores = []
    for trajectory in episodes:
        for turn, terms in enumerate(trajectory.turn_terms):
            assert (term in terms) == (per_turn or turn == trajectory.num_turns - 1)
            if term in terms:
                assert terms[term] == expected(up_to(trajectory, turn))
                scores.append(terms[term])
    assert len(set(scores)) > 4, "they tell conversations apart"


@pytest.mark.parametrize(
    ("endpoint", "per_turn"), [pytest.param("classify", False, marks=pytest.mark.slow), ("pooling", True)]
)
def test_flaky_reward_service_is_retried(tmp_path, folder, caplog, endpoint, per_turn):
    server = FakePooling(longest=CONTEXT)
    served = [0]

    def fault(path: str, body: dict[str, Any]) -> web.Response | None:
        served[0] += 1  # the first is the trial before the run
        name = "probs" if path == "classify" else "data"
        if served[0] == 3:
            server.sick = 2
        if server.sick:
            return web.json_response({"error": "starting"}, status=503)
        if served[0] == 9:
            return web.json_response({"data": [{"index": i, name: [float("nan")]} for i in range(len(body["input"]))]})
        if served[0] == 12:
            return web.json_response({"data": "soon"})
        return None

    server.fault = fault
    with in_a_thread(server) as url:
        keys = ["enable=true", "kind=service", f"service.url={url}", f"service.tokenizer={folder}", "name=helpful"]
        keys += [f"service.endpoint={endpoint}", f"per_turn={str(per_turn).lower()}", "max_batch_size=4"]
        in_process(tmp_path, *options(tmp_path, "reward_model", *keys))
    tokens = ConversationTokens(load_tokenizer(folder), TokenizingSection(overlong="error"), CONTEXT)

    def expected(messages: Messages) -> float:
        ids = tokens.encode(messages)
        return sum(ids) / len(ids)

    check(tmp_path, "helpful", expected, per_turn=per_turn)
    gave_up(training_of(tmp_path), caplog, "helpful")
    went_down(training_of(tmp_path), caplog, "helpful")
    assert "a score must be a finite number" in caplog.text


def gave_up(rows: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Some scores were missing; their episodes were marked and played again, and the log says so."""
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[-1][f"reward/{name}_unscored"] > 0
    assert sum(row.get("rollout/episodes_error_reward", 0) for row in rows) > 0
    assert rows[-1]["rollout/retries"] > 0
    assert f"the reward model '{name}' gave no score" in caplog.text
    assert "an episode ended as error_reward_reward_raised" in caplog.text
    assert all(record.levelno < logging.ERROR for record in caplog.records)


def went_down(rows: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, name: str) -> None:
    """It was waited for, and the log says since when, and that it came back."""
    assert rows[-1][f"reward/{name}_down_s"] > 0
    assert f"the reward model '{name}' is down, and requests wait for it" in caplog.text
    assert f"the reward model '{name}' is back after" in caplog.text


def mark(conversation: list[dict[str, str]]) -> float:
    """Return a mark that depends on the last reply's letters."""
    texts = [message["text"] for message in conversation if message["role"] == "assistant"]
    return sum(texts[-1].encode()) % 11 / 10


def verdict(body: dict[str, Any]) -> dict[str, Any]:
    text = body["messages"][-1]["content"]
    code, data = re.search(r"<data (\w+)>", text), json.loads(text.split("\n")[1])
    assert code is not None
    return {"data_code": code[1], "reasons": "r", "score": mark(data["conversation"])}


def test_flaky_judge_is_retried(tmp_path, caplog):
    requests = [0]
    references = []

    def answer(body: dict[str, Any]) -> Any:
        requests[0] += 1
        if len(body["messages"]) == 2 and requests[0] in (4, 7):
            strange.append(body["messages"][-1]["content"])
        if body["messages"][1]["content"] in strange:  # also when it is asked once more
            return "An 8 of 10, I would say."
        references.append(json.loads(body["messages"][1]["content"].split("\n")[1])["reference"])
        if requests[0] == 10:
            return json.dumps({**verdict({"messages": body["messages"][:2]}), "score": float("nan")})
        if requests[0] >= 13 and not disconnected:
            disconnected.append(requests[0])
            service.down = 2
            return cut()
        return verdict({"messages": body["messages"][:2]})

    strange: list[str] = []
    disconnected: list[int] = []
    with FakeService(answer) as service:
        keys = ["enable=true", "kind=judge", "judge.model=m", f"judge.base_url={service.url}", "name=grade"]
        keys += ["judge.chat.max_retries=0", "judge.rubric=correct", "weight=2.0"]
        in_process(tmp_path, *options(tmp_path, "reward_model", *keys))
    check(tmp_path, "grade", lambda messages: 2.0 * mark(conversation_data(messages)))
    gave_up(training_of(tmp_path), caplog, "grade")
    assert "the judge gave no verdict" in caplog.text
    went_down(training_of(tmp_path), caplog, "grade")
    assert len(strange) == 2
    assert references[0] == "7", "the trial's own"
    assert all(re.fullmatch(r"\d+", reference) for reference in references[1:]), "each task's own answer"


def test_reward_models_have_own_weight_and_turns(tmp_path, folder):
    """A classifier for whole conversations, a judge for each turn, and one more; every term is its own model's."""
    with FakeService(verdict) as judge, in_a_thread(FakePooling(longest=CONTEXT)) as url:
        keys = ["reward_model.enable=true", f"reward_model.classifier.path={folder}", "reward_model.name=liked"]
        keys += ["reward_model.weight=0.5", "reward_model.replace=false"]
        keys += ["reward_models.grade.kind=judge", "reward_models.grade.judge.model=m", "reward_models.grade.weight=-1"]
        keys += [f"reward_models.grade.judge.base_url={judge.url}", "reward_models.grade.per_turn=true"]
        keys += ["reward_models.grade.replace=false", "reward_models.length.replace=false"]
        keys += ["reward_models.length.kind=service", f"reward_models.length.service.url={url}"]
        keys += ["reward_models.length.service.input=messages"]
        run = in_process(tmp_path, *options(tmp_path, "reward_model"), *keys)
    assert run.reward_models is not None
    assert list(run.reward_models.pools) == ["liked"]
    check(tmp_path, "grade", lambda messages: -mark(conversation_data(messages)), per_turn=True)
    for trajectory in episodes_of(tmp_path / "episodes"):
        last = trajectory.turn_terms[-1]
        assert set(last) == {"luck", "cost", "liked", "grade", "length"}
        assert last["length"] == len(up_to(trajectory, trajectory.num_turns - 1))
        assert trajectory.turn_rewards.tolist() == pytest.approx([sum(its.values()) for its in trajectory.turn_terms])
    for row in training_of(tmp_path):
        assert {row[f"reward/{name}_unscored"] for name in ("liked", "grade", "length")} == {0}
        assert row["reward/grade_requests"] > row["reward/liked_requests"]
        assert row["reward/liked_lost_workers"] == 0


def test_environment_reward_is_replaced_once(tmp_path):
    with in_a_thread(FakePooling(longest=CONTEXT)) as url:
        keys = [
            f"reward_models.{name}.{suffix}"
            for name in ("one", "two")
            for suffix in ("kind=service", f"service.url={url}", "service.input=messages")
        ]
        in_process(tmp_path, f"trainer.rollout_data_dir={tmp_path}/episodes", "trainer.total_iterations=1", *keys)
    for trajectory in episodes_of(tmp_path / "episodes"):
        *before, last = trajectory.turn_rewards.tolist()
        assert before == pytest.approx([0.0] * len(before))
        assert last == pytest.approx(2 * len(up_to(trajectory, trajectory.num_turns - 1)))
