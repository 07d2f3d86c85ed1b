"""The template *mailroom*: messages in files, rules that sort them, mailing lists, and digests.

It needs make, bash, sed, awk (mawk is enough) and coreutils.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, CITIES, COLOURS, FIRST_NAMES, GOODS, SURNAMES, asked_together, lost_permission, notes, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import BODY, COMMON, DELIVER, DIGEST, INDEX, LISTS, MAKEFILE, MATCH, OWN_RULES, SCAN, SUBJECT

#: What an old file does with quoted lines; it is no option of the rule.
_OLD_QUOTES = "s/^>/:/"
_MARKS = ("Re: ", "AW: ", "Fwd: ", "RE: ")


@dataclass(frozen=True)
class _Message:
    """A message; ``head`` are its lines up to the empty one, without their ends, and ``body`` those after it."""

    id: str
    sender: str
    day: str
    seconds: int
    recipients: Sequence[str]
    subject: str
    head: Sequence[str]
    body: Sequence[str]
    end: str = "\n"

    @property
    def text(self) -> str:
        return "".join(f"{line}{self.end}" for line in (*self.head, "", *self.body))

    @property
    def plain_subject(self) -> str:
        """The subject without marks of answers."""
        subject = self.subject
        while mark := next((mark for mark in _MARKS if subject.startswith(mark)), ""):
            subject = subject.removeprefix(mark)
        return subject

    def fits(self, field: str, test: str, pattern: str) -> bool:
        """Return whether a rule fits."""
        value = {"from": self.sender, "to": ",".join(self.recipients), "subject": self.subject}.get(field, "").lower()
        pattern = pattern.lower()
        return {
            "is": value == pattern,
            "contains": pattern in value,
            "begins": value.startswith(pattern),
            "ends": value.endswith(pattern),
            "above": test == "above" and len(self.text) > 1024 * int(pattern if test == "above" else "0"),
        }[test]


@dataclass(frozen=True)
class _Room:
    """The rules of a drawn project, and what its programs print about messages by these."""

    variant: Variant
    domain: str

    def delivered(
        self, messages: Sequence[_Message], rules: Sequence[tuple[str, str, str, str]]
    ) -> dict[str, dict[str, int]]:
        """Return the names of copies, with their bytes, by folder."""
        folders, seen = dict[str, dict[str, int]](), set[str]()
        for message in messages:
            if message.id in seen:
                continue
            seen.add(message.id)
            fitting = [rule for rule in rules if message.fits(rule[0], rule[1], rule[3])]
            folder = self.variant["order-of-rules"](fitting)[2] if fitting else self.variant["other-folder"]
            size = len(message.text)
            name = self.variant["name-of-copy"].format(message.id, message.day, message.sender, size)
            folders.setdefault(folder, {})[f"{name}.eml"] = size
        return folders

    def index(self, folders: Mapping[str, Mapping[str, int]]) -> list[str]:
        rows = [(folder, len(copies), sum(copies.values())) for folder, copies in folders.items()]
        return [self.variant["folder-line"](*row) for row in sorted(rows, key=self.variant["order-of-folders"])]

    def members(self, lists: Mapping[str, Sequence[str]], name: str) -> Iterator[tuple[str, str]]:
        for line in lists[name]:
            if line.startswith("@"):
                yield from self.members(lists, line[1:])
            elif line and not line.startswith("#"):
                address, mode = line.split()
                yield address, mode

    def outgoing(self, messages: Sequence[_Message], lists: Mapping[str, Sequence[str]]) -> list[str]:
        variant, lines = self.variant, set[str]()
        for message in messages:
            for name in lists:
                if f"{name}@lists.{self.domain}" not in message.recipients:
                    continue
                tagged = variant["subject-tag"].format(name, message.plain_subject)
                for number, (member, mode) in enumerate(self.members(lists, name)):
                    if mode == "each" and variant["copy-to-sender"](member, message.sender, number):
                        lines.add(variant["outgoing-line"].format(member, message.id, tagged))
        return sorted(lines)

    def digest(self, messages: Sequence[_Message], name: str) -> list[str]:
        variant = self.variant
        rows = [message for message in messages if f"{name}@lists.{self.domain}" in message.recipients]
        rows.sort(key=variant["order-of-digest"])
        lines = [variant["digest-title"].format(name, len(rows))]
        for place, row in enumerate(rows, start=1):
            lines.append(variant["contents-line"].format(place, row.subject, row.sender, row.id, len(rows)))
        for row in rows:
            lines.append(f"{variant['message-mark']} {row.seconds}")
            body = row.body[: row.body.index("-- ")] if "-- " in row.body else row.body
            for line in body:
                written = variant["quoted-lines"](line) if line.startswith(">") else line
                lines += [] if written is None else _broken(written, variant["line-width"])
        return lines


def _broken(line: str, width: int) -> list[str]:
    """Break a line after the last space that fits."""
    parts = []
    while len(line) > width:
        end = line[:width].rfind(" ") + 1 or width
        parts.append(line[:end])
        line = line[end:]
    return [*parts, line]


@dataclass
class _Writer:
    """Draws messages."""

    rng: random.Random
    domain: str
    count: int = 0

    def address(self, domain: str = "") -> str:
        first, last = self.rng.choice(FIRST_NAMES).lower(), self.rng.choice(SURNAMES).lower()
        return f"{first}.{last}{self.rng.randint(10, 99)}@{domain or self.company()}"

    def company(self) -> str:
        return f"{self.rng.choice(GOODS)}{self.rng.randint(10, 99)}.example"

    def words(self, count: int) -> str:
        return " ".join(self.rng.choices(GOODS, k=count))

    def message(
        self,
        recipients: Sequence[str],
        subject: str = "",
        sender: str = "",
        *,
        id: str = "",
        extra: Sequence[str] = (),
        end: str = "\n",
        folded: bool = False,
        upper: bool = False,
    ) -> _Message:
        """Draw a message; no two of a writer have the same time in UTC."""
        rng = self.rng
        self.count += 1
        sender, id = sender or self.address(), id or token(rng)
        subject = subject or f"{self.words(2).title()} {token(rng, 4)}"
        zone = rng.choice([-8, -5, 2, 9])
        # In UTC the messages have another order than in the zones of their senders.
        time = datetime.datetime(2025, 3, 1) + datetime.timedelta(minutes=137 * (self.count * 7 % 97), hours=zone)
        seconds = int((time - datetime.datetime(1970, 1, 1)).total_seconds()) - 3600 * zone
        parties = [
            f"{rng.choice(CITIES)} <{address.title()}>" if upper or (end == "\n" and rng.random() < 0.3) else address
            for address in recipients
        ]
        head = [
            f"Message-ID: <{id}@{self.company()}>",
            f"Date: {time:%Y-%m-%d %H:%M} {'-' if zone < 0 else '+'}{abs(zone):02}00",
            f"From: {sender.split('.')[0].title()} <{sender}>" if rng.random() < 0.7 else f"From: {sender}",
            f"To: {', '.join(parties[:1])},{', '.join(parties[1:])}".rstrip(",")
            if not folded
            else f"To: {parties[0]},",
            *([f"\t{', '.join(parties[1:])}"] if folded else []),
            *([f"Subject: {subject.rsplit(' ', 1)[0]}", f"   {subject.rsplit(' ', 1)[1]}"] if folded else []),
            *([] if folded else [f"Subject: {subject}"]),
        ]
        if upper:
            head = [f"{line.split(':')[0].upper()}:{line.split(':', 1)[1]}" for line in head]
        body = [
            f"{self.words(3).capitalize()}.",
            f"{self.words(rng.randint(16, 20)).capitalize()}.",
            f"> {self.words(4)}",
            "",
            f"{self.words(2)} > {self.words(1)}",
            *extra,
            f"{self.words(rng.randint(12, 16)).capitalize()}.",
        ]
        if rng.random() < 0.6:
            body += ["-- ", self.words(2).title(), f"> {self.words(2)}"]
        return _Message(id, sender, f"{time:%Y-%m-%d}", seconds, recipients, subject, head, body, end)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of folders, the domain, an inbox and lists."""
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "share", "tools", "parts"]),
        "etc": rng.choice(["etc", "conf", "settings"]),
        "domain": f"{rng.choice(COLOURS)}{rng.choice(GOODS)}.example",
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    room = _Room(variant, str(names["domain"]))
    texts = {
        "Makefile": MAKEFILE,
        "bin/deliver": DELIVER,
        "bin/index": INDEX,
        "bin/lists": LISTS,
        "bin/digest": DIGEST,
        "@lib@/common.sh": COMMON,
        "@lib@/scan.awk": SCAN,
        "@lib@/match.awk": MATCH,
        "@lib@/subject.sed": SUBJECT,
        "@lib@/body.sed": BODY,
        "@etc@/rules.txt": OWN_RULES,
        # Nothing reads these two.
        "@etc@/rules.txt.2023": OWN_RULES.replace("contains", "is").replace("above large 64", "above huge 900"),
        "old/body.sed": BODY.replace("/^-- $/", "/^__ $/").replace("@quoted_lines@", _OLD_QUOTES),
    }
    files = variant.files(texts) | variant.document(rng)
    files["docs/notes.md"] = notes(rng, "Notes on the mailroom", 10)
    questions = _questions(rng, files, room)
    fixed = frozenset(path for path in files if path.startswith(("inbox/", "lists/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, room)

    about = (
        "`make` sorts messages into folders and prints an index of them (`make index`), writes which member of which "
        "list gets which message (`make lists`, in `out/outgoing.txt`), and digests (`make digests`). A list is a file "
        "such as `lists/*.txt`, with an address and each, digest or off in a line, or @ and the name of another list. "
        f"Its address is NAME@lists.{names['domain']}. `{variant.page}` says what is printed."
    )
    looks = ["ls * | head -70", "cat Makefile bin/*", f"cat {names['etc']}/rules.txt"]
    programs = dict.fromkeys(("bin/deliver", "bin/index", "bin/lists", "bin/digest"), 0o755)
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(variant, looks),
    ]
    return Project(about, files, faults, checks, programs, fixed=fixed, questions=questions)


def _file_faults(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    path = variant.words("@lib@/body.sed")
    return [
        Fault(
            "missing-body",
            "The digests have no messages in them any more, only their contents.",
            [*looks, variant.words("ls @lib@ old"), f"cat old/body.sed {variant.page}"],
            f"(sed '$d; s/__/--/' old/body.sed; echo {quote(variant.text('@quoted_lines@'))}) > {path}",
            removed=[path],
        ),
        lost_permission("bin/deliver", ["make index OUT=/tmp/o"], "make ends with an error."),
    ]


def _checks(rng: random.Random, room: _Room) -> list[Check]:
    """Draw messages, rules and lists, in which each rule and each fault shows; compute what is printed."""
    writer, domain = _Writer(rng, room.domain), room.domain
    small, other = rng.sample(GOODS, 2)
    large = f"{token(rng, 4)}{small}"
    company, exact = writer.company(), writer.address()
    folders = [f"{rng.choice(COLOURS)}-{token(rng, 3)}" for _ in range(9)]
    version, (first, second, third) = f"v{rng.randint(1, 9)}.{rng.randint(1, 9)}", rng.sample(COLOURS, 3)
    begin = token(rng, 5)
    rules = [
        ("from", "is", folders[0], exact),
        ("subject", "contains", folders[2], version),
        ("subject", "contains", folders[1], f"{first.upper()} {second}"),
        ("subject", "begins", folders[3], begin),
        ("to", "contains", folders[4], f"{other}@lists.{domain}"),
        ("size", "above", folders[5], "2"),
        ("from", "ends", folders[6], f"@{company}"),
        ("subject", "contains", folders[7], third),
    ]
    to_small, to_large, to_other = (f"{name}@lists.{domain}" for name in (small, large, other))
    people = [writer.address(company) for _ in range(3)] + [writer.address() for _ in range(6)]
    nobody = writer.address()
    messages = [
        writer.message([nobody], sender=exact),
        writer.message([nobody], f"{begin} {version} of {first} {second} {third}"),
        writer.message([nobody], sender=writer.address(company)),
        writer.message([nobody], f"{token(rng, 4)} {first} {second}"),
        writer.message([nobody], f"{token(rng, 4)} {first}"),
        writer.message([nobody], f"{token(rng, 3)} {version} is out"),
        writer.message([nobody], f"{token(rng, 3)} {version.replace('.', 'x')} is out"),
        writer.message([nobody], f"{token(rng, 3)} after {begin}"),
        writer.message([nobody], extra=[writer.words(12) for _ in range(40)]),
        writer.message([nobody, writer.address()]),
        writer.message([to_small], f"Re: AW: Re: {token(rng, 4)} 100%d of %s", people[0]),
        writer.message([to_large], f"Fwd: {token(rng, 4)} in C:\\new\\table", people[3]),
        writer.message([to_small, to_other], f"{token(rng, 4)} and {first} {second}", folded=True),
        writer.message([to_other], extra=[f"Subject: {token(rng, 4)}", "To: nobody", "  of us"]),
        writer.message([to_large], f"{token(rng, 4)}: note: {token(rng, 4)}", upper=True),
        writer.message([to_small], end="\r\n", extra=["--", "----- and so on"]),
        writer.message([to_other], f"{second.title()} {token(rng, 4)}", people[1]),
        writer.message([nobody, to_small], sender=people[4].upper()),
    ]
    upper = messages[-1]
    messages[-1] = _Message(
        upper.id,
        upper.sender.lower(),
        upper.day,
        upper.seconds,
        upper.recipients,
        upper.subject,
        upper.head,
        upper.body,
    )
    messages.append(writer.message([to_small], f"{token(rng, 4)} {version}", id=messages[9].id))
    lists = {
        small: [f"@{other}", *(f"{address} each" for address in (people[0], people[1], people[4], people[8]))],
        large: [
            f"# {token(rng)}",
            f"{people[3]} each",
            f"{people[5]} digest",
            f"{people[6]} each",
            f"#{people[7]} each",
        ],
        other: [f"{people[1]} each", f"{people[2]} each", "", f"{people[3]} off", f"{people[5]} each"],
    }
    joined = {**lists, large: [*lists[large], f"{people[2]} each"]}
    inputs = {f"inbox/m{place:02}.eml": message.text for place, message in enumerate(messages)}
    inputs |= {f"lists/{name}.txt": "\n".join(lines) for name, lines in lists.items()}
    inputs["joined.txt"] = "\n".join(joined[large])
    lines = [" ".join(rule) for rule in rules]
    inputs["rules.txt"] = (
        "\n".join(["# FIELD TEST FOLDER TEXT", *lines, "", f"#subject contains {folders[8]} a"]) + "\n"
    )
    delivered = room.delivered(messages, rules)
    copies = sorted(f"./{folder}/{name}" for folder, names in delivered.items() for name in names)
    options = "SRC=$IN/inbox OUT=/tmp/o LISTS=/tmp/l RULES=$IN/rules.txt"
    join = f"cp $IN/joined.txt /tmp/l/{large}.txt; touch -d 2040-01-01 /tmp/l/{large}.txt"
    show, files = "cat /tmp/o/outgoing.txt", f"{small}.txt {large}.txt {other}.txt"
    return [
        Check(
            "index-lists",
            f"cp -R $IN/lists /tmp/l; make -s index lists {options}; {show}; (cd /tmp/o/sorted; find . -type f | "
            f"LC_ALL=C sort); {join}; make -s lists {options}; {show}",
            "\n".join(
                [*room.index(delivered), *room.outgoing(messages, lists), *copies, *room.outgoing(messages, joined)]
            ),
            inputs,
        ),
        Check(
            "digests",
            f"cp -R $IN/lists /tmp/l; make -s digests {options}; cd /tmp/o/digests; cat {files}",
            "\n".join(line for name in (small, large, other) for line in room.digest(messages, name)),
            inputs,
        ),
    ]


def _questions(rng: random.Random, files: dict[str, str], room: _Room) -> list[Question]:
    """Draw an inbox with bills and conversations, and lists; ask about them."""
    writer = _Writer(rng, room.domain)
    names = rng.sample(GOODS, 3)
    people = [writer.address() for _ in range(12)]
    amounts = iter(rng.sample(range(100, 99_999), 800))
    payments, tickets = dict[str, list[tuple[int, str]]](), dict[str, str]()
    answered = dict[str, str]()  # the id of the answer, by the id of the message
    identities = list[str]()
    for number in range(rng.randint(35, 50)):
        sender, id, lines = rng.choice(people), token(rng), list[str]()
        for _ in range(rng.randint(8, 14)):
            amount, ticket = next(amounts), token(rng)
            lines.append(f"Paid {amount} for {ticket}")
            payments.setdefault(sender, []).append((amount, ticket))
        tickets[id] = token(rng)
        free = [one for one in identities if one not in answered]
        if free and rng.random() < 0.8:
            one = rng.choice(free)
            answered[one] = id
            lines.append(f"This answers {one}")
        lines.append(f"Ticket {tickets[id]}")
        identities.append(id)
        to = f"{rng.choice(names)}@lists.{room.domain}"
        files[f"inbox/{number:03}.eml"] = writer.message([to], sender=sender, id=id, extra=lines).text
    for name in names:
        members = rng.sample(people, 6)
        files[f"lists/{name}.txt"] = "".join(f"{one} {rng.choice(['each', 'digest', 'off'])}\n" for one in members)
    senders = rng.sample(sorted(payments), ASKED)
    chains = [one for one in answered if answered.get(answered[one])]
    return [
        asked_together([_largest_payment(sender, max(payments[sender])[1]) for sender in senders]),
        asked_together([_answer_of_answer(one, tickets[answered[answered[one]]]) for one in rng.sample(chains, ASKED)]),
    ]


def _largest_payment(sender: str, thing: str) -> Question:
    return Question(
        "largest-payment",
        f"For what has {sender} paid most, by the lines `Paid AMOUNT for THING` of the messages in inbox/ from this "
        "address?",
        thing,
        [
            "ls inbox | head -3",
            f"grep -l '^From: .*{sender}' inbox/* | xargs grep -h '^Paid ' | sort -k2,2nr | sed -n '1s/.* //p'",
        ],
    )


def _answer_of_answer(message: str, ticket: str) -> Question:
    answer = f"$(grep -l 'This answers {message}$' inbox/* | xargs sed -n 's/^Message-ID: <\\([^@]*\\)@.*/\\1/p')"
    return Question(
        "answer-of-answer",
        f"Which ticket is in the message in inbox/ that answers the answer to {message}?",
        ticket,
        [
            "tail -n +1 inbox/00[0-2].eml | head -60",
            f"grep -l \"This answers {answer}$\" inbox/* | xargs sed -n 's/^Ticket //p'",
        ],
    )
