"""A reward model that is served: ``vllm serve MODEL --runner pooling --convert classify``, or a compatible server.

Three endpoints of vLLM return scores, and each takes a batch:

* ``/classify``: the numbers of a classifier, one per label.
* ``/pooling``: the output of the server's pooler; its last number is read (or that of the label).
* ``/score``: one number for a pair of texts, the reply and what came before it, for cross-encoders.

The request disables the server's activation: ``transform`` is applied here. A server that cannot be reached, or
answers 5xx, 408 or 429, is an outage; another 4xx is an error of the request.
"""

from __future__ import annotations

import asyncio
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from textenvs.messages import text_of
from trainers.engines.server import Answer, Client, UnreachableError, error_text

from ...config.reward_model import ServiceSection
from ..service import BackendError, OutageError, ScoringRequest, Traits
from .conversation import (
    ConversationTokens,
    conversation_problems,
    load_tokenizer,
    replies,
    score_prepared,
    score_range,
    scored_part,
    transformed,
)

_HEALTH_S = 10.0


class PoolingBackend:
    """A client of such a server, built by :meth:`connect`."""

    def __init__(self, options: ServiceSection, client: Client, model: str, tokens: ConversationTokens | None) -> None:
        self.options, self._client, self._model, self._tokens = options, client, model, tokens
        self._places = asyncio.Semaphore(options.connections)
        # The server forms its own batches, so a few batches at a time.
        recommended = {"max_wait_s": 0.01, "timeout_s": 2 * options.timeout_s}
        self.traits = Traits(4, *score_range(options.transform), recommended)

    @classmethod
    async def connect(cls, options: ServiceSection) -> Self:
        """Check the server and build its client; OutageError if it cannot be reached.

        ``ValueError``: it does not have the model, or requires a missing key. ImportError: no ``vllm-client``.
        """
        for _, problem in _option_problems(options):
            raise ValueError(problem)
        key = None if options.api_key_env is None else os.environ[options.api_key_env]
        client = Client(str(options.url), key, extra="vllm-client")
        try:
            answer = await _get(client, "/v1/models")
            served = _served(answer, options)
            tokens = None
            if options.tokenizer is not None:
                longest = served[1]
                if options.max_length is not None and longest is not None and options.max_length > longest:
                    raise ValueError(f"max_length is {options.max_length}, but the server reads {longest} tokens")
                tokens = await asyncio.to_thread(
                    lambda: ConversationTokens(load_tokenizer(str(options.tokenizer)), options, longest or 2**31)
                )
        except BaseException:
            await client.close()
            raise
        return cls(options, client, served[0], tokens)

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        if self.options.endpoint != "score" and self.options.input == "messages":
            return await asyncio.gather(*map(self._one, requests))
        return await score_prepared(
            requests, self._input, lambda inputs: self._request_scores(self._body(inputs), len(inputs))
        )

    async def _one(self, request: ScoringRequest) -> float | BackendError:
        try:
            messages = [
                {name: value for name, value in message.items() if name != "reasoning_content"}
                for message in scored_part(request)
            ]
            async with self._places:
                return (await self._request_scores({"messages": messages, **self._cut()}, 1))[0]
        except BackendError as error:
            return error

    def _cut(self) -> dict[str, Any]:
        truncated = self.options.overlong == "left"
        return {"truncate_prompt_tokens": -1, "truncation_side": "left"} if truncated else {}

    def _input(self, request: ScoringRequest) -> list[int] | tuple[str, str]:
        return self._pair(request) if self._tokens is None else self._tokens.encode(scored_part(request))

    def _pair(self, request: ScoringRequest) -> tuple[str, str]:
        place = replies(request)[-1]
        reply = text_of(request.messages[place])
        before = [(message["role"], text) for message in request.messages[:place] if (text := text_of(message))]
        if len(before) == 1:
            return before[0][1], reply
        return "\n\n".join(f"{role}: {text}" for role, text in before), reply

    def _body(self, bodies: Sequence[Any]) -> dict[str, Any]:
        if self.options.endpoint == "score":
            before, after = zip(*bodies, strict=True)
            return {"text_1": list(before), "text_2": list(after), **self._cut()}
        return {"input": list(bodies), "add_special_tokens": False}

    async def _request_scores(self, body: Mapping[str, Any], count: int) -> list[float]:
        endpoint = self.options.endpoint
        fields: dict[str, Any] = {"model": self._model, "use_activation": False}
        if endpoint == "pooling":
            fields |= {"task": "classify", "encoding_format": "float"}
        try:
            answer = await self._client.request(
                "POST", f"/{endpoint}", {**fields, **body}, timeout=self.options.timeout_s
            )
        except UnreachableError as error:
            raise OutageError(str(error)) from error
        if answer.status != 200:
            message = f"{self.options.url}/{endpoint} answered {answer.status}: {error_text(answer.body)}"
            if answer.status >= 500 or answer.status in (408, 429):
                raise OutageError(message)
            raise BackendError(message, final=True)
        try:
            data = sorted(answer.body["data"], key=lambda item: item["index"])
            if [item["index"] for item in data] != list(range(count)):
                raise ValueError(f"{len(data)} scores for {count} conversations")
            return [self._read(item) for item in data]
        except (KeyError, TypeError, ValueError) as error:
            message = f"{type(error).__name__}: {error}"
            raise BackendError(f"the answer of {self.options.url}/{endpoint} cannot be read: {message}") from error

    def _read(self, data: Mapping[str, Any]) -> float:
        where = {"classify": "probs", "pooling": "data", "score": "score"}[self.options.endpoint]
        value = data[where]
        logits = value if isinstance(value, list) else [value]
        if not logits or not all(
            isinstance(number, numbers.Real) and not isinstance(number, bool) for number in logits
        ):
            raise ValueError(f"{where} is {value!r:.100}, which is no list of numbers")
        label = self.options.label
        if label is None and len(logits) > 1:
            raise ValueError(f"the model has {len(logits)} labels; say which is the score: label=NUMBER")
        if label is not None and label >= len(logits):
            raise ValueError(f"the model has {len(logits)} labels, and none of number {label}")
        return transformed([float(logit) for logit in logits], label or 0, self.options.transform)

    async def healthy(self) -> bool:
        return (await self._client.request("GET", "/health", timeout=_HEALTH_S)).status == 200

    async def close(self) -> None:
        await self._client.close()


