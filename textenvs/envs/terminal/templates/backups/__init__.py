"""The template *backups*: scripts that copy folders into a store, remove old copies, and say which jobs are due.

It needs bash, awk (mawk is enough), findutils and coreutils.
"""

from __future__ import annotations

import datetime
import hashlib
import random
from collections.abc import Mapping, Sequence

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, GOODS, SERVICES, asked_together, fault_of_edits, notes, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import BACKUP, COMMON, CONF, CRONTAB, DUE, DUE_AWK, FOLDERS, ROTATE


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
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
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/backup": BACKUP,
        "bin/rotate": ROTATE,
        "bin/due": DUE,
        "@lib@/common.sh": COMMON,
        "@lib@/due.awk": DUE_AWK,
        "@etc@/backup.conf": CONF,
        "@etc@/backup.conf.rpmsave": CONF.replace("=no", "=yes").replace("@newest@", "90"),
        "@etc@/crontab": CRONTAB,
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
    faults = [*variant.edits(EDITS, files, looks), *variant.faults(rng, files, looks), _subshell(variant, looks)]
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
    copied_files |= {f"{name}/a": f"{token(rng)}\n" for name in FOLDERS if name != variant["excluded-folder"]}
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
