"""Files of the template `survey`; what stands between @ is drawn."""

TABLES_COMMAND = """#!/bin/sh
# Prints the tables of a survey. Usage: bin/tables FOLDER [FILE]
exec python3 -S -E "$(dirname "$0")/../@code@/main.py" "$@"
"""

MAIN = """import sys
from pathlib import Path

import answers
import codebook
import tables
import weights


def main(folder, file=None):
    folder = Path(folder)
    book = codebook.read(folder / "codebook.txt")
    records = answers.clean(book, answers.read(book, folder / "answers"))
    codebook.add_groups(book, folder / "groups.txt", records)
    weights.weigh(records, weights.targets(folder / "targets.txt"))
    for line in open(file or folder / "tables.txt", encoding="utf-8"):
        line = line.partition("#")[0].strip()
        if line:
            print(f"== {line}")
            for row in tables.table(book, records, line):
                print(row)


main(*sys.argv[1:])
"""

CODEBOOK = '''"""The codebook: the variables of a survey, their columns and their labels."""
import re

VARIABLE = re.compile(r"(\\w+) +(\\d+)(?:-(\\d+))? +(code|number|tick|text)(?: +/(\\d+))?(?: +if +(\\w+) *= *(\\w+))?")


class Variable:
    def __init__(self, name, first, last, kind, divisor=None, needs=None):
        self.name, self.first, self.last, self.kind = name, first, last, kind
        self.divisor, self.needs, self.labels, self.missing = int(divisor or 1), needs, {}, set()

    def value(self, text):
        """Return the value of a cell, None where it is missing."""
        text = text.strip()
        if text == "" or text in self.missing:
            return None
        if self.kind == "number":
            return int(text)
        if self.kind == "tick":
            return text in ("1", "x")
        return text


def read(path):
    """Return the variables, by name."""
    book, variable = {}, None
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0].isspace():
            code, _, label = (part.strip() for part in line.partition("="))
            if label.lower() == "missing":
                variable.missing.add(code)
            else:
                variable.labels[code] = label
            continue
        name, first, last, kind, divisor, other, code = VARIABLE.match(line).groups()
        variable = Variable(name, int(first), int(last or first), kind, divisor, (other, code) if other else None)
        book[name] = variable
    return book


def is_in(value, low, high):
    return @group_bounds@


def add_groups(book, path, records):
    """Add variables that are groups of numbers: NAME from VARIABLE: 18-30 young, 30-50 middle."""
    for line in path.read_text(encoding="utf-8").splitlines():
        head, _, ranges = line.partition(":")
        if not ranges:
            continue
        name, _, source = head.split()
        group = book[name] = Variable(name, 0, 0, "code")
        for place, part in enumerate(ranges.split(","), start=1):
            bounds, _, label = part.strip().partition(" ")
            low, high = (int(bound) for bound in bounds.split("-"))
            group.labels[str(place)] = label.strip()
            for record in records:
                if record[source] is not None and is_in(record[source], low, high):
                    record[name] = str(place)
        for record in records:
            record.setdefault(name, None)
'''

ANSWERS = '''"""The answers: lines of fixed columns in several files."""


def read(book, folder):
    """Return the records of all files, in the order of their names."""
    records = []
    for path in sorted(folder.glob("*.dat")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                cells = {name: line[one.first - 1 : one.last] for name, one in book.items()}
                records.append({name: one.value(cells[name]) for name, one in book.items()})
    return records


def gaps(record):
    """Return how many answers a record lacks."""
    return sum(value is None for value in record.values())


def clean(book, records):
    """Leave out records that are there twice, and answers to questions that were not asked."""
    groups = {}
    for record in records:
        groups.setdefault(record["id"].lower(), []).append(record)
    chosen = [@same_person@ for group in groups.values()]
    result = []
    for record in chosen:
        wrong = [
            name
            for name, one in book.items()
            if one.needs and record[name] is not None and record[one.needs[0]] != one.needs[1]
        ]
        @wrong_answers@
        result.append(record)
    return result
'''

WEIGHTS = '''"""Weights, in millionths."""

ONE = 1_000_000


def targets(path):
    """Return shares in per cent, by variable and code: lines of VARIABLE CODE SHARE."""
    result = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].split()
        if words:
            name, code, share = words
            result.setdefault(name, {})[code] = int(share)
    return result


def weigh(records, shares):
    """Set the weight of each record, so that groups have the shares that they should have."""
    for record in records:
        record["weight"] = ONE
    for _ in @rounds@:
        for name, share_of in shares.items():
            total, sums = 0, {}
            for record in records:
                if record[name] is not None:
                    total += record["weight"]
                    sums[record[name]] = sums.get(record[name], 0) + record["weight"]
            for record in records:
                code = record[name]
                if code is not None:
                    record["weight"] = record["weight"] * share_of[code] * total // (100 * sums[code])
    for record in records:
        record["weight"] = min(record["weight"], @largest_weight@)
'''

