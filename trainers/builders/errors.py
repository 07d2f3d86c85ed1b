"""What a part that cannot be made says."""

from __future__ import annotations


class SetupError(ValueError):
    """A run cannot be put together; the message says why and what to do."""
