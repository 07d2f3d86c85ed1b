"""The audit finds a planted hole of every kind that published environments have."""

import sys

import holes
import pytest

from textenvs.audit import Subject, checks
from textenvs.audit.answers import answers
from textenvs.audit.contract import determinism, play_episodes, secrets
from textenvs.audit.farming import farming
from textenvs.audit.odd_replies import odd_replies
from textenvs.audit.search import search
from textenvs.scoring.gsm8k import judge

NEW = {
    "odd replies": odd_replies,
    "odd replies that earn": odd_replies,
    "answers": answers,
    "harmless forms": answers,
    "the expert's own answers": answers,
    "a paid turn again": farming,
    "an ending put off": farming,
}


def verdict_on(kind, check):
    return {verdict.check: verdict for verdict in NEW[check](Subject(kind, episodes=20))}[check]


@pytest.mark.parametrize(
    ("kind", "check", "cause", "evidence"),
    [
        (holes.AnyAnswerIsRight, "odd replies that earn", "a reply without an answer is paid", ""),
        (holes.NanIsRight, "odd replies that earn", "no finite number", "nan"),
        (holes.SilenceIsPaid, "odd replies that earn", "what is empty", "'' on every turn"),
        (holes.EmptyAnswerIsPaid, "odd replies that earn", "what is empty", "'<answer></answer>'"),
        (holes.RunsPython, "odd replies", "runs as code", "__import__"),
        (holes.RunsShell, "odd replies", "runs as code", "touch"),
        (holes.EndsItsProcess, "odd replies", "ends the process", "9**9**9"),
        (holes.OnlyDigitsAreIntegers, "odd replies", "makes it raise", "²"),
        (holes.ParsesBrackets, "odd replies", "makes it raise", "RecursionError"),
        (holes.ReadsTheBeginning, "answers", "may hedge", "No, it is"),
        (holes.TakesAList, "answers", "a list of answers counts", " or "),
        (holes.BestOfSeveral, "answers", "the best counts", ""),
        (holes.DropsOtherCharacters, "answers", "another number", ""),
        (holes.RefusesSpaces, "answers", "between spaces", ""),
        (holes.RepeatIsPaid, "a paid turn again", "paid again", "+2.400"),
        (holes.EndingCosts, "an ending put off", "never ending earns more", "+1.000"),
    ],
)
def test_planted_hole_is_found(kind, check, cause, evidence):
    verdict = verdict_on(kind, check)
    assert verdict.failed, verdict
    assert cause in verdict.cause
    assert evidence in verdict.evidence


def test_reply_that_hangs_is_found(monkeypatch):
    monkeypatch.setattr(sys.modules[odd_replies.__module__], "_SLOW_S", 0.4)
    verdict = verdict_on(holes.Hangs, "odd replies")
    assert verdict.failed
    assert "takes longer than 0.4 s" in verdict.cause


@pytest.mark.parametrize(
    ("kind", "check", "cause"),
    [
        (holes.RefusesBold, "harmless forms", "refused in every other form"),
        (holes.RefusesItsAnswer, "the expert's own answers", "are refused"),
    ],
)
def test_refused_right_answer_gets_warning(kind, check, cause):
    verdict = verdict_on(kind, check)
    assert verdict.status == "warning"
    assert cause in verdict.cause


@pytest.mark.parametrize("kind", [holes.SeedsGlobals, holes.AnotherTask])
def test_draws_from_elsewhere_are_found(kind):
    subject = Subject(kind)
    verdict = determinism(subject, play_episodes(subject))
    assert verdict.failed
    assert "self.np_random alone" in verdict.cause


def test_answer_in_info_is_found():
    subject = Subject(holes.AnswerInInfo)
    assert "info has a secret" in secrets(subject, play_episodes(subject)).cause


def test_answer_in_opening_is_found():
    assert search(Subject(holes.ShowsTheAnswer, episodes=20, search=60)).failed


def test_sound_question_passes_every_check():
    judged = list(checks(Subject(holes.Question, episodes=20, search=40)))
    assert not [verdict for verdict in judged if verdict.status in ("fail", "warning") and verdict.check != "twins"]
    passed = {verdict.check for verdict in judged if verdict.status == "pass"}
    assert {"odd replies", "odd replies that earn", "answers", "harmless forms", "the expert's own answers"} <= passed


@pytest.mark.parametrize("answer", ["12\u0663", "12\uff13", "12\xb2", "\u066312", "12.\u0663"])
def test_number_with_other_digits_is_refused(answer):
    assert not judge(f"#### {answer}", 12, "marked").correct


@pytest.mark.parametrize("answer", ["12", "12 m\xb2", "12.", "12 %", "12 cards"])
def test_number_beside_its_unit_is_right(answer):
    assert judge(f"#### {answer}", 12, "marked").correct
