"""Files of the template `tickets`; what stands between @ is drawn."""

DESK = """#!/bin/sh
# Prints reports on tickets. Usage: bin/desk FOLDER NOW REPORT...
exec python3 -S -E -X utf8 "$(dirname "$0")/../@code@/main.py" "$@"
"""

MAIN = """import sys
from datetime import datetime
from pathlib import Path

import @days_home@ as days
import people
import queues
import reports
import store


def main(folder, now, *names):
    folder, now = Path(folder), datetime.fromisoformat(now)
    board = reports.Board(
        store.read_all(folder / "tickets", now),
        people.read(folder / "people.csv"),
        days.closed_days(folder / "closed.txt"),
        queues.read(folder / "queues.txt"),
        now,
    )
    for name in names:
        print(f"[{name}]")
        for text in getattr(board, f"report_{name}")():
            print(text)


main(*sys.argv[1:])
"""

STORE = '''"""Tickets, in files that docs/files.md describes."""
from collections import namedtuple
from datetime import date, datetime, timedelta

Event = namedtuple("Event", "when who verb word")


class Ticket:
    def __init__(self, number, fields, events):
        self.number, self.fields, self.events = number, fields, events
        self.opened = events[0].when


def fields_of(head):
    """Return the fields at the head of a ticket."""
    fields, label = {}, ""
    for line in head.splitlines():
        if line.startswith(" "):
            fields[label] += f" {line.strip()}"
            continue
        @split_field@
        label = label.strip().lower()
        fields[label] = value.strip()
    return fields


def events_of(body, now):
    """Return the events of a ticket until now, by time."""
    events = []
    for line in body.splitlines():
        if not line.strip() or line.startswith("\\t"):
            continue
        day, clock, who, verb, *words = line.split()
        when = datetime.fromisoformat(f"{day} {clock}")
        if when <= now:
            events.append(Event(when, who.lower(), verb, " ".join(words)))
    @sort_events@


def read_all(folder, now):
    """Return the tickets that have been opened, in the order of their numbers."""
    tickets = {}
    for path in folder.glob("T*.txt"):
        head, _, body = path.read_text(encoding="utf-8-sig").partition("\\n\\n")
        events = events_of(body, now)
        if events:
            number = int(path.stem[1:])
            tickets[number] = Ticket(number, fields_of(head), events)
    merge(tickets)
    return sorted(tickets.values(), key=lambda ticket: ticket.number)


def merge(tickets):
    """Treat duplicates as agreed."""
    for ticket in list(tickets.values()):
        for event in ticket.events:
            if event.verb == "duplicate":
                original = tickets[int(event.word[1:])]
                @duplicates@
'''

#: A function of one of two modules, by the drawn one.
CLOSED_DAYS = '''

def closed_days(path):
    """Return the days on which nobody works, of a file of days and of ranges of days."""
    days = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            first, _, last = text.partition("..")
            day, last = date.fromisoformat(first), date.fromisoformat(last or first)
            while day <= last:
                days.add(day)
                day += timedelta(days=1)
    return days
'''

PEOPLE = '''"""Those who have tickets, and those who work on them."""
import csv
from collections import namedtuple
from datetime import date

Person = namedtuple("Person", "login team role deputy absences")


def read(path):
    """Return people by login."""
    staff = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter=";"):
            login = row["login"].lower()
            staff[login] = Person(login, row["team"], row["role"], row["deputy"], row["absences"].split())
    return staff


def is_absent(person, day):
    for text in person.absences:
        first, _, last = text.partition("..")
        if date.fromisoformat(first) <= day <= date.fromisoformat(last or first):
            return True
    return False


def lead_of(team, staff):
    return next(person.login for person in staff.values() if person.team == team and person.role == "lead")


def substitute(login, staff, day):
    """Return who does the work of somebody who may be absent; `-` is nobody."""
    seen = set()
    while login != "-" and is_absent(staff[login], day):
        if login in seen:
            return "-"
        seen.add(login)
        @absent_owner@
    return login
'''

