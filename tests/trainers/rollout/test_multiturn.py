"""The multiturn-aware reward beside collection: what it pays, what it leaves alone, and that nothing waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from collector_helpers import Characters, collect, collector_of, engine_of, tokens, turn_of
from rollout_fakes import Errand
from simulated_time import simulated

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from textenvs import Task, TextEnv, Turn
from textenvs.lookahead import FAILURES, Lookahead
from textenvs.messages import Message, assistant, user
from trainers.algorithms.estimators.fork import Fork
from trainers.config.reward_model import MultiturnRewardSection
from trainers.config.rollout import ComponentSection, CurriculumSection
from trainers.engines.base import EngineError, Sampling
from trainers.rollout.batch import Batch
from trainers.rollout.curriculum import Component, Curriculum, TaskOrder
from trainers.rollout.engine_policy import EnginePolicy, NoRoomError, Speaker
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.group_scheduler import ConsecutiveErrorsError
from trainers.rollout.rewards import MultiturnScore
from trainers.trajectory import EpisodeError, Status

ONE: dict[str, Any] = {"n": 1, "groups_per_batch": 1}


class Questions:
    name, size = "one question", None

    def __getitem__(self, index: int) -> Task:
        return Task(str(index), "test", (user("What is 3 + 4?"),), "7")


class Chat(TextEnv[Any]):
    """Three turns, paid by what stands first in the reply; its user takes a second and answers at random."""

    def __init__(self, seconds: float = 1.0) -> None:
        super().__init__(Questions())
        self.seconds = seconds

    def opening(self, task: Task) -> list[Message]:
        return list(task.prompt)

    async def respond(self, reply: Message) -> Turn:
        await asyncio.sleep(self.seconds)
        over = self.state.assistant_turns == 3
        messages = [] if over else [user(f"go on {int(self.np_random.integers(1000))}")]
        stop = "solved" if over else None
        return Turn(messages, reward=float(reply["content"].split(" ")[0]), terminated=over, stop=stop)


def is_future(call: Call) -> bool:
    return "-future" in (call.session or "")


def three_turns(call: Call, version: int) -> Reply:
    """0.1, 0.2 and 0.3, three seconds each; 5 a turn in futures."""
    return Reply(tokens("5 ahead" if is_future(call) else f"0.{turn_of(call) + 1} on"), latency=3.0)


def ahead(**options: Any) -> Lookahead:
    return Lookahead(None, **options | {"failures": (*FAILURES, EpisodeError)})


def five(**options: Any) -> Lookahead:
    return ahead(**{"samples": 2, "window": 1} | options)


def run(score: MultiturnScore | None, **options: Any) -> Batch:
    rewards = {} if score is None else {"multiturn": score}
    return run_simulated(collect(engine_of(three_turns), EnvSpec(Chat), rewards=rewards, **ONE | options))[0]


def test_turn_earns_futures_value_without_side_effects() -> None:
    score = MultiturnScore(five(), MultiturnRewardSection(replace=False))
    (with_it,), (without,) = run(score).trajectories, run(None).trajectories
    assert with_it.token_ids.tolist() == without.token_ids.tolist()
    assert with_it.messages == without.messages
    # What the conversation was worth so far, and 5 for the turn that the futures play; nothing is ahead of the last.
    returns = [terms["return"] for terms in with_it.turn_terms]
    assert returns == pytest.approx([0.1 + 5, 0.1 + 0.2 + 5, 0.1 + 0.2 + 0.3])
    assert all(terms["cost"] < 0 for terms in with_it.turn_terms)
    assert [terms["reward"] for terms in with_it.turn_terms] == [0.1, 0.2, 0.3]
    for turn, terms in enumerate(with_it.turn_terms):
        assert with_it.turn_rewards[turn] == pytest.approx(sum(terms.values()))
    stats = score.stats()
    assert {name: stats[name] for name in ("turns", "samples", "failures", "policy_calls")} == {
        "turns": 3,
        "samples": 5,
        "failures": 0,
        "policy_calls": 4,
    }
    assert score.stats()["turns"] == 0, "since the last call"


@pytest.mark.parametrize("credit", ["value", "difference"])
def test_in_place_of_what_environment_pays(credit: Any) -> None:
    (beside,) = run(MultiturnScore(five(), MultiturnRewardSection(credit=credit, replace=False))).trajectories
    (instead,) = run(MultiturnScore(five(), MultiturnRewardSection(credit=credit))).trajectories
    difference = beside.turn_rewards - instead.turn_rewards
    assert difference.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_differences_sum_to_what_conversation_became() -> None:
    (values,) = run(MultiturnScore(five())).trajectories
    (differences,) = run(MultiturnScore(five(), MultiturnRewardSection(credit="difference"))).trajectories
    worth = values.turn_rewards.tolist()
    assert differences.turn_rewards.tolist() == pytest.approx([worth[0], worth[1] - worth[0], worth[2] - worth[1]])
    assert differences.turn_rewards.sum() == pytest.approx(worth[-1])


def test_mid_conversation_start_costs_as_from_opening() -> None:
    def script(call: Call, version: int) -> Reply:
        return Reply(tokens(f"{(call.sampling.seed or 0) % 10} on"))

    score = MultiturnScore(ahead(window=0, cost=1.0))
    component = Component("", TaskOrder(None), ComponentSection(success_reward=0.0))
    chooser = Curriculum([component], CurriculumSection(reverse_share=0.9), 7)
    options: dict[str, Any] = {"tasks": chooser, "seed": 7, "n": 2, "groups_per_batch": 3}
    batches = run_simulated(collect(engine_of(script), EnvSpec(Errand), 3, rewards={"multiturn": score}, **options))
    started = 0
    for choice, group in ((c, g) for batch in batches for c, g in zip(batch.choices, batch.groups, strict=True)):
        for episode in group:
            started += choice.start is not None
            words = sum(len(message["content"].split()) for message in episode.messages[1:])
            assert episode.turn_terms[-1]["cost"] == pytest.approx(-words)
    assert started


def test_reused_environment_keeps_differences_apart() -> None:
    options = {"n": 2, "groups_per_batch": 4}
    batch = run(MultiturnScore(five(), MultiturnRewardSection(credit="difference")), **options)
    for trajectory in batch.trajectories:
        assert trajectory.turn_rewards.sum() == pytest.approx(batch.trajectories[0].turn_rewards.sum(), abs=1e-2)


@simulated
async def test_evaluation_earns_what_environment_pays() -> None:
    score = MultiturnScore(five())
    async with (
        Backend(EnvSpec(Chat)) as backend,
        collector_of(engine_of(three_turns), backend, rewards={"multiturn": score}) as collector,
    ):
        (trajectory,), stats = await collector.evaluate([0]), score.stats()
    assert trajectory.turn_rewards.tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert stats["turns"] == 0


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_futures_are_same_wherever_environments_run(kind: Any) -> None:
    def quick(call: Call, version: int) -> Reply:
        return Reply(script(call, version).token_ids)

    def script(call: Call, version: int) -> Reply:
        return Reply(tokens(f"{(call.sampling.seed or 0) % 7} on"))

    def rewards() -> dict[str, Any]:
        return {"multiturn": MultiturnScore(ahead(samples=2, window=2))}

    options = {"rewards": rewards(), **ONE}
    elsewhere = asyncio.run(collect(engine_of(quick), EnvSpec(Errand), kind=kind, limits={"workers": 2}, **options))
    inline = run_simulated(collect(engine_of(script), EnvSpec(Errand), **options | {"rewards": rewards()}))
    assert elsewhere[0].trajectories == inline[0].trajectories


@pytest.mark.parametrize("credit", ["value", "difference"])
def test_forks_of_episode_are_rewarded_likewise(credit: Any) -> None:
    """The first turn of a fork is compared with what its root was worth before it."""
    score = MultiturnScore(five(samples=1), MultiturnRewardSection(credit=credit, replace=False))
    batch = run(score, algorithm=Fork())
    (root,), forks = batch.trajectories, batch.of("fork")
    assert len(forks) == root.num_turns
    for fork in forks:  # they say what their root says
        np.testing.assert_allclose(fork.turn_rewards, root.turn_rewards[fork.forked_turn :])


# ---------------------------------------------------------------- with the engine's own model


def policy_of(engine: Any) -> EnginePolicy:
    return EnginePolicy(engine, Characters(), Sampling(max_new_tokens=40))  # type: ignore[arg-type]


@simulated
async def seconds(episodes: int, samples: int | None, window: int = 2) -> float:
    """Simulated seconds until one batch of so many episodes is there."""
    engine = engine_of(three_turns)
    rewards = {}
    if samples is not None:
        rewards["multiturn"] = MultiturnScore(ahead(samples=samples, window=window))
    began = asyncio.get_running_loop().time()
    options = {"n": 1, "groups_per_batch": episodes, "rewards": rewards}
    async with Backend(EnvSpec(Chat)) as backend, collector_of(engine, backend, **options) as collector:
        await collector.next_batch()
    return asyncio.get_running_loop().time() - began


def test_futures_are_played_at_same_time() -> None:
    """The promise: 3 samples of 2 turns for 16 episodes in at most 1.5 times the time of one future of one episode."""
    alone, one, many = seconds(1, None), seconds(1, 1), seconds(16, 3)
    assert alone == pytest.approx(3 * (3 + 1))
    # The futures of the first turn end with the episode, those of the second a turn before their window does.
    assert one == pytest.approx(12)
    assert many <= 1.5 * one
    assert seconds(16, 3, window=4) == pytest.approx(one), "a window ends where the conversation does"


def test_time_of_future_begins_when_it_has_environment() -> None:
    """One environment for six episodes: futures of four seconds wait for it up to a minute."""
    scarce: dict[str, Any] = {"groups_per_batch": 6, "limits": {"workers": 1}}
    batch = run(MultiturnScore(five(timeout_s=20.0)), **scarce)
    expected = run(MultiturnScore(five()), groups_per_batch=6)
    assert [t.turn_rewards.tolist() for t in batch.trajectories] == [
        t.turn_rewards.tolist() for t in expected.trajectories
    ]
    with pytest.raises(ConsecutiveErrorsError, match=r"the future took longer than 3\.5 s"):
        run(MultiturnScore(five(timeout_s=3.5)), max_consecutive_errors=2, **scarce)


@simulated
async def test_future_outlives_its_episode_and_is_waited_for() -> None:
    """The reply after the third is the user's last; a slow future of an early turn ends after the episode."""

    def script(call: Call, version: int) -> Reply:
        return Reply(tokens("1 on"), latency=30.0 if is_future(call) else 3.0)

    engine = engine_of(script)
    rewards = {"multiturn": MultiturnScore(ahead(samples=3, window=2))}
    async with Backend(EnvSpec(Chat)) as backend, collector_of(engine, backend, rewards=rewards, **ONE) as collector:
        batch = await collector.next_batch()
    assert asyncio.get_running_loop().time() == pytest.approx(4 + 2 * 31), (
        "the first turn's futures, two turns each, beside everything else"
    )
    assert [terms["return"] for terms in batch.trajectories[0].turn_terms] == [3.0, 3.0, 3.0]


