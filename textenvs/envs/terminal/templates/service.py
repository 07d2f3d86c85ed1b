"""The template *service*: layered settings, routes, and handlers that answer requests from standard input.

It needs sh and Python 3.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..project import Check, Project, Question
from .parts import CITIES, GOODS, TOWNS, faults_of, filled, notes, requests, token

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
    return text.lower() in ("1", "true", "yes", "on")
'''
_ROUTER = '''"""Find the handler of a request."""
from urllib.parse import unquote_plus

import handlers

# The first that fits is taken.
ROUTES = [
    ("GET", "/health", handlers.health),
    ("GET", "/@things@/search", handlers.search),
    ("GET", "/@things@/:@key@", handlers.show),
    ("POST", "/orders", handlers.order),
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
    """Return the price with tax, in cents, rounded half up."""
    return (cents * (100 + int(settings["tax_percent"])) + 50) // 100


def money(cents, settings):
    return f"{cents // 100}.{cents % 100:02} {settings['currency']}"


def visible(item, settings):
    return flag(settings["show_hidden"]) or not item["hidden"]


def health(fields, store, settings):
    return 200, f"ok timeout={seconds(settings['timeout'])}"


def show(fields, store, settings):
    item = store.find(fields["@key@"])
    if item is None or not visible(item, settings):
        return 404, "no such @thing@"
    return 200, f"{item['name']} {money(gross(item['cents'], settings), settings)}"


def search(fields, store, settings, matches=None):
    matches = [] if matches is None else matches
    for item in store.items:
        if visible(item, settings) and item["city"] == fields["city"]:
            matches.append(item)
    ranked = sorted(matches, key=lambda item: (item["cents"], item["@key@"]))
    size = int(settings["page_size"])
    start = (int(fields.get("page", "1")) - 1) * size
    return 200, " ".join([f"{len(ranked)}:", *(item["@key@"] for item in ranked[start : start + size])])


def order(fields, store, settings):
    item, count = store.find(fields["@key@"]), int(fields["count"])
    if item is None:
        return 404, "no such @thing@"
    if count > int(settings["max_count"]):
        return 422, "too many"
    total = gross(item["cents"] * count, settings)
    if total < int(settings["free_shipping_from"]):
        total += int(settings["shipping"])
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
        'return text.lower() in ("1", "true", "yes", "on")',
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
        '("POST", "/orders"',
        '("POST", "/order"',
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
        "rounding-down",
        "Some prices are a cent lower than on the invoice.",
        "@app@/handlers.py",
        " + 50) // 100\n\n",
        ") // 100\n\n",
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
    """The names and settings of a drawn service."""

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
    shop = _Shop(
        names,
        tax=rng.choice([7, 8, 17, 19, 21]),
        size=size,
        currency=rng.choice(["EUR", "CHF", "DKK", "SEK"]),
        timeout=rng.randint(11, 39) * 50,
        shipping=int(str(names["shipping"])),
        free_from=rng.randint(40, 90) * 100,
        most=rng.randint(6, 12),
    )
    files = _program(shop) | _settings(rng, shop)
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
        return [_check(fresh, f"requests{number}", shop) for number in range(2)]

    about = (
        f"`bin/serve [DATA]` answers requests for {thing}s from standard input, one a line, with the data of a folder. "
        f"Its settings are in `{names['conf']}/`: defaults, then those of production, then those of this host."
    )
    faults = faults_of(_EDITS, names, ["ls -R | head -50", "echo 'GET /health' | bin/serve"])
    return Project(about, files, faults, checks, {"bin/serve": 0o755}, fixed=fixed, questions=questions)


_API = """# Requests

- `GET /health`
- `GET /@things@/search?city=CITY&page=N`: how many there are, and the page's, the cheapest first
- `GET /@things@/CODE`: its name, and its price with tax (upper or lower case)
- `POST /orders @key@=CODE&count=N`: what it costs, with tax and shipping

