"""Rules that the programs of the template `loghost` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "tie-order",
        "@lib@/hosts.sh",
        "The order of the hosts is not that of the weekly mail.",
        [
            Option(
                "-k1,1nr -k2,2", "`hosts` lists those with the most requests first, and equal ones by name.", (-1, 1)
            ),
            Option(
                "-k1,1n -k2,2", "`hosts` lists those with the fewest requests first, and equal ones by name.", (1, 1)
            ),
            Option(
                "-k1,1nr -k2,2r",
                "`hosts` lists those with the most requests first, and equal ones by name, from Z to A.",
                (-1, -1),
            ),
            Option(
                "-k1,1n -k2,2r",
                "`hosts` lists those with the fewest requests first, and equal ones by name, from Z to A.",
                (1, -1),
            ),
        ],
    ),
    numbers(
        "fewest-requests",
        "@lib@/hosts.sh",
        "In the summary of hosts are too many, or too few.",
        range(2, 8),
        "$1 >= {}",
        "`hosts` leaves out hosts with fewer than {} requests.",
    ),
    Rule(
        "host-line",
        "@lib@/hosts.sh",
        "The program that reads the summary of hosts does not understand it any more.",
        [
            Option("print $2, $1", "A line of `hosts` is `HOST COUNT`.", "{0} {1}"),
            Option('print $1 ";" $2 ";"', "A line of `hosts` is `COUNT;HOST;`.", "{1};{0};"),
            Option('print $2 ": " $1', "A line of `hosts` is `HOST: COUNT`.", "{0}: {1}"),
            Option('print $2 "=" $1', "A line of `hosts` is `HOST=COUNT`.", "{0}={1}"),
            Option('print $1 " x <" $2 ">"', "A line of `hosts` is `COUNT x <HOST>`.", "{1} x <{0}>"),
        ],
    ),
    Rule(
        "counted-requests",
        "@lib@/hours.sh",
        "The requests by the hour are not those that are to be counted.",
        [
            Option("$5 != 304", "`hours` leaves out answers with 304.", lambda line: line.status != 304),
            Option("$5 != 404", "`hours` leaves out answers with 404.", lambda line: line.status != 404),
            Option("$5 < 400", "`hours` leaves out answers with 400 and above.", lambda line: line.status < 400),
            Option("$5 == 200", "`hours` counts answers with 200 alone.", lambda line: line.status == 200),
            Option("$7 >= 50", "`hours` leaves out requests of under 50 ms.", lambda line: line.milliseconds >= 50),
        ],
    ),
    numbers(
        "hours-of-block",
        "@lib@/hours.sh",
        "The blocks of hours are not as agreed.",
        (2, 3, 4, 6, 8),
        "hour % {}",
        "`hours` adds up blocks of {} hours, which begin at 0 in local time; each has the name of its first hour.",
    ),
    Rule(
        "hour-line",
        "@lib@/hours.sh",
        "The program that reads the summary by the hour does not understand it any more.",
        [
            Option('"%02d %d\\n"', "A line of `hours` is such as `08 120`.", "{0:02} {1}"),
            Option('"%02d:00 %d\\n"', "A line of `hours` is such as `08:00 120`.", "{0:02}:00 {1}"),
            Option('"%dh %d\\n"', "A line of `hours` is such as `8h 120`.", "{0}h {1}"),
            Option('"%02d-%d\\n"', "A line of `hours` is such as `08-120`.", "{0:02}-{1}"),
        ],
    ),
    Rule(
        "session-mark",
        "@lib@/slow.sh",
        "Sessions are not taken off the paths in the list of slow paths.",
        [
            Option(
                f"sub(/{mark}",
                f"A part of a path may end with a session, as in `/a{mark}s=5f/b`: `slow` drops it.",
                mark,
            )
            for mark in ";,~!"
        ],
    ),
    Rule(
        "order-of-paths",
        "@lib@/slow.sh",
        "The slow paths are not in the order that was agreed.",
        [
            Option(
                "LC_ALL=C sort -k2,2nr -k1,1", "`slow` lists the slowest paths first, and equal ones by name.", (-1, 1)
            ),
            Option(
                "LC_ALL=C sort -k2,2n -k1,1", "`slow` lists the slowest paths last, and equal ones by name.", (1, 1)
            ),
            Option("LC_ALL=C sort -k1,1", "`slow` lists paths by name.", (0, 1)),
            Option("LC_ALL=C sort -k1,1r", "`slow` lists paths by name, from Z to A.", (0, -1)),
        ],
    ),
    Rule(
        "slow-limit",
        "@lib@/percentile.awk",
        "The list of slow paths has some too many or too few.",
        [
            Option("value[place] > limit", "A path is slow where its percentile is above `slow_ms`.", (0, 0)),
            Option("value[place] >= limit", "A path is slow where its percentile is `slow_ms` or above.", (1, 0)),
            Option(
                "value[place] > limit + value[1]",
                "A path is slow where its percentile is above `slow_ms` and its fastest request together.",
                (0, 1),
            ),
        ],
    ),
    Rule(
        "slow-line",
        "@lib@/percentile.awk",
        "What stands beside the slow paths is not what was agreed.",
        [
            Option(
                "path, value[place]", "A line of `slow` is the path and its percentile.", lambda place, ms: ms[place]
            ),
            Option(
                "path, value[count]", "A line of `slow` is the path and its slowest request.", lambda place, ms: ms[-1]
            ),
            Option("path, value[1]", "A line of `slow` is the path and its fastest request.", lambda place, ms: ms[0]),
            Option(
                "path, value[place] - value[1]",
                "A line of `slow` is the path, and its percentile less its fastest request.",
                lambda place, ms: ms[place] - ms[0],
            ),
        ],
    ),
    Rule(
        "error-statuses",
        "@lib@/errors.sh",
        "The errors are not those that are to be counted.",
        [
            Option("$5 ~ /^5/", "`errors` counts answers with 500 and above.", ()),
            *(
                Option(
                    f"$5 ~ /^5|^{status}/", f"`errors` counts answers with {status}, and with 500 and above.", (status,)
                )
                for status in (408, 421, 429, 423)
            ),
        ],
    ),
    Rule(
        "order-of-errors",
        "@lib@/errors.sh",
        "The errors are not in the order that was agreed.",
        [
            Option("sort -k2,2", "`errors` lists paths by name.", (0, 1)),
            Option("sort -k2,2r", "`errors` lists paths by name, from Z to A.", (0, -1)),
            Option("sort -k1,1nr -k2,2", "`errors` lists the most errors first, and equal ones by name.", (-1, 1)),
            Option("sort -k1,1n -k2,2", "`errors` lists the fewest errors first, and equal ones by name.", (1, 1)),
        ],
    ),
    Rule(
        "error-line",
        "@lib@/errors.sh",
        "The program that reads the errors does not understand them any more.",
        [
            Option("print $2, $1", "A line of `errors` is `PATH COUNT`.", "{0} {1}"),
            Option("print $1, $2", "A line of `errors` is `COUNT PATH`.", "{1} {0}"),
            Option('print $2 " (" $1 ")"', "A line of `errors` is `PATH (COUNT)`.", "{0} ({1})"),
        ],
    ),
    numbers(
        "alarm-status",
        "@lib@/errors.sh",
        "The alarm for errors comes to nobody.",
        (3, 4, 5, 6, 8, 9),
        "return {}",
        "Where there are more than `allowed_errors`, `errors` ends with the status {}.",
    ),
    Rule(
        "sum-of-outages",
        "@lib@/outages.sh",
        "The numbers of the outages mean something else than before.",
        [
            Option("total[$2] += $1 - since[$2]", "`outages` adds up the minutes for which a service was down.", sum),
            Option(
                "if ($1 - since[$2] > total[$2]) total[$2] = $1 - since[$2]",
                "`outages` has the minutes of the longest outage of a service.",
                max,
            ),
            Option(
                "if (!($2 in total)) total[$2] = $1 - since[$2]",
                "`outages` has the minutes of the first outage of a service.",
                lambda ms: ms[0],
            ),
            Option(
                "total[$2] += int(($1 - since[$2] + 9) / 10) * 10",
                "`outages` adds up outages; each is rounded up to ten minutes.",
                lambda ms: sum(-(-length // 10) * 10 for length in ms),
            ),
        ],
    ),
    Rule(
        "outage-line",
        "@lib@/outages.sh",
        "The program that reads the outages does not understand them any more.",
        [
            Option("print name, total[name]", "A line of `outages` is `SERVICE MINUTES`.", "{0} {1}"),
            Option(
                'print name ": " total[name] " min"', "A line of `outages` is `SERVICE: MINUTES min`.", "{0}: {1} min"
            ),
            Option(
                'printf "%s %d:%02d\\n", name, total[name] / 60, total[name] % 60',
                "A line of `outages` is `SERVICE HOURS:MINUTES`, with two digits for the minutes.",
                "{0} {2}:{3:02}",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "summarise used file name hour count offset path limit percent finish place value ignored errors list skip "
    "since total"
)
