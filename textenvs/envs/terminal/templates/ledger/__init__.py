"""The template *ledger*: journals of double-entry accounts in plain text, and the reports on them.

It needs sh, awk (mawk is enough), sort and Python 3.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    GOODS,
    asked_together,
    carriage_returns,
    fault_of_edits,
    lost_permission,
    notes,
    person,
    token,
)
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import LEDGER, MAIN, MONTHS, RATES, READER, REPORT, SETTINGS

#: Days of a month on which there are new rates; no entry of a check is on the first of them or before.
_RATE_DAYS = (2, 10, 18, 26)
_CURRENCIES = ("EUR", "CHF", "USD", "GBP", "SEK", "NOK")


@dataclass(frozen=True)
class _Entry:
    """An entry; a posting is an account, cents (``None`` where the amount is left out) and a currency."""

    date: str
    state: str
    reference: str
    payee: str
    postings: Sequence[tuple[str, int | None, str]]


@dataclass(frozen=True)
class _Posting:
    """A posting that counts, with its value in the base currency."""

    date: str
    reference: str
    payee: str
    account: str
    value: int


@dataclass(frozen=True)
class _Accounts:
    """The accounts of a drawn project, and those of them that have codes."""

    bank: str
    daily: str
    cash: str
    card: str
    debt: str
    income: Sequence[str]
    expenses: Sequence[str]
    equity: Sequence[str]

    @classmethod
    def draw(cls, rng: random.Random) -> _Accounts:
        words = rng.sample(GOODS, 18)
        bank = f"assets:{words[0]}"
        income, expenses = (
            [
                f"{root}:{words[place]}",
                f"{root}:other {words[place + 1]}",
                f"{root}:{':'.join(words[place + 2 : place + 5])}",
            ]
            for root, place in (("income", 4), ("expenses", 9))
        )
        equity = [f"equity:{word}" for word in words[14:17]]
        daily = f"{bank}:{words[1]}"
        debt = f"liabilities:{words[17]}"
        return cls(bank, daily, f"{daily}:{words[2]}", f"{bank} {words[3]}", debt, income, expenses, equity)

    @property
    def codes(self) -> dict[str, str]:
        """Return the accounts by code; the first digit is that of the root."""
        groups = ([self.bank, self.daily, self.cash, self.card], [self.debt], self.equity, self.income, self.expenses)
        return {
            f"{first}{10 * place:03}": account
            for first, group in enumerate(groups, start=1)
            for place, account in enumerate(group, start=1)
        }


@dataclass(frozen=True)
class _Books:
    """A drawn project's rules, names and accounts, and the reports on entries by these."""

    variant: Variant
    names: Mapping[str, str]
    accounts: _Accounts

    def valued(self, entry: _Entry, rates: Mapping[str, Sequence[tuple[str, int]]]) -> tuple[list[_Posting], int]:
        """Return the postings of an entry with their values, and its sum where no amount was left out."""
        values = list[int | None]()
        for _, cents, currency in entry.postings:
            if cents is not None and currency != self.names["base"]:
                product = cents * int(self.variant["rate-of-day"](rates[currency], entry.date)[1])
                rounded = int(self.variant["rounded-conversion"](abs(product)))
                cents = rounded if product > 0 else -rounded
            values.append(cents)
        total = sum(value for value in values if value is not None)
        postings = [
            _Posting(entry.date, entry.reference, entry.payee, account, -total if value is None else value)
            for (account, *_), value in zip(entry.postings, values, strict=True)
        ]
        return postings, 0 if None in values else total

    def counted(self, entries: Sequence[_Entry], rates: Mapping[str, Sequence[tuple[str, int]]]) -> list[_Posting]:
        states = self.variant["counted-states"]
        return [row for entry in entries if entry.state in states for row in self.valued(entry, rates)[0]]

    def money(self, cents: int) -> str:
        return str(self.variant["money"].format("-" if cents < 0 else "", *divmod(abs(cents), 100)))

    def balances(self, postings: Sequence[_Posting], until: str) -> str:
        variant, sums = self.variant, dict[str, int]()
        for row in postings:
            names = row.account.split(":")[: variant["depth-of-balances"]] if row.date <= until else []
            for depth in range(len(names)):
                name = ":".join(names[: depth + 1])
                sums[name] = sums.get(name, 0) + row.value
        names = [name for name, value in sums.items() if abs(value) >= variant["small-balances"]]
        names.sort(key=lambda name: variant["order-of-accounts"](name, sums[name]))
        return "".join(f"{name}: {self.money(variant['shown-sign'](name, sums[name]))}\n" for name in names)

    def statement(self, postings: Sequence[_Posting], account: str, first: str, last: str) -> str:
        variant = self.variant
        rows = [row for row in postings if row.account == account or row.account.startswith(f"{account}:")]
        total = sum(row.value for row in rows if row.date < first)
        lines = [f"{first} {self.money(total)}"]
        for row in sorted(rows, key=lambda row: (row.date, variant["order-of-day"](row))):
            if first <= row.date <= last:
                total += row.value
                side, plain, signed = variant["sides"][row.value < 0], self.money(abs(row.value)), self.money(row.value)
                form = variant["statement-line"]
                lines.append(form.format(row.date, row.reference, row.payee, side, plain, signed, self.money(total)))
        return "\n".join([*lines, f"{last} {self.money(total)}\n"])

    def wrong(self, entries: Sequence[_Entry], rates: Mapping[str, Sequence[tuple[str, int]]]) -> str:
        lines = []
        for entry in entries:
            difference = self.valued(entry, rates)[1]
            if abs(difference) > self.variant["tolerance"]:
                form = self.variant["unbalanced-line"]
                lines.append(form.format(entry.reference, self.money(difference), difference, -difference))
        return "\n".join(lines)

    def months(self, postings: Sequence[_Posting], root: str) -> str:
        sums = dict[str, int]()
        for row in postings:
            if row.account.startswith(f"{root}:"):
                period = self.variant["period"](row.date)
                sums[period] = sums.get(period, 0) + self.variant["figure-of-period"](row.value)
        form = self.variant["period-line"]
        lines = [form.format(period, sums[period] / 100) for period in sums]
        return "\n".join(sorted(lines, reverse=self.variant["order-of-periods"]))


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: currencies, accounts with codes, names of files and keys, and the journals of some years."""
    base, foreign, fixed_rate = rng.sample(_CURRENCIES, 3)
    rates_key, other_key = rng.sample(["rates", "prices", "exchange", "courses"], 2)
    names = {
        "code": rng.choice(["code", "src", "accounts", "core"]),
        "reader": rng.choice(["reader", "journal", "parse", "intake"]),
        "settings": rng.choice(["ledger", "settings", "options"]),
        "main": rng.choice(["all", "main", "index"]),
        "rates": rng.choice(["rates", "currencies", "exchange"]),
        "base_key": rng.choice(["base", "currency", "unit"]),
        "main_key": rng.choice(["journal", "begin", "main"]),
        "rates_key": rates_key,
        "other_key": other_key,
        "base": base,
        "foreign": foreign,
        "fixed_rate": fixed_rate,
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    books = _Books(variant, names, _Accounts.draw(rng))
    codes = books.accounts.codes
    texts = {
        "bin/ledger": LEDGER,
        "@code@/main.py": MAIN,
        "@code@/@reader@.py": READER,
        "@code@/rates.py": RATES,
        "@code@/report.py": REPORT,
        "@code@/months.awk": MONTHS,
        "etc/@settings@.json": SETTINGS,
        # Nothing reads these two.
        "old/rates.py": RATES.replace("@rate_of_day@", "rows[-1]").replace(
            "@rounded_conversion@", "round(product, -4) // 10_000"
        ),
        "etc/@settings@.json.orig": SETTINGS.replace("@base@", "@fixed_rate@").replace("utf-8", "latin-1"),
        "var/.keep": "",
    }
    also = "`var/` has what was computed from journals and rates: delete it after a change of the programs."
    files = variant.files(texts) | variant.document(rng, also)
    files["etc/chart.tsv"] = "".join(f"{code}\t{account}\n" for code, account in codes.items())
    rows = [f"| {code} | {account} |" for code, account in codes.items()]
    files["docs/chart.md"] = "\n".join(["# Chart of accounts", "", "| code | account |", "|---|---|", *rows]) + "\n"
    files["docs/notes.md"] = notes(rng, "Notes on the accounts", 10)
    questions = _questions(rng, files, books)
    fixed = frozenset(path for path in files if path.startswith("books/"))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, books)

    about = (
        "`bin/ledger REPORT FOLDER` reports on journals: balances, statement, check and months. A posting has an "
        "account, or its code in `etc/chart.tsv`, and after two spaces an amount with its currency, which one posting "
        f"of an entry may leave out. Accounts can have an alias. What the reports print is in `{variant.page}`, and "
        "the accounts are in `docs/chart.md`."
    )
    looks = ["ls * | head -60", "cat bin/ledger", f"cat {names['code']}/main.py etc/{names['settings']}.json"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(codes, looks),
    ]
    return Project(about, files, faults, checks, {"bin/ledger": 0o755}, fixed=fixed, questions=questions)


def _file_faults(codes: Mapping[str, str], looks: Sequence[str]) -> list[Fault]:
    looks = [*looks, "cat docs/chart.md"]
    swapped = [("2010", "5010"), ("5010", "2010")]
    return [
        fault_of_edits(
            "swapped-codes",
            "The balances of two accounts cannot be right, say the accountants.",
            [("etc/chart.tsv", f"{code}\t{codes[code]}\n", f"{code}\t{codes[other]}\n") for code, other in swapped],
            [*looks, "cat etc/chart.tsv"],
        ),
        carriage_returns(
            "etc/chart.tsv", "Some accounts are in the balances twice, though their names look the same.", looks
        ),
        Fault(
            "missing-chart",
            "Every report ends with an error; nobody has changed a program.",
            looks,
            r"""awk -F' *[|] *' '/^[|] [0-9]/ { print $2 "\t" $3 }' docs/chart.md > etc/chart.tsv""",
            removed=["etc/chart.tsv"],
        ),
        lost_permission("bin/ledger"),
    ]


def _amount(cents: int) -> str:
    """Return an amount as somebody writes it: with marks of thousands, and without zeros at the end."""
    whole, part = divmod(abs(cents), 100)
    digits = f"{part:02}".rstrip("0")
    return f"{'-' if cents < 0 else ''}{whole:,}{'.' if digits else ''}{digits}"


def _text(rng: random.Random, entries: Sequence[_Entry], codes: Mapping[str, str], cash: str = "") -> str:
    """Return a journal; accounts have their name or their code, and one of them its oldest alias, ``till``."""
    code_of = {account: code for code, account in codes.items()}
    lines = []
    for entry in entries:
        lines.append(f"{entry.date} {entry.state} {entry.reference} {entry.payee}")
        for account, cents, currency in entry.postings:
            label = "till" if account == cash else rng.choice([account, code_of.get(account, account)])
            amount = "" if cents is None else f"  {_amount(cents)} {currency}"
            remark = f" ; see {token(rng, 4)}" if rng.random() < 0.1 else ""
            lines.append(f"    {label}{amount}{remark}")
        lines.append("")
    return "\n".join(lines) + "\n"


def _rates(
    rng: random.Random, names: Mapping[str, str], months: Sequence[str], fixed_rate: int
) -> dict[str, list[tuple[str, int]]]:
    """Draw rates, all different and none of a whole percent; one currency's never changes."""
    dates = [f"{month}-{day:02}" for month in months for day in _RATE_DAYS]
    values = rng.sample([value for value in range(11_000, 19_999) if value % 100], len(dates))
    return {
        names["foreign"]: list(zip(dates, values, strict=True)),
        names["fixed_rate"]: [(date, fixed_rate) for date in dates],
    }


