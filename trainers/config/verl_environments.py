"""The joint rule for verl's keys about the environment. :mod:`.tables` names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from . import verl_names
from .translate import BadValueError, Given, Result
from .yaml12 import Loader, dump, reason

_ROLLOUT = "actor_rollout_ref.rollout."


def environment(given: Given) -> Iterator[Result]:
    """The environment, by the interaction or the agent loop."""
    turns = f"{_ROLLOUT}multi_turn."
    interaction, loop = f"{turns}interaction_config_path", f"{_ROLLOUT}agent.default_agent_loop"
    files = {interaction: "interaction", f"{turns}tool_config_path": "tools", "data.tool_config_path": "tools"}
    named = [key for key in files if given.has(key)]
    chosen = "env.id" in given.ours
    env = given.our("env.id")
    if named and not chosen:
        found = [_classes(given.value(key), key, files[key]) for key in named]
        if any(each != found[0] for each in found):
            raise BadValueError(named[1], f"is another environment than {named[0]}; name the one to train in by env.id")
        env = found[0].env
        yield Result("env.id", env, of=tuple(named))
        for name, value in found[0].kwargs.items():
            yield Result(f"env.kwargs.{name}", value, of=tuple(named))
        yield Result("", f"not used: {named[0]} names the environment", of=(loop,))
    elif not chosen:
        name = given.value(loop)
        if not isinstance(name, str) or name not in verl_names.AGENT_LOOPS:
            known = ", ".join(verl_names.AGENT_LOOPS)
            raise BadValueError(loop, f"is {dump(name)}; known are {known}; or name the environment with env.id")
        env = verl_names.AGENT_LOOPS[name]
        yield Result("env.id", env, of=(loop,))
    else:
        yield Result("", "not used: env.id is given", of=(loop, *files))
    user, assistant, older = f"{turns}max_user_turns", f"{turns}max_assistant_turns", f"{turns}max_turns"
    if env in verl_names.SINGLE_TURN:
        yield Result("", f"not used: {env} has one turn", of=(user, assistant, older))
        return
    if given.has(user):
        yield Result("env.kwargs.max_user_turns", given.value(user), of=(user,))
    if given.has(assistant, older):
        name = assistant if given.has(assistant) else older
        yield Result("env.kwargs.max_assistant_turns", given.value(name), of=(name,))
    elif given.has(interaction) and not chosen:
        yield Result("env.kwargs.max_assistant_turns", None, of=(interaction,))  # there null is the default


def _classes(path: Any, key: str, entries: str) -> verl_names.Interaction:
    """The environment that a file of interactions or tools means; ``entries`` is the name of its list.

    Raises:
        BadValueError: It cannot be read, or names no class that is known here.
    """
    known = verl_names.TOOLS if entries == "tools" else verl_names.INTERACTIONS
    try:
        loader = Loader(Path(str(path)).expanduser().read_text(encoding="utf-8"))
        node = loader.get_single_node()
        content = None if node is None else loader.construct_object(node, deep=True)  # type: ignore[no-untyped-call]
    except (OSError, UnicodeDecodeError) as error:
        text = f"{path} cannot be read: {error}; give a file that is there, or name the environment with env.id"
        raise BadValueError(key, text) from error
    except yaml.YAMLError as error:
        raise BadValueError(key, f"{path} is not YAML: {reason(error)}") from error
    given = content.get(entries) if isinstance(content, dict) else None
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise BadValueError(key, f"{path} needs a list '{entries}' of entries with a class_name")
    found = []
    for entry in given:
        name = str(entry.get("class_name") or "").rpartition(".")[2]
        if name not in known:
            raise BadValueError(
                key,
                f"{path} has the class {entry.get('class_name')!r}, which no environment here stands for; known are "
                f"{', '.join(known)}. Name the environment with env.id instead",
            )
        if {**(entry.get("config") or {}), "type": "native"} != {"type": "native"}:
            raise BadValueError(key, f"{path}: give the options of {name} as env.kwargs; its 'config' is not read")
        found.append(known[name])
    if any(each != found[0] for each in found):
        raise BadValueError(key, f"{path} has classes of several environments; a run has one")
    return found[0]
