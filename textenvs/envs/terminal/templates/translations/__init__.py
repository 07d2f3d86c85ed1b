"""The template *translations*: catalogues of messages with plural forms and placeholders, and what prints them.

It needs make, sh, sed, awk (mawk is enough), grep, Python 3 and coreutils.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    CITIES,
    COLOURS,
    GOODS,
    TOWNS,
    asked_together,
    day,
    file_in_the_way,
    lost_permission,
    notes,
    person,
    token,
)
from ..records import has_one_largest
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    CHECK,
    CHECK_PY,
    COMPILE_AWK,
    FILL,
    FORMAT,
    JOIN_SED,
    MAKEFILE,
    SAY,
    SAY_PY,
    STATS,
    STATS_AWK,
    TABLES,
)

#: Which forms a language has.
_FAMILIES = {"cs": "slavic", "de": "two", "fr": "two", "ja": "single", "pl": "slavic", "sv": "two"}
_FORMS = {"two": ("one", "many"), "slavic": ("one", "few", "many"), "single": ("many",)}
#: Part of a message: text, or the name of a placeholder behind a mark.
_HOLE = "\0"


@dataclass
class _Catalogues:
    """Catalogues of a check: their lines, and what they mean; a text is a list of texts and placeholders."""

    rng: random.Random
    variant: Variant
    lines: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, dict[str, dict[str, Sequence[str]]]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return str(self.variant.names["source"])

    def written(self, parts: Sequence[str]) -> str:
        style = self.variant["placeholder"]
        return "".join(style(part[1:]) if part.startswith(_HOLE) else part for part in parts)

    def add(self, language: str, key: str, parts: Sequence[str], form: str = "-") -> None:
        """Add a line to a catalogue: of two lines with the same key, the rule says which one holds."""
        name = key if form == "-" else f"{key}[{form}]"
        between = self.rng.choice([" = ", "=", " =  ", "   = "])
        self.lines.setdefault(language, []).append(f"{name}{between}{self.written(parts)}")
        forms = self.texts.setdefault(language, {}).setdefault(key, {})
        if form not in forms or not self.variant["repeated-key"]:
            forms[form] = parts

    def form(self, language: str, number: int) -> str:
        family = _FAMILIES.get(language.split("_")[0], "two")
        if family == "single":
            return "many"
        if family == "slavic":
            return "one" if number == 1 else "few" if self.variant["few"](number) else "many"
        return "one" if self.variant["one"](number) else "many"

    def message(self, request: str, key: str, values: Mapping[str, str]) -> str:
        """Return what is printed for a request."""
        variant, language_code = self.variant, request.replace("-", "_")
        for language in variant["fallback-order"](language_code, language_code.split("_")[0], self.source):
            forms = self.texts.get(language, {}).get(key, {})
            form = self.form(language, int(values["n"])) if "n" in values else "-"
            parts = forms.get(form)
            if form != "-" and form not in forms:
                parts = variant["missing-form"](forms)
            text = None if parts is None else self.written(parts)
            if parts is not None and variant["empty-message"](text):
                return "".join(self.filled(part, values) for part in parts)
        return str(variant["missing-message"](request, key))

    def filled(self, part: str, values: Mapping[str, str]) -> str:
        if not part.startswith(_HOLE):
            return part
        name = part[1:]
        if name not in values:
            return str(self.variant["missing-value"](name, self.written([part])))
        value = values[name]
        return str(self.variant["number-form"](int(value))) if value.isdecimal() else value

    def stats(self) -> str:
        keys = self.texts[self.source]
        done = {
            language: sum(
                any(self.written(parts) for parts in forms.values()) for key, forms in texts.items() if key in keys
            )
            for language, texts in self.texts.items()
            if language != self.source
        }
        ranked = sorted(done, key=lambda language: self.variant["order-of-stats"](language, done[language]))
        return "".join(f"{name}\t{self.variant['stats-line'](done[name], len(keys))}\n" for name in ranked)

    def mismatches(self) -> str:
        output = ""
        for language in sorted(self.texts):
            for key, forms in sorted(self.texts[language].items()):
                if key in self.texts[self.source] and _holes(forms) != _holes(self.texts[self.source][key]):
                    output += f"{language} {key}\n"
        return output


def _holes(forms: Mapping[str, Sequence[str]]) -> list[str]:
    return sorted(part for part in forms.get("-", forms.get("many", ())) if part.startswith(_HOLE))


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the source language, the style of catalogues, and messages."""
    kinds = dict(sorted(_FAMILIES.items()))
    names = {
        "tools": rng.choice(["tools", "lib", "scripts", "inside"]),
        "source": rng.choice(["en", "it", "nl", "es", "pt"]),
        "kinds": "\n".join(f"    {name} {kind}" for name, kind in kinds.items()),
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "Makefile": MAKEFILE,
        "bin/say": SAY,
        "bin/check": CHECK,
        "bin/stats": STATS,
        "@tools@/join.sed": JOIN_SED,
        "@tools@/compile.awk": COMPILE_AWK,
        "@tools@/stats.awk": STATS_AWK,
        "@tools@/tables.py": TABLES,
        "@tools@/fill.py": FILL,
        "@tools@/say.py": SAY_PY,
        "@tools@/check.py": CHECK_PY,
    }
    files = variant.files(texts) | variant.document(rng)
    files["old/fill.py"] = variant.outdated(FILL.replace("match[1] not in values", "not values.get(match[1])"))
    files["etc/plurals.txt"] = "".join(f"{name} {kind}\n" for name, kind in kinds.items())
    files |= {"docs/catalogues.md": variant.words(FORMAT), "docs/notes.md": notes(rng, "Notes of translators", 10)}
    questions = _questions(rng, files, variant)
    fixed = frozenset(path for path in files if path.startswith(("messages/", "tickets/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_messages(fresh, variant), _changed(fresh, variant)]

    about = (
        "`make` makes tables of the catalogues in `messages/`, `bin/say` prints messages from them, `bin/stats` says "
        "how much is translated, and `bin/check` looks for mistakes. `docs/catalogues.md` describes all that, and "
        f"`{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -60", "cat Makefile bin/* docs/catalogues.md", f"cat {names['tools']}/*"]
    modes = dict.fromkeys(["bin/say", "bin/check", "bin/stats"], 0o755)
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    shadow = f"{variant.names['tools']}/shlex.py"
    return [
        file_in_the_way(
            shadow,
            '"""Lexicons, for a later version."""\n\nFOLDER = "lexicons"\n',
            looks,
            "It ends with an AttributeError before it prints a message.",
        ),
        Fault(
            "missing-table",
            "It ends with a FileNotFoundError, for messages with numbers.",
            [*looks, "ls etc"],
            "sed -n 's/^    //p' docs/catalogues.md > etc/plurals.txt",
            removed=["etc/plurals.txt"],
        ),
        lost_permission("bin/say", looks),
    ]


def _hole(name: str) -> str:
    return f"{_HOLE}{name}"


def _drawn(rng: random.Random, variant: Variant) -> tuple[_Catalogues, dict[str, str]]:
    """Draw catalogues in which each rule decides something; return them, and the keys by what they are for."""
    drawn = _Catalogues(rng, variant)
    key = {
        name: f"{rng.choice(GOODS)}.{token(rng, 5)}"
        for name in ("plain", "long", "sum", "empty", "twice", "order", "base", "only")
    }
    key |= {name: f"count.{token(rng, 5)}" for name in ("count", "gap")}
    source, other = drawn.source, f"x{drawn.source}"
    languages = [source, "de", "de_CH", "fr", "pl", "pl_PL", "cs", "ja", other]
    for language in languages:
        mark = f"{language}-{token(rng, 4)}"
        drawn.add(
            language, key["plain"], [f"{rng.choice(CITIES)} # {mark}: ", _hole("name"), " & ", _hole("place"), "."]
        )
        drawn.add(
            language,
            key["order"],
            [_hole("b"), mark, _hole("a")] if language in ("fr", "cs") else [_hole("a"), mark, _hole("b")],
        )
        for form in _FORMS[_FAMILIES.get(language.split("_")[0], "two")]:
            drawn.add(language, key["count"], [f"{mark} {form} ", _hole("n"), " ä"], form)
    drawn.add(source, key["long"], [f"a = {token(rng, 4)}, b = ", _hole("b")])
    drawn.add(source, key["sum"], [f"{token(rng, 4)} ", _hole("a")])
    drawn.add("fr", key["sum"], [_hole("a"), f" {token(rng, 4)} ", _hole("a")])
    drawn.add("cs", key["sum"], [f"{token(rng, 4)} ", _hole("b")])
    for language in (source, "de"):
        drawn.add(language, key["empty"], [f"{language} {token(rng, 4)}"])
        drawn.add(language, key["base"], [f"{language} {token(rng, 4)}"])
        drawn.add(language, key["twice"], [f"first {token(rng, 4)}"])
        drawn.add(language, key["twice"], [f"second {token(rng, 4)}"])
        for form in ("one", "many"):
            drawn.add(language, key["gap"], [f"{language} {form} {token(rng, 4)}"], form)
    drawn.add("de_CH", key["empty"], [])
    drawn.add("de", key["only"], [f"de {token(rng, 4)}"])
    drawn.add("fr", f"obsolete.{token(rng, 4)}", [token(rng, 5)])
    drawn.add("pl", key["gap"], [f"pl one {token(rng, 4)}"], "one")
    drawn.add("pl", key["gap"], [f"pl many {token(rng, 4)}"], "many")
    drawn.add("ja", key["long"], [f"{token(rng, 4)}\u2028{token(rng, 4)} ", _hole("b")])
    return drawn, key


def _files(rng: random.Random, drawn: _Catalogues, long_key: str, words: Sequence[str]) -> dict[str, str]:
    """Return the files of catalogues, written as several people do: marks, spaces, ends of lines, long messages."""
    files = dict[str, str]()
    for language, lines in drawn.lines.items():
        lines = [line for text in lines for line in rng.choice([[], [""], [f"# {person(rng)}"]]) + [text]]
        if language == "de":
            lines.append(f"  {long_key} = {words[0]}  \\\n   {words[1]} \\\n{words[2]}\t{words[3]}")
        text = "\n".join(lines) + "\n"
        if language in ("de", "pl"):
            text = text.replace("\n", "\r\n")
        if language in ("fr", "pl_PL"):
            text = "\ufeff" + "".join(line for line in text.splitlines(keepends=True) if line[0] not in "#\n")
        if language == "cs":
            text = text.replace("count.", "\t count.")
        files[f"m/{language}.txt"] = text
    return files


def _requests(drawn: _Catalogues, wishes: Sequence[tuple[str, str, Mapping[str, str]]]) -> tuple[str, str]:
    """Return a file of requests, and what is printed for them."""
    lines = (
        " ".join(
            [
                language,
                key,
                *(f"{name}='{value}'" if " " in value else f"{name}={value}" for name, value in values.items()),
            ]
        )
        for language, key, values in wishes
    )
    return "".join(f"{line}\n" for line in lines), "".join(f"{drawn.message(*one)}\n" for one in wishes)


def _messages(rng: random.Random, variant: Variant) -> Check:
    """Draw catalogues and requests, one or more for each rule; make tables, say, count, and look for mistakes."""
    drawn, key = _drawn(rng, variant)
    words = [token(rng, 6) for _ in range(4)]
    inputs = _files(rng, drawn, key["long"], words)
    drawn.texts["de"].setdefault(key["long"], {})["-"] = [" ".join(words)]
    style, number = variant["placeholder"], rng.randint(12_000, 9_999_999)
    name = style("place")
    if variant["placeholder"]("x")[0] in "<(":
        name = f"{style('place')} of"  # the shell's quotes are needed
    two = {"name": rng.choice(TOWNS), "place": f"a={token(rng, 4)}"}
    wishes: list[tuple[str, str, Mapping[str, str]]] = [
        ("de", key["plain"], {"name": f"{name} {rng.choice(COLOURS)}", "place": two["place"]}),
        ("fr", key["plain"], {"name": two["name"]}),
        ("pl_PL", key["plain"], {"name": rng.choice(CITIES), "place": str(number)}),
        *(
            ("pl", key["count"], {"n": str(n)})
            for n in (1, 2, 5, 12, 22, 10 * rng.randint(3, 9) + 3, 100 * rng.randint(1, 9) + 13)
        ),
        *(("pl-PL", key["count"], {"n": str(n)}) for n in (1, 4, 24)),
        *(("cs", key["count"], {"n": str(n)}) for n in (2, 7)),
        *(("fr", key["count"], {"n": str(n)}) for n in (0, 1, 2, 21, number)),
        *(("ja", key["count"], {"n": str(n)}) for n in (0, 1)),
        *((language, key["gap"], {"n": "3"}) for language in ("pl", "cs", "de-CH")),
        ("ja", key["long"], {"b": token(rng, 4)}),
        ("de", key["long"], {}),
        ("it_CH", key["long"], {"b": "=" + token(rng, 4)}),
        *((language, key["twice"], {}) for language in ("de", "de_CH", "fr")),
        *((language, key["base"], {}) for language in ("de-CH", "fr", "xx")),
        *(("de_CH", key[name], {}) for name in ("empty", "only")),
        ("de-CH", f"nothing.{token(rng, 4)}", {}),
        (f"x{drawn.source}", key["plain"], two),
    ]
    rng.shuffle(wishes)
    inputs["requests"], printed = _requests(drawn, wishes)
    command = "make -s SRC=$IN/m OUT=/tmp/b; bin/say /tmp/b $IN/requests; bin/stats /tmp/b; bin/check /tmp/b"
    return Check("messages", command, printed + drawn.stats() + drawn.mismatches(), inputs)


def _changed(rng: random.Random, variant: Variant) -> Check:
    """Make tables, change one catalogue, and make them again."""
    drawn = _Catalogues(rng, variant)
    key, count = f"{rng.choice(GOODS)}.{token(rng, 4)}", f"count.{token(rng, 4)}"
    for language in (drawn.source, "sv"):
        drawn.add(language, key, [token(rng), " ", _hole("name")])
        drawn.add(language, count, [token(rng), " ", _hole("n")], "one")
        drawn.add(language, count, [token(rng), " ", _hole("n")], "many")
    inputs = {f"m/{language}.txt": "\n".join(lines) + "\n" for language, lines in drawn.lines.items()}
    later = _Catalogues(rng, variant, {}, {drawn.source: drawn.texts[drawn.source]})
    later.add("sv", key, [_hole("name"), f" {token(rng)}"])
    inputs["new"] = "\n".join(later.lines["sv"]) + "\n"
    wishes: list[tuple[str, str, Mapping[str, str]]] = [
        ("sv", key, {"name": token(rng, 5)}),
        ("sv", count, {"n": str(rng.randint(11, 99) * 1000)}),
    ]
    inputs["requests"], before = _requests(drawn, wishes)
    _, after = _requests(later, wishes)
    command = (
        "cp -r $IN/m /tmp/m; make -s SRC=/tmp/m OUT=/tmp/b; bin/say /tmp/b $IN/requests; cp $IN/new /tmp/m/sv.txt; "
        "touch -d 2040-01-01 /tmp/m/sv.txt; make -s SRC=/tmp/m OUT=/tmp/b; bin/say /tmp/b $IN/requests; "
        "bin/stats /tmp/b"
    )
    return Check("changed", command, before + after + later.stats(), inputs)


def _questions(rng: random.Random, files: dict[str, str], variant: Variant) -> list[Question]:
    """Draw the catalogues of the project and the tickets of its translators, and ask about them."""
    keys = [f"{rng.choice(GOODS)}.{token(rng, 6)}" for _ in range(150)]
    ends = dict[str, tuple[str, str]]()
    for language in (variant.names["source"], "de", "de_CH", "fr", "pl", "cs", "ja", "sv"):
        path, lines = f"messages/{language}.txt", [f"# {person(rng)}"]
        for key in rng.sample(keys, rng.randint(90, 150)):
            end = token(rng, 6)
            ends[end] = path, key
            lines.append(f"{key} = {rng.choice(COLOURS)} {variant['placeholder']('name')} {end}")
        files[path] = "\n".join(lines) + "\n"
    people = sorted({person(rng) for _ in range(25)})
    tickets = dict[str, list[tuple[int, str]]]()
    for number in range(24, 24 + rng.randint(20, 28)):
        lines = []
        for words in rng.sample(range(10, 9999), 70):
            name, ticket = rng.choice(people), token(rng)
            tickets.setdefault(name, []).append((words, ticket))
            lines.append(f"{day(rng)};{ticket};{name};{rng.choice(keys)};{words}")
        files[f"tickets/week{number}.csv"] = "\n".join(lines) + "\n"
    chosen = rng.sample([name for name in people if has_one_largest(tickets[name])], ASKED)
    return [
        asked_together([_largest_ticket(name, max(tickets[name])[1]) for name in chosen]),
        asked_together([_key_of_text(end, *ends[end]) for end in rng.sample(sorted(ends), ASKED)]),
    ]


def _largest_ticket(name: str, ticket: str) -> Question:
    return Question(
        "largest-ticket",
        f"Which ticket of {name} has the most words (the last field), by tickets/?",
        ticket,
        [
            "head -2 tickets/week24.csv",
            f"grep -h ';{name};' tickets/*.csv | sort -t';' -k5,5n | tail -1 | cut -d';' -f2",
        ],
    )


def _key_of_text(end: str, path: str, key: str) -> Question:
    return Question(
        "key-of-text",
        f"Which key has the text in {path} that ends with {end}?",
        key,
        [f"head -3 {path}", f"grep ' {end}$' {path} | cut -d' ' -f1"],
    )
