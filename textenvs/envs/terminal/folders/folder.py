"""The tasks of a folder as a task set, and their episodes: how they begin, and how they are judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....env import EnvironmentFailure
from ....messages import Messages, system, user
from ....sandbox import SandboxFailure
from ....task import Rows, Task, TaskError
from .formats import FolderTask, read_folder
from .runtime import Runtime, solution_command
from .verdict import Verdict

#: The field of a row's ``extra_info`` that names a task of the folder.
FIELD = "folder_task"
_INTRODUCTION = (
    "You work in a shell, in the folder {cwd}. {network}Files, variables and the working directory last from one "
    "command to the next. Do what the user asks, and call finish when it is done: tests then look at the files."
)
_NO_NETWORK = "There is no network. "


class Folder:
    """A folder of tasks, and what plays them.

    Args:
        path: A task's folder, or a folder of these.
        runtime: What plays them.
        has_network: Whether there may be a network in an episode.

    Raises:
        TaskError: There is no task, or there are tasks that cannot be played.
    """

    def __init__(self, path: Path, runtime: Runtime, *, has_network: bool) -> None:
        self.runtime, self.has_network = runtime, has_network
        tasks = read_folder(path)
        runtime.check(tasks)
        self._tasks = {task.name: task for task in tasks}
        self._proven: set[str] = set()
        self.rows = Rows(f"tasks of {path.name}", map(_row, tasks))

    def task_of(self, task: Task) -> FolderTask:
        """Return the folder's task that a row names; ``TaskError``: it names none."""
        name = task.extra.get(FIELD)
        if not isinstance(name, str) or name not in self._tasks:
            raise TaskError(f"task {task.key!r}: extra_info.{FIELD} is {name!r}, and the folder has no such task")
        return self._tasks[name]

    async def begin(self, task: FolderTask) -> Any:
        """Return the state of an episode that begins; ``EnvironmentFailure`` where it cannot."""
        try:
            return await self.runtime.begin(task)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure

    def prompt(self, task: FolderTask, cwd: str, instructions: str | None) -> Messages:
        """Return the messages that an episode starts with."""
        network = "" if self.has_network and task.has_network else _NO_NETWORK
        return system(instructions or _INTRODUCTION.format(cwd=cwd, network=network)), user(task.instruction)

    async def judge(self, task: FolderTask, state: Any) -> Verdict:
        """Run the tests on an episode's end.

        An end that is not solved is believed where the task's own solution earns something here, so that tests, image
        and network are as the task needs them; without a solution, where the tests give a result in the environment
        that nobody has touched. So a missing network is not a reward of 0, and no policy can end its episode as failed
        by breaking the tests.

        Raises:
            EnvironmentFailure: The tests could not be run, or do not pay the task's own solution.
        """
        try:
            verdict = await self.runtime.judge(task, state)
            if not verdict.is_solved and task.name not in self._proven:
                await self._prove(task)
        except SandboxFailure as failure:
            raise EnvironmentFailure("judge_failed", str(failure)) from failure
        return verdict

    async def _prove(self, task: FolderTask) -> None:
        state = await self.runtime.begin(task)
        try:
            command = solution_command(task)
            if command is not None:
                state, result = await self.runtime.run(state, command)
            verdict = await self.runtime.judge(task, state)
        finally:
            self.runtime.end(state)
        if command is None:
            if verdict.reward is None:
                raise SandboxFailure(
                    f"task {task.name}: its tests give no result here in the environment that nobody has touched: "
                    f"{verdict.why}"
                )
        elif verdict.share == 0.0:
            why = verdict.why or f"the reward is {verdict.reward:g}; the solution's own output: {result.describe(400)}"
            raise SandboxFailure(
                f"task {task.name}: its own solution earns nothing here, so no unsolved end can be believed. Does it "
                f"need a network, a program or more time? {why}"
            )
        self._proven.add(task.name)


def _row(task: FolderTask) -> Task:
    prompt = (user(task.instruction),)
    # The tests stay in the folder: their code is not for a row to choose.
    truth = f"tests of {task.name}"
    return Task(
        task.name, f"{task.format}/{task.root.parent.name}", prompt, truth, ability="tools", extra={FIELD: task.name}
    )


def folder_of(tasks: object) -> Path | None:
    """Return the folder that the option ``tasks`` names; ``None`` where it is something else."""
    if not isinstance(tasks, str | Path):
        return None
    path = Path(tasks).expanduser()
    return path.resolve() if path.is_dir() else None
