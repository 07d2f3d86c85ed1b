"""Desks of the template `tickets`: people, queues, days without work, and tickets, as data and as files."""

from __future__ import annotations

import bisect
import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

from ..parts import FIRST_NAMES, GOODS, token

RANKS = ("low", "normal", "high", "urgent")
#: Words for states.
WORDS = {
    "new": ("new", "fresh", "untouched"),
    "active": ("active", "doing", "started"),
    "waiting": ("waiting", "asking", "pending"),
    "blocked": ("blocked", "stuck", "halted"),
    "solved": ("solved", "fixed", "resolved"),
    "rejected": ("rejected", "declined", "refused"),
    "closed": ("closed", "filed", "finished"),
}
DAY = 1440
#: Days of a desk, and the Monday of the week in which NOW is.
DAYS, WEEK = 120, 70

#: Minute, login, verb, word.
_Event = tuple[int, str, str, str]


@dataclass
class Ticket:
    """A ticket; ``tags`` is the field of its head."""

    number: int
    sender: str
    priority: str
    tags: str
    events: list[_Event]


@dataclass(frozen=True)
class Person:
    """Somebody; absences are pairs of days."""

    login: str
    team: str
    role: str = ""
    deputy: str = ""
    absences: Sequence[tuple[int, int]] = ()


@dataclass
class Desk:
    """Tickets, people, queues, and days without work; days and minutes are counted from a Monday."""

    start: date
    now: int
    people: dict[str, Person]
    queues: Sequence[tuple[str, Sequence[str]]]
    closed: frozenset[int]
    tickets: list[Ticket] = field(default_factory=list)

    def day(self, number: int) -> str:
        return str(self.start + timedelta(days=number))

    def moment(self, minute: int) -> datetime:
        return datetime.combine(self.start, datetime.min.time()) + timedelta(minutes=minute)

    def files(self, rng: random.Random, words: Mapping[str, object]) -> dict[str, str]:
        """Return its files; tickets are written in some unusual ways that docs/files.md permits."""
        rows = [
            ";".join(
                [
                    one.login.title() if place == 2 else one.login,
                    f'"{one.login.title()}; {token(rng, 4)}"' if place % 4 == 1 else one.login.title(),
                    one.team,
                    one.role,
                    one.deputy,
                    " ".join(self._range(*absence) for absence in one.absences),
                ]
            )
            for place, one in enumerate(self.people.values())
        ]
        files = {"people.csv": "\n".join(["login;name;team;role;deputy;absences", *rows]) + "\n"}
        days = sorted(self.closed)
        ranges = [(day, next(last for last in itertools.count(day) if last + 1 not in self.closed)) for day in days]
        lines = [f"{self._range(*pair)}  # {token(rng, 4)}" for pair in ranges if pair[0] - 1 not in self.closed]
        files["closed.txt"] = "\n".join(["# Nobody works on these days.", *lines]) + "\n"
        lines = [f"{name} = {' '.join(tags)}" for name, tags in self.queues]
        files["queues.txt"] = "\n".join([*lines, "# old = paper fax"]) + "\n"
        for place, ticket in enumerate(self.tickets):
            files[f"tickets/T{ticket.number}.txt"] = self._text(rng, ticket, words, place)
        files["tickets/draft.txt"] = (
            f"From: {token(rng, 5)}\nTags: none\n\n{self.day(2)} 10:00 {token(rng, 5)} opened\n"
        )
        files[f"tickets/T{self.tickets[0].number}.txt.orig"] = "From: nobody\n"
        return files

    def _range(self, first: int, last: int) -> str:
        return self.day(first) if first == last else f"{self.day(first)}..{self.day(last)}"

    def _text(self, rng: random.Random, ticket: Ticket, words: Mapping[str, object], place: int) -> str:
        names = ["FROM", "Priority", "tags"] if place == 3 else ["From", "Priority", "Tags"]
        values = [ticket.sender, ticket.priority, ticket.tags.replace(", ", ",\n  ") if place % 2 else ticket.tags]
        head = [f"{name}: {value}" for name, value in zip(names, values, strict=True)]
        lines = list[str]()
        for minute, who, verb, word in ticket.events:
            text = str(words[word]) if verb == "state" else word
            text = text.title() if verb == "owner" and place % 3 == 0 else text
            name = who.upper() if place % 5 == 0 else who
            lines.append(f"{self.moment(minute):%Y-%m-%d %H:%M} {name} {verb} {text}".rstrip())
            if verb == "note":
                quoted = f"{self.moment(minute):%Y-%m-%d %H:%M} {who} state {words['closed']}"
                lines += [f"\t{rng.choice(GOODS)}: {token(rng, 5)}", f"\t{quoted}", ""][: 1 + 2 * (place % 2)]
        if place % 4 == 2:
            lines.reverse()
            # Words of a note stand behind it.
            lines = [line for line in lines if line and not line.startswith("\t")]
        text = "\n".join([*head, f"Title: {rng.choice(GOODS)}: {token(rng, 4)}", "", *lines]) + "\n"
        return "\ufeff" + text if place == 4 else text


