"""Minimax for board games of two players: perfect in Tic Tac Toe, some moves ahead in Connect Four.

Among moves of the same value one is drawn, in Connect Four while nothing is decided among those of nearly the same
value: no fixed list of moves beats it repeatedly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

_WON = 10_000  # and a little more the sooner
#: About how many positions are searched for a move, without those that are cut off.
_POSITIONS = 3_400
# The value of a window of four by its discs in a row; a window with discs of both is worth nothing.
_WORTH = (0, 1, 4, 16, 0)
#: By how much a move's value may be below the best and still be drawn, while nothing is decided.
_NEARLY = 4
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def tic_tac_toe(board: Sequence[str], mark: str, rng: np.random.Generator) -> int:
    """Return the best cell (0 to 8) for ``mark``; ``board`` has nine texts, empty for free cells."""
    cells = "".join("." if not cell else "m" if cell == mark else "o" for cell in board)
    free = [cell for cell in range(9) if cells[cell] == "."]
    return _best(free, [-_value(_turned(cells, cell)) for cell in free], rng)


@functools.lru_cache(maxsize=8192)
def _value(cells: str) -> int:
    """Return the value of a position to the player ``m``, whose turn it is; early wins and late losses are better."""
    free_cells = cells.count(".")
    if any(all(cells[cell] == "o" for cell in line) for line in _LINES):
        return -1 - free_cells
    if not free_cells:
        return 0
    return max(-_value(_turned(cells, cell)) for cell in range(9) if cells[cell] == ".")


def _turned(cells: str, cell: int) -> str:
    """Return the position after ``m`` has taken a cell, from the other player's view."""
    return (cells[:cell] + "m" + cells[cell + 1 :]).translate(_SIDES)


_SIDES = str.maketrans("mo", "om")


def connect_four(board: Sequence[Sequence[str]], disc: str, rng: np.random.Generator) -> int:
    """Return a good column for ``disc``; ``board`` has rows from the top, with "." for free cells."""
    rows, columns = len(board), len(board[0])
    game = _ConnectFour(rows, columns)
    own = other = 0
    for row, line in enumerate(board):
        for column, cell in enumerate(line):
            bit = 1 << (column * (rows + 1) + rows - 1 - row)
            own |= bit * (cell == disc)
            other |= bit * (cell not in (disc, "."))
    depth = max(2, int(math.log(_POSITIONS, max(2, columns))))
    moves = game.moves(own | other)
    values: list[int] = []
    for move in moves:
        floor = max(values, default=-2 * _WON) - _NEARLY - 1  # values that may be drawn are to be exact
        values.append(
            _WON * 2 if game.won(own | move) else -game.value(other, own | move, depth - 1, -2 * _WON, -floor)
        )
    best = _best(moves, values, rng, nearly=_NEARLY if abs(max(values)) < _WON else 0)
    return (best.bit_length() - 1) // (rows + 1)


def _best(moves: Sequence[int], values: Sequence[int], rng: np.random.Generator, nearly: int = 0) -> int:
    best = [move for move, value in zip(moves, values, strict=True) if value >= max(values) - nearly]
    return best[int(rng.integers(len(best)))]


class _ConnectFour:
    """Positions as two integers, a bit a cell: column by column from the bottom, with a free row above each."""

    def __init__(self, rows: int, columns: int) -> None:
        self.height = rows + 1
        column = (1 << rows) - 1
        self.columns = [column << self.height * index for index in _from_the_middle(columns)]
        self.bottoms = [1 << self.height * index for index in _from_the_middle(columns)]
        self.board = sum(self.columns)
        self.windows = _windows(rows, columns)

    def moves(self, occupied: int) -> list[int]:
        """Return the cells that a disc can fall into, from the middle."""
        free = zip(self.columns, self.bottoms, strict=True)
        return [move for column, bottom in free if (move := (occupied & column) + bottom & column)]

    def won(self, discs: int) -> bool:
        for step in (1, self.height - 1, self.height, self.height + 1):
            pairs = discs & discs >> step
            if pairs & pairs >> 2 * step:
                return True
        return False

    def value(self, own: int, other: int, depth: int, low: int, high: int) -> int:
        """Return the value of a position to the player whose turn it is; exact between ``low`` and ``high``."""
        moves = self.moves(own | other)
        if not moves:
            return 0
        if any(self.won(own | move) for move in moves):
            return _WON + depth
        if depth <= 0:
            return self._looks(own, other)
        for move in moves:
            low = max(low, -self.value(other, own | move, depth - 1, -high, -low))
            if low >= high:
                break
        return low

    def _looks(self, own: int, other: int) -> int:
        worth = 0
        for window in self.windows:
            own_count, other_count = (own & window).bit_count(), (other & window).bit_count()
            if not other_count:
                worth += _WORTH[own_count]
            elif not own_count:
                worth -= _WORTH[other_count]
        return worth


def _from_the_middle(columns: int) -> list[int]:
    return sorted(range(columns), key=lambda column: abs(2 * column - columns + 1))


@functools.cache
def _windows(rows: int, columns: int) -> tuple[int, ...]:
    """Return every four cells in a line, as bits."""
    lines = []
    for column in range(columns):
        for row in range(rows):
            for right, up in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(column + right * offset, row + up * offset) for offset in range(4)]
                if all(0 <= x < columns and 0 <= y < rows for x, y in cells):
                    lines.append(sum(1 << x * (rows + 1) + y for x, y in cells))
    return tuple(lines)
