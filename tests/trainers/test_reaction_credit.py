"""``algorithm.reaction_credit`` in runs: moves are recorded by turn, credit is computed again, a judge names moves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_service import FakeService
from ppo_runs import episodes_of, in_process, training_of
from trajectories import trajectory_of

from textenvs.messages import assistant, user
from textenvs.users.moves import METRIC, MOVES
from trainers.advantages import estimate
from trainers.builders.reward_model import _namer
from trainers.config.reward_model import MoveJudgeSection, RewardModelSection
from trainers.rewards import (
    BackendError,
    OutageError,
    RewardService,
    ScoringRequest,
    Traits,
    UngradableError,
    UnscoredError,
)
from trainers.rewards.backends.moves import MoveBackend
from trainers.rollout.batch import roots_and_forks
from trainers.rollout.rewards import TurnContext
from trainers.trajectory import from_table, read_table, to_table

TALK = (user("A table, please."), assistant("When?"), user("At eight."), assistant("For how many?"))


def options(tmp_path: Path, *overrides: str) -> list[str]:
    run = ("algorithm.adv_estimator=turn_grpo", "trainer.total_iterations=1", "trainer.test_freq=-1")
    env = ("env.id=textenv/gsm8k-interact", "engine.max_context=512", f"trainer.rollout_data_dir={tmp_path}/episodes")
    return [*run, *env, "algorithm.reaction_credit.weight=0.5", *overrides]


def test_recorded_moves_give_the_same_credit_again(tmp_path: Path) -> None:
    fixed = ("algorithm.reaction_credit.scale=fixed", "algorithm.reaction_credit.control=shuffled")
    run = in_process(tmp_path / "run", *options(tmp_path, *fixed, "algorithm.reaction_credit.table.complains=-0.7"))
    (row,) = training_of(tmp_path / "run")
    assert row["actor/reaction_named"] == 1.0
    assert row["actor/reaction_share/complains"] > 0
    assert not any(METRIC in name for name in row), "a number of a turn, not of an episode"
    episodes = episodes_of(tmp_path / "episodes")
    for episode in episodes:
        assert len(episode.turn_moves) == episode.num_turns
        assert (episode.turn_moves[-1] == "confirms") == (episode.stop == "solved")
    estimated = estimate(run.config.algorithm, roots_and_forks(episodes), explain=True)
    (file,) = (tmp_path / "episodes").glob("*.parquet")
    table = read_table(file, ["advantage", "reaction_credit"]).to_pydict()
    recorded = [value for row in table["advantage"] for value in row if value is not None]
    np.testing.assert_allclose(recorded, estimated.advantages.advantages, rtol=2**-11)
    assert estimated.advantages.made_of is not None
    credit = [value for row in table["reaction_credit"] for value in row]
    assert credit == estimated.advantages.made_of.by_reaction.tolist()  # type: ignore[union-attr]


def test_moves_survive_a_table() -> None:
    named = trajectory_of([0, -1, 1], turn_moves=("reveals", ""))
    table = to_table([named, trajectory_of([0])])
    assert from_table(table) == [named, trajectory_of([0])]
    assert from_table(table.drop(["turn_moves"]))[0].turn_moves == ()
    for moves, words in ((("reveals",) * 2, "turn_moves has 2 entries for 1 turns"), (("sulks",), "a move is one of")):
        with pytest.raises(ValueError, match=words):
            trajectory_of([0], turn_moves=moves)


# ------------------------------------------------------------------ a judge


def named(body: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict that a message with a digit corrects, and any other repeats."""
    text = body["messages"][-1]["content"]
    code, data = re.search(r"<data (\w+)>", text), json.loads(text.split("\n")[1])
    assert code is not None
    last = data["conversation"][-1]
    assert last["role"] == "user"
    return {"data_code": code[1], "reasons": "r", "move": "reveals" if "eight" in last["text"] else "repeats"}


async def test_judge_names_the_last_move() -> None:
    silent = ScoringRequest((user("A table, please."), assistant("When?")))
    with FakeService(named) as service:
        judge = MoveBackend(MoveJudgeSection(model="m", base_url=service.url))
        move, error = await judge.score([ScoringRequest(TALK), silent])
        assert move == MOVES.index("reveals")
        assert isinstance(error, UngradableError)
        assert len(service.requests) == 1, "where the user says nothing, nothing is asked"
        prompt = service.requests[0]["messages"]
        assert all(move in prompt[0]["content"] for move in MOVES)
        assert "For how many?" not in prompt[-1]["content"]
        service.script(*[{"reasons": "r", "move": "sulks"}] * 2)
        (error,) = await judge.score([ScoringRequest((*TALK, user("Two.")))])
        assert isinstance(error, UngradableError)


class Fails:
    """Answers each request with an error."""

    traits = Traits(probe_s=0.001)

    def __init__(self, error: BackendError) -> None:
        self._error = error

    async def score(self, requests: Sequence[ScoringRequest]) -> list[BackendError]:
        return [self._error] * len(requests)

    async def healthy(self) -> bool:
        return True

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "error", [UngradableError("too long"), BackendError("the budget is spent", final=True), OutageError("down")]
)
async def test_move_that_cannot_be_named_is_none(error: BackendError) -> None:
    so_far = TurnContext("e", "g", "t", "s", TALK[:3], TALK[:3], TALK[1:2], "When?", 0.0, {}, False, None)
    section = RewardModelSection(retries=0)
    async with RewardService({"mover": Fails(error)}, {"mover": section}) as service:
        pending = _namer("mover", service)(so_far, 0)
        assert pending is not None
        if isinstance(error, UngradableError):
            assert await pending == {}, "neither a move nor a reward"
        else:
            with pytest.raises(UnscoredError):
                await pending
        assert service.stats()["mover/unscored"] == 1.0


def test_judge_of_moves_rewards_nothing(tmp_path: Path) -> None:
    with FakeService(named) as service:
        judge = ["reward_models.mover.kind=moves", "reward_models.mover.moves.model=m"]
        judge += [f"reward_models.mover.moves.base_url={service.url}", "env.id=program_envs:tests/bytes"]
        in_process(tmp_path / "run", *options(tmp_path, *judge))
    episodes = episodes_of(tmp_path / "episodes")
    answered = [move for episode in episodes for move in episode.turn_moves if move]
    assert answered
    assert set(answered) == {"repeats"}
    assert not any("mover" in terms for episode in episodes for terms in episode.turn_terms)
    (row,) = training_of(tmp_path / "run")
    assert row["actor/reaction_share/repeats"] == 1.0
