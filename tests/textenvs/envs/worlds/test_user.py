"""Answers of the user: a detail that is asked for by name, what is left open otherwise, never a wrong value."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest

from textenvs.envs.worlds.skin import spoken
from textenvs.envs.worlds.story import Detail
from textenvs.envs.worlds.tasks import story_of
from textenvs.envs.worlds.user import answer_to
from textenvs.task import SPLITS

VAGUE = [
    "Which one do you mean?",
    "Which one?",
    "What exactly do you mean?",
    "Can you be more specific?",
    "Please tell me more.",
    "I need more details.",
    "Could you clarify your request?",
    "Sorry, what?",
    "What is it called?",
    "Do you have its name?",
    "Are you sure?",
    "Can you spell it out?",
    "Anything else that I should know?",
    "Tell me everything.",
    "?",
]
CLEAR = [
    "Which {word} do you mean?",
    "What is the {word}?",
    "{word}?",
    "Could you tell me the {word}, please?",
    "Before I go on: the {word} that you spoke of, which is it?",
    "WHICH {word} IS IT",
    'You said "the {word}". Its name, please?',
    "I am ready to start, but I do not know the {word} yet.",
]


@functools.cache
def stories(split):
    """Return stories with one detail, with two, and with one that the user is mistaken about."""
    kinds = {}
    for level, number in [*(("medium", number) for number in range(5)), *(("hard", number) for number in range(60))]:
        story = story_of(f"{level}/{split}/6/{number}/0")
        if len({*kinds} - {0}) == 3:
            break
        wrong = any(len(detail.says) > 1 for detail in story.details)
        kinds.setdefault("wrong" if wrong else len(story.details), story)
    return [story for kind, story in kinds.items() if kind]


def values(story):
    """Return all that the user might tell, right or wrong."""
    return [
        told
        for detail in story.details
        for text in (*detail.says, f'"{detail.value}"')
        for told in re.findall(r'"(.+?)"', text)
    ]


@pytest.mark.xdist_group("stories of worlds")  # one process finds the stories
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("question", VAGUE)
def test_vague_questions_get_no_value(question, split):
    for story in stories(split):
        none = (0,) * len(story.details)
        told, text, move = answer_to(story, none, question, 0)
        assert (told, move) == (none, "complains")
        assert not any(value in text for value in values(story))
        assert all(detail.word in text for detail in story.details)
        everything = tuple(len(detail.says) for detail in story.details)
        told, text, move = answer_to(story, everything, question, 0)
        assert (told, move) == (everything, "complains")
        assert not any(value in text for value in values(story))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("question", CLEAR)
def test_clear_questions_are_answered(question, split):
    for story in stories(split):
        for number, detail in enumerate(story.details):
            for word in {detail.word, *(word for word in detail.about if word != "who")}:
                none = (0,) * len(story.details)
                told, text, move = answer_to(story, none, question.format(word=word), 0)
                assert (told[number], move) == (1, "reveals")
                assert detail.says[0] in text


@pytest.mark.parametrize(
    "statement",
    [
        "I will look at the {word} now. Please wait.",
        "I have seen the state of the {word}.",
        "I share your view of the {word}.",
        "Here is the {word}, which I can find.",
        "I will look at the {word} now. Is that all right?",
        "The {word} needs a name.",
    ],
)
def test_statements_get_no_value(statement):
    for story in stories("train"):
        none = (0,) * len(story.details)
        for detail in story.details:
            disclosed, text, _ = answer_to(story, none, statement.format(word=detail.word), 0)
            assert disclosed == none
            assert not any(value in text for value in values(story))


def test_two_things_may_be_asked_for_at_once():
    story = next(story for split in SPLITS for story in stories(split) if len(story.details) == 2)
    first, second = story.details
    told, text, _ = answer_to(story, (0, 0), f"Which {first.word} and which {second.word} do you mean?", 0)
    assert told == (1, 1)
    assert text == f"{first.says[0]} {second.says[0]}"


@pytest.mark.parametrize("split", SPLITS)
def test_list_of_everything_is_no_question(split):
    for story in stories(split):
        entities = story.world.schema.entities.values()
        words = {spoken(name) for entity in entities for name in (*entity.called, *entity.fields)}
        none = (0,) * len(story.details)
        for question in (
            "Which " + " or ".join(sorted(words)),
            " ".join(sorted(words)[:10] + [one.word for one in story.details]),
        ):
            told, text, _ = answer_to(story, none, question, 0)
            assert told == none
            assert not any(value in text for value in values(story))
        told, *_ = answer_to(story, none, f"{'Well, ' * 100}which {story.details[0].word}?", 0)
        assert told == none


@pytest.mark.parametrize("split", SPLITS)
def test_doubted_mistakes_are_corrected(split):
    story = next(story for story in stories(split) if any(len(detail.says) > 1 for detail in story.details))
    place, detail = next((place, one) for place, one in enumerate(story.details) if len(one.says) > 1)
    once = tuple(int(number == place) for number in range(len(story.details)))
    (wrong,) = re.findall(r'"(.+?)"', detail.says[0]) or [None]
    if wrong is not None:
        told, text, move = answer_to(story, once, f'I cannot find "{wrong}".', 1)
        assert (told[place], text, move) == (2, detail.says[1], "corrects")
    told, text, move = answer_to(story, once, f"Which {detail.word}, please?", 1)
    assert (told[place], text, move) == (2, detail.says[1], "corrects")


def test_answers_differ_from_turn_to_turn():
    story = stories("train")[0]
    for told in ((0,) * len(story.details), tuple(len(detail.says) for detail in story.details)):
        assert len({answer_to(story, told, "Hm?", idle)[1] for idle in range(4)}) == 4
    word = story.details[0].word
    everything = tuple(len(detail.says) for detail in story.details)
    texts = {answer_to(story, everything, f"Which {word}?", idle)[1] for idle in range(4)}
    assert len(texts) == 4
    assert all(story.details[0].value in text for text in texts)


def test_who_asks_for_a_person():
    detail = Detail("employee", frozenset({"employee", "who"}), ('The employee is "Ada One".',), '"Ada One"')
    story = replace(stories("train")[0], details=(detail,))
    assert answer_to(story, (0,), "Whom do you mean?", 0) == ((1,), detail.says[0], "reveals")