Unknown paths are answered with 404, other methods of a path with 405.
"""


def _program(shop: _Shop) -> dict[str, str]:
    app = shop.names["app"]
    texts = {
        "bin/serve": _SERVE,
        f"{app}/main.py": _MAIN,
        f"{app}/settings.py": _SETTINGS,
        f"{app}/router.py": _ROUTER,
        f"{app}/handlers.py": _HANDLERS,
        f"{app}/store.py": _STORE,
    }
    return {path: filled(text, shop.names) for path, text in texts.items()}


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
    stale = local | {"page_size": shop.size + 9, "timeout": "30s", "show_hidden": "yes"}
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


def _items(
    rng: random.Random, names: Mapping[str, object], count: int
) -> tuple[str, list[tuple[str, str, str, int, bool]]]:
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


def _check(rng: random.Random, name: str, shop: _Shop) -> Check:
    """Draw articles and requests; compute the answers from the rows, and not as the service does."""
    table, rows = _items(rng, shop.names, 40)
    things, key = shop.names["things"], shop.names["key"]

    def price(cents: int, extra: int = 0) -> str:
        whole, rest = divmod(cents * (100 + shop.tax), 100)
        total = whole + (rest >= 50)
        total += extra if total < shop.free_from else 0
        return f"{total / 100:.2f} {shop.currency}"

    dialogue = [("GET /health", f"200 ok timeout={shop.timeout / 1000}")]
    offered = [row for row in rows if not row[4]]
    # One of them at least has a price that is rounded up.
    up = [row for row in offered if row[3] * (100 + shop.tax) % 100 >= 50]
    for row in [*rng.sample(offered, 4), *rng.sample(up, 1)]:
        code = rng.choice([row[0], row[0].lower()])
        dialogue.append((f"GET /{things}/{code}", f"200 {row[1]} {price(row[3])}"))
    dialogue.append((f"GET /{things}/{offered[0][0].lower()}", f"200 {offered[0][1]} {price(offered[0][3])}"))
    hidden = rng.choice([row for row in rows if row[4]])
    dialogue.append((f"GET /{things}/{hidden[0]}", f"404 no such {shop.names['thing']}"))
    for town in sorted({row[2] for row in rows}):
        page = rng.choice([1, 2])
        ranked = [row[0] for row in sorted(offered, key=lambda row: (row[3], row[0])) if row[2] == town]
        part = ranked[shop.size * (page - 1) : shop.size * page]
        query = f"city={town.replace(' ', '+')}&page={page}"
        dialogue.append((f"GET /{things}/search?{query}", " ".join([f"200 {len(ranked)}:", *part])))
    cheap = min(offered, key=lambda row: row[3])
    for row, count in [(cheap, 1), *((rng.choice(offered), count) for count in (2, shop.most))]:
        dialogue.append((f"POST /orders {key}={row[0]}&count={count}", f"201 {price(row[3] * count, shop.shipping)}"))
    dialogue.append((f"POST /orders {key}={cheap[0]}&count={shop.most + 1}", "422 too many"))
    dialogue.append((f"DELETE /{things}/{cheap[0]}", "405 method not allowed"))
    dialogue.append((f"GET /{token(rng)}", "404 no such path"))
    rng.shuffle(dialogue)
    lines, answers = zip(*dialogue, strict=True)
    inputs = {"data/a.csv": table, "requests.txt": "\n".join(lines) + "\n"}
    return Check(name, "bin/serve $IN/data < $IN/requests.txt", "\n".join(answers), inputs)


def _questions(rng: random.Random, files: dict[str, str], shop: _Shop) -> list[Question]:
    """Draw an access log and a list of deployments, and ask about them."""
    hosts = [f"{rng.choice(['web', 'app', 'node'])}-{number}" for number in range(1, rng.randint(4, 7))]
    log = requests(rng, 4000, hosts, lambda: f"/{shop.names['things']}/{token(rng, 6).upper()}")
    files["logs/access.log"] = "\n".join(request.line for request in log) + "\n"
    host, date = rng.choice(hosts), f"2025-05-{rng.randint(2, 27):02}"
    slowest = max(
        (request for request in log if request.host == host and request.time.startswith(date)),
        key=lambda request: request.milliseconds,
    )
    builds = [(f"2025-05-{number:02}T{rng.randint(1, 22):02}:30", token(rng, 10)) for number in range(1, 28)]
    files["logs/deployments.txt"] = "".join(f"{time}Z deployed build {build}\n" for time, build in builds)
    failed = next(
        request for request in log if request.host == host and request.status == 503 and request.minute > 2880
    )
    build = [build for time, build in builds if time <= failed.time][-1]
    pattern = f"^{date}.*Z {host} "
    first = f'awk \'$1 >= "{"2025-05-03"}" && $2 == "{host}" && $6 == 503 {{ print $1; exit }}\' logs/access.log'
    return [
        Question(
            "slowest-request",
            f"Which request (its hexadecimal id) of the host {host} took longest on {date}, by logs/access.log?",
            slowest.name,
            [
                "head -3 logs/access.log",
                f"grep '{pattern}' logs/access.log | sort -k7,7n | tail -1 | grep -o 'req=[0-9a-f]*' | cut -c5-",
            ],
        ),
        Question(
            "build-of-failure",
            f"Which build was deployed when {host} answered with 503 for the first time since 2025-05-03?",
            build,
            [
                "head -3 logs/*",
                f"t=$({first}); awk -v t=$t '$1 <= t {{ b = $4 }} END {{ print b }}' logs/deployments.txt",
            ],
        ),
    ]
