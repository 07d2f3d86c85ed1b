"""How busy the GPUs of a layout are: rollout, rewards and updates of on-policy training, by arithmetic. Pure.

An iteration has two phases. In the first, episodes are played, and each is scored as it ends; in the second, the policy
is updated on all of them. With on-policy training neither overlaps the other. So GPUs that only score wait during the
update, and a layout is a question of who may use which GPUs:

* ``colocated``: all GPUs do all three; rollout and rewards share them in the first phase.
* ``separate``: the reward model has a pool of its own, and nobody else uses it.
* ``spanning``: rollout and rewards have pools of their own, and the learner uses both, while they sleep.

The assumptions: work is what it costs on one GPU, and ``n`` GPUs need an ``n``-th of the time (true for replicas with
enough requests, less so for a learner that waits for its network); batches are small against a phase; whoever shares a
GPU takes no more together than one after the other. So these are bounds to choose a layout by, not forecasts: measure
the chosen one.

    python -m trainers.cluster.utilisation --gpus 8 --rollout 60x8 --reward 40x2 --update 45x8
    python -m trainers.cluster.utilisation --gpus 8 --run outputs/textenvs/run --run-gpus 8
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from textenvs.text import reader_may_leave


@dataclass(frozen=True)
class Work:
    """What an iteration costs, in GPU-seconds.

    Args:
        rollout: Of generating.
        reward: Of scoring.
        update: Of the learner, all models.
        first_end: Share of the rollout's time before the first episode ends; from there on they end evenly.
        switch_s: Seconds an iteration in which GPUs that change between the phases are of no use: engines that give
            their memory back and take it again, weights that move.

    Raises:
        ValueError: A number that is negative or not finite, or a share above 1.
    """

    rollout: float
    reward: float
    update: float
    first_end: float = 0.0
    switch_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rollout", "reward", "update", "first_end", "switch_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number from 0, not {getattr(self, name)}")
        if self.first_end > 1:
            raise ValueError(f"first_end is a share of the rollout's time, so at most 1, not {self.first_end}")
        if not self.rollout + self.reward + self.update > 0:
            raise ValueError("an iteration without any work has no utilisation")


@dataclass(frozen=True)
class Layout:
    """Which GPUs do what.

    Args:
        name: For people.
        rollout: Numbers of the GPUs that generate.
        reward: That score: the same as ``rollout``, or none of those.
        learner: That update.

    Raises:
        ValueError: A part has no GPU, or rollout and rewards share some of their GPUs but not all.
    """

    name: str
    rollout: frozenset[int]
    reward: frozenset[int]
    learner: frozenset[int]

    def __post_init__(self) -> None:
        for part in ("rollout", "reward", "learner"):
            if not getattr(self, part):
                raise ValueError(f"layout {self.name}: {part} needs a GPU")
        if self.rollout != self.reward and self.rollout & self.reward:
            raise ValueError(f"layout {self.name}: rollout and reward must have the same GPUs, or none in common")

    def pools(self) -> dict[str, frozenset[int]]:
        """The GPUs by what is done on them, for example ``rollout+update``."""
        found: dict[str, set[int]] = {}
        for gpu in sorted(self.rollout | self.reward | self.learner):
            roles = (("rollout", self.rollout), ("reward", self.reward), ("update", self.learner))
            found.setdefault("+".join(role for role, gpus in roles if gpu in gpus), set()).add(gpu)
        return {name: frozenset(gpus) for name, gpus in found.items()}


@dataclass(frozen=True)
class Prediction:
    """What a layout makes of some work.

    Args:
        layout: Which.
        collect_s: Seconds of the first phase.
        update_s: Of the second.
        switch_s: Between them.
        pools: For each pool the share of its time in which it works.
        overall: The same of all GPUs.
    """

    layout: Layout
    collect_s: float
    update_s: float
    switch_s: float
    pools: Mapping[str, float]
    overall: float

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration."""
        return self.collect_s + self.update_s + self.switch_s


def layouts(gpus: int, reward_gpus: int) -> tuple[Layout, ...]:
    """The three layouts of so many GPUs.

    Args:
        gpus: In all.
        reward_gpus: Of them, where the reward model has some for itself.

    Raises:
        ValueError: Nobody else would have any.
    """
    if not 0 < reward_gpus < gpus:
        raise ValueError(f"of {gpus} GPUs a reward model may have 1 to {gpus - 1} for itself, not {reward_gpus}")
    everything = frozenset(range(gpus))
    others, its = frozenset(range(gpus - reward_gpus)), frozenset(range(gpus - reward_gpus, gpus))
    return (
        Layout("colocated", everything, everything, everything),
        Layout("separate", others, its, others),
        Layout("spanning", others, its, everything),
    )


