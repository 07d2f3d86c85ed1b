"""Both sides of an episode as trajectories: turns, rewards, refused messages, groups, and the engine's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import program_envs  # noqa: F401 (registers the environments)
import pytest
from collector_helpers import Characters, collect, engine_of, prompt_text, tokens, turn_of

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from textenvs.two_sides import Cut, TwoSides
from trainers.rollout.collector import Batch
from trainers.rollout.environments import Backend, EnvSpec
from trainers.trajectory import Status, Trajectory

Calls = list[tuple[str, list[int]]]


def spec(**more: Any) -> EnvSpec:
    user = {"tries": 2, "prompt": "short", "may_end": False}
    return EnvSpec(TwoSides, {"id": "tests/order", "options": {}, "user": user, "refused_cost": 0.5} | more)


def played(
    users: Sequence[Sequence[str]], assistants: Sequence[str] = ("Which?", "tea", "tea"), **more: Any
) -> tuple[Batch, Calls]:
    """A batch of one group, and what the engine was given: a user's k-th message has one or two tries, in order."""
    calls: Calls = []

    def script(call: Call, version: int) -> Reply:
        prompt = prompt_text(call)
        side = "user" if prompt.startswith("You are the user") else "assistant"
        calls.append((side, list(call.token_ids)))
        if side == "assistant":
            return Reply(tokens(assistants[turn_of(call)]))
        return Reply(tokens(users[turn_of(call) - 1]["could not be used" in prompt]))

    engine = engine_of(script)
    (batch,) = run_simulated(collect(engine, spec(**more), groups_per_batch=1, max_running=1, tasks=2))
    assert sorted(engine.released) == sorted({str(call.session) for call in engine.calls})
    return batch, calls


def words(trajectory: Trajectory) -> list[str]:
    """What a side sampled, turn by turn."""
    return [Characters().decode(trajectory.token_ids[trajectory.turn_id == k]) for k in range(trajectory.num_turns)]


def contexts(trajectory: Trajectory) -> list[list[int]]:
    """The tokens that each turn was sampled after: those of its segment before it."""
    found = []
    for turn in range(trajectory.num_turns):
        start = int(np.argmax(trajectory.turn_id == turn))
        segment = max(first for first in trajectory.segment_starts.tolist() if first <= start)
        found.append(trajectory.token_ids[segment:start].tolist())
    return found


def test_both_sides_come_out_of_one_episode_with_interleaving_turns_and_the_tokens_of_the_engine() -> None:
    batch, calls = played([["a number 5", "tea"], ["coffee"], ["Bye."]])
    assert [t.episode_id for t in batch.users] == [f"{t.episode_id}-user" for t in batch.trajectories]
    assert {t.group_id for t in batch.users} == {"g0-user"}
    assert batch.trained == [*batch.trajectories, *batch.users]
    policy, user = batch.trajectories[0], batch.users[0]
    assert words(policy) == ["Which?", "tea", "tea"]
    assert words(user) == ["a number 5", "tea", "coffee", "Bye."]
    half = calls[: len(calls) // 2]
    assert [side for side, _ in half] == ["assistant", "user", "user", "assistant", "user", "assistant", "user"]
    assert contexts(policy) == [ids for side, ids in half if side == "assistant"]
    assert contexts(user) == [ids for side, ids in half if side == "user"]
    # The second try has its hint in a rendering of its own, which no later turn sees.
    assert len(user.segment_starts) == 3
    said = [m["content"] for m in policy.messages]
    assert said[1:] == ["Which?", "tea", "tea", "coffee", "tea", "Bye."]
    assert (policy.status, user.status) == (Status.TRUNCATED_TURNS, Status.TRUNCATED_TURNS)


@pytest.mark.parametrize(("reward", "sign"), [("shared", 1.0), ("opposed", -1.0)])
def test_message_earns_what_its_answer_earns_and_a_refused_one_costs(reward: str, sign: float) -> None:
    batch, _ = played([["a number 5", "tea"], ["coffee"], ["Bye."]], ["Which?", "tea", "coffee"], reward=reward)
    policy, user = batch.trajectories[0], batch.users[0]
    assert policy.turn_rewards.tolist() == [-0.25, 0.75, -0.25]
    assert user.turn_rewards.tolist() == [-0.5, sign * 0.75, sign * -0.25, 0.0]
    assert user.turn_terms[:2] == ({"refused": -0.5}, {"answer": sign * 0.75})


def test_user_whose_every_try_is_refused_pays_for_it_and_its_episode_counts() -> None:
    user = played([["tea"], ["no 5", "no 6"]], fixed="expert")[0].trajectories[0]
    assert (user.status, user.stop, user.terminated) == (Status.COMPLETED, "user_failed", True)
    assert words(user) == ["tea", "no 5", "no 6"]
    assert user.turn_rewards.tolist() == [0.0, -0.5, -0.5]  # the turn that answers "tea" has failed with it


def test_fixed_assistant_leaves_the_users_side_alone() -> None:
    batch, calls = played([["tea"], ["coffee"], ["Bye."]], fixed="expert")
    user = batch.trajectories[0]
    assert {side for side, _ in calls} == {"user"}
    assert words(user) == ["tea", "coffee", "Bye."]
    assert user.turn_rewards.tolist() == [0.75, -0.25, 0.0]
    assert user.messages[0]["content"].startswith("You are the user")


def test_attempts_that_fail_on_the_user_are_in_the_users_group() -> None:
    bad = iter(["no 5", "no 6"])

    def script(call: Call, version: int) -> Reply:
        if prompt_text(call).startswith("You are the user"):
            return Reply(tokens(next(bad, "tea")))
        return Reply(tokens(["Which?", "bye"][turn_of(call)]))

    (batch,) = run_simulated(collect(engine_of(script), spec(), groups_per_batch=1, max_running=1, tasks=2))
    assert [t.status for t in batch.trajectories] == [Status.COMPLETED] * 2
    assert [t.turn_rewards.tolist() for t in batch.users] == [[-0.5, -0.5], [-0.25], [-0.25]]
    assert [t.terminated for t in batch.users] == [True] * 3
    assert {t.group_id for t in batch.users} == {"g0-user"}


async def test_process_plays_as_the_event_loop_does() -> None:
    results = []
    for kind in ("inline", "process"):
        there = spec(id="program_envs:tests/order", fixed="expert")
        async with Backend(there, kind, workers=1) as backend, backend.lease() as env:  # type: ignore[arg-type]
            results.append([await env.reset(3, {}), *[await env.step(text) for text in ("no 5", "tea", Cut("x"))]])
    assert results[0] == results[1]


def test_cut_or_empty_message_is_refused_and_an_assistant_that_never_asks_is_an_error() -> None:
    env = TwoSides("tests/order", {}, user={"prompt": "short"}, refused_cost=0.5)
    assert env.reset(seed=0)[1]["side"] == "assistant"
    env.step("Which?")
    for words in (Cut("tea and"), ""):
        request, _, _, _, info = env.step(words)
        assert info["paid"][-1][2] == {"refused": -0.5}
        assert "could not be used" in request[0]["content"]
    assert env.step("tea")[4]["side"] == "assistant"
    clear = TwoSides("textenv/clarify", {"ambiguous": 0.0}, user={}, fixed="expert")
    with pytest.raises(Exception, match=r"ended the episode \(solved\) before the user had a turn"):
        clear.reset(seed=0)
