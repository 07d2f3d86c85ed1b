"""``textenvs play``: a person in the assistant's place, in the terminal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ..chat.errors import ChatError
from ..env import EnvironmentFailure, TextEnv
from ..evaluate.baselines import has_script
from ..messages import FunctionCall, Message, assistant, transcript
from ..text import plural, printable
from ..tool_env import ToolEnv
from ..turn import messages_of_turn, own_terms
from .arguments import COMMANDS
from .common import CommandError, open_environment, parse_options

#: Begins and ends a reply of several lines.
FENCE = '"""'

HELP: str = COMMANDS["play"]["epilog"]


def run(arguments: argparse.Namespace) -> int:
    with suppress(ImportError):
        import readline  # noqa: F401  line editing and history in input()
    env = open_environment(arguments.id, parse_options(arguments.options))
    try:
        Game(env, task_index=arguments.task_index).play(arguments.seed)
    except (EOFError, KeyboardInterrupt):
        print()
    finally:
        env.close()
    return 0


class Game:
    """A person's episodes in one environment; ``read`` shows a prompt and returns a line, or raises ``EOFError``."""

    def __init__(self, env: TextEnv[Any], *, task_index: int | None = None, read: Callable[[str], str] = input) -> None:
        self.env = env
        self.options = None if task_index is None else {"task_index": task_index}
        self._read = read
        self._before: list[tuple[Any, float, int]] = []  # what undo goes back to: snapshot, return, messages shown
        self._return = 0.0
        self._shown = 0
        self._roles: list[str] = []  # of several: whose each reply was
        self._calls = 0

    def play(self, seed: int | None) -> None:
        commands: dict[str, Callable[[str], None]] = {
            ":next": self._next,
            ":call": self._call,
            ":undo": self._undo,
            ":hint": self._hint,
            ":tools": self._tools,
            ":help": lambda rest: _say(HELP),
        }
        self._open(seed)
        while True:
            line = self._read_reply()
            command, _, rest = line.strip().partition(" ")
            if not command.startswith(":") or command.startswith("::"):
                self._step(line.replace("::", ":", 1) if command.startswith("::") else line)
            elif command == ":quit":
                return
            elif command in commands:
                commands[command](rest)
            else:
                _say(f"There is no {command}; :help lists the commands.")

    def _open(self, seed: int | None) -> None:
        try:
            _, info = self.env.reset(seed=seed, options=self.options)
        except (ValueError, ImportError, ChatError, ConnectionError, EnvironmentFailure) as error:
            raise CommandError(f"the episode cannot be opened: {error}", 2) from error
        self._before, self._return, self._shown, self._roles = [], 0.0, 0, []
        _say(f"Type a reply, or :help.\n--- task {info['task_key']} ---")
        if of_role := self._of_role():
            _say(f"[a context{of_role} begins]")
        if getattr(self.env, "tool_schemas", ()):
            self._list_tools()
        self._show_new()

    def _next(self, rest: str) -> None:
        before = self.env.snapshot()
        try:
            self._open(None)
        except CommandError as error:  # the server is away, say; the episode can continue
            self.env.restore(before)
            _say(f"There is no other episode: {error}")

    def _read_reply(self) -> str:
        """One line, or the lines between two fences."""
        line = ""
        while not line.strip():
            line = self._read("over> " if self.env.state.done else "> ")
        if not line.startswith(FENCE):
            return line
        lines = [line[len(FENCE) :]]
        while not lines[-1].rstrip().endswith(FENCE):
            lines.append(self._read("... "))
        lines[-1] = lines[-1].rstrip()[: -len(FENCE)]
        return "\n".join(lines).removeprefix("\n").removesuffix("\n")

    def _step(self, action: str | Message) -> None:
        if self.env.state.done:
            _say("The episode is over: :next, :undo or :quit.")
            return
        before = self.env.snapshot(), self._return, self._shown
        conversation, contexts = self.env.state.messages, self.env.state.contexts
        try:
            _, reward, terminated, truncated, info = self.env.step(action)
        except (ChatError, ImportError, ConnectionError) as error:  # a user, a judge or a server that cannot be asked
            _say(f"The reply was not taken: {error}")
            return
        self._before.append(before)
        self._return += reward
        self._shown += 1  # the person knows what they typed
        added, context = messages_of_turn(self.env.state, len(conversation), contexts)
        if context is not None:
            if added[1:]:
                _say(transcript(added[1:]))
            # That which continues is left no more.
            goes_on = [old for old in contexts if not any(old is other for other in self.env.state.contexts)]
            self._shown = len(goes_on[0]) if goes_on else 0
            what = f"a context{self._of_role()}"
            _say(f"[{what} of {plural(self._shown, 'message')} continues]" if self._shown else f"[{what} begins]")
        self._show_new()
        metrics = "".join(f"; {name} {value:g}" for name, value in info["metrics"].items())
        _say(f"[reward {reward:+g} = {_terms(info['terms'])}{metrics}]")
        if len(self.env.roles) > 1:
            self._roles = [*self._roles[: info["assistant_turns"] - 1], before[0].role]
            for number, terms in [*info.get("earlier", {}).items(), (len(self._roles) - 1, own_terms(info))]:
                if any(terms.values()):
                    _say(f"  {self._roles[number]}, reply {number + 1}: {_terms(terms)}")
        if terminated or truncated:
            how = "terminated" if terminated else "truncated"
            reason = info.get("failure" if info["failed"] else "reason")
            why = "" if reason is None else f" ({reason})"
            _say(f"--- {how}: {info['stop']}{why}; return {self._return:+g} ---\n:next, :undo or :quit")

    def _of_role(self) -> str:
        return f" of {self.env.state.role}" if len(self.env.roles) > 1 else ""

    def _call(self, words: str) -> None:
        name, _, arguments = words.strip().partition(" ")
        if not name:
            _say(':call needs the tool\'s name and its arguments: :call search {"query": "Rome"}')
            return
        self._calls += 1
        function: FunctionCall = {"name": name, "arguments": arguments or "{}"}
        self._step(assistant("", [{"id": f"typed_{self._calls}", "type": "function", "function": function}]))

    def _undo(self, rest: str) -> None:
        if not self._before:
            _say("There is nothing to take back.")
            return
        snapshot, self._return, self._shown = self._before.pop()
        self.env.restore(snapshot)
        _say(f"Taken back. Return so far {self._return:+g}. The last message was:")
        _say(transcript(self.env.state.messages[-1:]))

    def _hint(self, rest: str) -> None:
        if self.env.state.done:
            _say("The episode is over: :next, :undo or :quit.")
        elif not has_script(self.env, "expert"):
            _say("This environment has no scripted expert.")
        else:
            try:
                hint = self.env.demonstration(np.random.default_rng(0))
            except (NotImplementedError, ConnectionError) as error:  # not with these options, or not from this server
                _say(f"There is no hint: {error}")
                return
            _say(hint if isinstance(hint, str) else transcript([hint]))

    def _tools(self, rest: str = "") -> None:
        schemas = getattr(self.env, "tool_schemas", ())
        for schema in schemas:
            function = schema["function"]
            _say(f"{function['name']}: {function.get('description', '')}")
            _say(f"  {json.dumps(function.get('parameters', {}), ensure_ascii=False)}")
        if not schemas:
            _say("This environment has no tools.")

    def _list_tools(self) -> None:
        """List the tools, one a line; ``:tools`` shows the schemas."""
        for schema in getattr(self.env, "tool_schemas", ()):
            function = schema["function"]
            parameters = function.get("parameters", {})
            needed = parameters.get("required", ())
            names = [name if name in needed else f"{name}=..." for name in parameters.get("properties", {})]
            summary = (function.get("description") or "").strip().partition("\n")[0]
            _say(f"  {function['name']}({', '.join(names)})  {summary}".rstrip())
        _say("Call one with  :call NAME {JSON}; :tools shows their schemas.")

    def _show_new(self) -> None:
        messages = self.env.state.messages
        if new := messages[self._shown :]:
            text = transcript(new)
            # The system message tells the policy what is listed above, at length.
            if isinstance(self.env, ToolEnv) and (instructions := self.env.tool_instructions()):
                text = text.replace(instructions, "[how to call the tools: :tools]")
            _say(text)
        self._shown = len(messages)


def _terms(terms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:+g}" for name, value in terms.items())


def _say(text: str) -> None:
    """Print what may be the words of a model, a server or a file: they must not drive the terminal."""
    print(printable(text))
