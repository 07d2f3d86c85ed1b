"""Advantage estimators, baselines and off-policy corrections, measured against the true policy gradient.

    python -m benchmarks.estimators [--parts games,text] [--batches 2000] [--workers 2] [--results FOLDER]

``games``: three environments whose gradient is exact (:mod:`.games`). Every estimator, baseline, normalisation and
aggregation at staleness 0, 1, 2, 4 and 8; every correction; baselines by the size of a group, and what normalises by
the size of a batch. ``text``: ``textenv/clarify``, ``gsm8k-interact`` and ``collab-math`` with a tiny model, against
the mean gradient of many episodes (:mod:`.text`).

What is measured is at the top of :mod:`.measure`. Rows are appended to ``estimators.jsonl`` in the folder, piece by
piece; a piece that is there is not measured again, so the command resumes where it was stopped. At the end
``estimators.md`` and ``estimators.png`` are made of all that is there.
"""

from __future__ import annotations

import argparse
import json
import os
from multiprocessing import get_context
from pathlib import Path

from . import report
from .enumerated import Piece, pieces, run


def main() -> None:
    """Measure what is missing, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="games,text", type=lambda text: text.split(","))
    parser.add_argument("--batches", type=int, default=2000, help="of each piece of the games")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    path = options.results / "estimators.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if "games" in options.parts:
        done = {tuple(row[name] for name in Piece.__dataclass_fields__) for row in rows if row["part"] == "games"}
        todo = [piece for piece in pieces(options.batches, options.seed) if tuple(vars(piece).values()) not in done]
        with get_context("spawn").Pool(options.workers) as pool:
            for piece, found in pool.imap_unordered(run, todo):
                print(f"{piece}", flush=True)
                new = [{"part": "games"} | row for row in found]
                rows += new
                with path.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
    report.write(rows, options.results)


if __name__ == "__main__":
    main()
