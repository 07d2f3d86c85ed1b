"""Episodes of a main agent and a sub-agent, as the collector plays them: with forks, starts and budgets."""

from __future__ import annotations

from typing import Any

import numpy as np
from collector_helpers import Characters, collect, engine_of, tokens
from rollout_fakes import Questions

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from textenvs import Task, TextEnv, Turn
from textenvs.messages import Message, Messages, user
from trainers.algorithms.estimators.fork import Fork
from trainers.config.learning import ForkSection
from trainers.config.rollout import ComponentSection, CurriculumSection
from trainers.rollout.batch import Batch
from trainers.rollout.curriculum import Component, Curriculum, Start, TaskOrder, context_digest
from trainers.rollout.environments import EnvSpec
from trainers.rollout.recorded import context_of
from trainers.trajectory import Status, Trajectory

TURNS = 5


class Delegate(TextEnv[Any]):
    """The main agent's reply opens a sub-agent's conversation, whose reply is told to the main agent, and so on.

    Turns 0, 2 and 4 are the main agent's, 1 and 3 a sub-agent's, each with a conversation of its own.
    """

    def __init__(self, opening: str = "work on ") -> None:
        super().__init__(Questions())
        self.words = opening

    def opening(self, task: Task) -> list[Message]:
        return list(task.prompt)

    def respond(self, reply: Message) -> Turn:
        number = self.state.assistant_turns
        over = number == TURNS
        stop = "solved" if over else None
        reward = float(str(reply["content"])[0])
        if over:
            return Turn(reward=reward, terminated=True, stop=stop)
        if number % 2:
            return Turn(reward=reward, context=[user(self.words + str(reply["content"]))])
        main: Messages = next(c for c in self.state.contexts if c[0] == self.task.prompt[0])
        return Turn(reward=reward, context=(*main, user(f"it said {reply['content']}")))


def digits(call: Call, version: int) -> Reply:
    number = (call.sampling.seed or 0) % 10
    return Reply(tokens(f"{number} on"), latency=1.0 + number)


def collected(spec: EnvSpec | None = None, batches: int = 1, **options: Any) -> list[Batch]:
    options = {"n": 2, "groups_per_batch": 2} | options
    return run_simulated(collect(engine_of(digits), spec or EnvSpec(Delegate), batches, **options))


def first_digits(t: Trajectory) -> list[float]:
    ends = np.append(np.flatnonzero(np.diff(t.turn_id[t.actions])) + 1, len(t.actions))
    starts = t.actions[np.append(0, ends[:-1])]
    return [float(chr(token)) for token in t.token_ids[starts]]


def test_main_agent_continues_after_its_sub_agents() -> None:
    (batch,) = collected()
    for t in batch.trajectories:
        assert (t.status, t.num_turns, len(t.segments())) == (Status.COMPLETED, TURNS, 3)
        assert t.turn_rewards.tolist() == first_digits(t)
        for turn in (2, 4):
            before = [*context_of(t, turn - 2), *t.token_ids[t.turn_id == turn - 2]]
            assert context_of(t, turn)[: len(before)].tolist() == before
            reply = Characters().decode(t.token_ids[t.turn_id == turn - 1].tolist())
            assert Characters().decode(context_of(t, turn)[len(before) :].tolist()) == f"it said {reply}"
        for turn in (1, 3):
            text = Characters().decode(context_of(t, turn).tolist())
            assert text == "work on " + Characters().decode(t.token_ids[t.turn_id == turn - 1].tolist())


def test_forks_go_back_to_their_roots_contexts() -> None:
    (batch,) = collected(algorithm=Fork(), fork=ForkSection(samples=1))
    roots = {root.episode_id: root for root in batch.trajectories}
    forks = batch.of("fork")
    assert {fork.forked_turn for fork in forks} == set(range(TURNS))
    for fork in forks:
        root, first = roots[fork.forked_from], fork.forked_turn
        assert context_of(fork, 0).tolist() == context_of(root, first).tolist()
        assert fork.num_turns == TURNS - first
        assert fork.turn_rewards.tolist() == first_digits(fork)
        if fork.num_turns > 1:  # from the sub-agent's turn back into the main agent's tokens, or the other way
            main = [turn for turn in range(fork.num_turns) if (first + turn) % 2 == 0]
            opening = context_of(root, 0).tolist()
            assert all(context_of(fork, turn)[: len(opening)].tolist() == opening for turn in main)


def test_start_is_replayed_through_contexts() -> None:
    (batch,) = collected()
    source = batch.trajectories[0]
    start = Start.of(source, 0, 1)
    assert start.turn == TURNS - 1
    assert list(start.contexts) == [context_digest(context_of(source, turn)) for turn in range(1, TURNS)]
    part = Component("", TaskOrder(None), ComponentSection(success_reward=22.0))
    curriculum = Curriculum([part], CurriculumSection(reverse_share=0.9))
    batches = collected(batches=8, tasks=curriculum, n=3, groups_per_batch=1)
    started = [t for b in batches for t in b.trajectories if t.metrics.get("start_turn")]
    assert all(t.status is Status.COMPLETED for b in batches for t in b.trajectories)
    assert started
    assert all(t.num_turns == TURNS - t.metrics["start_turn"] for t in started)


def test_context_without_room_ends_in_words() -> None:
    (batch,) = collected(EnvSpec(Delegate, {"opening": "x" * 100}), max_response_tokens=50)
    for t in batch.trajectories:
        assert t.status is Status.TRUNCATED_CONTEXT
        assert t.num_turns == 1
        assert "the context that turn 1 goes on in has" in (t.error or "")
        assert len(t.segments()) == 2
