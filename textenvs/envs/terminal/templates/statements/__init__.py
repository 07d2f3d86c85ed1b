"""The template *statements*: statements of four banks in formats of their own, without duplicates, and their sums.

It needs bash, awk (mawk is enough), sort, Python 3 and coreutils.
"""

from __future__ import annotations

import decimal
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, CITIES, GOODS, asked_together, file_in_the_way, lost_permission, notes, token
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    BALANCE,
    BALANCES,
    BLOCKS,
    CENTS,
    ENTRIES,
    FIXED,
    FORMATS,
    IMPORT,
    LINE,
    SUMMARY,
    SUMS,
    TABLE,
    TAGGED,
    UNIQUE,
)

_STATUSES = ("pending", "reserved", "failed", "draft")
_CURRENCIES = ("CHF", "EUR", "USD", "SEK")
_MONTHS = ("2024-03", "2025-02", "2025-03", "2025-04")
#: Rules in whose options the drawn entries must differ; those of other rules differ by construction.
_BY_CHANCE = ("order-of-entries", "rate-of-day", "rounding")


@dataclass(frozen=True)
class _Entry:
    account: str
    date: str
    cents: int
    currency: str
    reference: str
    text: str
    status: str = "booked"

    @property
    def day(self) -> tuple[int, int, int]:
        year, month, day = map(int, self.date.split("-"))
        return year, month, day


def _amount(cents: int, mark: str = ".", point: str = ",", *, short: bool = False) -> str:
    """Return an amount without its sign."""
    whole, rest = divmod(abs(cents), 100)
    digits = f"{rest:02}"
    return f"{whole:,}".replace(",", mark) + point + (digits.rstrip("0") if short else digits)


@dataclass(frozen=True)
class _Statement:
    """A file of a bank; ``opening`` is the balance of one of tagged lines, and ``gap`` what is wrong with it."""

    format: str
    account: str
    entries: Sequence[_Entry]
    opening: int = 0
    gap: int = 0

    def text(self, rng: random.Random) -> str:
        return {"tagged": self.tagged, "blocks": self.blocks, "fixed": self.fixed, "table": self.table}[self.format](
            rng
        )

    def tagged(self, rng: random.Random) -> str:
        currency, closing = self.entries[0].currency, self.opening + sum(one.cents for one in self.entries) + self.gap
        first, last = (
            f"{'D' if cents < 0 else 'C'}250301{currency}{_amount(cents, mark='')}" for cents in (self.opening, closing)
        )
        lines = [f":20:{token(rng)}", f":25:{self.account}", f":60F:{first}"]
        for place, one in enumerate(self.entries):
            letter = "D" if one.cents < 0 else "C"
            if place % 3 == 1:
                letter = "RC" if one.cents < 0 else "RD"
            booked = one.date[5:].replace("-", "") if place % 2 else ""
            amount = _amount(one.cents, short=place % 2 == 0)
            bank = f"//{token(rng, 4)}" if place % 2 else ""
            head, *rest = one.text.split(" ")
            lines += [f":61:{one.date[2:].replace('-', '')}{booked}{letter}{amount}NTRF{one.reference}{bank}"]
            lines += [f":86:{head}", *rest]
        return "\r\n".join([*lines, f":62F:{last}", ""])

    def blocks(self, rng: random.Random) -> str:
        lines = [f"!Account {self.account}", f"!Currency {self.entries[0].currency}"]
        for place, one in enumerate(self.entries):
            year, month, day = one.day
            amount = f"T{'-' * (one.cents < 0)}{_amount(one.cents, ',', '.')}"
            parts = [f"D{month}/{day}/{year}", amount, f"P{one.text}"]
            parts = parts[::-1] if place % 2 else parts
            lines += [*parts, *([f"N{one.reference}"] if one.reference != "-" else []), "^"]
        return "\n".join(lines) + "\n"

    def fixed(self, rng: random.Random) -> str:
        lines = [f"HDR{self.account:20}{token(rng)}"]
        for one in self.entries:
            sign, date = "-" if one.cents < 0 else "+", one.date.replace("-", "")
            lines.append(f"{date}{sign}{abs(one.cents):012}{one.currency}{one.reference:10}{one.text:30}")
        return "\n".join([*lines, f"TRL{len(self.entries):06}", ""])

    def table(self, rng: random.Random) -> str:
        rows = [
            {
                "Status": one.status,
                "Date": f"{one.day[2]}.{one.day[1]}.{one.day[0]}",
                "Account": one.account,
                "Amount": f"{'-' * (one.cents < 0)}{_amount(one.cents, short=place % 2 == 0)}",
                "Currency": one.currency,
                "Text": '"' + one.text.replace(" ", "\n" if place == 1 else " ", 1) + '"',
                "Reference": one.reference.strip("-"),
            }
            for place, one in enumerate(self.entries)
        ]
        order = rng.sample(sorted(rows[0]), len(rows[0]))
        return "".join(
            f"{';'.join(row[name] for name in order)}\n" for row in [dict(zip(order, order, strict=True)), *rows]
        )


