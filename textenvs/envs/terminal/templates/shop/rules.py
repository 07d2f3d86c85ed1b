"""Rules that the programs of the template `shop` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "heading",
        "@code@/reports.py",
        "The mailer finds no report in the output any more.",
        [
            Option('f"== {path.stem}"', "A report begins with a line such as `== 01_cities`.", "== {0}"),
            Option('f"# {path.stem}"', "A report begins with a line such as `# 01_cities`.", "# {0}"),
            Option('f"[{path.stem}]"', "A report begins with a line such as `[01_cities]`.", "[{0}]"),
            Option('f"{path.stem}:"', "A report begins with a line such as `01_cities:`.", "{0}:"),
            Option("path.stem.upper()", "A report begins with its name in upper case, such as `01_CITIES`.", "{1}"),
        ],
    ),
    Rule(
        "row-of-report",
        "@code@/reports.py",
        "The mailer cannot tell the columns of the reports apart any more.",
        [
            Option(f'"{mark}".join(str(cell) for cell in row)', f"Reports have `{mark}` between columns.", mark)
            for mark in ("|", ";", " / ", ":", ",")
        ],
    ),
    Rule(
        "rejected",
        "@code@/main.py",
        "The watch on imports does not find the number of rejected rows.",
        [
            Option(f'"{word}"', f"The first line is `{word}`, and how many rows that was.", word)
            for word in ("left out", "refused", "skipped", "dropped", "not imported:")
        ],
    ),
    Rule(
        "stock-of-line",
        "migrations/10_stock_of_lines.sql",
        "The stock is another than the one on the shelves.",
        [
            Option("stock - NEW.pieces", "A line takes its pieces from the stock.", lambda pieces: pieces),
            Option(
                "stock - NEW.pieces - 1",
                "A line takes its pieces from the stock, and one more as a sample.",
                lambda pieces: pieces + 1,
            ),
            Option(
                "stock - 2 * NEW.pieces",
                "A piece is a pair: a line takes twice its pieces from the stock.",
                lambda pieces: 2 * pieces,
            ),
            Option(
                "stock - NEW.pieces - NEW.pieces / 5",
                "Of each five pieces of a line, one more is taken from the stock, as a reserve.",
                lambda pieces: pieces + pieces // 5,
            ),
        ],
    ),
    Rule(
        "figures-of-city",
        "reports/01_cities.sql",
        "The report on cities has other columns than accounting expects.",
        [
            Option(
                "SUM(p.cents), SUM(l.pieces)",
                "01_cities: city, paid cents, pieces.",
                lambda amount, pieces, count: (amount, pieces),
            ),
            Option(
                "SUM(l.pieces), SUM(p.cents)",
                "01_cities: city, pieces, paid cents.",
                lambda amount, pieces, count: (pieces, amount),
            ),
            Option(
                "SUM(p.cents), COUNT(*)",
                "01_cities: city, paid cents, number of @orders@ that were paid.",
                lambda amount, pieces, count: (amount, count),
            ),
            Option(
                "COUNT(*), SUM(p.cents)",
                "01_cities: city, number of @orders@ that were paid, paid cents.",
                lambda amount, pieces, count: (count, amount),
            ),
        ],
    ),
    Rule(
        "order-of-cities",
        "reports/01_cities.sql",
        "The cities are not in the order that was agreed.",
        [
            Option("ORDER BY c.city", "01_cities is in the order of names.", lambda city, amount, pieces: city),
            Option(
                "ORDER BY SUM(p.cents) DESC",
                "01_cities has the city that paid most first.",
                lambda city, amount, pieces: -amount,
            ),
            Option(
                "ORDER BY SUM(p.cents)",
                "01_cities has the city that paid least first.",
                lambda city, amount, pieces: amount,
            ),
            Option(
                "ORDER BY substr(c.city, 2)",
                "01_cities is in the order of names without their first letter.",
                lambda city, amount, pieces: city[1:],
            ),
        ],
    ),
    numbers(
        "quiet",
        "reports/02_quiet.sql",
        "Some who should be called, or should not, are on the wrong side of the list of quiet @customers@.",
        range(4),
        "COUNT(o.id) <= {}",
        "02_quiet: id and number of @orders@ of those @customers@ who have {} or fewer.",
    ),
    Rule(
        "counts-of-month",
        "reports/03_month.sql",
        "The figures of the month mean something else than before.",
        [
            Option(
                "COUNT(*), COUNT(DISTINCT @customer@)",
                "03_month: @orders@ in the month, and @customers@ of these.",
                lambda orders, buyers: (len(orders), buyers),
            ),
            Option(
                "COUNT(DISTINCT @customer@), COUNT(*)",
                "03_month: @customers@ who ordered in the month, and their @orders@.",
                lambda orders, buyers: (buyers, len(orders)),
            ),
            Option(
                "COUNT(coupon), COUNT(DISTINCT @customer@)",
                "03_month: @orders@ with a coupon in the month, and @customers@ who ordered in it.",
                lambda orders, buyers: (sum(o.coupon != "" for o in orders), buyers),
            ),
            Option(
                "COUNT(*) - SUM(cancelled), COUNT(DISTINCT @customer@)",
                "03_month: @orders@ in the month that were not cancelled, and @customers@ who ordered in it.",
                lambda orders, buyers: (sum(not o.cancelled for o in orders), buyers),
            ),
        ],
    ),
    Rule(
        "count-of-regular",
        "reports/04_regular.sql",
        "The count of regular @orders@ is not what it is to be.",
        [
            Option(
                "COUNT(*)",
                "04_regular: how many @orders@ have not the coupon of our staff.",
                lambda total, cancelled: (total,),
            ),
            Option(
                "COUNT(*) - SUM(cancelled)",
                "04_regular: how many @orders@ have not the coupon of our staff and were not cancelled.",
                lambda total, cancelled: (total - cancelled,),
            ),
            Option(
                "SUM(cancelled)",
                "04_regular: how many @orders@ without the coupon of our staff were cancelled.",
                lambda total, cancelled: (cancelled,),
            ),
            Option(
                "SUM(cancelled), COUNT(*)",
                "04_regular: how many @orders@ without the coupon of our staff were cancelled, and how many there are.",
                lambda total, cancelled: (cancelled, total),
            ),
        ],
    ),
    Rule(
        "columns-of-products",
        "reports/05_products.sql",
        "The list of products has its columns in another order.",
        [
            Option("code, size, stock", "05_products: code, size, stock.", (0, 1, 2)),
            Option("size, code, stock", "05_products: size, code, stock.", (1, 0, 2)),
            Option("stock, code, size", "05_products: stock, code, size.", (2, 0, 1)),
            Option("code, stock, size", "05_products: code, stock, size.", (0, 2, 1)),
            Option("size, stock, code", "05_products: size, stock, code.", (1, 2, 0)),
        ],
    ),
    Rule(
        "order-of-products",
        "reports/05_products.sql",
        "Products are listed the other way round than in the catalogue.",
        [
            Option("ORDER BY size, code", "05_products has the smallest sizes first, and equal ones by code.", (1, 1)),
            Option(
                "ORDER BY size DESC, code", "05_products has the largest sizes first, and equal ones by code.", (-1, 1)
            ),
            Option(
                "ORDER BY size, code DESC",
                "05_products has the smallest sizes first, and equal ones by code, from Z to A.",
                (1, -1),
            ),
            Option(
                "ORDER BY size DESC, code DESC",
                "05_products has the largest sizes first, and equal ones by code, from Z to A.",
                (-1, -1),
            ),
        ],
    ),
    Rule(
        "balance",
        "reports/06_balance.sql",
        "The balance is not given as the bank gives it.",
        [
            Option("SUM(cents)", "06_balance: payments less refunds, in cents.", lambda cents: str(cents)),
            Option(
                "printf('%.2f', SUM(cents) / 100.0)",
                "06_balance: payments less refunds, such as `12.50`.",
                lambda cents: f"{cents / 100:.2f}",
            ),
            Option(
                "SUM(cents) / 100",
                "06_balance: payments less refunds, rounded down to whole units.",
                lambda cents: str(cents // 100),
            ),
            Option("-SUM(cents)", "06_balance: refunds less payments, in cents.", lambda cents: str(-cents)),
        ],
    ),
    Rule(
        "figures-of-campaign",
        "reports/07_campaign.sql",
        "The figures of the campaign are not the ones that were agreed.",
        [
            Option("COUNT(*)", "07_campaign: how often a coupon of the campaign was used.", lambda uses: (len(uses),)),
            Option(
                "COUNT(*), MIN(id)",
                "07_campaign: how often a coupon of the campaign was used, and the first id of these @orders@.",
                lambda uses: (len(uses), min(o.number for o in uses)),
            ),
            Option(
                "MAX(id), COUNT(*)",
                "07_campaign: the last id of the @orders@ with a coupon of the campaign, and how many there are.",
                lambda uses: (max(o.number for o in uses), len(uses)),
            ),
            Option(
                "SUM(id)",
                "07_campaign: the sum of ids of the @orders@ with a coupon of the campaign.",
                lambda uses: (sum(o.number for o in uses),),
            ),
        ],
    ),
    Rule(
        "columns-of-months",
        "reports/08_by_month.sql",
        "The table by month has its columns in another order.",
        [
            Option(
                "c.city, substr(o.placed, 1, 7), COUNT(*)",
                "08_by_month: city, month, @orders@; in this order.",
                lambda city, month, count: (city, month, count),
            ),
            Option(
                "substr(o.placed, 1, 7), c.city, COUNT(*)",
                "08_by_month: month, city, @orders@; in this order.",
                lambda city, month, count: (month, city, count),
            ),
            Option(
                "c.city, COUNT(*), substr(o.placed, 1, 7)",
                "08_by_month: city, @orders@, month; in this order.",
                lambda city, month, count: (city, count, month),
            ),
            Option(
                "c.city || ' ' || substr(o.placed, 1, 7), COUNT(*)",
                "08_by_month: city and month in one column, @orders@; in this order.",
                lambda city, month, count: (f"{city} {month}", count),
            ),
        ],
    ),
)

#: Columns of tables are identifiers, too: an import's files have the drawn ones.
IDENTIFIERS = (
    "migrate main folder paths path connection value rejected table row marks command cell "
    "placed coupon cancelled pieces stock size reference stock_of_lines payments_once"
)
