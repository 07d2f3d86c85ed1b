"""One asynchronous client for an OpenAI-compatible chat service, for simulated users, judges and policies.

A request looks in the cache, then checks the budget; each attempt waits for a slot, and its cost is booked; the answer
is cached. Timeouts, retries, their waits and ``Retry-After`` are the openai client's own.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import json
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from weakref import WeakValueDictionary

from pydantic import BaseModel

from ..messages import Message, check_conversation, clean_messages, clean_text
from ..text import excerpt
from .answer import Completion, ErrorAnswer, Usage, read_answer
from .body import ACCEPTED, MAX_ANSWER, MAX_ERROR, BadBodyError, read_body
from .budget import Ledger
from .cache import AnswerCache, request_key
from .errors import ChatFailure, KeyMissing, PromptTooLong
from .reasoning import ReasoningBack
from .refusals import KnownTokens, Refusal, read_refusal, status_of
from .schema import strict_schema
from .spec import ChatSpec, SpecLike

log = logging.getLogger("textenvs")

# A token is at least one byte of text in every byte-level vocabulary, and a chat template adds some of its own.
_TEMPLATE_TOKENS_PER_MESSAGE = 16
_SEEDS = 2**31
# Exceptions raised before anything was sent. By name: they are httpx's or httpx2's, as the openai package has it.
_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
_MOST_REDIRECTS = 5
# Lower bound of a prompt before any answer has a count: tokens a byte of the request's JSON.
_FEWEST_TOKENS_PER_BYTE = 1 / 12
# Codes of status 429 that mean "pay first": no wait mends them.
_UNPAID = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_NO_KEY = "none"  # the openai package wants one; services that need none ignore it
# Headers that speak of a body as it was sent, and not of the one that was read.
_OF_THE_BODY = frozenset({"content-encoding", "content-length", "transfer-encoding", "content-type"})
_ADVICE = {
    401: "check the key and what it may use",
    403: "check the key and what it may use",
    404: "check the model's name and base_url, which usually ends in /v1",
    429: "lower concurrency, raise max_retries, or come back when the service has time again",
}


@dataclass
class Statistics:
    """Counters of a client."""

    requests: int = 0  # calls of complete()
    cache_hits: int = 0
    attempts: int = 0  # requests sent, retries included
    failures: int = 0  # calls that ended in ChatFailure
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0

    def add(self, other: Statistics) -> None:
        for counter in fields(self):
            setattr(self, counter.name, getattr(self, counter.name) + getattr(other, counter.name))


@dataclass
class _Request:
    """A request under way, over all its attempts."""

    worst: Usage  # the most that an attempt can take
    size: int  # of its JSON, in bytes
    attempts: int = 0
    dollars: float = 0.0
    body: str = ""  # of the answer
    completion: Completion | None = None
    problem: str | None = None  # of an answer that cannot be read
    refusal: Refusal | None = None  # the service's last one


_current: contextvars.ContextVar[_Request | None] = contextvars.ContextVar("chat request", default=None)


class ChatClient:
    """A client of one model, of the event loop of its first use; see :func:`~textenvs.chat.clients.client_for`.

    Use it as ``async with ChatClient(...) as client:``, or call :meth:`aclose`.

    Args:
        spec: A model's name, a mapping of options, or a :class:`ChatSpec`.
        api_key: The key, where it is not in the environment variable that the spec names. It is only ever sent.
        **options: Options of the spec, in the place of its own.

    Raises:
        KeyMissing: No key where one is needed; a ``ValueError``, too.
    """

    def __init__(self, spec: SpecLike, *, api_key: str | None = None, **options: Any) -> None:
        self.spec = ChatSpec.of(spec, **options)
        try:
            import openai
        except ImportError as error:
            raise ImportError("LLM users and judges need the openai package: pip install 'textenvs[chat]'") from error
        self._key = _key_of(self.spec) if api_key is None else api_key
        self._openai = openai
        # The client's class comes from httpx, or from httpx2 with newer versions of the openai package.
        library = openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0]
        self._http = importlib.import_module(library)
        attempt = self._attempt

        class Client(openai.DefaultAsyncHttpxClient):  # type: ignore[misc, valid-type]
            async def send(self, request: Any, **options: Any) -> Any:
                # Streamed, and without its redirects, so that no body is read but by `read_body`.
                options |= {"stream": True, "follow_redirects": False}
                return await attempt(
                    request, lambda request_to_send: super(Client, self).send(request_to_send, **options)
                )

        self._service = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.spec.base_url,
            timeout=self.spec.timeout_s,
            max_retries=self.spec.max_retries,
            http_client=Client(headers={"accept-encoding": ACCEPTED}),
        )
        self._create = self._service.chat.completions.with_raw_response.create  # imported here, not in a timed attempt
        self.base_url = str(self._service.base_url)
        self.ledger = Ledger(self.spec)
        self.statistics = Statistics()
        self._cache = None if self.spec.cache is None else AnswerCache(self.spec.cache)
        self._slots = asyncio.Semaphore(self.spec.concurrency)
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by the request's key
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._odd: set[str] = set()  # what was warned about
        self._reasoning = ReasoningBack()
        # The fewest and the most tokens a byte of a request that the service has counted.
        self._tokens_per_byte: tuple[float, float] | None = None

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        response_schema: type[BaseModel] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        sample: int | None = 0,
    ) -> Completion:
        """Request one answer.

        Args:
            messages: The conversation. The reasoning of earlier turns (``reasoning_content``) is sent back where a
                service that reasons wants it: with tool calls that no user message follows.
            temperature: Instead of the spec's.
            max_tokens: Instead of the spec's.
            response_schema: The answer shall be JSON of this shape. The request asks for it; the caller
                checks the answer (:func:`~textenvs.chat.structured.parse_reply`).
            tools: OpenAI tool schemas that the model may call.
            seed: Instead of the spec's; ``seed + sample`` is sent.
            sample: Which of the answers to this request. ``None``: a fresh one, neither looked up in the cache nor
                kept.

        Raises:
            ChatFailure: No answer after the retries, or a fault that retries cannot mend (:class:`PromptTooLong` is
                one).
            BudgetExceeded: It might cost more than the budget has left; nothing was sent.
            CacheError: The cache file cannot be used.
        """
        self._check_loop()
        self.statistics.requests += 1
        # One check for both places where these can come from.
        overrides = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        spec = ChatSpec.of(self.spec, **{name: value for name, value in overrides.items() if value is not None})
        body = _body(spec, messages, response_schema, tools, sample)
        if self._cache is None or sample is None:
            return (await self._fetch(body))[0]
        key = request_key({"base_url": self.base_url, "sample": sample, "body": body})
        async with self._asking.setdefault(key, asyncio.Lock()):  # an equal request waits, and finds the answer
            # In a thread: another process's write may be waited for, and the loop has other episodes to serve.
            cached = await asyncio.to_thread(self._cache.get, key)
            if cached is not None:
                try:
                    completion = self._seen(replace(read_answer(cached), cached=True, attempts=0))
                except ValueError:
                    log.warning("%s: the answer to the request %s is damaged; asking again", self._cache.path, key[:12])
                else:
                    self.statistics.cache_hits += 1
                    return completion
            completion, text = await self._fetch(body)
            await asyncio.to_thread(self._cache.put, key, text)
        return completion

    async def answers(self) -> bool:
        """Return whether the service answers at all; this costs nothing. An answer of 5xx counts as none."""
        self._check_loop()
        try:
            await self._service.with_options(max_retries=0).models.with_raw_response.list()
        except self._openai.APIStatusError as error:
            return error.status_code < 500  # it may well have no list of models
        except self._openai.APIError:
            return False
        return True

    async def aclose(self) -> None:
        self._closed = True
        await self._service.close()

    async def __aenter__(self) -> Self:
        self._check_loop()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"ChatClient({self.spec.model!r} at {self.base_url})"

    def __reduce__(self) -> Any:
        """Refuse: connections belong to one event loop of one process."""
        raise TypeError(f"{self!r} cannot be copied or pickled; pass its spec on, and make a client from it there")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise RuntimeError(f"{self!r} is closed")
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise RuntimeError(f"{self!r} belongs to another event loop; client_for(spec) gives each loop its own")

    async def _fetch(self, body: dict[str, Any]) -> tuple[Completion, str]:
        openai = self._openai
        messages = self._reasoning.put(body["messages"])
        size = len(json.dumps({**body, "messages": messages}, ensure_ascii=False).encode())
        most = size + _TEMPLATE_TOKENS_PER_MESSAGE * len(messages)
        request = _Request(Usage(most, int(body[self.spec.max_tokens_key])), size)
        self.ledger.check(request.worst)
        token = _current.set(request)
        refusal: Refusal | None = None
        try:
            # All in `extra_body`: the openai client would walk through every message, by its types, at each request.
            await self._create(model=body["model"], messages=[], extra_body={**body, "messages": messages})
            assert request.completion is not None
            completion = replace(request.completion, attempts=request.attempts, cost=request.dollars)
            return self._seen(completion), request.body
        except openai.APITimeoutError:
            what = f"no answer within {self.spec.timeout_s:g} s"
        except openai.APIStatusError as error:
            refusal = request.refusal or Refusal(error.status_code, "no reason given")
            what = f"HTTP {refusal.status}: {self._shown(refusal.message)}"
        except (openai.APIError, RuntimeError) as error:  # httpx raises the latter once it is closed
            if isinstance(error, RuntimeError) and not self._closed:
                raise
            cause = error.__cause__ or error
            what = self._shown(request.problem or f"the connection failed: {type(cause).__name__}: {cause}")
            what = "it was closed while the request was under way" if self._closed else what
        finally:
            _current.reset(token)
        # Outside of `except`: the exception holds the request, and the key with it.
        if refusal is not None and self._reasoning.mend(refusal, messages):
            self._warn(f"the service refuses messages for their reasoning; {self._reasoning.what}")
            return await self._fetch(body)
        self.statistics.failures += 1
        failure, advice = ChatFailure, "check that the service runs and is reachable, or raise timeout_s or max_retries"
        if request.problem is not None:
            advice = "check that base_url is a service with OpenAI's chat completions, and that it works"
        elif refusal is not None:
            failure, advice = self._advice(refusal, request)
        many = "" if request.attempts == 1 else "s"
        raise failure(f"{self!r}: {what} (after {request.attempts} attempt{many}); {advice}")

    def _advice(self, refusal: Refusal, request: _Request) -> tuple[type[ChatFailure], str]:
        if refusal.too_long(self._known_tokens(request)):
            return (
                PromptTooLong,
                f"the conversation and max_tokens ({self.spec.max_tokens}) must fit into the model's context",
            )
        if refusal.codes & _UNPAID:
            return ChatFailure, "check the account's quota"
        if refusal.status < 500 and refusal.status not in (408, 409):
            refused = "the request itself is refused, so it was not sent again; check the options"
            return ChatFailure, _ADVICE.get(refusal.status, refused)
        return ChatFailure, "check that the service runs and is reachable, or raise timeout_s or max_retries"

    async def _attempt(self, sent: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        """Send one request of the openai client within slots and budget, and book its cost."""
        request = _current.get()
        if request is None:  # not of a completion
            return (await self._receive(sent, send))[0]
        async with self._slots:
            request.attempts += 1
            request.problem = request.refusal = None
            self.statistics.attempts += 1
            spent = request.worst
            try:
                response, whole = await self._receive(sent, send)
                spent = self._read(request, response, whole=whole) or spent
            except Exception as error:
                if type(error).__name__ in _NOT_SENT:
                    spent = Usage()
                raise
            finally:
                dollars = self.ledger.book(spent)
                request.dollars += dollars
                self.statistics.dollars += dollars
        return self._refused(request, response)

    async def _receive(self, sent: Any, send: Callable[[Any], Awaitable[Any]]) -> tuple[Any, bool]:
        """Send a request, and read its answer within bounds of time and size: the response, and whether it is whole."""
        clock = asyncio.timeout(self.spec.timeout_s)
        problem = f"no whole answer within {self.spec.timeout_s:g} s"
        try:
            async with clock:
                response = await send(sent)
                for _ in range(_MOST_REDIRECTS):
                    if response.next_request is None:
                        break
                    await response.aclose()
                    response = await send(response.next_request)
                limit = MAX_ANSWER if response.status_code < 400 else MAX_ERROR
                body, whole = await read_body(response, limit)
            headers = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_BODY]
            made = self._http.Response(response.status_code, headers=headers, content=body, request=response.request)
            return made, whole
        except BadBodyError as error:
            problem = str(error)
        except TimeoutError:
            if not clock.expired():
                raise
            raise self._http.ReadTimeout(problem, request=sent) from None
        if (request := _current.get()) is not None:
            request.problem = problem
        raise self._http.RemoteProtocolError(problem, request=sent)

    def _read(self, request: _Request, response: Any, *, whole: bool) -> Usage | None:
        """Return a response's usage, ``None`` where it has none. An unreadable answer counts as a broken connection."""
        text = response.content.decode("utf-8-sig", "replace")
        if response.status_code >= 300:
            text = "it redirects without an end" if response.status_code < 400 else text
            request.refusal = read_refusal(response.status_code, text)
            return Usage()
        try:
            if not whole:
                raise ValueError(f"it has more than {MAX_ANSWER / 2**20:g} MiB")
            request.completion, request.body = read_answer(text), text
        except ErrorAnswer as error:
            refusal = read_refusal(status_of(error.body) or 400, error.body)
            recognized = status_of(error.body) is not None or refusal.too_long(self._known_tokens(request))
            request.refusal = refusal if recognized else replace(refusal, status=502)
            return Usage()
        except ValueError as error:
            request.problem = f"the answer is not a chat completion: {error}"
        if request.problem is not None:  # outside of `except`: the error holds the body
            raise self._http.RemoteProtocolError(request.problem, request=response.request)
        assert request.completion is not None
        if usage := request.completion.usage:
            self.statistics.input_tokens += usage.input_tokens
            self.statistics.output_tokens += usage.output_tokens
            if usage.input_tokens:
                ratio = usage.input_tokens / request.size
                fewest, most = self._tokens_per_byte or (ratio, ratio)
                self._tokens_per_byte = min(fewest, ratio), max(most, ratio)
        return usage

    def _refused(self, request: _Request, response: Any) -> Any:
        """Return the response; a refusal in OpenAI's form, not to be retried where waiting does not help."""
        if (refusal := request.refusal) is None:
            return response
        if refusal.codes & _UNPAID or refusal.too_long(self._known_tokens(request)):
            response.headers["x-should-retry"] = "false"
        error = {"message": excerpt(refusal.message), "code": refusal.code, "type": None, "param": None}
        content = json.dumps({"error": error}).encode()
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_BODY]
        return self._http.Response(refusal.status, headers=headers, content=content, request=response.request)

    def _known_tokens(self, request: _Request) -> KnownTokens:
        """Estimate a prompt's bounds in tokens from the service's counts so far, else from the request's size."""
        if self._tokens_per_byte is None:
            fewest = math.floor(request.size * _FEWEST_TOKENS_PER_BYTE)
            return KnownTokens(fewest, request.worst.input_tokens, request.worst.output_tokens)
        low, high = self._tokens_per_byte
        return KnownTokens(
            math.floor(request.size * low / 2), math.ceil(request.size * high * 2), request.worst.output_tokens
        )

    def _seen(self, completion: Completion) -> Completion:
        """Return the completion; warn once of its oddities, and remember the service's name for reasoning."""
        for odd in completion.odd:
            self._warn(f"an answer was read although {odd}")
        self._reasoning.field = completion.reasoning_field or self._reasoning.field
        return completion

    def _warn(self, what: str) -> None:
        if what not in self._odd:
            self._odd.add(what)
            log.warning("%r: %s (said once)", self, what)

    def _shown(self, text: str) -> str:
        """Return a service's message, short and without the API key, which some repeat."""
        text = clean_text(" ".join(text.split()))
        if self._key and self._key != _NO_KEY:
            text = text.replace(self._key, "[key]")
        return excerpt(text)


