"""An episode's tokens: what was sampled stays, what was not is masked, and history that changes starts a context."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from chat_styles import GROUPED_STYLES, STYLES, make_tokenizer, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.messages import Message, Messages, assistant, system, tool, user
from trainers.chat_template import RendererError
from trainers.engines.base import Generation
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.renderer import Renderer
from trainers.trajectory import Status, Trajectory

DONE: dict[str, Any] = {"terminated": True, "truncated": False, "status": Status.COMPLETED}
CUT: dict[str, Any] = {"terminated": False, "truncated": True, "status": Status.TRUNCATED_TURNS}
FAILED: dict[str, Any] = {"terminated": False, "truncated": True, "status": Status.ERROR_ENV}


@cache
def renderer_of(name: str) -> Renderer:
    return Renderer(tokenizer_of(name))


QUESTION: Messages = (user("3 + 4?"),)


def start(name: str = "chatml", opening: Messages = QUESTION, **names: Any) -> EpisodeTokens:
    return EpisodeTokens(renderer_of(name), opening, episode_id="e", **names)


def sampled(
    ids: list[int], reason: Literal["stop", "length", "abort"] = "stop", version: int = 0, logprob: float = -1.0
) -> Generation:
    n = len(ids)
    return Generation(
        np.array(ids, np.int32), np.full(n, logprob, np.float32), np.full(n, version, np.int32), finish_reason=reason
    )


def test_reported_masks_renormalise_logprobs() -> None:
    tokens = start()
    opening = len(tokens.context)
    cut = replace(
        sampled([5, 6], "abort", logprob=-3.0),
        sampled_logprobs=np.array([-0.5, -0.25], np.float32),
        kept_ids=np.array([5, 9, 6], np.int32),
        kept_counts=np.array([2, 1], np.int32),
    )
    tokens.reply(cut)
    tokens.reply(
        replace(
            cut,
            token_ids=np.array([9, 7], np.int32),
            kept_ids=np.array([5, 9], np.int32),
            kept_counts=np.array([2, 0], np.int32),
            finish_reason="stop",
        )
    )
    tokens.reward(1.0, {})
    tokens.observe((*QUESTION, assistant("x"), user("more")))
    tokens.reply(sampled([8]))
    tokens.reward(1.0, {})
    trajectory = tokens.finish(**DONE)
    places = np.flatnonzero(trajectory.action_mask)
    assert places[0] == opening
    assert trajectory.logprobs[places].tolist() == [-0.5, -0.25, -0.5, -3.0, -1.0]
    assert trajectory.kept_counts[places].tolist() == [2, 1, 2, 0, 0]
    assert trajectory.kept_ids.tolist() == [5, 9, 6, 5, 9]
    assert len(trajectory.kept_counts) == len(trajectory.token_ids)


def say(name: str, text: str, stopped: bool = True) -> list[int]:
    tokenizer = tokenizer_of(name)
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    return [*ids, tokenizer.convert_tokens_to_ids(STYLES[name].end)] if stopped else ids


def whole(name: str, messages: Messages) -> list[int]:
    """The conversation as transformers renders it."""
    return list(tokenizer_of(name).apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False))


def segments_of(t: Trajectory) -> list[list[int]]:
    return [t.token_ids[s].tolist() for s in t.segments()]


# ------------------------------------------------------------------------------------------------ one plain episode


def test_two_turns_token_by_token() -> None:
    tokens = start(group_id="g", task_key="k", data_source="d")
    opening = tokens.context
    assert opening == whole("chatml", (user("3 + 4?"),))
    first, second = say("chatml", "8"), say("chatml", "7")
    assert tokens.reply(sampled(first, version=2, logprob=-0.25)) == "8"
    tokens.reward(-1.0, {"wrong": -1.0})
    talk = (user("3 + 4?"), assistant("8"), user("No."))
    tokens.observe(talk)
    assert tokens.context == whole("chatml", talk)
    bridge = tokens.context[len(opening) + len(first) :]
    assert tokens.reply(sampled(second, version=3, logprob=-0.5)) == "7"
    tokens.reward(1.0, {"right": 1.0})
    t = tokens.finish(**DONE, stop="solved", metrics={"n": 2})

    assert t.token_ids.tolist() == [*opening, *first, *bridge, *second]
    mask = [0] * len(opening) + [1] * len(first) + [0] * len(bridge) + [1] * len(second)
    assert t.action_mask.astype(int).tolist() == mask
    assert t.weight_version[t.action_mask].tolist() == [2] * len(first) + [3] * len(second)
    assert t.logprobs[t.action_mask].tolist() == [-0.25] * len(first) + [-0.5] * len(second)
    assert t.turn_id[t.action_mask].tolist() == [0] * len(first) + [1] * len(second)
    assert t.turn_rewards.tolist() == [-1.0, 1.0]
    assert t.turn_terms == ({"wrong": -1.0}, {"right": 1.0})
    assert t.segment_starts.tolist() == [0]
    assert t.messages == (*talk, assistant("7"))
    assert (t.episode_id, t.group_id, t.task_key, t.data_source) == ("e", "g", "k", "d")
    assert (t.terminated, t.truncated, t.status, t.stop) == (True, False, Status.COMPLETED, "solved")
    assert t.metrics == {"n": 2.0}


# ------------------------------------------------------------------------------------------------ any episode

WORDS = st.lists(
    st.sampled_from(["yes", " no", "\n", " ", "é", "7", "<think>\nhm\n</think>\n\n", "🙂", "<|im_end|>"]), max_size=5
)


@pytest.mark.parametrize("name", GROUPED_STYLES)
@settings(max_examples=12)
@given(data=st.data())
def test_invariants_of_any_episode(name: str, data: st.DataObject) -> None:
    """Random replies, in random pieces, stopped or not, over random conversations, ended anywhere."""
    draw, style = data.draw, STYLES[name]
    conversation: Messages = (user("".join(draw(WORDS))),)
    if style.system and draw(st.booleans()):
        conversation = (system("Be brief."), *conversation)
    tokens = start(name, conversation)
    vocabulary = st.integers(0, len(tokenizer_of(name)) - 1)  # special tokens too: a policy may sample anything
    replies: list[list[int]] = []
    contexts: list[list[int]] = []
    rewards: list[float] = []
    end = DONE
    for _ in range(draw(st.integers(1, 4))):
        contexts.append(tokens.context)
        ids = draw(st.lists(vocabulary, max_size=4)) if draw(st.booleans()) else say(name, "".join(draw(WORDS)), False)
        if not ids or draw(st.booleans()):
            ids = [*ids, *say(name, "")]
        replies.append(ids)
        text = tokens.reply(sampled(ids, "length"))
        assert tokens.context == contexts[-1] + ids
        rewards.append(draw(st.floats(-1, 1)))
        tokens.reward(rewards[-1], {})
        conversation = (*conversation, assistant(text), user("".join(draw(WORDS))))
        end = draw(st.sampled_from([DONE, CUT]))
        if end is DONE and draw(st.booleans()):
            break
        tokens.observe(conversation)
        assert renderer_of(name).rewrites_history or contexts[-1] + ids == tokens.context[: len(contexts[-1] + ids)]
    t = tokens.finish(**end)

    assert t.num_turns == len(replies)
    assert t.turn_rewards.tolist() == rewards
    for k, ids in enumerate(replies):
        at = np.flatnonzero(t.turn_id == k)
        assert t.token_ids[at].tolist() == ids
        assert (np.diff(at) == 1).all()
        (segment,) = (s for s in t.segments() if s.start <= at[0] < s.stop)
        assert t.token_ids[segment.start : at[0]].tolist() == contexts[k]
    assert int(t.action_mask.sum()) == sum(map(len, replies))
    if end is DONE:
        assert t.action_mask[-1]
    elif tokens.context:
        assert segments_of(t)[-1] == tokens.context
    if not style.rewrites:
        assert len(t.segments()) == 1
    for later in t.segments()[1:]:  # a new segment is the whole conversation, rendered anew
        assert not t.action_mask[later.start]


@pytest.mark.parametrize("name", [style for style in GROUPED_STYLES if not STYLES[str(style.values[0])].rewrites])
def test_cut_reply_reads_like_stopped_one(name: str) -> None:
    talk = (user("3 + 4?"), assistant("It is"), user("Go on."))
    ended, cut = start(name), start(name)
    assert (
        ended.reply(sampled(say(name, "It is"))) == cut.reply(sampled(say(name, "It is", False), "length")) == "It is"
    )
    ended.observe(talk)
    cut.observe(talk)
    assert ended.context == cut.context == whole(name, talk)
    ended.reward(0, {})
    cut.reward(0, {})
    assert ended.finish(**CUT).action_mask.sum() == cut.finish(**CUT).action_mask.sum() + 1


# ------------------------------------------------------------------------------------------------ new segments


def test_dropped_reasoning_starts_segment(caplog: pytest.LogCaptureFixture) -> None:
    renderer = Renderer(tokenizer_of("qwen 3"))  # its own: it warns once
    tokens = EpisodeTokens(renderer, (user("3 + 4?"),), episode_id="e")
    thought = "<think>\n3, 4\n</think>\n\n8"
    first = [*tokens.context, *say("qwen 3", thought)]
    with caplog.at_level(logging.WARNING):
        assert tokens.reply(sampled(say("qwen 3", thought))) == thought
        tokens.reward(0.5, {})
        talk = (user("3 + 4?"), assistant(thought), user("No."))
        tokens.observe(talk)
        assert tokens.context == whole("qwen 3", talk)
        assert "3, 4" not in tokenizer_of("qwen 3").decode(tokens.context)
        second = [*tokens.context, *say("qwen 3", "7")]
        assert tokens.reply(sampled(say("qwen 3", "7"))) == "7"
        tokens.reward(1.0, {})
        answer = renderer.bridge((user("No."),), after=first[-1])
        assert tokens.response_tokens == sum(map(len, (say("qwen 3", thought), answer, say("qwen 3", "7"))))
        # The second reply has no reasoning to drop, and the first has lost its own already: the segment continues.
        tokens.observe((*talk, assistant("7"), user("Sure?")))
        third = tokens.context
    t = tokens.finish(**CUT)
    assert segments_of(t) == [first, third]
    assert third[: len(second)] == second
    assert t.turn_rewards.tolist() == [0.5, 1.0]
    assert t.turn_ends().tolist() == [len(first) - 1, len(first) + len(second) - 1]
    assert len([record for record in caplog.records if "rewrites earlier turns" in record.message]) == 1


def test_trimming_template_starts_segment_only_on_change() -> None:
    for reply, segments in (("8", 1), ("8 \n", 2)):
        tokens = start("llama 3")
        tokens.reply(sampled(say("llama 3", reply)))
        tokens.observe((user("3 + 4?"), assistant(reply), user("No.")))
        assert tokens.context == whole("llama 3", (user("3 + 4?"), assistant("8"), user("No.")))
        tokens.reward(0, {})
        assert len(tokens.finish(**CUT).segments()) == segments


def test_system_prompt_that_moves_starts_segment() -> None:
    opening = (system("Be brief."), user("3 + 4?"))
    tokens = start("mistral", opening)
    tokens.reply(sampled(say("mistral", "8")))
    talk = (*opening, assistant("8"), user("No."))
    tokens.observe(talk)
    tokens.reward(0, {})
    assert segments_of(tokens.finish(**CUT))[1] == whole("mistral", talk)


def test_environment_may_change_its_history() -> None:
    tokens = start()
    tokens.reply(sampled(say("chatml", "8")))
    tokens.reward(0, {})
    summary = (user("You said 8, and were wrong. 3 + 4?"),)
    tokens.observe(summary)
    assert tokens.context == whole("chatml", summary)
    tokens.reply(sampled(say("chatml", "7")))
    tokens.reward(1, {})
    tokens.observe((*summary, assistant("7"), user("Sure?")))
    t = tokens.finish(**CUT)
    assert segments_of(t)[1] == whole("chatml", (*summary, assistant("7"), user("Sure?")))
    assert len(t.segments()) == 2


def test_final_observation_segment_is_dropped_when_terminated() -> None:
    tokens = start("llama 3")
    tokens.reply(sampled(say("llama 3", "7 ")))
    tokens.reward(1, {})
    tokens.observe((user("3 + 4?"), assistant("7 "), user("Bye.")))
    t = tokens.finish(**DONE)
    assert len(t.segments()) == 1
    assert t.action_mask[-1]


# ------------------------------------------------------------------------------------------------ tools


CALL = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": '{"x":3}'}}


@pytest.mark.parametrize("name", ["qwen 3", "glm"])
def test_parsed_reply_counts_as_it_was_sampled(name: str) -> None:
    """The environment took the call apart; the template would write it otherwise, but the tokens are what they are."""
    raw = '<tool_call>{"name":  "add"}</tool_call>'
    opening: Messages = (user("3 + 4?"),)
    tokens = start(name, opening)
    before, ids = tokens.context, say(name, raw)
    assert tokens.reply(sampled(ids)) == raw
    tokens.reward(0, {})
    answer = tool("7", "call00001", "add")
    tokens.observe((*opening, assistant("", [CALL]), answer))
    assert tokens.context[: len(before) + len(ids)] == before + ids
    assert tokens.finish(**CUT).messages == (*opening, assistant(raw), answer)


@pytest.mark.parametrize("name", ["mistral", "gemma"])
def test_unshown_tool_results_become_user_messages(name: str) -> None:
    """Turn by turn, in the tokens once, and the same in a whole rendering: no new segment but for Mistral's system."""
    opening: Messages = (user("3 + 4?"),)
    tokens = start(name, opening)
    talk = opening
    for number in range(3):
        call = f'<tool_call>{{"name": "add{number}"}}</tool_call>'
        tokens.reply(sampled(say(name, call)))
        tokens.reward(0, {})
        talk = (*talk, assistant(call), tool(f"result {number}", "c", "add"))
        tokens.observe(talk)
        text = tokenizer_of(name).decode(tokens.context)
        assert [text.count(f"result {i}") for i in range(3)] == [int(i <= number) for i in range(3)]
    assert len(tokens.finish(**CUT).segments()) == 1


