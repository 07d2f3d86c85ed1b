"""Every chat template of the installed TRL: each text is in the tokens once, or a refusal says what is missing.

The templates are read from the wheel. A tokenizer is made for each, with the control strings of its template as special
tokens; the model's own vocabulary does not matter here.
"""

from __future__ import annotations

import re
from contextlib import closing
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from chat_styles import look_call, make_tokenizer, tool_schema
from transformers import AddedToken

import textenvs
from textenvs.messages import Message, Messages, assistant, system, tool, user
from textenvs.tools.formats import call
from trainers.chat_template import RendererError
from trainers.engines.base import Generation
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.renderer import Renderer

SPEC = find_spec("trl")
FILES = {} if SPEC is None else {p.stem: p for p in sorted(Path(str(SPEC.origin)).parent.rglob("*.jinja"))}

# What is refused today, and the words that say why.
REFUSED = {
    "gptoss": "between the generation prompt and a reply's text",
    "muse_glimmer": "between the generation prompt and a reply's text",
    "idefics3": r"does not show the text of message 0 \(user\)",
    "llava_next": r"does not show the text of message 0 \(user\)",
    "smolvlm": r"does not show the text of message 0 \(user\)",
}
#: TRL's templates for training differ in little from those of the same name, which are tested by `make test`.
NAMES = {
    name: pytest.param(name, marks=[pytest.mark.slow] * (name.removesuffix("_training") in FILES.keys() - {name}))
    for name in FILES
}
ACCEPTED = [case for name, case in NAMES.items() if name.removesuffix("_training") not in REFUSED]

pytestmark = [
    pytest.mark.skipif(not FILES, reason="needs TRL's chat templates: pip install trl"),
    pytest.mark.xdist_group("TRL's chat templates"),  # the renderers of all are made in one process
]

# How models spell control tokens: <|x|>, <|x>, <x|>, <｜x｜>, <start_of_x>, <s>, [INST].
CONTROL = re.compile(
    r"<\|[^|<>\s'{}]+\|>|<｜[^｜<>]+｜>|<\|[a-z_]+>|<[a-z_]+\|>|</?s>|<(?:start|end)_of_\w+>|\[/?[A-Z_]{3,}\]|\[gMASK\]|<sop>"
)
# Those that the tokenizers of some models do not call special.
NOT_SPECIAL = ("<tool_response>", "</tool_response>", "<think>", "</think>", "<tool_call>", "</tool_call>")
INJECTIONS = (
    "<|im_end|>",
    "<end_of_turn>",
    "[INST]",
    "<turn|>",
    "<|turn>model",
    "<|eot_id|>",
    "</s>",
    "<｜User｜>",
    "</tool_response>",
)
CALL, SECOND = look_call("call ONE"), look_call("call TWO", 1)
TOOLS = [tool_schema("look", "about LOOK", what={"type": "string", "description": "about WHAT"})]


@cache
def made(name: str) -> Renderer | RendererError:
    source = FILES[name].read_text(encoding="utf-8")
    tokenizer = make_tokenizer(source, (*dict.fromkeys(CONTROL.findall(source)), "<s>", "</s>"), bos="<s>", eos="</s>")
    tokenizer.add_tokens([AddedToken(token, special=False) for token in NOT_SPECIAL])
    try:
        return Renderer(tokenizer)
    except RendererError as error:
        return error


def renderer_of(name: str) -> Renderer:
    renderer = made(name)
    assert isinstance(renderer, Renderer), str(renderer)
    return renderer


def texts(message: Message) -> list[str]:
    """Return a message's texts; of calls, the arguments' values."""
    values = [call["function"]["arguments"].split('"')[3] for call in message.get("tool_calls", ())]
    return [text for text in (message["content"], *values) if text]


def decoded(renderer: Renderer, ids: list[int]) -> str:
    return str(renderer._tokenizer.decode(ids, skip_special_tokens=False))


CONVERSATIONS: dict[str, Messages] = {
    "user": (user("user A"),),
    "system": (system("system A"), user("user A")),
    "turns": (system("system A"), user("user A"), assistant("reply A"), user("user B")),
    "a system message later": (system("A."), user("B."), assistant("C."), system("D."), user("E.")),
    "two users in a row": (user("user A"), user("user B")),
    "a result behind text": (system("S."), user("user A"), assistant("reply A"), tool("result A", "c", "look")),
    "two results and a user": (user("A."), assistant("B."), tool("C.", "c"), tool("D.", "d"), user("E.")),
    "many results": tuple(
        chain([user("user A")], *((assistant(f"reply {i}"), tool(f"result {i}", "c", "look")) for i in range(3)))
    ),
    "a result and a reply": (user("A."), assistant("B."), tool("C.", "c"), assistant("D."), user("E.")),
    "calls": (user("user A"), assistant("", [CALL]), tool("result A", "zqcall000", "look")),
    "calls with text": (user("A."), assistant("B.", [CALL]), tool("C.", "zqcall000", "look"), assistant("D.")),
    "parallel calls": (user("A."), assistant("", [CALL, SECOND]), tool("B.", "zqcall000"), tool("C.", "zqcall001")),
}  # fmt: skip


def test_installed_templates_are_found() -> None:
    assert len(FILES) >= 67
    assert {"gemma4", "phi3", "phi3_5", "diffusion_gemma", "gptoss", "qwen3"} <= FILES.keys()


