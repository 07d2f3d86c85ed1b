"""Files of the template `tournament`; what stands between @ is drawn."""

LEAGUE = """#!/bin/sh
# Prints reports on a tournament: table, clubs, ratings, next. Usage: bin/league FOLDER REPORT...
exec python3 -S -E -X utf8 "$(dirname "$0")/../@code@/main.py" "$@"
"""

MAIN = """import sys
from pathlib import Path

import players
import reports
import @results@


def main(folder, *names):
    folder = Path(folder)
    league = reports.League(players.read(folder), players.withdrawn(folder), *@results@.read(folder))
    for name in names:
        print(@heading@)
        for text in getattr(league, name)():
            print(text)


main(*sys.argv[1:])
"""

PLAYERS = '''"""Players of a tournament."""
import csv
from collections import namedtuple

Player = namedtuple("Player", "id name club rating")


def read(folder):
    """Return the players by id."""
    with open(folder / "players.csv", encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        return {row["id"]: Player(row["id"], row["name"].strip(), row["club"], int(row["rating"])) for row in rows}


def withdrawn(folder):
    lines = (folder / "withdrawn.txt").read_text(encoding="utf-8").splitlines()
    return {line.strip() for line in lines}
'''

RESULTS = '''"""Results of rounds, in files whose format docs/data.md describes."""
import re
from collections import namedtuple

LINE = re.compile(r"(\\w+)\\s+-\\s+(\\w+)\\s+(\\S):(\\S)")
SCORES = {"1": 2, "½": 1, "0": 0, "+": 2, "-": 0}

Game = namedtuple("Game", "round white black scored conceded forfeit")


def number_of(path):
    return int(re.sub(r"\\D", "", path.stem))


def read(folder):
    """Return the games and the byes, by round."""
    games, byes = {}, []
    for path in sorted(folder.glob("round*.txt"), key=number_of):
        for line in path.read_text(encoding="utf-8").splitlines():
            line = line.partition("#")[0].strip()
            if not line:
                continue
            if line.endswith(" bye"):
                byes.append((number_of(path), line.split()[0]))
                continue
            white, black, scored, conceded = LINE.fullmatch(line).groups()
            key = (number_of(path), white, black)
            @repeated_result@
            games[key] = Game(*key, SCORES[scored], SCORES[conceded], scored in "+-")
    return list(games.values()), byes
'''

SCORES = '''"""Points and tie-breaks."""

#: The points of a win, a draw and a defeat.
POINTS = @points_of_results@


def points(players, games, byes):
    total = dict.fromkeys(players, 0)
    for game in games:
        total[game.white] += POINTS[game.scored]
        total[game.black] += POINTS[game.conceded]
    for _, player in byes:
        @points_of_bye@
    return total


def opponents(player, games):
    """Return opponents, with the result and the colour."""
    pairs = []
    for game in games:
        @games_of_breaks@:
            if game.white == player:
                pairs.append((game.black, game.scored, "white"))
            elif game.black == player:
                pairs.append((game.white, game.conceded, "black"))
    return pairs


def strength(player, games, total):
    """Return the first tie-break."""
    values = sorted(total[other] for other, _, _ in opponents(player, games))
    @first_break@


def quality(player, games, total):
    """Return the second tie-break."""
    pairs = opponents(player, games)
    @second_break@
'''

RATINGS = '''"""Ratings of players after the games."""
import json
from collections import Counter
from pathlib import Path

SETTINGS = json.loads((Path(__file__).resolve().parent.parent / "etc" / "@settings@.json").read_text())


def expected(difference):
    """Return what a player is expected to score, of 1,000."""
    @expected_score@


def change(own, other, score, played):
    factor = SETTINGS["@factor_key@"] * (2 if @new_players@ else 1)
    gain = factor * (500 * score - expected(own - other))
    @rounded_gain@


def ratings(players, games):
    start = {player.id: player.rating for player in players.values()}
    current, played = dict(start), Counter()
    for number in sorted({game.round for game in games}):
        basis = dict(current)
        for game in games:
            if game.round != number or game.forfeit:
                continue
            one, other = basis[game.white], basis[game.black]
            gains = [
                (game.white, change(one, other, game.scored, played[game.white])),
                (game.black, change(other, one, game.conceded, played[game.black])),
            ]
            for player, gain in gains:
                current[player] = max(current[player] + gain, SETTINGS["@floor_key@"])
                played[player] += 1
    return {player: (rating, rating - start[player]) for player, rating in current.items()}
'''

