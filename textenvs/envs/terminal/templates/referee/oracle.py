"""Games of the template `referee`, and what becomes of them by the rules of a project."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..parts import token
from ..variation import Variant
from .scenes import AGAIN

WAYS = {"n": -1j, "e": 1 + 0j, "s": 1j, "w": -1 + 0j, "ne": 1 - 1j, "se": 1 + 1j, "sw": -1 + 1j, "nw": -1 - 1j}
_NAMES = {way: name for name, way in WAYS.items()}


@dataclass(frozen=True)
class Board:
    """The size of the board, and the steps of a chief."""

    columns: int
    rows: int
    chief_steps: int

    def has(self, place: complex) -> bool:
        return 0 <= place.real < self.columns and 0 <= place.imag < self.rows

    def turned(self, place: complex, flips: tuple[bool, bool]) -> complex:
        x = self.columns - 1 - place.real if flips[0] else place.real
        return complex(x, self.rows - 1 - place.imag if flips[1] else place.imag)

    def usual(self) -> dict[complex, tuple[int, bool]]:
        """Return the usual position: both sides have six stones and a chief in the middle."""
        middle, pieces = self.columns // 2, dict[complex, tuple[int, bool]]()
        for side, line in ((0, self.rows - 1), (1, 0)):
            for x in range(middle - 3, middle + 4):
                pieces[complex(x, line)] = (side, x == middle)
        return pieces


@dataclass(frozen=True)
class Move:
    """A move; ``end`` is what stands behind it, so that it is none."""

    place: complex
    way: complex
    steps: int
    end: str = ""


@dataclass(frozen=True)
class Game:
    """A game; a piece is a side, 0 or 1, and whether it is a chief."""

    number: int
    date: str
    ids: tuple[str, str]
    begins: int | None
    pieces: Mapping[complex, tuple[int, bool]]
    moves: Sequence[Move | str]
    #: How its record is written: `usual`, `styled`, or nothing.
    style: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a game; ``winner`` is a side, `draw` or `open`."""

    winner: int | str
    reason: str
    moves: int
    captures: tuple[int, int]
    pieces: Mapping[complex, tuple[int, bool]]


@dataclass
class _Row:
    """A player's row of the table."""

    id: str
    points: int = 0
    wins: int = 0
    made: int = 0
    suffered: int = 0
    played: int = 0


class _Play:
    """A game that is played by the rules of a project."""

    def __init__(self, game: Game, board: Board, variant: Variant) -> None:
        self.game, self.board, self.variant = game, board, variant
        self.pieces = dict(game.pieces)
        self.captures = [0, 0]
        self.moves = 0
        many = tuple(sum(side == one for side, _ in game.pieces.values()) for one in (0, 1))
        self.side: int = variant["who-begins"](game.ids, many) if game.begins is None else game.begins

    def outcome(self) -> Outcome:
        winner, reason = self._end()
        return Outcome(winner, reason, self.moves, (self.captures[0], self.captures[1]), self.pieces)

    def _end(self) -> tuple[int | str, str]:
        history, quiet, passes = list[tuple[int, frozenset[tuple[complex, tuple[int, bool]]]]](), 0, 0
        for move in self.game.moves:
            if move == "resigns":
                return 1 - self.side, "resigned"
            if move == "agreed":
                return "draw", "agreed"
            if move == "pass":
                passes, self.side = passes + 1, 1 - self.side
                if passes == 2:
                    return self._counted(), "counted"
                continue
            if isinstance(move, str) or not self._is_legal(move):
                if self.variant["illegal-move"] == "lost":
                    return 1 - self.side, "illegal"
                if self.variant["illegal-move"] == "skipped":
                    self.side = 1 - self.side
                continue
            before, passes = sum(self.captures), 0
            self.moves += 1
            if self._has_taken_chief(move):
                return self.side, "chief"
            quiet = 0 if sum(self.captures) > before else quiet + 1
            history.append((self.side, frozenset(self.pieces.items())))
            for loser in (1 - self.side, self.side):
                if self._figures(loser)[0] + self._figures(loser)[1] < self.variant["few-pieces"]:
                    return 1 - loser, "few"
            if history.count(history[-1]) >= self.variant["repeated-position"]:
                return "draw", "repeated"
            if quiet >= self.variant["quiet-moves"]:
                return "draw", "quiet"
            self.side = 1 - self.side
        ends: dict[str, int | str] = {"counted": self._counted(), "lost": 1 - self.side}
        rule = self.variant["record-without-end"]
        return ends.get(rule, rule), "unfinished"

    def _figures(self, side: int) -> tuple[int, int, int]:
        """Return the number of stones, of chiefs, and of captures."""
        kinds = [is_chief for one, is_chief in self.pieces.values() if one == side]
        return kinds.count(False), kinds.count(True), self.captures[side]

    def _counted(self) -> int | str:
        own, enemy = (self.variant["counted-game"](*self._figures(side)) for side in (0, 1))
        return "draw" if own == enemy else int(enemy > own)

    def _is_legal(self, move: Move) -> bool:
        side, is_chief = self.pieces.get(move.place, (None, False))
        reach = self.board.chief_steps if is_chief else self.variant["reach-of-stones"]
        ways = self.variant["directions-of-chiefs"] if is_chief else (1,)
        way = [move.place + step * move.way for step in range(1, move.steps + 1)]
        if side != self.side or move.end or not 1 <= move.steps <= reach or round(abs(move.way) ** 2) not in ways:
            return False
        if not self.board.has(way[-1]) or way[-1] in self.pieces:
            return False
        sides = {self.pieces[place][0] for place in way if place in self.pieces}
        allowed = {"": set[int](), "own": {self.side}, "enemies": {1 - self.side}}[self.variant["pieces-in-the-way"]]
        return sides <= allowed

    def _has_taken_chief(self, move: Move) -> bool:
        """Make a move, and its captures."""
        side, variant, place = self.side, self.variant, move.place + move.steps * move.way
        piece = self.pieces[place] = self.pieces.pop(move.place)
        by_moves, closes = variant["captures-by-chiefs"]
        prey, before = list[complex](), dict(self.pieces)
        own = sum(one == side for one, _ in before.values())
        at_edge = variant["captures-at-the-edge"](own, len(before))
        enemies = [place for place, (one, _) in before.items() if one != side]
        for way in variant["lines-of-captures"]:
            length = next(n for n in range(99) if place + (n + 1) * way not in enemies)
            run = [place + step * way for step in range(1, length + 1)]
            closer = place + (length + 1) * way
            is_closed = (
                at_edge if not self.board.has(closer) else closer in before and (closes or not before[closer][1])
            )
            if is_closed and 0 < length <= variant["length-of-lines"] and (by_moves or not piece[1]):
                chiefs = [one for one in run if before[one][1]]
                stones, takes_chief, count = variant["captured-chief"](length - len(chiefs), len(chiefs))
                self.captures[side] += count
                prey += [one for one in run if stones and one not in chiefs] + chiefs * takes_chief
        is_between = any({place + way, place - way} <= {*enemies} for way in variant["lines-of-captures"])
        for one in prey:
            self.pieces.pop(one, None)
        if is_between and not piece[1] and variant["entering-between"](prey):
            del self.pieces[place]
            self.captures[1 - side] += 1
        return any(before[one][1] for one in prey)


