"""The template *library*: a Python package for bookings and invoices, its command line, and its examples.

It needs sh and Python 3.
"""

from __future__ import annotations

import calendar
import datetime
import random
from collections.abc import Mapping, Sequence

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, CITIES, asked_together, fault_of_edits, file_in_the_way, notes, person, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import COMMAND, COMMANDS, DATES, INIT, MONEY, RUN, SLOTS, TEXT


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the package's name, its limits, and the bookings of some years."""
    room = rng.choice(["room", "court", "studio", "cabin", "boat"])
    names = {
        "package": rng.choice(["stay", "booker", "rooms", "agenda", "hostel", "planner"]),
        "room": room,
        "rooms": f"{room}s",
        "percent": rng.randint(5, 30),
        "from_nights": rng.randint(5, 14),
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "@package@": COMMAND,
        "run.py": RUN,
        "@package@_lib/__init__.py": INIT,
        "@package@_lib/dates.py": DATES,
        "@package@_lib/money.py": MONEY,
        "@package@_lib/slots.py": SLOTS,
        "@package@_lib/text.py": TEXT,
        "@package@_lib/commands.py": COMMANDS,
    }
    files = variant.files(texts) | variant.document(rng)
    package = names["package"]
    library = f"{package}_lib"
    # An old copy, which nothing imports.
    files["old/dates.py"] = variant.outdated(DATES).replace("(year % 100 != 0 or year % 400 == 0)", "year % 100")
    files["docs/changes.md"] = notes(rng, "Changes", 15)
    questions = _questions(rng, files, room)
    fixed = frozenset(path for path in files if path.startswith("bookings/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, "commands", variant, fails=True), _check(fresh, "right commands", variant, fails=False)]

    about = (
        f"`./{package} FILE` runs commands of the package `{library}`, one a line, for the booking of {room}s: see "
        f"`{library}/commands.py`. It prints a line for each of them, then the status, with which it ends. "
        f"What they print is in `{variant.page}`."
    )
    looks = ["ls -R | head -40", f"cat {library}/commands.py"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_import_faults(variant, looks[:1]),
    ]
    return Project(about, files, faults, checks, {str(package): 0o755}, fixed=fixed, questions=questions)


def _import_faults(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    package = variant.names["package"]
    library = f"{package}_lib"
    end = 'minute of the end)."""'
    run = [*looks, f"echo 'leap 2024' > /tmp/c; ./{package} /tmp/c"]
    return [
        file_in_the_way(
            "json.py",
            '"""Notes on the format of exports, for later."""\n\nFORMAT = "lines"\n',
            run,
            "It ends with an AttributeError in a module that nobody has changed.",
        ),
        fault_of_edits(
            "circular-import",
            "It cannot be imported any more.",
            [(f"{library}/slots.py", f"{end}\n", variant.text(f"{end}\nfrom .commands import clock\n"))],
            run,
        ),
        Fault(
            "missing-file",
            "It cannot be imported any more, on no machine.",
            [*run, f"ls {library} old"],
            f"sed 's/ and year % 100$/ and (year % 100 != 0 or year % 400 == 0)/' old/dates.py > {library}/dates.py",
            removed=[f"{library}/dates.py"],
        ),
    ]


def _check(rng: random.Random, name: str, variant: Variant, *, fails: bool) -> Check:
    """Draw commands, with those that need care always among them; compute the answers with the standard library.

    ``fails`` is whether one of them does not exist.
    """
    no, yes = variant["yes-no"]

    def money(cents: int) -> str:
        return str(variant["amount"].format("-" if cents < 0 else "", *divmod(abs(cents), 100)))

    dialogue = [("leap 2000", yes), ("leap 2024", yes), ("leap 2023", no), *_date_commands(rng, variant)]
    people = rng.randint(3, 7)
    part, rest = rng.randint(1000, 9000), rng.randint(2, people - 1)
    shares = [part + cents for cents in variant["cents-left-over"](people, rest)]
    dialogue.append((f"share {(people * part + rest) / 100:.2f} {people}", " ".join(map(money, shares))))
    percent, limit = int(str(variant.names["percent"])), int(str(variant.names["from_nights"]))
    for stay in (limit - 1, limit, limit + rng.randint(1, 20)):
        # Both roundings make a difference.
        draws = (rng.randint(2000, 30_000) for _ in range(1000))
        cents = next(cents for cents in draws if cents * (100 - percent) % 100)
        due = cents if stay < limit else variant["discounted"](cents, percent, stay, limit)
        dialogue.append((f"price {cents / 100:.2f} {stay}", money(due)))
    refund = rng.randint(1, 99) * 100
    dialogue.append((f"price -{refund / 100:.2f} 1", money(-refund)))
    dialogue += _slots(rng, variant) + _texts(rng, variant)
    if fails:
        dialogue.append((f"{token(rng)} 1", "error: no such command: "))
    rng.shuffle(dialogue)
    answers = [text + line.split()[0] if text.endswith("command: ") else text for line, text in dialogue]
    inputs = {"commands.txt": "\n".join(line for line, _ in dialogue) + "\n"}
    status = f"status {variant['error-status'] if fails else 0}"
    return Check(name, f"./{variant.names['package']} $IN/commands.txt", "\n".join([*answers, status]), inputs)


def _date_commands(rng: random.Random, variant: Variant) -> list[tuple[str, str]]:
    century = rng.choice([1700, 1800, 1900])
    dialogue = [(f"leap {century}", variant["yes-no"][0])]
    for year, over in ((century, 0), (century, 6), (rng.randint(1990, 2030), rng.randint(1, 5))):
        start = datetime.date(year, rng.randint(1, 2), rng.randint(1, 20))
        # A day too many shows in weeks as well, however they are rounded.
        end = start + datetime.timedelta(days=7 * rng.randint(9, 100) + over)
        dialogue.append((f"nights {start} {end}", str(variant["nights"]((end - start).days))))
    for date, count in (
        (datetime.date(rng.randint(2000, 2030), 1, 31), 1),
        (datetime.date(rng.randint(2000, 2030), rng.randint(1, 11), rng.randint(1, 28)), 0),
        (datetime.date(rng.randint(2000, 2030), rng.randint(1, 12), rng.randint(1, 28)), rng.randint(1, 30)),
        (datetime.date(rng.randint(2000, 2030), 10, 31), 2),
    ):
        later, month = divmod(date.month - 1 + count, 12)
        first = datetime.date(date.year + later, month + 1, 1)
        last = calendar.monthrange(first.year, first.month)[1]
        due = first.replace(day=date.day) if date.day <= last else variant["missing-day"](first, last)
        dialogue.append((f"months {date} {count}", str(due)))
    return dialogue


def _slots(rng: random.Random, variant: Variant) -> list[tuple[str, str]]:
    """Draw commands on slots; the answers are computed minute by minute."""
    form, between = variant["clock"]
    no, yes = variant["yes-no"]

    def clock(minute: int) -> str:
        return f"{minute // 60:02}:{minute % 60:02}"

    def span(start: int, end: int) -> str:
        return f"{clock(start)}-{clock(end)}"

    def gaps(booked: Sequence[tuple[int, int]]) -> str:
        busy = {minute for start, stop in booked for minute in range(start, stop)}
        spans, start = list[str](), None
        for minute in range(400, 1201):
            if minute == 1200 or minute in busy:
                if start is not None and (minute == 1200 or minute - start > variant["gap"]):
                    spans.append(between.join(form.format(*divmod(end, 60)) for end in (start, minute)))
                start = None
            elif start is None:
                start = minute
        return " ".join(spans)

    first = rng.randint(500, 600)
    middle, end = first + rng.randint(30, 90), first + rng.randint(100, 200)
    outer = (first + 300, first + 500)
    booked = [outer, (first + 320, first + 340 + rng.randint(0, 40)), (middle, end), (first + 230, first + 260)]
    close = [(first, first + 10)]
    for gap in rng.sample([5, 7, 12, 18, 25, 35], 6):
        close.append((close[-1][1] + gap, close[-1][1] + gap + rng.randint(5, 50)))
    return [
        (f"clash {span(first, middle)} {span(middle, end)}", no),
        (f"clash {span(middle, end)} {span(first, middle)}", no),
        (f"clash {span(first, middle + 1)} {span(middle, end)}", yes),
        *(
            (f"free {span(400, 1200)} {' '.join(span(*slot) for slot in slots)}", gaps(slots))
            for slots in (booked, close)
        ),
    ]


def _texts(rng: random.Random, variant: Variant) -> list[tuple[str, str]]:
    major, minor = rng.randint(1, 3), rng.randint(10, 89)  # as text it is less than 9
    name = person(rng)
    rows = [[rng.choice(CITIES), token(rng, rng.randint(2, 9)), "x" * rng.randint(3, 4)] for _ in range(3)]
    rows.append(["a", "bb" * 8, "c"])
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    pad, mark = variant["pad"], variant["table-line"]
    lines = [mark.join(pad(cell, width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    levels, leaves = rng.randint(2, 6), rng.randint(2, 5)
    nested = "[" * levels + ",".join(str(rng.randint(1, 9)) for _ in range(leaves)) + "]" * levels
    form, case = variant["initials"]
    return [
        (f"version {major}.{minor} {major}.9", f"{major}.{minor}"),
        (f"initials {name.lower()}", case(form.format(*(part[0] for part in name.split())))),
        (f"table {' '.join(','.join(row) for row in rows)}", "/".join(lines)),
        (f"depth {nested}", str(variant["depth"](levels, leaves))),
    ]


def _questions(rng: random.Random, files: dict[str, str], room: str) -> list[Question]:
    """Draw the bookings of each month, and ask about them."""
    guests = sorted({person(rng) for _ in range(60)})
    rows_of = dict[str, list[tuple[int, str]]]()
    for year in range(2021, 2021 + rng.randint(2, 4)):
        for month in range(1, 13):
            spent = rng.sample(range(100, 99_999), 60)
            lines = [f"reference;guest;{room};cents"]
            for cents in spent:
                guest, reference = rng.choice(guests), token(rng)
                lines.append(f"{reference};{guest};{room}{rng.randint(1, 20)};{cents}")
                rows_of.setdefault(guest, []).append((cents, reference))
            files[f"bookings/{year}-{month:02}.csv"] = "\n".join(lines) + "\n"
    guests = rng.sample([guest for guest in guests if len({cents for cents, _ in rows_of[guest]}) > 10], ASKED)
    months = rng.sample(sorted(path for path in files if path.startswith("bookings/")), ASKED)
    return [
        asked_together([_reference_of_amount(guest, rows_of[guest]) for guest in guests]),
        asked_together([_cheapest_booking(path, files[path]) for path in months]),
    ]


def _reference_of_amount(guest: str, rows: Sequence[tuple[int, str]]) -> Question:
    # Amounts of different months can be equal: the largest must be the guest's only one of that amount.
    amounts = [cents for cents, _ in rows]
    cents = max(cents for cents in amounts if amounts.count(cents) == 1)
    return Question(
        "reference-of-amount",
        f"What is the reference of the booking of {guest} over exactly {cents} cents?",
        next(reference for amount, reference in rows if amount == cents),
        ["ls bookings | head", f"grep -h ';{guest};.*;{cents}$' bookings/*.csv | cut -d';' -f1"],
    )


def _cheapest_booking(path: str, text: str) -> Question:
    cheapest = min(text.splitlines()[1:], key=lambda line: int(line.split(";")[3]))
    return Question(
        "cheapest-booking",
        f"What is the reference of the cheapest booking in {path}?",
        cheapest.split(";")[0],
        ["ls bookings | tail -1", f"tail -n +2 {path} | sort -t';' -k4,4n | head -1 | cut -d';' -f1"],
    )
