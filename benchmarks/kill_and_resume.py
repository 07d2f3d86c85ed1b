"""The main job on Ray, killed again and again, and resumed: it learns all the same, no task skipped or repeated.

    python benchmarks/kill_and_resume.py [--kills 6] [--iterations 120] [--seed 0] [--start FOLDER] [key=value ...]

The run has two learner ranks and an engine as Ray actors. At random moments its driver, a learner's actor or the
engine's actor gets a SIGKILL. Losing the engine must not end the run; after the others it is started again with the
same command. Each iteration's batch is written to a file of its own number, so a repeated iteration replaces its file:
at the end the groups in the files must be 0, 1, 2, ... without a gap and each in one file alone, and validation must
show what benchmarks/learning.py asks for. With ``--kills 0`` it is the same run left in peace.
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
from pathlib import Path

from learning import before_and_after, learned

from trainers.trajectory import read_parquet

VICTIMS = {"driver": None, "learner": "_Rank", "engine": "_EngineActor"}
PATIENCE_S = 1800.0  # a run that shows nothing new for so long hangs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0, help="of the kills; trainer.seed=... is the run's")
    parser.add_argument("--start", type=Path, help="train from this policy; no warm start")
    arguments, overrides = parser.parse_known_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        folder, batches = Path(place) / "run", Path(place) / "batches"
        command = [
            *(sys.executable, "-m", "trainers.ppo", "cluster.backend=ray", "cluster.learner_ranks=2"),
            *(f"trainer.default_local_dir={folder}", f"trainer.rollout_data_dir={batches}", "trainer.save_freq=2"),
            *(f"trainer.total_iterations={arguments.iterations}", f"trainer.test_freq={arguments.iterations}"),
            *([] if arguments.start is None else [f"model.path={arguments.start}"]),
            *("trainer.logger=[jsonl]", *overrides),
        ]
        # The order is random, and every kind of death has its turn.
        rounds = -(-arguments.kills // len(VICTIMS))
        kinds = [kind for _ in range(rounds) for kind in rng.sample(list(VICTIMS), len(VICTIMS))][: arguments.kills]
        # A resumed run may be an iteration back: two iterations between kills are seen to be new ones.
        moments = sorted(rng.sample(range(1, max(2, arguments.iterations - 3), 3), arguments.kills))
        kills = list(zip(moments, kinds, strict=True))
        counted: Counter[str] = Counter()
        while True:
            code = one_life(command, batches, kills, rng, counted)
            print(f"the run ended with {code}; killed so far: {dict(counted)}", flush=True)
            if code == 0:
                break
            if code not in (-signal.SIGKILL, 1):
                print("that is neither a kill nor an error that was said")
                return 1
        learned = arguments.iterations < 120 or check_learning(folder)
        return 0 if check(batches, arguments.iterations, counted, arguments.kills) and learned else 1


def one_life(
    command: list[str], batches: Path, kills: list[tuple[int, str]], rng: random.Random, counted: Counter[str]
) -> int:
    """Run until the end, or until a kill ends it. Returns the exit code."""
    run = subprocess.Popen(command, start_new_session=True)
    try:
        while kills:
            # After so many batches, and then anywhere within an iteration.
            moment, kind = kills[0]
            if not wait_for(run, batches, moment):
                break
            time.sleep(rng.uniform(0.0, 5.0))
            pids = victims(run.pid, VICTIMS[kind])
            if run.poll() is not None or not pids:
                break
            os.kill(rng.choice(pids), signal.SIGKILL)
            del kills[0]
            counted[kind] += 1
            print(f"killed after {moment} batches: {kind}", flush=True)
            if kind != "engine":
                break
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
    """Return the driver's process, or those below it whose Ray actor has this name."""
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


def check_learning(folder: Path) -> bool:
    """Return whether the policy learned what the main job promises, however long it took."""
    row = before_and_after(folder)
    good = learned(row)
    print(
        f"solved {row['solved_before']:.1%} -> {row['solved_after']:.1%}, first reply {row['first_before']:.1%} -> "
        f"{row['first_after']:.1%}: {'learned' if good else 'MISSED'}"
    )
    return learned


def check(batches: Path, iterations: int, counted: Counter[str], kills: int) -> bool:
    """Return whether every group is in one file, and none is missing."""
    files = sorted(batches.glob("*.parquet"))
    groups: list[int] = []
    for file in files:
        groups += sorted({int(episode.group_id.removeprefix("g")) for episode in read_parquet(file)})
    repeated = [group for group, count in Counter(groups).items() if count > 1]
    missing = sorted(set(range(len(groups))) - set(groups))
    whole = len(files) == iterations and not repeated and not missing and sum(counted.values()) == kills
    print(f"{len(files)} iterations of {iterations}, {len(groups)} groups, repeated {repeated}, missing {missing}")
    print(f"killed {dict(counted)} ({kills} wanted): {'every task once' if whole else 'FAILED'}")
    return whole


if __name__ == "__main__":
    raise SystemExit(main())
