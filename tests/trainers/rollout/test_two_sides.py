"""Both sides of an episode as trajectories: turns, rewards, refused messages, groups, and the engine's own tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import program_envs  # noqa: F401 (registers the environments)
import pytest
from collector_helpers import Characters, collect, engine_of, prompt_text, tokens, turn_of

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from textenvs import Task, TextEnv, Turn
from textenvs.messages import user as user_message
from textenvs.two_sides import Cut, TwoSides
from textenvs.users.base import take_turn
from textenvs.users.llm import LLMUser
from trainers.rollout.batch import Batch
from trainers.rollout.environments import Backend, EnvSpec
from trainers.trajectory import Status, Trajectory

Calls = list[tuple[str, list[int]]]


def spec(**options: Any) -> EnvSpec:
    user = {"tries": 2, "prompt": "short", "may_end": False}
    return EnvSpec(TwoSides, {"id": "tests/order", "options": {}, "user": user, "refused_cost": 0.5} | options)


def played(
    users: Sequence[Sequence[str]], assistants: Sequence[str] = ("Which?", "tea", "tea"), **options: Any
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
    (batch,) = run_simulated(collect(engine, spec(**options), groups_per_batch=1, max_running=1, tasks=2))
    assert sorted(engine.released) == sorted({str(call.session) for call in engine.calls})
    return batch, calls


def words(trajectory: Trajectory) -> list[str]:
    """Return the text that a side sampled, turn by turn."""
    return [Characters().decode(trajectory.token_ids[trajectory.turn_id == k]) for k in range(trajectory.num_turns)]


def contexts(trajectory: Trajectory) -> list[list[int]]:
    """The tokens that each turn was sampled after: those of its segment before it."""
    contexts_ = []
    for turn in range(trajectory.num_turns):
        start = int(np.argmax(trajectory.turn_id == turn))
        segment = max(first for first in trajectory.segment_starts.tolist() if first <= start)
        contexts_.append(trajectory.token_ids[segment:start].tolist())
    return contexts_


def test_episode_yields_both_sides_with_engine_tokens() -> None:
    batch, calls = played([["a number 5", "tea"], ["coffee"], ["Bye."]])
    assert [t.episode_id for t in batch.of("partner")] == [f"{t.episode_id}-user" for t in batch.trajectories]
    assert {t.group_id for t in batch.of("partner")} == {"g0-user"}
    assert batch.trained == [*batch.trajectories, *batch.of("partner")]
    policy, user = batch.trajectories[0], batch.of("partner")[0]
    assert words(policy) == ["Which?", "tea", "tea"]
    assert words(user) == ["a number 5", "tea", "coffee", "Bye."]
    half = calls[: len(calls) // 2]
    assert [side for side, _ in half] == ["assistant", "user", "user", "assistant", "user", "assistant", "user"]
    assert contexts(policy) == [ids for side, ids in half if side == "assistant"]
    assert contexts(user) == [ids for side, ids in half if side == "user"]
    # The second try has its hint in a rendering of its own, which no later turn sees.
    assert len(user.segment_starts) == 3
    texts = [m["content"] for m in policy.messages]
    assert texts[1:] == ["Which?", "tea", "tea", "coffee", "tea", "Bye."]
    assert (policy.status, user.status) == (Status.TRUNCATED_TURNS, Status.TRUNCATED_TURNS)


@pytest.mark.parametrize(("reward", "sign"), [("shared", 1.0), ("opposed", -1.0)])
def test_message_earns_answered_turn_and_refused_costs(reward: str, sign: float) -> None:
    batch, _ = played([["a number 5", "tea"], ["coffee"], ["Bye."]], ["Which?", "tea", "coffee"], reward=reward)
    policy, user = batch.trajectories[0], batch.of("partner")[0]
    assert policy.turn_rewards.tolist() == [-0.25, 0.75, -0.25]
    assert user.turn_rewards.tolist() == [-0.5, sign * -0.25, sign * 0.75, sign * -0.25]
    assert user.turn_terms[:2] == ({"refused": -0.5}, {"answer": sign * -0.25})


def test_always_refused_user_is_penalised_and_counts() -> None:
    user = played([["tea"], ["no 5", "no 6"]], fixed="expert")[0].trajectories[0]
    assert (user.status, user.stop, user.terminated) == (Status.COMPLETED, "user_failed", True)
    assert words(user) == ["tea", "no 5", "no 6"]
    assert user.turn_rewards.tolist() == [-0.25, -0.5, -0.5]  # the second turn has failed


def test_fixed_assistant_leaves_users_side_alone() -> None:
    batch, calls = played([["tea"], ["coffee"], ["Bye."]], fixed="expert")
    user = batch.trajectories[0]
    assert {side for side, _ in calls} == {"user"}
    assert words(user) == ["tea", "coffee", "Bye."]
    assert user.turn_rewards.tolist() == [-0.25, 0.75, -0.25]
    assert user.messages[0]["content"].startswith("You are the user")


def test_attempts_failed_on_user_join_users_group() -> None:
    bad = iter(["no 5", "no 6"])

    def script(call: Call, version: int) -> Reply:
        if prompt_text(call).startswith("You are the user"):
            return Reply(tokens(next(bad, "tea")))
        return Reply(tokens(["Which?", "bye"][turn_of(call)]))

    (batch,) = run_simulated(collect(engine_of(script), spec(), groups_per_batch=1, max_running=1, tasks=2))
    assert [t.status for t in batch.trajectories] == [Status.COMPLETED] * 2
    # "tea" answers the first reply; no message answers the last one, "bye".
    assert [t.turn_rewards.tolist() for t in batch.of("partner")] == [[-0.5, -0.5], [-0.5], [-0.5]]
    assert [t.terminated for t in batch.of("partner")] == [True] * 3
    assert {t.group_id for t in batch.of("partner")} == {"g0-user"}


async def test_process_plays_as_event_loop_does() -> None:
    results = []
    for kind in ("inline", "process"):
        recipe = spec(id="program_envs:tests/order", fixed="expert")
        async with Backend(recipe, kind, workers=1) as backend, backend.lease() as env:  # type: ignore[arg-type]
            results.append([await env.reset(3, {}), *[await env.step(text) for text in ("no 5", "tea", Cut("x"))]])
    assert results[0] == results[1]


def test_cut_or_empty_user_message_is_refused() -> None:
    env = TwoSides("tests/order", {}, user={"prompt": "short"}, refused_cost=0.5)
    assert env.reset(seed=0)[1]["role"] == "assistant"
    env.step("Which?")
    for words in (Cut("tea and"), ""):
        request, _, _, _, info = env.step(words)
        assert (info["terms"], info["earlier"]) == ({"refused": -0.5}, {})
        assert "could not be used" in request[0]["content"]
    assert env.step("tea")[4]["role"] == "assistant"
    clear = TwoSides("textenv/clarify", {"ambiguous": 0.0}, user={}, fixed="expert")
    with pytest.raises(Exception, match=r"ended the episode \(solved\) before the user had a turn"):
        clear.reset(seed=0)


class Closing(TextEnv[Any]):
    """The user decides when it is satisfied, and pays for its words; the assistant's "bye" is not answered."""

    def __init__(self, user: Any = None) -> None:
        tasks = [Task("task", "tests", (user_message("Help me."),), ground_truth="")]
        super().__init__(tasks, max_assistant_turns=6)
        self.player = LLMUser.of(user)

    async def respond(self, reply: Any) -> Turn:
        turns = self.state.assistant_turns
        if reply["content"] == "bye":
            return Turn(terms={"score": 0.25, "cost": 0.0}, terminated=True, stop="closed")
        turn = await take_turn(self.player, self.state.messages, "You want help.", self.np_random)
        satisfied = turn.text == "enough"
        terms = {"score": satisfied * (1.0 - 0.3 * abs(turns - 2)), "cost": -0.01 * len(turn.text)}
        return Turn((user_message(turn.text),), terms=terms, terminated=satisfied, stop="solved" if satisfied else None)


