"""The renderer: bridging equals rendering whole, for the chat-template styles of :mod:`chat_styles`."""

from __future__ import annotations

import logging
from functools import cache
from itertools import takewhile

import pytest
from chat_styles import (
    GROUPED_STYLES,
    LLAMA2,
    PLAIN,
    QWEN3,
    STYLES,
    make_tokenizer,
    newline_merging_tokenizer,
    tokenizer_of,
    word_space_tokenizer,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from textenvs.messages import Message, Messages, assistant, system, tool, user
from trainers.chat_template import RendererError
from trainers.models.tiny import CHATML
from trainers.rollout.renderer import Renderer

MAKERS = {"spaces": tokenizer_of, "merging": newline_merging_tokenizer, "word space": word_space_tokenizer}


@cache
def renderer_of(name: str, kind: str = "spaces") -> Renderer:
    return Renderer(MAKERS[kind](name))


def oracle(name: str, messages: Messages, kind: str = "spaces") -> list[int]:
    """The whole conversation, as transformers renders and tokenises it."""
    tokenizer = renderer_of(name, kind)._tokenizer
    return list(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False))


def token(name: str, text: str) -> int:
    return int(tokenizer_of(name).convert_tokens_to_ids(text))


def spell(name: str, text: str, kind: str = "spaces") -> list[int]:
    return list(renderer_of(name, kind)._tokenizer.encode(text, add_special_tokens=False))


PIECES = st.sampled_from(
    ["yes", "no", " 7", "#### 12", "\n", "\n\n", " ", "\t", "é", "数学", "🙂", "{", '"', "</s", "<|", "}}"]
)
TEXT = st.one_of(st.lists(PIECES, max_size=8).map("".join), st.text(st.characters(codec="utf-8"), max_size=12))


@st.composite
def conversations(draw: st.DrawFn, name: str) -> Messages:
    """A conversation that ends with what the assistant is to answer, in the roles that the style takes."""
    style = STYLES[name]
    reply = TEXT.map(str.strip) if style.trims else TEXT
    messages: list[Message] = []
    if style.system and name != "mistral" and draw(st.booleans()):
        messages.append(system(draw(TEXT)))
    messages.append(user(draw(TEXT)))
    for _ in range(draw(st.integers(1, 4))):
        messages.append(assistant(draw(reply)))
        messages.append(user(draw(TEXT)))
        while style.free and draw(st.integers(0, 3)) == 3:
            messages.append(tool(draw(TEXT), "c") if style.tools and draw(st.booleans()) else user(draw(TEXT)))
    spelled = [*renderer_of(name)._control.ids, "think>"]  # other tests are about these
    assume(not any(text in message["content"] for message in messages for text in spelled))
    return tuple(messages)


def turns(messages: Messages) -> list[tuple[Messages, str, Messages]]:
    """(what came before, the reply, what was said to it) for each reply."""
    at = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return [
        (messages[:i], messages[i]["content"], tuple(takewhile(lambda m: m["role"] != "assistant", messages[i + 1 :])))
        for i in at
    ]


@pytest.mark.parametrize("name", GROUPED_STYLES)
@settings(max_examples=15)
@given(data=st.data())
def test_bridged_tokens_equal_whole_rendering(name: str, data: st.DataObject) -> None:
    messages = data.draw(conversations(name))
    renderer = renderer_of(name)
    tokens = renderer.render(turns(messages)[0][0])
    for before, reply, new in turns(messages):
        sampled = spell(name, reply)
        end = renderer.bridge(new, after=None)[0]
        if data.draw(st.booleans(), label="stopped by itself"):
            sampled.append(end)
        tokens = [*tokens, *sampled, *renderer.bridge(new, after=sampled[-1] if sampled else None)]
        so_far = (*before, assistant(reply), *new)
        assert tokens == oracle(name, so_far)
        assert renderer.rewritten(tokens, so_far) is None


@pytest.mark.parametrize("kind", ["merging", "word space"])
@pytest.mark.parametrize("name", GROUPED_STYLES)
@settings(max_examples=15)
@given(data=st.data())
def test_merges_across_reply_keep_text_and_bridge(name: str, kind: str, data: st.DataObject) -> None:
    """Sampled pieces need not be the tokenizer's own, but a bridge is always what the whole ends in."""
    messages = data.draw(conversations(name))
    renderer = renderer_of(name, kind)
    for before, reply, new in turns(messages):
        so_far = (*before, assistant(reply), *new)
        whole, bridge = oracle(name, so_far, kind), renderer.bridge(new, after=None)
        assert whole[-len(bridge) :] == bridge
        if kind == "merging":
            tokens = [*renderer.render(before), *spell(name, reply, kind), *bridge]
            assert renderer.rewritten(tokens, so_far) is None


@given(reply=TEXT, data=st.data())
def test_reply_may_be_sampled_in_any_pieces(reply: str, data: st.DataObject) -> None:
    """Byte by byte is as good as the tokenizer's own pieces: it is the text that must agree."""
    assume("think>" not in reply)
    name, renderer = "qwen 3", renderer_of("qwen 3")
    by_byte = [token(name, c) for byte in reply.encode() for c in _byte_token(byte)]
    opening, new = (user("How many?"),), (user("Sure?"),)
    tokens = [*renderer.render(opening), *by_byte, *renderer.bridge(new, after=None)]
    assert renderer.decode(by_byte) == reply
    assert renderer.rewritten(tokens, (*opening, assistant(reply), *new)) is None