def pooling_problems(options: ServiceSection) -> Iterator[tuple[str, str]]:
    """Yield the problems of the client's options, without a request: the option to change, and the reason."""
    yield from _option_problems(options)
    if options.tokenizer is not None:
        yield from conversation_problems(options.tokenizer, options.template)


def _option_problems(options: ServiceSection) -> Iterator[tuple[str, str]]:
    if options.url is None or not options.url.startswith(("http://", "https://")):
        yield "url", f"url must begin with http:// or https://, not be {options.url!r}"
    renders = options.endpoint != "score" and options.input == "tokens"
    if renders and options.tokenizer is None:
        yield "tokenizer", "input=tokens renders conversations here: name a tokenizer, or let the server render them"
    for name in ("tokenizer", "template", "max_length"):
        if not renders and getattr(options, name) is not None:
            yield name, f"{name} has no effect where conversations are not rendered here"
    if options.endpoint == "score" and (options.label is not None or options.transform == "softmax"):
        yield "endpoint", "/score gives one number: it takes no label, and transform=softmax makes 1 of it"
    if options.api_key_env is not None and not os.environ.get(options.api_key_env):
        yield "api_key_env", f"the environment variable {options.api_key_env} has no key in it for {options.url}"


async def _get(client: Client, path: str) -> Answer:
    try:
        answer = await client.request("GET", path, timeout=_HEALTH_S)
    except UnreachableError as error:
        raise OutageError(f"the reward model cannot be reached: {error}") from error
    if answer.status in (401, 403):
        raise ValueError(f"{client.base_url} refuses the key; name the variable that has it in api_key_env")
    if answer.status >= 500:
        raise OutageError(f"{client.base_url}{path} answered {answer.status}: {error_text(answer.body)}")
    return answer


def _served(answer: Answer, options: ServiceSection) -> tuple[str, int | None]:
    """Return the model's name, and its maximum length if the server reports it."""
    try:
        models = {str(model["id"]): model.get("max_model_len") for model in answer.body["data"]}
    except (KeyError, TypeError, AttributeError):
        models = {}
    if not models and options.model is None:
        raise ValueError(f"{options.url}/v1/models names no model; give its name: model=NAME")
    name = options.model or next(iter(models))
    if models and name not in models:
        raise ValueError(f"{options.url} does not serve {name!r}; it serves {', '.join(models)}")
    return name, models.get(name)