TABLES = '''"""Tables."""
import re

CONDITION = re.compile(r"(\\w+) *(>=|<=|!=|=|<|>) *(.+)")


def rounded(part, whole):
    """Return a quotient as an integer."""
    return @rounding@


def percent(part, whole, count):
    """Return a share in per cent, or a mark where it is about too few people."""
    if @fewest@
        return "*"
    tenths = rounded(1000 * part, whole)
    return f"{tenths // 10}.{tenths % 10}"


def holds(book, record, condition):
    name, sign, text = CONDITION.fullmatch(condition.strip()).groups()
    value, one = record[name], book[name]
    if value is None:
        return False
    if one.kind == "number":
        limit = int(text) * one.divisor
    else:
        limit = next((code for code, label in one.labels.items() if label == text), text)
    if sign == "=":
        return value == limit
    if sign == "!=":
        return value != limit
    if sign == ">=":
        return value >= limit
    if sign == "<=":
        return value <= limit
    return value > limit if sign == ">" else value < limit


def weight_of(records):
    return sum(record["weight"] for record in records)


def categories(book, records, name):
    """Return the codes and labels of a variable, with the records of each."""
    one = book[name]
    rows = [(code, label, [record for record in records if record[name] == code]) for code, label in one.labels.items()]
    return sorted(rows, key=lambda row: @order_of_categories@)


def frequencies(book, records, name):
    known = [record for record in records if record[name] is not None]
    lacking = [record for record in records if record[name] is None]
    @base_of_shares@
    for code, label, group in categories(book, records, name):
        share = percent(weight_of(group), base, len(group))
        yield @share_line@
    yield f"no answer: {len(lacking)}"


def crosstab(book, records, row, column):
    records = [record for record in records if record[row] is not None and record[column] is not None]
    for _, label, group in categories(book, records, row):
        cells = []
        for code, _, other in categories(book, records, column):
            cell = [record for record in group if record[column] == code]
            @base_of_cells@
            cells.append(percent(weight_of(cell), weight_of(whole), len(cell)))
        yield @cells_line@


def means(book, records, name, by):
    one = book[name]
    records = [record for record in records if record[name] is not None]
    for code, label, group in categories(book, records, by):
        if group:
            total = sum(record[name] * record["weight"] for record in group)
            hundredths = rounded(100 * total, weight_of(group) * one.divisor)
            yield f"{label}: {hundredths // 100}.{hundredths % 100:02} ({len(group)})"


def ticks(book, records, prefix):
    """Yield the shares of a question with several answers: its variables begin with the prefix and _."""
    names = [name for name in book if name.startswith(prefix + "_")]
    @base_of_ticks@
    for name in names:
        group = [record for record in records if record[name]]
        yield f"{book[name].labels['1']}: {percent(weight_of(group), total, len(group))} ({len(group)})"


def table(book, records, line):
    command, _, condition = line.partition(" where ")
    for part in filter(None, condition.split(" and ")):
        records = [record for record in records if holds(book, record, part)]
    kind, *words = command.split()
    if kind == "freq":
        yield from frequencies(book, records, *words)
    elif kind == "cross":
        yield from crosstab(book, records, *words)
    elif kind == "mean":
        yield from means(book, records, words[0], words[2])
    elif kind == "multi":
        yield from ticks(book, records, *words)
    else:
        values = [record["weight"] for record in records]
        yield f"{len(values)} {sum(values)} {min(values)} {max(values)}"
'''

FORMATS = """# Files of a survey

- `codebook.txt`: a line for each variable: NAME, its columns (from 1), `code`, `number`, `tick` or `text`. `/100`
  means that the number is in hundredths. `if OTHER = CODE` means that it was asked only where OTHER has this answer.
  The lines below, which begin with a space, are labels, `CODE = LABEL`. The label `missing`, in any case of letters, is
  one for no answer, and an empty cell is none, either. A tick is `1` or `x`; else it was not ticked.
- `answers/*.dat`: a line for each person, in fixed columns. The `id` is in any case of letters.
- `groups.txt`: groups of a number's values, which become a variable: `NAME from VARIABLE: 18-30 young, 30-50 middle`.
- `targets.txt`: VARIABLE CODE SHARE: which shares groups should have, in per cent. A round of weighting makes the
  weights (all 1 at first) such that the shares of the first variable are right, then those of the second one, and so
  on. Who has no answer to a variable keeps the weight. Weights are in millionths, and cut off.
- `tables.txt`: `freq VARIABLE`, `cross ROW COLUMN`, `mean NUMBER by VARIABLE`, `multi PREFIX` (several ticks),
  `weights` (people, and the sum, the least and the largest of the weights), and perhaps `where CONDITION and
  CONDITION`. Numbers in conditions are in whole units, codes may be labels. Where there is no answer, no condition
  holds.

In brackets is how many people it is about. `#` begins a comment in all files but answers.
"""
