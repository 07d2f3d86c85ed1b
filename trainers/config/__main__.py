"""``python -m trainers.config PAGE.md`` writes the reference of all keys; without an argument it prints it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .describe import markdown
from .schema import PPOConfig, RunConfig, SFTConfig

COMMANDS: dict[str, type[RunConfig]] = {"python -m trainers.ppo": PPOConfig, "python -m trainers.sft": SFTConfig}


def main(argv: Sequence[str]) -> int:
    """Write or print the page; returns the exit status."""
    if len(argv) > 1 or any(argument.startswith("-") for argument in argv):
        print("usage: python -m trainers.config [PAGE.md]", file=sys.stderr)
        return 2
    page = markdown(COMMANDS)
    if not argv:
        print(page, end="")
        return 0
    Path(argv[0]).write_text(page, encoding="utf-8")
    print(f"wrote {argv[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
