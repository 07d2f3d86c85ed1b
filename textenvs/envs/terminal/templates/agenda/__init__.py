"""The template *agenda*: events in text files with repetitions, days off and zones; agendas, hours and free times.

It needs sh, awk (mawk is enough), Python 3 and coreutils.
"""

from __future__ import annotations

import calendar
import datetime
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TypeAlias

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, GOODS, TOWNS, asked_together, file_in_the_way, lost_permission, notes, person, token
from ..records import has_one_largest
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    AGENDA,
    CALENDARS,
    CONF,
    DAYS_OFF,
    DAYSOFF,
    EXPAND,
    FORMAT,
    FREE,
    FREE_TEXT,
    HOURS,
    HOURS_AWK,
    OCCURRENCES,
    REPEAT,
    SETTINGS,
    SHOW_AWK,
    ZONES,
    ZONES_TEXT,
)

#: Tags, of which one takes place on days off; and others.
_TAGS, _OTHER_TAGS = ("family", "travel", "sport", "press"), ("work", "board", "tech")
_DAY = datetime.timedelta(days=1)
#: An occurrence: its day, first and last minute, title and tag.
_Occurrence: TypeAlias = tuple[str, int, int, str, str]


@dataclass(frozen=True)
class _Event:
    """An event of a calendar; ``minute`` and ``start`` are those of its zone."""

    start: datetime.date
    minute: int
    zone: str
    length: int
    tag: str
    title: str
    repeat: str = "once"
    times: int = 1
    every: int = 1
    without: tuple[datetime.date, ...] = ()

    def line(self, separator: str) -> str:
        hours, minutes = divmod(self.length, 60)
        length = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
        repeat = self.repeat if self.repeat == "once" else f"{self.repeat} {self.times}"
        if self.every > 1:
            repeat = repeat.replace(" ", f"/{self.every} ")
        clock = f"{self.minute // 60}:{self.minute % 60:02}"
        but = ",".join(map(str, self.without))
        return separator.join([str(self.start), clock, self.zone, length, repeat, self.tag, but, self.title])


