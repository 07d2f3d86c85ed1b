"""Cheap replies where two attempts count: fail on purpose and then succeed, or two guesses."""

from __future__ import annotations

from ...attack import Attack
from ...messages import Messages
from ..gsm8k.attacks import ATTACKS as GUESSES
from ..gsm8k.attacks import guess, line, seen


def _fail_first(conversation: Messages) -> str:
    return line("0.5") if len(conversation) < 3 else line(sum(seen(conversation)))


def _two_guesses(conversation: Messages) -> str:
    first, *rest = seen(conversation)
    return line(first + sum(rest) if len(conversation) < 3 else abs(first - sum(rest)))


ATTACKS: tuple[Attack, ...] = (
    *GUESSES,
    guess("fail-then-succeed", "fails on purpose, then guesses the sum", _fail_first),
    guess("two-guesses", "the sum, then the difference of the numbers seen", _two_guesses),
)