REPORTS = '''"""Reports on a tournament."""
import pairing
from ratings import ratings
from scores import points, quality, strength


class League:
    def __init__(self, players, withdrawn, games, byes):
        self.players, self.withdrawn, self.games, self.byes = players, withdrawn, games, byes
        self.total = points(players, games, byes)

    def key(self, player):
        total = self.total
        return (-total[player], -strength(player, self.games, total), -quality(player, self.games, total))

    def order(self):
        def last(player):
            entry = self.players[player]
            @last_criterion@

        return sorted(self.players, key=lambda player: (*self.key(player), last(player)))

    def table(self):
        order, rank, before = self.order(), 0, None
        @withdrawn_players@
        for place, player in enumerate(order, start=1):
            key = self.key(player)
            @shared_ranks@
            before = key
            score, first, second = (-value for value in key)
            name = self.players[player].name
            yield @line_of_table@

    def clubs(self):
        sums = {}
        for player in self.players.values():
            sums.setdefault(player.club, []).append(self.total[player.id])
        best = {club: sum(sorted(values, @players_of_club@) for club, values in sums.items()}
        for club, score in sorted(best.items(), @order_of_clubs@):
            yield f"{club} {score}"

    def ratings(self):
        current = ratings(self.players, self.games)
        for player, (rating, gain) in sorted(current.items(), key=lambda item: (-item[1][0], item[0])):
            name = self.players[player].name
            yield @line_of_rating@

    def next(self):
        active = [player for player in self.order() if player not in self.withdrawn]
        pairs, free = pairing.pairs(active, self.games, self.byes)
        for one, other in pairs:
            white, black = self.players[one].name, self.players[other].name
            yield @line_of_pair@
        if free is not None:
            yield f"{self.players[free].name} is free"
'''

PAIRING = '''"""The games of the next round."""
from collections import Counter


def pairs(active, games, byes):
    """Return pairs of white and black, and who is free, of players in the order of the table."""
    waiting, free = list(active), None
    if len(waiting) % 2 == 1:
        had = {player for _, player in byes}
        fresh = [player for player in waiting if player not in had]
        @free_player@
        waiting.remove(free)
    met = {frozenset((game.white, game.black)) for game in games}
    whites = Counter(game.white for game in games)
    result = []
    while waiting:
        one = waiting.pop(0)
        @candidates@
        new = [player for player in candidates if frozenset((one, player)) not in met]
        other = (new or candidates)[0]
        waiting.remove(other)
        if @white_player@:
            result.append((one, other))
        else:
            result.append((other, one))
    return result, free
'''

SETTINGS = """{
  "@factor_key@": @factor@,
  "@floor_key@": @floor@
}
"""

FORMAT = """# Tournaments

- `players.csv`: id, name, club and rating, as a table of another program writes it, perhaps with quotes.
- `withdrawn.txt`: ids of those who play no more. What they have played counts.
- `round1.txt`, `round2.txt` and so on: lines such as `A12 - B7 1:0`, white first, with any number of spaces. A result
  is of `1`, `½` and `0`, or of `+` and `-` for forfeits; both can get a `-`. A line such as `C3 bye` is of somebody who
  was free. `#` begins a comment. Somebody may play two games of a round.

The table is sorted by points, and then by two tie-breaks, the higher ones first. Ratings begin with those of the
players, and follow the games by rounds, in the order of the files: a change follows
from the ratings before the round. Forfeits do not change them. A game changes the
rating of a player by @factor@ (of new players: by twice as much) times the difference of result and expectation, but
no rating falls below @floor@.

`next` has the pairs of the next round, white first, from the top of the table: the first one who waits gets the first
opponent in question whom he has not met before, or else the first one. Where one is left over, he is free, once in a
tournament.
"""