@functools.lru_cache(64)
def worked(begin: int, end: int, closed: frozenset[int], *rules: Any) -> Sequence[int]:
    """Return how many minutes have been worked until a minute, for all of them."""
    saturday, eve, (low, high) = rules
    flags = bytearray(DAYS * DAY)
    for day in range(DAYS):
        first, last = begin, end
        if day % 7 == 5:
            first, last = saturday(first, last)
        if day + 1 in closed:
            first, last = eve(first, last)
        if day % 7 < 6 and day not in closed:
            flags[DAY * day + first : DAY * day + last] = bytes([1]) * (last - first)
            flags[DAY * day + low : DAY * day + high] = bytes(high - low)
    return [0, *itertools.accumulate(flags)]


def draw_desk(
    rng: random.Random, settings: Mapping[str, object], calendar: Callable[[frozenset[int]], Sequence[int]]
) -> Desk:
    """Draw a desk in which each rule and each fault shows.

    Args:
        rng: Draws it.
        settings: The project's names: how long tickets may take.
        calendar: Returns how many minutes have been worked until a minute, for days without work.
    """
    start = date(2025, 1, 6) + timedelta(days=7 * rng.randint(0, 60))
    today = WEEK + rng.randint(1, 3)
    while not 10 <= (start + timedelta(days=today)).day <= 25:
        start += timedelta(days=7 * rng.randint(1, 20))
    single = 56 + rng.randint(1, 4)
    closed = frozenset([44, 45, 46, single, 63, 78])
    people = _people(rng, today)
    pool = [f"{word}{rng.randint(1, 9)}" for word in rng.sample(GOODS, 9)]
    names = rng.sample(["printing", "network", "accounts", "machines", "orders"], 4)
    tags = [pool[:2], pool[2:5], pool[5:7], [pool[7], f"os:{pool[8]}"]]
    now = DAY * today + rng.randint(845, 930)
    drawn = _Drawn(rng, Desk(start, now, people, [*zip(names, tags, strict=True)], closed), settings, calendar(closed))
    drawn.add_queues(tags)
    drawn.add_levels()
    drawn.add_answers()
    drawn.add_steps()
    drawn.add_reopened()
    drawn.add_solved()
    for _ in range(16):
        drawn.add_random([*itertools.chain(*tags), "other"])
    return drawn.desk


