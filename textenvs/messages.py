"""Chat messages: the one vocabulary that environments, users, engines and trainers share.

A message is a plain ``dict`` in OpenAI's chat format, typed here as a ``TypedDict``. A conversation is a *tuple* of
messages, and both are treated as immutable: code that wants another message builds a new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, TypeAlias, TypedDict

import numpy as np

from .reasoning import REASONING_KEYS, split_reasoning
from .text import excerpt, quoted

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = ("system", "user", "assistant", "tool")
_PLAIN_ROLES = ("user", "assistant", "system")  # of messages that need nothing but content


class FunctionCall(TypedDict):
    """``arguments`` is a JSON string, exactly as the model wrote it."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """One tool call of an assistant message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class TextPart(TypedDict):
    """A text among the parts of a content."""

    type: Literal["text"]
    text: str


class ImageUrl(TypedDict):
    """An image's address, or the image itself as a ``data:`` URL."""

    url: str
    detail: NotRequired[str]


class ImagePart(TypedDict):
    """An image among the parts of a content."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part: TypeAlias = TextPart | ImagePart
Content: TypeAlias = str | Sequence[Part]


class Message(TypedDict, total=False):
    """One chat message.

    ``content`` is text, or a sequence of parts (texts and images, in OpenAI's form). It may be empty where
    ``tool_calls`` says the rest. Code that wants words takes :func:`text_of`. What others write in other ways becomes
    this form in :func:`read_message`, wherever it comes in.
    """

    role: Required[Role]
    content: Required[Content]
    name: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[Sequence[ToolCall]]
    tool_call_id: NotRequired[str]


Messages: TypeAlias = tuple[Message, ...]

#: Other names of roles, which OpenAI's messages had before or have now.
_ROLE_NAMES = {"developer": "system", "function": "tool"}
_KEYS = {"role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id"}
_READ = {*_KEYS, *REASONING_KEYS, "refusal", "function_call"}
# What services put beside a message, and what is no part of what it says.
_IGNORED = {"annotations", "reasoning_details"}
_PART = (
    "{'type': 'text', 'text': str} or {'type': 'image_url', 'image_url': {'url': str}}, with a url that is not empty"
)
_CALL = (
    "{'id': str, 'type': 'function', 'function': {'name': str, 'arguments': a JSON object, or the text of one}}, "
    "where 'id' and 'type' may be left out"
)
_URL_CHARS = 60  # of an image's address in a transcript: it may be the image itself


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: Content) -> Message:
    return {"role": "user", "content": content}


def assistant(content: Content, tool_calls: Sequence[ToolCall] = ()) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = tuple(tool_calls)
    return message


def tool(content: Content, tool_call_id: str, name: str | None = None) -> Message:
    message: Message = {"role": "tool", "content": content, "tool_call_id": tool_call_id}
    if name is not None:
        message["name"] = name
    return message


def text_part(text: str) -> TextPart:
    return {"type": "text", "text": text}


def image_part(url: str, detail: str | None = None) -> ImagePart:
    image: ImageUrl = {"url": url}
    if detail is not None:
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content; of parts, the texts, each on a line of its own."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def has_images(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return not isinstance(content, str) and any(part["type"] == "image_url" for part in content)


def clean_text(text: str) -> str:
    """Replace lone surrogates, which no tokenizer and no UTF-8 file can hold, by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def plain_text(message: Any, *roles: str) -> str | None:
    """Return the text of a ``dict`` with just one of these roles and a text, as nearly every message is."""
    if type(message) is dict and len(message) == 2 and message.get("role") in roles:
        text = message.get("content")
        return text if isinstance(text, str) else None
    return None


def read_message(value: Any, before: Sequence[Message] = ()) -> Message:
    """Read a chat message, as OpenAI's services, ``datasets``, TRL and verl write it, into this package's one form.

    * A key that is null is not there: Arrow fills every row with every key.
    * ``content`` may be missing where ``tool_calls``, a refusal or reasoning stand instead.
    * ``arguments`` may be an object, without those of its keys that are null; it becomes its JSON text.
    * A call without an ``id`` gets one; a result without ``tool_call_id`` answers the first call that has none yet.
    * ``reasoning`` and ``thinking`` are ``reasoning_content``, ``function_call`` a call, ``developer`` is ``system``.

    Args:
        value: A mapping.
        before: The messages before it, in the form of this package.

    Raises:
        ValueError: What is wrong with it; a key that is not known is.
    """
    if plain_text(value, *_PLAIN_ROLES) is not None:
        return value  # type: ignore[no-any-return]
    if not isinstance(value, Mapping):
        raise ValueError(f"a message is a mapping with 'role' and 'content', not {type(value).__name__}")
    fields = {key: item for key, item in value.items() if not _is_absent(item)}
    if unknown := set(fields) - _READ - _IGNORED:
        raise ValueError(f"unknown keys {sorted(map(str, unknown))}; a message has {sorted(_KEYS)}")
    named = fields.get("role")
    role = _ROLE_NAMES.get(named, named) if isinstance(named, str) else named
    if role not in ROLES:
        raise ValueError(f"role is {quoted(named)}; it must be one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": role}
    texts, message["content"] = _read_content(fields, value.get("content"))
    if role in ("system", "assistant") and has_images(message):
        raise ValueError(f"an image is part of a user or tool message, not of a {role} message")
    if "name" in fields:
        message["name"] = _text(fields, "name")
    reasoning = next((_text(fields, key) for key in REASONING_KEYS if key in fields), None)
    if reasoning is not None or texts:
        message["reasoning_content"] = reasoning or "\n".join(texts)
    if calls := _read_calls(fields, role, sum(len(earlier.get("tool_calls", ())) for earlier in before)):
        message["tool_calls"] = calls
    if "tool_call_id" in fields:
        message["tool_call_id"] = _text(fields, "tool_call_id")
    elif role == "tool":
        message["tool_call_id"] = _answered(before, message.get("name"))
    if message["content"] == () and not message.get("tool_calls") and not message.get("reasoning_content"):
        if "content" in fields:
            raise ValueError("content has no part in its list; an empty content is the string ''")
        raise ValueError("content must be a string or a list of parts, not NoneType: the message says nothing")
    message["content"] = message["content"] or ""
    return message  # type: ignore[return-value]


def problem_with(message: Any) -> str | None:
    """Return what is wrong with ``message`` as a chat message, in words, or ``None``."""
    try:
        read_message(message)
    except ValueError as error:
        return str(error)
    return None


def _is_absent(value: Any, depth: int = 4) -> bool:
    """Null, or a struct of nulls, which ``datasets`` makes of a struct that is null."""
    if isinstance(value, Mapping):
        return depth > 0 and all(_is_absent(item, depth - 1) for item in value.values())
    return value is None


def _text(fields: Mapping[str, Any], key: str) -> str:
    if not isinstance(fields[key], str):
        raise ValueError(f"{key} must be a string, not {type(fields[key]).__name__}")
    return str(fields[key])


def _listed(value: Any) -> Sequence[Any] | None:
    """``value`` if it is a list of things; in a row of pandas it is an array."""
    if isinstance(value, np.ndarray):
        return value.tolist()  # type: ignore[no-any-return]
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else None


def _read_content(fields: Mapping[str, Any], content: Any, inside: bool = False) -> tuple[list[str], Content]:
    """Return the texts of reasoning among a content's parts, and the content without them.

    ``inside`` reasoning there is no further reasoning.
    """
    refusal = [_text(fields, "refusal")] if "refusal" in fields else []
    if isinstance(content, str) and not refusal:
        return [], content
    parts = [content] if isinstance(content, str) else _listed(content)
    if parts is None:
        if content is not None:
            raise ValueError(f"content must be a string or a list of parts, not {type(content).__name__}")
        parts = []
    reasoning: list[str] = []
    read: list[Part] = []
    for number, part in enumerate(parts):
        entries = part if not isinstance(part, Mapping) else {k: v for k, v in part.items() if not _is_absent(v)}
        match entries:
            case str() if isinstance(content, str):
                read.append(text_part(entries))
            case {"type": "text", "text": str(text)} if len(entries) == 2:
                read.append(text_part(str(text)))
            case {"type": "refusal", "refusal": str(text)} if len(entries) == 2:
                read.append(text_part(str(text)))
            case {"type": "thinking", "thinking": thinking} if not inside:
                reasoning.append(text_of({"content": _read_content({}, thinking, inside=True)[1]}))
            case {"type": "image_url", "image_url": {"url": str(url)} as image} if url and len(entries) == 2:
                if extra := {key for key in image if image[key] is not None} - {"url", "detail"}:
                    raise ValueError(f"content[{number}] must be {_PART}; image_url has {sorted(map(str, extra))}")
                read.append(image_part(url, image.get("detail")))
            case _:
                raise ValueError(f"content[{number}] must be {_PART}")
    read += map(text_part, refusal)
    if refusal:
        return reasoning, text_of({"content": read})
    return reasoning, tuple(read)


def _read_calls(fields: Mapping[str, Any], role: str, first: int) -> tuple[ToolCall, ...]:
    calls = fields.get("tool_calls", ())
    if "tool_calls" in fields and role != "assistant":
        raise ValueError(f"only an assistant message has 'tool_calls', not a {role} message")
    if "function_call" in fields:
        if calls:
            raise ValueError("tool_calls and function_call, its old form, are both there")
        calls = [{"function": fields["function_call"]}]
    if (listed := _listed(calls)) is None:
        raise ValueError(f"tool_calls must be a sequence of calls, not {type(calls).__name__}")
    if listed and role != "assistant":
        raise ValueError(f"only an assistant message has 'function_call', not a {role} message")
    return tuple(_read_call(call, i, first + i) for i, call in enumerate(listed))


def _read_call(call: Any, place: int, number: int) -> ToolCall:
    problem = f"tool_calls[{place}] must be {_CALL}"
    if not isinstance(call, Mapping):
        raise ValueError(problem)
    entries = {key: item for key, item in call.items() if item is not None}
    call_id, kind = entries.pop("id", made_id(number)), entries.pop("type", "function")
    function = entries.pop("function") if "function" in entries else entries  # some write a call without this layer
    if kind != "function" or (entries and function is not entries) or not isinstance(function, Mapping):
        raise ValueError(problem)
    if {key for key in function if function[key] is not None} - {"name", "arguments"}:
        raise ValueError(problem)
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise ValueError(problem)
    if not isinstance(arguments, str):
        if not isinstance(arguments, Mapping):
            raise ValueError(problem)
        try:
            arguments = json.dumps(_plain(arguments), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"tool_calls[{place}]: its arguments are no JSON: {error}") from None
    return {"id": str(call_id), "type": "function", "function": {"name": str(name), "arguments": str(arguments)}}


def _plain(value: Any) -> Any:
    """JSON of what a row of Arrow or pandas has, without keys that are null."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    if (listed := _listed(value)) is not None:
        return [_plain(item) for item in listed]
    return value.item() if isinstance(value, np.generic) else value


def made_id(number: int) -> str:
    """Return an id for a call without one: nine letters and digits, as Mistral's templates require."""
    return f"call{number:05d}"


def _answered(before: Sequence[Message], name: str | None) -> str:
    """Return the id of the call that a result without ``tool_call_id`` answers."""
    results: list[Message] = []
    for message in reversed(before):
        if message["role"] == "tool":
            results.append(message)
            continue
        if message["role"] != "assistant":
            break
        calls = message.get("tool_calls", ())
        if not calls:  # they stand in its text
            return made_id(sum(len(earlier.get("tool_calls", ())) for earlier in before) + len(results))
        answered = {result["tool_call_id"] for result in results}
        waiting = [call for call in calls if call["id"] not in answered]
        if waiting:
            return next((call["id"] for call in waiting if call["function"]["name"] == name), waiting[0]["id"])
        break
    raise ValueError("a tool message needs 'tool_call_id', or a call before it that has no result yet")


def check_conversation(messages: Iterable[Any], where: str, before: Messages = ()) -> Messages:
    """Read every message (:func:`read_message`), or raise ``ValueError`` naming ``where`` and the first bad one.

    ``before`` are the messages that the conversation begins with, read already and not returned.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise ValueError(f"{where}: expected a sequence of messages, not {type(messages).__name__}")
    read = list(before)
    for i, message in enumerate(messages, start=len(before)):
        try:
            read.append(read_message(message, read))
        except ValueError as problem:
            raise ValueError(f"{where}: message {i}: {problem}") from None
    return tuple(read[len(before) :])


def copy_messages(messages: Iterable[Message]) -> Messages:
    """Return a deep copy, which a receiver may keep or change (Gymnasium's checker asks for that)."""
    # This runs for every message of every turn, and nearly all are a role and a text.
    return tuple(
        {**message} if len(message) == 2 and type(message["content"]) is str else _copied(message, str)
        for message in messages
    )


def clean_messages(messages: Iterable[Message]) -> Messages:
    """Return a deep copy in which every text is clean (:func:`clean_text`)."""
    return tuple(_copied(message, clean_text) for message in messages)


def _copied(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {name: _copied(item, text) for name, item in value.items()}
    return tuple(_copied(item, text) for item in value)


def visible_text(message: Message) -> str:
    """Return the text of a message that others may read: without private reasoning (:mod:`textenvs.reasoning`).

    Users and tools have none. A ``reasoning_content`` that is empty says that nothing of the content is private.
    """
    text = text_of(message)
    if message["role"] != "assistant" or message.get("reasoning_content") == "":
        return text.strip()
    return split_reasoning(text).text


def visible_conversation(messages: Iterable[Message], *, tools: bool = False) -> Messages:
    """Return the messages that a user sees, without private reasoning.

    System messages are left out (they are for the policy), and so are tool calls and their results, unless ``tools``:
    then each is a line of the assistant's message. An assistant message without visible words stays, empty: silence is
    something that a user notices, too. Neighbours of one role are joined.
    """
    seen: list[Message] = []
    for message in messages:
        if message["role"] == "system" or (message["role"] == "tool" and not tools):
            continue
        lines = [visible_text(message)]
        if message["role"] == "tool":
            lines = [f"[result of {message.get('name') or 'a tool'}: {lines[0]}]"]
        elif tools:
            calls = [call["function"] for call in message.get("tool_calls", ())]
            lines += [f"[calls {call['name']}({call['arguments']})]" for call in calls]
        role: Role = "user" if message["role"] == "user" else "assistant"
        if seen and seen[-1]["role"] == role:
            lines.insert(0, text_of(seen.pop()))
        seen.append({"role": role, "content": "\n".join(line for line in lines if line)})
    return tuple(seen)


def transcript(messages: Sequence[Message]) -> str:
    """Return the conversation for a person to read, one ``role: text`` paragraph a message."""
    lines = []
    for message in messages:
        content = message["content"]
        parts = [text_part(content)] if isinstance(content, str) else content
        texts = [
            part["text"] if part["type"] == "text" else f"[image: {excerpt(part['image_url']['url'], _URL_CHARS)}]"
            for part in parts
        ]
        lines.append(f"{message['role']}: " + "\n".join(texts))
        for call in message.get("tool_calls", ()):
            lines.append(f"  -> {call['function']['name']}({call['function']['arguments']})")
    return "\n".join(lines)
