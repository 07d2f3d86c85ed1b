"""Scripted opponents and experts. A game is passed by its name without version, and as TextArena's object.

Opponents and experts see what a player could see (the history of guesses, the board, their own card), and no secrets.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from .minimax import connect_four, tic_tac_toe

#: The strength of an opponent; ``"self"`` is the caller of ``step``, for both players.
Opponent = Literal["strong", "random", "self"]

#: More codes than this are too many to search.
_MAX_CODES = 200_000


def opponent_move(base: str, game: Any, rng: np.random.Generator, opponent: Opponent = "random") -> str:
    """Return a move of the player whose turn it is, in a game for two: a good one, or any that is allowed."""
    if opponent == "strong" and base in _STRONG:
        return _STRONG[base](game, rng)
    return _drawn(_MOVES[base](game), rng)


def expert_move(base: str, game: Any, rng: np.random.Generator) -> str:
    """Return the best move known here for the player whose turn it is; ``NotImplementedError`` where there is none."""
    if base in _STRONG:
        return _STRONG[base](game, rng)
    if base not in _EXPERTS:
        names = ", ".join(sorted({*_EXPERTS, *_STRONG}))
        raise NotImplementedError(f"TextArena's {base} has no scripted expert; there are for {names}")
    return _EXPERTS[base](game)


def careless_move(base: str, game: Any, rng: np.random.Generator) -> str:
    """Return a random move in the right form."""
    if base == "GuessTheNumber":
        return f"[{int(rng.integers(game.min_number, game.max_number + 1))}]"
    if base == "Mastermind":
        numbers = rng.choice(game.num_numbers, size=game.code_length, replace=game.duplicate_numbers) + 1
        return f"[{' '.join(map(str, numbers))}]"
    if base == "FrozenLake":
        return _drawn([f"[{name}]" for name, _ in _steps(game, game.state.game_state["player_pos"])], rng)
    if base in _MOVES:
        return opponent_move(base, game, rng)
    raise NotImplementedError(f"TextArena's {base} has no scripted careless replies")


#: The allowed moves of games for two.
_MOVES: dict[str, Callable[[Any], list[str]]] = {
    "ConnectFour": lambda game: [
        f"[col {column}]" for column, top in enumerate(game.state.game_state["board"][0]) if top == "."
    ],
    "IteratedRockPaperScissors": lambda game: ["[rock]", "[paper]", "[scissors]"],
    "KuhnPoker": lambda game: [f"[{action}]" for action in game.state.game_state["current_legal_action_tree"]],
    "Nim": lambda game: [
        f"[{pile} {count}]" for pile, size in enumerate(game.state.game_state["piles"]) for count in range(1, size + 1)
    ],
    "PigDice": lambda game: ["[roll]", "[hold]"],
    "TicTacToe": lambda game: [
        f"[{cell}]" for cell, mark in enumerate(itertools.chain(*game.state.game_state["board"])) if mark == ""
    ],
}


def _guess_the_number(game: Any) -> str:
    low, high = game.min_number, game.max_number
    for guess, hint in game.state.game_state["guess_history"]:
        if hint == "higher":
            low = max(low, guess + 1)
        else:
            high = min(high, guess - 1)
    return f"[{(low + high) // 2}]"


def _mastermind(game: Any) -> str:
    """Return the first code that agrees with all hints so far."""
    numbers, length = range(1, game.num_numbers + 1), game.code_length
    if game.num_numbers**length > _MAX_CODES:
        raise NotImplementedError(
            f"Mastermind with {length} of {game.num_numbers} numbers has too many codes for the expert"
        )
    codes = (
        itertools.product(numbers, repeat=length) if game.duplicate_numbers else itertools.permutations(numbers, length)
    )
    history = [(entry["guess"], (entry["black"], entry["white"])) for entry in game.state.game_state["history"]]
    code = next(code for code in codes if all(_pegs(code, guess) == hint for guess, hint in history))
    return f"[{' '.join(map(str, code))}]"


def _pegs(code: Sequence[int], guess: Sequence[int]) -> tuple[int, int]:
    black = sum(map(operator.eq, code, guess))
    common = sum(min(list(code).count(number), list(guess).count(number)) for number in set(guess))
    return black, common - black


def _steps(game: Any, cell: tuple[int, int]) -> list[tuple[str, tuple[int, int]]]:
    """Return the moves from a cell of a frozen lake that stay on it, with the cell that each leads to."""
    moves = [(name, (cell[0] + down, cell[1] + right)) for name, (down, right) in game.actions.items()]
    return [(name, (row, column)) for name, (row, column) in moves if 0 <= row < game.size and 0 <= column < game.size]


def _frozen_lake(game: Any) -> str:
    """Return the first move of a shortest way to the goal around the holes: of several, the first by name."""
    state = game.state.game_state
    start, goal, grid = tuple(state["player_pos"]), tuple(state["goal_pos"]), state["grid"]
    first, cells = {start: ""}, [start]
    for cell in cells:
        for name, other in sorted(_steps(game, cell)):
            if other not in first and grid[other[0]][other[1]] != "H":
                first[other] = first[cell] or name
                cells.append(other)
    return f"[{first[goal]}]"


def _tower_of_hanoi(game: Any) -> str:
    """Return the next move of the shortest solution from here."""
    place = {disk: tower for tower, disks in game.state.game_state["towers"].items() for disk in disks}
    target, move = "C", ("A", "C")
    for disk in sorted(place, reverse=True):
        if place[disk] != target:
            move = (place[disk], target)
            target = next(tower for tower in "ABC" if tower not in move)  # the smaller ones must make way
    return f"[{move[0]} {move[1]}]"


def _nim(game: Any, rng: np.random.Generator) -> str:
    """Move to a nim-sum of 0, if possible; else any move."""
    piles = game.state.game_state["piles"]
    total = functools.reduce(operator.xor, piles)
    moves = [f"[{pile} {size - (size ^ total)}]" for pile, size in enumerate(piles) if size ^ total < size]
    return _drawn(moves or _MOVES["Nim"](game), rng)


def _pig(game: Any, rng: np.random.Generator) -> str:
    """Hold at 20, or with enough to win."""
    state = game.state.game_state
    total, score = state["turn_total"], state["scores"][game.state.current_player_id]
    return "[hold]" if total >= 20 or score + total >= game.winning_score else "[roll]"


def _drawn(moves: Sequence[str], rng: np.random.Generator) -> str:
    return moves[int(rng.integers(len(moves)))]


def _kuhn_poker(game: Any, rng: np.random.Generator) -> str:
    """Play an equilibrium of a round (Kuhn 1950), the one with the most bets of the first player.

    It depends on the player's own card and on the actions of the round.
    """
    state = game.state.game_state
    player, tree = game.state.current_player_id, state["current_legal_action_tree"]
    card = state["player_cards"][player]  # 0 a jack, 1 a queen, 2 a king
    first = state["starting_player"] == player
    if "bet" in tree:  # no player has bet yet
        chance = (1 / 3, 0.0, 1.0)[card]
        return "[bet]" if rng.random() < chance else "[check]"
    chance = (0.0, 2 / 3 if first else 1 / 3, 1.0)[card]
    return "[call]" if rng.random() < chance else "[fold]"


def _connect_four(game: Any, rng: np.random.Generator) -> str:
    disc = "X" if game.state.current_player_id == 0 else "O"
    return f"[col {connect_four(game.state.game_state['board'], disc, rng)}]"


def _tic_tac_toe(game: Any, rng: np.random.Generator) -> str:
    mark = "X" if game.state.current_player_id == 1 else "O"
    return f"[{tic_tac_toe(list(itertools.chain(*game.state.game_state['board'])), mark, rng)}]"


#: Good play in games for two. In Rock, Paper, Scissors that is any move, with equal chances.
_STRONG: dict[str, Callable[[Any, np.random.Generator], str]] = {
    "ConnectFour": _connect_four,
    "KuhnPoker": _kuhn_poker,
    "Nim": _nim,
    "PigDice": _pig,
    "TicTacToe": _tic_tac_toe,
}

_EXPERTS: dict[str, Callable[[Any], str]] = {
    "FrozenLake": _frozen_lake,
    "GuessTheNumber": _guess_the_number,
    "Mastermind": _mastermind,
    "TowerOfHanoi": _tower_of_hanoi,
}
