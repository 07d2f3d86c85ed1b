"""OpenEnv: a text environment behind an OpenEnv server, and the client for it.

``python -m textenvs.adapters.openenv textenv/clarify`` serves one; :func:`create_app` is the same as an ASGI
application. What OpenEnv's own models have no place for (messages, truncation, the turn's terms) is declared in
:class:`TextObservation`, and so survives the wire.
"""

try:
    import openenv.core.env_server  # noqa: F401
except ImportError as error:
    raise ImportError("this needs OpenEnv and what its server imports: pip install openenv") from error

from .client import TextEnvClient
from .models import TextAction, TextObservation, TextState
from .server import TextEnvironment, create_app

__all__ = ["TextAction", "TextEnvClient", "TextEnvironment", "TextObservation", "TextState", "create_app"]
