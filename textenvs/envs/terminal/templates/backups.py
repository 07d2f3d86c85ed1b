"""The template *backups*: scripts that copy folders into a store, remove old copies, and say which jobs are due.

It needs bash, awk (mawk is enough), findutils and coreutils.
"""

from __future__ import annotations

import datetime
import hashlib
import random
from collections.abc import Mapping, Sequence

from ..project import Check, Fault, Project, Question
from .parts import GOODS, SERVICES, fault_of_edits, faults_of, filled, notes, token

_BACKUP = """#!/bin/bash
# Copies a folder into the store. Usage: bin/backup FOLDER STORE DATE
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/common.sh"
umask 077
target=$2/$3
mkdir -p "$target"
cd "$1" || exit 1

shopt -s dotglob nullglob
count=0
for file in *; do
    if excluded "$file"; then
        continue
    fi
    cp -Rp "$file" "$target/"
    count=$((count + 1))
done

cd "$target" || exit 1
find . -type f ! -name MANIFEST -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum > MANIFEST
ln -sfn "$3" "$2/latest"
echo "copied $count"
"""
_ROTATE = """#!/bin/bash
# Removes old backups: all but the newest ones, and the first one of each month. Usage: bin/rotate STORE DATE
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/common.sh"
. "$ROOT/@etc@/backup.conf"
store=$1 today=$2

declare -A first
while read -r name; do
    [ -n "${first[${name:0:7}]:-}" ] || first[${name:0:7}]=$name
done < <(backups "$store")

removed=0 position=0
while read -r name; do
    position=$((position + 1))
    if [ "$position" -le "$keep_newest" ]; then
        continue
    fi
    if [ "${first[${name:0:7}]}" = "$name" ] && [ "$(months "$name" "$today")" -lt "$keep_months" ]; then
        continue
    fi
    if [ "$dry_run" = no ]; then
        rm -r "${store:?}/$name"
    fi
    removed=$((removed + 1))
done < <(backups "$store" -r)
echo "removed $removed"
"""
_COMMON = """# Functions of all scripts.

# Tells if a name fits one of the excluded patterns, which are those of the shell.
excluded() {
    local pattern
    while read -r pattern; do
        case $1 in
            $pattern) return 0 ;;
        esac
    done < "$ROOT/@etc@/exclude.txt"
    return 1
}

# Lists the backups of a store, the oldest first. Other folders are left alone.
backups() {
    ls -1 ${2:-} "$1" | grep -E '^[0-9]{4}-[0-9]{2}-[0-9]{2}$'
}

# Prints how many months lie between two dates.
months() {
    local years=$((${2:0:4} - ${1:0:4}))
    echo $((years * 12 + 10#${2:5:2} - 10#${1:5:2}))
}
"""
_DUE = """#!/bin/sh
# Tells for each time which jobs are due. Usage: bin/due TABLE TIMES
# A line of TIMES is MINUTE HOUR DAY MONTH WEEKDAY, with 0 for Sunday.
exec awk -f "$(dirname "$0")/../@lib@/due.awk" "$1" "$2"
"""
_DUE_AWK = """# Reads a table as cron has it, then times.
function fits(field, value,    parts, count, i, range) {
    count = split(field, parts, ",")
    for (i = 1; i <= count; i++) {
        if (parts[i] == "*") return 1
        if (substr(parts[i], 1, 2) == "*/") {
            if (value % substr(parts[i], 3) == 0) return 1
        } else if (split(parts[i], range, "-") == 2) {
            if (value >= range[1] + 0 && value <= range[2] + 0) return 1
        } else if (parts[i] + 0 == value) return 1
    }
    return 0
}
function due(n, minute, hour, day, month, weekday,    in_month, in_week) {
    if (!fits(field[n, 1], minute) || !fits(field[n, 2], hour) || !fits(field[n, 4], month)) return 0
    in_month = fits(field[n, 3], day)
    in_week = fits(field[n, 5], weekday)
    if (weekday == 0) in_week = in_week || fits(field[n, 5], 7)
    # Where both are limited, one is enough.
    if (field[n, 3] != "*" && field[n, 5] != "*") return in_month || in_week
    return in_month && in_week
}
FNR == NR {
    if ($0 ~ /^#/ || NF < 6) next
    jobs++
    for (i = 1; i <= 5; i++) field[jobs, i] = $i
    name[jobs] = $6
    next
}
{
    line = "due:"
    for (n = 1; n <= jobs; n++) if (due(n, $1, $2, $3, $4, $5)) line = line " " name[n]
    print line
}
"""
_CONF = """# How many backups bin/rotate leaves.
keep_newest=@newest@
keep_months=@months@
# With yes, nothing is removed. (It is yes on the test host.)
dry_run=no
"""
_CRONTAB = """# minute hour day month weekday job
@minute@ @hour@ * * * nightly
@later@ @hour@ * * * rotate
*/@step@ * * * 1-5 check
0 12 1 * * report
"""