HOURS = '''"""Hours of work."""
import configparser
from datetime import date, datetime, time, timedelta
from pathlib import Path

ONE = timedelta(days=1)
CONFIG = configparser.ConfigParser()
CONFIG.read(Path(__file__).resolve().parent.parent / "etc" / "hours.ini", encoding="utf-8")


def minutes(text):
    """Return the minutes since midnight of a time such as 08:30."""
    hour, _, minute = text.partition(":")
    return 60 * int(hour) + int(minute)


def of_day(moment):
    return 60 * moment.hour + moment.minute


def worked(day, closed):
    """Return the parts of a day that are worked, in minutes since midnight; one that ends before it begins is none."""
    if day in closed or day.weekday() == 6:
        return []
    begin, end = minutes(CONFIG["work"]["begin"]), minutes(CONFIG["work"]["end"])
    if day.weekday() == 5:
        @saturday@
    if day + ONE in closed:
        @eve_of_holiday@
    low, high = @lunch@
    return [(begin, min(end, low)), (max(begin, high), end)]


def between(begin, end, closed):
    """Return the minutes that are worked from one moment to another."""
    @loop_of_days@
        since = of_day(begin) if day == begin.date() else 0
        until = of_day(end) if day == end.date() else 1440
        for low, high in worked(day, closed):
            total += max(0, min(high, until) - max(low, since))
    @end_of_loop@


def after(begin, rest, closed):
    """Return when so many minutes have been worked since a moment."""
    day, since = begin.date(), of_day(begin)
    while True:
        for low, high in worked(day, closed):
            part = max(0, high - max(low, since))
            if rest <= part:
                return datetime.combine(day, time()) + timedelta(minutes=max(low, since) + rest)
            rest -= part
        day, since = day + ONE, 0
'''

STATES = '''"""States of tickets, and the steps between them."""
from collections import namedtuple
from pathlib import Path

FLOW = Path(__file__).resolve().parent.parent / "etc" / "flow.txt"
DONE = ("@solved@", "@rejected@", "@closed@")

Step = namedtuple("Step", "state begin end who")
Odd = namedtuple("Odd", "when who old new")


def read_flow():
    """Return the states to which a ticket may go, by its state."""
    flow = {}
    for line in FLOW.read_text(encoding="utf-8").splitlines():
        state, _, targets = line.partition("#")[0].partition(":")
        flow.setdefault(state.strip(), set()).update(targets.split())
    return flow


def walk(ticket, staff, now):
    """Return the steps that a ticket has made until now, and those that are against the flow."""
    flow, path, odd = read_flow(), [], []
    state, begin, who = "@new@", ticket.opened, ticket.events[0].who
    for event in ticket.events:
        if event.verb != "state" or event.word == state:
            continue
        if event.word not in flow.get(state, set()) | flow["any"]:
            odd.append(Odd(event.when, event.who, state, event.word))
            if @unknown_step@:
                continue
        path.append(Step(state, begin, event.when, who))
        state, begin, who = event.word, event.when, event.who
    return [*path, Step(state, begin, now, who)], odd


def owner_of(ticket, path):
    """Return the last owner of a ticket."""
    changes = [(event.when, event.word.lower()) for event in ticket.events if event.verb == "owner"]
    for before, step in zip(path, path[1:]):
        if before.state in DONE and step.state not in DONE:
            @owner_of_reopened@
    changes.sort(key=lambda change: change[0])
    return changes[-1][1] if changes else "-"


def done_at(path):
    """Return since when a ticket is done."""
    since = None
    for step in reversed(path):
        if step.state not in DONE:
            break
        since = step.begin
    return since
'''

LEVELS = '''"""Service levels: how long a ticket may take, and how long it has taken."""
import json
from pathlib import Path

import hours
import states

ETC = Path(__file__).resolve().parent.parent / "etc"
RANKS = ["low", "normal", "high", "urgent"]
LEVELS = json.loads((ETC / "levels.json").read_text(encoding="utf-8"))
TRIAL = ETC / "levels.local.json"
if TRIAL.exists():
    LEVELS.update(json.loads(TRIAL.read_text(encoding="utf-8")))


def rank_of(ticket, staff):
    """Return the place of a ticket's priority in RANKS."""
    names = [ticket.fields["priority"], *(event.word for event in ticket.events if event.verb == "priority")]
    steps = [RANKS.index(text) for text in names]
    rank = @level_of_priority@
    if staff[ticket.fields["from"]].role == "vip":
        @level_of_vip@
    return rank


def limit(rank):
    """Return the minutes of work that a ticket may take."""
    return 60 * LEVELS[RANKS[rank]]["solve"]


def counted(path):
    """Return the times that count, as pairs of begin and end."""
    parts, over = [], None
    for step in path:
        if step.state in states.DONE:
            over = over or step.begin
            continue
        if over:
            @reopened_ticket@
            over = None
        if step.state not in @paused_states@:
            parts.append((step.begin, step.end))
    return parts


def spent(path, closed):
    @sum_of_parts@


def due(path, most, closed, now):
    """Return when a ticket has taken as long as it may, if nothing stops its time from now on."""
    rest = most
    for begin, end in counted(path):
        part = hours.between(begin, end, closed)
        if part >= rest:
            return hours.after(begin, rest, closed)
        rest -= part
    return hours.after(now, rest, closed)


def answered(ticket, staff):
    """Return when a ticket was answered first, or None."""
    for event in ticket.events:
        if @first_answer@:
            return event.when
    return None


def is_in_time(ticket, rank, moment, closed):
    """Tell if a first answer came as fast as agreed."""
    return hours.between(ticket.opened, moment, closed) <= LEVELS[RANKS[rank]]["answer"]
'''

