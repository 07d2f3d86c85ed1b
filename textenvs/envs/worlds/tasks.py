"""Generated tasks in generated worlds: seeded, endless, with the right end worked out by the program and the rules."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...messages import system, user
from ...task import Endless, Split, Task, TaskError
from ...text import excerpt
from .applications import Value, applications
from .drafts import Draft, draw_draft
from .expert import reads_of
from .goals import NotMeantError, evaluate
from .incidents import Incidents
from .schema import ALWAYS
from .skin import spoken
from .story import Event, Story, from_json, to_json
from .twins import Fact
from .view import Cell, View, with_cell
from .wording import Speaker
from .world import LEVELS, Level, World, draw_world

#: Worlds, and stories, that are kept: whoever plays few worlds draws none twice.
_WORLDS, _STORIES = 64, 1024


@dataclass(frozen=True)
class Manner:
    """Difficulties of a level, besides its goals.

    Args:
        hides: Details that the user holds back, at most.
        wrong: How often the first of them is told wrongly at first.
        incidents: Calls that fail for a while, at most.
        events: How often a value that matters is changed by others meanwhile.
    """

    hides: int
    wrong: float
    incidents: int
    events: float


MANNERS = {"easy": Manner(0, 0.0, 0, 0.0), "medium": Manner(1, 0.0, 1, 0.0), "hard": Manner(2, 0.5, 3, 0.5)}


@dataclass(frozen=True)
class WorldTasks(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of tasks in generated worlds.

    Args:
        level: ``"easy"``, ``"medium"``, ``"hard"``.
        seed: Another seed is other worlds.
        split: ``"train"`` or ``"test"``: no world and no wording is in both.
        worlds: How many worlds the tasks are in; ``None``: each in a world of its own.
        applications: Draw worlds from these alone (and people, who are everywhere); ``None`` for all.

    Raises:
        ValueError: An unknown level, split or application, a seed that is no integer, or no world.
    """

    level: Level = "easy"
    seed: int = 0
    split: Split = "train"
    worlds: int | None = None
    applications: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.check_choices(LEVELS)
        if self.worlds is not None and (isinstance(self.worlds, bool) or self.worlds < 1):
            raise ValueError(f"worlds must be None or at least 1, not {self.worlds!r}")
        if self.applications is None:
            return
        names = applications()
        if isinstance(self.applications, str) or not self.applications:
            raise ValueError(f"applications must be None or a list of at least one, not {self.applications!r}")
        if unknown := [name for name in self.applications if name not in names]:
            raise ValueError(f"applications: {unknown[0]!r} is not one of {', '.join(names)}")
        object.__setattr__(self, "applications", tuple(sorted({*self.applications} - {ALWAYS})))
        if not self.applications:
            raise ValueError(f"applications: {ALWAYS} is in every world; name at least one other")

    @property
    def name(self) -> str:
        count = "" if self.worlds is None else f", {self.worlds} worlds"
        only = "" if self.applications is None else f", only {', '.join(self.applications)}"
        return f"generated {self.level} worlds ({self.split}, seed {self.seed}{count}{only})"

    def _generate(self, index: int) -> Task:
        number, place = (index, 0) if self.worlds is None else (index % self.worlds, index // self.worlds)
        only = "" if self.applications is None else f"/{'+'.join(self.applications)}"
        return task_of(f"{self.level}/{self.split}/{self.seed}{only}/{number}/{place}")


def task_of(key: str) -> Task:
    """Return the task of a key, which decides all of it."""
    story = story_of(key)
    return Task(
        key=key,
        data_source=f"textenvs/worlds-{key.partition('/')[0]}",
        prompt=(system(_rules_text(story.world)), user(story.request)),
        ground_truth=to_json(story.ends),
        ability="tools",
        extra={"story": key},
    )


def story_of_task(task: Task) -> Story:
    """Return the story of a task, which ends as the task's ground truth says; ``TaskError``: it has none."""
    try:
        story = story_of(str(task.extra["story"]))
        ends = from_json(task.ground_truth)
        values = tuple((_cell(story.world, cell), value) for *cell, value in task.extra.get("given", ()))
    except (KeyError, ValueError, TypeError) as error:
        raise TaskError(f"task {task.key}: it is none of generated worlds: {excerpt(str(error), 300)}") from None
    if values:
        return replace(story, ends=ends, twin_values=values, events=(), incidents=Incidents())
    return story if ends == story.ends else replace(story, ends=ends)


def _cell(world: World, parts: Sequence[str]) -> Cell:
    entity, number, name = parts
    if name not in world.schema.places[entity] or number not in world.store.tables[entity]:
        raise ValueError(f"the world has no {entity} {number} with {name}")
    return entity, number, name


def twin_tasks(task: Task) -> list[tuple[str, list[Task]]]:
    """Return the proven facts of a task, and for each the tasks of its twins, the first of them the world's own value.

    All of these are without failing calls, and without changes by others.
    """
    story = story_of_task(task)
    facts = []
    for fact in story.facts:
        if not fact.proven:
            continue
        entity, number, name = fact.cell
        place = story.world.schema.places[entity][name]
        own = story.world.store.tables[entity][number][place]
        tasks = []
        for value in (own, *fact.values):
            view = View(story.world.schema, with_cell(story.world.schema, story.world.store, fact.cell, value))
            end = evaluate(story.goal, view, story.world.rules, story.user)
            extra = {**task.extra, "given": [[*fact.cell, value]]}
            key = f"{task.key}~{'.'.join(fact.cell)}={value}"
            tasks.append(replace(task, key=key, ground_truth=to_json((end,)), extra=extra))
        facts.append((f"{name} of {entity} {number}", tasks))
    return facts


@functools.lru_cache(_WORLDS)
def world_of(level: str, split: str, seed: str, only: str, number: str) -> World:
    """Return a world by the parts of its tasks' keys."""
    allowed = tuple(only.split("+")) if only else None
    return draw_world(level, "/".join((level, split, seed, only, number)), allowed)


@functools.lru_cache(_STORIES)
def story_of(key: str) -> Story:
    """Return the story of a key: level, split, seed, perhaps applications, number of the world, number of the task.

    ValueError: it is no such key.
    """
    parts = key.split("/")
    if len(parts) not in (5, 6) or parts[0] not in LEVELS or not all(one.isdecimal() for one in parts[-2:]):
        raise ValueError(f"{key!r} is no key of a generated task")
    level, split, seed, *rest, number, place = parts
    world = world_of(level, split, seed, rest[0] if rest else "", number)
    rng = np.random.default_rng([*f"worlds/task/{key}".encode()])
    draft, manner = draw_draft(world, level, rng), MANNERS[level]
    speaker = Speaker(world, split, rng, manner.hides, bool(rng.random() < manner.wrong))  # type: ignore[arg-type]
    request = speaker.request(draft.goal, draft.user)
    events = _events(world, draft, speaker, rng) if rng.random() < manner.events else ()
    ends = [draft.end, *(end for _, end in events)]
    incidents = Incidents.draw(int(rng.integers(manner.incidents + 1)), 12, rng)
    return Story(
        world,
        draft.schema,
        draft.goal,
        draft.user,
        request,
        tuple(ends),
        draft.facts,
        tuple(speaker.details),
        tuple(event for event, _ in events),
        incidents,
        split=split,  # type: ignore[arg-type]
    )


def _events(world: World, draft: Draft, speaker: Speaker, rng: np.random.Generator) -> list[tuple[Event, Any]]:
    """Draw a change of a fact that comes before the expert's first change, with the end that is right from then on."""
    proven = [fact for fact in draft.facts if fact.proven]
    written = {cell for cell, _ in draft.end.changed}
    proven = [fact for fact in proven if fact.cell not in written]
    if not proven:
        return []
    fact: Fact = proven[int(rng.integers(len(proven)))]
    value: Value = fact.values[int(rng.integers(len(fact.values)))]
    view = View(world.schema, with_cell(world.schema, world.store, fact.cell, value))
    try:
        end = evaluate(draft.goal, view, world.rules, draft.user)
    except NotMeantError:  # it had a meaning when the fact was proven
        raise AssertionError(f"{world.name}: the twin of {fact.cell} has no meaning") from None
    before = View(world.schema, world.store)
    evaluate(draft.goal, before, world.rules, draft.user)
    looks = sum(1 for _ in reads_of(world, draft.user, before))
    if looks < 2:
        return []
    after = int(rng.integers(1, min(5, looks)))
    return [(Event(after, fact.cell, value, speaker.notice(fact.cell, value)), end)]


def _rules_text(world: World) -> str:
    skin = world.skin
    names = ", ".join(spoken(skin.applications[name]) for name in world.schema.applications)
    lines = [
        f"You help a user with these applications: {names}. Find out what you need, change what has to be changed and "
        "nothing else, and then call finish. Words without a call go to the user, who can be asked for what only they "
        "know.",
        "Rules of the house, which the tools do not check:",
        *(f"- {rule.text(world.schema, skin)}" for rule in world.rules),
        "Where a rule forbids what is wanted of one of several records, leave that record out; where it forbids all, "
        "change nothing, and call finish with the id of the record that it is about as refused.",
    ]
    return "\n".join(lines)
