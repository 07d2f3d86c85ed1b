"""A soak of `textenv/terminal`: does it leave anything behind?

    python -m benchmarks.terminal_soak [--minutes 20] [--every 15] [--workers 8]

Workers play episodes of all templates and levels: with the expert's commands, careless ones, and hostile ones, which
leave processes in the background, fill the disk limit, run out of time or memory, fork, flood the output, and kill.
Episodes are forked, pickled and restored, abandoned, and cancelled in the middle of a command. Every `--every` seconds
all workers wait, the running commands end, and what this process and all below it use is measured (`resources.py`).
Processes that lose their parent become children of this one, so that none is missed. Temporary files are those in a
new folder, which is this process's place for them. The cache of the shell's results is held to 4 MiB (128 in ordinary
use). It and the cache of drawn projects are filled first, so that they do not grow later.

The verdict compares two windows, of a quarter of the measurements each. The first three eighths are left out, as a
warm-up: pools of processes start, and processes grow to the size that their largest request needs. `early` is the
median of the quarter after that, `late` that of the last quarter. `noise` is the range in the early window: its largest
less its smallest value. `allowed growth` is the noise, or, of memory, 2 % of `early`, whichever is more; but never more
than 5 % of `early` (or 1, where that is more). A figure

- `grows` where `late` is above `early` by more than the noise and than what is allowed,
- is `flat` where it is not, and the noise is no more than these 5 % (or 1),
- else the run `cannot tell`.

`smallest growth` is the least that would be seen, for each episode between the middles of the windows.

The results are written to `benchmarks/results/terminal_soak.json`. The exit status is 1 where a figure is not flat or
an episode failed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import pickle
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import textenvs
from benchmarks.hardware import processor
from benchmarks.resources import Resources, adopt_orphans, resources, temporary_folder
from textenvs.envs.terminal.tasks import LEVELS, assignment_of
from textenvs.messages import Message
from textenvs.sandbox import Tree, shell
from textenvs.sandbox.box import CONCURRENCY
from textenvs.sandbox.worker import threads
from textenvs.tools.formats import Hermes, call

RESULTS = Path(__file__).parent / "results" / "terminal_soak.json"
CACHE_BYTES = 4 << 20
#: Of a command: hostile ones run into them.
LIMITS = {"cpu_s": 2, "wall_s": 3.0}
HOSTILE = (
    "sleep 300 & disown; echo started",
    "nohup sh -c 'while :; do sleep 0.01; done' > /dev/null 2>&1 &",
    "setsid sleep 1000 < /dev/null > log 2>&1 &",
    "head -c 64M /dev/zero > big; ls -l big",
    "for i in $(seq 6000); do echo > many$i; done 2> /dev/null; ls | wc -l",
    "sleep 60",
    "while :; do :; done",
    "python3 -c 'x = bytearray(1 << 31)'",
    "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'",
    "bomb() { bomb | bomb & }; bomb; sleep 0.5",
    "yes",
    "kill -9 -1",
    "kill -9 $$",
    "exec 9<> /tmp/log; mkfifo pipe; ln -s / root; mkdir -p a/b; chmod 000 a",
    "rm -rf .git * .[!.]*; cd /; rm -rf /tmp/*",
)
#: How often a reply is hostile, careless, or else the expert's.
_HOSTILE, _CARELESS = 0.3, 0.2
#: How often, after a turn, an episode is forked, pickled and read again, abandoned; and a turn cancelled while it runs.
_FORKED, _PICKLED, _ABANDONED, _CANCELLED = 0.08, 0.08, 0.06, 0.05
#: Seconds after which a turn that is cancelled has begun, and until the processes of a finished command have ended.
_BEGUN_S, _SETTLE_S = 0.1, 0.5
_LEAST = 8  # measurements: two in each window
_MEMORY = ("memory_mb", "own_mb")
#: The growth that is always allowed of memory, and that is allowed at most, as parts of the early value.
_ALWAYS, _AT_MOST = 0.02, 0.05
#: The least by which a size can differ, in MiB: a page of memory, or a block of a disk.
_PAGE_MB = 4096 / 2**20


class Soak:
    """Episodes that are played until enough measurements were made.

    Args:
        measurements: At least 8.
        every_s: Seconds between two.
        workers: Episodes at a time.
        seed: Of all choices.
        options: Of the environment.
    """

    def __init__(self, measurements: int, every_s: float, workers: int, seed: int = 0, **options: Any) -> None:
        if measurements < _LEAST:
            raise ValueError(
                f"{measurements} measurements are too few: {_LEAST} or more; play longer or measure oftener"
            )
        self.measurements, self.every_s, self.workers, self.seed = measurements, every_s, workers, seed
        self.options = options
        self.counts = Counter[str]()
        self.failures: list[str] = []
        self.rows: list[tuple[float, int, Resources]] = []  # seconds, episodes, what was used
        self._over = False
        self._go = asyncio.Event()
        self._playing = 0

    async def run(self) -> None:
        self._go.set()
        began = time.monotonic()
        with temporary_folder() as folder:
            workers = [asyncio.create_task(self._work(number)) for number in range(self.workers)]
            for _ in range(self.measurements):
                await asyncio.sleep(self.every_s)
                self._go.clear()
                await self._settle()
                self.rows.append((time.monotonic() - began, self.counts["episodes"], resources(folder)))
                self._go.set()
            self._over = True
            await asyncio.gather(*workers)

    async def _settle(self) -> None:
        """Wait until no worker plays and no command runs, also none whose episode was cancelled."""
        while self._playing:
            await asyncio.sleep(0.02)
        barrier = threading.Barrier(CONCURRENCY)
        pool = threads(CONCURRENCY, "textenvs-shell")
        await asyncio.gather(*(asyncio.wrap_future(pool.submit(barrier.wait)) for _ in range(CONCURRENCY)))
        await asyncio.sleep(_SETTLE_S)
        gc.collect()

    async def _work(self, number: int) -> None:
        rng = Random(f"soak/{self.seed}/{number}")
        envs: list[Any] = [
            textenvs.make("textenv/terminal", level=level, limits=LIMITS, **self.options) for level in LEVELS
        ]
        while not self._over:
            env = rng.choice(envs).fork(rng.getrandbits(31))
            try:
                await self._episode(env, rng)
            except Exception as error:  # of the environment: what the soak is for
                self.failures.append(f"{env.state.task and env.task.key}: {error!r}")
            self.counts["episodes"] += 1

    async def _episode(self, env: Any, rng: Random) -> None:
        await self._turn(env.areset(seed=rng.getrandbits(31)))
        while not env.state.done and not self._over:
            reply = self._reply(env, rng)
            if rng.random() < _CANCELLED:
                self.counts["cancelled"] += 1
                step = asyncio.create_task(self._turn(env.astep(reply)))
                await asyncio.sleep(_BEGUN_S)
                step.cancel()
                await asyncio.wait([step])
                if not step.cancelled() and (error := step.exception()) is not None:
                    raise error
                return
            *_, info = await self._turn(env.astep(reply))
            if info["failed"]:
                self.failures.append(f"{env.task.key}: {env.state.stop} after {reply!r}")
            if rng.random() < _FORKED:
                self.counts["forked"] += 1
                env = env.fork(rng.getrandbits(31))
            if rng.random() < _PICKLED:
                self.counts["pickled"] += 1
                env.restore(pickle.loads(pickle.dumps(env.snapshot())))
            if rng.random() < _ABANDONED:
                self.counts["abandoned"] += 1
                return
        if env.state.done:
            self.counts[env.state.stop] += 1

    async def _turn(self, work: Any) -> Any:
        try:
            await self._go.wait()
        except asyncio.CancelledError:
            work.close()
            raise
        self._playing += 1
        try:
            return await work
        finally:
            self._playing -= 1

    def _reply(self, env: Any, rng: Random) -> str | Message:
        self.counts["turns"] += 1
        drawn, generator = rng.random(), np.random.default_rng(rng.getrandbits(32))
        if drawn < _HOSTILE:
            self.counts["hostile"] += 1
            limit = {"timeout_s": 0.5} if rng.random() < 0.3 else {}
            return Hermes().write("", [call("run", command=rng.choice(HOSTILE), **limit)])
        if drawn < _HOSTILE + _CARELESS:
            return env.careless_reply(generator)  # type: ignore[no-any-return]
        return env.demonstration(generator)  # type: ignore[no-any-return]


def fill_caches() -> None:
    """Draw as many projects as a process keeps, and run a command in each: its files go into the cache of results."""
    shell._cache.most_bytes = CACHE_BYTES
    numbers = iter(range(10**6))
    while assignment_of.cache_info().currsize < assignment_of.cache_info().maxsize:
        project = assignment_of(f"easy/train/soak/{next(numbers)}").project
        shell.Shell().run_now(shell.ShellState.of(Tree.of(project.files)), ":")


def compared(rows: Sequence[tuple[float, int, Resources]]) -> list[dict[str, Any]]:
    """Compare the windows of each figure, by the rule of the module's docstring."""
    length, warm = len(rows) // 4, 3 * len(rows) // 8
    windows = rows[warm : warm + length], rows[-length:]
    episodes = statistics.median(row[1] for row in windows[1]) - statistics.median(row[1] for row in windows[0])
    lines = []
    for field in dataclasses.fields(Resources):
        values = [[getattr(row[2], field.name) for row in window] for window in windows]
        early, late = map(statistics.median, values)
        noise, most = max(values[0]) - min(values[0]), max(_AT_MOST * early, 1.0)
        allowed = min(max(noise, _ALWAYS * early if field.name in _MEMORY else 0), most)
        unseen = max(noise, allowed)
        step = 1 if isinstance(values[0][0], int) else _PAGE_MB
        lines.append(
            {
                "figure": field.name,
                "early": round(early, 2),
                "late": round(late, 2),
                "most": round(max(getattr(row[2], field.name) for row in rows), 2),
                "noise": round(noise, 2),
                "allowed": round(allowed, 2),
                "smallest_growth": (unseen + step) / episodes if episodes else None,
                "verdict": "grows" if late - early > unseen else "cannot tell" if noise > most else "flat",
            }
        )
    return lines


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the comparison as a table in Markdown."""
    names = ("early", "late", "most", "noise", "allowed")
    rows = [
        "| figure | early | late | most | noise | allowed growth | smallest growth that is seen, an episode | |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for line in lines:
        least = "-" if line["smallest_growth"] is None else f"{line['smallest_growth']:.2g}"
        cells = [line["figure"], *(f"{line[name]:g}" for name in names), least, line["verdict"]]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=15.0, metavar="S", help="seconds between measurements (15)")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="episodes at a time (8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="where results are written")
    arguments = parser.parse_args()
    adopt_orphans()
    fill_caches()
    soak = Soak(round(60 * arguments.minutes / arguments.every), arguments.every, arguments.workers, arguments.seed)
    asyncio.run(soak.run())
    lines = compared(soak.rows)
    result = {
        "machine": processor(),
        "minutes": round(soak.rows[-1][0] / 60, 1),
        "workers": arguments.workers,
        "counts": dict(sorted(soak.counts.items())),
        "failures": soak.failures,
        "windows": lines,
        "measurements": [[round(s, 1), episodes, dataclasses.asdict(used)] for s, episodes, used in soak.rows],
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['minutes']} minutes on {processor()}: {result['counts']}\n\n{table(lines)}\n")
    print(f"{len(soak.failures)} episodes failed", *soak.failures[:5], sep="\n")
    return int(bool(soak.failures) or any(line["verdict"] != "flat" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
