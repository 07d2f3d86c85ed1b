"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..messages import Message, image_part, made_id, text_of, text_part
from ..text import quoted
from .model_call import (
    Fields,
    ModelCall,
    ModelReply,
    RequestError,
    Sampling,
    ToolSchemas,
    arguments_object,
    checked_choice,
    checked_tools,
    conversation,
    event,
    function_schema,
    read_content,
    read_stop,
)

_REFUSED = {
    "container": "there is no code execution; give a tool",
    "mcp_servers": "give their tools among tools",
    "prefill": "a reply cannot be begun for the model",
}
_ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def read(body: Any) -> ModelCall:
    """Read a request; :class:`RequestError` for what it asks for and does not get."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    for name in ("output_format", "output_config"):
        if name in fields and (name == "output_format" or Fields(fields.get(name), name).get("format") is not None):
            raise RequestError(
                f"{name}: replies are not constrained to a format; ask for it in the messages, or give a tool whose "
                "arguments have it",
                code="unsupported_parameter",
            )
    limit = fields.integer("max_tokens", 1)
    if limit is None:
        raise RequestError("max_tokens: it must be there, an integer of at least 1")
    messages: list[Any] = []
    if "system" in fields:
        messages.append({"role": "system", "content": read_content(fields.get("system"), "system", _text)})
    for i, message in enumerate(fields.items("messages")):
        messages += _message(message, f"messages[{i}]")
    tools = checked_tools(_tool(tool, f"tools[{i}]") for i, tool in enumerate(fields.items("tools")))
    choice = Fields(fields.get("tool_choice") or {}, "tool_choice")
    thinking = Fields(fields.get("thinking") or {}, "thinking")
    return ModelCall(
        protocol="anthropic",
        model=fields.text("model", "policy"),
        messages=conversation(messages),
        tools=tools,
        tool_choice=_choice(choice, tools),
        parallel_tool_calls=not choice.flag("disable_parallel_tool_use"),
        sampling=Sampling(
            temperature=fields.number("temperature", 0, 1),
            top_p=fields.number("top_p", 0, 1),
            top_k=fields.integer("top_k"),
            max_tokens=limit,
            stop=read_stop(fields.get("stop_sequences"), "stop_sequences"),
        ),
        stream=fields.flag("stream"),
        reasoning=thinking.get("type") in ("enabled", "adaptive"),
    )


def served(message: Message) -> Message:
    """Return a reply as this protocol can say it: a call whose arguments are no JSON object is text."""
    calls = message.get("tool_calls", ())
    good = tuple(call for call in calls if arguments_object(call["function"]["arguments"]) is not None)
    if len(good) == len(calls):
        return message
    bad = [f"{c['function']['name']}({c['function']['arguments']})" for c in calls if c not in good]
    text = "\n".join(filter(None, [text_of(message), *bad]))
    changed: dict[str, Any] = {**message, "content": text, "tool_calls": good}
    if not good:
        del changed["tool_calls"]
    return changed  # type: ignore[return-value]


def response(call: ModelCall, reply: ModelReply, number: int, created: int) -> dict[str, Any]:
    """Return the body of a response; ``number`` makes its id."""
    return {**_head(call, reply, number), "content": _blocks(call, reply.message), **_end(reply)}


def events(call: ModelCall, reply: ModelReply, number: int, created: int) -> Iterator[bytes]:
    """Yield the events of a streamed response."""

    def named(name: str, /, **data: Any) -> bytes:
        return event({"type": name, **data}, name)

    beginning = {**_head(call, reply, number), "content": [], "stop_reason": None, "stop_sequence": None}
    yield named("message_start", message=beginning)
    for index, block in enumerate(_blocks(call, reply.message)):
        match block["type"]:
            case "text":
                empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            case "thinking":
                empty, delta = {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
            case _:
                written = json.dumps(block["input"], ensure_ascii=False)
                empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": written}
        yield named("content_block_start", index=index, content_block=empty)
        yield named("content_block_delta", index=index, delta=delta)
        yield named("content_block_stop", index=index)
    yield named("message_delta", delta=_end(reply), usage=_usage(reply))
    yield named("message_stop")


def error(problem: RequestError) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


# ------------------------------------------------------------------ requests


def _message(message: Any, where: str) -> Iterator[dict[str, Any]]:
    """Yield the messages that one of Anthropic's stands for: results of calls are messages of their own."""
    fields = Fields(message, where)
    role = fields.get("role")
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"{where}.role must be user or assistant, not {quoted(role, 60)}")
    content = fields.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be a text or a list of parts, not {quoted(content, 60)}")
    if role == "assistant":
        yield _assistant(content, where)
        return
    parts: list[Any] = []
    for i, block in enumerate(content):
        place = f"{where}.content[{i}]"
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            if parts:
                yield {"role": role, "content": parts}
                parts = []
            result = Fields(block, place)
            yield {
                "role": "tool",
                "content": read_content(result.get("content") or "", f"{place}.content", _part),
                "tool_call_id": result.text("tool_use_id"),
            }
        else:
            parts.append(_part(Fields(block, place)))
    if parts or not content:
        yield {"role": role, "content": parts or ""}


