"""Agent World Model's tasks: a request, the tools of a generated world, and its verifier at the end."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...data.sources import Reader, Source, open_source, verl_row
from ...env import EnvironmentFailure, EpisodeState, Turn
from ...messages import Message, system
from ...messages import user as user_message
from ...options import PositiveInt, checked
from ...sandbox import Sandbox, SandboxFailure
from ...task import Rows, Task, TaskError
from ...tool_env import ToolEnv, ToolState
from ...tools import Tool, ToolError, ToolResult
from ...tools.call_format import CallFormat
from ...tools.formats import make_format
from ...tools.jsontext import write_value
from ...tools.toolbox import Toolbox
from .attacks import ATTACKS
from .folder import Box, CallStopped, Item, find_data, in_split, items, normalized

#: The longest result that is shown whole.
MAX_CHARS = 20_000
#: The most that a verifier reads of an answer: it looks for numbers and names, and an answer must not be a list of all.
ANSWER_CHARS, ANSWER_NUMBERS = 4000, 100
_INSTRUCTIONS = (
    "You act for a user of an application, who is signed in. Do what the user asks with the tools of the application. "
    "When it is done, answer without a call: say what was done, or what the user wanted to know. That ends the task."
)


@dataclass
class AWMState(ToolState):
    """An episode: the calls that were carried out. The world's database follows from them."""

    shared: ClassVar[tuple[str, ...]] = (*ToolState.shared, "box", "calls")

    box: Box = field(default_factory=lambda: Box(Path(), ""))
    calls: tuple[tuple[str, str], ...] = ()  # tools' names and arguments as JSON text


class AWM(ToolEnv[AWMState]):
    """Do a task in one of Agent World Model's 1,000 generated worlds (arXiv 2602.10090).

    A world is an application over an SQLite database, whose operations are the tools. Its code, the rows of its
    database and the verifiers are those of AWM's data folder, and run in the sandbox, where the clock stands still. An
    answer without calls ends the episode; the task's code-based verifier then compares the databases of the beginning
    and of the end, and reads the answer, unless it has more than 4,000 characters or 100 numbers. The reward is 1 where
    it says ``"complete"``, else 0, at the end; its only term is ``complete``. The metric ``verifier_problem`` is 1
    where the verifier raised an exception, which pays 0.

    Args:
        tasks: ``None`` for the folder's own tasks; a ``.parquet`` file of rows of this environment, or what else
            :func:`~textenvs.data.sources.open_source` takes.
        data: AWM's data folder; by default what ``AWM_DATA_DIR`` names. Its code is run in the sandbox.
        worlds: Names of worlds, for their tasks alone; by default all.
        split: ``"all"``, ``"train"`` or ``"test"``: one in four worlds is a test world, with all its tasks.
        packages: What the worlds may import: ``"installed"`` for this interpreter's packages, or a folder with fastapi
            and sqlalchemy in it.
        max_assistant_turns: How many replies there are, with and without calls; ``None`` for no limit.
        **options: ``call_format``, ``max_calls_per_turn``, ``tools_in_prompt``, ``max_user_turns``, ``system_prompt``,
            ``render_mode``, as in :class:`~textenvs.tool_env.ToolEnv`.

    Raises:
        ValueError: No data folder, or an unknown world; the message says what to do.
        SandboxUnavailable: No sandbox holds on this machine.
        TaskError: A task that cannot be played.
    """

    state_type: ClassVar[type[EpisodeState]] = AWMState
    blocking = True  # a step waits for another process
    own_attacks = ATTACKS
    term_names: ClassVar[tuple[str, ...]] = ("complete",)

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        data: str | None = None,
        worlds: Sequence[str] | None = None,
        split: Literal["all", "train", "test"] = "all",
        packages: str = "installed",
        call_format: str = "hermes",
        max_calls_per_turn: PositiveInt = 8,
        max_assistant_turns: PositiveInt | None = 40,
        **options: Any,
    ) -> None:
        Sandbox(packages=packages)  # that there is none is an error now
        self.box = Box(find_data(data), packages)
        published = items(self.box.root).values()
        if isinstance(worlds, str):
            raise ValueError(f"worlds must be a list of names, not {worlds!r}")
        chosen = None if worlds is None else {normalized(name) for name in worlds}
        if unknown := sorted((chosen or set()) - {item.world for item in published}):
            raise ValueError(f"worlds: {self.box.root} has no world {unknown[0]!r}, or no verifier of its tasks")
        if tasks is None:
            own = [
                item for item in published if in_split(item.world, split) and (chosen is None or item.world in chosen)
            ]
            tasks = Rows(f"AWM ({split})", map(_task, own))
        else:
            tasks = open_source(tasks, _READER, level=None, split="train", seed=0)
        self.call_format, self.max_calls_per_turn = call_format, max_calls_per_turn
        super().__init__(
            tasks,
            (),
            call_format=call_format,
            max_calls_per_turn=max_calls_per_turn,
            max_assistant_turns=max_assistant_turns,
            **options,
        )

    # ------------------------------------------------------------------ the tools of the episode's world

    @property
    def item(self) -> Item:
        """The running episode's task, as AWM has it."""
        return self._item(self.task)

    def _item(self, task: Task) -> Item:
        item = items(self.box.root).get(str(task.extra.get("awm")))
        if item is None:
            raise TaskError(f"task {task.key!r} names {task.extra.get('awm')!r}, which is no task of {self.box.root}")
        return item

    @property
    def toolbox(self) -> Toolbox:
        return super().toolbox if self.state.task is None else self._kit[0]

    @property
    def format(self) -> CallFormat:
        return super().format if self.state.task is None else self._kit[1]

    @property
    def _kit(self) -> tuple[Toolbox, CallFormat]:
        return _kit(self.box, self.item.world, self.call_format, self.max_calls_per_turn)

    # ------------------------------------------------------------------ the episode

    def opening(self, task: Task) -> Sequence[Message]:
        item = self._item(task)
        self.state.box = self.box
        try:
            self.box.tools(item.world)
        except SandboxFailure as failure:
            needs = "the worlds need fastapi and sqlalchemy, in packages=..."
            raise EnvironmentFailure("tool_failed", f"{failure} ({needs})") from failure
        instructions = _INSTRUCTIONS if self.system_prompt is None else self.system_prompt
        return (system(instructions), user_message(item.text))

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        return Turn(self.tool_messages(results), terms=self.terms(), metrics={"verifier_problem": 0.0})

    def answer(self, reply: Message) -> Turn:
        """Let the verifier judge the databases and this answer."""
        try:
            verdict = self.box.verify(self.item, self.state.calls, _readable(self.visible_reply(reply)))
        except SandboxFailure as failure:
            raise EnvironmentFailure("judge_failed", str(failure)) from failure
        complete = bool(verdict["complete"])
        return Turn(
            terminated=True,
            stop="solved" if complete else "unsolved",
            terms=self.terms(complete=float(complete)),
            metrics={"verifier_problem": float("problem" in verdict)},
        )

    def secrets(self) -> Sequence[str]:
        """Return the code of the task's verifier."""
        return () if self.state.task is None else (self.item.verifier,)


