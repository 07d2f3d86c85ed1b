"""The template *cookbook*: recipes, a pantry and a plan become a week, a shopping list, costs and allergens.

It needs make, bash, awk (mawk is enough), sed, sort and coreutils.
"""

from __future__ import annotations

import datetime
import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, FIRST_NAMES, asked_together, file_in_the_way, lost_permission, notes
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from . import texts
from .data import CODES, DAYS, Good, Item, Kitchen, Recipe, draw_kitchen, draw_recipe, draw_stock
from .faults import EDITS
from .rules import IDENTIFIERS, RULES

_TARGETS = ("week", "list", "allergens", "costs")
#: Rules whose options may give the same output by chance, by what prints them.
_BY_CHANCE = {
    "list": ("packs-to-buy", "sub-recipe"),
    "costs": ("cost-rounding",),
    "cards": ("piece-rounding",),
}
_SIZES = {"g": 1, "kg": 1000, "ml": 1, "dl": 100, "l": 1000, "tsp": 5}
_PROGRAMS = ("bin/scale", "bin/list")

#: A need: of a day, of a good, in thousandths of the base.
_Need = tuple[int, Good, int]


def _nearest(number: Fraction | int) -> int:
    return (2 * number + 1) // 2 if isinstance(number, int) else int((2 * number + 1) // 2)


