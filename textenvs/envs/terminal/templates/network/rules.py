"""Rules that the programs of the template `network` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "preferred-trip",
        "@code@/search.py",
        "Passengers are sent on trips that are not the ones they were promised.",
        [
            Option(
                "(total, swaps)",
                "The best trip takes the least time; changes count as time.",
                lambda total, swaps, hops: (total, swaps),
            ),
            Option(
                "(swaps, total)",
                "The best trip has the fewest changes, and of these it takes the least time.",
                lambda total, swaps, hops: (swaps, total),
            ),
            Option(
                "(hops, total)",
                "The best trip has the fewest stops on the way, and of these it takes the least time.",
                lambda total, swaps, hops: (hops, total),
            ),
        ],
    ),
    numbers(
        "change-minutes",
        "@code@/search.py",
        "Passengers miss their connections, or wait for them too long.",
        (2, 3, 4, 5),
        "{} * 60 * change",
        "A change to another line takes {} minutes.",
    ),
    Rule(
        "closed-stops",
        "@code@/search.py",
        "Trips with a closed stop are not as agreed.",
        [
            Option(
                "if target in closed: continue",
                "A trip does not lead to or through a closed stop.",
                ("avoid", 0),
            ),
            Option(
                "if stop in closed and change: continue",
                "A trip may lead through a closed stop, but nobody can change there.",
                ("pass", 0),
            ),
            Option(
                "seconds += 360 * (target in closed)",
                "A ride to a closed stop takes 6 minutes more, as one must walk; otherwise it is used as any other.",
                ("walk", 360),
            ),
        ],
    ),
    Rule(
        "shown-time",
        "@code@/answers.py",
        "Times are not printed as agreed.",
        [
            Option(
                'f"{-(-seconds // 60)} min"', "A time is such as `12 min`, rounded up.", lambda s: f"{-(-s // 60)} min"
            ),
            Option('f"{seconds // 60} min"', "A time is such as `12 min`, rounded down.", lambda s: f"{s // 60} min"),
            Option(
                'f"{(seconds + 30) // 60} min"',
                "A time is such as `12 min`, rounded to the nearest minute.",
                lambda s: f"{(s + 30) // 60} min",
            ),
            Option(
                'f"{seconds // 60}:{seconds % 60:02}"',
                "A time is minutes and seconds, such as `12:05`.",
                lambda s: f"{s // 60}:{s % 60:02}",
            ),
        ],
    ),
    Rule(
        "route-mark",
        "@code@/answers.py",
        "The screens at the stops do not show the way any more.",
        [
            Option(f'route = "{mark}"', f"The stops of a trip are printed such as `A{mark}B`.", mark)
            for mark in (" > ", " - ", " to ", "|", " .. ")
        ],
    ),
    Rule(
        "trip-line",
        "@code@/answers.py",
        "The program that reads the trips does not understand them any more.",
        [
            Option(
                'f"{route} ({shown(spent)}, {changes})"',
                "A trip is printed as STOPS (TIME, CHANGES).",
                "{0} ({1}, {2})",
            ),
            Option('f"{shown(spent)} {changes} {route}"', "A trip is printed as TIME CHANGES STOPS.", "{1} {2} {0}"),
            Option(
                'f"{route} in {shown(spent)} x{changes}"',
                "A trip is printed as STOPS in TIME xCHANGES.",
                "{0} in {1} x{2}",
            ),
            Option('f"{changes};{shown(spent)};{route}"', "A trip is printed as CHANGES;TIME;STOPS.", "{2};{1};{0}"),
        ],
    ),
    Rule(
        "zones-counted",
        "@code@/fares.py",
        "The fares are for the wrong number of zones.",
        [
            Option("len(set(zones))", "A fare is for the different zones of a trip.", lambda zones: len({*zones})),
            Option(
                "1 + sum(one != other for one, other in zip(zones, zones[1:]))",
                "A fare is for one zone and one more for each border on the way, as often as it is crossed.",
                lambda zones: 1 + sum(a != b for a, b in zip(zones, zones[1:], strict=False)),
            ),
            Option(
                "max(zones) - min(zones) + 1",
                "A fare is for all zones from the lowest to the highest number of a trip, touched or not.",
                lambda zones: max(zones) - min(zones) + 1,
            ),
        ],
    ),
    Rule(
        "child-rounding",
        "@code@/fares.py",
        "The fares of children are a little too high or too low.",
        [
            Option(
                "-(-full // 1_000) * 10", "The fare of a child is rounded up to 10 cents.", lambda x: -(-x // 1000) * 10
            ),
            Option("full // 1_000 * 10", "The fare of a child is rounded down to 10 cents.", lambda x: x // 1000 * 10),
            Option(
                "(full + 500) // 1_000 * 10",
                "The fare of a child is rounded to the nearest 10 cents.",
                lambda x: (x + 500) // 1000 * 10,
            ),
            Option("full // 100", "The fare of a child is rounded down to a cent.", lambda x: x // 100),
        ],
    ),
    Rule(
        "group-fare",
        "@code@/fares.py",
        "Groups do not pay what was agreed.",
        [
            *(
                Option(
                    f"total = total * {100 - percent} // 100",
                    f"Groups of `@group_key@` persons or more pay {percent} % less, rounded down.",
                    lambda total, persons, percent=percent: total * (100 - percent) // 100,
                )
                for percent in (10, 25, 40)
            ),
            Option(
                "total -= total // persons",
                "In groups of `@group_key@` persons or more, one goes for nothing.",
                lambda total, persons: total - total // persons,
            ),
            Option(
                "total = max(total - 500, 0)",
                "Groups of `@group_key@` persons or more pay 500 cents less in all.",
                lambda total, persons: max(total - 500, 0),
            ),
        ],
    ),
    Rule(
        "night-fee",
        "@code@/fares.py",
        "What is paid at night is not what was agreed.",
        [
            Option(
                'total += persons * TABLE["@fee_key@"]',
                "At night, each person pays `@fee_key@` more, after all reductions.",
                lambda total, persons, fee: total + persons * fee,
            ),
            Option(
                'total += TABLE["@fee_key@"]',
                "At night, `@fee_key@` is added once, after all reductions.",
                lambda total, persons, fee: total + fee,
            ),
            Option(
                'total += persons * TABLE["@fee_key@"] // 2',
                "At night, two persons pay `@fee_key@` more together, after all reductions; it is rounded down.",
                lambda total, persons, fee: total + persons * fee // 2,
            ),
        ],
    ),
    Rule(
        "price-line",
        "@code@/answers.py",
        "The machines that sell tickets do not understand the prices any more.",
        [
            Option(
                'f"{cents // 100}.{cents % 100:02}"',
                "A price is such as 12.50.",
                lambda c, n, age: f"{c // 100}.{c % 100:02}",
            ),
            Option('f"{cents} cents"', "A price is such as 1250 cents.", lambda c, n, age: f"{c} cents"),
            Option(
                'f"{cents // 100}.{cents % 100:02} for {persons}"',
                "A price is such as 12.50 for 3.",
                lambda c, n, age: f"{c // 100}.{c % 100:02} for {n}",
            ),
            Option(
                'f"{persons} x {age}: {cents}"',
                "A price is such as 3 x 40: 1250, with persons and age.",
                lambda c, n, age: f"{n} x {age}: {c}",
            ),
        ],
    ),
    Rule(
        "reach-limit",
        "@code@/answers.py",
        "Stops are said to be within reach that are not, or are missing.",
        [
            Option(
                "<= int(minutes) * 60", "`reach` lists stops at most that many minutes away.", lambda s, m: s <= m * 60
            ),
            Option(
                "< int(minutes) * 60", "`reach` lists stops fewer than that many minutes away.", lambda s, m: s < m * 60
            ),
            Option(
                "<= int(minutes) * 60 + 60",
                "`reach` lists stops at most that many minutes and one more away.",
                lambda s, m: s <= m * 60 + 60,
            ),
        ],
    ),
    Rule(
        "order-of-reach",
        "@code@/answers.py",
        "The stops within reach are in the wrong order.",
        [
            Option(
                "pair: pair)", "`reach` begins with the nearest stop, which is the one asked about.", lambda pair: pair
            ),
            Option(
                "pair: (-pair[0], pair[1]))", "`reach` begins with the farthest stop.", lambda pair: (-pair[0], pair[1])
            ),
            Option("pair: pair[1])", "`reach` is sorted by name.", lambda pair: pair[1]),
            Option(
                "pair: pair[1][::-1])",
                "`reach` is sorted by names that are read from the end.",
                lambda pair: pair[1][::-1],
            ),
        ],
    ),
    Rule(
        "row-mark",
        "@code@/answers.py",
        "The program that reads the tables does not understand them any more.",
        [
            Option(
                f'mark = "{mark}"', f"In the answers to zone, zones, line and hubs, `{mark}` is between two rows.", mark
            )
            for mark in (" ", ", ", " | ", " ++ ")
        ],
    ),
    Rule(
        "order-of-zone",
        "sql/zone.sql",
        "The stops of a zone are in the wrong order.",
        [
            Option("ORDER BY name", "`zone` is sorted by name.", (lambda stop: stop.name.lower(), False)),
            Option(
                "ORDER BY name DESC", "`zone` is sorted by name, from Z to A.", (lambda stop: stop.name.lower(), True)
            ),
            Option("ORDER BY id", "`zone` is sorted by the id of the stop.", (lambda stop: stop.id, False)),
            Option(
                "ORDER BY id DESC", "`zone` is sorted by the id of the stop, backwards.", (lambda stop: stop.id, True)
            ),
        ],
    ),
    Rule(
        "order-of-zones",
        "sql/zones.sql",
        "The zones are in the wrong order.",
        [
            Option("ORDER BY 1", "`zones` is sorted by number.", lambda row: row[0]),
            Option(
                "ORDER BY 2, 1",
                "`zones` begins with the fewest stops, and of these with the lowest number.",
                lambda row: (row[1], row[0]),
            ),
            Option(
                "ORDER BY 3 DESC, 1",
                "`zones` begins with the most rides, and of these with the lowest number.",
                lambda row: (-row[2], row[0]),
            ),
            Option(
                "ORDER BY 2 DESC, 1",
                "`zones` begins with the most stops, and of these with the lowest number.",
                lambda row: (-row[1], row[0]),
            ),
        ],
    ),
    Rule(
        "seconds-of-line",
        "sql/line.sql",
        "The seconds of a line mean something else than before.",
        [
            Option(
                "SUM(seconds)",
                "`line` has the seconds of all links of a line together.",
                lambda rows: sum(s for s, _ in rows),
            ),
            Option("MAX(seconds)", "`line` has the seconds of the longest link of a line.", lambda rows: max(rows)[0]),
            Option("MIN(seconds)", "`line` has the seconds of the shortest link of a line.", lambda rows: min(rows)[0]),
            Option(
                "SUM(seconds * ways)",
                "`line` has the seconds of all rides of a line together, there and back.",
                lambda rows: sum(s * w for s, w in rows),
            ),
        ],
    ),
    numbers(
        "fewest-lines",
        "sql/hubs.sql",
        "There are too many hubs, or too few.",
        (2, 3, 4),
        ">= {}",
        "A hub is a stop with at least {} lines.",
    ),
)

IDENTIFIERS = (
    "folder file path columns column marks graph queue done best spent changes stop state other change total swaps "
    "hops hours minutes crossed full age persons shown route near pair words command answer find text single"
)
