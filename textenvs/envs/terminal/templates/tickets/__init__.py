"""The template *tickets*: an issue tracker in text files, with states, service levels, queues and reports, in Python.

It needs sh and Python 3.
"""

from __future__ import annotations

import bisect
import functools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    GOODS,
    asked_together,
    fault_of_command,
    file_in_the_way,
    lost_permission,
    notes,
)
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .data import DAY, DAYS, RANKS, WORDS, Desk, Ticket, draw_desk, worked
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    CLOSED_DAYS,
    DESK,
    DURATION,
    FILES,
    FLOW,
    HOURS,
    HOURS_INI,
    LEVELS,
    LEVELS_JSON,
    MAIN,
    PEOPLE,
    QUEUES,
    REPORTS,
    STATES,
    STORE,
)

#: Rules whose options may give the same reports by chance; tickets themselves do not depend on them.
_BY_CHANCE = ("order-of-owners", "period-of-solved", "figure-of-solved", "order-of-queue")
_DONE = ("solved", "rejected", "closed")
_FLOW = {
    "new": ("active", "waiting", "rejected"),
    "active": ("waiting", "blocked", "solved", "rejected"),
    "waiting": ("active", "solved", "rejected"),
    "blocked": ("active", "waiting", "rejected"),
    "solved": ("closed", "active", "rejected"),
    "rejected": ("active",),
    "closed": ("active", "rejected"),
}


@dataclass(frozen=True)
class _Row:
    """A ticket as reports have it; ``states`` has minutes, states and logins."""

    number: int
    opened: int
    states: Sequence[tuple[int, str, str]]
    odd: Sequence[tuple[int, str, str, str]]
    rank: int
    spent: int
    limit: int
    due: int
    owner: str
    queue: str
    answer: int | None

    @property
    def state(self) -> str:
        return self.states[-1][1]


