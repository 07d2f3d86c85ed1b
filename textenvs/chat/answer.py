"""Read the answer of a chat service: only the fields that are needed, in the forms that services give them.

Other fields are ignored. A needed one may be odd (a content in parts, arguments that are no text, a count of tokens as
text): it is read where its meaning is plain, and :attr:`Completion.odd` says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..bounded_files import check_json_size
from ..messages import Message, ToolCall, clean_text
from ..reasoning import REASONING_KEYS

#: The longest text (content and reasoning together) that is taken as an answer, in characters.
MAX_TEXT = 2**20
#: The most tool calls that are taken as an answer.
MAX_CALLS = 128
#: No answer takes more tokens; a larger count is none.
MAX_TOKENS = 10**9

_LENGTH = "length"
# Services' synonyms of `length`.
_CUT = frozenset(
    {
        *(_LENGTH, "max_tokens", "model_length", "max_output_tokens", "model_context_window_exceeded"),
        *("max_length", "max_new_tokens", "max_completion_tokens", "length_limit", "token_limit", "output_limit"),
        *("finish_reason_max_tokens", "max_output_reached", "context_window_exceeded", "context_length_exceeded"),
    }
)
# Reasons to end after which a message without a content is the model's: it was cut while thinking, or filtered.
_EMPTY = frozenset(
    {
        *(_LENGTH, "content_filter", "content_filtered", "refusal", "safety", "recitation", "blocklist", "spii"),
        *("prohibited_content", "guardrail_intervened", "sensitive"),
    }
)
_LONGEST_INTEGER = 30  # digits; a longer one is read as infinity


@dataclass(frozen=True)
class Usage:
    """Tokens as the service counts them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Completion:
    """An answer."""

    text: str  # what the model says; empty where it only calls tools, or was cut while thinking
    message: Message  # the same, with tool calls and the service's ``reasoning_content``, if any
    finish_reason: str  # ``stop``, ``length`` (cut off at ``max_tokens``), ``tool_calls`` or what else the service says
    usage: Usage | None  # the tokens it took when it was made; ``None`` where the service does not say
    cached: bool = False  # it came from the cache: it cost nothing now
    attempts: int = 1  # how often the service was asked for it now; 0 when ``cached``
    cost: float = 0.0  # dollars spent on it now, failed attempts included, as far as the spec's ``price`` says
    reasoning_field: str | None = None  # the name that the service has for reasoning (one of ``REASONING_KEYS``)
    odd: tuple[str, ...] = ()  # what was not as it should be, and how it was read