def _people(rng: random.Random, today: int) -> dict[str, Person]:
    logins = [name.lower() for name in rng.sample(FIRST_NAMES, 18)]
    one, two, three, four, five, six, seven, first, second, third, *customers = logins
    teams = rng.sample(["desk", "field", "nets", "apps", "core"], 3)
    rows = [
        Person(one, teams[0], "agent", two, [(today - 40, today - 38), (today - 3, today)]),
        Person(two, teams[0], "agent", one),
        Person(first, teams[0], "lead", two, [(today + 1, today + 5)]),
        # These two are in the place of each other, and both are absent.
        Person(three, teams[1], "agent", four, [(today - 1, today + 2)]),
        Person(four, teams[1], "agent", three, [(today - 50, today - 50), (today, today), (today + 9, today + 9)]),
        Person(second, teams[1], "lead", five),
        Person(five, teams[1], "agent", second, [(today - 20, today - 20)]),
        Person(third, teams[2], "lead", six, [(today - 2, today + 1)]),
        Person(six, teams[2], "agent", five, [(today - 6, today - 1)]),
        Person(seven, teams[2], "agent", third, [(today, today)]),
    ]
    places = rng.sample(["mill", "shop", "yard", "bank", "farm"], 3)
    roles = ["vip", "", "vip", "", "", "", "", ""]
    rows += [Person(login, places[n % 3], roles[n]) for n, login in enumerate(customers)]
    return {row.login: row for row in rng.sample(rows, len(rows))}


