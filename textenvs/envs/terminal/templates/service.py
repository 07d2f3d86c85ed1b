"""The template *service*: layered settings, routes, and handlers that answer requests from standard input.

It needs sh and Python 3.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..project import Check, Project, Question
from .parts import ASKED, CITIES, GOODS, TOWNS, Request, asked_together, filled, notes, requests, token
from .variation import Option, Rule, Variant, numbers

_SERVE = """#!/bin/sh
# Answers the requests on standard input, one a line. Usage: bin/serve [DATA]
cd "$(dirname "$0")/.." || exit 1
exec python3 -S -E @app@/main.py "${1:-data}"
"""
_MAIN = '''"""Answer requests: METHOD TARGET [BODY], one a line."""
import sys
from pathlib import Path

from router import dispatch
from settings import load
from store import Store

ROOT = Path(__file__).resolve().parent.parent


def main():
    settings = load(ROOT / "@conf@")
    store = Store(sys.argv[1])
    for line in sys.stdin:
        method, target, *body = line.split()
        status, text = dispatch(method, target, body[0] if body else "", store, settings)
        print(status, text)


main()
'''
_SETTINGS = '''"""Settings in three layers: the later wins."""

LAYERS = ("defaults.conf", "production.env", "local.conf")


def parse(path):
    values = {}
    for line in path.read_text().splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values[key.strip().lower()] = value.strip()
    return values


def load(folder):
    values = {}
    for name in LAYERS:
        values.update(parse(folder / name))
    return values


def seconds(text):
    """Return a duration in seconds; it is written as 1500ms or 2s."""
    if text.endswith("ms"):
        return int(text[:-2]) / 1000
    return float(text.removesuffix("s"))


def flag(text):
    return text.lower() in @true_words@
'''
_ROUTER = '''"""Find the handler of a request."""
from urllib.parse import unquote_plus

import handlers

# The first that fits is taken.
ROUTES = [
    ("GET", "/health", handlers.health),
    ("GET", "/@things@/search", handlers.search),
    ("GET", "/@things@/:@key@", handlers.show),
    ("POST", "/@orders@", handlers.order),
]


def fields(text):
    pairs = (part.partition("=") for part in text.split("&") if part)
    return {name: unquote_plus(value) for name, _, value in pairs}


def fits(pattern, path):
    """Return the parts of the path that stand at names like :key, or None."""
    names, parts = pattern.split("/"), path.split("/")
    if len(names) != len(parts):
        return None
    values = {}
    for name, part in zip(names, parts):
        if name.startswith(":"):
            values[name[1:]] = part
        elif name != part:
            return None
    return values


def dispatch(method, target, body, store, settings):
    path, _, query = target.partition("?")
    allowed = False
    for verb, pattern, handler in ROUTES:
        values = fits(pattern, path)
        if values is None:
            continue
        if verb == method:
            return handler({**fields(query), **fields(body), **values}, store, settings)
        allowed = True
    return (405, "method not allowed") if allowed else (404, "no such path")
'''
_HANDLERS = '''"""Handlers: each returns a status and a line of text."""
from settings import flag, seconds


def gross(cents, settings):
    """Return the price with tax, in cents."""
    taxed = cents * (100 + int(settings["tax_percent"]))
    return @rounding@


def money(cents, settings):
    return @price@


def visible(item, settings):
    return flag(settings["show_hidden"]) or not item["hidden"]


def health(fields, store, settings):
    return 200, @health_line@


def show(fields, store, settings):
    item = store.find(fields["@key@"])
    if item is None or not visible(item, settings):
        return 404, "no such @thing@"
    price = money(gross(item["cents"], settings), settings)
    return 200, @article_line@


def search(fields, store, settings, matches=None):
    matches = [] if matches is None else matches
    for item in store.items:
        if visible(item, settings) and item["city"] == fields["city"]:
            matches.append(item)
    ranked = sorted(matches, key=@order_of_search@)
    size = int(settings["page_size"])
    start = (int(fields.get("page", "1")) - 1) * size
    codes = [item["@key@"] for item in ranked[start : start + size]]
    return 200, @search_line@


def order(fields, store, settings):
    item, count = store.find(fields["@key@"]), int(fields["count"])
    if item is None:
        return 404, "no such @thing@"
    if count > int(settings["max_count"]):
        return @too_many@
    total = gross(item["cents"] * count, settings)
    if @discount_from@:
        total -= total * @percent@ // 100
    if total < int(settings["free_shipping_from"]):
        total += @shipping_price@
    return 201, money(total, settings)
'''
_STORE = '''"""The @things@ of all files of a folder."""
import csv
from pathlib import Path


class Store:
    def __init__(self, folder):
        self.items = []
        for path in sorted(Path(folder).glob("*.csv")):
            with open(path, encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    row["cents"] = int(row["cents"])
                    row["hidden"] = row["hidden"] == "y"
                    self.items.append(row)
        self.by_key = {item["@key@"].upper(): item for item in self.items}

    def find(self, key):
        return self.by_key.get(key.upper())
'''

_RULES = (
    Rule(
        "true-words",
        "@app@/settings.py",
        "A setting that was switched on, as the documents say, is off.",
        [
            Option(repr(words), f"A setting is on where it is one of: {', '.join(words)}. All else is off.", words)
            for words in (("1", "true"), ("yes", "on"), ("y", "enabled"), ("active", "ja"), ("allowed", "oui"))
        ],
    ),
    Rule(
        "rounding",
        "@app@/handlers.py",
        "Some prices are not those on the invoice.",
        [
            Option(
                "(taxed + 50) // 100", "Prices with tax are rounded to a cent, a half up.", lambda n: (n + 50) // 100
            ),
            Option("taxed // 100", "Prices with tax are rounded down to a cent.", lambda n: n // 100),
            Option("(taxed + 99) // 100", "Prices with tax are rounded up to a cent.", lambda n: -(-n // 100)),
            Option(
                "(taxed + 499) // 500 * 5", "Prices with tax are rounded up to 5 cents.", lambda n: -(-n // 500) * 5
            ),
            Option("taxed // 500 * 5", "Prices with tax are rounded down to 5 cents.", lambda n: n // 500 * 5),
            Option(
                "(taxed + 999) // 1000 * 10",
                "Prices with tax are rounded up to 10 cents.",
                lambda n: -(-n // 1000) * 10,
            ),
        ],
    ),
    Rule(
        "price",
        "@app@/handlers.py",
        "The shop's cart cannot read amounts any more.",
        [
            Option(
                "f\"{cents // 100}.{cents % 100:02} {settings['currency']}\"",
                "An amount is such as `12.50 EUR`.",
                "{0}.{1:02} {2}",
            ),
            Option(
                "f\"{settings['currency']} {cents // 100}.{cents % 100:02}\"",
                "An amount is such as `EUR 12.50`.",
                "{2} {0}.{1:02}",
            ),
            Option(
                "f\"{cents // 100},{cents % 100:02} {settings['currency']}\"",
                "An amount is such as `12,50 EUR`.",
                "{0},{1:02} {2}",
            ),
            Option(
                "f\"{settings['currency']}{cents // 100}-{cents % 100:02}\"",
                "An amount is such as `EUR12-50`.",
                "{2}{0}-{1:02}",
            ),
        ],
    ),
    Rule(
        "health-line",
        "@app@/handlers.py",
        "The monitor does not understand the health page any more.",
        [
            Option(
                "f\"ok timeout={seconds(settings['timeout'])}\"",
                "`GET /health` answers such as `ok timeout=1.5`, in seconds.",
                "ok timeout={0}",
            ),
            Option(
                "f\"up {seconds(settings['timeout']) * 1000:.0f}\"",
                "`GET /health` answers such as `up 1500`: the timeout in milliseconds.",
                "up {1:.0f}",
            ),
            Option(
                "f\"alive, {seconds(settings['timeout'])} s\"",
                "`GET /health` answers such as `alive, 1.5 s`, with the timeout.",
                "alive, {0} s",
            ),
        ],
    ),
    Rule(
        "article-line",
        "@app@/handlers.py",
        "The newsletter cannot read the pages of @things@ any more.",
        [
            Option("f\"{item['name']} {price}\"", "A @thing@'s page is `NAME PRICE`.", "{0} {1}"),
            Option("f\"{price} {item['name']}\"", "A @thing@'s page is `PRICE NAME`.", "{1} {0}"),
            Option("f\"{item['name']}: {price}\"", "A @thing@'s page is `NAME: PRICE`.", "{0}: {1}"),
            Option(
                "f\"{item['name']} in {item['city']}: {price}\"",
                "A @thing@'s page is `NAME in CITY: PRICE`.",
                "{0} in {2}: {1}",
            ),
        ],
    ),
    Rule(
        "order-of-search",
        "@app@/handlers.py",
        "Searches list the @things@ in another order than before.",
        [
            Option(
                'lambda item: (item["cents"], item["@key@"])',
                "A search has the cheapest first, and equal ones by @key@.",
                lambda r: (r[3], r[0]),
            ),
            Option(
                'lambda item: (-item["cents"], item["@key@"])',
                "A search has the dearest first, and equal ones by @key@.",
                lambda r: (-r[3], r[0]),
            ),
            Option('lambda item: item["@key@"]', "A search is in the order of @key@.", lambda r: r[0]),
            Option(
                'lambda item: (item["name"], item["@key@"])',
                "A search is in the order of names, and equal ones by @key@.",
                lambda r: (r[1], r[0]),
            ),
            Option(
                'lambda item: item["@key@"][1:]',
                "A search is in the order of @key@, without its first letter.",
                lambda r: r[0][1:],
            ),
        ],
    ),
    Rule(
        "search-line",
        "@app@/handlers.py",
        "The app cannot read searches any more.",
        [
            Option(
                '" ".join([f"{len(ranked)}:", *codes])',
                "A search answers such as `2: A1 A2`: how many there are, and the page's.",
                ("{0}: {1}", " "),
            ),
            Option(
                '",".join([str(len(ranked)), *codes])',
                "A search answers such as `2,A1,A2`: how many there are, and the page's.",
                ("{0},{1}", ","),
            ),
            Option(
                "f\"{'+'.join(codes)} of {len(ranked)}\"",
                "A search answers such as `A1+A2 of 2`: the page's, and how many there are.",
                ("{1} of {0}", "+"),
            ),
        ],
    ),
    Rule(
        "too-many",
        "@app@/handlers.py",
        "A client does not understand why an order is refused.",
        [
            Option(
                f'{status}, "{text}"',
                f"An order of more than `max_count` is answered with `{status} {text}`.",
                f"{status} {text}",
            )
            for status in (400, 409, 413, 422)
            for text in ("too many", "not so many")
        ],
    ),
    numbers(
        "discount-from",
        "@app@/handlers.py",
        "Some who order several pieces pay another price than they were told.",
        (3, 4, 5, 6),
        "count >= {}",
        "From {} pieces on, an order costs @percent@ % less, before shipping. What is taken off is rounded down.",
    ),
    Rule(
        "shipping-price",
        "@app@/handlers.py",
        "The shipping that customers pay is not what was agreed.",
        [
            Option(
                'int(settings["shipping"])', "Shipping is charged as it is set, without tax.", lambda net, gross, n: net
            ),
            Option(
                'gross(int(settings["shipping"]), settings)',
                "Shipping is charged with tax.",
                lambda net, gross, n: gross(net),
            ),
            Option(
                'int(settings["shipping"]) * count',
                "Shipping is charged for each piece, without tax.",
                lambda net, gross, n: net * n,
            ),
            Option(
                'int(settings["shipping"]) + 10 * count',
                "Shipping is charged without tax, and 10 cents for each piece.",
                lambda net, gross, n: net + 10 * n,
            ),
        ],
    ),
)
_IDENTIFIERS = (
    "load seconds flag values fields fits parts pattern dispatch handler gross taxed visible "
    "matches ranked start codes total items find by_key row target body pairs verb"
)

#: Kind, symptom, path, old and new text.
_EDITS = (
    (
        "layer-precedence",
        "Since the last release the service ignores what operations set for this host.",
        "@app@/settings.py",
        '("defaults.conf", "production.env", "local.conf")',
        '("local.conf", "production.env", "defaults.conf")',
    ),
    (
        "duplicate-key",
        "Pages of the search are longer than this host's setting.",
        "@conf@/local.conf",
        "log_level = info\n",
        "log_level = info\npage_size = @other_size@\n",
    ),
    (
        "typo-in-key",
        "Customers in production are charged the wrong tax.",
        "@conf@/production.env",
        "TAX_PERCENT=",
        "TAX_PRECENT=",
    ),
    (
        "unit-suffix",
        "The health page reports a timeout of many minutes.",
        "@app@/settings.py",
        "int(text[:-2]) / 1000",
        "float(text[:-2])",
    ),
    (
        "flag-as-text",
        "Articles that are marked as hidden are offered to everybody.",
        "@app@/settings.py",
        "return text.lower() in @true_words@",
        "return bool(text)",
    ),
    (
        "shadowed-route",
        "Every search is answered with 404, though pages of single articles work.",
        "@app@/router.py",
        '    ("GET", "/@things@/search", handlers.search),\n    ("GET", "/@things@/:@key@", handlers.show),\n',
        '    ("GET", "/@things@/:@key@", handlers.show),\n    ("GET", "/@things@/search", handlers.search),\n',
    ),
    (
        "stale-route",
        "The shop's cart gets 404 when a customer pays.",
        "@app@/router.py",
        '("POST", "/@orders@"',
        '("POST", "/new-@orders@"',
    ),
    (
        "wrong-status",
        "A client with a wrong method is told that the path does not exist.",
        "@app@/router.py",
        "        allowed = True\n",
        "        allowed = False\n",
    ),
    (
        "plus-not-decoded",
        "A search for a town with two words in its name finds nothing.",
        "@app@/router.py",
        "{name: unquote_plus(value) for",
        "{name: value for",
    ),
    (
        "page-offset",
        "The first page of a search lacks the cheapest articles.",
        "@app@/handlers.py",
        'fields.get("page", "1")) - 1) * size',
        'fields.get("page", "1"))) * size',
    ),
    (
        "mutable-default",
        "A search shows articles of cities that were searched for before.",
        "@app@/handlers.py",
        "matches=None):\n    matches = [] if matches is None else matches\n",
        "matches=[]):\n",
    ),
    (
        "case-sensitivity",
        "Links in old newsletters, in lower case, lead to 404.",
        "@app@/store.py",
        "self.by_key.get(key.upper())",
        "self.by_key.get(key)",
    ),
    (
        "zeroed-setting",
        "The total of small orders lacks a part.",
        "@conf@/local.conf",
        "shipping = @shipping@\n",
        "shipping = 0\n",
    ),
    (
        "wrong-shebang",
        "The service does not start on the new host.",
        "bin/serve",
        "#!/bin/sh\n",
        "#!/usr/local/bin/sh\n",
    ),
)


@dataclass(frozen=True)
class _Shop:
    """The rules, names and settings of a drawn service."""

    variant: Variant
    names: Mapping[str, object]
    tax: int
    size: int
    currency: str
    timeout: int
    shipping: int
    free_from: int
    most: int


def draw(rng: random.Random) -> Project:
    """Draw a project: names of folders and things, the settings of each layer, articles, and an access log."""
    thing = rng.choice(["item", "article", "part", "product"])
    size = rng.randint(3, 5)
    names = {
        "app": rng.choice(["app", "server", "service", "web"]),
        "conf": rng.choice(["conf", "etc", "settings", "config"]),
        "thing": thing,
        "things": f"{thing}s",
        "key": rng.choice(["sku", "code", "number"]),
        "other_size": size + rng.randint(4, 20),
        "shipping": rng.randint(301, 990),
    }
    names |= {"percent": rng.randint(5, 25), "orders": rng.choice(["orders", "carts", "purchases", "checkouts"])}
    variant = Variant.draw(rng, _RULES, _IDENTIFIERS, names)
    shop = _Shop(
        variant,
        names,
        tax=rng.choice([7, 8, 17, 19, 21]),
        size=size,
        currency=rng.choice(["EUR", "CHF", "DKK", "SEK"]),
        timeout=rng.randint(11, 39) * 50,
        shipping=int(str(names["shipping"])),
        free_from=rng.randint(40, 90) * 100,
        most=rng.randint(6, 12),
    )
    files = _program(shop) | _settings(rng, shop) | variant.document(rng)
    prices = dict[str, int]()
    for number in range(rng.randint(24, 50)):
        table, rows = _items(rng, names, 30)
        files[f"data/{names['things']}{number:02}.csv"] = table
        prices |= {code: cents for code, _, _, cents, _ in rows}
    files["docs/notes.md"] = notes(rng, "Notes on operation", 12)
    files["docs/api.md"] = filled(_API, names)
    questions = _questions(rng, files, shop)
    fixed = frozenset(path for path in files if path.startswith(("data/", "logs/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, "requests", shop, shows=False), _check(fresh, "hidden", shop, shows=True)]

    about = (
        f"`bin/serve [DATA]` answers requests for {thing}s from standard input, one a line, with the data of a folder. "
        f"Its settings are in `{names['conf']}/`: defaults, then those of production, then those of this host. "
        f"What it answers is in `{variant.page}`."
    )
    looks = ["ls -R | head -50", "echo 'GET /health' | bin/serve"]
    faults = [*variant.edits(_EDITS, files, looks), *variant.faults(rng, files, looks)]
    return Project(about, files, faults, checks, {"bin/serve": 0o755}, fixed=fixed, questions=questions)


_API = """# Requests

