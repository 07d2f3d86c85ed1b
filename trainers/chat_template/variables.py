"""Variables of chat templates that a user may set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..config.template import RESERVED, refused
from .show import RendererError


def variables(sources: Iterable[str]) -> set[str]:
    """Return the variables that templates may read from outside, except for the renderer's own."""
    from jinja2 import Environment, meta, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        """transformers' mark of the assistant's text, ``{% generation %}``: only its content counts here."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])  # noqa: S701
    names = [meta.find_undeclared_variables(environment.parse(source)) for source in sources]
    return set().union(*names) - RESERVED.keys()


def unread(sources: Iterable[str], kwargs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the variables that no template reads, and those that could be set instead; both sorted."""
    reads = variables(sources)
    return sorted(kwargs.keys() - reads), sorted(reads - kwargs.keys())


def check_kwargs(kwargs: Mapping[str, Any], template: str | dict[str, str]) -> None:
    """Raise ``RendererError`` for variables that are the renderer's own, or that no template reads."""
    from jinja2 import TemplateSyntaxError

    for name, what in refused(kwargs):
        raise RendererError(f"chat_template_kwargs: {name} cannot be given: it is {what}")
    if not kwargs:
        return
    try:
        nothing, instead = unread(template.values() if isinstance(template, dict) else [template], kwargs)
    except TemplateSyntaxError as error:
        raise RendererError(f"the chat template is no Jinja template: {error}") from error
    if nothing:
        raise RendererError(
            f"chat_template_kwargs: the chat template never reads {', '.join(nothing)}, which would do nothing; "
            f"it may read {', '.join(instead) or 'no variable that can be given'}"
        )