def predict(work: Work, layout: Layout) -> Prediction:
    """How long an iteration takes, and how busy which GPUs are.

    Where rollout and rewards have GPUs of their own, the first phase ends with the last score. Scores are asked for
    evenly from ``first_end`` to the rollout's end, so a reward pool that is fast enough ends with the rollout, and a
    slower one has worked without a pause since the first episode ended: ``max(R, first_end * R + W)``, with ``R`` and
    ``W`` the seconds that each needs by itself.
    """
    if layout.rollout == layout.reward:
        collect = (work.rollout + work.reward) / len(layout.rollout)
    else:
        alone = work.rollout / len(layout.rollout)
        collect = max(alone, work.first_end * alone + work.reward / len(layout.reward))
    update = work.update / len(layout.learner)
    changes = bool(layout.learner & (layout.rollout | layout.reward))
    switch = work.switch_s if changes else 0.0
    total = collect + update + switch
    busy = {
        gpu: sum(
            cost / len(where)
            for cost, where in (
                (work.rollout, layout.rollout),
                (work.reward, layout.reward),
                (work.update, layout.learner),
            )
            if gpu in where
        )
        for gpu in layout.rollout | layout.reward | layout.learner
    }
    pools = {
        name: sum(busy[gpu] for gpu in gpus) / (len(gpus) * total) if total else 0.0
        for name, gpus in layout.pools().items()
    }
    overall = sum(busy.values()) / (len(busy) * total) if total else 0.0
    return Prediction(layout, collect, update, switch, pools, overall)


def best_split(work: Work, gpus: int) -> tuple[Prediction, ...]:
    """Each layout with the number of reward GPUs that makes its iterations shortest.

    Raises:
        ValueError: There are fewer than two GPUs.
    """
    tried = [[predict(work, layout) for layout in layouts(gpus, its)] for its in range(1, gpus)]
    if not tried:
        raise ValueError(f"{gpus} GPUs cannot be divided; there must be at least 2")
    return tuple(min(same, key=lambda each: each.iteration_s) for same in zip(*tried, strict=True))


def table(predictions: Sequence[Prediction]) -> str:
    """For people."""
    lines = [f"{'layout':<10} {'iteration':>10} {'collect':>9} {'update':>8} {'switch':>8} {'busy':>6}  pools"]
    for each in predictions:
        pools = ", ".join(
            f"{name} on {len(each.layout.pools()[name])}: {share:.0%}" for name, share in each.pools.items()
        )
        lines.append(
            f"{each.layout.name:<10} {each.iteration_s:>8.1f} s {each.collect_s:>7.1f} s {each.update_s:>6.1f} s "
            f"{each.switch_s:>6.1f} s {each.overall:>6.0%}  {pools}"
        )
    return "\n".join(lines)


def measured(folder: Path, gpus: int) -> Work:
    """The work of an iteration of a run, by its metrics: the mean over all but the first, which warms up.

    The time of the rollout is that of the collection, without the seconds in which a reward model computed and nothing
    was generated (``computing_s`` times one less ``overlap``; where several models computed, those of the one that was
    waited for longest). A run that does not report these two gives an upper bound. Scores count their workers' seconds,
    which are GPU-seconds where each has a GPU of its own (not where a service or a judge answers several requests side
    by side).

    Args:
        folder: Of the run.
        gpus: That it generated and learned on. Scoring needs no such number: seconds are counted for each worker.

    Raises:
        ValueError: It has no metrics, fewer than two iterations, or no reward model.
    """
    rows = _rows(folder)
    models = _models(rows, folder)
    scoring = sum(_mean_step([row.get(f"reward/{name}_busy_s") for row in rows]) for name in models)
    alone = max(_mean_step([_alone(row, name) for row in rows]) for name in models)
    return Work(
        rollout=max(0.0, _mean(rows, "time/rollout_s") - alone) * gpus,
        reward=scoring,
        update=_mean(rows, "time/learn_s") * gpus,
        switch_s=_mean(rows, "time/sleep_s") + _mean(rows, "time/publish_s"),
    )


def busy(folder: Path) -> dict[str, float]:
    """How busy the parts of a run were: shares of its time, over all iterations but the first.

    What the metrics do not say is left out.

    Returns:
        ``engine`` (the share of its places that had a request), ``learner``, and each reward model by name (in which at
        least one of its workers computed).

    Raises:
        ValueError: See :func:`measured`.
    """
    rows = _rows(folder)
    iteration = _mean(rows, "time/iteration_s")
    if not iteration:
        return {}
    shares = {"learner": _mean(rows, "time/learn_s") / iteration}
    if all("rollout/engine_busy" in row for row in rows):
        weighed = sum(row["rollout/engine_busy"] * row["time/iteration_s"] for row in rows[1:])
        shares = {"engine": weighed / sum(row["time/iteration_s"] for row in rows[1:])} | shares
    for name in _models(rows, folder):
        if f"reward/{name}_computing_s" in rows[0]:
            seconds = _mean_step([row.get(f"reward/{name}_computing_s") for row in rows])
            shares[f"reward model {name}"] = seconds / iteration
    return shares


