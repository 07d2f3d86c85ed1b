"""Checks of a run whose policy summarises long conversations (``env.kwargs.compact``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..section import Problems
from .rollout import OneEnvSection, PlayedEnvSection


def compaction_checks(env: PlayedEnvSection, max_context: int, judges: Mapping[str, Any]) -> Problems:
    """Check that a summary is requested in time, and that nothing scores what a policy has summarised.

    ``judges`` are what scores conversations, by key; a value that is false is off. They would judge what the policy
    wrote of the conversation itself.
    """
    parts: dict[str, OneEnvSection] = {f"env.mixture.{name}": part for name, part in env.mixture.items()}
    parts = parts or {"env": env}
    places = {f"{key}.{name}": getattr(part, name) for key, part in parts.items() for name in ("kwargs", "val_kwargs")}
    compacts = {f"{key}.compact": kwargs["compact"] for key, kwargs in places.items() if "compact" in kwargs}
    for key, options in compacts.items():
        tokens = options.get("tokens") if isinstance(options, Mapping) and options.get("count") is None else None
        if isinstance(tokens, int) and tokens >= max_context:
            text = (
                f"is {tokens}: a conversation ends at engine.max_context={max_context}, before a summary is requested"
            )
            yield f"{key}.tokens", f"{text}; leave room for the request, the summary and a reply"
    for name in (name for name, value in judges.items() if value and compacts):
        yield name, f"does not go with {next(iter(compacts))}: it would judge what the policy wrote of the conversation"
