"""Functions that are made where they are used: what travels is the function that makes them, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class LazyFactory:
    """Calls ``make(settings)``'s result, which is made at the first call, in the process that calls.

    A loss that closes over its settings cannot be pickled; this can.

    Args:
        make: Importable by its name.
        settings: Picklable.
    """

    make: Callable[[Any], Callable[..., Any]]
    settings: Any
    _made: list[Callable[..., Any]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what was made."""
        if not self._made:
            self._made.append(self.make(self.settings))
        return self._made[0](*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyFactory, (self.make, self.settings)
