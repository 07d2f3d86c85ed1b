"""A text environment whose policy may call tools (docs/tools.md).

An author gives the tools and two hooks::

    class Sums(ToolEnv):
        def __init__(self, **options):
            super().__init__(Problems(), [add, multiply], **options)

        def answer(self, reply):                     # the reply calls nothing: a final answer, or words to the user
            solved = self.visible_reply(reply) == self.state.task.ground_truth
            return Turn(terms={"correct": float(solved)}, terminated=True, stop="solved" if solved else "wrong")

        def after_tools(self, reply, results):       # only where calls have a reward or can end the episode
            ...
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from .env import EpisodeState, ResetResult, TextEnv, Turn
from .event_loop import settle
from .messages import Message, Messages, assistant, check_conversation, system, text_of
from .options import checked
from .reasoning import Spans
from .task import Task, TaskSet
from .tools.call_format import CallFormat, Parsed, make_call
from .tools.formats import make_format
from .tools.schema import Closable, Tool
from .tools.toolbox import Toolbox, ToolResult


@dataclass
class ToolState(EpisodeState):
    """The state of an episode with tools; subclass it for what the tools remember."""

    calls_made: int = 0  # calls in all, also those that could not be read or run
    tool_errors: int = 0  # those among them that did not return a result


ToolStateT = TypeVar("ToolStateT", bound=ToolState)


class ToolEnv(TextEnv[ToolStateT]):
    """Base class of environments with tools; see the module's docstring.

    Every turn's metrics have ``tool_calls`` and ``tool_errors``, the numbers of that turn.

    Args:
        tasks: The task set to draw from, or a list of tasks.
        tools: The tools, with names that differ.
        call_format: How calls are written: ``"hermes"``, ``"llama3"``, ``"qwen3-coder"``, ``"mistral"``, ``"react"``,
            or ``"native"`` (only as ``tool_calls`` of a message). A message with ``tool_calls`` is understood in any.
        max_calls_per_turn: How many calls of one reply are run; the policy is told that the rest were not.
        max_concurrency: How many of them run at the same time.
        tools_in_prompt: Whether the system prompt describes the tools. Where it does not, the model's own chat template
            must (``apply_chat_template(..., tools=env.tools_not_in_prompt)``); our trainers see to that, or refuse.
        **options: ``max_assistant_turns``, ``max_user_turns``, ``system_prompt``, ``render_mode``, as in
            :class:`~textenvs.env.TextEnv`. With ``"react"``, results are user messages and count as user turns.
    """

    state_type: ClassVar[type[EpisodeState]] = ToolState
    #: The names of the reward's terms: the same on every turn.
    term_names: ClassVar[tuple[str, ...]] = ("reward",)

    @checked
    def __init__(
        self,
        tasks: TaskSet | Sequence[Task],
        tools: Sequence[Tool[..., Any]],
        *,
        call_format: str = "hermes",
        max_calls_per_turn: int = 8,
        max_concurrency: int = 8,
        tools_in_prompt: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(tasks, **options)
        self._toolbox = Toolbox(tools, max_calls_per_turn=max_calls_per_turn, max_concurrency=max_concurrency)
        self._format = make_format(call_format, self._toolbox.tools)
        self.tools_in_prompt = tools_in_prompt
        for tool in self.tools:
            if tool.state_type is not None and not issubclass(self.state_type, tool.state_type):
                raise ValueError(
                    f"the tool {tool.name!r} is given a {tool.state_type.__name__}, but the state of "
                    f"{type(self).__name__} is a {self.state_type.__name__}; set state_type to a subclass of it"
                )

    @property
    def toolbox(self) -> Toolbox:
        """The tools that are called. A family with other tools in every episode overrides this and the next two."""
        return self._toolbox

    @property
    def format(self) -> CallFormat:
        """The format of calls."""
        return self._format

    def tool_instructions(self) -> str:
        """Return what the system prompt says of the tools, and how to call them; empty where a template says it."""
        return self.format.instructions()

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        return self.toolbox.tools

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self.tools]

    @property
    def tools_not_in_prompt(self) -> list[dict[str, Any]]:
        """The schemas that a policy must be given because the conversation does not have them; mostly none."""
        return [] if self.tools_in_prompt and self.tool_instructions() else self.tool_schemas

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn | Awaitable[Turn]:
        """Return the turn after a reply that called tools; by default their results, and no reward.

        ``results`` are those of each call, in order; last, those that could not be read (``error="bad_call"``).
        """
        return Turn(self.tool_messages(results), terms=self.terms())

    def answer(self, reply: Message) -> Turn | Awaitable[Turn]:
        """Judge and answer a reply that calls nothing. :meth:`visible_reply` has its words."""
        raise NotImplementedError(f"{type(self).__name__} must define answer(reply) -> Turn")

    def cleanup(self) -> None | Awaitable[None]:
        """Close what the tools hold open. A family that overrides this does so too."""
        owners = {id(tool.owner): tool.owner for tool in self.tools if tool.owner is not None}
        return _close(list(owners.values())) if owners else None

    def talk(self) -> Messages:
        """Return the user's side of the conversation: no calls, no results, no text beside a call."""
        talk: list[Message] = []
        reached = True  # whether the assistant's last message reached the user
        for message in self.state.messages:
            if message["role"] == "assistant":
                parsed = self.format.parse(message)
                if reached := not parsed.calls and not parsed.problems:
                    talk.append(assistant(parsed.text))
            elif message["role"] == "user" and reached:  # some formats bring results back as messages of the user
                talk.append(message)
        return tuple(talk)

    def visible_reply(self, reply: Message) -> str:
        """Return the text of a reply: without private reasoning, calls, and the format's own marks."""
        return self.format.parse(reply).text

    def terms(self, **values: float) -> dict[str, float]:
        """Return all terms of the reward: ``values``, and 0 for the rest of ``term_names``."""
        if unknown := set(values) - set(self.term_names):
            raise ValueError(f"{type(self).__name__} has no reward term {sorted(unknown)}; it has {self.term_names}")
        return {name: float(values.get(name, 0.0)) for name in self.term_names}

    def tool_messages(self, results: Sequence[ToolResult]) -> list[Message]:
        return self.format.answers(results)

    def respond(self, reply: Message) -> Turn | Awaitable[Turn]:
        parsed = self.format.parse(reply, first=self.state.calls_made)
        if not parsed.calls and not parsed.problems:
            return _counted(self.answer(reply), ())
        if self.toolbox.needs_loop(parsed.calls):
            return self._run_later(reply, parsed)
        return self._after(reply, parsed, self.toolbox.run_now(parsed.calls, self.state))

    def _call_spans(self, text: str) -> Spans:
        return self.format.spans(text)

    async def _run_later(self, reply: Message, parsed: Parsed) -> Turn:
        results = await self.toolbox.run(parsed.calls, self.state)
        return await settle(self._after(reply, parsed, results))

    def _after(self, reply: Message, parsed: Parsed, results: Sequence[ToolResult]) -> Turn | Awaitable[Turn]:
        number = self.state.calls_made + len(results)
        unread = [
            ToolResult(make_call("", "", self.format.call_id(number + i)), problem, "bad_call")
            for i, problem in enumerate(parsed.problems)
        ]
        everything = (*results, *unread)
        self.state.calls_made += len(everything)
        self.state.tool_errors += sum(not result.ok for result in everything)
        return _counted(self.after_tools(reply, everything), everything)

    def _open(self, opening: Sequence[Message]) -> ResetResult:
        messages = check_conversation(opening, f"{type(self).__name__}.opening")
        if self.tools and self.tools_in_prompt and messages and (tools := self.tool_instructions()):
            if messages[0]["role"] == "system":
                first, messages = text_of(messages[0]), messages[1:]
            else:
                first = self.system_prompt or ""
            messages = (system(f"{first}\n\n{tools}" if first else tools), *messages)
        return super()._open(messages)


async def _close(owners: Sequence[Closable]) -> None:
    for owner in owners:
        await owner.aclose()


def _counted(turn: Any, results: Sequence[ToolResult]) -> Any:
    """Return the turn, at once or when awaited, with counts of calls; the base class refuses all else."""
    if inspect.isawaitable(turn):
        return _counted_later(turn, results)
    if not isinstance(turn, Turn):
        return turn
    counts = {"tool_calls": len(results), "tool_errors": sum(not result.ok for result in results)}
    return replace(turn, metrics={**counts, **turn.metrics})


async def _counted_later(turn: Awaitable[Turn], results: Sequence[ToolResult]) -> Any:
    return _counted(await turn, results)
