"""Rules that the programs of the template `monitoring` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _value(row: str) -> float:
    """Return the value of a line of `status`, which is its third word in all forms."""
    word = row.split()[2].rstrip("*")
    return float(word) if word[0].isdigit() else 0


RULES = (
    Rule(
        "counter-restart",
        "@lib@/@rates@.awk",
        "After a restart, the growth of counters is not as agreed.",
        [
            Option(
                "if (grown < 0) grown = $4",
                "A counter that is lower than before has grown by what it shows now.",
                lambda grown, value: value if grown < 0 else grown,
            ),
            Option(
                "if (grown < 0) grown = 0",
                "A counter that is lower than before has not grown.",
                lambda grown, value: max(grown, 0),
            ),
            Option(
                "if (grown < 0) next",
                "A counter that is lower than before has no reading at that time.",
                lambda grown, value: None if grown < 0 else grown,
            ),
        ],
    ),
    Rule(
        "at-limit",
        "@lib@/@alerts@.awk",
        "Readings at the limit are not treated as agreed.",
        [
            Option(
                f'above != "" && value {high} above + 0 || below != "" && value {low} below + 0',
                f"A reading breaks a rule where it is {'at or ' * (high == '>=')}above `above`, or "
                f"{'at or ' * (low == '<=')}below `below`.",
                (high == ">=", low == "<="),
            )
            for high in (">", ">=")
            for low in ("<", "<=")
        ],
    ),
    numbers(
        "calm-readings",
        "@lib@/@alerts@.awk",
        "Alerts end too early, or too late.",
        (1, 2, 3),
        ">= {})",
        "An alert ends where {} readings in a row, or more, do not break its rule.",
    ),
    Rule(
        "too-short",
        "@lib@/@alerts@.awk",
        "Alerts begin too early, or too late.",
        [
            Option(
                "now - since[pair] <",
                "An alert is on where its rule was first broken at least `for` minutes ago.",
                lambda since, last, now, least: now - since < least,
            ),
            Option(
                "now - since[pair] <=",
                "An alert is on where its rule was first broken more than `for` minutes ago.",
                lambda since, last, now, least: now - since <= least,
            ),
            Option(
                "last[pair] - since[pair] <",
                "An alert is on where at least `for` minutes are between its first and its last reading.",
                lambda since, last, now, least: last - since < least,
            ),
        ],
    ),
    Rule(
        "stale-alerts",
        "@lib@/@alerts@.awk",
        "Alerts of hosts that send nothing any more are not as agreed.",
        [
            Option(
                "> stale) continue", "Where the last reading is older than `@stale_key@`, there is no alert.", "drop"
            ),
            Option(
                '> stale) severity = "info"',
                "Where the last reading is older than `@stale_key@`, the severity is info.",
                "info",
            ),
            Option(
                '> stale) severity = "critical"',
                "Where the last reading is older than `@stale_key@`, the severity is critical.",
                "critical",
            ),
        ],
    ),
    Rule(
        "end-of-silence",
        "@lib@/silences.sh",
        "Silences last too long, or not long enough.",
        [
            Option('-lt "$to"', "A silence lasts from FROM until TO; at TO it is over.", lambda now, end: now < end),
            Option('-le "$to"', "A silence lasts from FROM to TO, and at TO as well.", lambda now, end: now <= end),
            Option('-lt "$((to + 10))"', "A silence is over 10 minutes after TO.", lambda now, end: now < end + 10),
            Option('-lt "$((to - 10))"', "A silence is over 10 minutes before TO.", lambda now, end: now < end - 10),
        ],
    ),
    Rule(
        "silenced-alerts",
        "@lib@/@alerts@.sh",
        "Silenced alerts are not treated as agreed.",
        [
            Option("continue", "A silenced alert is not in the reports.", None),
            Option("severity=info", "A silenced alert has the severity info.", ("info", "")),
            Option(
                "severity=silent", "A silenced alert has the severity silent, and nobody is called.", ("silent", "")
            ),
            Option('label="$label(quiet)"', "A silenced alert has `(quiet)` at the end of its label.", ("", "(quiet)")),
        ],
    ),
    Rule(
        "order-of-alerts",
        "@lib@/list.sh",
        "The alerts are in the wrong order.",
        [
            Option(
                "-k1,1n -k2,2n -k3,4",
                "`list` begins with the highest severity, and of these with the oldest alert.",
                lambda a: (a.rank, a.since),
            ),
            Option("-k2,2n -k3,4", "`list` begins with the oldest alert.", lambda a: (a.since,)),
            Option("-k2,2nr -k3,4", "`list` begins with the newest alert.", lambda a: (-a.since,)),
            Option("-k4,4 -k3,3", "`list` is sorted by host, and of one host by rule.", lambda a: (a.host,)),
            Option("-k3,3 -k4,4", "`list` is sorted by rule, and of one rule by host.", lambda a: (a.rule,)),
        ],
    ),
    Rule(
        "alert-line",
        "@lib@/list.sh",
        "The program that reads the alerts does not understand them any more.",
        [
            Option(
                'print $5, $3, $4, "began", $2, $6',
                "An alert is printed as SEVERITY RULE HOST began MINUTE LABEL.",
                "{3} {1} {2} began {0} {4}",
            ),
            Option(
                'print $4 ":" $3, $5, $2, $6',
                "An alert is printed as HOST:RULE SEVERITY MINUTE LABEL.",
                "{2}:{1} {3} {0} {4}",
            ),
            Option(
                'print $2 ";" $5 ";" $3 ";" $4 ";" $6',
                "An alert is printed as MINUTE;SEVERITY;RULE;HOST;LABEL.",
                "{0};{3};{1};{2};{4}",
            ),
            Option(
                'print "[" $5 "]", $4, $3, $6, $2',
                "An alert is printed as [SEVERITY] HOST RULE LABEL MINUTE.",
                "[{3}] {2} {1} {4} {0}",
            ),
        ],
    ),
    numbers(
        "shift-minutes",
        "@lib@/calls.awk",
        "The wrong people are called.",
        (480, 720, 1440, 10080),
        "int(now / {})",
        "The rota moves on by one name every {} minutes; in the first of these the first name is called first.",
    ),
    Rule(
        "escalation-step",
        "@lib@/calls.awk",
        "Alerts that last long are passed on too early, or too late.",
        [
            Option(
                "int((now - $1) / after)",
                "After each `@after_key@` minutes, the next name is called.",
                lambda age, after: age // after,
            ),
            Option(
                "(now - $1 >= after)",
                "After `@after_key@` minutes, the next name is called, and then no other.",
                lambda age, after: int(age >= after),
            ),
            Option(
                "int((now - $1) / after / 2)",
                "After each two times `@after_key@` minutes, the next name is called.",
                lambda age, after: age // (2 * after),
            ),
        ],
    ),
    Rule(
        "call-line",
        "@lib@/calls.awk",
        "The telephone does not understand who is to be called.",
        [
            Option("print name, $2, $3", "A call is printed as NAME RULE HOST.", "{0} {1} {2}"),
            Option('print name ": " $3 " " $2', "A call is printed as NAME: HOST RULE.", "{0}: {2} {1}"),
            Option('print $3 "/" $2 " -> " name', "A call is printed as HOST/RULE -> NAME.", "{2}/{1} -> {0}"),
            Option(
                'print name " " $2 "@" $3 " " level',
                "A call is printed as NAME RULE@HOST STEP; the first name is at step 0.",
                "{0} {1}@{2} {3}",
            ),
        ],
    ),
    Rule(
        "stale-status",
        "@lib@/status.sh",
        "Readings that are too old are not shown as agreed.",
        [
            Option("continue", "`status` leaves out readings that are older than `@stale_key@`.", None),
            Option('value[name] = "?"', "`status` has `?` for readings that are older than `@stale_key@`.", "?"),
            Option(
                'value[name] = value[name] "*"',
                "`status` marks readings that are older than `@stale_key@` with `*`.",
                "{}*",
            ),
            Option('value[name] = "old"', "`status` has `old` for readings that are older than `@stale_key@`.", "old"),
        ],
    ),
    Rule(
        "status-line",
        "@lib@/status.sh",
        "The program that reads the status does not understand it any more.",
        [
            Option("print cells[1], cells[2], value[name]", "A line of `status` is HOST METRIC VALUE.", "{0} {1} {2}"),
            Option("print cells[2], cells[1], value[name]", "A line of `status` is METRIC HOST VALUE.", "{1} {0} {2}"),
            Option(
                'print cells[1] "." cells[2] " = " value[name]',
                "A line of `status` is HOST.METRIC = VALUE.",
                "{0}.{1} = {2}",
            ),
            Option(
                "print cells[1], cells[2], value[name], now - minute[name]",
                "A line of `status` is HOST METRIC VALUE AGE.",
                "{0} {1} {2} {3}",
            ),
        ],
    ),
    Rule(
        "order-of-status",
        "@lib@/status.sh",
        "The lines of the status are in the wrong order.",
        [
            Option("LC_ALL=C sort", "`status` is sorted by its lines.", lambda rows: sorted(rows)),
            Option("LC_ALL=C sort -r", "`status` is sorted by its lines, backwards.", lambda rows: sorted(rows)[::-1]),
            Option(
                "LC_ALL=C sort -k3,3n",
                "`status` begins with the lowest value; what is no number counts as 0, and equal ones are sorted by "
                "their lines.",
                lambda rows: sorted(rows, key=lambda row: (_value(row), row)),
            ),
            Option(
                "LC_ALL=C sort -k3,3nr",
                "`status` begins with the highest value; what is no number counts as 0, and equal ones are sorted by "
                "their lines.",
                lambda rows: sorted(rows, key=lambda row: (-_value(row), row)),
            ),
        ],
    ),
    Rule(
        "figure-of-window",
        "@lib@/figures.sh",
        "The figures mean something else than before.",
        [
            Option(
                ", metric, sum[metric] / count[metric]",
                "`figures` has the mean of the readings.",
                lambda v: sum(v) / len(v),
            ),
            Option(", metric, high[metric]", "`figures` has the highest reading.", max),
            Option(", metric, low[metric]", "`figures` has the lowest reading.", min),
            Option(
                ", metric, high[metric] - low[metric]",
                "`figures` has the highest reading less the lowest one.",
                lambda v: max(v) - min(v),
            ),
        ],
    ),
    Rule(
        "figure-line",
        "@lib@/figures.sh",
        "The program that reads the figures does not understand them any more.",
        [
            Option('"%s %.1f\\n"', "A line of `figures` is such as `disk 12.5`.", "{0} {1:.1f}"),
            Option('"%s: %.2f\\n"', "A line of `figures` is such as `disk: 12.50`.", "{0}: {1:.2f}"),
            Option('"%s=%.3f\\n"', "A line of `figures` is such as `disk=12.500`.", "{0}={1:.3f}"),
        ],
    ),
)

IDENTIFIERS = (
    "readings alerts silenced trimmed section place key text names count cells unit factor value same grown "
    "series before spent since calm last pair option breaks host from hosts kinds rest level turn "
    "name people rank high low sum"
)
