"""Chat templates: the variables that a user may set, and which of those a template reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_OURS = "the renderer's own: templates are rendered as text, and tokenised behind that"

#: Names that no user may give, and what they are: arguments of ``apply_chat_template``, or variables that it sets.
RESERVED: Mapping[str, str] = {
    **dict.fromkeys(("messages", "conversation"), "the conversation at hand"),
    "tools": "the environment's tools",
    "add_generation_prompt": "true exactly where the model is to speak",
    "chat_template": "the tokenizer's template itself",
    **dict.fromkeys(("continue_final_message", "tokenize", "padding", "truncation", "max_length"), _OURS),
    **dict.fromkeys(("return_tensors", "return_dict", "return_assistant_tokens_mask"), _OURS),
    **dict.fromkeys(("tokenizer_kwargs", "processor_kwargs", "sanitize_control_tokens"), _OURS),
    **dict.fromkeys(("raise_exception", "strftime_now"), "a function that every template is given"),
}


def refused(names: Iterable[str]) -> list[tuple[str, str]]:
    """The names among these that no user may give, each with what it is."""
    return [(name, RESERVED[name]) for name in names if name in RESERVED]


def variables(sources: Iterable[str]) -> set[str]:
    """The variables that templates read from outside in some case, but for the renderer's own."""
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
    found = [meta.find_undeclared_variables(environment.parse(source)) for source in sources]
    return set().union(*found) - RESERVED.keys()


def unread(sources: Iterable[str], given: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What was given and no template reads, and what could have been given instead; both sorted."""
    reads = variables(sources)
    return sorted(given.keys() - reads), sorted(reads - given.keys())
