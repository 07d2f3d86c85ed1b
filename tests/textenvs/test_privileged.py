"""Privileged context: what environments tell a teacher, and that the policy never sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import textenvs
from textenvs import NoDemonstration, Task, TextEnv, Turn
from textenvs.compaction import Compact
from textenvs.messages import text_of, user
from textenvs.privileged import written


class Silent(TextEnv[Any]):
    """An environment with nothing to tell but its answer."""

    def __init__(self) -> None:
        super().__init__([Task("t", "toy", (user("q"),), 7)], max_assistant_turns=3)

    def respond(self, reply: Any) -> Turn:
        return Turn((user("no"),), terms={"r": 0.0})


class Expert(Silent):
    def demonstration(self, rng: np.random.Generator) -> Any:
        if self.state.assistant_turns:
            raise NoDemonstration("only the first")
        return {"role": "assistant", "content": "7", "tool_calls": ({"function": {"name": "f", "arguments": "{}"}},)}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("name", ["clarify", "collab-math", "service-desk"])
def test_users_goal_and_experts_reply_are_told(name: str) -> None:
    """In every state of an expert's episode, and asking changes neither the state nor its randomness."""
    env: Any = textenvs.make(f"textenv/{name}").unwrapped
    observation, info = env.reset(seed=3)
    goals, done = set(), False
    while not done:
        before = env.snapshot()
        goal, expert = (env.privileged(kind, rng()) for kind in ("goal", "expert"))
        assert env.snapshot() == before
        assert goal == env.user_view().goal
        reply = env.demonstration(rng())
        assert expert == written(reply)
        goals.add(goal)
        assert goal not in " ".join(map(text_of, observation)) + repr(info)
        observation, _, terminated, truncated, info = env.step(reply)
        done = terminated or truncated
    assert len(goals) == 1


def test_environment_without_is_an_error_in_words() -> None:
    env = Silent()
    env.reset(seed=0)
    assert env.privileged("answer", rng()) == "7"
    with pytest.raises(NotImplementedError, match="Silent has no scripted expert"):
        env.privileged("expert", rng())
    with pytest.raises(NotImplementedError, match="Silent has no user with a goal"):
        env.privileged("goal", rng())
    with pytest.raises(ValueError, match="no privileged context of the kind 'all'; known are goal, answer, expert"):
        env.privileged("all", rng())  # type: ignore[arg-type]


def test_expert_without_a_move_tells_nothing() -> None:
    env = Expert()
    env.reset(seed=0)
    assert env.privileged("expert", rng()) == '7\n{"name": "f", "arguments": "{}"}'
    env.step("a")
    assert env.privileged("expert", rng()) is None


def test_compaction_tells_what_is_within() -> None:
    env = Compact(textenvs.make("textenv/clarify"), tokens=10_000)
    env.reset(seed=3)
    assert env.privileged("goal", rng()) == env.user_view().goal
    assert env.privileged("expert", rng()) == env.demonstration(rng())
