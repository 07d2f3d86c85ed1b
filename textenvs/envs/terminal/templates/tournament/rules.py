"""Rules that the programs of the template `tournament` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _clipped(difference: int, most: int) -> int:
    return max(-most, min(most, difference))


RULES = (
    Rule(
        "heading",
        "@code@/main.py",
        "The page of the club does not find the reports.",
        [
            Option('f"[{name}]"', "A report begins with a line such as `[table]`.", "[{}]".format),
            Option('f"== {name}"', "A report begins with a line such as `== table`.", "== {}".format),
            Option("name.upper()", "A report begins with a line such as `TABLE`.", str.upper),
            Option('f"{name}:"', "A report begins with a line such as `table:`.", "{}:".format),
        ],
    ),
    Rule(
        "repeated-result",
        "@code@/@results@.py",
        "Corrected results are not treated as agreed.",
        [
            Option("if key in games: continue", "Where a game stands in a round twice, the first line holds.", "first"),
            Option("games.pop(key, None)", "Where a game stands in a round twice, the last line holds.", "last"),
            Option(
                "if key in games and games[key].scored >= SCORES[scored]: continue",
                "Where a game stands in a round twice, the line that is best for white holds.",
                "best",
            ),
        ],
    ),
    Rule(
        "points-of-results",
        "@code@/scores.py",
        "The points are not those of our league.",
        [
            Option("{2: 2, 1: 1, 0: 0}", "A win has 2 points, a draw 1, a defeat 0.", (0, 1, 2)),
            Option("{2: 3, 1: 1, 0: 0}", "A win has 3 points, a draw 1, a defeat 0.", (0, 1, 3)),
            Option("{2: 3, 1: 2, 0: 1}", "A win has 3 points, a draw 2, a defeat 1.", (1, 2, 3)),
            Option("{2: 4, 1: 1, 0: 0}", "A win has 4 points, a draw 1, a defeat 0.", (0, 1, 4)),
        ],
    ),
    Rule(
        "points-of-bye",
        "@code@/scores.py",
        "Those who were free have too many points, or too few.",
        [
            Option("total[player] += POINTS[2]", "Who is free has the points of a win.", lambda points: points[2]),
            Option("total[player] += POINTS[1]", "Who is free has the points of a draw.", lambda points: points[1]),
            Option("total[player] += 5", "Who is free has 5 points.", lambda points: 5),
        ],
    ),
    Rule(
        "games-of-breaks",
        "@code@/scores.py",
        "Tie-breaks of those with forfeits are wrong.",
        [
            Option(
                "if not game.forfeit",
                "Tie-breaks are made of the games that were played.",
                lambda forfeit, scores: not forfeit,
            ),
            Option(
                "if game.round > 0", "Tie-breaks are made of all games, forfeits as well.", lambda forfeit, scores: True
            ),
            Option(
                "if game.scored + game.conceded > 0",
                "Tie-breaks are made of all games but those that both have forfeited.",
                lambda forfeit, scores: sum(scores) > 0,
            ),
        ],
    ),
    Rule(
        "first-break",
        "@code@/scores.py",
        "Those with equal points are in the wrong order.",
        [
            Option("return sum(values)", "The first tie-break is the sum of the opponents' points.", sum),
            Option(
                "return sum(values[1:])",
                "The first tie-break is the sum of the opponents' points, but for the lowest.",
                lambda v: sum(v[1:]),
            ),
            Option(
                "return sum(values[1:-1])",
                "The first tie-break is the sum of the opponents' points, but for the lowest and the highest.",
                lambda v: sum(v[1:-1]),
            ),
            Option(
                "return sum(values[-3:])",
                "The first tie-break is the sum of the three best opponents' points.",
                lambda v: sum(v[-3:]),
            ),
        ],
    ),
    Rule(
        "second-break",
        "@code@/scores.py",
        "The second tie-break is not the one that was agreed.",
        [
            Option(
                "return sum(score * total[other] for other, score, _ in pairs)",
                "The second tie-break is the sum of twice the points of beaten opponents, and once those of draws.",
                lambda pairs, total: sum(score * total[other] for other, score, _ in pairs),
            ),
            Option(
                "return sum(score == 2 for _, score, _ in pairs)",
                "The second tie-break is the number of wins.",
                lambda pairs, total: sum(score == 2 for _, score, _ in pairs),
            ),
            Option(
                'return sum(colour == "black" for _, _, colour in pairs)',
                "The second tie-break is the number of games with black.",
                lambda pairs, total: sum(colour == "black" for _, _, colour in pairs),
            ),
            Option(
                'return sum(score == 2 and colour == "black" for _, score, colour in pairs)',
                "The second tie-break is the number of wins with black.",
                lambda pairs, total: sum(score == 2 and colour == "black" for _, score, colour in pairs),
            ),
        ],
    ),
    Rule(
        "last-criterion",
        "@code@/reports.py",
        "Those who are equal in everything are in the wrong order.",
        [
            Option(
                "return -entry.rating",
                "Who is equal in all tie-breaks is sorted by the first rating, the highest first.",
                lambda p: -p[3],
            ),
            Option(
                "return entry.rating",
                "Who is equal in all tie-breaks is sorted by the first rating, the lowest first.",
                lambda p: p[3],
            ),
            Option("return entry.name", "Who is equal in all tie-breaks is sorted by name.", lambda p: p[1]),
            Option("return entry.id", "Who is equal in all tie-breaks is sorted by id.", lambda p: p[0]),
        ],
    ),
    Rule(
        "withdrawn-players",
        "@code@/reports.py",
        "Those who play no more are not where they should be in the table.",
        [
            Option(
                "order = [player for player in order if player not in self.withdrawn]",
                "The table is without those who play no more.",
                lambda order, gone: [player for player in order if player not in gone],
            ),
            Option(
                "order.sort(key=lambda player: player in self.withdrawn)",
                "Those who play no more are the last in the table, whatever their points.",
                lambda order, gone: sorted(order, key=lambda player: player in gone),
            ),
            Option(
                "order = list(order)",
                "Those who play no more stand in the table as all others do.",
                lambda order, gone: order,
            ),
        ],
    ),
    Rule(
        "shared-ranks",
        "@code@/reports.py",
        "The ranks of equal players are not as agreed.",
        [
            Option("rank = place", "Ranks are 1, 2, 3, 4, whoever is equal.", lambda rank, place, equal: place),
            Option(
                "rank = rank if key == before else place",
                "Of equal players, the rank is the same: 1, 2, 2, 4.",
                lambda r, p, e: r if e else p,
            ),
            Option(
                "rank += key != before",
                "Of equal players, the rank is the same, and none is left out: 1, 2, 2, 3.",
                lambda r, p, e: r + (not e),
            ),
        ],
    ),
    Rule(
        "line-of-table",
        "@code@/reports.py",
        "The display of the table is empty.",
        [
            Option(
                'f"{rank}. {name} {score} ({first}, {second})"',
                "A line of the table is RANK. NAME POINTS (FIRST, SECOND).",
                "{0}. {1} {2} ({3}, {4})",
            ),
            Option(
                'f"{rank};{name};{score};{first};{second}"',
                "A line of the table is RANK;NAME;POINTS;FIRST;SECOND.",
                "{0};{1};{2};{3};{4}",
            ),
            Option(
                'f"{name} [{rank}] {score} {first}/{second}"',
                "A line of the table is NAME [RANK] POINTS FIRST/SECOND.",
                "{1} [{0}] {2} {3}/{4}",
            ),
            Option(
                'f"{score} {first} {second} {rank} {name}"',
                "A line of the table is POINTS FIRST SECOND RANK NAME.",
                "{2} {3} {4} {0} {1}",
            ),
        ],
    ),
    numbers(
        "players-of-club",
        "@code@/reports.py",
        "The points of clubs are wrong.",
        (1, 2, 3),
        "reverse=True)[:{}]",
        "The points of a club are those of its {} best players.",
    ),
    Rule(
        "order-of-clubs",
        "@code@/reports.py",
        "The clubs are in the wrong order.",
        [
            Option("key=lambda item: item[0]", "Clubs are sorted by name.", lambda row: row[0]),
            Option(
                "key=lambda item: (-item[1], item[0])",
                "Clubs with the most points are first; equal ones by name.",
                lambda row: (-row[1], row[0]),
            ),
            Option(
                "key=lambda item: (item[1], item[0])",
                "Clubs with the fewest points are first; equal ones by name.",
                lambda row: (row[1], row[0]),
            ),
        ],
    ),
    Rule(
        "line-of-rating",
        "@code@/reports.py",
        "The association does not read the ratings.",
        [
            Option(
                'f"{name} {rating} ({gain:+})"', "A line of `ratings` is such as `NAME 1520 (+20)`.", "{0} {1} ({2:+})"
            ),
            Option('f"{rating} {gain} {name}"', "A line of `ratings` is such as `1520 20 NAME`.", "{1} {2} {0}"),
            Option(
                'f"{name}: {rating - gain} -> {rating}"',
                "A line of `ratings` is such as `NAME: 1500 -> 1520`.",
                "{0}: {3} -> {1}",
            ),
            Option('f"{gain:+d};{rating};{name}"', "A line of `ratings` is such as `+20;1520;NAME`.", "{2:+};{1};{0}"),
        ],
    ),
    Rule(
        "expected-score",
        "@code@/ratings.py",
        "Ratings grow too fast or too slowly.",
        [
            Option(
                "return 500 + max(-400, min(400, difference))",
                "A point of difference is 1 of 1,000 more of expectation; differences above 400 count as 400.",
                lambda d: 500 + _clipped(d, 400),
            ),
            Option(
                "return 500 + 2 * max(-200, min(200, difference))",
                "A point of difference is 2 of 1,000 more of expectation; differences above 200 count as 200.",
                lambda d: 500 + 2 * _clipped(d, 200),
            ),
            Option(
                "return 500 + 300 * (difference > 0) - 300 * (difference < 0)",
                "The higher rating is expected to score 800 of 1,000, the lower one 200.",
                lambda d: 500 + 300 * (d > 0) - 300 * (d < 0),
            ),
        ],
    ),
    numbers(
        "new-players",
        "@code@/ratings.py",
        "The ratings of new players are not as agreed.",
        (2, 3, 5, 8),
        "played < {}",
        "Players are new in their first {} games.",
    ),
    Rule(
        "rounded-gain",
        "@code@/ratings.py",
        "Ratings differ by some points from those of the association.",
        [
            Option("return gain // 1000", "Changes of ratings are rounded down.", lambda gain: gain // 1000),
            Option(
                "return (gain + 500) // 1000",
                "Changes of ratings are rounded to the nearest, a half up.",
                lambda gain: (gain + 500) // 1000,
            ),
            Option("return -(-gain // 1000)", "Changes of ratings are rounded up.", lambda gain: -(-gain // 1000)),
            Option(
                "return gain // 10000 * 10",
                "Changes of ratings are rounded down to tens.",
                lambda gain: gain // 10000 * 10,
            ),
        ],
    ),
    Rule(
        "free-player",
        "@code@/pairing.py",
        "The wrong players are free.",
        [
            Option(
                "free = fresh[-1]",
                "Of those who were not free yet, the last one in the table is free.",
                lambda fresh: fresh[-1],
            ),
            Option(
                "free = fresh[0]",
                "Of those who were not free yet, the first one in the table is free.",
                lambda fresh: fresh[0],
            ),
            Option(
                "free = fresh[len(fresh) // 2]",
                "Of those who were not free yet, the one in the middle of the table is free.",
                lambda f: f[len(f) // 2],
            ),
        ],
    ),
    Rule(
        "candidates",
        "@code@/pairing.py",
        "The pairs of the next round are not those of our system.",
        [
            Option(
                "candidates = list(waiting)",
                "Opponents are looked for from the top of the table.",
                lambda waiting: waiting,
            ),
            Option(
                "candidates = waiting[::-1]",
                "Opponents are looked for from the end of the table.",
                lambda waiting: waiting[::-1],
            ),
            Option(
                "candidates = waiting[len(waiting) // 2 :] + waiting[: len(waiting) // 2]",
                "Opponents are looked for from the middle of those who wait to the end, and then from the top.",
                lambda waiting: waiting[len(waiting) // 2 :] + waiting[: len(waiting) // 2],
            ),
        ],
    ),
    Rule(
        "white-player",
        "@code@/pairing.py",
        "The colours of the next round are wrong.",
        [
            Option(
                "whites[one] <= whites[other]",
                "Who had white less often has white, or else the higher one in the table.",
                "less",
            ),
            Option(
                "len(result) % 2 == 0",
                "In the first pair and every second one behind it, the higher one in the table has white.",
                "even",
            ),
            Option(
                "len(result) % 2 == 1",
                "In the second pair and every second one behind it, the higher one in the table has white.",
                "odd",
            ),
            Option(
                "whites[one] >= whites[other]",
                "Who had white more often has white, or else the higher one in the table.",
                "more",
            ),
        ],
    ),
    Rule(
        "line-of-pair",
        "@code@/reports.py",
        "The pairs cannot be sent to the players.",
        [
            Option('f"{white} - {black}"', "A pair is printed such as `WHITE - BLACK`.", "{0} - {1}"),
            Option('f"{white} : {black}"', "A pair is printed such as `WHITE : BLACK`.", "{0} : {1}"),
            Option(
                'f"{black} (black) against {white}"',
                "A pair is printed such as `BLACK (black) against WHITE`.",
                "{1} (black) against {0}",
            ),
            Option('f"{white} plays {black}"', "A pair is printed such as `WHITE plays BLACK`.", "{0} plays {1}"),
        ],
    ),
)

IDENTIFIERS = (
    "folder file rows lines line path games byes total pairs difference own score factor gain current "
    "basis one other gains rank before best item active fresh waiting met whites result candidates had"
)
