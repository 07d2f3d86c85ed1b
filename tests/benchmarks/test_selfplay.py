"""The benchmark of self-play: positions say what the games are, commands are accepted, curves are read back."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from benchmarks import selfplay
from trainers.command_line import resolve
from trainers.config import PPOConfig

pytest.importorskip("textarena", reason="needs the extra 'textarena'")


@pytest.mark.parametrize("game", selfplay.GAMES)
@pytest.mark.parametrize("opponent", ["self", "random"])
def test_position_is_that_of_the_player(game: str, opponent: str) -> None:
    env: Any = gymnasium.make("selfplay/position-v0", **selfplay.GAMES[game], opponent=opponent).unwrapped
    rng, over = np.random.default_rng(0), False
    observation, info = env.reset(seed=3)
    while not over:
        state, text = env._peek().game.state.game_state, observation[-1]["content"]
        if game == "nim":
            assert [int(size) for size in text.split(",")] == state["piles"]
        else:
            cells = list(itertools.chain(*state["board"]))
            own = {"player-0": "O", "player-1": "X"}[info.get("role", "player-0")]
            assert [c.isdigit() for c in text] == [not cell for cell in cells]
            assert [c == "#" for c in text] == [cell == own for cell in cells]
        observation, _, over, _, info = env.step(env.careless_reply(rng))


@pytest.mark.parametrize("kind", selfplay.KINDS)
def test_commands_are_accepted(kind: str) -> None:
    words = [
        *selfplay.SETTINGS,
        *selfplay.components("nim"),
        *selfplay.TRAIN,
        *selfplay.KINDS[kind],
    ]
    config, _ = resolve(words, PPOConfig)
    assert config.env.mixture["self"].weight > 1e6 * config.env.mixture["perfect1"].weight
    assert config.env.mixture["perfect1"].val_kwargs == {"opponent": "strong", "seat": 1}


def test_evaluations_are_read_from_a_run(tmp_path: Path) -> None:
    means = {f"val/mixture/{name}{seat}/reward": seat / 2 for name in selfplay.OPPONENTS for seat in (0, 1)}
    rows = [{"step": 0, "val/reward": 0.0, **means}, {"step": 5, "train/reward": 0.25, "actor/entropy": 1.0}]
    rows.append({"step": 5, "val/reward": 0.0, **means})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    first, last = selfplay.rows_of("nim", "rae", 1, tmp_path)
    assert (first["iteration"], first["random"], first["perfect"]) == (0, [0.0, 0.5], [0.0, 0.5])
    assert (last["iteration"], last["first"], last["entropy"]) == (5, 0.25, 1.0)
