"""The template *assembler*: an assembler in two passes, listings, images with checksums, and a machine for them.

It needs make, bash, awk (mawk is enough), grep, sort and coreutils.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, GOODS, asked_together, file_in_the_way, lost_permission, notes, person, token
from ..records import draw_journal
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import ASM, ASSEMBLE, COMMON, HEX, LANGUAGE, LIST, MACHINE, MAKEFILE, RUN, SCAN, VALUE, WORDS

_OPERATIONS = ("LOAD", "STORE", "ADD", "SUB", "MUL", "JMP", "JZ", "JN", "OUT", "CALL", "RET", "HALT")
#: An expression: a number, a name, ``$``, or an operator with one or two others.
_Tree: TypeAlias = int | str | tuple[str, "_Tree", "_Tree"]
#: An operand: its kind (register, indirect, value, address, text), and what it is.
_Operand: TypeAlias = tuple[str, _Tree]


@dataclass(frozen=True)
class _Line:
    """A line; ``written`` is its text where that is not the usual one, ``include`` what it includes."""

    operation: str = ""
    operands: Sequence[_Operand] = ()
    label: str = ""
    written: str = ""
    comment: str = ""
    include: str = ""
    error: str = ""

    def text(self) -> str:
        """Return it as it stands in its file."""
        operands = ", ".join(f"{_BEFORE[kind]}{_text(tree, kind)}{_BEHIND[kind]}" for kind, tree in self.operands)
        operation = f'INCLUDE "{self.include}"' if self.include else f"{self.operation} {operands}".strip()
        text = self.written or f"{f'{self.label}: ' if self.label else ''}{operation}".strip()
        return f"{text} {self.comment}".strip()

    @property
    def source(self) -> str:
        """Its text in listings."""
        return self.text().replace("\t", " ")


_BEFORE = {"register": "", "indirect": "[", "value": "#", "address": "", "text": '"', "word": ""}
_BEHIND = {"register": "", "indirect": "]", "value": "", "address": "", "text": '"', "word": ""}


def _text(tree: _Tree, kind: str = "") -> str:
    if isinstance(tree, tuple):
        sign, one, other = tree
        before, behind = (f"({_text(part)})" if isinstance(part, tuple) else _text(part) for part in (one, other))
        # What is computed from the left to the right needs no parentheses there.
        if isinstance(one, tuple) and (one[0] in "*/" or sign in "+-"):
            before = _text(one)
        if isinstance(other, tuple) and other[0] in "*/" and sign in "+-":
            behind = _text(other)
        return f"{before} {sign} {behind}"
    if isinstance(tree, int) and kind in ("", "word") and tree > 9:
        return (f"0x{tree:x}", f"{tree}", f"0b{tree:b}", f"0x{tree:X}")[tree % 4]
    return str(tree)


@dataclass
class _Assembly:
    """An assembled file, by the rules of a project."""

    variant: Variant
    files: Mapping[str, Sequence[_Line]]
    names: dict[str, int] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    code: list[tuple[int, list[int], str]] = field(default_factory=list)
    errors: list[tuple[str, int, str]] = field(default_factory=list)
    address: int = 0
    scope: str = ""
    place: tuple[str, int] = ("", 0)
    is_last: bool = False
    twice: dict[tuple[str, int], str] = field(default_factory=dict)

    @classmethod
    def of(cls, variant: Variant, files: Mapping[str, Sequence[_Line]], name: str) -> _Assembly:
        """Assemble a file."""
        made = cls(variant, files)
        for made.is_last in (False, True):
            made.address, made.scope = variant["origin"], ""
            for path, number, line in made.lines(name):
                made.place = (path.rpartition("/")[2], number)
                made.line(line)
        return made

    def lines(self, name: str) -> list[tuple[str, int, _Line]]:
        """Return the lines of a file, and of what it includes."""
        result = list[tuple[str, int, _Line]]()
        for number, line in enumerate(self.files[name], start=1):
            if line.label or line.operation:
                result.append((name, number, line))
            if line.include:
                result += self.lines(f"{name.rpartition('/')[0]}/{line.include}".lstrip("/"))
        return result

    def problem(self, message: str) -> None:
        if self.is_last:
            self.errors.append((*self.place, message))

    def full(self, name: str) -> str:
        return self.scope + name if name.startswith(".") else name

    def value(self, tree: _Tree) -> int:
        if isinstance(tree, int):
            return tree
        if isinstance(tree, str):
            return self.named(tree)
        sign, one, other = tree
        first, second = self.value(one), self.value(other)
        if sign == "/" and second == 0:
            self.problem("division by zero")
            return first
        if sign == "/":
            return int(self.variant["division"](first, second))
        return {"+": first + second, "-": first - second, "*": first * second}[sign]

    def named(self, name: str) -> int:
        if name == "$":
            return self.address
        if name.startswith("'"):
            return ord(name[1])
        name = self.full(name)
        if self.is_last:
            self.uses[name] += 1
        if name in self.names:
            return self.names[name]
        if self.is_last and self.variant["undefined-name"] is None:
            self.problem(f"no name: {name}")
        return int(self.variant["undefined-name"] or 0) if self.is_last else 0

    def define(self, name: str, number: int) -> None:
        second = self.variant["second-label"]
        if not self.is_last:
            if name not in self.names or second == "last":
                self.names[name] = number
            elif second == "error":
                self.twice[self.place] = name

    def line(self, line: _Line) -> None:
        begin, words = self.address, list[int]()
        if line.label and not line.label.startswith("."):
            self.scope = line.label

        def add(number: int) -> None:
            if not -32768 <= number <= 65535:
                self.problem(f"too large: {number}")
            words.append(number % 65536)
            self.address += 1

        if line.operation.upper() == "EQU":
            self.define(self.full(line.label), self.value(line.operands[0][1]))
        elif line.label:
            self.define(self.full(line.label), self.address)
        if self.place in self.twice:
            self.problem(f"name twice: {self.twice[self.place]}")
        operation, operands = line.operation.upper(), line.operands
        if operation == "ORG":
            self.address = begin = self.value(operands[0][1])
        elif operation == "SPACE":
            filling = self.variant["filling"]
            for n in range(1, self.value(operands[0][1]) + 1):
                add(filling(n, self.address))
        elif operation == "WORD":
            for kind, tree in operands:
                for number in self.variant["text-packing"](str(tree)) if kind == "text" else [self.value(tree)]:
                    add(number)
        elif operation in _OPERATIONS:
            self.instruction(operation, operands, add)
        elif operation not in ("", "EQU"):
            self.problem(f"no operation: {operation}")
        if line.error:
            self.problem(line.error)
        if self.is_last:
            self.code.append((begin, words, line.source))

    def instruction(self, operation: str, operands: Sequence[_Operand], add: Callable[[int], None]) -> None:
        register = mode = operand = 0
        for kind, tree in operands:
            if kind == "register":
                register = "ABCD".index(str(tree))
            elif kind == "indirect":
                mode, operand = 3, "ABCD".index(str(tree))
            else:
                mode, operand = 1 if kind == "value" else 2, self.value(tree)
        add((_OPERATIONS.index(operation) + 1) * 4096 + register * 256 + mode)
        if mode:
            add(operand)

    def memory(self) -> dict[int, int]:
        return {begin + place: word for begin, words, _ in self.code for place, word in enumerate(words)}

    def image(self) -> list[str]:
        """Return the lines of the image, or the errors."""
        variant = self.variant
        if self.errors:
            return [variant["error-line"].format(*error) for error in self.errors]
        parts = list[tuple[int, list[int]]]()
        for begin, words, _ in self.code:
            for place, word in enumerate(words, start=begin):
                if not parts or len(parts[-1][1]) == variant["words-of-line"] or place != sum(map(_end, parts[-1:])):
                    parts.append((place, []))
                parts[-1][1].append(word)
        lines = list[str]()
        for place, words in parts:
            order = [(word % 256, word // 256) if variant["byte-order"] else divmod(word, 256) for word in words]
            data = bytes([len(words), *divmod(place, 256), *(byte for pair in order for byte in pair)])
            lines.append(f":{data.hex().upper()}{variant['checksum'](sum(data)):02X}")
        return lines

    def listing(self) -> list[str]:
        variant = self.variant
        lines = [
            variant["list-line"].format(f"{begin:04X}", " ".join(f"{word:04X}" for word in words), source)
            for begin, words, source in self.code
        ]
        rows = [(name, number, self.uses[name]) for name, number in self.names.items()]
        return [*lines, "", *(variant["name-line"].format(*row) for row in sorted(rows, key=variant["order-of-names"]))]

    def run(self) -> list[str]:
        """Return what the program prints until it ends."""
        memory, registers, stack, lines = self.memory(), [0, 0, 0, 0], list[int](), list[str]()
        at = min(begin for begin, words, _ in self.code if words)
        while True:
            word = memory[at]
            operation, register, mode = _OPERATIONS[word // 4096 - 1], word // 256 % 16, word % 256
            operand = memory[at + 1] if mode else 0
            at += 2 if mode else 1
            where = registers[operand] if mode == 3 else operand
            what = operand if mode == 1 else memory.get(where, 0)
            own = registers[register]
            if operation in ("LOAD", "ADD", "SUB", "MUL"):
                results = {"LOAD": what, "ADD": own + what, "SUB": own - what, "MUL": own * what}
                registers[register] = results[operation] % 65536
            elif operation == "STORE":
                memory[where] = own
            elif operation == "OUT":
                lines.append(self.variant["printed-number"](own))
            elif operation == "CALL":
                stack.append(at)
                at = operand
            elif operation == "RET":
                at = stack.pop()
            elif operation == "HALT":
                return [*lines, f"stopped at {at}"]
            elif operation == "JMP" or (operation == "JZ" and own == 0) or (operation == "JN" and own > 32767):
                at = operand


def _end(part: tuple[int, Sequence[int]]) -> int:
    return part[0] + len(part[1])


class _Writer:
    """Draws programs."""

    def __init__(self, rng: random.Random, variant: Variant) -> None:
        self.rng, self.mark = rng, variant["comment-mark"]

    def expression(self, names: Sequence[str], depth: int = 2) -> _Tree:
        """Draw an expression with small values; it divides by numbers alone."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            leaves: list[_Tree] = [rng.randint(1, 300), rng.choice(names), f"'{rng.choice('abcXYZ')}'"]
            return rng.choice(leaves)
        sign = rng.choice("+-*/")
        behind: _Tree = rng.randint(2, 9) if sign in "*/" else self.expression(names, depth - 1)
        return sign, self.expression(names, depth - 1), behind

    def word(self, *trees: _Tree, label: str = "", **options: str) -> _Line:
        return _Line("WORD", [("word", tree) for tree in trees], label, **options)

    def op(self, text: str, label: str = "", **options: str) -> _Line:
        """Return the line of an instruction whose operands are registers, numbers and names."""
        operation, _, rest = text.partition(" ")
        operands = list[_Operand]()
        for part in filter(None, rest.split(", ")):
            kind = {"#": "value", "[": "indirect"}.get(
                part[0], "register" if part in ("A", "B", "C", "D") else "address"
            )
            plain = part.strip("#[]")
            operands.append((kind, int(plain) if plain.isdecimal() else plain))
        return _Line(operation, operands, label, **options)

    def counting(self) -> list[_Line]:
        """Draw a program that prints numbers: loops, parts that call others, a table, and local labels."""
        rng, op = self.rng, self.op
        table, first, mark = f"table_{token(rng, 3)}", f"main{rng.randint(1, 9)}", self.mark
        step, rounds, size = rng.randint(2, 90), rng.randint(3, 5), rng.randint(3, 5)
        return [
            op("JMP begin", comment=f"{mark} {person(rng)}"),
            _Line(include="parts/names.inc", label="names"),
            self.word(*(self.expression(["one", "two"]) for _ in range(size)), label=table),
            _Line(label=first),
            op(f"ADD B, #{step}", ".loop"),
            op("OUT B"),
            op("SUB A, #1"),
            op("JZ A, .done"),
            op("JMP .loop"),
            op("CALL down", ".done"),
            op("RET"),
            op(f"LOAD C, #{rng.randint(2, 4)}", "down"),
            op("SUB C, #1", ".loop"),
            op("OUT C"),
            op("JN C, .done"),
            op("JMP .loop"),
            op("RET", ".done"),
            op(f"LOAD A, #{rounds}", "begin"),
            op(f"CALL {first}"),
            op("MUL B, two"),
            op("OUT B"),
            op(f"LOAD D, #{table}"),
            op("LOAD A, [D]"),
            op("OUT A"),
            op("ADD D, #1"),
            op("ADD A, [D]"),
            op("OUT A"),
            op("STORE A, [D]"),
            op(f"LOAD C, {table}"),
            op("OUT C"),
            op("LOAD D, #0"),
            op("OUT D"),
            op("HALT"),
        ]

    def names(self) -> list[_Line]:
        """Draw the part that is included: names of values, and words."""
        rng = self.rng
        return [
            _Line("EQU", [("word", rng.randint(2, 60))], "one", comment=f"{self.mark} by {person(rng)}"),
            _Line(comment=f"{self.mark} {token(rng)}"),
            _Line("EQU", [("word", ("+", ("*", "one", rng.randint(2, 5)), rng.randint(1, 9)))], "three"),
            _Line(label="two", operation="WORD", operands=[("word", ("-", rng.randint(2, 9), "one"))]),
        ]

    def data(self) -> list[_Line]:
        """Draw a program without instructions: values, texts, space and gaps, in all forms that people write."""
        rng, mark = self.rng, self.mark
        low, high, shift = rng.randint(3, 90), rng.randint(100, 900), rng.randint(2, 5)
        text = f"{rng.choice(GOODS)} {mark} it's, {token(rng, 3)}"
        names = ["begin", "first1", "last"]
        small = _Line("word", [("word", low), ("word", high)], "first1", f"first1:\tword\t{low},\t{high}")
        return [
            small,
            self.word("$", 0, "$", label="begin"),
            self.word("'~'", "','", f"'{mark}'", label="letters"),
            _Line("WORD", [("text", text), ("word", low)], "text", comment=f"{mark} {rng.choice(GOODS)} '"),
            _Line(label="alone"),
            self.word(("-", ("-", high, low), shift), ("+", ("*", low, 2), shift), ("-", ("/", high, 7), low)),
            self.word(("/", ("-", 0, 4 * shift + 3), 4), ("/", 4 * shift + 1, 4), ("-", high, ("+", low, shift))),
            _Line("WORD", [("word", ("+", ("-", 0, low), high))], written=f"WORD -{low} + {high}"),
            self.word(10 * 16 + 11, 6 * 16 + 12, 4 * shift + 2 + 64),
            _Line("SPACE", [("word", rng.randint(3, 5))], "free"),
            self.word(*(self.expression(names) for _ in range(9))),
            _Line("ORG", [("word", 8 * rng.randint(100, 200))]),
            self.word("last", *(self.expression(names) for _ in range(rng.choice((2, 4, 7, 8))))),
            self.word("alone", ("-", "$", "begin"), label="last"),
        ]


