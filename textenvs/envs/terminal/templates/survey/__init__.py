"""The template *survey*: a codebook, answers in fixed columns, weights, and tables of them.

It needs sh and Python 3.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    CITIES,
    GOODS,
    TOWNS,
    asked_together,
    file_in_the_way,
    lost_permission,
    notes,
    person,
    token,
)
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import ANSWERS, CODEBOOK, FORMATS, MAIN, TABLES, TABLES_COMMAND, WEIGHTS

#: The values of a person, by variable; ``None`` where there is no answer.
_Record: TypeAlias = dict[str, Any]
#: Rules in whose options the drawn answers must differ; those of other rules differ by construction.
_BY_CHANCE = ("rounds", "largest-weight", "rounding", "fewest", "order-of-categories", "same-person")
_MISSING = {"city": "9", "sex": "9", "age": "99", "income": "999999"}


@dataclass(frozen=True)
class _Survey:
    """A survey: its variables with their columns, their labels, and its people."""

    variant: Variant
    columns: Mapping[str, tuple[int, int]]
    labels: Mapping[str, Mapping[str, str]]
    targets: Mapping[str, Mapping[str, int]]
    people: Sequence[_Record]
    bounds: Sequence[int]
    records: list[_Record] = field(default_factory=list)

    def prepared(self, variant: Variant) -> _Survey:
        """Return it with the records that count by the rules of a project, and their weights."""
        groups = dict[str, list[_Record]]()
        for one in self.people:
            groups.setdefault(one["id"].lower(), []).append(one)
        records = list[_Record]()
        for group in groups.values():
            record = dict(variant["same-person"](group))
            if record["q2"] is not None and record["q1"] != "1":
                if variant["wrong-answers"] == "dropped":
                    continue
                if variant["wrong-answers"] == "cleared":
                    record["q2"] = None
            record["group"] = self.group(variant, record["age"])
            records.append({**record, "weight": 1_000_000})
        self.weigh(variant, records)
        return replace(self, variant=variant, records=records)

    def group(self, variant: Variant, age: int | None) -> str | None:
        pairs = zip(self.bounds, self.bounds[1:], strict=False)
        places = [
            place
            for place, (low, high) in enumerate(pairs, start=1)
            if age is not None and variant["group-bounds"](age, low, high)
        ]
        return str(places[-1]) if places else None

    def weigh(self, variant: Variant, records: Sequence[_Record]) -> None:
        for _ in range(variant["rounds"]):
            for name, shares in self.targets.items():
                sums = {code: sum(one["weight"] for one in records if one[name] == code) for code in shares}
                total = sum(sums.values())
                for one in records:
                    if one[name] is not None:
                        one["weight"] = one["weight"] * shares[one[name]] * total // (100 * sums[one[name]])
        for one in records:
            one["weight"] = min(one["weight"], variant["largest-weight"])

    def percent(self, records: Sequence[_Record], base: Sequence[_Record] | int) -> str:
        if len(records) < self.variant["fewest"]:
            return "*"
        whole = base if isinstance(base, int) else _weight(base)
        tenths = self.variant["rounding"](1000 * _weight(records), whole)
        return f"{tenths // 10}.{tenths % 10}"

    def categories(self, records: Sequence[_Record], name: str) -> list[tuple[str, str, list[_Record]]]:
        """Return code, label and records of each category."""
        rows = [
            (code, label, [one for one in records if one[name] == code]) for code, label in self.labels[name].items()
        ]
        return sorted(rows, key=lambda row: self.variant["order-of-categories"](row[0], row[1], len(row[2])))

    def frequencies(self, records: Sequence[_Record], name: str) -> list[str]:
        answered = [one for one in records if one[name] is not None]
        base = answered if self.variant["base-of-shares"] == "known" else records
        lines = [
            self.variant["share-line"].format(code, label, self.percent(group, base), len(group))
            for code, label, group in self.categories(records, name)
        ]
        return [*lines, f"no answer: {len(records) - len(answered)}"]

    def crosstab(self, records: Sequence[_Record], row: str, column: str) -> list[str]:
        records = [one for one in records if one[row] is not None and one[column] is not None]
        lines = list[str]()
        for _, label, group in self.categories(records, row):
            cells = [
                self.percent(
                    [one for one in group if one[column] == code], self.variant["base-of-cells"](group, other, records)
                )
                for code, _, other in self.categories(records, column)
            ]
            lines.append(self.variant["cells-line"](label, cells, len(group)))
        return lines

    def means(self, records: Sequence[_Record], name: str, by: str) -> list[str]:
        lines = list[str]()
        for _, label, group in self.categories([one for one in records if one[name] is not None], by):
            if group:
                total, divisor = sum(one[name] * one["weight"] for one in group), 100 if name == "income" else 1
                mean = self.variant["rounding"](100 * total, _weight(group) * divisor)
                lines.append(f"{label}: {mean // 100}.{mean % 100:02} ({len(group)})")
        return lines

    def ticks(self, records: Sequence[_Record]) -> list[str]:
        names = [name for name in self.columns if name.startswith("q3_")]
        ticked = {name: [one for one in records if one[name]] for name in names}
        some = [one for one in records if any(one[name] for name in names)]
        bases = {"people": _weight(records), "ticks": sum(map(_weight, ticked.values())), "some": _weight(some)}
        base = bases[self.variant["base-of-ticks"]]
        return [
            f"{self.labels[name]['1']}: {self.percent(group, base)} ({len(group)})" for name, group in ticked.items()
        ]

    def table(self, line: str) -> list[str]:
        command, _, condition = line.partition(" where ")
        records = [
            one for one in self.records if all(self.holds(one, part) for part in condition.split(" and ") if part)
        ]
        kind, *words = command.split()
        if kind == "freq":
            return self.frequencies(records, words[0])
        if kind == "cross":
            return self.crosstab(records, *words)
        if kind == "mean":
            return self.means(records, words[0], words[2])
        if kind == "multi":
            return self.ticks(records)
        weights = [one["weight"] for one in records]
        return [f"{len(weights)} {sum(weights)} {min(weights)} {max(weights)}"]

    def holds(self, record: _Record, condition: str) -> bool:
        name, sign, text = condition.split(" ", 2)
        value = record[name]
        if value is None:
            return False
        limit: Any = text
        if isinstance(value, int):
            limit = int(text) * (100 if name == "income" else 1)
        else:
            limit = next((code for code, label in self.labels[name].items() if label == text), text)
        return bool(
            {
                "=": value == limit,
                "!=": value != limit,
                ">=": value >= limit,
                "<=": value <= limit,
                ">": value > limit,
                "<": value < limit,
            }[sign]
        )

    def codebook(self) -> str:
        """Return the codebook; the label for missing answers is in any case of letters."""
        lines = ["# Columns are counted from 1.", ""]
        for name, (first, last) in self.columns.items():
            place = f"{first}-{last}" if last > first else str(first)
            kind = {"age": "number", "income": "number /100", "id": "text", "note": "text"}.get(name, "code")
            kind = "tick" if name.startswith("q3") else kind
            lines.append(f"{name} {place} {kind}{' if q1 = 1' if name == 'q2' else ''}")
            lines += [f"  {code} = {label}" for code, label in self.labels.get(name, {}).items()]
            if name in _MISSING:
                lines.append(f"  {_MISSING[name]} = {'missing' if name in ('age', 'income') else 'Missing'}")
            lines.append(f"  # {name} was asked")
        return "\n".join(lines) + "\n"

    def line(self, record: _Record, place: int) -> str:
        """Return the line of a person; answers that are missing are blank or have a code."""
        width = max(last for _, last in self.columns.values())
        cells = [" "] * width
        for name, (first, last) in self.columns.items():
            value = record[name]
            if value is None:
                text = _MISSING.get(name, "") if place % 2 else ""
            elif isinstance(value, bool):
                text = "x1"[place % 2] if value else " 0"[place % 2]
            else:
                text = str(value)
            cells[first - 1 : last] = f"{text:>{last - first + 1}}"
        return "".join(cells).rstrip()

    def files(self, rng: random.Random, folder: str) -> dict[str, str]:
        """Return its files: the people are in three files."""
        lines = [self.line(one, place) for place, one in enumerate(self.people)]
        third = len(lines) // 3
        names = [f"{letter}{token(rng, 3)}" for letter in "abc"]
        files = {
            f"answers/{name}.dat": "\n".join([*lines[place * third : (place + 1) * third], "", ""])
            for place, name in enumerate(names)
        }
        files["answers/old.dat.bak"] = "\n".join(lines[:9]).upper().replace(self.people[0]["id"].upper(), "ZZZZ")
        labels = [f"{low}-{high}  {label}" for low, high, label in self.groups()]
        targets = [f"{name} {code} {share}" for name, shares in self.targets.items() for code, share in shares.items()]
        files["groups.txt"] = f"group from age: {',  '.join(labels)}\n"
        files["targets.txt"] = "\n".join(["# VARIABLE CODE SHARE", *targets[:2], "", *targets[2:], ""])
        files["codebook.txt"] = self.codebook()
        return {f"{folder}/{name}": text for name, text in files.items()}

    def groups(self) -> list[tuple[int, int, str]]:
        labels = self.labels["group"].values()
        return list(zip(self.bounds, self.bounds[1:], labels, strict=False))


def _weight(records: Sequence[_Record]) -> int:
    return sum(one["weight"] for one in records)


@dataclass(frozen=True)
class _Tables:
    """A survey, and the tables that are printed of it."""

    survey: _Survey
    lines: Sequence[str]

    def printed(self, variant: Variant) -> list[str]:
        survey = self.survey.prepared(variant)
        return [row for line in self.lines for row in (f"== {line}", *survey.table(line))]


def _tables(rng: random.Random, variant: Variant) -> _Tables:
    """Draw a survey in which each rule shows, and a list of tables."""
    for _ in range(DRAWS):
        tables = _drawn(rng, variant)
        if variant.separates(_BY_CHANCE, tables.printed):
            break
    return tables


def _columns(rng: random.Random) -> dict[str, tuple[int, int]]:
    """Draw the columns of the variables, with gaps between some of them."""
    widths = {"id": 4, "city": 1, "sex": 1, "age": 2, "income": 6, "q1": 1, "q2": 1, "note": 8}
    ticks = dict.fromkeys(["q3_1", "q3_2", "q3_3", "q31_1"], 1)
    columns, place = dict[str, tuple[int, int]](), 1
    for name in rng.sample([*widths, *ticks], len(widths) + len(ticks)):
        place += rng.randint(0, 2)
        width = widths.get(name, 1)
        columns[name] = (place, place + width - 1)
        place += width
    # Conditions and prefixes are about names, not about places.
    return {name: columns[name] for name in [*widths, *ticks]}


def _drawn(rng: random.Random, variant: Variant) -> _Tables:
    """Draw a survey: three cities, of which one has three people, and some people who answered several times."""
    cities = [rng.choice(TOWNS), *rng.sample(CITIES, 2)]
    rng.shuffle(cities)
    goods = rng.sample(GOODS, 7)
    labels: dict[str, dict[str, str]] = {
        "city": dict(zip("123", cities, strict=True)),
        "sex": dict(zip("12", rng.sample(["female", "male"], 2), strict=True)),
        "q1": {"1": f"yes = {goods[0]}", "2": "no", "3": "never"},
        "q2": {"1": goods[1], "2": goods[2], "4": goods[3]},
        **{name: {"1": good} for name, good in zip(("q3_1", "q3_2", "q3_3", "q31_1"), goods[3:], strict=True)},
        "group": dict(zip("123", rng.sample(["young", "middle", "old", "active"], 3), strict=True)),
    }
    share, half = rng.randint(17, 23), rng.randint(45, 55)
    other = rng.randint(30, 40)
    targets = {"city": {"1": other, "2": 100 - share - other, "3": share}, "sex": {"1": half, "2": 100 - half}}
    low, high = rng.randint(28, 32), rng.randint(48, 55)

    def record(**values: Any) -> _Record:
        first = rng.choice("1123")
        drawn: _Record = {
            "id": token(rng, 4),
            "city": rng.choice("111222") if rng.random() < 0.92 else None,
            "sex": rng.choice("12"),
            "age": rng.randint(19, 88) if rng.random() < 0.9 else None,
            "income": rng.randint(100_000, 899_999) if rng.random() < 0.85 else None,
            "q1": first,
            "q2": rng.choice("124") if first == "1" else None,
            "note": rng.choice(["Zoë", "fine", person(rng).split()[0][:8], None]),
            **{name: rng.random() < 0.4 for name in ("q3_1", "q3_2", "q3_3", "q31_1")},
        }
        return {**drawn, **values}

    people = [
        record(city=None, sex=None, age=None, income=None, q1="2", q2=None),
        record(city=None, age=None),
        record(city=None, age=high, sex="1"),
        *(record(city="3", sex=sex) for sex in "112"),
        *(record(age=age) for age in (low, high, low, high)),
        *(record(q1="2", q2=code) for code in "124"),
        *(record() for _ in range(42)),
    ]
    rng.shuffle(people)
    # Both answer several times: one with fewer and more answers, one always with as many.
    gaps, same = token(rng, 4), token(rng, 4)
    several = [
        [record(id=gaps, age=None, note=None, city="1"), record(id=same.upper(), city="1", age=low, income=500_000)],
        [record(id=gaps.title(), age=70, note="fine", city="2", income=700_000)],
        [record(id=gaps, age=20, note=None, city="3"), record(id=same, city="2", age=high, income=100_000)],
    ]
    for group in several:
        for one in group:
            one |= {"sex": "1", "q1": "1", "q2": "1"}
    for one in (several[0][1], several[2][1]):
        one["note"] = "fine"
    several[0][0]["income"] = several[2][0]["income"] = 200_000
    third = len(people) // 3
    parts = [people[:third], people[third : 2 * third], people[2 * third :]]
    most = max(len(part) + len(group) for part, group in zip(parts, several, strict=True))
    for part, group in zip(parts, several, strict=True):
        part += [record() for _ in range(most - len(part) - len(group))]
    ordered = [one for part, group in zip(parts, several, strict=True) for one in (*group, *part)]
    survey = _Survey(variant, _columns(rng), labels, targets, ordered, (18, low, high, 99))
    lines = [
        "freq city",
        "freq q1",
        "freq q2",
        "freq group",
        "cross city sex",
        "cross group q1",
        f"cross sex city where age >= {low}",
        "mean income by city",
        f"mean income by q1 where city != {cities[0]}",
        f"mean age by sex where city = {cities[1]} and income >= {rng.randint(3000, 4000)}",
        f"mean age by city where age = {low}",
        "multi q3",
        "weights",
    ]
    return _Tables(survey, rng.sample(lines, len(lines)))


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the programs, a survey, letters and parcels."""
    names = {"code": rng.choice(["code", "share", "inside", "lib", "steps"])}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/tables": TABLES_COMMAND,
        "@code@/main.py": MAIN,
        "@code@/codebook.py": CODEBOOK,
        "@code@/answers.py": ANSWERS,
        "@code@/weights.py": WEIGHTS,
        "@code@/tables.py": TABLES,
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {
        # Nothing reads these two.
        "old/weights.py": variant.outdated(WEIGHTS).replace("1_000_000", "1000"),
        "old/answers.py": variant.outdated(ANSWERS).replace("one.first - 1", "one.first"),
        "docs/files.md": FORMATS,
        "docs/notes.md": notes(rng, "Notes on surveys", 10),
    }
    tables = _drawn(rng, variant)
    files |= tables.survey.files(rng, "survey") | {"survey/tables.txt": "\n".join(tables.lines[:5]) + "\n"}
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith(("survey/", "letters/", "parcels/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, variant)]

    about = (
        "`bin/tables FOLDER FILE` prints tables of a survey, and `bin/tables FOLDER` those in the folder's own list. "
        f"`survey/` is a survey, `docs/files.md` describes its files, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", "cat bin/tables docs/files.md", variant.words("tail -n +1 @code@/*")]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    return Project(about, files, faults, checks, {"bin/tables": 0o755}, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    return [
        file_in_the_way(
            variant.words("@code@/re.py"),
            '"""Regions, for a later version."""\n\nREGIONS = ("north", "south")\n',
            looks,
            "It ends with an error before it reads anything.",
        ),
        lost_permission("bin/tables", looks),
    ]


def _check(rng: random.Random, variant: Variant) -> Check:
    """Print the tables of a survey from a list of its own; the folder has another list."""
    tables = _tables(rng, variant)
    inputs = tables.survey.files(rng, "the survey")
    inputs["the survey/tables.txt"] = "freq sex\n"
    inputs["list.txt"] = "# Tables\n\n" + "".join(f"{line}  # {token(rng, 3)}\n" for line in tables.lines)
    command = 'bin/tables "$IN/the survey" $IN/list.txt; bin/tables "$IN/the survey"'
    own = _Tables(tables.survey, ["freq sex"])
    return Check("tables", command, "\n".join([*tables.printed(variant), *own.printed(variant)]), inputs)


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw letters and parcels, and ask about them."""
    heaviest = draw_journal(
        rng,
        files,
        "letters/{:02}.txt",
        CITIES,
        range(10, 90_000),
        lambda month, city, grams, letter: f"{rng.randint(1, 28)}.{month}. to {city}: letter {letter}, {grams} g",
    )
    states = ("empty", "filled", "torn")
    seal_of = draw_lists(rng, files, "parcels", "seal", lambda form: f"form {form} {rng.choice(states)}")
    return [
        asked_together([_heaviest_letter(one, heaviest[one]) for one in rng.sample([*heaviest], ASKED)]),
        asked_together([_seal_of_form(one, seal_of[one]) for one in rng.sample(sorted(seal_of), ASKED)]),
    ]


def _heaviest_letter(city: str, letter: str) -> Question:
    command = f"grep -h ' to {city}: ' letters/* | sed 's/.*letter //; s/, / /' | sort -k2,2n | tail -1"
    return Question(
        "heaviest-letter",
        f"Which letter to {city} was the heaviest, by letters/?",
        letter,
        ["head -3 letters/01.txt", f"{command} | cut -d' ' -f1"],
    )


def _seal_of_form(form: str, seal: str) -> Question:
    return Question(
        "seal-of-form",
        f"Which seal has the parcel with the form {form}, by parcels/?",
        seal,
        [f"grep -r {form} parcels", f"grep -l ' {form} ' parcels/* | xargs sed -n 's/^seal //p'"],
    )
