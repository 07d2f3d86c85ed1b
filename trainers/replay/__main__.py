"""The command; see the package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..cli import Interrupts, leave, run_command


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m trainers.replay", description="Compute an iteration of a run again, and say what differs first."
    )
    arguments.add_argument("run", metavar="RUN", help="the run's folder")
    arguments.add_argument("--iteration", type=int, required=True, help="which; its file of episodes must be there")
    arguments.add_argument("--group", help="play, sample and compare the episodes of this group alone (g17, or 17)")
    arguments.add_argument("--near", type=float, help="how far apart the engine's log-probabilities may be")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m trainers.replay``; return 0 if all is the same, 1 if a part differs or cannot be computed."""
    args = parser().parse_args(argv)  # help and mistakes before the imports that take seconds
    from transformers.utils.logging import disable_progress_bar

    from textenvs.records import RecordsError, open_run
    from textenvs.text import reader_may_leave

    from ..run import EXPECTED
    from .again import replay
    from .compare import ReplayError

    disable_progress_bar()

    def work() -> int:
        recorded = open_run(args.run)
        if recorded.kind != "run" or not recorded.config:
            raise ReplayError(f"{args.run} is no folder of a run: its config.yaml is needed")
        report = Interrupts().run(replay(recorded, args.iteration, args.group, args.near))
        with reader_may_leave():
            print("\n".join(report.lines()))
        return 0 if report.first is None else 1

    return run_command(work, stopped="stopped", expected=(*EXPECTED, ReplayError, RecordsError))


if __name__ == "__main__":
    leave(main())
