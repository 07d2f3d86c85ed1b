"""The files of the applications: enough of them, and what a file may not have."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml

from textenvs.envs.worlds import applications as module
from textenvs.envs.worlds.applications import ApplicationError, applications, plural_of
from textenvs.envs.worlds.skin import FIND, GET
from textenvs.text import load_yaml

MISSING = object()
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
        (("entities", "room", "changes", "give", "gives"), ["budget"], "no field that it can change"),
        (("entities", "room", "fields", "budget", "of"), "owner", "not a reference and a field, as in owner.desk"),
        (
            ("entities", "room", "fields", "budget", "of"),
            "seats.budget",
            "of has 'seats', which is no field of kind ref",
        ),
        (
            ("entities", "room", "fields", "budget", "of"),
            "owner.name",
            "of has 'name', which is no field of kind ref, n",
        ),
        (("entities", "room", "fields", "budget", "of"), "owner.floors", "of has 'floors'"),
        (("entities", "room", "fields", "budget", "to"), 10, "field budget: to is not one of kind, called, of"),
        (("entities", "meeting", "fields", "seat"), {"kind": "copy", "of": "host.desk", "called": ["seat"]}, "a copy"),
        (("entities", "meeting", "creates", "sets"), {"state": "planned"}, "has no value for minutes"),
        (("entities", "room", "colour"), "red", "colour is not one of"),
        (("entities", "room"), ["name"], "must be a mapping with called, share, label, fields"),
        (("entities", "room", "share"), MISSING, "share is missing; there must be called, share"),
        (("entities", "room", "share"), "many", "share must be an integer from 1, not 'many'"),
        (("entities", "room", "share"), 0, "share must be an integer from 1, not 0"),
        (("entities", "room", "person"), "yes", "person must be true or false"),
        (("entities", "room", "called"), "room", "called must be a list of names"),
        (("entities", "room", "called"), ["Room"], "called has 'Room'; a name is small letters"),
        (("entities", "room", "called"), [True, "hall"], "called has True"),
        (("entities", "room", "plural"), ["rooms"], "plural has 1 words for 3"),
        (("entities", "room", "fields"), {}, "fields must be a mapping with at least one entry"),
        (("entities", "room", "fields", "seats"), 4, "field seats: kind 4 is none of name, ref"),
        (("entities", "room", "fields", "seats", "step"), MISSING, "field seats: step is missing"),
        (("entities", "room", "fields", "seats", "step"), 0, "field seats: step must be an integer from 1, not 0"),
        (("entities", "room", "fields", "seats", "from"), 1.5, "field seats: from must be an integer, not 1.5"),
        (("entities", "room", "fields", "seats", "unit"), 3, "field seats: unit must be a noun"),
        (("entities", "room", "fields", "state", "values"), ["open"], "field state: values must be a mapping"),
        (("entities", "room", "fields", "name", "words"), ["trees"], "field name: words must name two lists"),
        (("entities", "room", "fields", "name", "words"), ["trees", "nothing"], "'nothing', which is no list of words"),
        (("entities", "room", "fields", "owner", "unit"), "rooms", "field owner: unit is not one of kind, called, to"),
        (("entities", "room", "actions", "block", "called"), ["take {}"], "or words with their object as {}"),
        (("entities", "room", "actions", "block", "needs"), MISSING, "block: needs is missing"),
        (("entities", "room", "changes", "give", "sets"), {"state": "open"}, "give: sets is not one of called, gives"),
        (("entities", "meeting", "creates", "gives"), MISSING, "creates: gives is missing"),
        (("called",), MISSING, "called is missing; there must be called, entities"),
    ],
)
def test_wrong_file_is_refused_in_words(path, value, problem, monkeypatch):
    """The message has the file, the place in it, and what fits there."""
    raw = copy.deepcopy(FILE)
    part = raw
    for key in path[:-1]:
        part = part[key]
    if value is MISSING:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    real = load_yaml
    monkeypatch.setattr(
        module, "load_yaml", lambda package, name: raw if name == "calendar.yaml" else real(package, name)
    )
    with pytest.raises(ApplicationError, match=problem) as error:
        applications.__wrapped__()
    assert str(error.value).startswith("calendar.yaml: ")
    assert len(path) == 1 or path[1] in str(error.value) or path[-1] == "called"


def test_example_of_the_page_is_an_application():
    page = (Path(__file__).parents[4] / "docs/environments/worlds.md").read_text("utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    made = module._application("calendar.yaml", yaml.safe_load(example))
    (meeting,) = made.entities.values()
    real = applications()["calendar"].entities["calendar.meeting"]
    assert {*meeting.fields} < {*real.fields}
    assert {verb.kind for verb in meeting.verbs.values()} == {"create", "change", "act"}


def test_verbs_have_their_object_inside():
    """Written with {} for it, a verb is a tool without that, and a phrase with it."""
    verb = applications()["tickets"].entities["tickets.device"].verbs["mark_faulty"]
    assert verb.called == ("mark_as_faulty", "declare_faulty")
    assert verb.phrases == {"mark_as_faulty": "mark {} as faulty", "declare_faulty": "declare {} faulty"}


@pytest.mark.parametrize(("word", "plural"), [("box", "boxes"), ("day", "days"), ("city", "cities"), ("room", "rooms")])
def test_plural(word, plural):
    assert plural_of(word) == plural
