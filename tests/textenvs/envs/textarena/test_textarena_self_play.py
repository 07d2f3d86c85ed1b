"""Both players of a game by ``step``: whose turn it is, what each sees, what each is paid, forks in the middle."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from textenvs.envs.textarena.env import TextArena
from textenvs.envs.textarena.players import opponent_move
from textenvs.evaluate.baselines import play_policy
from textenvs.evaluate.plan import Job
from textenvs.evaluate.policies import ScriptedPolicy
from textenvs.evaluate.records import Record
from textenvs.turn import own_terms

GAMES = ("TicTacToe-v0", "ConnectFour-v0", "KuhnPoker-v0", "Nim-v0", "PigDice-v0", "IteratedRockPaperScissors-v0")
FIRST_WINS = ("[0]", "[3]", "[1]", "[4]", "[2]")


def both(game: str = "TicTacToe-v0", **options: Any) -> TextArena:
    return TextArena(game, opponent="self", **options)


def play(env: TextArena, replies: Iterable[Any], seed: int = 0) -> tuple[list[str], list[float], Any, dict[str, Any]]:
    """Return each turn's role and game reward, the last step's result, and the conversation that each role saw last."""
    conversation, info = env.reset(seed=seed, options={"task_index": seed})
    roles: list[str] = []
    rewards: list[float] = []
    finished: Counter[str] = Counter()
    seen = {info["role"]: conversation}
    for reply in replies:
        roles.append(info["role"])
        before = seen[info["role"]]
        result = env.step(reply() if callable(reply) else reply)
        conversation, reward, terminated, _, info = result
        assert reward == pytest.approx(sum(info["terms"].values()))
        paid = {len(rewards): own_terms(info), **info.get("earlier", {})}
        rewards.append(0.0)
        for turn, terms in paid.items():
            rewards[turn] += terms["game"]
            finished[roles[turn]] += terms["unfinished"]
        assert set(finished.values()) == {0.0 if terminated else -1.0}  # an unfinished game is a lost one
        if info["role"] == roles[-1]:
            assert conversation[: len(before)] == before
        seen[info["role"]] = conversation
        if terminated:
            break
    return roles, rewards, result, seen


def mover(env: TextArena, rng: np.random.Generator) -> Callable[[], str]:
    return lambda: opponent_move(env._base, env._peek().game, rng)


@pytest.mark.parametrize("game", GAMES)
def test_random_games_pay_zero_sum_by_role(game: str) -> None:
    env, rng = both(game), np.random.default_rng(0)
    for seed in range(3):
        roles, rewards, (_, _, terminated, _, info), _ = play(env, itertools.repeat(mover(env, rng)), seed)
        assert terminated
        paid = {role: sum(r for one, r in zip(roles, rewards, strict=True) if one == role) for role in set(roles)}
        assert set(paid) == set(env.roles)
        assert sum(paid.values()) == pytest.approx(0.0)
        first = paid["player-0"]
        assert info["stop"] == ("draw" if first == 0 else "player-0_won" if first > 0 else "player-1_won")


def test_roles_see_their_own_conversations() -> None:
    roles, rewards, (last, *_), seen = play(both(), FIRST_WINS)
    assert roles == ["player-0", "player-1"] * 2 + ["player-0"]
    assert rewards == [0.0, 0.0, 0.0, -1.0, 1.0]
    for role, own in (("player-0", ["[0]", "[1]", "[2]"]), ("player-1", ["[3]", "[4]"])):
        replies = [m["content"] for m in (last if role == "player-0" else seen[role]) if m["role"] == "assistant"]
        assert replies == (own if role == "player-0" else own[:1])
        number = role[-1]
        assert f"You are Player {number}" in seen[role][0]["content"]
        assert f"You are Player {1 - int(number)}" not in str(seen[role])


@pytest.mark.parametrize("moves", [("[9]", "[9]"), ("[0]", "[0]", "x"), ("[0]", "[3]", "[0]", "hm")])
def test_two_invalid_moves_cost_their_player(moves: tuple[str, ...]) -> None:
    roles, rewards, (_, _, terminated, _, info), _ = play(both(), moves)
    assert (terminated, info["stop"]) == (True, "invalid_move")
    offender = roles[-1]
    assert roles[-2] == offender
    assert rewards[-1] == -1.0
    others = [reward for role, reward in zip(roles, rewards, strict=True) if role != offender]
    assert sum(others) == (1.0 if others else 0.0)


def test_fork_and_restore_continue_the_same_game() -> None:
    env = both()
    env.reset(seed=0, options={"task_index": 0})
    states = []
    for move in FIRST_WINS:
        states.append(env.snapshot())
        whole = env.step(move)
    for turn, state in enumerate(states):
        other = both()
        other.restore(state)
        for move in FIRST_WINS[turn:]:
            result = other.step(move)
        assert result == whole


def test_self_played_games_are_neither_solved_nor_not() -> None:
    assert both().reset(seed=0)[1]["has_success"] is False
    (record,) = play_policy(both(), ScriptedPolicy("expert"), [Job(0, 0, 0, 0)])
    assert (record.success, record.failed, record.terminated) == (None, False, True)
    assert Record.from_json(record.to_json()).success is None
    assert "has_success" not in TextArena("TicTacToe-v0").reset(seed=0)[1]


def test_self_play_refuses_seat_and_lone_games() -> None:
    with pytest.raises(ValueError, match="both seats"):
        both(seat=1)
    with pytest.raises(ValueError, match="is for a game for two"):
        both("GuessTheNumber-v0")
