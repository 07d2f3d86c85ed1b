"""Files of the template `statements`; what stands between @ is drawn."""

IMPORT = """#!/bin/bash
# Prints the entries of statements. Usage: bin/import FILE...
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/entries.sh"
entries "$@" | sort -t$'\\t' @order_of_entries@ | awk -F'\\t' -f "$ROOT/@lib@/line.awk"
"""

SUMMARY = """#!/bin/bash
# Prints sums of months and categories. Usage: bin/summary FOLDER FILE...
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/entries.sh"
folder=$1
shift
entries "$@" | python3 -S -E "$ROOT/@lib@/summary.py" "$folder"
"""

BALANCE = """#!/bin/bash
# Compares balances of tagged statements with their entries. Usage: bin/balance FILE...
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/entries.sh"
status=0
for file in "$@"; do
    sum=$(raw "$file" | awk -F'\\t' '{ sum += $3 } END { printf "%d", sum }')
    read -r account opening closing < <(awk -f "$ROOT/@lib@/cents.awk" -f "$ROOT/@lib@/balances.awk" "$file")
    gap=$((closing - opening - sum))
    if ((gap == 0)); then
        echo "$account is right"
    else
        echo "$account is wrong by $gap"
        @status_of_balance@
    fi
done
exit "$status"
"""

ENTRIES = """# Functions that read statements.
export LC_ALL=C
READERS=$ROOT/readers

# Prints ACCOUNT DATE CENTS CURRENCY REFERENCE TEXT of statements, with tabs between them.
raw() {
    local file
    for file in "$@"; do
        case $(head -c 4 "$file") in
            :20:) awk -f "$ROOT/@lib@/cents.awk" -f "$READERS/tagged.awk" "$file" ;;
            '!Acc') awk -f "$READERS/blocks.awk" "$file" ;;
            HDR*) awk -f "$READERS/fixed.awk" "$file" ;;
            *) python3 -S -E "$READERS/table.py" "$file" ;;
        esac
    done
}

# Prints the same, without what stands in several statements.
entries() {
    raw "$@" | awk -f "$ROOT/@lib@/unique.awk"
}
"""

CENTS = """# Returns the cents of an amount such as 1.234,50 or 12,
function cents(amount,    parts) {
    gsub(/[.']/, "", amount)
    split(amount, parts, ",")
    return parts[1] * 100 + substr(parts[2] "00", 1, 2)
}
"""

TAGGED = r"""# Reads statements of tagged lines: :25: account, :60F: opening balance, :61: entry, :86: its text.
function finish() {
    if (open_entry) print account, date, total, currency, reference, text
    open_entry = 0
}
BEGIN { OFS = "\t" }
{ sub(/\r$/, "") }
/^:25:/ { account = substr($0, 5) }
/^:60F:/ { currency = substr($0, 13, 3) }
/^:/ { inside = 0 }
/^:61:/ {
    finish()
    line = substr($0, 11)
    date = "20" substr($0, 5, 2) "-" substr($0, 7, 2) "-" substr($0, 9, 2)
    sub(/^[0-9][0-9][0-9][0-9]/, "", line)
    sign = 1
    if (sub(/^R/, "", line)) sign = -1
    if (line ~ /^D/) sign = -sign
    match(line, /N[A-Z][A-Z][A-Z]/)
    total = sign * cents(substr(line, 2, RSTART - 2))
    reference = substr(line, RSTART + 4)
    sub(/\/\/.*/, "", reference)
    text = ""
    open_entry = 1
    next
}
/^:86:/ {
    text = substr($0, 5)
    inside = 1
    next
}
inside { text = text " " $0 }
END { finish() }
"""

BLOCKS = r"""# Reads statements of blocks: D month/day/year, T amount, N reference, P text, ^ end.
BEGIN { OFS = "\t" }
/^!Account / { account = $2 }
/^!Currency / { currency = $2 }
/^!/ { next }
/^D/ {
    split(substr($0, 2), parts, "/")
    date = sprintf("%04d-%02d-%02d", parts[3], parts[1], parts[2])
}
/^T/ {
    gsub(/,/, "")
    total = sprintf("%.0f", substr($0, 2) * 100)
}
/^N/ { reference = substr($0, 2) }
/^P/ { text = substr($0, 2) }
/^\^/ {
    print account, date, total, currency, reference == "" ? "-" : reference, text
    reference = ""
}
"""

FIXED = r"""# Reads statements of fixed columns: date 8, sign 1, cents 12, currency 3, reference 10, text 30.
function trimmed(text) {
    gsub(/^ +| +$/, "", text)
    return text
}
BEGIN { OFS = "\t" }
/^HDR/ { account = trimmed(substr($0, 4, 20)) }
/^[0-9]/ {
    date = substr($0, 1, 4) "-" substr($0, 5, 2) "-" substr($0, 7, 2)
    total = substr($0, 9, 1) substr($0, 10, 12)
    print account, date, total + 0, substr($0, 22, 3), trimmed(substr($0, 25, 10)), trimmed(substr($0, 35, 30))
}
"""

