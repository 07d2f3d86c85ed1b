"""An invented world to ask about: people, towns, companies and books, each with a page that says what is true of it.

Nothing in it is known to any model, so that answers have to be looked up. Every fact stands on one page: what a person
does on the person's, where a company has its seat on the company's. Questions are of three kinds:

* *one hop*: "Which river flows through Ostrel?";
* *two hops*: "In which town was the author of 'The Copper Door' born?", where the first page names the second;
* *comparison*: "Who was born earlier, Ada Brenn or Ole Tarv?", which needs a page each.

Training and test worlds are disjoint by construction: every name (each word of it) hashes to one split or the other.
A world, and the question at an index, are a function of (level, split, seed) alone.
"""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import dataclass
from typing import Literal

from ...data.corpus import Document
from ...messages import user
from ...task import SPLITS, Split, Task

WorldLevel = Literal["easy", "medium", "hard"]

#: One name in this many is held out for the test split.
_HELD_OUT = 4

_STARTS: tuple[str, ...] = (
    *("Al", "Bre", "Cor", "Dan", "El", "Fen", "Gar", "Hol", "Is", "Jor", "Kel", "Lor", "Mar", "Nor", "Os", "Per"),
    *("Quin", "Ros", "Sel", "Tar", "Ul", "Ver", "Wel", "Yor", "Zan", "Dra", "Gre", "Pra", "Ste", "Vin"),
)
_MIDDLES = ("a", "e", "i", "o", "u", "an", "en", "il", "or", "um", "ar", "est")
_ENDS = {
    "given": ("na", "la", "rik", "ton", "da", "vin", "ra", "mund", "sa", "bert", "lie", "ko"),
    "family": ("berg", "holm", "rup", "stad", "vik", "lund", "feld", "mark", "sen", "quist", "thal", "by"),
    "town": ("ford", "haven", "bury", "mouth", "wick", "port", "dale", "stead", "gate", "minster"),
    "river": ("ne", "ra", "we", "sse", "dd", "lbe", "gon", "ss"),
    "company": ("tec", "rix", "dyne", "corp", "ware", "lon", "max", "dor"),
}
_WORK = ("architect", "baker", "botanist", "carpenter", "doctor", "engineer", "geologist", "judge", "painter", "pilot")
_GOODS = ("bicycles", "clocks", "furniture", "glass", "lamps", "paper", "pianos", "pumps", "rope", "sailing boats")
_FAMOUS = (
    "bridges",
    "cheese",
    "a chess festival",
    "cherries",
    "an old mill",
    "pottery",
    "salt",
    "a stone tower",
    "wool",
)
_ADJECTIVES = (
    "Amber",
    "Broken",
    "Copper",
    "Distant",
    "Empty",
    "Frozen",
    "Golden",
    "Hidden",
    "Last",
    "Narrow",
    "Silent",
)
_NOUNS = ("Bridge", "Door", "Garden", "Harbour", "Key", "Lantern", "Mirror", "Orchard", "River", "Station", "Winter")

