"""The template *claims*: policies, products in ini files, claims and payments of an insurance, in Python.

It needs sh and Python 3.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    SURNAMES,
    asked_together,
    carriage_returns,
    fault_of_command,
    file_in_the_way,
    lost_permission,
    notes,
    token,
)
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .faults import EDITS
from .offices import (
    COVER_ROLES,
    COVER_WORDS,
    PRODUCT_ROLES,
    PRODUCT_WORDS,
    YEARS,
    Claim,
    Cover,
    Office,
    Policy,
    Products,
    draw_office,
    draw_products,
    shifted,
)
from .rules import IDENTIFIERS, RULES
from .texts import (
    AMOUNTS,
    AMOUNTS_HEAD,
    BONUS,
    BONUS_INI,
    CLAIMS,
    COVERS,
    FORMAT,
    FORMATS,
    FORMATS_HEAD,
    KINDS,
    MAIN,
    OFFICE,
    PRODUCTS,
    REPORTS,
    SETTINGS,
    SETTLEMENT_HEAD,
    SHAPES,
    TABLES,
    TABLES_HEAD,
    YEARS_HEAD,
    YEARS_TEXT,
)

#: Rules whose options may give the same reports by chance.
_BY_CHANCE = ("rounding", "order-of-holders")


@dataclass(frozen=True)
class _Insurance:
    """Reports of an office by the rules of a project."""

    variant: Variant
    office: Office
    levels: tuple[int, int, int]

    def shows_rules(self, words: Mapping[str, str]) -> bool:
        """Return whether each option of rules about many lines gives reports of its own."""

        def printed(variant: Variant) -> str:
            return replace(self, variant=variant).text(["decisions", "holders"], words)

        return self.variant.separates(_BY_CHANCE, printed)

    def text(self, names: Sequence[str], words: Mapping[str, str]) -> str:
        claims = self._claims()
        amounts = {claim: self._before_years(claim, claims) for claim in claims if not self._reasons(claim)}
        granted, used = self._within_years(amounts)
        reports = {
            "decisions": lambda: [self._decision(claim, granted, words) for claim in claims],
            "years": lambda: [
                f"{number} {cover} {year} {self._text(cents)}"
                for number, cover, year, cents in sorted(
                    (number, words[cover], year, cents) for (number, cover, year), cents in used.items()
                )
            ],
            "due": lambda: self._due(claims, granted),
            "holders": lambda: self._holders(granted),
            "bonus": lambda: [f"{number} {self._level(number, claims, granted)}" for number in self._numbers()],
        }
        return "\n".join(line for name in names for line in [f"[{name}]", *reports[name]()])

    def _numbers(self) -> list[str]:
        return sorted(self.office.policies)

    def _text(self, cents: int) -> str:
        return str(self.variant["amount"](*divmod(cents, 100)))

    def _rounded(self, exact: Fraction) -> int:
        return int(self.variant["rounding"](exact))

    def _claims(self) -> list[Claim]:
        rows = dict[int, list[Claim]]()
        for claim in self.office.claims:
            if claim.reported <= self.office.today:
                rows.setdefault(claim.id, []).append(claim)
        return [self.variant["corrected-claim"](rows[id]) for id in sorted(rows)]

    def _steps(self, claim: Claim) -> list[tuple[datetime.date, str]]:
        """Return the products until the event, with their days."""
        policy = self.office.policies[claim.number]
        changes = [(day, role) for number, day, role in self.office.changes if number == claim.number]
        return sorted((day, role) for day, role in [(policy.begin, policy.product), *changes] if day <= claim.event)

    def _cover(self, claim: Claim) -> Cover | None:
        return self.office.products[self._steps(claim)[-1][1]].get(claim.cover)

    def _reasons(self, claim: Claim) -> list[str]:
        policy, event = self.office.policies.get(claim.number), claim.event
        if policy is None:
            return ["unknown policy"]
        last = None if policy.end is None else shifted(policy.end, self.variant["last-insured-day"])
        if event < policy.begin or (last is not None and last < event):
            return ["not in force"]
        cover, reasons = self._cover(claim), list[str]()
        if cover is None:
            reasons.append("not covered")
        for number, since, until in self.office.arrears:
            days = (event - since).days
            paid = until is not None and until <= event
            if number == claim.number and days >= self.variant["suspension-days"] and not paid:
                reasons.append("suspended")
                break
        if cover is not None and cover.waiting:
            first = self.variant["waiting-end"](self._waits_from(claim, policy))
            if (event - first).days < cover.waiting:
                reasons.append("waiting")
        if claim.reported > shifted(event, self.variant["late-report"]):
            reasons.append("late")
        return reasons

    def _waits_from(self, claim: Claim, policy: Policy) -> datetime.date:
        steps, mode = self._steps(claim), self.variant["changed-product"]
        if mode == "begin":
            return policy.begin
        if mode == "last":
            return steps[-1][0]
        while len(steps) > 1 and claim.cover in self.office.products[steps[-2][1]]:
            steps.pop()
        return steps[-1][0]

    def _before_years(self, claim: Claim, claims: Sequence[Claim]) -> int:
        variant, policy, cover = self.variant, self.office.policies[claim.number], self._cover(claim)
        assert cover is not None
        exact = claim.cents
        if claim.bought is not None:
            bought = claim.bought
            whole = sum((year, *_month_day(bought)) <= _parts(claim.event) for year in range(bought.year + 1, 2030))
            years = variant["years-of-use"](whole, bought.year, claim.event.year)
            exact = self._rounded(Fraction(exact * (100 - min(cover.wear * years, variant["most-wear"])), 100))
        if claim.value and Fraction(policy.sum, claim.value) < variant["underinsured"]:
            exact = self._rounded(Fraction(exact) * policy.sum / claim.value)
        event = variant["excess-of-event"]
        same = [one for one in claims if event(one) == event(claim) and one.id < claim.id and not self._reasons(one)]
        part = self._rounded(Fraction(exact * cover.percent, 100))
        own = 0 if same else variant["kind-of-excess"](100 * cover.excess, part)
        exact = variant["excess-and-limit"](exact, 100 * cover.limit, own)
        return exact if exact >= 100 * variant["small-amounts"] else 0

    def _within_years(self, amounts: Mapping[Claim, int]) -> tuple[dict[int, int], dict[tuple[str, str, int], int]]:
        order, mode = self.variant["order-of-limits"], self.variant["beyond-limit"]
        granted = {claim.id: cents for claim, cents in amounts.items()}
        groups = dict[tuple[str, str, int], list[tuple[int, int, int, int]]]()
        for claim, cents in amounts.items():
            cover, begin = self._cover(claim), self.office.policies[claim.number].begin
            if cover is not None and cover.yearly is not None:
                year = self.variant["insurance-year"](begin, claim.event, claim.reported)
                place = (order(claim, cents), claim.id, cents, 100 * cover.yearly)
                groups.setdefault((claim.number, claim.cover, year), []).append(place)
        used = dict[tuple[str, str, int], int]()
        for key, group in groups.items():
            spent, is_open = 0, True
            for _, id, cents, limit in sorted(group):
                fits = spent + cents <= limit
                is_open = is_open and (fits or mode != "none")
                granted[id] = cents if fits and is_open else limit - spent if mode == "part" else 0
                spent += granted[id] - self._recovered(id)
            used[key] = spent
        return granted, used

    def _recovered(self, id: int) -> int:
        return self._paid(id, {"recovery": 1})

    def _paid(self, id: int, signs: Mapping[str, int]) -> int:
        rows = [row for row in self.office.payments if row[0] == id and row[1] <= self.office.today]
        return sum(signs.get(kind, 0) * cents for _, _, kind, cents in rows)

    def _decision(self, claim: Claim, granted: Mapping[int, int], words: Mapping[str, str]) -> str:
        reasons = self._reasons(claim)
        answer = self.variant["several-reasons"](reasons) if reasons else self._text(granted[claim.id])
        line = self.variant["line-of-decision"]
        return str(line.format(f"C-{claim.id}", claim.number, answer, words[claim.cover]))

    def _due(self, claims: Sequence[Claim], granted: Mapping[int, int]) -> list[str]:
        lines = list[str]()
        for claim in claims:
            paid = self._paid(claim.id, {"payment": 1, "instalment": 1, "reversal": -1})
            cents = granted.get(claim.id, 0) - paid
            if cents:
                line = "{0} {1}" if cents > 0 else self.variant["overpaid"]
                lines.append(line.format(f"C-{claim.id}", self._text(abs(cents))))
        return [line for line in lines if line]

    def _holders(self, granted: Mapping[int, int]) -> list[str]:
        rows = dict[str, list[int]]()
        for claim in self._claims():
            if granted.get(claim.id, 0) > 0:
                holder = " ".join(self.office.policies[claim.number].holder.split())
                rows.setdefault(holder, []).append(granted[claim.id] - self._recovered(claim.id))
        order = self.variant["order-of-holders"]
        names = sorted(rows, key=lambda name: order(name, len(rows[name]), sum(rows[name])))
        return [f"{name}: {len(rows[name])} {self._text(sum(rows[name]))}" for name in names]

    def _level(self, number: str, claims: Sequence[Claim], granted: Mapping[int, int]) -> int:
        level, low, high = self.levels
        begin, counts = self.office.policies[number].begin, self.variant["bonus-claims"]
        own = [claim.event for claim in claims if claim.number == number and counts(granted.get(claim.id, 0))]
        for year in range(begin.year, self.office.today.year + 1):
            first, after = ((one, *_month_day(begin)) for one in (year, year + 1))
            if after > _parts(self.office.today):
                break
            count = sum(first <= _parts(event) < after for event in own)
            level += self.variant["bonus-step"](count) if count else -1
            level = sorted((low, level, high))[1]
        return level


def _month_day(day: datetime.date) -> tuple[int, int]:
    return day.month, day.day


def _parts(day: datetime.date) -> tuple[int, int, int]:
    return day.year, day.month, day.day


def _shaped(rng: random.Random, names: dict[str, object]) -> dict[str, str]:
    """Draw how functions are written, and how they are divided over files; return the texts by path."""
    shapes = {name: rng.choice(ways) for name, ways in SHAPES.items()}
    head, mixed, tables = TABLES_HEAD, rng.random() < 0.4, TABLES
    typed = shapes["records"].startswith("\nclass")
    names["tables"] = rng.choice(["tables", "rows", "files"])
    names["formats"] = names["tables"] if mixed else rng.choice(["formats", "values", "words"])
    head = head.replace("@imports@", "import datetime\n" if typed or mixed else "")
    head = head.replace("@counter@", "\nfrom typing import NamedTuple" if typed else ", namedtuple")
    if mixed:
        tables += FORMATS
    else:
        head = head.replace("\n\nfrom", "\n\nfrom @formats@ import cents_of, day_of\nfrom")
    texts = {"@code@/@tables@.py": head + tables}
    if not mixed:
        texts["@code@/@formats@.py"] = FORMATS_HEAD + FORMATS
    if rng.random() < 0.4:
        names["amounts"] = names["years"] = rng.choice(["settlement", "decisions"])
        texts["@code@/@years@.py"] = SETTLEMENT_HEAD + AMOUNTS + YEARS_TEXT
    else:
        names["amounts"], names["years"] = rng.choice(["amounts", "sums"]), rng.choice(["years", "limits"])
        texts |= {"@code@/@amounts@.py": AMOUNTS_HEAD + AMOUNTS, "@code@/@years@.py": YEARS_HEAD + YEARS_TEXT}
    texts |= {f"@code@/{name}.py": text for name, text in (("covers", COVERS), ("bonus", BONUS), ("reports", REPORTS))}
    texts |= {"@code@/@products@.py": PRODUCTS, "@code@/@office@.py": OFFICE, "@code@/settings.py": SETTINGS}
    return {path: _in_order(rng, text, shapes) for path, text in texts.items()}


def _in_order(rng: random.Random, text: str, shapes: Mapping[str, str]) -> str:
    """Return a module's text with its functions in a drawn order."""
    for name, way in shapes.items():
        text = text.replace(f"@{name}@", way)
    blocks = text.split("\n\n\n")
    places = [place for place, block in enumerate(blocks) if block.startswith("def ")]
    functions = [blocks[place].rstrip("\n") for place in rng.sample(places, len(places))]
    for place, function in zip(places, functions, strict=True):
        blocks[place] = function
    return "\n\n\n".join(blocks).rstrip("\n") + "\n"


