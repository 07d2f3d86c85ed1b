"""Limits of what a user may say, reports on users, and dialogues to fit models to."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import textenvs
from textenvs.cli import main
from textenvs.evaluate.user_report import UserStatistics, listen_to, reading_ease, summarize
from textenvs.messages import text_of
from textenvs.users.base import Entitled, HasUser, UserView
from textenvs.users.dialogues import dialogues
from textenvs.users.guard import values_in
from textenvs.users.manners import NAMES

sys.path.insert(0, str(Path(__file__).parents[1] / "chat"))
from fake_service import FakeService  # noqa: E402

IDS = (
    "textenv/clarify",
    "textenv/collab-math",
    "textenv/collab-document",
    "textenv/collab-code",
    "textenv/service-desk",
)


@pytest.mark.parametrize("env_id", IDS)
def test_scripted_users_never_volunteer(env_id):
    env = textenvs.make(env_id, manner="all")
    assert isinstance(env, HasUser)
    questions = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        while not env.state.done:
            reply = env.demonstration(rng) if rng.random() < 0.7 else "Tell me more."
            message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
            may, size = env.user_may(message), len(env.state.messages)
            env.step(reply)
            questions += may.asks
            for answer in env.state.messages[size:]:
                if answer["role"] == "user" and answer in env.user_view().talk:
                    assert may.problem(text_of(answer)) is None, (reply, answer)
    assert questions


def test_invented_number_fails_episode():
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    with FakeService() as service:
        env = textenvs.make("textenv/service-desk", user={"model": "tiny", "base_url": service.url, "format": "text"})
        env.reset(seed=1)
        service.answer = "The number of my order is 987654321."
        *_, info = env.step("Hello, how can I help?")
        assert (info["stop"], info["failed"]) == ("user_failed", True)
        assert "a value that is not yours" in info["failure"]


@pytest.mark.parametrize(("env_id", "options"), [("textenv/clarify", {"ambiguous": 1.0}), ("textenv/collab-math", {})])
def test_unentitled_model_message_is_retried(env_id, options):
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    with FakeService() as service:
        model = {"model": "tiny", "base_url": service.url, "format": "text", "tries": 3, "leak_limit": None}
        env = textenvs.make(env_id, user=model, **options)
        env.reset(seed=1)
        hidden = " ".join(
            [env._request.telling(slot) for slot in env._request.kind.slots]
            if "clarify" in env_id
            else [piece.sayings[0] for piece in env.goal.pieces]
        )
        service.script(hidden, "It is 987654.", "Hm, what do you want to know?")
        conversation, *_, info = env.step("Hello there.")
        assert conversation[-1]["content"] == "Hm, what do you want to know?"
        assert (info["metrics"]["user_refused"], info["metrics"]["user_tries"]) == (2.0, 3.0)
        twin = env.fork()
        twin.player = None
        question = twin.demonstration(np.random.default_rng(0))
        service.answer = hidden
        *_, info = env.step(question if env_id == "textenv/clarify" else "Hello again.")
        if env_id == "textenv/clarify":  # asked for, it may be told
            assert info["stop"] is None
            assert env.user_view().disclosed == 1
        else:
            assert (info["stop"], info["failed"]) == ("user_failed", True)


@pytest.mark.parametrize(
    ("goal", "text", "false"),
    [
        ("9 seats", "8", True),
        ("9 seats", "Eight, please.", True),
        ("9 seats", "8, no, sorry, 9", False),
        ("9 seats", "9. It is 8", True),
        ("9 seats", "1. What do you need?", False),
        ("150 seats", "One hundred and fifty.", False),
        ("1200 kg", "1,200 kg", False),
        ("1,200 kg", "1200 kg", False),
        ("4.50", "4.5", False),
        ("one apple", "1", False),
        ("On Friday", "monday", True),
        ("On Friday", "friday", False),
        ("5 apples", "Not the 6 that you named", False),
        ("5 apples", "I have 30 trees", False),
        ("5 apples", "7", True),
    ],
)
def test_unnamed_value_is_false(goal, text, false):
    talk = (
        {"role": "user", "content": "I have 30 trees, and apples."},
        {"role": "assistant", "content": "<think>7, perhaps</think>Is it 6?"},
        {"role": "user", "content": "No, 8."},
    )
    assert UserView(goal, talk[:2], values=("Friday", "Monday")).contradicts(text) == false
    assert UserView(goal, talk, values=("Friday", "Monday")).contradicts(text) == false


def test_numbers_in_words_are_values():
    assert values_in("Twenty-one trays, nine of 3.5 kg; forty people") == {"21", "9", "3.5", "40"}


def test_errors_are_distinguished():
    stats, before = UserStatistics(), UserView("You want 9 seats on Friday.", (), values=("Friday", "Monday"))
    for text, disclosed in (
        ("On Friday.", 1),
        ("On Monday.", 0),
        ("On Monday. No, wait. On Friday.", 1),
        ("#### 9", 0),
        ("On Friday.", 1),
        ("I knwo nothing", 0),
    ):
        may = Entitled(True, lambda answer: "it tells" if answer == "#### 9" else None)
        stats.listen("What day, and how many?", text, before, may, disclosed)
    assert stats.errors == {"contradiction": 1, "evasion": 3, "role": 1, "leak": 1, "repetition": 1}
    assert (stats.corrected, stats.misspelt, stats.goal_kept) == (1, 1, False)
    assert reading_ease(["The cat sat."]) == pytest.approx(206.835 - 1.015 * 3 - 84.6)
    assert reading_ease([]) is None


def test_report_shows_each_manner():
    def figures(manner):
        episodes = asyncio.run(listen_to(lambda: textenvs.make("textenv/collab-math", manner=manner), 20, seed=1))
        return summarize(episodes)

    reports = {name: figures(name) for name in ("plain", *NAMES)}
    clean = {"leaks": 0, "contradictions": 0, "failed": {}}
    assert not any(report["errors_per_100_messages"]["role"] for report in reports.values())
    assert {name: {key: report[key] for key in clean} for name, report in reports.items()} == dict.fromkeys(
        reports, clean
    )
    assert reports["wordy"]["words_per_message"] > 2 * reports["plain"]["words_per_message"]
    assert reports["changing_mind"]["corrected"] > 10 > reports["plain"]["corrected"] == 0
    assert reports["non_native"]["misspelt_per_100_words"] > 5 + reports["plain"]["misspelt_per_100_words"]
    assert reports["vague"]["messages"] > reports["plain"]["messages"]
    assert reports["vague"]["questions_answered"] < reports["plain"]["questions_answered"] == 1.0
    assert reports["plain"] == figures("plain")


def test_dialogues_are_the_users_side(tmp_path, capsys):
    env = textenvs.make("textenv/collab-math", manner="all")
    rows = list(dialogues(env, 20, seed=3))
    assert rows == list(dialogues(env, 20, seed=3))
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert roles[:3] == ["system", "user", "assistant"]
        assert roles[-1] == "assistant"
    assert sum("[[END]]" in row["messages"][-1]["content"] for row in rows) > 0
    file = tmp_path / "talks.jsonl"
    assert main(["users", "dialogues", "textenv/clarify", "-n", "5", "-o", str(file)]) == 0
    assert len(file.read_text().splitlines()) == 5
    report = tmp_path / "report.json"
    words = ["users", "report", "textenv/service-desk", "manner=wordy", "-n", "4", "-o", str(report)]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "per 100 messages" in output
    assert json.loads(report.read_text())["leaks"] == 0
    assert main(["users", "report", "textenv/gsm8k", "-n", "2"]) == 2
    assert main(["users", "dialogues", "textenv/clarify"]) == 2
