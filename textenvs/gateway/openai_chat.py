"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..messages import Message, text_of
from ..text import quoted
from .model_call import (
    Fields,
    ModelCall,
    ModelReply,
    RequestError,
    Sampling,
    ToolSchemas,
    Usage,
    checked_choice,
    checked_tools,
    conversation,
    event,
    function_schema,
    logprob_entries,
    read_stop,
)

#: Fields that ask for something that is not offered.
_REFUSED = {
    "audio": "replies are text",
    "functions": "give tools instead",
    "function_call": "give tool_choice instead",
    "logit_bias": "tokens cannot be weighted",
    "web_search_options": "there is no search; give a function among tools",
    "chat_template_kwargs": "the policy's own chat template renders the conversation",
    "guided_json": "replies are not constrained",
    "guided_regex": "replies are not constrained",
    "guided_choice": "replies are not constrained",
}


def read(body: Any) -> ModelCall:
    """Read a request; :class:`RequestError` for what it asks for and does not get."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    if (count := fields.integer("n", 1)) not in (None, 1):
        raise RequestError(f"n={count}: a call has one reply; make several calls", code="unsupported_parameter")
    if fields.get("modalities") not in (None, ["text"]):
        raise RequestError("modalities: replies are text", code="unsupported_parameter")
    read_format(fields.get("response_format"), "response_format")
    if "messages" not in fields:
        raise RequestError("messages: there are none; a call has at least one")
    tools = checked_tools(_tool(tool, f"tools[{i}]") for i, tool in enumerate(fields.items("tools")))
    limit = fields.integer("max_completion_tokens", 1)
    options = Fields(fields.get("stream_options") or {}, "stream_options")
    return ModelCall(
        protocol="openai-chat",
        model=fields.text("model", "policy"),
        messages=conversation(map(_message, fields.items("messages"))),
        tools=tools,
        tool_choice=_choice(fields.get("tool_choice"), tools),
        parallel_tool_calls=fields.flag("parallel_tool_calls", True),
        sampling=Sampling(
            temperature=fields.number("temperature", 0, 100),
            top_p=fields.number("top_p", 0, 1),
            top_k=fields.integer("top_k", -1),
            max_tokens=fields.integer("max_tokens", 1) if limit is None else limit,
            stop=read_stop(fields.get("stop"), "stop"),
            seed=fields.integer("seed", -(2**63)),
            presence_penalty=fields.number("presence_penalty", -100, 100),
            frequency_penalty=fields.number("frequency_penalty", -100, 100),
            logprobs=fields.flag("logprobs"),
            top_logprobs=fields.integer("top_logprobs") or 0,
        ),
        stream=fields.flag("stream"),
        include_usage=options.flag("include_usage"),
    )


def read_format(value: Any, name: str) -> None:
    """Raise unless a reply's format is text."""
    if value is not None and Fields(value, name).get("type") not in (None, "text"):
        raise RequestError(
            f"{name}: replies are not constrained to a format; ask for it in the messages, or give a function among "
            "tools whose arguments have it",
            code="unsupported_parameter",
        )


def response(call: ModelCall, reply: ModelReply, number: int, created: int) -> dict[str, Any]:
    """Return the body of a response; ``number`` makes its id, ``created`` is in seconds."""
    choice = {
        "index": 0,
        "message": _written(reply.message),
        "logprobs": _logprobs(call, reply),
        "finish_reason": _finish_reason(reply),
    }
    if reply.token_ids is not None:
        choice["token_ids"] = list(reply.token_ids)
    return {**_head(call, number, created, "chat.completion"), "choices": [choice], "usage": _usage(reply.usage)}


def events(call: ModelCall, reply: ModelReply, number: int, created: int) -> Iterator[bytes]:
    """Yield the events of a streamed response."""
    head = _head(call, number, created, "chat.completion.chunk")
    message = _written(reply.message)
    calls = message.pop("tool_calls", [])
    content = message.pop("content")

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, **fields: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **fields}
        return event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if "reasoning_content" in message:
        yield chunk({"reasoning_content": message["reasoning_content"]})
    logprobs = _logprobs(call, reply)
    if content or logprobs is not None or reply.token_ids is not None:
        ids: dict[str, Any] = {} if reply.token_ids is None else {"token_ids": list(reply.token_ids)}
        yield chunk({"content": content or ""}, logprobs=logprobs, **ids)
    for place, made in enumerate(calls):
        function = {"name": made["function"]["name"], "arguments": ""}
        yield chunk({"tool_calls": [{"index": place, "id": made["id"], "type": "function", "function": function}]})
        arguments = {"arguments": made["function"]["arguments"]}
        yield chunk({"tool_calls": [{"index": place, "function": arguments}]})
    yield chunk({}, _finish_reason(reply))
    if call.include_usage:
        yield event({**head, "choices": [], "usage": _usage(reply.usage)})
    yield event("[DONE]")


def error(problem: RequestError) -> dict[str, Any]:
    kind = "invalid_request_error" if problem.status < 500 else "server_error"
    return {"error": {"message": problem.message, "type": kind, "param": None, "code": problem.code}}


def _message(message: Any) -> Any:
    """Return a message without what the stock clients put beside a reply's calls and send back with it."""
    if not isinstance(message, Mapping) or not isinstance(calls := message.get("tool_calls"), list):
        return message
    names = ("id", "type", "function")
    return {**message, "tool_calls": [_only(call, *names) for call in calls]}


def _only(call: Any, *names: str) -> Any:
    if not isinstance(call, Mapping):
        return call
    fields = {name: call[name] for name in names if name in call}
    return {**fields, "function": _only(call["function"], "name", "arguments")} if "function" in fields else fields


def _tool(tool: Any, where: str) -> dict[str, Any]:
    fields = Fields(tool, where)
    if fields.get("type") != "function":
        raise RequestError(
            f"{where}: a tool is a function, not of the type {quoted(fields.get('type'), 60)}",
            code="unsupported_parameter",
        )
    function = Fields(fields.get("function"), f"{where}.function")
    return function_schema(function.get("name"), function.get("description"), function.get("parameters"), where)


def _choice(value: Any, tools: ToolSchemas) -> str:
    if value is None or value in ("auto", "none", "required"):
        return checked_choice(value or "auto", tools)
    name = None
    if isinstance(value, Mapping) and value.get("type") == "function" and isinstance(value.get("function"), Mapping):
        name = value["function"].get("name")
    if not isinstance(name, str):
        raise RequestError(f"tool_choice must be auto, none, required or a function, not {quoted(value, 80)}")
    return checked_choice(f"function:{name}", tools)


def _head(call: ModelCall, number: int, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": created, "model": call.model}


def _written(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": "assistant", "content": text_of(message)}
    if message.get("reasoning_content"):
        written["reasoning_content"] = message["reasoning_content"]
    if calls := message.get("tool_calls"):
        written["content"] = written["content"] or None
        written["tool_calls"] = [{**call, "function": {**call["function"]}} for call in calls]
    return written


def _finish_reason(reply: ModelReply) -> str:
    return "stop" if reply.finish_reason == "stop_sequence" else reply.finish_reason


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _logprobs(call: ModelCall, reply: ModelReply) -> dict[str, Any] | None:
    entries = logprob_entries(call, reply)
    return None if entries is None else {"content": entries, "refusal": None}
