"""Variables of a chat template: which of them a user may give, and which of those a template reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_CONVERSATION = "the conversation at hand"
_OURS = "the renderer's own: templates are rendered as text, and tokenised behind that"
_FUNCTION = "a function that every template is given"

#: Names that no user may give, and what they are: arguments of ``apply_chat_template``, or variables that it sets.
RESERVED: Mapping[str, str] = {
    "messages": _CONVERSATION,
    "conversation": _CONVERSATION,
    "tools": "the environment's tools",
    "add_generation_prompt": "true exactly where the model is to speak",
    "continue_final_message": _OURS,
    "chat_template": "the tokenizer's template itself",
    "tokenize": _OURS,
    "padding": _OURS,
    "truncation": _OURS,
    "max_length": _OURS,
    "return_tensors": _OURS,
    "return_dict": _OURS,
    "return_assistant_tokens_mask": _OURS,
    "tokenizer_kwargs": _OURS,
    "processor_kwargs": _OURS,
    "sanitize_control_tokens": _OURS,
    "raise_exception": _FUNCTION,
    "strftime_now": _FUNCTION,
}


def refused(names: Iterable[str]) -> list[tuple[str, str]]:
    """The names among these that no user may give, each with what it is."""
    return [(name, RESERVED[name]) for name in names if name in RESERVED]


def variables(sources: Iterable[str]) -> set[str]:
    """The variables that templates read from outside in some case at least, the renderer's own left out.

    One that is set in a branch alone and read behind it is among them: without that branch, it comes from outside.

    Args:
        sources: Of the templates: Jinja as transformers reads it.

    Raises:
        jinja2.TemplateSyntaxError: One is no template.
    """
    from jinja2 import Environment, meta, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        """transformers' mark of what the assistant said, ``{% generation %}``: here it is only what is inside."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])  # noqa: S701
    found: set[str] = set()
    for source in sources:
        found |= meta.find_undeclared_variables(environment.parse(source))
    return found - RESERVED.keys()


def unread(sources: Iterable[str], given: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What was given and no template reads, and what could have been given instead; both sorted."""
    reads = variables(sources)
    return sorted(given.keys() - reads), sorted(reads - given.keys())
