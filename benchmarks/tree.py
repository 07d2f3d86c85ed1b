"""Token trees against rows read one by one: time and memory of an update, and its gradient.

    python -m benchmarks.tree [--trees 4] [--tokens 12000] [--hidden 128] [--layers 3] [--repeat 3] [--ranks 1,2]
                              [--out FILE]

The episodes of a tree are forks of one conversation, as many after each of its turns (``depth``); ``sharing`` is
1 - unique / total tokens. Rows are packed, not padded, and attend by the same code, so they differ only in the
repeated computation. The ideal update takes ``unique / total`` of the time and of the memory of rows; *of ideal* is
that over the measurement: 1 is the ideal. Other costs of an update (the optimizer, Python) count against it, and so
does attention: the remaining tokens are deeper in their conversations than those that are saved. *Pairs* are those that
attention has to compute, unique over total.

Seconds are those of one thread of the processor (of the rank that spent most), optimizer included. Memory is the
most that an update adds to the process, all in one micro-batch: gradients of the parameters are in it, which do not
depend on tokens. Both are the least of ``--repeat``. The gradient's gap is the norm of the difference over the norm, in
float32. With several ranks the model is sharded (FSDP2, gloo), and what is shared is computed on each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.gpu.learners import distance, gradients, update
from benchmarks.gpu.shapes import forked
from benchmarks.memory import peak
from trainers.config.model import ModelSection
from trainers.config.running import RunSection
from trainers.learner import Learner
from trainers.learner.memory import give_back_freed_memory
from trainers.learner.trees import Forest
from trainers.models.tiny import build_model
from trainers.section import ActorSection

DEPTHS, SHARINGS = range(1, 7), (0.5, 0.75, 0.9)
_VOCABULARY = 512


def measure(depth: int, sharing: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one batch of trees, by this rank; all ranks get the same."""
    count = arguments.trees * (dist.get_world_size() if dist.is_initialized() else 1)
    trajectories = [
        trajectory
        for seed in range(count)
        for trajectory in forked(depth, sharing, arguments.tokens, _VOCABULARY, seed=seed)
    ]
    model = build_model(_VOCABULARY, hidden=arguments.hidden, layers=arguments.layers)
    results: dict[bool, dict[str, Any]] = {}
    for trees in (False, True):
        learner = Learner(
            model,
            ModelSection(device="cpu", use_remove_padding=True),
            RunSection(fsdp="always" if dist.is_initialized() else "never"),
            ActorSection(max_tokens_per_micro_batch=10**9),
            share_prefixes=trees,
        )
        gradient, _ = gradients(learner, trajectories)
        sizes, cut = [0, 0], learner._cut

        def counted(units: Any, cut: Any = cut, sizes: list[int] = sizes) -> Any:
            batches = cut(units)
            sizes[:] = sum(batch.real for batch in batches), sum(_pairs(batch.forest) for batch in batches)
            return batches

        learner._cut = counted  # type: ignore[method-assign]
        seconds, memory = [], []
        for _ in range(arguments.repeat):
            with peak() as usage:
                started = time.process_time()
                update(learner, trajectories)
                seconds.append(time.process_time() - started)
            memory.append(usage["peak"])
        results[trees] = {
            "gradient": gradient,
            "s": min(seconds),
            "mib": min(memory),
            "real": sizes[0],
            "pairs": sizes[1],
        }
        del learner
    own_result = {
        str(trees): {name: result[name] for name in ("s", "mib", "real", "pairs")} for trees, result in results.items()
    }
    ranks: list[Any] = [own_result]
    if dist.is_initialized():
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, own_result)
    (unique, total), pairs = (
        [sum(rank[str(trees)][name] for rank in ranks) for trees in (True, False)] for name in ("real", "pairs")
    )
    line: dict[str, Any] = {"ranks": len(ranks), "depth": depth, "sharing": sharing, "total": total, "unique": unique}
    line["pairs"] = pairs[0] / pairs[1]
    for name in ("s", "mib"):
        rows, trees = (max(rank[str(which)][name] for rank in ranks) for which in (False, True))
        line |= {f"rows_{name}": rows, f"trees_{name}": trees, f"{name}_of_ideal": unique / total * rows / trees}
    return line | {"gap": distance(results[True]["gradient"], results[False]["gradient"])}


def _pairs(forest: Forest) -> int:
    """Return the number of pairs of tokens and their ancestors, themselves included."""
    return int((forest.depths + 1).sum())


def work(rank: int, world: int, arguments: argparse.Namespace, folder: str) -> None:
    """Measure all trees on one rank; the first writes the results down."""
    torch.set_num_threads(1)
    give_back_freed_memory()
    if world > 1:
        os.environ.pop("WORLD_SIZE", None)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting{world}", rank=rank, world_size=world)
    for depth in arguments.depths:
        for sharing in arguments.sharings:
            line = measure(depth, sharing, arguments)
            if rank == 0:
                print(_shown(line), flush=True)
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    if world > 1:
        dist.destroy_process_group()


_COLUMNS = ("ranks", "depth", "sharing", "unique / total", "pairs")
_COLUMNS += ("s, rows", "s, trees", "of ideal", "MiB, rows", "MiB, trees", "of ideal", "gap")


def _shown(line: dict[str, Any]) -> str:
    return (
        f"| {line['ranks']} | {line['depth']} | {100 * line['sharing']:.0f} % | {line['unique']} / {line['total']} "
        f"| {line['pairs']:.3f} | {line['rows_s']:.2f} | {line['trees_s']:.2f} | {line['s_of_ideal']:.2f} "
        f"| {line['rows_mib']:.0f} | {line['trees_mib']:.0f} | {line['mib_of_ideal']:.2f} | {line['gap']:.0e} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and append each of its lines as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tree", description=__doc__.split("\n")[0])
    parser.add_argument("--trees", type=int, default=4, help="in an update, for each rank (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=12000, help="of a tree's rows together (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--depths", type=lambda text: [int(part) for part in text.split(",")], default=DEPTHS)
    parser.add_argument("--sharings", type=lambda text: [float(part) for part in text.split(",")], default=SHARINGS)
    parser.add_argument("--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path("tree-results.jsonl"), help="appended to")
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|", sep="\n", flush=True)
    for world in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, (world, options, folder), nprocs=world)


if __name__ == "__main__":
    main()