def _body(
    spec: ChatSpec,
    messages: Sequence[Message],
    schema: type[BaseModel] | None,
    tools: Sequence[Mapping[str, Any]] | None,
    sample: int | None,
) -> dict[str, Any]:
    """Build the whole JSON of a request, which can also serve as its key."""
    sent = clean_messages(check_conversation(messages, "chat request"))
    if not sent:
        raise ValueError("chat request: there is no message in it")
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 0):
        raise ValueError(f"sample must be an integer of at least 0 or None, not {sample!r}")
    body: dict[str, Any] = {
        "model": spec.model,
        "messages": [dict(message) for message in sent],
        spec.max_tokens_key: spec.max_tokens,
    } | spec.extra
    if spec.temperature is not None:
        body["temperature"] = spec.temperature
    if spec.seed is not None:
        body["seed"] = (spec.seed + (sample or 0)) % _SEEDS
    if tools:
        body["tools"] = list(tools)
    if schema is not None and spec.structured == "json_schema":
        shape = {"name": schema.__name__, "schema": strict_schema(schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": shape}
    elif schema is not None and spec.structured == "json_object":
        body["response_format"] = {"type": "json_object"}
    return body


def _key_of(spec: ChatSpec) -> str:
    """Return the key from the environment. OpenAI's key is not sent to another ``base_url`` by default."""
    if spec.api_key_env is None and spec.base_url is not None:
        return _NO_KEY
    name = spec.api_key_env or "OPENAI_API_KEY"
    key = os.environ.get(name, "")
    if not key:
        folder = f"; {spec.model} is no folder with a config.json" if spec.model.startswith(("/", ".", "~")) else ""
        raise KeyMissing(
            f"the environment variable {name} has no key in it for {spec.model!r}; set it, or name another one in "
            f"api_key_env (a service with a base_url may need none){folder}"
        )
    return key
