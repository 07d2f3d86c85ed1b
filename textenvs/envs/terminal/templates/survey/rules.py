"""Rules that the programs of the template `survey` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "group-bounds",
        "@code@/codebook.py",
        "People are in the wrong group of age, those of certain years.",
        [
            Option(
                "low <= value < high",
                "Who is exactly at the bound of two groups belongs to the upper one.",
                lambda value, low, high: low <= value < high,
            ),
            Option(
                "low < value <= high",
                "Who is exactly at the bound of two groups belongs to the lower one.",
                lambda value, low, high: low < value <= high,
            ),
            Option(
                "low < value < high",
                "Who is exactly at the bound of two groups belongs to neither.",
                lambda value, low, high: low < value < high,
            ),
        ],
    ),
    Rule(
        "same-person",
        "@code@/answers.py",
        "Of people who answered twice, the wrong answers count.",
        [
            Option(
                "group[0]", "Of records with the same id, the first one counts, in the order of files.", lambda g: g[0]
            ),
            Option(
                "group[-1]", "Of records with the same id, the last one counts, in the order of files.", lambda g: g[-1]
            ),
            Option(
                "min(group, key=gaps)",
                "Of records with the same id, the one with most answers counts, and of equal ones the first.",
                lambda g: min(g, key=lambda record: sum(value is None for value in record.values())),
            ),
        ],
    ),
    Rule(
        "wrong-answers",
        "@code@/answers.py",
        "Answers to questions that were not asked are not treated as agreed.",
        [
            Option(
                "record.update(dict.fromkeys(wrong))",
                "An answer to a question that was not asked counts as none.",
                "cleared",
            ),
            Option("if wrong: continue", "Who has answered a question that was not asked is left out.", "dropped"),
            Option("wrong.clear()", "An answer to a question that was not asked counts as all others do.", "counted"),
        ],
    ),
    numbers(
        "rounds",
        "@code@/weights.py",
        "The weights are not those of the institute.",
        (1, 2, 3, 4),
        "range({})",
        "Weighting has so many rounds: {}.",
    ),
    Rule(
        "largest-weight",
        "@code@/weights.py",
        "Some people count more than they may, or less.",
        [
            Option(f"{n} * ONE // 2", f"At the end, weights above {n / 2:g} are made {n / 2:g}.", n * 500_000)
            for n in (3, 4, 5, 6)
        ],
    ),
    Rule(
        "rounding",
        "@code@/tables.py",
        "Shares and means are not rounded as agreed.",
        [
            Option(
                "(2 * part + whole) // (2 * whole)",
                "Shares (one digit) and means (two) are rounded to the nearest, one half upwards.",
                lambda part, whole: (2 * part + whole) // (2 * whole),
            ),
            Option(
                "part // whole", "Shares (one digit) and means (two) are cut off.", lambda part, whole: part // whole
            ),
            Option(
                "-(-part // whole)",
                "Shares (one digit) and means (two) are rounded up.",
                lambda part, whole: -(-part // whole),
            ),
        ],
    ),
    numbers(
        "fewest",
        "@code@/tables.py",
        "Shares of too few people are printed, or those of enough are not.",
        (2, 3, 4, 5),
        "count < {}:",
        "Where fewer than {} people are behind a share, `*` is printed in its place.",
    ),
    Rule(
        "order-of-categories",
        "@code@/tables.py",
        "The lines of tables are in another order than agreed.",
        [
            Option("row[0]", "Categories are in the order of their codes.", lambda code, label, count: code),
            Option("row[1]", "Categories are in the order of their labels.", lambda code, label, count: label),
            Option(
                "(-len(row[2]), row[0])",
                "The categories with most people come first, and equal ones in the order of their codes.",
                lambda code, label, count: (-count, code),
            ),
            Option(
                "(len(row[2]), row[0])",
                "The categories with fewest people come first, and equal ones in the order of their codes.",
                lambda code, label, count: (count, code),
            ),
        ],
    ),
    Rule(
        "base-of-shares",
        "@code@/tables.py",
        "The shares of `freq` are shares of the wrong people.",
        [
            Option("base = weight_of(known)", "The shares of `freq` are those in all who have answered.", "known"),
            Option("base = weight_of(records)", "The shares of `freq` are those in all people.", "all"),
        ],
    ),
    Rule(
        "share-line",
        "@code@/tables.py",
        "The lines of `freq` are not as agreed.",
        [
            Option(
                'f"{label}: {share} % ({len(group)})"',
                "A line of `freq` is such as `Bern: 12.3 % (45)`.",
                "{1}: {2} % ({3})",
            ),
            Option(
                'f"{code} {label} {len(group)} {share}"',
                "A line of `freq` is such as `1 Bern 45 12.3`: code, label, people, share.",
                "{0} {1} {3} {2}",
            ),
            Option(
                'f"{share}% [{len(group)}] {label}"', "A line of `freq` is such as `12.3% [45] Bern`.", "{2}% [{3}] {1}"
            ),
        ],
    ),
    Rule(
        "base-of-cells",
        "@code@/tables.py",
        "The shares of `cross` are shares of the wrong people.",
        [
            Option("whole = group", "The shares of `cross` are those in a row.", lambda row, column, all_records: row),
            Option(
                "whole = other", "The shares of `cross` are those in a column.", lambda row, column, all_records: column
            ),
            Option(
                "whole = records",
                "The shares of `cross` are those in the table.",
                lambda row, column, all_records: all_records,
            ),
        ],
    ),
    Rule(
        "cells-line",
        "@code@/tables.py",
        "The lines of `cross` are not as agreed.",
        [
            Option(
                "f\"{label}: {' '.join(cells)}\"",
                "A line of `cross` is such as `Bern: 12.3 87.7`.",
                lambda label, cells, n: f"{label}: {' '.join(cells)}",
            ),
            Option(
                '";".join([label, *cells])',
                "A line of `cross` is such as `Bern;12.3;87.7`.",
                lambda label, cells, n: ";".join([label, *cells]),
            ),
            Option(
                "f\"{label} ({len(group)}) {' | '.join(cells)}\"",
                "A line of `cross` is such as `Bern (45) 12.3 | 87.7`.",
                lambda label, cells, n: f"{label} ({n}) {' | '.join(cells)}",
            ),
        ],
    ),
    Rule(
        "base-of-ticks",
        "@code@/tables.py",
        "The shares of `multi` are shares of the wrong people.",
        [
            Option("total = weight_of(records)", "The shares of `multi` are those in all people.", "people"),
            Option(
                "total = sum(weight_of([record for record in records if record[name]]) for name in names)",
                "The shares of `multi` are those in all ticks.",
                "ticks",
            ),
            Option(
                "total = weight_of([record for record in records if any(record[name] for name in names)])",
                "The shares of `multi` are those in all who have ticked something.",
                "some",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "book variable head ranges group bounds gaps chosen wrong sums share_of rounded tenths holds condition limit "
    "weight_of categories frequencies crosstab means ticks lacking cells whole total hundredths"
)
