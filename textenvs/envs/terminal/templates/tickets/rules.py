"""Rules that the programs of the template `tickets` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "duplicates",
        "@code@/store.py",
        "Duplicates are not treated as agreed.",
        [
            Option("tickets.pop(ticket.number, None)", "A duplicate stands in no report.", "none"),
            Option(
                "tickets.pop(ticket.number, None); original.opened = min(original.opened, ticket.opened)",
                "A duplicate stands in no report, and its original counts as opened when the first of both was.",
                "first",
            ),
            Option(
                'tickets.pop(ticket.number, None); original.fields["tags"] += "," + ticket.fields["tags"]',
                "A duplicate stands in no report, and its original has the tags of the duplicate's head as well.",
                "tags",
            ),
            Option("tickets[ticket.number] = ticket", "A duplicate stands in reports as all other tickets do.", "all"),
        ],
    ),
    Rule(
        "saturday",
        "@code@/hours.py",
        "Times are wrong where there is a weekend in them.",
        [
            Option("end = begin", "Nobody works on Saturdays.", lambda begin, end: (begin, begin)),
            Option("end = 720", "Saturdays end at 12:00.", lambda begin, end: (begin, 720)),
            Option("begin, end = 600, 840", "Work on Saturdays is from 10:00 to 14:00.", lambda begin, end: (600, 840)),
        ],
    ),
    Rule(
        "eve-of-holiday",
        "@code@/hours.py",
        "Times are wrong around holidays.",
        [
            Option(
                "end = min(end, 720)",
                "The day before a day of `closed.txt` ends at 12:00.",
                lambda begin, end: (begin, min(end, 720)),
            ),
            Option(
                "end = min(end, 900)",
                "The day before a day of `closed.txt` ends at 15:00.",
                lambda begin, end: (begin, min(end, 900)),
            ),
            Option(
                "begin = max(begin, 660)",
                "The day before a day of `closed.txt` begins at 11:00.",
                lambda begin, end: (max(begin, 660), end),
            ),
        ],
    ),
    Rule(
        "lunch",
        "@code@/hours.py",
        "The hours of a day are too many or too few.",
        [
            Option(f"{low}, {high}", f"Nobody works from {words}, on any day.", (low, high))
            for low, high, words in (
                (720, 780, "12:00 to 13:00"),
                (720, 750, "12:00 to 12:30"),
                (750, 795, "12:30 to 13:15"),
                (690, 735, "11:30 to 12:15"),
            )
        ],
    ),
    Rule(
        "level-of-priority",
        "@code@/levels.py",
        "Tickets whose priority was changed have the wrong one.",
        [
            Option("steps[-1]", "The last priority of a ticket counts.", lambda steps: steps[-1]),
            Option("max(steps)", "The highest priority that a ticket has ever had counts.", max),
            Option("steps[0]", "The first priority of a ticket counts, which is that of its head.", lambda s: s[0]),
            Option("min(steps)", "The lowest priority that a ticket has ever had counts.", min),
        ],
    ),
    Rule(
        "level-of-vip",
        "@code@/levels.py",
        "Our best customers complain about their priority.",
        [
            Option(
                "rank = min(rank + 1, 3)",
                "Tickets from a `vip` have the next higher priority.",
                lambda r: min(r + 1, 3),
            ),
            Option("rank = 3", "All tickets from a `vip` are urgent.", lambda r: 3),
            Option("rank = max(rank, 2)", "Tickets from a `vip` are at least high.", lambda r: max(r, 2)),
            Option("rank = max(rank, 1)", "Tickets from a `vip` are at least normal.", lambda r: max(r, 1)),
        ],
    ),
    Rule(
        "reopened-ticket",
        "@code@/levels.py",
        "Tickets that were opened again have taken too long, or not long enough.",
        [
            Option(
                "parts = list(parts)",
                "The time of a ticket that is opened again goes on, without that in which it was done.",
                "goes on",
            ),
            Option("parts.clear()", "The time of a ticket that is opened again begins anew.", "anew"),
            Option(
                "parts.append((over, step.begin))",
                "The time of a ticket that is opened again goes on, with that in which it was done.",
                "with",
            ),
        ],
    ),
    Rule(
        "paused-states",
        "@code@/levels.py",
        "Time counts that should not, or the other way round.",
        [
            Option('("@waiting@",)', "The time in which a ticket is `@waiting@` does not count.", ("waiting",)),
            Option('("@blocked@",)', "The time in which a ticket is `@blocked@` does not count.", ("blocked",)),
            Option(
                '("@waiting@", "@blocked@")',
                "The time in which a ticket is `@waiting@` or `@blocked@` does not count.",
                ("waiting", "blocked"),
            ),
            Option(
                '("@new@", "@blocked@")',
                "The time in which a ticket is `@new@` or `@blocked@` does not count.",
                ("new", "blocked"),
            ),
        ],
    ),
    Rule(
        "first-answer",
        "@code@/levels.py",
        "The report about answers does not measure what was agreed.",
        [
            Option(
                'event.verb == "note" and event.who != ticket.fields["from"]',
                "The first answer to a ticket is the first note of somebody else than who opened it.",
                lambda verb, own, role: verb == "note" and not own,
            ),
            Option(
                'event.verb != "memo" and staff[event.who].role in ("agent", "lead")',
                "The first answer to a ticket is the first event of an agent or a lead that is no memo.",
                lambda verb, own, role: verb != "memo" and role in ("agent", "lead"),
            ),
            Option(
                'event.verb == "owner"',
                "The first answer to a ticket is its first owner.",
                lambda verb, own, role: verb == "owner",
            ),
            Option(
                'event.verb in ("note", "memo") and staff[event.who].role in ("agent", "lead")',
                "The first answer to a ticket is the first note or memo of an agent or a lead.",
                lambda verb, own, role: verb in ("note", "memo") and role in ("agent", "lead"),
            ),
        ],
    ),
    Rule(
        "unknown-step",
        "@code@/states.py",
        "Steps against the flow are made, or not made, as nobody agreed.",
        [
            Option(
                'staff[event.who].role != "lead"',
                "A step against the flow is made where a lead makes it, and else not.",
                lambda role, target: role != "lead",
            ),
            Option(
                'staff[event.who].role == "agent"',
                "A step against the flow is not made where an agent makes it, and else it is.",
                lambda role, target: role == "agent",
            ),
            Option(
                'event.word != "@closed@"',
                "A step against the flow is not made, except that to `@closed@`.",
                lambda role, target: target != "closed",
            ),
        ],
    ),
    Rule(
        "owner-of-reopened",
        "@code@/states.py",
        "Tickets that were opened again belong to the wrong people.",
        [
            Option("changes = list(changes)", "A ticket that is opened again keeps its owner.", "same"),
            Option(
                'changes.append((step.begin, "-"))', "A ticket that is opened again has no owner at first.", "nobody"
            ),
            Option(
                "changes.append((step.begin, before.who))",
                "A ticket that is opened again belongs to who made its last step before.",
                "before",
            ),
            Option(
                "changes.append((step.begin, step.who))",
                "A ticket that is opened again belongs to who opened it again.",
                "opener",
            ),
        ],
    ),
    Rule(
        "absent-owner",
        "@code@/people.py",
        "Tickets of those who are absent lie about, or are with the wrong people.",
        [
            Option(
                "login = staff[login].deputy",
                "The deputy works on the tickets of somebody who is absent; where he is absent, too, his deputy does.",
                "deputy",
            ),
            Option(
                "login = lead_of(staff[login].team, staff)",
                "The lead of the team works on the tickets of somebody who is absent, or nobody if he is absent, too.",
                "lead",
            ),
            Option('login = "-"', "Nobody works on the tickets of somebody who is absent.", "nobody"),
        ],
    ),
    Rule(
        "queue-of-ticket",
        "@code@/queues.py",
        "Tickets that fit several queues are in the wrong one.",
        [
            Option(
                "fitting[0][0]",
                "Of several queues that have a tag of a ticket, it belongs to the first one of the file.",
                lambda rows: rows[0][1],
            ),
            Option(
                "fitting[-1][0]",
                "Of several queues that have a tag of a ticket, it belongs to the last one of the file.",
                lambda rows: rows[-1][1],
            ),
            Option(
                "max(fitting, key=lambda row: row[1])[0]",
                "Of several queues that have a tag of a ticket, it belongs to the one with most of its tags, of equal "
                "ones the first.",
                lambda rows: min(rows, key=lambda row: (-row[0], rows.index(row)))[1],
            ),
        ],
    ),
    Rule(
        "queue-without-tags",
        "@code@/queues.py",
        "Tickets without tags are where nobody looks for them.",
        [
            Option('"triage"', "A ticket that fits no queue belongs to `triage`.", "triage"),
            Option("table[0][0]", "A ticket that fits no queue belongs to the first queue of the file.", "first"),
            Option(
                'staff[ticket.fields["from"]].team',
                "A ticket that fits no queue belongs to a queue that is named as the team of who opened it.",
                "team",
            ),
        ],
    ),
    Rule(
        "order-of-queue",
        "@code@/reports.py",
        "Queues are not worked on in the order that was agreed.",
        [
            Option(
                "(entry.due, entry.ticket.number)",
                "In a queue, tickets are sorted by the moment at which their time is over, and by number.",
                lambda one: (one.due, one.number),
            ),
            Option(
                "(-entry.rank, entry.ticket.number)",
                "In a queue, tickets with the highest priority are first, then those with the lowest number.",
                lambda one: (-one.rank, one.number),
            ),
            Option(
                "(entry.ticket.opened, entry.ticket.number)",
                "In a queue, tickets are sorted by the moment at which they were opened, and by number.",
                lambda one: (one.opened, one.number),
            ),
            Option(
                "(-entry.spent, entry.ticket.number)",
                "In a queue, tickets that have taken most time are first, then those with the lowest number.",
                lambda one: (-one.spent, one.number),
            ),
        ],
    ),
    Rule(
        "late-limit",
        "@code@/reports.py",
        "Tickets are late too early, or too late.",
        [
            Option(
                "entry.spent > entry.limit",
                "A ticket is late when it has taken more time than it may.",
                lambda spent, limit: spent > limit,
            ),
            Option(
                "entry.spent >= entry.limit",
                "A ticket is late when it has taken all the time that it may take.",
                lambda spent, limit: spent >= limit,
            ),
            Option(
                "entry.spent > entry.limit + 15",
                "A ticket is late when it has taken more than 15 minutes longer than it may.",
                lambda spent, limit: spent > limit + 15,
            ),
        ],
    ),
    numbers(
        "risk-share",
        "@code@/reports.py",
        "`late` has too many lines, or too few.",
        (50, 60, 75, 90),
        ">= {} * one.limit",
        "A ticket will be late soon when it has taken {} % of the time that it may take, or more.",
    ),
    Rule(
        "list-line",
        "@code@/reports.py",
        "The page of the office cannot read the list of tickets.",
        [
            Option(
                'f"T{number} {state} {entry.owner} {length}"',
                "A line of `list` is NUMBER STATE OWNER TIME.",
                "T{0} {1} {2} {3}",
            ),
            Option(
                'f"{entry.owner}: T{number} ({state}, {length})"',
                "A line of `list` is OWNER: NUMBER (STATE, TIME).",
                "{2}: T{0} ({1}, {3})",
            ),
            Option(
                'f"{state};{length};T{number};{entry.owner}"',
                "A line of `list` is STATE;TIME;NUMBER;OWNER.",
                "{1};{3};T{0};{2}",
            ),
        ],
    ),
    Rule(
        "late-line",
        "@code@/reports.py",
        "The alarm does not understand `late` any more.",
        [
            Option(
                'f"{mark} T{entry.ticket.number} {entry.due:%Y-%m-%d %H:%M}"',
                "A line of `late` is such as `soon T12 2025-03-04 14:20`.",
                "{0} T{1} {2:%Y-%m-%d %H:%M}",
            ),
            Option(
                'f"{entry.due:%d.%m. %H:%M} T{entry.ticket.number} ({mark})"',
                "A line of `late` is such as `04.03. 14:20 T12 (soon)`.",
                "{2:%d.%m. %H:%M} T{1} ({0})",
            ),
            Option(
                'f"T{entry.ticket.number};{entry.due:%m/%d;%H.%M};{mark[0].upper()}"',
                "A line of `late` is such as `T12;03/04;14.20;S`, with `S` for soon and `L` for late.",
                "T{1};{2:%m/%d;%H.%M};{3}",
            ),
        ],
    ),
    Rule(
        "order-of-owners",
        "@code@/reports.py",
        "The owners are in the wrong order.",
        [
            Option("item[0]", "`owners` is sorted by login.", lambda row: row[0]),
            Option(
                "(-item[1][0], item[0])",
                "In `owners`, those with most tickets are first, equal ones by login.",
                lambda row: (-row[1], row[0]),
            ),
            Option(
                "(-item[1][1], item[0])",
                "In `owners`, those with most late tickets are first, equal ones by login.",
                lambda row: (-row[2], row[0]),
            ),
            Option(
                "(item[1][0], item[0])",
                "In `owners`, those with fewest tickets are first, equal ones by login.",
                lambda row: (row[1], row[0]),
            ),
        ],
    ),
    Rule(
        "period-of-solved",
        "@code@/reports.py",
        "`solved` is about the wrong time.",
        [
            Option(
                "self.now - timedelta(days=30) <= moment",
                "`solved` is about the 720 hours before NOW.",
                "hours",
            ),
            Option(
                "(moment.year, moment.month) == (self.now.year, self.now.month)",
                "`solved` is about the month of NOW.",
                "month",
            ),
            Option(
                "moment.month % 12 == self.now.month - 1",
                "`solved` is about the month before that of NOW.",
                "before",
            ),
        ],
    ),
    Rule(
        "figure-of-solved",
        "@code@/reports.py",
        "The times in `solved` are not the figure that was agreed.",
        [
            Option(
                "sum(values) // len(values)",
                "`solved` has the mean time of a priority, rounded down to minutes.",
                lambda values: sum(values) // len(values),
            ),
            Option(
                "values[len(values) // 2]",
                "`solved` has the median time of a priority; of an even number, the higher one of the middle.",
                lambda values: sorted(values)[len(values) // 2],
            ),
            Option("values[-1]", "`solved` has the longest time of a priority.", max),
            Option("sum(values)", "`solved` has the sum of the times of a priority.", sum),
        ],
    ),
    Rule(
        "duration",
        "@duration_file@",
        "Times are not written as agreed.",
        [
            Option('f"{total // 60}:{total % 60:02}"', "Times are written such as 2:05.", "{0}:{1:02}"),
            Option('f"{total // 60}h{total % 60:02}m"', "Times are written such as 2h05m.", "{0}h{1:02}m"),
            Option('f"{total} min"', "Times are written such as 125 min.", "{2} min"),
            Option('f"PT{total // 60}H{total % 60}M"', "Times are written such as PT2H5M.", "PT{0}H{1}M"),
        ],
    ),
)

IDENTIFIERS = (
    "board fields label value events day clock verb words when ticket original path head body staff person seen "
    "moment since until total part parts rest step steps odd flow targets changes before rank over most title own "
    "fitting table entry spent due mark chosen length rows count figure good solved walk worked counted answered route "
    "substitute is_absent lead_of done_at owner_of tags_of fields_of events_of"
)
