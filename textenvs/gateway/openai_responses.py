"""OpenAI's responses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from ..messages import Messages, image_part, text_of, text_part
from ..text import quoted
from .model_call import (
    Fields,
    ModelCall,
    ModelReply,
    RequestError,
    Sampling,
    ToolSchemas,
    checked_choice,
    checked_tools,
    conversation,
    event,
    function_schema,
    logprob_entries,
    read_content,
)
from .openai_chat import error as error
from .openai_chat import read_format

_REFUSED = {
    "background": "a reply is waited for",
    "conversation": "give the messages as input, or previous_response_id",
    "prompt": "give the messages as input",
    "max_tool_calls": "tools are run by the program",
    "context_management": "the conversation is compacted by the program",
}


@dataclass
class Responses:
    """The responses of one session: what ``previous_response_id`` and an ``item_reference`` stand for."""

    #: By the response's id: the conversation with its reply, without the instructions.
    conversations: MutableMapping[str, Messages] = field(default_factory=dict)
    #: By the item's id: an item of a reply, as an item of an input.
    items: MutableMapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def remember(self, call: ModelCall, reply: ModelReply, number: int) -> None:
        messages = call.messages[1:] if call.instructions else call.messages
        self.conversations[_id(number)] = (*messages, reply.message)
        for item in _output(call, reply, number):
            self.items[item["id"]] = item


def read(body: Any, earlier: Responses) -> ModelCall:
    """Read a request; :class:`RequestError` for what it asks for and does not get."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    text = Fields(fields.get("text") or {}, "text")
    read_format(text.get("format"), "text.format")
    namespaces: dict[str, tuple[str, str]] = {}
    declared = [_tools(tool, f"tools[{i}]", namespaces) for i, tool in enumerate(fields.items("tools"))]
    tools = checked_tools(itertools.chain.from_iterable(declared))
    messages: list[Any] = []
    if instructions := fields.text("instructions", ""):
        messages.append({"role": "system", "content": instructions})
    if "previous_response_id" in fields:
        previous = fields.text("previous_response_id")
        if previous not in earlier.conversations:
            raise RequestError(f"previous_response_id: this session has no response {quoted(previous, 80)}", 404)
        messages += earlier.conversations[previous]
    content = fields.get("input")
    if isinstance(content, str):
        messages.append({"role": "user", "content": content})
    else:
        messages += _messages(fields.items("input"), earlier)
    return ModelCall(
        protocol="openai-responses",
        model=fields.text("model", "policy"),
        messages=conversation(messages),
        tools=tools,
        tool_choice=_choice(fields.get("tool_choice"), tools),
        parallel_tool_calls=fields.flag("parallel_tool_calls", True),
        sampling=Sampling(
            temperature=fields.number("temperature", 0, 100),
            top_p=fields.number("top_p", 0, 1),
            max_tokens=fields.integer("max_output_tokens", 1),
            logprobs="message.output_text.logprobs" in fields.items("include"),
            top_logprobs=fields.integer("top_logprobs") or 0,
        ),
        stream=fields.flag("stream"),
        instructions=bool(instructions),
        reasoning=bool(fields.get("reasoning")),
        namespaces=namespaces,
    )


