"""Several roles in one episode: who acts next, in which conversation, with which payments."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ROLES, Talk

from textenvs import Turn
from textenvs.compaction import Compact
from textenvs.messages import user
from textenvs.turn import transcript_of


@given(speakers=st.lists(st.sampled_from(ROLES), max_size=8), same=st.booleans(), cut=st.integers(0, 8))
def test_each_role_continues_its_own_conversation(speakers: list[str], same: bool, cut: int) -> None:
    env = Talk(same, system_prompt="Be brief.")
    conversation, info = env.reset(seed=0)
    expected: dict[str, list[Any]] = {role: [{"role": "system", "content": "Be brief."}] for role in ROLES}
    expected["solver"].append(user("Begin."))
    role, acted = "solver", set()
    for number, following in enumerate([*speakers, "end"]):
        assert (info["role"], list(conversation)) == (role, expected[role])
        if number == cut:
            other = Talk(same, system_prompt="Be brief.")
            other.restore(pickle.loads(pickle.dumps(env.snapshot())))
            env = other
        conversation, reward, terminated, _, info = env.step(following)
        expected[role].append({"role": "assistant", "content": following})
        acted.add(role)
        if following != "end":
            role = following
            expected[role].append(user("Begin." if same else f"news {number}"))
    turns = len(speakers) + 1
    assert terminated
    assert reward == turns * (turns + 1) / 2
    assert sorted(map(str, (*env.state.contexts, env.state.messages))) == sorted(str(tuple(expected[r])) for r in acted)
    assert transcript_of(env.state).count("end") >= 1


def test_role_may_begin_a_context_of_its_own() -> None:
    class Anew(Talk):
        def respond(self, reply: Any) -> Turn:
            return Turn([user("Noted.")], role="critic", context=[user(f"Judge: {reply['content']}")])

    env = Anew()
    env.reset(seed=0)
    conversation, *_, info = env.step("Yes.")
    assert (info["role"], [m["content"] for m in conversation]) == ("critic", ["Judge: Yes."])
    assert [m["content"] for m in env.state.waiting["solver"]] == ["Begin.", "Yes.", "Noted."]


def test_unknown_role_is_refused_and_takes_nothing() -> None:
    env = Talk()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="'nobody' is not one of the environment's roles: solver, critic, judge"):
        env.step("nobody")
    assert env.step("critic")[4]["role"] == "critic"
    with pytest.raises(ValueError, match="no role"):
        Turn(terminated=True, stop="over", role="critic")
    with pytest.raises(ValueError, match="Compact is for one role"):
        Compact(Talk(), tokens=100)