@dataclass(frozen=True)
class _Book:
    """Outputs about a kitchen by the rules of a project."""

    variant: Variant
    kitchen: Kitchen

    def text(self, targets: Sequence[str] = _TARGETS) -> list[str]:
        return [line for target in targets for line in getattr(self, f"_{target}")()]

    def text_by(self, variant: Variant, targets: Sequence[str]) -> list[str]:
        """Return outputs by other rules."""
        return _Book(variant, self.kitchen).text(targets)

    def _amount(self, item: Item) -> tuple[str, int]:
        """Return the base and the thousandths of an ingredient."""
        amount = Fraction(self.variant["amount-range"](item.low, item.high))
        if not item.unit:
            return "pc", _nearest(amount * 1000)
        unit = item.unit.lower().removesuffix(" of").removesuffix("s")
        if unit == "pinch":
            return "g", _nearest(amount * self.variant["pinch-size"])
        size = {"tbsp": self.variant["tbsp-size"], "cup": self.variant["cup-size"]}.get(unit) or _SIZES[unit]
        return "g" if unit in ("g", "kg") else "ml", _nearest(amount * size * 1000)

    @staticmethod
    def _stored(good: Good, base: str, amount: int) -> int:
        """Return the thousandths in the base of the good."""
        if base == good.base:
            return amount
        if base == "pc":
            return amount * good.weight
        if good.base == "pc":
            return _nearest(Fraction(amount, good.weight))
        factor = Fraction(good.density, 100)
        return _nearest(amount * factor if base == "ml" else amount / factor)

    def _needs_of(self, recipe: Recipe, portions: Fraction) -> Iterator[tuple[Good, int]]:
        for item in recipe.items:
            share = portions / recipe.serves
            if item.good is None:
                inner = self.kitchen.recipe(item.name)
                yield from self._needs_of(inner, Fraction(self.variant["sub-recipe"](share * item.low, inner.serves)))
                continue
            base, amount = self._amount(item)
            part = Fraction(self.variant["optional-items"] if item.optional else 2, 2)
            if need := _nearest(amount * share * part):
                yield item.good, self._stored(item.good, base, need)

    def _needs(self) -> list[_Need]:
        needs = list[_Need]()
        for meal in self.kitchen.meals:
            portions = meal.adults + Fraction(self.variant["child-portion"], 6) * meal.children
            for dish in meal.dishes:
                needs += [(meal.day, *need) for need in self._needs_of(self.kitchen.recipe(dish), portions)]
        return needs

    def _shown(self, amount: int, base: str) -> str:
        if base == "pc":
            return f"{self.variant['piece-rounding'](amount):g}"
        whole = max(self.variant["weight-rounding"](amount), 1)
        if whole < self.variant["large-unit"]:
            return f"{whole} {base}"
        return f"{self.variant['decimal-mark'].format(*divmod(whole, 1000))} {'kg' if base == 'g' else 'l'}"

    def _list(self) -> list[str]:
        first, last = self.kitchen.first, self.kitchen.first + datetime.timedelta(days=6)
        missing = dict[Good, int]()
        for _, good, amount in self._needs():
            missing[good] = missing.get(good, 0) + amount
        for amount, unit, good, _, best in self.kitchen.stock:
            if best is None or self.variant["stock-date"](best, first, last):
                size = 1000_000 if unit == "kg" else 1000 * (good.weight if unit == "" and good.base == "g" else 1)
                missing[good] = missing.get(good, 0) - amount * size
        rows = list[tuple[int, str, str, int, str]]()
        for good, amount in missing.items():
            if amount > 0:
                packs = self.variant["packs-to-buy"](amount, good.pack * 1000)
                place = self.kitchen.aisles.index(good.aisle)
                rows.append((place, good.name, self._shown(amount, good.base), packs, good.aisle))
        rows.sort(key=lambda row: (self.variant["order-of-list"](row), row[1]))
        return [self.variant["list-line"].format(*row) for row in rows]

    def _costs(self) -> list[str]:
        days = dict[int, int]()
        for day, good, amount in self._needs():
            days[day] = days.get(day, 0) + self.variant["cost-rounding"](good.cents * amount, good.pack * 1000)
        rows = [(DAYS[day], cents) for day, cents in sorted(days.items())]
        return [f"{name} {cents // 100}.{cents % 100:02}" for name, cents in [*rows, ("all", sum(days.values()))]]

    def _codes(self, recipe: Recipe) -> list[str]:
        """Return the codes of a recipe's allergens, and of traces."""
        goods, waiting = list[Good](), [recipe]
        while waiting:
            for item in waiting.pop().items:
                if item.good is None:
                    waiting.append(self.kitchen.recipe(item.name))
                else:
                    goods.append(item.good)
        certain = {word for good in goods for word in good.allergens.split(",")}
        traces = {word for good in goods for word in good.traces.split(",")} - certain
        codes = [
            code if word in certain else self.variant["traces"].format(code)
            for word, code in CODES.items()
            if word in certain | traces
        ]
        return [code for code in codes if code]

    def _allergens(self) -> list[str]:
        recipes = sorted(self.kitchen.recipes, key=lambda recipe: recipe.name)
        return [f"{recipe.name} {','.join(self._codes(recipe)) or '-'}" for recipe in recipes]

    def _week(self) -> list[str]:
        times, cooked, lines = {0: "07:45", 1: "12:15", 2: self.variant["dinner-time"]}, dict[str, int](), list[str]()
        for meal in sorted(self.kitchen.meals, key=lambda meal: (meal.day, meal.meal)):
            for name in meal.dishes:
                recipe = self.kitchen.recipe(name)
                hours, minutes = map(int, times[meal.meal].split(":"))
                spent = self.variant["cooking-time"](recipe.active, recipe.waiting)
                start = datetime.datetime(2000, 1, 2, hours, minutes) - datetime.timedelta(minutes=spent)
                codes = self._codes(recipe)
                guests = [
                    guest
                    for guest, avoids, days in self.kitchen.guests
                    if (not days or DAYS[meal.day] in days) and {CODES[word.lower()] for word in avoids} & {*codes}
                ]
                portions = float(meal.adults + Fraction(self.variant["child-portion"], 6) * meal.children)
                text = self.variant["week-line"].format(
                    DAYS[meal.day],
                    f"{start:%H:%M}",
                    recipe.title,
                    ",".join(codes) or "-",
                    f"{portions:.2f}",
                    "+".join(guests) or "-",
                    name,
                )
                before = cooked.get(name)
                again = before is not None and meal.day - before <= self.variant["again-days"]
                lines.append(text + " again" * again)
                cooked[name] = meal.day
        return lines

    def card(self, name: str, portions: int) -> list[str]:
        """Return a recipe for so many portions."""
        recipe = self.kitchen.recipe(name)
        lines, share = [f"{recipe.title} for {portions}"], Fraction(portions, recipe.serves)
        for item in recipe.items:
            if item.good is None:
                number = self.variant["piece-rounding"](_nearest(item.low * 1000 * share))
                lines.append(f"- {number:g} portions of {item.name}")
                continue
            base, amount = self._amount(item)
            end = " (optional)" * item.optional
            lines.append(f"- {self._shown(_nearest(amount * share), base)} {item.name.lower()}{end}")
        return lines

    def _cards(self) -> list[str]:
        return [line for name, portions in _cards(self.kitchen) for line in self.card(name, portions)]

    def is_decisive(self) -> bool:
        """Return whether no two options of rules agree by chance."""
        return all(
            self.variant.separates(rules, functools.partial(self.text_by, targets=[target]))
            for target, rules in _BY_CHANCE.items()
        )


