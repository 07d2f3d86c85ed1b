"""The template *service*: layered settings, routes, and handlers that answer requests from standard input.

It needs sh and Python 3.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...project import Check, Project, Question
from ..parts import ASKED, CITIES, GOODS, TOWNS, Request, asked_together, filled, notes, requests, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import API, HANDLERS, MAIN, ROUTER, SERVE, SETTINGS, STORE


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


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
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
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
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
    files["docs/api.md"] = filled(API, names)
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
    faults = [*variant.edits(EDITS, files, looks), *variant.faults(rng, files, looks)]
    return Project(about, files, faults, checks, {"bin/serve": 0o755}, fixed=fixed, questions=questions)


def _program(shop: _Shop) -> dict[str, str]:
    texts = {
        "bin/serve": SERVE,
        "@app@/main.py": MAIN,
        "@app@/settings.py": SETTINGS,
        "@app@/router.py": ROUTER,
        "@app@/handlers.py": HANDLERS,
        "@app@/store.py": STORE,
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
