"""ReAct's calls: labels at the beginnings of lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..messages import Message, assistant, user
from ..reasoning import Spans
from .call_format import MAX_PROBLEMS, CallFormat, Written, without_tags
from .jsontext import JsonProblem, read_value, skip_space, write_value
from .toolbox import ToolResult

_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation|Final Answer)[ \t]*:", re.MULTILINE)
_HOW = 'Write "Action: " and the tool\'s name, and on the next line "Action Input: " and a JSON object, {...}.'


class React(CallFormat):
    """ReAct (arXiv 2210.03629): an ``Action`` and an ``Action Input`` line for each call, or else a ``Final Answer``.

    ``Action Input`` is a JSON object. Where the tool has one argument and it is text, bare text will do. What follows
    an ``Observation`` of the model's own making is not read, and a ``Final Answer`` beside an action is not either.
    """

    name = "react"

    def instructions(self) -> str:
        tools = "\n".join(
            f"{tool.name}: {tool.description}\n  arguments: {write_value(tool.parameters.get('properties', {}))}"
            for tool in self.tools
        )
        return (
            f"You can use these tools:\n{tools}\n"
            "To use one, write\nThought: why\nAction: the tool's name\nAction Input: its arguments as a JSON object\n"
            "and stop: the result comes as an Observation. When you are done, write\nFinal Answer: the answer"
        )

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        """Read label by label; JSON is read whole, so labels inside it are ignored."""
        words: list[str] = []
        calls: list[Written] = []
        problems: list[str] = []
        answer: str | None = None
        place = 0
        while len(problems) < MAX_PROBLEMS:
            label = _LABEL.search(text, place)
            words.append(text[place : label.start() if label else len(text)])
            if label is None or label[1] == "Observation":
                break
            place = label.end()
            if label[1] == "Final Answer":
                answer = text[place:].strip()
                break
            if label[1] == "Action Input":
                problems.append(f'"Action Input:" has no "Action:" before it. {_HOW}')
                place = _next_label(text, place)
            elif label[1] == "Action":
                try:
                    written, place = self._action(text, place)
                    calls.append(written)
                except JsonProblem as problem:
                    problems.append(f"The action cannot be read: {problem}. {_HOW}")
                    input_label = _LABEL.search(text, place)
                    if input_label and input_label[1] == "Action Input":
                        place = _next_label(text, input_label.end())
        visible = "".join(words).strip()
        if answer is not None and not calls and not problems:
            visible = answer
        return visible, calls, problems

    def spans(self, text: str) -> Spans:
        spans: list[tuple[int, int]] = []
        place = problems = 0
        while problems < MAX_PROBLEMS and (label := _LABEL.search(text, place)):
            place = label.end()
            if label[1] == "Action Input" and text.startswith("{", start := skip_space(text, place)):
                try:
                    place = read_value(text, start)[1]
                    spans.append((start, place))
                except JsonProblem:
                    problems += 1
        return spans

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        visible = self._visible(assistant(text))
        reasoning = text.strip().removesuffix(visible).strip()
        before = f"{reasoning}\n" if reasoning else ""
        if not calls:
            return f"{before}Final Answer: {visible}"
        thought = [f"Thought: {visible}"] if visible else []
        actions = [f"Action: {name}\nAction Input: {without_tags(arguments)}" for name, arguments in calls]
        return before + "\n".join(thought + actions)

    def answers(self, results: Sequence[ToolResult]) -> list[Message]:
        """Return all results in one user message: models that need this format often have no tool role."""
        return [user("\n".join(f"Observation: {result.content}" for result in results))] if results else []

    def _action(self, text: str, place: int) -> tuple[Written, int]:
        name = text[place : _line_end(text, place)].strip()
        if not name:
            raise JsonProblem("the name of the tool is missing")
        label = _LABEL.match(text, _line_after(text, place))
        if label is None or label[1] != "Action Input":
            raise JsonProblem('the line after "Action:" must begin with "Action Input:"')
        start = skip_space(text, label.end())
        if start < len(text) and text[start] == "{":
            value, end = read_value(text, start)
            rest = text[end : _line_end(text, end)].strip()
            if rest:
                raise JsonProblem(f"the JSON is followed by {rest[:20]!r}")
            return Written(name, write_value(value)), end
        end = _next_label(text, label.end())
        bare = text[label.end() : end].strip()
        if bare and (argument := self._only_text_argument(name)) is not None:
            return Written(name, write_value({argument: bare})), end
        raise JsonProblem("the action's input must be a JSON object, {} for no arguments")

    def _only_text_argument(self, name: str) -> str | None:
        for tool in self.tools:
            properties = tool.parameters.get("properties", {})
            if tool.name == name and len(properties) == 1:
                ((argument, schema),) = properties.items()
                return argument if schema.get("type") == "string" else None
        return None


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _line_after(text: str, place: int) -> int:
    return skip_space(text, _line_end(text, place))


def _next_label(text: str, place: int) -> int:
    label = _LABEL.search(text, place)
    return label.start() if label else len(text)
