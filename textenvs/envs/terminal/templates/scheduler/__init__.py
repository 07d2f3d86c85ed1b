"""The template *scheduler*: tables of timed jobs, with dependencies, windows and days without runs, and a log of them.

It needs bash, awk (mawk is enough), sed, sort and coreutils.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from shlex import quote

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    GOODS,
    asked_together,
    fault_of_command,
    fault_of_edits,
    file_in_the_way,
    lost_permission,
    notes,
)
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .data import HOSTS, MARKS, Plan, Tables, draw_log, draw_tables, missed
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    BUSY,
    BUSY_DAY,
    CALENDAR,
    DAYS,
    FIELDS,
    FORMATS,
    JOBS,
    LATER,
    LOAD,
    LOG,
    MISSED,
    NEXT,
    PLAN,
    RUNS,
    SETTINGS,
    SHELL_FUNCTIONS,
)

#: Rules whose options may give the same output by chance.
_BY_CHANCE = ("overlap", "order-of-plan", "successful-exits")
_DAY = 1440


def _reordered(rng: random.Random, blocks: Sequence[str]) -> str:
    """Return the text of blocks with the functions among them in another order."""
    result = list(blocks)
    places = [place for place, block in enumerate(blocks) if "\nfunction " in f"\n{block}" or "() {" in block]
    for place, block in zip(places, [blocks[place] for place in rng.sample(places, len(places))], strict=True):
        result[place] = block
    return "\n".join(result)


#: Ways to write a step of a program, by its name in the texts; pairs of them.
_SHAPES: Sequence[Mapping[str, str]] = (
    {
        "loop_of_tables": "while read -r title || [[ -n $title ]]; do",
        "end_of_tables": 'done < <(clean "$1/tables.txt")',
    },
    {"loop_of_tables": 'for title in $(clean "$1/tables.txt"); do', "end_of_tables": "done"},
    {
        "number_of_day": "total = day\n    while (--month) total += length_of_month(year, month)\n"
        "    while (--year >= 2000) total += 365 + is_leap(year)\n    return total"
    },
    {
        "number_of_day": "if (month < 3) {\n        month += 12\n        year--\n    }\n"
        "    total = 365 * year + int(year / 4) - int(year / 100) + int(year / 400)\n"
        "    return total + int((153 * (month - 3) + 2) / 5) + day"
    },
)


def _programs(rng: random.Random, names: dict[str, object]) -> dict[str, str]:
    """Draw how the programs are written and divided, which does not depend on rules; add the files to ``names``."""
    own, lib = random.Random(rng.getrandbits(64)), names["lib"]
    blocks = {"calendar": [*CALENDAR], "fields": [*FIELDS], "days": [*DAYS], "runs": [*RUNS], "log": [*LOG]}
    for name, home, key in (("value", "fields", "value_file"), ("moved", "days", "moved_file")):
        other = {"fields": "days", "days": "runs"}[home]
        [block] = [block for block in blocks[home] if f"function {name}(" in block]
        names[key] = f"{lib}/{home}.awk"
        if own.random() < 0.5:
            blocks[home].remove(block)
            blocks[other].append(block)
            names[key] = f"{lib}/{other}.awk"
    texts = {f"@lib@/{name}.awk": _reordered(own, parts) for name, parts in blocks.items()}
    texts["@lib@/load.sh"] = LOAD.replace("@shell_functions@\n", _reordered(own, SHELL_FUNCTIONS))
    for place in range(0, len(_SHAPES), 2):
        for part, code in _SHAPES[place + own.randint(0, 1)].items():
            texts = {path: text.replace(f"@{part}@", code) for path, text in texts.items()}
    return texts | {
        "@lib@/jobs.awk": JOBS,
        "@lib@/busy.awk": BUSY,
        "@lib@/later.awk": LATER,
        "bin/plan": PLAN,
        "bin/next": NEXT,
        "bin/missed": MISSED,
        "bin/busy": BUSY_DAY,
    }


@dataclass(frozen=True)
class _Reports:
    """Outputs of the programs by the rules of a project."""

    plan: Plan
    log: str

    @property
    def _tables(self) -> Tables:
        return self.plan.tables

    def planned(self) -> list[str]:
        variant, tables = self.plan.variant, self._tables
        key, line = variant["order-of-plan"], variant["plan-line"]
        runs = sorted(self.plan.between(tables.first, tables.last), key=lambda r: (r.moment, key(r), r.line))
        return [line.format(r.date, r.clock, r.name, r.machine, r.take, r.date[5:]) for r in runs]

    @property
    def queries(self) -> list[tuple[str, str, list[str]]]:
        """The dates, times and jobs that `next` is called with."""
        special, tables = self._tables.special, self._tables
        date = str(tables.first + timedelta(days=2))
        marked = [job.name for job in tables.jobs if job.name[0] in MARKS]
        names = [special[key] for key in ("plain", "rare", "far", "twice", "weekly", "after-night")]
        return [(date, "06:30", [*names, "nothing", marked[0]]), (date, "06:45", [special["plain"], *marked])]

    def next(self) -> Iterator[str]:
        ahead, variant = int(str(self.plan.variant.names["ahead"])), self.plan.variant
        for date, time, jobs in self.queries:
            last = str(self._tables.first + timedelta(days=2 + ahead))
            for job in jobs:
                runs = [f"{r.date} {r.clock}" for r in self.plan.runs if r.name == job and date <= r.date <= last]
                now = f"{date} {time}"
                later = [run for run in runs if run > now or (run == now and variant["next-at-now"])]
                yield f"{job}: {min(later, default='never')}"

    def missed(self) -> list[str]:
        rows, variant = missed(self.plan, self.log), self.plan.variant
        lines = [
            variant["missed-line"].format(
                r.date, r.clock, r.name, r.machine, outcome, r.date[5:], r.clock.replace(":", ".")
            )
            for r, outcome in rows
        ]
        return [*lines, f"status {variant['status-of-missed'] if rows else 0}"]

    def busy(self) -> list[str]:
        variant, day = self.plan.variant, self._tables.logged[1]
        begin = _DAY * day.toordinal()
        counts, runs = Counter[tuple[str, int]](), self.plan.between(day - timedelta(days=1), day)
        minutes = [(r.machine, r.moment + n) for r in runs for n in range(r.take)]
        minutes = [(machine, minute) for machine, minute in minutes if begin <= minute < begin + _DAY]
        for machine, minute in [*dict.fromkeys(minutes)] if variant["overlap"] == "once" else minutes:
            counts[machine, (minute - begin) // 60] += 1
        line = variant["busy-line"]
        return [line.format(machine, hour, n, hour + 1) for (machine, hour), n in sorted(counts.items())]

    def by(self, variant: Variant) -> list[str]:
        """Return some outputs by other rules about reports; the runs are the same."""
        plan = Plan(variant, self._tables)
        plan.__dict__["runs"] = self.plan.runs
        other = replace(self, plan=plan)
        return [*other.planned(), *other.busy(), *other.missed()]


def _checks(rng: random.Random, variant: Variant) -> list[Check]:
    for _ in range(DRAWS):
        plan = Plan(variant, draw_tables(rng))
        reports = _Reports(plan, draw_log(rng, plan))
        if variant.separates(_BY_CHANCE, reports.by):
            break
    tables = plan.tables
    inputs = {f"night jobs/{name}": text for name, text in tables.files(rng).items()}
    queries = [
        f"\"$P/bin/next\" 'night jobs' {date} {time} {' '.join(map(quote, jobs))}"
        for date, time, jobs in reports.queries
    ]
    begin = 'P=$PWD; cd "$IN"; '
    first, last = tables.logged
    return [
        Check(
            "plan",
            f"{begin}\"$P/bin/plan\" 'night jobs' {tables.first} {tables.last}; {'; '.join(queries)}",
            "\n".join([*reports.planned(), *reports.next()]),
            inputs,
        ),
        Check(
            "log",
            f'{begin}"$P/bin/missed" \'night jobs\' {first} {last} jobs.log; echo "status $?"; '
            f"\"$P/bin/busy\" 'night jobs' {last}",
            "\n".join([*reports.missed(), *reports.busy()]),
            {**inputs, "jobs.log": reports.log},
        ),
    ]


def _names(rng: random.Random) -> dict[str, object]:
    machines = [
        f"{rng.choice('abcdefghkmnpst')}{rng.choice('aeiou')}{rng.choice('lnrst')}{n}"
        for n in rng.sample(range(10, 99), 4)
    ]
    # In the order of machines: db, files, mail, web.
    hosts = dict(zip(("files", "mail", "db", "web"), sorted(machines), strict=True))
    names: dict[str, object] = {f"machine_{host}": machine for host, machine in hosts.items()}
    take, gap = rng.randint(9, 16), rng.randint(4, 8)
    names |= {"take": take, "gap": gap, "ahead": rng.randint(36, 42), "usual": rng.choice(HOSTS[:4])}
    names |= {"lib": rng.choice(["lib", "share", "inside", "awk", "core"])}
    return names | {"settings": rng.choice(["scheduler", "jobs", "settings", "times"])}


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the programs, an example of tables with a log, logs of a year, and machines in racks."""
    names = _names(rng)
    texts = _programs(rng, names)
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    files = variant.files(texts) | variant.document(rng)
    files["etc/@settings@.conf"] = SETTINGS
    files["etc/@settings@.conf.old"] = SETTINGS.replace("@take@", "30").replace("@usual@", "web").replace("@gap@", "3")
    hosts = [(host, names[f"machine_{host}"]) for host in HOSTS[:4]]
    files["etc/hosts-2025.txt"] = "".join(f"{host} {machine}\n" for host, machine in rng.sample(hosts, 4))
    files["etc/hosts-2024.txt"] = "".join(
        f"{host} {machine}\n" for (host, _), (_, machine) in zip(hosts, hosts[1:] + hosts[:1], strict=True)
    )
    files = {
        variant.words(path): variant.words(text) if path.startswith("etc/") else text for path, text in files.items()
    }
    # Nothing reads these.
    files["old/log.awk"] = variant.outdated(texts["@lib@/log.awk"])
    files["old/busy.awk"] = variant.outdated(BUSY)
    files |= {"docs/tables.md": variant.words(FORMATS), "docs/notes.md": notes(rng, "Notes on jobs", 10)}
    tables = draw_tables(rng)
    files |= {f"cron/{name}": text for name, text in tables.files(rng).items()}
    usual = replace(variant, chosen={rule.name: rule.options[0] for rule in RULES})
    files["cron/jobs.log"] = draw_log(rng, Plan(usual, tables))
    questions = _questions(rng, files, [job.name for job in tables.jobs if job.name[0].isalpha()][:24])
    fixed = frozenset(path for path in files if path.startswith(("cron/", "history/", "racks/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, variant)

    about = (
        "`bin/plan`, `bin/next`, `bin/missed` and `bin/busy` read tables of jobs, for example "
        f"`bin/plan cron {tables.first} {tables.last}`. `docs/tables.md` describes the tables and the programs, and "
        f"`{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", "tail -n +1 bin/* etc/*; cat docs/tables.md", variant.words("tail -n +1 @lib@/*")]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, files, looks),
    ]
    modes = dict.fromkeys(["bin/plan", "bin/next", "bin/missed", "bin/busy"], 0o755)
    setup = "ln -s hosts-2025.txt etc/hosts.txt"
    return Project(about, files, faults, checks, modes, setup, fixed, questions)


def _faults_of_files(variant: Variant, files: Mapping[str, str], looks: Sequence[str]) -> list[Fault]:
    lib, words = variant.names["lib"], variant.words
    path, old = f"{lib}/busy.awk", "old/busy.awk"
    lines = zip(files[old].splitlines(), files[path].splitlines(), strict=True)
    script = "\n".join(
        f"{n}c\\{new.replace(chr(92), chr(92) * 2)}" for n, (one, new) in enumerate(lines, start=1) if one != new
    )
    return [
        Fault(
            "missing-program",
            "`busy` prints nothing at all.",
            [*looks, "cat old/busy.awk", f"cat {variant.page}"],
            f"sed {quote(script)} {old} > {path}",
            removed=[path],
        ),
        fault_of_edits(
            "log-of-any-machine",
            "Runs are not missed, though the machine that they belong to was off.",
            [
                (f"{lib}/log.awk", '    key = word[2] SUBSEP field("job")\n', '    key = field("job")\n'),
                (f"{lib}/log.awk", "    key = $4 SUBSEP $3\n", "    key = $3\n"),
            ],
            looks,
        ),
        file_in_the_way(
            words("etc/@settings@.local"),
            words("# Tried on one machine.\nTAKE=45\nHOST=test\n"),
            [*looks, "ls etc"],
            "Jobs are on a machine that we do not have.",
            "settings-of-a-trial",
        ),
        fault_of_command(
            "link-to-old-hosts",
            "Jobs are not on the machines on which they are this year.",
            [*looks, "ls -l etc"],
            "ln -sfn hosts-2024.txt etc/hosts.txt",
            "ln -sfn hosts-2025.txt etc/hosts.txt",
        ),
        lost_permission("bin/missed", looks),
    ]


def _questions(rng: random.Random, files: dict[str, str], jobs: Sequence[str]) -> list[Question]:
    """Draw logs of a year and machines in racks, and ask about them."""
    longest = draw_journal(
        rng,
        files,
        "history/2024-{:02}.log",
        jobs,
        range(2, 90_000),
        lambda month, job, seconds, run: (
            f"2024-{month:02}-{rng.randint(1, 28):02} run={run} exit={rng.randint(0, 1)} {job} took {seconds} s"
        ),
    )
    rack_of = draw_lists(
        rng, files, "racks", "rack", lambda serial: f"{rng.choice(GOODS)}{rng.randint(1, 40)} {serial}", counts=(16, 30)
    )
    return [
        asked_together([_longest_run(one, longest[one]) for one in rng.sample([*longest], ASKED)]),
        asked_together([_rack_of_serial(one, rack_of[one]) for one in rng.sample(sorted(rack_of), ASKED)]),
    ]


def _longest_run(job: str, run: str) -> Question:
    command = f"grep -h ' {job} took ' history/* | sed 's/.* run=\\([^ ]*\\).* took /\\1 /' | sort -k2,2n | tail -1"
    return Question(
        "longest-run",
        f"Which run of the job {job} took longest, by history/?",
        run,
        ["head -3 history/2024-01.log", f"{command} | cut -d' ' -f1"],
    )


def _rack_of_serial(serial: str, rack: str) -> Question:
    return Question(
        "rack-of-serial",
        f"Which rack has the machine with the serial {serial}, by racks/?",
        rack,
        [f"grep -r {serial} racks", f"grep -l ' {serial}$' racks/* | xargs sed -n 's/^rack //p'"],
    )