@dataclass(frozen=True)
class _Bank:
    """Statements, and what is printed about them by the rules of a project."""

    variant: Variant
    base: str
    statements: Sequence[_Statement]
    rates: Mapping[str, Mapping[str, str]]
    categories: Sequence[tuple[str, str]]
    own: Sequence[str]

    def entries(self) -> list[_Entry]:
        """Return the entries without duplicates."""
        groups = dict[object, list[_Entry]]()
        for statement in self.statements:
            for one in statement.entries:
                if one.status != self.variant["left-out-status"]:
                    groups.setdefault(self.variant["same-entry"](one), []).append(one)
        return [self.variant["chosen-entry"](rows) for rows in groups.values()]

    def in_order(self) -> list[_Entry]:
        rows = sorted(self.entries(), key=lambda one: one.text)
        return sorted(rows, key=self.variant["order-of-entries"])

    def imported(self) -> list[str]:
        return [self.variant["entry-line"](one) for one in self.in_order()]

    def category(self, text: str) -> str:
        matches = [row for row in self.categories if row[0].lower() in text.lower()]
        name = self.variant["chosen-category"](matches)[1] if matches else self.variant["other-category"]
        return str(name)

    def summary(self) -> list[str]:
        sums, variant = dict[tuple[str, str], int](), self.variant
        for one in self.entries():
            value = decimal.Decimal(one.cents)
            if one.currency != self.base:
                rates = self.rates[one.currency]
                value *= decimal.Decimal(rates[variant["rate-of-day"](rates, one.date)])
                value = value.quantize(decimal.Decimal(1), rounding=variant["rounding"])
            category = self.category(one.text)
            if abs(value) < variant["small-amounts"]:
                continue
            if {*one.text.split()} & {*self.own}:
                if variant["transfers"] is None:
                    continue
                category = variant["transfers"](category)
            sums[one.date[:7], category] = sums.get((one.date[:7], category), 0) + int(value)
        return [
            variant["summary-line"].format(*month.split("-"), category, total)
            for (month, category), total in sorted(sums.items())
        ]

    def printed(self, variant: Variant) -> list[str]:
        """Return the entries and sums by the rules of another project."""
        bank = replace(self, variant=variant)
        return [*bank.imported(), *bank.summary()]

    def balances(self) -> list[str]:
        tagged = [one for one in self.statements if one.format == "tagged"]
        lines = [f"{one.account} is {f'wrong by {one.gap}' if one.gap else 'right'}" for one in tagged]
        return [*lines, f"status {self.variant['status-of-balance'] if any(one.gap for one in tagged) else 0}"]

    def files(self, rng: random.Random) -> dict[str, str]:
        """Return the files of rates, categories and accounts."""
        rates = [f"{day} {name} {rate}" for name, days in self.rates.items() for day, rate in days.items()]
        rng.shuffle(rates)
        categories = [f"{pattern} => {category}" for pattern, category in self.categories]
        return {
            "rates.txt": "\n".join([f"# {rates[0]}", *rates, ""]),
            "categories.txt": "\n".join(["# PATTERN => CATEGORY", "", *categories, ""]),
            "accounts.txt": "\n".join([*self.own, f"#{token(rng, 6)}", ""]),
        }


def _bank(rng: random.Random, variant: Variant, base: str) -> _Bank:
    """Draw statements in which each rule shows."""
    for _ in range(DRAWS):
        bank = _drawn(rng, variant, base)
        if variant.separates(_BY_CHANCE, bank.printed):
            break
    return bank


