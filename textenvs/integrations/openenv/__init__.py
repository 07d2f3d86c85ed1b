"""OpenEnv: :func:`create_app` serves a text environment, :class:`TextEnvClient` plays one that is served."""

from __future__ import annotations

from typing import Any

__all__ = ["TextAction", "TextEnvClient", "TextEnvironment", "TextObservation", "TextState", "create_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import adapter  # OpenEnv is imported where it is needed: the command's --help works without

    return getattr(adapter, name)
