"""The template *warehouse*: lines of scanners, reservations and offers; stock, orders and values in SQLite views.

It needs bash, awk (mawk is enough), coreutils and Python 3 with its module sqlite3.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, COLOURS, GOODS, SURNAMES, asked_together, file_in_the_way, lost_permission, notes, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import CLEAN, FORMAT, LOAD, REPORTS, SCAN, STOCK, VIEWS

_SIGNS = {"IN": 1, "OUT": -1, "FROM": -1, "TO": 1}
#: Ages of reservations and of last times: the numbers of days of rules, and some between them.
_RESERVED = (0, 5, 6, 7, 8, 10, 12, 14, 18, 21, 22, 25)
_TAKEN = (30, 35, 45, 50, 60, 70, 90, 100)
#: Files of scanners: the old one, one of another system, and one whose name begins with a digit.
_OLD, _OTHER, _DIGIT = "old.txt", "hall.txt", "2nd.txt"


@dataclass(frozen=True)
class _Item:
    sku: str
    name: str
    box: int
    point: int
    full: int
    lot: int


@dataclass(frozen=True)
class _Line:
    """A line of a scanner."""

    file: str
    day: datetime.date
    time: str
    kind: str
    item: _Item | None
    number: int
    unit: str
    place: str
    ref: str
    cents: int

    @property
    def text(self) -> str:
        """The line in the manner of its scanner."""
        old = self.file == _OLD
        day = f"{self.day:%d.%m.%Y}" if old else f"{self.day}"
        kind = self.kind.lower() if old else self.kind
        if self.item is None:
            return f"{day} {self.time} {kind} {self.ref}"
        sku = self.item.sku.lower() if self.file == _DIGIT else self.item.sku
        number = f"{self.number:,}".replace(",", "'")
        unit = self.unit.title() if self.file == _OTHER else self.unit
        end = f" {self.cents}" if self.cents else ""
        return f"{day} {self.time} {kind} {sku} {number} {unit} {self.place} {self.ref}{end}"


@dataclass(frozen=True)
class _Move:
    """A change of the pieces of an item in a place, which a line has caused."""

    seq: int
    day: datetime.date
    kind: str
    sku: str
    pieces: int
    place: str
    ref: str
    cents: int


@dataclass
class _Warehouse:
    """The data of a warehouse, which are drawn item by item."""

    rng: random.Random
    today: datetime.date
    items: dict[str, _Item] = field(default_factory=dict)
    lines: list[_Line] = field(default_factory=list)
    offers: list[tuple[str, str, int, int]] = field(default_factory=list)
    reservations: list[tuple[str, datetime.date, str, int]] = field(default_factory=list)

    def before(self, age: int) -> datetime.date:
        return self.today - datetime.timedelta(days=age)

    def item(self, key: str, *, point: int = 5, above: int = 40, lot: int = 1, box: int = 0, name: str = "") -> None:
        """Draw an item, and offers: the cheapest, the fastest, the best of both, and the dearest."""
        rng = self.rng
        number = 100 + 7 * len(self.items) + rng.randint(0, 6)
        name = name or f"{rng.choice(COLOURS)} {rng.choice(GOODS)}"
        item = _Item(f"{rng.choice('KLMN')}-{number}", name, box or rng.randint(6, 9), point, point + above, lot)
        self.items[key] = item
        cents, suppliers = rng.randint(200, 900), rng.sample(SURNAMES, 5)
        prices = [(cents, 30), (cents, 30), (cents + 400, 1), (cents + 150, 8), (cents + 600, 12)]
        self.offers += [(supplier, item.sku, *price) for supplier, price in zip(suppliers, prices, strict=True)]

    def move(
        self,
        kind: str,
        key: str,
        number: int,
        place: str,
        age: int,
        *,
        time: str = "",
        ref: str = "",
        cents: int = 0,
        file: str = "",
        unit: str = "pcs",
    ) -> _Line:
        rng = self.rng
        time = time or f"{rng.randint(7, 18):02}:{rng.randint(0, 59):02}"
        cents = (cents or rng.randint(100, 999)) if kind == "IN" else 0
        file, ref = file or rng.choice([_OLD, _OTHER, _DIGIT]), ref or token(rng, 6)
        line = _Line(file, self.before(age), time, kind, self.items.get(key), number, unit, place, ref, cents)
        self.lines.append(line)
        return line

    def reserve(self, key: str, pieces: int, age: int, ref: str = "") -> None:
        self.reservations.append((ref or token(self.rng, 6), self.before(age), self.items[key].sku, pieces))

    def files(self) -> dict[str, str]:
        """Return the files, with comments."""
        rng = self.rng
        tables: dict[str, list[Sequence[object]]] = {
            "items": [("sku", "name", "box", "point", "full", "lot")],
            "offers": [("supplier", "sku", "cents", "days")],
            "reservations": [("ref", "day", "sku", "pieces")],
        }
        tables["items"] += [(i.sku, i.name, i.box, i.point, i.full, i.lot) for i in self.items.values()]
        tables["offers"] += rng.sample(self.offers, len(self.offers))
        tables["reservations"] += rng.sample(self.reservations, len(self.reservations))
        files = {
            f"{name}.tsv": "".join("\t".join(map(str, row)) + "\n" for row in rows) for name, rows in tables.items()
        }
        for name in (_OLD, _OTHER, _DIGIT):
            lines = [line.text for line in self.lines if line.file == name]
            lines[1:1] = ["", f"# {token(rng)}", *[f"   #{line.text}" for line in self.lines[:1] if line.file == name]]
            end = "\r\n" if name == _OTHER else "\n"
            files[f"moves/{name}"] = "".join(f"{line}{end}" for line in lines)
        return files


@dataclass(frozen=True)
class _Reports:
    """The reports on a warehouse by the rules of a project."""

    variant: Variant
    goods: _Warehouse
    moves: Sequence[_Move]
    stock: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, variant: Variant, goods: _Warehouse) -> _Reports:
        moves = _moves(variant, goods)
        return cls(variant, goods, moves, _stock(variant, moves))

    def text(self, names: Sequence[str]) -> str:
        lines = list[str]()
        for name in names:
            heading = self.variant["heading"]
            lines.append(f"{name.upper()}:" if heading == ":" else heading.format(name, self.goods.today))
            lines += [self.variant["row-mark"].join(map(str, row)) for row in self._rows(name)]
        return "\n".join(lines)

    def _rows(self, name: str) -> Sequence[Sequence[object]]:
        if name == "stock":
            shown = self.variant["shown-shortage"]
            return [(i.sku, i.name, hand, held, shown(hand - held), n) for i, hand, held, n in self._numbers()]
        if name == "orders":
            return self._orders()
        if name == "value":
            return self._value()
        if name == "places":
            return self._places()
        if name == "slow":
            return self._slow()
        return sorted({move.sku: move.ref for move in self.moves if move.kind != "ORDER"}.items())

    def _items(self) -> list[_Item]:
        return sorted(self.goods.items.values(), key=lambda item: item.sku)

    def _on_hand(self, item: _Item) -> int:
        blocked = self.variant["blocked-places"]
        return sum(n for (sku, place), n in self.stock.items() if sku == item.sku and not place.startswith(blocked))

    def _held(self, item: _Item) -> int:
        held = 0
        for ref, day, sku, pieces in self.goods.reservations:
            if sku == item.sku and day >= self.goods.before(self.variant["reservation-days"]):
                out = [move.pieces for move in self.moves if (move.kind, move.ref, move.sku) == ("OUT", ref, sku)]
                held += self.variant["partial-shipment"](pieces, sum(out))
        return held

    def _ordered(self, item: _Item) -> int:
        arrived = {move.ref for move in self.moves if move.kind == "IN"}
        orders = [move for move in self.moves if move.kind == "ORDER" and move.sku == item.sku]
        return sum(move.pieces for move in orders if move.ref not in arrived)

    def _numbers(self) -> list[tuple[_Item, int, int, int]]:
        return [(item, self._on_hand(item), self._held(item), self._ordered(item)) for item in self._items()]

    def _orders(self) -> list[Sequence[object]]:
        variant, rows = self.variant, list[tuple[str, str, int, int, int]]()
        for item, *numbers in self._numbers():
            base = variant["reorder-base"](*numbers)
            if variant["at-point"](base, item.point, item.box):
                quantity = variant["order-quantity"](item.full - base, item.lot)
                offers = [offer for offer in self.goods.offers if offer[1] == item.sku]
                best = min(offers, key=lambda offer: (variant["best-offer"](offer[2], offer[3]), offer[0]))
                rows.append((best[0], item.sku, quantity, best[2], quantity * best[2]))
        order = variant["order-of-orders"]
        rows = rows[::-1] if order is None else sorted(rows, key=order)
        return [[row[column] for column in variant["order-line"]] for row in rows]

    def _value(self) -> list[Sequence[object]]:
        rows = list[Sequence[object]]()
        for item in self._items():
            total = sum(n for (sku, _), n in self.stock.items() if sku == item.sku)
            lots = [move for move in self.moves if move.kind == "IN" and move.sku == item.sku]
            if total <= 0 or not lots:
                continue
            cents, rest = 0, total
            for lot in sorted(lots, key=lambda lot: self.variant["lots-in-stock"](lot.seq, lot.cents)):
                cents += lot.cents * min(lot.pieces, rest)
                rest -= min(lot.pieces, rest)
            rows.append((item.sku, self.variant["amount"].format(*divmod(cents, 100))))
        return rows

    def _places(self) -> list[Sequence[object]]:
        places = dict[str, list[int]]()
        for (_, place), pieces in self.stock.items():
            places.setdefault(place, []).append(pieces)
        rows = [(place, sum(n > 0 for n in pieces), sum(pieces)) for place, pieces in sorted(places.items())]
        rows = [row for row in rows if self.variant["empty-places"](row[2])]
        return [*sorted(rows, key=self.variant["order-of-places"])]

    def _slow(self) -> list[Sequence[object]]:
        rows, limit = list[Sequence[object]](), self.goods.before(self.variant["slow-days"])
        for item in self._items():
            out = [move for move in self.moves if move.kind == "OUT" and move.sku == item.sku]
            if not out or out[-1].day < limit:
                rows.append((item.sku, out[-1].day, out[-1].ref) if out else (item.sku, "never", "-"))
        return rows


def _moves(variant: Variant, goods: _Warehouse) -> list[_Move]:
    """Return the moves that count, by time."""
    merged = dict[tuple[object, ...], tuple[_Line, int]]()
    for line in sorted(goods.lines, key=lambda line: (line.day, line.time, line.file)):
        factor = 1
        if line.item is not None and line.unit != "pcs":
            factor = line.item.box * (variant["pallet-boxes"] if line.unit == "pal" else 1)
        if variant["last-day"](line.day, line.time, goods.today):
            key, pieces = (line.day, line.time, line.kind, line.item, line.place, line.ref), line.number * factor
            if key in merged:
                pieces = variant["repeated-line"](merged[key][1], pieces)
                line = merged[key][0]
            merged[key] = (line, pieces)
    lines, dropped = [*merged.values()], set[int]()
    for number, (line, _) in enumerate(lines):
        if line.kind == "VOID":
            same = [n for n, (other, _) in enumerate(lines) if other.ref == line.ref and n != number]
            before = [n for n in same if n < number]
            dropped |= {*{"before": before, "last": before[-1:], "all": same}[variant["voided-lines"]]}
    moves = list[_Move]()
    for number, (line, pieces) in enumerate(lines):
        if line.item is None or number in dropped:
            continue
        parts = [(line.kind, line.place)]
        if line.kind == "MOVE":
            parts = [*zip(("FROM", "TO"), line.place.split(">"), strict=True)]
        for kind, place in parts:
            moves.append(_Move(len(moves), line.day, kind, line.item.sku, pieces, place, line.ref, line.cents))
    return moves


def _stock(variant: Variant, moves: Sequence[_Move]) -> dict[tuple[str, str], int]:
    """Return the pieces by item and place."""
    counts = {(move.sku, move.place): move for move in moves if move.kind == "COUNT"}
    stock = {key: count.pieces for key, count in counts.items()}
    for move in moves:
        key = (move.sku, move.place)
        if move.place != "-":
            stock.setdefault(key, 0)
        if move.kind in _SIGNS and (
            key not in counts or variant["stocktake"]((move.seq, move.day), (counts[key].seq, counts[key].day))
        ):
            stock[key] += _SIGNS[move.kind] * move.pieces
    return stock


def _draw_goods(rng: random.Random) -> _Warehouse:
    """Draw a warehouse in which each rule and each fault shows."""
    goods = _Warehouse(rng, datetime.date(2025, 4, 1) + datetime.timedelta(days=rng.randint(0, 250)))
    letters = "ABCDEFGH"
    numbers = iter(rng.sample(range(10, 99), 80))

    def place(begin: str = "") -> str:
        return f"{begin or rng.choice(letters)}{next(numbers)}"

    goods.item("plain", box=rng.randint(6, 9))
    goods.move("IN", "plain", 3, place(), 40, file=_OTHER, unit="box")
    for file in (_DIGIT, _OLD):  # two scanners send the same line
        goods.move("OUT", "plain", 5, "A1", 20, time="10:10", ref=f"x{goods.today:%j}", file=file)
    goods.move("IN", "plain", 30, "A1", 21, file=_DIGIT)
    goods.item("pallet", name=f"kräftig {rng.choice(GOODS)}")
    goods.move("IN", "pallet", 2, place(), 33, unit="pal")
    goods.item("large", name=f'"XL" {rng.choice(COLOURS)} {rng.choice(GOODS)}')
    goods.move("IN", "large", rng.randint(1100, 4900), place(), 44)
    for key, pair in (("up", (10, 14)), ("down", (30, 22))):
        goods.item(key)
        start = place()
        for number in pair:
            goods.move("IN", key, number, start, 15, time="14:05", ref=f"{key}{goods.today:%j}", file=_OTHER, cents=210)
    goods.item("twin")
    for key in ("down", "twin"):  # the same but the item
        goods.move("OUT", key, 4, "A1", 13, time="09:09", ref=f"tw{goods.today:%j}", file=_OTHER)
    for key in ("down", "twin"):
        goods.move("IN", key, 60, "A1", 19)
    _add_lines_by_time(goods, place)
    _add_places(goods, place)
    _add_reservations(goods, place)
    _add_orders(goods, place)
    for age in _TAKEN:
        goods.item(f"taken{age}")
        goods.move("IN", f"taken{age}", 60, place(), 110)
        goods.move("OUT", f"taken{age}", 2, "A1", 105)
        goods.move("IN", f"taken{age}", 90, "A1", 109)
        goods.move("OUT", f"taken{age}", 3, "A1", age)
    return goods


def _add_lines_by_time(goods: _Warehouse, place: Callable[..., str]) -> None:
    """Add items whose lines are cancelled, counted, of the last day, or of two scanners on a day."""
    rng = goods.rng
    ref, start = token(rng, 6), place()
    goods.item("void")
    goods.move("IN", "void", 100, start, 30)
    for number, age in ((7, 20), (5, 19)):
        goods.move("OUT", "void", number, start, age, ref=ref)
    goods.move("VOID", "", 0, "-", 18, ref=ref)
    goods.move("OUT", "void", 3, start, 17, ref=ref)
    goods.item("today")
    start = place()
    for number, age, time in ((50, 20, "11:00"), (4, 0, "09:10"), (6, 0, "15:20"), (9, -1, "08:00")):
        goods.move("IN", "today", number, start, age, time=time)
    goods.item("counted")
    start = place()
    other = place()
    goods.move("IN", "counted", 39, other, 12)
    goods.move("COUNT", "counted", 17, other, 11)
    goods.move("IN", "counted", 150, start, 30)
    goods.move("COUNT", "counted", 120, start, 25)
    goods.move("OUT", "counted", 4, start, 10, time="08:00", file=_OLD)
    goods.move("COUNT", "counted", 40, start, 10, time="12:00", file=_DIGIT)
    goods.move("IN", "counted", 3, start, 10, time="16:00", file=_OLD)
    goods.move("IN", "counted", 5, start, 5)
    goods.item("order")
    goods.move("IN", "order", 70, "A1", 50)
    goods.move("OUT", "order", 3, "A1", 8, time="15:00", file=_DIGIT)
    goods.move("OUT", "order", 4, "A1", 8, time="08:00", file=_OLD)
    goods.item("day")
    goods.move("IN", "day", 70, "A1", 50)
    age = next(age for age in range(1, 30) if goods.before(age).day > 12)
    goods.move("OUT", "day", 3, "A1", age, file=_OLD)
    goods.item("lots")
    start = place()
    for age, cents in ((50, 100), (40, 300), (30, 200)):
        goods.move("IN", "lots", 20, start, age, cents=cents + rng.randint(0, 40))
    goods.move("OUT", "lots", 26, start, 25)
    goods.move("MOVE", "lots", 8, f"{start}>{place()}", 24)


def _add_places(goods: _Warehouse, place: Callable[..., str]) -> None:
    """Add items in blocked places, in places of similar names, in an empty one, and in one with few pieces."""
    goods.item("blocked")
    for number, begin in enumerate("QRTX"):
        goods.move("IN", "blocked", 21 + number, place(begin), 14)
        goods.move("IN", "blocked", 31 + 3 * number, place(f"B{begin}"), 14)
    goods.item("moved")
    empty, target, few = place(), place(), place()
    goods.move("IN", "moved", 47, empty, 28)
    goods.move("MOVE", "moved", 47, f"{empty}>{target}", 26)
    goods.move("IN", "moved", 3, few, 25)
    goods.item("sold-out")
    goods.move("IN", "sold-out", 4, target, 28)
    goods.move("OUT", "sold-out", 4, target, 25)
    goods.item("none")


def _add_reservations(goods: _Warehouse, place: Callable[..., str]) -> None:
    """Add items that are reserved: for some days, delivered in parts, or more than there are."""
    rng = goods.rng
    goods.item("held")
    goods.move("IN", "held", 900, place(), 60)
    for number, age in enumerate(_RESERVED):
        goods.reserve("held", 11 + number, age)
    whole, half, other = (token(rng, 6) for _ in range(3))
    goods.item("parts")
    goods.move("IN", "parts", 500, "A1", 60)
    for ref, pieces in ((whole, 15), (half, 20), (other, 30)):
        goods.reserve("parts", pieces, 3, ref)
    goods.move("OUT", "parts", 15, "A1", 2, ref=whole, file=_OTHER)
    goods.move("OUT", "parts", 8, "A1", 2, ref=half)
    goods.move("OUT", "held", 35, "A1", 2, ref=other)
    goods.move("IN", "held", 80, "A1", 61)
    goods.item("short")
    goods.move("IN", "short", 5, place(), 40)
    goods.reserve("short", 12, 1)


def _add_orders(goods: _Warehouse, place: Callable[..., str]) -> None:
    """Add items that are ordered, by some rules or by all."""
    lot = goods.rng.randint(5, 8) * 2
    half = lot // 2
    # Point, pieces above it when full, lot, on hand, reserved, ordered.
    rows = {
        "available": (40, 90, lot, 90, 60, 40),
        "on-hand": (40, 90, lot, 60, 30, 0),
        "at-point": (40, 3 * lot + 2, lot, 40, 0, 0),
        "at-box": (40, 90, lot, 47, 0, 0),
        "up": (30, 3 * lot + 2 - 23, lot, 7, 0, 0),
        "nearest": (30, 3 * lot + half + 1 - 22, lot, 8, 0, 0),
        "less": (30, half + 1, 10 * lot, 25, 0, 0),
        "both": (60, 41, 1, 9, 4, 2),
    }
    for key, (point, above, size, hand, held, ordered) in rows.items():
        goods.item(f"order-{key}", point=point, above=above, lot=size, box=7)
        goods.move("IN", f"order-{key}", hand, place(), 23)
        if held:
            goods.reserve(f"order-{key}", held, 1)
        if ordered:
            goods.move("ORDER", f"order-{key}", ordered, "-", 3)
    ref = token(goods.rng, 6)
    goods.item("arrived")
    goods.move("ORDER", "arrived", 33, "-", 12, ref=ref)
    goods.move("IN", "arrived", 33, place(), 9, ref=ref)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of folders, data of a warehouse, and its history."""
    names = {"lib": rng.choice(["lib", "tools", "share", "inside"]), "load": rng.choice(["load", "report", "tables"])}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/stock": STOCK,
        "@lib@/scan.awk": SCAN,
        "@lib@/clean.awk": CLEAN,
        "@lib@/@load@.py": LOAD,
        **{f"sql/{name}.sql": text for name, text in VIEWS.items()},
        **{f"reports/{name}.sql": text for name, text in REPORTS.items()},
    }
    files = variant.files(texts) | variant.document(rng)
    # Nothing reads these three.
    files["sql/2023/held.sql"] = variant.outdated(VIEWS["held"])
    files["sql/2023/value.sql.txt"] = variant.outdated(VIEWS["value"])
    files["docs/notes.md"] = notes(rng, "Notes on the warehouse", 10)
    files["docs/data.md"] = FORMAT
    goods = _draw_goods(rng)
    files |= {f"data/{name}": text for name, text in goods.files().items()}
    questions = _questions(rng, files, goods)
    fixed = frozenset(path for path in files if path.startswith(("data/", "history/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        drawn = _draw_goods(fresh)
        inputs = {f"goods in/{name}": text for name, text in drawn.files().items()}
        reports = _Reports.of(variant, drawn)
        return [
            Check(
                "-".join(names),
                f'bin/stock "$IN/goods in" {drawn.today} {" ".join(names)}',
                reports.text(names),
                inputs,
            )
            for names in (("stock", "orders", "value"), ("places", "slow", "last"))
        ]

    about = (
        "`bin/stock FOLDER DAY REPORT...` reads a folder such as `data/` and prints reports on a warehouse, such as "
        f"`bin/stock data {goods.today} stock orders`. `docs/data.md` describes the data and the reports, and "
        f"`{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -60", f"cat bin/stock {names['lib']}/*.awk docs/data.md", "cat sql/*.sql reports/*"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(variant, files, looks),
    ]
    return Project(about, files, faults, checks, {"bin/stock": 0o755}, fixed=fixed, questions=questions)


def _file_faults(variant: Variant, files: Mapping[str, str], looks: Sequence[str]) -> list[Fault]:
    lib, old = variant.names["lib"], "sql/2023/held.sql"
    lines = zip(files[old].splitlines(), files["sql/held.sql"].splitlines(), strict=True)
    script = "; ".join(f"{number}c\\{new}" for number, (one, new) in enumerate(lines, start=1) if one != new)
    script = script.replace("; ", "\n").replace("c\\", "c\\")
    return [
        file_in_the_way(
            "sql/a_views.sql",
            "-- Reservations of the old shop: all of them hold.\n"
            "CREATE VIEW IF NOT EXISTS held AS SELECT sku, 0 AS pieces FROM items;\n",
            looks,
            "Nothing is reserved in the reports.",
            "older-view",
        ),
        file_in_the_way(
            f"{lib}/csv.py",
            '"""How tables are written."""\n\nMARK = "\\t"\n',
            looks,
            "It ends with an AttributeError in a module that nobody has changed.",
        ),
        Fault(
            "missing-view",
            "`stock` and `orders` end with an error.",
            [*looks, "ls sql sql/*", f"cat {old} {variant.page}"],
            f"sed {quote(script)} {old} > sql/held.sql",
            removed=["sql/held.sql"],
        ),
        lost_permission("bin/stock"),
    ]


def _questions(rng: random.Random, files: dict[str, str], goods: _Warehouse) -> list[Question]:
    """Draw the lines of some months, and ask about them."""
    items = rng.sample([*goods.items.values()], 24)
    places = [f"{letter}{rng.randint(10, 99)}" for letter in "ABCDEFGHJK"]
    taken, came = dict[_Item, list[tuple[int, str]]](), dict[str, tuple[str, str]]()
    pieces = iter(rng.sample(range(3, 9_000), 3_000))
    for month in range(rng.randint(18, 30)):
        lines = list[str]()
        for minute in sorted(rng.sample(range(28 * 1440), 70)):
            day, rest = divmod(minute, 1440)
            time = f"{2023 + month // 12}-{month % 12 + 1:02}-{day + 1:02} {rest // 60:02}:{rest % 60:02}"
            item, place, ref = rng.choice(items), rng.choice(places), token(rng)
            kind, unit, number = rng.choice(["IN", "OUT"]), rng.choice(["pcs", "box"]), next(pieces)
            lines.append(f"{time} {kind} {item.sku} {number} {unit} {place} {ref}")
            if kind == "IN":
                came[place] = (time, ref)
            else:
                taken.setdefault(item, []).append((number * (item.box if unit == "box" else 1), ref))
        files[f"history/{2023 + month // 12}-{month % 12 + 1:02}.txt"] = "\n".join(lines) + "\n"
    clear = [item for item in taken if [n for n, _ in taken[item]].count(max(taken[item])[0]) == 1]
    return [
        asked_together([_largest_out(item, max(taken[item])[1]) for item in rng.sample(clear, ASKED)]),
        asked_together([_last_in(place, came[place][1]) for place in rng.sample(sorted(came), ASKED)]),
    ]


def _largest_out(item: _Item, ref: str) -> Question:
    box = f"$(awk '$1 == \"{item.sku}\"' data/items.tsv | cut -f3)"
    program = f'$3 == "OUT" && $4 == "{item.sku}" {{ print $5 * ($6 == "box" ? b : 1), $8 }}'
    return Question(
        "largest-out",
        f"Which reference in history/ took most pieces of {item.sku} out? A box has as many as data/items.tsv says.",
        ref,
        [
            "head -2 data/items.tsv history/2023-01.txt",
            f"awk -v b={box} '{program}' history/* | sort -rn | sed -n '1s/.* //p'",
        ],
    )


def _last_in(place: str, ref: str) -> Question:
    return Question(
        "last-in",
        f"Which reference in history/ brought something into the place {place} last?",
        ref,
        ["head -2 history/2023-01.txt", f"cat history/* | grep ' IN .* {place} ' | tail -1 | cut -d' ' -f8"],
    )
