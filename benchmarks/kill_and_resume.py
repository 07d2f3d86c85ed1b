"""The default learning run on Ray, killed again and again, and gone on with until its end: no task skipped or repeated.

    python benchmarks/kill_and_resume.py [--kills 6] [--iterations 40] [--seed 0] [key=value ...]

The run has two learner ranks and an engine as Ray actors. At random moments its driver, a learner's actor or the
engine's actor gets a SIGKILL. Losing the engine must not end the run; after the others it is started again with the
same command. Each iteration's batch is written to a file of its own number, so a repeated iteration replaces its file:
at the end the groups in the files must be 0, 1, 2, ... without a gap and each in one file alone.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from trainers.trajectory import read_parquet

VICTIMS = {"driver": None, "learner": "_Rank", "engine": "_EngineActor"}
PATIENCE_S = 1800.0  # a run that shows nothing new for so long hangs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given, more = parser.parse_known_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as place:
        folder, batches = Path(place) / "run", Path(place) / "batches"
        command = [
            *(sys.executable, "-m", "trainers.ppo", "cluster.backend=ray", "cluster.learner_ranks=2"),
            *(f"trainer.default_local_dir={folder}", f"trainer.rollout_data_dir={batches}", "trainer.save_freq=2"),
            *(f"trainer.total_iterations={given.iterations}", "trainer.val_before_train=false", "trainer.test_freq=-1"),
            *("trainer.logger=[jsonl]", *more),
        ]
        # The order is random, and every kind of death has its turn.
        rounds = -(-given.kills // len(VICTIMS))
        kinds = [kind for _ in range(rounds) for kind in rng.sample(list(VICTIMS), len(VICTIMS))]
        kills = iter(kinds[: given.kills])
        counted: Counter[str] = Counter()
        while True:
            code = one_life(command, batches, kills, rng, counted)
            print(f"the run ended with {code}; killed so far: {dict(counted)}", flush=True)
            if code == 0:
                break
            if code not in (-signal.SIGKILL, 1):
                print("that is neither a kill nor an error that was said")
                return 1
        return check(batches, given.iterations, counted, given.kills)


def one_life(command: list[str], batches: Path, kills: Iterator[str], rng: random.Random, counted: Counter[str]) -> int:
    """Run until the end, or until a kill ends it. Returns the exit code."""
    run = subprocess.Popen(command, start_new_session=True)
    started = len(list(batches.glob("*.parquet")))
    try:
        for kind in kills:
            # After some more batches, and then anywhere within an iteration.
            if not wait_for(run, batches, started + rng.randint(1, 3)):
                break
            time.sleep(rng.uniform(0.0, 5.0))
            pids = victims(run.pid, VICTIMS[kind])
            if run.poll() is not None or not pids:
                break
            os.kill(rng.choice(pids), signal.SIGKILL)
            counted[kind] += 1
            print(f"killed: {kind}", flush=True)
            if kind != "engine":
                break
            started = len(list(batches.glob("*.parquet")))
        return run.wait(PATIENCE_S * 4)
    finally:
        run.kill()
        run.wait()


def wait_for(run: subprocess.Popen[bytes], batches: Path, count: int) -> bool:
    """Until there are so many batches; whether the run lives."""
    until = time.monotonic() + PATIENCE_S
    while len(list(batches.glob("*.parquet"))) < count:
        if run.poll() is not None:
            return False
        if time.monotonic() > until:
            raise TimeoutError(f"no new batch for {PATIENCE_S:g} s")
        time.sleep(0.2)
    return run.poll() is None


def victims(driver: int, name: str | None) -> list[int]:
    """The driver's process, or those below it whose Ray actor has this name."""
    if name is None:
        return [driver]
    parents, titles = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                titles[int(entry.name)] = (entry / "cmdline").read_text()
            except (OSError, IndexError):
                continue

    def below(pid: int) -> bool:
        while pid in parents and pid > 1:
            if pid == driver:
                return True
            pid = parents[pid]
        return False

    return [pid for pid, title in titles.items() if title.startswith(f"ray::{name}") and below(pid)]


def check(batches: Path, iterations: int, counted: Counter[str], kills: int) -> int:
    """Whether every group is in one file, and none is missing."""
    files = sorted(batches.glob("*.parquet"))
    groups: list[int] = []
    for file in files:
        groups += sorted({int(episode.group_id.removeprefix("g")) for episode in read_parquet(file)})
    repeated = [group for group, count in Counter(groups).items() if count > 1]
    missing = sorted(set(range(len(groups))) - set(groups))
    whole = len(files) == iterations and not repeated and not missing and sum(counted.values()) == kills
    print(f"{len(files)} iterations of {iterations}, {len(groups)} groups, repeated {repeated}, missing {missing}")
    print(f"killed {dict(counted)} ({kills} wanted): {'every task once' if whole else 'FAILED'}")
    return 0 if whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