gymnasium.register(id="tests/closing", entry_point=Closing)  # type: ignore[arg-type]


NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def talks(messages: Sequence[str], most: int) -> Iterator[tuple[str, ...]]:
    """All that a user can say to the end: "enough" ends the talk, and so does the last message."""
    for length in range(1, most + 1):
        for talk in itertools.product(messages, repeat=length):
            if "enough" not in talk[:-1] and (length == most or talk[-1] == "enough"):
                yield talk


def play(talk: Sequence[str], reward: str) -> tuple[list[float], float]:
    """Return what each message of the user earned, and the assistant's return."""
    env = TwoSides("tests/closing", {}, user={"prompt": "short", "may_end": False}, reward=reward)  # type: ignore[arg-type]
    env.reset(seed=0)
    earned = [0.0] * (2 * len(talk) + 1)  # the assistant speaks first
    replies = [reply for answer in talk for reply in ("here", answer)]
    for turn, reply in enumerate([*replies, "bye"]):
        _, _, terminated, _, info = env.step(reply)
        for number, terms in {**info["earlier"], turn: info["own_terms"]}.items():
            earned[number] += sum(terms.values())
        if terminated:
            break
    return earned[1::2], sum(earned[::2])


@pytest.mark.parametrize(("reward", "sign"), [("shared", 1.0), ("opposed", -1.0)])
def test_messages_returns_are_talks_by_enumeration(reward: str, sign: float) -> None:
    """From any message on, two talks differ in what the user earns as they differ in the reward that is shared.

    That makes the policy gradient of the credited rewards the gradient of the shared return, the closing message's
    share included.
    """
    played = {talk: play(talk, reward) for talk in talks(("enough", "more", "more, please"), 3)}
    assert len(played) == 15
    for one, other in itertools.combinations(played, 2):
        for turn in range(min(len(one), len(other))):
            if one[:turn] == other[:turn]:
                later = [sum(played[talk][0][turn:]) for talk in (one, other)]
                total = [played[talk][1] for talk in (one, other)]
                assert later[0] - later[1] == pytest.approx(sign * (total[0] - total[1])), (one, other, turn)
    best = max(played, key=lambda talk: sum(played[talk][0]))
    assert best[-1] == "enough" if sign > 0 else best[-1] != "enough"


