"""The template *backups*: scripts that copy folders into a store, remove old copies, and say which jobs are due.

It needs bash, awk (mawk is enough), findutils and coreutils.
"""

from __future__ import annotations

import datetime
import hashlib
import random
from collections.abc import Mapping, Sequence

from ..project import Check, Fault, Project, Question
from .parts import ASKED, GOODS, SERVICES, asked_together, fault_of_edits, notes, token
from .variation import Option, Rule, Variant

_FOLDERS = ("cache", "spool", "scratch", "work")
_BACKUP = """#!/bin/bash
# Copies a folder into the store. Usage: bin/backup FOLDER STORE DATE
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/common.sh"
@umask@
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
find . -type f ! -name @manifest@ -print0 | LC_ALL=C sort -z | xargs -0 @digest@ @manifest@
ln -sfn "$3" @link@
@copied_line@
"""
_ROTATE = """#!/bin/bash
# Removes old backups: all but the newest ones, and one of each month. Usage: bin/rotate STORE DATE
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/common.sh"
. "$ROOT/@etc@/backup.conf"
store=$1 today=$2

declare -A first
while read -r name; do
    @overwritten_first@
done < <(backups "$store")

removed=0 position=0
while read -r name; do
    position=$((position + 1))
    if [ "$position" -le "$keep_newest" ]; then
        continue
    fi
    if [ "${first[${name:0:7}]:-}" = "$name" ] && [ "$(months "$name" "$today")" @kept_months@ ]; then
        continue
    fi
    if [ "$dry_run" = no ]; then
        @removal@
    fi
    removed=$((removed + 1))
done < <(backups "$store" -r)
@removed_line@
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
            @step_offset@
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
    if (field[n, 3] != "*" && field[n, 5] @day_and_weekday@
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
    line = @due_head@
    for (n = 1; n <= jobs; n++) if (due(n, $1, $2, $3, $4, $5)) line = @due_separator@[n]
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

_RULES = (
    Rule(
        "umask",
        "bin/backup",
        "The auditors say that the wrong people on the host can list the backups.",
        [
            Option(f"umask {mask}", f"The folder of a backup has the mode {mode}.", mode)
            for mask, mode in (("077", "700"), ("027", "750"), ("007", "770"), ("037", "740"), ("072", "705"))
        ],
    ),
    Rule(
        "digest",
        "bin/backup",
        "The auditors cannot verify the manifests any more.",
        [
            Option(f"-r {name}sum >", f"The manifest has checksums of {name.upper()}.", name)
            for name in ("sha256", "sha1", "md5", "sha224", "sha512")
        ],
    ),
    Rule(
        "link",
        "bin/backup",
        "A restore does not find the newest backup.",
        [
            Option(f'"$2/{name}"', f"The link to the newest backup is `{name}`.", name)
            for name in ("latest", "current", "newest", "now", "head")
        ],
    ),
    Rule(
        "copied-line",
        "bin/backup",
        "The watch on backups does not find the number of copies.",
        [
            Option(
                'echo "copied $count"',
                "`bin/backup` prints such as `copied 3`: files and folders of the top.",
                "copied {}",
            ),
            Option(
                'echo "$count copied"',
                "`bin/backup` prints such as `3 copied`: files and folders of the top.",
                "{} copied",
            ),
            Option(
                'echo "copies=$count"',
                "`bin/backup` prints such as `copies=3`: files and folders of the top.",
                "copies={}",
            ),
            Option(
                'printf "%03d\\n" "$count"', "`bin/backup` prints such as `003`: files and folders of the top.", "{:03}"
            ),
        ],
    ),
    Rule(
        "excluded-folder",
        "@etc@/exclude.txt",
        "A folder is in no backup, or one is that should not be.",
        [Option(f"\n{name}\n", f"The folder `{name}` is in no backup.", name) for name in _FOLDERS],
    ),
    Rule(
        "overwritten-first",
        "bin/rotate",
        "Of old months, another backup is left than was agreed.",
        [
            Option(
                '[ -n "${first[${name:0:7}]:-}" ] || first[${name:0:7}]=$name',
                "Of each month, `bin/rotate` leaves the first backup.",
                min,
            ),
            Option("first[${name:0:7}]=$name", "Of each month, `bin/rotate` leaves the last backup.", max),
            Option(
                '[ "${name:8:2}" -gt 14 ] || first[${name:0:7}]=$name',
                "Of each month, `bin/rotate` leaves the last backup of the first 14 days.",
                lambda dates: max((date for date in dates if date.day <= 14), default=None),
            ),
            Option(
                '[ "${name:8:2}" -lt 8 ] || [ -n "${first[${name:0:7}]:-}" ] || first[${name:0:7}]=$name',
                "Of each month, `bin/rotate` leaves the first backup since the 8th.",
                lambda dates: min((date for date in dates if date.day >= 8), default=None),
            ),
        ],
    ),
    Rule(
        "kept-months",
        "bin/rotate",
        "The oldest month of which a backup is left is not the one that was agreed.",
        [
            Option(
                '-lt "$keep_months"',
                "A backup of a month is kept while it is fewer than `keep_months` months old.",
                lambda n, k: n < k,
            ),
            Option(
                '-le "$keep_months"',
                "A backup of a month is kept while it is at most `keep_months` months old.",
                lambda n, k: n <= k,
            ),
            Option(
                '-lt "$((2 * keep_months))"',
                "These of months are left that are fewer than twice `keep_months` months old.",
                lambda n, k: n < 2 * k,
            ),
            Option(
                '-lt "$((keep_months - 1))"',
                "These of months are left that are fewer than `keep_months` less one months old.",
                lambda n, k: n < k - 1,
            ),
        ],
    ),
    Rule(
        "removal",
        "bin/rotate",
        "Old backups are not where they should be after a rotation.",
        [
            Option('rm -r "${store:?}/$name"', "`bin/rotate` deletes what it removes.", ""),
            *(
                Option(
                    f'mv "$store/$name" "$store/{word}-$name"',
                    f"`bin/rotate` renames what it removes, to `{word}-DATE`.",
                    f"{word}-",
                )
                for word in ("old", "gone", "expired")
            ),
        ],
    ),
    Rule(
        "removed-line",
        "bin/rotate",
        "The watch on backups does not find the number of those that were removed.",
        [
            Option('echo "removed $removed"', "`bin/rotate` prints such as `removed 3`.", "removed {0}"),
            Option('echo "$removed removed"', "`bin/rotate` prints such as `3 removed`.", "{0} removed"),
            Option(
                'echo "$removed of $position"',
                "`bin/rotate` prints such as `3 of 9`: of so many backups.",
                "{0} of {1}",
            ),
            Option(
                'echo "left $((position - removed))"',
                "`bin/rotate` prints such as `left 6`: how many it left.",
                "left {2}",
            ),
        ],
    ),
    Rule(
        "step-offset",
        "@lib@/due.awk",
        "Jobs that are to run every few minutes run at the wrong minutes.",
        [
            Option(
                f"if ((value + {offset}) % substr(parts[i], 3) == 0) return 1",
                f"In a table of jobs, `*/N` fits where the value and {offset} together can be divided by N.",
                offset,
            )
            for offset in range(5)
        ],
    ),
    Rule(
        "day-and-weekday",
        "@lib@/due.awk",
        "A job that has a day and a weekday does not run as agreed.",
        [
            Option(
                '!= "*") return in_month || in_week',
                "Where a job has a day and a weekday, one of them is enough.",
                lambda day, week: day or week,
            ),
            Option(
                '!= "*") return in_month && in_week',
                "Where a job has a day and a weekday, both must fit.",
                lambda day, week: day and week,
            ),
            Option(
                '!= "*") return in_week',
                "Where a job has a day and a weekday, the weekday alone counts.",
                lambda day, week: week,
            ),
            Option(
                '!= "*") return in_month',
                "Where a job has a day and a weekday, the day alone counts.",
                lambda day, week: day,
            ),
        ],
    ),
    Rule(
        "due-head",
        "@lib@/due.awk",
        "The program that starts the jobs does not understand which are due.",
        [
            Option(f'"{word}"', f"A line of `bin/due` begins with `{word}`.", word)
            for word in ("due:", "run:", "start:", "jobs:", ">")
        ],
    ),
    Rule(
        "due-separator",
        "@lib@/due.awk",
        "The program that starts the jobs starts none.",
        [
            Option(f'line "{mark}" name', f"In a line of `bin/due`, `{mark}` is before each job.", mark)
            for mark in (" ", " +", ",", " /", " -")
        ],
    ),
)
_IDENTIFIERS = (
    "target count file store today first position excluded backups months pattern years fits field value parts range "
    "in_month in_week line minute hour weekday"
)

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
        "*.tmp",
        "*.t*",
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
        "-print0 | LC_ALL=C sort -z | xargs -0 -r",
        "| LC_ALL=C sort | xargs -r",
    ),
    (
        "stale-symlink",
        "A restore of the latest backup brings old files.",
        "bin/backup",
        'ln -sfn "$3"',
        'ln -sf "$3"',
    ),
    (
        "retention-off-by-one",
        "There is one backup less than agreed.",
        "bin/rotate",
        '"$position" -le "$keep_newest"',
        '"$position" -lt "$keep_newest"',
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
        "@step_offset@",
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
    names["manifest"] = rng.choice(["MANIFEST", "CHECKSUMS", "INDEX", "contents.txt", "SUMS"])
    variant = Variant.draw(rng, _RULES, _IDENTIFIERS, names)
    texts = {
        "bin/backup": _BACKUP,
        "bin/rotate": _ROTATE,
        "bin/due": _DUE,
        "@lib@/common.sh": _COMMON,
        "@lib@/due.awk": _DUE_AWK,
        "@etc@/backup.conf": _CONF,
        "@etc@/backup.conf.rpmsave": _CONF.replace("=no", "=yes").replace("@newest@", "90"),
        "@etc@/crontab": _CRONTAB,
        "@etc@/exclude.txt": "*.tmp@excluded_folder@*~\n",
    }
    files = variant.files(texts) | variant.document(rng)
    files["docs/notes.md"] = notes(rng, "Notes on backups", 10)
    questions = _questions(rng, files, str(names["manifest"]))
    fixed = frozenset(path for path in files if path.startswith("store/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_copy(fresh, variant), _rotation(fresh, variant), _jobs(fresh, variant)]

    about = (
        "`bin/backup` copies a folder into a store, `bin/rotate` removes old backups from it, and `bin/due` says which "
        f"jobs of a table such as `{names['etc']}/crontab` are due. Each has its usage in its second line. "
        f"What they do in detail is in `{variant.page}`."
    )
    looks = ["ls *", "cat bin/backup bin/rotate bin/due", f"cat {names['lib']}/* {names['etc']}/*"]
    modes = dict.fromkeys(["bin/backup", "bin/rotate", "bin/due"], 0o755)
    faults = [*variant.edits(_EDITS, files, looks), *variant.faults(rng, files, looks), _subshell(variant, looks)]
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _subshell(variant: Variant, looks: Sequence[str]) -> Fault:
    return fault_of_edits(
        "subshell-variable",
        "The rotation never knows which backups are the first of their month.",
        [
            ("bin/rotate", variant.text(old), variant.text(new))
            for old, new in (
                ("declare -A first\nwhile", 'declare -A first\nbackups "$store" | while'),
                ('done < <(backups "$store")\n\nremoved', "done\n\nremoved"),
            )
        ],
        looks,
    )


def _copy(rng: random.Random, variant: Variant) -> Check:
    """Draw a folder with hidden and excluded files and names with spaces, which is copied on two days."""
    copied_files = {
        name: f"{token(rng, 16)}\n"
        for name in (f".{token(rng, 4)}", f"{token(rng, 4)} {token(rng, 3)}.txt", token(rng))
    }
    copied_files |= {f"{rng.choice(GOODS)}s/{token(rng, 4)} {number}.csv": f"{token(rng, 12)}\n" for number in range(2)}
    copied_files |= {f"{name}/a": f"{token(rng)}\n" for name in _FOLDERS if name != variant["excluded-folder"]}
    other = {f"{token(rng, 5)}.tmp": "x\n", f"{variant['excluded-folder']}/a": "y\n", f"{token(rng, 4)}.txt~": "z\n"}
    inputs = {f"data/{name}": text for name, text in {**copied_files, **other}.items()}
    first = datetime.date(rng.randint(2018, 2024), rng.randint(1, 12), rng.randint(1, 27))
    second = first + datetime.timedelta(days=1)
    stamp = rng.randint(1_000_000_000, 1_500_000_000)
    dotted = next(iter(copied_files))
    digest, manifest, link = variant["digest"], variant.names["manifest"], variant["link"]
    sums = sorted((f"./{name}", hashlib.new(digest, text.encode()).hexdigest()) for name, text in copied_files.items())
    command = (
        f"touch -d @{stamp} $IN/data/{dotted}; s=/tmp/store; "
        f"for d in {first} {second}; do bin/backup $IN/data $s $d; done; "
        f"cat $s/{second}/{manifest}; readlink $s/{link}; stat -c '%a %Y' $s/{second}/{dotted}; stat -c %a $s/{first}"
    )
    copied = variant["copied-line"].format(len({name.split("/")[0] for name in copied_files})) + "\n"
    listed = "".join(f"{value}  {name}\n" for name, value in sums)
    expected = f"{copied}{copied}{listed}{second}\n644 {stamp}\n{variant['umask']}"
    return Check("copy", command, expected, inputs)


def _rotation(rng: random.Random, variant: Variant) -> Check:
    """Draw the dates of a store: several in each of many months, so that each limit is reached."""
    newest, months = (int(str(variant.names[name])) for name in ("newest", "months"))
    year = rng.randint(2015, 2024)
    # August and September are among the months that are compared.
    today = datetime.date(year, 10, rng.randint(26, 28))
    dates = [today - datetime.timedelta(days=days) for days in range(newest + 1)]
    for back in range(1, 2 * months + 3):
        later, month = divmod(today.month - 1 - back, 12)
        days = [rng.randint(1, 3), rng.randint(4, 7), rng.randint(8, 11), rng.randint(12, 14), rng.randint(15, 27)]
        dates += [datetime.date(year + later, month + 1, day) for day in (days if back < 3 else rng.sample(days, 2))]
    dates += [datetime.date(year - 1, 11, 3), datetime.date(year - 2, 10, rng.randint(2, 27))]
    dates = sorted({*dates})
    of_month = dict[tuple[int, int], list[datetime.date]]()
    for date in dates:
        of_month.setdefault((date.year, date.month), []).append(date)
    retained = {*dates[-newest:]}
    for (of_year, month), days_of in of_month.items():
        age = 12 * (today.year - of_year) + today.month - month
        if variant["kept-months"](age, months) and (chosen := variant["overwritten-first"](days_of)) is not None:
            retained.add(chosen)
    removed = [date for date in dates if date not in retained]
    manual = f"manual-{token(rng)}"
    command = (
        f"mkdir /tmp/rotated; cd /tmp/rotated; mkdir {' '.join(map(str, dates))} {manual}; "
        f"/project/bin/rotate . {today}; LC_ALL=C ls"
    )
    prefix = variant["removal"]
    listing = sorted([*map(str, retained), manual, *(f"{prefix}{date}" for date in removed if prefix)])
    line = variant["removed-line"].format(len(removed), len(dates), len(dates) - len(removed))
    return Check("rotation", command, "\n".join([line, *listing]))


def _jobs(rng: random.Random, variant: Variant) -> Check:
    """Draw a table and times; the answers are from the rules by which they are drawn, one for each pair."""
    hour, minute, day, month = rng.randint(0, 23), rng.randint(1, 9), rng.randint(3, 26), rng.randint(1, 12)
    step, weekday, offset = rng.choice([7, 8, 9]), rng.randint(1, 4), variant["step-offset"]
    labels = [token(rng) for _ in range(4)]
    table = [
        f"*/{step} {hour} * * * {labels[0]}",
        f"{minute} {hour} * * {weekday}-{weekday + 1} {labels[1]}",
        f"{minute},55 {hour} {day} {month} {weekday} {labels[2]}",
        f"5{rng.randint(6, 9)} {hour} * * 7 {labels[3]}",
    ]
    last = int(table[3].split()[0])

    def both(in_month: bool, in_week: bool) -> list[str]:
        return labels[2:3] if variant["day-and-weekday"](in_month, in_week) else []

    cases = [
        *((2 * step - other, f"{day - 1} {month} 6", []) for other in range(5)),
        (55, f"{day} {month} {weekday + 1}", both(True, False)),
        (55, f"{day + 1} {month} {weekday}", both(False, True)),
        (55, f"{day} {month} {weekday}", both(True, True)),
        (55, f"{day + 1} {month} {weekday + 2}", []),
        (last, f"{day} {month} 0", labels[3:]),
        (minute, f"{day - 2} {month} {weekday + 1}", labels[1:2]),
    ]
    times = [(f"{at} {hour} {rest}", [*labels[: (at + offset) % step == 0], *due]) for at, rest, due in cases]
    rng.shuffle(times)
    names = variant.names
    own = [
        (f"{names['minute']} {names['hour']} {day} {month} 6", "nightly"),
        (f"{names['later']} {names['hour']} {day} {month} 0", "rotate"),
    ]
    inputs = {
        "table": f"# {token(rng)}\n" + "\n".join(table) + "\n",
        "times": "".join(f"{time}\n" for time, _ in times),
        "own": "".join(f"{time}\n" for time, _ in own),
    }
    due_jobs = [*(due for _, due in times), *([job] for _, job in own)]
    answers = [variant["due-head"] + "".join(variant["due-separator"] + job for job in due) for due in due_jobs]
    command = f"bin/due $IN/table $IN/times; bin/due {names['etc']}/crontab $IN/own"
    return Check("jobs", command, "\n".join(answers), inputs)


def _questions(rng: random.Random, files: dict[str, str], manifest: str) -> list[Question]:
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
        files[f"store/{date}/{manifest}"] = "\n".join(lines) + "\n"
    changed = rng.sample([path for path in paths if len(history[path]) > 3], ASKED)
    days = rng.sample(dates, ASKED)
    return [
        asked_together([_previous_checksum(path, history[path][-2], manifest) for path in changed]),
        asked_together([_largest_file(f"store/{date}/{manifest}", date, files) for date in days]),
    ]


def _previous_checksum(path: str, checksum: str, manifest: str) -> Question:
    return Question(
        "previous-checksum",
        f"Which checksum did {path} have before its present one, by the manifests in store/?",
        checksum,
        [
            "ls store | tail -2",
            f"grep -h ' {path}$' store/*/{manifest} | cut -d' ' -f1 | uniq | tail -2 | head -1",
        ],
    )


def _largest_file(path: str, date: datetime.date, files: Mapping[str, str]) -> Question:
    largest = max((line.split() for line in files[path].splitlines()), key=lambda cells: (int(cells[1]), cells[0]))
    return Question(
        "largest-file",
        f"Which checksum has the largest file in the backup of {date}?",
        largest[0],
        [f"head -2 {path}", f"sort -k2,2n -k1,1 {path} | tail -1 | cut -d' ' -f1"],
    )
