"""An invented world for every question: people, towns, companies and books, each with a page of facts.

A world is drawn for each task, so nothing that was read in one episode helps in another: names come back, with other
facts. Every fact stands on one page, in an order of the page's own. Questions are of *one hop* ("Which river flows
through Ostrel?"), *two hops* ("In which town was the author of 'The Copper Door' born?", where the first page names the
second), or a *comparison* ("How many years lie between the births of Ada Brenn and Ole Tarv?"). No answer stands in its
question. Training and test worlds are disjoint by construction: every name (each word of it) hashes to one split or the
other. So are wordings: of each list of questions and of sentences on pages some are for test worlds alone. A world is a
function of (level, split, seed, index) alone. Its words are in ``world.yaml``.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ...messages import user
from ...task import SPLITS, TWINS, Endless, Split, Task, TaskError, proven_facts, split_by_hash, split_choices
from ...text import load_yaml
from ...tools.search import Document

WorldLevel = Literal["easy", "medium", "hard"]

_DATA: dict[str, Any] = load_yaml(__package__, "world.yaml")
_NAMES, _WORDS, _KINDS = _DATA["names"], _DATA["words"], _DATA["kinds"]

#: One name in this many is held out for the test split.
_HELD_OUT = 4

#: How many towns a world of each level has; as many companies and books, and three times as many people.
_TOWNS: dict[str, int] = {"easy": 4, "medium": 6, "hard": 8}
#: Which questions each level has; a task's is drawn evenly.
_HOPS: dict[str, tuple[str, ...]] = {
    "easy": ("one hop",),
    "medium": ("one hop", "two hops"),
    "hard": ("two hops", "comparison"),
}

LEVELS: tuple[str, ...] = tuple(_TOWNS)


@dataclass(frozen=True)
class Question:
    """A question about a world."""

    kind: str
    text: str
    answer: str
    searches: tuple[str, ...]  # of the scripted expert
    reads: tuple[tuple[str, str], ...]  # the facts that it is about, in order: names of a thing and of a fact


@dataclass(frozen=True)
class _Thing:
    kind: str
    name: str
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class World:
    """The pages of a world, and a question about it."""

    documents: tuple[Document, ...]
    question: Question
    things: Mapping[str, _Thing] = field(default_factory=dict, compare=False)  # by name


@dataclass
class _Names:
    """Names of a split, all different."""

    rng: random.Random
    split: str
    used: set[str] = field(default_factory=set)

    def draw(self, kind: str) -> str:
        if kind == "person":
            return f"{self.draw('given')} {self.draw('family')}"
        choice = self.rng.choice
        while True:
            if kind == "book":
                ending = choice(_NAMES["ends"]["river"])
                name = f"{choice(_NAMES['adjectives'])} {choice(_NAMES['starts'])}{ending} {choice(_NAMES['nouns'])}"
                name = f"The {name}"
            else:
                name = choice(_NAMES["starts"]) + choice(_NAMES["middles"]) + choice(_NAMES["ends"][kind])
            if name not in self.used and split_of(name) == self.split:
                self.used.add(name)
                return name


@functools.lru_cache(maxsize=4096)
def split_of(name: str) -> str:
    return split_by_hash(f"world/{name}", _HELD_OUT)


@functools.lru_cache(maxsize=64)
def make_world(level: str, split: Split, seed: int, index: int) -> World:
    rng = random.Random(f"world/{level}/{split}/{seed}/{index}")
    names, count = _Names(rng, split), _TOWNS[level]
    things = {
        kind: [_Thing(kind, names.draw(kind)) for _ in range(3 * count if kind == "person" else count)]
        for kind in _KINDS
    }
    for thing in (member for group in things.values() for member in group):
        for name, fact in _KINDS[thing.kind]["facts"].items():
            thing.facts[name] = _value(rng, names, things, thing, fact)
    documents = [
        Document(f"{kind}-{i}", thing.name, _page(rng, thing, split))
        for kind, group in things.items()
        for i, thing in enumerate(group)
    ]
    rng.shuffle(documents)
    kind = rng.choice(_HOPS[level])
    questions = [
        question for question in _questions(kind, things, split) if question.answer.lower() not in question.text.lower()
    ]
    members = {thing.name: thing for group in things.values() for thing in group}
    return World(tuple(documents), rng.choice(questions), members)


def _value(
    rng: random.Random, names: _Names, things: Mapping[str, list[_Thing]], thing: _Thing, fact: Mapping[str, Any]
) -> str:
    if "of" in fact:
        return rng.choice([target.name for target in things[fact["of"]] if target is not thing])
    if "named" in fact:
        return names.draw(fact["named"])
    return str(rng.randint(*fact["years"])) if "years" in fact else str(rng.choice(_WORDS[fact["words"]]))


def _page(rng: random.Random, thing: _Thing, split: Split) -> str:
    kind = _KINDS[thing.kind]

    def pick(wordings: Sequence[str]) -> str:
        return rng.choice(split_choices(wordings, split))

    sentences = [pick(kind["facts"][name]["page"]).format(value=value) for name, value in thing.facts.items()]
    rng.shuffle(sentences)
    return " ".join([pick(kind["about"]).format(it=thing.name), *sentences])


def _questions(kind: str, things: Mapping[str, list[_Thing]], split: Split) -> Iterator[Question]:
    everything = {member.name: member for group in things.values() for member in group}
    for thing in everything.values():
        for name, fact in _KINDS[thing.kind]["facts"].items():
            value = thing.facts[name]
            if kind == "one hop":
                yield from _about(thing, thing.name, (thing.name,), kind, split, name)
            elif kind == "two hops" and "via" in fact:
                for frame in _frames(thing.kind, name, "via", split):
                    described = frame.format(it=thing.name)
                    for question in _about(everything[value], described, (thing.name, value), kind, split):
                        yield replace(question, reads=((thing.name, name), *question.reads))
            elif kind == "comparison" and "between" in fact:
                for other in things[thing.kind]:
                    years = abs(int(value) - int(other.facts[name]))
                    if years and other is not thing:
                        for frame in _frames(thing.kind, name, "between", split):
                            text = frame.format(it=thing.name, other=other.name)
                            reads = ((thing.name, name), (other.name, name))
                            yield Question(kind, text, str(years), (thing.name, other.name), reads)


def _about(
    thing: _Thing, described: str, searches: tuple[str, ...], kind: str, split: Split, only: str | None = None
) -> Iterator[Question]:
    for name, value in thing.facts.items():
        if only in (None, name):
            for frame in _frames(thing.kind, name, "ask", split):
                yield Question(kind, frame.format(it=described), value, searches, ((thing.name, name),))


@functools.cache
def _frames(kind: str, fact: str, use: str, split: Split) -> tuple[str, ...]:
    return split_choices(_KINDS[kind]["facts"][fact][use], split)


def twins_of(task: Task) -> list[tuple[str, list[Task]]]:
    """Return the twin worlds of a generated question (:meth:`~textenvs.env.TextEnv.twin_worlds`).

    In each, one fact that the question is about has another value on its page, and the answer is another one.
    """
    if (place := task.extra.get("world")) is None:
        return []
    world = make_world(*place)

    def others(thing: str, fact: str) -> Iterator[Task]:
        for value in _other_values(world, thing, fact, place[1]):
            question = _answered(world, thing, fact, value)
            if question.answer.lower() not in question.text.lower():
                yield _twin(task, world, (thing, fact), value, question)

    return proven_facts(task, ((f"the fact {read[1]!r} of {read[0]}", others(*read)) for read in world.question.reads))


def _other_values(world: World, thing: str, fact: str, split: Split) -> Iterator[str]:
    """Yield values for a fact: things of this world where the answer needs their page, and else also new ones."""
    kind, value = _KINDS[world.things[thing].kind]["facts"][fact], world.things[thing].facts[fact]
    rng = random.Random(f"twins/{thing}/{fact}/{value}")
    if "of" in kind:
        same = [other.name for other in world.things.values() if other.kind == kind["of"] and other.name != thing]
        yield from rng.sample(same, len(same))
    if "years" in kind:
        years = range(kind["years"][0], kind["years"][1] + 1)
        yield from map(str, rng.sample(years, len(years)))
    elif "words" in kind:
        yield from rng.sample(_WORDS[kind["words"]], len(_WORDS[kind["words"]]))
    elif (thing, fact) == world.question.reads[-1]:  # nothing is read about it
        names = _Names(rng, split, {*world.things, value})
        yield from (names.draw(kind.get("named") or kind["of"]) for _ in range(TWINS))


def _answered(world: World, thing: str, fact: str, value: str) -> Question:
    """Return a world's question with the answer, and the expert's searches, where a fact has another value."""
    question = world.question
    if question.kind == "comparison":
        years = [value if read == (thing, fact) else world.things[read[0]].facts[read[1]] for read in question.reads]
        return replace(question, answer=str(abs(int(years[0]) - int(years[1]))))
    if (thing, fact) == question.reads[-1]:
        return replace(question, answer=value)
    answer = world.things[value].facts[question.reads[-1][1]]
    return replace(question, answer=answer, searches=(thing, value))


def _twin(task: Task, world: World, changed: tuple[str, str], value: str, question: Question) -> Task:
    """Return the task in the world whose page of a thing has another value of a fact."""
    thing = world.things[changed[0]]
    wordings = _KINDS[thing.kind]["facts"][changed[1]]["page"]
    texts = {wording.format(value=thing.facts[changed[1]]): wording.format(value=value) for wording in wordings}
    rows = []
    for document in world.documents:
        text = document.text
        if document.title == thing.name:
            sentence = next(sentence for sentence in texts if sentence in text)
            text = text.replace(sentence, texts[sentence], 1)
        rows.append({"id": document.id, "title": document.title, "text": text})
    extra = {name: part for name, part in task.extra.items() if name != "world"}
    return replace(
        task,
        key=f"{task.key}~{question.answer}",
        ground_truth=question.answer,
        extra={**extra, "searches": list(question.searches), "documents": rows},
    )


def documents_of(task: Task) -> tuple[Document, ...] | None:
    """Return the documents of a row, or the pages of a generated question's world; ``None`` without either."""
    if (rows := task.extra.get("documents")) is not None:
        return tuple(Document.from_row(row, number) for number, row in enumerate(rows, start=1))
    match world := task.extra.get("world"):
        case None:
            return None
        case [str(level), str(split), int(seed), int(index)] if level in LEVELS and split in SPLITS:
            return make_world(level, split, seed, index).documents  # type: ignore[arg-type]
    raise TaskError(f"task {task.key}: extra_info.world must be [level, split, seed, index], not {world!r}")


@dataclass(frozen=True)
class GeneratedQuestions(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of questions, each about an invented world of its own.

    Args:
        level: ``"easy"`` (one hop; 24 pages), ``"medium"`` (one and two hops; 36) or ``"hard"`` (two hops and
            comparisons; 48).
        seed: Another seed is another sequence of worlds.
        split: ``"train"`` or ``"test"``; the two never share a name, whatever their seeds.
    """

    level: WorldLevel = "easy"
    seed: int = 0
    split: Split = "train"

    levels = LEVELS
    what = "questions"

    def _generate(self, index: int) -> Task:
        question = make_world(self.level, self.split, self.seed, index).question
        return Task(
            key=f"{self.level}/{self.split}/{self.seed}/{index}",
            data_source=f"textenvs/questions-{self.level}",
            prompt=(user(question.text),),
            ground_truth=question.answer,
            ability="search",
            extra={
                "level": self.level,
                "kind": question.kind,
                "searches": list(question.searches),
                "world": [self.level, self.split, self.seed, index],
            },
        )
