"""Parse a service's refusal of a request, and recognize a conversation that is too long.

Three things decide, in this order: status, code and type of the error; the wordings of services, one table; and where
both say nothing, whether the message compares a number of tokens that this request may have with a smaller limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Statuses that are about the account, the address or the load: never about the length.
_OTHER_STATUSES = frozenset({401, 402, 403, 404, 405, 408, 409, 429})
# Statuses of a request that cannot be taken as it is; the patterns alone count for others.
_BAD_REQUEST = frozenset({400, 413, 422})
_TOO_LARGE = 413

#: Codes and types that say it, in lower case.
TOO_LONG_CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq, Cerebras, Together
        "context_window_exceeded",
        "contextwindowexceedederror",  # LiteLLM
        "model_context_window_exceeded",
        "exceed_context_size_error",  # llama.cpp
        "context_exceeded",
        "context_length_error",
        "prompt_too_long",
        "input_too_long",
        "request_too_large",  # Anthropic
        "tokens_limit_reached",  # GitHub Models
        "model_max_prompt_tokens_exceeded",  # GitHub Copilot
        "1261",  # Zhipu
        "input_length_too_long",
        "context_size_exceeded",
        "context_overflow",
        "max_context_length_exceeded",
        "336007",  # Baidu
        "336103",
    }
)
_TOO_LONG_SPELLINGS = frozenset(code.replace("_", "") for code in TOO_LONG_CODES)
#: Codes and types of other errors, whatever the message mentions.
OTHER_CODES = frozenset(
    {
        *("rate_limit_exceeded", "rate_limit_error", "insufficient_quota", "billing_hard_limit_reached"),
        *("content_filter", "content_policy_violation", "invalid_api_key", "authentication_error"),
        *("model_not_found", "unsupported_parameter", "unsupported_value", "unknown_parameter"),
        *("missing_required_parameter", "invalid_function_parameters", "tool_use_failed", "json_validate_failed"),
    }
)
# Parameters that a conversation is sent in; an error about another one is not about its length.
_CONVERSATION = re.compile(r"messages|input|prompt|contents|body|inputs", re.IGNORECASE)

_N = r"\d[\d,._ ]*"
#: How services say it, in the words of their messages.
TOO_LONG: Mapping[str, str] = {
    # OpenAI, Azure, DeepSeek, Fireworks, Mistral, OpenRouter, Perplexity, vLLM, SGLang
    "OpenAI": r"maximum context length|(?:exceeds?|exceeded|larger than|over) (?:the |this )?(?:model'?s? )?context "
    r"(?:window|length|limit)|context_length_exceeded",
    "Anthropic": r"prompt is too long|input length and `?max_tokens`? exceed context limit|exceeds? context limit"
    r"|too many total text bytes",
    "Gemini": rf"input token count\b.{{0,60}}(?:exceeds|only supports)|exceeds the maximum number of tokens allowed"
    rf"|only supports up to {_N}",
    "vLLM": r"longer than the maximum (?:model|input) length|maximum (?:model|input) length"
    r"|model'?s context length is only|(?:max_tokens|max_completion_tokens)\W{1,3}must be at least 1, got -",
    "SGLang": r"longer than the model'?s context length|exceeds the maximum allowed (?:input )?length"
    r"|requested token count exceeds",
    "Mistral": rf"too large for model with {_N} maximum context",
    "Groq": r"reduce the length of (?:the|your) (?:messages|prompt|input)",
    "Together": r"`?inputs`? tokens \+ `?max_new_tokens`? must be <=",
    "TGI": rf"`?inputs`? must have less than {_N} tokens",
    "Bedrock": r"input is too long for (?:the )?requested model|number of input tokens exceeds|input tokens exceeded"
    r"|too many input tokens",
    "Ollama": r"input length exceeds|prompt too long|exceeded max context length",
    "llama.cpp": r"exceeds? (?:the )?(?:available )?context size|larger than the context (?:size|window)"
    r"|context size (?:has been )?exceeded",
    "LM Studio": r"initial prompt is greater than the context length|when context (?:the )?overflows"
    r"|context length of only",
    "xAI": rf"maximum prompt length is {_N}",
    "Cohere": r"too many tokens|total number of tokens in the prompt cannot exceed",
    "GitHub": rf"prompt token count of {_N} exceeds|request body too large for .{{1,60}} model",
    "Moonshot": r"exceeded model token limit",
    "MiniMax": r"context window exceeds limit",
    "Qwen": r"range of input length should be|input length should be",
    "Zhipu": r"prompt exceeds max(?:imum)? length|tokens?.{0,20}超(?:出|过)|输入.{0,12}(?:过长|超(?:出|过|长))"
    r"|上下文.{0,12}超",
    "SiliconFlow": r"number of input tokens .{0,40}(?:exceed|larger|greater)"
    r"|has exceeded max_(?:prompt|seq)_(?:tokens|len)",
    "watsonx": r"input tokens? .{0,20}cannot exceed the total tokens limit",
    "Cloudflare": r"exceeded this model context window|context window limit",
    "LiteLLM": r"contextwindowexceedederror|context window exceeded|context length exceeded"
    r"|(?<!daily )(?<!monthly )token limit exceeded",
    "Volcengine": r"exceed(?:s|ed)? max(?:imum)? (?:message|input|prompt|context) tokens?",
}
_WORDS = re.compile("|".join(f"(?:{pattern})" for pattern in TOO_LONG.values()), re.IGNORECASE | re.DOTALL)

# Wordings of services without a pattern: one sentence with a part of a conversation and that it is too long.
_NEAR = r"(?:[^.;\n]|\.\d){0,60}?"
_PLAIN = re.compile(
    rf"(?<![\w-])(?:inputs?|prompt|context|conversation|sequence|messages|request(?:ed)?|history|tokens"
    rf"|token (?:count|limit|number)|number of tokens|input[_ ]tokens|prompt[_ ]tokens)\b{_NEAR}"
    r"(?:too (?:long|large|big)|\bexceed|\b(?:longer|larger|greater|bigger|more) than\b|\boverflow"
    r"|\b(?:limit|context|maximum) is\b|must be (?:<|less than|fewer than|shorter than|at most|under))"
    rf"|\bexceed(?:s|ed)?\b{_NEAR}\b(?:token limit|session_len|max_seq_len|max_num_tokens)\b"
    rf"|(?:max|maximum)(?: number of)? (?:input|prompt) (?:characters|tokens) is",
    re.IGNORECASE,
)
_LENGTH = re.compile(
    r"tokens\b|\btoken (?:count|limit|number)|length|\blong|context|characters|bytes|size", re.IGNORECASE
)
# Words of an error that is about something else which is too long or too much.
_ELSE = re.compile(
    r"per (?:minute|second|hour|day|month)|\brate\b|quota|\bdaily\b|\bmonthly\b|\b[rt]p[mds]\b|budget|credit|balance"
    r"|\bstop\b|\btools?\b|function|schema|description|\bname\b|image|audio|video|file|jwt"
    r"|\b(?:api|access|auth) |\bkey\b|temperature|penalty|top_|logprobs|logit_bias|metadata"
    r"|concurren|timeout|time limit|\bseed\b",
    re.IGNORECASE,
)

# Where a message that compares numbers may be about a length at all.
_ABOUT_LENGTH = re.compile(
    r"tok|jeton|context|kontext|contexte|length|long|prompt|input|トークン|入力|令牌|词元|字符|长|長|上下文|토큰|길이|токен|длин|контекст",
    re.IGNORECASE,
)
# A message about the limit of max_tokens compares numbers, too.
_LONGEST_ANSWER = re.compile(r"max_(?:completion_|new_|output_)?tokens|max(?:Output|New)?Tokens")
_PROMPT = re.compile(r"prompt|input|messages|context|conversation|total", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,-])(\d{1,3}(?:[,_' .\u00a0]\d{3})+|\d+)(?![\w-]|[.,]\d)")
_MOST_NUMBERS = 32

_CODE_KEYS = frozenset({"code", "type", "error_type", "status", "reason", "kind", "__type", "innererror"})
_MESSAGE_KEYS = frozenset({"message", "error", "detail", "msg", "error_message", "title"})
_MOST_MESSAGES = 3
# Text of the request is not the service's.
_QUOTING_KEYS = frozenset({"input", "failed_generation", "messages", "prompt", "request"})
_MOST_STRINGS = 200
_DEEPEST = 8


@dataclass(frozen=True)
class KnownTokens:
    """Bounds of a request: of its prompt, and of the longest answer, in tokens."""

    fewest: int
    most: int
    max_tokens: int

    def fits(self, count: int) -> bool:
        """Return whether a service may count so many tokens for this prompt, alone or with the longest answer."""
        return any(self.fewest <= count - answer_tokens <= self.most for answer_tokens in (0, self.max_tokens))


@dataclass(frozen=True)
class Refusal:
    """An error of a service: ``codes`` are its codes and types in lower case, ``words`` all that it says."""

    status: int
    message: str
    codes: frozenset[str] = frozenset()
    words: str = ""
    parameter: str | None = None

    @property
    def code(self) -> str | None:
        """A code for callers that handle errors by code."""
        return next(iter(sorted(self.codes & (OTHER_CODES | TOO_LONG_CODES))), None)

    def too_long(self, bounds: KnownTokens | None = None) -> bool:
        """Return whether the conversation, with room for an answer, is longer than the model's context."""
        if self.status in _OTHER_STATUSES:
            return False
        if any(_plain_code(code) in _TOO_LONG_SPELLINGS for code in self.codes):
            return True
        if self.codes & OTHER_CODES:
            return False
        if "string_above_max_length" in self.codes:
            return self._about_conversation()
        if self.status == _TOO_LARGE or _WORDS.search(self.words):
            return True
        if self.status not in _BAD_REQUEST or not self._about_conversation():
            return False
        plain = _PLAIN.search(self.words) and _LENGTH.search(self.words) and not _ELSE.search(self.words)
        return bool(plain) or (bounds is not None and self._compares(bounds))

    def _about_conversation(self) -> bool:
        return self.parameter is None or bool(_CONVERSATION.match(self.parameter))

    def _compares(self, bounds: KnownTokens) -> bool:
        if not _ABOUT_LENGTH.search(self.words):
            return False
        if _LONGEST_ANSWER.search(self.words) and not _PROMPT.search(self.words):
            return False
        numbers = [int(re.sub(r"\D", "", number)[:12]) for number in _NUMBER.findall(self.words)[:_MOST_NUMBERS]]
        # The request's own max_tokens says nothing about the prompt.
        counts = [count for count in numbers if bounds.fits(count) and count != bounds.max_tokens]
        return any(0 < limit < count for count in counts for limit in numbers if limit != bounds.max_tokens)