# ------------------------------------------------------------------------------------------------ endings


def test_episode_may_end_before_any_reply() -> None:
    tokens = start()
    t = tokens.finish(terminated=False, truncated=True, status=Status.ERROR_ENGINE, error="dead\ud800")
    assert (t.num_turns, t.token_ids.tolist(), bool(t.action_mask.any())) == (0, tokens.context, False)
    assert t.error == "dead\ufffd"  # an exception's text must not spoil the dump
    assert t.messages == (user("3 + 4?"),)


def test_abort_before_first_token_is_no_turn() -> None:
    tokens = start()
    assert tokens.reply(sampled([], "abort")) == ""
    with pytest.raises(RuntimeError, match="no turn without a reward"):
        tokens.reward(1.0, {})
    t = tokens.finish(terminated=False, truncated=True, status=Status.ABORTED)
    assert t.num_turns == 0
    assert t.token_ids.tolist() == whole("chatml", (user("3 + 4?"),))


def test_aborted_reply_can_continue() -> None:
    """New weights interrupted it: the rest joins the same turn, under its own version."""
    tokens = start()
    ids = say("chatml", "yes é no")
    context = tokens.context
    for cut in range(3):  # between the bytes of the é, too
        tokens.reply(sampled(ids[cut : cut + 1], "abort", version=cut))
        assert tokens.context == context + ids[: cut + 1]
    tokens.reply(sampled([], "abort"))
    assert tokens.reply(sampled(ids[3:], version=3)) == "yes é no"
    tokens.reward(1.0, {})
    t = tokens.finish(**DONE)
    assert t.num_turns == 1
    assert t.weight_version[t.action_mask].tolist() == [0, 1, 2] + [3] * (len(ids) - 3)


