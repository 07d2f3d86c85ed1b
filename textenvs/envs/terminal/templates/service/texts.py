"""Files of the template `service`; what stands between @ is drawn."""

from __future__ import annotations

SERVE = """#!/bin/sh
# Answers the requests on standard input, one a line. Usage: bin/serve [DATA]
cd "$(dirname "$0")/.." || exit 1
exec python3 -S -E @app@/main.py "${1:-data}"
"""

MAIN = '''"""Answer requests: METHOD TARGET [BODY], one a line."""
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

SETTINGS = '''"""Settings in three layers: the later wins."""

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

ROUTER = '''"""Find the handler of a request."""
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

HANDLERS = '''"""Handlers: each returns a status and a line of text."""
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

STORE = '''"""The @things@ of all files of a folder."""
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

API = """# Requests

- `GET /health`
- `GET /@things@/search?city=CITY&page=N`: how many there are, and the page's
- `GET /@things@/CODE`: its name, and its price with tax (upper or lower case)
- `POST /@orders@ @key@=CODE&count=N`: what it costs, with tax and shipping

Unknown paths are answered with 404, other methods of a path with 405.
"""
