"""Ask until the answer can be used."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel

from ..messages import Message, system, text_of, visible_text
from .client import ChatClient
from .errors import InvalidReply
from .schema import strict_schema

log = logging.getLogger("textenvs")

T = TypeVar("T")


async def ask(
    client: ChatClient,
    messages: Sequence[Message],
    read: Callable[[str], T],
    *,
    schema: type[BaseModel] | None = None,
    tries: int = 3,
    temperature: float | None = None,
    sample: int = 0,
) -> tuple[T, int]:
    """Ask, read the answer, and ask again where it cannot be used.

    Every try is another sample of the request, and from the second on the request says what was wrong. It never quotes
    the bad answer: that may hold words of a conversation, and they must not come back as ours.

    Args:
        client: Whom to ask.
        messages: The request, a system message first.
        read: Makes what is wanted of the answer's text (its private reasoning is left out), or raises ``ValueError``
            with what is wrong, in words that quote nothing of it.
        schema: The answer shall be JSON of this shape: it is put at the end of the system message, and given to the
            service as the spec's ``structured`` says. Reading is still up to ``read``
            (:func:`~textenvs.chat.schema.parse_reply`).
        tries: How often to ask, at most.
        temperature: Instead of the spec's.
        sample: The sample index of the first try; each next has the next.

    Returns:
        What ``read`` made, and how many tries it took.

    Raises:
        InvalidReply: No answer could be used. The message holds nothing of them; the log has them, at level DEBUG.
        ChatFailure, BudgetExceeded, CacheError: As :meth:`~textenvs.chat.client.ChatClient.complete`.
        ValueError: The request does not start with a system message.
    """
    if not messages or messages[0]["role"] != "system":
        raise ValueError("ask() needs a system message first: how to answer is told there")
    told = text_of(messages[0])
    if schema is not None:
        shape = json.dumps(strict_schema(schema), ensure_ascii=False)
        told += f"\n\nReply with one JSON object and nothing else. Its JSON schema is:\n{shape}"
    problem = ""
    for number in range(tries):
        again = f"\n\nAn earlier reply of yours could not be used: {problem}." if number else ""
        completion = await client.complete(
            [system(told + again), *messages[1:]],
            temperature=temperature,
            response_schema=schema,
            sample=sample + number,
        )
        if completion.finish_reason == "length":
            problem = "it was cut off before its end; be brief"
        else:
            try:
                return read(visible_text(completion.message)), number + 1
            except ValueError as error:
                problem = str(error)
        log.debug("%r: try %d of %d: %s: %r", client, number + 1, tries, problem, completion.text)
    hint = " (raise max_tokens)" if completion.finish_reason == "length" else ""
    raise InvalidReply(f"{client!r}: no usable reply in {tries} tries; the last one: {problem}{hint}")
