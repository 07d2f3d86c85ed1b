"""Chat templates: rendering, the form of each message, control tokens, reasoning, and variables that a user may set."""

from .control_tokens import ControlTokens, MarkedText, any_of
from .message_forms import MessageForms
from .reasoning import TemplateReasoning, reasoning_of
from .show import PROBE_TOOLS, RejectedError, RendererError, Show, Tools, place_of, show_with
from .variables import check_kwargs, unread, variables

__all__ = [
    "PROBE_TOOLS",
    "ControlTokens",
    "MarkedText",
    "MessageForms",
    "RejectedError",
    "RendererError",
    "Show",
    "TemplateReasoning",
    "Tools",
    "any_of",
    "check_kwargs",
    "place_of",
    "reasoning_of",
    "show_with",
    "unread",
    "variables",
]
