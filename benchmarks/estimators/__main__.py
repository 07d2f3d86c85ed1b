"""Advantage estimators, baselines and off-policy corrections, measured against the true policy gradient.

    python -m benchmarks.estimators [--parts games,text] [--batches 2000] [--episodes 4096]
                                    [--reference 4096] [--folder FOLDER] [--workers N] [--minutes M]

``games``: three environments whose gradient is exact (:mod:`.games`). Every estimator, baseline, normalisation and
aggregation at staleness 0, 1, 2, 4 and 8; every correction; baselines by the size of a group, and normalisation by
the size of a batch. ``text``: ``textenv/clarify``, ``gsm8k-interact`` and ``collab-math`` with a tiny model, against
the mean gradient of many episodes (:mod:`.text`).

The measures are at the top of :mod:`.measure`. Rows are appended to ``estimators.jsonl`` in ``--folder``, piece by
piece; a piece that is there is not measured again, so the command resumes where it was stopped. Pieces of the games and
parts of the text part's are done by ``--workers`` processes, and ``--minutes`` begins none after so many. At the end
``estimators.md`` and ``estimators.png`` in ``--results`` are made of all results so far.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ..parallel import finished
from . import enumerated, report, text

FILE = "estimators.jsonl"


Row = dict[str, Any]


def measured(options: argparse.Namespace, done: set[str]) -> Iterator[list[Row]]:
    """Yield the rows of each piece that is not done, with ``part`` and ``piece``."""
    ends = time.monotonic() + 60 * options.minutes
    if "games" in options.parts:
        games = [piece for piece in enumerated.pieces(options.batches, options.seed) if str(piece) not in done]
        for game, rows_of_game in finished(enumerated.run, lambda: list(games), options.workers, options.minutes):
            games.remove(game)
            yield _labelled("games", game, rows_of_game)
    if "text" in options.parts:
        every = [
            text.Piece(env, staleness, options.episodes, options.draws, options.reference or options.episodes)
            for env in options.envs
            for staleness in text.STALENESS
        ]
        pieces = [piece for piece in every if str(piece) not in done]
        minutes = (ends - time.monotonic()) / 60
        do = partial(text.do, folder=options.folder)
        parts = finished(do, lambda: text.ready(pieces, options.folder), options.workers, minutes)
        for work, seconds in chain([(None, 0.0)], parts):  # a kill may have left a piece with all of its parts
            if work is not None:
                print(work, f"{seconds:.1f} s", flush=True)
            for piece in list(pieces):
                rows = text.rows(piece, options.folder)
                if rows is not None:
                    yield _labelled("text", piece, rows)
                    pieces.remove(piece)
                    text.forget(piece, options.folder)


def _labelled(part: str, piece: object, rows: list[Row]) -> list[Row]:
    return [{"part": part, "piece": str(piece)} | row for row in rows]


def _names(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    """Measure what is missing, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="games,text", type=_names)
    parser.add_argument("--batches", type=int, default=2000, help="of each piece of the games")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--envs", default=",".join(text.ENVIRONMENTS), type=_names, help="of the text part")
    parser.add_argument("--episodes", type=int, default=4096, help="a pool of the text part; a multiple of 512")
    parser.add_argument("--reference", type=int, help="episodes of its reference; by default as many")
    parser.add_argument("--draws", type=int, default=400, help="batches drawn from a pool")
    parser.add_argument("--folder", type=Path, default=Path("outputs/estimators"), help="of rows and policies")
    parser.add_argument("--seed", type=int, default=0, help="of the games")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    path = options.folder / FILE
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for new_rows in measured(options, {row["piece"] for row in rows}):
        print(new_rows[0]["piece"], flush=True)
        rows += new_rows
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in new_rows)
    report.write(rows, options.results)


if __name__ == "__main__":
    main()
