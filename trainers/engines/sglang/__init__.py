"""SGLang as an engine: its HTTP server, started here or running already."""

from __future__ import annotations

from .engine import SGLangEngine

__all__ = ["SGLangEngine"]
