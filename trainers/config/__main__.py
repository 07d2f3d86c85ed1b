"""The pages made from the schema and from the table of verl's keys.

``python -m trainers.config PAGE.md`` writes the reference of all keys; without an argument it prints it. With
``--verl`` before it, likewise the page on verl's keys.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from textenvs.text import reader_may_leave

from .commands import EvaluateConfig, GenerateConfig
from .describe import all_keys, markdown
from .schema import PPOConfig, RunConfig, SFTConfig
from .tables import TABLES
from .verl_page import page

COMMANDS: dict[str, type[RunConfig]] = {
    "python -m trainers.ppo": PPOConfig,
    "python -m trainers.sft": SFTConfig,
    "python -m trainers.generate": GenerateConfig,
    "python -m trainers.evaluate": EvaluateConfig,
}


def verl_page() -> str:
    """docs/coming-from-verl.md."""
    return page({name: (TABLES[schema], all_keys(schema)) for name, schema in COMMANDS.items() if schema in TABLES})


def main(argv: Sequence[str]) -> int:
    """Write or print the page; returns the exit status."""
    verl = list(argv[:1]) == ["--verl"]
    rest = argv[1:] if verl else argv
    if len(rest) > 1 or any(argument.startswith("-") for argument in rest):
        print("usage: python -m trainers.config [--verl] [PAGE.md]", file=sys.stderr)
        return 2
    text = verl_page() if verl else markdown(COMMANDS)
    if not rest:
        with reader_may_leave():
            print(text, end="")
        return 0
    Path(rest[0]).write_text(text, encoding="utf-8")
    print(f"wrote {rest[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
