"""Chat templates: their variables, the messages that they show, and the control tokens that they write.

``variables`` (which variables a user may set), ``forms`` (how each message is put so that the template shows it) and
``control`` (text in a message never becomes a control token).
"""

from .variables import RESERVED, refused, unread, variables

__all__ = ["RESERVED", "refused", "unread", "variables"]