@dataclass(frozen=True)
class _Reports:
    """Reports on a desk by the rules and the settings of a project."""

    variant: Variant
    desk: Desk

    @functools.cached_property
    def _minutes(self) -> Sequence[int]:
        names, variant = self.variant.names, self.variant
        rules = (variant["saturday"], variant["eve-of-holiday"], variant["lunch"])
        return worked(int(str(names["first"])), int(str(names["last"])), self.desk.closed, *rules)

    def _between(self, begin: int, end: int) -> int:
        return self._minutes[end] - self._minutes[begin]

    def by_other_orders(self, variant: Variant) -> str:
        """Return some reports on the same tickets by other rules about reports."""
        other = _Reports(variant, self.desk)
        other.__dict__["_rows"] = self._rows
        return other.text(["queues", "owners", "solved"])

    def text(self, names: Sequence[str]) -> str:
        reports = {
            "list": self._list,
            "late": self._late,
            "queues": self._queues,
            "owners": self._owners,
            "solved": self._solved,
            "answers": self._answers,
            "odd": self._odd,
        }
        return "\n".join(line for name in names for line in [f"[{name}]", *reports[name]()])

    @functools.cached_property
    def _rows(self) -> list[_Row]:
        rule, tickets = self.variant["duplicates"], {one.number: one for one in self.desk.tickets}
        tickets = {
            number: replace(one, events=sorted(event for event in one.events if event[0] <= self.desk.now))
            for number, one in tickets.items()
        }
        opened = {number: one.events[0][0] for number, one in tickets.items() if one.events}
        extra, dropped = dict[int, str](), set[int]()
        for number in opened:
            for *_, verb, word in tickets[number].events:
                if verb == "duplicate" and rule != "all":
                    dropped.add(number)
                    original = int(word[1:])
                    if rule == "first":
                        opened[original] = min(opened[original], opened[number])
                    elif rule == "tags":
                        extra[original] = f"{extra.get(original, '')},{tickets[number].tags}"
        return [
            self._row(tickets[number], opened[number], extra.get(number, ""))
            for number in sorted(opened.keys() - dropped)
        ]

    def _row(self, ticket: Ticket, opened: int, extra: str) -> _Row:
        variant, people = self.variant, self.desk.people
        states, odd = self._states(ticket, opened)
        rank = variant["level-of-priority"](
            [
                *(RANKS.index(word) for word in (ticket.priority,)),
                *(RANKS.index(word) for *_, verb, word in ticket.events if verb == "priority"),
            ]
        )
        if people[ticket.sender].role == "vip":
            rank = variant["level-of-vip"](rank)
        times = self._counted(states)
        limit = 60 * int(str(variant.names[f"solve_{RANKS[rank]}"]))
        spent = sum(self._between(*pair) for pair in times)
        answers = (
            minute
            for minute, who, verb, _ in ticket.events
            if variant["first-answer"](verb, who == ticket.sender, people[who].role)
        )
        owner = self._substitute(self._owner(ticket, states))
        due, queue = self._due(times, limit), self._queue(ticket, extra)
        return _Row(ticket.number, opened, states, odd, rank, spent, limit, due, owner, queue, next(answers, None))

    def _states(
        self, ticket: Ticket, opened: int
    ) -> tuple[list[tuple[int, str, str]], list[tuple[int, str, str, str]]]:
        """Return when which state began, and by whom; and the steps against the flow."""
        states, odd = [(opened, "new", ticket.events[0][1])], list[tuple[int, str, str, str]]()
        for minute, who, verb, word in ticket.events:
            before = states[-1][1]
            if verb == "state" and word != before:
                if word not in _FLOW[before]:
                    odd.append((minute, who, before, word))
                    if self.variant["unknown-step"](self.desk.people[who].role, word):
                        continue
                states.append((minute, word, who))
        return states, odd

    def _reopened(self, states: Sequence[tuple[int, str, str]]) -> list[int]:
        """Return the places of states with which a ticket was opened again."""
        return [
            place for place in range(1, len(states)) if states[place - 1][1] in _DONE and states[place][1] not in _DONE
        ]

    def _counted(self, states: Sequence[tuple[int, str, str]]) -> list[tuple[int, int]]:
        """Return the times that count."""
        ends = [minute for minute, *_ in states[1:]] + [self.desk.now]
        again, rule = self._reopened(states), self.variant["reopened-ticket"]
        running = [state not in (*_DONE, *self.variant["paused-states"]) for _, state, _ in states]
        for place in again:
            if rule == "anew":
                running[:place] = [False] * place
            while rule == "with" and place > 0 and states[place - 1][1] in _DONE:
                place -= 1
                running[place] = True
        return [(begin, end) for (begin, *_), end, counts in zip(states, ends, running, strict=True) if counts]

    def _due(self, times: Sequence[tuple[int, int]], limit: int) -> int:
        minutes = self._minutes
        for begin, end in [*times, (self.desk.now, DAYS * DAY)]:
            place = bisect.bisect_left(minutes, minutes[begin] + limit)
            if place <= end:
                return place
            limit -= self._between(begin, end)
        raise AssertionError("a desk has too few days")

    def _owner(self, ticket: Ticket, states: Sequence[tuple[int, str, str]]) -> str:
        owners = {minute: word for minute, _, verb, word in ticket.events if verb == "owner"}
        rule = self.variant["owner-of-reopened"]
        for place in self._reopened(states):
            if rule != "same":
                logins = {"nobody": "-", "before": states[place - 1][2], "opener": states[place][2]}
                owners[states[place][0]] = logins[rule]
        return owners[max(owners)] if owners else "-"

    def _substitute(self, login: str) -> str:
        people, today = self.desk.people, self.desk.now // DAY
        absent = {one.login for one in people.values() if any(a <= today <= b for a, b in one.absences)}
        rule = self.variant["absent-owner"]
        if login not in absent:
            return login
        if rule == "nobody":
            return "-"
        if rule == "lead":
            [lead] = [o.login for o in people.values() if o.team == people[login].team and o.role == "lead"]
            return "-" if lead in absent else lead
        for _ in people:
            login = people[login].deputy if login in absent else login
        return "-" if login in absent else login

    def _queue(self, ticket: Ticket, extra: str) -> str:
        tags = {tag.strip().lower() for tag in f"{ticket.tags},{extra}".split(",")}
        for *_, verb, word in ticket.events:
            tags = tags | {word.lower()} if verb == "tag" else tags - {word.lower()} if verb == "untag" else tags
        rows = [(sum(tag in tags for tag in own), name) for name, own in self.desk.queues]
        rows = [row for row in rows if row[0]]
        if rows:
            return str(self.variant["queue-of-ticket"](rows))
        others = {"triage": "triage", "first": self.desk.queues[0][0], "team": self.desk.people[ticket.sender].team}
        return others[self.variant["queue-without-tags"]]

    @functools.cached_property
    def _open(self) -> list[_Row]:
        return [row for row in self._rows if row.state not in _DONE]

    def _is_late(self, row: _Row) -> bool:
        return bool(self.variant["late-limit"](row.spent, row.limit))

    def _length(self, minutes: int) -> str:
        return str(self.variant["duration"].format(*divmod(minutes, 60), minutes))

    def _word(self, state: str) -> str:
        return str(self.variant.names[state])

    def _list(self) -> list[str]:
        line = self.variant["list-line"]
        return [line.format(r.number, self._word(r.state), r.owner, self._length(r.spent)) for r in self._open]

    def _late(self) -> Iterator[str]:
        for row in sorted(self._open, key=lambda row: (row.due, row.number)):
            late = self._is_late(row)
            if late or 100 * row.spent >= self.variant["risk-share"] * row.limit:
                words = ("late", "L") if late else ("soon", "S")
                yield self.variant["late-line"].format(words[0], row.number, self.desk.moment(row.due), words[1])

    def _queues(self) -> list[str]:
        rows = sorted(self._open, key=self.variant["order-of-queue"])
        names = sorted({row.queue for row in rows})
        return [" ".join([f"{name}:", *(f"T{row.number}" for row in rows if row.queue == name)]) for name in names]

    def _owners(self) -> list[str]:
        counts = Counter(row.owner for row in self._open)
        late = Counter(row.owner for row in self._open if self._is_late(row))
        rows = sorted(((name, counts[name], late[name]) for name in counts), key=self.variant["order-of-owners"])
        return [f"{name}: {count}, {late} late" for name, count, late in rows]

    def _solved(self) -> Iterator[str]:
        now, rule = self.desk.moment(self.desk.now), self.variant["period-of-solved"]
        for rank, name in reversed([*enumerate(RANKS)]):
            values = list[int]()
            for row in self._rows:
                first = max([0, *(n + 1 for n, (_, state, _) in enumerate(row.states) if state not in _DONE)])
                if row.rank == rank and row.state in ("solved", "closed"):
                    done = self.desk.moment(row.states[first][0])
                    months = (now.year - done.year) * 12 + now.month - done.month
                    fits = {"hours": now - done <= timedelta(hours=720), "month": months == 0, "before": months == 1}
                    values += [row.spent] * fits[rule]
            if values:
                yield f"{name}: {len(values)}, {self._length(self.variant['figure-of-solved'](sorted(values)))}"

    def _answers(self) -> Iterator[str]:
        for rank, name in reversed([*enumerate(RANKS)]):
            most = int(str(self.variant.names[f"answer_{name}"]))
            times = [
                self._between(row.opened, row.answer) <= most
                for row in self._rows
                if row.rank == rank and row.answer is not None
            ]
            if times:
                yield f"{name}: {sum(times)} of {len(times)}"

    def _odd(self) -> list[str]:
        return [
            f"T{row.number} {self.desk.moment(minute):%Y-%m-%d %H:%M} {who}: {self._word(old)} > {self._word(new)}"
            for row in self._rows
            for minute, who, old, new in row.odd
        ]


