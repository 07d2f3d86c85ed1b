"""The scored part of a conversation: the messages up to the scored reply, and their tokens."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from textenvs.bounded_files import read_text
from textenvs.messages import Messages, assistant, user

from ...chat_template import ControlTokens, MarkedText, MessageForms, RendererError, show_with
from ...config.reward_model import TokenizingSection
from ...models.tokenizer import read_tokenizer
from ..service import BackendError, ScoringRequest

Prepared = TypeVar("Prepared")

#: A conversation that every reward model must be able to score; each is tried on it first.
PROBE: Messages = (*(user("What is 2 + 2?"), assistant("4.")), *(user("And 3 more?"), assistant("2 + 2 + 3 is 7.")))


def replies(request: ScoringRequest) -> list[int]:
    """Return the positions of the assistant's messages up to the scored one; ``BackendError`` if there is none."""
    places = [place for place, message in enumerate(request.messages) if message["role"] == "assistant"]
    selected = places
    if request.turn is not None:
        selected = places[: request.turn + 1] if 0 <= request.turn < len(places) else []
    if not selected:
        target = "reply to score" if request.turn is None else f"turn {request.turn}"
        raise BackendError(
            f"the conversation has {len(places)} replies of the assistant's, and no {target}", final=True
        )
    return selected


def scored_part(request: ScoringRequest) -> Messages:
    """Return the conversation up to the reply of ``request.turn``, or up to the last reply."""
    return tuple(request.messages[: replies(request)[-1] + 1])


def score_range(transform: str) -> tuple[float, float]:
    """Return the lowest and highest possible score."""
    return (-math.inf, math.inf) if transform == "identity" else (0.0, 1.0)


def transformed(logits: Sequence[float], label: int, transform: str) -> float:
    value = logits[label]
    match transform:
        case "sigmoid":
            return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
        case "softmax":
            top = max(logits)
            return math.exp(value - top) / math.fsum(math.exp(logit - top) for logit in logits)
    return value


async def score_prepared(
    requests: Sequence[ScoringRequest],
    prepare: Callable[[ScoringRequest], Prepared],
    score: Callable[[list[Prepared]], Awaitable[Sequence[float | BackendError]]],
) -> list[float | BackendError]:
    """Score the requests that can be prepared in one batch; the others' errors stand in their places."""
    prepared: list[Prepared | BackendError] = []
    for request in requests:
        try:
            prepared.append(prepare(request))
        except BackendError as error:
            prepared.append(error)
    good = [entry for entry in prepared if not isinstance(entry, BackendError)]
    scores = iter(await score(good) if good else ())
    return [entry if isinstance(entry, BackendError) else next(scores) for entry in prepared]


class ConversationTokens:
    """Conversations as tokens of a model, by its chat template.

    A control token that a message spells is encoded as plain text, so that a policy cannot continue in the user's name.
    Each message is converted to a form that the template renders. ``longest`` are the tokens that the model reads;
    the section may say fewer. ``ValueError``: no template, or it renders nothing.
    """

    def __init__(self, tokenizer: Any, section: TokenizingSection, longest: int = 2**31) -> None:
        self._tokenizer, self._max_length, self._overlong = tokenizer, section.max_length or longest, section.overlong
        if section.template is not None:
            path = Path(section.template).expanduser()
            if not path.is_file():
                raise ValueError(f"template: there is no file {path}")
            tokenizer.chat_template = read_text(path)
        if not tokenizer.chat_template:
            raise ValueError(
                "the reward model's tokenizer has no chat template, which says how it reads a conversation; give "
                "one: template=FILE.jinja"
            )
        self._control = ControlTokens(tokenizer)
        self._show = show_with(tokenizer)
        self._forms = MessageForms(self._show)

    def encode(self, messages: Messages) -> list[int]:
        """Return the tokens of a conversation. ``BackendError``: it is too long, or the template refuses it."""
        every = self._control.pattern
        try:
            self._forms.check(messages)
            form, marks = self._control.mark([(message, every) for message in messages])
            tokens = self._control.encode(MarkedText(self._show(self._forms.put(form), None, generate=False), marks))
        except RendererError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise BackendError(f"the conversation ({roles}) cannot be rendered: {error}", final=True) from error
        if len(tokens) > self._max_length:
            if self._overlong == "error":
                raise BackendError(
                    f"the conversation has {len(tokens)} tokens, more than the {self._max_length} that the reward "
                    "model reads; raise max_length, or cut the beginning off: overlong=left",
                    final=True,
                )
            tokens = tokens[-self._max_length :]
        return tokens


def load_tokenizer(path: str) -> Any:
    """Load a tokenizer of transformers; a ``ValueError`` if there is none."""
    try:
        return read_tokenizer(path)
    except Exception as error:  # a broken file makes tokenizers raise a plain Exception
        raise ValueError(f"the tokenizer {path} cannot be loaded: {error}") from error


def conversation_problems(
    tokenizer: str | None, template: str | None, vocabulary: int = 2**31, *, model: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the problems of encoding :data:`PROBE` as ids below ``vocabulary``: the option, and the reason."""
    try:
        loaded = load_tokenizer(str(tokenizer or model))
    except ValueError as error:
        yield "tokenizer" if tokenizer else "path", str(error)
        return
    try:
        ids = ConversationTokens(loaded, TokenizingSection(template=template)).encode(PROBE)
    except (ValueError, BackendError) as error:
        yield "template", str(error)
        return
    if not ids:
        yield "template", "the chat template makes nothing of a conversation"
    elif max(ids) >= vocabulary:
        yield (
            "tokenizer" if tokenizer else "path",
            f"the tokenizer {tokenizer or model} gives token {max(ids)}, and the model knows {vocabulary}: they do not "
            "belong together",
        )
