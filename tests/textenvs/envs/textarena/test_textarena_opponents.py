"""Opponents of TextArena's games for two: minimax, Kuhn poker's equilibrium, and the wins of cheap policies."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from textenvs.envs.textarena.env import LEVELS, TextArena
from textenvs.envs.textarena.minimax import connect_four, tic_tac_toe
from textenvs.envs.textarena.players import opponent_move

RNG = np.random.default_rng(0)
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def three(board, mark):
    return any(all(board[cell] == mark for cell in line) for line in LINES)


@pytest.mark.parametrize("mark", ["X", "O"])
def test_tic_tac_toe_never_loses_to_any_play(mark):
    """Play against every sequence of moves, as first and as second player."""
    other = "O" if mark == "X" else "X"
    lost = won = 0

    def play(board, own_turn):
        nonlocal lost, won
        if three(board, other) or three(board, mark) or "" not in board:
            lost, won = lost + three(board, other), won + three(board, mark)
            return
        cells = [tic_tac_toe(board, mark, RNG)] if own_turn else [cell for cell in range(9) if not board[cell]]
        for cell in cells:
            assert not board[cell]
            play([*board[:cell], mark if own_turn else other, *board[cell + 1 :]], not own_turn)

    for own_turn in (True, False):
        play([""] * 9, own_turn)
    assert (lost, won > 100) == (0, True)


def drop(board, column, disc):
    row = max(row for row in range(len(board)) if board[row][column] == ".")
    return [[disc if (r, c) == (row, column) else board[r][c] for c in range(len(board[0]))] for r in range(len(board))]


def free(board):
    return [column for column in range(len(board[0])) if board[0][column] == "."]


def four(board, disc):
    rows, columns = len(board), len(board[0])
    return any(
        all(
            0 <= r + down * k < rows and 0 <= c + right * k < columns and board[r + down * k][c + right * k] == disc
            for k in range(4)
        )
        for r, c in itertools.product(range(rows), range(columns))
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    )


def positions(rows, columns, free_cells, count, seed):
    """Yield positions without a winner, with ``free_cells`` free cells, and whose turn it is."""
    rng = random.Random(seed)
    while count:
        board, disc = [["."] * columns for _ in range(rows)], "X"
        while free(board) and sum(line.count(".") for line in board) > free_cells:
            board = drop(board, rng.choice(free(board)), disc)
            disc = "O" if disc == "X" else "X"
        if not (four(board, "X") or four(board, "O")) and free(board):
            count -= 1
            yield board, disc


def outcome(board, disc):
    """Return the value of the game to ``disc``, whose turn it is, played to its end: 1, 0 or -1."""
    other = "O" if disc == "X" else "X"
    if four(board, other):
        return -1
    return max((-outcome(drop(board, column, disc), other) for column in free(board)), default=0)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (4, 5), (5, 4)])
def test_connect_four_ends_as_by_full_search(rows, columns):
    for board, disc in positions(rows, columns, 4, 60, seed=rows * columns):
        best = {column: -outcome(drop(board, column, disc), "O" if disc == "X" else "X") for column in free(board)}
        assert best[connect_four(board, disc, RNG)] == max(best.values()), board


@pytest.mark.parametrize("free_cells", [14, 22, 30])
def test_connect_four_takes_wins_and_prevents_losses(free_cells):
    for board, disc in positions(6, 7, free_cells, 40, seed=free_cells):
        other = "O" if disc == "X" else "X"
        wins = [column for column in free(board) if four(drop(board, column, disc), disc)]
        threats = [column for column in free(board) if four(drop(board, column, other), other)]
        move = connect_four(board, disc, RNG)
        if wins or len(threats) == 1:
            assert move in (wins or threats), board


@pytest.mark.parametrize("first", [True, False])
def test_connect_four_beats_columns_and_chance(first):
    rng, won = random.Random(1), 0
    for game in range(10):
        board, own = [["."] * 7 for _ in range(6)], first
        while free(board) and not (four(board, "X") or four(board, "O")):
            if own:
                board = drop(board, connect_four(board, "X", RNG), "X")
            else:
                columns = free(board)
                board = drop(board, 3 if game % 2 and 3 in columns else rng.choice(columns), "O")
            own = not own
        won += four(board, "X")
    assert won == 10


@pytest.mark.parametrize("game", ["ConnectFour-v0", "Nim-v0", "TicTacToe-v0"])
def test_equal_moves_are_drawn_by_the_seed(game):
    """No fixed list of moves is answered the same each time."""
    answers = []
    for seed in (*range(12), 11):
        env = TextArena(game)
        env.reset(seed=seed)
        for move in {"ConnectFour-v0": ["[col 3]", "[col 0]"], "Nim-v0": ["[0 2]"], "TicTacToe-v0": ["[4]"]}[game]:
            env.step(move)
        answers.append(env.state.moves)
    assert len(set(answers)) > 1
    assert answers[-1] == answers[-2]


# ------------------------------------------------------------------ Kuhn poker

OPEN = {"check": {"check": "showdown", "bet": {"fold": "loser", "call": "showdown"}}, "bet": {}}
FACING = {"fold": "loser", "call": "showdown"}


def chance(first, facing, card):
    """Return the share of the unit interval on which the opponent bets, or calls a bet."""
    state = {
        "current_legal_action_tree": FACING if facing else OPEN,
        "starting_player": 0 if first else 1,
        "player_cards": {0: card, 1: (card + 1) % 3},
    }
    game = SimpleNamespace(state=SimpleNamespace(game_state=state, current_player_id=0))
    grid = [SimpleNamespace(random=lambda u=u: u) for u in np.linspace(0, 1, 901)[:-1] + 1 / 1800]
    moves = [opponent_move("KuhnPoker", game, rng, "strong") for rng in grid]
    assert set(moves) <= ({"[call]", "[fold]"} if facing else {"[bet]", "[check]"})
    return sum(move in ("[bet]", "[call]") for move in moves) / len(moves)


def worth(first, second):
    """Return the first player's gain a round, in chips; a strategy has chances to bet and to call, by card."""
    total = 0.0
    for one, two in itertools.permutations(range(3), 2):
        sign = 1 if one > two else -1
        bets, (other_bets, other_calls) = first[0][one], (second[0][two], second[1][two])
        after_bet = (1 - other_calls) + other_calls * 2 * sign
        after_check = (1 - other_bets) * sign + other_bets * ((1 - first[1][one]) * -1 + first[1][one] * 2 * sign)
        total += (bets * after_bet + (1 - bets) * after_check) / 6
    return total


