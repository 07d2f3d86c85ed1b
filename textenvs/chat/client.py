"""One asynchronous client for an OpenAI-compatible chat service, for simulated users, judges and policies.

What happens to a request, in this order: an equal one under way is joined; the cache is asked; a slot is waited for;
the budget reserves the most it can cost; it is sent; what it cost is booked; after a passing fault it waits, without a
slot, and is sent again; the answer is kept.

Two requests are equal when everything the service is told is equal, and the ``sample`` index too. Who wants several
different answers to one question asks with different samples.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel

from ..messages import Message, check_conversation, clean_messages, clean_text
from ..text import excerpt
from .answer import Completion, from_record, read_answer, to_record
from .budget import Amount, Reservation, ledger_of
from .cache import AnswerCache, request_key
from .errors import ChatFailure, KeyMissing, PromptTooLong
from .retry import Backoff, Fault, retry_after_s
from .schema import strict_schema
from .spec import ChatSpec, SpecLike

log = logging.getLogger("textenvs")

# A token is at least one byte of text in every byte-level vocabulary, and a chat template adds some of its own.
_TEMPLATE_TOKENS = 64
_TEMPLATE_TOKENS_PER_MESSAGE = 16
_SEEDS = 2**31
# Causes of faults before anything was sent. By name: they are httpx's or httpx2's, as the openai package has it.
_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})


@dataclass
class Statistics:
    """What a client did so far."""

    requests: int = 0  # calls of complete()
    cache_hits: int = 0
    joined: int = 0  # calls that waited for an equal request under way
    attempts: int = 0  # requests sent, retries included
    failures: int = 0  # calls that ended in ChatFailure
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0

    def add(self, other: Statistics) -> None:
        """Add in place."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def metrics(self) -> dict[str, float]:
        """By name, for a logger."""
        return {each.name: float(getattr(self, each.name)) for each in fields(self)}