def response(call: ModelCall, reply: ModelReply, number: int, created: int) -> dict[str, Any]:
    """Return the body of a response; ``number`` makes its ids, ``created`` is in seconds."""
    counts = {"input_tokens": reply.usage.input_tokens, "output_tokens": reply.usage.output_tokens}
    usage = {
        **counts,
        "total_tokens": sum(counts.values()),
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    cut = reply.finish_reason == "length"
    return {
        **_head(call, number, created, "incomplete" if cut else "completed"),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(call, reply, number),
        "usage": usage,
    }


def events(call: ModelCall, reply: ModelReply, number: int, created: int) -> Iterator[bytes]:
    """Yield the events of a streamed response."""
    sequence = 0

    def named(name: str, /, **data: Any) -> bytes:
        nonlocal sequence
        sequence += 1
        return event({"type": name, "sequence_number": sequence - 1, **data}, name)

    beginning = {**_head(call, number, created, "in_progress"), "incomplete_details": None, "output": [], "usage": None}
    yield named("response.created", response=beginning)
    yield named("response.in_progress", response=beginning)
    whole = response(call, reply, number, created)
    for place, item in enumerate(whole["output"]):
        at = {"output_index": place, "item_id": item["id"]}
        match item["type"]:
            case "message":
                empty, (part,) = {**item, "status": "in_progress", "content": []}, item["content"]
                within = {**at, "content_index": 0}
                yield named("response.output_item.added", output_index=place, item=empty)
                start = {**part, "text": "", "logprobs": []}
                yield named("response.content_part.added", **within, part=start)
                text = {"logprobs": part["logprobs"]}
                yield named("response.output_text.delta", **within, delta=part["text"], **text)
                yield named("response.output_text.done", **within, text=part["text"], **text)
                yield named("response.content_part.done", **within, part=part)
            case "function_call":
                empty = {**item, "status": "in_progress", "arguments": ""}
                yield named("response.output_item.added", output_index=place, item=empty)
                yield named("response.function_call_arguments.delta", **at, delta=item["arguments"])
                done = {"name": item["name"], "arguments": item["arguments"]}
                yield named("response.function_call_arguments.done", **at, **done)
            case _:
                yield named("response.output_item.added", output_index=place, item={**item, "summary": []})
                within, (part,) = {**at, "summary_index": 0}, item["summary"]
                yield named("response.reasoning_summary_part.added", **within, part={**part, "text": ""})
                yield named("response.reasoning_summary_text.delta", **within, delta=part["text"])
                yield named("response.reasoning_summary_text.done", **within, text=part["text"])
                yield named("response.reasoning_summary_part.done", **within, part=part)
        yield named("response.output_item.done", output_index=place, item=item)
    yield named(f"response.{whole['status']}", response=whole)


# ------------------------------------------------------------------ requests


def _messages(items: Any, earlier: Responses) -> Iterator[dict[str, Any]]:
    """Yield the messages of input items: a reply's text and its calls, which are items, are one message."""
    reply: dict[str, Any] = {}
    for i, item in enumerate(items):
        where = f"input[{i}]"
        fields = Fields(item, where)
        if fields.get("type") == "item_reference":
            reference = fields.text("id")
            if reference not in earlier.items:
                raise RequestError(f"{where}: this session has no item {quoted(reference, 80)}", 404)
            fields = Fields(earlier.items[reference], where)
        kind = fields.get("type") or "message"
        replied = kind in ("function_call", "reasoning") or (kind == "message" and fields.get("role") == "assistant")
        # Neighbouring texts of the assistant are one reply: Pydantic AI sends reasoning back as a text of its own.
        begins = not replied or ("tool_calls" in reply and kind != "function_call")
        begins |= "content" in reply and kind == "reasoning"
        if begins and reply:
            yield _whole(reply)
            reply = {}
        match kind:
            case "message" if replied:
                content = read_content(fields.get("content"), f"{where}.content", _part)
                reply["content"] = _joined(reply["content"], content) if "content" in reply else content
            case "message":
                content = read_content(fields.get("content"), f"{where}.content", _part)
                yield {"role": fields.text("role", ""), "content": content}
            case "function_call":
                name = fields.text("name")
                if "namespace" in fields:
                    name = _full_name(fields.text("namespace"), name)
                function = {"name": name, "arguments": fields.text("arguments", "{}")}
                made = {"id": fields.text("call_id"), "type": "function", "function": function}
                reply.setdefault("tool_calls", []).append(made)
            case "function_call_output":
                content = read_content(fields.get("output"), f"{where}.output", _part)
                yield {"role": "tool", "content": content, "tool_call_id": fields.text("call_id")}
            case "reasoning":
                parts = [*fields.items("summary"), *fields.items("content")]
                texts = [Fields(part, where).text("text", "") for part in parts]
                if any(texts):
                    reply["reasoning_content"] = "\n".join(texts)
            case _:
                raise RequestError(f"{where}: an item of the type {quoted(kind, 60)} is not offered")
    if reply:
        yield _whole(reply)


def _joined(*contents: Any) -> list[Any]:
    return [part for content in contents for part in ([text_part(content)] if isinstance(content, str) else content)]


def _whole(reply: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", **reply}


def _part(fields: Fields) -> Any:
    match fields.get("type"):
        case "input_text" | "output_text" | "text":
            return text_part(fields.text("text"))
        case "refusal":
            return text_part(fields.text("refusal"))
        case "input_image" if isinstance(fields.get("image_url"), str):
            return image_part(fields.text("image_url"))
    raise RequestError(f"{fields.where}: a part is a text or an image's URL, not {quoted(fields.get('type'), 60)}")


def _tools(tool: Any, where: str, namespaces: dict[str, tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the schemas of a function, or of a namespace's functions, whose names are added to ``namespaces``."""
    fields = Fields(tool, where)
    if fields.get("type") != "namespace":
        yield _tool(fields, where)
        return
    namespace = fields.text("name")
    for i, item in enumerate(fields.items("tools")):
        schema = _tool(Fields(item, f"{where}.tools[{i}]"), f"{where}.tools[{i}]")
        name = schema["function"]["name"]
        full = _full_name(namespace, name)
        namespaces[full] = (namespace, name)
        yield {**schema, "function": {**schema["function"], "name": full}}


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace}__{name}"


def _tool(fields: Fields, where: str) -> dict[str, Any]:
    if fields.get("type") != "function":
        raise RequestError(
            f"{where}: a tool is a function, not of the type {quoted(fields.get('type'), 60)}",
            code="unsupported_parameter",
        )
    return function_schema(fields.get("name"), fields.get("description"), fields.get("parameters"), where)


def _choice(value: Any, tools: ToolSchemas) -> str:
    if value is None or value in ("auto", "none", "required"):
        return checked_choice(value or "auto", tools)
    if not isinstance(value, Mapping) or value.get("type") != "function" or not isinstance(value.get("name"), str):
        raise RequestError(f"tool_choice must be auto, none, required or a function, not {quoted(value, 80)}")
    return checked_choice(f"function:{value['name']}", tools)


# ------------------------------------------------------------------ responses


def _id(number: int) -> str:
    return f"resp_{number}"


def _head(call: ModelCall, number: int, created: int, status: str) -> dict[str, Any]:
    kind, _, name = call.tool_choice.partition(":")
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in call.tools]
    return {
        "id": _id(number),
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "instructions": text_of(call.messages[0]) if call.instructions else None,
        "max_output_tokens": call.sampling.max_tokens,
        "metadata": {},
        "model": call.model,
        "parallel_tool_calls": call.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "temperature": call.sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": {"type": "function", "name": name} if kind == "function" else call.tool_choice,
        "tools": tools,
        "top_p": call.sampling.top_p,
        "truncation": "disabled",
    }


def _output(call: ModelCall, reply: ModelReply, number: int) -> list[dict[str, Any]]:
    message, logprobs = reply.message, logprob_entries(call, reply)
    items: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        summary = [{"type": "summary_text", "text": message["reasoning_content"]}]
        items.append({"id": f"rs_{number}", "type": "reasoning", "summary": summary})
    calls = message.get("tool_calls", ())
    if (text := text_of(message)) or not calls:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}
        head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**head, "content": [part]})
    for place, made in enumerate(calls):
        head = {"id": f"fc_{number}_{place}", "type": "function_call", "call_id": made["id"], "status": "completed"}
        namespace = call.namespaces.get(made["function"]["name"])
        own = {} if namespace is None else {"namespace": namespace[0], "name": namespace[1]}
        items.append({**head, **made["function"], **own})
    return items