class ErrorAnswer(ValueError):
    """An error in the place of a completion, whatever its HTTP status; ``body`` has its content."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__("it is an error")
        self.body = body


def read_answer(body: str) -> Completion:
    """Read a completion from the body of an answer.

    Raises:
        ErrorAnswer: It is an error in the place of a completion.
        ValueError: It is no completion; the message says where.
    """
    answer = _parsed(body)
    if not isinstance(answer, Mapping):
        raise ValueError(f"the body is {_kind(answer)}, not an object")
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    for place in (answer, choice):
        if isinstance(place, Mapping) and place.get("error") and not place.get("message"):
            raise ErrorAnswer(place)
    if choice is None:
        raise ValueError(f"choices: {_kind(choices)}, not a list with a choice in it")
    if not isinstance(choice, Mapping):
        raise ValueError(f"choices.0: {_kind(choice)}, not an object")
    odd: list[str] = []
    usage = _usage(answer.get("usage"), odd)
    return _completion(choice, usage, odd)


def _parsed(body: str) -> Any:
    """Parse a body of bounded JSON; ``ValueError`` for anything else. An integer of too many digits is an infinity."""
    try:
        body = body.removeprefix("\ufeff")
        check_json_size(body)
        return json.loads(body, parse_int=_integer)
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError as error:
        problem = str(error)
    raise ValueError(f"the body is not JSON that is read: {problem}")  # outside of `except`: the error holds the body


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else math.copysign(math.inf, -1 if digits[0] == "-" else 1)


def _completion(choice: Mapping[str, Any], usage: Usage | None, odd: list[str]) -> Completion:
    finish_reason = choice.get("finish_reason")
    reason = _finish_reason(choice.get("native_finish_reason") if finish_reason is None else finish_reason, odd)
    message = choice.get("message")
    if message is None and reason.lower() in _EMPTY:
        message = {}
    if not isinstance(message, Mapping):
        raise ValueError(f"choices.0.message: {_kind(message)}, not an object")
    content, thought = _content(message.get("content"), odd)
    field = next((name for name in REASONING_KEYS if isinstance(message.get(name), str)), None)
    reasoning = (message[field] if field is not None else "") or thought
    refusal = message.get("refusal")
    calls = _calls(message, odd)
    if content is None and isinstance(refusal, str) and refusal:
        content = refusal
    # A model that says nothing has said "", and that counts. Without a sign that the model answered, the service broke
    # off, and there is no reply to score.
    answered = bool(reasoning or calls) or reason.lower() in _EMPTY or (usage is not None and usage.output_tokens > 0)
    if content is None and not answered:
        raise ValueError("choices.0.message: content is null, and there are no tool calls, no reasoning and no refusal")
    text = content or ""
    if len(text) + len(reasoning) > MAX_TEXT:
        raise ValueError(f"choices.0.message: {len(text) + len(reasoning):,} characters, more than {MAX_TEXT:,}")
    text = clean_text(text)
    reply: Message = {"role": "assistant", "content": text}
    if reasoning:
        reply["reasoning_content"] = clean_text(reasoning)
    if calls:
        reply["tool_calls"] = calls
    return Completion(text, reply, reason, usage, reasoning_field=field, odd=tuple(odd))


def _finish_reason(reason: Any, odd: list[str]) -> str:
    if reason is None:
        return "stop"
    if not isinstance(reason, str):
        odd.append(f"finish_reason is {_kind(reason)}; read as 'stop'")
        return "stop"
    if reason.lower() == "error":
        raise ValueError("choices.0.finish_reason is 'error': the service broke off")
    return _LENGTH if reason.lower() in _CUT else clean_text(reason[:100]) or "stop"


def _content(content: Any, odd: list[str]) -> tuple[str | None, str]:
    """Return the text of a content (``None`` without text), and the reasoning among its parts."""
    if content is None or isinstance(content, str):
        return content, ""
    parts = [content] if isinstance(content, Mapping) else content
    if not isinstance(parts, list):
        raise ValueError(f"choices.0.message.content: {_kind(content)}, not text")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        part_texts = list(_texts(part))
        if kind in ("thinking", "reasoning"):
            thoughts += part_texts
        elif part_texts and kind in ("text", "output_text", "refusal"):
            texts += part_texts
        else:
            odd.append("the content has a part that is no text; left out")
    odd.append("the content is in parts; their texts are joined")
    return ("".join(texts) if texts or not parts else None), "".join(thoughts)


def _texts(part: Any) -> Iterator[str]:
    """Yield the texts of a part of a content, which may have parts of its own (Mistral's thinking does)."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping):
        for name in ("text", "thinking", "reasoning", "refusal", "content"):
            value = part.get(name)
            if isinstance(value, Mapping):  # {"text": {"value": ...}}
                value = value.get("value")
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                texts = (item.get("text") for item in value if isinstance(item, Mapping))
                yield from (text for text in texts if isinstance(text, str))


def _calls(message: Mapping[str, Any], odd: list[str]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    if not calls and (old := message.get("function_call")):
        odd.append("a call stands in function_call; read as a tool call")
        calls = [{"function": old}]
    if not calls:
        return ()
    if isinstance(calls, str):
        odd.append("tool_calls is text; read as JSON")
        try:
            calls = json.loads(calls) or []
        except (ValueError, RecursionError):
            raise ValueError("choices.0.message.tool_calls: a text, not a list of calls") from None
    if isinstance(calls, Mapping):
        odd.append("tool_calls is one call; read as a list of it")
        calls = [calls]
    if not isinstance(calls, list):
        raise ValueError(f"choices.0.message.tool_calls: {_kind(calls)}, not a list of calls")
    if len(calls) > MAX_CALLS:
        raise ValueError(f"choices.0.message.tool_calls: {len(calls):,} calls, more than {MAX_CALLS:,}")
    if any(call is None for call in calls):
        odd.append("tool_calls has a null in it; left out")
    read: list[ToolCall] = []
    used_ids: set[str] = set()
    size = 0
    for number, call in enumerate(calls):
        if call is not None:
            made = _call(number, call, used_ids, odd)
            used_ids.add(made["id"])
            size += len(made["function"]["name"]) + len(made["function"]["arguments"])
            read.append(made)
    if size > MAX_TEXT:
        raise ValueError(f"choices.0.message.tool_calls: {size:,} characters, more than {MAX_TEXT:,}")
    return tuple(read)


def _call(number: int, call: Any, used_ids: set[str], odd: list[str]) -> ToolCall:
    place = f"choices.0.message.tool_calls.{number}"
    if not isinstance(call, Mapping):
        raise ValueError(f"{place}: {_kind(call)}, not a call")
    function = call.get("function")
    if function is None and "name" in call:
        odd.append("a tool call has no function of its own; its name and arguments are read beside its id")
        function = call
    if not isinstance(function, Mapping):
        raise ValueError(f"{place}.function: {_kind(function)}, not an object")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise ValueError(f"{place}.function.name: {_kind(name)}, not text")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        odd.append("the arguments of a tool call are not text; written as JSON")
        arguments = json.dumps(arguments, ensure_ascii=False)
    own_id = call.get("id")
    call_id = clean_text(str(own_id)) if isinstance(own_id, str | int) and not isinstance(own_id, bool) else ""
    if call_id in used_ids:
        odd.append("two tool calls of one answer have the same id; they are numbered")
        call_id = ""
    while not call_id or call_id in used_ids:
        call_id = f"call_{number}"
        number += MAX_CALLS  # another answer of the conversation may not use it, a call of this one may
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": clean_text(name), "arguments": clean_text(arguments)},
    }


def _usage(usage: Any, odd: list[str]) -> Usage | None:
    if usage is None:
        return None
    if not isinstance(usage, Mapping):
        odd.append(f"usage is {_kind(usage)}; left out")
        return None
    prompt, completion = (_count(usage, name, odd) for name in ("prompt_tokens", "completion_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens", odd) if isinstance(details, Mapping) else 0
    if prompt is None or completion is None:
        return None
    return Usage(prompt, completion, min(cached or 0, prompt))


def _count(usage: Mapping[str, Any], name: str, odd: list[str]) -> int | None:
    """Return a number of tokens, 0 where it is missing; ``None`` where it is invalid."""
    value = usage.get(name)
    if value is None:
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit():
        odd.append(f"usage.{name} is text; read as a number")
        value = _integer(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        odd.append(f"usage.{name} is no count of tokens; the usage is left out")
        return None
    if value > MAX_TOKENS:
        raise ValueError(f"usage.{name}: more than {MAX_TOKENS:,} tokens, which no answer takes")
    return math.ceil(value)


def _kind(value: Any) -> str:
    """Return the kind of a JSON value, in words."""
    if isinstance(value, bool):
        return "a truth value"
    for kinds, words in (((int, float), "a number"), (str, "a text"), (list, "a list"), (Mapping, "an object")):
        if isinstance(value, kinds):  # type: ignore[arg-type]
            return words
    return "null"