def _reordered(rng: random.Random, text: str) -> str:
    """Return a program with its functions, and the reports of its class, in another order."""
    for mark, begin in (("\n\n\n", "def "), ("\n\n    def ", "report_")):
        parts = text.rstrip("\n").split(mark)
        places = [place for place, part in enumerate(parts) if part.startswith(begin)]
        for place, part in zip(places, [parts[place] for place in rng.sample(places, len(places))], strict=True):
            parts[place] = part
        text = mark.join(parts) + "\n"
    return text


#: Ways to write a step of a program, by its name in the texts; those of a fault fit to it.
_SHAPES: Sequence[Mapping[str, str]] = (
    {
        "split_field": "label, _, value = @split_call@",
        "split_call": 'line.partition(":")',
        "wrong_split_call": 'line.rpartition(":")',
    },
    {
        "split_field": "label, value = @split_call@",
        "split_call": 'line.split(":", 1)',
        "wrong_split_call": 'line.rsplit(":", 1)',
    },
    {"sort_events": "events.sort(key=lambda event: event.when)\n    return events"},
    {"sort_events": "return sorted(events, key=lambda event: event.when)"},
    {
        "loop_of_days": "total, day = 0, begin.date()\n    while day <= end.date():",
        "end_of_loop": "    day += ONE\n    return total",
    },
    {
        "loop_of_days": "total = 0\n    for step in range((end.date() - begin.date()).days + 1):\n"
        "        day = begin.date() + step * ONE",
        "end_of_loop": "return total",
    },
    {"sum_of_parts": "return sum(hours.between(begin, end, closed) for begin, end in counted(path))"},
    {
        "sum_of_parts": "total = 0\n    for begin, end in counted(path):\n"
        "        total += hours.between(begin, end, closed)\n    return total"
    },
)


