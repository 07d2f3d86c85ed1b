"""Episodes of several contexts, against a slow model of what the engine was given at each turn."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from chat_styles import STYLES, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.messages import Message, Messages, assistant, system, user
from trainers.engines.base import Generation, Sampling
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.recorded import RecordedEngine, context_of
from trainers.rollout.renderer import Renderer
from trainers.trajectory import Status, Trajectory, from_table, to_table

DONE: dict[str, Any] = {"terminated": True, "truncated": False, "status": Status.COMPLETED}
CUT: dict[str, Any] = {"terminated": False, "truncated": True, "status": Status.TRUNCATED_TURNS}
FAILED: dict[str, Any] = {"terminated": False, "truncated": True, "status": Status.ERROR_ENV}

#: Templates that keep earlier turns, drop reasoning, and trim replies.
NAMES = ["chatml", "qwen 3", "llama 3"]
WORDS = st.lists(st.sampled_from(["yes", " no", " ", "é", "7", "\n", "<think>\nhm\n</think>\n\n", "🙂"]), max_size=3)
ASKS = st.sampled_from(["3 + 4?", "No.", "Sum up."])


@cache
def renderer_of(name: str) -> Renderer:
    return Renderer(tokenizer_of(name))


def logprob_of(before: list[int], token: int) -> np.float32:
    """A model's log-probability: a function of everything that it is given."""
    return -np.float32(zlib.crc32(np.array([*before, token], np.int64).tobytes()) / 2**32 + 0.01)


def generated(context: list[int], ids: list[int], reason: Literal["stop", "abort"] = "stop") -> Generation:
    logprobs = [logprob_of([*context, *ids[:at]], token) for at, token in enumerate(ids)]
    version = np.full(len(ids), len(context), np.int32)
    return Generation(np.array(ids, np.int32), np.array(logprobs, np.float32), version, reason)


@dataclass(frozen=True)
class TurnRecord:
    """The slow model's record of a turn."""

    observation: Messages
    context: list[int]  #: what the engine was given
    ids: list[int]  #: what it sampled
    shown: Message  #: the reply as the environment shows it

    @property
    def conversation(self) -> Messages:
        return (*self.observation, self.shown)


def as_shown(text: str, way: int) -> Message:
    """Return a reply as an environment may keep it: as it is, or with its reasoning apart."""
    if way and text.startswith("<think>") and "</think>" in text:
        reasoning, answer = text.removeprefix("<think>").split("</think>", 1)
        return {**assistant(answer.strip()), "reasoning_content": reasoning.strip()}
    return assistant(text)


@st.composite
def observations(draw: st.DrawFn, turns: list[TurnRecord]) -> Messages:
    """Draw what a program may show next: its conversation extended, an earlier one, a branch, or another."""
    question = user(draw(ASKS))
    way, turn = draw(st.integers(0, 6)), draw(st.sampled_from(turns))
    last = turns[-1]
    if way <= 1:
        return (*last.conversation, question)
    if way == 2:  # as where a sub-agent has ended: the reply of an earlier turn was not answered yet
        return (*turn.conversation, question)
    if way == 3:  # edited history
        return (*last.observation, assistant("no, " + str(last.shown["content"])), question)
    if way == 4:  # the same call once more
        return turn.observation
    if way == 5:  # a branch in the middle
        cut = draw(st.integers(1, len(last.conversation)))
        before = last.conversation[:cut]
        return (*before, question) if before[-1]["role"] == "assistant" else (*before[:-1], question)
    return (system("Be brief."), question) if draw(st.booleans()) else (question,)