def _assistant(content: list[Any], where: str) -> dict[str, Any]:
    texts, reasoning, calls = [], [], []
    for i, block in enumerate(content):
        fields = Fields(block, f"{where}.content[{i}]")
        match fields.get("type"):
            case "text":
                texts.append(text_part(fields.text("text")))
            case "thinking":
                reasoning.append(fields.text("thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = json.dumps(fields.get("input") or {}, ensure_ascii=False)
                function = {"name": fields.text("name"), "arguments": arguments}
                calls.append({"id": fields.text("id", made_id(i)), "type": "function", "function": function})
            case kind:
                raise RequestError(f"{where}.content[{i}]: an assistant has no block of the type {quoted(kind, 60)}")
    message: dict[str, Any] = {"role": "assistant", "content": texts or ""}
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    return message


def _text(fields: Fields) -> Any:
    return text_part(fields.text("text"))


def _part(fields: Fields) -> Any:
    match fields.get("type"):
        case "text":
            return _text(fields)
        case "image":
            source = Fields(fields.get("source"), f"{fields.where}.source")
            if source.get("type") == "base64":
                return image_part(f"data:{source.text('media_type')};base64,{source.text('data')}")
            if source.get("type") == "url":
                return image_part(source.text("url"))
    kind = quoted(fields.get("type"), 60)
    raise RequestError(f"{fields.where}: a block is a text, an image or a tool's result, not {kind}")


def _tool(tool: Any, where: str) -> dict[str, Any]:
    fields = Fields(tool, where)
    if fields.get("type") not in (None, "custom"):
        raise RequestError(
            f"{where}: a tool is the program's own, and {quoted(fields.get('type'), 60)} would be run by the service",
            code="unsupported_parameter",
        )
    return function_schema(fields.get("name"), fields.get("description"), fields.get("input_schema"), where)


def _choice(choice: Fields, tools: ToolSchemas) -> str:
    kind = choice.get("type") or "auto"
    if kind == "tool":
        return checked_choice(f"function:{choice.text('name')}", tools)
    if kind not in ("auto", "any", "none"):
        raise RequestError(f"tool_choice.type must be auto, any, tool or none, not {quoted(kind, 60)}")
    return checked_choice("required" if kind == "any" else kind, tools)


# ------------------------------------------------------------------ responses


def _head(call: ModelCall, reply: ModelReply, number: int) -> dict[str, Any]:
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": call.model}
    return {**head, "usage": _usage(reply)}


def _usage(reply: ModelReply) -> dict[str, int]:
    return {"input_tokens": reply.usage.input_tokens, "output_tokens": reply.usage.output_tokens}


def _blocks(call: ModelCall, message: Message) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if call.reasoning and message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if text := text_of(message):
        blocks.append({"type": "text", "text": text})
    for made in message.get("tool_calls", ()):
        function = made["function"]
        arguments = arguments_object(function["arguments"])
        blocks.append({"type": "tool_use", "id": made["id"], "name": function["name"], "input": arguments})
    return blocks


def _end(reply: ModelReply) -> dict[str, Any]:
    reasons = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "stop_sequence": "stop_sequence"}
    return {"stop_reason": reasons[reply.finish_reason], "stop_sequence": reply.stop_sequence}
