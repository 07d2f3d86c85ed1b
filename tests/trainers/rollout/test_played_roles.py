"""Episodes of several roles: a trajectory and a group each, the engine's own tokens, payments to the right turns."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.request
from typing import Any

import gymnasium
import pytest
from collector_helpers import Characters, collect, engine_of, tokens

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Reply
from textenvs import Task, TextEnv, Turn, frozen_roles
from textenvs.chat.answer import Completion
from textenvs.messages import assistant, user
from trainers.rollout.batch import Batch
from trainers.rollout.environments import EnvSpec
from trainers.trajectory import Status, Trajectory

ORDER = ("ask", "solve", "judge", "solve", "ask")


class Court(TextEnv[Any]):
    """Three roles act in the order of ``ORDER``; the end pays turn ``k`` with ``k + 1``, by a term of its role."""

    roles = ("ask", "solve", "judge")

    def __init__(self) -> None:
        super().__init__([Task("task", "tests", (user("ask: begin"),), ground_truth="")])

    def respond(self, reply: Any) -> Turn:
        number = self.state.assistant_turns - 1
        if number == len(ORDER) - 1:
            earlier = {turn: {ORDER[turn]: turn + 1.0} for turn in range(number)}
            return Turn(terms={ORDER[-1]: 5.0}, earlier=earlier, terminated=True, stop="over")
        name = ORDER[number + 1]
        return Turn([user(f"{name}: {reply['content']}")], role=name, terms={"pace": -0.5})


gymnasium.register(id="tests/court", entry_point=Court)  # type: ignore[arg-type]


def played() -> Batch:
    """A batch of one group; the replies are numbered, with one episode after another."""
    numbers = itertools.count()
    engine = engine_of(lambda call, version: Reply(tokens(f"r{next(numbers) % len(ORDER) + 1}")))
    collected = collect(engine, EnvSpec("tests/court", {}), groups_per_batch=1, max_running=1, tasks=1)
    (batch,) = run_simulated(collected)
    assert {str(call.session) for call in engine.calls if "/g0-" in str(call.session)} <= set(engine.released)
    return batch


def words(trajectory: Trajectory) -> list[str]:
    return [Characters().decode(trajectory.token_ids[trajectory.turn_id == k]) for k in range(trajectory.num_turns)]


def test_roles_have_trajectories_in_groups_of_their_own() -> None:
    batch = played()
    by_agent = batch.by_agent
    assert sorted(by_agent) == sorted(Court.roles)
    assert by_agent["ask"] == batch.trajectories
    size = len(batch.trajectories)
    for role, trajectories in by_agent.items():
        assert len(trajectories) == size
        assert {t.group_id for t in trajectories} == {"g0" if role == "ask" else f"g0-{role}"}
        assert {t.status for t in trajectories} == {Status.COMPLETED}
    first = [by_agent[role][0] for role in Court.roles]
    assert [words(t) for t in first] == [["r1", "r5"], ["r2", "r4"], ["r3"]]
    for trajectory, role in zip(first, Court.roles, strict=True):
        text = Characters().decode(trajectory.token_ids)
        assert all(f"{other}:" not in text for other in set(Court.roles) - {role})
    assert {t.episode_id for t in batch.trained} == {t.episode_id for group in by_agent.values() for t in group}
    assert len(batch.trained) == size * len(Court.roles)


def test_payments_reach_turns_of_other_roles_exactly() -> None:
    batch = played()
    root, solve, judge = (batch.by_agent[role][0] for role in Court.roles)
    assert root.turn_rewards.tolist() == [0.5, 5.0]
    assert solve.turn_rewards.tolist() == [1.5, 3.5]
    assert judge.turn_rewards.tolist() == [2.5]
    assert root.turn_terms == ({"pace": -0.5, "ask": 1.0}, {"ask": 5.0})
    assert solve.turn_terms == ({"pace": -0.5, "solve": 2.0}, {"pace": -0.5, "solve": 4.0})


def propose_and_solve(task: Task, url: str, key: str) -> dict[str, Any]:
    """Let a proposer write a problem, and a solver answer it twice; the solver's words decide both rewards."""

    def call(role: str, *messages: Any) -> Any:
        body = json.dumps({"model": f"policy/{role}", "messages": messages}).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers)) as response:
            return json.load(response)["choices"][0]["message"]

    problem = call("proposer", user("propose"))["content"]
    answers = [call("solver", user(f"solve: {problem}"))["content"] for _ in range(2)]
    return {"solver": [float(answer == "r2") for answer in answers], "proposer": {"hard": -0.25}}