@pytest.mark.parametrize(
    ("utterance", "share"),
    [("{value}", 1.0), ("It is {value}, please.", 1.0), ("{spelt}", 0.0), ("{coded}", 0.0), ("Hm.", 0.0)],
)
@pytest.mark.parametrize("reward", ["shared", "opposed"])
def test_only_what_rule_recovers_is_shared(utterance: str, share: float, reward: str) -> None:
    """An assistant that reads every code is right; a user that told it in a code earns nothing of that."""
    env = TwoSides("textenv/clarify", {"ambiguous": 1.0}, user={"prompt": "short"}, reward=reward)  # type: ignore[arg-type]
    for index in range(6):
        env.reset(seed=index, options={"task_index": index})
        request = env.env._request
        value = str(request.values[request.missing[0]])
        env.step(env.env.demonstration(np.random.default_rng(0)))
        letters = "".join(NAMES[int(one)] if one.isdigit() else one for one in value)
        codes = {"value": value, "spelt": " ".join(letters), "coded": "".join(chr(97 + ord(c) % 26) for c in value)}
        env.step(utterance.format(**codes))
        _, _, terminated, _, info = env.step(f"#### {' '.join(request.answer)}")
        assert terminated
        assert info["terms"]["correct"] == 1.0
        assert info["earlier"] == {1: {"answer": share if reward == "shared" else -1.0}}


def test_asked_values_count_though_said_of_something_else() -> None:
    env = TwoSides("textenv/clarify", {"ambiguous": 1.0}, user={"prompt": "short"}, fixed="expert")
    ambiguous = 0
    for index in range(100):
        env.reset(seed=index, options={"task_index": index})
        request = env.env._request
        value = request.values[request.missing[0]]
        if list(request.values.values()).count(value) > 1:
            ambiguous += 1
            assert env.step(str(value))[4]["stop"] == "solved"
    assert ambiguous


def test_closing_message_earns_score_it_ends_with() -> None:
    earned, _ = play(("more", "enough"), "shared")
    assert earned == pytest.approx([-0.04, 1.0 - 0.06])
