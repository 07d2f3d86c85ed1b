"""The leaderboard's multi-turn tasks: a user who says one thing after the other, API classes as tools, its own rule."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ...data.sources import Reader, Source, open_source, verl_row
from ...env import EnvironmentFailure, EpisodeState, Turn
from ...messages import Message, system
from ...messages import user as user_message
from ...options import Cost, PositiveInt, checked
from ...python_text import parse_python
from ...sandbox import SandboxFailure
from ...task import Rows, Task, TaskError
from ...tool_env import ToolEnv, ToolState
from ...tools import Tool, ToolError, ToolResult
from ...tools import call as tool_call
from ...tools.call_format import CallFormat
from ...tools.formats import make_format
from ...tools.jsontext import write_value
from ...tools.toolbox import Toolbox
from .attacks import ATTACKS
from .clone import (
    CallStopped,
    Category,
    Entry,
    Play,
    documents,
    entries,
    find_clone,
    in_split,
    parameters_of,
    read_entry,
)

#: The longest result that is shown whole; the leaderboard's longest right one has 31,706 characters.
MAX_CHARS = 40_000
_DONE = "Done."
_CANNOT = "I cannot do this now: no tool that I have does it, or a value that it needs is missing."
_INSTRUCTIONS = (
    "You are an assistant with tools. In each turn, call tools until what the user asks is done. Then answer without a "
    "call, and the user's next message follows. Where no tool does what is asked, or a value that a tool needs is "
    "missing and no tool finds it out, say so instead of calling."
)
_MORE_TOOLS = "I have added functions that you can call, in the same way as the others:\n{}\nWhat about now?"


@dataclass
class BFCLState(ToolState):
    """An episode: the calls that were carried out, by turn, and how the turns were judged."""

    shared: ClassVar[tuple[str, ...]] = (*ToolState.shared, "root", "turns")

    root: Path = field(default_factory=Path)
    turns: tuple[tuple[tuple[str, str], ...], ...] = ((),)  # functions' names and arguments as JSON text
    steps: int = 0  # the replies with calls of this turn
    right: int = 0  # the judged turns that were right
    wrong: tuple[str, ...] = ()  # why each of the others was not: "no_call", "state", "response"
    attempts: int = 0  # the calls of this turn, also those that were not carried out
    needless: int = 0  # the calls beyond as many as a turn's right ones

    def play(self) -> Play:
        assert self.task is not None
        return Play(self.root, _entry(self.task), self.turns)


class BFCL(ToolEnv[BFCLState]):
    """Do what a user asks in several turns, with the tools of the Berkeley Function Calling Leaderboard.

    Tasks, function documentation, API classes and the checker of states and responses are those of a clone of the
    leaderboard, whose code is run in processes of its own. The user's messages are those of the task: the next one
    follows a reply without calls, whether the turn was right or not.

    Each judged turn that is right pays 1 / (number of judged turns), so an episode's rewards sum to the share of right
    turns; it is solved if all are right, which is the leaderboard's score. The terms are ``turns`` and ``needless``.
    Metrics of every turn are, so far, ``turns_right``, ``turns_wrong``, of these ``no_call``, ``wrong_state`` and
    ``wrong_response``, and ``needless``.

    Args:
        tasks: ``None`` for the clone's own tasks; a ``.parquet`` file of rows of this environment, or what else
            :func:`~textenvs.data.sources.open_source` takes.
        data: A clone of https://github.com/ShishirPatil/gorilla, or its folder ``berkeley-function-call-leaderboard``;
            by default what ``BFCL_CLONE`` names, or an installed ``bfcl_eval``. Its code is run.
        category: ``"base"``, ``"miss_func"`` (a function is withheld until a later turn), ``"miss_param"`` (the user
            gives a value a turn late) or ``"long_context"`` (large files and tables).
        split: ``"all"``, ``"train"`` or ``"test"``: by the number in a task's id, one in four is a test task.
        max_steps: How many replies of one turn may call tools; after one more the episode ends
            (``"too_many_steps"``), as on the leaderboard.
        needless: Added for each call of a turn that exceeds the number of its right calls, when it is made; at most 0.
            The leaderboard does not judge this.
        **options: ``call_format``, ``max_calls_per_turn``, ``tools_in_prompt``, ``max_assistant_turns``,
            ``max_user_turns``, ``system_prompt``, ``render_mode``, as in :class:`~textenvs.tool_env.ToolEnv`.

    Raises:
        ValueError: No clone, or one whose classes cannot be imported; the message says what to do.
        TaskError: A task that cannot be played.
    """

    state_type: ClassVar[type[EpisodeState]] = BFCLState
    blocking = True  # a step waits for another process
    own_attacks = ATTACKS
    term_names: ClassVar[tuple[str, ...]] = ("turns", "needless")

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        data: str | None = None,
        category: Category = "base",
        split: Literal["all", "train", "test"] = "all",
        max_steps: PositiveInt = 20,
        needless: Cost = 0.0,
        call_format: str = "hermes",
        max_calls_per_turn: PositiveInt = 16,
        **options: Any,
    ) -> None:
        self.root = find_clone(data)
        own = entries(self.root, category)
        # A row may name no other class: some that the clone has, and these tasks do not use, go to the network.
        self.classes = tuple(sorted({name for entry in own for name in entry.classes}))
        documents(self.root, self.classes)  # what cannot be imported is an error now
        if tasks is None:
            rows = [_task(entry, category) for entry in own if in_split(entry, split)]
            tasks = Rows(f"BFCL multi_turn_{category} ({split})", rows)
        else:
            tasks = open_source(tasks, _READER, level=None, split="train", seed=0)
        self.call_format, self.max_calls_per_turn = call_format, max_calls_per_turn
        self.max_steps, self.needless = max_steps, needless
        super().__init__(tasks, (), call_format=call_format, max_calls_per_turn=max_calls_per_turn, **options)

    # ------------------------------------------------------------------ the tools of the turn

    @property
    def entry(self) -> Entry:
        """The running episode's task, as the leaderboard has it."""
        return _entry(self.task)

    @property
    def toolbox(self) -> Toolbox:
        return super().toolbox if self.state.task is None else self._kit[0]

    @property
    def format(self) -> CallFormat:
        return super().format if self.state.task is None else self._kit[1]

    @property
    def _kit(self) -> tuple[Toolbox, CallFormat]:
        turn, entry = len(self.state.turns) - 1, self.entry
        withheld = frozenset(name for later, names in entry.withheld.items() if later > turn for name in names)
        return _kit(self.root, self.classes, entry.classes, withheld, self.call_format, self.max_calls_per_turn)

    # ------------------------------------------------------------------ the episode

    def opening(self, task: Task) -> Sequence[Message]:
        entry = _entry(task)
        if unknown := set(entry.classes) - set(self.classes):
            raise TaskError(
                f"task {task.key!r} needs {', '.join(sorted(unknown))}; known are {', '.join(self.classes)}"
            )
        self.state.root = self.root
        first = [user_message(message.content) for message in entry.question[0]]
        return (system(_INSTRUCTIONS if self.system_prompt is None else self.system_prompt), *first)

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        state = self.state
        state.steps += 1
        before = state.needless
        # What the policy attempted counts, also where a tool is unknown or a call cannot be read.
        attempts = state.attempts = state.attempts + len(results)
        state.needless += min(len(results), max(0, attempts - len(self.entry.gold[len(state.turns) - 1])))
        stop = "too_many_steps" if state.steps > self.max_steps else None
        return self._turn(self.tool_messages(results), stop, needless=self.needless * (state.needless - before))

    def answer(self, reply: Message) -> Turn:
        """Judge the turn, if it is one that is judged, and let the user say the next thing."""
        state, entry, number = self.state, self.entry, len(self.state.turns) - 1
        earned = 0.0
        if entry.gold[number]:
            try:
                problem = state.play().problem()
            except SandboxFailure as failure:
                raise EnvironmentFailure("judge_failed", str(failure)) from failure
            if problem is None:
                state.right += 1
                earned = 1 / entry.judged
            else:
                state.wrong = (*state.wrong, problem)
        if number + 1 == len(entry.gold):
            return self._turn((), "unsolved" if state.wrong else "solved", turns=earned)
        state.turns, state.steps, state.attempts = (*state.turns, ()), 0, 0
        return self._turn(self._messages(number + 1), None, turns=earned)

    def _messages(self, number: int) -> list[Message]:
        """Return what the user says in a turn, with the functions that are given in it."""
        entry = self.entry
        if names := entry.withheld.get(number):
            schemas = [tool.schema for tool in self.tools if tool.name in names]
            lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
            return [user_message(_MORE_TOOLS.format(lines))]
        return [user_message(message.content) for message in entry.question[number]]

    def _turn(self, messages: Sequence[Message], stop: str | None, **terms: float) -> Turn:
        state = self.state
        return Turn(
            messages,
            terminated=stop is not None,
            stop=stop,
            terms=self.terms(**terms),
            metrics={
                "turns_right": float(state.right),
                "turns_wrong": float(len(state.wrong)),
                "no_call": float(state.wrong.count("no_call")),
                "wrong_state": float(state.wrong.count("state")),
                "wrong_response": float(state.wrong.count("response")),
                "needless": float(state.needless),
            },
        )

    # ------------------------------------------------------------------ what plays and tests it

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Return the next of the turn's right calls, or several where one a reply would be too many replies."""
        calls = self._remaining()
        if not calls:
            return self.format.write(_DONE if self.entry.gold[len(self.state.turns) - 1] else _CANNOT, ())
        size = -(-len(self.entry.gold[len(self.state.turns) - 1]) // self.max_steps)
        return self.format.write("", [tool_call(name, **arguments) for name, arguments in calls[:size]])

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Leave the turn's calls out, or make one with other arguments."""
        calls = self._remaining()
        if not calls or rng.random() < 0.5:
            return self.format.write(_DONE, ())
        name, arguments = calls[0]
        return self.format.write("", [tool_call(name, **{key: _altered(value) for key, value in arguments.items()})])

    def _remaining(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the turn's right calls after those that were made already, in order."""
        try:
            calls = _right_calls(self.root, str(self.task.extra["bfcl"]), len(self.state.turns) - 1)
        except SandboxFailure as failure:
            raise EnvironmentFailure("tool_failed", str(failure)) from failure
        for name, arguments in self.state.turns[-1]:
            if calls and calls[0] == (name, json.loads(arguments)):
                calls = calls[1:]
        return calls

    def twin(self, task: Task) -> Task | None:
        """Return the task with other arguments in the calls that are right; ``None`` where these have none."""
        entry = _entry(task)
        gold = tuple(tuple(_other_call(text) for text in turn) for turn in entry.gold)
        return None if gold == entry.gold else _with_entry(task, entry.model_copy(update={"gold": gold}))

    def secrets(self) -> Sequence[str]:
        """Return the calls that are right, as the leaderboard writes them."""
        if self.state.task is None:
            return ()
        return tuple(text for turn in self.entry.gold for text in turn)


# ------------------------------------------------------------------ tools


class _Function:
    """A tool's function: picklable; its calls are carried out elsewhere, and noted in the state."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, /, bfcl_state: BFCLState, **arguments: Any) -> str:
        # ``bfcl_state`` is a name that no function has for an argument
        before, call = bfcl_state.turns, (self.name, write_value(arguments))
        bfcl_state.turns = (*before[:-1], (*before[-1], call))
        try:
            return bfcl_state.play().result()
        except CallStopped as stopped:  # as if it had not been made: whatever it began is gone with its process
            bfcl_state.turns = before
            raise ToolError(
                f"{self.name} was stopped: with the calls before it, {stopped}. Nothing was changed."
            ) from stopped
        except SandboxFailure as failure:
            bfcl_state.turns = before
            raise EnvironmentFailure("tool_failed", str(failure)) from failure


@functools.lru_cache(maxsize=256)
def _kit(
    root: Path,
    documented: tuple[str, ...],
    classes: tuple[str, ...],
    withheld: frozenset[str],
    call_format: str,
    max_calls: int,
) -> tuple[Toolbox, CallFormat]:
    """Return the tools of some classes without those that are withheld; arguments are passed as they were written."""
    described = documents(root, documented)
    tools = [
        Tool(
            _Function(document["name"]),
            name=document["name"],
            description=document["description"],
            parameters=parameters_of(document),
            max_chars=MAX_CHARS,
        )
        for name in classes
        for document in described[name]
        if document["name"] not in withheld
    ]
    return Toolbox(tools, max_calls_per_turn=max_calls), make_format(call_format, tools)


# ------------------------------------------------------------------ rows


def _entry(task: Task) -> Entry:
    return read_entry(str(task.extra.get("bfcl")))


@functools.lru_cache(maxsize=4096)
def _right_calls(root: Path, entry: str, turn: int) -> list[tuple[str, dict[str, Any]]]:
    return Play(root, read_entry(entry), ()).named_calls(turn)


_READER = Reader(Rows, (), verl_row, "verl's columns", "my/bfcl-rows", check=_entry)


def _task(entry: Entry, category: str) -> Task:
    first = tuple(user_message(message.content) for message in entry.question[0])
    task = Task(entry.id, f"bfcl/multi_turn_{category}", first, "", ability="tools")
    return _with_entry(task, entry)


def _with_entry(task: Task, entry: Entry) -> Task:
    extra = {**task.extra, "bfcl": entry.model_dump_json()}
    return replace(task, ground_truth=json.dumps(entry.gold, ensure_ascii=False), extra=extra)


def _other_call(text: str) -> str:
    """Return a call of the same function with other texts and numbers as arguments."""
    call = parse_python(text, "eval").body
    constants = [node for node in ast.walk(call) if isinstance(node, ast.Constant)]
    changed = [_altered(node.value) for node in constants]
    if changed == [node.value for node in constants]:
        return text
    for node, value in zip(constants, changed, strict=True):
        node.value = value
    return ast.unparse(call)


def _altered(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return f"{value}0"
    return [_altered(item) for item in value] if isinstance(value, list) else value
