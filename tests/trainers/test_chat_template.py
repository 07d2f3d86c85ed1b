"""Variables of a chat template: which may be given, which are read, and that every rendering has them."""

from __future__ import annotations

import inspect
from typing import Any

import jinja2
import numpy as np
import pytest
from chat_styles import QWEN3, STYLES, make_tokenizer, tokenizer_of
from transformers import PreTrainedTokenizerBase

from textenvs.messages import assistant, user, visible_text
from trainers.chat_template import RendererError, TemplateReasoning, reasoning_of, show_with, unread, variables
from trainers.command_line import resolve
from trainers.command_line.load import ConfigError
from trainers.config.template import RESERVED, refused
from trainers.engines.base import Generation
from trainers.models.tiny import CHATML
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.renderer import Renderer

# As in Qwen 3: an empty thought before the reply, and none in earlier replies.
SWITCH = QWEN3.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}",
)


def test_tokenizer_method_arguments_are_refused() -> None:
    """But for ``documents``, which it hands on to the template; also of a release that adds arguments."""
    parameters = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    names = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD} - {"self"}
    assert {"tokenize", "tools"} < names
    for name in names:
        with pytest.raises(RendererError, match=rf"never reads {name},|{name} cannot be given"):
            Renderer(tokenizer_of("chatml"), template_kwargs={name: True})


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("{% if x is defined and x %}a{% endif %}", {"x"}),
        ("{% if not x is defined %}{% set x = true %}{% endif %}{{ x }}", {"x"}),
        ("{% set x = x | default('a') %}{{ x }}", {"x"}),
        ("{% set x = 1 %}{{ x }}", set()),
        ("{% for m in messages %}{{ m['x'] }}{{ loop.index }}{% endfor %}", set()),
        ("{% macro show(x) %}{{ x + y }}{% endmacro %}{{ show(1) }}", {"y"}),
        ("{% for m in messages %}{% generation %}{{ x }}{% endgeneration %}{% break %}{% endfor %}", {"x"}),
        ("{% if tools %}{{ raise_exception('x') }}{% endif %}{{ strftime_now('%d') }}{{ bos_token }}", {"bos_token"}),
        ("{% set ns = namespace(x=1) %}{{ ns.x }}{% set ns.y = z %}", {"z"}),
    ],
)
def test_template_variables_are_found(source: str, read: set[str]) -> None:
    assert variables([source]) == read


#: Shows reasoning as the last turn has it.
REASONS = CHATML.replace(
    "{{ message['content'] }}",
    "{% if message['reasoning_content'] %}BEGIN\n{{ message['reasoning_content'] }}\nEND\n\n{% endif %}"
    "{{ message['content'] }}",
)


def reasons(begin: str, end: str, *, opened: bool = False) -> str:
    template = REASONS.replace("BEGIN", begin).replace("END", end)
    assert template != CHATML
    return template.replace("assistant\n{% endif %}", f"assistant\n{begin}\n{{% endif %}}") if opened else template