def read_refusal(status: int, body: str | Mapping[str, Any]) -> Refusal:
    """Read the body of an error, in any known shape.

    ``{"error": {...}}``, ``{"error": "..."}``, ``{"message": ...}``, ``{"detail": [...]}``, a list of one of these,
    JSON in a text inside (a router's), or plain text. ``status`` of an error in an answer of another status is its own.
    """
    value: Any = body
    if isinstance(body, str):
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, Mapping | list) or not value:
        text = " ".join(str(body)[:4096].split())
        return Refusal(status, text or "no reason given", words=text)
    codes: set[str] = set()
    words: list[str] = []
    parameter: str | None = None
    messages: list[str] = []
    for key, text in _strings(value):
        if key in _CODE_KEYS and " " not in text:
            codes.add(text.lower())
        elif key == "param":
            parameter = parameter or text
        else:
            words.append(text)
            if key in _MESSAGE_KEYS:
                messages.append(text)
    joined = "\n".join(words)
    message = ": ".join(list(dict.fromkeys(messages))[:_MOST_MESSAGES]) or joined or "no reason given"
    return Refusal(status, message, frozenset(codes), f"{' '.join(sorted(codes))}\n{joined}", parameter)


def _plain_code(code: str) -> str:
    """Unify ``ContextLengthExceeded``, ``context-length-exceeded`` and ``context_length_exceeded_error``."""
    spelled = re.sub(r"[^a-z0-9]", "", code)
    short = spelled.removesuffix("error").removesuffix("exception")
    return short if short in _TOO_LONG_SPELLINGS else spelled


