"""A context: one token sequence of an episode, and the conversation that it stands for."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from textenvs.messages import Message, Messages, assistant, text_of

from ..engines.base import Generation
from ..trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Piece:
    """Sampled tokens: a turn's, or those up to a weight update or from one on."""

    turn: int
    start: int  #: of its tokens in the context
    generation: Generation


@dataclass(frozen=True)
class Reply:
    """A sampled reply, as text, and as the message that the environment will show, where that is known."""

    text: str
    message: Message | None = None

    @property
    def structured(self) -> bool:
        """True if the chat template shows its calls or its reasoning apart."""
        return self.message is not None and bool(
            self.message.get("tool_calls") or self.message.get("reasoning_content")
        )

    @property
    def shown(self) -> Message:
        """The message that stands for it in the chat template."""
        return self.message if self.structured and self.message is not None else assistant(self.text)

    def distance(self, message: Message) -> int | None:
        """Return how far a message is from this reply, 0 for the same; ``None``: it is another one (edited history).

        An environment may keep a reply with other white space or in another Unicode form; or its text, reasoning and
        calls apart, each of which stands in the sampled text. What of it the message does not show is the distance.
        """
        if message["role"] != "assistant":
            return None
        if message == self.message or (len(message) == 2 and message["content"] == self.text):
            return 0
        calls, reasoning = message.get("tool_calls", ()), message.get("reasoning_content", "")
        text, content = _squeezed(self.text), _squeezed(text_of(message))
        if not calls and not reasoning:
            return 1 if content == text else None
        parts = [content, _squeezed(reasoning), *(_squeezed(call["function"]["name"]) for call in calls)]
        return 1 + max(0, len(text) - sum(map(len, parts))) if all(part in text for part in parts) else None


def _squeezed(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


@dataclass(frozen=True)
class Boundary:
    """The end of a reply within a context, where another context may branch off."""

    messages: int  #: of the conversation, the reply included
    tokens: int  #: up to the end of the reply
    reply: Reply
    distance: int  #: of the message in the conversation from it; see :meth:`Reply.distance`


@dataclass(eq=False)
class Context:
    """One token sequence.

    ``conversation`` is as the environment last showed it, and ``history`` the same with the replies as they were
    sampled. ``reply`` is a last one, which no observation has shown yet. ``begun`` is the number of tokens that it
    began with: its opening, or what it shares with an earlier context and what was said next. ``observed`` are the
    places of the tokens of what the environment answered, where they are asked for (``Renderer.observed_roles``).
    """

    token_ids: list[int]
    conversation: Messages
    history: Messages
    boundaries: tuple[Boundary, ...] = ()
    reply: Reply | None = None
    pieces: list[Piece] = field(default_factory=list)
    begun: int = -1
    observed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.begun < 0:
            self.begun = len(self.token_ids)

    @property
    def replied(self) -> int:
        """The number of tokens up to the end of the last reply."""
        return 0 if not self.pieces else self.pieces[-1].start + len(self.pieces[-1].generation.token_ids)

    def fork(self) -> Context:
        """Return a copy that was not sampled: all its tokens are context."""
        return replace(self, token_ids=list(self.token_ids), pieces=[], observed=[])

    def replied_by(self, conversation: Messages) -> Message | None:
        """Return the assistant's message that a conversation has where this one waits for its reply, if any."""
        size = len(self.conversation)
        if (
            self.reply is not None
            and len(conversation) > size
            and conversation[size]["role"] == "assistant"
            and conversation[size - 1] == self.conversation[-1]  # the last message tells most of them apart
            and conversation[:size] == self.conversation
        ):
            return conversation[size]
        return None

    def common(self, conversation: Messages) -> int:
        """Return how many messages both conversations begin with."""
        count = 0
        for one, other in zip(self.conversation, conversation, strict=False):
            if one != other:
                break
            count += 1
        return count

    def settle(self, message: Message) -> None:
        """Take note of how the environment shows the reply."""
        assert self.reply is not None
        distance = self.reply.distance(message)
        assert distance is not None
        self.conversation = (*self.conversation, message)
        self.history = (*self.history, self.reply.shown)
        place = Boundary(len(self.conversation), len(self.token_ids), self.reply, distance)
        self.boundaries, self.reply = (*self.boundaries, place), None

    def branch(self, at: Boundary) -> Context:
        """Return a context with the tokens up to there, none of which it samples."""
        boundaries = tuple(place for place in self.boundaries if place.tokens <= at.tokens)
        conversation, history = self.conversation[: at.messages], self.history[: at.messages]
        return Context(self.token_ids[: at.tokens], conversation, history, boundaries)


def arrays_of(contexts: list[Context], *, to_last_reply: bool, observed: bool) -> Mapping[str, NDArray[np.generic]]:
    """Return the arrays of a trajectory with these contexts, of each its tokens, or those ``to_last_reply`` alone.

    ``observed``: with the mask of observation tokens.
    """
    sizes = [context.replied if to_last_reply else len(context.token_ids) for context in contexts]
    starts = np.cumsum([0, *sizes])
    size = int(starts[-1])
    turn_id, version = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    logprobs, counts, survivors = np.zeros(size, np.float32), np.zeros(size, np.int32), [np.zeros(0, np.int32)]
    for start, context in zip(starts, contexts, strict=False):
        for piece in context.pieces:
            generation = piece.generation
            where = slice(start + piece.start, start + piece.start + len(generation.token_ids))
            turn_id[where], version[where] = piece.turn, generation.weight_version
            # Over the tokens that the cuts left, where the engine reports these.
            logprobs[where] = generation.policy_logprobs
            if generation.kept_counts is not None and generation.kept_ids is not None:
                counts[where] = generation.kept_counts
                survivors.append(generation.kept_ids)
    ids = [context.token_ids[:count] for context, count in zip(contexts, sizes, strict=True)]
    answers = np.zeros(size if observed else 0, np.bool_)
    for start, count, context in zip(starts, sizes, contexts, strict=False):
        answers[[start + place for place in context.observed if place < count]] = True
    return {
        "token_ids": np.concatenate([np.zeros(0, np.int32), *(np.array(part, np.int32) for part in ids)]),
        "action_mask": turn_id >= 0,
        "logprobs": logprobs,
        "weight_version": version,
        "turn_id": turn_id,
        "segment_starts": starts[:-1].astype(np.int32),
        "kept_ids": np.concatenate(survivors),
        "kept_counts": counts if len(survivors) > 1 else counts[:0],
        "observation_mask": answers,
    }


def without_unseen(trajectory: Trajectory, limit: int) -> Trajectory:
    """Leave out what its context cannot hold of the last observation: the model never saw it, and never could."""
    size = len(trajectory.token_ids)
    sampled = np.flatnonzero(trajectory.action_mask)
    keep = max(int(trajectory.segment_starts[-1]) + limit, int(sampled[-1]) + 1 if sampled.size else 0)
    if size <= keep:
        return trajectory
    arrays = ("token_ids", "action_mask", "logprobs", "weight_version", "turn_id", "kept_counts", "observation_mask")
    return replace(trajectory, **{name: getattr(trajectory, name)[:keep] for name in arrays})
