"""Faults of the template `loghost` that are edits of its files."""

from __future__ import annotations

#: Kind, symptom, path, old and new text.
EDITS = (
    (
        "quoting-of-spaces",
        "The summary of hosts lacks the requests of some log files; it prints errors about files that nobody has.",
        "@lib@/hosts.sh",
        '"$ROOT/@etc@/hosts.tsv" "$file"',
        '"$ROOT/@etc@/hosts.tsv" $file',
    ),
    (
        "uniq-without-sort",
        "Hosts are listed several times in the summary of hosts.",
        "@lib@/hosts.sh",
        "done | sort | uniq -c |",
        "done | uniq -c |",
    ),
    (
        "timezone",
        "The busiest hours are reported in the middle of the night.",
        "@lib@/hours.sh",
        "substr($1, 12, 2) + offset",
        "substr($1, 12, 2) - offset",
    ),
    (
        "wrong-field",
        "The list of slow paths has numbers that no request can have taken.",
        "@lib@/slow.sh",
        "print path, $7",
        "print path, $6",
    ),
    (
        "greedy-pattern",
        "Different paths are lumped together in the list of slow paths.",
        "@lib@/slow.sh",
        "@session_mark@[^\\/]*/",
        "@session_mark@.*/",
    ),
    (
        "text-sort-of-numbers",
        "The percentiles in the list of slow paths are wrong, though the right requests are counted.",
        "@lib@/slow.sh",
        "sort -k1,1 -k2,2n |",
        "sort -k1,1 -k2,2 |",
    ),
    (
        "percentile-index",
        "Percentiles of paths with few requests are too low or missing.",
        "@lib@/percentile.awk",
        "int((count * percent + 99) / 100)",
        "int(count * percent / 100)",
    ),
    (
        "last-group-lost",
        "One path, often the same one, is never in the list of slow paths.",
        "@lib@/percentile.awk",
        "END { finish() }",
        "END { if (!NR) finish() }",
    ),
    (
        "unanchored-pattern",
        "Requests that were refused with 405 or 415 are counted as the server's errors.",
        "@lib@/errors.sh",
        "$5 ~ /^5",
        "$5 ~ /5",
    ),
    (
        "last-line-lost",
        "A path that is to be ignored, the last in its file, is among the errors nevertheless.",
        "@lib@/errors.sh",
        'while read -r path || [ -n "$path" ]; do',
        "while read -r path; do",
    ),
    (
        "number-as-text",
        "No alarm is raised although there are more errors than allowed, when there are ten or more.",
        "@lib@/errors.sh",
        'if [ "$count" -gt "$allowed_errors" ]; then',
        'if [[ "$count" > "$allowed_errors" ]]; then',
    ),
    (
        "exit-status-lost",
        "No alarm is ever raised for errors.",
        "@lib@/errors.sh",
        "        @alarm_status@\n",
        '        echo "too many errors" >&2\n',
    ),
    (
        "rotation-order",
        "Outages are reported that last for weeks.",
        "@lib@/outages.sh",
        "-k3,3nr",
        "-k3,3r",
    ),
    (
        "repeated-event",
        "Outages are reported as shorter than they were.",
        "@lib@/outages.sh",
        '$3 == "down" && !($2 in since) {',
        '$3 == "down" {',
    ),
)