@dataclass(frozen=True)
class _Office:
    """The rules and settings of a drawn project."""

    variant: Variant
    zone: str
    opens: int
    closes: int
    shortest: int
    single: datetime.date

    def is_off(self, day: datetime.date) -> bool:
        feast = (day.month, day.day) in ((1, 1), (12, 25), (12, 26))
        return feast or day == self.single or day.weekday() in self.variant["weekend"]

    def days(self, event: _Event) -> Iterator[datetime.date]:
        """Yield the days of an event, in its zone."""
        tried = counted = 0
        while (tried if self.variant["counted-repetitions"] else counted) < event.times:
            day = self._repeated(event, tried * event.every)
            tried += 1
            if day is None or day in event.without:
                continue
            counted += 1
            if event.tag != self.variant["tag-on-days-off"] and self.is_off(day):
                day = self.variant["on-day-off"](day, self.is_off)
            if day is not None:
                yield day

    def _repeated(self, event: _Event, number: int) -> datetime.date | None:
        if event.repeat not in ("monthly", "yearly"):
            return event.start + number * {"weekly": 7}.get(event.repeat, 1) * _DAY
        first = event.start.replace(day=1)
        for _ in range(number * {"yearly": 12}.get(event.repeat, 1)):
            first = (first + 31 * _DAY).replace(day=1)
        if event.start.day > calendar.monthrange(first.year, first.month)[1]:
            missing: datetime.date | None = self.variant["month-without-day"](first.year, first.month)
            return missing
        return first.replace(day=event.start.day)

    def occurrences(self, events: Sequence[_Event], first: datetime.date, count: int) -> list[_Occurrence]:
        lines = set[_Occurrence]()
        for event in events:
            for day in self.days(event):
                shift = datetime.timedelta(minutes=event.minute - ZONES[event.zone] + ZONES[self.zone])
                time = datetime.datetime.combine(day, datetime.time()) + shift
                if 0 <= (time.date() - first).days < count:
                    minute = time.hour * 60 + time.minute
                    title = event.title.replace("\t", " ")
                    lines.add((str(time.date()), minute, minute + event.length, title, event.tag))
        key = self.variant["order-of-ties"]
        return sorted(lines, key=lambda line: (line[0], line[1], key(line), "\t".join(map(str, line))))

    def agenda(self, lines: Sequence[_Occurrence]) -> str:
        output, current, busy = list[str](), "", 0
        for day, start, stop, title, tag in lines:
            if day != current:
                output.append(self.variant["day-heading"].format(*day.split("-")))
                current, busy = day, 0
            mark = "! " if self.variant["clash"](start, busy) else "  "
            begin, end = (f"{minute // 60:02}:{minute % 60:02}" for minute in (start, stop))
            if stop >= 1440:
                end = self.variant["past-midnight"](stop)
            output.append(mark + self.variant["event-line"].format(begin, end, title, tag))
            busy = max(busy, stop)
        return "".join(f"{line}\n" for line in output)

    def hours(self, lines: Sequence[_Occurrence]) -> str:
        totals = dict[str, int]()
        for _, start, stop, _, tag in lines:
            totals[tag] = totals.get(tag, 0) + stop - start
        ranked = sorted(totals.items(), key=lambda item: self.variant["order-of-tags"](*item))
        return "".join(f"{tag}\t{self.variant['hours-of-tag'](minutes)}\n" for tag, minutes in ranked)

    def free(self, lines: Sequence[_Occurrence], first: datetime.date, count: int) -> str:
        """Return the free times, by the minutes in which nothing takes place."""
        output = ""
        for day in (first + number * _DAY for number in range(count)):
            if self.is_off(day):
                continue
            busy, pause = set[int](), self.variant["pause"]
            for start_day, start, stop, *_ in lines:
                past = (day - datetime.date.fromisoformat(start_day)).days * 1440
                if past in (0, 1440):
                    busy |= set(range(start - past, stop - past + pause))
            output += " ".join([str(day), *self._spans(busy)]) + "\n"
        return output

    def _spans(self, busy: set[int]) -> Iterator[str]:
        start = self.opens
        for minute in range(self.opens, self.closes + 1):
            if minute in busy or minute == self.closes:
                if minute - start >= self.shortest:
                    yield f"{start // 60:02}:{start % 60:02}-{minute // 60:02}:{minute % 60:02}"
                start = minute + 1


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: an office with its hours and its zone, and the calendars of some years."""
    zone, other_zone = rng.sample(["bern", "helsinki", "utc"], 2)
    opens, closes, shortest = 60 * rng.randint(7, 9), 60 * rng.randint(16, 18) + 30, rng.choice([20, 30, 40, 45])
    single = datetime.date(2025, rng.choice([4, 6, 9]), rng.randint(10, 25))
    while single.weekday() not in (1, 2):
        single += _DAY
    names = {
        "app": rng.choice(["app", "planner", "lib", "inside"]),
        "sep": rng.choice([";", "|", "&"]),
        "zone": zone,
        "other_zone": other_zone,
        "opens": f"{opens // 60:02}:00",
        "closes": f"{closes // 60}:30",
        "shortest": shortest,
        "single": single,
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    office = _Office(variant, zone, opens, closes, shortest, single)
    table = "".join(
        f"{name} {'-' if amount < 0 else '+'}{abs(amount) // 60:02}:{abs(amount) % 60:02}\n"
        for name, amount in ZONES.items()
    )
    texts = {
        "bin/agenda": AGENDA,
        "bin/hours": HOURS,
        "bin/free": FREE,
        "bin/occurrences": OCCURRENCES,
        "@app@/expand.py": EXPAND,
        "@app@/calendars.py": CALENDARS,
        "@app@/repeat.py": REPEAT,
        "@app@/daysoff.py": DAYSOFF,
        "@app@/zones.py": ZONES_TEXT,
        "@app@/settings.py": SETTINGS,
        "@app@/free.py": FREE_TEXT,
        "@app@/show.awk": SHOW_AWK,
        "@app@/hours.awk": HOURS_AWK,
        "etc/agenda.conf": CONF,
        "etc/agenda.conf.old": CONF.replace("zone = @zone@", "zone = @other_zone@").replace("closes =", "until ="),
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {"etc/zones.txt": table, "etc/daysoff.txt": variant.words(DAYS_OFF)}
    files |= {"docs/calendars.md": variant.words(FORMAT), "docs/notes.md": notes(rng, "Notes", 9)}
    rows = "".join(f"    {line}\n" for line in table.splitlines())
    agreed = "Offsets from UTC that were agreed with the other offices, all year round:"
    files["docs/zones.md"] = f"# Zones\n\n{agreed}\n\n{rows}"
    questions = _questions(rng, files, office)
    fixed = frozenset(path for path in files if path.startswith("calendars/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_winter(fresh, office), _spring(fresh, office)]

    about = (
        "`bin/agenda`, `bin/hours` and `bin/free` print the events of calendars such as those in `calendars/`, how "
        "long they are, and when there are none. `docs/calendars.md` describes calendars and programs, "
        f"`docs/zones.md` the zones, and `{variant.page}` says what was agreed on the rest."
    )
    looks = ["ls * | head -50", "cat bin/* etc/*.conf docs/calendars.md", f"cat {names['app']}/*"]
    modes = dict.fromkeys(["bin/agenda", "bin/hours", "bin/free", "bin/occurrences"], 0o755)
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, files, looks),
    ]
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, files: Mapping[str, str], looks: Sequence[str]) -> list[Fault]:
    shadow = f"{variant.names['app']}/calendar.py"
    return [
        file_in_the_way(
            shadow,
            '"""The calendar of feasts, for later."""\n\nFEASTS = ("12-25", "12-26")\n',
            looks,
            "It ends with an ImportError before it reads anything.",
        ),
        Fault(
            "missing-table",
            "It ends with a FileNotFoundError.",
            [*looks, "cat docs/zones.md"],
            "sed -n 's/^    //p' docs/zones.md > etc/zones.txt",
            removed=["etc/zones.txt"],
        ),
        lost_permission("bin/occurrences", looks),
    ]


def _calendars(rng: random.Random, office: _Office, events: Sequence[_Event], shared: _Event) -> dict[str, str]:
    """Return calendars with these events: one in a folder, one with a mark of its encoding, and an old copy.

    One event is shared by two calendars.
    """
    separator, lines = str(office.variant.names["sep"]), list[str]()
    for event in rng.sample(list(events), len(events)):
        lines += rng.choice([[], [""], [f"  # {person(rng)}"]]) + [event.line(separator)]
    half = len(lines) // 2
    twice = shared.line(separator)
    old = _Event(events[0].start, 61, office.zone, 50, "old", token(rng)).line(separator)
    parts = {
        f"cal/{token(rng, 4)}.txt": ["\ufeff" + events[-1].line(separator), *lines[:half], "  # shared", twice],
        f"cal/team/{token(rng, 4)}.txt": [*lines[half:], twice],
        f"cal/{token(rng, 4)}.txt.old": [old],
    }
    return {name: "\n".join(part) + "\n" for name, part in parts.items()}


def _check(
    rng: random.Random, office: _Office, name: str, events: Sequence[_Event], first: datetime.date, count: int
) -> Check:
    visible = [event for event in events if office.occurrences([event], first, count)]
    inputs = _calendars(rng, office, events, rng.choice(visible))
    arguments = f"$IN/cal {first} {count}"
    lines = office.occurrences(events, first, count)
    expected = office.agenda(lines) + office.hours(lines) + office.free(lines, first, count)
    return Check(name, f"bin/agenda {arguments}; bin/hours {arguments}; bin/free {arguments}", expected, inputs)


def _title(rng: random.Random, first: str = "") -> str:
    return f"{first}{rng.choice(GOODS)} {token(rng, 4)}".capitalize()


def _winter(rng: random.Random, office: _Office) -> Check:
    """Draw events about the end of a year: days off, repetitions, and events at one time."""
    # Christmas is in the middle of the week, so that it is no weekend.
    years = [year for year in range(1995, 2041) if datetime.date(year, 12, 25).weekday() in (1, 2, 3)]
    year, zone = rng.choice(years), office.zone
    first, christmas = datetime.date(year, 12, rng.randint(4, 8)), datetime.date(year, 12, 25)
    count = 34
    workday = next(day for number in range(9) if (day := first + number * _DAY).weekday() == 2)
    exempt = office.variant["tag-on-days-off"]
    at = [rng.randint(540, 600) for _ in range(9)]
    events = [
        *(_Event(christmas, 10 * number + 600, zone, 45, tag, _title(rng)) for number, tag in enumerate(_TAGS)),
        _Event(christmas - 3 * _DAY, at[0], zone, 60, "work", _title(rng), "daily", rng.randint(13, 15)),
        _Event(christmas.replace(year=year - 3), at[1], zone, 90, exempt, _title(rng), "yearly", rng.randint(4, 5)),
        _Event(first + _DAY, at[2], zone, 30, exempt, _title(rng), "weekly", 3, without=(first + 8 * _DAY,)),
        _Event(first, at[3], zone, 75, exempt, _title(rng), "weekly", rng.randint(3, 9), every=2),
        _Event(first.replace(month=9), at[4], zone, 20, exempt, _title(rng), "monthly", 4),
        _Event(workday, 660, zone, 60, "work", _title(rng, "a")),
        _Event(workday, 660, zone, 30, "tech", _title(rng, "b")),
        _Event(workday, 660, zone, 90, "board", _title(rng, "c")),
    ]
    return _check(rng, office, "winter", events, first, count)


def _spring(rng: random.Random, office: _Office) -> Check:
    """Draw events about the day off of the project: zones, ends of months, events that touch, and nights."""
    zone, single = office.zone, office.single
    first, count = single - rng.randint(9, 14) * _DAY, 40
    exempt, separator = office.variant["tag-on-days-off"], str(office.variant.names["sep"])
    # Tuesday to Thursday are working days everywhere.
    tuesday = next(day for number in range(1, 9) if (day := first + number * _DAY).weekday() == 1)
    start, length = rng.randint(600, 620), rng.randint(50, 60)
    end = start + length
    gap = end + office.shortest + office.variant["pause"]
    day_of_month = datetime.date(2024, rng.choice([1, 3, 5, 7, 8, 10]), 31)
    events = [
        _Event(tuesday, start, zone, length, "work", _title(rng)),
        _Event(tuesday, end, zone, 20, "tech", _title(rng)),
        _Event(tuesday, end + 16, zone, 30, "tech", f"{_title(rng)}{separator} {token(rng, 3)}"),
        _Event(tuesday, end + 30, zone, 200, "board", f"{rng.choice(TOWNS)}\t{token(rng, 3)}"),
        _Event(tuesday, end + 60, zone, 10, "tech", _title(rng)),
        _Event(tuesday, end + 100, zone, 15, "tech", _title(rng)),
        _Event(tuesday + _DAY, 23 * 60 + rng.randint(0, 50), zone, 60 * rng.randint(11, 12), "work", _title(rng)),
        _Event(tuesday + 2 * _DAY, 905, zone, 10, "tech", _title(rng)),
        _Event(tuesday + 2 * _DAY, office.closes + 20, zone, 45, "work", _title(rng)),
        _Event(tuesday + 14 * _DAY, start, zone, length, "work", _title(rng)),
        _Event(tuesday + 14 * _DAY, gap, zone, 30, "tech", _title(rng), "daily", 3),
        _Event(tuesday + 15 * _DAY, start, zone, length, "work", _title(rng)),
        _Event(tuesday + 15 * _DAY, gap - 1, zone, 7, "tech", _title(rng)),
        _Event(single, start - 100, zone, 50, "work", _title(rng)),
        _Event(day_of_month, 8 * 60 + rng.randint(0, 9), zone, 35, exempt, _title(rng), "monthly", 30),
        _Event(first - _DAY, 500, zone, 35, exempt, _title(rng)),
        _Event(first, 500, zone, 35, exempt, _title(rng)),
        _Event(first + count * _DAY, 500, zone, 35, exempt, _title(rng)),
        _Event(first, 30, "tokyo", 35, exempt, _title(rng)),
        _Event(first + (count - 1) * _DAY, 1420, "quito", 35, exempt, _title(rng)),
    ]
    events += [
        _Event(tuesday + rng.randint(21, 28) * _DAY, rng.choice([50, 610, 1390]), name, 25, exempt, _title(rng))
        for name in ZONES
    ]
    return _check(rng, office, "spring", events, first, count)


def _questions(rng: random.Random, files: dict[str, str], office: _Office) -> list[Question]:
    """Draw the calendars of the office, and ask about them."""
    separator, guests = str(office.variant.names["sep"]), sorted({person(rng) for _ in range(40)})
    meetings = dict[str, list[tuple[str, str]]]()
    longest = dict[str, str]()
    for number in range(rng.randint(28, 40)):
        path = f"calendars/{2022 + number // 12}-{number % 12 + 1:02}.txt"
        lines, lengths = list[str](), rng.sample(range(15, 400), 45)
        for length in lengths:
            guest, reference = rng.choice(guests), token(rng)
            date = f"{2022 + number // 12}-{number % 12 + 1:02}-{rng.randint(1, 28):02}"
            clock = f"{rng.randint(8, 19):02}:{rng.randint(0, 59):02}"
            start, title = f"{date}{separator}{clock}", f"Call with {guest} ref={reference}"
            rest = [rng.choice(list(ZONES)), f"{length}m", "once", rng.choice(_OTHER_TAGS), "", title]
            lines.append(separator.join([start, *rest]))
            meetings.setdefault(guest, []).append((start, reference))
            if length == max(lengths):
                longest[path] = reference
        files[path] = "\n".join([f"# {person(rng)}", *lines]) + "\n"
    chosen = rng.sample([guest for guest in guests if has_one_largest(meetings[guest])], ASKED)
    return [
        asked_together([_last_meeting(guest, meetings[guest]) for guest in chosen]),
        asked_together([_longest_event(path, longest[path], separator) for path in rng.sample(sorted(longest), ASKED)]),
    ]


def _last_meeting(guest: str, meetings: Sequence[tuple[str, str]]) -> Question:
    return Question(
        "last-meeting",
        f"Which reference has the last call with {guest} in calendars/ (by day and time as written)?",
        max(meetings)[1],
        [
            f"grep -rh 'Call with {guest} ' calendars | head -3",
            f"grep -rh 'Call with {guest} ' calendars | LC_ALL=C sort | tail -1 | sed 's/.*ref=//'",
        ],
    )


def _longest_event(path: str, reference: str, separator: str) -> Question:
    return Question(
        "longest-event",
        f"Which reference has the longest event of {path}?",
        reference,
        [
            f"head -3 {path}",
            f"grep -v '^#' {path} | sort -t{quote(separator)} -k4,4n | tail -1 | sed 's/.*ref=//'",
        ],
    )
