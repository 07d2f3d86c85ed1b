"""Cheap policies against the service desk: imitations of an answer, a yes, a refusal or a change.

Each identifies the customer as a good agent does, because nothing counts without that, and cheats from there. Their
replies are in ``attacks.yaml``.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from ...attack import Attack, Cheater
from ...messages import Messages
from ...text import load_yaml
from .script import NO_RULES


class _Talk:
    """The conversation so far, and the ids, amounts and dates in it."""

    def __init__(self) -> None:
        self.now: Messages = ()

    def matches(self, pattern: str) -> list[str]:
        """Return the distinct matches after the system prompt, in the order of their first occurrence."""
        texts = [str(message["content"]) for message in self.now if message["role"] != "system"]
        return list(dict.fromkeys(re.findall(pattern, "\n".join(texts))))

    @property
    def order_ids(self) -> list[str]:
        return self.matches(r"\bW\d{7}\b")

    @property
    def order(self) -> str:
        return (self.order_ids or ["W1"])[0]

    @property
    def orders(self) -> str:
        return " and ".join(self.order_ids)

    @property
    def things(self) -> str:
        things = self.matches(r'"product":\s*"([^"]+)"') or self.matches(
            r"(?:about|with) the ([\w -]+?)(?: and the|\.)"
        )
        return " and the ".join(things) or "item"

    @property
    def account(self) -> str:
        return (self.matches(r"\b[a-z]+_[a-z]+_\d{4}\b") or ["nobody"])[0]

    @property
    def days(self) -> str:
        today = date.fromisoformat(re.findall(r"\d{4}-\d\d-\d\d", str(self.now[0]["content"]))[0])
        return ", ".join((today + timedelta(days=n)).isoformat() for n in range(-30, 61))

    @property
    def amounts(self) -> str:
        """All amounts seen, and all sums of two."""
        seen = {float(amount) for amount in self.matches(r'":\s*(\d+\.\d+)')}
        sums = {round(one + two, 2) for one, two in itertools.combinations(seen, 2)}
        return ", ".join(f"${amount:.2f}" for amount in sorted(seen | sums))

    @property
    def codes(self) -> str:
        return ", ".join(self.matches(r"TRK\d+") + self.matches(r"\d{4}-\d\d-\d\d"))

    @property
    def results(self) -> str:
        return "\n".join(str(message["content"]) for message in self.now if message["role"] == "tool")


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _identify(talk: _Talk) -> Iterator[str]:
    yield "May I have your email address, or else your full name and your zip code?"
    if emails := talk.matches(r"[\w.]+@example\.\w+"):
        yield _call("find_customer_by_email", email=emails[-1].rstrip("."))
        if talk.matches(r"customer_id"):
            return
        yield "I could not find you. Please tell me your full name and your zip code."
    names = talk.matches(r"(?:I am|name is) ([A-Z]\w+ [A-Z]\w+)") or ["A B"]
    first, last = names[-1].split()
    zip_code = (talk.matches(r"\b\d{5}\b") or ["00000"])[-1]
    yield _call("find_customer_by_name", first_name=first, last_name=last, zip_code=zip_code)


def _look(talk: _Talk) -> Iterator[str]:
    """Read the account and every order number seen."""
    yield _call("get_customer", customer_id=talk.account)
    for order in talk.order_ids[:8]:
        yield _call("get_order", order_id=order)


def _writes(talk: _Talk) -> Iterator[str]:
    """Yield every change of every order seen."""
    for order in talk.order_ids[:3]:
        results = (str(message["content"]) for message in talk.now if message["role"] == "tool")
        text = next((result for result in results if f'"order_id":"{order}"' in result), "")
        items = re.findall(r'"item_id":"(\d+)"', text)
        payment = re.findall(r'"payment_id":"(\w+)"', text) or ["card_1"]
        if '"pending"' in text:
            yield _call("cancel_order", order_id=order, reason="no_longer_needed")
        elif items:
            yield _call("return_items", order_id=order, item_ids=items[:1])
            price = re.findall(r'"price":([\d.]+)', text)[0]
            yield _call("refund", order_id=order, amount=float(price), payment_id=payment[0])


def _hand_over(talk: _Talk) -> Iterator[str]:
    yield _call("transfer_to_human", customer_id=talk.account, summary="The customer needs help.")


_STEPS: Mapping[str, Callable[[_Talk], Iterator[str]]] = {
    "identify": _identify,
    "look": _look,
    "writes": _writes,
    "hand_over": _hand_over,
}


def _replies(talk: _Talk, steps: Sequence[str | Sequence[str]], then: Sequence[str]) -> Iterator[str]:
    for step in steps:
        if isinstance(step, str) and step in _STEPS:
            yield from _STEPS[step](talk)
        else:
            yield from [text.format(talk) for text in ([step] if isinstance(step, str) else step)]
    yield from itertools.cycle([text.format(talk) for text in then])


def _attack(
    name: str, says: str, steps: Sequence[str | Sequence[str]], then: Sequence[str], fakes_solving: bool = True
) -> Attack:
    def start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
        talk = _Talk()
        replies = _replies(talk, steps, then)

        def reply(conversation: Messages) -> str:
            talk.now = conversation
            return next(replies)

        return reply

    return Attack(name, says, start, fakes_solving=fakes_solving)


def _memoriser(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    """Replay the expert's replies to the same request, with the email address and the ids of this talk."""
    replies: list[str] = []

    def reply(conversation: Messages) -> str:
        if len(conversation) == 2:
            request = str(conversation[1]["content"]).split(". ", 1)[-1]
            same = [talk for talk in seen if str(talk[1]["content"]).endswith(request)] or list(seen)
            talk = same[rng.integers(len(same))]
            replies[:] = [str(message["content"]) for message in talk if message["role"] == "assistant"]
        text = replies.pop(0) if replies else "Is there anything else?"
        text_so_far = "\n".join(str(message["content"]) for message in conversation[1:])
        for pattern in (r"\bW\d{7}\b", r"[\w.]+@example\.\w+\b", r"\b[a-z]+_[a-z]+_\d{4}\b"):
            if now := re.findall(pattern, text_so_far):
                text = re.sub(pattern, now[-1], text)
        return text

    return reply


ATTACKS: tuple[Attack, ...] = (
    *(_attack(**fields) for fields in load_yaml(__package__, "attacks.yaml")),
    *NO_RULES,
    # A remembered refusal is right where another customer's wish is refused for the same reason.
    Attack(
        "memoriser",
        "replays the expert's replies to the same request in 200 other episodes",
        _memoriser,
        rehearse=200,
        fakes_solving=False,
    ),
)
