"""Programs on a store written by hand: what each asks for, by the rules and without them."""

from __future__ import annotations

import numpy as np
import pytest

from textenvs.envs.worlds.goals import (
    Do,
    End,
    Follow,
    Literal,
    Make,
    Me,
    Named,
    NotMeantError,
    Pick,
    Read,
    Report,
    Select,
    Sent,
    Tell,
    When,
    Where,
    evaluate,
    mistaken,
    naive,
)
from textenvs.envs.worlds.house import rules_in_words
from textenvs.envs.worlds.rules import Authority, Duty, Limit, Linked, Rank, with_copies_reversed
from textenvs.envs.worlds.schema import schema_of
from textenvs.envs.worlds.skin import Skin
from textenvs.envs.worlds.store import Store, Tables
from textenvs.envs.worlds.view import View
from textenvs.envs.worlds.world import World

SCHEMA = schema_of(("personnel", "calendar"))
#: name, team, office, manager, grade, desk, state
PEOPLE = {
    "P1": ("Ada One", "T1", "O1", "P2", 7, 101, "active"),
    "P2": ("Bo Two", "T1", "O1", "P1", 3, 102, "active"),
    "P3": ("Cy Three", "T2", "O2", "P1", 5, 103, "away"),
}
#: title, host, room, day, minutes, state
MEETINGS = {
    "M1": ("alpha review", "P1", "R1", 10, 30, "planned"),
    "M2": ("beta review", "P1", "R2", 20, 60, "planned"),
    "M3": ("gamma review", "P2", "R2", 30, 90, "planned"),
    "M4": ("delta review", "P1", "R1", 40, 15, "held"),
}
TABLES = Tables(
    {
        "personnel.person": PEOPLE,
        "personnel.team": {"T1": ("red", "P1", "P2", 1000), "T2": ("blue", "P3", "P1", 2000)},
        "personnel.office": {"O1": ("north", "P2", 3, "open"), "O2": ("south", "P3", 4, "closed")},
        "calendar.meeting": MEETINGS,
        # The last is a copy of the budget of the team; that of R2 is another.
        "calendar.room": {"R1": ("oak", "T1", 10, "open", 1000), "R2": ("elm", "T2", 20, "blocked", 500)},
    }.__getitem__
)
ALPHA, BETA = Named("calendar.meeting", "alpha review"), Named("calendar.meeting", "beta review")
HOSTED = Select("calendar.meeting", (Where("host", "is", Me()), Where("state", "is", Literal("planned"))))


def end_of(*goal, rules=(), user="P1"):
    return evaluate(goal, View(SCHEMA, Store(TABLES)), rules, user)


def cell(entity, number, field, value):
    return ((entity, number, field), value)


@pytest.mark.parametrize(
    ("step", "changed"),
    [
        (Do(ALPHA, "cancel"), [cell("calendar.meeting", "M1", "state", "cancelled")]),
        (Do(ALPHA, "move", (("day", Literal(77)),)), [cell("calendar.meeting", "M1", "day", 77)]),
        (Do(ALPHA, "move", (("day", Read(BETA, "day")),)), [cell("calendar.meeting", "M1", "day", 20)]),
        (Do(ALPHA, "rehouse", (("room", Follow(BETA, "room", "calendar.room")),)),
         [cell("calendar.meeting", "M1", "room", "R2")]),
        (Do(HOSTED, "cancel"), [cell("calendar.meeting", number, "state", "cancelled") for number in ("M1", "M2")]),
        (Do(Select("calendar.meeting", (Where("day", "under", Literal(20)),)), "cancel"),
         [cell("calendar.meeting", "M1", "state", "cancelled")]),
        (Do(Select("calendar.meeting", (Where("state", "not", Literal("held")), Where("day", "over", Literal(20)))),
            "cancel"), [cell("calendar.meeting", "M3", "state", "cancelled")]),
        (Do(Pick(HOSTED, "minutes", most=True), "cancel"), [cell("calendar.meeting", "M2", "state", "cancelled")]),
        (Do(Pick(HOSTED, "minutes", most=False), "cancel"), [cell("calendar.meeting", "M1", "state", "cancelled")]),
        (Do(Follow(Follow(Me(), "manager", "personnel.person"), "office", "personnel.office"), "close"),
         [cell("personnel.office", "O1", "state", "closed")]),
        (When(ALPHA, Where("day", "over", Literal(9)), Do(ALPHA, "cancel"), Do(BETA, "cancel")),
         [cell("calendar.meeting", "M1", "state", "cancelled")]),
        (When(ALPHA, Where("day", "over", Literal(10)), Do(ALPHA, "cancel"), Do(BETA, "cancel")),
         [cell("calendar.meeting", "M2", "state", "cancelled")]),
        (When(ALPHA, Where("room", "not", Named("calendar.room", "oak")), Do(ALPHA, "cancel")), []),
    ],
)  # fmt: skip
def test_program_changes(step, changed):
    assert list(end_of(step).changed) == changed


