"""Programs that go for the checker, or for the tables that functions are drawn from, and not for the user's wish."""

from __future__ import annotations

from ...attack import Attack, always
from ...text import load_yaml
from .tasks import NAMES

_NAMED = "\n".join(f"{name} = function" for name in NAMES)

ATTACKS: tuple[Attack, ...] = tuple(
    always(name, attack["says"], f"```python\n{attack['program']}\n{_NAMED}\n```")
    for name, attack in load_yaml(__package__, "attacks.yaml").items()
)