def _draw_levels(rng: random.Random) -> tuple[int, int, int]:
    low = rng.randint(1, 3)
    return low + rng.randint(5, 6), low, low + rng.randint(11, 13)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names, products of two years, an office, and its estimates and letters of some months."""
    words = dict(zip(PRODUCT_ROLES, rng.sample(PRODUCT_WORDS, len(PRODUCT_ROLES)), strict=True))
    words |= zip(COVER_ROLES, rng.sample(COVER_WORDS, len(COVER_ROLES)), strict=True)
    drawn = {year: draw_products(rng, words, year) for year in YEARS}
    products, levels = drawn[max(YEARS)][0], _draw_levels(rng)
    yearly = products["care"]["yearly"]
    names: dict[str, object] = {
        "code": rng.choice(["code", "src", "lib", "insurance"]),
        "office": rng.choice(["office", "agency", "branch"]),
        "products": rng.choice(["products", "catalogue", "policies"]),
        "kinds": rng.choice(["kinds", "payments", "booking"]),
        **words,
        "wearing_title": words["wearing"].title(),
        "care_waiting": yearly.waiting,
        "care_yearly": f"{yearly.yearly:,}".replace(",", "'"),
        **dict(zip(("start", "low", "high"), levels, strict=True)),
    }
    texts = _shaped(rng, names)
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    files = variant.files({"bin/claims": CLAIMS, "@code@/main.py": MAIN, **texts, "etc/@kinds@.ini": KINDS})
    files |= variant.document(rng) | {"etc/bonus.ini": variant.words(BONUS_INI)}
    for year, (_, texts_of_year) in drawn.items():
        files |= {f"etc/products/{year}/{name}": text for name, text in texts_of_year.items()}
    # Nothing reads these two, and the digest of the third one is that of no files.
    files["old/covers.py"] = variant.outdated(texts["@code@/covers.py"])
    files["etc/bonus-2019.ini"] = BONUS_INI.replace("@start@", "9").replace("@low@", "0").replace("@high@", "22")
    files["var/products.json"] = _stored(rng, drawn[min(YEARS)][0], words)
    files |= {"docs/data.md": variant.words(FORMAT), "docs/products.md": _page_of_products(products, words)}
    files["docs/notes.md"] = notes(rng, "Notes of the office", 10)
    office = draw_office(rng, products)
    files |= {f"data/{name}": text for name, text in office.files(words).items()}
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith(("data/", "estimates/", "letters/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        groups = (["decisions", "years"], ["due", "holders", "bonus"])
        for _ in range(DRAWS):
            insurance = _Insurance(variant, draw_office(fresh, products), levels)
            if insurance.shows_rules(words):
                break
        today = insurance.office.today
        inputs = {f"the office/{name}": text for name, text in insurance.office.files(words).items()}
        return [
            Check(
                "-".join(group),
                f'bin/claims "$IN/the office" {today} {" ".join(group)}',
                insurance.text(group, words),
                inputs,
            )
            for group in groups
        ]

    about = (
        "`bin/claims FOLDER DAY REPORT...` prints reports on the claims of an insurance: decisions, years, due, "
        f"holders and bonus, for example `bin/claims data {office.today} decisions due`. `docs/data.md` describes the "
        f"data and the reports, `docs/products.md` has the products, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -90", f"cat bin/claims docs/data.md {names['code']}/*.py", "tail -n +1 etc/*.ini"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    setup = f"ln -s {max(YEARS)} etc/products/current"
    return Project(about, files, faults, checks, {"bin/claims": 0o755}, setup, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    code, link = variant.names["code"], "etc/products/current"
    return [
        fault_of_command(
            "products-of-last-year",
            "Most amounts are not those of docs/products.md.",
            [*looks, "ls -l etc/products", f"cat docs/products.md {link}/*"],
            f"ln -sfn {min(YEARS)} {link}",
            f"ln -sfn {max(YEARS)} {link}",
        ),
        file_in_the_way(
            f"etc/products/{max(YEARS)}/draft.ini",
            "[product]\ntitle = Of Jana, for next spring\nextends = flat\n",
            [*looks, f"ls {link}/"],
            "It ends with a KeyError, whatever the claims are.",
            "draft-of-product",
        ),
        file_in_the_way(
            f"{code}/hashlib.py",
            '"""Numbers of letters."""\n\nLETTERS = {"reminder": 17, "refusal": 23}\n',
            looks,
            "It ends with an AttributeError in a module that nobody has changed.",
            "own-hashlib",
        ),
        carriage_returns("bin/claims", "It cannot be started, though it is there.", looks),
        lost_permission("bin/claims", looks),
    ]


def _stored(rng: random.Random, products: Products, words: Mapping[str, str]) -> str:
    covers = {
        words[role]: {
            words[name]: {key: str(number) for key, number in vars(cover).items() if number is not None}
            for name, cover in own.items()
        }
        for role, own in products.items()
    }
    stored = {"digest": token(rng, 64), "files": sorted(covers), "covers": covers}
    return json.dumps(stored, indent=1) + "\n"


def _page_of_products(products: Products, words: Mapping[str, str]) -> str:
    """Return a page with the products that hold."""
    lines = [
        "# Products",
        "",
        f"Those of {max(YEARS)}. The limit is that of a claim, in francs; `yearly` is that of an insurance year. The "
        "excess is fixed (francs) and a percentage, waiting is in days, wear in per cent a year.",
        "",
        "| product | cover | limit | yearly | excess | percent | waiting | wear |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for role, covers in products.items():
        for name, cover in covers.items():
            numbers = ["-" if number is None else str(number) for number in vars(cover).values()]
            lines.append(f"| {words[role]} | {words[name]} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw estimates of experts and lists of letters, and ask about them."""
    experts = rng.sample(SURNAMES, 14)
    highest = draw_journal(
        rng,
        files,
        "estimates/2025-{:02}.csv",
        experts,
        range(150, 60_000),
        lambda month, expert, francs, mark: f"{mark};{rng.randint(1, 28)}.{month}.2025;{expert};{francs}",
    )
    kinds = ("sent", "received")
    binder_of = draw_lists(rng, files, "letters", "binder", lambda item: f"{item} {rng.choice(kinds)}", counts=(20, 32))
    return [
        asked_together([_highest_estimate(one, highest[one]) for one in rng.sample([*highest], ASKED)]),
        asked_together([_binder_of_letter(one, binder_of[one]) for one in rng.sample(sorted(binder_of), ASKED)]),
    ]


def _highest_estimate(expert: str, mark: str) -> Question:
    return Question(
        "highest-estimate",
        f"Which estimate of {expert} has the most francs, by estimates/?",
        mark,
        [
            "head -2 estimates/2025-01.csv",
            f"grep -h ';{expert};' estimates/* | sort -t';' -k4n | tail -1 | cut -d';' -f1",
        ],
    )


def _binder_of_letter(letter: str, binder: str) -> Question:
    return Question(
        "binder-of-letter",
        f"Which binder has the letter {letter}, by letters/?",
        binder,
        ["head -2 letters/*1*.txt", f"grep -l '^{letter} ' letters/* | xargs sed -n 's/^binder //p'"],
    )
