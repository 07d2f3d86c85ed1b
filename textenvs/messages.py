"""Chat messages: the one vocabulary that environments, users, engines and trainers share.

A message is a plain ``dict`` in OpenAI's chat format, typed here as a ``TypedDict``. A conversation is a *tuple* of
messages, and both are treated as immutable: code that wants another message builds a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, TypeAlias, TypedDict

from .text import excerpt

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
    """Where an image is: an address, or the image itself as a ``data:`` URL."""

    url: str


class ImagePart(TypedDict):
    """An image among the parts of a content."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part: TypeAlias = TextPart | ImagePart
Content: TypeAlias = str | Sequence[Part]


class Message(TypedDict, total=False):
    """One chat message.

    ``content`` is text, or a sequence of parts (texts and images, in OpenAI's form). It may be empty where
    ``tool_calls`` says the rest. Code that wants words takes :func:`text_of`.
    """

    role: Required[Role]
    content: Required[Content]
    name: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[Sequence[ToolCall]]
    tool_call_id: NotRequired[str]


Messages: TypeAlias = tuple[Message, ...]

_OPTIONAL_TEXT = ("name", "reasoning_content", "tool_call_id")
_KEYS = {"role", "content", "tool_calls", *_OPTIONAL_TEXT}
_PART = (
    "{'type': 'text', 'text': str} or {'type': 'image_url', 'image_url': {'url': str}}, with a url that is not empty"
)
_CALL = "{'id': str, 'type': 'function', 'function': {'name': str, 'arguments': str (JSON text)}}"
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_THINK_END = "</think>"
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


def image_part(url: str) -> ImagePart:
    return {"type": "image_url", "image_url": {"url": url}}


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message's content; of parts, the texts, each on a line of its own."""
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
    """The text of a ``dict`` that is nothing but one of these roles and a text, as nearly every message is."""
    if type(message) is dict and len(message) == 2 and message.get("role") in roles:
        text = message.get("content")
        return text if isinstance(text, str) else None
    return None


def problem_with(message: Any) -> str | None:
    """What is wrong with ``message`` as a chat message, in words, or ``None`` when nothing is."""
    if plain_text(message, *_PLAIN_ROLES) is not None:
        return None
    if not isinstance(message, Mapping):
        return f"a message is a mapping with 'role' and 'content', not {type(message).__name__}"
    if unknown := set(message) - _KEYS:
        return f"unknown keys {sorted(map(str, unknown))}; a message has {sorted(_KEYS)}"
    if message.get("role") not in ROLES:
        return f"role is {message.get('role')!r}; it must be one of {', '.join(ROLES)}"
    if not isinstance(message.get("content"), str) and (problem := _problem_with_parts(message.get("content"))):
        return problem
    if message["role"] in ("system", "assistant") and has_images(message):
        return f"an image is part of a user or tool message, not of a {message['role']} message"
    for key in _OPTIONAL_TEXT:
        if key in message and not isinstance(message[key], str):
            return f"{key} must be a string, not {type(message[key]).__name__}"
    if message["role"] == "tool" and "tool_call_id" not in message:
        return "a tool message needs 'tool_call_id'"
    if "tool_calls" in message:
        if message["role"] != "assistant":
            return f"only an assistant message has 'tool_calls', not a {message['role']} message"
        return _problem_with_calls(message["tool_calls"])
    return None


def _problem_with_parts(parts: Any) -> str | None:
    if not isinstance(parts, (list, tuple)):
        return f"content must be a string or a list of parts, not {type(parts).__name__}"
    if not parts:
        return "content has no part in its list; an empty content is the string ''"
    return next((f"content[{i}] must be {_PART}" for i, part in enumerate(parts) if not _is_part(part)), None)


def _problem_with_calls(calls: Any) -> str | None:
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Sequence):
        return f"tool_calls must be a sequence of calls, not {type(calls).__name__}"
    return next((f"tool_calls[{i}] must be {_CALL}" for i, call in enumerate(calls) if not _is_call(call)), None)


def _is_part(part: Any) -> bool:
    match part:
        case {"type": "text", "text": str()}:
            return len(part) == 2
        case {"type": "image_url", "image_url": {"url": str(url)} as image}:
            return url != "" and len(part) + len(image) == 3
    return False


def _is_call(call: Any) -> bool:
    match call:
        case {"id": str(), "type": "function", "function": {"name": str(), "arguments": str()} as function}:
            return len(call) == 3 and len(function) == 2
    return False


def check_conversation(messages: Iterable[Any], where: str) -> Messages:
    """Return ``messages`` as a tuple, or raise ``ValueError`` naming ``where`` and the first bad message."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise ValueError(f"{where}: expected a sequence of messages, not {type(messages).__name__}")
    checked = tuple(messages)
    for i, message in enumerate(checked):
        if problem := problem_with(message):
            raise ValueError(f"{where}: message {i}: {problem}")
    return checked


def copy_messages(messages: Iterable[Message]) -> Messages:
    """A deep copy: who receives an observation may keep it or change it (Gymnasium's checker asks for that)."""
    # This runs for every message of every turn, and nearly all are a role and a text.
    return tuple(
        {**message} if len(message) == 2 and type(message["content"]) is str else _copied(message, str)
        for message in messages
    )


def clean_messages(messages: Iterable[Message]) -> Messages:
    """A deep copy in which every text is clean (:func:`clean_text`)."""
    return tuple(_copied(message, clean_text) for message in messages)


def _copied(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {name: _copied(each, text) for name, each in value.items()}
    return tuple(_copied(each, text) for each in value)


def visible_text(message: Message) -> str:
    """What another party may read of a message: its text without private reasoning (``<think>`` blocks).

    An unclosed ``<think>`` hides everything after it: a reply cut off while thinking has said nothing. A ``</think>``
    without a beginning hides everything before it: some chat templates open the block in the prompt.
    """
    return _THINK.sub("", text_of(message)).rpartition(_THINK_END)[2].strip()


def visible_conversation(messages: Iterable[Message], *, tools: bool = False) -> Messages:
    """What a user sees of a conversation: what was said, by whom, without private reasoning.

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
    """The conversation for a person to read, one ``role: text`` paragraph a message."""
    lines = []
    for message in messages:
        content = message["content"]
        parts = [text_part(content)] if isinstance(content, str) else content
        shown = [
            part["text"] if part["type"] == "text" else f"[image: {excerpt(part['image_url']['url'], _URL_CHARS)}]"
            for part in parts
        ]
        lines.append(f"{message['role']}: " + "\n".join(shown))
        for call in message.get("tool_calls", ()):
            lines.append(f"  -> {call['function']['name']}({call['function']['arguments']})")
    return "\n".join(lines)
