"""A simulated user played by a language model.

The model sees the conversation from the user's side: what the user said are *its* (assistant) messages, its opening
words among them. A reply that cannot be used is requested again, and after ``tries`` the episode ends as
``user_failed``: never an empty message, never a made-up one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..chat.clients import client_for
from ..chat.errors import ChatFailure, PromptTooLong
from ..chat.local import is_folder
from ..chat.spec import ChatSpec, SpecLike
from ..chat.structured import ask, parse_reply
from ..env import EnvironmentFailure
from ..messages import Message, Messages, assistant, system, text_of, user, visible_conversation
from ..options import PositiveInt, checked
from ..text import load_yaml
from ..words import spellings
from .base import UserTurn

PROMPTS: Mapping[str, str] = load_yaml(__package__, "prompts.yaml")

#: Words in a row that count as one copied piece of a goal. Fewer would find what any two texts on one subject share.
#: (Of scripts without spaces: characters.)
PIECE = 4
#: Goals of fewer pieces can hardly be paraphrased, and are not guarded.
FEWEST_PIECES = 8

#: The client that replaces the service of a user's ``model`` in this context (:mod:`textenvs.two_sides`).
instead: ContextVar[Any] = ContextVar("instead of the user's service", default=None)

# Control tokens spelt out: <|im_start|>, <｜User｜>, <s>, </s>, <bos>, <start_of_turn>, <turn|>, [INST], [/TOOL_CALLS],
# [gMASK], [|endofturn|]. A service does not say which ones its tokenizer has, so they are told by their shape.
_CONTROL = re.compile(r"<(?=[|\uff5c]|[^\s<>]{1,64}>)|\[(?=\||/?[a-z]?[A-Z][A-Z_]+\])")


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid")

    thought: str = Field(description="what you think of the assistant's last message")
    message: str = Field(description="what you say to the assistant")


class _EndingReply(_Reply):
    state: Literal["goes_on", "satisfied", "gave_up"] = Field(description="whether you stay in the conversation")


@checked
@dataclass(frozen=True)
class LLMUser:
    """A user played by the model that ``model`` names. Plain data: it can be copied, pickled and shared.

    Where ``model`` is a mapping, options of this class among it (``format``, ``tries``, ...) come before the arguments.

    Its metrics are ``user_tries`` (how often the model was asked), ``user_refused`` (how many of its messages told too
    much or stated a false value, and were not said) and ``user_leak`` (the share of the goal that it has given away
    word by word so far, in all its messages together).
    """

    model: SpecLike
    persona: str = "An ordinary person who needs help."
    manner: str = PROMPTS["manner"]  # how it writes
    #: "short" is for models fitted to such dialogues (:mod:`textenvs.users.dialogues`): nothing but the goal, and the
    #: manner of the episode in the place of ``manner``; no persona.
    prompt: Literal["rules", "short"] = "rules"
    #: Whether it may leave by itself: ``why`` is then "satisfied" or "gave_up" ("user_left" with ``format="text"``).
    may_end: bool = True
    #: "text" is for models that do not keep to JSON, and the default for a model that is a folder.
    format: Literal["json", "text"] | None = None
    end_marker: str = "[[END]]"  # what ends the conversation in ``format="text"``
    #: The largest share of the goal, in runs of four words, that all messages of a conversation may copy together; a
    #: message that goes beyond it is asked for again. Goals of fewer than 11 words are not guarded.
    leak_limit: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    tries: PositiveInt = 3  # how often the model is asked for one message, at most
    #: Says what is wrong with a message that must not be said, in words that quote nothing of it; else ``None``.
    guard: Callable[[str], str | None] | None = field(default=None, repr=False, compare=False)
    spec: ChatSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.model, Mapping) and _OWN & self.model.keys():
            options = {name: getattr(self, name) for name in _OWN}
            for name, value in vars(type(self).of(self.model, **options)).items():
                object.__setattr__(self, name, value)
            return
        object.__setattr__(self, "spec", ChatSpec.of(self.model))
        if self.format is None:
            object.__setattr__(self, "format", "text" if is_folder(self.spec.model) else "json")
        if not self.end_marker.strip():
            raise ValueError("end_marker must not be empty")

    @classmethod
    def of(cls, spec: SpecLike, **defaults: Any) -> Self:
        """Build the user that an environment's option ``user`` describes.

        A mapping has options of the spec (``model``, ``base_url``, ...) and of this class (``format``, ``tries``, ...).
        """
        if not isinstance(spec, Mapping):
            return cls(spec, **defaults)
        own = {name: spec[name] for name in _OWN & spec.keys()}
        return cls({name: value for name, value in spec.items() if name not in own}, **{**defaults, **own})

    def briefed(self, manner: str, guard: Callable[[str], str | None] | None = None) -> Self:
        """Return this user for one message: instructed to write in another manner as well, and checked by ``guard``."""
        if self.prompt == "rules":
            manner = f"{self.manner.strip()} {manner}".strip()
        return replace(self, manner=manner, guard=guard)

    def dialogue(self, talk: Messages, goal: str, *, leaves: bool) -> list[Message]:
        """Return a conversation from this user's side, to be imitated; ``leaves`` says that its last words end it.

        It is in text, whatever :attr:`format` says. Words of the assistant's that no user answers are left out.
        """
        seen = visible_conversation(talk)
        while seen and seen[-1]["role"] != "user":
            seen = seen[:-1]
        messages = self._request(seen, goal)
        if leaves:
            messages[-1] = assistant(f"{text_of(messages[-1])} {self.end_marker}")
        return messages

    async def speak(self, conversation: Messages, goal: str, rng: np.random.Generator) -> UserTurn:
        """Answer the assistant's last words, or open the conversation when it is empty.

        ``rng`` picks the sample, so that equal episodes ask for the same answer, and their siblings for others.

        Raises:
            EnvironmentFailure: ``"user_failed"``: no usable message after all tries; ``"user_no_room"``: the
                conversation does not fit the user's context.
            BudgetExceeded, CacheError: For the run to stop at.
        """
        if not goal.strip():
            raise ValueError("LLMUser.speak: the goal is empty; a user without one has nothing to say")
        seen = visible_conversation(conversation)
        if seen and seen[-1]["role"] == "user":
            raise ValueError("LLMUser.speak: it is the assistant's turn")
        before, refused = leaked(seen, goal), 0

        def read(text: str) -> UserTurn:
            nonlocal refused
            words, why = self._read_json(text) if self.format == "json" else self._read_text(text)
            if not words.strip() and why is None:
                raise ValueError("it says nothing to the assistant")
            leak = leaked((*seen, user(words)), goal)
            if self.leak_limit is not None and leak > max(self.leak_limit, before):
                refused += 1
                raise ValueError("it copies out what you want; say only what is needed now, in other words")
            if self.guard is not None and (problem := self.guard(words)):
                refused += 1
                raise ValueError(problem)
            side = (*request, assistant(text))
            return UserTurn(words, ends=why is not None, why=why, metrics={"user_leak": leak}, side=side)

        request, sample = self._request(seen, goal), int(rng.integers(2**31))
        try:
            client = instead.get() or await client_for(self.spec)
            turn, tries = await ask(client, request, read, schema=self._schema, tries=self.tries, sample=sample)
        except PromptTooLong as failure:
            raise EnvironmentFailure("user_no_room", str(failure)) from failure
        except ChatFailure as failure:
            raise EnvironmentFailure("user_failed", str(failure)) from failure
        return replace(turn, metrics={**turn.metrics, "user_tries": float(tries), "user_refused": float(refused)})

    @property
    def _schema(self) -> type[_Reply] | None:
        if self.format == "text":
            return None
        return _EndingReply if self.may_end else _Reply

    def _request(self, seen: Messages, goal: str) -> list[Message]:
        if self.prompt == "short":
            rules = PROMPTS["short"].format(goal=goal.strip(), manner=self.manner.strip())
        else:
            rules = PROMPTS["rules"].format(goal=goal.strip(), persona=self.persona.strip(), manner=self.manner.strip())
            rules += f"\n\n{PROMPTS[str(self.format)]}"
            if self.may_end:
                rules += f" {PROMPTS[f'{self.format}_end'].format(marker=self.end_marker)}"
        request: list[Message] = [system(rules.strip())]
        if not seen or seen[0]["role"] == "user":
            request.append(user(PROMPTS["curtain"]))
        for message in seen:
            flipped = assistant if message["role"] == "user" else user
            text = _CONTROL.sub(r"\g<0> ", text_of(message))  # with a space in it, a control token is only text
            request.append(flipped(text or PROMPTS["silence"]))
        return request

    def _read_json(self, text: str) -> tuple[str, str | None]:
        schema = self._schema
        assert schema is not None
        reply = parse_reply(text, schema)
        state = reply.state if isinstance(reply, _EndingReply) else "goes_on"
        return reply.message, None if state == "goes_on" else state

    def _read_text(self, text: str) -> tuple[str, str | None]:
        words, marker, _ = text.partition(self.end_marker)
        return words, "user_left" if marker and self.may_end else None


_OWN = {option.name for option in fields(LLMUser)} - {"model", "spec", "guard"}


def leaked(conversation: Messages, goal: str) -> float:
    """Return the share of the goal's runs of :data:`PIECE` words that the user has given away so far, in 0..1.

    All messages of the user count together, as one text, so a goal disclosed in pieces counts as disclosed. What the
    assistant said first is not given away. Goals too short to be guarded give 0.
    """
    secret = _pieces(spellings(goal))
    if len(secret) < FEWEST_PIECES:
        return 0.0
    disclosed: set[tuple[str, ...]] = set()
    from_assistant: set[tuple[str, ...]] = set()
    last: list[str] = []  # the user's words that may begin a piece that the next message ends
    for message in conversation:
        words = spellings(text_of(message))
        if message["role"] == "user":
            disclosed |= _pieces(last + words) - from_assistant
            last = (last + words)[-(PIECE - 1) :]
        else:
            from_assistant |= _pieces(words) - disclosed
    return len(secret & disclosed) / len(secret)


def _pieces(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + PIECE]) for i in range(len(words) - PIECE + 1)}