QUEUES = '''"""Queues of tickets."""


def read(path):
    """Return the queues with their tags, in the order of the file."""
    table = []
    for line in path.read_text(encoding="utf-8").splitlines():
        title, _, text = line.partition("#")[0].partition("=")
        if text:
            table.append((title.strip(), set(text.lower().split())))
    return table


def tags_of(ticket):
    """Return the tags of a ticket, in small letters."""
    tags = {word.strip().lower() for word in ticket.fields["tags"].split(",")}
    for event in ticket.events:
        if event.verb == "tag":
            tags.add(event.word.lower())
        elif event.verb == "untag":
            tags.discard(event.word.lower())
    return tags


def route(ticket, table, staff):
    """Return the queue of a ticket."""
    tags = tags_of(ticket)
    fitting = [(title, len(tags & own)) for title, own in table if tags & own]
    if not fitting:
        return @queue_without_tags@
    return @queue_of_ticket@
'''

REPORTS = '''"""Reports on tickets."""
from collections import namedtuple
from datetime import timedelta

import levels
import people
import queues
import states
from @duration_home@ import duration

Entry = namedtuple("Entry", "ticket path odd rank spent limit due owner queue")


class Board:
    def __init__(self, tickets, staff, closed, table, now):
        self.staff, self.closed, self.table, self.now = staff, closed, table, now
        self.entries = [self.entry(ticket) for ticket in tickets]
        self.active = [entry for entry in self.entries if entry.path[-1].state not in states.DONE]

    def entry(self, ticket):
        path, odd = states.walk(ticket, self.staff, self.now)
        rank = levels.rank_of(ticket, self.staff)
        most, spent = levels.limit(rank), levels.spent(path, self.closed)
        due = levels.due(path, most, self.closed, self.now)
        owner = people.substitute(states.owner_of(ticket, path), self.staff, self.now.date())
        return Entry(ticket, path, odd, rank, spent, most, due, owner, queues.route(ticket, self.table, self.staff))

    def is_late(self, entry):
        return @late_limit@

    def is_solved(self, entry):
        """Tell if a ticket was solved in the time of the report."""
        if entry.path[-1].state not in ("@solved@", "@closed@"):
            return False
        moment = states.done_at(entry.path)
        return @period_of_solved@

    def report_list(self):
        for entry in self.active:
            number, state, length = entry.ticket.number, entry.path[-1].state, duration(entry.spent)
            yield @list_line@

    def report_late(self):
        chosen = [one for one in self.active if self.is_late(one) or 100 * one.spent @risk_share@]
        for entry in sorted(chosen, key=lambda one: (one.due, one.ticket.number)):
            mark = "late" if self.is_late(entry) else "soon"
            yield @late_line@

    def report_queues(self):
        rows = {}
        for entry in sorted(self.active, key=lambda entry: @order_of_queue@):
            rows.setdefault(entry.queue, []).append(f"T{entry.ticket.number}")
        for title in sorted(rows):
            yield f"{title}: {' '.join(rows[title])}"

    def report_owners(self):
        rows = {}
        for entry in self.active:
            count, late = rows.get(entry.owner, (0, 0))
            rows[entry.owner] = (count + 1, late + self.is_late(entry))
        for owner, (count, late) in sorted(rows.items(), key=lambda item: @order_of_owners@):
            yield f"{owner}: {count}, {late} late"

    def report_solved(self):
        solved = [entry for entry in self.entries if self.is_solved(entry)]
        for rank in reversed(range(len(levels.RANKS))):
            values = sorted(entry.spent for entry in solved if entry.rank == rank)
            if values:
                figure = @figure_of_solved@
                yield f"{levels.RANKS[rank]}: {len(values)}, {duration(figure)}"

    def report_answers(self):
        counts = {}
        for entry in self.entries:
            moment = levels.answered(entry.ticket, self.staff)
            if moment:
                good, count = counts.get(entry.rank, (0, 0))
                good += levels.is_in_time(entry.ticket, entry.rank, moment, self.closed)
                counts[entry.rank] = (good, count + 1)
        for rank in sorted(counts, reverse=True):
            good, count = counts[rank]
            yield f"{levels.RANKS[rank]}: {good} of {count}"

    def report_odd(self):
        for entry in self.entries:
            for one in entry.odd:
                yield f"T{entry.ticket.number} {one.when:%Y-%m-%d %H:%M} {one.who}: {one.old} > {one.new}"
'''