def status_of(error: Mapping[str, Any]) -> int | None:
    """Return the HTTP status of an error in an answer of status 200, if it has one."""
    inner = error.get("error")
    for place in (inner, error):
        if isinstance(place, Mapping):
            for key in ("code", "status", "status_code"):
                value = place.get(key)
                if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == len("400"):
                    value = int(value)
                if isinstance(value, int) and 400 <= value < 600:
                    return value
    return None


def _strings(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts and numbers of a JSON value, each with its key; no more than a message needs."""
    rest: list[tuple[str, Any, int]] = [("", value, 0)]
    count = 0
    while rest and count < _MOST_STRINGS:
        key, node, depth = rest.pop()
        if isinstance(node, str):
            inner = _json_inside(node) if depth < _DEEPEST else None
            if inner is not None:
                rest.append((key, inner, depth + 1))
            else:
                count += 1
                yield key, node[:4096]
        elif isinstance(node, Mapping) and depth < _DEEPEST:
            items = [(str(name), item, depth + 1) for name, item in node.items() if str(name) not in _QUOTING_KEYS]
            rest += reversed(items[:_MOST_STRINGS])
        elif isinstance(node, list) and depth < _DEEPEST:
            rest += [(key, item, depth + 1) for item in reversed(node[:_MOST_STRINGS])]
        elif isinstance(node, int) and not isinstance(node, bool) and -(10**12) < node < 10**12:
            count += 1
            yield key, str(node)


def _json_inside(text: str) -> Any:
    """Return the JSON object in a text, if it is one: routers forward another service's error."""
    if text.lstrip()[:1] != "{":
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None
