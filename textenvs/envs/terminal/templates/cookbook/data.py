"""The data of a kitchen, in which rules and faults show."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ..parts import COLOURS, FIRST_NAMES

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MEALS = ("breakfast", "lunch", "dinner")
AISLES = ("vegetables", "dairy", "baking", "tins", "spices")
CODES = {"gluten": "A", "egg": "C", "soy": "F", "milk": "G", "nuts": "H", "celery": "L", "sesame": "N"}
#: Names, base, grams of 100 ml, grams of a piece, aisle, allergens, traces.
_GOODS = (
    ("flour", "g", 60, 0, 2, "gluten", "soy"),
    ("sugar", "g", 85, 0, 2, "", ""),
    ("butter", "g", 95, 0, 1, "milk", ""),
    ("milk", "ml", 103, 0, 1, "milk", ""),
    ("cream", "ml", 99, 0, 1, "milk", ""),
    ("oil|olive oil", "ml", 92, 0, 3, "", "sesame"),
    ("egg|eggs", "pc", 0, 55, 1, "egg", ""),
    ("carrot|carrots", "g", 0, 80, 0, "", ""),
    ("onion|onions", "g", 0, 110, 0, "", ""),
    ("lemon|lemons", "pc", 0, 120, 0, "", ""),
    ("potato|potatoes", "g", 0, 150, 0, "", ""),
    ("lentil|lentils", "g", 80, 0, 3, "", "gluten"),
    ("rice", "g", 87, 0, 2, "", ""),
    ("tomato|tomatoes", "g", 0, 95, 0, "", ""),
    ("noodles|pasta", "g", 45, 0, 2, "gluten", "egg"),
    ("walnut|walnuts", "g", 45, 5, 2, "nuts", "sesame"),
    ("soy sauce", "ml", 118, 0, 3, "soy,gluten", ""),
    ("celery", "g", 0, 380, 0, "celery", ""),
    ("sesame|sesame seeds", "g", 61, 0, 4, "sesame", "nuts"),
    ("saffron", "g", 48, 0, 4, "", "celery"),
    ("yoghurt", "g", 104, 0, 1, "milk", "nuts"),
)
_DISHES = ("soup", "stew", "salad", "bake", "curry", "pie", "pilaf", "gratin", "dip", "bread", "sauce", "pudding")
#: Texts of amounts, and their least and largest value.
_AMOUNTS = (
    *(("2", 2, 2), ("3", 3, 3), ("1 1/2", "3/2", "3/2"), ("½", "1/2", "1/2"), ("1½", "3/2", "3/2")),
    *(("1,5", "3/2", "3/2"), ("2.5", "5/2", "5/2"), ("1/3", "1/3", "1/3"), ("¼", "1/4", "1/4"), ("2-3", 2, 3)),
    *(("1-2", 1, 2), ("3/4", "3/4", "3/4")),
)


@dataclass(frozen=True)
class Good:
    """A good of the pantry; what does not apply to it is 0 or empty."""

    names: str
    base: str
    density: int
    weight: int
    pack: int
    cents: int
    aisle: str
    allergens: str
    traces: str

    @property
    def name(self) -> str:
        return self.names.partition("|")[0]

    @property
    def line(self) -> str:
        cells = (self.names, self.base, self.density, self.weight, self.pack, self.cents, self.aisle)
        return "\t".join(map(str, [*cells, self.allergens, self.traces]))


@dataclass(frozen=True)
class Item:
    """A line of a recipe: an amount of a good, or portions of another recipe."""

    amount: str
    low: Fraction
    high: Fraction
    unit: str
    name: str
    good: Good | None = None
    optional: bool = False
    remark: str = ""

    @property
    def text(self) -> str:
        if self.good is None:
            return f"{self.amount} portions of @{self.name}"
        words = [self.amount, self.unit, self.name]
        mark = " (optional)" if self.optional else ""
        return " ".join(word for word in words if word) + mark + (f", {self.remark}" if self.remark else "")


@dataclass(frozen=True)
class Recipe:
    """A recipe, with minutes of work and of waiting."""

    name: str
    serves: int
    active: int
    waiting: int
    items: Sequence[Item]
    style: int = 0

    @property
    def title(self) -> str:
        return self.name.replace("-", " ").capitalize()

    @property
    def text(self) -> str:
        """The file, in one of three styles."""
        active = f"{self.active // 60}:{self.active % 60:02}" if self.active > 59 else f"{self.active}"
        times = f"{active}+{self.waiting // 60}:{self.waiting % 60:02}"
        if self.style == 1:
            times = active + f"+{self.waiting}" * (self.waiting > 0)
        bullet = "*" if self.style == 2 else "-"
        head = [f"Title:  {self.title}", f"serves: {self.serves}", f"Time: {times}", "Note: as ever", ""]
        lines = [f"{' ' * (n % 2)}{bullet} {item.text}" for n, item in enumerate(self.items)]
        lines.insert(1, f"{bullet} salt")
        steps = ["", "Cut all - well, nearly all - of it.", "Time: 5 at 180 degrees", "Serves: with bread"]
        return ("\r\n" if self.style == 2 else "\n").join([*head, *lines, *steps, ""])


@dataclass(frozen=True)
class Meal:
    """A meal of the plan, by numbers from 0."""

    day: int
    meal: int
    dishes: Sequence[str]
    adults: int
    children: int

    def line(self, place: int) -> str:
        people = f"{self.adults}+{self.children}" if self.children else f"{self.adults}"
        words = f"{DAYS[self.day]} {MEALS[self.meal]}"
        dishes = " , ".join(self.dishes)
        return f"{words.upper() if place == 2 else words}: {dishes} for {people}{'  # sure' * (place % 5 == 3)}"


@dataclass(frozen=True)
class Kitchen:
    """All of a kitchen; ``stock`` has amounts, units, goods, names and last days, ``guests`` what they avoid."""

    first: datetime.date
    goods: Sequence[Good]
    recipes: Sequence[Recipe]
    meals: Sequence[Meal]
    stock: Sequence[tuple[int, str, Good, str, datetime.date | None]] = ()
    guests: Sequence[tuple[str, Sequence[str], Sequence[str]]] = ()
    aisles: Sequence[str] = field(default=AISLES)

    def recipe(self, name: str) -> Recipe:
        return next(recipe for recipe in self.recipes if recipe.name == name)

    def files(self, rng: random.Random, folder: str) -> dict[str, str]:
        """Return its files."""
        plan = [meal.line(place) for place, meal in enumerate(self.meals)]
        plan[1:1] = [f"# {plan[0]}", ""]
        stock = [
            f"{amount} {unit} {name}{'' if best is None else f' ; {best}'}"
            for amount, unit, _, name, best in self.stock
        ]
        guests = [f"{name}; {', '.join(words)}; {', '.join(days) or 'all'}" for name, words, days in self.guests]
        pantry = ["# names\tbase\tdensity\tpiece\tpack\tcents\taisle\tallergens\ttraces"]
        texts = {
            "plan.txt": "\r\n".join([f"from {self.first}", *plan, ""]),
            "stock.txt": "\n".join(["# in the cellar, too", *rng.sample(stock, len(stock)), ""]),
            "guests.txt": "\n".join(["# name; avoids; days", *guests, ""]),
            "pantry.tsv": "\r\n".join([*pantry, *(good.line for good in rng.sample(self.goods, len(self.goods))), ""]),
            "aisles.txt": "\n".join(["# from the door", *self.aisles, ""]),
            **{f"recipes/{recipe.name}.txt": recipe.text for recipe in self.recipes},
        }
        return {f"{folder}/{name}": text for name, text in texts.items()}


#: By the place of a recipe: name in it, good, unit, texts of amounts (any number without), and whether it is optional.
_CERTAIN: Mapping[int, Sequence[tuple[str, str, str, Sequence[str], bool]]] = {
    0: [
        ("flour", "flour", "Cup", ("2", "3"), False),
        ("saffron", "saffron", "pinch", ("2", "3"), False),
        ("onions", "onion", "", ("2-3", "1-2"), False),
        ("cream", "cream", "g", (), False),
    ],
    1: [
        ("olive oil", "oil", "tbsp", ("1,5",), False),
        ("eggs", "egg", "", ("2", "3"), False),
        ("Butter", "butter", "g", (), True),
    ],
    2: [
        ("sugar", "sugar", "cups of", ("2", "3"), False),
        ("carrots", "carrot", "", ("2", "3"), True),
        ("milk", "milk", "l", ("1 1/2", "1½"), False),
    ],
    3: [
        ("rice", "rice", "tbsp", ("2", "3"), False),
        ("potatoes", "potato", "kg", ("1-2",), False),
        ("lemon", "lemon", "", ("½",), False),
        ("egg", "egg", "g", (), False),
        ("milk", "milk", "dl", ("2.5", "3"), False),
    ],
    6: [("soy sauce", "soy sauce", "tbsp", ("2", "3"), False)],
}

#: By the place of a recipe: a good of which its card has so many g, for so many portions.
_LARGE = {0: ("tomato", 1100, 3), 1: ("lentil", 1350, 8), 2: ("potato", 1750, 13)}


def _item(
    rng: random.Random, good: Good, name: str, unit: str, amounts: Sequence[str] = (), *, optional: bool = False
) -> Item:
    """Draw the line of a good."""
    remark = rng.choice(["", "", "chopped", "from the market, if any"])
    if unit in ("g", "ml") and not amounts:
        number = rng.randint(60, 420)
        return Item(f"{number}", Fraction(number), Fraction(number), unit, name, good, optional, remark)
    amount, low, high = rng.choice([row for row in _AMOUNTS if not amounts or row[0] in amounts])
    return Item(amount, Fraction(low), Fraction(high), unit, name, good, optional, remark)


def _any_item(rng: random.Random, good: Good) -> Item:
    """Draw the line of a good, in a unit that its table has numbers for."""
    units = ["ml", "dl", "l"] if good.base == "ml" else ["g", "kg"]
    if good.density:
        units += ["tbsp", "cup", "cups", "tsp", "dl"]
    if good.weight:
        units += ["", ""]
    name = rng.choice(good.names.split("|"))
    return _item(rng, good, name.title() if rng.random() < 0.15 else name, rng.choice(units))


def _goods(rng: random.Random) -> list[Good]:
    goods = list[Good]()
    for names, base, density, weight, aisle, allergens, traces in _GOODS:
        pack = rng.choice([4, 6, 10]) if base == "pc" else rng.choice([125, 250, 500, 750])
        if names == "saffron":
            pack = 5
        cents = rng.randint(90, 700) + 600 * (names == "saffron")
        goods.append(Good(names, base, density, weight, pack, cents, AISLES[aisle], allergens, traces))
    return goods


def draw_recipe(rng: random.Random, goods: Sequence[Good], name: str, place: int) -> Recipe:
    """Draw a recipe; what it has for certain depends on its place."""
    by_name = {good.name: good for good in goods}
    items = [
        _item(rng, by_name[word], name, unit, amounts, optional=optional)
        for name, word, unit, amounts, optional in _CERTAIN.get(place, ())
    ]
    serves = rng.randint(2, 6)
    if place in _LARGE:
        word, amount, portions = _LARGE[place]
        number = Fraction(amount * serves // portions)
        items.append(Item(f"{number}", number, number, "g", word, by_name[word]))
    used = {item.good.name for item in items if item.good is not None}
    if place in (4, 5):  # soy is in a recipe that these need, and not in themselves
        used |= {"soy sauce", "flour"}
    rest = [good for good in goods if good.name not in used]
    items += [_any_item(rng, good) for good in rng.sample(rest, rng.randint(3, 4))]
    waiting = 0 if place == 4 else rng.choice([rng.randint(5, 25), rng.randint(65, 130)])
    active = rng.randint(65, 95) if place == 0 else rng.randint(26, 59)
    return Recipe(name, serves, active, waiting, rng.sample(items, len(items)), place % 3)


def draw_kitchen(rng: random.Random) -> Kitchen:
    """Draw a kitchen with recipes in recipes, and a week."""
    goods = _goods(rng)
    words = [f"{colour}-{dish}" for colour, dish in zip(rng.sample(COLOURS, 9), rng.sample(_DISHES, 9), strict=True)]
    recipes = [draw_recipe(rng, goods, name, place) for place, name in enumerate(words)]
    for place, amount, part in ((4, "2", 5), (5, "1,5", 6)):
        low = Fraction(3, 2) if part == 6 else Fraction(2)
        inner = Item(amount, low, low, "", words[part])
        recipes[place] = replace(recipes[place], items=[inner, *recipes[place].items])
    monday = datetime.date(2024, 1, 1) + 7 * datetime.timedelta(days=rng.randint(0, 130))
    kitchen = Kitchen(monday, goods, recipes, _meals(rng, words), aisles=rng.sample(AISLES, len(AISLES)))
    guests = list[tuple[str, Sequence[str], Sequence[str]]]()
    names = rng.sample(FIRST_NAMES, 4)
    for name, avoids in zip(names, (["nuts", "Milk"], ["gluten"], ["sesame", "celery"], ["egg", "soy"]), strict=True):
        days = [] if name == names[0] else sorted(rng.sample(DAYS, 4), key=DAYS.index)
        guests.append((name, avoids, days))
    return replace(kitchen, guests=guests, stock=draw_stock(rng, kitchen))


def _meals(rng: random.Random, words: Sequence[str]) -> list[Meal]:
    """Draw the meals of a week, some of them with the same dishes again; one day has none."""
    rows: dict[tuple[int, int], list[str]] = {(0, 2): [words[4], words[6]], (0, 0): [words[5]]}
    # The distances between the same dishes are those that rules are about; one day has no meal.
    pairs = rng.choice([((0, 2), (1, 4), (2, 6)), ((4, 6), (2, 5), (0, 4))])
    for meal, dish, days in zip((1, 0, 2), (words[7], words[0], words[1]), pairs, strict=True):
        for day in days:
            rows.setdefault((day, meal), []).append(dish)
    slots = [(day, meal) for day in (1, 2, 4, 5, 6) for meal in (0, 1, 2) if (day, meal) not in rows]
    for slot, dish in zip(rng.sample(slots, 2), words[2:4], strict=True):
        rows[slot] = [dish]
    meals = [
        Meal(day, meal, dishes, rng.randint(1, 5), rng.choice([0, 1, 2, 3])) for (day, meal), dishes in rows.items()
    ]
    evening, morning = replace(meals[0], children=2), meals[1]
    return [evening, *rng.sample([morning, *meals[2:]], len(meals) - 1)]


def draw_stock(rng: random.Random, kitchen: Kitchen) -> list[tuple[int, str, Good, str, datetime.date | None]]:
    """Draw a stock: good until the limits of rules, without a limit, or too old."""
    day = datetime.timedelta(days=1)
    used = {item.good.name for recipe in kitchen.recipes[:4] for item in recipe.items if item.good is not None}
    by_name = {good.name: good for good in kitchen.goods}
    goods = [good for good in kitchen.goods if good.name in used - {"flour", "onion"}]
    stock: list[tuple[int, str, Good, str, datetime.date | None]] = [
        (9, "kg", by_name["flour"], "Flour", None),
        (1, "", by_name["onion"], "onions", None),
        (rng.randint(15, 40), "g", by_name["onion"], "onion", kitchen.first + 9 * day),
    ]
    for good, past in zip(rng.sample(goods, 5), (0, -1, 3, 6, 7), strict=True):
        unit = "" if good.base == "pc" else good.base
        amount = rng.randint(1, 3) if good.base == "pc" else rng.randint(20, 90)
        stock.append((amount, unit, good, rng.choice(good.names.split("|")), kitchen.first + past * day))
    return stock