def _checked(rng: random.Random, variant: Variant) -> list[_Line]:
    """Draw data whose words all fit, and of which no line has a sign of a comment by chance."""
    while True:
        lines = _Writer(rng, variant).data()
        if not _Assembly.of(variant, {"data.s": lines}, "data.s").errors:
            return lines


def _file(lines: Sequence[_Line], end: str = "\n") -> str:
    return "".join(f"{line.text()}{end}" for line in lines)


def _programs(rng: random.Random, variant: Variant) -> Check:
    """Assemble two programs, run one and list the other; then change the part that is included."""
    writer = _Writer(rng, variant)
    files = {"count.s": writer.counting(), "parts/names.inc": writer.names(), "data.s": _checked(rng, variant)}
    changed = files | {"parts/names.inc": writer.names()}
    count, again = (_Assembly.of(variant, version, "count.s") for version in (files, changed))
    data = _Assembly.of(variant, files, "data.s")
    images = [count.image(), data.image()]
    sizes = [f"{name} {len(image)}" for name, image in zip(("count", "data"), images, strict=True)]
    inputs = {f"src/{name}": _file(lines, "\r\n" if name == "data.s" else "\n") for name, lines in files.items()}
    inputs["names.inc"] = _file(changed["parts/names.inc"])
    command = (
        "cp -R $IN/src /tmp/s; make -s all sizes SRC=/tmp/s OUT=/tmp/o; cat /tmp/o/count.hex /tmp/o/data.hex; "
        "bin/run /tmp/o/count.hex; bin/list /tmp/s/data.s; bin/list /tmp/s/count.s; cp $IN/names.inc /tmp/s/parts/; "
        "touch -d 2040-01-01 /tmp/s/parts/names.inc; make -s SRC=/tmp/s OUT=/tmp/o; bin/run /tmp/o/count.hex"
    )
    expected = [*sizes, *images[0], *images[1], *count.run(), *data.listing(), *count.listing(), *again.run()]
    return Check("programs", command, "\n".join(expected), inputs)