def test_unrewarded_reply_needs_error_status() -> None:
    tokens = start()
    tokens.reply(sampled(say("chatml", "7")))
    with pytest.raises(ValueError, match="turn 0 was never rewarded, but the status is completed"):
        tokens.finish(**DONE)
    t = tokens.finish(**FAILED, error="hung")
    assert t.turn_rewards.tolist() == [0.0]
    assert t.turn_terms == ({},)
    assert t.messages == (user("3 + 4?"), assistant("7"))


def test_truncated_episode_keeps_final_state() -> None:
    tokens = start()
    tokens.reply(sampled(say("chatml", "8")))
    tokens.reward(0.0, {})
    talk = (user("3 + 4?"), assistant("8"), user("No."))
    tokens.observe(talk)
    t = tokens.finish(**CUT)
    assert t.token_ids.tolist() == whole("chatml", talk)
    assert not t.action_mask[-1]
    assert t.messages == talk
    terminated = tokens.finish(**DONE)
    assert terminated.token_ids.tolist() == t.token_ids.tolist()[: int(t.turn_ends()[0]) + 1]


def test_empty_observation_ends_episode() -> None:
    tokens = start()
    tokens.reply(sampled(say("chatml", "8")))
    tokens.reward(0.0, {})
    tokens.observe((user("3 + 4?"), assistant("8")))
    with pytest.raises(RuntimeError, match="no generation point"):
        tokens.reply(sampled(say("chatml", "7")))
    t = tokens.finish(**CUT)
    assert t.action_mask[-1]
    assert t.messages == (user("3 + 4?"), assistant("8"))


