"""Generated tasks in a terminal: seeded, endless, each a project with faults to repair or a question to answer."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, TypeVar, cast

from ...messages import Messages, system, text_of, user
from ...task import SPLITS, Endless, Split, Task, TaskError, split_by_hash
from .disputes import disputed, draw_form, is_disputable
from .project import Fault, Project, Question
from .templates import TEMPLATES, Template

Level = Literal["easy", "medium", "hard"]
Goal = Literal["repair", "question"]
KindT = TypeVar("KindT", Fault, Question)

#: How many faults a project of a level has, at least and at most.
FAULTS: Mapping[str, tuple[int, int]] = {"easy": (1, 1), "medium": (2, 3), "hard": (4, 8)}
#: How many rules of a project of a level are in dispute, at most; one of them at least is broken, and one is not.
DISPUTES: Mapping[str, int] = {"easy": 0, "medium": 2, "hard": 4}
LEVELS: tuple[Level, ...] = ("easy", "medium", "hard")
GOALS: tuple[Goal, ...] = ("repair", "question")

#: One kind of faults in so many is in the test split, by its hash; so is one kind of questions.
_HELD_OUT = 4
#: How often a task is a question where a project has some.
_QUESTIONS = 0.25
#: Projects that are drawn for a task until one fits, and those that a process keeps beside those of its episodes.
_TRIES, _CACHED = 200, 32
_TEMPLATES_PART, _GOALS_PART = "templates=", "goals="
#: Stands in the key of a twin, before what its page states.
TWIN_MARK = "~"
#: Paths that are named in a request; of more, their number.
_NAMED = 12

_INTRODUCTION = (
    "You work in a shell, in the folder /project. There is no network. Files, variables and the working directory last "
    "from one command to the next; processes in the background do not."
)
_REPAIR = (
    "Something in the project does not work any more. Find out what, and repair it where the mistake was made; there "
    "may be several. When all of it works, call finish: the project is then used with other data than those that are "
    "there now."
)
_DISPUTED = "Some reports are about what works as it was agreed: that must stay as it is."
_ANSWER = "Find out what the user asks, and call finish with the answer alone, as it stands in the files or is printed."


@dataclass(frozen=True)
class Assignment:
    """The project of an episode, and what is to be done with it; it is pickled as its key.

    Args:
        key: Of its task; see :func:`assignment_of`.
        attempt: How many draws of the key were left out: their faults did not fit together.
        project: Its project.
        template: What drew it.
        seed: Of the generator that it was drawn from.
        faults: What is wrong with it, in the order in which it went wrong; empty where there is a question.
        question: What is asked; ``None`` where there are faults.
        forms: Words in which the page disputes a rule, by the rule's name; users report all of these rules.
    """

    key: str
    attempt: int
    project: Project = field(compare=False)
    template: Template = field(compare=False)
    seed: int = field(compare=False)
    faults: tuple[Fault, ...] = field(default=(), compare=False)
    question: Question | None = field(default=None, compare=False)
    forms: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the key in the place of the project."""
        return assignment_of, (self.key, self.attempt)

    @property
    def prompt(self) -> Messages:
        """The messages that an episode starts with."""
        goal = _ANSWER if self.question else f"{_REPAIR} {_DISPUTED}" if self.forms else _REPAIR
        return system(f"{_INTRODUCTION}\n\n{goal}"), user(self.request)

    @property
    def request(self) -> str:
        """The user's words: the project's use, and what is wrong, or the question."""
        if self.question is not None:
            return f"{self.project.about}\n\n{self.question.text}"
        reported = {*self.forms, *(fault.kind for fault in self.faults)}
        symptoms = sorted({fault.symptom for fault in self.project.faults if fault.kind in reported})
        if len(symptoms) == 1:
            parts = [self.project.about, f"What users report: {symptoms[0]}"]
        else:
            parts = [self.project.about, "\n".join(["What users report:", *(f"- {symptom}" for symptom in symptoms)])]
        if self.project.fixed:
            parts.append(f"Leave these files as they are: {_paths_in_words(self.project)}.")
        return "\n\n".join(parts)

    @property
    def ground_truth(self) -> str:
        """The answer; or as JSON the kinds of the faults, each with the sentence that it goes against, or null."""
        if self.question is not None:
            return self.question.answer
        return json.dumps({fault.kind: fault.agreed or None for fault in self.faults})

    def plan(self) -> Iterator[str]:
        """Return the expert's commands: those that find the faults, then repairs, the last fault's first."""
        if self.question is not None:
            yield from self.question.looks
            return
        for fault in self.faults:
            yield from fault.looks
        for fault in reversed(self.faults):
            yield fault.repair

    def restated(self, key: str, rule: str, option: int) -> Assignment:
        """Return the same assignment with a project whose page states another option of a rule, for a twin's key.

        Raises:
            ValueError: Its faults have no such alternative.
        """
        if not any(fault.kind == rule and option in fault.alternatives for fault in self.faults):
            raise ValueError(f"it has no fault of the rule {rule!r} to which option {option} is an alternative")
        project = disputed(self.template(Random(self.seed), {rule: option}), self.forms)
        faults = {fault.kind: fault for fault in project.faults}
        return replace(self, key=key, project=project, faults=tuple(faults[fault.kind] for fault in self.faults))


