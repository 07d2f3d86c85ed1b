"""``python -m trainers`` lists the trainers that there are, and ``python -m trainers NAME key=value ...`` runs one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from textenvs.text import reader_may_leave

from .cli import INTERRUPTED, leave, run_command
from .registry import TrainerNotFoundError, make, names

_USAGE = "usage: python -m trainers [NAME [key=value ...]]; without a name it lists the trainers"


def main(argv: Sequence[str] | None = None) -> int:
    """List, or run: 2 where nothing could be started, 1 where the run ended with an error, 130 where interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given:
        found = names()
        width = max(map(len, found))
        with reader_may_leave():
            for name, what in found.items():
                print(f"{name:{width}}  {what}")
        return 0
    if given[0].startswith("-"):
        asked = given[0] in ("-h", "--help")
        with reader_may_leave():
            print(_USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    if flags := [word for word in given[1:] if word in ("-h", "--help", "--dry-run")]:
        print(
            f"error: {flags[0]}: those here take key=value and --config FILE; the keys are those of "
            "python -m trainers.ppo --help, and python -m trainers.ppo --dry-run resolves them",
            file=sys.stderr,
        )
        return 2
    try:
        trainer = make(given[0], given[1:])
    except (TrainerNotFoundError, ValueError, ImportError) as error:  # a configuration's problems are a ValueError
        print(f"error: {error}\nNothing was started.", file=sys.stderr)
        return 2
    from .run import EXPECTED  # it brings torch: not for a list of names

    def work() -> int:
        with trainer:
            result = trainer.fit()
        for name in ("train/reward", "val/reward", "val/solved"):
            if name in result.metrics:
                print(f"{name:12} {result.metrics[name]:.3f}")
        if result.model is not None:
            print(f"model: {result.model}")
        return INTERRUPTED if result.stopped else 0

    return run_command(work, stopped="stopped at once; nothing was saved since the last checkpoint", expected=EXPECTED)


if __name__ == "__main__":
    leave(main())
