"""The template *exchange*: orders of members, trades by price and time, fees, positions, and reports on days.

It needs bash, sed, awk (mawk is enough), sort, join, tr and Python 3.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    FIRST_NAMES,
    SURNAMES,
    asked_together,
    fault_of_command,
    file_in_the_way,
    lost_permission,
    notes,
    token,
)
from ..records import draw_journal, draw_lists
from ..variation import Variant
from . import texts
from .faults import EDITS
from .oracle import Day, Evening, Instrument, Market, Message
from .rules import IDENTIFIERS, RULES
from .scenes import HELD, SCENES, USUAL

_GENERAL, _SELLERS = "abcde", "pqu"
_LETTERS = "BCDFGHKLMNPRSTVW"


@dataclass(frozen=True)
class _Season:
    """A market, three days, and their messages."""

    market: Market
    days: Sequence[date]
    messages: Sequence[Sequence[Message]]

    def lines(self, variant: Variant) -> list[str]:
        """Return the reports on all days by the rules of a project."""
        lines, evening = list[str](), self.market.first()
        for day, messages in zip(self.days, self.messages, strict=True):
            evening = self.evening(variant, evening, day, messages)
            lines += evening.lines
        return lines

    def evening(self, variant: Variant, before: Evening, day: date, messages: Sequence[Message]) -> Evening:
        return Day(variant, self.market, before, day.toordinal()).evening(messages)

    def files(self, rng: random.Random) -> dict[str, str]:
        market, rows = self.market, list[str]()
        for one in market.instruments.values():
            rows.append(f"{one.symbol};{_price(one.tick, 1)};{one.lot};{_price(one.usual, 2)}")
        files = {"instruments.csv": "\n".join(["#symbol;tick;lot;reference", *rng.sample(rows, len(rows)), ""])}
        rows = [f"{code};{name};{kind}" for code, (name, kind) in market.members.items()]
        files["members.csv"] = "\n".join(["#code;name;kind", *rng.sample(rows, len(rows)), ""])
        rows = [";".join(map(str, row)) for row in market.holdings]
        files["holdings.csv"] = "\n".join(["#member;symbol;quantity;cost", *rows, ""])
        # It has rested for too long by each rule.
        old, seller = [*market.instruments.values()][-1], min(market.members)
        since = self.days[0] - timedelta(days=rng.randint(35, 60))
        files["state/orders.csv"] = f"W1;{seller};sell;{old.symbol};{old.lot};{old.usual};gtc;{since};1\n"
        for day, messages in zip(self.days, self.messages, strict=True):
            for place, member in enumerate(sorted({one.member for one in messages})):
                own = sorted((one for one in messages if one.member == member), key=lambda one: one.time)
                files[f"inbox/{day}/{member}.msg"] = self._file(rng, own, place)
        return files

    def _file(self, rng: random.Random, messages: Sequence[Message], place: int) -> str:
        """Return the messages of a member; the first file has ends of lines of another system."""
        lines = [f"# {messages[0].member}, {token(rng, 4)}", ""]
        for number, one in enumerate(messages):
            action = one.action.lower() if rng.random() < 0.3 else one.action
            words = [one.time, action, one.id]
            if one.action == "NEW":
                price = _price(one.price, rng.randrange(3)) if one.price else "market"
                words += [one.side, one.symbol, str(one.quantity), price, one.until]
            elif one.action == "CHANGE":
                words += [str(one.quantity), _price(one.price, rng.randrange(3))]
            line = rng.choice([" ", " ", "  ", "\t"]).join(words)
            lines.append(line + f"  # {token(rng, 3)}" * (number % 6 == 2))
            if number == 0 and one.action == "NEW":
                lines.append(f"# {line.replace(one.id, one.id + 'x')}")
        return ("\r\n" if place == 0 else "\n").join([*lines, ""])


def _price(cents: int, style: int) -> str:
    """Return a price: with few digits (0), with two, and perhaps with commas (2)."""
    text = f"{cents // 100:,}" if style else str(cents // 100)
    if style or cents % 10:
        return f"{text}.{cents % 100:02}"
    return f"{text}.{cents % 100 // 10}" if cents % 100 else text


def _time(number: int) -> str:
    seconds, rest = divmod(number, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:03}"


def _late(rng: random.Random, begin: int, end: int) -> str:
    """Draw a time between two minutes of the day."""
    return _time(rng.randrange(begin * 60_000, end * 60_000))


def _is_rounded_badly(cents: int) -> bool:
    return int(float(f"{cents / 100:.2f}") * 100) != cents


def _market(rng: random.Random) -> tuple[Market, dict[str, str]]:
    """Draw a market with an instrument for each scene; return the codes of members as well, by their letters."""
    codes = rng.sample([f"{x}{y}{z}" for x in _LETTERS for y in _LETTERS for z in ("", *_LETTERS)], 9)
    letters = dict(zip("abcdepqur", [*sorted(codes[:5]), *codes[5:]], strict=True))
    names = rng.sample([f"{first} {last}" for first in FIRST_NAMES for last in SURNAMES], 9)
    kinds = {"a": "bank", "b": "bank", "r": "retail"}
    members = {
        code: (name, kinds.get(letter, rng.choice(["bank", "broker"])))
        for (letter, code), name in zip(letters.items(), names, strict=True)
    }
    symbols = rng.sample([f"{x}{y}{z}" for x in "AEI" for y in _LETTERS for z in _LETTERS], len(SCENES) + 1)
    instruments, holdings = dict[str, Instrument](), list[tuple[str, str, int, int]]()
    for place, symbol in enumerate(symbols):
        scene = SCENES[place][0] if place < len(SCENES) else ""
        usual = USUAL.get(scene, 1000 * rng.randint(2, 6))
        one = instruments[symbol] = Instrument(symbol, rng.choice([5, 10]), rng.choice([4, 10]), usual)
        for lots in HELD.get(scene, ()):
            holdings.append((letters["r"], symbol, lots * one.lot, lots * one.lot * rng.randint(1500, 3000)))
    return Market(instruments, members, holdings, (rng.randint(10, 19) * 2 + 1, rng.randint(3, 7) * 2)), letters


def _season(rng: random.Random, market: Market, letters: Mapping[str, str]) -> _Season:
    """Draw three days in which each rule and each fault shows."""
    first = date(2025, 3, 3) + timedelta(days=rng.randint(0, 200))
    second = first + timedelta(days=rng.randint(4, 6))
    days = [first, second, second + timedelta(days=rng.randint(11, 14))]
    messages: list[list[Message]] = [[], [], []]
    prefix, number = rng.choice("XYZ"), iter(range(rng.randint(1000, 4000), 9999))
    for scene, instrument in zip(SCENES, market.instruments.values(), strict=False):
        ids = list[str]()
        for day, text in enumerate(scene):
            messages[day] += _messages(rng, text, instrument, letters, ids, (f"{prefix}{one}" for one in number))
    # An instrument that nobody knows, and a price that is no exact number in binary digits.
    id = f"{prefix}{next(number)}"
    messages[0].append(Message(_late(rng, 600, 900), letters["a"], "NEW", id, "buy", "NONE", 10, 1000, "day"))
    last = [*market.instruments.values()][-1]
    prices = [price for price in range(last.usual, last.usual * 104 // 100, last.tick) if _is_rounded_badly(price)]
    for cents in prices[:2]:
        id, time = f"{prefix}{next(number)}", _late(rng, 600, 900)
        messages[0].append(Message(time, letters["b"], "NEW", id, "sell", last.symbol, 2 * last.lot, cents, "gtc"))
    return _Season(market, days, messages)


def _messages(
    rng: random.Random,
    text: str,
    instrument: Instrument,
    letters: Mapping[str, str],
    ids: list[str],
    fresh: Iterator[str],
) -> list[Message]:
    """Draw times for the messages of a day of a scene; add the ids of new orders to those of the scene."""
    messages, words = list[Message](), text.split()
    minutes = sorted(rng.sample(range(9 * 60 + 1, 16 * 60 + 20), len(words)))
    for minute, word in zip(minutes, words, strict=True):
        mark, word = (word[0], word[1:]) if word[0] in "=<>~" else ("", word)
        bounds = {"<": (500, 539), ">": (1050, 1051), "~": (1000, 1040)}.get(mark, (minute, minute + 1))
        time = messages[-1].time if mark == "=" else _late(rng, *bounds)
        member, action, *rest = word.split(":")
        if action in ("buy", "sell"):
            ids.append(next(fresh))
            size, price, until = (*rest, "day")[:3]
            message = Message(time, letters[member], "NEW", ids[-1], action, instrument.symbol, until=until)
        else:
            place, size, price = (*rest, "0", "m")[:3]
            message = Message(time, letters[member], action.upper(), ids[int(place) - 1])
        quantity = round(float(size) * instrument.lot)
        messages.append(replace(message, quantity=quantity, price=_cents(instrument, price)))
    return messages


def _cents(instrument: Instrument, text: str) -> int:
    """Return a price of a scene: ticks or per cent more than the reference price."""
    if text == "m":
        return 0
    if text.endswith("%"):
        return instrument.usual * (100 + int(text[:-1])) // 100
    return instrument.usual + round(float(text) * instrument.tick)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the rules of an exchange, how its programs are written, and a day of it."""
    opens_key, closes_key = rng.choice([("opens", "closes"), ("begin", "end_of_day"), ("first_minute", "closing")])
    taker_key, maker_key = rng.choice([("taker", "maker"), ("active_rate", "passive_rate"), ("came", "waited")])
    market, letters = _market(rng)
    is_order_file, is_accounts_file = rng.random() < 0.5, rng.random() < 0.5
    shapes = {name: rng.choice(forms) for name, forms in texts.SHAPES.items()}
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "share", "shell"]),
        "code": rng.choice(["engine", "code", "python"]),
        "conf": rng.choice(["exchange", "hours-and-fees", "house"]),
        "book": "orders" if is_order_file else "book",
        "checks": "orders" if is_order_file else rng.choice(["checks", "gate"]),
        "fees": "accounts" if is_accounts_file else "fees",
        "positions": "accounts" if is_accounts_file else rng.choice(["positions", "lots"]),
        "currency": rng.choice(["crowns", "francs", "guilders"]),
        "opens_key": opens_key,
        "closes_key": closes_key,
        "taker_key": taker_key,
        "maker_key": maker_key,
        "taker_rate": market.rates[0],
        "maker_rate": market.rates[1],
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    codes = {
        f"{name}{end}": variant.text(code)
        for name, pair in shapes.items()
        for end, code in zip(("", "_wrong"), pair, strict=True)
    }
    variant = replace(variant, names={**names, **codes})
    files = variant.files(_programs(rng, is_order_file, is_accounts_file)) | variant.document(rng)
    conf, old = names["conf"], texts.CONF.replace("@taker_rate@", "40").replace("17:30", "16:00")
    files |= {
        # Nothing reads these.
        f"etc/{conf}-before-merger.conf": variant.words(old),
        "old/match.py": variant.outdated(texts.MATCH.text(rng)),
        "old/merge.sh": variant.outdated(texts.MERGE),
        "docs/files.md": variant.words(texts.FORMAT),
        "docs/notes.md": notes(rng, "Notes on the exchange", 10),
    }
    season = _season(rng, market, letters)
    files |= {
        f"market/{name}": text
        for name, text in replace(season, days=season.days[:1], messages=season.messages[:1]).files(rng).items()
    }
    questions = _questions(rng, files, [*market.members])
    fixed = frozenset(path for path in files if path.startswith(("market/", "tape/", "vaults/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, variant, market.rates)]

    about = (
        "`bin/day FOLDER DATE` matches the orders that members have sent on a day, and "
        "`bin/report FOLDER DATE REPORT...` prints trades, refused messages, the book, volumes, fees and positions of "
        f"it. `market/` is an example, `docs/files.md` describes files and programs, and `{variant.page}` says what "
        "was agreed."
    )
    looks = ["ls * | head -90", "cat bin/* docs/files.md etc/*", variant.words("tail -n +1 @lib@/* @code@/*")]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = dict.fromkeys(["bin/day", "bin/report"], 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _programs(rng: random.Random, is_order_file: bool, is_accounts_file: bool) -> dict[str, str]:
    """Return the texts of the programs by path: some of them are joined."""
    head, *functions = texts.REPORTS
    programs = {"tables": texts.TABLES}
    if is_order_file:
        programs["@book@"] = texts.BOOK.joined(texts.CHECKS, "Orders that rest, and checks of new ones.")
    else:
        programs |= {"@book@": texts.BOOK, "@checks@": texts.CHECKS}
    if is_accounts_file:
        programs["@fees@"] = texts.FEES.joined(texts.POSITIONS, "Fees of trades, and positions: lists of lots.")
    else:
        programs |= {"@fees@": texts.FEES, "@positions@": texts.POSITIONS}
    return {
        "bin/day": texts.DAY,
        "bin/report": texts.REPORT,
        "@lib@/merge.sh": texts.MERGE,
        "@lib@/reports.sh": "\n".join([head, *rng.sample(functions, len(functions))]),
        "@code@/match.py": texts.MATCH.text(rng) + texts.MATCH_END,
        "@code@/settle.py": texts.SETTLE.text(rng) + texts.SETTLE_END,
        "etc/@conf@.conf": texts.CONF,
        **{f"@code@/{name}.py": program.text(rng) for name, program in programs.items()},
    }


def _check(rng: random.Random, variant: Variant, rates: tuple[int, int]) -> Check:
    """Run three days; a list of messages of the first one is there from before."""
    market, letters = _market(rng)
    season = _season(rng, replace(market, rates=rates), letters)
    inputs = {f"x/{name}": text for name, text in season.files(rng).items()}
    inputs[f"x/days/{season.days[0]}/messages.txt"] = f"09:00:00.000 {letters['a']} NEW X1 buy NONE 10 10 day\n"
    reports = "trades refused book volume fees positions"
    command = "; ".join(
        ["cp -R $IN/x /tmp/x", "cd /tmp"]
        + [f"/project/bin/day x {day}; /project/bin/report x {day} {reports}" for day in season.days]
    )
    return Check("season", command, "\n".join(season.lines(variant)), inputs)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    code, conf = variant.names["code"], variant.names["conf"]
    return [
        file_in_the_way(
            f"{code}/csv.py",
            '"""Comma, semicolon, vertical line: marks between columns."""\n\nMARKS = [",", ";", "|"]\n',
            looks,
            "Nothing is matched, and the error is in a module that belongs to Python.",
            "separators-as-module",
        ),
        fault_of_command(
            "link-to-branch",
            "Nothing is matched since somebody tidied up the settings.",
            [*looks, "ls -lR etc"],
            f"mkdir etc/main && mv etc/{conf}.conf etc/main/ && ln -s branch/{conf}.conf etc/{conf}.conf",
            f"rm etc/{conf}.conf && mv etc/main/{conf}.conf etc/{conf}.conf && rmdir etc/main",
        ),
        file_in_the_way(
            f"{code}/tables/__init__.py",
            variant.outdated(texts.TABLES.text(random.Random(0)).replace('delimiter=";"', 'delimiter="\\t"')),
            looks,
            "Tables are read as if their columns were separated in the way of long ago.",
            "package-of-tables",
        ),
        lost_permission("bin/day", looks, "No day has any trades, and `state` does not exist."),
    ]


def _questions(rng: random.Random, files: dict[str, str], members: Sequence[str]) -> list[Question]:
    """Draw the tape of some months, and lists of vaults; ask about them."""
    largest = draw_journal(
        rng,
        files,
        "tape/2025-{:02}.txt",
        members,
        range(100, 90_000),
        lambda month, member, quantity, trade: (
            f"2025-{month:02}-{rng.randint(1, 28):02}|{member}|{quantity}|{rng.choice(['buy', 'sell'])}|{trade}"
        ),
    )
    metals = ("gold", "silver", "platinum")
    vault_of = draw_lists(rng, files, "vaults", "vault", lambda bar: f"{rng.choice(metals)} {bar}", counts=(12, 22))
    return [
        asked_together([_largest_trade(one, largest[one]) for one in rng.sample([*largest], ASKED)]),
        asked_together([_vault_of_bar(one, vault_of[one]) for one in rng.sample(sorted(vault_of), ASKED)]),
    ]


def _largest_trade(member: str, trade: str) -> Question:
    return Question(
        "largest-trade-on-tape",
        f"Which trade (the last column) of {member} has the largest quantity (the third one), by tape/?",
        trade,
        [
            "head -n 3 tape/2025-01.txt",
            f"grep -h '|{member}|' tape/* | sort -t '|' -k3,3n | tail -n 1 | cut -d'|' -f5",
        ],
    )


def _vault_of_bar(bar: str, vault: str) -> Question:
    return Question(
        "vault-of-bar",
        f"Which vault is the bar {bar} in, by vaults/?",
        vault,
        [f"grep -r {bar} vaults", f"grep -l ' {bar}$' vaults/* | xargs sed -n 's/^vault //p'"],
    )
