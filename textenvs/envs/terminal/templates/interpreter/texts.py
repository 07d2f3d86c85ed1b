"""Files of the template `interpreter`; what stands between @ is drawn."""

MAKEFILE = """# Joins the library of the language; `make try` runs all examples.
LIBRARY = $(sort $(wildcard @std@/*.@ext@))

build/library.@ext@: $(LIBRARY)
\tmkdir -p build
\tcat $(LIBRARY) > $@

.PHONY: try clean
try: build/library.@ext@
\tfor script in examples/*.@ext@; do bin/@lang@ $$script; done

clean:
\trm -rf build
"""

COMMAND = """#!/bin/sh
# Usage: bin/@lang@ SCRIPT...
exec python3 -S -E "$(dirname "$0")/../@core@/main.py" "$@"
"""

PROBLEM = '''"""What a script can do wrong."""


class Problem(Exception):
    """A mistake in a script; its words are printed."""
'''

LEXER = r'''"""The text of a statement to tokens: pairs of kind and value."""
import re

from problem import Problem

COMMENT = @comment_mark@
PATTERN = re.compile(
    r'\s*(?:(?P<number>0x[0-9a-f]+|\d[\d_]*)|(?P<name>[a-z]\w*)|(?P<text>"(?:\\.|[^"\\])*")'
    rf"|(?P<comment>{re.escape(COMMENT)}.*)"
    r"|(?P<sign><=|>=|==|!=|[-+*/%^()<>,=]))"
)
ESCAPES = {"n": "\n", "t": "\t"}


def convert(kind, piece):
    if kind == "number":
        return int(piece, 0)
    if kind == "text":
        return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), piece[1:-1])
    return piece


def tokens(source):
    result, place = [], 0
    while source[place:].strip():
        match = PATTERN.match(source, place)
        if match is None:
            raise Problem("unknown sign")
        if match.lastgroup == "comment":
            break
        result.append((match.lastgroup, convert(match.lastgroup, match[match.lastgroup])))
        place = match.end()
    return result
'''

GRAMMAR = '''"""Tokens to trees: tuples of a kind and its branches."""
from functools import reduce

from problem import Problem

COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")


class Parser:
    def __init__(self, source):
        self.source, self.place = source, 0

    def peek(self):
        return self.source[self.place] if self.place < len(self.source) else ("end", "")

    def accept(self, *words):
        kind, word = self.peek()
        if kind in ("sign", "name") and word in words:
            self.place += 1
            return word
        return None

    def expect(self, word):
        if not self.accept(word):
            raise Problem(f"{word} expected")

    def name(self):
        kind, word = self.peek()
        if kind != "name":
            raise Problem("name expected")
        self.place += 1
        return word

    def binary(self, level, *signs):
        left = level()
        while sign := self.accept(*signs):
            left = (sign, left, level())
        return left

    def expression(self):
        if self.accept("if"):
            condition = self.expression()
            self.expect("then")
            first = self.expression()
            self.expect("else")
            return ("if", condition, first, self.expression())
        return self.binary(self.conjunction, "or")

    def conjunction(self):
        return self.binary(self.negation, "and")

    def negation(self):
        if self.accept("not"):
            return ("not", self.negation())
        return self.comparison()

    def comparison(self):
        operands, signs = [self.addition()], []
        while sign := self.accept(*COMPARISONS):
            signs.append(sign)
            operands.append(self.addition())
        return ("compare", signs, operands) if signs else operands[0]

    def addition(self):
        return self.binary(self.product, "+", "-")

    def product(self):
        return self.binary(self.signed, "*", "/", "%")

    def signed(self):
        if self.accept("-"):
            return ("minus", self.raised(self.primary()))
        return self.raised(self.primary())

    def raised(self, base):
        operands = [base]
        while self.accept("^"):
            operands.append(self.primary())
        @order_of_powers@

    def primary(self):
        kind, word = self.peek()
        if kind in ("number", "text"):
            self.place += 1
            return ("value", word)
        if self.accept("("):
            tree = self.expression()
            self.expect(")")
            return tree
        word = self.name()
        return ("call", word, self.arguments()) if self.accept("(") else ("name", word)

    def arguments(self):
        trees = []
        if self.accept(")"):
            return trees
        trees.append(self.expression())
        while self.accept(","):
            trees.append(self.expression())
        self.expect(")")
        return trees


def statement(source):
    """Return the tree of a statement; None where there is nothing."""
    parser = Parser(source)
    if parser.peek()[0] == "end":
        return None
    if parser.accept("@let@"):
        word = parser.name()
        parser.expect("=")
        tree = ("let", word, parser.expression())
    elif parser.accept("@def@"):
        word = parser.name()
        parser.expect("(")
        params = [branch[1] for branch in parser.arguments()]
        parser.expect("=")
        tree = ("def", word, params, parser.expression())
    else:
        parser.expect("@print@")
        tree = ("print", [parser.expression()])
        while parser.accept(","):
            tree[1].append(parser.expression())
    if parser.peek()[0] != "end":
        raise Problem("end of line expected")
    return tree
'''

