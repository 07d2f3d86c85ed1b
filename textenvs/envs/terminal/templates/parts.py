"""Shared parts of templates: words to draw from, logs, notes, and tables of edits."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..project import Edit, Fault, Question

FIRST_NAMES = (
    *("Ada", "Amir", "Bela", "Carla", "Dario", "Edith", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Kira"),
    *("Lena", "Marek", "Nadia", "Otto", "Priya", "Quentin", "Rosa", "Samir", "Tilda", "Udo", "Vera", "Yusuf"),
)
SURNAMES = (
    *("Abbott", "Brandt", "Costa", "Duarte", "Ekman", "Fischer", "Garcia", "Hansen", "Ito", "Jansen", "Keller"),
    *("Lindqvist", "Moreau", "Novak", "Okafor", "Petrov", "Quist", "Rossi", "Silva", "Tanaka", "Vogel", "Weber"),
)
CITIES = ("Bern", "Basel", "Chur", "Genf", "Olten", "Zug", "Thun", "Sion", "Aarau", "Vevey", "Lugano", "Baden")
#: Questions of one kind in a task.
ASKED = 5
#: Names with a space in them.
TOWNS = ("Bad Ragaz", "La Punt", "St Moritz", "Le Locle", "San Carlo")
GOODS = (
    *("bolt", "bracket", "cable", "clamp", "drill", "filter", "gasket", "hinge", "hose", "lamp", "latch", "lever"),
    *("motor", "nozzle", "panel", "pump", "relay", "screw", "sensor", "spring", "switch", "valve", "washer", "wheel"),
)
COLOURS = ("amber", "black", "blue", "bronze", "coral", "green", "grey", "indigo", "olive", "red", "silver", "white")
SERVICES = ("billing", "catalog", "checkout", "gateway", "mailer", "orders", "search", "session", "stock", "uploads")
_TOPICS = (
    "The nightly job moved to {hour:02}:15 after the disk was replaced.",
    "{name} says that the numbers of week {week} were checked by hand and are right.",
    "A warning about the clock is printed on the old hosts. It is harmless.",
    "Ticket {ticket}: slow after the update, closed, it was the network.",
    "Ticket {ticket}: numbers differ from those of {name}. Closed: another month was meant.",
    "To do: remove the old settings when {name} is back.",
    "The limit of {week} was asked for by accounting. Do not change it.",
    "{name} tried another order of the steps on {week} files; it made no difference.",
)


def filled(text: str, names: Mapping[str, object]) -> str:
    """Return the text with each ``@name@`` replaced by that name's value, and those in the value as well."""
    return re.sub(r"@(\w+)@", lambda match: filled(str(names[match[1]]), names), text)


def fault_of_edits(kind: str, symptom: str, changes: Sequence[tuple[str, str, str]], looks: Sequence[str]) -> Fault:
    """Return a fault of several changed places: path, old and new text."""
    edits = [Edit(path, old, new) for path, old, new in changes]
    return Fault(kind, symptom, looks, " && ".join(change.undo for change in edits), edits)


def fault_of_command(kind: str, symptom: str, looks: Sequence[str], command: str, repair: str) -> Fault:
    """Return a fault that a shell command makes."""
    return Fault(kind, symptom, looks, repair, command=command)


def lost_permission(path: str, looks: Sequence[str] = (), symptom: str = "It cannot be started.") -> Fault:
    """Return the fault of a program that cannot be executed."""
    looks = [*looks, f"ls -l {path.rpartition('/')[0]}"]
    return Fault("permission", symptom, looks, f"chmod +x {path}", modes={path: 0o644})


def file_in_the_way(path: str, text: str, looks: Sequence[str], symptom: str, kind: str = "shadowed-module") -> Fault:
    """Return the fault of a new file that is read in the place of another one."""
    return Fault(kind, symptom, [*looks, f"cat {path}"], f"rm {path}", added={path: text})


def carriage_returns(path: str, symptom: str, looks: Sequence[str]) -> Fault:
    """Return the fault of a table whose lines end as those of another system."""
    looks = [*looks, f"cat -A {path}"]
    return Fault("crlf", symptom, looks, rf"sed -i 's/\r$//' {path}", command=rf"sed -i 's/$/\r/' {path}")


def asked_together(questions: Sequence[Question]) -> Question:
    """Return the question after several answers of one kind.

    One answer has as many candidates as a file has lines: who has seen the file, can guess it. Five hardly.
    """
    texts = " ".join(f"({place}) {question.text}" for place, question in enumerate(questions, start=1))
    looks = dict.fromkeys(look for question in questions for look in question.looks[:-1])
    answers = " ".join(f"$({question.looks[-1]})" for question in questions)
    return Question(
        questions[0].kind,
        f"Answer {len(questions)} questions, with one space between the answers. {texts}",
        " ".join(question.answer for question in questions),
        [*looks, f"echo {answers}"],
    )


def token(rng: random.Random, digits: int = 8) -> str:
    """Draw a hexadecimal number of this many digits, at least one of them a letter."""
    return rng.choice("abcdef") + f"{rng.getrandbits(4 * (digits - 1)):0{digits - 1}x}"


def person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}"


def day(rng: random.Random, year: int = 2025) -> str:
    """Draw a day of the first 28 of a month."""
    return f"{year}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def notes(rng: random.Random, title: str, count: int = 6) -> str:
    """Draw a page of dated notes that explain no fault."""
    lines = [f"# {title}", ""]
    for _ in range(count):
        topic = rng.choice(_TOPICS)
        text = topic.format(
            hour=rng.randint(0, 6), week=rng.randint(2, 51), ticket=rng.randint(100, 999), name=person(rng)
        )
        lines += [f"{day(rng, 2024)}: {text}", ""]
    return "\n".join(lines)


@dataclass(frozen=True)
class Request:
    """A line of an access log."""

    minute: int
    host: str
    name: str
    path: str
    status: int
    milliseconds: int

    @property
    def time(self) -> str:
        days, rest = divmod(self.minute, 1440)
        return f"2025-05-{1 + days:02}T{rest // 60:02}:{rest % 60:02}"

    @property
    def line(self) -> str:
        return f"{self.time}Z {self.host} req={self.name} GET {self.path} {self.status} {self.milliseconds}"


def requests(rng: random.Random, count: int, hosts: Sequence[str], path: Callable[[], str]) -> list[Request]:
    """Draw the requests of 28 days in the order of time; no two of them take equally long."""
    times = sorted(rng.choices(range(28 * 1440), k=count))
    spent = rng.sample(range(5, 5 + 20 * count), count)
    statuses = rng.choices((200, 304, 404, 503), (90, 5, 4, 1), k=count)
    return [
        Request(minute, rng.choice(hosts), token(rng), path(), status, milliseconds)
        for minute, status, milliseconds in zip(times, statuses, spent, strict=True)
    ]
