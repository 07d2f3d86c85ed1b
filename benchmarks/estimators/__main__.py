"""Advantage estimators, baselines and off-policy corrections, measured against the true policy gradient.

    python -m benchmarks.estimators [--parts games,text] [--batches 2000] [--episodes 2048] [--folder FOLDER]

``games``: three environments whose gradient is exact (:mod:`.games`). Every estimator, baseline, normalisation and
aggregation at staleness 0, 1, 2, 4 and 8; every correction; baselines by the size of a group, and what normalises by
the size of a batch. ``text``: ``textenv/clarify``, ``gsm8k-interact`` and ``collab-math`` with a tiny model, against
the mean gradient of many episodes (:mod:`.text`).

What is measured is at the top of :mod:`.measure`. Rows are appended to ``estimators.jsonl`` in ``--folder``, piece by
piece; a piece that is there is not measured again, so the command resumes where it was stopped. At the end
``estimators.md`` and ``estimators.png`` in ``--results`` are made of all that is there.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from . import enumerated, report, text

FILE = "estimators.jsonl"


def measured(options: argparse.Namespace, done: set[str]) -> Iterator[list[dict[str, Any]]]:
    """The rows of each piece that is not done, with ``part`` and ``piece``."""
    if "games" in options.parts:
        todo = [piece for piece in enumerated.pieces(options.batches, options.seed) if str(piece) not in done]
        with get_context("spawn").Pool(options.workers) as pool:
            for game, found in pool.imap_unordered(enumerated.run, todo):
                yield [{"part": "games", "piece": str(game)} | row for row in found]
    if "text" in options.parts:
        for env in options.envs:
            for staleness in text.STALENESS:
                piece = text.Piece(env, staleness, options.episodes, options.draws)
                if str(piece) not in done:
                    found = text.measure(piece, options.folder / env)
                    yield [{"part": "text", "piece": str(piece)} | row for row in found]


def _names(given: str) -> list[str]:
    return given.split(",")


def main() -> None:
    """Measure what is missing, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="games,text", type=_names)
    parser.add_argument("--batches", type=int, default=2000, help="of each piece of the games")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes of the games")
    parser.add_argument("--envs", default=",".join(text.ENVIRONMENTS), type=_names, help="of the text part")
    parser.add_argument("--episodes", type=int, default=2048, help="a pool of the text part; a multiple of 256")
    parser.add_argument("--draws", type=int, default=400, help="batches drawn from a pool")
    parser.add_argument("--folder", type=Path, default=Path("outputs/estimators"), help="of rows and policies")
    parser.add_argument("--seed", type=int, default=0, help="of the games")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    path = options.folder / FILE
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for found in measured(options, {row["piece"] for row in rows}):
        print(found[0]["piece"], flush=True)
        rows += found
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
    report.write(rows, options.results)


if __name__ == "__main__":
    main()
