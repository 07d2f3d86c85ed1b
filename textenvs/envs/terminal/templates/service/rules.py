"""Rules that the programs of the template `service` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "true-words",
        "@app@/settings.py",
        "A setting that was switched on, as the documents say, is off.",
        [
            Option(repr(words), f"A setting is on where it is one of: {', '.join(words)}. All else is off.", words)
            for words in (("1", "true"), ("yes", "on"), ("y", "enabled"), ("active", "ja"), ("allowed", "oui"))
        ],
        shows=True,
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

IDENTIFIERS = (
    "load seconds flag values fields fits parts pattern dispatch handler gross taxed visible "
    "matches ranked start codes total items find by_key row target body pairs verb"
)