@given(data=st.data())
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
def test_any_program_is_recorded_exactly(name: str, data: st.DataObject) -> None:
    draw, tokenizer, renderer = data.draw, tokenizer_of(name), renderer_of(name)
    end = tokenizer.convert_tokens_to_ids(STYLES[name].end)
    observation: Messages = (user("3 + 4?"),)
    tokens = EpisodeTokens(renderer, observation, episode_id="e")
    turns: list[TurnRecord] = []
    observed = [observation]
    for number in range(draw(st.integers(1, 7))):
        context = tokens.context
        if number:
            check_context(name, turns, observation, context)
        ids = tokenizer.encode("".join(draw(WORDS)), add_special_tokens=False)
        ids += [end] if not ids or draw(st.booleans()) else []
        cut = draw(st.integers(0, len(ids)))
        if cut < len(ids) and draw(st.booleans()):  # a weight update came in between
            tokens.reply(generated(context, ids[:cut], "abort"))
            cut_context = tokens.context
            assert cut_context == context + ids[:cut]
            text = tokens.reply(generated(cut_context, ids[cut:]))
        else:
            text = tokens.reply(generated(context, ids))
        turns.append(TurnRecord(observation, context, ids, as_shown(text, draw(st.integers(0, 1)))))
        if draw(st.booleans()):
            check_trajectory(turns, tokens.finish(**FAILED), rewards=number)
        tokens.reward(float(number), {})
        bridges = tokens.response_tokens - sum(len(turn.ids) for turn in turns)
        assert 0 <= bridges <= sum(len(turn.context) for turn in turns[1:])
        check_trajectory(turns, tokens.finish(**DONE))
        observation = draw(observations(turns))
        observed.append(observation)
        tokens.observe(observation)
        trajectory = tokens.finish(**CUT)
        check_trajectory(turns, trajectory)
        assert trajectory.token_ids[trajectory.segments()[-1]].tolist() == tokens.context

    (read,) = from_table(to_table([trajectory]))
    assert read == trajectory
    check_replay(name, trajectory, observed)
    check_fork(name, tokens, turns)


def check_context(name: str, turns: list[TurnRecord], observation: Messages, context: list[int]) -> None:
    """The engine is given the observation, with the sampled tokens of every reply that it begins with."""
    if STYLES[name].rewrites:
        return
    apart = any("reasoning_content" in message for message in observation)
    if not apart:  # else a reply stands there as it was sampled
        tokenizer = tokenizer_of(name)
        assert tokenizer.decode(context) == tokenizer.decode(renderer_of(name).render(observation))
    sizes = [len(turn.conversation) if extends(observation, turn) else 0 for turn in turns]
    if longest := max(sizes):
        replied = [turn.context + turn.ids for turn, size in zip(turns, sizes, strict=True) if size == longest]
        assert any(context[: len(tokens)] == tokens for tokens in replied)


def extends(observation: Messages, turn: TurnRecord) -> bool:
    size = len(turn.conversation)
    return len(observation) > size and observation[:size] == turn.conversation


def check_trajectory(turns: list[TurnRecord], t: Trajectory, rewards: int | None = None) -> None:
    """No sampled token is lost, doubled or changed, and each has the log-probability of what the engine was given."""
    assert t.num_turns == len(turns)
    assert t.token_ids[t.actions].tolist() == [token for turn in turns for token in turn.ids]
    earned = range(len(turns)) if rewards is None else [*range(rewards), 0]
    assert t.turn_rewards.tolist() == [float(reward) for reward in earned]
    for number, turn in enumerate(turns):
        assert context_of(t, number).tolist() == turn.context
    for part in t.segments():
        ids = t.token_ids[part].tolist()
        for at in np.flatnonzero(t.action_mask[part]).tolist():
            assert t.logprobs[part.start + at] == logprob_of(ids[:at], ids[at])


def check_replay(name: str, trajectory: Trajectory, observed: list[Messages]) -> None:
    engine = RecordedEngine([trajectory], 10**6)
    tokens = EpisodeTokens(renderer_of(name), observed[0], episode_id="e")
    for observation in observed[1:]:
        tokens.reply(asyncio.run(engine.generate(tokens.context, Sampling(), "s/e")))
        tokens.reward(0.0, {})
        tokens.observe(observation)
    assert not engine.problems
    again = tokens.finish(**CUT)
    assert replace(again, turn_rewards=trajectory.turn_rewards) == trajectory


def check_fork(name: str, tokens: EpisodeTokens, turns: list[TurnRecord]) -> None:
    """A fork may go back to any conversation of its root, and trains on its own turns alone."""
    end = tokenizer_of(name).convert_tokens_to_ids(STYLES[name].end)
    child = tokens.fork(episode_id="f", forked_from="e", forked_turn=len(turns))
    contexts = [child.context]
    child.reply(generated(contexts[0], [end]))
    child.reward(1.0, {})
    observation = (*turns[0].conversation, user("Back."))
    child.observe(observation)
    contexts.append(child.context)
    check_context(name, turns, observation, contexts[1])
    child.reply(generated(contexts[1], [end]))
    child.reward(1.0, {})
    t = child.finish(**DONE)
    assert t.token_ids[t.actions].tolist() == [end, end]
    assert [context_of(t, turn).tolist() for turn in (0, 1)] == contexts
    assert tokens.finish(**CUT).num_turns == len(turns)
