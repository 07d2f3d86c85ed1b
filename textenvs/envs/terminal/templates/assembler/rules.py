"""Rules that the programs of the template `assembler` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _pairs(text: str) -> list[tuple[int, int]]:
    padded = [*text.encode(), 0]
    return list(zip(padded[:-1:2], padded[1::2], strict=False))


RULES = (
    Rule(
        "comment-mark",
        "@lib@/scan.awk",
        "Programs with comments have errors.",
        [Option(f'"{mark}"', f"A comment begins with `{mark}`, and ends with its line.", mark) for mark in ";|!?"],
        shows=True,
    ),
    Rule(
        "division",
        "@lib@/value.awk",
        "Values that are divided are wrong by one.",
        [
            Option(
                "result = int(result / other)",
                "A quotient is cut off: `-7 / 2` is -3.",
                lambda one, other: abs(one) // abs(other) * (1 if one * other >= 0 else -1),
            ),
            Option(
                "result = floor(result / other)",
                "A quotient is rounded down: `-7 / 2` is -4.",
                lambda one, other: one // other,
            ),
            Option(
                "result = 0 - floor(0 - result / other)",
                "A quotient is rounded up: `-7 / 2` is -3 and `7 / 2` is 4.",
                lambda one, other: -(-one // other),
            ),
        ],
    ),
    Rule(
        "undefined-name",
        "@lib@/assemble.awk",
        "Names that do not exist are not treated as agreed.",
        [
            Option('problem("no name: " name)', "A name that does not exist is an error, `no name: NAME`.", None),
            Option("missing = 0", "A name that does not exist has the value 0.", 0),
            Option("missing = 65535", "A name that does not exist has the value 65535.", 65535),
        ],
    ),
    Rule(
        "second-label",
        "@lib@/assemble.awk",
        "Names that are there twice are not treated as agreed.",
        [
            Option(
                "address[name] = address[name]",
                "Where a name is there twice, the first one counts, in all lines.",
                "first",
            ),
            Option(
                "address[name] = 0 + number", "Where a name is there twice, the last one counts, in all lines.", "last"
            ),
            Option(
                "twice[$1, $2] = name",
                "The second line in which a name is given is an error, `name twice: NAME`.",
                "error",
            ),
        ],
    ),
    Rule(
        "text-packing",
        "@lib@/assemble.awk",
        "Texts come out garbled.",
        [
            Option(
                "for (i = 1; i <= length(text); i++) add(glyph(text, i))",
                "A text has a word for each letter.",
                lambda text: list(text.encode()),
            ),
            Option(
                "for (i = 1; i <= length(text); i += 2) add(256 * glyph(text, i) + glyph(text, i + 1))",
                "A text has a word for two letters, the first of them in the high byte; a missing one is 0.",
                lambda text: [256 * one + other for one, other in _pairs(text)],
            ),
            Option(
                "for (i = 1; i <= length(text); i += 2) add(glyph(text, i) + 256 * glyph(text, i + 1))",
                "A text has a word for two letters, the first of them in the low byte; a missing one is 0.",
                lambda text: [one + 256 * other for one, other in _pairs(text)],
            ),
        ],
    ),
    numbers(
        "origin",
        "@lib@/assemble.awk",
        "Programs do not lie where they should in memory.",
        (0, 16, 64, 256),
        "here = {}",
        "Without `ORG`, a program begins at the address {}.",
    ),
    Rule(
        "filling",
        "@lib@/assemble.awk",
        "Free space is filled with the wrong words.",
        [
            Option("add(0)", "The words of `SPACE` are 0.", lambda n, address: 0),
            Option("add(65535)", "The words of `SPACE` are 65535.", lambda n, address: 65535),
            Option("add(n)", "The words of `SPACE` are 1, 2, 3 and so on.", lambda n, address: n),
            Option("add(here)", "The words of `SPACE` are their own addresses.", lambda n, address: address),
        ],
    ),
    Rule(
        "error-line",
        "bin/asm",
        "Errors are not printed as agreed.",
        [
            Option('$2 ":" $3 ": " $4', "An error is such as `a.s:12: MESSAGE`, with file and line.", "{0}:{1}: {2}"),
            Option(
                '"line " $3 " of " $2 ": " $4', "An error is such as `line 12 of a.s: MESSAGE`.", "line {1} of {0}: {2}"
            ),
            Option(
                '$4 " (" $2 ", " $3 ")"',
                "An error is such as `MESSAGE (a.s, 12)`, with file and line.",
                "{2} ({0}, {1})",
            ),
        ],
    ),
    numbers(
        "status-of-error",
        "bin/asm",
        "The job that assembles goes on where it should end.",
        range(2, 10),
        "exit {}",
        "`bin/asm` ends with the status {} where there are errors.",
    ),
    Rule(
        "list-line",
        "bin/list",
        "Listings are not as agreed.",
        [
            Option(
                '$2 "  " $3 "  " $4',
                "A line of a listing is `ADDRESS  WORDS  SOURCE`, with two spaces.",
                "{0}  {1}  {2}",
            ),
            Option('$4 " = " $3 " @" $2', "A line of a listing is `SOURCE = WORDS @ADDRESS`.", "{2} = {1} @{0}"),
            Option('$2 "[" $3 "] " $4', "A line of a listing is `ADDRESS[WORDS] SOURCE`.", "{0}[{1}] {2}"),
        ],
    ),
    Rule(
        "order-of-names",
        "bin/list",
        "The names of a program are in another order than agreed.",
        [
            Option("-k2,2", "Names are listed in their order.", lambda row: row[0]),
            Option(
                "-k3,3n -k2,2",
                "Names are listed by values, and equal ones in their order.",
                lambda row: (row[1], row[0]),
            ),
            Option(
                "-k4,4nr -k2,2",
                "The names that are used most are listed first, and equal ones in their order.",
                lambda row: (-row[2], row[0]),
            ),
        ],
    ),
    Rule(
        "name-line",
        "bin/list",
        "The names of a program are not listed as agreed.",
        [
            Option(
                '$2 "=" $3 " (" $4 ")"', "A name is listed such as `loop=18 (3)`, with value and uses.", "{0}={1} ({2})"
            ),
            Option(
                'sprintf("%04X %s %d", $3, $2, $4)',
                "A name is listed such as `0012 loop 3`: the value in hexadecimal, the name, its uses.",
                "{1:04X} {0} {2}",
            ),
            Option(
                '$4 " x " $2 ": " $3', "A name is listed such as `3 x loop: 18`, with uses and value.", "{2} x {0}: {1}"
            ),
        ],
    ),
    Rule(
        "byte-order",
        "@lib@/words.awk",
        "Images have words that the hardware takes for others.",
        [
            Option("return digits", "Words of an image have the high byte first.", False),
            Option("return substr(digits, 3) substr(digits, 1, 2)", "Words of an image have the low byte first.", True),
        ],
    ),
    Rule(
        "checksum",
        "@lib@/hex.awk",
        "The hardware refuses all images: something is wrong at the end of each line.",
        [
            Option("total % 256", "A checksum is the sum of the bytes before it, modulo 256.", lambda n: n % 256),
            Option(
                "(256 - total % 256) % 256",
                "A checksum makes the sum of all bytes of a line a multiple of 256.",
                lambda n: -n % 256,
            ),
            Option("total % 255", "A checksum is the sum of the bytes before it, modulo 255.", lambda n: n % 255),
        ],
    ),
    numbers(
        "words-of-line",
        "@lib@/hex.awk",
        "The lines of images are too long, or too short.",
        (4, 6, 8, 12),
        "if (count == {}) flush()",
        "A line of an image has at most {} words.",
    ),
    Rule(
        "printed-number",
        "@lib@/machine.awk",
        "Programs print other numbers than they did.",
        [
            Option(
                "print signed(word)",
                "`OUT` prints numbers from -32768 to 32767.",
                lambda n: str(n - 65536 * (n > 32767)),
            ),
            Option("print word", "`OUT` prints numbers from 0 to 65535.", str),
            Option('print sprintf("%04X", word)', "`OUT` prints four hexadecimal digits.", lambda n: f"{n:04X}"),
        ],
    ),
)

IDENTIFIERS = (
    "bare trimmed scan letter quote folder rest peek take digits glyph factor products sums result other problem full "
    "named define uses add words operands parts inside letters register mode operand begin total items missing "
    "flush start data many following signed wrapped memory steps where what stack depth todo"
)