- `GET /health`
- `GET /@things@/search?city=CITY&page=N`: how many there are, and the page's
- `GET /@things@/CODE`: its name, and its price with tax (upper or lower case)
- `POST /@orders@ @key@=CODE&count=N`: what it costs, with tax and shipping

Unknown paths are answered with 404, other methods of a path with 405.
"""


def _program(shop: _Shop) -> dict[str, str]:
    texts = {
        "bin/serve": _SERVE,
        "@app@/main.py": _MAIN,
        "@app@/settings.py": _SETTINGS,
        "@app@/router.py": _ROUTER,
        "@app@/handlers.py": _HANDLERS,
        "@app@/store.py": _STORE,
    }
    return shop.variant.files(texts)


def _settings(rng: random.Random, shop: _Shop) -> dict[str, str]:
    """Return the layers; settings of other hosts, and an old copy, which nothing reads, are beside them."""
    defaults = {
        "page_size": shop.size + 2,
        "tax_percent": shop.tax - 5,
        "currency": "ISK",
        "timeout": "2s",
        "show_hidden": "no",
        "shipping": 0,
        "free_shipping_from": 0,
        "max_count": 99,
    }
    production = {
        "TAX_PERCENT": shop.tax,
        "CURRENCY": shop.currency,
        "FREE_SHIPPING_FROM": shop.free_from,
        "MAX_COUNT": shop.most + 1,
    }
    local = {
        "page_size": shop.size,
        "timeout": f"{shop.timeout}ms",
        "max_count": shop.most,
        "shipping": shop.shipping,
        "show_hidden": rng.choice(["no", "off", "false"]),
        "log_level": "info",
    }
    conf = shop.names["conf"]
    stale = local | {"page_size": shop.size + 9, "timeout": "30s", "show_hidden": shop.variant["true-words"][0]}
    return {
        f"{conf}/defaults.conf": _lines(defaults, " = ", "Defaults. Hosts set their own values in local.conf."),
        f"{conf}/production.env": _lines(production, "=", "Read by all hosts in production. Prices are in cents."),
        f"{conf}/staging.env": _lines(production | {"TAX_PERCENT": 0, "MAX_COUNT": 1}, "=", "For staging only."),
        f"{conf}/local.conf": _lines(local, " = ", f"This host. Wins over all others. {rng.choice(_REMARKS)}"),
        f"{conf}/local.conf.bak": _lines(stale, " = ", "This host. Wins over all others."),
    }


_REMARKS = ("The timeout is in minutes.", "A restart is needed after changes.", "Generated, do not edit.")


def _lines(values: Mapping[str, object], equals: str, remark: str) -> str:
    return "\n".join([f"# {remark}", *(f"{key}{equals}{value}" for key, value in values.items())]) + "\n"


#: An article: its code, name, city, cents, and whether it is hidden.
_Item: TypeAlias = tuple[str, str, str, int, bool]


def _items(rng: random.Random, names: Mapping[str, object], count: int) -> tuple[str, list[_Item]]:
    """Draw a file of articles; return it, and its rows: code, name, city, cents, hidden."""
    places = [*rng.sample(CITIES, 2), *rng.sample(TOWNS, 2)]
    rows = [
        (
            f"{rng.choice('ABCDEFGH')}{token(rng, 5).upper()}{number}",
            rng.choice(GOODS),
            places[number % 4],
            rng.randint(199, 3999),
            number % 7 == 5,
        )
        for number in range(count)
    ]
    lines = [f"{code},{name},{place},{cents},{'y' if hidden else 'n'}" for code, name, place, cents, hidden in rows]
    return "\n".join([f"{names['key']},name,city,cents,hidden", *lines]) + "\n", rows


def _check(rng: random.Random, name: str, shop: _Shop, *, shows: bool) -> Check:
    """Draw articles and requests; compute the answers from the rows, and not as the service does.

    ``shows`` is whether the setting that shows hidden articles is on.
    """
    table, rows = _items(rng, shop.names, 40)
    things, key, variant = shop.names["things"], shop.names["key"], shop.variant

    def money(cents: int) -> str:
        return str(variant["price"].format(*divmod(cents, 100), shop.currency))

    def gross(cents: int) -> int:
        return int(variant["rounding"](cents * (100 + shop.tax)))

    def page(row: _Item) -> str:
        return f"200 {variant['article-line'].format(row[1], money(gross(row[3])), row[2])}"

    def total(row: _Item, count: int) -> str:
        cents = gross(row[3] * count)
        cents -= cents * int(str(shop.names["percent"])) // 100 if count >= variant["discount-from"] else 0
        cents += variant["shipping-price"](shop.shipping, gross, count) if cents < shop.free_from else 0
        return f"201 {money(cents)}"

    seconds = shop.timeout / 1000
    dialogue = [("GET /health", f"200 {variant['health-line'].format(seconds, seconds * 1000)}")]
    offered = [row for row in rows if shows or not row[4]]
    for row in [*rng.sample(offered, 6), offered[0]]:
        dialogue.append((f"GET /{things}/{rng.choice([row[0], row[0].lower()])}", page(row)))
    dialogue.append((f"GET /{things}/{offered[0][0].lower()}", page(offered[0])))
    hidden = rng.choice([row for row in rows if row[4]])
    missing = f"404 no such {shop.names['thing']}"
    dialogue.append((f"GET /{things}/{hidden[0]}", page(hidden) if shows else missing))
    form, separator = variant["search-line"]
    for town in sorted({row[2] for row in rows}):
        number = rng.choice([1, 2])
        ranked = [row[0] for row in sorted(offered, key=variant["order-of-search"]) if row[2] == town]
        part = ranked[shop.size * (number - 1) : shop.size * number]
        query = f"city={town.replace(' ', '+')}&page={number}"
        dialogue.append((f"GET /{things}/search?{query}", f"200 {form.format(len(ranked), separator.join(part))}"))
    cheap = min(offered, key=lambda row: row[3])
    for row, count in [*((cheap, count) for count in range(1, 7)), *((rng.choice(offered), n) for n in (2, shop.most))]:
        dialogue.append((f"POST /{shop.names['orders']} {key}={row[0]}&count={count}", total(row, count)))
    request = f"POST /{shop.names['orders']} {key}={cheap[0]}&count={shop.most + 1}"
    dialogue.append((request, variant["too-many"]))
    dialogue.append((f"DELETE /{things}/{cheap[0]}", "405 method not allowed"))
    dialogue.append((f"GET /{token(rng)}", "404 no such path"))
    rng.shuffle(dialogue)
    lines, answers = zip(*dialogue, strict=True)
    inputs = {"data/a.csv": table, "requests.txt": "\n".join(lines) + "\n"}
    setting = f"echo 'show_hidden = {rng.choice(variant['true-words'])}' >> {shop.names['conf']}/local.conf; "
    return Check(name, f"{setting * shows}bin/serve $IN/data < $IN/requests.txt", "\n".join(answers), inputs)


def _questions(rng: random.Random, files: dict[str, str], shop: _Shop) -> list[Question]:
    """Draw an access log and a list of deployments, and ask about them."""
    hosts = [f"{rng.choice(['web', 'app', 'node'])}-{number}" for number in range(1, rng.randint(4, 7))]
    log = requests(rng, 4000, hosts, lambda: f"/{shop.names['things']}/{token(rng, 6).upper()}")
    files["logs/access.log"] = "\n".join(request.line for request in log) + "\n"
    builds = [(f"2025-05-{number:02}T{rng.randint(1, 22):02}:30", token(rng, 10)) for number in range(1, 28)]
    files["logs/deployments.txt"] = "".join(f"{time}Z deployed build {build}\n" for time, build in builds)
    failures = rng.sample([request for request in log if request.status == 503 and request.minute > 2880], ASKED)
    dates = [f"2025-05-{number:02}" for number in rng.sample(range(2, 19), ASKED)]
    return [
        asked_together([_slowest_request(log, rng.choice(hosts), date) for date in dates]),
        asked_together([_build_of_failure(log, builds, one.host, one.time[:10]) for one in failures]),
    ]


def _slowest_request(log: Sequence[Request], host: str, date: str) -> Question:
    own = [request for request in log if request.host == host and request.time.startswith(date)]
    pattern = f"^{date}.*Z {host} "
    return Question(
        "slowest-request",
        f"Which request (its hexadecimal id) of the host {host} took longest on {date}, by logs/access.log?",
        max(own, key=lambda request: request.milliseconds).name,
        [
            "head -3 logs/access.log",
            f"grep '{pattern}' logs/access.log | sort -k7,7n | tail -1 | grep -o 'req=[0-9a-f]*' | cut -c5-",
        ],
    )


def _build_of_failure(log: Sequence[Request], builds: Sequence[tuple[str, str]], host: str, date: str) -> Question:
    failed = next(request for request in log if request.host == host and request.status == 503 and request.time >= date)
    first = f'awk \'$1 >= "{date}" && $2 == "{host}" && $6 == 503 {{ print $1; exit }}\' logs/access.log'
    return Question(
        "build-of-failure",
        f"Which build was deployed when {host} answered with 503 for the first time since {date}?",
        [build for time, build in builds if time <= failed.time][-1],
        [
            "head -3 logs/*",
            f"t=$({first}); awk -v t=$t '$1 <= t {{ b = $4 }} END {{ print b }}' logs/deployments.txt",
        ],
    )