def test_program_of_several_roles_is_trained() -> None:
    pytest.importorskip("aiohttp", reason="needs the extra 'serve'")
    numbers = itertools.count()
    engine = engine_of(lambda call, version: Reply(tokens(f"r{next(numbers) % 3 + 1}")))
    tasks = [Task("task", "tests", (user("?"),), ground_truth="")]
    spec = EnvSpec("textenv/agent", {"agent": propose_and_solve, "roles": ["solver", "proposer"], "tasks": tasks})
    (batch,) = asyncio.run(collect(engine, spec, kind="thread", groups_per_batch=1, max_running=1, tasks=1))
    assert list(batch.by_agent) == ["proposer", "solver"]
    assert batch.by_agent["proposer"] == batch.trajectories
    for proposer, solver in zip(*batch.by_agent.values(), strict=True):
        assert (proposer.stop, solver.stop) == ("solved", "solved")
        assert (words(proposer), words(solver)) == (["r1"], ["r2", "r3"])
        assert proposer.turn_rewards.tolist() == [-0.25]
        assert proposer.turn_terms[0]["hard"] == -0.25
        assert solver.turn_rewards.tolist() == [1.0, 0.0]
        assert "propose" not in Characters().decode(solver.token_ids)
        assert len(solver.segment_starts) == 2
    assert {t.group_id for t in batch.by_agent["solver"]} == {"g0-solver"}


def test_self_play_pays_winner_and_loser() -> None:
    pytest.importorskip("textarena", reason="needs the extra 'textarena'")
    moves = itertools.cycle(["[0]", "[3]", "[1]", "[4]", "[2]"])
    spec = EnvSpec("textenv/textarena", {"game": "TicTacToe-v0", "opponent": "self"})
    engine = engine_of(lambda call, version: Reply(tokens(next(moves))))
    (batch,) = run_simulated(collect(engine, spec, groups_per_batch=1, max_running=1, tasks=2))
    assert [t.turn_rewards.tolist() for t in batch.trajectories] == [[-1.0, 0.0, 2.0]] * 2
    assert [t.turn_rewards.tolist() for t in batch.by_agent["player-1"]] == [[-1.0, 0.0]] * 2


def test_frozen_role_has_no_trajectory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Judge:
        async def complete(self, observation: Any, **_: Any) -> Completion:
            return Completion("j", assistant("j"), "stop", None)

    async def client_for(spec: Any) -> Judge:
        return Judge()

    monkeypatch.setattr(frozen_roles, "client_for", client_for)
    frozen = {"id": "tests/court", "options": {}, "frozen": {"judge": {"model": "m"}}}
    engine = engine_of(lambda call, version: Reply(tokens("r")))
    spec = EnvSpec(frozen_roles.FrozenRoles, frozen)
    (batch,) = run_simulated(collect(engine, spec, groups_per_batch=1, max_running=1, tasks=1))
    assert sorted(batch.by_agent) == ["ask", "solve"]
    assert batch.by_agent["ask"][0].turn_rewards.tolist() == [0.5, 5.0]
    assert batch.by_agent["solve"][0].turn_rewards.tolist() == [1.5, 3.5]
    assert "solve: j" in Characters().decode(batch.by_agent["solve"][0].token_ids)
