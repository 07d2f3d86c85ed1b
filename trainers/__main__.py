"""``python -m trainers`` lists the trainers that there are."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .registry import names


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each trainer."""
    given = sys.argv[1:] if argv is None else argv
    if given:
        print(
            f"`python -m trainers` takes no arguments ({' '.join(given)}): it lists the trainers. To run one: "
            "python -m trainers.ppo key=value ..., or trainers.make(NAME, [...]).fit()",
            file=sys.stderr,
        )
        return 2
    found = names()
    width = max(map(len, found))
    for name, what in found.items():
        print(f"{name:{width}}  {what}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
