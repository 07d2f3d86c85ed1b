"""The template *loghost*: logs of many machines, and shell and awk scripts that summarise them.

It needs bash, awk (mawk is enough) and coreutils.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..project import Check, Fault, Project, Question
from .parts import SERVICES, faults_of, filled, notes, person, requests, token

_SUMMARY = """#!/bin/bash
# A summary of the logs of a folder. Usage: bin/summary SECTION FOLDER
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
export ROOT LC_ALL=C
. "$ROOT/@etc@/site.conf"

lock=$ROOT/run/summary.lock
if [ -e "$lock" ]; then
    echo "another summary has been running since $(cat "$lock")" >&2
    exit 75
fi
used=$(du -sk --apparent-size "$ROOT/run" | cut -f1)
if [ "$used" -gt "$run_quota_kib" ]; then
    echo "no space left: run/ has $used of $run_quota_kib KiB" >&2
    exit 74
fi

. "$ROOT/@lib@/$1.sh"
summarise "$2"
"""
_HOSTS = """# Requests of each host, the most first.
summarise() {
    find "$1" -name '*.log' | sort | while IFS= read -r file; do
        awk -f "$ROOT/@lib@/names.awk" "$ROOT/@etc@/hosts.tsv" "$file"
    done | sort | uniq -c | sort -k1,1nr -k2,2 | awk '{ print $2, $1 }'
}
"""
_NAMES = """# Prints the name of each request's host. An address without a name stays as it is.
FNR == NR { name[$1] = $2; next }
{ print(($2 in name) ? name[$2] : $2) }
"""
_HOURS = """# Requests by the hour, in local time.
summarise() {
    cat "$1"/*.log | awk -v offset="$utc_offset" '
        {
            hour = substr($1, 12, 2) + offset
            hour = (hour + 24) % 24
            count[hour]++
        }
        END { for (hour = 0; hour < 24; hour++) if (count[hour]) printf "%02d %d\\n", hour, count[hour] }'
}
"""
_SLOW = """# The slowest paths, without sessions: a percentile of their milliseconds, where it is above the limit.
summarise() {
    cat "$1"/*.log |
        awk '{ path = $4; sub(/;[^\\/]*/, "", path); print path, $7 }' |
        sort -k1,1 -k2,2n |
        awk -v limit="$slow_ms" -v percent="$slow_percent" -f "$ROOT/@lib@/percentile.awk" |
        sort -k2,2nr -k1,1
}
"""
_PERCENTILE = """# Reads lines PATH MILLISECONDS, sorted. The place of the percentile is rounded up.
function finish(    place) {
    place = int((count * percent + 99) / 100)
    if (count && value[place] > limit) print path, value[place]
}
$1 != path { finish(); path = $1; count = 0 }
{ value[++count] = $2 }
END { finish() }
"""
_ERRORS = """# Errors of the server by path, without ignored paths. The status is 3 where there are too many.
summarise() {
    local ignored="" path errors count
    while read -r path || [ -n "$path" ]; do
        ignored="$ignored $path"
    done < "$1/ignored.txt"
    errors=$(cat "$1"/*.log | awk -v ignored="$ignored" '
        BEGIN { split(ignored, list, " "); for (i in list) skip[list[i]] = 1 }
        $5 ~ /^5/ && !($4 in skip) { print $4 }')
    count=$(echo "$errors" | wc -l)
    echo "$errors" | sort | uniq -c | awk '{ print $2, $1 }'
    if [ "$count" -gt "$allowed_errors" ]; then
        return 3
    fi
}
"""
_OUTAGES = """# Minutes for which each service was down, from state.log and its older parts, the oldest first.
summarise() {
    (cd "$1" && ls state.log* | sort -t. -k3,3nr | xargs cat) | awk '
        $3 == "down" && !($2 in since) { since[$2] = $1 }
        $3 == "up" && ($2 in since) { total[$2] += $1 - since[$2]; delete since[$2] }
        END { for (name in total) print name, total[name] }' | sort
}
"""
_SITE = """slow_ms=@slow_ms@
slow_percent=@slow_percent@
# Hours to add to UTC. (Summer time was switched off in 2019.)
utc_offset=@utc_offset@
allowed_errors=@allowed_errors@
run_quota_kib=@run_quota_kib@
"""

#: Kind, symptom, path, old and new text.
_EDITS = (
    (
        "quoting-of-spaces",
        "The summary of hosts lacks the requests of some log files; it prints errors about files that nobody has.",
        "@lib@/hosts.sh",
        '"$ROOT/@etc@/hosts.tsv" "$file"',
        '"$ROOT/@etc@/hosts.tsv" $file',
    ),
    (
        "uniq-without-sort",
        "Hosts are listed several times in the summary of hosts.",
        "@lib@/hosts.sh",
        "done | sort | uniq -c |",
        "done | uniq -c |",
    ),
    (
        "tie-order",
        "Hosts with equally many requests are listed in another order than in the weekly mail, which is by name.",
        "@lib@/hosts.sh",
        "-k1,1nr -k2,2 |",
        "-k1,1nr -k2,2r |",
    ),
    (
        "timezone",
        "The busiest hours are reported in the middle of the night.",
        "@lib@/hours.sh",
        "substr($1, 12, 2) + offset",
        "substr($1, 12, 2) - offset",
    ),
    (
        "hour-overflow",
        "The sums over the hours are smaller than the number of requests.",
        "@lib@/hours.sh",
        "            hour = (hour + 24) % 24\n",
        "            @half_wrap@\n",
    ),
    (
        "wrong-field",
        "The list of slow paths has numbers that no request can have taken.",
        "@lib@/slow.sh",
        "print path, $7",
        "print path, $6",
    ),
    (
        "greedy-pattern",
        "Different paths are lumped together in the list of slow paths.",
        "@lib@/slow.sh",
        "sub(/;[^\\/]*/",
        "sub(/;.*/",
    ),
    (
        "text-sort-of-numbers",
        "The percentiles in the list of slow paths are wrong, though the right requests are counted.",
        "@lib@/slow.sh",
        "sort -k1,1 -k2,2n |",
        "sort -k1,1 -k2,2 |",
    ),
    (
        "percentile-index",
        "Percentiles of paths with few requests are too low or missing.",
        "@lib@/percentile.awk",
        "int((count * percent + 99) / 100)",
        "int(count * percent / 100)",
    ),
    (
        "last-group-lost",
        "One path, often the same one, is never in the list of slow paths.",
        "@lib@/percentile.awk",
        "END { finish() }",
        "END { if (!NR) finish() }",
    ),
    (
        "unanchored-pattern",
        "Requests that were refused with 405 or 415 are counted as the server's errors.",
        "@lib@/errors.sh",
        "$5 ~ /^5/",
        "$5 ~ /5/",
    ),
    (
        "last-line-lost",
        "A path that is to be ignored, the last in its file, is among the errors nevertheless.",
        "@lib@/errors.sh",
        'while read -r path || [ -n "$path" ]; do',
        "while read -r path; do",
    ),
    (
        "number-as-text",
        "No alarm is raised although there are more errors than allowed, when there are ten or more.",
        "@lib@/errors.sh",
        'if [ "$count" -gt "$allowed_errors" ]; then',
        'if [[ "$count" > "$allowed_errors" ]]; then',
    ),
    (
        "exit-status-lost",
        "No alarm is ever raised for errors.",
        "@lib@/errors.sh",
        "        return 3\n",
        '        echo "too many errors" >&2\n',
    ),
    (
        "rotation-order",
        "Outages are reported that last for weeks.",
        "@lib@/outages.sh",
        "-k3,3nr",
        "-k3,3r",
    ),
    (
        "repeated-event",
        "Outages are reported as shorter than they were.",
        "@lib@/outages.sh",
        '$3 == "down" && !($2 in since) {',
        '$3 == "down" {',
    ),
)