def test_given_messages_are_stored() -> None:
    tokens = start()
    messages: tuple[Message, ...] = (user("3 + 4?"), assistant("7"), user("Right, bye!"))
    tokens.reply(sampled(say("chatml", "7")))
    tokens.reward(1.0, {})
    assert tokens.finish(**DONE, messages=messages).messages == messages


# ------------------------------------------------------------------------------------------------ wrong order


def test_turns_are_taken_in_order() -> None:
    tokens = start()
    with pytest.raises(RuntimeError, match="has not replied"):
        tokens.observe((user("3 + 4?"),))
    with pytest.raises(RuntimeError, match="no turn without a reward"):
        tokens.reward(1.0, {})
    tokens.reply(sampled(say("chatml", "7")))
    with pytest.raises(RuntimeError, match="no generation point"):
        tokens.reply(sampled(say("chatml", "7")))
    with pytest.raises(ValueError, match="turn 0 earned nan"):
        tokens.reward(float("nan"), {})
    tokens.reward(1.0, {})
    with pytest.raises(RuntimeError, match="no turn without a reward"):
        tokens.reward(1.0, {})


def test_broken_generation_is_refused_without_change() -> None:
    tokens = start()
    context = tokens.context
    short = Generation(np.zeros(2, np.int32), np.zeros(1, np.float32), np.zeros(2, np.int32), finish_reason="stop")
    with pytest.raises(ValueError, match="2 tokens, 1 log-probabilities and 2 weight versions"):
        tokens.reply(short)
    with pytest.raises(ValueError, match="no token, yet finish_reason is 'stop'"):
        tokens.reply(sampled([]))
    assert tokens.context == context
    assert tokens.num_turns == 0


def test_rejected_opening_is_an_error() -> None:
    with pytest.raises(RendererError, match="roles must alternate"):
        start("gemma", (assistant("Hello."), user("Hm")))


def test_stray_stop_token_stays_in_place() -> None:
    tokenizer = make_tokenizer(STYLES["chatml"].template)
    other = int(tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    tokens = EpisodeTokens(Renderer(tokenizer, stop_token_ids=[other]), (user("3 + 4?"),), episode_id="e")
    seven = tokenizer.encode("7", add_special_tokens=False)
    assert tokens.reply(sampled([*seven, other])) == "7"
    tokens.observe((user("3 + 4?"), assistant("7"), user("Sure?")))
    assert "assistant\n7<|endoftext|><|im_end|>\n<|im_start|>user\nSure?" in tokenizer.decode(tokens.context)
