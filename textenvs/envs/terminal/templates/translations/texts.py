"""Files of the template `translations`; what stands between @ is drawn."""

MAKEFILE = """# Makes a table of each catalogue.
SRC = messages
OUT = build
TABLES = $(patsubst $(SRC)/%.txt,$(OUT)/%.tsv,$(wildcard $(SRC)/*.txt))

all: $(TABLES)

$(OUT)/%.tsv: $(SRC)/%.txt @tools@/compile.awk
\tmkdir -p $(OUT)
\tsed -f @tools@/join.sed $< | awk -f @tools@/compile.awk > $@

clean:
\trm -rf $(OUT)

.PHONY: all clean
"""

JOIN_SED = r"""# Removes a mark of the encoding, and joins lines that end with a backslash.
1s/^\xEF\xBB\xBF//
s/\r$//
:again
/\\$/{
N
s/\r*$//
s/ *\\\n */ /
t again
}
"""

COMPILE_AWK = r"""# Reads lines of KEY = TEXT or KEY[FORM] = TEXT; prints key, form and text.
/^[ \t]*#/ || !/=/ { next }
{
    place = index($0, "=")
    key = substr($0, 1, place - 1)
    message = substr($0, place + 1)
    gsub(/[ \t]/, "", key)
    gsub(/^[ \t]+|[ \t]+$/, "", message)
    gsub(/\t/, " ", message)
    form = "-"
    if (match(key, /\[[a-z]+\]$/)) {
        form = substr(key, RSTART + 1, RLENGTH - 2)
        key = substr(key, 1, RSTART - 1)
    }
    @repeated_key@
    print key "\t" form "\t" message
}
"""

SAY = """#!/bin/sh
# Prints a message for each line of REQUESTS: LANGUAGE KEY NAME=VALUE... Usage: bin/say TABLES REQUESTS
exec python3 -S -E "$(dirname "$0")/../@tools@/say.py" "$@"
"""

CHECK = """#!/bin/sh
# Prints messages that do not have the placeholders of the source language. Usage: bin/check TABLES
exec python3 -S -E "$(dirname "$0")/../@tools@/check.py" "$@"
"""

STATS = """#!/bin/sh
# Prints how much is translated. Usage: bin/stats TABLES
TAB=$(printf '\\t')
ls "$1"/*.tsv | grep -v '/@source@.tsv$' | xargs awk -f "$(dirname "$0")/../@tools@/stats.awk" "$1/@source@.tsv" |
    LC_ALL=C sort -t "$TAB" @order_of_stats@ | cut -f 1,3
"""

STATS_AWK = r"""# Counts the messages of the source language that the other ones have.
BEGIN { FS = "\t" }
FILENAME == ARGV[1] {
    if (!($1 in source)) total++
    source[$1] = 1
    next
}
{
    language = FILENAME
    sub(/.*\//, "", language)
    sub(/\.tsv$/, "", language)
    if (!(language in done)) done[language] = 0
    if (!($1 in source) || $3 == "") next
    if (!((language, $1) in counted)) done[language]++
    counted[language, $1] = 1
}
END {
    for (language in done) print language "\t" done[language] "\t" @stats_line@
}
"""

TABLES = '''"""Tables of messages, and which form of them is for which number."""
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Tables that were read.
READ = {}


def table(folder, language):
    """Return the messages of a language: texts by form, by key."""
    if (folder, language) not in READ:
        path, result = Path(folder) / f"{language}.tsv", {}
        lines = path.read_text(encoding="utf-8").split("\\n") if path.exists() else []
        for line in lines:
            if line:
                key, form, message = line.split("\\t")
                result.setdefault(key, {})[form] = message
        READ[folder, language] = result
    return READ[folder, language]


def family(language):
    for line in (ROOT / "etc" / "plurals.txt").read_text(encoding="utf-8").splitlines():
        name, _, kind = line.partition(" ")
        if name == language.partition("_")[0]:
            return kind
    return "two"


def plural(language, number):
    """Return the form for a number."""
    kind = family(language)
    if kind == "single":
        return "many"
    if kind == "slavic":
        if number == 1:
            return "one"
        return "few" if @few@ else "many"
    @one@
'''

FILL = '''"""Placeholders of messages."""
import re

PATTERN = re.compile(@placeholder@)


def written(value):
    """Return a value as it is printed."""
    if not re.fullmatch(r"\\d+", value):
        return value
    return @number_form@


def fill(message, values):
    def insert(match):
        if match[1] not in values:
            @missing_value@
        return written(values[match[1]])

    return PATTERN.sub(insert, message)
'''

SAY_PY = '''"""Print messages."""
import shlex
import sys

from fill import fill
from tables import plural, table

SOURCE = "@source@"


def languages(locale):
    """Return the languages in which a message is looked for."""
    general = locale.partition("_")[0]
    return @fallback_order@


def find(folder, language, key, values):
    forms = table(folder, language).get(key, {})
    if "n" not in values:
        return forms.get("-")
    form = plural(language, int(values["n"]))
    if form not in forms:
        @missing_form@
    return forms[form]


def say(folder, locale, key, values):
    for language in languages(locale.replace("-", "_")):
        message = find(folder, language, key, values)
        @empty_message@
            return fill(message, values)
    @missing_message@


def main():
    folder, requests = sys.argv[1:]
    for line in open(requests, encoding="utf-8"):
        locale, key, *pairs = shlex.split(line)
        values = dict(pair.split("=", 1) for pair in pairs)
        print(say(folder, locale, key, values))


main()
'''

CHECK_PY = '''"""Print messages whose placeholders are not those of the source language, in any order."""
import sys
from pathlib import Path

from fill import PATTERN
from tables import table

SOURCE = "@source@"


def names(forms):
    """Return the placeholders of a message: of its only form, or of the one for many."""
    return sorted(PATTERN.findall(forms.get("-", forms.get("many", ""))))


def main():
    folder = sys.argv[1]
    for path in sorted(Path(folder).glob("*.tsv")):
        for key, forms in sorted(table(folder, path.stem).items()):
            expected = table(folder, SOURCE).get(key)
            if expected is not None and names(forms) != names(expected):
                print(path.stem, key)


main()
'''

FORMAT = """# Catalogues

A catalogue is a file such as `messages/de.txt`, of lines `KEY = TEXT` or `KEY[FORM] = TEXT`. The first `=` ends the
key. A line that ends with a backslash goes on in the next one; there is one space between the parts. Lines that begin
with `#` are comments. Spaces around keys and texts do not count, and some catalogues are of other systems. What
everybody reads first is written in @source@, the source language.

`make` makes a table of each catalogue: key, form (`-` where there is none) and text.

`bin/say` prints messages. `de-CH` is `de_CH`. In a value there may be anything, also `=` or what looks like a
placeholder; quotes are those of the shell. Where there is a value `n`, the form is chosen by it:

- languages of two forms: `one` and `many`;
- Slavic ones: `one` for 1, `few` and `many`;
- those of a single form: `many`.

Which language is of which kind:

@kinds@

`bin/stats` counts the keys of the source language for which another one has a text, whatever forms it has. `bin/check`
prints language and key of messages with other placeholders than the source language has; their order is no matter.
"""