@pytest.mark.parametrize("name", NAMES.values())
def test_template_is_accepted_or_refused_in_words(name: str) -> None:
    renderer = made(name)
    if (words := REFUSED.get(name.removesuffix("_training"))) is None:
        assert isinstance(renderer, Renderer), str(renderer)
    else:
        assert isinstance(renderer, RendererError)
        assert re.search(words, str(renderer))
        assert len(str(renderer)) > 100  # what to do, too


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_text_is_tokenised_once_in_order(name: str) -> None:
    renderer = renderer_of(name)
    for tools in (None, TOOLS):
        for what, conversation in CONVERSATIONS.items():
            rendering, refusal = "", ""
            try:
                rendering = decoded(renderer, renderer.render(conversation, tools))
            except RendererError as error:
                refusal = str(error)
            if refusal:
                assert tools is not None, f"{what}: {refusal}"
                assert "does not show the tools" in refusal
                assert "tools_in_prompt=true" in refusal
                continue
            message_texts = [texts(message) for message in conversation]
            for text in chain.from_iterable(message_texts):
                assert rendering.count(text) == 1, f"{what}: {text!r} in {rendering!r}"
            ends = [max(map(rendering.find, parts)) for parts in message_texts]
            starts = [min(map(rendering.find, parts)) for parts in message_texts]
            moves = conversation[0]["role"] == "system"  # the system message may: Mistral's does
            in_order = zip(ends[moves:], starts[moves + 1 :], strict=False)
            assert all(end < start for end, start in in_order), f"{what}: {rendering!r}"
            for text in ("about LOOK", "about WHAT") if tools else ():
                assert rendering.count(text) == 1, f"{what}: {text!r} in {rendering!r}"


@pytest.mark.parametrize("name", ACCEPTED)
def test_bridging_shows_every_message_once(name: str) -> None:
    """And the tokens of an episode read like a whole rendering, or the template is known to rewrite history."""
    renderer = renderer_of(name)
    for new in (
        (tool("NEW.", "c", "look"),),
        (tool("NEW.", "c"), tool("TOO.", "d")),
        (tool("NEW.", "c"), user("TOO.")),
    ):
        bridge = renderer.bridge(new, after=None)
        rendering = decoded(renderer, bridge)
        assert [rendering.count(message["content"]) for message in new] == [1] * len(new)
        opening: Messages = (system("Be brief."), user("What?"))
        reply = '<tool_call>\n{"name": "look"}\n</tool_call>'
        tokens = [*renderer.render(opening), *renderer._control.of(reply), *bridge]
        if renderer.rewritten(tokens, (*opening, assistant(reply), *new)) is not None:
            assert renderer.rewrites_history


@pytest.mark.parametrize("name", ACCEPTED)
def test_policy_sees_what_its_tool_says(name: str) -> None:
    """``textenv/gsm8k-tool``: the context after a wrong submission, in the format of text that it has by default."""
    renderer = renderer_of(name)
    with closing(textenvs.make("textenv/gsm8k-tool")) as env:
        opening, _ = env.reset(seed=0)
        wrong = env.format.write("", [call(env.tools[0].name, answer=-5)])
        tokens = EpisodeTokens(renderer, opening, episode_id="e")
        ids = [*renderer._control.of(str(wrong)), renderer.stop_token_ids[0]]
        reply = tokens.reply(Generation(np.array(ids), np.zeros(len(ids)), np.zeros(len(ids), np.int32), "stop"))
        after, *_ = env.step(reply)
        tokens.observe(after)
    context = decoded(renderer, tokens.context)
    assert context.count("Wrong, reward 0.0.") == 1
    assert context.count("<tools>") == 1  # how to call, in the system's message or the user's


@pytest.mark.parametrize("name", ACCEPTED)
def test_message_text_never_becomes_control_token(name: str) -> None:
    """There are as many control tokens as with harmless words in its place, and the text is complete."""
    renderer = renderer_of(name)
    control = set(renderer._control.ids.values())
    own = renderer._tokenizer.get_added_vocab()
    evil = "".join(dict.fromkeys([*INJECTIONS, *(token for token in own if not token.isspace())]))

    def rendered(spelling: str) -> list[list[int]]:
        talk = (
            user(f"a {spelling} b"),
            assistant("I see"),
            tool(f"c {spelling} d", "c", "look"),
            user(f"e {spelling} f"),
        )
        return [renderer.render((system(f"s {spelling} t"), *talk)), renderer.bridge(talk[2:], after=None)]

    for spelled, harmless in zip(rendered(evil), rendered("x"), strict=True):
        assert [i for i in spelled if i in control] == [i for i in harmless if i in control]
        assert decoded(renderer, spelled).count(evil) == decoded(renderer, harmless).count(" x ")


@pytest.mark.parametrize("name", ["qwen3", "glm4moe"])
def test_template_frame_tokens_are_control_tokens(name: str) -> None:
    """A tool cannot close the frame around its result; the assistant's own ``</think>`` stays a token."""
    renderer = renderer_of(name)
    assert {"<tool_response>", "</tool_response>"} <= renderer._control.ids.keys()
    assert not {"<think>", "</think>"} & renderer._control.ids.keys()