#: A function of one of two modules, by the drawn one.
DURATION = '''

def duration(total):
    """Write minutes of work."""
    return @duration@
'''

FLOW = """# What a ticket may become. Where a state has two lines, both hold.
@new@: @active@ @waiting@
@active@: @waiting@ @blocked@ @solved@
@waiting@: @active@
@blocked@: @active@ @waiting@
@solved@: @closed@ @active@
@rejected@: @active@
@closed@: @active@
@waiting@: @solved@   # since the customers can do this themselves
any: @rejected@
"""

HOURS_INI = """; Times of work. Saturdays and breaks are not here.
[work]
begin = @begin@
end = @end@

; Not in force any more.
[summer]
begin = 07:00
end = 14:00
"""

LEVELS_JSON = """{
  "low": {"answer": @answer_low@, "solve": @solve_low@},
  "normal": {"answer": @answer_normal@, "solve": @solve_normal@},
  "high": {"answer": @answer_high@, "solve": @solve_high@},
  "urgent": {"answer": @answer_urgent@, "solve": @solve_urgent@}
}
"""

FILES = """# Tickets

A folder such as `desk/` has these files, in UTF-8:

- `people.csv`: login, name, team, role (`agent`, `lead`, `vip` or none), deputy, and absences: days or ranges of days
  (`2025-03-04..2025-03-09`, both days included) with spaces between them. A team has one lead.
- `closed.txt`: days and ranges of days on which nobody works. Nobody works on Sundays either.
- `queues.txt`: queues and their tags. A ticket belongs to a queue where it has one of its tags at least.
- `tickets/T12.txt` and so on: fields, an empty line, events. Other files are no tickets. A field goes on in lines that
  begin with a space. Names of fields, tags and logins may be in any case of letters. Lines that begin with a tab are
  the words of a note. Events may stand in any order; what is later than NOW has not happened yet.

Events are `opened`, `state STATE`, `owner LOGIN`, `priority PRIORITY`, `tag TAG`, `untag TAG`, `duplicate TICKET`,
`note` and `memo` (which only we can read). A ticket is `@new@` first. The flow:

- `@new@` becomes `@active@` or `@waiting@`, and `@waiting@` becomes `@active@` or `@solved@`.
- `@active@` becomes `@waiting@`, `@blocked@` or `@solved@`, and `@blocked@` becomes `@active@` or `@waiting@`.
- `@solved@` becomes `@closed@`, and `@solved@`, `@closed@` and `@rejected@` can become `@active@` again.
- All states can become `@rejected@`. A state that a ticket has already is no step. Other steps are against the flow.

A day of work is from @begin@ to @end@. What a ticket may take in hours of work, and its first answer in minutes of
work: low @solve_low@ and @answer_low@, normal @solve_normal@ and @answer_normal@, high @solve_high@ and @answer_high@,
urgent @solve_urgent@ and @answer_urgent@.

# Reports

`bin/desk FOLDER NOW REPORT...` prints, with NOW such as 2025-03-04T14:20:

- `list`: the open tickets (not @solved@, @rejected@ or @closed@), and the time of work that they have taken.
- `late`: open tickets that are late, or soon will be, by the moment at which they have taken as long as they may, if
  nothing stops their time from now on.
- `queues`: open tickets by queue.
- `owners`: who works on open tickets, how many, and how many of them are late. `-` is nobody, also where all in
  question are absent.
- `solved`: tickets that are @solved@ or @closed@, how many and how long, by priority. What counts is when a ticket was
  done, not what happened to it since then, if it was not opened again.
- `answers`: how many first answers came in time, of all first answers.
- `odd`: steps against the flow.
"""
