"""The template *timetable*: a school's week in tables, and questions about it that SQL answers.

It needs sh and Python 3 with its module sqlite3.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TypeVar

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, FIRST_NAMES, SURNAMES, asked_together, file_in_the_way, lost_permission, notes
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    ANSWERS,
    CLASHES,
    CLASS,
    DATES,
    FREE,
    GAPS,
    LOAD,
    MAIN,
    PLAN,
    QUESTIONS,
    SCHEMA,
    SMALL,
    SUBSTITUTES,
    TABLES,
    VIEWS,
)

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri")
_SUBJECTS = ("Art", "Biology", "Chemistry", "English", "French", "Maths", "Music", "Physics", "Sports")
_PERIODS = range(1, 12)
#: Rules in whose options the drawn tables must differ; those of other rules differ by construction.
_BY_CHANCE = (
    "class-order",
    "load-counted",
    "order-of-teachers",
    "order-of-rooms",
    "absence-end",
    "substitute",
    "lunch",
)
_T = TypeVar("_T")
_K = TypeVar("_K")


@dataclass(frozen=True, order=True)
class _Lesson:
    class_name: str
    day: int
    period: int
    subject: str
    teacher: str
    room: str
    weeks: str

    @property
    def time(self) -> str:
        """When it is; of a lesson that is held."""
        return f"{self.weeks}{self.day}/{self.period}"

    @property
    def cells(self) -> dict[str, str]:
        """The cells of its row."""
        day = _DAYS[self.day].lower() if self.period % 3 == 0 else _DAYS[self.day]
        room = f" {self.room} " if self.period % 2 else self.room
        texts = (day, self.class_name, str(self.period), self.subject, self.teacher, room, self.weeks)
        return dict(zip(("day", "class", "period", "subject", "teacher", "room", "weeks"), texts, strict=True))


@dataclass(frozen=True)
class _Teacher:
    code: str
    name: str
    contract: int


@dataclass(frozen=True)
class _School:
    """A school, and the answers about it by the rules of a project."""

    variant: Variant
    pupils: Mapping[str, int]
    seats: Mapping[str, int]
    teachers: Sequence[_Teacher]
    lessons: Sequence[_Lesson]
    absences: Sequence[tuple[str, datetime.date, datetime.date]]
    first: datetime.date

    @cached_property
    def held(self) -> list[_Lesson]:
        """Return the lessons of each week, in their order."""
        held = {replace(one, weeks=week) for one in self.lessons for week in "AB" if one.weeks in (week, "both")}
        return sorted(held)

    def answer(self, question: str) -> list[str]:
        command, *words = question.split("; ")
        answers: Mapping[str, Callable[..., list[str]]] = {
            "class": self.of_class,
            "clashes": self.clashes,
            "load": self.load,
            "free": self.free,
            "small": self.small,
            "gaps": self.gaps,
            "substitutes": self.substitutes,
        }
        return [f"# {question}", *answers[command](*words)]

    def of_class(self, name: str, week: str) -> list[str]:
        rows = [one for one in self.held if one.class_name == name and one.weeks == week]
        return [
            self.variant["class-line"].format(
                day=_DAYS[one.day],
                number=one.day + 1,
                period=one.period,
                begins=None if one.period == _PERIODS[-1] else _begin(one.period),
                subject=one.subject,
                teacher=one.teacher or "?",
                room=one.room or "outside",
            )
            for one in sorted(rows, key=self.variant["class-order"])
        ]

    def clashes(self) -> list[str]:
        named: Sequence[tuple[str, str, _Lesson]] = [
            *((one.teacher, one.room, one) for one in self.held),
            *((one.room, one.teacher, one) for one in self.held),
        ]
        # No room has the name of a teacher.
        groups = dict[tuple[str, int, int, str], set[str]]()
        for who, what, one in named:
            if who and what:
                groups.setdefault((who, one.day, one.period, one.weeks), set()).add(what)
        rows = [(*key, min(values), max(values)) for key, values in groups.items() if len(values) > 1]
        return [
            self.variant["clash-line"].format(
                what=what, day=_DAYS[day], number=day + 1, period=period, letter=letter, one=one, other=other
            )
            for what, day, period, letter, one, other in sorted(rows)
        ]

    def load(self) -> list[str]:
        rows = list[tuple[_Teacher, float]]()
        for teacher in self.teachers:
            times = [(one.time, one.class_name) for one in self.held if one.teacher == teacher.code]
            rows.append((teacher, self.variant["load-counted"](times) / 2))
        rows.sort(key=lambda row: self.variant["order-of-teachers"](row[0].code, row[0].name, row[1] - row[0].contract))
        return [self.variant["load-line"](one.code, one.name, hours, one.contract) for one, hours in rows]

    def free(self, day: str, period: str, week: str, seats: str) -> list[str]:
        time = f"{week}{_DAYS.index(day)}/{period}"
        occupied = {one.room for one in self.held if one.time == time}
        rooms = [(room, number) for room, number in self.seats.items() if room not in occupied and number >= int(seats)]
        return [
            f"{room} {number}" for room, number in sorted(rooms, key=lambda row: self.variant["order-of-rooms"](*row))
        ]

    def small(self) -> list[str]:
        lines = list[str]()
        for (day, period, week, room), group in _grouped(
            self.held, lambda one: (one.day, one.period, one.weeks, one.room)
        ):
            pupils = sum(self.pupils[one.class_name] for one in group)
            if room and pupils + self.variant["spare-seats"] > self.seats[room]:
                lines.append(f"{_DAYS[day]} {period} {week} {room}: {pupils} for {self.seats[room]}")
        return lines

    def gaps(self) -> list[str]:
        gaps = dict[str, list[int]]()
        for (name, *_), group in _grouped(self.held, lambda one: (one.class_name, one.day, one.weeks)):
            periods = {one.period for one in group}
            empty = {*range(min(periods), max(periods))} - periods - {self.variant["lunch"]}
            if empty:
                gaps.setdefault(name, []).append(len(empty))
        names = sorted(gaps, key=lambda name: (len(name), name))
        return [
            self.variant["gap-line"].format(name, sum(gaps[name]), len(gaps[name]), max(gaps[name])) for name in names
        ]

    def letter(self, day: datetime.date) -> str:
        """Return the letter of a day's week."""
        weeks, number = (day - self.first).days + self.first.weekday(), day.isocalendar()[1]
        is_first = {"odd": number % 2 == 1, "even": number % 2 == 0, "term": weeks // 7 % 2 == 0}
        return "A" if is_first[self.variant["week-letter"]] else "B"

    def substitutes(self, text: str) -> list[str]:
        day = _date(text)
        if day.weekday() > 4:
            return ["no school"]
        letter = self.letter(day)
        held = [one for one in self.held if one.day == day.weekday() and one.weeks == letter]
        away = {who for who, since, until in self.absences if self.variant["absence-end"](day, since, until)}
        return [
            self.variant["substitute-line"].format(
                substitute=self.substitute(one, held, away), **{**one.__dict__, "room": ""}
            )
            for one in sorted(held, key=lambda one: (one.period, one.class_name, one.teacher))
            if one.teacher in away
        ]

    def substitute(self, lesson: _Lesson, held: Sequence[_Lesson], away: Iterable[str]) -> str:
        """Return who has a lesson in the place of an absent teacher."""
        busy = {one.teacher for one in held if one.period == lesson.period}
        free = [one for one in self.teachers if one.code not in away and one.code not in busy]
        own = {one.code: [other for other in self.lessons if other.teacher == one.code] for one in free}
        today = {one.code: sum(other.teacher == one.code for other in held) for one in free}
        first: Mapping[str, Callable[[_Teacher], int | bool]] = {
            "fewest": lambda one: today[one.code],
            "subject": lambda one: all(other.subject != lesson.subject for other in own[one.code]),
            "contract": lambda one: -one.contract,
            "class": lambda one: all(other.class_name != lesson.class_name for other in own[one.code]),
        }
        key = first[self.variant["substitute"]]
        return min(free, key=lambda one: (key(one), one.code)).code if free else "nobody"

    def files(self, rng: random.Random, folder: str) -> dict[str, str]:
        """Return its tables."""
        lessons = [one.cells for one in self.lessons]
        rng.shuffle(lessons)
        lessons.insert(3, lessons[0])
        tables = {
            "classes": [{"pupils": str(number), "class": name} for name, number in self.pupils.items()],
            "rooms": [{"room": room, "seats": str(number)} for room, number in self.seats.items()],
            "teachers": [
                {"code": one.code, "name": f'"{one.name}"', "contract": str(one.contract)} for one in self.teachers
            ],
            "periods": [{"period": str(number), "begins": _begin(number)} for number in _PERIODS[:-1]],
            "lessons": lessons,
            "absences": [
                {"teacher": who, "since": _written(since, place), "until": _written(until, place + 1)}
                for place, (who, since, until) in enumerate(self.absences)
            ],
        }
        texts = {
            f"{folder}/{name}.csv": "".join(
                f"{','.join(cells)}\n" for cells in [list(rows[0]), *(list(row.values()) for row in rows)]
            )
            for name, rows in tables.items()
        }
        texts[f"{folder}/lessons.csv"] = "\ufeff" + texts[f"{folder}/lessons.csv"]
        return texts | {f"{folder}/term.txt": f"{self.first}\n"}


def _grouped(rows: Iterable[_T], key: Callable[[_T], _K]) -> list[tuple[_K, list[_T]]]:
    """Return rows with equal keys, by key, in the order of keys."""
    return [(name, list(group)) for name, group in groupby(sorted(rows, key=key), key)]  # type: ignore[type-var,arg-type]


def _begin(period: int) -> str:
    return f"{7 + period:02}:{5 * period:02}"


def _date(text: str) -> datetime.date:
    if "." not in text:
        return datetime.date.fromisoformat(text)
    day, month, year = map(int, text.split("."))
    return datetime.date(year, month, day)


def _written(day: datetime.date, form: int) -> str:
    return f"{day.day}.{day.month}.{day.year}" if form % 2 else day.isoformat()


@dataclass(frozen=True)
class _Week:
    """Parts of a drawn school that its questions are about."""

    school: _School
    day: datetime.date
    later: datetime.date

    def questions(self) -> list[str]:
        """Return all questions; days are written in both forms."""
        names, slot = list(self.school.pupils), "free; Tue; 2"
        return [
            *(f"class; {name}; {week}" for name in names[:2] for week in "AB"),
            "clashes",
            "load",
            *(f"{slot}; {week}; 24" for week in "AB"),
            "free; Mon; 3; A; 1",
            "small",
            "gaps",
            *(f"substitutes; {_written(day, form)}" for form, day in enumerate((self.day, self.later))),
            f"substitutes; {self.day + datetime.timedelta(5 - self.day.weekday())}",
        ]


def _week(rng: random.Random, variant: Variant) -> _Week:
    """Draw a school in which each rule shows."""
    for _ in range(DRAWS):
        week = _drawn(rng, variant)
        questions = week.questions()

        def printed(other: Variant, week: _Week = week, questions: Sequence[str] = questions) -> list[list[str]]:
            school = replace(week.school, variant=other)
            return [school.answer(question) for question in questions]

        if variant.separates(_BY_CHANCE, printed):
            break
    return week


def _teachers(rng: random.Random) -> list[_Teacher]:
    """Draw thirteen teachers: three with the first codes and the longest contracts; two others have the same name."""
    names = [
        f"{last}, {first}" for last, first in zip(rng.sample(SURNAMES, 12), rng.sample(FIRST_NAMES, 12), strict=True)
    ]
    codes = rng.sample([f"{a}{b}{c}" for a in "DEFGHKLM" for b in "AEIOU" for c in "NRST"], 10)
    first = [f"A{letter}{rng.choice('KLMN')}" for letter in "ABC"]
    contracts = [28, 27, 26, *(rng.randint(8, 24) for _ in codes)]
    return [
        _Teacher(code, name, contract)
        for code, name, contract in zip([*first, *codes], [*names, names[-1]], contracts, strict=True)
    ]


def _drawn(rng: random.Random, variant: Variant) -> _Week:
    """Draw a school: classes, rooms, teachers of whom some are absent, and their lessons."""
    teachers = _teachers(rng)
    # The first is absent, the second has a lesson, and the third one in the other week alone.
    absent, busy, free, *staff = [one.code for one in teachers]
    away, idle, single, since, until, *pool = staff
    classes = [
        f"{rng.choice((7, 8, 9))}{rng.choice('abc')}",
        f"10{rng.choice('abc')}",
        f"{rng.choice((7, 8, 9))}d",
        "9e",
    ]
    pupils = {name: rng.randint(20, 26) for name in rng.sample(classes, 4)} | {"AG1": 12}
    names = list(pupils)
    size = pupils[names[0]]
    seats = {"aula": 120, "Mini": 8, "Lab": 36, "gym": 24, f"R{rng.randint(10, 29)}": size + 1}
    seats |= {f"r{rng.randint(30, 59)}": size + 3, f"R{rng.randint(60, 99)}": size + 5, "Studio": rng.randint(33, 39)}
    first = datetime.date(rng.choice((2020, 2026)), 9, 2)
    first -= datetime.timedelta(rng.randint(0, 6))
    day = first + datetime.timedelta(7 * rng.randint(6, 10) - first.weekday() + rng.choice((0, 2, 3)))
    later = first + datetime.timedelta(7 * rng.randint(20, 24) - first.weekday() + rng.choice((0, 2, 3, 4)))
    far = datetime.timedelta(10)
    absences = [
        *((code, one - far, one + far) for code in (away, absent, idle, single) for one in (day, later)),
        (since, day, day + far),
        (until, day - far, day),
    ]
    lessons = _lessons(rng, names, list(seats)[4:], [*pool, since, until])
    lessons += _cases(rng, names, list(seats), [absent, busy, free, away, single], pool, day.weekday())
    school = _School(variant, pupils, seats, teachers, lessons, absences, first)
    other_week = "B" if school.letter(day) == "A" else "A"
    occupied = _Lesson(names[2], day.weekday(), 7, "Music", free, "Studio", other_week)
    return _Week(replace(school, lessons=[*lessons, occupied]), day, later)


def _lessons(rng: random.Random, names: Sequence[str], rooms: Sequence[str], staff: Sequence[str]) -> list[_Lesson]:
    """Draw lessons of all classes; some of them clash."""
    lessons = list[_Lesson]()
    for name in names[:4]:
        for day in range(5):
            for period in rng.sample(range(1, 7), 3):
                if (day, period) != (1, 2):
                    subject = rng.choice(_SUBJECTS)
                    room = "" if rng.random() < 0.1 else rng.choice(rooms)
                    weeks = rng.choice(("A", "B", "both", "both"))
                    lessons.append(_Lesson(name, day, period, subject, rng.choice(staff), room, weeks))
    return lessons


def _cases(
    rng: random.Random, names: Sequence[str], rooms: Sequence[str], staff: Sequence[str], pool: Sequence[str], day: int
) -> list[_Lesson]:
    """Draw lessons that each show something: clashes, lessons together, a divided class, small rooms, substitutes."""
    absent, busy, free, away, single = staff
    one, other, third, *_ = names
    _, _, lab, gym, near, close, far, studio = rooms
    subject, another = rng.sample(_SUBJECTS[:6], 2)
    elsewhere = (day + 1) % 5
    cases = [
        # A lesson without a room, and a room that is taken in one week.
        (one, 1, 2, "Sports", pool[0], "", "both"),
        (other, 1, 2, another, pool[1], studio, "B"),
        # Together, without a clash; in different weeks; a clash of a teacher, and one of a room.
        *((name, 4, 8, another, pool[0], lab, "both") for name in (one, other)),
        (one, 4, 9, another, pool[1], near, "A"),
        (other, 4, 9, another, pool[1], close, "B"),
        (one, 4, 10, another, pool[2], near, "both"),
        (other, 4, 10, another, pool[2], far, rng.choice("AB")),
        (third, 3, 8, another, pool[0], gym, "both"),
        (other, 3, 8, another, pool[2], gym, "both"),
        # A divided class with a gap, and a lesson at a time that is in no table.
        (one, 0, 7, another, pool[1], near, "both"),
        (one, 0, 7, another, pool[2], far, "both"),
        (one, 0, 10, another, pool[0], close, "both"),
        (other, 0, 1, another, pool[0], lab, "A"),
        (other, 0, 11, another, pool[0], lab, "both"),
        (third, elsewhere, 9, another, single, lab, "A"),
        # Those who could be substitutes.
        (one, day, 7, subject, away, lab, "both"),
        (third, day, 7, another, busy, gym, "both"),
        (one, elsewhere, 9, subject, absent, gym, "both"),
        (one, elsewhere, 8, subject, busy, studio, "both"),
        (one, elsewhere, 10, subject, free, studio, "both"),
        (third, day, 9, another, free, studio, "both"),
        *((third, weekday, 11, another, away, studio, "A") for weekday in range(5)),
        *(("AG1", weekday, 10, another, away, "", "B") for weekday in range(5)),
        *(("AG1", day, period, "Music", code, "", "both") for code in pool for period in (8, 9)),
    ]
    return [_Lesson(*case) for case in cases]


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the programs, a school, and what is in its rooms."""
    names = {"code": rng.choice(["code", "week", "planner", "inside", "lib"])}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    queries = {
        "schema": SCHEMA,
        "views": VIEWS,
        "class": CLASS,
        "clashes": CLASHES,
        "load": LOAD,
        "free": FREE,
        "small": SMALL,
        "gaps": GAPS,
        "substitutes": SUBSTITUTES,
    }
    texts = {
        "bin/plan": PLAN,
        "@code@/main.py": MAIN,
        "@code@/tables.py": TABLES,
        "@code@/dates.py": DATES,
        "@code@/answers.py": ANSWERS,
        **{f"sql/{name}.sql": text for name, text in queries.items()},
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {
        # Nothing reads these two.
        "old/free.sql": variant.outdated(FREE).replace(" AND room IS NOT NULL", ""),
        "old/views.sql": variant.text(VIEWS).replace("weeks IN (letter, 'both')", "weeks = letter"),
        "var/.gitignore": "*.db\n",
        "docs/questions.md": QUESTIONS,
        "docs/notes.md": notes(rng, "Notes on the timetable", 10),
    }
    week = _drawn(rng, variant)
    files |= week.school.files(rng, "school") | {"school/questions.txt": "\n".join(week.questions()[:4]) + "\n"}
    questions = _questions(rng, files, week.school)
    fixed = frozenset(path for path in files if path.startswith(("school/", "slips/", "rooms/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, variant)]

    about = (
        "`bin/plan FOLDER FILE` answers questions about a school's week, such as those in `school/questions.txt` about "
        f"`school`. `docs/questions.md` describes questions and tables, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", variant.words("cat bin/plan docs/questions.md @code@/*.py"), "tail -n +1 sql/*"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    return Project(about, files, faults, checks, {"bin/plan": 0o755}, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    return [
        Fault(
            "missing-file",
            "It ends with an error: something is not there.",
            [*looks, "cat old/views.sql"],
            "sed \"s/weeks = letter/weeks IN (letter, 'both')/\" old/views.sql > sql/views.sql".replace(
                "letter", variant.text("letter")
            ),
            removed=["sql/views.sql"],
        ),
        file_in_the_way(
            variant.words("@code@/csv.py"),
            '"""Export of plans, for a later version."""\n\nSEPARATOR = ";"\n',
            looks,
            "It ends with an AttributeError before it reads a table.",
        ),
        lost_permission("bin/plan", looks),
    ]


def _check(rng: random.Random, variant: Variant) -> Check:
    """Ask all about one school, and a little about another one."""
    week, other = _week(rng, variant), _drawn(rng, variant)
    schools = {"one school": (week, week.questions()), "two": (other, other.questions()[1:6])}
    inputs, expected, commands = dict[str, str](), list[str](), list[str]()
    for number, (name, (one, questions)) in enumerate(schools.items()):
        inputs |= one.school.files(rng, name)
        written = "".join(f"{question.replace('; ', ' ; ' if number else '; ')}\n" for question in questions)
        inputs[f"questions{number}"] = written
        commands.append(f'bin/plan "$IN/{name}" $IN/questions{number}')
        for question, line in zip(questions, written.splitlines(), strict=True):
            expected += [f"# {line}", *one.school.answer(question)[1:]]
    return Check("answers", "; ".join(commands), "\n".join(expected), inputs)


def _questions(rng: random.Random, files: dict[str, str], school: _School) -> list[Question]:
    """Draw slips of substitutes, and lists of what is in rooms; ask about them."""
    codes = [one.code for one in school.teachers]
    dearest = draw_journal(
        rng,
        files,
        "slips/{:02}.txt",
        codes,
        range(1000, 90_000),
        lambda month, code, cents, slip: (
            f"{rng.randint(1, 28)}.{month}. {code} for {rng.choice(codes)}: {cents} cents, slip {slip}"
        ),
    )
    things = ("beamer", "camera", "chair", "globe", "piano", "scanner", "screen")
    key_of = draw_lists(rng, files, "rooms", "key", lambda one: f"{rng.choice(things)} {one}", counts=(25, 40))
    return [
        asked_together([_dearest_slip(one, dearest[one]) for one in rng.sample([*dearest], ASKED)]),
        asked_together([_key_of_thing(one, key_of[one]) for one in rng.sample(sorted(key_of), ASKED)]),
    ]


def _dearest_slip(code: str, slip: str) -> Question:
    command = f"grep -h '\\. {code} for ' slips/* | sed 's/.*: \\(.*\\) cents, slip/\\1/' | sort -n | tail -1"
    return Question(
        "dearest-slip",
        f"On which slip did {code} get most for being a substitute, by slips/?",
        slip,
        ["head -3 slips/01.txt", f"{command} | cut -d' ' -f2"],
    )


def _key_of_thing(serial: str, key: str) -> Question:
    return Question(
        "key-of-thing",
        f"Which key opens the room with the thing that has the number {serial}, by rooms/?",
        key,
        [f"grep -r {serial} rooms", f"grep -l ' {serial}$' rooms/* | xargs sed -n 's/^key //p'"],
    )