#: How many towns a world of each level has; the rest follows from it.
_TOWNS = {"easy": 12, "medium": 20, "hard": 30}


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the searches that lead there.

    Args:
        kind: ``"one hop"``, ``"two hops"`` or ``"comparison"``.
        text: The question.
        answer: A name, a number or a word.
        searches: What the scripted expert looks for, one after the other.
    """

    kind: str
    text: str
    answer: str
    searches: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """The pages of a world, and every question that there is about it, in no particular order."""

    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


class _Names:
    """Names that belong to a split, and differ."""

    def __init__(self, rng: random.Random, split: str) -> None:
        self._rng = rng
        self._split = split
        self._used: set[str] = set()

    def draw(self, kind: str) -> str:
        while True:
            if kind == "title":
                name = f"{self._rng.choice(_ADJECTIVES)} {self._rng.choice(_STARTS)}{self._rng.choice(_ENDS['river'])}"
                name += f" {self._rng.choice(_NOUNS)}"
            else:
                ends = _ENDS[kind]
                name = self._rng.choice(_STARTS) + self._rng.choice(_MIDDLES) + self._rng.choice(ends)
            if name not in self._used and split_of(name) == self._split:
                self._used.add(name)
                return name


def split_of(name: str) -> str:
    """The split that a name belongs to, whatever the level and the seed."""
    digest = hashlib.sha256(f"world/{name}".encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % _HELD_OUT == 0 else "train"


@dataclass(frozen=True)
class _Town:
    name: str
    river: str
    founded: int
    famous: str
    mayor: str


@dataclass(frozen=True)
class _Person:
    name: str
    born: int
    birthplace: str
    work: str
    employer: str


@dataclass(frozen=True)
class _Company:
    name: str
    seat: str
    founded: int
    founder: str
    goods: str


@dataclass(frozen=True)
class _Book:
    title: str
    author: str
    year: int
    set_in: str


@functools.lru_cache(maxsize=16)
def make_world(level: WorldLevel, split: Split, seed: int) -> World:
    """The world of a level, a split and a seed; made once a process."""
    rng = random.Random(f"world/{level}/{split}/{seed}")
    names = _Names(rng, split)
    count = _TOWNS[level]
    people = [f"{names.draw('given')} {names.draw('family')}" for _ in range(3 * count)]
    towns, companies = [names.draw("town") for _ in range(count)], [names.draw("company") for _ in range(count)]
    mayors, founders = rng.sample(people, count), rng.sample(people, count)
    town_list = [
        _Town(name, names.draw("river"), rng.randint(900, 1800), rng.choice(_FAMOUS), mayor)
        for name, mayor in zip(towns, mayors, strict=True)
    ]
    company_list = [
        _Company(name, rng.choice(towns), rng.randint(1965, 2010), founder, rng.choice(_GOODS))
        for name, founder in zip(companies, founders, strict=True)
    ]
    person_list = [
        _Person(name, rng.randint(1880, 1940), rng.choice(towns), rng.choice(_WORK), rng.choice(companies))
        for name in people
    ]
    book_list = [
        _Book(f"The {names.draw('title')}", rng.choice(people), rng.randint(1965, 2020), rng.choice(towns))
        for _ in range(count)
    ]
    documents = [
        *(Document(f"town-{i}", each.name, _town_page(each)) for i, each in enumerate(town_list)),
        *(Document(f"person-{i}", each.name, _person_page(each)) for i, each in enumerate(person_list)),
        *(Document(f"company-{i}", each.name, _company_page(each)) for i, each in enumerate(company_list)),
        *(Document(f"book-{i}", each.title, _book_page(each)) for i, each in enumerate(book_list)),
    ]
    questions = _questions(level, rng, town_list, person_list, company_list, book_list)
    rng.shuffle(documents)
    rng.shuffle(questions)
    return World(tuple(documents), tuple(questions))


def _town_page(town: _Town) -> str:
    return (
        f"{town.name} is a town on the river {town.river}. It was founded in {town.founded} and is famous for "
        f"{town.famous}. The mayor of {town.name} is {town.mayor}."
    )


def _person_page(person: _Person) -> str:
    article = "an" if person.work[0] in "aeiou" else "a"
    return (
        f"{person.name} is {article} {person.work} and works for {person.employer}. {person.name} was born in "
        f"{person.birthplace} in {person.born}."
    )


def _company_page(company: _Company) -> str:
    return (
        f"{company.name} is a company that makes {company.goods}. It was founded by {company.founder} in "
        f"{company.founded}, and has its seat in {company.seat}."
    )


def _book_page(book: _Book) -> str:
    return f"{book.title} is a novel by {book.author}, published in {book.year}. The story is set in {book.set_in}."


# ------------------------------------------------------------------ questions


def _questions(
    level: str,
    rng: random.Random,
    towns: list[_Town],
    people: list[_Person],
    companies: list[_Company],
    books: list[_Book],
) -> list[Question]:
    one = [
        *(q for town in towns for q in _about_town(town, town.name, (town.name,), "one hop")),
        *(q for person in people for q in _about_person(person, person.name, (person.name,), "one hop")),
        *(q for company in companies for q in _about_company(company, company.name, (company.name,), "one hop")),
        *(q for book in books for q in _about_book(book)),
    ]
    if level == "easy":
        return one
    town_of, person_of = {each.name: each for each in towns}, {each.name: each for each in people}
    company_of = {each.name: each for each in companies}
    two: list[Question] = []
    for town in towns:
        described = f"the mayor of {town.name}"
        two += _about_person(person_of[town.mayor], described, (town.name, town.mayor), "two hops")
    for company in companies:
        described, place = f"the founder of {company.name}", f"the town where {company.name} has its seat"
        two += _about_person(person_of[company.founder], described, (company.name, company.founder), "two hops")
        two += _about_town(town_of[company.seat], place, (company.name, company.seat), "two hops")
    for book in books:
        described, place = f"the author of '{book.title}'", f"the town in which '{book.title}' is set"
        two += _about_person(person_of[book.author], described, (book.title, book.author), "two hops")
        two += _about_town(town_of[book.set_in], place, (book.title, book.set_in), "two hops")
    for person in people:
        place, firm = f"the town where {person.name} was born", f"the company that {person.name} works for"
        two += _about_town(town_of[person.birthplace], place, (person.name, person.birthplace), "two hops")
        two += _about_company(company_of[person.employer], firm, (person.name, person.employer), "two hops")
    if level == "medium":
        # As many of each, though there are more ways to take two steps than one.
        return one + rng.sample(two, len(one))
    return rng.sample(two, len(one)) + _comparisons(rng, towns, people, companies, len(one))


def _about_town(town: _Town, described: str, searches: tuple[str, ...], kind: str) -> list[Question]:
    return [
        Question(kind, f"Which river flows through {described}?", town.river, searches),
        Question(kind, f"In which year was {described} founded?", str(town.founded), searches),
        Question(kind, f"Who is the mayor of {described}?", town.mayor, searches),
    ]


def _about_person(person: _Person, described: str, searches: tuple[str, ...], kind: str) -> list[Question]:
    return [
        Question(kind, f"In which year was {described} born?", str(person.born), searches),
        Question(kind, f"In which town was {described} born?", person.birthplace, searches),
        Question(kind, f"What is the profession of {described}?", person.work, searches),
        Question(kind, f"Which company does {described} work for?", person.employer, searches),
    ]


def _about_company(company: _Company, described: str, searches: tuple[str, ...], kind: str) -> list[Question]:
    return [
        Question(kind, f"In which town does {described} have its seat?", company.seat, searches),
        Question(kind, f"In which year was {described} founded?", str(company.founded), searches),
        Question(kind, f"Who founded {described}?", company.founder, searches),
        Question(kind, f"What does {described} make?", company.goods, searches),
    ]


def _about_book(book: _Book) -> list[Question]:
    return [
        Question("one hop", f"Who wrote '{book.title}'?", book.author, (book.title,)),
        Question("one hop", f"In which year was '{book.title}' published?", str(book.year), (book.title,)),
        Question("one hop", f"In which town is '{book.title}' set?", book.set_in, (book.title,)),
    ]


def _comparisons(
    rng: random.Random, towns: list[_Town], people: list[_Person], companies: list[_Company], count: int
) -> list[Question]:
    """Pairs with different years, each pair once."""
    kinds: list[tuple[str, list[tuple[str, int]]]] = [
        ("Who was born earlier", [(each.name, each.born) for each in people]),
        ("Which town was founded earlier", [(each.name, each.founded) for each in towns]),
        ("Which company was founded earlier", [(each.name, each.founded) for each in companies]),
    ]
    found: dict[str, Question] = {}
    while len(found) < count:
        start, dated = rng.choice(kinds)
        (one, early), (two, late) = rng.sample(dated, 2)
        names = f"{start}: {sorted((one, two))}"
        if early == late or names in found:
            continue
        answer = one if early < late else two
        found[names] = Question("comparison", f"{start}, {one} or {two}?", answer, (one, two))
    return list(found.values())


# ------------------------------------------------------------------ the task set

LEVELS: tuple[str, ...] = tuple(_TOWNS)


@dataclass(frozen=True)
class GeneratedQuestions:
    """A :class:`~textenvs.task.TaskSet` of questions about an invented world; :attr:`documents` are its pages.

    Args:
        level: ``"easy"`` (one hop; 72 pages), ``"medium"`` (one and two hops; 120) or ``"hard"`` (two hops and
            comparisons; 180).
        seed: Another seed is another world.
        split: ``"train"`` or ``"test"``; the two never share a name, whatever their seeds.

    Raises:
        ValueError: An unknown level or split, or a seed that is not an integer.
    """

    level: WorldLevel = "easy"
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        if self.level not in _TOWNS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {self.level!r}")
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {self.split!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be an integer, not {self.seed!r}")

    @property
    def name(self) -> str:
        """Which questions these are, in a line."""
        return f"generated {self.level} questions ({self.split}, seed {self.seed})"

    @property
    def documents(self) -> tuple[Document, ...]:
        """The pages that answer the questions."""
        return make_world(self.level, self.split, self.seed).documents

    @property
    def size(self) -> int:
        """How many questions there are."""
        return len(make_world(self.level, self.split, self.seed).questions)

    def __getitem__(self, index: int) -> Task:
        """The question at ``index``.

        Raises:
            IndexError: ``index`` is outside ``range(size)``.
        """
        questions = make_world(self.level, self.split, self.seed).questions
        if not 0 <= index < len(questions):
            raise IndexError(f"{self.name}: index {index} is outside its {len(questions)} questions")
        question = questions[int(index)]
        return Task(
            key=f"{self.level}/{self.split}/{self.seed}/{int(index)}",
            data_source=f"textenvs/questions-{self.level}",
            prompt=(user(question.text),),
            ground_truth=question.answer,
            ability="search",
            extra={"level": self.level, "kind": question.kind, "searches": list(question.searches)},
        )
