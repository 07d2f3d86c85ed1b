"""What of a conversation is scored: up to a reply of the assistant's, and as tokens.

A model that scores replies is shown conversations that end with one. So what the environment said after the reply that
is meant (or after the last one, where the whole conversation is) is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from textenvs.messages import Message, Messages, assistant, user

from ..service import BackendError, ScoringRequest

Overlong: TypeAlias = Literal["error", "left"]

#: What every reward model must be able to score: it is tried on this before it is relied on.
PROBE: Messages = (
    *(user("What is 2 + 2?"), assistant("4.")),
    *(user("And 3 more?"), assistant("2 + 2 + 3 is 7.")),
)


def replies(request: ScoringRequest) -> list[int]:
    """Where the assistant's messages stand, up to the one that is meant.

    Raises:
        BackendError: There is no such turn.
    """
    places = [place for place, message in enumerate(request.messages) if message["role"] == "assistant"]
    wanted = places
    if request.turn is not None:
        wanted = places[: request.turn + 1] if 0 <= request.turn < len(places) else []
    if not wanted:
        asked = "reply to score" if request.turn is None else f"turn {request.turn}"
        raise BackendError(f"the conversation has {len(places)} replies of the assistant's, and no {asked}", final=True)
    return wanted


def scored_part(request: ScoringRequest) -> Messages:
    """The conversation up to the reply of ``request.turn``, or up to the last reply.

    Raises:
        BackendError: There is no such turn.
    """
    return tuple(request.messages[: replies(request)[-1] + 1])


class ConversationTokens:
    """Conversations as tokens of a model, by its chat template.

    A special token that a message spells is encoded as plain text: a policy must not be able to close its own turn and
    go on in the user's name.

    Args:
        tokenizer: A transformers tokenizer.
        template: A file with a Jinja template, instead of the tokenizer's own.
        max_length: Tokens, at most.
        overlong: What becomes of more: an ``error`` for the request, or the first tokens are cut off (``left``).

    Raises:
        ValueError: There is no template, or no such file.
    """

    def __init__(self, tokenizer: Any, *, template: str | None, max_length: int, overlong: Overlong) -> None:
        self._tokenizer, self._max_length, self._overlong = tokenizer, max_length, overlong
        if template is not None:
            path = Path(template).expanduser()
            if not path.is_file():
                raise ValueError(f"template: there is no file {path}")
            tokenizer.chat_template = path.read_text(encoding="utf-8")
        if not tokenizer.chat_template:
            raise ValueError(
                "the reward model's tokenizer has no chat template, so nobody knows how it reads a conversation; give "
                "one: template=FILE.jinja"
            )
        names = sorted((str(t) for t in tokenizer.all_special_tokens), key=len, reverse=True)
        names += [t.content for t in tokenizer.added_tokens_decoder.values() if t.special and t.content not in names]
        self._special = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None

    def encode(self, messages: Messages) -> list[int]:
        """The tokens of a conversation.

        Raises:
            BackendError: It is too long, or the template does not take it.
        """
        import jinja2

        form = [_template_form(message) for message in messages]
        marks: re.Pattern[str] | None = None
        spelled: list[str] = []
        if self._special is not None and any(self._special.search(text) for text in _strings(form)):
            nonce = 0
            while any(f"zq{nonce}n" in text for text in _strings(form)):
                nonce += 1

            def mark(match: re.Match[str]) -> str:
                spelled.append(match[0])
                return f"zq{nonce}n{len(spelled) - 1}qz"

            form = [{**message, **_marked(message, self._special, mark)} for message in form]
            marks = re.compile(f"zq{nonce}n(\\d+)qz")
        try:
            text = str(self._tokenizer.apply_chat_template(form, tokenize=False, add_generation_prompt=False))
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise BackendError(f"the chat template rejects the conversation ({roles}): {error}", final=True) from error
        tokens: list[int] = []
        # With one group in the pattern, every second piece is the number of a mark.
        for number, piece in enumerate([text] if marks is None else marks.split(text)):
            if number % 2:
                tokens += self._ids(spelled[int(piece)], split_special_tokens=True)
            elif piece:
                tokens += self._ids(piece)
        if len(tokens) > self._max_length:
            if self._overlong == "error":
                raise BackendError(
                    f"the conversation has {len(tokens)} tokens, more than the {self._max_length} that the reward "
                    "model reads; raise max_length, or cut the beginning off: overlong=left",
                    final=True,
                )
            tokens = tokens[-self._max_length :]
        return tokens

    def _ids(self, text: str, **how: Any) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, **how)["input_ids"]
        return ids


def load_tokenizer(path: str) -> Any:
    """A tokenizer of transformers.

    Raises:
        ValueError: There is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # a broken file makes tokenizers raise a plain Exception
        raise ValueError(f"the tokenizer {path} cannot be loaded: {error}") from error


def conversation_problems(
    tokenizer: str | None, template: str | None, vocabulary: int = 2**31, *, model: str | None = None
) -> Iterator[tuple[str, str]]:
    """What is wrong with how conversations become tokens: the tokenizer, the template, and both on :data:`PROBE`.

    Args:
        tokenizer: Its folder; ``None`` where it is the model's.
        template: A file with a template, or ``None``.
        vocabulary: Tokens that the model knows.
        model: Its folder.

    Yields:
        The option to change (``tokenizer``, ``template`` or ``path``), and what is wrong.
    """
    try:
        loaded = load_tokenizer(str(tokenizer or model))
    except ValueError as error:
        yield "tokenizer" if tokenizer else "path", str(error)
        return
    try:
        ids = ConversationTokens(loaded, template=template, max_length=2**31, overlong="error").encode(PROBE)
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


def _template_form(message: Message) -> dict[str, Any]:
    """As templates take messages: lists, and a call's arguments as the object that its JSON says."""
    form: dict[str, Any] = dict(message)
    if calls := form.get("tool_calls"):
        form["tool_calls"] = [{**call, "function": _function(call["function"])} for call in calls]
    return form


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return dict(function)
    return {**function, "arguments": arguments} if isinstance(arguments, dict) else dict(function)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in _strings(each)]
    return [text for each in value for text in _strings(each)] if isinstance(value, list | tuple) else []


def _marked(value: Any, pattern: re.Pattern[str], mark: Any) -> Any:
    if isinstance(value, str):
        return pattern.sub(mark, value)
    if isinstance(value, Mapping):
        return {name: each if name == "role" else _marked(each, pattern, mark) for name, each in value.items()}
    return [_marked(each, pattern, mark) for each in value] if isinstance(value, list | tuple) else value
