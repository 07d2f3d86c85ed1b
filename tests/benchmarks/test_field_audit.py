"""The audit of published environments finds what is planted, and nothing in a sound one."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.field_audit import checks, page
from benchmarks.field_audit.__main__ import CONFIRMING, EPISODES, confirmed, judged
from benchmarks.field_audit.registration import RegisteredEnv, Registration, Step
from benchmarks.field_audit.sources import packages
from textenvs.attack import always
from textenvs.audit.contract import play_episodes, secrets
from textenvs.audit.search import search
from textenvs.audit.subject import Subject


class Sum:
    """A question with one answer; ``weakness`` says what is wrong with its scorer."""

    def __init__(self, weakness: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        a, b = (int(number) for number in rng.integers(10**6, 10**7, 2))
        self.weakness, self.key = weakness, str(a + b)
        self.opening = f"What is {a} + {b}?"
        self.secrets = (self.key,)
        if weakness == "fails to begin" and seed > 1:
            raise LookupError("no such level")
        if weakness == "global generators":
            self.opening += f" {random.random()}"
        if weakness == "shows a secret":
            self.opening = "Guess a number."

    def reply(self, text: str) -> Step:
        if self.weakness == "raises":
            float(text)
        if self.weakness == "runs code":
            with contextlib.suppress(BaseException):
                eval(text)  # the weakness that is planted
        if self.weakness == "hangs" and text.startswith("("):
            with contextlib.suppress(Exception):  # as scorers do
                time.sleep(60)
        if self.weakness == "shows a secret" and text.strip() != self.key:
            return Step(f"No. It is {self.key}.")
        answer = text if self.weakness == "refuses spaces" else text.strip()
        right = self.key in answer if self.weakness == "takes a list" else answer == self.key
        right = answer.startswith(self.key) if self.weakness == "takes two answers" else right
        right = right and self.weakness != "refuses its own answer"
        paid = 0.3 if self.weakness == "pays for nothing" else 0.0
        return Step("", 1.0 if right else paid, done=True)

    def expert(self, rng: np.random.Generator) -> str:
        return self.key


def planted(weakness: str) -> Registration:
    return Registration(f"sums/{weakness}", "sums", functools.partial(Sum, weakness), solvable=True, question=True)


def kinds_of(weakness: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setattr(checks, "_SLOW_S", 0.2)
    registration = planted(weakness)
    subject = Subject(functools.partial(RegisteredEnv, registration), episodes=10)
    verdicts = [*checks.odd_replies(registration), checks.global_generators(registration)]
    verdicts += [*checks.answers(registration), checks.idle(subject, registration.full)]
    verdicts.append(replace(secrets(subject, play_episodes(subject)), check="shows a secret"))
    return {verdict.check for verdict in verdicts if verdict.failed}


WEAKNESSES = [kind for kinds in page.GROUPS.values() for kind in kinds]
#: Checks of ``textenvs.audit``, which has tests of its own; what ends the audit.
ELSEWHERE = {
    "fails to begin",
    "cheap policy",
    "memorised answers",
    "no gain by being right",
    "another episode",
    "unfinished",
}


@pytest.mark.parametrize("weakness", [kind for kind in WEAKNESSES if kind not in ELSEWHERE])
def test_planted_weakness_is_named_alone(weakness, monkeypatch):
    others = {"takes two answers"} if weakness == "takes a list" else set()  # a list of two is one as well
    assert kinds_of(weakness, monkeypatch) - others == {weakness}


def test_reset_that_raises_is_named():
    verdicts = [*checks.odd_replies(planted("fails to begin"))]
    assert [(verdict.check, verdict.status) for verdict in verdicts] == [("fails to begin", "fail")]
    assert "no such level" in verdicts[0].evidence


def test_sound_environment_has_no_finding(monkeypatch):
    assert kinds_of("none", monkeypatch) == set()


@pytest.mark.parametrize(("seeds", "expected"), [(1, 0.0), (4, 0.25)])
def test_chance_counts_answers_of_different_questions(seeds, expected):
    few = replace(planted("none"), begin=lambda seed: Sum("none", seed % seeds))
    assert checks.chance(few, questions=8) == expected


def test_exception_ends_an_episode_unpaid():
    env = RegisteredEnv(planted("raises"))
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("no number")
    assert (reward, terminated, info["stop"], info["metrics"]["raised"]) == (0.0, True, "raised", 1.0)
    assert "ValueError" in info["reason"]


def test_tables_count_every_row_once(tmp_path):
    verdicts = [["cheap policy", "fail", "", "most-frequent: +0.900"], ["cheap policy", "fail", "", "search"]]
    rows = [
        {"name": "one/a", "began": False, "cause": "before it was installed"},
        {"name": "one/a", "began": True, "verdicts": verdicts, "earned": {"most-frequent": 0.9}, "expert": 1.0},
        {"name": "one/b", "began": True, "verdicts": [["raises", "pass", "", ""]], "silence": 0.0, "expert": None},
        {"name": "two/c", "began": True, "unfinished": "not done in 600 s"},
        {"name": "two/d", "began": False, "cause": "LookupError: words"},
    ]
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = page.tables(page.read(file))
    assert "| all | 2 | 1 (9 to 91 %) | 0 (0 to 66 %) | 0 (0 to 66 %) | 1 (9 to 91 %) |" in text
    assert "| one/a |  | 1.00 | 0.90 (most-frequent) |  |  | cheap policy |" in text
    assert "| two/c | not done in 600 s |" in text
    assert "| two/d | LookupError: words |" in text


@pytest.mark.parametrize(
    ("prefixes", "matches"), [("", True), ("gem/Sudoku", True), ("ge", True), ("reasoning-gym/gsm_symbolic", False)]
)
def test_only_selected_packages_are_needed(prefixes, matches):
    (package,) = [package for package in packages() if package.prefix == "gem/"]
    assert package.matches(prefixes.split(",")) == matches


class Lopsided:
    """A question of yes or no that is answered by yes in seven of ten cases."""

    def __init__(self, seed: int) -> None:
        self.secrets: tuple[str, ...] = ()
        self.key = "Yes" if np.random.default_rng(seed).random() < 0.7 else "No"
        self.opening = f"Is {seed} one of them?"

    def reply(self, text: str) -> Step:
        return Step("", float(text.strip() == self.key), done=True)

    def expert(self, rng: np.random.Generator) -> str:
        return self.key


def key_of(talk):
    return Lopsided(int(talk[-1]["content"].split()[1])).key


def test_lucky_policy_is_played_again():
    registration = Registration("sums/lopsided", "sums", Lopsided, solvable=True, question=True)
    make_env = functools.partial(RegisteredEnv, registration, 0.5)
    larger = Subject(make_env, CONFIRMING, seed=100)
    judge = functools.partial(judged, always("yes", "says yes", "Yes", fakes_solving=False), {})
    lucky = next(subject for seed in range(20) if judge(subject := Subject(make_env, EPISODES, seed=seed)).failed)
    assert confirmed(judge, lucky, larger).status == "pass"
    knowing = functools.partial(judged, always("key", "knows", key_of, fakes_solving=False), {})
    assert confirmed(knowing, lucky, larger).status == "fail"


def test_search_judges_its_first_policy_again():
    registration = Registration("sums/lopsided", "sums", Lopsided, solvable=True, question=True)
    subject = Subject(functools.partial(RegisteredEnv, registration, 0.0), EPISODES, search=20)
    evidence = [search(replace(subject, episodes=episodes)).evidence for episodes in (EPISODES, CONFIRMING)]
    first, second = (text.partition(": mean return")[0] for text in evidence)
    assert first == second != ""
