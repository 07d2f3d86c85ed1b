"""Rules that the programs of the template `translations` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule

RULES = (
    Rule(
        "repeated-key",
        "@tools@/compile.awk",
        "Corrected messages are not printed, or old ones are back.",
        [
            Option(
                "if (seen[key, form]++) next", "Where a key stands in a catalogue twice, the first text holds.", True
            ),
            Option("seen[key, form]++", "Where a key stands in a catalogue twice, the last text holds.", False),
        ],
    ),
    Rule(
        "order-of-stats",
        "bin/stats",
        "The table of languages is sorted in another way than on the wall.",
        [
            Option("-k 1,1", "`bin/stats` is in the order of languages.", lambda name, count: (name,)),
            Option(
                "-k 2,2n -k 1,1",
                "`bin/stats` has the language with the fewest messages first, and equal ones by name.",
                lambda name, count: (count, name),
            ),
            Option(
                "-k 2,2nr -k 1,1",
                "`bin/stats` has the language with the most messages first, and equal ones by name.",
                lambda name, count: (-count, name),
            ),
        ],
    ),
    Rule(
        "stats-line",
        "@tools@/stats.awk",
        "The page of the translators shows no figures any more.",
        [
            Option(
                'done[language] "/" total',
                "`bin/stats` prints such as `12/15`: what is translated, of how much.",
                lambda done, total: f"{done}/{total}",
            ),
            Option(
                'int(100 * done[language] / total) "%"',
                "`bin/stats` prints percents, rounded down, such as `80%`.",
                lambda done, total: f"{100 * done // total}%",
            ),
            Option(
                '(total - done[language]) " missing"',
                "`bin/stats` prints such as `3 missing`.",
                lambda done, total: f"{total - done} missing",
            ),
            Option(
                'sprintf("%.2f", done[language] / total)',
                "`bin/stats` prints shares such as `0.80`.",
                lambda done, total: f"{done / total:.2f}",
            ),
        ],
    ),
    Rule(
        "few",
        "@tools@/tables.py",
        "Polish users complain about the grammar.",
        [
            Option(
                "number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14)",
                "Slavic languages have `few` for what ends with 2, 3 or 4, but not with 12, 13 or 14.",
                lambda n: n % 10 in (2, 3, 4) and n % 100 not in (12, 13, 14),
            ),
            Option(
                "number in (2, 3, 4)",
                "Slavic languages have `few` for 2, 3 and 4 alone.",
                lambda n: n in (2, 3, 4),
            ),
            Option(
                "number % 10 in (2, 3, 4)",
                "Slavic languages have `few` for what ends with 2, 3 or 4.",
                lambda n: n % 10 in (2, 3, 4),
            ),
        ],
    ),
    Rule(
        "one",
        "@tools@/tables.py",
        "Users complain about messages on small numbers.",
        [
            Option(
                'return "one" if number == 1 else "many"',
                "Languages of two forms have `one` for 1 alone.",
                lambda n: n == 1,
            ),
            Option(
                'return "one" if number in (0, 1) else "many"',
                "Languages of two forms have `one` for 0 and 1.",
                lambda n: n in (0, 1),
            ),
            Option(
                'return "one" if number % 10 == 1 else "many"',
                "Languages of two forms have `one` for what ends with 1.",
                lambda n: n % 10 == 1,
            ),
        ],
    ),
    Rule(
        "placeholder",
        "@tools@/fill.py",
        "Messages are printed with what should be replaced in them.",
        [
            Option(r'r"\{(\w+)\}"', "A placeholder is such as `{name}`.", lambda name: f"{{{name}}}"),
            Option(r'r"%(\w+)%"', "A placeholder is such as `%name%`.", lambda name: f"%{name}%"),
            Option(r'r"<(\w+)>"', "A placeholder is such as `<name>`.", lambda name: f"<{name}>"),
            Option(r'r"\((\w+)\)"', "A placeholder is such as `(name)`.", lambda name: f"({name})"),
        ],
        shows=True,
    ),
    Rule(
        "number-form",
        "@tools@/fill.py",
        "Large numbers in messages cannot be read any more.",
        [
            Option('f"{int(value):,}"', "Numbers in messages are such as `12,500`.", lambda n: f"{n:,}"),
            Option('f"{int(value):_}"', "Numbers in messages are such as `12_500`.", lambda n: f"{n:_}"),
            Option(
                """f"{int(value):,}".replace(",", "'")""",
                "Numbers in messages are such as `12'500`.",
                lambda n: f"{n:,}".replace(",", "'"),
            ),
            Option(
                'f"{int(value):,}".replace(",", ".")',
                "Numbers in messages are such as `12.500`.",
                lambda n: f"{n:,}".replace(",", "."),
            ),
        ],
    ),
    Rule(
        "missing-value",
        "@tools@/fill.py",
        "What is printed where something is not known is not what was agreed.",
        [
            Option('return "?"', "A placeholder without a value becomes `?`.", lambda name, whole: "?"),
            Option("return match[0]", "A placeholder without a value stays.", lambda name, whole: whole),
            Option(
                "return match[1].upper()",
                "A placeholder without a value becomes its name in upper case.",
                lambda name, whole: name.upper(),
            ),
            Option(
                'return f"no {match[1]}"',
                "A placeholder without a value becomes such as `no name`.",
                lambda name, whole: f"no {name}",
            ),
        ],
    ),
    Rule(
        "fallback-order",
        "@tools@/say.py",
        "Messages are printed in a language that nobody chose.",
        [
            Option(
                "[locale, general, SOURCE]",
                "A message that is missing in `de_CH` is looked for in `de`, then in the source language.",
                lambda exact, general, source: [exact, general, source],
            ),
            Option(
                "[locale, SOURCE, general]",
                "A message that is missing in `de_CH` is looked for in the source language, then in `de`.",
                lambda exact, general, source: [exact, source, general],
            ),
            Option(
                "[locale, SOURCE]",
                "A message that is missing in `de_CH` is looked for in the source language alone.",
                lambda exact, general, source: [exact, source],
            ),
        ],
    ),
    Rule(
        "missing-form",
        "@tools@/say.py",
        "Messages with numbers are missing, or in a strange form.",
        [
            Option(
                'return forms.get("many")',
                "A form that is missing is replaced by `many`.",
                lambda forms: forms.get("many"),
            ),
            Option(
                'return forms.get("one")',
                "A form that is missing is replaced by `one`.",
                lambda forms: forms.get("one"),
            ),
            Option(
                "return None",
                "Where a form is missing, the message is looked for in the next language.",
                lambda forms: None,
            ),
        ],
    ),
    Rule(
        "empty-message",
        "@tools@/say.py",
        "Messages that are empty so far are not treated as agreed.",
        [
            Option("if message:", "A message with an empty text is taken for missing.", lambda text: bool(text)),
            Option(
                "if message is not None:",
                "A message with an empty text is printed: an empty line.",
                lambda text: text is not None,
            ),
        ],
    ),
    Rule(
        "missing-message",
        "@tools@/say.py",
        "The form shows nothing sensible for unknown messages.",
        [
            Option("return key", "A message that is nowhere is printed as its key.", lambda language, key: key),
            Option(
                'return f"[{key}]"', "A message that is nowhere is printed such as `[key]`.", lambda _, key: f"[{key}]"
            ),
            Option(
                'return f"{locale}:{key}"',
                "A message that is nowhere is printed such as `de_CH:key`, with the language as it was asked for.",
                lambda language, key: f"{language}:{key}",
            ),
            Option('return "n/a"', "A message that is nowhere is printed as `n/a`.", lambda language, key: "n/a"),
        ],
    ),
)

IDENTIFIERS = (
    "table family plural written insert languages find say names general forms pairs folder result counted "
    "total done expected kind"
)
