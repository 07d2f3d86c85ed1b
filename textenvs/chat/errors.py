"""Errors of the chat layer."""

from __future__ import annotations


class ChatError(Exception):
    """Base of the chat layer's errors. They can be pickled between processes."""


class ChatFailure(ChatError):
    """A request got no usable answer: after its retries, or at once where trying again cannot help."""


class PromptTooLong(ChatFailure):
    """The conversation, with room for an answer, does not fit into the model's context. Never retried."""


class InvalidReply(ChatFailure):
    """The service's answers were unusable in every try."""


class BudgetExceeded(ChatError):
    """The next request might cost more than the budget has left, so it was not sent. It ends the run."""


class CacheError(ChatError):
    """The cache file cannot be used as one. The file is left as it is."""


class KeyMissing(ChatError, ValueError):
    """The environment variable that should hold the service's key is empty or not set."""
