"""Frozen roles: the caller's turns are shown and paid what they would be if all roles acted by ``step``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs import Task, TextEnv, Turn, frozen_roles
from textenvs.chat.answer import Completion
from textenvs.chat.errors import ChatFailure, PromptTooLong
from textenvs.frozen_roles import FrozenRoles
from textenvs.messages import Messages, assistant, user

ROLES = ("a", "b", "c")


class Table(TextEnv[Any]):
    """Roles act in an ``order``; a turn pays itself 1 and the turn before it .5; the last one pays all .25."""

    roles = ROLES

    def __init__(self, order: Sequence[str]) -> None:
        super().__init__([Task("task", "tests", (user("begin"),), ground_truth="")])
        self.order = order

    def opening(self, task: Task) -> Messages:
        self.state.role = self.order[0]
        return task.prompt

    def respond(self, reply: Any) -> Turn:
        number = self.state.assistant_turns - 1
        earlier = {number - 1: {"next": 0.5}} if number else {}
        if number < len(self.order) - 1:
            news = [user(f"{number} after {reply['content']}")]
            return Turn(news, role=self.order[number + 1], terms={"own": 1.0}, earlier=earlier)
        for turn in range(number):
            earlier[turn] = {**earlier.get(turn, {}), "end": 0.25}
        return Turn(terms={"own": 1.0, "end": 0.25}, earlier=earlier, terminated=True, stop="over")


gymnasium.register(id="tests/table", entry_point=Table)  # type: ignore[arg-type]


class Client:
    """Replies to a conversation with the number of its messages."""

    async def complete(self, observation: Messages, **_: Any) -> Completion:
        return Completion(reply(observation), assistant(reply(observation)), "stop", None)


def reply(observation: Messages) -> str:
    return f"{len(observation)} messages"


def add(totals: dict[int, float], number: int, reward: float, info: dict[str, Any]) -> None:
    earlier = info.get("earlier", {})
    for turn, parts in earlier.items():
        totals[turn] = totals.get(turn, 0.0) + sum(parts.values())
    own = reward - sum(sum(parts.values()) for parts in earlier.values())
    totals[number] = totals.get(number, 0.0) + own


def play(env: Any) -> tuple[list[tuple[str, Messages]], dict[int, float]]:
    """Play an episode; return the role and the observation of each turn, and the totals of turns."""
    observation, info = env.reset(seed=0)
    turns, totals, over = list[tuple[str, Messages]](), dict[int, float](), False
    while not over:
        turns.append((info["role"], observation))
        observation, reward, terminated, truncated, info = env.step(reply(observation))
        add(totals, len(turns) - 1, reward, info)
        assert reward == pytest.approx(sum(info["terms"].values()))
        over = terminated or truncated
    return turns, totals


@given(st.lists(st.sampled_from(ROLES), min_size=1, max_size=9), st.sampled_from(["a", "b", "ab", "bc"]))
def test_callers_turns_are_those_of_all_by_step(order: list[str], frozen: str) -> None:
    if not set(order) - set(frozen):
        return  # the caller has no turn
    turns, totals = play(Table(order))

    async def client_for(spec: Any) -> Client:
        return Client()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_roles, "client_for", client_for)
        env = FrozenRoles("tests/table", {"order": order}, frozen={role: {"model": "m"} for role in frozen})
        own_turns, own_totals = play(env)
    numbers = [number for number, (role, _) in enumerate(turns) if role not in frozen]
    assert own_turns == [turns[number] for number in numbers]
    assert [own_totals.get(step, 0.0) for step in range(len(numbers))] == pytest.approx([totals[n] for n in numbers])


def test_failing_model_ends_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        async def complete(self, *_: Any, **__: Any) -> Completion:
            raise ChatFailure("no reply")

    async def client_for(spec: Any) -> Broken:
        return Broken()

    monkeypatch.setattr(frozen_roles, "client_for", client_for)
    env = FrozenRoles("tests/table", {"order": "aba"}, frozen={"b": {"model": "m"}})
    asyncio.run(env.areset(seed=0))
    _, reward, terminated, truncated, info = asyncio.run(env.astep("x"))
    assert (terminated, truncated, info["stop"], info["failed"], info["role"]) == (
        False,
        True,
        "role_failed",
        True,
        "a",
    )
    assert info["failure"] == "b: no reply"
    with pytest.raises(RuntimeError, match="b: no reply"):
        asyncio.run(FrozenRoles("tests/table", {"order": "ba"}, frozen={"b": {"model": "m"}}).areset(seed=0))


def test_full_frozen_context_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed episode is left out of training: a losing caller would fill the frozen role's context."""

    class Full:
        async def complete(self, *_: Any, **__: Any) -> Completion:
            raise PromptTooLong("the conversation has 5000 tokens")

    async def client_for(spec: Any) -> Full:
        return Full()

    monkeypatch.setattr(frozen_roles, "client_for", client_for)
    env = FrozenRoles("tests/table", {"order": "aba"}, frozen={"b": {"model": "m"}})
    asyncio.run(env.areset(seed=0))
    _, _, terminated, truncated, info = asyncio.run(env.astep("x"))
    assert (terminated, truncated, info["stop"]) == (False, True, "role_no_room")
    assert not info.get("failed")
    with pytest.raises(RuntimeError, match="role_no_room"):
        asyncio.run(FrozenRoles("tests/table", {"order": "ba"}, frozen={"b": {"model": "m"}}).areset(seed=0))


@pytest.mark.parametrize(
    ("frozen", "message"),
    [("d", "'d' is no role of the environment: its roles are a, b, c"), ("abc", "nothing to train")],
)
def test_frozen_roles_are_checked(frozen: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrozenRoles("tests/table", {"order": "ab"}, frozen={role: {"model": "m"} for role in frozen})
