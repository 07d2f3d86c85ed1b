"""Environments of OpenEnv's repository (`envs/`), each as its own server makes and plays it, without the network.

``server/app.py`` of an environment calls ``create_app`` with what makes the environment and with its action. This
module takes both from that call, and reads actions and writes observations with OpenEnv's own functions.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .registration import Registration, Step

#: Moves that solve an environment whose beginning is always the same.
_MOVES: Mapping[str, Sequence[str]] = {
    "connect4_env": list("0101010"),
    "grid_world_env": ["DOWN"] * 4 + ["RIGHT"] * 4,
}
#: Rewards of a whole success, where that is not 1.
_FULL = {"dipg_safety_env": 30.0, "grid_world_env": 0.3, "maze_env": 10.0}
_SHOWN = 2_000  # characters of a refused action's error


class _App(NamedTuple):
    """The factory of environments and the action that a server is made with."""

    make: Callable[[], Any]
    action: Any


def registrations(folder: Path) -> Iterator[Registration]:
    """Yield the environments of a checkout of OpenEnv."""
    for path in sorted((folder / "envs").iterdir()):
        if path.is_dir():
            begin = functools.partial(_Episode, str(folder), path.name)
            yield Registration(
                f"openenv/{path.name}",
                "openenv",
                begin,
                full=_FULL.get(path.name, 1.0),
                solvable=path.name in (*_MOVES, "reasoning_gym_env"),
                question=path.name == "reasoning_gym_env",
            )


class _Episode:
    """An episode. A reply is an action as JSON, or the value of its only required field."""

    secrets: Sequence[str] = ()

    def __init__(self, folder: str, name: str, seed: int) -> None:
        self.name, self.app = name, _app(folder, name)
        self.env = self.app.make()
        seeds = {"seed": seed} if "seed" in inspect.signature(self.env.reset).parameters else {}
        self.opening = self._text(self.env.reset(**seeds)).text
        self.turns = 0

    def reply(self, text: str) -> Step:
        from openenv.core.env_server.serialization import deserialize_action
        from pydantic import ValidationError

        try:
            action = deserialize_action(self._fields(text), self.app.action)
        except ValidationError as error:  # as the server answers
            return Step(str(error)[:_SHOWN])
        self.turns += 1
        return self._text(self.env.step(action))

    def expert(self, rng: np.random.Generator) -> str | None:
        moves = _MOVES.get(self.name, ())
        if self.turns < len(moves):
            return moves[self.turns]
        entry = getattr(self.env, "_current_entry", None)  # of reasoning_gym_env
        return str(entry["answer"]) if entry else None

    def _fields(self, text: str) -> dict[str, Any]:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            return fields
        required = [name for name, field in self.app.action.model_fields.items() if field.is_required()]
        return {required[0]: text} if len(required) == 1 else {}

    def _text(self, observation: Any) -> Step:
        from openenv.core.env_server.serialization import serialize_observation

        sent = serialize_observation(observation)
        return Step(json.dumps(sent["observation"], default=str), float(sent["reward"] or 0.0), bool(sent["done"]))


@functools.cache
def _app(folder: str, name: str) -> _App:
    """Import an environment's server, and return what it is made with."""
    for path in (f"{folder}/envs", f"{folder}/src"):
        if path not in sys.path:
            sys.path.insert(0, path)
    from fastapi import FastAPI
    from openenv.core import env_server
    from openenv.core.env_server import http_server

    calls: list[_App] = []

    def create_app(env: Any, action_cls: Any, *arguments: Any, **options: Any) -> FastAPI:
        calls.append(_App(env if callable(env) else lambda: env, action_cls))
        return FastAPI()

    for module in (env_server, http_server):
        for function in ("create_app", "create_fastapi_app"):
            if hasattr(module, function):
                setattr(module, function, create_app)
    importlib.import_module(f"{name}.server.app")
    if not calls:
        raise ImportError(f"{name}/server/app.py calls no create_app")
    return calls[0]
