"""The files of the applications: enough of them, and what a file may not have."""

from __future__ import annotations

import copy

import pytest

from textenvs.envs.worlds import applications as module
from textenvs.envs.worlds.applications import ApplicationError, applications, plural_of
from textenvs.envs.worlds.skin import FIND, GET
from textenvs.text import load_yaml

FILE = load_yaml("textenvs.envs.worlds.applications", "calendar.yaml")


def test_there_are_enough():
    entities = [entity for one in applications().values() for entity in one.entities.values()]
    assert len(applications()) >= 12
    assert 150 <= sum(2 + len(entity.verbs) for entity in entities) <= 250


def test_no_two_tools_can_share_a_name():
    """Whatever a world draws: names of applications, and in each of verb and entity, are different."""
    called = [word for one in applications().values() for word in one.called]
    assert len(called) == len({*called})
    for one in applications().values():
        names = [
            f"{word}_{entity_word}"
            for entity in one.entities.values()
            for words, entity_words in [
                *((verb.called, entity.called) for verb in entity.verbs.values()),
                (FIND, entity.plural),
                (GET, entity.called),
            ]
            for word in words
            for entity_word in entity_words
        ]
        assert len(names) == len({*names}), one.name


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("entities", "room", "label"), "seats", "no field of kind name"),
        (("entities", "room", "fields", "owner", "to"), "calendar.nothing", "which is nowhere"),
        (("entities", "room", "fields", "seats", "to"), 10, "at least 7 values"),
        (("entities", "room", "fields", "seats", "kind"), "size", "is none of name"),
        (("entities", "room", "called"), ["meeting", "hall"], "entities share meeting"),
        (("entities", "room", "fields", "state", "called"), ["owner"], "fields share owner"),
        (("entities", "room", "actions", "block", "called"), ["release"], "verbs share release"),
        (("entities", "room", "actions", "block", "sets"), {"state": "gone"}, "no value of a field"),
        (("entities", "room", "changes", "give", "gives"), ["name"], "cannot|no field that it can change"),
        (("entities", "meeting", "creates", "sets"), {"state": "planned"}, "has no value for minutes"),
        (("entities", "room", "colour"), "red", "colour is not one of"),
    ],
)
def test_wrong_file_is_refused_in_words(path, value, problem, monkeypatch):
    raw = copy.deepcopy(FILE)
    part = raw
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    real = load_yaml
    monkeypatch.setattr(
        module, "load_yaml", lambda package, name: raw if name == "calendar.yaml" else real(package, name)
    )
    with pytest.raises(ApplicationError, match=problem):
        applications.__wrapped__()


@pytest.mark.parametrize(("word", "plural"), [("box", "boxes"), ("day", "days"), ("city", "cities"), ("room", "rooms")])
def test_plural(word, plural):
    assert plural_of(word) == plural
