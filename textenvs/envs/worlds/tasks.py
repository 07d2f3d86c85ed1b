"""Generated tasks in generated worlds: seeded, endless, with the right end worked out by the program and the rules."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...messages import system, text_of, user
from ...task import SPLITS, Endless, Split, Task, TaskError
from ...text import excerpt
from .applications import Value, applications
from .drafts import SHAPES, Draft, draw_draft
from .expert import reads_of
from .goals import End, NotMeantError, Sent, evaluate
from .house import rules_in_words
from .incidents import Incidents
from .patterns import GOALS, Goals
from .rules import authorities
from .schema import ALWAYS
from .skin import spoken
from .store import Store
from .story import Event, Story, from_json, to_json
from .twins import without
from .view import Cell, View, with_cell
from .wording import Speaker
from .world import LEVELS, Level, World, draw_world

#: Worlds, and stories, that are kept: whoever plays few worlds draws none twice.
_WORLDS, _STORIES = 128, 256
#: Others change something within so many calls; so often one of the changes matters; so many draws of one are tried.
_EARLY, _MATTERS, _TRIES = 6, 0.7, 16
#: What is added to rules about copies.
_AUTHORITIES = (
    "A rule about which of two values is right applies where the request names one of these two. A value that the "
    "request leads to in another way is used as it stands.",
)
#: How a key begins its parts for these options.
_KINDS_PART, _GOALS_PART = "kinds=", "goals="


@dataclass(frozen=True)
class Manner:
    """Difficulties of a level, besides its goals.

    Args:
        hides: Details that the user holds back, at most.
        wrong: How often the first of them is told wrongly at first.
        incidents: Calls that fail for a while, at most.
        events: Values that others change meanwhile, at most; one of them may matter.
    """

    hides: int
    wrong: float
    incidents: int
    events: int


MANNERS = {"easy": Manner(0, 0.0, 0, 0), "medium": Manner(1, 0.0, 1, 1), "hard": Manner(2, 0.5, 3, 3)}


@dataclass(frozen=True)
class WorldTasks(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of tasks in generated worlds.

    Args:
        level: ``"easy"``, ``"medium"``, ``"hard"``.
        seed: Another seed is other worlds.
        split: ``"train"`` or ``"test"``: no world and no wording is in both.
        worlds: How many worlds the tasks are in; ``None``: each in a world of its own.
        applications: Draw worlds from these alone (and people, who are everywhere); ``None`` for all.
        record_kinds: How many kinds of records a world has at most; ``None``: those of its applications.
        goals: Which goals, as in :mod:`.patterns`.

    Raises:
        ValueError: An unknown level, split or application, a seed that is no integer, or no world.
    """

    level: Level = "easy"
    seed: int = 0
    split: Split = "train"
    worlds: int | None = None
    applications: Sequence[str] | None = None
    record_kinds: int | None = None
    goals: Goals = "all"

    def __post_init__(self) -> None:
        self.check_choices(LEVELS)
        if self.goals not in GOALS:
            raise ValueError(f"goals must be one of {', '.join(GOALS)}, not {self.goals!r}")
        for option, least in (("record_kinds", 2), ("worlds", 1)):
            count = getattr(self, option)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < least):
                raise ValueError(f"{option} must be None or an integer of at least {least}, not {count!r}")
        if self.applications is None:
            return
        names = applications()
        if not isinstance(self.applications, list | tuple) or not self.applications:
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
        options = "".join(f", {option}" for option in self._options)
        return f"generated {self.level} worlds ({self.split}, seed {self.seed}{count}{only}{options})"

    @property
    def _options(self) -> list[str]:
        """The options of a world and a task that are not the default, as keys have them."""
        kinds = [] if self.record_kinds is None else [f"{_KINDS_PART}{self.record_kinds}"]
        return kinds if self.goals == "all" else [*kinds, f"{_GOALS_PART}{self.goals}"]

    def _generate(self, index: int) -> Task:
        number, place = (index, 0) if self.worlds is None else (index % self.worlds, index // self.worlds)
        only = [] if self.applications is None else ["+".join(self.applications)]
        parts = (self.level, self.split, self.seed, *only, *self._options, number, place)
        return task_of("/".join(map(str, parts)))


def task_of(key: str) -> Task:
    """Return the task of a key, which decides all of it."""
    story = story_of(key)
    return Task(
        key=key,
        data_source=f"textenvs/worlds-{key.partition('/')[0]}",
        prompt=(system(_rules_text(story.world, story.split)), user(story.request)),
        ground_truth=to_json(story.ends),
        ability="tools",
        extra={"story": key},
    )


def story_of_task(task: Task) -> Story:
    """Return the story of a task, which ends as the task's ground truth says; ``TaskError``: it has none."""
    try:
        story = story_of(str(task.extra["story"]))
        ends = from_json(task.ground_truth)
        for cell in {cell for end in ends for cell, _ in end.changed}:
            _cell(story.world, cell)
        for report in {report for end in ends for report in end.reports}:
            _check_report(story.world, report)
        values = tuple((_cell(story.world, cell), value) for *cell, value in task.extra.get("given", ()))
    except (KeyError, ValueError, TypeError) as error:
        raise TaskError(f"task {task.key}: it is none of generated worlds: {excerpt(str(error), 300)}") from None
    if task.prompt and text_of(task.prompt[-1]) != story.request:
        raise TaskError(f"task {task.key}: its request is not the one that this version draws; make the rows again")
    events = story.events if len(ends) > 1 else ()
    if len(ends) != len(events) + 1:
        raise TaskError(f"task {task.key}: it has {len(ends)} ends, and {len(events)} changes by others")
    return replace(story, ends=ends, twin_values=values, events=events) if values or ends != story.ends else story


def _cell(world: World, parts: Sequence[str]) -> Cell:
    entity, number, name = parts
    if name not in world.schema.places[entity] or number not in world.store.tables[entity]:
        raise ValueError(f"the world has no {entity} {number} with {name}")
    return entity, number, name


def _check_report(world: World, report: Sent) -> None:
    if not {*report.fields} <= world.schema.places[report.entity].keys():
        raise ValueError(f"the world has no {report.entity} with all of {', '.join(report.fields)}")


def twin_tasks(task: Task) -> list[tuple[str, list[Task]]]:
    """Return the proven facts of a task, and for each the tasks of its twins, the first of them the world's own value.

    Changes by others are left out where the twins would not all end otherwise with them.
    """
    story = story_of_task(task)
    facts = []
    for fact in story.facts:
        entity, number, name = fact.cell
        place = story.world.schema.places[entity][name]
        own = story.world.store.tables[entity][number][place]
        stores = {
            value: with_cell(story.world.schema, story.world.store, fact.cell, value) for value in (own, *fact.values)
        }
        ends = {value: _ends(story, store, story.events) for value, store in stores.items()}
        if not _all_differ(ends.values(), fact.cell):
            ends = {value: _ends(story, store, ()) for value, store in stores.items()}
        tasks = []
        for value, of_value in ends.items():
            extra = {**task.extra, "given": [[*fact.cell, value]]}
            key = f"{task.key}~{'.'.join(fact.cell)}={value}"
            tasks.append(replace(task, key=key, ground_truth=to_json(of_value), extra=extra))
        facts.append((f"{name} of {entity} {number}", tasks))
    return facts


def _ends(story: Story, store: Store, events: Sequence[Event]) -> tuple[End, ...]:
    """Return the ends that a store requires after none of the events, the first, the first two; none has no meaning."""
    ends = []
    try:
        for event in (None, *events):
            store = with_cell(story.world.schema, store, event.cell, event.value) if event else store
            ends.append(evaluate(story.goal, View(story.world.schema, store), story.world.rules, story.user))
    except NotMeantError:
        return ()
    return tuple(ends)


def _all_differ(ends: Collection[tuple[End, ...]], cell: Cell) -> bool:
    """Return whether all twins end, and no two the same way, whatever has happened: but for the cell itself."""
    stages = [{without(end, cell) for end in stage} for stage in zip(*ends, strict=False)]
    return all(ends) and all(len(stage) == len(ends) for stage in stages)


@functools.lru_cache(_WORLDS)
def world_of(level: str, split: str, seed: str, only: str, number: str, kinds: int | None = None) -> World:
    """Return a world by the parts of its tasks' keys."""
    allowed = tuple(only.split("+")) if only else None
    return draw_world(level, "/".join((level, split, seed, only, number)), allowed, kinds)


@functools.lru_cache(_STORIES)
def story_of(key: str) -> Story:
    """Return the story of a key: level, split, seed, perhaps options, number of the world, number of the task.

    The options are applications, kinds of records and which goals, in this order. ValueError: it is no such key.
    """
    parts = key.split("/")
    if not 5 <= len(parts) <= 8 or parts[0] not in LEVELS or not all(one.isdecimal() for one in parts[-2:]):
        raise ValueError(f"{key!r} is no key of a generated task")
    level, split, seed, *options, number, place = parts
    goals = options.pop().removeprefix(_GOALS_PART) if options and options[-1].startswith(_GOALS_PART) else "all"
    kinds = int(options.pop().removeprefix(_KINDS_PART)) if options and options[-1].startswith(_KINDS_PART) else None
    only = options[0].split("+") if options else []
    if goals not in GOALS or len(options) > 1 or split not in SPLITS or not {*only} <= applications().keys():
        raise ValueError(f"{key!r} is no key of a generated task")
    world = world_of(level, split, seed, options[0] if options else "", number, kinds)
    rng = np.random.default_rng([*f"worlds/task/{key}".encode()])
    draft, manner = draw_draft(world, level, rng, goals), MANNERS[level]
    speaker = Speaker(world, split, rng, manner.hides, bool(rng.random() < manner.wrong))  # type: ignore[arg-type]
    request = speaker.request(draft.goal, draft.user)
    events = _events(world, draft, speaker, level, rng)
    incidents = Incidents.draw(int(rng.integers(manner.incidents + 1)), 12, rng)
    return Story(
        world,
        draft.forms,
        draft.goal,
        draft.user,
        request,
        (draft.end, *(end for _, end in events)),
        draft.facts,
        tuple(speaker.details),
        tuple(event for event, _ in events),
        incidents,
        split=split,  # type: ignore[arg-type]
    )


def _events(
    world: World, draft: Draft, speaker: Speaker, level: str, rng: np.random.Generator
) -> list[tuple[Event, End]]:
    """Draw changes that come before the expert's first change, each with the end that is right from then on.

    At most one of them matters, and only where enough other facts are left to be read: its notice tells the value.
    """
    view = View(world.schema, world.store)
    evaluate(draft.goal, view, world.rules, draft.user)
    looks = sum(1 for _ in reads_of(world, draft.user, view))
    count = int(rng.integers(MANNERS[level].events + 1))
    if looks < 2 or not count:
        return []
    after = sorted(rng.integers(1, min(_EARLY, looks), count).tolist())
    enough = len(draft.facts) > SHAPES[level].facts
    matters = int(rng.integers(count)) if enough and rng.random() < _MATTERS else None
    events, store, end = list[tuple[Event, End]](), world.store, draft.end
    for place in range(count):
        if (change := _change(world, draft, store, end, place == matters, rng)) is None:
            continue
        cell, value, end = change
        store = with_cell(world.schema, store, cell, value)
        events.append((Event(after[place], cell, value, speaker.notice(cell, value)), end))
    return events


def _change(
    world: World, draft: Draft, store: Store, end: End, matters: bool, rng: np.random.Generator
) -> tuple[Cell, Value, End] | None:
    """Draw a change of a fact, or of the same field of a record that does not matter; and the end after it."""
    written = {cell for cell, _ in draft.end.changed}
    facts = [fact for fact in draft.facts if fact.cell not in written]
    for _ in range(_TRIES if facts else 0):
        fact = facts[int(rng.integers(len(facts)))]
        entity, number, name = fact.cell
        if not matters:
            number = world.ids(entity)[int(rng.integers(len(world.ids(entity))))]
        cell, value = (entity, number, name), fact.values[int(rng.integers(len(fact.values)))]
        record = store.first(entity, number)
        if record is None or record[world.schema.places[entity][name]] == value:
            continue
        view = View(world.schema, with_cell(world.schema, store, cell, value))
        try:
            new = evaluate(draft.goal, view, world.rules, draft.user)
        except NotMeantError:
            continue
        if (new != end) == matters and (matters or cell not in draft.reads):
            return cell, value, new
    return None


def _rules_text(world: World, split: Split) -> str:
    skin = world.skin
    names = ", ".join(spoken(skin.applications[name]) for name in world.schema.applications)
    lines = [
        f"You help a user with these applications: {names}. Find out what you need, change what has to be changed and "
        "nothing else, and then call finish. Words without a call go to the user, who can be asked for what only they "
        "know.",
        "Rules of the house, which the tools do not check:",
        *(f"- {rule}" for rule in rules_in_words(world, split)),
        *(_AUTHORITIES if authorities(world.rules) else ()),
        "Where a rule forbids what is wanted of one of several records, leave that record out. Where it forbids all, "
        "or a condition of the user does not hold, so that there is nothing to do, change nothing, and call finish "
        "with the id of the record that was to be changed as refused.",
    ]
    return "\n".join(lines)


def rules_in_short(world: World, split: Split) -> str:
    """Return the applications and the rules alone, without what is the same in all worlds."""
    names = ", ".join(spoken(world.skin.applications[name]) for name in world.schema.applications)
    return "\n".join([f"{names}.", *rules_in_words(world, split)])