TABLE = '''"""Read statements that are tables; their columns are in any order."""
import csv
import sys


def cents(amount):
    """Return the cents of -1.234,50."""
    whole, _, rest = amount.replace(".", "").partition(",")
    value = int(whole.lstrip("-") or 0) * 100 + int(rest.ljust(2, "0"))
    return -value if amount.startswith("-") else value


with open(sys.argv[1], encoding="utf-8", newline="") as file:
    for row in csv.DictReader(file, delimiter=";"):
        if row["Status"] == @left_out_status@:
            continue
        day, month, year = row["Date"].split(".")
        date = f"{year}-{int(month):02}-{int(day):02}"
        text = row["Text"].replace("\\n", " ").strip()
        cells = [row["Account"], date, cents(row["Amount"]), row["Currency"], row["Reference"] or "-", text]
        print(*cells, sep="\\t")
'''

UNIQUE = r"""# Leaves out entries that stand in several statements.
function plain(text) {
    gsub(/ /, "", text)
    return tolower(text)
}
BEGIN { FS = OFS = "\t" }
{
    key = @same_entry@
    if (!(key in entry)) {
        order[++count] = key
        entry[key] = $0
        longest[key] = length($6)
        next
    }
    @chosen_entry@
    if (latest) {
        longest[key] = length($6)
        entry[key] = $0
    }
}
END { for (n = 1; n <= count; n++) print entry[order[n]] }
"""

LINE = r"""# Prints entries for people.
function money(amount,    sign) {
    sign = amount < 0 ? "-" : ""
    if (amount < 0) amount = -amount
    return sprintf("%s%d.%02d", sign, amount / 100, amount % 100)
}
{ print @entry_line@ }
"""

BALANCES = r"""# Prints ACCOUNT OPENING CLOSING of a tagged statement, in cents.
function balance(line) {
    return (substr(line, 6, 1) == "D" ? -1 : 1) * cents(substr(line, 16))
}
{ sub(/\r$/, "") }
/^:25:/ { account = substr($0, 5) }
/^:60F:/ { opening = balance($0) }
/^:62F:/ { print account, opening, balance($0) }
"""

SUMS = '''"""Sums of months and categories, in the base currency."""
import sys
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path

BASE = "@base@"


def lines(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def rates_of(path):
    """Return the rates of each currency, by date."""
    rates = {}
    for line in lines(path):
        date, currency, rate = line.split()
        rates.setdefault(currency, {})[date] = Decimal(rate)
    return rates


def rate_of(rates, date):
    """Return the rate of a day."""
    return rates[@rate_of_day@]


def category_of(patterns, text):
    """Return the category of a text."""
    matches = [(pattern, category) for pattern, category in patterns if pattern in text.lower()]
    return @chosen_category@[1] if matches else @other_category@


def main(folder):
    rates = rates_of(folder / "rates.txt")
    patterns = []
    for line in lines(folder / "categories.txt"):
        pattern, _, category = line.partition("=>")
        patterns.append((pattern.strip().lower(), category.strip()))
    own = set(lines(folder / "accounts.txt"))
    sums = {}
    for line in sys.stdin:
        account, date, amount, currency, reference, text = line.rstrip("\\n").split("\\t")
        base = Decimal(amount)
        if currency != BASE:
            base = (base * rate_of(rates[currency], date)).quantize(Decimal(1), @rounding@)
        @small_amounts@
        category = category_of(patterns, text)
        if any(word in own for word in text.split()):
            @transfers@
        if category:
            key = (date[:7], category)
            sums[key] = sums.get(key, 0) + base
    for (month, category), total in sorted(sums.items()):
        print(@summary_line@)


main(Path(sys.argv[1]))
'''

FORMATS = """# Statements

`bin/import` prints the entries of statements, `bin/summary` their sums, and `bin/balance` compares the balances of
tagged statements with their entries. Four kinds of statements are read; a statement may overlap with others.

- Tagged lines. `:61:2503040305D45,9NTRFX17//B2` is an entry: value date, perhaps month and day of booking, `C` (to us)
  or `D` (from us), with `R` before it taken back, the amount, `N` and three letters, and the reference up to `//`.
  `:86:` and the lines behind it are the text; these lines are joined with one space.
- Blocks. `D3/14/2025` is the day (month first), `T` the amount in English form, `N` the reference, `P` the text, `^`
  the end.
- Fixed columns, behind `HDR` and the account: date, sign, cents, currency, reference, text.
- Tables with `;` between the columns and their names in the first line, in any order. A text may have several lines,
  which are joined with one space.

A reference may be missing; then it is `-`. `rates.txt` has the rates to @base@: a day, a currency, and what one is
worth. `categories.txt` has lines of `PATTERN => CATEGORY`: the pattern is in the text, in any case of letters.
`accounts.txt` has our own accounts. Lines that begin with `#` count in none of them. Sums are of months and
categories, in cents of @base@, in the order of months, then of categories.
"""
