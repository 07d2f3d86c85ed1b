"""The template *loghost*: logs of many machines, and shell and awk scripts that summarise them.

It needs bash, awk (mawk is enough) and coreutils.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, SERVICES, asked_together, carriage_returns, filled, notes, person, requests, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import ERRORS, HOSTS, HOURS, NAMES, OUTAGES, PERCENTILE, SITE, SLOW, SUMMARY


@dataclass(frozen=True)
class _Site:
    """The settings of a drawn host, and its rules; ``hosts`` are names by address."""

    variant: Variant
    names: Mapping[str, int | str]
    hosts: Mapping[str, str]

    def number(self, name: str) -> int:
        return int(self.names[name])


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: folders, limits, hosts and their logs."""
    names: dict[str, int | str] = {
        "lib": rng.choice(["lib", "sections", "parts", "scripts"]),
        "etc": rng.choice(["etc", "conf", "config"]),
        "slow_ms": rng.randint(30, 60) * 10,
        "slow_percent": rng.choice([75, 80, 85, 90]),
        "utc_offset": rng.choice([-7, -5, -3, 2, 3, 8]),
        "allowed_errors": rng.randint(5, 9),
        "run_quota_kib": rng.randint(150, 250),
    }
    hosts = {_address(rng): f"{name}{rng.randint(1, 9)}" for name in rng.sample(SERVICES, 7)}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    site = _Site(variant, names, hosts)
    files = _program(site) | variant.document(rng)
    files["docs/journal.md"] = notes(rng, "Journal of this host", 14)
    stale = names | {"slow_ms": 50, "utc_offset": 1, "allowed_errors": 500}
    files[f"{names['etc']}/site.conf.orig"] = filled(SITE, stale)
    files["run/last-mail.txt"] = f"To: {person(rng)}\nSubject: weekly summary\n\nAll well.\n"
    questions = _questions(rng, files, site)
    fixed = frozenset(path for path in files if path.startswith("logs/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, site)

    looks = ["ls bin run * | head -60", "cat bin/summary", "bin/summary hosts logs"]
    about = (
        "`bin/summary SECTION FOLDER` summarises logs: sections are hosts, hours, slow, errors and outages. A line of "
        "a log is TIME ADDRESS METHOD PATH STATUS BYTES MILLISECONDS ID, and one of state.log is MINUTE SERVICE STATE. "
        f"What the sections print is in `{variant.page}`."
    )
    # Each of these is right for the other sign only.
    half = "if (hour < 0) hour += 24" if int(names["utc_offset"]) > 0 else "hour = hour % 24"
    overflow = (
        "hour-overflow",
        "The sums over the hours are smaller than the number of requests.",
        "@lib@/hours.sh",
        "            hour = (hour + 24) % 24\n",
        f"            {half}\n",
    )
    faults = [
        *variant.edits([*EDITS, overflow], files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(rng, site, looks),
    ]
    return Project(about, files, faults, checks, {"bin/summary": 0o755}, fixed=fixed, questions=questions)


def _program(site: _Site) -> dict[str, str]:
    texts = {
        "bin/summary": SUMMARY,
        "@lib@/hosts.sh": HOSTS,
        "@lib@/names.awk": NAMES,
        "@lib@/hours.sh": HOURS,
        "@lib@/slow.sh": SLOW,
        "@lib@/percentile.awk": PERCENTILE,
        "@lib@/errors.sh": ERRORS,
        "@lib@/outages.sh": OUTAGES,
        "@etc@/site.conf": SITE,
    }
    files = site.variant.files(texts)
    files[f"{site.names['etc']}/hosts.tsv"] = "".join(f"{address}\t{name}\n" for address, name in site.hosts.items())
    return files


def _file_faults(rng: random.Random, site: _Site, looks: Sequence[str]) -> list[Fault]:
    """Return the faults that are no edit of a text."""
    etc = site.names["etc"]
    size = site.number("run_quota_kib") * 1024
    debug = "".join(
        f"{request.line} headers={token(rng, 16)}\n"
        for request in requests(rng, size // 60, list(site.hosts.values()), lambda: f"/debug/{token(rng)}")
    )
    return [
        carriage_returns(
            f"{etc}/hosts.tsv",
            "The names of hosts in the summary do not match those of the inventory, though they look the same.",
            looks,
        ),
        Fault(
            "bom",
            "The list of slow paths is empty since the settings were edited on another machine.",
            [*looks, "bin/summary slow logs", f"head -1 {etc}/site.conf | od -c | head"],
            rf"sed -i '1s/^\xef\xbb\xbf//' {etc}/site.conf",
            command=rf"sed -i '1s/^/\xef\xbb\xbf/' {etc}/site.conf",
        ),
        Fault(
            "stale-lock",
            "No summary has come since the host lost power.",
            [*looks, "cat run/summary.lock"],
            "rm run/summary.lock",
            added={"run/summary.lock": f"2025-05-{rng.randint(10, 28)} by process {rng.randint(300, 30000)}\n"},
        ),
        Fault(
            "log-fills-disk",
            "No summary comes any more; nobody changed anything.",
            [*looks, "du -a run | sort -n | tail -5"],
            "rm run/debug.log",
            added={"run/debug.log": debug},
        ),
    ]


def _address(rng: random.Random) -> str:
    return f"10.{rng.randint(0, 255)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}"


@dataclass(frozen=True)
class _Line:
    """A line of a log."""

    hour: int
    address: str
    path: str
    status: int
    milliseconds: int

    def text(self, rng: random.Random) -> str:
        time = f"2025-05-{rng.randint(1, 28):02}T{self.hour:02}:{rng.randint(0, 59):02}Z"
        size = self.milliseconds * 1000 + rng.randint(1, 999)
        return f"{time} {self.address} GET {self.path} {self.status} {size} {self.milliseconds} {token(rng)}"


def _slow_lines(rng: random.Random, site: _Site, addresses: Sequence[str]) -> list[_Line]:
    """Draw requests of slow paths: with sessions, one that is the last by name, and some at the limit."""
    slow, limit = f"/{token(rng, 5)}", site.number("slow_ms")
    spent = {
        f"{slow}/a": [limit + 90, limit * 10 + 90, 160, 21],
        f"{slow}/b": [limit + 7, limit * 10 + 7, 77, 9],
        f"/zx{token(rng, 4)}": [limit],
        f"/zw{token(rng, 4)}": [5, limit + 3],
        f"/zv{token(rng, 4)}": [3, limit + 60],
        f"/zy{token(rng, 4)}": [5, *range(limit + 7, limit + 18)],
        f"/zz{token(rng, 4)}": [limit + 30, limit * 10 + 30, 100, 13],
    }
    lines = []
    for path, milliseconds in spent.items():
        head, _, tail = path.rpartition("/")
        session = f"{site.variant['session-mark']}s={token(rng, 6)}" if head else ""
        path = f"{head}{session}/{tail}"
        lines += [_Line(rng.randint(0, 23), rng.choice(addresses), path, 200, ms) for ms in milliseconds]
    return lines


def _error_lines(rng: random.Random, site: _Site, ignored: str, failing: str) -> list[_Line]:
    """Draw errors, and as many other requests of another host; by name and by number the paths have other orders."""
    one, other = list(site.hosts)[:2]
    lines = []
    for path, statuses in (
        (f"/{failing}", [500, 502, 503] * 5),
        (f"/{ignored}", [500] * rng.randint(1, 3)),
        (f"/{token(rng, 5)}", [405, 415]),
        (f"/h{token(rng, 5)}", [503] * rng.randint(1, 3)),
        (f"/s{token(rng, 5)}", [503] * rng.randint(4, 5)),
        (f"/x{token(rng, 5)}", [408, *[421] * 2, *[429] * 3, *[423] * 4]),
    ):
        lines += [_Line(rng.randint(0, 23), one, path, status, rng.randint(9, 90)) for status in statuses]
        lines += [_Line(rng.randint(0, 23), other, path, 200, rng.randint(9, 90)) for _ in statuses]
    return lines


def _lines(rng: random.Random, site: _Site, ignored: str, failing: str) -> list[_Line]:
    """Draw requests of all hours and hosts, in which each rule and each fault shows."""
    paths = [f"/{rng.choice(SERVICES)}/{token(rng, 4)}" for _ in range(5)]
    lines = []
    for hour in range(24):
        for _ in range(rng.randint(2, 4)):
            status = rng.choice([200, 200, 304, 404])
            lines.append(
                _Line(hour, rng.choice([*site.hosts, "10.0.0.0"]), rng.choice(paths), status, rng.randint(9, 999))
            )
    for count in range(1, 9):
        lines += [_Line(9, f"10.0.0.{count}", paths[0], 200, rng.randint(9, 99)) for _ in range(count)]
    one, other = list(site.hosts)[:2]
    lines += _error_lines(rng, site, ignored, failing) + _slow_lines(rng, site, [one, other])
    # Two hosts have equally many requests.
    counts = Counter(line.address for line in lines)
    low, high = sorted([one, other], key=lambda address: counts[address])
    lines += [_Line(3, low, paths[0], 200, 60) for _ in range(counts[high] - counts[low])]
    rng.shuffle(lines)
    return lines


def _checks(rng: random.Random, site: _Site) -> list[Check]:
    """Draw logs; compute the summaries from the drawn lines."""
    ignored, failing = token(rng, 5), f"m{token(rng, 5)}"
    lines, allowed = _lines(rng, site, ignored, failing), site.number("allowed_errors")

    def logs_of(lines: Sequence[_Line]) -> dict[str, str]:
        parts = [lines[start::3] for start in range(3)]
        names = ("front.log", "mail relay.log", "old host (2).log")
        return {name: "".join(line.text(rng) + "\n" for line in part) for name, part in zip(names, parts, strict=True)}

    inputs = logs_of(lines) | {"ignored.txt": f"/{token(rng)}\n/{ignored}"}
    address = next(iter(site.hosts))
    few = [_Line(rng.randint(0, 23), address, f"/{failing}", 500, rng.randint(9, 90)) for _ in range(allowed)]
    few += [
        _Line(rng.randint(0, 23), address, f"/{ignored}", 500, rng.randint(9, 90)),
        *(line for line in lines[:9] if line.status < 405),
    ]
    hours_slow, errors = "bin/summary hours $IN; bin/summary slow $IN", "bin/summary errors $IN; echo status $?"
    return [
        Check("hosts", "bin/summary hosts $IN", _host_counts(lines, site), inputs),
        Check("hours-slow", hours_slow, _hours(lines, site) + _slow(lines, site), inputs),
        Check("errors", errors, _errors(lines, ignored, site), inputs),
        Check("few errors", errors, _errors(few, ignored, site), {**inputs, **logs_of(few)}),
        _outages(rng, site.variant),
    ]


def _ranked(counts: Mapping[str, int], order: tuple[int, int]) -> list[tuple[str, int]]:
    """Return names and numbers in order: signs of the number and, where it is equal, of the name."""
    by_name = sorted(counts.items(), reverse=order[1] < 0)
    return sorted(by_name, key=lambda item: order[0] * item[1])


def _host_counts(lines: Sequence[_Line], site: _Site) -> str:
    counts = Counter(site.hosts.get(line.address, line.address) for line in lines)
    ranked = _ranked(counts, site.variant["tie-order"])
    form, least = site.variant["host-line"], site.variant["fewest-requests"]
    return "\n".join(form.format(name, count) for name, count in ranked if count >= least)


def _hours(lines: Sequence[_Line], site: _Site) -> str:
    counted, width = site.variant["counted-requests"], site.variant["hours-of-block"]
    hours = ((line.hour + site.number("utc_offset")) % 24 for line in lines if counted(line))
    counts = Counter(hour // width * width for hour in hours)
    return "".join(f"{site.variant['hour-line'].format(hour, count)}\n" for hour, count in sorted(counts.items()))


def _slow(lines: Sequence[_Line], site: _Site) -> str:
    spent, variant = dict[str, list[int]](), site.variant
    for line in lines:
        path = "/".join(part.split(variant["session-mark"])[0] for part in line.path.split("/"))
        spent.setdefault(path, []).append(line.milliseconds)
    (extra, fastest), values = variant["slow-limit"], dict[str, int]()
    for path, milliseconds in spent.items():
        milliseconds.sort()
        place = -(-len(milliseconds) * site.number("slow_percent") // 100) - 1
        if milliseconds[place] + extra > site.number("slow_ms") + fastest * milliseconds[0]:
            values[path] = variant["slow-line"](place, milliseconds)
    return "\n".join(f"{path} {value}" for path, value in _ranked(values, variant["order-of-paths"]))


def _errors(lines: Sequence[_Line], ignored: str, site: _Site) -> str:
    statuses = site.variant["error-statuses"]
    counts = Counter(
        line.path for line in lines if (line.status >= 500 or line.status in statuses) and line.path != f"/{ignored}"
    )
    status = site.variant["alarm-status"] if counts.total() > site.number("allowed_errors") else 0
    ranked = _ranked(counts, site.variant["order-of-errors"])
    return "\n".join([*(site.variant["error-line"].format(*item) for item in ranked), f"status {status}"])


def _outages(rng: random.Random, variant: Variant) -> Check:
    """Draw states of services, over a dozen parts of a log."""
    minute, events, lengths = 0, list[str](), dict[str, list[int]]()
    for _ in range(30):
        minute += rng.randint(5, 500)
        name, length = rng.choice(SERVICES), rng.randint(20, 300)
        events.append(f"{minute} {name} down")
        events.append(f"{minute + rng.randint(1, length - 1)} {name} down")
        minute += length
        events.append(f"{minute} {name} up")
        lengths.setdefault(name, []).append(length)
    parts = 12
    size = len(events) // parts + 1
    inputs = {}
    for part in range(parts):
        number = parts - 1 - part
        chunk = events[part * size : (part + 1) * size]
        inputs["state.log" + (f".{number}" if number else "")] = "".join(f"{event}\n" for event in chunk)
    totals = [(name, variant["sum-of-outages"](lengths[name])) for name in sorted(lengths)]
    form = variant["outage-line"]
    expected = "\n".join(form.format(name, total, *divmod(total, 60)) for name, total in totals)
    return Check("outages", "bin/summary outages $IN", expected, inputs)


def _questions(rng: random.Random, files: dict[str, str], site: _Site) -> list[Question]:
    """Draw the logs of the machines, and ask about them."""
    clients = [_address(rng) for _ in range(40)]
    sizes = Counter[str]()

    def record(path: Callable[[], str], name: str, common: str = "") -> list[str]:
        lines = []
        for place, request in enumerate(requests(rng, 120, clients, path)):
            size = rng.randint(100, 90_000)
            sizes[request.host] += size
            label = common if common and place == 60 else request.name
            lines.append(f"{request.time}Z {request.host} GET {request.path} {request.status} {size} {place} {label}")
        files[f"logs/{name}.log"] = "\n".join(lines) + "\n"
        return lines

    names = [f"{service}{number}" for service in SERVICES for number in range(rng.randint(2, 5))]
    chosen = rng.sample(names, 2 * ASKED)
    pairs = {pair: token(rng) for pair in zip(chosen[::2], chosen[1::2], strict=True)}
    common = {name: label for pair, label in pairs.items() for name in pair}
    for name in names:
        record(lambda: f"/{rng.choice(SERVICES)}", name, common.get(name, ""))
    largest = [client for client, _ in sizes.most_common(ASKED)]
    return [
        Question(
            "largest-client",
            f"Which {ASKED} addresses received the most bytes, over all files logs/*.log? Answer with them, the one "
            "that received most first, with one space between them.",
            " ".join(largest),
            [
                "head -2 logs/*.log | head",
                "awk '{ s[$2] += $6 } END { for (a in s) print s[a], a }' logs/*.log | sort -rn | "
                f"awk 'NR <= {ASKED} {{ print $2 }}' | paste -sd' '",
            ],
        ),
        asked_together([_common_id(*pair, label) for pair, label in pairs.items()]),
    ]


def _common_id(one: str, other: str, label: str) -> Question:
    first, second = (f"<(awk '{{ print $8 }}' logs/{name}.log | sort -u)" for name in (one, other))
    return Question(
        "common-id",
        f"Which request id (the last word of a line) is both in logs/{one}.log and in logs/{other}.log?",
        label,
        [f"head -2 logs/{one}.log", f"comm -12 {first} {second}"],
    )