def _rates_text(rates: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    rows = sorted((date, currency, rate) for currency, pairs in rates.items() for date, rate in pairs)
    return "# date currency rate\n" + "".join(f"{date} {name} {rate / 10_000:.4f}\n" for date, name, rate in rows)


def _entries(
    rng: random.Random, books: _Books, months: Sequence[str], root: str, fixed_rate: int
) -> tuple[list[_Entry], str, str, str]:
    """Draw entries in which each rule and each fault shows.

    Return also the first and the last day of a statement, and the day of the balances. The months are the first with
    rates, 13 with entries, and one more with rates.
    """
    accounts, base, foreign = books.accounts, books.names["base"], books.names["foreign"]
    bank, own = accounts.bank, {"income": accounts.income, "expenses": accounts.expenses}[root]
    entries = list[_Entry]()

    def add(
        date: str, one: str, cents: int, other: str, currency: str = base, state: str = "*", payee: str = ""
    ) -> None:
        name = payee or f"{person(rng)} {token(rng, 3)}"
        entries.append(_Entry(date, state, token(rng), name, [(one, cents, currency), (other, None, base)]))

    def cents() -> int:
        return rng.randint(2_000, 400_000)

    used = months[1:-1]
    first, last, until = f"{used[2]}-{rng.randint(3, 9):02}", f"{used[8]}-{rng.randint(12, 24)}", f"{used[10]}-11"
    for place, month in enumerate(used):
        sign = (-1) ** place
        add(f"{month}-{rng.randint(3, 27):02}", own[place % 3], sign * cents(), bank)
        add(f"{month}-{rng.randint(3, 27):02}", own[place % 3], -sign * cents(), accounts.daily)
    for month in used[3:6]:
        for day in (18, 21):
            add(f"{month}-{day}", rng.choice([bank, accounts.daily]), rng.randint(10_000, 90_000), own[0], foreign)
    for is_above in (False, True):
        draws = (rng.randint(10_000, 90_000) for _ in range(10_000))
        chosen = next(
            cents
            for cents in draws
            if cents * fixed_rate // 10_000 % 5 in (1, 2, 3)
            and 0 < cents * fixed_rate % 10_000 != 5_000
            and (cents * fixed_rate % 10_000 > 5_000) == is_above
        )
        add(f"{used[6]}-{rng.randint(11, 25)}", bank, chosen, own[1], books.names["fixed_rate"])
    # Of one day: by reference, by payee, by amount and by amount backwards these have four orders.
    references, payees = (
        sorted(token(rng) for _ in range(3)),
        sorted(f"{person(rng)} {token(rng, 3)}" for _ in range(3)),
    )
    amounts = sorted(rng.sample(range(3_000, 50_000), 3))
    for place, payee, amount in ((0, 2, 1), (1, 0, 2), (2, 1, 0)):
        postings: list[tuple[str, int | None, str]] = [(bank, amounts[amount], base), (accounts.debt, None, base)]
        entries.append(_Entry(f"{used[7]}-15", "*", references[place], payees[payee], postings))
    for state in "!?":
        for account in (bank, own[0], own[2]):
            add(f"{used[4]}-{rng.randint(3, 27):02}", account, cents(), accounts.debt, state=state)
    zero = cents()
    for which, amount in ((0, zero), (0, -zero), (1, 50), (2, 300)):
        add(f"{used[0]}-{rng.randint(3, 27):02}", accounts.equity[which], amount, accounts.debt)
    for off in range(1, 7):
        amount = cents()
        other = -amount + off * rng.choice([-1, 1])
        name, date = f"{person(rng)} {token(rng, 3)}", f"{used[5]}-{rng.randint(3, 27):02}"
        entries.append(_Entry(date, "*", token(rng), name, [(bank, amount, base), (own[1], other, base)]))
    amount = rng.randint(1_000, 9_000)
    both = [(accounts.card, amount, foreign), (accounts.debt, -amount, foreign)]
    entries.append(_Entry(f"{used[2]}-12", "*", token(rng), person(rng), both))
    for date, named in ((first, ""), (last, f"Café {person(rng)}"), (f"{used[6]}-09", f"{person(rng)};{person(rng)}")):
        add(date, bank, cents(), accounts.debt, payee=named)
    add(until, accounts.cash, rng.randint(10, 99) * 100 + 50, accounts.income[2])
    add(f"{used[3]}-09", accounts.cash, rng.randint(10, 99) * 100 + 20, accounts.expenses[2])
    add(f"{used[1]}-05", accounts.cash, rng.randint(1_100, 3_000) * 100, accounts.card)
    for sign in (-1, 1):
        add(f"{used[9]}-05", f"assets:unpaid {root}", sign * cents(), accounts.debt)
    rng.shuffle(entries)
    return entries, first, last, until


def _checks(rng: random.Random, books: _Books) -> list[Check]:
    """Draw journals in four files, and rates before and after a correction; compute the reports from the entries."""
    names, accounts, codes = books.names, books.accounts, books.accounts.codes
    year = rng.randint(2018, 2024)
    months = [f"{year + place // 12}-{place % 12 + 1:02}" for place in range(15)]
    root, fixed_rate = rng.choice(["income", "expenses"]), rng.choice([7_431, 8_967, 11_183, 13_679])
    entries, first, last, until = _entries(rng, books, months, root, fixed_rate)
    rates, corrected = (_rates(rng, names, months, fixed_rate) for _ in range(2))
    folder, third = rng.choice(GOODS), len(entries) // 3
    parts = [entries[:third], entries[third : 2 * third], entries[2 * third :]]
    texts = [_text(rng, part, codes, accounts.cash) for part in parts]
    head = f"; {token(rng)}\nalias till = purse\nalias purse = 1030\ninclude {folder}/one.journal\n"
    inputs = {
        f"books/{names['main']}.journal": f"{head}include {folder}/two.journal\n",
        f"books/{folder}/one.journal": texts[0],
        f"books/{folder}/two.journal": f"include extra/three.journal\ninclude one.journal\n{texts[2]}",
        f"books/{folder}/extra/three.journal": texts[1],
        f"books/{names['rates']}.txt": _rates_text(rates),
        "corrected.txt": _rates_text(corrected),
    }
    postings = books.counted(entries, rates)
    balances = [books.balances(books.counted(entries, table), until) for table in (rates, corrected)]
    statement = books.statement(postings, accounts.bank, first, last)
    correct = f"cp $IN/corrected.txt /tmp/b/books/{names['rates']}.txt"
    report = f"bin/ledger balances /tmp/b/books {until}"
    return [
        Check(
            "balances",
            f"mkdir /tmp/b; cp -R $IN/books /tmp/b; {report}; {correct}; {report}",
            "".join(balances),
            inputs,
        ),
        Check(
            "statement-check",
            f"bin/ledger statement $IN/books '{accounts.bank}' {first} {last}; bin/ledger check $IN/books",
            statement + books.wrong(entries, rates),
            inputs,
        ),
        Check("months", f"bin/ledger months $IN/books {root}", books.months(postings, root), inputs),
    ]


def _questions(rng: random.Random, files: dict[str, str], books: _Books) -> list[Question]:
    """Draw the journals of some years, each with one entry that does not sum to zero, and ask about them."""
    accounts, names = books.accounts, books.names
    base, payees = names["base"], sorted({person(rng) for _ in range(40)})
    months = [f"{year}-{month:02}" for year in range(2021, 2021 + rng.randint(2, 4)) for month in range(1, 13)]
    spent = iter(rng.sample(range(1_000, 999_999), 40 * len(months)))
    by_payee, wrong = dict[str, list[tuple[int, str]]](), dict[str, str]()
    for month in months:
        entries = list[_Entry]()
        for _ in range(40):
            cents, payee = next(spent), rng.choice(payees)
            postings = [
                (rng.choice(accounts.expenses), cents, base),
                (rng.choice([accounts.bank, accounts.debt]), -cents, base),
            ]
            entries.append(_Entry(f"{month}-{rng.randint(1, 28):02}", "*", token(rng), payee, postings))
            by_payee.setdefault(payee, []).append((cents, entries[-1].reference))
        place = rng.randrange(40)
        expense, (account, paid, currency) = entries[place].postings
        off = rng.choice([-1, 1]) * rng.randint(90, 900)
        entries[place] = replace(entries[place], postings=[expense, (account, (paid or 0) + off, currency)])
        wrong[f"books/{month}.journal"] = entries[place].reference
        files[f"books/{month}.journal"] = _text(rng, entries, {}).replace(",", "")
    files[f"books/{names['main']}.journal"] = "".join(f"include {month}.journal\n" for month in months)
    files[f"books/{names['rates']}.txt"] = _rates_text(_rates(rng, names, months, 10_501))
    chosen = rng.sample([payee for payee in payees if payee in by_payee], ASKED)
    return [
        asked_together([_largest_entry(payee, max(by_payee[payee])[1]) for payee in chosen]),
        asked_together([_unbalanced_entry(path, wrong[path]) for path in rng.sample(sorted(wrong), ASKED)]),
    ]


def _largest_entry(payee: str, reference: str) -> Question:
    program = f'/^[0-9]/ {{ r = $3; p = index($0, " {payee}") }} /^ +expenses/ && p {{ print $0 "  " r }}'
    cells = "sed 's/ ;.*  /  /; s/  */ /g' | awk '{ print $(NF - 2), $NF }'"
    return Question(
        "largest-entry",
        f"What is the reference of the entry in books/ with the largest expense for {payee}?",
        reference,
        [
            "head -9 books/20*.journal | head -20",
            f"awk '{program}' books/20*.journal | {cells} | sort -rn | sed -n '1s/.* //p'",
        ],
    )


def _unbalanced_entry(path: str, reference: str) -> Question:
    program = (
        '/^[0-9]/ { r = $3 } /^ / { n = split($0, a, "  +"); split(a[3], b, " "); s[r] += b[1] } '
        "END { for (r in s) if (s[r] > 0.5 || s[r] < -0.5) print r }"
    )
    return Question(
        "unbalanced-entry",
        f"What is the reference of the entry in {path} whose amounts do not sum to zero?",
        reference,
        [f"head -9 {path}", f"awk '{program}' {path}"],
    )