def _rows(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run's iterations."""
    file = folder / "metrics.jsonl"
    if not file.is_file():
        raise ValueError(f"{folder} has no metrics.jsonl; give the folder of a run with trainer.logger=jsonl")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: not JSON ({error})") from None
    rows = [row for row in rows if "time/rollout_s" in row]
    if len(rows) < 2:
        raise ValueError(f"{file} has {len(rows)} iterations; at least 2 are needed, the first warms up")
    return rows


def _models(rows: Sequence[Mapping[str, float]], folder: Path) -> list[str]:
    start, end = "reward/", "_busy_s"
    found = [name[len(start) : -len(end)] for name in rows[0] if name.startswith(start) and name.endswith(end)]
    if not found:
        raise ValueError(f"{folder / 'metrics.jsonl'} has no reward/..._busy_s: the run had no reward model")
    return found


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(float(row.get(name, 0.0)) for row in rows[1:]) / (len(rows) - 1)


def _mean_step(totals: Sequence[float | None]) -> float:
    """What a total grew by in an iteration. Reward models count from the run's start, and anew when it is resumed."""
    steps = [(a, b) for a, b in pairwise(totals) if a is not None and b is not None]
    return sum(after - before if after >= before else after for before, after in steps) / (len(totals) - 1)


def _alone(row: Mapping[str, float], name: str) -> float | None:
    """Seconds so far in which the model computed and nothing was generated."""
    computing, overlap = row.get(f"reward/{name}_computing_s"), row.get(f"reward/{name}_overlap")
    return None if computing is None or overlap is None else computing * (1.0 - overlap)


def _gpu_seconds(text: str) -> float:
    """``60x8`` is 60 seconds on 8 GPUs, ``60`` on one."""
    seconds, times, gpus = text.partition("x")
    try:
        value = float(seconds) * (int(gpus) if times else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not SECONDS or SECONDSxGPUS, for example 60x8") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must not be negative")
    return value


def _lines(arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.run is not None:
        work = measured(arguments.run, arguments.run_gpus or arguments.gpus)
        yield (
            f"measured: {work.rollout:.1f} GPU-seconds of rollout, {work.reward:.1f} of rewards, {work.update:.1f} of "
            f"updates an iteration, and {work.switch_s:.1f} s between"
        )
        if shares := busy(arguments.run):
            yield "busy in that run: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    else:
        work = Work(arguments.rollout, arguments.reward, arguments.update, arguments.first_end, arguments.switch_s)
    if arguments.reward_gpus is not None:
        yield table([predict(work, layout) for layout in layouts(arguments.gpus, arguments.reward_gpus)])
    else:
        yield table(best_split(work, arguments.gpus))
        yield "(with the number of reward GPUs that is best for each; --reward-gpus N decides it)"


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m trainers.cluster.utilisation``."""
    parser = argparse.ArgumentParser(
        prog="python -m trainers.cluster.utilisation",
        description="How busy GPUs are in three layouts of rollout, reward model and learner (docs/cluster.md).",
    )
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="GPUs in all")
    parser.add_argument("--reward-gpus", type=int, metavar="N", help="of them for the reward model; left out, the best")
    for name in ("rollout", "reward", "update"):
        parser.add_argument(
            f"--{name}", type=_gpu_seconds, metavar="SxN", help=f"seconds of {name} in an iteration, on N GPUs"
        )
    parser.add_argument("--first-end", type=float, default=0.0, metavar="SHARE", help="of the rollout, till one ends")
    parser.add_argument("--switch-s", type=float, default=0.0, metavar="S", help="to sleep and wake, an iteration")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="measure the three in this run's metrics instead")
    parser.add_argument("--run-gpus", type=int, metavar="N", help="GPUs of that run (default: --gpus)")
    arguments = parser.parse_args(argv)
    given = [name for name in ("rollout", "reward", "update") if getattr(arguments, name) is not None]
    if arguments.run is None and arguments.run_gpus is not None:
        parser.error("--run-gpus has no effect without --run")
    if arguments.run_gpus is not None and arguments.run_gpus < 1:
        parser.error("--run-gpus must be at least 1")
    if arguments.run is not None and (arguments.first_end or arguments.switch_s):
        parser.error("--first-end and --switch-s have no effect with --run, which measures")
    if (arguments.run is None) != (len(given) == 3) or (arguments.run is not None and given):
        parser.error("give --rollout, --reward and --update, or --run")
    try:
        for line in _lines(arguments):
            print(line)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    with reader_may_leave():
        raise SystemExit(main())