@pytest.mark.parametrize(("begin", "end"), [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<muse>", "</muse>")])
@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_reaches_environment_with_its_marks(begin: str, end: str, opened: bool) -> None:
    """Also reasoning that the prompt opened and that was cut, and marks that the template alone knows."""
    reasoning = Renderer(make_tokenizer(reasons(begin, end, opened=opened))).reasoning
    start = "" if opened else f"{begin}\n"
    for text, visible in (
        (f"{start}hm #### 4\n{end}\n\n7", "7"),
        (f"{start}{end}7", "7"),
        (f"{start}hm #### 4", "hm #### 4" if opened else ""),  # it ended by itself
        ("The tag <think> opens it.", "The tag <think> opens it."),
    ):
        assert visible_text(assistant(reasoning.reply(text, cut=False))) == visible
    for text in (f"{start}hm #### 4", f"{start}hm"):
        assert visible_text(assistant(reasoning.reply(text, cut=True))) == ""


@pytest.mark.parametrize("name", STYLES)
def test_template_without_reasoning_keeps_replies(name: str) -> None:
    assert reasoning_of(show_with(tokenizer_of(name))) == TemplateReasoning()


@pytest.mark.parametrize("name", STYLES)
def test_style_variables_are_exactly_those_named(name: str) -> None:
    assert all(variable in STYLES[name].template for variable in variables([STYLES[name].template]))
    with pytest.raises(RendererError, match="never reads enable_thinking"):
        Renderer(tokenizer_of(name), template_kwargs={"enable_thinking": False})


def test_several_templates_are_read_together() -> None:
    assert unread(["{{ x }}", "{{ y }}"], {"x": 1, "z": 1}) == (["z"], ["y"])


def test_text_that_is_no_template() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        variables(["{% if %}"])


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_variables_are_refused(name: str) -> None:
    assert [variable for variable, _ in refused([name, "x"])] == [name]
    with pytest.raises(RendererError, match=f"{name} cannot be given"):
        Renderer(tokenizer_of("chatml"), template_kwargs={name: True})


def test_unread_variable_error_lists_read_ones() -> None:
    with pytest.raises(
        RendererError, match=r"never reads enable_thinking\b.* it may read no variable that can be given"
    ):
        Renderer(make_tokenizer(CHATML), template_kwargs={"enable_thinking": False})
    with pytest.raises(RendererError, match=r"never reads enable_thought\b.* it may read content, enable_thinking"):
        Renderer(make_tokenizer(SWITCH), template_kwargs={"enable_thought": False})


def test_variables_reach_openings_bridges_and_probes() -> None:
    tokenizer = make_tokenizer(SWITCH)
    off = Renderer(tokenizer, template_kwargs={"enable_thinking": False})
    usual = Renderer(tokenizer)
    empty = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    for renderer, ending in ((off, empty), (usual, "<|im_start|>assistant\n")):
        assert tokenizer.decode(renderer.render([user("Hm")])).endswith(ending)
        assert tokenizer.decode(renderer.bridge([user("Hm")], after=None)).endswith(ending)
    # What stood before a reply is gone from it a turn later, and the renderer has found that out.
    talk = (user("Hm"), assistant("Yes."), user("So?"))
    played = [*off.render(talk[:1]), *tokenizer.encode("Yes."), *off.bridge(talk[2:], after=None)]
    assert off.rewrites_history
    anew = off.rewritten(played, talk)
    assert anew is not None
    assert tokenizer.decode(anew).count("<think>") == 1


def test_probe_uses_template_variables() -> None:
    """A template that keeps history by itself, and drops it when asked to."""
    source = CHATML.replace(
        "{% for message in messages %}",
        "{% for message in (messages[-1:] if forget is defined and forget else messages) %}",
    )
    assert source != CHATML
    assert not Renderer(make_tokenizer(source)).rewrites_history
    assert not Renderer(make_tokenizer(source), template_kwargs={"forget": False}).rewrites_history
    with pytest.raises(RendererError, match=r"does not show the text of message 0 \(user\)"):
        Renderer(make_tokenizer(source), template_kwargs={"forget": True})


# ------------------------------------------------------------------ the configuration


def kwargs_of(*arguments: str) -> dict[str, Any]:
    config, _ = resolve(arguments)
    return config.data.chat_template_kwargs


def test_kwargs_set_singly_or_as_mapping() -> None:
    assert kwargs_of() == {}
    assert kwargs_of("data.chat_template_kwargs.enable_thinking=false") == {"enable_thinking": False}
    assert kwargs_of("data.chat_template_kwargs={a: {b: [1, x]}}") == {"a": {"b": [1, "x"]}}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("data.apply_chat_template_kwargs.enable_thinking=false", {"enable_thinking": False}),
        ("+data.apply_chat_template_kwargs.enable_thinking=false", {"enable_thinking": False}),
        ("data.apply_chat_template_kwargs={enable_thinking: false, x: 1}", {"enable_thinking": False, "x": 1}),
        ("data.apply_chat_template_kwargs={}", {}),
        ("data.apply_chat_template_kwargs=null", {}),
    ],
)
def test_verl_key_sets_template_kwargs(argument: str, expected: dict[str, Any]) -> None:
    assert kwargs_of(argument) == expected


def test_verl_key_is_reported_and_checked() -> None:
    _, flags = resolve(["data.apply_chat_template_kwargs.enable_thinking=false"])
    assert any("-> data.chat_template_kwargs.enable_thinking=false" in note for note in flags.notes)
    with pytest.raises(ConfigError, match="must be a mapping"):
        resolve(["data.apply_chat_template_kwargs=3"])


def test_reply_cut_in_reasoning_is_private() -> None:
    """The mark that the prompt opened is put back for the environment, and in no token."""
    tokenizer = make_tokenizer(reasons("<think>", "</think>", opened=True))
    renderer = Renderer(tokenizer)
    for text, cut, visible in (("#### 4", True, ""), ("#### 4", False, "#### 4"), ("hm</think>7", True, "7")):
        tokens = EpisodeTokens(renderer, (user("2 + 2?"),), episode_id="e")
        size = tokens.context_size
        ids = tokenizer.encode(text, add_special_tokens=False)
        ids += [] if cut else [renderer.stop_token_ids[0]]
        zeros = np.zeros(len(ids), np.float32)
        reply = tokens.reply(Generation(np.array(ids, np.int32), zeros, zeros.astype(np.int32), "stop"))
        assert visible_text(assistant(reply)) == visible
        assert tokens.context[size:] == ids
