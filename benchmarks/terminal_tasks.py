"""Tasks of `textenv/terminal`: whether the expert solves all of them and an attack none, and what they cost.

    python -m benchmarks.terminal_tasks [--tasks 20] [--templates pipeline ...] [--levels easy ...] [--twins]

CPU milliseconds are those of this process and of all below it. `ls` and `touch` are steps in forks of the last task:
the checks of its beginning are in the shell's cache after the first of these. `--twins` counts the tasks that have twin
worlds in place of this, and gives the verdict of the audit's check `reads` on up to 20 tasks.
"""

from __future__ import annotations

import argparse
import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import textenvs
from benchmarks.terminal import cpu_s
from textenvs.audit import Subject
from textenvs.audit.reads import reads
from textenvs.envs.terminal.tasks import LEVELS, assignment_of_task
from textenvs.messages import Message
from textenvs.task import SPLITS
from textenvs.tools.formats import Hermes, call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20, metavar="N", help="of each level and split (20)")
    parser.add_argument("--templates", nargs="+", metavar="NAME", help="templates to draw from (all)")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=LEVELS, metavar="LEVEL", help="of these (all)")
    parser.add_argument("--twins", action="store_true", help="count the tasks with twin worlds instead")
    arguments = parser.parse_args()
    if arguments.twins:
        return twins(arguments.levels, arguments.templates, arguments.tasks)
    wrong = 0
    print("| level, split | draw, ms | reset | `ls` | `touch` | expert's episode | replies | bytes | compressed |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for level in arguments.levels:
        for split in ("train", "test"):
            env: Any = textenvs.make("textenv/terminal", level=level, split=split, templates=arguments.templates)
            wrong += row(env.unwrapped, level, split, arguments.tasks)
    return int(wrong > 0)


def row(env: Any, level: str, split: str, count: int) -> int:
    """Print the row of an environment, and what went wrong below it; return the number of the latter."""
    draw = mean_ms(lambda index: env.tasks[10_000 + index], count)
    reset = mean_ms(lambda index: env.reset(options={"task_index": 20_000 + index}), count)
    read, change = (
        mean_ms(lambda index, command=command: env.fork().step(run(f"{command}{index}")), count)  # type: ignore[misc]
        for command in ("ls # ", "touch new")
    )
    problems, replies = list[str](), list[list[str]]()

    def play(index: int) -> None:
        env.reset(options={"task_index": index})
        replies.append([])
        while not env.state.done:
            replies[-1].append(str(env.demonstration(np.random.default_rng(0))))
            env.step(replies[-1][-1])
        if env.state.stop != "solved":
            problems.append(f"{env.task.key}: the expert ends with {env.state.stop}")

    episode = mean_ms(play, count)
    for attack in env.own_attacks:
        for index in range(count):
            conversation, _ = env.reset(options={"task_index": index})
            policy = attack.start(np.random.default_rng(index), ())
            while not env.state.done:
                conversation, *_ = env.step(policy(conversation))
            if env.state.stop != "unsolved":
                problems.append(f"{env.task.key}: {attack.name} ends with {env.state.stop}")
    texts = ["".join(episode_replies) for episode_replies in replies]
    packed = np.mean([len(zlib.compress(text.encode(), 9)) for text in texts])
    print(
        f"| {level}, {split} | {draw:.1f} | {reset:.0f} | {read:.0f} | {change:.0f} | {episode:.0f} "
        f"| {np.mean([len(one) for one in replies]):.1f} | {np.mean([len(text.encode()) for text in texts]):.0f} "
        f"| {packed:.0f} |"
    )
    print("\n".join(problems), end="\n" if problems else "", flush=True)
    return len(problems)


def twins(levels: Sequence[str], templates: Sequence[str] | None, count: int) -> int:
    """Print how many tasks have twins, how many facts and twins these are, and the audit's verdict on them."""
    print("| level, split | tasks | repairs | with twins | facts | twins of a fact, with the task | `reads` |")
    print("|---|--:|--:|--:|--:|--:|---|")
    failed = 0
    for level in levels:
        for split in SPLITS:
            make = functools.partial(textenvs.make, "textenv/terminal", level=level, split=split, templates=templates)
            env: Any = make()
            tasks = [env.tasks[index] for index in range(count)]
            repairs = sum(assignment_of_task(task).question is None for task in tasks)
            facts = [[len(of_fact) for _, of_fact in env.twin_worlds(task)] for task in tasks]
            sizes = [size for of_task in facts for size in of_task]
            verdict = reads(Subject(make, episodes=count))
            failed += verdict.failed
            spread = f"{min(sizes)} to {max(sizes)} ({np.mean(sizes):.1f})" if sizes else "-"
            cells = (count, repairs, sum(map(bool, facts)), len(sizes), spread)
            print(
                f"| {level}, {split} | {' | '.join(map(str, cells))} | {verdict.status}: {verdict.evidence} |",
                flush=True,
            )
    return int(failed > 0)


def run(command: str) -> str | Message:
    return Hermes().write("", [call("run", command=command)])


def mean_ms(work: Callable[[int], object], count: int) -> float:
    """Return the mean CPU milliseconds of calls with 0, 1, ..."""
    began = cpu_s()
    for index in range(count):
        work(index)
    return 1e3 * (cpu_s() - began) / count


if __name__ == "__main__":
    raise SystemExit(main())
