"""Rules of the house: none decides always, duties are never forbidden, and copies are right as often as not."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from textenvs.envs.worlds.goals import NotMeantError, evaluate
from textenvs.envs.worlds.rules import (
    Authority,
    authorities,
    obligations,
    prohibitions,
    unconditional,
    with_copies_reversed,
)
from textenvs.envs.worlds.tasks import story_of
from textenvs.envs.worlds.view import View
from textenvs.envs.worlds.world import draw_world

LEVELS = ("easy", "medium", "hard")


@pytest.mark.parametrize("level", LEVELS)
def test_no_fixed_view_of_the_rules_is_right(level):
    """To skip the rules, keep duties alone, or take all prohibitions as unconditional is often wrong."""
    views = {
        "none": lambda rules: (),
        "duties": lambda rules: (*obligations(rules), *authorities(rules)),
        "always": unconditional,
    }
    right, count = dict.fromkeys(views, 0), 30 if level == "easy" else 12
    for number in range(count):
        story = story_of(f"{level}/train/5/{number}/0")
        for name, view in views.items():
            rules = view(story.world.rules)
            try:
                end = evaluate(story.goal, View(story.world.schema, story.store), rules, story.user)
            except NotMeantError:
                continue
            right[name] += end == story.ends[0]
    assert max(right.values()) <= 0.8 * count, right


def test_duties_are_never_forbidden():
    for level, number in itertools.product(LEVELS, range(20)):
        rules = draw_world(level, f"duties/{number}").rules
        about = [(rule.entity, rule.verb) for rule in (*prohibitions(rules), *obligations(rules))]
        due = [(rule.target, rule.then) for rule in obligations(rules)]
        assert {*about}.isdisjoint(due)
        assert len({*due}) == len(due)


def test_half_of_all_copies_are_stale():
    """A copy is the value that it repeats, or any other, in half of the records of all worlds."""
    stale, count = 0, 0
    for number in range(12):
        world = draw_world("easy", f"copies/{number}")
        for entity in world.schema.entities.values():
            for copy, through, original in entity.copies:
                view = View(world.schema, world.store)
                target = entity.fields[through].to
                for record in world.ids(entity.key):
                    linked = str(view.value(entity.key, record, through))
                    value = view.value(entity.key, record, copy)
                    stale += value != view.value(target, linked, original)
                    count += 1
                    assert entity.fields[copy].kind != "ref" or value in world.ids(entity.fields[copy].to)
    assert count > 200
    assert abs(stale / count - 0.5) < 0.1  # a value that is drawn anew may be the same


def test_stale_goals_are_balanced():
    """Taking always the copy, always the original, or what the request names is right in about half of the tasks."""
    right, goals = Counter(), 0
    for number in range(220):
        story = story_of(f"easy/train/7/{number}/0")
        if story.forms != ("stale",):
            continue
        goals += 1
        rules = story.world.rules
        views = {
            "named": tuple(rule for rule in rules if not isinstance(rule, Authority)),
            "copy": tuple(replace(rule, copy_is_right=True) if isinstance(rule, Authority) else rule for rule in rules),
        }
        views["original"] = with_copies_reversed(views["copy"])
        for name, others in views.items():
            end = evaluate(story.goal, View(story.world.schema, story.store), others, story.user)
            right[name] += end == story.ends[0]
    assert goals >= 20
    assert right["copy"] + right["original"] == goals  # they always differ
    assert all(0.25 * goals <= right[name] <= 0.75 * goals for name in ("named", "copy", "original")), right
