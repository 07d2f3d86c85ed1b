"""The template *monitoring*: readings of many hosts, alert rules in ini files, silences, and who is called.

It needs bash, awk (mawk is enough), sort and coreutils.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, FIRST_NAMES, SERVICES, asked_together, carriage_returns, lost_permission, notes, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    ALERTS_AWK,
    ALERTS_SH,
    CALLS,
    CALLS_AWK,
    FIGURES,
    INI,
    LIST,
    MONITOR,
    RATES,
    READINGS,
    ROTA,
    SETTINGS,
    SILENCES,
    STATUS,
    UNITS,
)

_RANKS = {"critical": 1, "warning": 2, "info": 3}
#: Minutes of a shift, of which each project has one.
_SHIFTS = (480, 720, 1440, 10080)


@dataclass(frozen=True)
class _Site:
    """A drawn project's rules of programs, and its numbers."""

    variant: Variant
    stale: int
    window: int
    after: int
    people: Sequence[str]


@dataclass(frozen=True)
class _Reading:
    """A line of readings; ``value`` is in base units, ``None`` where it is no number."""

    minute: int
    host: str
    metric: str
    value: float | None
    text: str

    @property
    def line(self) -> str:
        return f"{self.minute} {self.host} {self.metric} {self.text}"


@dataclass(frozen=True)
class _Rule:
    """An alert rule. Where ``is_short`` the file leaves severity, ``for`` and label to the defaults."""

    name: str
    metric: str
    limit: int
    is_above: bool = True
    severity: str = "warning"
    duration: int = 0
    label: str = "none"
    is_short: bool = False

    def value(self, broken: bool) -> int:
        """Return a value that breaks the rule, or one that does not."""
        return self.limit + (9 if broken == self.is_above else -9)

    def is_broken(self, value: float, at_limit: tuple[bool, bool]) -> bool:
        """Return whether a value breaks the rule; ``at_limit`` is for limits above and below."""
        if value == self.limit:
            return at_limit[not self.is_above]
        return (value > self.limit) == self.is_above


@dataclass(frozen=True)
class _Alert:
    """An alert that is on."""

    since: int
    rule: str
    host: str
    severity: str
    label: str

    @property
    def rank(self) -> int:
        return _RANKS.get(self.severity, 9)


