"""Rules that the programs of the template `interpreter` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "comment-mark",
        "@core@/lexer.py",
        "Scripts that ran for years are refused.",
        [
            Option(f'"{mark}"', f"A comment begins with `{mark}` and ends with the line.", mark)
            for mark in ("#", "//", "--", ";", "!!")
        ],
        shows=True,
    ),
    Rule(
        "order-of-powers",
        "@core@/grammar.py",
        "Some powers have another value than in the old program.",
        [
            Option(
                'return reduce(lambda one, other: ("^", one, other), operands)',
                "`2 ^ 3 ^ 2` is `(2 ^ 3) ^ 2`.",
                lambda a, b, c: (a**b) ** c,
            ),
            Option(
                'return reduce(lambda one, other: ("^", other, one), reversed(operands))',
                "`2 ^ 3 ^ 2` is `2 ^ (3 ^ 2)`.",
                lambda a, b, c: a ** (b**c),
            ),
        ],
    ),
    Rule(
        "text-and-number",
        "@core@/machine.py",
        "Scripts that write labels do not do what they did.",
        [
            Option(
                'return f"{left}{right}"',
                "A text plus a number is the text with the number's digits.",
                lambda one, other: f"{one}{other}",
            ),
            Option(
                'raise Problem("text and number")',
                "A text plus a number is an error: `text and number`.",
                lambda one, other: ValueError("text and number"),
            ),
            Option(
                "left, right = (len(part) if isinstance(part, str) else part for part in (left, right))",
                "In a text plus a number, the text counts as its length.",
                lambda one, other: sum(len(part) if isinstance(part, str) else part for part in (one, other)),
            ),
        ],
    ),
    Rule(
        "division",
        "@core@/machine.py",
        "Quotients are off by one in some scripts.",
        [
            Option("left // right", "A quotient is rounded down.", lambda a, b: a // b),
            Option(
                "abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)",
                "A quotient is rounded towards zero.",
                lambda a, b: int(a / b),
            ),
            Option("-(-left // right)", "A quotient is rounded up.", lambda a, b: -(-a // b)),
            Option(
                "(2 * left + right) // (2 * right)",
                "A quotient is rounded to the nearest integer, a half up.",
                lambda a, b: (2 * a + b) // (2 * b),
            ),
        ],
        shows=True,
    ),
    Rule(
        "remainder",
        "@core@/machine.py",
        "Remainders are wrong where something is below zero.",
        [
            Option("left % right", "A remainder has the sign of the number behind `%`.", lambda a, b: a % b),
            Option(
                "abs(left) % abs(right) * (-1 if left < 0 else 1)",
                "A remainder has the sign of the number before `%`.",
                lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
            ),
            Option("left % abs(right)", "A remainder is never below zero.", lambda a, b: a % abs(b)),
        ],
    ),
    Rule(
        "undefined-name",
        "@core@/machine.py",
        "What happens with a name that was never set is not what it was.",
        [
            Option(
                'raise Problem(f"unknown name {tree[1]}")',
                "A name that was not set is an error, such as `unknown name x`.",
                lambda name: ValueError(f"unknown name {name}"),
            ),
            Option("return 0", "A name that was not set is 0.", lambda name: 0),
            Option("return str(tree[1])", "A name that was not set is a text: itself.", lambda name: name),
            Option("return -1", "A name that was not set is -1.", lambda name: -1),
        ],
    ),
    Rule(
        "scope",
        "@core@/machine.py",
        "A function takes a name for another one than before.",
        [
            Option(
                "{**self.variables, **bound}",
                "A function sees its arguments, and the variables of the script.",
                lambda script, caller: {**script},
            ),
            Option(
                "{**scope, **bound}",
                "A function sees its arguments, and whatever its caller sees.",
                lambda script, caller: {**script, **caller},
            ),
            Option("dict(bound)", "A function sees its arguments, and nothing else.", lambda script, caller: {}),
        ],
    ),
    numbers(
        "call-depth",
        "@core@/machine.py",
        "Scripts with functions that call themselves end in another place than before.",
        range(24, 48, 3),
        "depth > {}",
        "More than {} calls in each other are an error.",
    ),
    Rule(
        "printed-truth",
        "@core@/functions.py",
        "The form that reads our output shows no answers any more.",
        [
            Option(repr(words), f"What is true is printed as `{words[1]}`, what is not as `{words[0]}`.", words)
            for words in (("false", "true"), ("no", "yes"), ("0", "1"), ("F", "T"), ("off", "on"))
        ],
    ),
    Rule(
        "part-of-text",
        "@core@/functions.py",
        "Scripts cut texts at the wrong places.",
        [
            Option(
                "source[one:two]",
                "`part(t, a, b)` is from letter a up to letter b, without b; the first letter is 0.",
                lambda t, a, b: t[a:b],
            ),
            Option(
                "source[one - 1 : two]",
                "`part(t, a, b)` is from letter a to letter b, with b; the first letter is 1.",
                lambda t, a, b: t[a - 1 : b],
            ),
            Option(
                "source[one : one + two]",
                "`part(t, a, b)` has b letters, from letter a on; the first letter is 0.",
                lambda t, a, b: t[a : a + b],
            ),
            Option(
                "source[one - 1 : one - 1 + two]",
                "`part(t, a, b)` has b letters, from letter a on; the first letter is 1.",
                lambda t, a, b: t[a - 1 : a - 1 + b],
            ),
        ],
    ),
    Rule(
        "after-error",
        "@core@/main.py",
        "The job that runs the scripts is not told of errors as agreed.",
        [
            Option(
                f"status = {status}",
                f"After an error a script goes on, and its status is {status}.",
                (False, lambda lines, status=status: status),
            )
            for status in (1, 4)
        ]
        + [
            Option(
                "status += 1",
                "After an error a script goes on; its status is the number of errors.",
                (False, len),
            ),
            Option("return 2", "A script ends at its first error, with status 2.", (True, lambda lines: 2)),
            Option(
                "return number",
                "A script ends at its first error; its status is the number of that line.",
                (True, lambda lines: lines[0]),
            ),
        ],
    ),
)

IDENTIFIERS = (
    "tokens statement statements convert piece result peek accept expect binary level left right signs operands "
    "conjunction negation comparison addition signed raised arguments trees params branch chosen plus divide "
    "remainder chain execute evaluate body written section source status"
)