def _drawn(rng: random.Random, variant: Variant, base: str) -> _Bank:
    """Draw statements of each format; some of their entries stand in two or three of them."""
    accounts = [f"CH{rng.randint(10, 99)}-{rng.randint(1000, 9999)}" for _ in range(4)]
    words = rng.sample(GOODS, 8)
    first, second, third, fourth, *rest = words
    categories = [
        (first, "things"),
        (f"{first} {second}", "pairs"),
        (second, "tools"),
        (third.upper(), "house"),
        (fourth, "travel"),
    ]
    days = [f"{month}-{day}" for month in (*_MONTHS, "2024-04", "2025-05") for day in ("01", "11", "21")]
    rates = {
        name: {day: f"{(2 * rng.randint(25, 99) + 1) / 100:.2f}" for day in days}
        for name in _CURRENCIES
        if name != base
    }

    def text() -> str:
        names = rng.choices(rest, k=rng.randint(1, 2)) + rng.sample([first, second, third, fourth], 1)
        return " ".join(rng.sample(names, len(names))).title()

    def entry(account: str, currency: str, cents: int = 0, words: str = "") -> _Entry:
        month, reference = rng.choice(_MONTHS), f"{rng.choice('XYZ')}{token(rng, 7)}".upper()
        cents = cents or rng.choice((-1, 1)) * 50 * (2 * rng.randint(30, 2900) + 1)
        return _Entry(account, f"{month}-{rng.randint(2, 28):02}", cents, currency, reference, words or text())

    def entries(place: int, currency: str, *special: _Entry) -> list[_Entry]:
        return [*special, *(entry(accounts[place], currency) for _ in range(6))]

    other, another = rng.sample([name for name in _CURRENCIES if name != base], 2)
    same = entry(accounts[3], base, -rng.randint(20_000, 90_000))
    copies = [
        # The same but for the text.
        *(replace(same, text=f"{same.text}{end}") for end in (" b", " b and more", "")),
        # The same reference.
        replace(same, date="2025-02-03", cents=same.cents - 700, text=f"{same.text} again"),
        # The same text.
        *(
            replace(same, text=form, reference=f"{token(rng, 6)}")
            for form in (f"{same.text} B", f"{same.text}   b", f"{same.text}b")
        ),
    ]
    money = entry(accounts[2], base, words=f"from {accounts[1]} {first}")
    tagged = _Statement(
        "tagged", accounts[0], entries(0, other, entry(accounts[0], other, 1205)), -rng.randint(99, 9999)
    )
    start = tagged.entries
    blocks = [
        entry(accounts[1], another, 1999),
        entry(accounts[1], another, -123_450, f"{first} {second}".upper()),
        replace(entry(accounts[1], another), reference="-", date="2025-04-05"),
        *entries(1, another),
    ]
    table = [
        replace(entry(accounts[3], base, -1250), date="2024-03-07"),
        entry(accounts[3], base, 234_050, f"Café {fourth}"),
        entry(accounts[3], base, -50, "little"),
        entry(accounts[3], base, 45_650, f"only {rest[0]}"),
        *(entry(accounts[3], base, cents, f"little {third}") for cents in (150, -350, 700, 1250)),
        *copies[3:],
        *(replace(entry(accounts[3], base), status=status) for status in _STATUSES),
        copies[1],
    ]
    statements = [
        _Statement("fixed", accounts[3], [copies[0], *entries(3, base)[:2]]),
        replace(tagged, entries=[start[0], start[1], start[0]], gap=-rng.randint(5, 90)),
        _Statement("blocks", accounts[1], blocks),
        _Statement(
            "fixed", accounts[2], entries(2, base, money, entry(accounts[2], base, -2500, f"{third} X{accounts[1]}"))
        ),
        _Statement("table", accounts[3], table),
        tagged,
        _Statement("fixed", accounts[3], [copies[2], *entries(3, base)[:2]]),
    ]
    return _Bank(variant, base, statements, rates, categories, accounts[:2])


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: readers of statements, some statements, receipts and mandates."""
    base = rng.choice(_CURRENCIES)
    names = {"lib": rng.choice(["lib", "tools", "share", "inside"]), "base": base}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/import": IMPORT,
        "bin/summary": SUMMARY,
        "bin/balance": BALANCE,
        "@lib@/entries.sh": ENTRIES,
        "@lib@/cents.awk": CENTS,
        "@lib@/unique.awk": UNIQUE,
        "@lib@/line.awk": LINE,
        "@lib@/balances.awk": BALANCES,
        "@lib@/summary.py": SUMS,
        "readers/tagged.awk": TAGGED,
        "readers/blocks.awk": BLOCKS,
        "readers/fixed.awk": FIXED,
        "readers/table.py": TABLE,
        # Nothing reads this one.
        "old/fixed.awk": FIXED.replace("substr($0, 9, 1) substr($0, 10, 12)", "substr($0, 9, 13)").replace("35", "36"),
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {"docs/formats.md": variant.words(FORMATS), "docs/notes.md": notes(rng, "Notes on statements", 10)}
    # Nothing reads this one, either.
    files["old/summary.py"] = variant.outdated(SUMS).replace("text.lower()", "text")
    bank = _drawn(rng, variant, base)
    files |= {f"statements/{place:02}.txt": one.text(rng) for place, one in enumerate(bank.statements)}
    files |= {f"statements/{name}": text for name, text in bank.files(rng).items()}
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith(("statements/", "receipts/", "mandates/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, variant, base)]

    about = (
        "`bin/import FILES` prints the entries of statements of four banks, `bin/summary FOLDER FILES` their sums, and "
        "`bin/balance FILES` checks balances. `statements/` has examples, `docs/formats.md` describes the formats, and "
        f"`{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", "tail -n +1 bin/* readers/*; cat docs/formats.md", variant.words("tail -n +1 @lib@/*")]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = dict.fromkeys(["bin/import", "bin/summary", "bin/balance"], 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    repair = "sed 's/substr($0, 9, 13)/substr($0, 9, 1) substr($0, 10, 12)/; s/36/35/' old/fixed.awk"
    return [
        Fault(
            "missing-file",
            "Statements of fixed columns have no entries any more.",
            [*looks, "cat old/fixed.awk"],
            f"{repair} > readers/fixed.awk",
            removed=["readers/fixed.awk"],
        ),
        file_in_the_way(
            "readers/csv.py",
            '"""Export of tables, for a later version."""\n\nSEPARATOR = ";"\n',
            looks,
            "Tables end with an AttributeError.",
        ),
        lost_permission("bin/import", looks),
    ]


def _check(rng: random.Random, variant: Variant, base: str) -> Check:
    """Draw statements, and print their entries, sums and balances."""
    bank = _bank(rng, variant, base)
    names = [f"{place} {token(rng, 4)}.txt" for place in range(len(bank.statements))]
    inputs = bank.files(rng) | {name: one.text(rng) for name, one in zip(names, bank.statements, strict=True)}
    paths = [f'"$IN/{name}"' for name in names]
    wrong, right = (place for place, one in enumerate(bank.statements) if one.format == "tagged")
    command = (
        f"bin/import {' '.join(paths)}; bin/summary $IN {' '.join(paths)}; "
        f'bin/balance {paths[wrong]} {paths[right]}; echo "status $?"; bin/balance {paths[right]}; echo "status $?"'
    )
    last = replace(bank, statements=[bank.statements[right]])
    expected = [*bank.imported(), *bank.summary(), *bank.balances(), *last.balances()]
    return Check("statements", command, "\n".join(expected), inputs)


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw receipts and mandates, and ask about them."""
    largest = draw_journal(
        rng,
        files,
        "receipts/{:02}.txt",
        CITIES,
        range(100, 90_000),
        lambda month, city, cents, receipt: f"{rng.randint(1, 28)}.{month}.2025 {city} paid={cents} receipt={receipt}",
        months=10,
        lines=180,
    )
    mandate_of = draw_lists(
        rng, files, "mandates", "mandate", lambda one: f"creditor {one} limit {rng.randint(10, 900)}", items=25
    )
    return [
        asked_together([_largest_receipt(city, largest[city]) for city in rng.sample([*largest], ASKED)]),
        asked_together([_mandate_of(one, mandate_of[one]) for one in rng.sample(sorted(mandate_of), ASKED)]),
    ]


def _largest_receipt(city: str, receipt: str) -> Question:
    command = f"grep -h ' {city} ' receipts/* | sed 's/.* paid=//; s/receipt=//' | sort -n | tail -1 | cut -d' ' -f2"
    return Question(
        "largest-receipt",
        f"Which receipt from {city} is the largest, by receipts/?",
        receipt,
        ["head -3 receipts/01.txt", command],
    )


def _mandate_of(account: str, mandate: str) -> Question:
    return Question(
        "mandate-of-creditor",
        f"Which mandate allows the creditor {account} to collect, by mandates/?",
        mandate,
        [f"grep -r {account} mandates", f"grep -l ' {account} ' mandates/* | xargs sed -n 's/^mandate //p'"],
    )
