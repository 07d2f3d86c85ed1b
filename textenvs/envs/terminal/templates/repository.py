"""The template *repository*: a program in shell and awk that quotes parcels, with the history of its repository.

It needs git, sh, awk (mawk is enough), sed, tar and coreutils.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote

from ..project import Check, Edit, Fault, Project, Question
from .parts import ASKED, CITIES, COLOURS, GOODS, TOWNS, asked_together, fault_of_command, notes, person, token
from .variation import Option, Rule, Variant

_QUOTE = """#!/bin/sh
# Quotes parcels: lines REFERENCE PLACE GRAMS KIND PARTNER on standard input.
cd "$(dirname "$0")" || exit 1
exec awk -f @lib@/round.awk -f @lib@/surcharge.awk -f @lib@/quote.awk zones/*.txt surcharges.txt discounts.txt -
"""
_AWK = """# A file in zones/: its name is the zone's; then BASE PER_KILOGRAM, then places, one a line.
FILENAME ~ /^zones\\// {
    if (FNR == 1) { base = $1; kilogram = $2 } else { base_of[$1] = base; kilogram_of[$1] = kilogram }
    next
}
FILENAME == "surcharges.txt" { surcharge_of[$1] = $2; next }
FILENAME == "discounts.txt" { discount_of[$1] = $2; next }
!($2 in base_of) { @unknown_place@; next }
{
    cents = base_of[$2] + kilogram_of[$2] * @kilograms@ + surcharge($4)
    price = rounded(@discount@ discount_of[$5] / 100)
    @quote_line@
}
"""
_ROUND_FIRST = """# Cents, as they are charged.
function rounded(cents) {
    return int(cents)
}
"""
_ROUND = """# Cents, as they are charged: multiples of @step@.
function rounded(cents) {
    return @rounding@
}
"""
_SURCHARGE_FIRST = """# Cents to add for a kind of parcel.
function surcharge(kind) {
    return surcharge_of[kind]
}
"""
_SURCHARGE = """# Cents to add for a kind of parcel; kinds without an entry cost what "other" does.
function surcharge(kind) {
    return kind in surcharge_of ? surcharge_of[kind] : surcharge_of["other"]
}
"""
_AT = """#!/bin/sh
# Quotes parcels with the program of a tag. Usage: tools/at.sh TAG < PARCELS
cd "$(dirname "$0")/.." || exit 1
folder=$(mktemp -d)
git archive "$1" | tar -x -C "$folder"
"$folder/quote.sh"
rm -r "$folder"
"""
_RULES = (
    Rule(
        "unknown-place",
        "@lib@/quote.awk",
        "The shop does not understand the answer for places that are in no zone.",
        [
            Option(f'print $1, "{words}"', f"A parcel to a place that is in no zone is answered with `{words}`.", words)
            for words in ("no zone", "not served", "unknown", "no such place", "-")
        ],
    ),
    Rule(
        "kilograms",
        "@lib@/quote.awk",
        "The weights of parcels are not charged as the tariff says.",
        [
            Option(
                "int(($3 + 999) / 1000)",
                "A kilogram that has begun is charged as a whole one.",
                lambda g: -(-g // 1000),
            ),
            Option(
                "($3 < 1000 ? 1 : int($3 / 1000))",
                "Whole kilograms are charged, and at least one.",
                lambda g: max(1, g // 1000),
            ),
            Option(
                "int(($3 + 1999) / 2000) * 2",
                "The weight is rounded up to a multiple of 2 kg.",
                lambda g: -(-g // 2000) * 2,
            ),
            Option(
                "int(($3 + 499) / 500)",
                "The rate of a kilogram applies to each started 500 g.",
                lambda g: -(-g // 500),
            ),
            Option("int($3 / 1000 + 1)", "Whole kilograms are charged, and one more.", lambda g: g // 1000 + 1),
        ],
    ),
    Rule(
        "discount",
        "@lib@/quote.awk",
        "Partners do not pay what was agreed with them.",
        [
            Option("cents - cents *", "A partner's discount is on all.", lambda base, extra, cents: cents),
            Option(
                "cents - base_of[$2] *", "A partner's discount is on the base alone.", lambda base, extra, cents: base
            ),
            Option(
                "cents - surcharge($4) *",
                "A partner's discount is on the surcharge alone.",
                lambda base, extra, cents: extra,
            ),
            Option(
                "cents - (cents - surcharge($4)) *",
                "A partner's discount is on all but the surcharge.",
                lambda base, extra, cents: cents - extra,
            ),
        ],
    ),
    Rule(
        "quote-line",
        "@lib@/quote.awk",
        "The shop cannot read quotes any more.",
        [
            Option("print $1, price", "A quote is `REFERENCE CENTS`.", "{0} {1}"),
            Option("print price, $1", "A quote is `CENTS REFERENCE`.", "{1} {0}"),
            Option('print $1 ": " price', "A quote is `REFERENCE: CENTS`.", "{0}: {1}"),
            Option('print $1 "=" price', "A quote is `REFERENCE=CENTS`.", "{0}={1}"),
            Option("print $1, $2, price", "A quote is `REFERENCE PLACE CENTS`.", "{0} {2} {1}"),
        ],
    ),
    Rule(
        "rounding",
        "@lib@/round.awk",
        "Quotes are charged with too much or too little, by some cents.",
        [
            Option(
                "int((int(cents) + @step@ - 1) / @step@) * @step@",
                "Quotes are rounded up to multiples of @step@ cents.",
                lambda c, s: -(-c // s) * s,
            ),
            Option(
                "int(int(cents) / @step@) * @step@",
                "Quotes are rounded down to multiples of @step@ cents.",
                lambda c, s: c // s * s,
            ),
            Option(
                "int((int(cents) + @half@) / @step@) * @step@",
                "Quotes are rounded to the nearest multiple of @step@ cents, a half up.",
                lambda c, s: (c + s // 2) // s * s,
            ),
            Option(
                "int(int(cents) / @step@ + 1) * @step@",
                "Quotes are the next multiple of @step@ cents, always more than the sum.",
                lambda c, s: (c // s + 1) * s,
            ),
        ],
    ),
)
_IDENTIFIERS = "base kilogram base_of kilogram_of surcharge_of discount_of cents rounded surcharge kind price"
_IGNORE = "*.tmp\n*.orig\n/build/\n"
#: The day of the first commit, 2024-03-04 09:00 UTC, and the hours between two of them.
_START_S, _HOURS = 1_709_542_800, 31


@dataclass
class _History:
    """A stream for ``git fast-import``."""

    lines: list[str] = field(default_factory=list)
    commits: int = 0

    def commit(
        self, branch: str, author: str, message: str, files: Mapping[str, str], *, start: str = "", merge: str = ""
    ) -> None:
        """Add a commit of these files to a branch, which begins at ``start`` where it is new."""
        self.commits += 1
        who = (
            f"{author} <{author.lower().replace(' ', '.')}@example.com> {_START_S + 3600 * _HOURS * self.commits} +0000"
        )
        self.lines += [f"commit refs/heads/{branch}", f"author {who}", f"committer {who}", *_data(message)]
        self.lines += [f"from {start}"] if start else []
        self.lines += [f"merge refs/heads/{merge}"] if merge else []
        for path, content in files.items():
            self.lines += [f"M {'100755' if path.endswith('.sh') else '100644'} inline {path}", *_data(content)]
        self.lines.append("")

    def tag(self, name: str) -> None:
        self.lines += [f"reset refs/tags/{name}", "from refs/heads/main", ""]

    @property
    def setup(self) -> str:
        """The command that makes the repository."""
        stream = "\n".join([*self.lines, "done"])
        make = "git init -q . && git fast-import --quiet --done <<'END-OF-HISTORY' && git reset -q"
        return f"{make}\n{stream}\nEND-OF-HISTORY"


def _data(text: str) -> list[str]:
    return [f"data {len(text.encode())}", text]


@dataclass(frozen=True)
class _Tariff:
    """A tariff: base and kilogram's cents by place; surcharges by kind; discounts by partner; the step of rounding."""

    places: Mapping[str, tuple[int, int]]
    surcharges: Mapping[str, int]
    discounts: Mapping[str, int]
    step: int
    variant: Variant

    def quote(self, reference: str, place: str, grams: int, kind: str, partner: str) -> str:
        """Return the line of a parcel's quote."""
        variant = self.variant
        if place not in self.places:
            return f"{reference} {variant['unknown-place']}"
        base, kilogram = self.places[place]
        extra = self.surcharges.get(kind, self.surcharges["other"])
        cents = base + kilogram * variant["kilograms"](grams) + extra
        cents = (cents * 100 - variant["discount"](base, extra, cents) * self.discounts.get(partner, 0)) // 100
        return str(variant["quote-line"].format(reference, variant["rounding"](cents, self.step), place))


@dataclass(frozen=True)
class _Names:
    """Zones that faults are about, the island's kind of parcel, and the zone whose rates others raise at the end."""

    deleted: str
    branch: str
    island: str
    version: str
    lib: str
    raised: str


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: zones with their places, rates, people, and the commits that made them."""
    lib, step = rng.choice(["lib", "awk", "src"]), rng.choice([5, 10, 20])
    zones = rng.sample([f"{colour}-{number}" for colour in COLOURS for number in range(1, 4)], rng.randint(24, 34))
    kinds, partners = rng.sample(GOODS, 4), [token(rng, 5) for _ in range(4)]
    names = _Names(zones[3], zones[-1], kinds[-1], f"v{rng.randint(2, 4)}.{rng.randint(0, 9)}", lib, zones[7])
    places, texts = dict[str, tuple[int, int]](), dict[str, str]()
    of_zone = dict[str, list[str]]()
    for number, zone in enumerate(zones):
        base, kilogram = rng.randint(301, 999), rng.randint(51, 199)
        of_zone[zone] = [f"{rng.choice([*CITIES, *TOWNS]).replace(' ', '-')}-{number}{letter}" for letter in "abcd"]
        texts[zone] = "\n".join([f"{base} {kilogram}", *of_zone[zone]]) + "\n"
        places |= dict.fromkeys(of_zone[zone], (base, kilogram))
    surcharges = {"other": rng.randint(51, 99)} | {kind: rng.randint(101, 999) for kind in kinds}
    discounts = {partner: rng.randint(5, 30) for partner in partners}
    raised = names.raised  # since the faults were made
    rates = (places[of_zone[raised][0]][0] + rng.randint(11, 99), places[of_zone[raised][0]][1] + rng.randint(11, 99))
    variant = Variant.draw(rng, _RULES, _IDENTIFIERS, {"lib": lib, "step": step, "half": step // 2}, stated)
    now = _Tariff(places | dict.fromkeys(of_zone[raised], rates), surcharges, discounts, step, variant)
    before = _Tariff(
        {place: rates for place, rates in places.items() if place not in of_zone[names.branch]},
        {kind: cents for kind, cents in surcharges.items() if kind != names.island},
        discounts,
        step,
        variant,
    )
    files, history, questions = _commits(rng, names, texts, now, before)

    def checks(fresh: random.Random) -> Sequence[Check]:
        must = [of_zone[names.deleted][0], of_zone[names.branch][1], of_zone[raised][2]]
        return [
            _quotes(fresh, "quotes", "./quote.sh", now, must, names),
            _quotes(fresh, "archive", _ARCHIVE, now, must, names),
            _quotes(fresh, "tagged", f"tools/at.sh {names.version}", before, must, names),
            _status(fresh, zones[5]),
        ]

    about = (
        "`./quote.sh` quotes parcels from standard input by the files of `zones/`. Releases are the last commit of "
        "the branch `main`, so a repair of a tracked file is committed there. History is never rewritten. "
        f"`{variant.page}` says how parcels are quoted."
    )
    modes = {path: 0o755 for path in files if path.endswith(".sh")}
    file = f"zones/{raised}.txt"
    later = (
        f"sed -i '1s/.*/{rates[0]} {rates[1]}/' {file} && "
        f"git commit -q --no-verify -m 'New rates of zone {raised} (T-{token(rng)})' -- {file}"
    )
    return Project(
        about,
        files,
        _faults(rng, names, zones[5], now, files),
        checks,
        modes,
        history.setup,
        questions=questions,
        later=later,
        keeps_history=True,
    )