class ChatClient:
    """Talks to one model. It belongs to the event loop it is first used on; for shared ones see :func:`client_for`.

    Use it as ``async with ChatClient(...) as client:``, or call :meth:`aclose`.

    Args:
        spec: A model's name, a mapping of options, or a :class:`ChatSpec`.
        api_key: The key, where it is not in the environment variable that the spec names. It is only ever sent.
        **options: Options of the spec, in the place of its own.

    Raises:
        ValueError: A bad spec.
        KeyMissing: No key where one is needed; a ``ValueError``, too.
        ImportError: The ``openai`` package is not installed.
    """

    def __init__(self, spec: SpecLike, *, api_key: str | None = None, **options: Any) -> None:
        self.spec = ChatSpec.of(spec, **options)
        try:
            import openai
        except ImportError as error:
            raise ImportError("LLM users and judges need the openai package: pip install 'textenvs[chat]'") from error
        self._key = _key_of(self.spec) if api_key is None else api_key
        self._openai = openai
        self._service = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.spec.base_url,
            timeout=self.spec.timeout_s,
            max_retries=0,  # retries are counted, bounded and paid for here
        )
        self._create = self._service.chat.completions.with_raw_response.create  # imported here, not in a timed attempt
        self.base_url = str(self._service.base_url)
        self.ledger = ledger_of(self.spec)
        self.statistics = Statistics()
        self._cache = None if self.spec.cache is None else AnswerCache(self.spec.cache)
        self._backoff = Backoff(self.spec.retry_wait_s, self.spec.max_wait_s)
        self._jitter = random.Random()  # moves waits, never answers
        self._slots = asyncio.Semaphore(self.spec.concurrency)
        self._quiet_until = 0.0  # time.monotonic(): the service asked all of us to wait
        self._flights: dict[str, _Flight] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

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
        """Ask for one answer.

        Args:
            messages: The conversation. Reasoning of earlier turns (``reasoning_content``) is not sent.
            temperature: Instead of the spec's.
            max_tokens: Instead of the spec's.
            response_schema: The answer shall be JSON of this shape. The service is told so, and no more: whoever reads
                the answer checks it (:func:`~textenvs.chat.schema.parse_reply`).
            tools: OpenAI tool schemas that the model may call.
            seed: Instead of the spec's.
            sample: Which of the answers to this request; equal requests with equal samples are one request. The seed
                that is sent, if there is one, is ``seed + sample``. ``None``: a fresh answer, neither looked up,
                joined nor kept.

        Raises:
            ChatFailure: No answer after the retries, or a fault that retries cannot mend; :class:`PromptTooLong` where
                the service says that the conversation does not fit into the model's context.
            BudgetExceeded: It might cost more than the budget has left; nothing was sent.
            CacheError: The cache file cannot be used.
            ValueError: Malformed messages or options.
        """
        self._check_loop()
        self.statistics.requests += 1
        body = self._body(messages, temperature, max_tokens, response_schema, tools, seed, sample)
        if sample is None:
            return await self._fetch(body)
        key = request_key({"base_url": self.base_url, "sample": sample, "body": body})
        flight = self._flights.get(key)
        joins = flight is not None
        if flight is None:
            flight = self._take_off(key, body)
        flight.waiting += 1
        self.statistics.joined += joins
        try:
            completion = await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if self._closed and not _this_task().cancelling():
                raise ChatFailure(f"{self!r} was closed while the request was under way") from None
            raise
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():  # nobody wants it any more
                self._land(key, flight)
                flight.task.cancel()
        return replace(completion, cached=True, attempts=0, cost=0.0) if joins else completion

    async def answers(self) -> bool:
        """Whether the service answers at all; nothing is paid for. An answer of 5xx is as bad as none."""
        self._check_loop()
        try:
            async with asyncio.timeout(self.spec.timeout_s):
                await self._service.models.with_raw_response.list()
        except self._openai.APIStatusError as error:
            return error.status_code < 500  # it may well have no list of models
        except (TimeoutError, self._openai.APIError):
            return False
        return True

    async def aclose(self) -> None:
        """Drop what is under way and close connections and cache; safe to call twice."""
        self._closed = True
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._service.close()
        if self._cache is not None:
            self._cache.close()

    async def __aenter__(self) -> Self:
        """The client."""
        self._check_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.aclose()

    def __repr__(self) -> str:
        """Model and service; never the key."""
        return f"ChatClient({self.spec.model!r} at {self.base_url})"

    def __reduce__(self) -> Any:
        """Refuse: connections belong to one event loop of one process."""
        raise TypeError(f"{self!r} cannot be copied or pickled; pass its spec on, and make a client from it there")

    # ------------------------------------------------------------------ inside

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise RuntimeError(f"{self!r} is closed")
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise RuntimeError(f"{self!r} belongs to another event loop; client_for(spec) gives each loop its own")

    def _body(
        self,
        messages: Sequence[Message],
        temperature: float | None,
        max_tokens: int | None,
        schema: type[BaseModel] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        seed: int | None,
        sample: int | None,
    ) -> dict[str, Any]:
        """The JSON that the service gets: all of it, so that it can name the request."""
        spec = self.spec
        sent = clean_messages(check_conversation(messages, "chat request"))
        if not sent:
            raise ValueError("chat request: there is no message in it")
        if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 0):
            raise ValueError(f"sample must be an integer of at least 0 or None, not {sample!r}")
        # One check for both places where these can come from.
        given = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        if given := {name: value for name, value in given.items() if value is not None}:
            spec = ChatSpec.of(spec, **given)
        body: dict[str, Any] = {
            "model": spec.model,
            "messages": [{k: v for k, v in message.items() if k != "reasoning_content"} for message in sent],
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

    def _take_off(self, key: str, body: dict[str, Any]) -> _Flight:
        flight = self._flights[key] = _Flight(asyncio.get_running_loop().create_task(self._answer(key, body)))
        flight.task.add_done_callback(lambda _: self._land(key, flight))
        return flight

    def _land(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:  # a cancelled one may land after its successor took off
            del self._flights[key]

    async def _answer(self, key: str, body: dict[str, Any]) -> Completion:
        """From the cache, else from the service."""
        if self._cache is None:
            return await self._fetch(body)
        # In a thread: another process's write may be waited for, and the loop has other episodes to serve.
        known = await asyncio.to_thread(self._cache.get, key)
        if known is not None:
            self.statistics.cache_hits += 1
            return replace(from_record(known), cached=True, attempts=0)
        completion = await self._fetch(body)
        await asyncio.to_thread(self._cache.put, key, to_record(completion))
        return completion

    async def _fetch(self, body: dict[str, Any]) -> Completion:
        spent = 0.0
        for attempt in range(self.spec.max_retries + 1):
            outcome, dollars = await self._attempt(body)
            spent += dollars
            if isinstance(outcome, Completion):
                return replace(outcome, attempts=attempt + 1, cost=spent)
            fault, wait = outcome, None
            if fault.passing and attempt < self.spec.max_retries:
                wait = self._backoff.wait_s(attempt, fault, self._jitter)
            if wait is None:
                break
            log.debug("%r: %s; attempt %d, next in %.1f s", self, fault.what, attempt + 1, wait)
            if fault.retry_after_s is not None:
                self._quiet_until = max(self._quiet_until, time.monotonic() + fault.retry_after_s)
            await asyncio.sleep(wait)
        self.statistics.failures += 1
        raise (PromptTooLong if fault.too_long else ChatFailure)(
            f"{self!r}: {fault.what} (after {attempt + 1} attempt{'s' if attempt else ''}); {self._advice(fault)}"
        )

    async def _attempt(self, body: dict[str, Any]) -> tuple[Completion | Fault, float]:
        """One request, sent and booked; the answer or the fault, and what it cost in dollars."""
        async with self._slots:
            while (quiet := self._quiet_until - time.monotonic()) > 0:
                await asyncio.sleep(quiet + self._jitter.uniform(0.0, self.spec.retry_wait_s))
            with self.ledger.booking(await self.ledger.reserve(self._worst(body))) as reservation:
                self.statistics.attempts += 1
                try:
                    outcome = await self._send(body)
                    self._settle(reservation, outcome)
                finally:
                    self.statistics.dollars += reservation.booked.dollars
        return outcome, reservation.booked.dollars

    async def _send(self, body: dict[str, Any]) -> Completion | Fault:
        """The answer, or what went wrong."""
        openai = self._openai
        rest = {name: value for name, value in body.items() if name not in ("model", "messages")}
        try:
            async with asyncio.timeout(self.spec.timeout_s):  # httpx's timeouts start anew with every byte
                raw = await self._create(model=body["model"], messages=body["messages"], extra_body=rest)
            text = raw.http_response.text
        except (TimeoutError, openai.APITimeoutError) as error:
            sent = type(error.__cause__).__name__ not in _NOT_SENT
            return Fault(f"no answer within {self.spec.timeout_s:g} s", billable=sent)
        except openai.APIStatusError as error:
            said = error.body.get("message") if isinstance(error.body, dict) else error.body
            wait = retry_after_s(error.response.headers, datetime.now(UTC))
            what = f"HTTP {error.status_code}: {self._shown(str(said or 'no reason given'))}"
            return Fault(what, error.status_code, error.code, wait)
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            name = type(cause).__name__
            return Fault(f"the connection failed: {self._shown(f'{name}: {cause}')}", billable=name not in _NOT_SENT)
        except openai.APIError as error:  # an answer that the package itself could not read
            return Fault(f"the answer could not be read: {self._shown(str(error))}", billable=True)
        try:
            return read_answer(text)
        except ValueError as error:
            return Fault(f"the answer is not a chat completion: {self._shown(str(error))}", billable=True)

    def _settle(self, reservation: Reservation, outcome: Completion | Fault) -> None:
        """Book what is known; what is not stays at the most it can have been."""
        if isinstance(outcome, Fault):
            if not outcome.billable:
                reservation.actual = Amount()
            return
        if (usage := outcome.usage) is None:
            return
        price = self.spec.price
        dollars = 0.0 if price is None else price.of(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
        reservation.actual = Amount(usage.input_tokens + usage.output_tokens, dollars)
        self.statistics.input_tokens += usage.input_tokens
        self.statistics.output_tokens += usage.output_tokens

    def _worst(self, body: dict[str, Any]) -> Amount:
        """An upper bound of what a request can take: every byte of it a token, and the longest answer."""
        size = len(json.dumps(body, ensure_ascii=False).encode("utf-8"))
        asked = size + _TEMPLATE_TOKENS + _TEMPLATE_TOKENS_PER_MESSAGE * len(body["messages"])
        longest = int(body[self.spec.max_tokens_key])
        return Amount(asked + longest, 0.0 if self.spec.price is None else self.spec.price.of(asked, longest))

    def _shown(self, text: str) -> str:
        """What a service said, short and without our key, which some repeat."""
        text = clean_text(" ".join(text.split()))
        if self._key and self._key != _NO_KEY:
            text = text.replace(self._key, "[key]")
        return excerpt(text)

    def _advice(self, fault: Fault) -> str:
        if fault.retry_after_s is not None and fault.retry_after_s > self.spec.max_wait_s:
            return (
                f"the service asks to wait for {fault.retry_after_s:g} s, more than max_wait_s "
                f"({self.spec.max_wait_s:g}): raise it, or come back later"
            )
        if fault.status in (401, 403):
            return f"check the key ({_key_place(self.spec)}) and what it may use"
        if fault.status == 404:
            return f"check the model's name ({self.spec.model!r}) and base_url; it usually ends in /v1"
        if fault.code is not None and not fault.passing and fault.status == 429:
            return "check the account's quota"
        if fault.too_long:
            return (
                f"the conversation and max_tokens ({self.spec.max_tokens}) must fit into the model's context together"
            )
        if fault.status is not None and not fault.passing:
            return "the request itself is refused, so it was not sent again; check the spec's options"
        if fault.status == 429:
            return "lower concurrency, or raise max_retries or max_wait_s"
        return "check that the service runs and is reachable, or raise timeout_s or max_retries"


class _Flight:
    """A request under way, and how many wait for it."""

    def __init__(self, task: asyncio.Task[Completion]) -> None:
        self.task = task
        self.waiting = 0


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # a coroutine runs in one
    return task


# ---------------------------------------------------------------------- keys

_NO_KEY = "none"  # the openai package wants one; services that need none ignore it


def _key_place(spec: ChatSpec) -> str:
    if spec.api_key_env is not None:
        return f"environment variable {spec.api_key_env}"
    if spec.base_url is None:
        return "environment variable OPENAI_API_KEY"
    return "none is sent: the spec has a base_url and no api_key_env"


def _key_of(spec: ChatSpec) -> str:
    """The key, from the environment. One that is meant for OpenAI is not sent to another ``base_url`` unasked."""
    if spec.api_key_env is None and spec.base_url is not None:
        return _NO_KEY
    name = spec.api_key_env or "OPENAI_API_KEY"
    key = os.environ.get(name, "")
    if not key:
        raise KeyMissing(
            f"the environment variable {name} has no key in it for {spec.model!r}; set it, name another in "
            "api_key_env, or give the base_url of a service that needs none"
        )
    return key
