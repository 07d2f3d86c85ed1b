"""Rules that the programs of the template `deploy` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "skipped-state",
        "@lib@/hosts.sh",
        "Hosts are rendered that should not be, or are not.",
        [
            Option(
                f"$state != {state}", f"Hosts whose state is `{state}` are left out; other states do not matter.", state
            )
            for state in ("retired", "off", "spare", "broken")
        ],
    ),
    Rule(
        "layer-order",
        "@home@",
        "Values of the wrong layer are used.",
        [
            Option(
                "common site role host",
                "A host's value counts more than a role's, this more than a site's, and this more than the common one.",
                ("common", "site", "role", "host"),
            ),
            Option(
                "common role site host",
                "A host's value counts more than a site's, this more than a role's, and this more than the common one.",
                ("common", "role", "site", "host"),
            ),
            Option(
                "common site host role",
                "A role's value counts more than a host's, this more than a site's, and this more than the common one.",
                ("common", "site", "host", "role"),
            ),
        ],
    ),
    Rule(
        "several-roles",
        "@home@",
        "Hosts with several roles have the values of the wrong one.",
        [
            Option("tac", "Of several roles, the values of the first one count most.", lambda roles: roles[::-1]),
            Option("cat", "Of several roles, the values of the last one count most.", lambda roles: roles),
            Option(
                "sort -r",
                "Of several roles, the values of the first one in the order of letters count most.",
                lambda roles: sorted(roles)[::-1],
            ),
        ],
    ),
    Rule(
        "key-twice-in-layer",
        "@lib@/merge.awk",
        "Where a file of a layer has a key twice, the value is not the one that was agreed.",
        [
            Option(
                "(key in own) value = value",
                "Where a file of a layer has a key twice, the last line holds.",
                lambda old, new: new,
            ),
            Option(
                "(key in own) value = values[key]",
                "Where a file of a layer has a key twice, the first line holds.",
                lambda old, new: old,
            ),
            Option(
                '(key in own) value = values[key] ";" value',
                "Where a file of a layer has a key twice, the values are joined with `;`.",
                lambda old, new: f"{old};{new}",
            ),
        ],
    ),
    Rule(
        "appended-values",
        "@lib@/merge.awk",
        "Lists that layers add to are not as agreed.",
        [
            Option(
                'values[key] "," value',
                "What `+=` adds is behind the other values, with a comma between them.",
                "{0},{1}",
            ),
            Option(
                'value "," values[key]',
                "What `+=` adds is before the other values, with a comma between them.",
                "{1},{0}",
            ),
            Option(
                'values[key] " " value',
                "What `+=` adds is behind the other values, with a space between them.",
                "{0} {1}",
            ),
        ],
    ),
    Rule(
        "placeholder-without-value",
        "@lib@/fill.awk",
        "Placeholders without a value are not treated as agreed.",
        [
            Option('return ""', "A placeholder without value and default is nothing.", ""),
            Option('return "{{" key "}}"', "A placeholder without value and default stays as it is.", "{{{{{}}}}}"),
            Option('return "MISSING"', "A placeholder without value and default becomes `MISSING`.", "MISSING"),
            Option("drop = 1", "A line with a placeholder without value and default is left out.", None),
        ],
    ),
    Rule(
        "default-of-value",
        "@lib@/fill.awk",
        "Defaults are used where they should not be, or are not used.",
        [
            Option(
                "!(key in values)",
                "A default holds where a key is missing; an empty value is one.",
                lambda value: value is None,
            ),
            Option(
                '!(key in values) || values[key] == ""',
                "A default holds where a key is missing or its value is empty.",
                lambda value: not value,
            ),
            Option(
                '!(key in values) || values[key] == "none"',
                "A default holds where a key is missing or its value is `none`.",
                lambda value: value in (None, "none"),
            ),
        ],
    ),
    Rule(
        "condition",
        "@lib@/fill.awk",
        "Parts of files are there that should not be, or are missing.",
        [
            Option(
                'values[key] == "yes"',
                "A condition is met where the value is `yes`.",
                lambda value: value == "yes",
            ),
            Option(
                'values[key] != "" && values[key] != "no"',
                "A condition is met where there is a value other than `no`; an empty one does not count.",
                lambda value: value not in (None, "", "no"),
            ),
            Option(
                'values[key] != "no"',
                "A condition is met where there is a value other than `no`, even an empty one.",
                lambda value: value is not None and value != "no",
            ),
            Option(
                "values[key] + 0 > 0",
                "A condition is met where the value is a number above 0.",
                lambda value: value is not None and value.isdecimal() and int(value) > 0,
            ),
        ],
    ),
    numbers(
        "include-depth",
        "@lib@/fill.awk",
        "Parts of parts are missing, or there are too many.",
        (1, 2, 3),
        "depth < {}",
        "Templates are included up to a depth of {}; what is deeper is left out.",
    ),
    Rule(
        "empty-lines-of-templates",
        "@lib@/fill.awk",
        "Rendered files have too many empty lines, or too few.",
        [
            Option('if (line == "") return', "Empty lines are not written to rendered files.", "none"),
            Option(
                'if (line == "" && last == "") return',
                "Of several empty lines in a row one is written to a rendered file, and none behind its first line.",
                "one",
            ),
            Option('sub(/[ \\t]+$/, "", line)', "Empty lines are written to rendered files as they are.", "all"),
        ],
    ),
    Rule(
        "header-line",
        "@lib@/fill.awk",
        "The first lines of rendered files are not as agreed.",
        [
            Option('"# " HOST ": " FILE', "A rendered file begins with `# HOST: PATH`.", "# {0}: {1}"),
            Option(
                '"# " FILE " of " HOST ", by " TEMPLATE',
                "A rendered file begins with `# PATH of HOST, by TEMPLATE`.",
                "# {1} of {0}, by {2}",
            ),
            Option(
                '"# do not edit " HOST "/" FILE',
                "A rendered file begins with `# do not edit HOST/PATH`.",
                "# do not edit {0}/{1}",
            ),
        ],
    ),
    Rule(
        "mode-of-secrets",
        "bin/render",
        "Files with secrets have other permissions than agreed.",
        [
            Option(f'chmod {mode} "$target"', f"A rendered file with a secret in it has the permissions {mode}.", mode)
            for mode in ("600", "640", "400", "440")
        ],
    ),
    Rule(
        "masked-secret",
        "bin/explain",
        "Secrets are not hidden as agreed.",
        [
            Option("/***/g", "`bin/explain` prints `***` in the place of `secret(NAME)`.", "***"),
            Option("/<hidden>/g", "`bin/explain` prints `<hidden>` in the place of `secret(NAME)`.", "<hidden>"),
            Option("/<\\1>/g", "`bin/explain` prints `<NAME>` in the place of `secret(NAME)`.", r"<\1>"),
        ],
    ),
    Rule(
        "line-of-value",
        "bin/explain",
        "Values are not explained as agreed.",
        [
            Option('$1 "=" $2 " (" $3 ")"', "`bin/explain` prints lines such as `KEY=VALUE (LAYER)`.", "{0}={1} ({2})"),
            Option(
                '$1 ": " $2 ", from " $3',
                "`bin/explain` prints lines such as `KEY: VALUE, from LAYER`.",
                "{0}: {1}, from {2}",
            ),
            Option('$3 ": " $1 " = " $2', "`bin/explain` prints lines such as `LAYER: KEY = VALUE`.", "{2}: {0} = {1}"),
        ],
    ),
    numbers(
        "lowest-port",
        "@lib@/lint.awk",
        "Ports are reported that are high enough, or others are not.",
        (1024, 2000, 5000, 8000),
        "port < {}",
        "Ports below {} are too low.",
    ),
    Rule(
        "port-conflict",
        "@lib@/lint.awk",
        "Ports that are used twice are not reported as agreed.",
        [
            Option("scope = $1", "A port is used twice where two lines of files of a host have it.", "host"),
            Option("scope = $2", "A port is used twice where two lines of files of hosts of a site have it.", "site"),
            Option("scope = $3", "A port is used twice where two lines of a file have it.", "file"),
        ],
    ),
    Rule(
        "problem-line",
        "@lib@/lint.awk",
        "Problems are not printed as agreed.",
        [
            Option('$3 ":" $4 ": " text', "A problem is printed such as `HOST/PATH:12: low port 80`.", "{1}:{2}: {3}"),
            Option(
                'text " in " $3 " at " $4',
                "A problem is printed such as `low port 80 in HOST/PATH at 12`.",
                "{3} in {1} at {2}",
            ),
            Option('$1 " (" $4 "): " text', "A problem is printed such as `HOST (12): low port 80`.", "{0} ({2}): {3}"),
        ],
    ),
    numbers(
        "status-of-problems",
        "bin/check",
        "The job goes on where the check has found something.",
        range(3, 9),
        "exit {}",
        "`bin/check` ends with the status {} where there is a problem.",
    ),
    Rule(
        "ignored-differences",
        "bin/plan",
        "The plan has changes that make no difference, or some are missing.",
        [
            Option('cat "$1"', "Every difference between two lines is a change.", lambda lines: lines),
            Option(
                "sed '/^ *#/d' \"$1\"",
                "Lines that begin with `#`, perhaps behind spaces, are no difference.",
                lambda lines: [line for line in lines if not line.lstrip(" ").startswith("#")],
            ),
            Option(
                "sed 's/ *$//' \"$1\"",
                "Spaces at the end of lines are no difference.",
                lambda lines: [line.rstrip(" ") for line in lines],
            ),
            Option(
                "sed 's/.*/\\L&/' \"$1\"",
                "Capital and small letters are no difference.",
                lambda lines: [line.lower() for line in lines],
            ),
        ],
    ),
    Rule(
        "stray-files",
        "bin/plan",
        "Files that nobody renders are not treated as agreed.",
        [
            Option(
                'report remove "$name" "$path" "$(wc -l < "$live/$name/$path")"',
                "Files of hosts that are not rendered are in the plan as `remove`, with the number of their lines.",
                "remove",
            ),
            Option(
                'report stray "$name" "$path" 0',
                "Files of hosts that are not rendered are in the plan as `stray`, with the number 0.",
                "stray",
            ),
            Option("true", "Files of hosts that are not rendered are not in the plan.", ""),
        ],
    ),
    Rule(
        "plan-line",
        "bin/plan",
        "The plan cannot be read by the program that carries it out.",
        [
            Option(
                '"$verb $name:$path ($count)"',
                "A line of the plan is such as `change HOST:PATH (3)`.",
                "{0} {1}:{2} ({3})",
            ),
            Option(
                '"$name;$path;$verb;$count"', "A line of the plan is such as `HOST;PATH;change;3`.", "{1};{2};{0};{3}"
            ),
            Option(
                '"$count $verb $name/$path"', "A line of the plan is such as `3 change HOST/PATH`.", "{3} {0} {1}/{2}"
            ),
        ],
    ),
    numbers(
        "hosts-of-wave",
        "bin/plan",
        "Waves have too many hosts, or too few.",
        (2, 3, 4),
        "NR % {} == 0",
        "A wave has {} hosts, the last one perhaps fewer.",
    ),
    Rule(
        "order-of-waves",
        "bin/plan",
        "Hosts are in the wrong waves.",
        [
            Option(
                "sort -k1,1n -k2,2",
                "Hosts with the fewest files in the plan are in the first wave; then the order is that of letters.",
                lambda count, name: (count, name),
            ),
            Option(
                "sort -k1,1nr -k2,2",
                "Hosts with the most files in the plan are in the first wave; then the order is that of letters.",
                lambda count, name: (-count, name),
            ),
            Option(
                "sort -k2,2",
                "Hosts are in waves in the order of letters of their names.",
                lambda count, name: name,
            ),
        ],
    ),
)

IDENTIFIERS = (
    "names state wanted template target settings problems count verb lines totals origin origins own held "
    "place adds resolved before after trimmed values drop met level truth filled revealed value_of words items "
    "many used scope problem expand ordered has_role paths changes report"
)