def test_kuhn_poker_is_an_equilibrium():
    """No strategy wins more than the value of the game against it, 1/18 a round for the second player (Kuhn 1950)."""
    strategy = {
        first: [[chance(first, facing, card) for card in range(3)] for facing in (False, True)]
        for first in (True, False)
    }
    pure = [(bets, calls) for bets, calls in itertools.product(itertools.product((0, 1), repeat=3), repeat=2)]
    assert max(worth(opponent, strategy[False]) for opponent in pure) == pytest.approx(-1 / 18, abs=1e-3)
    assert min(worth(strategy[True], opponent) for opponent in pure) == pytest.approx(-1 / 18, abs=1e-3)


def test_bets_of_kuhn_poker_are_paid():
    """The package takes no chip for a bet, against its own rules: a called bet is worth two."""
    env, seen = TextArena("KuhnPoker-v0", seat=1, options={"max_rounds": 1}), set()
    for seed in range(40):
        env.reset(seed=seed)
        game = env._peek()
        bet = "bet" in game.game.state.game_state["current_legal_action_tree"]
        env.step("[bet]" if bet else "[call]")
        game = env._take()
        chips = game.game.state.game_state["player_chips"]
        moves = env.state.moves
        if env.state.done:
            # one more ante is taken after the last round
            seen.add((moves[-1], abs(chips[0] - chips[1])))
    assert seen == {("[fold]", 2), ("[call]", 4)}


@pytest.mark.parametrize(
    "game", ["TicTacToe-v0", "KuhnPoker-v0", "Nim-v0", pytest.param("PigDice-v0", marks=pytest.mark.slow)]
)
def test_random_play_wins_less_than_half(game):
    wins = {}
    for name in ("random", "expert"):
        rng, wins[name] = np.random.default_rng(1), 0.0
        for seed in range(60):
            env = TextArena(game, seat=seed % 2, options={"winning_score": 40} if game == "PigDice-v0" else None)
            env.reset(seed=seed)
            while not env.state.done:
                move = env.demonstration(rng) if name == "expert" else env.careless_reply(rng)
                env.step(move)
            wins[name] += {"solved": 1.0, "draw": 0.5}.get(env.state.stop, 0.0) / 60
    assert wins["random"] < 0.48
    assert wins["random"] < wins["expert"]


# ------------------------------------------------------------------ Guess the Number


def test_levels_need_as_many_guesses_as_halving():
    """Halving finds each of 2^k - 1 numbers in at most k guesses, and some only in k."""
    assert all(level["max_number"] == 2 ** level["max_turns"] - 1 for level in LEVELS.values())
    assert [level["max_turns"] for level in LEVELS.values()] == [9, 11, 13]
    for name, level in LEVELS.items():
        env, turns = TextArena(level=name), set()
        for seed in range(30):
            env.reset(seed=seed)
            while not env.state.done:
                info = env.step(env.demonstration(RNG))[4]
            assert info["stop"] == "solved"
            turns.add(info["assistant_turns"])
        assert max(turns) == level["max_turns"]


def test_levels_are_a_ladder_for_careless_halving():
    """A guess at random among the remaining numbers does worse at every level."""
    solved = []
    for name in LEVELS:
        env, rng, won = TextArena(level=name), np.random.default_rng(0), 0
        for seed in range(100):
            env.reset(seed=seed)
            while not env.state.done:
                game = env._peek().game
                low, high = game.min_number, game.max_number
                for guess, hint in game.state.game_state["guess_history"]:
                    low, high = (max(low, guess + 1), high) if hint == "higher" else (low, min(high, guess - 1))
                env.step(f"[{rng.integers(low, high + 1)}]")
            won += env.state.won
        solved.append(won / 100)
    assert solved[0] > solved[1] > solved[2], solved