@dataclass
class _Drawn:
    """A desk that is being drawn."""

    rng: random.Random
    desk: Desk
    settings: Mapping[str, object]
    minutes: Sequence[int]

    def __post_init__(self) -> None:
        one = [f"{n}" for n in self.rng.sample(range(2, 10), 4)]
        self.numbers = iter(
            self.rng.sample(
                [*map(int, one), *self.rng.sample(range(10, 99), 30), *self.rng.sample(range(100, 999), 60)], 94
            )
        )
        people = self.desk.people.values()
        self.agents = [one.login for one in people if one.role == "agent"]
        self.leads = [one.login for one in people if one.role == "lead"]
        self.present = [
            one.login
            for one in people
            if one.role in ("agent", "lead") and not any(a <= self.today <= b for a, b in one.absences)
        ]
        self.customers = [one.login for one in people if one.role == ""]
        self.vips = [one.login for one in people if one.role == "vip"]

    @property
    def today(self) -> int:
        return self.desk.now // DAY

    def add(self, events: Sequence[_Event], priority: str = "", tags: str = "", sender: str = "") -> Ticket:
        """Add a ticket, which its sender opens with the first event."""
        sender = sender or self.rng.choice(self.customers)
        priority = priority or self.rng.choice(RANKS)
        own = [(minute, who or sender, verb, word) for minute, who, verb, word in events]
        ticket = Ticket(next(self.numbers), sender, priority, tags, own)
        self.desk.tickets.append(ticket)
        return ticket

    def at(self, day: int, clock: int = 0) -> int:
        """Return a minute of a day before today, at which somebody works."""
        return DAY * (self.today - day) + (clock or self.rng.randint(560, 680))

    def most(self, priority: str, name: str = "solve") -> int:
        return int(str(self.settings[f"{name}_{priority}"])) * (60 if name == "solve" else 1)

    def back(self, minute: int, worked: int) -> int:
        """Return a minute since which so many have been worked until another one."""
        return bisect.bisect_left(self.minutes, self.minutes[minute] - worked)

    def add_queues(self, tags: Sequence[Sequence[str]]) -> None:
        """Add tickets that fit several queues, or none."""
        several = [tags[0][0], tags[1][0], tags[1][1], tags[2][0]]
        for words in (several, several, several[::-1], several[::-1]):
            self.add([(self.at(12), "", "opened", "")], tags=", ".join(words))
        for word in (tags[0][1], tags[2][1]):
            events = [(self.at(9), "", "opened", ""), (self.at(8), self.rng.choice(self.agents), "untag", word.title())]
            self.add(events, tags=f"{tags[0][1]},  {tags[2][1]}")
        for own in ("", "fax", tags[3][1].upper()):
            self.add([(self.at(6), "", "opened", "")], tags=own)
        agent = self.rng.choice(self.agents)
        events = [(self.at(7), "", "opened", ""), (self.at(5), agent, "tag", tags[3][0].upper())]
        self.add(events)
        # A duplicate, and its original: the answer is late where the first one counts.
        begin = self.at(14, 860)
        original = self.add(
            [(begin, "", "opened", ""), *((begin + n, agent, verb, word) for n, verb, word in self.answer(agent))],
            "urgent",
        )
        events = [(begin - 5 * DAY, "", "opened", ""), (self.at(3), agent, "duplicate", f"T{original.number}")]
        self.add(events, "low", tags[2][0])

    def answer(self, agent: str) -> list[tuple[int, str, str]]:
        """Return events that are an answer by all rules."""
        return [(1, "state", "active"), (2, "owner", agent), (3, "note", "")]

    def add_levels(self) -> None:
        """Add tickets by how much of their time is over, and by changes of their priority."""
        now, high = self.desk.now, self.most("high")
        for spent in (
            high * 55 // 100,
            high * 68 // 100,
            high * 82 // 100,
            high * 95 // 100,
            high,
            high + 10,
            high + 40,
        ):
            begin = self.back(now, spent)
            owner = self.rng.choice(self.present)
            self.add(
                [(begin, "", "opened", ""), (begin, "", "state", "active"), (begin + 1, owner, "owner", owner)], "high"
            )
        # The time of one is over when the day is.
        end = now
        while self.minutes[end + 1] > self.minutes[end] or end == now:
            end += 1
        for priority in ("normal", "low"):
            begin = self.back(end, self.most(priority))
            self.add([(begin, "", "opened", ""), (begin, "", "state", "active")], priority)
        for state in ("waiting", "blocked"):
            pause = self.at(2, 660)
            begin = self.back(pause, high * 95 // 100)
            agent = self.rng.choice(self.agents)
            events = [(begin, "", "opened", ""), (begin, "", "state", "active"), (pause, agent, "state", state)]
            self.add(events, "high")
        begin = self.at(1)
        self.add([(begin, "", "opened", "")], "urgent")
        for sender, first, *later in (
            ("", "low", "high", "normal"),
            ("", "normal", "low", "high"),
            *((self.vips[n % 2], priority) for n, priority in enumerate(("low", "normal", "high"))),
            ("", "low"),
        ):
            begin, agent = self.at(12, 850), self.rng.choice(self.agents)
            events = [(begin, "", "opened", "")]
            events += [(begin + n, agent, verb, word) for n, verb, word in self.answer(agent)]
            events += [(begin + 10 + n, agent, "priority", word) for n, word in enumerate(later)]
            self.add(events, first, sender=sender)

    def add_answers(self) -> None:
        """Add tickets whose first answer came in time by some rules, and by others late."""
        begin, rng = DAY * 64 + 845, self.rng
        agent, other = rng.sample(self.agents, 2)
        sender, colleague = rng.sample(self.customers, 2)
        late = begin + 5 * DAY
        rest = [(late + n, agent, verb, word) for n, verb, word in [(0, "memo", ""), *self.answer(other)]]
        for priority, event in (
            ("urgent", (begin + 5, agent, "owner", agent)),
            ("high", (begin + 6, agent, "state", "active")),
            ("normal", (begin + 7, colleague, "note", "")),
            ("low", (begin + 8, agent, "memo", "")),
        ):
            self.add([(begin, "", "opened", ""), event, *rest], priority, sender=sender)
        for priority in ("high", "normal"):
            moment = bisect.bisect_left(self.minutes, self.minutes[begin] + self.most(priority, "answer"))
            events = [(begin, "", "opened", ""), (moment, agent, "note", ""), (moment, agent, "owner", agent)]
            self.add(events, priority, sender=sender)

    def add_steps(self) -> None:
        """Add steps against the flow, steps that are none, and events that are still to come."""
        rng, now = self.rng, self.desk.now
        agent, lead = rng.choice(self.agents), rng.choice(self.leads)
        for who, state in ((lead, "blocked"), (agent, "blocked"), ("", "blocked"), (agent, "closed"), (lead, "closed")):
            self.add([(self.at(9), "", "opened", ""), (self.at(8), who, "state", state)])
        for states in (
            ("active", "active"),
            ("waiting", "solved"),
            ("active", "rejected"),
            ("active", "blocked", "waiting"),
        ):
            events = [(self.at(10), "", "opened", "")]
            events += [
                (self.at(9) + 300 * n, rng.choice(self.agents), "state", state) for n, state in enumerate(states)
            ]
            self.add(events, "normal")
        begin = self.at(3)
        self.add(
            [(begin, "", "opened", ""), (begin + 9, agent, "state", "active"), (now + 50, agent, "state", "solved")]
        )
        self.add([(now + 45, "", "opened", ""), (now + 60, agent, "owner", agent)])
        for login in self.agents:
            absences = [
                first for first, last in self.desk.people[login].absences if first == last and last < self.today
            ]
            day = absences[0] if absences else self.today - 4
            minute = DAY * day + 870
            self.add([(minute, "", "opened", ""), (minute + 9, lead, "owner", login)])

    def add_reopened(self) -> None:
        """Add tickets that were opened again."""
        owner, one, two, three = self.rng.sample(self.present, 4)
        events = [
            (self.at(6), "", "opened", ""),
            (self.at(5), one, "state", "active"),
            (self.at(4), one, "state", "solved"),
        ]
        self.add([*events, (self.at(2), two, "state", "active")])
        for again in (False, True):
            begin = self.at(15, 850)
            rows = [(0, owner, "owner", owner), (1, owner, "state", "active"), (2, one, "state", "solved")]
            rows += [(3, two, "state", "closed"), (8, three, "state", "active")]
            rows += [(9, two, "owner", two)] * again
            events = [
                (begin, "", "opened", ""),
                *((begin + DAY * n + 7, who, verb, word) for n, who, verb, word in rows),
            ]
            self.add(events, "low")

    def add_solved(self) -> None:
        """Add tickets that were solved in the last weeks, one of them long before it was closed."""
        rng = self.rng
        agent = rng.choice(self.present)
        for day in (2, 3, 5, 7, 8, 15, 24, 25, 27, 33, 34, 36):
            begin, length = self.at(day + rng.randint(1, 3), rng.randint(850, 900)), rng.randint(1, 12)
            events = [(begin, "", "opened", ""), (begin + length, agent, "state", "active")]
            self.add([*events, (self.at(day), agent, "state", "solved")], rng.choice(["normal", "high"]))
        begin = self.at(37)
        rows = [(0, "state", "active"), (4, "state", "solved"), (35, "state", "closed")]
        events = [(begin, "", "opened", ""), *((begin + DAY * n + 5, agent, verb, word) for n, verb, word in rows)]
        self.add(events, "normal")
        for day in (6, 35):
            begin = self.at(day)
            self.add([(begin, "", "opened", ""), (begin + 61, agent, "state", "rejected")], "normal")

    def add_random(self, tags: Sequence[str]) -> None:
        rng, minute = self.rng, DAY * self.rng.randint(22, self.today - 5) + self.rng.randint(400, 1150)
        events, state = [(minute, "", "opened", "")], "new"
        following = {
            "new": ["active", "waiting"],
            "active": ["waiting", "blocked", "solved"],
            "waiting": ["active", "solved"],
            "blocked": ["active"],
            "solved": ["closed", "active"],
            "closed": ["active"],
        }
        for _ in range(rng.randint(3, 8)):
            minute += rng.choice([rng.randint(20, 300), rng.randint(300, 5 * DAY)])
            who, verb = (
                rng.choice([*self.agents, *self.leads]),
                rng.choices(["state", "owner", "note", "memo"], [5, 2, 1, 1])[0],
            )
            if minute % DAY < 400 or minute >= self.desk.now:
                continue
            word = ""
            if verb == "state":
                word = (
                    rng.choice(following[state]) if rng.random() < 0.9 else rng.choice(["closed", "blocked", "solved"])
                )
                state = word
            elif verb == "owner":
                word = rng.choice(self.agents)
            events.append((minute, who, verb, word))
        self.add(events, tags=", ".join(rng.sample(tags, rng.randint(0, 3))))