@dataclass
class _Case:
    """The inputs of a check: readings, rules and silences (from, to, hosts, rules)."""

    site: _Site
    now: int
    rules: Sequence[_Rule]
    readings: list[_Reading] = field(default_factory=list)
    silences: list[tuple[int, int, str, str]] = field(default_factory=list)
    silenced: dict[str, tuple[int, int]] = field(default_factory=dict)  # hosts that a silence is meant for

    def series(self) -> list[tuple[int, str, str, float]]:
        """Return the readings by time; counters as growth per minute."""
        rows = [
            (one.minute, one.host, one.metric, round(one.value, 2)) for one in self.readings if one.value is not None
        ]
        plain = [row for row in rows if not row[2].endswith("_total")]
        counters = dict[tuple[str, str], dict[int, float]]()
        for minute, host, metric, value in rows:
            if metric.endswith("_total"):
                counters.setdefault((host, metric), {})[minute] = value
        for (host, metric), values in counters.items():
            minutes = sorted(values)
            for before, minute in zip(minutes[:-1], minutes[1:], strict=True):
                grown = self.site.variant["counter-restart"](values[minute] - values[before], values[minute])
                if grown is not None:
                    plain.append((minute, host, metric, float(f"{grown / (minute - before):.2f}")))
        return sorted(plain, key=lambda row: (row[0], f"{row[1]} {row[2]}"))

    def alerts(self) -> Iterator[_Alert]:
        """Return the alerts that are on, with silenced ones as they are treated."""
        variant, now, series = self.site.variant, self.now, self.series()
        for rule in self.rules:
            hosts = dict.fromkeys(host for _, host, metric, _ in series if metric == rule.metric)
            for host in hosts:
                since, calm, last = None, 0, 0
                for minute, _, _, value in (row for row in series if row[1:3] == (host, rule.metric)):
                    last = minute
                    if rule.is_broken(value, variant["at-limit"]):
                        since, calm = minute if since is None else since, 0
                    else:
                        calm += 1
                        since = None if calm >= variant["calm-readings"] else since
                if since is None or variant["too-short"](since, last, now, rule.duration):
                    continue
                severity, label = rule.severity, rule.label
                if now - last > self.site.stale:
                    if variant["stale-alerts"] == "drop":
                        continue
                    severity = variant["stale-alerts"]
                begin, end = self.silenced.get(host, (now + 1, now + 1))
                if begin <= now and variant["end-of-silence"](now, end):
                    if variant["silenced-alerts"] is None:
                        continue
                    severity, label = variant["silenced-alerts"][0] or severity, label + variant["silenced-alerts"][1]
                yield _Alert(since, rule.name, host, severity, label)

    def listed(self) -> str:
        order, form = self.site.variant["order-of-alerts"], self.site.variant["alert-line"]
        alerts = sorted(self.alerts(), key=lambda alert: (*order(alert), alert.rule, alert.host))
        return "\n".join(form.format(one.since, one.rule, one.host, one.severity, one.label) for one in alerts)

    def calls(self) -> str:
        variant, people, lines = self.site.variant, self.site.people, list[str]()
        for alert in self.alerts():
            if alert.rank <= _RANKS["warning"]:
                level = min(variant["escalation-step"](self.now - alert.since, self.site.after), len(people) - 1)
                name = people[(self.now // variant["shift-minutes"] + level) % len(people)]
                lines.append(variant["call-line"].format(name, alert.rule, alert.host, level))
        return "\n".join(sorted(lines))

    def status(self) -> str:
        variant, last = self.site.variant, dict[tuple[str, str], tuple[int, float]]()
        for minute, host, metric, value in self.series():
            last[host, metric] = (minute, value)
        lines = []
        for (host, metric), (minute, value) in last.items():
            text, age = f"{value:.2f}", self.now - minute
            if age > self.site.stale:
                if variant["stale-status"] is None:
                    continue
                text = variant["stale-status"].format(text)
            lines.append(variant["status-line"].format(host, metric, text, age))
        return "\n".join(variant["order-of-status"](lines))

    def figures(self) -> str:
        values = dict[str, list[float]]()
        for minute, _, metric, value in self.series():
            if self.now - self.site.window < minute <= self.now:
                values.setdefault(metric, []).append(value)
        form, figure = self.site.variant["figure-line"], self.site.variant["figure-of-window"]
        return "\n".join(sorted(form.format(metric, figure(rows)) for metric, rows in values.items()))

    # ------------------------------------------------------------------ drawing

    def add(self, minute: int, host: str, metric: str, value: float, text: str = "") -> None:
        self.readings.append(_Reading(minute, host, metric, value, text or f"{value:g}"))

    def broken(self, host: str, rule: _Rule, since: int, last: int, fine: Sequence[int] = ()) -> None:
        """Add readings that break a rule from ``since`` to ``last``, minutes ago, but for those in ``fine``."""
        self.add(self.now - since - 7, host, rule.metric, rule.value(False))
        for ago in sorted({since, (since + last) // 2, last, *fine, *((5, 1) if fine else ())}):
            self.add(self.now - ago, host, rule.metric, rule.value(ago not in fine))

    def count(self, host: str, metric: str, minutes: Sequence[int], values: Sequence[int]) -> None:
        for minute, value in zip(minutes, values, strict=True):
            self.add(minute, host, metric, value)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of files and keys, limits, the rota, and the readings of many hosts."""
    stale, window, after = rng.randint(15, 25), rng.randint(60, 120), rng.randint(30, 50)
    people = [name.lower() for name in rng.sample(FIRST_NAMES, rng.randint(5, 7))]
    after_key, other_key = rng.sample(["after", "patience", "step", "pass_on"], 2)
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "share", "parts", "reports"]),
        "etc": rng.choice(["etc", "conf", "config"]),
        "alerts": rng.choice(["alerts", "alarms", "states"]),
        "rates": rng.choice(["rates", "counters", "growth"]),
        "stale_key": rng.choice(["stale", "too_old", "outdated"]),
        "window_key": rng.choice(["window", "minutes", "span"]),
        "after_key": after_key,
        "other_key": other_key,
        "least_key": rng.choice(["least", "call_from", "lowest"]),
        "stale": stale,
        "stale_seconds": stale * 60,
        "window": window,
        "after": after,
        "least": "warning",
        "for": rng.randint(40, 50),
        "people": "\n".join(people),
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    site = _Site(variant, stale, window, after, people)
    texts = {
        "bin/monitor": MONITOR,
        "@lib@/ini.awk": INI,
        "@lib@/readings.sh": READINGS,
        "@lib@/units.awk": UNITS,
        "@lib@/@rates@.awk": RATES,
        "@lib@/silences.sh": SILENCES,
        "@lib@/@alerts@.sh": ALERTS_SH,
        "@lib@/@alerts@.awk": ALERTS_AWK,
        "@lib@/status.sh": STATUS,
        "@lib@/list.sh": LIST,
        "@lib@/calls.sh": CALLS,
        "@lib@/calls.awk": CALLS_AWK,
        "@lib@/figures.sh": FIGURES,
        "@etc@/monitor.ini": SETTINGS,
        "@etc@/rota.txt": ROTA,
        # Nothing reads these two.
        "@etc@/monitor.ini.rpmnew": SETTINGS.replace("= @stale@", "= 5").replace("@least@", "critical"),
        "old/units.awk": UNITS.replace("1024 * 1024", "1024 * 1000").replace("= 1000", "= 100"),
    }
    also = (
        "`@stale_key@` is @stale@ minutes.",
        "`figures` has the readings that are younger than @window@ minutes (`@window_key@`) and not later than MINUTE.",
        "The other reports have later readings as well; in `status` the age of such a reading is below zero.",
        "For an alert, first what is agreed about old readings is applied, then what is agreed about silences: where "
        "both set a severity, that of a silenced alert holds.",
        "`calls` has alerts of severity warning and critical (`@least_key@`); `@after_key@` is @after@ minutes.",
        "Readings of disks and memory are in KiB, K, M (1024 K) or G (1024 M), those of delays in ms or s.",
    )
    files = variant.files(texts) | variant.document(rng, *also)
    files["docs/notes.md"] = notes(rng, "Notes on the hosts", 10)
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith("data/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, site)

    about = (
        "`bin/monitor REPORT FOLDER MINUTE` reports on readings of hosts at a minute: status, list (of alerts), calls "
        "and figures. A reading is MINUTE HOST METRIC VALUE, in a file such as `data/*.data`; a folder has `rules.ini` "
        f"and `silences.txt` as well. What the reports print is in `{variant.page}`."
    )
    looks = ["ls * | head -70", "cat bin/monitor", f"cat {names['etc']}/monitor.ini {names['etc']}/rota.txt"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(names, looks),
    ]
    return Project(about, files, faults, checks, {"bin/monitor": 0o755}, fixed=fixed, questions=questions)


def _file_faults(names: Mapping[str, object], looks: Sequence[str]) -> list[Fault]:
    etc, lib = names["etc"], names["lib"]
    return [
        carriage_returns(
            f"{etc}/rota.txt",
            "The telephone rejects the names of those who are to be called, though they look right.",
            looks,
        ),
        Fault(
            "missing-units",
            "No report has a line any more; an error is printed.",
            [*looks, f"ls {lib} old", "cat old/units.awk"],
            f"sed 's/1024 [*] 1000/1024 * 1024/; s/= 100 }}/= 1000 }}/' old/units.awk > {lib}/units.awk",
            removed=[f"{lib}/units.awk"],
        ),
        lost_permission("bin/monitor"),
        Fault(
            "unreadable-file",
            "Alerts are listed that should be silenced; an error is printed.",
            [*looks, f"ls -l {lib}"],
            f"chmod 644 {lib}/silences.sh",
            modes={f"{lib}/silences.sh": 0o000},
        ),
    ]


def _drawn_now(rng: random.Random, people: int) -> int:
    """Draw a minute at which other shifts, and the faults of the rota, call other people."""
    while True:
        now = rng.randint(20_000, 900_000)
        turns = [now // shift for shift in _SHIFTS]
        called = [turn % people for turn in turns]
        with_comment = [turn % (people + 1) - 1 for turn in turns]
        without_last = [turn % (people - 1) for turn in turns]
        if len({*called}) == len(_SHIFTS) and not any(
            one in others for one, *others in zip(called, with_comment, without_last, strict=True)
        ):
            return now


def _case(rng: random.Random, site: _Site) -> _Case:
    """Draw readings, rules and silences, in which each rule and each fault shows."""
    now, after = _drawn_now(rng, len(site.people)), site.after
    services = rng.sample(SERVICES, len(SERVICES))
    disk = _Rule(f"full-{token(rng, 3)}", "disk", rng.randint(500, 900), severity="critical")
    rules = [
        _Rule(
            disk.name, "disk", disk.limit, severity="critical", duration=rng.randint(10, 14), label=f"a;{token(rng, 3)}"
        ),
        _Rule(f"slow-{token(rng, 3)}", "delay", rng.randint(300, 800), duration=rng.randint(15, 19), is_short=True),
        _Rule(f"busy-{token(rng, 3)}", "load", 91, severity="info", duration=12, label=f"x={token(rng, 3)}"),
        _Rule(f"fails-{token(rng, 3)}", "errors_total", rng.randint(20, 40), duration=10, label=token(rng, 4)),
        _Rule(
            f"empty-{token(rng, 3)}", "memory", rng.randint(60, 90), is_above=False, severity="critical", duration=11
        ),
        _Rule(f"cold-{token(rng, 3)}", "heat", rng.randint(30, 50), is_above=False, duration=13, label=token(rng, 4)),
    ]
    case, numbers = _Case(site, now, rules), iter(rng.sample(range(10, 99), 80))

    def host(place: int | None = None) -> str:
        return f"{services[rng.randint(3, 9) if place is None else place]}{next(numbers)}"

    full, slow, busy, fails, empty, cold = rules
    # Limits of time, and ages that call the first, the second and further people.
    case.broken(host(), full, full.duration, 2)
    case.broken(host(), full, full.duration + 1, 2)
    case.broken(host(), full, 4, 1)
    for age in (after * 3 // 2, after * 5 // 2, after * 5):
        case.broken(host(), full, age, 1)
    case.broken(host(), slow, 30, 1)
    case.broken(host(), slow, 34, 2)
    for rule in (busy, empty, cold):
        case.broken(host(), rule, rng.randint(25, 60), 1)
    # Readings in between that do not break the rule, at the limit, and too old.
    case.broken(host(), full, 60, 40, fine=[30])
    case.broken(host(), full, 60, 40, fine=[32, 28])
    case.broken(host(), full, 100, site.stale + 3)
    for rule in (full, empty):
        at_limit = host()
        for ago in (40, 20, 1):
            case.add(now - ago, at_limit, rule.metric, rule.limit)
    # Counters: of an alert, of a host that is asked seldom, after a restart, with a reading twice, and with only one.
    steps = [now - 480 - rng.randint(0, 9), now - 50, now - 30, now - 20, now - 8, now - 2]
    rate = fails.limit + 5
    case.count(host(), fails.metric, steps, [rate * (minute - steps[0]) + 7 for minute in steps])
    case.count(host(), "requests_total", [now - 240, now - 120, now - 1], [0, 990, rng.randint(2_000, 9_000)])
    restarted = host()
    case.count(restarted, "requests_total", [now - 30, now - 16, now - 3], [1000, 1700, rng.randint(99, 140)])
    case.count(host(), "requests_total", [now - 9, now - 2, now - 2], [10, 500, 500])
    both = host()
    case.count(both, "errors_total", [now - 30, now - 16, now - 3], [10, 24, 59])
    case.count(both, "requests_total", [now - 4], [9000])
    # Units, a value that is no number, and figures with readings at the ends of the window.
    case.add(now - 3, host(), "memory", 1.5 * 1024**2, "1.5G")
    case.add(now - 4, host(), "memory", 700 * 1024, "700M")
    case.add(now - 3, host(), "delay", 2500, "2.5s")
    case.add(now - 3, host(), "delay", 80, "80ms")
    lost = host()
    case.add(now - 9, lost, "heat", 66)
    case.readings.append(_Reading(now - 2, lost, "heat", None, "-"))
    for metric, values in (("queue", (9_000, 400, 300, 9_500)), ("speed", (3, 400, 300, 2))):
        for minute, value in zip((now - site.window, now - 20, now - 10, now + 3), values, strict=True):
            case.add(minute, host(), metric, value + rng.randint(0, 9) * (value > 9))
    # Silences: by a pattern, at their end, before they begin, of another rule, and in the last line.
    for first, last, hosts, kinds in (
        (now - 10, now + 100, [host(0), host(0)], "*"),
        (now - 90, now, [host(1)], f"{full.name[:6]}*"),
        (now - 80, now - 5, [host(1)], full.name),
        (now - 70, now + 5, [host(1)], full.name),
        (now + 5, now + 90, [host(1)], "*"),
        (now - 60, now + 90, [host(2)], slow.name),
        (now - 50, now + 80, [host(2)], full.name),
    ):
        for name in hosts:
            case.broken(name, full, rng.randint(20, after - 1), 1)
            if kinds != slow.name:
                case.silenced[name] = (first, last)
        case.silences.append((first, last, f"{services[0]}??" if len(hosts) > 1 else hosts[0], kinds))
    return case


def _rules_text(rng: random.Random, rules: Sequence[_Rule]) -> str:
    """Return the rules as somebody on another system writes them."""
    full, slow, _, fails, empty, _ = rules
    lines = ["; Rules of this folder", "[defaults]", f"for = {slow.duration} ; minutes", ""]
    for rule in rules:
        lines.append(f"[ rule:{rule.name} ]" if rule is empty else f"[rule:{rule.name}]")
        bound = "above" if rule.is_above else "below"
        keys = {"metric": rule.metric, bound: f"{rule.limit + 70_000 * (rule is slow)}"}
        if not rule.is_short:
            keys |= {"severity": rule.severity, "for": str(rule.duration), "label": rule.label}
        if rule is fails:
            keys = {key.title(): value for key, value in keys.items()}
        items = [f"{key} = {value}" if rng.random() < 0.5 else f"  {key}={value} " for key, value in keys.items()]
        lines += [*items, "", f"# {token(rng)}"]
    lines += [f"[rule:{slow.name}]", f"above = {slow.limit}"]
    return "".join(f"{line}\r\n" for line in lines)


def _checks(rng: random.Random, site: _Site) -> list[Check]:
    """Draw readings in several files; compute the reports from them."""
    case = _case(rng, site)
    lines = [reading.line for reading in case.readings]
    rng.shuffle(lines)
    # The first file ends without a new line, with the last reading of a host.
    torn = f"zone{rng.randint(10, 99)}"
    case.add(case.now - 2, torn, "heat", 55)
    third = len(lines) // 3
    silences = [f"# 0 {case.now + 999} * *", *(" ".join(map(str, silence)) for silence in case.silences)]
    inputs = {
        "a.data": "".join(f"{line}\n" for line in lines[:third]) + case.readings[-1].line,
        "b c.data": "".join(f"{line}\n" for line in lines[third : 2 * third]),
        "d.data": "".join(f"{line}\n" for line in lines[2 * third :]),
        "rules.ini": _rules_text(rng, case.rules),
        "silences.txt": "\n".join(silences),
    }
    return [
        Check("list", f"bin/monitor list $IN {case.now}", case.listed(), inputs),
        Check("calls", f"bin/monitor calls $IN {case.now}", case.calls(), inputs),
        Check(
            "status-figures",
            f"bin/monitor status $IN {case.now}; bin/monitor figures $IN {case.now}",
            f"{case.status()}\n{case.figures()}",
            inputs,
        ),
    ]


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw the readings of many hosts and a record of incidents, and ask about them."""
    hosts = [f"{service}{number}" for service in SERVICES for number in range(1, rng.randint(3, 5))]
    highest = dict[str, int]()
    for host in hosts:
        minutes = sorted(rng.sample(range(100_000, 900_000), 90))
        values = rng.sample(range(1, 9_999), len(minutes))
        lines = []
        for minute, value in zip(minutes, values, strict=True):
            lines.append(f"{minute} {host} load {value / 100:.2f}")
            lines.append(f"{minute} {host} memory {rng.randint(100, 9_999)}M")
        highest[host] = minutes[values.index(max(values))]
        files[f"data/{host}.data"] = "\n".join(lines) + "\n"
    lines, longest = list[str](), dict[str, tuple[int, str]]()
    for minute, length in zip(
        sorted(rng.sample(range(100_000, 900_000), 900)), rng.sample(range(5, 9_000), 900), strict=True
    ):
        host, incident = rng.choice(hosts), token(rng)
        lines.append(f"{incident} {host} {minute} {minute + length}")
        longest[host] = max(longest.get(host, (0, "")), (length, incident))
    files["data/incidents.log"] = "\n".join(lines) + "\n"
    files["data/rules.ini"] = "[rule:busy]\nmetric = load\nabove = 50\nfor = 0\nlabel = load\n"
    files["data/silences.txt"] = f"# FROM TO HOSTS RULES\n100000 200000 {hosts[0]} *\n"
    return [
        asked_together([_highest_reading(host, highest[host]) for host in rng.sample(hosts, ASKED)]),
        asked_together([_longest_incident(host, longest[host][1]) for host in rng.sample(sorted(longest), ASKED)]),
    ]


def _highest_reading(host: str, minute: int) -> Question:
    path = f"data/{host}.data"
    return Question(
        "highest-reading",
        f"At which minute had {host} its highest load, by its file in data/?",
        str(minute),
        [f"head -4 {path}", f"grep ' load ' {path} | sort -k4,4nr | sed -n '1s/ .*//p'"],
    )


def _longest_incident(host: str, incident: str) -> Question:
    return Question(
        "longest-incident",
        f"Which incident of {host} lasted longest, by data/incidents.log (INCIDENT HOST BEGIN END)?",
        incident,
        [
            "head -4 data/incidents.log",
            f"awk '$2 == \"{host}\" {{ print $4 - $3, $1 }}' data/incidents.log | sort -rn | sed -n '1s/.* //p'",
        ],
    )
