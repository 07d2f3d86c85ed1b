"""Rewards of whole episodes see every context in the order of time: nothing hides in one that was left."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from collector_helpers import collect, engine_of, prompt_text, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_fakes import Questions

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from textenvs import Task, TextEnv, Turn
from textenvs.messages import Message, user
from trainers.algorithms.estimators.fork import Fork
from trainers.builders import collection
from trainers.config.learning import ForkSection
from trainers.config.reward_model import OverlongBufferSection
from trainers.config.rollout import ComponentSection, CurriculumSection, RolloutSection
from trainers.rewards import reward_of
from trainers.rewards.credit_assignment import overlong_penalty
from trainers.rollout.batch import Batch
from trainers.rollout.curriculum import Component, Curriculum, TaskOrder
from trainers.rollout.environments import EnvSpec
from trainers.rollout.rewards import TurnContext
from trainers.trajectory import Status, Trajectory


class Ways(TextEnv[Any]):
    """After turn k comes what ``ways[k]`` says, and then the end.

    A sub-agent's conversation (``sub``), the main agent's last one (``main``), or one that begins with its first
    reply (``branch``).
    """

    def __init__(self, ways: str = "sub main sub main") -> None:
        super().__init__(Questions())
        self.ways = ways.split()

    def opening(self, task: Task) -> list[Message]:
        return list(task.prompt)

    def respond(self, reply: Message) -> Turn:
        number = self.state.assistant_turns
        if number > len(self.ways):
            return Turn(reward=float(str(reply["content"]).endswith("y")), terminated=True, stop="solved")
        new, (first, *_) = user(f"message {number}"), self.task.prompt
        if self.ways[number - 1] == "sub":
            return Turn(context=[new])
        main = [talk for talk in (*self.state.contexts, self.state.messages) if talk[0] == first]
        if self.ways[number - 1] == "branch":
            return Turn(context=[*main[-1][:2], new])
        return Turn([new]) if main[-1] is self.state.messages else Turn(context=[*main[-1], new])


def played(
    lengths: Any, ways: str = "sub main sub main", odd: str = "", **options: Any
) -> tuple[list[Batch], list[TurnContext]]:
    """Play replies of these lengths, by turn, half of them with ``odd`` at their end.

    Return the batches, and each episode as a reward of its end sees it.
    """
    seen: list[TurnContext] = []

    async def earned() -> float:
        return 0.0

    def whole(so_far: TurnContext, turn: int) -> Awaitable[float] | None:
        if so_far.over:
            seen.append(so_far)
        return earned() if so_far.over else None

    def script(call: Call, version: int) -> Reply:
        _, words, number = prompt_text(call).rpartition("message ")
        turn = int(number) if words else 0
        return Reply(tokens(f"{turn} " + "x" * lengths[turn] + odd * ((call.sampling.seed or 0) % 2)))

    rewards = {"whole": whole, **options.pop("rewards", {})}
    options = {"n": 1, "groups_per_batch": 1, "rewards": rewards} | options
    batches = options.pop("batches", 1)
    return run_simulated(collect(engine_of(script), EnvSpec(Ways, {"ways": ways}), batches, **options)), seen


def sampled(t: Trajectory) -> list[int]:
    """Return by how many tokens each context grew from its first sampled token to its last."""
    grown = []
    for context in t.segments():
        places = [place for place in range(context.start, context.stop) if t.action_mask[place]]
        grown.append(places[-1] + 1 - places[0] if places else 0)
    return grown


ways = st.lists(st.sampled_from(["sub", "main", "branch"]), max_size=6).map(" ".join)


@given(ways=ways, lengths=st.lists(st.integers(0, 30), min_size=7, max_size=7))
@settings(max_examples=30, deadline=None)
def test_every_sampled_token_has_its_length(ways: str, lengths: list[int]) -> None:
    ([batch], [context]) = played(lengths, ways)
    (t,) = batch.trajectories
    assert t.status is Status.COMPLETED
    assert context.response_tokens == sum(sampled(t))
    assert [str(reply["content"]) for reply in context.replies] == [
        f"{turn} " + "x" * lengths[turn] for turn in range(t.num_turns)
    ]
    news = [message for message in context.episode if message["role"] == "user"][1:]
    assert news == [user(f"message {number}") for number in range(1, t.num_turns)]


def penalties(limit: int, buffer: int) -> Any:
    section = OverlongBufferSection(enable=True, len=buffer)
    config = SimpleNamespace(overlong_buffer=section, rollout=RolloutSection(max_response_tokens=limit))
    return collection.penalties(config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ways", ["sub sub sub", "branch branch branch", "sub main sub", "main sub branch", "main main main"]
)
def test_short_last_context_does_not_evade_the_penalty(ways: str) -> None:
    """The cheapest evasion: all words in contexts that are left, and a last one without any."""
    limit, buffer = 150, 100
    lengths = [30, 30, 30, 0]
    ([batch], [context]) = played(lengths, ways, rewards=penalties(limit, buffer), max_response_tokens=limit)
    (t,) = batch.trajectories
    assert t.turn_terms[-1]["overlong"] == overlong_penalty(sum(sampled(t)), limit, buffer)
    assert t.turn_terms[-1]["overlong"] <= -0.4
    if "main" not in ways.split()[1:]:
        assert overlong_penalty(sampled(t)[-1], limit, buffer) == 0.0


def test_honest_short_episode_pays_nothing() -> None:
    ([batch], _) = played([1] * 5, rewards=penalties(150, 100), max_response_tokens=150)
    assert batch.trajectories[0].turn_terms[-1]["overlong"] == 0.0


class Scores:
    """Record of the requests to a function or a model."""

    def __init__(self, per_turn: bool = False) -> None:
        self.calls: list[Any] = []
        self.sections = {"model": SimpleNamespace(per_turn=per_turn, weight=1.0)}

    async def score(self, *request: Any, **question: Any) -> float:
        self.calls.append(question or request[1])
        return 0.0


def test_users_function_reads_replies_of_all_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("key", "source", (user("question"),), "truth", extra={"row": 1})
    monkeypatch.setattr(collection, "task_finder", lambda config: lambda so_far: task)
    config, pool = SimpleNamespace(custom_reward_function=SimpleNamespace(replace=True)), Scores()
    score = collection.custom_reward(config, pool)  # type: ignore[arg-type]
    _, [context] = played([0, 1, 2, 3, 4], rewards={"custom": score})
    (call,) = pool.calls
    assert call["solution_str"] == "0 \n\n1 x\n\n2 xx\n\n3 xxx\n\n4 xxxx"
    assert [message["content"] for message in call["extra_info"]["messages"]][1:] == [
        *("0 ", "message 1", "1 x", "message 2", "2 xx", "message 3", "3 xxx", "message 4", "4 xxxx")
    ]
    assert (call["ground_truth"], call["extra_info"]["row"]) == ("truth", 1)


def test_reward_model_reads_all_contexts_once() -> None:
    service, turns = Scores(), Scores(per_turn=True)
    scores = {"model": reward_of(service, "model"), "turns": reward_of(turns, "model")}  # type: ignore[arg-type]
    _, [context] = played([1, 2, 3, 4, 5], rewards=scores)
    (request,) = service.calls
    assert (request.messages, request.turn) == (context.episode, None)
    replies = ["0 x", "1 xx", "2 xxx", "3 xxxx", "4 xxxxx"]
    assert [message["content"] for message in request.messages if message["role"] == "assistant"] == replies
    assert [request.messages[-1]["content"] for request in turns.calls] == replies
    assert [len(request.messages) for request in turns.calls] == [2, 2, 4, 2, 6]


def test_forks_and_starts_have_the_replies_before_them() -> None:
    lengths = [3, 1, 4, 1, 5]
    (batch,), forked = played(lengths, algorithm=Fork(), fork=ForkSection(samples=1), odd="y")
    assert batch.of("fork")
    part = Component("", TaskOrder(None), ComponentSection(success_reward=1.0))
    curriculum = Curriculum([part], CurriculumSection(reverse_share=0.9))
    batches, started = played(lengths, batches=8, tasks=curriculum, n=3, odd="y")
    assert any(t.metrics.get("start_turn") for batch in batches for t in batch.trajectories)
    for context in (*forked, *started):
        replies = [str(message["content"]) for message in context.replies]
        assert [reply.rstrip("y") for reply in replies] == [f"{k} " + "x" * size for k, size in enumerate(lengths)]
        bridges = [f"(message {number})+" for number in (2, 4)]  # a token for each mark around it
        assert context.response_tokens == sum(len(text) for text in bridges) + sum(len(text) + 1 for text in replies)