@dataclass(frozen=True)
class TerminalTasks(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of projects in a terminal.

    Args:
        level: ``"easy"`` (one fault), ``"medium"`` (2 or 3) or ``"hard"`` (4 to 8).
        seed: Another seed is other projects.
        split: ``"train"`` or ``"test"``. The kinds of faults and questions of the training split are three quarters of
            them, by a hash of their name. Every test task has at least one of the other kinds, and one of the training
            split only where these are too few.
        templates: Draw projects from these templates alone; ``None`` for all.
        goals: ``"repair"``, ``"question"``; ``None`` for both.

    Raises:
        ValueError: An unknown level, split, template or goal, or a seed that is no integer.
    """

    level: Level = "easy"
    seed: int = 0
    split: Split = "train"
    templates: Sequence[str] | None = None
    goals: Sequence[Goal] | None = None

    def __post_init__(self) -> None:
        self.check_choices(LEVELS)
        for option, choices in (("templates", tuple(TEMPLATES)), ("goals", GOALS)):
            names = getattr(self, option)
            if names is None:
                continue
            if not isinstance(names, list | tuple) or not names:
                raise ValueError(f"{option} must be None or a list of at least one, not {names!r}")
            if unknown := [name for name in names if name not in choices]:
                raise ValueError(f"{option}: {unknown[0]!r} is not one of {', '.join(choices)}")
            object.__setattr__(self, option, tuple(sorted(set(names))))

    @property
    def name(self) -> str:
        options = "".join(f", {option}" for option in self._options)
        return f"generated {self.level} terminal tasks ({self.split}, seed {self.seed}{options})"

    @property
    def _options(self) -> list[str]:
        """The options that are not the default, as keys have them."""
        templates = [] if self.templates is None else [_TEMPLATES_PART + "+".join(self.templates)]
        return templates if self.goals is None else [*templates, _GOALS_PART + "+".join(self.goals)]

    def _generate(self, index: int) -> Task:
        key = "/".join(map(str, (self.level, self.split, self.seed, *self._options, index)))
        assignment = assignment_of(key)
        return Task(
            key=key,
            data_source=f"textenvs/terminal-{self.level}",
            prompt=assignment.prompt,
            ground_truth=assignment.ground_truth,
            ability="tools",
            extra={"assignment": key},
        )


def assignment_of_task(task: Task, attempt: int = 0) -> Assignment:
    """Return the assignment of a task; ``TaskError``: it has none.

    Args:
        task: The task.
        attempt: How many draws are left out: their faults did not fit together. A twin has the first one alone.
    """
    if attempt and TWIN_MARK in str(task.extra.get("assignment")):
        raise TaskError(
            f"task {task.key}: the faults of this twin do not fit together, or break no check, and what its page "
            "states is about these faults alone: leave this row out"
        )
    try:
        assignment = assignment_of(str(task.extra["assignment"]), attempt)
    except (KeyError, ValueError) as error:
        raise TaskError(f"task {task.key}: it is none of generated terminal tasks: {error}") from None
    if attempt == 0 and assignment.question is None and task.ground_truth != assignment.ground_truth:
        raise TaskError(f"task {task.key}: its faults are not those that this version draws; make the rows again")
    if attempt == 0 and (not task.prompt or text_of(task.prompt[-1]) != assignment.request):
        raise TaskError(f"task {task.key}: its request is not the one that this version draws; make the rows again")
    return assignment


def inputs_of_turns(task: Task) -> Random:
    """Return what draws the inputs of checks during an episode of a task: the same in its twins."""
    return Random(f"terminal/turns/{task.key.partition(TWIN_MARK)[0]}")


@functools.lru_cache(_CACHED)
def assignment_of(key: str, attempt: int = 0) -> Assignment:
    """Return the assignment of a key: level, split, seed, perhaps templates and goals, number.

    That of a twin (:func:`twin_of`) has ``~RULE=OPTION`` after it: the project's page states this option of a rule.

    Raises:
        ValueError: It is no such key.
        TaskError: There is nothing in these templates for such a task.
    """
    own, mark, statement = key.partition(TWIN_MARK)
    if mark:
        rule, _, option = statement.partition("=")
        if not option.isdecimal():
            raise ValueError(f"{key!r} is no key of a generated task")
        return assignment_of(own, attempt).restated(key, rule, int(option))
    parts = key.split("/")
    if not 4 <= len(parts) <= 6 or parts[0] not in LEVELS or parts[1] not in SPLITS or not parts[-1].isdecimal():
        raise ValueError(f"{key!r} is no key of a generated task")
    level, split, _, *options, _ = parts
    templates, goals = tuple(TEMPLATES), GOALS
    for option in options:
        name, _, values = option.partition("=")
        if name == "templates" and {*values.split("+")} <= TEMPLATES.keys():
            templates = tuple(values.split("+"))
        elif name == "goals" and {*values.split("+")} <= {*GOALS}:
            goals = cast("tuple[Goal, ...]", tuple(values.split("+")))
        else:
            raise ValueError(f"{key!r} is no key of a generated task")
    rng = Random(f"terminal/{key}/{attempt}")
    for _ in range(_TRIES):
        template, project_seed = TEMPLATES[rng.choice(templates)], rng.getrandbits(64)
        project = template(Random(project_seed))
        if (drawn := _drawn(project, level, cast("Split", split), goals, rng)) is not None:
            return Assignment(key, attempt, disputed(project, drawn[2]), template, project_seed, *drawn)
    raise TaskError(
        f"no template of {', '.join(templates)} has {' or '.join(goals)} tasks for level {level} and split {split}"
    )


def twin_of(task: Task, rule: str, option: int) -> Task:
    """Return the task in whose project the page states another option of a rule, which a fault goes against.

    All else is the same, so its faulty program is that of ``task`` where no other file depends on the rule.

    Raises:
        ValueError: No fault of the task has this option among its alternatives.
    """
    end = f"{TWIN_MARK}{rule}={option}"
    key = f"{task.extra['assignment']}{end}"
    truth = assignment_of(key).ground_truth
    return replace(task, key=f"{task.key}{end}", ground_truth=truth, extra={**task.extra, "assignment": key})


def _drawn(
    project: Project, level: str, split: Split, goals: Sequence[Goal], rng: Random
) -> tuple[tuple[Fault, ...], Question | None, Mapping[str, str]] | None:
    """Draw faults, a question, and forms of disputes; ``None`` where there are none for the level and the split."""
    asks = "question" in goals and bool(project.questions) and ("repair" not in goals or rng.random() < _QUESTIONS)
    if asks:
        questions = _of_split(project.questions, split)
        return ((), rng.choice(questions), {}) if questions else None
    if "repair" not in goals:
        return None
    least, most = FAULTS[level]
    disputes = _disputes(project, split, DISPUTES[level], rng)
    chosen = list[Fault]()
    # A fault that does not fit with a broken rule would tell that the rule is not broken.
    rest = [fault for fault in project.faults if all(fit(project, [rule, fault]) for rule in disputes)]
    if disputes:
        for fault in rng.sample(disputes, rng.randint(1, len(disputes) - 1)):
            chosen += [fault] if fit(project, [*chosen, fault]) else []
        # How many other faults there are tells nothing about how many disputed rules are broken.
        least, most = least - 1, most - (len(disputes) - 1)
    faults = choose(replace(project, faults=rest), split, rng.randint(least, most), rng, chosen)
    if len(faults) < least + len(chosen):
        return None
    return tuple(faults), None, {fault.kind: draw_form(rng, split) for fault in disputes}


def _disputes(project: Project, split: Split, count: int, rng: Random) -> list[Fault]:
    """Draw the faults of up to ``count`` rules for a dispute, of the split's own kinds as far as there are; or none."""
    if count == 0:
        return []
    drawn = list[Fault]()
    kinds: Sequence[Split] = (split,) if split == "train" else (split, "train")
    for own in kinds:
        rules = [fault for fault in _of_split(project.faults, own) if is_disputable(project, fault)]
        drawn += rng.sample(rules, min(len(rules), count - len(drawn)))
    return drawn if len(drawn) > 1 else []


def is_held_out(kind: str) -> bool:
    """Return whether a kind of faults or questions is in the test split alone."""
    return split_by_hash(f"terminal/{kind}", _HELD_OUT) == "test"


def _of_split(kinds: Sequence[KindT], split: Split) -> list[KindT]:
    return [kind for kind in kinds if is_held_out(kind.kind) == (split == "test")]


def choose(project: Project, split: Split, count: int, rng: Random, chosen: Sequence[Fault] = ()) -> list[Fault]:
    """Choose up to ``count`` faults that fit together, as far as the project's files show it, behind those ``chosen``.

    In the test split those of its own kinds come first; without one of these there are none.
    """
    own = _of_split(project.faults, split)
    rng.shuffle(own)
    faults, count = [*chosen], len(chosen) + count
    for fault in own:
        if len(faults) < count and fit(project, [*faults, fault]):
            faults.append(fault)
    if split == "train":
        return faults
    if not any(is_held_out(fault.kind) for fault in faults):
        return []
    others = _of_split(project.faults, "train") if len(faults) < count else []
    rng.shuffle(others)
    for fault in others:
        if len(faults) < count and fit(project, [*faults, fault]):
            faults.append(fault)
    return faults


def fit(project: Project, faults: Sequence[Fault]) -> bool:
    """Return whether faults can be applied in this order and repaired in the reverse one, by the project's files.

    No two change the same file other than by edits, and undoing the edits restores every file. What the project's
    setup or a fault's command does is not seen here.
    """
    edited: dict[str, str | None] = {}
    replaced = [path for fault in faults for path in (*fault.added, *fault.removed, *fault.modes)]
    edits = [edit for fault in faults for edit in fault.edits]
    if len(set(replaced)) < len(replaced) or {*replaced} & {edit.path for edit in edits}:
        return False
    for edit in edits:
        text = edited.get(edit.path, project.files.get(edit.path))
        edited[edit.path] = None if text is None else text.replace(edit.old, edit.new)
        if text is not None and text.count(edit.old) != 1:
            return False
    for edit in reversed(edits):
        if (text := edited[edit.path]) is not None:
            edited[edit.path] = text.replace(edit.new, edit.old, 1)
    return all(text is None or text == project.files[path] for path, text in edited.items())


def _paths_in_words(project: Project) -> str:
    """Name the fixed files; a folder whose files are all fixed is named in their place."""
    names = set()
    for path in project.fixed:
        folder, name = path.partition("/")[0], path
        if folder != path and {one for one in project.files if one.startswith(f"{folder}/")} <= project.fixed:
            name = f"{folder}/"
        names.add(name)
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more
