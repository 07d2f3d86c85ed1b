"""A command of the shell against `bash -c`, and what a snapshot, a fork and an idle episode of it cost.

    python benchmarks/terminal.py [--rounds 40]

Both run the command `:`, in turn; times are the fastest and the median of the rounds. CPU milliseconds are those of
this process and of all below it. A snapshot is pickled and read again; within a process it is a reference.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from textenvs.sandbox import Shell, ShellState, Tree

FILES = (0, 30, 300)
MOST_MS = 10.0  # of CPU above `bash -c`
_SETTLE_S = 0.3  # until the processes of a command, which end after its answer, are counted
SNAPSHOT_MS = 20.0  # of 300 files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    shell = Shell()
    print("| files | shell, ms | bash -c, ms | ratio | CPU ms of the shell | of bash |\n|---|---|---|---|---|---|")
    above = []
    for count in FILES:
        state, _ = shell.run_now(project(count), "x=1")
        numbers = iter(range(10**6))

        def command(state: ShellState = state, numbers: object = numbers) -> None:
            shell.run_now(state, f": {next(numbers)}")  # type: ignore[call-overload]  # another one every time

        results = side_by_side(command, lambda: subprocess.run(["bash", "-c", ":"], check=True), rounds)
        (fast, median, cpu), (bash_fast, bash_median, bash_cpu) = results
        print(
            f"| {count} | {fast:.1f}, {median:.1f} | {bash_fast:.1f}, {bash_median:.1f} "
            f"| {fast / bash_fast:.1f} | {cpu:.1f} | {bash_cpu:.1f} |"
        )
        above.append(cpu - bash_cpu)
    state = project(300)
    seconds = min(timed(lambda: pickle.loads(pickle.dumps(state))) for _ in range(rounds))
    reference = min(timed(lambda: ShellState(state.tree, state.script)) for _ in range(rounds))
    print(f"a snapshot of 300 files: {1e6 * reference:.1f} us as a reference, {1e3 * seconds:.2f} ms pickled and read")
    idle = [shell.run_now(project(30, number), "cd d0; x=1")[0] for number in range(256)]
    print(f"{len(idle)} idle episodes: {len(below(os.getpid())) - 1} processes, which stay for the next commands")
    most = max(above[:-1])
    print(
        f"up to 30 files: {most:.1f} CPU ms above bash (wanted {MOST_MS:g}); wanted of a snapshot: {SNAPSHOT_MS:g} ms"
    )
    return int(most > MOST_MS or 1e3 * seconds > SNAPSHOT_MS)


def project(count: int, number: int = 0) -> ShellState:
    """Return a shell in a folder of so many files of 2 kB."""
    return ShellState.of(Tree.of({f"d{i % 7}/f{i}.txt": f"{number} {i}\n" * 400 for i in range(count)}))


def side_by_side(one: Callable[[], object], other: Callable[[], object], rounds: int) -> list[tuple[float, ...]]:
    """Call both in turn, then each on its own; return of each the fastest and the median time, and CPU time, in ms."""
    pairs = [(1e3 * timed(one), 1e3 * timed(other)) for _ in range(rounds)]
    results = []
    for call, times in zip((one, other), zip(*pairs, strict=True), strict=True):
        time.sleep(_SETTLE_S)
        began = cpu_s()
        for _ in range(rounds):
            call()
        time.sleep(_SETTLE_S)
        results.append((min(times), statistics.median(times), 1e3 * (cpu_s() - began) / rounds))
    return results


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def below(pid: int) -> dict[int, int]:
    """Return the CPU ticks of a process and of all that it started, ended ones included, by process."""
    ticks: dict[int, int] = {}
    with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks[pid] = sum(map(int, fields[11:15]))
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in Path(task, "children").read_text().split():
                ticks |= below(int(child))
    return ticks


def cpu_s() -> float:
    return sum(below(os.getpid()).values()) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main())
