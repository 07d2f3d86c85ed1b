"""Files of the template `ledger`; what stands between @ is drawn."""

LEDGER = """#!/bin/sh
# Reports on a folder of journals. Usage: bin/ledger balances FOLDER DATE, bin/ledger check FOLDER,
# bin/ledger statement FOLDER ACCOUNT FIRST LAST, or bin/ledger months FOLDER ROOT
CODE=$(cd "$(dirname "$0")/../@code@" && pwd)
export LC_ALL=C
if [ "$1" = months ]; then
    python3 -S -E "$CODE/main.py" postings "$2" |
        awk -F'\\t' -v root="$3" -f "$CODE/months.awk" @order_of_periods@    exit
fi
exec python3 -S -E "$CODE/main.py" "$@"
"""

MAIN = """import json
import sys
import zlib
from pathlib import Path

import @reader@
import report
import rates

ROOT = Path(__file__).resolve().parent.parent


def cached(key, make):
    path = ROOT / "var" / f"{key}.json"
    if not path.exists():
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


def main(command, folder, *words):
    settings = json.loads((ROOT / "etc" / "@settings@.json").read_text())
    folder = Path(folder)
    lines = @reader@.read(folder / settings["@main_key@"], settings["encoding"])
    prices = (folder / settings["@rates_key@"]).read_text().splitlines()
    chart = @reader@.chart(ROOT / "etc" / "chart.tsv")

    def valued():
        table = rates.table(prices)
        entries = @reader@.entries(lines, chart, settings["@base_key@"])
        return [rates.valued(entry, table, settings["@base_key@"]) for entry in entries]

    entries = cached(zlib.crc32("\\n".join([*lines, *prices]).encode()), valued)
    for line in report.REPORTS[command](entries, *words):
        print(line)


main(*sys.argv[1:])
"""

READER = '''"""Journals: entries with postings, names of accounts, and other files that are included."""
import re


def read(path, encoding, seen=None):
    """Return the lines of a journal and of those that it includes; no file is read twice."""
    seen = set() if seen is None else seen
    if path.resolve() in seen:
        return []
    seen.add(path.resolve())
    lines = []
    for line in path.read_text(encoding=encoding).splitlines():
        if line.startswith("include "):
            lines += read(path.parent / line.split()[1], encoding, seen)
        else:
            lines.append(line)
    return lines


def chart(path):
    """Return the accounts by their codes."""
    return dict(line.split("\\t") for line in path.read_bytes().decode().split("\\n") if line)


def cents(text):
    """Return the cents of an amount such as 1,250.00 or -3.5 or 7."""
    sign = -1 if text.startswith("-") else 1
    whole, _, part = text.lstrip("-").replace(",", "").partition(".")
    return sign * (int(whole) * 100 + int(part.ljust(2, "0")))


def entries(lines, codes, base):
    """Return the entries: date, state, reference, payee, and postings (account, cents, currency)."""
    result, names = [], dict(codes)
    for line in lines:
        line = line.partition(" ;")[0].rstrip()
        if not line or line.startswith(";"):
            continue
        if line.startswith("alias "):
            old, new = line.removeprefix("alias ").split(" = ")
            names[old] = new
        elif line[0].isdigit():
            result.append([*line.split(maxsplit=3), []])
        else:
            account, *amount = re.split(r"\\s{2,}", line.strip())
            while account in names:
                account = names[account]
            value, currency = amount[0].split() if amount else (None, base)
            result[-1][4].append((account, None if value is None else cents(value), currency))
    return result
'''

RATES = '''"""Rates: how much one unit of a currency is worth, in ten-thousandths, by date."""


def table(prices):
    rows = {}
    for line in prices:
        if line and not line.startswith("#"):
            date, currency, rate = line.split()
            rows.setdefault(currency, []).append((date, round(float(rate) * 10_000)))
    return rows


def converted(cents, rows, date):
    rate = @rate_of_day@[1]
    sign = -1 if cents < 0 else 1
    product = abs(cents) * rate
    return sign * @rounded_conversion@


def valued(entry, table, base):
    """Return an entry with values in one currency; a posting without an amount has the rest."""
    date, state, reference, payee, postings = entry
    values = [
        cents if currency == base or cents is None else converted(cents, table[currency], date)
        for _, cents, currency in postings
    ]
    total = sum(value for value in values if value is not None)
    complete = None not in values
    accounts = [account for account, _, _ in postings]
    values = [0 - total if value is None else value for value in values]
    return date, state, reference, payee, list(zip(accounts, values)), total if complete else 0
'''

REPORT = '''"""The reports."""

SIDES = @sides@


def money(cents):
    sign = "-" if cents < 0 else ""
    whole, part = divmod(abs(cents), 100)
    return @money@


def counted(entries):
    """Return date, reference, payee, account and value of the postings that count."""
    return [
        (date, reference, payee, account, value)
        for date, state, reference, payee, postings, _ in entries
        if @counted_states@
        for account, value in postings
    ]


def balances(entries, until):
    sums = {}
    for date, _, _, account, value in counted(entries):
        if date <= until:
            parts = account.split(":")
            for depth in range(1, len(parts) + 1):
                name = ":".join(parts[:depth])
                sums[name] = sums.get(name, 0) + value
    rows = [(name, value) for name, value in sums.items() if name.count(":") @depth_of_balances@ @small_balances@]
    for name, value in sorted(rows, key=lambda @order_of_accounts@:
        @shown_sign@
        yield f"{name}: {money(shown)}"


def inside(name, account):
    return name == account or name.startswith(account + ":")


def statement(entries, account, first, last):
    rows = [row for row in counted(entries) if inside(row[3], account)]
    total = sum(row[4] for row in rows if row[0] < first)
    yield f"{first} {money(total)}"
    for date, reference, payee, _, value in sorted(rows, key=lambda row: @order_of_day@):
        if first <= date <= last:
            total += value
            side = SIDES[value < 0]
            yield @statement_line@
    yield f"{last} {money(total)}"


def check(entries):
    """List entries that do not sum to zero."""
    for _, _, reference, _, _, difference in entries:
        if @tolerance@:
            yield @unbalanced_line@


def postings(entries):
    return [f"{date}\\t{account}\\t{value}" for date, _, _, account, value in counted(entries)]


REPORTS = {"balances": balances, "statement": statement, "check": check, "postings": postings}
'''

MONTHS = """# Reads DATE, ACCOUNT and CENTS; sums those below a root by period.
index($2, root ":") == 1 {
    month = substr($1, 6, 2) + 0
    period = @period@
    sum[period] @figure_of_period@
}
END { for (period in sum) printf "@period_line@\\n", period, sum[period] / 100 }
"""

SETTINGS = """{
  "@base_key@": "@base@",
  "@main_key@": "@main@.journal",
  "@rates_key@": "@rates@.txt",
  "encoding": "utf-8"
}
"""