@dataclass(frozen=True)
class League:
    """Players, and records of games by names of files."""

    variant: Variant
    board: Board
    #: Id, name, club, former ids.
    players: Sequence[tuple[str, str, str, Sequence[str]]]
    records: Mapping[str, Game]

    def outcomes(self) -> list[tuple[Game, Outcome]]:
        """Return games and what became of them, in the order of the files."""
        games = [self.records[name] for name in sorted(self.records)]
        return [(game, _Play(game, self.board, self.variant).outcome()) for game in games]

    def paired(self, outcomes: Sequence[tuple[Game, Outcome]]) -> list[tuple[Game, Outcome]]:
        """Return these games with outcomes of the same ones between other players."""
        games = [self.records[name] for name in sorted(self.records)]
        return [(game, one) for game, (_, one) in zip(games, outcomes, strict=True)]

    def _sides(self) -> tuple[str, str]:
        return str(self.variant.names["first"]), str(self.variant.names["second"])

    def judged(self, outcomes: Sequence[tuple[Game, Outcome]]) -> list[tuple[Game, Outcome]]:
        """Return the games that hold, by number."""
        rows = dict[int, list[Game]]()
        for game, _ in outcomes:
            rows.setdefault(game.number, []).append(game)
        held = {id(self.variant["repeated-game"](games)) for games in rows.values()}
        return sorted((row for row in outcomes if id(row[0]) in held), key=lambda row: row[0].number)

    def raw(self, outcomes: Sequence[tuple[Game, Outcome]]) -> list[str]:
        """Return fields of all records: winner, reason, moves and captures."""
        words = self._words()
        return [
            "\t".join([words[one.winner], one.reason, str(one.moves), *map(str, one.captures)]) for _, one in outcomes
        ]

    def with_other_pairs(self, rng: random.Random, ids: Sequence[str]) -> League:
        """Return the same games between other players, but for those in which ids decide who begins."""
        records = dict(self.records)
        numbers = {game.number for game in records.values() if game.begins is not None and {*game.ids} <= {*ids}}
        pairs = dict[int, tuple[str, str]]()
        for number in sorted(numbers):
            one, other = rng.sample(ids, 2)
            pairs[number] = (one, other)
        return replace(
            self,
            records={
                name: replace(game, ids=pairs[game.number]) if game.number in pairs else game
                for name, game in records.items()
            },
        )

    def _words(self) -> dict[int | str, str]:
        """Return what is printed about the winner of a game."""
        first, second = self._sides()
        return {0: first, 1: second, "draw": "draw", "open": "open"}

    def results(self, outcomes: Sequence[tuple[Game, Outcome]]) -> list[str]:
        words, line = self._words(), self.variant["line-of-result"]
        return [
            line.format(game.number, words[one.winner], one.reason, one.moves, *one.captures)
            for game, one in self.judged(outcomes)
        ]

    def boards(self, outcomes: Sequence[tuple[Game, Outcome]]) -> list[str]:
        lines = list[str]()
        for game, one in self.judged(outcomes):
            rows = self.drawn(one.pieces)
            lines += [f"game {game.number}", *(self.variant["row-of-board"](row, n) for n, row in enumerate(rows))]
        return lines

    def drawn(self, pieces: Mapping[complex, tuple[int, bool]]) -> list[str]:
        """Return the lines of a board, the upper one first."""
        letters = [name[0] for name in self._sides()]
        signs = {place: letters[side].upper() if chief else letters[side] for place, (side, chief) in pieces.items()}
        columns = range(self.board.columns)
        return ["".join(signs.get(complex(x, y), ".") for x in columns) for y in range(self.board.rows)]

    def table(self, outcomes: Sequence[tuple[Game, Outcome]]) -> list[str]:
        names = {id: name for id, name, *_ in self.players}
        present = {one: id for id, _, _, former in self.players for one in (id, *former)}
        rows = {id: _Row(id) for id in names}
        for game, one in self.judged(outcomes):
            for side in (0, 1) if one.winner != "open" else ():
                row, made, suffered = rows[present[game.ids[side]]], one.captures[side], one.captures[1 - side]
                place = 1 if one.winner == "draw" else 0 if one.winner == side else 2
                row.points += self.variant["points-of-games"][place]
                row.points += bool(self.variant["bonus-point"](place, made, suffered))
                row.wins += place == 0
                row.made += made
                row.suffered += suffered
                row.played += 1
        ranked = sorted(rows.values(), key=lambda row: (-row.points, self.variant["tie-break-of-table"](row), row.id))
        line = self.variant["line-of-place"]
        return [
            line.format(rank, names[row.id], row.points, row.played, row.made)
            for rank, row in enumerate(ranked, start=1)
        ]

    def table_by(self, outcomes: Sequence[tuple[Game, Outcome]], variant: Variant) -> list[str]:
        """Return the table by other rules."""
        return replace(self, variant=variant).table(outcomes)

    def reasons(self, outcomes: Sequence[tuple[Game, Outcome]]) -> list[str]:
        counts = Counter(one.reason for _, one in outcomes)
        return [f"{reason} {counts[reason]}" for reason in sorted(counts)]

    def word(self, move: Move | str) -> str:
        if isinstance(move, str):
            return move
        number = self.variant["row-numbers"](int(move.place.imag), self.board.rows)
        return f"{chr(97 + int(move.place.real))}{number}{_NAMES[move.way]}{move.steps}{move.end}"

    def text(self, rng: random.Random, game: Game, place: int) -> str:
        """Return a record."""
        first, second = self._sides()
        stranger = next(id for id, *_ in self.players if id not in game.ids)
        heads = [f"game: {game.number}", f"date: {game.date}", f"{first}: {game.ids[0]}", f"{second}:  {game.ids[1]}"]
        if place % 3 == 0:
            heads = [f"Game:{game.number}", *heads[1:], f"# {first}: {stranger}"]
        if game.begins is not None:
            heads.append(f"{'Begins' if place % 4 == 1 else 'begins'}: {(first, second)[game.begins]}")
        board = [(" " if place % 2 else "").join(row) for row in self.drawn(game.pieces)]
        heads, board = (heads, ["", *board]) if game.style != "usual" else ([*heads, "board: usual"], [])
        words = [self.word(move) for move in game.moves]
        if game.style == "styled":
            words = [AGAIN.format(*words[:5], words[5].upper(), *words[6:])]
        elif place % 5 == 2:
            words = [f"{number}. {word}" for number, word in enumerate(words, start=1)]
        elif place % 5 == 4:
            words = [f"{word} {{{token(rng, 4)}}}" for word in words]
        bom = "\ufeff" if place % 4 == 2 else ""
        return bom + "\n".join([*heads, *board, "", " ".join(words)]) + "\n"

    def files(self, rng: random.Random) -> dict[str, str]:
        rows = ["id\tname\tclub\tformer ids"]
        rows += ["\t".join([id, name, club, ",".join(former)]) for id, name, club, former in self.players]
        files = {"players.tsv": "\n".join([*rows, ""])}
        for place, name in enumerate(sorted(self.records)):
            files[f"records/{name}.rec"] = self.text(rng, self.records[name], place)
        return files