def test_futures_differ_and_are_reproducible() -> None:
    def script(call: Call, version: int) -> Reply:
        return Reply(tokens(f"{call.sampling.seed % 1000} on"), latency=1.0)

    def rewards() -> list[float]:
        async def play() -> Batch:
            engine = engine_of(script)
            score = MultiturnScore(ahead(samples=3, window=1))
            async with (
                Backend(EnvSpec(Chat)) as backend,
                collector_of(engine, backend, rewards={"multiturn": score}, **ONE) as collector,
            ):
                batch = await collector.next_batch()
                seeds = [call.sampling.seed for call in engine.calls]
                assert len(set(seeds)) == len(seeds) == 3 + 2 * 3
                return batch

        return [float(reward) for t in run_simulated(play()).trajectories for reward in t.turn_rewards]

    assert rewards() == rewards()


@simulated
async def test_what_was_sampled_is_never_tokenised_again() -> None:
    """The second prompt of a future is the first, its reply as sampled, and what the environment said."""
    odd = [*map(ord, "5 "), 7, *map(ord, "on"), 2]  # 7 is a token that no text becomes
    engine = engine_of(lambda call, version: Reply(odd))
    speaker = Speaker(policy_of(engine), seed=3)
    opening = (user("a"), assistant("before"), user("b"))
    first_reply = await speaker.reply(opening)
    again = await speaker.reply((*opening, assistant(first_reply.text), user("c")))
    first, second = (list(call.token_ids) for call in engine.calls)
    assert first == Characters().render((user("a"), assistant("before"), user("b")))
    assert second == [*first, *odd, *Characters().render((user("c"),))]
    assert (first_reply.prompt_tokens, again.prompt_tokens) == (len(first), len(second))
    assert engine.calls[0].sampling.seed != engine.calls[1].sampling.seed


