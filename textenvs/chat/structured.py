"""Structured answers: parse one without trusting it, and retry until one is valid."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..messages import Message, system, text_of, visible_text
from .client import ChatClient
from .errors import InvalidReply
from .schema import strict_schema

log = logging.getLogger("textenvs")

T = TypeVar("T")
SchemaT = TypeVar("SchemaT", bound=BaseModel)

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)


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
    """Ask, and ask again while the answer is invalid; return the result of ``read`` and the number of tries.

    Each try is another sample of the request, and from the second on the request names the problem. It never quotes
    the bad answer: that may contain words of a conversation, and they must not return as instructions.

    Args:
        client: Which service.
        messages: The request, a system message first.
        read: Parses the answer's text (without private reasoning), or raises ``ValueError`` with the problem, in words
            that quote nothing of it.
        schema: The answer shall be JSON of this shape: it is put at the end of the system message, and given to the
            service as the spec's ``structured`` says. Reading is still up to ``read`` (:func:`parse_reply`).
        tries: How often to ask, at most.
        temperature: Instead of the spec's.
        sample: The sample index of the first try; each next has the next.

    Raises:
        InvalidReply: No answer could be used. The message holds nothing of them; the log has them, at level DEBUG.
    """
    rules = text_of(messages[0])
    if schema is not None:
        shape = json.dumps(strict_schema(schema), ensure_ascii=False)
        rules += f"\n\nReply with one JSON object and nothing else. Its JSON schema is:\n{shape}"
    problem = hint = ""
    for number in range(tries):
        again = f"\n\nAn earlier reply of yours could not be used: {problem}." if number else ""
        completion = await client.complete(
            [system(rules + again), *messages[1:]],
            temperature=temperature,
            response_schema=schema,
            sample=sample + number,
        )
        cut_off = completion.finish_reason == "length"
        problem, hint = "it was cut off before its end; be brief", " (raise max_tokens)" if cut_off else ""
        if not cut_off:
            try:
                return read(visible_text(completion.message)), number + 1
            except ValueError as error:
                problem = str(error)
        log.debug("%r: try %d of %d: %s: %r", client, number + 1, tries, problem, completion.text)
    raise InvalidReply(f"{client!r}: no usable reply in {tries} tries; the last one: {problem}{hint}")


def parse_reply(text: str, model: type[SchemaT]) -> SchemaT:
    """Read an answer that must be one JSON object and nothing else; a code fence around the whole of it is allowed.

    No object is ever searched for *inside* an answer: it may be a quotation. Types are not converted
    (``"1"`` is no number), and a name that occurs twice, ``NaN`` and infinities are refused. The words of the
    ``ValueError`` hold nothing of the answer.
    """
    text = text.strip()
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1]
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)
        plain = json.dumps(value)
    except _RefusedError as refused:
        raise ValueError(str(refused)) from None
    except (ValueError, RecursionError):
        raise ValueError("it is not one JSON object and nothing else") from None
    if not isinstance(value, dict):
        raise ValueError("it is JSON, but not an object")
    try:
        # Through JSON again: strict validation of JSON accepts types that JSON has no form for (an enum, a tuple).
        return model.model_validate_json(plain, strict=True)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if detail["type"] == "extra_forbidden":
        raise ValueError("it has a field that was not asked for")
    # Deeper places may be names that the answer itself chose.
    place = detail["loc"][0] if detail["loc"] and detail["loc"][0] in model.model_fields else "the object"
    raise ValueError(f"{place}: {detail['msg']}")


class _RefusedError(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _RefusedError("a name occurs twice in an object of it")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _RefusedError("a number of it is not finite")
    return number