def _cards(kitchen: Kitchen) -> list[tuple[str, int]]:
    """Return recipes and portions for which cards are printed."""
    return [(recipe.name, 3 + 5 * place % 17) for place, recipe in enumerate(kitchen.recipes)]


def _drawn_names(rng: random.Random) -> tuple[dict[str, object], dict[str, str]]:
    """Draw the names of a project, and in which way and in which files its programs are written."""
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "share", "inside", "core", "tools"]),
        "numbers": rng.choice(["numbers", "read", "basic"]),
        "amounts": rng.choice(["amounts", "write", "goods"]),
    }
    shapes = {name: rng.choice(ways) for name, ways in texts.SHAPES.items()}
    shapes["shape_rules"] = "\n".join(rng.sample(texts.MAKE_RULES, len(texts.MAKE_RULES)))
    files: dict[str, list[str]] = {"numbers": [], "amounts": []}
    functions = {**texts.FUNCTIONS, **texts.AMOUNTS}
    for name in rng.sample([*functions], len(functions)):
        usual = "numbers" if name in texts.FUNCTIONS else "amounts"
        home = usual if rng.random() < 0.7 else rng.choice([*files])
        files[home].append(functions[name])
        names[f"home_{name}"] = names[home]
    shapes |= {home: "\n".join(own) for home, own in files.items()}
    return names, shapes