@dataclass(frozen=True)
class _Site:
    """The settings of a drawn host; ``hosts`` are names by address."""

    names: Mapping[str, int | str]
    hosts: Mapping[str, str]

    def number(self, name: str) -> int:
        return int(self.names[name])


def draw(rng: random.Random) -> Project:
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
    # Each of these is right for the other sign only.
    names["half_wrap"] = "if (hour < 0) hour += 24" if int(names["utc_offset"]) > 0 else "hour = hour % 24"
    hosts = {_address(rng): f"{name}{rng.randint(1, 9)}" for name in rng.sample(SERVICES, 7)}
    site = _Site(names, hosts)
    files = _program(site)
    files["docs/journal.md"] = notes(rng, "Journal of this host", 14)
    stale = names | {"slow_ms": 50, "utc_offset": 1, "allowed_errors": 500}
    files[f"{names['etc']}/site.conf.orig"] = filled(_SITE, stale)
    files["run/last-mail.txt"] = f"To: {person(rng)}\nSubject: weekly summary\n\nAll well.\n"
    questions = _questions(rng, files, site)
    fixed = frozenset(path for path in files if path.startswith("logs/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, site)

    looks = ["ls bin run * | head -60", "cat bin/summary", "bin/summary hosts logs"]
    about = (
        "`bin/summary SECTION FOLDER` summarises logs: sections are hosts, hours, slow, errors and outages. A line of "
        "a log is TIME ADDRESS METHOD PATH STATUS BYTES MILLISECONDS ID, and one of state.log is MINUTE SERVICE STATE."
    )
    faults = [*faults_of(_EDITS, names, looks), *_file_faults(rng, site, looks)]
    return Project(about, files, faults, checks, {"bin/summary": 0o755}, fixed=fixed, questions=questions)


def _program(site: _Site) -> dict[str, str]:
    lib, etc = site.names["lib"], site.names["etc"]
    texts = {
        "bin/summary": _SUMMARY,
        f"{lib}/hosts.sh": _HOSTS,
        f"{lib}/names.awk": _NAMES,
        f"{lib}/hours.sh": _HOURS,
        f"{lib}/slow.sh": _SLOW,
        f"{lib}/percentile.awk": _PERCENTILE,
        f"{lib}/errors.sh": _ERRORS,
        f"{lib}/outages.sh": _OUTAGES,
        f"{etc}/site.conf": _SITE,
    }
    files = {path: filled(text, site.names) for path, text in texts.items()}
    files[f"{etc}/hosts.tsv"] = "".join(f"{address}\t{name}\n" for address, name in site.hosts.items())
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
        Fault(
            "crlf",
            "The names of hosts in the summary do not match those of the inventory, though they look the same.",
            [*looks, f"cat -A {etc}/hosts.tsv"],
            rf"sed -i 's/\r$//' {etc}/hosts.tsv",
            command=rf"sed -i 's/$/\r/' {etc}/hosts.tsv",
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


def _checks(rng: random.Random, site: _Site) -> list[Check]:
    """Draw logs; compute the summaries from the drawn lines."""
    paths = [f"/{rng.choice(SERVICES)}/{token(rng, 4)}" for _ in range(5)]
    lines = []
    for hour in range(24):
        for _ in range(rng.randint(2, 4)):
            status = rng.choice([200, 200, 304, 404])
            lines.append(
                _Line(hour, rng.choice([*site.hosts, "10.0.0.0"]), rng.choice(paths), status, rng.randint(9, 999))
            )
    # Two hosts have equally many requests, and no others.
    counts = Counter(line.address for line in lines)
    one, other = list(site.hosts)[:2]
    low, high = sorted([one, other], key=lambda address: counts[address])
    lines += [_Line(12, low, rng.choice(paths), 200, rng.randint(9, 999)) for _ in range(counts[high] - counts[low])]
    allowed = site.number("allowed_errors")
    ignored, failing = token(rng, 5), token(rng, 5)
    for path, statuses in (
        (f"/{failing}", [500, 502, 503] * 5),
        (f"/{ignored}", [500] * rng.randint(1, 3)),
        (f"/{token(rng, 5)}", [405, 415]),
        (f"/{token(rng, 5)}", [503] * (allowed % 3 + 1)),
    ):
        lines += [_Line(rng.randint(0, 23), one, path, status, rng.randint(9, 90)) for status in statuses]
        lines += [_Line(rng.randint(0, 23), other, path, 200, rng.randint(9, 90)) for _ in statuses]
    # The slow paths: with a session in the middle, and one that is the last in order.
    slow, limit = f"/{token(rng, 5)}", site.number("slow_ms")
    for path, extra in ((f"{slow}/a", 90), (f"{slow}/b", 7), ("/zz" + token(rng, 4), 30)):
        session = "" if path.startswith("/zz") else f";s={token(rng, 6)}"
        head, _, tail = path.rpartition("/")
        spent = [limit + extra, limit * 10 + extra, 70 + extra, 8]
        lines += [
            _Line(rng.randint(0, 23), rng.choice([one, other]), f"{head}{session}/{tail}", 200, ms) for ms in spent
        ]
    counted = Counter(line.address for line in lines)
    lines += [_Line(3, low, paths[0], 200, 9) for _ in range(counted[high] - counted[low])]
    lines += [_Line(3, high, paths[0], 200, 9) for _ in range(counted[low] - counted[high])]
    rng.shuffle(lines)

    def logs_of(lines: Sequence[_Line]) -> dict[str, str]:
        parts = [lines[start::3] for start in range(3)]
        names = ("front.log", "mail relay.log", "old host (2).log")
        return {name: "".join(line.text(rng) + "\n" for line in part) for name, part in zip(names, parts, strict=True)}

    inputs = logs_of(lines) | {"ignored.txt": f"/{token(rng)}\n/{ignored}"}
    few = [_Line(rng.randint(0, 23), one, f"/{failing}", 500, rng.randint(9, 90)) for _ in range(allowed)]
    few += [
        _Line(rng.randint(0, 23), one, f"/{ignored}", 500, rng.randint(9, 90)),
        *(line for line in lines[:9] if line.status < 500),
    ]
    errors = "bin/summary errors $IN; echo status $?"
    return [
        Check("hosts", "bin/summary hosts $IN", _host_counts(lines, site), inputs),
        Check(
            "hours-slow",
            "bin/summary hours $IN; bin/summary slow $IN",
            _hours(lines, site) + _slow(lines, site),
            inputs,
        ),
        Check("errors", errors, _errors(lines, ignored, allowed), inputs),
        Check("few errors", errors, _errors(few, ignored, allowed), {**inputs, **logs_of(few)}),
        _outages(rng),
    ]


def _host_counts(lines: Sequence[_Line], site: _Site) -> str:
    counts = Counter(site.hosts.get(line.address, line.address) for line in lines)
    return "\n".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _hours(lines: Sequence[_Line], site: _Site) -> str:
    counts = Counter((line.hour + site.number("utc_offset")) % 24 for line in lines)
    return "".join(f"{hour:02} {count}\n" for hour, count in sorted(counts.items()))


def _slow(lines: Sequence[_Line], site: _Site) -> str:
    spent = dict[str, list[int]]()
    for line in lines:
        path = "/".join(part.split(";")[0] for part in line.path.split("/"))
        spent.setdefault(path, []).append(line.milliseconds)
    values = {
        path: sorted(numbers)[-(-len(numbers) * site.number("slow_percent") // 100) - 1]
        for path, numbers in spent.items()
    }
    ranked = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    return "\n".join(f"{path} {value}" for path, value in ranked if value > site.number("slow_ms"))


def _errors(lines: Sequence[_Line], ignored: str, allowed: int) -> str:
    counts = Counter(line.path for line in lines if line.status >= 500 and line.path != f"/{ignored}")
    return "\n".join(
        [*(f"{path} {count}" for path, count in sorted(counts.items())), f"status {3 * (counts.total() > allowed)}"]
    )


def _outages(rng: random.Random) -> Check:
    """Draw states of services, over a dozen parts of a log."""
    minute, events, totals = 0, list[str](), Counter[str]()
    for _ in range(30):
        minute += rng.randint(5, 500)
        name, length = rng.choice(SERVICES), rng.randint(20, 300)
        events.append(f"{minute} {name} down")
        events.append(f"{minute + rng.randint(1, length - 1)} {name} down")
        minute += length
        events.append(f"{minute} {name} up")
        totals[name] += length
    parts = 12
    size = len(events) // parts + 1
    inputs = {}
    for part in range(parts):
        number = parts - 1 - part
        chunk = events[part * size : (part + 1) * size]
        inputs["state.log" + (f".{number}" if number else "")] = "".join(f"{event}\n" for event in chunk)
    expected = "\n".join(f"{name} {total}" for name, total in sorted(totals.items()))
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
    common, (one, other) = token(rng), rng.sample(names, 2)
    for name in names:
        record(lambda: f"/{rng.choice(SERVICES)}", name, common if name in (one, other) else "")
    first, second = (f"<(awk '{{ print $8 }}' logs/{name}.log | sort -u)" for name in (one, other))
    largest = max(sizes, key=lambda client: sizes[client])
    return [
        Question(
            "largest-client",
            "Which address received the most bytes, over all files logs/*.log?",
            largest,
            [
                "head -2 logs/*.log | head",
                "awk '{ s[$2] += $6 } END { for (a in s) print s[a], a }' logs/*.log | sort -n | sed -n '$s/.* //p'",
            ],
        ),
        Question(
            "common-id",
            f"Which request id (the last word of a line) is both in logs/{one}.log and in logs/{other}.log?",
            common,
            [f"head -2 logs/{one}.log", f"comm -12 {first} {second}"],
        ),
    ]