@dataclass(frozen=True)
class _Shape:
    """The way in which the programs of a project are written, which does not depend on rules."""

    parts: Mapping[str, str]
    days_home: str
    duration_home: str
    order: int

    @classmethod
    def draw(cls, rng: random.Random) -> _Shape:
        parts = dict[str, str]()
        for place in range(0, len(_SHAPES), 2):
            parts |= _SHAPES[place + rng.randint(0, 1)]
        homes = rng.choice(["hours", "store"]), rng.choice(["levels", "hours"])
        return cls(parts, *homes, rng.getrandbits(32))

    def text(self, text: str) -> str:
        for name in ("split_field", *self.parts):
            text = text.replace(f"@{name}@", self.parts[name])
        return text

    def programs(self) -> dict[str, str]:
        """Return the texts of modules, by name."""
        modules = {
            "main": MAIN,
            "store": STORE,
            "people": PEOPLE,
            "hours": HOURS,
            "states": STATES,
            "levels": LEVELS,
            "queues": QUEUES,
            "reports": REPORTS,
        }
        modules[self.days_home] += CLOSED_DAYS
        modules[self.duration_home] += DURATION
        rng = random.Random(self.order)
        return {name: self.text(_reordered(rng, text)) for name, text in modules.items()}


def _names(rng: random.Random, shape: _Shape) -> dict[str, object]:
    """Draw the names and the settings of a project."""
    code = rng.choice(["code", "src", "tracker", "lib"])
    first, last = rng.choice([480, 510, 540]), rng.choice([990, 1010, 1050, 1070])
    solve = [rng.randint(39, 48), rng.randint(19, 28), rng.randint(10, 14), rng.randint(4, 6)]
    answer = [rng.randint(40, 55) * 10, rng.randint(20, 30) * 10, rng.randint(8, 12) * 10, rng.randint(4, 7) * 5]
    names: dict[str, object] = {"code": code, "days_home": shape.days_home, "duration_home": shape.duration_home}
    names |= {"days_file": f"{code}/{shape.days_home}.py", "duration_file": f"{code}/{shape.duration_home}.py"}
    names |= {"first": first, "last": last}
    times = {"begin": first, "end": last, "wrong_end": last - rng.choice([20, 45, 70])}
    names |= {name: f"{minute // 60:02}:{minute % 60:02}" for name, minute in times.items()}
    names |= {f"solve_{name}": number for name, number in zip(RANKS, solve, strict=True)}
    names |= {f"answer_{name}": number for name, number in zip(RANKS, answer, strict=True)}
    return names | {state: rng.choice(words) for state, words in WORDS.items()}


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the programs, a desk with tickets, hours of work and devices of customers."""
    shape = _Shape.draw(rng)
    names = _names(rng, shape)
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {"bin/desk": DESK} | {f"@code@/{name}.py": text for name, text in shape.programs().items()}
    files = variant.files(texts) | variant.document(rng)
    settings = {"flow.txt": FLOW, "hours.ini": HOURS_INI, "levels-2025.json": LEVELS_JSON}
    files |= {f"etc/{name}": variant.words(text) for name, text in settings.items()}
    # Nothing reads these.
    files["etc/levels-2024.json"] = variant.words(
        LEVELS_JSON.replace("@solve_high@", "16").replace("@answer_urgent@", "20")
    )
    files["etc/old/flow.txt"] = variant.words(FLOW.replace("any: @rejected@", "@new@: @rejected@"))
    files["old/levels.py"] = variant.outdated(shape.programs()["levels"])
    files |= {"docs/files.md": variant.words(FILES), "docs/notes.md": notes(rng, "Notes on the desk", 10)}

    def calendar(closed: frozenset[int]) -> Sequence[int]:
        return worked(int(str(names["first"])), int(str(names["last"])), closed, *_usual_hours())

    desk = draw_desk(rng, names, calendar)
    desk.tickets = desk.tickets[:: rng.choice([4, 5])]
    files |= {f"desk/{name}": text for name, text in desk.files(rng, names).items()}
    questions = _questions(rng, files, [*desk.people])
    fixed = frozenset(path for path in files if path.startswith(("desk/", "hours/", "devices/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, variant)

    about = (
        "`bin/desk FOLDER NOW REPORT...` prints reports on tickets, for example "
        f"`bin/desk desk {desk.moment(desk.now):%Y-%m-%dT%H:%M} list late`. `docs/files.md` describes the files and "
        f"the reports, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", f"cat bin/desk docs/files.md etc/*.*; cat {names['code']}/*.py"]
    edits = [(*row[:3], *map(shape.text, row[3:])) for row in EDITS]
    faults = [
        *variant.edits([(kind, symptom, path, old, new) for kind, symptom, path, old, new in edits], files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    setup = "ln -s levels-2025.json etc/levels.json"
    return Project(about, files, faults, checks, {"bin/desk": 0o755}, setup, fixed, questions)


def _usual_hours() -> list[object]:
    """Return rules about days: of the example, whose tickets do not depend on those of the project."""
    return [rule.options[0].value for rule in RULES if rule.name in ("saturday", "eve-of-holiday", "lunch")]


def _checks(rng: random.Random, variant: Variant) -> list[Check]:
    """Draw a desk by which each rule shows, and return the checks of its reports."""
    names = variant.names
    rules = [variant[name] for name in ("saturday", "eve-of-holiday", "lunch")]

    def calendar(closed: frozenset[int]) -> Sequence[int]:
        return worked(int(str(names["first"])), int(str(names["last"])), closed, *rules)

    groups = (("late", "queues", "odd"), ("list", "owners", "solved", "answers"))
    for _ in range(DRAWS):
        desk = draw_desk(rng, names, calendar)
        reports = _Reports(variant, desk)
        if variant.separates(_BY_CHANCE, reports.by_other_orders):
            break
    inputs = {f"help desk/{name}": text for name, text in desk.files(rng, names).items()}
    now = f"{desk.moment(desk.now):%Y-%m-%dT%H:%M}"
    return [
        Check(
            "-".join(group),
            f'cd "$IN"; "$OLDPWD/bin/desk" "help desk" {now} {" ".join(group)}',
            reports.text(group),
            inputs,
        )
        for group in groups
    ]


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    code, words = variant.names["code"], variant.words
    return [
        file_in_the_way(
            "etc/levels.local.json",
            words('{"low": {"answer": 5, "solve": 1},\n "urgent": {"answer": @answer_low@, "solve": @solve_low@}}\n'),
            [*looks, "ls etc"],
            "Urgent tickets are not late for days, and low ones at once.",
            "levels-of-a-trial",
        ),
        file_in_the_way(
            f"{code}/csv.py",
            '"""How lists are sent to the customers."""\n\nMARK = ","\n',
            looks,
            "It ends with an AttributeError in a module that nobody has changed.",
        ),
        fault_of_command(
            "link-to-last-year",
            "High and urgent tickets are late at other times than the customers were promised.",
            [*looks, "ls -l etc"],
            "ln -sfn levels-2024.json etc/levels.json",
            "ln -sfn levels-2025.json etc/levels.json",
        ),
        Fault(
            "missing-flow",
            "It ends with a FileNotFoundError.",
            [*looks, "ls etc etc/old; cat etc/old/flow.txt"],
            words("sed 's/^@new@: @rejected@$/any: @rejected@/' etc/old/flow.txt > etc/flow.txt"),
            removed=["etc/flow.txt"],
        ),
        lost_permission("bin/desk"),
    ]


def _questions(rng: random.Random, files: dict[str, str], logins: Sequence[str]) -> list[Question]:
    """Draw hours that were worked and devices of customers, and ask about them."""
    places = ("office", "train", "home", "customer")
    longest = draw_journal(
        rng,
        files,
        "hours/2024-{:02}.txt",
        logins,
        range(3, 9_000),
        lambda month, login, seconds, mark: (
            f"2024-{month:02}-{rng.randint(1, 28):02} {seconds}s {login} ({rng.choice(places)}) visit {mark}"
        ),
    )
    contracts = draw_lists(
        rng, files, "devices", "contract", lambda device: f"{rng.choice(GOODS)} serial {device}", counts=(14, 24)
    )
    return [
        asked_together([_longest_visit(one, longest[one]) for one in rng.sample([*longest], ASKED)]),
        asked_together([_contract(one, contracts[one]) for one in rng.sample(sorted(contracts), ASKED)]),
    ]


def _longest_visit(login: str, mark: str) -> Question:
    return Question(
        "longest-visit-of-staff",
        f"Which visit of {login} took most seconds, by hours/?",
        mark,
        ["head -3 hours/2024-01.txt", f"grep -h 's {login} (' hours/* | sort -k2,2n | tail -1 | sed 's/.* //'"],
    )


def _contract(device: str, contract: str) -> Question:
    return Question(
        "contract-of-device",
        f"Which contract has the device with the serial {device}, by devices/?",
        contract,
        [f"grep -r {device} devices", f"grep -l ' {device}$' devices/* | xargs sed -n 's/^contract //p'"],
    )