def _programs(shapes: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of programs, by path."""
    programs = {
        "Makefile": texts.MAKEFILE,
        "bin/scale": texts.SCALE,
        "bin/list": texts.LIST,
        "@lib@/@numbers@.awk": "# Functions of all programs.\n" + shapes["numbers"],
        "@lib@/@amounts@.awk": "# Functions of all programs, too.\n" + shapes["amounts"],
        "@lib@/parse.awk": texts.PARSE,
        "@lib@/card.awk": texts.CARD,
        "@lib@/meals.awk": texts.MEALS,
        "@lib@/expand.awk": texts.EXPAND,
        "@lib@/list.awk": texts.LIST_AWK,
        "@lib@/allergens.awk": texts.ALLERGENS_AWK,
        "@lib@/week.awk": texts.WEEK,
        "@lib@/costs.awk": texts.COSTS,
        "etc/units.tsv": texts.UNITS,
        "etc/meals.tsv": texts.MEAL_TIMES,
        "etc/allergens.tsv": texts.ALLERGENS,
    }
    return {path: _shaped(text, shapes) for path, text in programs.items()}


def _shaped(text: str, shapes: Mapping[str, str]) -> str:
    """Return the text of a program, or a part of it, with parts that are written in the drawn way."""
    for name in ("shape_rules", *texts.SHAPES):
        text = text.replace(f"@{name}@", shapes[name])
    return text


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: programs, a kitchen, orders of a year, and shelves of jars."""
    names, shapes = _drawn_names(rng)
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    programs = _programs(shapes)
    files = variant.files(programs) | variant.document(rng)
    # Nothing reads these.
    files["old/costs.awk"] = variant.outdated(programs["@lib@/costs.awk"])
    files["old/card.awk"] = files[variant.words("@lib@/card.awk")].replace("* portions, serves)", "* serves, portions)")
    files["old/units.tsv"] = variant.outdated(programs["etc/units.tsv"])
    files["docs/notes.md"] = notes(rng, "Notes of the kitchen", 10)
    files["docs/kitchen.md"] = texts.FORMAT
    kitchen = draw_kitchen(rng)
    files |= kitchen.files(rng, "kitchen")
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith(("kitchen/", "orders/", "shelves/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, variant)

    about = (
        "`make` plans a week of meals and prints the plan, what to buy, allergens and costs; `make week`, `make list`, "
        "`make allergens` and `make costs` print one of them, and `bin/scale KITCHEN RECIPE PORTIONS` a recipe. "
        f"`kitchen/` is an example, `docs/kitchen.md` describes it, and `{variant.page}` says what was agreed."
    )
    looks = [
        "ls * | head -90",
        "tail -n +1 Makefile bin/* docs/kitchen.md",
        variant.words("tail -n +1 @lib@/* etc/*"),
        "make -s OUT=/tmp/o",
    ]
    edits = [
        (kind, symptom, path, _shaped(old, shapes), _shaped(new, shapes)) for kind, symptom, path, old, new in EDITS
    ]
    faults = [
        *variant.edits(edits, files, looks),
        *variant.faults(rng, files, looks),
        *_file_faults(variant, looks),
    ]
    modes = dict.fromkeys(_PROGRAMS, 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _checks(rng: random.Random, variant: Variant) -> list[Check]:
    for _ in range(DRAWS):
        kitchen = draw_kitchen(rng)
        if _Book(variant, kitchen).is_decisive():
            break
    return [_changes(rng, variant, kitchen), _scaled(rng, variant, kitchen)]


def _scaled(rng: random.Random, variant: Variant, kitchen: Kitchen) -> Check:
    """Print all recipes for other portions, and one that does not exist."""
    cards = _cards(kitchen)
    commands = [f'bin/scale "$IN/my kitchen" {name} {portions}' for name, portions in [*cards, ("none", 2)]]
    expected = [*_Book(variant, kitchen).text(["cards"]), "unknown: none"]
    return Check("cards", "; ".join(commands), "\n".join(expected), kitchen.files(rng, "my kitchen"))


def _changes(rng: random.Random, variant: Variant, kitchen: Kitchen) -> Check:
    """Plan a week; and again when a recipe, the pantry, the plan, and the stock are other ones."""
    book = _Book(variant, kitchen)
    inputs, expected = kitchen.files(rng, "k"), book.text()
    commands = ["cp -r $IN/k /tmp/k; chmod -R u+w /tmp/k", "make -s all KITCHEN=/tmp/k OUT=/tmp/o"]
    changed = kitchen.meals[0].dishes[0]
    unused = kitchen.recipes[8].name
    steps: list[tuple[str, str, Sequence[str]]] = [
        (f"recipes/{changed}.txt", f"rm /tmp/k/recipes/{unused}.txt; ", _TARGETS),
        ("pantry.tsv", "", ("allergens", "week", "costs")),
        ("plan.txt", "", ("week", "list")),
        ("stock.txt", "", ("list",)),
    ]
    for place, (path, before, targets) in enumerate(steps):
        kitchen = _changed_kitchen(rng, kitchen, path, unused)
        inputs[f"new{place}"] = kitchen.files(rng, "k")[f"k/{path}"]
        commands += [
            f"{before}cp $IN/new{place} /tmp/k/{path}; touch -d 2040-01-01 /tmp/k/{path}",
            f"make -s {' '.join(targets)} KITCHEN=/tmp/k OUT=/tmp/o; touch -d 2000-01-01 /tmp/k/{path}",
        ]
        expected += _Book(variant, kitchen).text(targets)
    return Check("week", "; ".join(commands), "\n".join(expected), inputs)


def _changed_kitchen(rng: random.Random, kitchen: Kitchen, path: str, unused: str) -> Kitchen:
    """Return a kitchen in which a file is another one."""
    if path == "pantry.tsv":
        goods = {
            good: replace(good, cents=good.cents + rng.randint(50, 90), allergens=good.allergens or "celery")
            for good in kitchen.goods
        }
        recipes = [
            replace(recipe, items=[replace(i, good=None if i.good is None else goods[i.good]) for i in recipe.items])
            for recipe in kitchen.recipes
        ]
        stock = [(*row[:2], goods[row[2]], *row[3:]) for row in kitchen.stock]
        return replace(kitchen, goods=[*goods.values()], recipes=recipes, stock=stock)
    if path == "plan.txt":
        meals = [replace(meal, day=6 - meal.day, adults=meal.adults + 1) for meal in kitchen.meals]
        return replace(kitchen, meals=meals)
    if path == "stock.txt":
        return replace(kitchen, stock=draw_stock(rng, kitchen))
    name = path.removeprefix("recipes/").removesuffix(".txt")
    other = draw_recipe(rng, kitchen.goods, name, 1)
    old = kitchen.recipe(name)
    inner = [item for item in old.items if item.good is None]
    recipes = [
        replace(other, items=[*inner, *other.items]) if recipe.name == name else recipe
        for recipe in kitchen.recipes
        if recipe.name != unused
    ]
    return replace(kitchen, recipes=recipes)


def _file_faults(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    path = variant.words("@lib@/card.awk")
    return [
        Fault(
            "missing-card",
            "No recipe is printed for other portions, only an error.",
            [*looks, "cat old/card.awk"],
            f"sed 's/[*] serves, portions)/* portions, serves)/' old/card.awk > {path}",
            removed=[path],
        ),
        file_in_the_way(
            "GNUmakefile",
            "# From the canteen, which has a cook of its own.\nall week list allergens costs:\n\t@echo see the board\n",
            looks,
            "Whatever is to be printed, one is sent to a board.",
            "canteen-makefile",
        ),
        lost_permission("bin/list", looks, "Nothing can be bought: make ends with an error."),
    ]


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw orders of a year, and shelves of jars; ask about them."""
    cooks = rng.sample(FIRST_NAMES, 8)
    dearest = draw_journal(
        rng,
        files,
        "orders/2025-{:02}.txt",
        cooks,
        range(1000, 90_000),
        lambda month, cook, cents, order: f"{rng.randint(1, 28)}.{month}. order {order} by {cook}: {cents} cents",
        months=8,
    )
    fruits = ("apple", "cherry", "plum", "quince", "pear")
    shelf_of = draw_lists(rng, files, "shelves", "shelf", lambda jar: f"{rng.choice(fruits)} {jar}", counts=(10, 20))
    return [
        asked_together([_dearest_order(one, dearest[one]) for one in rng.sample([*dearest], ASKED)]),
        asked_together([_shelf_of_jar(one, shelf_of[one]) for one in rng.sample(sorted(shelf_of), ASKED)]),
    ]


def _dearest_order(cook: str, order: str) -> Question:
    command = f"grep -h ' by {cook}: ' orders/* | sed 's/.*order \\(.*\\) by .*: \\(.*\\) cents/\\2 \\1/' | sort -n"
    return Question(
        "dearest-order",
        f"Which order by {cook} was the dearest, by orders/?",
        order,
        ["head -3 orders/2025-01.txt", f"{command} | tail -1 | cut -d' ' -f2"],
    )


def _shelf_of_jar(jar: str, shelf: str) -> Question:
    return Question(
        "shelf-of-jar",
        f"On which shelf is the jar with the number {jar}, by shelves/?",
        shelf,
        [f"grep -r {jar} shelves", f"grep -l ' {jar}$' shelves/* | xargs sed -n 's/^shelf //p'"],
    )
