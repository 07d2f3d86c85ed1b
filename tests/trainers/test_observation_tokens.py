"""Observation tokens of episodes: the texts of the environment's answers, once, whatever the chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from chat_styles import (
    GROUPED_STYLES,
    STYLES,
    look_call,
    make_tokenizer,
    newline_merging_tokenizer,
    tokenizer_of,
    word_space_tokenizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.messages import Message, Messages, assistant, system, tool, user
from trainers.chat_template import RendererError
from trainers.engines.base import Generation
from trainers.models.tiny import CHATML
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.observed_text import spans_of
from trainers.rollout.renderer import Renderer
from trainers.trajectory import Status, Trajectory, from_table, to_table

CUT: dict[str, Any] = {"terminated": False, "truncated": True, "status": Status.TRUNCATED_TURNS}
DONE: dict[str, Any] = {"terminated": True, "truncated": False, "status": Status.COMPLETED}
MAKERS = {"spaces": tokenizer_of, "merging": newline_merging_tokenizer, "word space": word_space_tokenizer}
#: Mistral's template escapes the results of tools.
ROLES = {name: ("user",) if name == "mistral" else ("tool", "user") for name in STYLES}


S, Q = system("be brief"), user("3 + 4?")


@cache
def renderer_of(name: str, kind: str = "spaces", roles: tuple[str, ...] | None = None) -> Renderer:
    return Renderer(MAKERS[kind](name), observed_roles=ROLES[name] if roles is None else roles)


def say(renderer: Renderer, text: str) -> Generation:
    """Return a reply that ended by itself."""
    ids = [*renderer._tokenizer.encode(text, add_special_tokens=False), renderer.stop_token_ids[0]]
    zeros = np.zeros(len(ids), np.float32)
    return Generation(np.array(ids, np.int32), zeros, zeros.astype(np.int32), "stop")


def played(renderer: Renderer, observations: Sequence[Messages], replies: Sequence[str]) -> Trajectory:
    """Return an episode of these observations, the last of which it ended in."""
    tokens = EpisodeTokens(renderer, observations[0], episode_id="e")
    for reply, observation in zip(replies, observations[1:], strict=True):
        tokens.reply(say(renderer, reply))
        tokens.reward(0.0, {})
        tokens.observe(observation)
    trajectory = tokens.finish(**CUT)
    assert from_table(to_table([trajectory])) == [trajectory]
    return trajectory


def runs(renderer: Renderer, trajectory: Trajectory) -> Iterator[str]:
    """Yield the text of each run of observation tokens."""
    for part in trajectory.segments():
        mask = np.concatenate([[0], trajectory.observation_mask[part], [0]])
        for begin, end in zip(*(np.flatnonzero(np.diff(mask) == step) for step in (1, -1)), strict=True):
            yield renderer._decode(trajectory.token_ids[part][begin:end])


PIECES = st.sampled_from(
    ["yes", " 7", "\n", " ", "é", "数学", "🙂", '{"a": "b"}', "\\", "user", "<|im_end|>", "<|im_start|>user\n", "</s>"]
)
TEXT = st.lists(PIECES, max_size=5).map("".join)


@st.composite
def talks(draw: st.DrawFn, name: str) -> tuple[list[Messages], list[str]]:
    """Draw observations and replies, each observation of the messages before it and what answered the reply."""
    style, replies = STYLES[name], list[str]()
    first = (system(draw(TEXT)),) if style.system and name != "mistral" and draw(st.booleans()) else ()
    observations = [(*first, user(draw(TEXT)))]
    for _ in range(draw(st.integers(1, 3))):
        replies.append(draw(st.sampled_from(["Yes.", "No, it is 7"])))
        answers: list[Message] = [user(draw(TEXT))]
        while style.free and draw(st.booleans()):
            answers.append(tool(draw(TEXT), "c") if style.tools and draw(st.booleans()) else user(draw(TEXT)))
        observations.append((*observations[-1], assistant(replies[-1]), *answers))
    return observations, replies


def texts_of(before: Messages, observation: Messages, roles: Sequence[str]) -> list[str]:
    return [message["content"] for message in observation[len(before) + 1 :] if message["role"] in roles]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "spaces") for name in STYLES), ("chatml", "merging"), ("llama 3", "merging"), ("mistral", "word space")],
)
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_mask_covers_answers_alone(name: str, kind: str, data: st.DataObject) -> None:
    observations, replies = data.draw(talks(name))
    renderer = renderer_of(name, kind)
    trajectory = played(renderer, observations, replies)
    texts = [
        text
        for before, now in zip(observations, observations[1:], strict=False)
        for text in texts_of(before, now, ROLES[name])
    ]
    marked = list(runs(renderer, trajectory))
    rest = iter(texts)
    for run in marked:
        assert any(run.strip() in text for text in rest), (run, texts)  # in order, each in a text of its own
    if name == "chatml" and kind == "spaces":
        assert [run.strip() for run in marked if run.strip()] == [text.strip() for text in texts if text.strip()]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", GROUPED_STYLES)
def test_inner_words_are_marked(name: str, kind: str) -> None:
    """At most the ends of a text are left out, which a tokenizer may join with the template's own signs."""
    renderer = renderer_of(name, kind)
    observations = [(Q,), (Q, assistant("Yes."), user("one two three"))]
    (marked,) = runs(renderer, played(renderer, observations, ["Yes."]))
    assert "two" in marked


