"""Scripted users name exactly one move on every turn that they answer, and the move says what they did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import textenvs
from textenvs.actions import as_reply
from textenvs.tool_env import ToolEnv
from textenvs.users.base import HasUser
from textenvs.users.manners import NAMES
from textenvs.users.moves import MEANING, METRIC, MOVES, move_metrics, move_of

USERS = ("gsm8k-interact", "self-correct", "clarify", "collab-math", "collab-document", "collab-code", "service-desk")
MANNERED = ("clarify", "collab-math", "service-desk")
USELESS = ("", "Go on.", "What else?", "#### 3", "Which day, and how many people?", "How can I help you?", "x" * 30_000)


def play(env: Any, seeds: range, name: str) -> Counter[str]:
    """Play episodes of the expert, of a careless one and of useless replies; return how often each move was made."""
    made: Counter[str] = Counter()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        while not env.state.done:
            kind = rng.integers(3) if seed % 2 else 0
            useless = USELESS[rng.integers(len(USELESS))]
            reply = useless if kind == 2 else env.careless_reply(rng) if kind else env.demonstration(rng)
            before = len(env.state.messages)
            observation, *_, info = env.step(reply)
            spoken = [message for message in observation[before + 1 :] if message["role"] == "user"]
            parsed = env.format.parse(as_reply(reply)) if isinstance(env, ToolEnv) else None
            answered = bool(spoken) if parsed is None else not (parsed.calls or parsed.problems)
            move = move_of(info["metrics"])
            if answered:
                assert move in MOVES, (name, reply)
                made[move] += 1
            elif move is not None:  # a user who ends the talk without words has a move as well
                assert info["stop"] in ("solved", "wrong"), (name, reply)
                made[move] += 1
            ends = info["stop"] is not None and info["stop"] not in ("max_assistant_turns", "max_user_turns")
            assert (move in ("ends", "gives_up")) <= ends
            if move is not None:
                assert not ends or name == "self-correct" or move in ("ends", "gives_up", "confirms")
    return made


@pytest.mark.parametrize("name", USERS)
def test_every_answered_turn_names_one_move(name: str) -> None:
    made = play(textenvs.make(f"textenv/{name}"), range(8), name)
    assert set(made) == {"answers"} if name == "self-correct" else len(made) >= 3


@pytest.mark.parametrize("name", MANNERED)
def test_manners_name_moves_too(name: str) -> None:
    made = play(textenvs.make(f"textenv/{name}", manner=dict.fromkeys(NAMES, 1.0)), range(8), name)
    assert made["answers"], "an evasion"


def test_no_environment_with_a_user_is_left_out() -> None:
    """Users that hold something back are known; the tests of tau2 and of worlds play theirs."""
    listed = yaml.safe_load((Path(__file__).parents[3] / "envs_registry.yaml").read_text())["environments"]
    plain = [env_id for env_id, entry in listed.items() if not entry.get("extras") and not entry.get("requires")]
    users = {env_id[8:] for env_id in plain if isinstance(textenvs.make(env_id), HasUser)}
    assert users - {"worlds", "worlds-web"} <= set(USERS)


def test_reply_and_move_match_in_clarify() -> None:
    env = textenvs.make("textenv/clarify", ambiguous=1.0)
    env.reset(seed=3)
    question = env.demonstration(np.random.default_rng(0))
    moves = [move_of(env.step(reply)[-1]["metrics"]) for reply in (question, question, "Hm.", "#### 12345")]
    assert moves == ["reveals", "repeats", "complains", "gives_up"]


def test_unknown_moves_are_refused() -> None:
    assert tuple(MEANING) == MOVES
    assert [move_of(move_metrics(move)) for move in MOVES] == list(MOVES)
    assert move_metrics(None) == {}
    assert move_of({"score": 1.0}) is None
    for number in (-1.0, 0.5, float(len(MOVES))):
        with pytest.raises(ValueError, match="the number of one, from 0 to 7"):
            move_of({METRIC: number})
    with pytest.raises(ValueError, match="one of reveals, confirms"):
        move_metrics("shrugs")  # type: ignore[arg-type]
