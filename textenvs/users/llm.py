"""A simulated user played by a language model.

The model sees the conversation from the user's side: what the user said are *its* (assistant) messages, its opening
words among them. What it answers and cannot be used is asked for again, and after ``tries`` the episode ends as
``user_failed``: never an empty message, never a made-up one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Annotated, Literal, Self

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from ..chat.clients import client_for
from ..chat.errors import ChatFailure
from ..chat.spec import ChatSpec, SpecLike
from ..chat.structured import ask, parse_reply
from ..env import EnvironmentFailure
from ..messages import Message, Messages, assistant, system, text_of, user, visible_conversation
from ..options import PositiveInt, checked
from .base import UserTurn

PROMPTS: Mapping[str, str] = yaml.safe_load(files(__package__).joinpath("prompts.yaml").read_text("utf-8"))

#: Words in a row that count as one copied piece of a goal. Fewer would find what any two texts on one subject share.
PIECE = 4
#: Goals of fewer pieces can hardly be paraphrased, and are not guarded.
FEWEST_PIECES = 8

_WORD = re.compile(r"\w+")
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

    Its metrics are ``user_tries`` (how often the model was asked) and ``user_leak`` (the share of the goal that it has
    given away word by word so far, in all its messages together).
    """

    model: SpecLike
    persona: str = "An ordinary person who needs help."
    manner: str = PROMPTS["manner"]  # how it writes
    #: Whether it may leave by itself: ``why`` is then "satisfied" or "gave_up" ("user_left" with ``format="text"``).
    may_end: bool = True
    format: Literal["json", "text"] = "json"  # "text" is for models that do not keep to JSON
    end_marker: str = "[[END]]"  # what ends the conversation in ``format="text"``
    #: The largest share of the goal, in runs of four words, that all messages of a conversation may copy together; a
    #: message that goes beyond it is asked for again. Goals of fewer than 11 words are not guarded.
    leak_limit: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    tries: PositiveInt = 3  # how often the model is asked for one message, at most
    spec: ChatSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", ChatSpec.of(self.model))
        if not self.end_marker.strip():
            raise ValueError("end_marker must not be empty")

    def with_manner(self, told: str) -> Self:
        """This user, told to write in another manner as well."""
        return replace(self, manner=f"{self.manner.strip()} {told}") if told else self

    async def speak(self, conversation: Messages, goal: str, rng: np.random.Generator) -> UserTurn:
        """Answer the assistant's last words, or open the conversation when it is empty.

        ``rng`` picks the sample, so that equal episodes ask for the same answer, and their siblings for others.

        Raises:
            EnvironmentFailure: ``"user_failed"``: no usable message after all tries.
            BudgetExceeded, CacheError: For the run to stop at.
        """
        if not goal.strip():
            raise ValueError("LLMUser.speak: the goal is empty; a user without one has nothing to say")
        heard = visible_conversation(conversation)
        if heard and heard[-1]["role"] == "user":
            raise ValueError("LLMUser.speak: it is the assistant's turn")
        before = leaked(heard, goal)

        def read(text: str) -> UserTurn:
            words, why = self._read_json(text) if self.format == "json" else self._read_text(text)
            if not words.strip() and why is None:
                raise ValueError("it says nothing to the assistant")
            leak = leaked((*heard, user(words)), goal)
            if self.leak_limit is not None and leak > max(self.leak_limit, before):
                raise ValueError("it copies out what you want; say only what is needed now, in other words")
            return UserTurn(words, ends=why is not None, why=why, metrics={"user_leak": leak})

        request, sample = self._request(heard, goal), int(rng.integers(2**31))
        client = await client_for(self.spec)
        try:
            turn, tries = await ask(client, request, read, schema=self._schema, tries=self.tries, sample=sample)
        except ChatFailure as failure:
            raise EnvironmentFailure("user_failed", str(failure)) from failure
        return replace(turn, metrics={**turn.metrics, "user_tries": float(tries)})

    @property
    def _schema(self) -> type[_Reply] | None:
        if self.format == "text":
            return None
        return _EndingReply if self.may_end else _Reply

    def _request(self, heard: Messages, goal: str) -> list[Message]:
        rules = PROMPTS["rules"].format(goal=goal.strip(), persona=self.persona.strip(), manner=self.manner.strip())
        rules += f"\n\n{PROMPTS[self.format]}"
        if self.may_end:
            rules += f" {PROMPTS[f'{self.format}_end'].format(marker=self.end_marker)}"
        request: list[Message] = [system(rules)]
        if not heard or heard[0]["role"] == "user":
            request.append(user(PROMPTS["curtain"]))
        for message in heard:
            flipped = assistant if message["role"] == "user" else user
            request.append(flipped(_defused(text_of(message)) or PROMPTS["silence"]))
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


def leaked(conversation: Messages, goal: str) -> float:
    """The share of the goal's runs of :data:`PIECE` words that the user has given away so far, in 0..1.

    All messages of the user count together, and as one text, so that a goal told in pieces is told. What the assistant
    said first is not given away. Goals too short to be guarded give 0.
    """
    secret = _pieces(_words(goal))
    if len(secret) < FEWEST_PIECES:
        return 0.0
    told: set[tuple[str, ...]] = set()
    heard: set[tuple[str, ...]] = set()
    last: list[str] = []  # the user's words that may begin a piece that the next message ends
    for message in conversation:
        words = _words(text_of(message))
        if message["role"] == "user":
            told |= _pieces(last + words) - heard
            last = (last + words)[-(PIECE - 1) :]
        else:
            heard |= _pieces(words) - told
    return len(secret & told) / len(secret)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _pieces(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + PIECE]) for i in range(len(words) - PIECE + 1)}


def _defused(text: str) -> str:
    """The text with a space in every spelt-out control token: still readable, no longer a token."""
    return _CONTROL.sub(r"\g<0> ", text)