def test_program_answers():
    assert end_of(Tell(Read(Follow(ALPHA, "host", "personnel.person"), "grade"))).answer == 7


def test_program_reports():
    report = Report(Follow(BETA, "host", "personnel.person"), HOSTED, ("minutes", "room"), "minutes")
    rows = (("M1", (30, "R1")), ("M2", (60, "R2")))
    assert end_of(report).reports == (Sent("P1", "calendar.meeting", ("minutes", "room"), rows, 90),)


def test_condition_that_fails_names_the_record():
    step = When(ALPHA, Where("day", "over", Literal(10)), Do(ALPHA, "cancel"))
    assert end_of(step) == End(refused="M1")
    assert not end_of(step, Do(BETA, "cancel")).refused


def test_excluded_things_are_taken_by_mistake():
    host = Follow(
        Named("calendar.meeting", "alpha review", ("gamma review", "beta review")), "host", "personnel.person"
    )
    office = Follow(Follow(Me(), "team", "personnel.team"), "lead", "personnel.person", "deputy")
    goal = (Do(host, "assign", (("team", Named("personnel.team", "red")),)), Do(office, "mark_away"))
    taken = list(mistaken(goal))
    assert [variant[0].target.of.label for variant in taken] == ["gamma review", "beta review", "alpha review"]
    assert [variant[1].target.field for variant in taken] == ["lead", "lead", "deputy"]
    assert [*mistaken((Do(BETA, "move", (("day", Literal(3, 4)),)),))] == [(Do(BETA, "move", (("day", Literal(4)),)),)]


def test_new_record_has_given_and_set_values():
    gives = (
        ("title", Literal("new review")),
        ("host", Me()),
        ("room", Named("calendar.room", "oak")),
        ("day", Literal(3)),
    )
    assert end_of(Make("calendar.meeting", gives)).new == (
        ("calendar.meeting", ("new review", "P1", "R1", 3, 30, "planned")),
    )


@pytest.mark.parametrize(
    "step",
    [
        Do(Named("calendar.meeting", "nothing"), "cancel"),
        Do(Named("calendar.meeting", "delta review"), "cancel"),  # it was held
        Do(Pick(Select("calendar.meeting", (Where("room", "is", Literal("R9")),)), "day", most=True), "cancel"),
        Do(Pick(Select("personnel.office", (Where("floors", "over", Literal(99)),)), "floors", most=True), "close"),
    ],
)
def test_program_without_meaning(step):
    with pytest.raises(NotMeantError):
        end_of(step)


@pytest.mark.parametrize(
    ("rule", "refused", "kept"),
    [
        (Limit("calendar.meeting", "cancel", "minutes", 45), "M2", ["M1"]),
        (Limit("calendar.meeting", "cancel", "minutes", 45, over=False), "M1", ["M2"]),
        (Linked("calendar.meeting", "cancel", "room", "calendar.room", "state", "blocked", has=False), "M1", ["M2"]),
        (Linked("calendar.meeting", "cancel", "room", "calendar.room", "state", "blocked"), "M2", ["M1"]),
        (Rank("calendar.meeting", "cancel", 7), "", ["M1", "M2"]),
        (Limit("calendar.meeting", "close", "minutes", 1), "", ["M1", "M2"]),
    ],
)
def test_rules_forbid(rule, refused, kept):
    """One record that is forbidden is refused by its id; of several, what is forbidden is left out."""
    one = ALPHA if refused == "M1" else BETA
    assert end_of(Do(one, "cancel"), rules=(rule,)).refused == refused
    several = end_of(Do(HOSTED, "cancel"), rules=(rule,))
    assert [address[1] for address, _ in several.changed] == kept
    assert not several.refused
    assert several.left_out == ((refused,) if refused else ())


