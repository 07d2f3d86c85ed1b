"""Spending of this process, by budget.

A request is sent if its maximum cost fits into the remaining budget. Concurrent requests are not counted, so together
they may exceed a budget. If a cost is unknown (the connection broke, or a timeout), the maximum is booked, since the
service may bill it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .answer import Usage
from .errors import BudgetExceeded
from .spec import Budget, ChatSpec


@dataclass
class _Spent:
    budget: Budget | None
    tokens: int = 0
    dollars: float = 0.0


class Ledger:
    """Spending of a spec's budget by all clients that share it: by ``budget.name``, else by spec."""

    def __init__(self, spec: ChatSpec) -> None:
        name = spec.key if spec.budget is None or spec.budget.name is None else f"named {spec.budget.name}"
        self.price = spec.price
        self.spent = _ledgers.setdefault(name, _Spent(spec.budget))
        if self.spent.budget != spec.budget:
            raise ValueError(f"a budget is in use with other limits ({self.spent.budget}); give this one another name")

    def check(self, worst: Usage) -> None:
        """Raise ``BudgetExceeded`` if ``worst`` does not fit into the remaining budget."""
        for unit, amount in (("tokens", worst.tokens), ("dollars", self._dollars(worst))):
            limit, spent = getattr(self.spent.budget, unit, None), getattr(self.spent, unit)
            if limit is not None and spent + amount > limit:
                raise BudgetExceeded(
                    f"of the budget of {limit:g} {unit}, {spent:g} are spent, and the next request may cost up to "
                    f"{amount:g}; raise the budget, or lower max_tokens"
                )

    def book(self, usage: Usage) -> float:
        """Book a request's usage, and return its cost in dollars."""
        dollars = self._dollars(usage)
        self.spent.tokens += usage.tokens
        self.spent.dollars += dollars
        return dollars

    def _dollars(self, usage: Usage) -> float:
        return 0.0 if self.price is None else self.price.of(usage)


def reset_budgets() -> None:
    for spending in _ledgers.values():
        spending.tokens, spending.dollars = 0, 0.0


_ledgers: dict[str, _Spent] = {}