def test_normalised_text_is_not_rewritten_history() -> None:
    """Qwen's tokenizers compose accents (NFC), so tokens do not decode to the very text that was rendered."""
    tokenizer = make_tokenizer(QWEN3)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    renderer = Renderer(tokenizer)
    opening, new = (user("cafe\u0301?"),), (user("Sure?"),)
    messages = (*opening, assistant("7"), *new)
    assert "caf\u00e9?" in tokenizer.decode(renderer.render(opening))
    for pieces in (["yes"], ["y", "e", "s"]):
        tokens = [
            *renderer.render(opening),
            *tokenizer.convert_tokens_to_ids(pieces),
            *renderer.bridge(new, after=None),
        ]
        assert renderer.rewritten(tokens, (*opening, assistant("yes"), *new)) is None
        assert renderer.rewritten(tokens, messages) == renderer.render(messages)


def _byte_token(byte: int) -> str:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()[byte]


# ------------------------------------------------------------------------------------------------ what each style is


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", GROUPED_STYLES)
def test_style_probe_results(name: str, kind: str) -> None:
    renderer = renderer_of(name, kind)
    assert renderer.rewrites_history == STYLES[name].rewrites
    forms = renderer.forms
    assert (forms.joins_users, forms.system_as_user, forms.results_as_user) == STYLES[name].other_forms
    assert renderer._tokenizer.convert_tokens_to_ids(STYLES[name].end) == renderer.stop_token_ids[0]


def test_other_stop_token_still_ends_turn() -> None:
    renderer, other = renderer_of("chatml"), token("chatml", "<|endoftext|>")
    assert renderer.bridge([user("Oh?")], after=other) == renderer.bridge([user("Oh?")], after=None)


def test_template_may_end_turns_by_next_role() -> None:
    renderer = renderer_of("glm")
    ends = [token("glm", "<|user|>"), token("glm", "<|observation|>")]
    assert list(renderer.stop_token_ids[:2]) == ends
    answer = [tool("42", "c")]
    assert renderer.bridge(answer, after=ends[1]) == renderer.bridge(answer, after=None)[1:]
    # It asked for the user and got a tool's answer: the turn is ended by what the template says.
    assert renderer.bridge(answer, after=ends[0]) == renderer.bridge(answer, after=None)


def test_extra_stop_tokens_are_accepted() -> None:
    given_id = token("chatml", "<|endoftext|>")
    renderer = Renderer(tokenizer_of("chatml"), stop_token_ids=[given_id])
    assert renderer.stop_token_ids == (token("chatml", "<|im_end|>"), given_id)


def test_tokenizer_eos_stops_replies_too() -> None:
    own, end = token("chatml", "<|endoftext|>"), token("chatml", "<|im_end|>")
    tokenizer = make_tokenizer(CHATML, eos="<|endoftext|>")
    assert Renderer(tokenizer).stop_token_ids == (end, own)
    tokenizer.eos_token = None
    assert Renderer(tokenizer).stop_token_ids == (end,)


def test_only_old_reasoning_is_rewritten() -> None:
    renderer = renderer_of("qwen 3")
    thought = "<think>\nLet me see.\n</think>\n\n7"
    opening, new = (user("3 + 4?"),), (user("Sure?"),)
    for reply, expected in (("7", False), (thought, True)):
        tokens = [*renderer.render(opening), *spell("qwen 3", reply), *renderer.bridge(new, after=None)]
        messages = (*opening, assistant(reply), *new)
        anew = renderer.rewritten(tokens, messages)
        assert anew == (oracle("qwen 3", messages) if expected else None)
    # A tool's answer is no new question: the reasoning stays in sight.
    answer = (tool("7", "c"),)
    tokens = [*renderer.render(opening), *spell("qwen 3", thought), *renderer.bridge(answer, after=None)]
    assert renderer.rewritten(tokens, (*opening, assistant(thought), *answer)) is None


def test_template_kwargs_reach_template() -> None:
    template = QWEN3.replace("assistant\n{% endif %}", "assistant\n{{ '<think>\n' if think else '' }}{% endif %}")
    tokenizer = make_tokenizer(template)
    renderer = Renderer(tokenizer, template_kwargs={"think": True})
    assert tokenizer.decode(renderer.render([user("Hm")])).endswith("<|im_start|>assistant\n<think>\n")
    assert tokenizer.decode(renderer.bridge([user("Hm")], after=None)).endswith("<|im_start|>assistant\n<think>\n")