MACHINE = '''"""Evaluate trees."""
from operator import eq, ge, gt, le, lt, mul, ne, sub

from functions import FUNCTIONS, written
from problem import Problem


def plus(left, right):
    if isinstance(left, str) != isinstance(right, str):
        @text_and_number@
    return left + right


def divide(left, right):
    if right == 0:
        raise Problem("division by zero")
    return @division@


def remainder(left, right):
    if right == 0:
        raise Problem("division by zero")
    return @remainder@


def chain(signs, operands):
    """Tell if comparisons such as 1 < x < 9 are all true."""
    return all(COMPARE[sign](one, other) for sign, one, other in zip(signs, operands, operands[1:]))


COMPARE = {"<": lt, ">": gt, "<=": le, ">=": ge, "==": eq, "!=": ne}
ARITHMETIC = {"+": plus, "-": sub, "*": mul, "/": divide, "%": remainder, "^": pow}


class Machine:
    def __init__(self):
        self.variables, self.functions = {}, {}

    def execute(self, tree):
        """Run a statement; return the line that it prints, or None."""
        kind = tree[0]
        if kind == "let":
            self.variables[tree[1]] = self.evaluate(tree[2], self.variables, 0)
        elif kind == "def":
            self.functions[tree[1]] = tree[2:]
        else:
            return " ".join(written(self.evaluate(branch, self.variables, 0)) for branch in tree[1])

    def evaluate(self, tree, scope, depth):
        kind = tree[0]
        if kind == "value":
            return tree[1]
        if kind == "name":
            if tree[1] in scope:
                return scope[tree[1]]
            @undefined_name@
        if kind == "call":
            operands = [self.evaluate(branch, scope, depth) for branch in tree[2]]
            return self.call(tree[1], operands, scope, depth + 1)
        if kind == "if":
            chosen = tree[2] if self.evaluate(tree[1], scope, depth) else tree[3]
            return self.evaluate(chosen, scope, depth)
        if kind in ("and", "or"):
            left = self.evaluate(tree[1], scope, depth)
            return left if bool(left) == (kind == "or") else self.evaluate(tree[2], scope, depth)
        if kind == "not":
            return not self.evaluate(tree[1], scope, depth)
        if kind == "minus":
            return -self.evaluate(tree[1], scope, depth)
        if kind == "compare":
            return chain(tree[1], [self.evaluate(branch, scope, depth) for branch in tree[2]])
        left, right = (self.evaluate(branch, scope, depth) for branch in tree[1:])
        return ARITHMETIC[kind](left, right)

    def call(self, word, operands, scope, depth):
        if @call_depth@:
            raise Problem("too many calls in each other")
        if word in self.functions:
            params, body = self.functions[word]
            if len(operands) != len(params):
                raise Problem(f"{word} takes {len(params)}")
            bound = dict(zip(params, operands))
            return self.evaluate(body, @scope@, depth)
        if word not in FUNCTIONS:
            raise Problem(f"unknown function {word}")
        function, count = FUNCTIONS[word]
        if len(operands) != count:
            raise Problem(f"{word} takes {count}")
        return function(*operands)
'''

