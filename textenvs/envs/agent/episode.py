"""An episode of a program: its calls of the model as observations, the policy's replies as their answers."""

from __future__ import annotations

import asyncio
import inspect
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum
from numbers import Real
from typing import Any

import numpy as np

from ...env import EnvironmentFailure
from ...external import Answer
from ...gateway.channel import Channel, Ended
from ...gateway.conversations import Conversations
from ...gateway.model_call import ModelCall, ModelReply, RequestError
from ...gateway.server import gateway, read_terms
from ...gateway.session import Observation, Session, TooManyContexts
from ...messages import Message, Messages, clean_messages, has_images, system, text_of
from ...reasoning import split_reasoning
from ...task import Task
from ...text import excerpt, plural, quoted
from ...tools.call_format import CallFormat, make_call
from ...tools.formats import make_format
from ...tools.schema import Tool
from ...tools.toolbox import ToolResult
from ...turn import LARGEST, EpisodeMessages
from .program import Program, ProgramError, last_words

#: The stop of an episode whose program failed after a reply of the policy's.
PROGRAM_ERROR = "program_error"

#: Seconds for a program to end, and to post its last rewards, after a call is refused at the limit of turns.
_GRACE_S = 10.0


@dataclass(frozen=True)
class Settings:
    """The settings of an episode that are the environment's options of the same names."""

    name: str
    call_format: str
    tools_in_prompt: bool
    timeout: float
    images: bool
    success: float
    max_assistant_turns: int | None
    max_contexts: int | None
    roles: tuple[str, ...]
    posts: bool
    scorer: Callable[..., Any] | None


@dataclass(frozen=True)
class _Payment:
    """A part of a turn's reward; ``source`` says who gave it."""

    turn: int
    terms: Mapping[str, float]
    source: str


def tools_of(schemas: Sequence[Mapping[str, Any]]) -> tuple[Tool[..., Any], ...]:
    """Return a call's tools, as far as formats need them; ``ValueError`` for a name that cannot be written."""
    return tuple(
        Tool(
            _run_by_the_program,
            name=schema["function"]["name"],
            description=schema["function"]["description"] or schema["function"]["name"],
            parameters=schema["function"]["parameters"],
        )
        for schema in schemas
    )


def _run_by_the_program() -> None:
    raise RuntimeError("tools of a program are run by the program")


class ProgramFault(Exception):
    """A fault of a program, in words: its end without success, its silence, its calls or its rewards."""