#: Kind, symptom, path, old and new text.
_EDITS = (
    (
        "ls-word-splitting",
        "The backup prints errors about files that nobody has, and copies others not at all.",
        "bin/backup",
        "for file in *; do",
        "for file in $(ls -A); do",
    ),
    (
        "glob-misses-dotfiles",
        "After a restore, settings of users are missing.",
        "bin/backup",
        "shopt -s dotglob nullglob",
        "shopt -s nullglob",
    ),
    (
        "exclude-too-broad",
        "Some files, such as texts, are in no backup.",
        "@etc@/exclude.txt",
        "*.tmp\n",
        "*.t*\n",
    ),
    (
        "quoted-pattern",
        "The store fills with temporary files.",
        "@lib@/common.sh",
        "            $pattern) return 0 ;;",
        '            "$pattern") return 0 ;;',
    ),
    (
        "lost-times",
        "All restored files have the date of the backup.",
        "bin/backup",
        'cp -Rp "$file"',
        'cp -R "$file"',
    ),
    (
        "xargs-spaces",
        "The manifest lacks some files, and an error about files is printed.",
        "bin/backup",
        "-print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum",
        "| LC_ALL=C sort | xargs -r sha256sum",
    ),
    (
        "stale-symlink",
        "A restore of the latest backup brings old files.",
        "bin/backup",
        'ln -sfn "$3"',
        'ln -sf "$3"',
    ),
    (
        "umask",
        "The auditors say that everybody on the host can list the backups.",
        "bin/backup",
        "umask 077",
        "umask 022",
    ),
    (
        "retention-off-by-one",
        "There is one backup less than agreed.",
        "bin/rotate",
        '"$position" -le "$keep_newest"',
        '"$position" -lt "$keep_newest"',
    ),
    (
        "overwritten-first",
        "Of old months, the last backup is left, and not the first.",
        "bin/rotate",
        '    [ -n "${first[${name:0:7}]:-}" ] || first[${name:0:7}]=$name',
        "    first[${name:0:7}]=$name",
    ),
    (
        "newest-removed",
        "The newest backups are gone after each rotation.",
        "bin/rotate",
        '+ 1))\ndone < <(backups "$store" -r)',
        '+ 1))\ndone < <(backups "$store")',
    ),
    (
        "dry-run-left-on",
        "The rotation says that it removes backups, but the store only grows.",
        "@etc@/backup.conf",
        "dry_run=no",
        "dry_run=yes",
    ),
    (
        "octal-number",
        "The rotation prints errors for some months of the year.",
        "@lib@/common.sh",
        "10#${2:5:2} - 10#${1:5:2}",
        "${2:5:2} - ${1:5:2}",
    ),
    (
        "year-ignored",
        "Backups of years ago are never removed.",
        "@lib@/common.sh",
        "local years=$((${2:0:4} - ${1:0:4}))",
        "local years=0",
    ),
    (
        "cron-step",
        "Jobs that are to run every few minutes run once an hour.",
        "@lib@/due.awk",
        "if (value % substr(parts[i], 3) == 0) return 1",
        "if (value == substr(parts[i], 3)) return 1",
    ),
    (
        "exclusive-range",
        "A job for Monday to Friday does not run on Fridays.",
        "@lib@/due.awk",
        "value <= range[2] + 0",
        "value < range[2] + 0",
    ),
    (
        "sunday-as-seven",
        "A job for weekday 7 never runs.",
        "@lib@/due.awk",
        "in_week = in_week || fits(field[n, 5], 7)",
        "in_week = in_week || fits(field[n, 5], 0)",
    ),
    (
        "day-and-weekday",
        "A job that has a day and a weekday runs much too rarely.",
        "@lib@/due.awk",
        "return in_month || in_week",
        "return in_month && in_week",
    ),
    (
        "swapped-fields",
        "The nightly backup runs at another time than before, and not at night.",
        "@etc@/crontab",
        "@minute@ @hour@ * * * nightly",
        "@hour@ @minute@ * * * nightly",
    ),
    (
        "disabled-job",
        "The store only grows: the rotation has not run for weeks.",
        "@etc@/crontab",
        "@later@ @hour@ * * * rotate",
        "#@later@ @hour@ * * * rotate",
    ),
)