def test_mask_changes_no_token() -> None:
    observations, replies = [(Q,), (Q, assistant("a"), user("no <|im_end|>"))], ["a"]
    trajectory, plain = (played(renderer_of("chatml", roles=roles), observations, replies) for roles in (("user",), ()))
    assert trajectory.token_ids.tolist() == plain.token_ids.tolist()
    assert len(trajectory.observation_mask) == len(plain.token_ids)
    assert not len(plain.observation_mask)


def test_terminated_episode_ends_with_reply() -> None:
    renderer = renderer_of("chatml")
    tokens = EpisodeTokens(renderer, (user("Q"),))
    for reply in ("a", "b"):
        tokens.reply(say(renderer, reply))
        tokens.reward(0.0, {})
        if reply == "a":
            tokens.observe((user("Q"), assistant("a"), user("no, again")))
    assert list(runs(renderer, tokens.finish(**DONE))) == ["no, again"]


@pytest.mark.parametrize(
    ("observations", "replies", "expected"),
    [
        ([(S, Q), (S, Q, assistant("7"), user("one"))], ["7"], ["one"]),
        # A context that begins anew: its opening answers nothing.
        ([(S, Q), (S, user("summary: 7")), (S, user("summary: 7"), assistant("8"), user("two"))], ["7", "8"], ["two"]),
        # A sub-agent, after which the main context goes on.
        (
            [
                (Q,),
                (user("sub"),),
                (user("sub"), assistant("b"), user("sub two")),
                (Q, assistant("a"), user("main two")),
            ],
            ["a", "b", "c"],
            ["sub two", "main two"],
        ),
        # The same call once more: the answer stands in the context before.
        ([(Q,), (Q, assistant("a"), user("no")), (Q, assistant("a"), user("no"))], ["a", "b"], ["no"]),
        # Old results are cleared: they were counted when they came.
        (
            [
                (Q,),
                (Q, assistant("a"), tool("long", "c")),
                (Q, assistant("a"), tool("cleared", "c"), assistant("b"), tool("second", "c")),
            ],
            ["a", "b"],
            ["long", "second"],
        ),
        # The system prompt changes, so no context continues, and the reply is the policy's own.
        ([(S, Q), (system("now long"), Q, assistant("a"), user("no"))], ["a"], ["no"]),
        # Compaction: a request joins the answer; then the last exchange is shown again, behind a summary.
        (
            [
                (Q,),
                (Q, assistant("a"), user("result and request")),
                (user("summary: s"), assistant("a"), user("result")),
                (user("summary: s"), assistant("a"), user("result"), assistant("b"), user("next")),
            ],
            ["a", "s", "b"],
            ["result and request", "next"],
        ),
        # A sliding window: each observation begins anew, with the last exchange and the one before.
        (
            [
                (Q,),
                (Q, assistant("a"), user("one")),
                (assistant("a"), user("one"), assistant("a"), user("two")),
                (assistant("a"), user("two"), assistant("b"), user("three")),
            ],
            ["a", "a", "b"],
            ["one", "two", "three"],
        ),
        # The window stays where it was: nothing new came.
        ([(Q,), (Q, assistant("a"), user("one")), (S, assistant("a"), user("one"))], ["a", "b"], ["one"]),
        # A sub-agent whose opening quotes an earlier exchange.
        (
            [(Q,), (Q, assistant("a"), user("no")), (S, user("such as"), assistant("a"), user("do it"))],
            ["a", "b"],
            ["no"],
        ),
        # An assistant's message that the policy never sampled is answered.
        ([(S, Q), (S, Q, assistant("edited"), user("no"))], ["a"], []),
    ],
)
def test_answers_count_once(observations, replies, expected) -> None:
    renderer = renderer_of("chatml")
    assert sorted(runs(renderer, played(renderer, observations, replies))) == sorted(expected)