@simulated
async def test_future_without_room_is_scored_as_it_stands() -> None:
    """There is room for a turn of the episode and one of its futures; then the context is full for both."""
    opening = len(Characters().render((user("What is 3 + 4?"),)))
    engine = engine_of(lambda call, version: Reply(tokens("1 on")), max_context=opening + 27)
    options = {"rewards": {"multiturn": MultiturnScore(ahead(samples=2, window=3))}, **ONE}
    async with Backend(EnvSpec(Chat)) as backend, collector_of(engine, backend, **options) as collector:
        batch = await collector.next_batch()
    with pytest.raises(NoRoomError, match="room for"):
        await Speaker(policy_of(engine), 0).reply((user("x" * 100),))
    trajectory = batch.trajectories[0]
    assert trajectory.status is Status.TRUNCATED_CONTEXT
    assert [terms["return"] for terms in trajectory.turn_terms] == [2.0, 2.0]


@simulated
async def test_cut_future_is_replayed_by_new_weights() -> None:
    def script(call: Call, version: int) -> Reply:
        slow = is_future(call) and "/g1-" in (call.session or "")
        return Reply(tokens(f"{version + 1} on"), latency=30.0 if slow else 1.0)

    engine = engine_of(script)
    options = {"rewards": {"multiturn": MultiturnScore(ahead(samples=1, window=1))}, "staleness": 1, **ONE}
    async with Backend(EnvSpec(Chat)) as backend, collector_of(engine, backend, **options) as collector:
        await collector.next_batch()
        await asyncio.sleep(3)
        await collector.update_weights(None, 1, "abort")
        batch = await collector.next_batch()
    assert batch.trajectories[0].oldest_version == 0
    assert [terms["return"] for terms in batch.trajectories[0].turn_terms] == [1.0 + 2.0, 2.0 + 2.0, 3.0]