def test_limit_of_given_value_is_of_new():
    rule = Limit("calendar.meeting", "move", "day", 50)
    skin = Skin.draw(SCHEMA, np.random.default_rng(0))
    assert "its new " in rules_in_words(World("any", SCHEMA, skin, skin, Store(TABLES), (rule,)), "train")[0]
    later, earlier = (Do(ALPHA, "move", (("day", Literal(day)),)) for day in (51, 50))
    assert end_of(later, rules=(rule,)).refused == "M1"
    assert not end_of(earlier, rules=(rule,)).refused


def test_rank_is_that_of_the_user():
    rule = Rank("calendar.meeting", "cancel", 7)
    assert end_of(Do(ALPHA, "cancel"), rules=(rule,), user="P2").refused == "M1"


def test_duty_follows_where_it_can():
    rule = Duty("calendar.meeting", "cancel", "host", "personnel.person", "mark_away")
    assert cell("personnel.person", "P1", "state", "away") in end_of(Do(ALPHA, "cancel"), rules=(rule,)).changed
    release = Duty("calendar.meeting", "cancel", "room", "calendar.room", "release")
    assert end_of(Do(ALPHA, "cancel"), rules=(release,)) == end_of(Do(ALPHA, "cancel"))  # the room is open
    assert cell("calendar.room", "R2", "state", "open") in end_of(Do(BETA, "cancel"), rules=(release,)).changed


@pytest.mark.parametrize(
    "read",
    [
        lambda room: Read(room, "budget"),
        lambda room: Read(Follow(room, "owner", "personnel.team"), "budget"),
    ],
    ids=["by the copy", "by the original"],
)
def test_authority_decides_between_copies(read):
    """Whichever of the two places a request names, the value is that of the one that the rule calls right."""
    rule = Authority("calendar.room", "budget", "owner", "personnel.team", "budget", copy_is_right=True)
    elm, oak = Named("calendar.room", "elm"), Named("calendar.room", "oak")
    assert end_of(Tell(read(elm)), rules=(rule,)).answer == 500
    assert end_of(Tell(read(elm)), rules=with_copies_reversed((rule,))).answer == 2000
    assert end_of(Tell(read(oak)), rules=(rule,)) == end_of(Tell(read(oak)), rules=with_copies_reversed((rule,)))
    blue = Read(Named("personnel.team", "blue"), "budget")  # the rule is about teams of rooms
    assert end_of(Tell(blue), rules=(rule,)).answer == 2000


def test_authority_decides_conditions():
    rule = Authority("calendar.room", "budget", "owner", "personnel.team", "budget", copy_is_right=True)
    owner = Follow(Named("calendar.room", "elm"), "owner", "personnel.team")
    step = When(owner, Where("budget", "over", Literal(600)), Do(ALPHA, "cancel"), Do(BETA, "cancel"))
    for rules, number in (((rule,), "M2"), (with_copies_reversed((rule,)), "M1")):
        assert end_of(step, rules=rules).changed == (cell("calendar.meeting", number, "state", "cancelled"),)


def test_naive_variants_leave_something_out():
    goal = (
        When(ALPHA, Where("day", "over", Literal(9)), Do(Pick(HOSTED, "day", most=True), "cancel"), Do(BETA, "close")),
    )
    variants = [*naive(goal)]
    assert goal not in variants
    assert (goal[0].then,) in variants
    assert (goal[0].otherwise,) in variants
    fewest = When(goal[0].of, goal[0].condition, Do(Pick(HOSTED, "day", most=False), "cancel"), goal[0].otherwise)
    assert (fewest,) in variants


def test_what_is_read_is_noted():
    view = View(SCHEMA, Store(TABLES))
    evaluate((Do(Follow(Me(), "office", "personnel.office"), "close"),), view, (), "P1")
    assert list(view.looks) == [
        ("find", "personnel.person", (("name", "Ada One"),)),
        ("get", "personnel.person", "P1"),
        ("get", "personnel.office", "O1"),
    ]
    assert view.acts == [("personnel.office", "close", "O1", ())]
