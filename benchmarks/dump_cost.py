"""Cost of keeping what explains an iteration: its share of the time, and the size of the files.

    python -m benchmarks.dump_cost [--iterations 4] [key=value ...]

A run of ``python -m trainers.ppo`` with these keys, in a folder that is deleted. Time is CPU seconds: of the functions
that only a dump needs (what advantages are made of, the table, the file), over those of the whole process between two
iterations. Each file is compared with one of the same episodes without what the learner made of them, as it was written
before there was more: plain columns, compressed by zstd. The first iteration is left out (caches fill).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textenvs.records import open_run
from trainers.algorithms.estimators import ESTIMATORS
from trainers.command_line import load_config
from trainers.ppo import train
from trainers.report.episodes import EpisodeFiles
from trainers.run import assemble
from trainers.trajectory import read_parquet, to_table, write_table

TIME, SIZE = 0.03, 2.0  # wanted at most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=4)
    arguments, keys = parser.parse_known_args()
    spent: list[float] = [0.0]
    marks: list[tuple[float, float]] = []  # CPU seconds of the process, and of dumps, after each iteration

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[0] += time.thread_time() - began

        return call

    for estimator in ESTIMATORS.values():
        estimator.made_of = timed(estimator.made_of)  # type: ignore[method-assign]
    EpisodeFiles.write = timed(EpisodeFiles.write)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        asyncio.run(run(folder, arguments.iterations, keys, lambda: marks.append((time.process_time(), spent[0]))))
        shares = [(c - a) / (b - d) for (d, a), (b, c) in zip(marks, marks[1:], strict=False)]
        sizes = [compared(iteration.path, Path(place)) for iteration in open_run(folder).iterations]
    for number, share in enumerate(shares, 2):
        print(f"iteration {number}: {share:.2%} of the CPU seconds")
    for new, old, tokens in sizes:
        print(f"{tokens} tokens: {new / 1000:.0f} kB, {new / old:.2f} times {old / 1000:.0f} kB")
    share, size = max(shares), max(new / old for new, old, _ in sizes)
    print(f"at most {share:.2%} of the time (wanted {TIME:.0%}), at most {size:.2f} times the size (wanted {SIZE:g})")
    return 0 if share <= TIME and size <= SIZE else 1


async def run(folder: Path, iterations: int, keys: list[str], mark: Callable[[], None]) -> None:
    """Make the run; ``mark`` is called after each iteration's file."""
    own = [
        *(f"trainer.default_local_dir={folder}", f"trainer.total_iterations={iterations}", "trainer.logger=jsonl"),
        *(f"trainer.keep_rollouts={iterations}", "trainer.save_freq=-1", "trainer.test_freq=-1"),
        "trainer.val_before_train=false",
    ]
    async with assemble(load_config([*own, *keys])[0]) as made:
        report = made.reporter.iteration

        def iteration(*args: Any) -> None:
            report(*args)
            mark()

        made.reporter.iteration = iteration  # type: ignore[method-assign]
        await train(made)


def compared(path: Path, place: Path) -> tuple[int, int, int]:
    """Return the bytes of a file, those of one with the episodes alone, and how many tokens they have."""
    episodes = read_parquet(path)
    write_table(place / "alone.parquet", to_table(episodes))
    sizes = path.stat().st_size, (place / "alone.parquet").stat().st_size
    return *sizes, sum(len(episode.token_ids) for episode in episodes)


if __name__ == "__main__":
    raise SystemExit(main())
