"""``python -m trainers`` lists the trainers, and ``python -m trainers NAME key=value ...`` runs one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from textenvs.startup import INTERRUPTED
from textenvs.text import reader_may_leave

from .cli import leave, run_command
from .registry import TrainerNotFoundError, make, names

_USAGE = "usage: python -m trainers [NAME [key=value ...]]; without a name it lists the trainers"


def main(argv: Sequence[str] | None = None) -> int:
    """List the trainers, or run one; return 2 if nothing could start, 1 after an error, 130 after an interrupt."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args:
        descriptions = names()
        width = max(map(len, descriptions))
        with reader_may_leave():
            for name, what in descriptions.items():
                print(f"{name:{width}}  {what}")
        return 0
    if args[0].startswith("-"):
        help_requested = args[0] in ("-h", "--help")
        with reader_may_leave():
            print(_USAGE, file=sys.stdout if help_requested else sys.stderr)
        return 0 if help_requested else 2
    if flags := [word for word in args[1:] if word in ("-h", "--help", "--dry-run")]:
        print(
            f"error: {flags[0]}: those here take key=value and --config FILE; the keys are those of "
            "python -m trainers.ppo --help, and python -m trainers.ppo --dry-run resolves them",
            file=sys.stderr,
        )
        return 2
    try:
        trainer = make(args[0], args[1:])
    except (TrainerNotFoundError, ValueError, ImportError) as error:  # a configuration's problems are a ValueError
        print(f"error: {error}\nNothing was started.", file=sys.stderr)
        return 2
    from .run import EXPECTED  # it imports torch, which a list of names does not need

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
