"""Python programs of templates, whose functions have a drawn order and may stand in one file or in two."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple


class Program(NamedTuple):
    """A Python program: its docstring, lines that import, constants, and functions."""

    about: str
    imports: Sequence[str]
    constants: str
    functions: Sequence[str]

    def joined(self, other: Program, about: str) -> Program:
        """Return both as one program; the other one needs no import of this one's functions any more."""
        imports = dict.fromkeys([*self.imports, *other.imports])
        constants = "\n".join(filter(None, [self.constants, other.constants]))
        return Program(about, [*imports], constants, [*self.functions, *other.functions])

    def text(self, rng: random.Random) -> str:
        """Return its text, with its functions in a drawn order."""
        head = "\n".join([f'"""{self.about}"""', *self.imports])
        functions = rng.sample(self.functions, len(self.functions))
        return "\n\n\n".join(["\n\n".join(filter(None, [head, self.constants])), *functions]) + "\n"