def _readable(words: str) -> str:
    """Return an answer as the verifier reads it: empty where it is too long, or has too many numbers."""
    too_long = len(words) > ANSWER_CHARS or len(re.findall(r"\d+", words)) > ANSWER_NUMBERS
    return "" if too_long else words


# ------------------------------------------------------------------ tools


class _Function:
    """A tool's function: picklable; its calls are carried out elsewhere, and noted in the state."""

    def __init__(self, world: str, name: str) -> None:
        self.world, self.name = world, name

    def __call__(self, /, awm_state: AWMState, **arguments: Any) -> str:
        # ``awm_state`` is a name that no operation has for an argument
        calls = (*awm_state.calls, (self.name, write_value(arguments)))
        try:
            status, text = awm_state.box.call(self.world, calls)
        except CallStopped as stopped:  # as if it had not been made: whatever it began is gone with its process
            raise ToolError(
                f"{self.name} was stopped: with the calls before it, {stopped}. Nothing was changed."
            ) from stopped
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        awm_state.calls = calls
        if status >= 300:
            raise ToolError(f"Status {status}: {text}")
        return text


@functools.lru_cache(maxsize=256)
def _kit(box: Box, world: str, call_format: str, max_calls: int) -> tuple[Toolbox, CallFormat]:
    """Return the tools of a world; its application checks the arguments."""
    tools = [
        Tool(
            _Function(world, described["name"]),
            name=described["name"],
            description=described["description"],
            parameters=described["parameters"],
            max_chars=MAX_CHARS,
        )
        for described in box.tools(world)
    ]
    return Toolbox(tools, max_calls_per_turn=max_calls), make_format(call_format, tools)


# ------------------------------------------------------------------ rows


def _named(task: Task) -> None:
    if not isinstance(task.extra.get("awm"), str):
        raise TaskError("extra_info.awm must name a task of AWM, such as 'e_commerce_33/0'")


_READER = Reader(Rows, (), verl_row, "verl's columns", "my/awm-rows", check=_named)


def _task(item: Item) -> Task:
    prompt = (user_message(item.text),)
    # The verifier stays in the folder: its code is not for a row to choose.
    truth = f"verifier of {item.key}"
    return Task(item.key, f"awm/{item.world}", prompt, truth, ability="tools", extra={"awm": item.key})
