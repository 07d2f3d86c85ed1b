"""Rules that the programs of the template `elections` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "ignored-status",
        "@lib@/read.awk",
        "Boxes are counted that should not be, or the other way round.",
        [
            Option(f'"{status}"', f"A box whose status is `{status}` is not counted; all others are.", status)
            for status in ("draft", "recount", "sealed", "void", "disputed")
        ],
    ),
    Rule(
        "two-marks",
        "@lib@/count.awk",
        "Ballots with more than one party are not treated as agreed.",
        [
            Option('{ add("invalid", $5) }', "A ballot with several parties is invalid.", lambda marks: ["invalid"]),
            Option(
                "add(marks[1], $5)",
                "A ballot with several parties counts for the first of them.",
                lambda marks: [marks[0]],
            ),
            Option(
                "add(marks[many], $5)",
                "A ballot with several parties counts for the last of them.",
                lambda marks: [marks[-1]],
            ),
            Option(
                "for (i = 1; i <= many; i++) add(marks[i], $5)",
                "A ballot with several parties counts as a vote for each of them.",
                lambda marks: list(marks),
            ),
        ],
    ),
    Rule(
        "divisor",
        "@lib@/seats.awk",
        "The seats are not those that the law gives.",
        [
            Option("won + 1", "Divisors of votes are 1, 2, 3, 4 and so on (D'Hondt).", lambda n: n + 1),
            Option("2 * won + 1", "Divisors of votes are 1, 3, 5, 7 and so on (Sainte-Laguë).", lambda n: 2 * n + 1),
            Option(
                "won ? 10 * won + 5 : 7",
                "Divisors of votes are 0.7, 1.5, 2.5, 3.5 and so on (modified Sainte-Laguë).",
                lambda n: 10 * n + 5 if n else 7,
            ),
            Option("won + 2", "Divisors of votes are 2, 3, 4, 5 and so on (Imperiali).", lambda n: n + 2),
            Option("3 * won + 1", "Divisors of votes are 1, 4, 7, 10 and so on.", lambda n: 3 * n + 1),
        ],
    ),
    Rule(
        "equal-quotients",
        "@lib@/seats.awk",
        "Where two parties have equal claims to a seat, the wrong one gets it.",
        [
            Option(
                "tally[region, code] > tally[region, best]",
                "Of parties with equal quotients, the one with more votes in the district gets the seat.",
                lambda code, votes: -votes,
            ),
            Option(
                "tally[region, code] < tally[region, best]",
                "Of parties with equal quotients, the one with fewer votes in the district gets the seat.",
                lambda code, votes: votes,
            ),
            Option(
                "code < best",
                "Of parties with equal quotients, the one whose code is first in the alphabet gets the seat.",
                lambda code, votes: code,
            ),
            Option(
                "code > best",
                "Of parties with equal quotients, the one whose code is last in the alphabet gets the seat.",
                lambda code, votes: [-ord(letter) for letter in code],
            ),
        ],
    ),
    numbers(
        "threshold",
        "@lib@/seats.awk",
        "A small party has seats that it should not have, or has none.",
        (3, 4, 5, 6, 7),
        "least = {}",
        "A party with less than {} per cent of the votes gets no seats.",
    ),
    Rule(
        "threshold-base",
        "@lib@/seats.awk",
        "The threshold is not where the law has it.",
        [
            Option("* (valid)", "The threshold is a share of the valid votes.", lambda valid, blank, bad: valid),
            Option(
                "* (valid + blank)",
                "The threshold is a share of the valid votes and the blank ballots.",
                lambda valid, blank, bad: valid + blank,
            ),
            Option(
                "* (valid + blank + invalid)",
                "The threshold is a share of the valid votes, the blank ballots and the invalid ones.",
                lambda valid, blank, bad: valid + blank + bad,
            ),
        ],
    ),
    Rule(
        "tie-of-last",
        "@lib@/runoff.awk",
        "The wrong candidate for mayor is out.",
        [
            Option(
                "who > worst",
                "Of candidates who both have least, the last one by name is out.",
                lambda name, start: [-ord(letter) for letter in name],
            ),
            Option(
                "who < worst",
                "Of candidates who both have least, the first one by name is out.",
                lambda name, start: name,
            ),
            Option(
                "start[who] < start[worst]",
                "Of candidates who both have least, the one who had fewer ballots in the first round is out.",
                lambda name, start: start,
            ),
        ],
    ),
    Rule(
        "round-line",
        "@lib@/runoff.awk",
        "The rounds are not printed as agreed.",
        [
            Option(
                'turn ". " best " " first[best] "/" remaining ", last " worst',
                "A round is such as `2. Ada Costa 31/80, last Otto Ito`: who has most, the ballots for them and all "
                "that count in the round, and who has least.",
                "{0}. {1} {2}/{3}, last {4}",
            ),
            Option(
                '"round " turn ": " worst " < " best " with " first[best] " of " remaining',
                "A round is such as `round 2: Otto Ito < Ada Costa with 31 of 80`: who has least, who has most, the "
                "ballots for the latter and all that count in the round.",
                "round {0}: {4} < {1} with {2} of {3}",
            ),
            Option(
                'remaining ";" first[best] ";" best ";" worst',
                "A round is such as `80;31;Ada Costa;Otto Ito`: the ballots that count in the round, those for the one "
                "who has most, who that is, and who has least.",
                "{3};{2};{1};{4}",
            ),
        ],
    ),
    Rule(
        "majority-of",
        "@lib@/runoff.awk",
        "The election of the mayor ends too early or too late.",
        [
            Option(
                "enough = remaining",
                "A mayor has more than half of the ballots that count in the round, or is the only one who is not out.",
                lambda remaining, all_ballots: remaining,
            ),
            Option(
                "enough = all",
                "A mayor has more than half of all ballots of the first round, or is the only one who is not out.",
                lambda remaining, all_ballots: all_ballots,
            ),
        ],
    ),
    Rule(
        "share-rounding",
        "@lib@/tenths.awk",
        "Shares are not rounded as agreed.",
        [
            Option(
                "int(1000 * portion / whole + 0.5)",
                "Shares in per cent have one digit behind the point, rounded to the nearest.",
                lambda portion, whole: (2000 * portion + whole) // (2 * whole),
            ),
            Option(
                "int(1000 * portion / whole)",
                "Shares in per cent have one digit behind the point, rounded down.",
                lambda portion, whole: 1000 * portion // whole,
            ),
            Option(
                "int((1000 * portion + whole - 1) / whole)",
                "Shares in per cent have one digit behind the point, rounded up.",
                lambda portion, whole: -(-1000 * portion // whole),
            ),
        ],
    ),
    Rule(
        "turnout-line",
        "@lib@/turnout.awk",
        "The turnout is not printed as agreed.",
        [
            Option(
                'region ": " percent(cast[region], people[region]) " %"',
                "The turnout is such as `Chur: 61.2 %`.",
                lambda name, cast, people, share: f"{name}: {share} %",
            ),
            Option(
                'region " " cast[region] "/" people[region]',
                "The turnout is such as `Chur 612/1000`, in ballots and voters.",
                lambda name, cast, people, share: f"{name} {cast}/{people}",
            ),
            Option(
                'percent(cast[region], people[region]) "% of " people[region] " in " region',
                "The turnout is such as `61.2% of 1000 in Chur`.",
                lambda name, cast, people, share: f"{share}% of {people} in {name}",
            ),
            Option(
                'region " -" people[region] - cast[region]',
                "The turnout is such as `Chur -388`: how many voters did not come.",
                lambda name, cast, people, share: f"{name} -{people - cast}",
            ),
        ],
    ),
    Rule(
        "order-of-parties",
        "bin/report",
        "The parties are in the wrong order.",
        [
            Option(
                "-k3,3nr -k1,1", "The report has the party with most votes first.", lambda row: (-row.votes, row.code)
            ),
            Option(
                "-k4,4n -k3,3n",
                "The report has the party with fewest seats first, and of equal ones the one with fewest votes.",
                lambda row: (row.seats, row.votes),
            ),
            Option("-k2,2", "The report has the parties in the order of their names.", lambda row: row.name),
            Option("-k1,1r", "The report has the parties by codes, the last one first.", lambda row: row.backwards),
        ],
    ),
    Rule(
        "party-line",
        "bin/report",
        "The lines of parties are not as agreed.",
        [
            Option(
                '"$code: $seats ($number, $share %)"',
                "A party is printed such as `AB: 12 (3456, 23.4 %)`: seats, votes and share.",
                lambda row, share: f"{row.code}: {row.seats} ({row.votes}, {share} %)",
            ),
            Option(
                '"$name;$number;$share;$seats"',
                "A party is printed such as `NAME;3456;23.4;12`: votes, share and seats.",
                lambda row, share: f"{row.name};{row.votes};{share};{row.seats}",
            ),
            Option(
                '"$seats $name $share% = $number"',
                "A party is printed such as `12 NAME 23.4% = 3456`: seats, share and votes.",
                lambda row, share: f"{row.seats} {row.name} {share}% = {row.votes}",
            ),
            Option(
                '"$name ($code) $share/$number/$seats"',
                "A party is printed such as `NAME (AB) 23.4/3456/12`: share, votes and seats.",
                lambda row, share: f"{row.name} ({row.code}) {share}/{row.votes}/{row.seats}",
            ),
        ],
    ),
    numbers(
        "few-ballots",
        "Makefile",
        "The table of stations shows what it should hide, or hides what it should show.",
        (10, 15, 20, 25, 30),
        "$$3 < {} ?",
        "`make stations` prints stations by number, with their ballots for parties; where these are fewer than {}, "
        "with `-` in their place.",
    ),
    numbers(
        "status-of-check",
        "bin/check",
        "The job that checks the boxes goes on where it should end.",
        (3, 4, 5, 6, 7, 8, 9),
        "status={}",
        "`bin/check` ends with the status {} where something is wrong.",
    ),
)

IDENTIFIERS = (
    "inside counted place value text amount tally cells marks divisor better region one two regions "
    "mandates least enough gained allowed mandate best ballot names alive turn remaining worst rest who start "
    "portion whole cast people sums sum wrong tenths"
)
