"""The template *interpreter*: a small language with a library of its own, a Makefile, and example scripts.

It needs make, sh, Python 3 and coreutils.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import TypeAlias

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, CITIES, GOODS, asked_together, file_in_the_way, lost_permission, notes, person, token
from ..records import has_one_largest
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    CALENDAR,
    COMMAND,
    FUNCTIONS_TEXT,
    GRAMMAR,
    LANGUAGE,
    LEXER,
    MACHINE,
    MAIN,
    MAKEFILE,
    NUMBERS,
    PROBLEM,
    WORDS,
)

#: A line of a script: how many lines of its file it has, its text, and what it prints: nothing, a line, or an error.
_Line: TypeAlias = tuple[str, str | ValueError | None]


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the language's name, its words and rules, and example scripts."""
    names = {
        "lang": rng.choice(["calc", "tally", "reckon", "abacus", "figure", "sumo"]),
        "ext": rng.choice(["calc", "script", "rk", "lang", "src"]),
        "core": rng.choice(["core", "engine", "inside", "interpreter"]),
        "std": rng.choice(["std", "library", "prelude", "basics"]),
        "let": rng.choice(["let", "set", "var"]),
        "def": rng.choice(["def", "fun", "define", "rule"]),
        "print": rng.choice(["print", "show", "write", "say"]),
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    variant = replace(variant, names={**names, "mark": variant["comment-mark"]})
    texts = {
        "Makefile": MAKEFILE,
        "bin/@lang@": COMMAND,
        "@core@/problem.py": PROBLEM,
        "@core@/lexer.py": LEXER,
        "@core@/grammar.py": GRAMMAR,
        "@core@/machine.py": MACHINE,
        "@core@/functions.py": FUNCTIONS_TEXT,
        "@core@/main.py": MAIN,
        "@std@/numbers.@ext@": NUMBERS,
        "@std@/words.@ext@": WORDS,
        "@std@/calendar.@ext@": CALENDAR,
        "old/calendar.@ext@": CALENDAR.replace("y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)", "y % 4 == 0"),
    }
    files = variant.files(texts) | variant.document(rng)
    files["docs/language.md"] = variant.words(LANGUAGE)
    files["docs/history.md"] = notes(rng, "History", 12)
    questions = _questions(rng, files, variant)
    fixed = frozenset(path for path in files if path.startswith(("examples/", "journal/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_scripts(fresh, variant), _library(fresh, variant)]

    lang = names["lang"]
    about = (
        f"`make` joins the library of a small language, and `bin/{lang} FILES` runs scripts in it. "
        f"`docs/language.md` describes the language, and `{variant.page}` says what else was agreed."
    )
    looks = ["ls *", f"cat Makefile bin/{lang} docs/language.md", f"make; bin/{lang} $(ls examples/* | head -2)"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = {f"bin/{lang}": 0o755}
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    calendar, old = variant.words("@std@/calendar.@ext@"), variant.words("old/calendar.@ext@")
    stray, lang = variant.words("@std@/year.@ext@"), variant.words("bin/@lang@")
    shadow = variant.words("@core@/operator.py")
    rule = "s/y % 4 == 0/y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)/"
    return [
        Fault(
            "missing-file",
            "Functions on dates do not exist any more.",
            [*looks, f"ls {variant.names['std']} old", f"cat {old}"],
            f"sed {quote(rule)} {old} > {calendar}",
            removed=[calendar],
        ),
        file_in_the_way(
            stray,
            variant.words("@mark@ For the test of March.\n@def@ plural(n, one, many) = one + many\n"),
            looks,
            "A function of the library has another result than its source says.",
            "overriding-file",
        ),
        file_in_the_way(
            shadow,
            '"""Operators, for a later version."""\n\nSIGNS = ("+", "-", "*")\n',
            looks,
            "It ends with an error before it reads a script.",
        ),
        lost_permission(lang, looks),
    ]


@dataclass(frozen=True)
class _Script:
    """A script; an error is what it prints in the place of a line."""

    lines: Sequence[_Line]

    @property
    def text(self) -> str:
        return "".join(f"{text}\n" for text, _ in self.lines)

    def printed(self, variant: Variant) -> tuple[str, int]:
        """Return what it prints, and its status."""
        stops, status = variant["after-error"]
        output, wrong, number = list[str](), list[int](), 1
        for text, outcome in self.lines:
            if isinstance(outcome, ValueError):
                wrong.append(number)
                output.append(f"error in line {number}: {outcome}")
                if stops:
                    break
            elif outcome is not None:
                output.append(outcome)
            number += 1 + text.count("\n")
        return "\n".join(output), status(wrong) if wrong else 0


class _Writer:
    """Draws lines of scripts, with what they print; values are computed from trees, not from the text."""

    def __init__(self, rng: random.Random, variant: Variant) -> None:
        self.rng, self.variant = rng, variant

    def words(self, text: str) -> str:
        return self.variant.words(text)

    def show(self, text: str, value: object) -> _Line:
        """Return a line that prints an expression of this value."""
        return self.words(f"@print@ {text}"), value if isinstance(value, ValueError) else self.written(value)

    def written(self, value: object) -> str:
        return str(self.variant["printed-truth"][value]) if isinstance(value, bool) else str(value)

    def calculation(self, depth: int = 3) -> tuple[str, int, int]:
        """Draw an expression: its text, its value, and how strong its last operator is."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.1:
            number = rng.randint(1, 400)
            return rng.choice([str(number), f"0x{number:x}"]), number, 9
        sign = rng.choice("++--**/%")
        strength = 1 if sign in "+-" else 2
        left, one, strength_left = self.calculation(depth - 1)
        right, other, strength_right = self.calculation(depth - 1)
        if other == 0 and sign in "/%":
            sign = "*"
        if strength_left < strength:
            left = f"({left})"
        if strength_right <= strength:
            right = f"({right})"
        values = {
            "+": lambda: one + other,
            "-": lambda: one - other,
            "*": lambda: one * other,
            "/": lambda: self.variant["division"](one, other),
            "%": lambda: self.variant["remainder"](one, other),
        }
        return f"{left} {sign} {right}", values[sign](), strength

    def numbers(self) -> list[_Line]:
        rng, variant = self.rng, self.variant
        divide, remainder, power = variant["division"], variant["remainder"], variant["order-of-powers"]
        third, base = 3 * rng.randint(2, 300), rng.randint(2, 9)
        a, b, c = (rng.randint(20, 90) for _ in range(3))
        lines = [
            *(self.show(f"{n} / 3", divide(n, 3)) for n in (third + 1, third + 2)),
            *(self.show(f"(-{n}) / 3", divide(-n, 3)) for n in (third + 1, third + 2)),
            self.show(f"(-{third + 1}) % 3", remainder(-third - 1, 3)),
            self.show(f"{third + 1} % (-3)", remainder(third + 1, -3)),
            self.show(f"{base} ^ 3 ^ 2", power(base, 3, 2)),
            self.show(f"-{base} ^ 2", -(base**2)),
            self.show(f"{a} - {b} - {c}", a - b - c),
            self.show(f"{a}_{b:03} + 0x{c:x}", a * 1000 + b + c),
        ]
        return lines + [self.show(*self.calculation()[:2]) for _ in range(4)]

    def conditions(self) -> list[_Line]:
        rng = self.rng
        low = rng.randint(10, 99)
        high, inside = low + 50, low + rng.randint(1, 49)
        name = f"x{rng.randint(1, 9)}_{rng.choice(GOODS)}"
        return [
            (self.words(f"@let@ {name} = {inside}"), None),
            self.show(f"{low} < {name} <= {inside}", True),
            self.show(f"{high} > {name} > {high}", False),
            self.show(f"not {name} == {low}", True),
            self.show(f"{name} == {low} and {name} == {low} or {name} >= {low}", True),
            self.show(f"{name} == {inside} or {name} == {low} and {name} == {high}", True),
            self.show(f"{name} == {inside} or {name} / ({name} - {inside}) > 1", True),
            self.show(f"{name} != {inside} and {name} / ({name} - {inside}) > 1", False),
            self.show(f'if {name} < {high} then "{low}" else {name} / 0', low),
        ]

    def texts(self) -> list[_Line]:
        rng, variant = self.rng, self.variant
        mark, word = variant["comment-mark"], token(rng, 9)
        start, length = rng.randint(2, 3), rng.randint(4, 5)
        many, name = rng.randint(2, 9), rng.choice(CITIES)
        return [
            (f"{mark} {token(rng)}", None),
            ("", None),
            self.show(f'upper("{word}") {mark} {name}', word.upper()),
            self.show(f'"a {mark} {word}"', f"a {mark} {word}"),
            self.show(f'"{name}\\n\\t\\"{word}\\""', f'{name}\n\t"{word}"'),
            self.show(f'"{name} süß {word}"', f"{name} süß {word}"),
            self.show(f'part("{word}", {start}, {length})', variant["part-of-text"](word, start, length)),
            (
                self.words(f'@print@ plural(1, "{name}", "x"), \\\n  plural({many}, "x", "{word}")'),
                f"{name} {word}",
            ),
            self.show(f'repeat(pad("{name}", 8), {many})', f"{name:.<8}" * many),
        ]

    def functions(self) -> list[_Line]:
        """Draw functions, and a variable that one of them sees, by the rule."""
        rng, variant = self.rng, self.variant
        script, caller, x, step = rng.randint(100, 199), rng.randint(300, 399), rng.randint(1, 99), rng.randint(2, 9)
        one, other, seen = f"f_{token(rng, 4)}", f"g_{token(rng, 4)}", f"s{rng.randint(10, 99)}"
        scope = variant["scope"]({seen: script}, {seen: caller})
        value = scope[seen] if seen in scope else variant["undefined-name"](seen)
        if isinstance(value, str):
            value = variant["text-and-number"](x, value)
        elif not isinstance(value, ValueError):
            value += x
        lines = [
            (self.words(f"@let@ {seen} = {script}"), None),
            (self.words(f"@let@ x = {step}"), None),
            (self.words(f"@def@ {one}(x) = x + {seen}"), None),
            (self.words(f"@def@ {other}({seen}) = {one}({x})"), None),
            (self.words(f"@def@ constant() = {caller}"), None),
            (self.words("@def@ minus(x, y) = x - y"), None),
            self.show(f"minus({x}, {script})", x - script),
            self.show("x", step),
            self.show("constant()", caller),
        ]
        return [*lines, self.show(f"{other}({caller})", value)]

    def errors(self) -> list[list[_Line]]:
        """Draw scripts with one or two errors and lines before and after them."""
        rng, variant = self.rng, self.variant
        calls, name, word = int(variant["call-depth"]), token(rng, 6), token(rng, 5)
        joined, undefined = variant["text-and-number"](word, len(word)), variant["undefined-name"](name)
        down = self.words("@def@ down(n) = if n < 2 then 0 else down(n - 1)")
        pair = self.words("@def@ pair(x, y) = x")
        return [
            [
                (down, None),
                self.show(f"down({calls})", 0),
                self.show(f"down({calls + 1})", ValueError("too many calls in each other")),
                self.show(f'"{word}"', word),
                self.show("1 / 0", ValueError("division by zero")),
            ],
            [self.show(f'"{word}" + {len(word)}', joined), self.show(f'"{name}"', name)],
            [self.show(name, undefined)],
            [
                (pair, None),
                (f"{variant['comment-mark']} {word} \\\n{name}", None),
                self.show(f"pair( \\\n{rng.randint(1, 9)})", ValueError("pair takes 2")),
            ],
            [self.show(f'"{word}" 1', ValueError("end of line expected")), self.show(f'"{name}" ', name)],
        ]


def _run(variant: Variant, scripts: Mapping[str, _Script]) -> str:
    outputs = [script.printed(variant) for script in scripts.values()]
    printed = [text for text, _ in outputs if text]
    return "\n".join([*printed, f"status {max(status for _, status in outputs)}"])


def _scripts(rng: random.Random, variant: Variant) -> Check:
    """Draw scripts of each part of the language, and some with errors; one has a space in its name."""
    writer = _Writer(rng, variant)
    numbers, functions = writer.numbers(), writer.functions()
    rng.shuffle(numbers)
    scripts = [numbers + writer.conditions() + writer.texts(), *writer.errors()]
    rng.shuffle(scripts)
    scripts = [functions, *scripts, [writer.show("x", variant["undefined-name"]("x"))], writer.texts()]
    names = [f"{rng.choice(GOODS)} {token(rng, 3)}", *(token(rng, 6) for _ in scripts[1:])]
    ext = variant.names["ext"]
    by_name = {f"{name}.{ext}": _Script(lines) for name, lines in zip(names, scripts, strict=True)}
    arguments = " ".join(f'"$IN/{name}"' for name in by_name)
    command = f'make -s; cd /tmp; /project/bin/{variant.names["lang"]} {arguments}; echo "status $?"'
    inputs = {name: script.text for name, script in by_name.items()}
    return Check("scripts", command, _run(variant, by_name), inputs)


def _library(rng: random.Random, variant: Variant) -> Check:
    """Call functions of the library, then those of a file that was added to it, of which one has another version."""
    writer, words = _Writer(rng, variant), variant.words
    low, width, factor = rng.randint(10, 40), rng.randint(20, 90), rng.randint(3, 99)
    number, century = rng.randint(3, 9), rng.choice([1700, 1800, 1900, 2100])
    year = 4 * rng.randint(450, 520) + 1
    lines = [
        writer.show(f"clamp({low + width + 5}, {low}, {low + width})", low + width),
        writer.show(f"clamp({low - 5}, {low}, {low + width})", low),
        writer.show("fact(0)", 1),
        writer.show(f"sum_to({number})", number * (number + 1) // 2),
        writer.show(f"sign({low} - {low})", 0),
        writer.show(f"digits(-{low * 1000})", 5),
        writer.show(f"days_of(2, {century})", 28),
        writer.show("days_of(2, 2000)", 29),
        writer.show(f"leap({year})", False),
        writer.show('shout(twice("ab"))', "ABAB!"),
        writer.show(f'plural({number}, "a", "b{number}")', f"b{number}"),
    ]
    rng.shuffle(lines)
    added = [writer.show(f"own({number})", number * factor), writer.show(f"abs(-{low})", low + factor)]
    ext, lang, std = (str(variant.names[name]) for name in ("ext", "lang", "std"))
    scripts = {f"lib.{ext}": _Script(lines), f"own.{ext}": _Script(added)}
    new = f"@def@ own(n) = n * {factor}\n@def@ abs(x) = (if x < 0 then -x else x) + {factor}\n"
    command = (
        f"make -s; bin/{lang} $IN/lib.{ext}; cp $IN/new {std}/own-{factor}.{ext}; "
        f"touch -d 2040-01-01 {std}/own-{factor}.{ext}; make -s; bin/{lang} $IN/own.{ext}"
    )
    expected = "\n".join(script.printed(variant)[0] for script in scripts.values())
    inputs = {name: script.text for name, script in scripts.items()} | {"new": words(new)}
    return Check("library", command, expected, inputs)


def _questions(rng: random.Random, files: dict[str, str], variant: Variant) -> list[Question]:
    """Draw example scripts and the journal of their runs, and ask about them."""
    writer, names = _Writer(rng, variant), variant.names
    mark, paths, owner = variant["comment-mark"], list[str](), dict[str, str]()
    for number in range(rng.randint(28, 44)):
        path = f"examples/{rng.choice(GOODS)}-{number + 10}.{names['ext']}"
        lines = [f"{mark} id {token(rng)}", f"{mark} written by {person(rng)}"]
        for _ in range(3):
            function = f"{rng.choice(['area', 'cost', 'load', 'rate', 'share'])}_{token(rng, 5)}"
            owner[function] = path
            lines.append(variant.words(f"@def@ {function}(n) = n * {rng.randint(2, 99)}"))
            lines.append(variant.words(f"@print@ {function}({rng.randint(2, 99)})"))
        lines += [text for text, _ in (writer.show(*writer.calculation()[:2]) for _ in range(2))]
        files[path] = "\n".join(lines) + "\n"
        paths.append(path)
    runs = dict[str, list[tuple[int, str]]]()
    for month in range(1, 13):
        steps = rng.sample(range(100, 90_000), 200)
        journal = [(rng.choice(paths), count, token(rng)) for count in steps]
        for path, count, run in journal:
            runs.setdefault(path, []).append((count, run))
        lines = [f"run={run} script={path} steps={count} ok" for path, count, run in journal]
        files[f"journal/2025-{month:02}.log"] = "\n".join(lines) + "\n"
    chosen = rng.sample([path for path in paths if has_one_largest(runs[path])], ASKED)
    functions = rng.sample(sorted(owner), ASKED)
    return [
        asked_together([_longest_run(path, runs[path]) for path in chosen]),
        asked_together([_script_of_function(name, files[owner[name]], variant) for name in functions]),
    ]


def _longest_run(path: str, runs: Sequence[tuple[int, str]]) -> Question:
    command = (
        f"grep -h ' script={path} ' journal/*.log | sed 's/^run=\\(.*\\) script.* steps=\\([0-9]*\\) .*/\\2 \\1/' "
        "| sort -n | tail -1 | cut -d' ' -f2"
    )
    return Question(
        "longest-run",
        f"Which run of {path} had the most steps, by the files in journal/?",
        max(runs)[1],
        ["head -3 journal/2025-01.log", command],
    )


def _script_of_function(name: str, text: str, variant: Variant) -> Question:
    define, mark = variant.names["def"], quote(f"{variant['comment-mark']} id ")
    return Question(
        "script-of-function",
        f"Which id has the example that defines the function {name}?",
        text.splitlines()[0].split()[-1],
        [
            f"grep -rn {name} examples",
            f"grep -rl '^{define} {name}(' examples | xargs grep -hF -- {mark} | head -1 | sed 's/.* //'",
        ],
    )
