"""Many episodes of `textenv/terminal` at once: commands a second, memory, processes, failures.

    python -m benchmarks.terminal_episodes [--episodes 256] [--concurrency 256] [--level easy]

The episodes are played by the machinery of `textenvs evaluate` (`textenvs.evaluate.runner`), all at a time, with the
commands of the scripted expert, in all templates. `commands` are those of the policy; every check is one more, in a
sandbox of its own. Times are those after the environments were made. Memory is proportional: a page that n processes
share counts 1/n in each. It and the numbers of processes, threads and open files are the largest that were seen, once
a second, of this process and all below it (`resources.py`). The exit status is 1 where an episode failed or the
expert did not solve it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import textenvs
from benchmarks.hardware import processor
from benchmarks.resources import Resources, resources, temporary_folder
from benchmarks.terminal import cpu_s
from textenvs.evaluate.plan import choose_tasks, jobs
from textenvs.evaluate.policies import ScriptedPolicy
from textenvs.evaluate.records import Record
from textenvs.evaluate.runner import run

_LOOK_S = 1.0


@contextmanager
def watched() -> Iterator[list[Resources]]:
    """Yield a list to which a thread adds what is used, at once and then once a second."""
    over = threading.Event()
    with temporary_folder() as folder:
        seen = [resources(folder)]

        def watch() -> None:
            while not over.wait(_LOOK_S):
                seen.append(resources(folder))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=256, metavar="N", help="in all (256)")
    parser.add_argument("--concurrency", type=int, default=256, metavar="N", help="at a time (256)")
    parser.add_argument("--level", default="easy", choices=("easy", "medium", "hard"))
    parser.add_argument("--seed", type=int, default=0, help="of the tasks and episodes (0)")
    arguments = parser.parse_args()
    env: Any = textenvs.make("textenv/terminal", level=arguments.level)
    indices = choose_tasks(env.tasks, arguments.episodes, arguments.seed)
    records = list[Record]()
    load, began, began_cpu = os.getloadavg()[0], time.perf_counter(), cpu_s()
    with watched() as seen:
        asyncio.run(
            run(
                jobs(indices, 1, arguments.seed),
                env.fork,
                ScriptedPolicy("expert"),
                on_record=records.append,
                concurrency=arguments.concurrency,
                max_failures=2**31,
            )
        )
    seconds, cpu = time.perf_counter() - began, cpu_s() - began_cpu
    commands = sum((record.tool_calls or 0) - record.terminated for record in records)  # the last call is `finish`
    failed = [f"{record.task_key}: {record.stop}: {record.failure}" for record in records if record.stop != "solved"]
    print(f"{len(failed)} of {len(records)} episodes not solved", *failed[:10], sep="\n")
    if commands < 1:
        print("no command was run, so there is nothing to measure")
        return 1
    names = ("memory_mb", "processes", "threads", "open_files")
    most = {name: max(getattr(used, name) for used in seen) for name in names}
    print(
        f"{len(records)} episodes ({arguments.level}), {arguments.concurrency} at once, on {processor()}, load "
        f"{load:.1f} at first\n"
        f"{commands} commands in {seconds:.0f} s: {commands / seconds:.1f} a second; {1e3 * cpu / commands:.0f} ms of "
        f"CPU time a command, draws of projects and checks included\n"
        f"at most {most['memory_mb']:.0f} MiB ({seen[0].memory_mb:.0f} at first), {most['processes']} processes, "
        f"{most['threads']} threads, {most['open_files']} open files"
    )
    return int(bool(failed) or len(records) < arguments.episodes)


if __name__ == "__main__":
    sys.exit(main())