def draw(rng: random.Random) -> Project:
    """Draw a project: folders, limits, a table of jobs, and the manifests of earlier backups."""
    names: dict[str, int | str] = {
        "lib": rng.choice(["lib", "share", "functions"]),
        "etc": rng.choice(["etc", "conf", "settings"]),
        "newest": rng.randint(3, 6),
        "months": rng.randint(4, 8),
        "hour": rng.randint(1, 5),
        "minute": rng.randint(11, 22),
        "later": rng.randint(31, 58),
        "step": rng.choice([7, 9, 11, 13]),
    }
    texts = {
        "bin/backup": _BACKUP,
        "bin/rotate": _ROTATE,
        "bin/due": _DUE,
        "@lib@/common.sh": _COMMON,
        "@lib@/due.awk": _DUE_AWK,
        "@etc@/backup.conf": _CONF,
        "@etc@/backup.conf.rpmsave": _CONF.replace("=no", "=yes").replace("@newest@", "90"),
        "@etc@/crontab": _CRONTAB,
        "@etc@/exclude.txt": "*.tmp\ncache\n*~\n",
        "docs/notes.md": notes(rng, "Notes on backups", 10),
    }
    files = {filled(path, names): filled(text, names) for path, text in texts.items()}
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith("store/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_copy(fresh), _rotation(fresh, names), _jobs(fresh, names)]

    about = (
        "`bin/backup` copies a folder into a store, `bin/rotate` removes old backups from it, and `bin/due` says which "
        f"jobs of a table such as `{names['etc']}/crontab` are due. Each has its usage in its second line."
    )
    looks = ["ls *", "cat bin/backup bin/rotate bin/due", f"cat {names['lib']}/* {names['etc']}/*"]
    modes = dict.fromkeys(["bin/backup", "bin/rotate", "bin/due"], 0o755)
    faults = [*faults_of(_EDITS, names, looks), _subshell(looks)]
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _subshell(looks: Sequence[str]) -> Fault:
    return fault_of_edits(
        "subshell-variable",
        "The rotation never knows which backups are the first of their month.",
        [
            ("bin/rotate", "declare -A first\nwhile", 'declare -A first\nbackups "$store" | while'),
            ("bin/rotate", 'done < <(backups "$store")\n\nremoved', "done\n\nremoved"),
        ],
        looks,
    )


def _copy(rng: random.Random) -> Check:
    """Draw a folder with hidden and excluded files and names with spaces, which is copied on two days."""
    copied_files = {
        name: f"{token(rng, 16)}\n"
        for name in (f".{token(rng, 4)}", f"{token(rng, 4)} {token(rng, 3)}.txt", token(rng))
    }
    copied_files |= {f"{rng.choice(GOODS)}s/{token(rng, 4)} {number}.csv": f"{token(rng, 12)}\n" for number in range(2)}
    other = {f"{token(rng, 5)}.tmp": "x\n", "cache/a": "y\n", f"{token(rng, 4)}.txt~": "z\n"}
    inputs = {f"data/{name}": text for name, text in {**copied_files, **other}.items()}
    first = datetime.date(rng.randint(2018, 2024), rng.randint(1, 12), rng.randint(1, 27))
    second = first + datetime.timedelta(days=1)
    stamp = rng.randint(1_000_000_000, 1_500_000_000)
    dotted = next(iter(copied_files))
    sums = sorted((f"./{name}", hashlib.sha256(text.encode()).hexdigest()) for name, text in copied_files.items())
    command = (
        f"touch -d @{stamp} $IN/data/{dotted}; s=/tmp/store; "
        f"for d in {first} {second}; do bin/backup $IN/data $s $d; done; "
        f"cat $s/{second}/MANIFEST; readlink $s/latest; stat -c '%a %Y' $s/{second}/{dotted}; stat -c %a $s/{first}"
    )
    copied = f"copied {len({name.split('/')[0] for name in copied_files})}\n"
    manifest = "".join(f"{digest}  {name}\n" for name, digest in sums)
    return Check("copy", command, f"{copied}{copied}{manifest}{second}\n644 {stamp}\n700", inputs)


def _rotation(rng: random.Random, names: Mapping[str, int | str]) -> Check:
    """Draw the dates of a store: several in each of many months, so that each limit is reached."""
    newest, months, year = int(names["newest"]), int(names["months"]), rng.randint(2015, 2024)
    # August and September are among the months that are compared.
    today = datetime.date(year, 10, rng.randint(26, 28))
    dates = [today - datetime.timedelta(days=days) for days in range(newest + 1)]
    for back in range(1, months + 3):
        later, month = divmod(today.month - 1 - back, 12)
        dates += [datetime.date(year + later, month + 1, day) for day in rng.sample(range(1, 21), 2)]
    dates += [datetime.date(year - 1, 11, 3), datetime.date(year - 2, 10, rng.randint(2, 27))]
    copied_files = set(sorted(dates)[-newest:])
    for date in dates:
        age = 12 * (today.year - date.year) + today.month - date.month
        if age < months and not any(
            (other.year, other.month) == (date.year, date.month) and other < date for other in dates
        ):
            copied_files.add(date)
    manual = f"manual-{token(rng)}"
    command = (
        f"mkdir /tmp/rotated; cd /tmp/rotated; mkdir {' '.join(map(str, dates))} {manual}; "
        f"/project/bin/rotate . {today}; LC_ALL=C ls"
    )
    listing = "\n".join([*map(str, sorted(copied_files)), manual])
    return Check("rotation", command, f"removed {len(set(dates)) - len(copied_files)}\n{listing}")


def _jobs(rng: random.Random, names: Mapping[str, int | str]) -> Check:
    """Draw a table and times; the answers are from the rules by which they are drawn, one for each pair."""
    hour, minute, day, month = rng.randint(0, 23), rng.randint(1, 49), rng.randint(3, 28), rng.randint(1, 12)
    step, weekday = rng.choice([7, 8, 9]), rng.randint(1, 4)
    labels = [token(rng) for _ in range(4)]
    table = [
        f"*/{step} {hour} * * * {labels[0]}",
        f"{minute} {hour} * * {weekday}-{weekday + 1} {labels[1]}",
        f"{minute},55 {hour} {day} {month} {weekday} {labels[2]}",
        f"5{rng.randint(6, 9)} {hour} * * 7 {labels[3]}",
    ]
    last = int(table[3].split()[0])
    cases = [
        (2 * step, f"{day - 1} {month} 6", []),
        (2 * step + 1, f"{day - 1} {month} 6", []),
        (55, f"{day} {month} {weekday + 1}", labels[2:3]),
        (55, f"{day + 1} {month} {weekday}", labels[2:3]),
        (55, f"{day + 1} {month} {weekday + 2}", []),
        (last, f"{day} {month} 0", labels[3:]),
        (minute, f"{day - 2} {month} {weekday + 1}", labels[1:2]),
    ]
    times = [(f"{at} {hour} {rest}", [*labels[: at % step == 0], *due]) for at, rest, due in cases]
    rng.shuffle(times)
    own = [
        (f"{names['minute']} {names['hour']} {day} {month} 6", "nightly"),
        (f"{names['later']} {names['hour']} {day} {month} 0", "rotate"),
    ]
    inputs = {
        "table": f"# {token(rng)}\n" + "\n".join(table) + "\n",
        "times": "".join(f"{time}\n" for time, _ in times),
        "own": "".join(f"{time}\n" for time, _ in own),
    }
    answers = [" ".join(["due:", *due]) for _, due in times] + [f"due: {job}" for _, job in own]
    command = f"bin/due $IN/table $IN/times; bin/due {names['etc']}/crontab $IN/own"
    return Check("jobs", command, "\n".join(answers), inputs)


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw the manifests of a store, in which files change now and then, and ask about them."""
    paths = [f"{service}/{rng.choice(GOODS)}{number}.dat" for service in SERVICES for number in range(5)]
    state = {path: (token(rng, 12), rng.randint(1000, 999_999)) for path in paths}
    history = {path: [state[path][0]] for path in paths}
    dates = [datetime.date(2025, 1, 1) + datetime.timedelta(days=days) for days in range(rng.randint(40, 70))]
    for date in dates:
        for path in rng.sample(paths, 4):
            state[path] = (token(rng, 12), rng.randint(1000, 999_999))
            history[path].append(state[path][0])
        lines = [f"{digest} {size} {path}" for path, (digest, size) in state.items()]
        files[f"store/{date}/MANIFEST"] = "\n".join(lines) + "\n"
    path = rng.choice([path for path in paths if len(history[path]) > 3])
    date = rng.choice(dates)
    sizes = [line.split() for line in files[f"store/{date}/MANIFEST"].splitlines()]
    largest = max(sizes, key=lambda cells: (int(cells[1]), cells[0]))
    return [
        Question(
            "previous-checksum",
            f"Which checksum did {path} have before its present one, by the manifests in store/?",
            history[path][-2],
            [
                f"head -2 store/{date}/MANIFEST",
                f"grep -h ' {path}$' store/*/MANIFEST | cut -d' ' -f1 | uniq | tail -2 | head -1",
            ],
        ),
        Question(
            "largest-file",
            f"Which checksum has the largest file in the backup of {date}?",
            largest[0],
            [f"head -2 store/{date}/MANIFEST", f"sort -k2,2n -k1,1 store/{date}/MANIFEST | tail -1 | cut -d' ' -f1"],
        ),
    ]
