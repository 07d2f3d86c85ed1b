"""Cheap policies against tau2's tasks: claims, questions without end, transfers, and changes of whatever was named.

tau2 pays a task whose right outcome changes nothing for any way to the user's goodbye, so ``claim`` and ``transfer``
earn there what they earn; docs/environments/tau2.md has the numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np

from ...attack import Attack, Cheater, always, sequence
from ...messages import Message, Messages, assistant, text_of
from ...tools import call

_WHO = "Could you tell me your name?"
_CLOSING = "Your request has been processed. Is there anything else?"


def _called(name: str, **arguments: str) -> Message:
    return assistant("", (call(name, **arguments),))


def _cancel(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    """Cancel every order that the conversation names, and then say that it is done."""
    done: set[str] = set()

    def reply(conversation: Messages) -> str | Message:
        words = " ".join(text_of(message) for message in conversation if message["role"] != "system")
        for order in re.findall(r"#W\d{7}", words):
            if order not in done:
                done.add(order)
                return _called("cancel_pending_order", order_id=order, reason="no longer needed")
        return _CLOSING

    return reply


def _transcript(conversation: Messages) -> str:
    """Repeat the whole conversation, for texts that may have to be communicated."""
    return json.dumps([text_of(message) for message in conversation[1:]])[:3900] + " Anything else"


ATTACKS: tuple[Attack, ...] = (
    sequence("claim", "asks for the name, and says that all is done", [_WHO, _CLOSING], fakes_solving=False),
    always("ask", "asks for the name, again and again", _WHO),
    sequence(
        "transfer",
        "hands every user over to a human",
        [
            _called("transfer_to_human_agents", summary="The user needs help."),
            "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.",
        ],
        fakes_solving=False,
    ),
    Attack("cancel", "cancels every order that is named", _cancel, fakes_solving=False),
    always("echo", "repeats the conversation", _transcript, fakes_solving=False),
)
