"""The audit finds a planted weakness of every kind, names its cause, and passes what is sound."""

import json
import re
from dataclasses import replace

import pytest
from planted import (
    CopyInTags,
    DayRangeCounts,
    FailureIsPaid,
    FillerIsPaid,
    GuessedByChance,
    ListsCount,
    MenuConsent,
    NoAttacks,
    NoExpert,
    OneWorld,
    PatchedChecker,
    PaysEveryTurn,
    RestatedCounts,
    Sound,
    ToldToFiller,
    Unspoken,
    WorthlessExpert,
)

from textenvs.audit import Subject, audit
from textenvs.audit.earnings import failing_first, own_attacks, remembering, returns, unasked
from textenvs.audit.odd_replies import odd_replies
from textenvs.audit.programs import programs
from textenvs.audit.search import Composition, learned_forms, search
from textenvs.audit.subject import floor_of, mean, solved
from textenvs.evaluate.baselines import play_attack
from textenvs.messages import user


def subject(kind):
    return Subject(kind, episodes=20)


def test_a_sound_environment_passes():
    verdicts = audit(Sound, episodes=20)
    assert not [verdict for verdict in verdicts if verdict.failed]
    assert {"determinism", "copies", "processes", "returns", "search", "cost"} <= {judged.check for judged in verdicts}


@pytest.mark.parametrize(
    ("kind", "check", "cause"),
    [
        (FillerIsPaid, unasked, "filler is paid"),
        # Causes that another one here has, too, found by the same search.
        pytest.param(ToldToFiller, search, "filler is paid", marks=pytest.mark.slow),
        (ListsCount, search, "a list of candidates counts as an answer"),
        pytest.param(DayRangeCounts, search, "a list of candidates counts as an answer", marks=pytest.mark.slow),
        (MenuConsent, search, "consent to a menu"),
        (RestatedCounts, search, "the problem restated counts as its answer"),
        (PatchedChecker, programs, "in the environment's own process"),
        (FailureIsPaid, failing_first, "a failure before the success is paid"),
        (OneWorld, remembering, "tasks repeat"),
        (WorthlessExpert, returns, "the expert earns no more than silence or random replies"),
    ],
)
def test_planted_weakness_is_found_and_named(kind, check, cause):
    verdict = check(subject(kind))
    assert verdict.failed, verdict
    assert cause in verdict.cause
    assert verdict.evidence


@pytest.mark.parametrize("check", [unasked, failing_first, remembering, search])
def test_a_sound_environment_has_no_weakness(check):
    assert check(subject(Sound)).status == "pass"


def test_search_reports_numbers_of_candidates():
    evidence = search(replace(subject(Sound), search=10)).evidence
    assert re.match(r"best of 10 drawn and [1-3] near the best of these: ", evidence), evidence


def test_limits_ignore_random_replies(monkeypatch):
    played = subject(Sound)
    limit = played.limit
    played.random = [replace(record, turn_rewards=(-1000.0,)) for record in played.random]
    assert played.limit == limit
    assert played.floor == 0.0  # silence loses something here, and doing nothing does not
    assert mean(played.silence) < 0.0
    assert limit == pytest.approx(mean(played.expert) * (1 - played.env.attack_margin))


@pytest.mark.parametrize(("silence", "expert", "floor"), [(-0.5, 1, 0), (0.2, 1, 0.2), (-9, -2, -9), (0, 0, 0)])
def test_floor_is_zero_or_pay_of_silence(silence, expert, floor):
    assert floor_of(silence, expert) == floor


@pytest.mark.parametrize(
    ("replies", "form"),
    [
        (["<answer>12</answer>", "<answer>7 or so</answer>"], "<answer>{}</answer>"),
        (["<document>\nA cat\n</document>", "Here:\n<document>\nA dog\n</document>"], "<document>\n{}\n</document>"),
        (["```python\ndef f(x): ...\n```", "```python\ndef g(y): ...\n```"], "```python\n{}\n```"),
        (["I guess [12].", "So [7]"], "[{}]"),
        (["[col 3]", "[col 4]", "[col 3]"], "[col {}]"),
        (["go north\ntake lamp", "open door\ngo east\nlook"], "a line each"),
        (["Answer: red", "I see.\nAnswer: blue"], "Answer: {}"),
        (["The total is 12.", "The total is 15."], "The total is {}."),
        (["so \\boxed{12}", "\\boxed{x+1} it is"], "\\boxed{{}}"),
    ],
)
def test_answer_form_is_learned_from_replies(replies, form):
    assert form in learned_forms(replies)
    say = Composition(form=form, kind="numbers", pick="last").cheater([])
    lines = say((user("Is it 3 or 5?"),))
    assert lines == ("5" if form == "a line each" else form.replace("{}", "5", 1))


@pytest.mark.parametrize(
    "replies", [[], ["one"], ["red", "blue"], ["<tool_call>1</tool_call>", "<tool_call>2</tool_call>"]]
)
def test_replies_without_form_teach_none(replies):
    assert learned_forms(replies) == []


def test_search_without_well_formed_answer_fails():
    """Its answers stand between marks that no composition and no reply of the expert's shows as such."""
    verdict = search(replace(subject(Unspoken), search=20))
    assert verdict.failed
    assert "no cheap reply was ever in the form of an answer (metric 'well_formed')" in verdict.cause


def test_search_without_ceiling_fails():
    verdict = search(replace(subject(NoExpert), search=10))
    assert (verdict.status, "no ceiling" in verdict.cause) == ("fail", True)


def test_paid_empty_reply_without_expert_warns():
    (verdict,) = [
        verdict for verdict in odd_replies(subject(PaysEveryTurn)) if verdict.check == "odd replies that earn"
    ]
    assert verdict.status == "warning"
    assert "+0.300 in one episode" in verdict.evidence


def test_copy_in_learned_form_is_found():
    verdict = search(replace(subject(CopyInTags), search=60))
    assert verdict.failed
    assert "<reply>{}</reply>" in verdict.evidence, verdict


def test_environment_without_own_attacks_gets_warning():
    (verdict,) = [check for check in own_attacks(subject(NoAttacks)) if check.check == "attacks"]
    assert verdict.status == "warning"
    assert "own_attacks = " in verdict.cause


def test_lucky_attack_plays_more_tasks():
    attack = GuessedByChance().attacks()[-1]
    seed = next(seed for seed in range(30) if solved(play_attack(GuessedByChance, attack, 20, seed=seed)) > 0.05)
    verdicts = own_attacks(replace(subject(GuessedByChance), seed=seed))
    (verdict,) = [verdict for verdict in verdicts if verdict.check == f"attack {attack.name}"]
    assert verdict.status == "pass", verdict
    assert "of 200 tasks" in verdict.evidence


def test_value_of_many_digits_becomes_finite():
    schema = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "number"}}}}}
    say = Composition(form="tool f").cheater([schema])
    (call,) = say((user("What is " + "9" * 999 + "?"),))["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"x": 0.0}