class Episode:
    """A program under way, which waits for the policy in its call of the model.

    A program that fails before the policy's first reply says nothing about the policy: ``EnvironmentFailure``. From
    that reply on, the policy may be the cause: a tool can kill its program, a text can break it, a command can make it
    wait. The episode then terminates as :data:`PROGRAM_ERROR`, with what was earned and what a scorer gives. Were it a
    failure or truncated, a policy that is losing could have its episode left out, or be credited with a future. A
    function may raise ``EnvironmentFailure`` itself, where it knows that a service of its own is the cause.
    """

    def __init__(self, start: Callable[[str, Channel], Program], task: Task, settings: Settings) -> None:
        self._task, self._settings = task, settings
        server = gateway()
        self._channel = server.open(
            Session(settings.max_contexts, settings.images, roles=settings.roles, posts=settings.posts)
        )
        try:
            self._program = start(server.url, self._channel)
        except ProgramError as error:
            server.close(self._channel.key)
            raise EnvironmentFailure("tool_failed", str(self._fault(str(error)))) from error
        # Forks are seldom closed.
        self._end = weakref.finalize(self, _close, self._channel.key, self._program)
        self._end.atexit = False
        self._turns = self._calls = 0
        self._roles: list[str] = []  # whose each turn was
        self._posted: list[_Payment] = []
        self._unpaid: list[_Payment] = []  # those of ``_posted`` that no turn has paid
        self._conversations = Conversations()
        try:
            observation = self._next()
            if isinstance(observation, Ended):
                raise self._fault("the program ended before it called the model")
            self._take(observation)
            self.opening = self._conversations.begin(observation, self._shown(observation))
            self._episode = EpisodeMessages.begin(observation.call.messages)
        except BaseException as error:
            self.close()
            if isinstance(error, ProgramFault):
                raise EnvironmentFailure("tool_failed", str(error)) from error
            raise

    @property
    def messages(self) -> Messages:
        """The messages of the call that waits for a reply, as the program sent them."""
        return self._call.messages

    @property
    def role(self) -> str:
        """The role of that call, of several."""
        return self._call.role

    def close(self) -> None:
        self._end()

    def reply(self, message: Message) -> Answer:
        """Answer the current call; return the turn up to the next call, or the end."""
        reply = self._read(message)
        self._turns += 1
        self._roles.append(self.role)
        try:
            return self._answered(message, reply)
        except ProgramFault as fault:
            return self._broken(fault, (*self._episode.messages, reply.message))

    def _answered(self, message: Message, reply: ModelReply) -> Answer:
        """Give the program its reply, and return what it does then; ProgramFault."""
        self._channel.answer(reply)
        following = self._next()
        ended = isinstance(following, Ended)
        spent = self._turns == self._settings.max_assistant_turns
        beside = not isinstance(following, Ended) and following.context != self._context
        if spent and beside and self._settings.scorer is None:
            # The next call may be parallel to the one that was answered, whose reward is then not posted yet. With a
            # scorer, the program stands still, because it would change the files that are judged.
            self._channel.refuse_calls(min(self._settings.timeout, _GRACE_S))
        posted = self._take_posted(last=ended or spent)
        messages = (*self._episode.messages, reply.message)
        if isinstance(following, Ended):
            return self._last(following.result, posted, messages)
        self._take(following)
        turn = self._conversations.turn(message, following, self._shown(following))
        closing = (reply.message,) if turn.keys() & {"context", "role"} else None
        self._episode = self._episode.step(reply.message, following.call.messages, closing)
        score = self._score(messages) if spent and self._settings.scorer is not None else []
        return Answer(**turn, **self._paid([*posted, *score]))

    def _take_posted(self, *, last: bool) -> list[_Payment]:
        posted = [_Payment(*post, "the program posted") for post in self._channel.take_rewards(last=last)]
        self._posted += posted
        self._unpaid += posted
        return posted

    # ------------------------------------------------------------------ calls

    def _next(self) -> Observation | Ended:
        """Wait for the program's next call, or its end."""
        timeout = self._settings.timeout
        try:
            following = self._channel.observe(timeout)
        except TooManyContexts as problem:
            raise self._fault(
                f"a call extends none of its conversations, and it may begin {self._settings.max_contexts}; raise the "
                f"option max_contexts, or leave it out for no limit. The call differs from the last one: {problem}"
            ) from problem
        if following is None:
            raise self._fault(
                f"the program neither called the model nor ended within {timeout:g} s (the option timeout)"
            )
        if isinstance(following, Ended) and isinstance(following.error, EnvironmentFailure):
            raise following.error  # the program's own word that the policy is not the cause
        if isinstance(following, Ended) and following.error is not None:
            raise self._fault(last_words(following.error)) from following.error
        return following

    def _take(self, observation: Observation) -> None:
        """Make a call the current one, with the format of its tools."""
        call, self._context = observation.call, observation.context
        try:
            text = json.dumps(call.tools)
            self.format = format_of(self._settings.call_format, text)
        except (TypeError, ValueError) as error:
            raise self._fault(f"its tools cannot be offered: {error}") from error
        self._call, self.tools = call, text

    def _shown(self, observation: Observation) -> Messages:
        """Return an observation's new messages as the policy's format has them, and its tools before an opening."""
        new = observation.new
        if not observation.begins or observation.source is not None:
            return self._formatted(new)
        if not self._call.tools or not self._settings.tools_in_prompt or not (tools := self.format.instructions()):
            return self._formatted(new)
        if new[0]["role"] != "system":
            return (system(tools), *self._formatted(new))
        return (system(f"{text_of(new[0])}\n\n{tools}"), *self._formatted(new[1:]))

    def _formatted(self, new: Messages) -> Messages:
        """Return messages with calls, and results of calls, in the policy's format."""
        names = {
            call["id"]: call["function"]["name"]
            for message in self._call.messages
            for call in message.get("tool_calls", ())
        }
        visible: list[Message] = []
        results: list[ToolResult] = []
        for message in (*new, None):
            if message is not None and message["role"] == "tool" and not has_images(message):
                key = message["tool_call_id"]
                results.append(ToolResult(make_call(names.get(key, ""), "", key), text_of(message)))
                continue
            visible += self.format.answers(results)
            results = []
            if message is not None:
                visible.append(self._written(message))
        return tuple(visible)

    def _written(self, message: Message) -> Message:
        """Return a reply of the program's history with its calls in the text, where the format can say them."""
        if not message.get("tool_calls"):
            return message
        try:
            reply = self.format.write(text_of(message), message["tool_calls"])
        except ValueError:
            return message
        if not isinstance(reply, str):
            return message
        in_text: Message = {**message, "content": reply}
        del in_text["tool_calls"]
        return in_text

    def _read(self, message: Message) -> ModelReply:
        """Return the policy's reply as the program gets it."""
        call, parsed = self._call, self.format.parse(message, first=self._calls)
        calls, text = parsed.calls, parsed.text
        reasoning = message.get("reasoning_content")
        if reasoning is None:
            reasoning, visible = split_reasoning(text_of(message), calls=self.format.spans)
        else:
            visible = text_of(message).strip()
        if parsed.problems or call.tool_choice == "none":
            calls, text = (), visible  # as it was written: a program's model does so, too
        if not call.parallel_tool_calls:
            calls = calls[:1]
        self._calls += len(parsed.calls)
        cut, sequence = _cut(text, call)
        reply: Message = {"role": "assistant", "content": cut}
        if calls and sequence is None:
            reply["tool_calls"] = calls
        if reasoning:
            reply["reasoning_content"] = reasoning
        reason = "stop_sequence" if sequence is not None else "tool_calls" if "tool_calls" in reply else "stop"
        (clean,) = clean_messages((reply,))  # JSON of a call may name half a character
        return ModelReply(clean, reason, sequence)  # type: ignore[arg-type]

    # ------------------------------------------------------------------ the end

    def _last(self, result: Any, posted: list[_Payment], messages: Messages) -> Answer:
        final = [] if result is None else self._rewards(result, "the program returned")
        if self._settings.scorer is not None:
            final += self._score(messages)
        judges = result is not None or self._settings.scorer is not None
        if not judges and not self._posted:
            raise self._fault(
                "the program ended and gave no reward: return one, post one to /v1/rewards, or give the option scorer"
            )
        turns = self._turns_of(self._settings.roles[0] if self._settings.roles else "")
        payments, places = (final, turns) if judges else (self._posted, turns[-1:])
        worth = fsum(value for payment in payments if payment.turn in places for value in payment.terms.values())
        solved = bool(turns) and worth >= self._settings.success - 1e-9
        return Answer(terminated=True, stop="solved" if solved else "done", **self._paid([*posted, *final]))

    def _broken(self, fault: ProgramFault, messages: Messages) -> Answer:
        """Return the last turn of a program that failed: it pays what was posted, and what the scorer returns."""
        end: dict[str, Any] = {"terminated": True, "stop": PROGRAM_ERROR}
        self._take_posted(last=True)
        try:
            final = [] if self._settings.scorer is None else self._score(messages)
            return Answer(**end, **self._paid([*self._unpaid, *final]), reason=str(fault))
        except ProgramFault as other:  # rewards that cannot be added up, files that cannot be read
            reasons = dict.fromkeys((str(fault), str(other)))
            return Answer(**end, terms={"reward": 0.0}, reason="; ".join(reasons))

    def _paid(self, payments: list[_Payment]) -> dict[str, Any]:
        """Return the arguments ``terms`` and ``earlier`` of the turn that pays these."""
        turns: dict[int, list[_Payment]] = {}
        for payment in payments:
            turns.setdefault(payment.turn, []).append(payment)
        for listed in (*turns.values(), payments):
            for name, value in _sum(listed).items():
                if abs(value) > LARGEST:
                    most = max(listed, key=lambda payment: abs(payment.terms.get(name, 0.0)))
                    raise self._fault(
                        f"its rewards {quoted(name, 60)} add up to {value:g}, and may add up to {LARGEST:g}; scale "
                        f"them ({most.source} {most.terms[name]:g} for turn {most.turn})"
                    )
        sums = {turn: _sum(listed) for turn, listed in turns.items()}
        own = sums.pop(self._turns - 1, {})
        self._unpaid = []
        return {"terms": own, "earlier": sums}

    def _score(self, messages: Messages) -> list[_Payment]:
        scorer = self._settings.scorer
        assert scorer is not None
        try:
            files = self._program.files()
        except OSError as error:  # the policy's commands may have left too much
            raise self._fault(f"its files cannot be given to the scorer: {error}") from error
        try:
            result = scorer(self._task, messages, files)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
        except (Exception, SystemExit) as error:
            reason = f"{self._settings.name}: the scorer raised {type(error).__name__}: {excerpt(str(error))}"
            raise EnvironmentFailure("judge_failed", reason) from error
        try:
            return self._rewards(result, "the scorer returned")
        except ProgramFault as problem:
            raise EnvironmentFailure("judge_failed", str(problem)) from problem

    def _rewards(self, result: Any, source: str) -> list[_Payment]:
        """Return the reward of each turn, or of the last one alone; of several roles, by role."""
        roles = self._settings.roles
        if not roles or isinstance(result, (list, tuple)):
            return self._of_turns(result, source, range(self._turns))
        if not isinstance(result, Mapping) or not result or not all(name in roles for name in result):
            raise self._fault(
                f"{source} {quoted(result, 80)}; with the option roles, rewards are by role, as in "
                f"{{'{roles[0]}': 1.0}} (of {', '.join(roles)}), or a list with one for each reply of the model"
            )
        return [
            payment
            for role, value in result.items()
            for payment in self._of_turns(value, f"{source}, for the role {role},", self._turns_of(role))
        ]

    def _of_turns(self, result: Any, source: str, turns: Sequence[int]) -> list[_Payment]:
        """Return the reward of each of these turns, or of the last one of them."""
        if not isinstance(result, (list, tuple)):
            terms = self._terms(result, source)
            if not turns and any(terms.values()):
                raise self._fault(f"{source} {quoted(result, 80)}, and it had no turn")
            return [_Payment(turn, terms, source) for turn in turns[-1:]]
        if len(result) != len(turns):
            raise self._fault(
                f"{source} {plural(len(result), 'reward')}, and there were {plural(len(turns), 'turn')}: a list has "
                "one for each reply of the model"
            )
        return [
            _Payment(turn, self._terms(value, f"{source}, for turn {number},"), source)
            for number, (turn, value) in enumerate(zip(turns, result, strict=True))
        ]

    def _turns_of(self, role: str) -> list[int]:
        return [turn for turn, name in enumerate(self._roles) if name == role]

    def _terms(self, result: Any, where: str) -> dict[str, float]:
        if isinstance(result, (bool, np.bool_, Real)):
            result = {"reward": result}
        if not isinstance(result, Mapping):
            raise self._fault(f"{where} {quoted(result, 80)}, which is neither a number nor named numbers")
        try:
            return read_terms({name: _plain(value) for name, value in result.items()})
        except (RequestError, OverflowError, TypeError, ValueError) as problem:
            raise self._fault(f"{where} {quoted(result, 80)}: {problem}") from problem

    def _fault(self, reason: str) -> ProgramFault:
        return ProgramFault(f"{self._settings.name}: {reason}")


async def _awaited(value: Any) -> Any:
    return await value


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, (bool, np.bool_, Real)) else value


def _sum(payments: Sequence[_Payment]) -> dict[str, float]:
    """Add rewards, term by term."""
    names = dict.fromkeys(name for payment in payments for name in payment.terms)
    return {name: fsum(payment.terms.get(name, 0.0) for payment in payments) for name in names}


def _cut(text: str, call: ModelCall) -> tuple[str, str | None]:
    """Return the text before the first of the call's stop sequences, and that sequence."""
    places = [(text.find(stop), stop) for stop in call.sampling.stop if stop in text]
    if not places:
        return text, None
    place, stop = min(places)
    return text[:place], stop


def _close(key: str, program: Program) -> None:
    gateway().close(key)
    program.stop()


@lru_cache(maxsize=64)
def format_of(call_format: str, schemas: str) -> CallFormat:
    """Return a format for tools whose schemas are this JSON text."""
    return make_format(call_format, tools_of(json.loads(schemas)))