FUNCTIONS_TEXT = '''"""Functions that are not written in the language, with the number of their arguments."""

TRUTH = @printed_truth@


def written(operand):
    """Return an operand as it is printed."""
    return TRUTH[operand] if isinstance(operand, bool) else str(operand)


def section(source, one, two):
    return @part_of_text@


FUNCTIONS = {
    "len": (len, 1),
    "min": (min, 2),
    "max": (max, 2),
    "part": (section, 3),
    "repeat": (lambda source, count: source * count, 2),
    "text": (written, 1),
    "number": (int, 1),
    "upper": (str.upper, 1),
}
'''

MAIN = r'''"""Run scripts, one after the other: each begins with the library alone."""
import sys
from pathlib import Path

from grammar import statement
from lexer import tokens
from machine import Machine
from problem import Problem

ROOT = Path(__file__).resolve().parent.parent


def statements(path):
    """Yield numbers and texts of lines; a line that ends with a backslash goes on in the next one."""
    source, first = "", None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            source, first = source + line.rstrip("\n"), first or number
            if source.endswith("\\"):
                source = source[:-1]
                continue
            yield first, source
            source, first = "", None


def run(machine, path):
    """Run a script; return its status."""
    status = 0
    for number, source in statements(path):
        try:
            tree = statement(tokens(source))
            line = machine.execute(tree) if tree else None
        except Problem as problem:
            print(f"error in line {number}: {problem}")
            @after_error@
        else:
            if line is not None:
                print(line)
    return status


def main():
    status = 0
    for path in sys.argv[1:]:
        machine = Machine()
        run(machine, ROOT / "build" / "library.@ext@")
        status = max(status, run(machine, path))
    return status


sys.exit(main())
'''

NUMBERS = """@mark@ Numbers.
@def@ abs(x) = if x < 0 then -x else x
@def@ sign(x) = if x < 0 then -1 else if x > 0 then 1 else 0
@def@ fact(n) = if n < 2 then 1 else n * fact(n - 1)
@def@ sum_to(n) = if n < 1 then 0 else n + sum_to(n - 1)
@def@ clamp(x, low, high) = max(low, min(x, high))
@def@ digits(n) = len(text(abs(n)))
"""

WORDS = """@mark@ Texts.
@def@ twice(t) = t + t
@def@ pad(t, n) = if len(t) < n then pad(t + ".", n) else t
@def@ plural(n, one, many) = if n == 1 then one else many
@def@ shout(t) = upper(t) + "!"
"""

CALENDAR = """@mark@ Dates.
@def@ leap(y) = y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)
@def@ days_of(m, y) = if m == 2 then (if leap(y) then 29 else 28) \\
    else if m == 4 or m == 6 or m == 9 or m == 11 then 30 else 31
"""

LANGUAGE = """# The language

A script has a statement a line; a line that ends with a backslash goes on in the next one, and has the first one's
number.

- `@let@ NAME = EXPRESSION` sets a variable of the script.
- `@def@ NAME(NAMES) = EXPRESSION` defines a function.
- `@print@ EXPRESSION, ...` prints a line with a space between the values.

From weakest to strongest: `if A then B else C`, `or`, `and`, `not`, comparisons, `+ -`, `* / %`, the sign `-`, `^`.
So `-2 ^ 2` is -4, and `not a == b` is `not (a == b)`. Operators of one strength are read from the left, if nothing
else was agreed. `1 < x < 9` is true where both comparisons are. `and`, `or` and `if` evaluate no more than they
need, and `and` and `or` have the value of the operand that decides.

Numbers are integers such as `12`, `1_000` or `0x1f`. Texts have `"` around them, with `\\n`, `\\t`, `\\"` and
`\\\\` in them. A script begins with the library in `@std@/` alone: its files are joined in the order of their
names, and the later definition of a function holds. What is wrong in a script is printed in the place of its
output.

`clamp(x, low, high)` is the number from `low` to `high` that is next to `x`; `fact(0)` is 1; `pad` adds dots;
`plural(1, one, many)` is `one`.
"""
