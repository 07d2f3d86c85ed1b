"""The template *tournament*: results of rounds become a table with tie-breaks, ratings, and the next pairs, in Python.

It needs sh and Python 3.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...project import Check, Project, Question
from ..parts import ASKED, CITIES, FIRST_NAMES, SURNAMES, asked_together, file_in_the_way, lost_permission, notes, token
from ..variation import DRAWS, Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import FORMAT, LEAGUE, MAIN, PAIRING, PLAYERS, RATINGS, REPORTS, RESULTS, SCORES, SETTINGS

_SCORES = {"1": 2, "½": 1, "0": 0, "+": 2, "-": 0}
#: Rules whose options may give the same table by chance.
_BY_CHANCE = ("games-of-breaks", "repeated-result")
#: Players with games, those who were free once and did nothing else, those who did nothing, and those who have left.
_CORE, _FREE, _IDLE, _GONE = 12, 2, 4, 3
_ROUNDS = (1, 2, 3, 5, 6, 7, 8, 9, 10, 11)

#: Id, name, club, rating.
_Player = tuple[str, str, str, int]


@dataclass(frozen=True)
class _Game:
    round: int
    white: str
    black: str
    result: str

    @property
    def scores(self) -> tuple[int, int]:
        return _SCORES[self.result[0]], _SCORES[self.result[2]]

    @property
    def is_forfeit(self) -> bool:
        return self.result[0] in "+-"


@dataclass(frozen=True)
class _Tournament:
    """Players, lines of games, and byes."""

    players: Sequence[_Player]
    gone: Sequence[str]
    games: Sequence[_Game]
    byes: Sequence[tuple[int, str]]

    @classmethod
    def draw(cls, rng: random.Random, floor: int) -> _Tournament:
        """Draw a tournament in which each rule and each fault shows."""
        count = _CORE + _FREE + _IDLE
        names = rng.sample([f"{first} {last}" for first in FIRST_NAMES for last in SURNAMES], count)
        ids = [f"{rng.choice('ABCD')}{number}" for number in rng.sample(range(1, 99), count)]
        clubs = rng.sample(CITIES, 6)
        ratings = rng.sample(range(floor + 50, floor + 900), count)
        ratings[0] = floor + 3
        # Those who did nothing are equal; their ids, names and ratings have different orders.
        idle = slice(_CORE + _FREE, count)
        for words, order in ((ids, (2, 0, 3, 1)), (names, (1, 3, 0, 2))):
            ordered = sorted(words[idle])
            words[idle] = [ordered[place] for place in order]
        sizes = sorted(ratings[idle])
        ratings[idle] = [sizes[place] for place in (0, 2, 1, 3)]
        players = [(ids[n], names[n], clubs[n % 6], ratings[n]) for n in range(count)]
        players[3] = (players[3][0], ", ".join(players[3][1].split()[::-1]), *players[3][2:])
        core = dict(zip(ids[:_CORE], ratings, strict=False))
        games, byes = cls._games(rng, core), [(2, one) for one in ids[_CORE : _CORE + _FREE]]
        byes += [(number, one) for number, one in zip((6, 11), rng.sample(ids[:_CORE], 2), strict=True)]
        return cls(players, rng.sample(ids[4:_CORE], _GONE), games, byes)

    @staticmethod
    def _games(rng: random.Random, ratings: Mapping[str, int]) -> list[_Game]:
        """Draw the rounds: the later ids are stronger. Some games have two lines, some players two games of a round.

        Who wins because the other does not come has the lower rating, so that counting the game changes it.
        """
        ids = [*ratings]
        games, ring = list[_Game](), rng.sample(ids, len(ids))

        def play(number: int, one: str, other: str, result: str = "") -> None:
            one, other = rng.sample([one, other], 2)
            better = ids.index(one) > ids.index(other)
            usual = rng.choices(["1:0", "½:½", "0:1"], [6, 2, 2] if better else [1, 2, 6])[0]
            if ids[0] in (one, other):
                usual = "1:0" if other == ids[0] else "0:1"
            games.append(_Game(number, one, other, result or usual))

        for number in _ROUNDS:
            for one, other in zip(ring[: len(ring) // 2], ring[::-1], strict=False):
                play(number, one, other)
            ring = [ring[0], ring[-1], *ring[1:-1]]
        play(3, ids[0], ids[6])
        play(3, ids[6], ids[10])
        play(9, ids[0], ids[11])
        ranked = sorted(ids[1:], key=ratings.__getitem__)
        pairs = {frozenset((game.white, game.black)) for game in games if game.round == 11}
        free = [pair for pair in itertools.combinations(ranked, 2) if frozenset(pair) not in pairs]
        for result, (low, high) in zip(("+:-", "-:+", "-:-"), rng.sample(free, 3), strict=True):
            pair = (high, low) if result == "-:+" else (low, high)
            games.append(_Game(11, *pair, result))
        weak, strong = ids[1], ids[7]
        games += [_Game(8, weak, strong, "0:1"), _Game(8, weak, strong, "1:0")]
        games += [_Game(8, ids[5], ids[2], "1:0"), _Game(8, ids[5], ids[2], "½:½")]
        return games

    def files(self, rng: random.Random) -> dict[str, str]:
        table = io.StringIO()
        rows = [(id, f" {name}" if place == 1 else name, *rest) for place, (id, name, *rest) in enumerate(self.players)]
        csv.writer(table, lineterminator="\n").writerows(
            [("id", "name", "club", "rating"), *rng.sample(rows, len(rows))]
        )
        files = {"players.csv": "\ufeff" + table.getvalue()}
        files["withdrawn.txt"] = "".join(f"{id}{' ' * (place == 1)}\n" for place, id in enumerate(self.gone))
        for number in _ROUNDS:
            lines = [f"# round {number}", ""]
            for game in self.games:
                if game.round == number:
                    gap = " " * rng.choice([1, 1, 2])
                    comment = f"  # {token(rng)}" if rng.random() < 0.2 else ""
                    lines.append(f"{game.white}{gap}- {game.black} {gap}{game.result}{comment}")
            lines += [f"{id} bye" for round, id in self.byes if round == number]
            files[f"round{number}.txt"] = "\n".join(lines) + "\n"
        return files


@dataclass(frozen=True)
class _League:
    """Reports on a tournament by the rules of a project."""

    variant: Variant
    factor: int
    floor: int
    tournament: _Tournament

    def text(self, names: Sequence[str]) -> str:
        reports = {"table": self._table, "clubs": self._clubs, "ratings": self._ratings, "next": self._next}
        return "\n".join(line for name in names for line in [self.variant["heading"](name), *reports[name]()])

    def table_by(self, variant: Variant) -> str:
        """Return the table by other rules."""
        return replace(self, variant=variant).text(["table"])

    def _games(self) -> list[_Game]:
        games = dict[tuple[int, str, str], _Game]()
        for game in sorted(self.tournament.games, key=lambda game: game.round):
            key, rule = (game.round, game.white, game.black), self.variant["repeated-result"]
            if key in games and (rule == "first" or (rule == "best" and games[key].scores[0] >= game.scores[0])):
                continue
            if rule == "last":
                games.pop(key, None)
            games[key] = game
        return [*games.values()]

    def _total(self) -> dict[str, int]:
        points = self.variant["points-of-results"]
        total = dict.fromkeys((id for id, *_ in self.tournament.players), 0)
        for game in self._games():
            total[game.white] += points[game.scores[0]]
            total[game.black] += points[game.scores[1]]
        for _, id in self.tournament.byes:
            total[id] += self.variant["points-of-bye"](points)
        return total

    def _keys(self) -> dict[str, tuple[int, int, int]]:
        """Return points and tie-breaks, by id."""
        total, games, keys = self._total(), self._games(), dict[str, tuple[int, int, int]]()
        games = [game for game in games if self.variant["games-of-breaks"](game.is_forfeit, game.scores)]
        for id in total:
            pairs = [
                (game.black, game.scores[0], "white") if game.white == id else (game.white, game.scores[1], "black")
                for game in games
                if id in (game.white, game.black)
            ]
            first = self.variant["first-break"](sorted(total[other] for other, *_ in pairs))
            keys[id] = (total[id], first, self.variant["second-break"](pairs, total))
        return keys

    def _order(self) -> list[_Player]:
        keys, last = self._keys(), self.variant["last-criterion"]
        return sorted(self.tournament.players, key=lambda one: (*(-value for value in keys[one[0]]), last(one)))

    def _table(self) -> list[str]:
        keys, lines, rank, before = self._keys(), list[str](), 0, None
        order = self.variant["withdrawn-players"]([id for id, *_ in self._order()], self.tournament.gone)
        names = {id: name for id, name, *_ in self.tournament.players}
        for place, id in enumerate(order, start=1):
            rank = self.variant["shared-ranks"](rank, place, keys[id] == before)
            before = keys[id]
            lines.append(self.variant["line-of-table"].format(rank, names[id], *keys[id]))
        return lines

    def _clubs(self) -> list[str]:
        total, sums = self._total(), dict[str, list[int]]()
        for id, _, club, _ in self.tournament.players:
            sums.setdefault(club, []).append(total[id])
        most = self.variant["players-of-club"]
        rows = [(club, sum(sorted(values)[-most:])) for club, values in sums.items()]
        return [f"{club} {points}" for club, points in sorted(rows, key=self.variant["order-of-clubs"])]

    def _ratings(self) -> list[str]:
        variant, start = self.variant, {id: rating for id, *_, rating in self.tournament.players}
        current, played = dict(start), dict.fromkeys(start, 0)
        games = self._games()
        for number in _ROUNDS:
            before = dict(current)
            for game in games:
                if game.round != number or game.is_forfeit:
                    continue
                one, other = before[game.white], before[game.black]
                for id, difference, score in (
                    (game.white, one - other, game.scores[0]),
                    (game.black, other - one, game.scores[1]),
                ):
                    factor = self.factor * (1 + (played[id] < variant["new-players"]))
                    gain = variant["rounded-gain"](factor * (500 * score - variant["expected-score"](difference)))
                    current[id] = max(current[id] + gain, self.floor)
                    played[id] += 1
        names = {id: name for id, name, *_ in self.tournament.players}
        ranked = sorted(current, key=lambda id: (-current[id], id))
        line = variant["line-of-rating"]
        return [line.format(names[id], current[id], current[id] - start[id], start[id]) for id in ranked]

    def _next(self) -> list[str]:
        variant, tournament = self.variant, self.tournament
        waiting = [id for id, *_ in self._order() if id not in tournament.gone]
        names = {id: name for id, name, *_ in tournament.players}
        had = {id for _, id in tournament.byes}
        free = variant["free-player"]([id for id in waiting if id not in had])
        waiting.remove(free)
        games, lines = self._games(), list[str]()
        met = {frozenset((game.white, game.black)) for game in games}
        while waiting:
            one = waiting.pop(0)
            candidates = variant["candidates"](waiting)
            other = next((id for id in candidates if {one, id} not in met), candidates[0])
            waiting.remove(other)
            whites = [sum(game.white == id for game in games) for id in (one, other)]
            first = {
                "less": whites[0] <= whites[1],
                "more": whites[0] >= whites[1],
                "even": len(lines) % 2 == 0,
                "odd": len(lines) % 2 == 1,
            }[variant["white-player"]]
            pair = (one, other) if first else (other, one)
            lines.append(variant["line-of-pair"].format(*(names[id] for id in pair)))
        return [*lines, f"{names[free]} is free"]


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of files and keys, a tournament, and the games of some years."""
    floor, factor = rng.randint(10, 14) * 50, rng.choice([12, 14, 16, 18, 22, 24])
    floor_key, other_key = rng.sample(["floor", "lowest", "minimum", "least"], 2)
    names: dict[str, object] = {
        "code": rng.choice(["code", "src", "league", "lib"]),
        "results": rng.choice(["results", "rounds", "games"]),
        "settings": rng.choice(["ratings", "league", "settings"]),
        "factor_key": rng.choice(["factor", "k", "weight"]),
        "floor_key": floor_key,
        "other_key": other_key,
        "factor": factor,
        "floor": floor,
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/league": LEAGUE,
        "@code@/main.py": MAIN,
        "@code@/players.py": PLAYERS,
        "@code@/@results@.py": RESULTS,
        "@code@/scores.py": SCORES,
        "@code@/ratings.py": RATINGS,
        "@code@/reports.py": REPORTS,
        "@code@/pairing.py": PAIRING,
        "etc/@settings@.json": SETTINGS,
        "etc/@settings@-blitz.json": SETTINGS.replace("@factor@", "40").replace("@floor@", "100"),
    }
    files = variant.files(texts) | variant.document(rng)
    files["old/scores.py"] = variant.outdated(SCORES)
    files |= {"docs/data.md": variant.words(FORMAT), "docs/notes.md": notes(rng, "Notes on the league", 10)}
    tournament = _Tournament.draw(rng, floor)
    files |= {f"data/{name}": text for name, text in tournament.files(rng).items()}
    questions = _questions(rng, files, tournament)
    fixed = frozenset(path for path in files if path.startswith(("data/", "archive/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        for _ in range(DRAWS):
            league = _League(variant, factor, floor, _Tournament.draw(fresh, floor))
            if variant.separates(_BY_CHANCE, league.table_by):
                break
        inputs = {f"d/{name}": text for name, text in league.tournament.files(fresh).items()}
        return [
            Check("-".join(names), f"bin/league $IN/d {' '.join(names)}", league.text(names), inputs)
            for names in (("table", "clubs"), ("ratings", "next"))
        ]

    about = (
        "`bin/league FOLDER REPORT...` prints reports on a tournament: table, clubs, ratings and next, for example "
        f"`bin/league data table next`. `docs/data.md` describes the data, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", f"cat bin/league docs/data.md etc/*.json {names['code']}/*.py"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        file_in_the_way(
            f"{names['code']}/json.py",
            '"""Jason\'s own notes."""\n\nDUTIES = ["coffee", "clocks", "boards"]\n',
            looks,
            "It ends with an AttributeError in a module that nobody has changed.",
        ),
        lost_permission("bin/league"),
    ]
    return Project(about, files, faults, checks, {"bin/league": 0o755}, fixed=fixed, questions=questions)


def _questions(rng: random.Random, files: dict[str, str], tournament: _Tournament) -> list[Question]:
    """Draw the games of some years, and ask about them."""
    ids = [id for id, *_ in tournament.players]
    spent = iter(rng.sample(range(60, 14_000), 30 * 70))
    by_white, by_black = dict[str, list[tuple[int, str]]](), dict[tuple[str, str], list[tuple[int, str]]]()
    for month in range(rng.randint(18, 30)):
        name, lines = f"{2023 + month // 12}-{month % 12 + 1:02}", list[str]()
        for _ in range(70):
            game, (white, black), seconds = token(rng), rng.sample(ids, 2), next(spent)
            result = rng.choice(["1:0", "0:1", "draw"])
            row = {"game": game, "white": white, "black": black, "result": result, "seconds": seconds}
            lines.append(json.dumps(row))
            by_white.setdefault(white, []).append((seconds, game))
            by_black.setdefault((black, result), []).append((seconds, game))
        files[f"archive/{name}.jsonl"] = "\n".join(lines) + "\n"
    lost = rng.sample(sorted(key for key, rows in by_black.items() if key[1] == "0:1" and len(rows) > 15), ASKED)
    return [
        asked_together([_longest_with_white(id, max(by_white[id])[1]) for id in rng.sample(ids, ASKED)]),
        asked_together([_shortest_win_with_black(id, min(by_black[id, "0:1"])[1]) for id, _ in lost]),
    ]


_FIELDS = r"""sed 's/.*"game": "\([a-f0-9]*\)".*"seconds": \([0-9]*\).*/\2 \1/'"""


def _longest_with_white(id: str, game: str) -> Question:
    return Question(
        "longest-with-white",
        f"Which game of {id} with white took most seconds, by archive/?",
        game,
        [
            "head -2 archive/2023-01.jsonl",
            f"grep -h '\"white\": \"{id}\"' archive/* | {_FIELDS} | sort -rn | sed -n '1s/.* //p'",
        ],
    )


def _shortest_win_with_black(id: str, game: str) -> Question:
    return Question(
        "shortest-win-with-black",
        f"Which game that {id} won with black (0:1) took least seconds, by archive/?",
        game,
        [
            "head -2 archive/2023-01.jsonl",
            f'grep -h \'"black": "{id}", "result": "0:1"\' archive/* | {_FIELDS} | sort -n | sed -n \'1s/.* //p\'',
        ],
    )