def test_rewritten_history_keeps_answers() -> None:
    """Reasoning is dropped from earlier turns: the whole is rendered anew, and only the new answer is marked there."""
    renderer = renderer_of("qwen 3")
    reply = "<think>\nhm\n</think>\n\nyes"
    first = (Q, assistant(reply), user("one"))
    trajectory = played(renderer, [(Q,), first, (*first, assistant(reply), user("two"))], [reply, reply])
    assert len(trajectory.segment_starts) > 1
    assert sorted(runs(renderer, trajectory)) == ["one", "two"]


def test_results_of_calls_are_found() -> None:
    renderer = renderer_of("qwen 3")
    calling: Message = {**assistant(""), "tool_calls": (look_call("map"),)}
    tokens = EpisodeTokens(renderer, (Q,))
    tokens.reply(say(renderer, '<tool_call>\n{"name": "look", "arguments": {"what": "map"}}\n</tool_call>'), calling)
    tokens.reward(0.0, {})
    tokens.observe((Q, calling, tool("a map", "zqcall000", "look")))
    assert list(runs(renderer, tokens.finish(**CUT))) == ["a map"]


def test_fork_leaves_out_its_root() -> None:
    renderer = renderer_of("chatml")
    tokens = EpisodeTokens(renderer, (Q,))
    tokens.reply(say(renderer, "a"))
    tokens.reward(0.0, {})
    tokens.observe((Q, assistant("a"), user("no")))
    fork = tokens.fork(episode_id="f")
    fork.reply(say(renderer, "b"))
    fork.reward(0.0, {})
    fork.observe((Q, assistant("a"), user("no"), assistant("b"), user("still no")))
    assert list(runs(renderer, fork.finish(**CUT))) == ["still no"]


def test_roles_are_chosen() -> None:
    renderer = renderer_of("chatml", roles=("tool",))
    answers = (tool("result", "c"), user("and?"), system("be quick"))
    assert list(runs(renderer, played(renderer, [(Q,), (Q, assistant("a"), *answers)], ["a"]))) == ["result"]


@pytest.mark.parametrize(
    ("template", "roles", "refused"),
    [
        (STYLES["mistral"].template, ("tool", "user"), "tool"),
        (CHATML.replace("message['content']", "message['content'] | tojson"), ("user",), "user"),
        (CHATML.replace("message['content']", "message['content'] | replace('\\n', ' ')"), ("user",), "user"),
    ],
    ids=["mistral", "json", "replaced"],
)
def test_changed_texts_are_refused(template: str, roles: tuple[str, ...], refused: str) -> None:
    tokenizer = make_tokenizer(template, STYLES["mistral"].special, "<s>", "</s>")
    Renderer(tokenizer)
    with pytest.raises(RendererError, match=rf"changes the text of messages \({refused}\).*actor.observation_roles"):
        Renderer(tokenizer, observed_roles=roles)


def test_tokenizer_without_offsets_is_refused() -> None:
    made = tokenizer_of("chatml")

    class Slow(type(made)):  # type: ignore[misc]
        def __call__(self, *args: Any, **options: Any) -> Any:
            if options.pop("return_offsets_mapping", False):
                raise NotImplementedError
            return super().__call__(*args, **options)

    tokenizer = Slow(tokenizer_object=made.backend_tokenizer, eos_token="<|im_end|>")
    tokenizer.chat_template = made.chat_template
    Renderer(tokenizer)
    with pytest.raises(RendererError, match="use a fast tokenizer"):
        Renderer(tokenizer, observed_roles=("user",))


@given(
    st.lists(st.text("ab \n", max_size=4), min_size=1, max_size=4),
    st.lists(st.text("ab\n ", max_size=3)),
    st.booleans(),
)
def test_spans_are_of_texts(texts: list[str], around: list[str], trims: bool) -> None:
    """Every place that is found is of the text, perhaps trimmed, and what is between them is the skeleton's."""
    around = [*around, *[""] * (len(texts) + 1)][: len(texts) + 1]
    sentinels = {f"zq0o{number}qz": text for number, text in enumerate(texts)}
    skeleton, rendered = around[0], around[0]
    for (sentinel, text), after in zip(sentinels.items(), around[1:], strict=True):
        skeleton += sentinel + after
        rendered += (text.strip() if trims else text) + after
    spans = spans_of(sentinels, skeleton, rendered)
    assert spans is not None
    ends = [0, *(end for _, end in spans)]
    assert [rendered[end:begin] for end, (begin, _) in zip(ends, spans, strict=False)] + [
        rendered[ends[-1] :]
    ] == around
    for (begin, end), text in zip(spans, texts, strict=True):
        assert rendered[begin:end] in {text, text.strip(), text.lstrip(), text.rstrip()}
    assert spans_of(sentinels, skeleton, f"{rendered}x") is None