def _errors(rng: random.Random, variant: Variant) -> Check:
    """Assemble programs with names that do not exist, with names that are there twice, and with other errors."""
    writer = _Writer(rng, variant)
    files: dict[str, Sequence[_Line]] = {
        "missing.s": [writer.word(rng.randint(2, 90), f"n{token(rng, 4)}"), writer.op(f"LOAD A, #n{token(rng, 4)}")],
        "twice.s": [
            writer.word("spot", 1, label="first"),
            writer.word(rng.randint(2, 90), "spot", label="spot"),
            writer.word("spot", rng.randint(2, 90), label="spot"),
        ],
        "wrong.s": [
            _Line(include="parts/names.inc"),
            writer.word("one"),
            writer.op(f"F{token(rng, 5).upper()} A"),
            writer.word(rng.randint(66_000, 99_000), rng.randint(2, 90)),
            writer.word(("/", rng.randint(2, 90), 0)),
            replace(writer.word(5), written="WORD 5 6", error="too much: 6"),
        ],
        "parts/names.inc": writer.names(),
    }
    names, expected = [name for name in files if name.endswith(".s")], list[str]()
    for name in names:
        made = _Assembly.of(variant, files, name)
        expected += [*made.image(), f"status {variant['status-of-error'] if made.errors else 0}"]
    command = "; ".join(f'bin/asm $IN/{name}; echo "status $?"' for name in names)
    return Check("errors", command, "\n".join(expected), {name: _file(lines) for name, lines in files.items()})


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the assembler, its machine, programs and the journal of their runs."""
    names = {"lib": rng.choice(["lib", "passes", "parts", "inside", "awk"])}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "Makefile": MAKEFILE,
        "bin/asm": ASM,
        "bin/list": LIST,
        "bin/run": RUN,
        "@lib@/common.sh": COMMON,
        "@lib@/scan.awk": SCAN,
        "@lib@/value.awk": VALUE,
        "@lib@/assemble.awk": ASSEMBLE,
        "@lib@/words.awk": WORDS,
        "@lib@/hex.awk": HEX,
        "@lib@/machine.awk": MACHINE,
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {
        # Nothing reads these two.
        "old/hex.awk": variant.outdated(HEX).replace("%02X%04X", "%04X%02X"),
        "old/machine.awk": variant.outdated(MACHINE).replace("op == 1)", "op == 0)").replace("5000", "500"),
        "docs/language.md": LANGUAGE,
        "docs/notes.md": notes(rng, "Notes on the assembler", 10),
    }
    questions = _questions(rng, files, variant)
    fixed = frozenset(path for path in files if path.startswith(("programs/", "journal/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_programs(fresh, variant), _errors(fresh, variant)]

    about = (
        "`make` assembles the programs of a folder for a small machine, `bin/asm` one of them, `bin/list` lists one, "
        "and `bin/run` runs what was assembled. `docs/language.md` describes the language, and "
        f"`{variant.page}` says what else was agreed."
    )
    looks = ["ls * | head -70", "tail -n +1 Makefile bin/* docs/language.md", variant.words("tail -n +1 @lib@/*")]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = dict.fromkeys(["bin/asm", "bin/list", "bin/run"], 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    path = variant.words("@lib@/machine.awk")
    return [
        Fault(
            "missing-file",
            "No program can be run any more.",
            [*looks, "cat old/machine.awk"],
            f"sed 's/op == 0)/op == 1)/; s/500/5000/' old/machine.awk > {path}",
            removed=[path],
        ),
        file_in_the_way(
            "GNUmakefile",
            "# For the new machine, later.\nall sizes:\n\t@echo nothing to do\n",
            looks,
            "make has nothing to do, whatever is new.",
            "shadowing-makefile",
        ),
        lost_permission("bin/asm", looks, "make ends with an error."),
    ]


def _questions(rng: random.Random, files: dict[str, str], variant: Variant) -> list[Question]:
    """Draw programs and the journal of their runs, and ask about them."""
    writer, owner = _Writer(rng, variant), dict[str, str]()
    programs = [f"{word}{rng.randint(10, 99)}" for word in rng.sample(GOODS, 22)]
    for program in programs:
        board, lines = token(rng), writer.counting()
        lines.insert(0, _Line(comment=f"{writer.mark} board {board}"))
        for _ in range(12):
            name = f"cell_{token(rng, 5)}"
            owner[name] = board
            lines.append(writer.word(rng.randint(1, 999), label=name))
        files[f"programs/{program}.s"] = _file([line for line in lines if not line.include])
    longest = draw_journal(
        rng,
        files,
        "journal/2025-{:02}.log",
        programs,
        range(100, 90_000),
        lambda month, program, steps, run: f"{program}: run {run}, {steps} steps, ended",
        lines=180,
    )
    return [
        asked_together([_longest_run(one, longest[one]) for one in rng.sample([*longest], ASKED)]),
        asked_together([_board_of_cell(one, owner[one]) for one in rng.sample(sorted(owner), ASKED)]),
    ]


def _longest_run(program: str, run: str) -> Question:
    command = f"grep -h '^{program}: ' journal/* | sed 's/.* run //; s/, / /; s/ steps.*//' | sort -k2,2n | tail -1"
    return Question(
        "longest-run",
        f"Which run of {program} had most steps, by journal/?",
        run,
        ["head -3 journal/2025-01.log", f"{command} | cut -d' ' -f1"],
    )


def _board_of_cell(name: str, board: str) -> Question:
    return Question(
        "board-of-cell",
        f"For which board is the program that has the label {name}, by programs/?",
        board,
        [f"grep -rn {name} programs", f"grep -l '^{name}:' programs/* | xargs sed -n 's/.* board //p'"],
    )
