"""Options that a row of a dataset may choose, in one place; see docs/security.md.

A row is data, perhaps another person's. It may name an environment that ships and set options that say how an
episode goes. It never chooses an address, a key or the variable that has one, a path, a module, the settings of a
sandbox, or another model: the person who runs the program chooses those, where the rows are read (``environments``).
Of such things, a row may only repeat what that person said.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .registry import list_environments

#: Options of the environments that ship which a row may set: rewards, limits, and which tasks of those that are there.
ROW_OPTIONS: frozenset[str] = frozenset((
    "accepts", "admissible", "alpha", "ambiguous", "answer_format", "answers", "attempts", "bleu", "call_cost",
    "call_format", "category", "correct", "count", "dataset", "deliveries", "domain", "env", "extra_turn", "feedback",
    "applications", "forfeit", "goals", "page_size", "prompt", "record_kinds", "worlds",
    "format", "formula", "game", "instruction", "interactivity", "kinds", "level", "manner", "manual",
    "max_assistant_turns", "max_calls_per_turn", "max_contexts", "max_output_chars", "max_steps", "max_user_turns",
    "method", "needless", "no_progress", "opponent", "patience", "progress", "question", "reasoning_marks", "rewarded",
    "score", "scoring", "seat", "seed", "shaped", "size", "snippet_chars", "split", "submission", "success",
    "system_prompt", "task_reward", "templates", "threshold", "token_rate", "tool_error", "tools", "tools_in_prompt",
    "top_k", "turn", "user_volunteers", "wasted_call", "wrong", "capacity", "leak", "people", "sessions", "things",
))  # fmt: skip
#: Characters of a text that a row may set.
MAX_TEXT = 10_000

#: By id: the options that the person who runs the program gave, or several such mappings.
Environments = Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Trust:
    """The options that rows may choose in one program.

    ``environments`` are the ids that rows may name beside those that ship (``module:id`` imports the module), each with
    the options that rows may repeat, with these values. The person who runs the program gives it; no data do.
    """

    environments: Environments = field(default_factory=dict)

    def problem(self, env: str, options: Mapping[str, Any]) -> str | None:
        """Why a row may not ask for this environment with these options; ``None`` where it may."""
        if env not in self.environments and env not in list_environments(with_arguments=True):
            return (
                f"a row may not name the environment {env!r}: it does not ship with textenvs. To allow it, give its id "
                f"where the rows are read: environments={json.dumps({env: {}})}"
            )
        allowed = self.environments.get(env, ())
        sets = [allowed] if isinstance(allowed, Mapping) else list(allowed)
        for name, value in options.items():
            if name in ROW_OPTIONS and _is_plain(value):
                continue
            if not any(name in option_set and _same(option_set[name], value) for option_set in sets):
                return (
                    f"a row may not set {name!r} of {env} to this value: addresses, keys, paths, modules, models and "
                    "sandboxes are chosen where the rows are read: environments={id: {option: value}}, with the same "
                    "value"
                )
        return None


def is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of an address: what a secret is bound to."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def person_only(env_kwargs: Mapping[str, Any]) -> list[str]:
    """Return the options of these that a row may only repeat."""
    return sorted(name for name, value in env_kwargs.items() if name not in ROW_OPTIONS or not _is_plain(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 100 and all(not isinstance(item, list) and _is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= MAX_TEXT)


def _same(first: Any, second: Any) -> bool:
    """Return whether two values are the same JSON; 1 and true are not."""
    try:
        return json.dumps(_as_json(first), sort_keys=True) == json.dumps(_as_json(second), sort_keys=True)
    except (TypeError, ValueError):
        return False


def _as_json(value: Any) -> Any:
    """Plain containers for those of configuration libraries."""
    if isinstance(value, Mapping):
        return {str(name): _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
