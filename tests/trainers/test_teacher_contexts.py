"""A teacher's contexts of an episode: the conversation with one more text, before the policy's own tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from chat_styles import STYLES, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.messages import Messages, assistant, system, text_of, user
from textenvs.privileged import with_privileged
from trainers.engines.base import Generation
from trainers.learner.teachers import as_taught, taught_tokens
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.renderer import Renderer
from trainers.trajectory import Status, Trajectory, from_table, to_table

CUT: dict[str, Any] = {"terminated": False, "truncated": True, "status": Status.TRUNCATED_TURNS}
S, Q = system("be brief"), user("3 + 4?")
HIDDEN = "say yes 7"


@cache
def renderer_of(name: str) -> Renderer:
    return Renderer(tokenizer_of(name))


def say(renderer: Renderer, text: str) -> Generation:
    ids = [*renderer._tokenizer.encode(text, add_special_tokens=False), renderer.stop_token_ids[0]]
    return Generation(
        np.array(ids, np.int32), np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop"
    )


def played(name: str, observations: list[Messages], replies: list[str], hidden: list[str | None]) -> Trajectory:
    """Return an episode with these privileged texts, one a turn; ``None`` tells the teacher nothing."""
    renderer = renderer_of(name)
    tokens = EpisodeTokens(renderer, observations[0], episode_id="e")
    for turn, (reply, text) in enumerate(zip(replies, hidden, strict=True)):
        before = tokens.context
        if text is not None:
            tokens.teach(partial(with_privileged, kind="goal", text=text))
        assert tokens.context == before  # the policy never sees it
        tokens.reply(say(renderer, reply))
        tokens.reward(0.0, {})
        tokens.observe(observations[turn + 1])
    return tokens.finish(**CUT)


def talk(*replies: str) -> list[Messages]:
    observations: list[Messages] = [(Q,)]
    for reply in replies:
        observations.append((*observations[-1], assistant(reply), user("No, it is not right.")))
    return observations


def contexts(trajectory: Trajectory) -> list[list[int]]:
    return [trajectory.token_ids[part].tolist() for part in trajectory.segments()]


@pytest.mark.parametrize("name", STYLES)
@given(hidden=st.lists(st.sampled_from([None, HIDDEN, "7 <|im_end|>", ""]), min_size=3, max_size=3))
@settings(max_examples=3, deadline=None)
def test_teacher_reads_what_the_template_shows(name: str, hidden: list[str | None]) -> None:
    """A turn's context is the rendering of the conversation with the text at its end, then the policy's own tokens."""
    replies = ["Yes.", "No, it is 7", "Perhaps"]
    observations = talk(*replies)
    trajectory = played(name, observations, replies, hidden)
    if hidden == [None] * 3:
        assert not len(trajectory.teacher_shared)
        return
    renderer, taught = renderer_of(name), as_taught(trajectory)
    assert taught.token_ids[taught.actions].tolist() == trajectory.token_ids[trajectory.actions].tolist()
    for turn, (context, text) in enumerate(zip(contexts(taught), hidden, strict=True)):
        reply = trajectory.token_ids[trajectory.turn_id == turn].tolist()
        assert context[-len(reply) :] == reply
        shown = observations[turn] if text is None else with_privileged(observations[turn], "goal", text)
        assert renderer._decode(context[: -len(reply)]) == renderer._decode(renderer.render(shown))
    mask = taught_tokens([trajectory], privileged=True)
    turns = trajectory.turn_id[trajectory.actions]
    assert mask.tolist() == [hidden[turn] is not None for turn in turns]
    assert taught_tokens([trajectory], privileged=False).all()


def test_policy_has_no_privileged_token() -> None:
    replies = ["Yes.", "No, it is 7"]
    hinted = played("chatml", talk(*replies), replies, [HIDDEN, HIDDEN])
    plain = played("chatml", talk(*replies), replies, [None, None])
    assert hinted.token_ids.tolist() == plain.token_ids.tolist()
    assert hinted.messages == plain.messages
    assert from_table(to_table([hinted, plain])) == [hinted, plain]


def test_new_context_has_its_own_teacher() -> None:
    observations = [(S, Q), (S, user("summary"))]
    trajectory = played("chatml", [*observations, (*observations[1], assistant("b"), Q)], ["a", "b"], [None, HIDDEN])
    renderer = renderer_of("chatml")
    first, second = contexts(as_taught(trajectory))
    assert HIDDEN not in renderer._decode(first)
    assert renderer._decode(second).startswith(renderer._decode(renderer.render(observations[1]))[:30])
    assert HIDDEN in renderer._decode(second)


def test_fork_is_taught_from_its_own_turns() -> None:
    renderer = renderer_of("chatml")
    tokens = EpisodeTokens(renderer, (Q,))
    tokens.teach(partial(with_privileged, kind="answer", text="root"))
    tokens.reply(say(renderer, "a"))
    tokens.reward(0.0, {})
    tokens.observe((Q, assistant("a"), user("no")))
    fork = tokens.fork(forked_from="e", forked_turn=1)
    fork.teach(partial(with_privileged, kind="answer", text="fork"))
    fork.reply(say(renderer, "b"))
    fork.reward(0.0, {})
    (context,) = contexts(as_taught(fork.finish(terminated=True, truncated=False, status=Status.COMPLETED)))
    text = renderer._decode(context)
    assert "fork" in text
    assert "root" not in text


def test_sampling_mask_stays_with_its_tokens() -> None:
    """Turns of contexts that were used in turn stand in the order of time in the teacher's."""
    turn_id = np.array([-1, 1, -1, 0, -1, 2, 2], np.int32)
    made = Trajectory(
        token_ids=np.array([1, 2, 3, 4, 5, 6, 7], np.int32),
        action_mask=turn_id >= 0,
        logprobs=np.where(turn_id >= 0, -0.5, 0).astype(np.float32),
        weight_version=np.where(turn_id >= 0, 0, -1).astype(np.int32),
        turn_id=turn_id,
        turn_rewards=np.zeros(3),
        truncated=True,
        segment_starts=np.array([0, 2], np.int32),
        kept_ids=np.array([2, 9, 4, 8, 6, 7], np.int32),
        kept_counts=np.array([0, 2, 0, 2, 0, 1, 1], np.int32),
        teacher_shared=np.array([1, -1, 0], np.int32),
        teacher_counts=np.array([1, 0, 2], np.int32),
        teacher_ids=np.array([50, 60, 61], np.int32),
    )
    taught = as_taught(made)
    assert contexts(taught) == [[3, 50, 4], [1, 2], [60, 61, 6, 7]]
    assert taught.kept_ids.tolist() == [4, 8, 2, 9, 6, 7]
    assert taught.token_ids[taught.actions].tolist() == made.token_ids[made.actions].tolist() == [4, 2, 6, 7]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"teacher_shared": [0]}, "teacher_shared has 1 entries and teacher_counts 2 for 2 turns"),
        ({"teacher_ids": [1, 2]}, "teacher_counts add up to 1 for 2 teacher_ids"),
        ({"teacher_shared": [99, -1]}, "context of turn 0 shares 99 of"),
        ({"teacher_shared": [0, 0]}, "context of turn 1 shares 0 of"),
    ],
)
def test_contexts_of_teachers_are_checked(changes: dict[str, list[int]], problem: str) -> None:
    whole = played("chatml", talk("a", "b"), ["a", "b"], [None, None])
    fields = {"teacher_shared": [0, -1], "teacher_counts": [1, 0], "teacher_ids": [5], **changes}
    arrays: Any = {name: np.array(values, np.int32) for name, values in fields.items()}
    with pytest.raises(ValueError, match=problem):
        replace(whole, **arrays)


def test_episode_without_contexts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"collected without actor.distill.context"):
        as_taught(played("chatml", talk("a"), ["a"], [None]))


def test_parts_of_a_message_are_kept() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    (message,) = with_privileged(({"role": "user", "content": parts},), "answer", "7")  # type: ignore[typeddict-item]
    assert message["content"][:2] == parts
    assert text_of(message).endswith("The right answer:\n7]")