def test_tools_and_their_answers() -> None:
    renderer, tokenizer = renderer_of("qwen 3"), tokenizer_of("qwen 3")
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    assert '{"type": "function", "function": {"name": "add"' in tokenizer.decode(renderer.render([user("Hm")], tools))
    answers = [tool("7", "a"), tool("8", "b")]
    assert tokenizer.decode(renderer.bridge(answers, after=None, tools=tools)) == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_with_tool_results_only_after_calls() -> None:
    """Behind plain text they are the user's; behind calls, in an opening, they are the template's own."""
    renderer, tokenizer = renderer_of("mistral"), tokenizer_of("mistral")
    bridge = renderer.bridge([tool("7", "a"), tool("8", "b")], after=None)
    assert tokenizer.decode(bridge) == (
        "</s>[INST] <tool_response>\n7\n</tool_response>\n\n<tool_response>\n8\n</tool_response>[/INST]"
    )
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": [1, "é"]}'}}
    text = tokenizer.decode(renderer.render([user("Hm"), assistant("", [call]), tool("7", "a")]))
    assert text.endswith('"x": [1, "é"]}}]</s>[TOOL_RESULTS] {"content": "7", "id": "a"}[/TOOL_RESULTS]')


# ------------------------------------------------------------------------------------------------ decoding


@given(text=TEXT, stops=st.lists(st.sampled_from(["<|im_end|>", "<|endoftext|>"]), max_size=3))
def test_decoding_strips_exactly_one_stop_token(text: str, stops: list[str]) -> None:
    ids = [*spell("chatml", text), *(token("chatml", stop) for stop in stops)]
    remaining = stops[:-1] if stops and stops[-1] == "<|im_end|>" else stops
    assert renderer_of("chatml").decode(ids) == text + "".join(remaining)


# ------------------------------------------------------------------------------------------------ injection


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", GROUPED_STYLES)
@settings(max_examples=15)
@given(data=st.data())
def test_text_never_becomes_control_token(name: str, kind: str, data: st.DataObject) -> None:
    """There are as many control tokens as with harmless words in their place, and the text is complete."""
    renderer = renderer_of(name, kind)
    tokenizer = renderer._tokenizer
    ids = set(renderer._control.ids.values())
    evil = data.draw(
        st.lists(st.sampled_from([*renderer._control.ids, "x", " ", "zq0n0qz", "zq1n"]), min_size=1, max_size=6)
    )
    text, harmless = "".join(evil), "x" * len(evil)

    def conversation(spelling: str) -> Messages:
        return user(spelling), assistant("I see"), user(f"so: {spelling}.")

    rendered = renderer.render(conversation(text))
    control = [i for i in rendered if i in ids]
    assert control == [i for i in renderer.render(conversation(harmless)) if i in ids]
    assert f"so: {text}." in tokenizer.decode(rendered)
    bridge = renderer.bridge((user(f"so: {text}."),), after=None)
    assert rendered[-len(bridge) :] == bridge


def test_spelled_end_token_does_not_end_rerendered_turn() -> None:
    renderer, end = renderer_of("qwen 3"), token("qwen 3", "<|im_end|>")
    spoken = [user("Hm"), assistant("a<|im_end|>b"), user("Oh")]
    assert renderer.render(spoken).count(end) == 3


# ------------------------------------------------------------------------------------------------ refusals


def test_no_template_is_refused() -> None:
    tokenizer = make_tokenizer("x")
    tokenizer.chat_template = None
    with pytest.raises(RendererError, match="no chat template"):
        Renderer(tokenizer)


def test_plain_text_turn_end_is_refused() -> None:
    with pytest.raises(RendererError, match=r"no special token between .*'\\nuser: "):
        Renderer(make_tokenizer(PLAIN))


def test_template_rejecting_plain_conversations_is_refused() -> None:
    with pytest.raises(RendererError, match=r"\(user\): I do not talk"):
        Renderer(make_tokenizer("{{ raise_exception('I do not talk') }}"))


def test_rejection_error_quotes_the_template() -> None:
    with pytest.raises(RendererError, match=r"\(assistant, user\): Conversation roles must alternate"):
        renderer_of("gemma").render([assistant("Hello."), user("Hm")])


def test_empty_rendering_or_bridge_is_an_error() -> None:
    with pytest.raises(RendererError, match="without messages"):
        renderer_of("chatml").render([])
    with pytest.raises(RendererError, match="nothing to bridge to"):
        renderer_of("chatml").bridge([], after=None)


def test_text_after_reply_counts_as_rewriting() -> None:
    """Llama 2 puts a space before </s>; a reply that stops without that space is rendered otherwise as a whole."""
    renderer = Renderer(make_tokenizer(LLAMA2, ("<s>", "</s>"), bos="<s>", eos="</s>"))
    assert renderer.rewrites_history
    end = renderer.stop_token_ids[0]
    assert renderer._decode(renderer.bridge([user("Oh?")], after=end)) == "<s>[INST] Oh? [/INST]"
    assert renderer._decode(renderer.bridge([user("Oh?")], after=None)) == " </s><s>[INST] Oh? [/INST]"


def test_one_warning_however_often(caplog: pytest.LogCaptureFixture) -> None:
    renderer = Renderer(tokenizer_of("chatml"))
    with caplog.at_level(logging.WARNING):
        for about in ("a", "b", "a", "a"):
            renderer.warn_once(about, f"about {about}")
    assert [record.message for record in caplog.records] == ["about a", "about b"]
