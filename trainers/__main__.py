"""``python -m trainers`` lists the trainers that there are, and ``python -m trainers NAME key=value ...`` runs one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from .registry import TrainerNotFoundError, make, names

_USAGE = "usage: python -m trainers [NAME [key=value ...]]; without a name it lists the trainers"


def main(argv: Sequence[str] | None = None) -> int:
    """List, or run; the exit code is 2 where nothing could be started, and 130 where somebody stopped the run."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given:
        found = names()
        width = max(map(len, found))
        for name, what in found.items():
            print(f"{name:{width}}  {what}")
        return 0
    if given[0].startswith("-"):
        print(_USAGE, file=sys.stderr if given[0] not in ("-h", "--help") else sys.stdout)
        return 0 if given[0] in ("-h", "--help") else 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        trainer = make(given[0], given[1:])
    except (TrainerNotFoundError, ValueError, ImportError) as error:  # a configuration's problems are a ValueError
        print(f"error: {error}\nNothing was started.", file=sys.stderr)
        return 2
    with trainer:
        result = trainer.fit()
    for name in ("train/reward", "val/reward", "val/solved"):
        if name in result.metrics:
            print(f"{name:12} {result.metrics[name]:.3f}")
    if result.model is not None:
        print(f"model: {result.model}")
    return 130 if result.stopped else 0


if __name__ == "__main__":
    raise SystemExit(main())