@simulated
async def test_cut_reply_is_sampled_again_by_new_weights() -> None:
    def script(call: Call, version: int) -> Reply:
        return Reply(tokens(f"{version + 1} on"), latency=10.0)

    engine = engine_of(script)
    speaker = Speaker(policy_of(engine), seed=3)
    speaking = asyncio.ensure_future(speaker.reply((user("a"),)))
    await asyncio.sleep(5)
    await engine.update_weights(None, 1, "abort")
    reply, took = await speaking, asyncio.get_running_loop().time()
    assert (reply.text, took) == ("2 on", pytest.approx(15.0))
    assert reply.generation.weight_version.tolist() == [1] * len(reply.generation.token_ids)


@pytest.mark.parametrize("credit", ["value", "difference"])
@simulated
async def test_closing_leaves_no_future_behind(credit: Any) -> None:
    def script(call: Call, version: int) -> Reply:
        return Reply(tokens("1 on"), hangs=is_future(call))

    engine = engine_of(script)
    rewards = {"multiturn": MultiturnScore(ahead(), MultiturnRewardSection(credit=credit))}
    async with Backend(EnvSpec(Chat)) as backend:
        collector = collector_of(engine, backend, rewards=rewards)
        waiting = asyncio.ensure_future(collector.next_batch())
        await asyncio.sleep(100)
        assert engine.stats()["running"] == 6 * 3 * 2, "the futures of the first two turns of six episodes"
        await collector.close()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert engine.stats()["running"] == 0
    assert len(asyncio.all_tasks()) == 1


@simulated
async def test_all_failed_futures_end_episode_without_reward() -> None:
    def script(call: Call, version: int) -> Reply:
        return Reply(error=EngineError("out of order")) if is_future(call) else three_turns(call, version)

    rewards = {"multiturn": MultiturnScore(ahead())}
    seen = []
    async with (
        Backend(EnvSpec(Chat)) as backend,
        collector_of(
            engine_of(script), backend, rewards=rewards, max_consecutive_errors=4, on_trajectory=seen.append
        ) as collector,
    ):
        with pytest.raises(Exception, match="out of order"):
            await collector.next_batch()
    assert {t.status for t in seen} <= {Status.ERROR_REWARD, Status.ABORTED}
    assert len(seen) >= 4
