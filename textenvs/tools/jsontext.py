"""Read JSON that a language model wrote: strict about its meaning, clear about its errors.

Everything here raises :class:`JsonProblem`. Text that comes out is canonical: one spelling for one value, finite
numbers, no lone surrogates.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from ..messages import clean_text


class JsonProblem(ValueError):
    """A problem of a piece of JSON, in words for the model that wrote it."""


def _refuse_constant(name: str) -> NoReturn:
    raise JsonProblem(f"{name} is not a JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise JsonProblem(f"the JSON has {name[:40]!r} twice in one object")
    return value


# Line breaks inside strings are allowed: models write code that way.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, object_pairs_hook=_once)
_SPACE = " \t\r\n"
_KINDS = {
    bool: "true or false",
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start] in _SPACE:
        start += 1
    return start


def read_value(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON value that begins at ``start`` (after white space), and its end."""
    start = skip_space(text, start)
    if start == len(text):
        raise JsonProblem("the JSON is missing")
    try:
        return _DECODER.raw_decode(text, start)
    except JsonProblem:
        raise
    except json.JSONDecodeError as error:
        if error.pos >= len(text) or error.msg.startswith("Unterminated string"):
            raise JsonProblem("the JSON is not complete: a bracket or a quote is not closed") from None
        rest = text[error.pos : error.pos + 20]
        raise JsonProblem(f"the JSON is broken at {rest!r}: {error.msg[0].lower()}{error.msg[1:]}") from None
    except RecursionError:
        raise JsonProblem("the JSON is nested too deeply") from None
    except ValueError:  # int() refuses numbers of thousands of digits
        raise JsonProblem("a number in the JSON is too long") from None


def read_object(text: str) -> dict[str, Any]:
    """Read ``text`` as one JSON object, with nothing after it; empty text is the empty object."""
    if not text.strip():
        return {}
    value, end = read_value(text)
    if (end := skip_space(text, end)) != len(text):
        raise JsonProblem(f"the JSON is followed by {text[end : end + 20]!r}")
    if not isinstance(value, dict):
        raise JsonProblem(f"a JSON object is needed, {{...}}, not {_KINDS[type(value)]}")
    return value


def write_value(value: Any) -> str:
    """Write ``value`` as canonical JSON."""
    try:
        return clean_text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except RecursionError:
        raise JsonProblem("the JSON is nested too deeply") from None
    except ValueError:
        raise JsonProblem("a number in the JSON is too large or not a number") from None
    except TypeError as error:
        raise JsonProblem(str(error)) from None
