"""OpenEnv: a text environment behind an OpenEnv server, and the client for it.

``python -m textenvs.integrations.openenv textenv/clarify`` serves one; :func:`create_app` is the same as an ASGI
application. What OpenEnv's own models have no place for (messages, truncation, the turn's terms) is declared in
:class:`TextObservation`, and so survives the wire.

OpenEnv is imported with the first of these names, so that the command can say in words that it is missing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import TextEnvClient
    from .models import TextAction, TextObservation, TextState
    from .server import TextEnvironment, create_app

__all__ = ["TextAction", "TextEnvClient", "TextEnvironment", "TextObservation", "TextState", "create_app"]

_PLACES = {
    **dict.fromkeys(("TextAction", "TextObservation", "TextState"), "models"),
    **dict.fromkeys(("TextEnvironment", "create_app"), "server"),
    "TextEnvClient": "client",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import openenv.core.env_server  # noqa: F401
    except ImportError as error:
        raise ImportError("this needs OpenEnv and what its server imports: pip install openenv") from error
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
