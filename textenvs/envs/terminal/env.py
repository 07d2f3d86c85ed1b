"""A real shell, in which a project has faults to be found and repaired, or a question has its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

import numpy as np

from ...attack import COMMON, Attack
from ...data.sources import Reader, Source, open_source, verl_row
from ...env import EnvironmentFailure, EpisodeState, NoDemonstration, Turn
from ...event_loop import wait_for
from ...messages import Message, user
from ...options import Cost, Gain, PositiveInt, Price, checked
from ...sandbox import SandboxFailure, Shell, ShellLimits, Tree
from ...sandbox.shell import PROJECT
from ...task import Split, Task
from ...tool_env import ToolEnv, ToolState
from ...tools.formats import call
from ...tools.jsontext import read_object
from ...tools.schema import MaxChars, ToolError, tool
from ...tools.shell import HasShell, shell_tool
from ...tools.toolbox import ToolResult
from .attacks import ATTACKS
from .folders import ATTACKS as FOLDER_ATTACKS
from .folders import Containers, Folder, Sandboxed, folder_of, solution_command
from .project import verify, without_stat_data
from .tasks import LEVELS, Assignment, Goal, Level, TerminalTasks, assignment_of_task, inputs_of_turns
from .twins import twins_of

#: How many replies there are.
_TURNS: Mapping[str, int] = {"easy": 20, "medium": 40, "hard": 80}
#: Draws of a task's faults, until some fit together.
_DRAWS = 20
#: How often a careless reply is the end.
_CARELESS_END = 0.3
_RUN = "run"
RuntimeName = Literal["sandbox", "docker", "podman"]


@dataclass
class TerminalState(ToolState, HasShell):
    """An episode in a terminal."""

    shared = (*HasShell.shared, "assignment", "beginning", "commands")

    assignment: Assignment | None = None  # of a generated task: to draw it again would take longer than a command
    beginning: Tree | None = None  # the project's files when the episode began
    commands: tuple[str, ...] = ()  # those that were run
    measured: bytes = b""  # digest of the files that ``share`` is of
    share: float = 0.0  # of the task that is done, as it was measured last
    finished: bool = False
    answer: str = ""  # with which it was finished


@tool
def finish(state: TerminalState, answer: str = "") -> str:
    """End the task.

    Args:
        state: The episode.
        answer: The answer, where the task is a question.
    """
    if state.finished:
        raise ToolError("The task has ended already.")
    state.finished, state.answer = True, answer
    return "The task has ended."


class Terminal(ToolEnv[TerminalState]):
    """Repair a project in a real shell, or find the answer to a question about it.

    A seed draws the project (files of a small program with data, settings, perhaps a history) and one to eight faults,
    or a question with an answer that cannot be guessed. The user says what the project is for and what users report,
    not the causes. The tool ``run`` runs commands in bash, with files, variables and the working directory of the
    episode, without network; ``finish`` ends the episode: ``stop`` is ``"solved"`` or ``"unsolved"``.

    It is solved when all checks pass on inputs that are drawn at the end, each in a sandbox of its own, and the files
    that no repair may change are as they were; or when the answer is right. An infrastructure that fails ends the
    episode as failed.

    Of a folder's task, the task's own tests decide, at the end; ``progress`` is their reward, from 0 to 1.

    The reward's terms: ``success`` (once, when it ends solved), ``progress`` (what the share of checks that pass and of
    faults that are undone has changed; a project that passes all checks has a share of 1), ``turn`` and ``tool_error``
    (for each call that was not run; a command that fails is none). Metrics, of every turn: ``share``, and ``verified``,
    whether checks were run. They are run where the project's files changed.

    Args:
        tasks: ``None`` for generated tasks; a ``.parquet`` file of such rows; a task set; or a folder of tasks in the
            format of Terminal-Bench or of Harbor (docs/environments/terminal.md).
        runtime: What plays a folder's tasks: ``"sandbox"`` (the default; those that need no image), ``"docker"`` or
            ``"podman"``.
        network: Whether containers have the network that their task asks for; by default they have none.
        clean_tests: Whether the tests of a container's task run in a new container, with what the episode changed
            outside of the folders of programs (the default); else in the episode's own, as the formats do.
        level: ``"easy"`` (the default, one fault), ``"medium"`` (2 or 3) or ``"hard"`` (4 to 8).
        split: ``"train"`` or ``"test"``: every test task has kinds of faults or questions that no training task has.
        seed: Which endless sequence of tasks. (Episodes are seeded by ``reset``.)
        templates: The templates to draw projects from; ``None`` for all.
        goals: ``["repair"]``, ``["question"]``; ``None`` for both.
        success: The reward of a solved task; above 0.
        progress: The weight of the share of the task that is done; at least 0.
        turn: Added on every turn; at most 0.
        tool_error: Added for every call that was not run; at most 0.
        limits: Of a command: a :class:`~textenvs.sandbox.ShellLimits`, or a mapping of its fields; ``None`` for the
            shell's.
        max_output_chars: Most bytes of a command's output that the policy sees; the middle of a longer one is left out.
        call_format: As in :class:`~textenvs.tool_env.ToolEnv`, and so are the other options.
        max_assistant_turns: How many replies there are; ``None`` for no limit; ``"level"`` (the default): 20, 40, 80;
            for ``tasks`` 80. After the last one the tests of a folder's task run.
        **options: ``max_calls_per_turn``, ``tools_in_prompt``, ``max_user_turns``, ``system_prompt``, ``render_mode``.

    Raises:
        SandboxUnavailable: This machine cannot isolate a shell; the message says what to do.
        ValueError: Both ``tasks`` and an option of generated tasks, or a value outside the above.
        TaskError: Rows that are no tasks of this family, or a folder with tasks that cannot be played.
    """

    state_type: ClassVar[type[EpisodeState]] = TerminalState
    shell: Shell  # of generated tasks
    levels: ClassVar[tuple[str, ...]] = LEVELS
    attack_margin: ClassVar[float] = 0.5
    own_attacks = ATTACKS
    term_names: ClassVar[tuple[str, ...]] = ("success", "progress", "turn", "tool_error")

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        runtime: RuntimeName | None = None,
        network: bool = False,
        clean_tests: bool = True,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        templates: Sequence[str] | None = None,
        goals: Sequence[Goal] | None = None,
        success: Gain = 1.0,
        progress: Price = 0.5,
        turn: Cost = 0.0,
        tool_error: Cost = 0.0,
        limits: ShellLimits | Mapping[str, Any] | None = None,
        max_output_chars: MaxChars = 4000,
        call_format: str = "hermes",
        max_assistant_turns: PositiveInt | Literal["level"] | None = "level",
        **options: Any,
    ) -> None:
        if max_assistant_turns == "level":
            max_assistant_turns = _TURNS[(level or LEVELS[0]) if tasks is None else LEVELS[-1]]
        self.folder: Folder | None = None
        place = folder_of(tasks)
        if place is not None:
            if (level, templates, goals) != (None, None, None):
                raise ValueError("level, templates and goals are of generated tasks, and not of a folder")
            self.folder = _open_folder(place, runtime or "sandbox", limits, network=network, clean_tests=clean_tests)
            tasks = self.folder.rows
        elif runtime is not None or network or not clean_tests:
            raise ValueError("runtime, network and clean_tests are of tasks=FOLDER, and tasks names no folder")
        elif tasks is None:
            tasks = TerminalTasks(level or LEVELS[0], seed, split, templates, goals)
        elif (templates, goals) != (None, None):
            raise ValueError("give either tasks, or templates and goals: these are of generated tasks")
        else:
            tasks = open_source(tasks, READER, level=level, split=split, seed=seed)
        if self.folder is None:
            self.shell = Shell(_limits_of(limits))
        shell = self.shell if self.folder is None else self.folder.runtime
        super().__init__(
            tasks,
            [shell_tool(shell, name=_RUN, max_chars=max_output_chars), finish],
            call_format=call_format,
            max_assistant_turns=max_assistant_turns,
            **options,
        )
        self.success, self.progress, self.turn, self.tool_error = success, progress, turn, tool_error

    # ------------------------------------------------------------------ hooks

    async def opening(self, task: Task) -> Sequence[Message]:
        """Make the project, with other faults where the first that were drawn do not fit together."""
        state = self.state
        if self.folder is not None:
            of_folder = self.folder.task_of(task)
            state.shell = await self.folder.begin(of_folder)
            return self.folder.prompt(of_folder, state.shell.cwd, self.system_prompt)
        for attempt in range(_DRAWS):
            state.assignment = assignment = assignment_of_task(task, attempt)
            try:
                state.shell = await assignment.project.state(self.shell, assignment.faults)
            except ValueError:
                continue
            except SandboxFailure as failure:
                raise EnvironmentFailure("tool_failed", str(failure)) from failure
            state.beginning = state.shell.project
            state.measured = without_stat_data(state.beginning).digest
            if assignment.question is not None:
                return assignment.prompt
            state.share = await self._share_of(state.beginning)
            if state.share < 1.0:
                return assignment.prompt
        raise EnvironmentFailure("tool_failed", f"task {task.key}: no faults of {_DRAWS} draws fit together")

    async def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        """Return the results, and the reward of what they changed."""
        arguments = [one.call["function"]["arguments"] for one in results if one.ok and one.name == _RUN]
        self.state.commands += tuple(read_object(text)["command"] for text in arguments)
        return await self._turn(self.tool_messages(results), sum(not result.ok for result in results))

    async def answer(self, reply: Message) -> Turn:
        """Say that a reply without a call does nothing."""
        return await self._turn([user("Nothing was done: call run, or finish when the task is done.")])

    @property
    def assignment(self) -> Assignment:
        """The running episode's assignment; ``RuntimeError`` before the first reset, and of a folder's task."""
        if self.state.assignment is None:
            raise RuntimeError("no generated task is played: call reset, and do not give a folder")
        return self.state.assignment

    async def _turn(self, messages: Sequence[Message], errors: int = 0) -> Turn:
        state = self.state
        is_over = state.finished
        if self.folder is not None:
            # As in the formats, tests run whether the policy says that it is done or has no reply left.
            is_over = verified = is_over or self.spent_budget(messages) is not None
            solved, gained = (await self._judge_folder_task(self.folder)) if is_over else (False, 0.0)
        elif self.assignment.question is None:
            gained, verified = await self._measure()
            solved = state.finished and state.share == 1.0
        else:
            solved, verified = state.finished and state.answer.strip() == str(self.task.ground_truth).strip(), False
            gained = state.share = float(solved)
        stop = None if not is_over else "solved" if solved else "unsolved"
        return Turn(
            () if stop else messages,
            terminated=stop is not None,
            stop=stop,
            terms=self.terms(
                success=self.success * solved,
                progress=self.progress * gained,
                turn=self.turn,
                tool_error=self.tool_error * errors,
            ),
            metrics={"share": state.share, "verified": float(verified)},
        )

    async def _judge_folder_task(self, folder: Folder) -> tuple[bool, float]:
        """Run the tests of a folder's task; return whether it is solved, and the reward as a share from 0 to 1."""
        verdict = await folder.judge(folder.task_of(self.task), self.state.shell)
        self.state.share = verdict.share
        return verdict.is_solved, verdict.share

    async def _measure(self) -> tuple[float, bool]:
        """Measure the share that is done where it may have changed; return its change, and whether checks were run.

        At the end it is measured on inputs that are drawn then; files that nobody changed are not repaired.
        """
        state, work, beginning = self.state, self.state.shell.project, self.state.beginning
        assert beginning is not None
        digest = without_stat_data(work).digest
        if digest == state.measured and (digest == without_stat_data(beginning).digest or not state.finished):
            return 0.0, False
        before = state.share
        inputs = Random(int(self.np_random.integers(2**63))) if state.finished else None
        state.share, state.measured = await self._share_of(work, inputs), digest
        return state.share - before, True

    async def _share_of(self, work: Tree, inputs: Random | None = None) -> float:
        """Return the share of checks that pass and faults that are undone; 1 exactly where all checks pass.

        Args:
            work: The project's files.
            inputs: Draws inputs of checks. ``None``: those of the episode's turns, one for each command; twins have the
                same ones.
        """
        assignment, drawn = self.assignment, inputs or inputs_of_turns(self.task)
        project = assignment.project
        try:
            verified = await verify(
                self.shell, work, project, drawn, one_input=inputs is None, beginning=self.state.beginning
            )
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        passing = verified.values()
        if all(passing):
            return 1.0
        if not project.is_kept(work):
            return 0.0
        undone = [project.has_undone(fault, work) for fault in assignment.faults if fault.is_visible]
        return (sum(passing) + sum(undone)) / (len(passing) + len(undone))

    # ------------------------------------------------------------------ scripts

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Look for the faults, repair them, finish; or find the answer and finish with it.

        Of a folder's task: run its own solution and finish, in one reply.
        """
        state = self.state
        if self.folder is not None:
            solution = solution_command(self.folder.task_of(self.task))
            if solution is None:
                raise NoDemonstration(f"task {self.task.key} has no solution script of at most 128 KiB")
            last = call(finish.name)
            calls = [last] if solution in state.commands else [call(_RUN, command=solution), last]
            return self.format.write("", calls)
        assignment = self.assignment
        command = next((one for one in assignment.plan() if one not in state.commands), None)
        if command is None:
            answer = {} if assignment.question is None else {"answer": str(self.task.ground_truth)}
            return self.format.write("", [call(finish.name, **answer)])
        return self._run("cd /project" if state.shell.cwd != PROJECT else command)

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Finish too early, or look at or repair what is perhaps not wrong."""
        faults = () if self.folder is not None else self.assignment.project.faults
        if not faults or rng.random() < _CARELESS_END:
            return self._finish()
        fault = faults[int(rng.integers(len(faults)))]
        return self._run(fault.repair if rng.random() < 0.5 or not fault.looks else fault.looks[-1])

    def _run(self, command: str) -> str | Message:
        return self.format.write("", [call(_RUN, command=command)])

    def _finish(self) -> str | Message:
        return self.format.write("", [call(finish.name)])

    def attacks(self) -> Sequence[Attack]:
        """Return the attacks on the tasks that are played: those on generated tasks, or those on a folder's."""
        return super().attacks() if self.folder is None else (*COMMON, *FOLDER_ATTACKS)

    def cleanup(self) -> None | Awaitable[None]:
        """Remove the containers of a folder's tasks."""
        if self.folder is not None:
            self.folder.runtime.close()
        return super().cleanup()

    def twin(self, task: Task) -> Task | None:
        """Return the question with another right answer; ``None`` for a repair, which no value decides."""
        if self.folder is not None or assignment_of_task(task).question is None:
            return None
        answer = str(task.ground_truth)
        return replace(task, ground_truth=answer[::-1] if answer != answer[::-1] else f"{answer}0")

    def twin_worlds(self, task: Task) -> Sequence[tuple[str, Sequence[Task]]]:
        """Return for each rule that a fault goes against the projects whose page alone states other options of it."""
        return () if self.folder is not None else wait_for(twins_of(task, self.shell))

    def secrets(self) -> Sequence[str]:
        """Return the repairs of the faults, or the solution; the answer to a question is for the policy to find."""
        if self.state.task is None:
            return ()
        if self.folder is not None:
            solution = solution_command(self.folder.task_of(self.state.task))
            return () if solution is None else (solution,)
        return tuple(fault.repair for fault in self.assignment.faults)

    def conversation_score(self) -> Mapping[str, float]:
        """Return the share of the task that is done, from 0 to 1, as it was measured last."""
        return {"progress": self.state.share}


def _limits_of(value: ShellLimits | Mapping[str, Any] | None) -> ShellLimits:
    """Return the limits of the option; plain values can be sent as JSON."""
    if isinstance(value, ShellLimits):
        return value
    names = [field.name for field in fields(ShellLimits)]
    if unknown := sorted({*(value or {})} - {*names}):
        raise ValueError(f"limits has no field {unknown[0]!r}; it has {', '.join(names)}")
    return ShellLimits(**(value or {}))


def _open_folder(
    place: Path,
    runtime: RuntimeName,
    limits: ShellLimits | Mapping[str, Any] | None,
    *,
    network: bool,
    clean_tests: bool,
) -> Folder:
    """Return a folder's tasks, in the sandbox or in containers."""
    if runtime != "sandbox":
        return Folder(place, Containers(runtime, limits, network=network, clean=clean_tests), has_network=network)
    if network or not clean_tests:
        raise ValueError("network and clean_tests are options of containers: give runtime='docker' or 'podman'")
    return Folder(place, Sandboxed(_limits_of(limits)), has_network=False)


READER = Reader(TerminalTasks, LEVELS, verl_row, "verl's columns", "my/terminal", check=assignment_of_task)
