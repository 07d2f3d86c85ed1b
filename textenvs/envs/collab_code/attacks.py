"""Programs that exploit the checker, or the tables that functions are drawn from, and ignore the user's goal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...attack import Attack, Cheater, always, user_texts
from ...messages import Messages
from ...text import load_yaml
from ..collab.script import interview
from .tasks import NAMES

_NAMED = "\n".join(f"{name} = function" for name in NAMES)


def _interview(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    """Start the same questions for every function; then any behaviour of the tables, under the name the user told."""

    def deliver(conversation: Messages) -> str:
        words = " ".join(user_texts(conversation))
        numbers, text = load_yaml(__package__, "functions.yaml")["subjects"]
        body = numbers if "number" in words or "integer" in words else text
        condition, result = (
            rng.choice([behaviour["code"] for behaviour in body[table]["behaviours"]]) for table in _TABLES
        )
        values = {"k": 3, "low": 0, "high": 9, "letter": "e", "mark": "-"}
        selection = f"[x for x in {body['parts']} if {condition.format(**values)}]"
        name = next((name for name in NAMES if name in words.split() or f"{name}." in words), "pick")
        lines = (f"def {name}({body['argument']}):", f"    xs = {selection}", f"    return {result.format(**values)}")
        return "\n".join(["```python", *lines, "```"])

    return interview(_QUESTIONS, deliver)(rng, seen)


_TABLES = ("filters", "results")
_QUESTIONS = ("What is the name? Which ones count?", "What should it return?", "Is each changed?", "What else?")
ATTACKS: tuple[Attack, ...] = (
    *(
        always(name, attack["says"], f"```python\n{attack['program']}\n{_NAMED}\n```")
        for name, attack in load_yaml(__package__, "attacks.yaml").items()
    ),
    Attack("interview-and-guess", "asks the same for every function, and delivers any behaviour", _interview),
)
