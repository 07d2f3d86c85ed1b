"""Requests in words: English that rules can check, enough wordings of every part, one meaning each."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pytest

from textenvs.envs.worlds.applications import Field, applications
from textenvs.envs.worlds.drafts import draw_draft
from textenvs.envs.worlds.forms import FORMS
from textenvs.envs.worlds.goals import (
    Do,
    Follow,
    Literal,
    Me,
    Named,
    Pick,
    Read,
    Select,
    Tell,
    When,
    Where,
    naive,
)
from textenvs.envs.worlds.house import rules_in_words
from textenvs.envs.worlds.rules import Limit
from textenvs.envs.worlds.skin import spoken
from textenvs.envs.worlds.tasks import story_of, world_of
from textenvs.envs.worlds.wording import _PHRASES, Speaker, capitalized, enumerated, negated, phrases, quantity
from textenvs.envs.worlds.world import draw_world
from textenvs.task import SPLITS

LEVELS = ("easy", "medium", "hard")
#: Last words of verbs that stand after the object or before it: "put it away", "put away the note".
PARTICLES = {"away", "back", "by", "down", "in", "off", "on", "out", "over", "up"}
#: Words of which every record's names or a request may have two in a row.
FAULTS = {
    "a word twice": r"\b(\w+) \1\b",
    "a space too many": r"  | [,.;:?!]|^ | $",
    "a before a vowel": r"\b[Aa] [aeio]",
    "an before a consonant": r"\b[Aa]n [^aeiou]",
    "two marks": r"[,.;:?!][,.;:?!]",
    "a sentence in small letters": r"(^|[.?!] )[a-z]",
    "no end": r"[^.?!]$",
    "a name of the code": r"[{}\[\]_]",
    "one of several": r"\b1 (euro|kilomet|minut|hour|page|word|gram|night)\w*s\b",
    "a plural that is": r"\b(those|all|they) (is|has|was)\b|\bits? (are|have|were)\b",
    "a pronoun before its noun": r"^[^.]*\bit\b, ",
}


@functools.cache
def worlds(level, split):
    return [world_of(level, split, "0", "", str(number)) for number in range(3)]


@functools.cache
def drafts(level):
    """Return a goal for each form of a level, or several forms, with its world."""
    found = {}
    for number in range(160 if level == "medium" else 8):
        world = worlds(level, "train")[number % 3]
        draft = draw_draft(world, level, np.random.default_rng(number))
        found.setdefault(draft.forms, (world, draft))
    return found


def said(story):
    """Return all that a user says in an episode, and the notices, without names in quotes."""
    texts = [story.request, *(text for detail in story.details for text in detail.says)]
    texts += [event.notice.removeprefix("[Notice] ") for event in story.events]
    return [re.sub(r'"[^"]*"', "Q", text) for text in texts]


@pytest.mark.parametrize(("level", "split"), [*itertools.product(LEVELS, SPLITS)])
def test_english_has_no_fault_that_a_rule_finds(level, split):
    for number in range(5):
        story = story_of(f"{level}/{split}/5/{number}/0")
        for text in said(story):
            assert story.request.count('"') % 2 == 0
            for fault, pattern in FAULTS.items():
                assert not re.search(pattern, text), f"{fault}: {text}"


def test_lists_are_long_enough_for_both_splits():
    for name in _PHRASES:
        train, test = (phrases(name, split) for split in SPLITS)
        assert len({*train, *test}) >= 9, name
        assert len(test) >= 3, name
        assert not {*train} & {*test}, name


@pytest.mark.parametrize("split", SPLITS)
def test_every_form_has_twenty_wordings(split):
    seen = drafts("medium") | drafts("hard")
    assert {name for names in seen for name in names} == FORMS.keys()
    for name, (world, draft) in seen.items():
        speakers = [Speaker(world, split, np.random.default_rng(seed)) for seed in range(40)]
        texts = {speaker.request(draft.goal, draft.user) for speaker in speakers}
        # The greeting is no wording of the goal.
        assert len({re.split(r"(?<=[.?!]) ", text, maxsplit=1)[1] for text in texts}) >= 20, name


def test_authority_phrases_tell_right_from_wrong():
    """No phrase says the same with the two exchanged, and each names both."""
    for name, first in (("right_before_wrong", "{right}"), ("wrong_before_right", "{wrong}")):
        for phrase in _PHRASES[name]:
            assert phrase.count("{right}") == phrase.count("{wrong}") == 1
            assert min("{right}", "{wrong}", key=phrase.index) == first


def test_answers_name_what_they_are_about():
    """A user who is asked for two things at once answers with two sentences: each says what it is about."""
    for name in ("answer", "corrected", "repeated", "wrong"):
        assert all("{word}" in text and "{value}" in text for text in _PHRASES[name])


def test_another_goal_is_another_text():
    for world, draft in drafts("medium").values():
        texts = {}
        for goal in (draft.goal, *naive(draft.goal)):
            for seed in range(4):
                text = Speaker(world, "train", np.random.default_rng(seed)).request(goal, draft.user)
                assert texts.setdefault(text, goal) == goal


# ---------------------------------------------------------------------- parts, on goals written by hand


def request(goal, split="train", seed=0):
    world = worlds("easy", split)[0]
    return Speaker(world, split, np.random.default_rng(seed)).request(goal, world.ids("personnel.person")[0])


PERSON, TEAM = "personnel.person", "personnel.team"


def label(entity, place=0, split="train"):
    world = worlds("easy", split)[0]
    return world.label(entity, world.ids(entity)[place])


def goals():
    """Return a goal with every part of the language."""
    person, team = Named(PERSON, label(PERSON)), Named(TEAM, label(TEAM))
    some = Select(
        PERSON, (Where("team", "is", team), Where("state", "not", Literal("away")), Where("grade", "over", Literal(3)))
    )
    lead = Follow(team, "lead", PERSON)
    return (
        Do(lead, "mark_away"),
        Do(Pick(some, "grade", True), "assign", (("team", Follow(Me(), "team", TEAM)),)),
        Do(some, "move", (("office", Follow(lead, "office", "personnel.office")), ("desk", Literal(101)))),
        When(person, Where("grade", "under", Literal(5)), Tell(Read(lead, "desk")), Do(person, "mark_back")),
        Do(team, "fund", (("budget", Read(team, "budget")),)),
    )


@pytest.mark.parametrize("seed", range(6))
def test_all_parts_can_be_said(seed):
    for split in SPLITS:
        text = re.sub(r'"[^"]*"', "Q", request(goals(), split, seed))
        for fault, pattern in FAULTS.items():
            assert not re.search(pattern, text), f"{fault}: {text}"
        assert re.search(r"\bthem\b|\btheir\b", text)
        assert not re.search(r"\bmy\b [a-z ]* of me\b", text)


def test_people_are_they_and_things_are_it():
    person = (
        Do(Named(PERSON, label(PERSON)), "move", (("office", Named("personnel.office", "Q")), ("desk", Literal(7)))),
    )
    thing = (Do(Named(TEAM, label(TEAM)), "fund", (("budget", Literal(500)),)),)
    for seed in range(30):
        assert not re.search(r"\b(it|its)\b", request(person, seed=seed).partition(", ")[2].replace("it's", ""))
        assert not re.search(r"\b(them|their)\b", request(thing, seed=seed))


def test_objects_stand_where_verbs_have_them():
    """Pronouns stand before the particle, a noun behind it; both inside "mark ... as away"."""
    for one in applications().values():
        for entity in one.entities.values():
            for verb in entity.verbs.values():
                particles = {word.partition("_")[2] for word in verb.called if word not in verb.phrases} - {""}
                assert verb.kind == "create" or particles <= PARTICLES, f"{entity.key}: {verb.name}"
                assert all(phrase.count("{}") == 1 for phrase in verb.phrases.values())
    speaker = Speaker(worlds("easy", "train")[0], "train", np.random.default_rng(0))
    entity = speaker.world.schema.entities[PERSON]
    said_by = speaker._verb(entity, entity.verbs["mark_away"])
    assert said_by("them", True) in ("mark them as away", "send them on leave")
    team = speaker.world.schema.entities[TEAM]
    assert speaker._verb(team, team.verbs["appoint"])("it", True) in ("hand it over", "reassign it", "pass it on")


def test_names_of_fields_are_singular_nouns():
    for application in applications().values():
        for entity in application.entities.values():
            for one in entity.fields.values():
                for word in one.called:
                    noun = one.noun(word)
                    assert not re.search(r"[^s]s$", noun) or noun.startswith("number of ") or word == "status", (
                        f"{entity.key}.{word}"
                    )


@pytest.mark.parametrize("op", ["over", "under", "is", "not"])
def test_negated_condition_holds_where_the_other_does_not(op):
    one = Field("any", "number", ("any",), low=0, high=40, step=5)
    holds = {
        "over": lambda value, limit: value > limit,
        "under": lambda value, limit: value < limit,
        "is": lambda value, limit: value == limit,
        "not": lambda value, limit: value != limit,
    }
    for limit in one.domain():
        other = negated(one, Where("any", op, Literal(limit)))
        for value in one.domain():
            assert holds[op](value, limit) != holds[other.op](value, other.value.value)


def test_excluded_name_comes_first_or_last():
    right, wrong = label(TEAM, 0), label(TEAM, 1)
    goal = (Do(Named(TEAM, right, (wrong,)), "fund", (("budget", Literal(500)),)),)
    texts = [request(goal, seed=seed) for seed in range(60)]
    assert all(right in text and wrong in text for text in texts)
    assert 20 < sum(text.index(right) < text.index(wrong) for text in texts) < 40


def test_rule_phrases_fit_their_conditions():
    """In a rule with the opposite of what it forbids, the phrase is one of those for needs."""
    seen = set()
    for number, split in itertools.product(range(40), SPLITS):
        world = draw_world("medium", f"rules/{split}/{number}")
        for rule, text in zip(world.rules, rules_in_words(world, split), strict=True):
            if not isinstance(rule, Limit):
                continue
            kinds = []
            for name in ("forbids", "needs"):
                for phrase in phrases(name, split):
                    parts = {r"\{deed\}": '"[^"]*" of an? [a-z ]+', r"\{holds\}": "(.*)"}
                    pattern = re.escape(phrase)
                    for part, own in parts.items():
                        pattern = pattern.replace(part, own)
                    kinds += [(name, match[1]) for match in [re.fullmatch(pattern, text, re.I)] if match]
            one = world.schema.entities[rule.entity].fields[rule.field]
            name, said_of = min(kinds, key=lambda kind: len(kind[1]))  # "requires that", "requires that it is not"
            above = rule.over == (name == "forbids")
            lists = ("after", "before") if one.kind == "day" else ("over", "under")
            chosen = phrases(lists[0] if above else lists[1], split)
            assert any(re.search(re.sub(r"\\{\w+\\}", ".+", re.escape(own)) + "$", said_of) for own in chosen), text
            seen.add((name, above))
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("kind", "value", "noun", "unit", "text"),
    [
        ("money", 5750, "budget", "", "5,750 euros"),
        ("money", 1, "price", "", "1 euro"),
        ("day", 1, "date", "", "1 January 2026"),
        ("day", 365, "date", "", "31 December 2026"),
        ("number", 1200, "distance", "kilometres", "1,200 kilometres"),
        ("number", 1, "length", "pages", "1 page"),
        ("number", 12, "number of pages", "pages", "12"),
        ("number", 30, "word count", "words", "30"),
        ("number", 4512, "extension", "", "4512"),
    ],
)
def test_quantities(kind, value, noun, unit, text):
    assert quantity(Field("any", kind, ("any",), unit=unit), value, noun) == text


def test_enumerations_and_capitals():
    assert [enumerated(part) for part in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert capitalized("the EU") == "The EU"
    assert spoken("phone_number") == "phone number"