_ARCHIVE = "mkdir /tmp/released && git archive main | tar -x -C /tmp/released && /tmp/released/quote.sh"


def _commits(
    rng: random.Random, names: _Names, zones: Mapping[str, str], now: _Tariff, before: _Tariff
) -> tuple[dict[str, str], _History, list[Question]]:
    """Return the files of the last commit, the history, and questions about it."""
    history, files, people = _History(), dict[str, str](), [person(rng) for _ in range(5)]
    variant = now.variant
    larger = replace(variant, names={**variant.names, "step": 3 * now.step, "half": 3 * now.step // 2})

    def commit(
        message: str, changed: Mapping[str, str], branch: str = "main", start: str = "", merge: str = ""
    ) -> None:
        history.commit(branch, rng.choice(people), message, changed, start=start, merge=merge)
        if branch == "main":
            files.update(changed)

    def table(entries: Mapping[str, int]) -> str:
        return "".join(f"{name} {number}\n" for name, number in entries.items())

    first = {
        "quote.sh": _QUOTE,
        f"{names.lib}/quote.awk": _AWK,
        f"{names.lib}/round.awk": _ROUND_FIRST,
        f"{names.lib}/surcharge.awk": _SURCHARGE_FIRST,
        ".gitignore": _IGNORE,
        "surcharges.txt": table(before.surcharges),
        "discounts.txt": "",
    }
    commit("First version", variant.files(first) | variant.document(rng))
    tickets = {}
    own = [zone for zone in zones if zone != names.branch]
    for place, zone in enumerate(own):
        tickets[zone] = f"T-{token(rng)}"
        commit(f"Add zone {zone} ({tickets[zone]})", {f"zones/{zone}.txt": zones[zone]})
        if place == 6:
            history.tag("v1.0")
        if place == 9:
            commit(f"Round to {now.step} cents", {f"{names.lib}/round.awk": variant.text(_ROUND)})
        if place == 12:
            commit("Discounts of partners", {"discounts.txt": table(now.discounts)})
            experiment = {f"{names.lib}/round.awk": larger.text(_ROUND)}
            commit("Try larger steps", experiment, "larger-steps", "refs/heads/main")
        if place == 15:
            commit("Charge kinds without an entry", {f"{names.lib}/surcharge.awk": variant.text(_SURCHARGE)})
            commit("Quote with the program of a tag", {"tools/at.sh": _AT})
    # The branch began before the release, and was merged after it.
    zone_file = {f"zones/{names.branch}.txt": zones[names.branch]}
    commit(f"Add zone {names.branch}", zone_file, f"zone-{names.branch}", "refs/heads/main")
    commit(f"Release {names.version}", {"VERSION": f"{names.version}\n"})
    history.tag(names.version)
    commit(f"Merge branch 'zone-{names.branch}'", zone_file, merge=f"zone-{names.branch}")
    commit("Notes", {"docs/notes.md": notes(rng, "Notes", 8)})
    commit(f"Surcharge for {names.island}", {"surcharges.txt": table(now.surcharges)})
    commit("More notes", {"docs/old-notes.md": notes(rng, "Older notes", 8)})
    return files, history, _questions(rng, [zone for zone in own if zone != names.raised], tickets, zones)


def _questions(
    rng: random.Random, own: Sequence[str], tickets: Mapping[str, str], zones: Mapping[str, str]
) -> list[Question]:
    chosen = rng.sample(own, 2 * ASKED)
    lines = [(rng.choice(zones[zone].splitlines()[1:]), tickets[zone]) for zone in chosen[:ASKED]]
    return [
        asked_together([_commit_of_line(*line) for line in lines]),
        asked_together([_commit_of_file(zones[zone].splitlines()[0], tickets[zone]) for zone in chosen[ASKED:]]),
    ]


def _commit_of_line(line: str, ticket: str) -> Question:
    return Question(
        "commit-of-line",
        f"Which ticket (T-...) does the message of the commit name that introduced the place {line}?",
        ticket,
        ["git log --oneline | head", f"git log --format=%s -S{line} | tail -1 | grep -o 'T-[0-9a-f]*'"],
    )


def _commit_of_file(rates: str, ticket: str) -> Question:
    zone = f"$(grep -lx '{rates}' zones/*)"
    return Question(
        "commit-of-file",
        f"Which ticket (T-...) introduced the zone whose first line is '{rates}'?",
        ticket,
        [f"grep -lx '{rates}' zones/*", f"git log --format=%s -- {zone} | tail -1 | grep -o 'T-[0-9a-f]*'"],
    )


def _committed(fault: Fault, save: str) -> Fault:
    """Return the fault of an edit as one that is committed, and so is its repair; ``save`` begins a commit."""
    [edit] = fault.edits
    make = f"{Edit(edit.path, edit.new, edit.old).undo} && {save} 'Tidy up {edit.path}' -- {edit.path}"
    repair = f"{fault.repair} && {save} 'Do as agreed: {fault.kind}' -- {edit.path}"
    return replace(fault, repair=repair, edits=(), command=make)


def _faults(rng: random.Random, names: _Names, zone: str, tariff: _Tariff, files: Mapping[str, str]) -> list[Fault]:
    """Return the faults; each is about files of its own, so that any of them go together."""
    looks, save = ["git status", "git log --oneline --graph --all | head -40"], "git commit -q --no-verify -m"
    surcharge, deleted = f"{names.lib}/surcharge.awk", f"zones/{names.deleted}.txt"
    branch, secret = f"zone-{names.branch}", f"key_live_{token(rng, 12)}"
    markers = (
        r"/^    return/{s/^/<<<<<<< HEAD\n/;s/$/\n=======\n    return "
        + tariff.variant.text("surcharge_of[kind] + ")
        + str(rng.randint(2, 90))
        + r"\n>>>>>>> bulky/}"
    )
    mixed = f"/{rng.choice(list(tariff.discounts))}/d"
    newest = "git log -1 --format=%H --grep"
    onto = "git -c rebase.autoStash=true rebase -q --onto"
    island = f"^Surcharge for {names.island}"
    return [
        *(_committed(fault, save) for fault in tariff.variant.faults(rng, files, looks)),
        *_faults_of_checkout(zone, looks, save),
        fault_of_command(
            "bad-merge",
            "Since the last merge, every quote ends with a syntax error.",
            [*looks, f"cat {surcharge}"],
            f"sed -i {quote(markers)} {surcharge} && {save} \"Merge branch 'bulky'\" -- {surcharge}",
            f"c=$({newest}=\"^Merge branch 'bulky'\") && git show $c^:{surcharge} > {surcharge} && "
            f"{save} 'Resolve the conflict' -- {surcharge}",
        ),
        fault_of_command(
            "reverted-fix",
            "Quotes are no longer multiples of what the tills can charge. This had been repaired last year.",
            [*looks, "git log --oneline --grep=Revert", f"cat {names.lib}/round.awk"],
            f"git revert --no-edit $({newest}='^Round to')",
            f"git revert --no-edit $({newest}='^Revert .Round to')",
        ),
        fault_of_command(
            "unmerged-branch",
            f"Places of the zone {names.branch} are not known to the program; the colleague says that it is all done.",
            [*looks, "git branch -a --no-merged main"],
            f"c=$({newest}=\"^Merge branch '{branch}'\") && {onto} $c^1 $c main",
            f"git merge -q --no-edit --no-verify {branch}",
        ),
        fault_of_command(
            "lost-commit",
            f"The surcharge for {names.island} that was in use last week is gone, and git log does not know of it.",
            [*looks, "git reflog", "git log --reflog --oneline | head"],
            f"c=$({newest}='{island}') && {onto} $c^ $c main",
            f"git cherry-pick $(git log --reflog -1 --format=%H --grep='{island}') ",
        ),
        fault_of_command(
            "deleted-file",
            f"Places that have always been served, such as those of {names.deleted}, are not known to the program.",
            [*looks, "git log --diff-filter=D --summary | head -20"],
            f"git rm -q {deleted} && {save} 'Tidy up' -- {deleted}",
            f"git checkout -q $(git log -1 --diff-filter=D --format=%H -- {deleted})^ -- {deleted} && "
            f"{save} 'Restore a zone' -- {deleted}",
        ),
        fault_of_command(
            "moved-tag",
            f"Customers who use {names.version} get the quotes of a much older version.",
            [*looks, "git log --oneline --decorate | grep tag"],
            f"git tag -f {names.version} v1.0",
            f"git tag -f {names.version} $({newest}='^Release {names.version}')",
        ),
        fault_of_command(
            "forgotten-stash",
            "A partner pays the full price, though the discounts were completed yesterday, on this machine.",
            [*looks, "git stash list", "git stash show -p"],
            f"cp discounts.txt /tmp/discounts && sed -i {quote(mixed)} discounts.txt && {save} 'Review discounts' -- "
            "discounts.txt && cp /tmp/discounts discounts.txt && git stash push -q -- discounts.txt",
            f"git stash pop -q && {save} 'Complete discounts' -- discounts.txt",
        ),
        fault_of_command(
            "secret-in-tree",
            "The scanner of the hosting company reports a live key in the files of the branch main.",
            [*looks, "git grep -n key_live main"],
            f"echo TOKEN={secret} > deploy.env && git add deploy.env && {save} 'Settings of uploads' -- deploy.env",
            f"git rm -q deploy.env && {save} 'Remove a key' -- deploy.env",
        ),
    ]


def _faults_of_checkout(zone: str, looks: Sequence[str], save: str) -> list[Fault]:
    """Return the faults of settings that git has beside the files: what it ignores, hooks, attributes, its index."""
    return [
        fault_of_command(
            "overbroad-ignore",
            "New files of zones are not offered for a commit.",
            [*looks, "cat .gitignore"],
            f"echo '*.t*' >> .gitignore && {save} 'Ignore more' -- .gitignore",
            f"sed -i '/^\\*\\.t\\*$/d' .gitignore && {save} 'Ignore less' -- .gitignore",
        ),
        fault_of_command(
            "local-exclude",
            "On this machine, new files of zones are not offered for a commit.",
            [*looks, "touch zones/new.txt; git check-ignore -v zones/new.txt; rm zones/new.txt"],
            "mkdir -p .git/info && echo '/zones/' >> .git/info/exclude",
            "sed -i '/^.zones.$/d' .git/info/exclude",
        ),
        fault_of_command(
            "assume-unchanged",
            f"Changes of the zone {zone} on this machine do not appear in git status.",
            [*looks, "git ls-files -v | grep -v ^H"],
            f"git update-index --assume-unchanged zones/{zone}.txt",
            f"git update-index --no-assume-unchanged zones/{zone}.txt",
        ),
        fault_of_command(
            "failing-hook",
            "Nothing can be committed on this machine.",
            [*looks, "ls -l .git/hooks", "cat .git/hooks/pre-commit"],
            "mkdir -p .git/hooks && printf '#!/bin/sh\\nexec tools/lint.sh\\n' > .git/hooks/pre-commit && "
            "chmod +x .git/hooks/pre-commit",
            "rm .git/hooks/pre-commit",
        ),
        fault_of_command(
            "export-ignore",
            "The archives of new releases quote nothing for some places. In the working copy all is well.",
            [*looks, "cat .gitattributes"],
            f"echo 'zones/{zone[:3]}* export-ignore' >> .gitattributes && git add .gitattributes && "
            f"{save} 'Smaller archives' -- .gitattributes",
            f"git rm -q .gitattributes && {save} 'All files in archives' -- .gitattributes",
        ),
    ]


def _quotes(rng: random.Random, name: str, command: str, tariff: _Tariff, must: Sequence[str], names: _Names) -> Check:
    """Draw parcels; compute their quotes from the tariff. Each place, kind and partner is among them."""
    lines, answers = [], []
    kinds = [*tariff.surcharges, names.island, token(rng)]
    partners = [*tariff.discounts, token(rng)]
    places = [*tariff.places, *must, f"{token(rng)}-1"]
    rng.shuffle(places)
    for number, place in enumerate(places):
        reference, grams = token(rng), rng.choice([1000 * rng.randint(1, 9), rng.randint(1, 9999)])
        kind, partner = kinds[number % len(kinds)], partners[number % len(partners)]
        lines.append(f"{reference} {place} {grams} {kind} {partner}")
        answers.append(tariff.quote(reference, place, grams, kind, partner))
    return Check(name, f"{command} < $IN/parcels.txt", "\n".join(answers), {"parcels.txt": "\n".join(lines) + "\n"})


def _status(rng: random.Random, zone: str) -> Check:
    """Draw a new zone: git offers it and a change for a commit, commits them, and has no key."""
    new, message = f"zones/{token(rng)}.txt", f"Zone {token(rng)}"
    changed = f"zones/{zone}.txt"
    command = (
        f"cp $IN/zone.txt {new}; echo {token(rng)} >> {changed}; git status --porcelain -- {new} {changed}; "
        f"git add {new}; git commit -q -m '{message}' -- {new}; git log -1 --format=%s; git grep -cE key_live_ main"
    )
    inputs = {"zone.txt": f"{rng.randint(100, 999)} {rng.randint(10, 99)}\n{token(rng)}\n"}
    return Check("commit", command, f"M {changed}\n?? {new}\n{message}", inputs)
