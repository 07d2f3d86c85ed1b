"""What SGLang's HTTP server is sent and what it answers (0.5.23 and later), as pure functions and types.

An answer that does not fit is an error that quotes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from textenvs.text import excerpt
from trainers.engines.base import EngineError, Sampling
from trainers.engines.remote import Reply

_Shape = TypeVar("_Shape", bound=BaseModel)

_ONLY_THE_BEST = 1e-6  # as top_p: the likeliest of fewer than a million tokens has more


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Reason(BaseModel):
    type: Literal["stop", "length", "abort"]
    message: str | None = None


class _Meta(BaseModel):
    finish_reason: _Reason
    #: ``[log-probability, token id, text or null]``, one a token.
    output_token_logprobs: list[tuple[Annotated[float, Field(allow_inf_nan=False)], int, Any]] = []
    weight_versions: list[_Span] = []
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV was reused

    @model_validator(mode="after")
    def _is_whole(self) -> _Meta:
        count = len(self.output_token_logprobs)
        # An abort may come between a token and its log-probability.
        if count != self.completion_tokens and self.finish_reason.type != "abort":
            raise ValueError(f"{count} output_token_logprobs for {self.completion_tokens} completion_tokens")
        ends = [0, *(span.end for span in self.weight_versions)]
        if [span.start for span in self.weight_versions] != ends[:-1] or ends[-1] < count:
            raise ValueError(f"weight_versions do not cover the {count} tokens")
        return self


class _Answer(BaseModel):
    meta_info: _Meta


class ServerInfo(BaseModel):
    """What ``GET /server_info`` says."""

    version: str
    device: str
    dtype: str = "auto"
    tp_size: int = 1
    dp_size: int = 1
    max_req_input_len: int | None = None  # prompts are shorter
    enable_deterministic_inference: bool = False

    def check(self, max_context: int) -> None:
        """Refuse, with EngineError, a server whose context is too short, or that has data-parallel replicas."""
        if self.max_req_input_len is not None and max_context > self.max_req_input_len:
            raise EngineError(
                f"it takes prompts below {self.max_req_input_len} tokens, and max_context is {max_context}; start it "
                f"with --context-length {max_context + 8} or more, and room for as many tokens of KV, or lower "
                "max_context"
            )
        if self.dp_size != 1:
            raise EngineError(
                f"it has {self.dp_size} data-parallel replicas, which SGLang does not give new weights; start so many "
                "servers instead"
            )


class _Rank(BaseModel):
    checksums: dict[str, str]


class Checksums(BaseModel):
    """What ``POST /weights_checker`` answers to ``{"action": "checksum"}``: one set a tensor-parallel rank."""

    ranks: list[_Rank] = Field(min_length=1)

    def by_name(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(rank.checksums.get(name, "") for rank in self.ranks) for name in self.ranks[0].checksums}


def generate_body(
    token_ids: Sequence[int], sampling: Sampling, *, stops: Sequence[int], room: int, vocab_size: int, seed: int | None
) -> dict[str, Any]:
    """The body of ``POST /generate`` for at most ``room`` tokens up to one of ``stops``, without the request's name."""
    top_p, top_k = sampling.top_p, sampling.top_k if 0 < sampling.top_k < vocab_size else -1
    if top_k == 1 and sampling.temperature > 0:
        # SGLang takes a batch of nothing but top_k = 1 for greedy decoding, whose log-probs are without temperature.
        top_p, top_k = _ONLY_THE_BEST, -1
    parameters: dict[str, Any] = {
        "max_new_tokens": room,
        "temperature": sampling.temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": list(stops),
        "ignore_eos": sampling.ignore_stop,
        "skip_special_tokens": False,
    }
    if seed is not None:
        parameters["sampling_seed"] = seed
    return {"input_ids": list(token_ids), "sampling_params": parameters, "return_logprob": True}


def server_seed(seed: int) -> int:
    """Any integer as one that SGLang takes: 63 bits, different for different seeds (but for a collision)."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "big") >> 1


def read_reply(answer: Any, vocab_size: int) -> Reply:
    """The answer to ``POST /generate``. Raises ``EngineError``: it is none, or its parts contradict each other."""
    meta = read(_Answer, answer).meta_info
    tokens, logprobs = (
        [each[1] for each in meta.output_token_logprobs],
        [each[0] for each in meta.output_token_logprobs],
    )
    if not all(0 <= token < vocab_size for token in tokens):
        raise EngineError(f"the SGLang server's answer has tokens outside a vocabulary of {vocab_size}")
    labels = [span.version for span in meta.weight_versions for _ in range(span.start, span.end)][: len(tokens)]
    reason = meta.finish_reason
    return Reply(tokens, logprobs, labels, reason.type, meta.cached_tokens, reason.message)


def read(shape: type[_Shape], answer: Any) -> _Shape:
    """An answer, checked. Raises ``EngineError``: it has another shape; quotes both."""
    try:
        return shape.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise EngineError(
            f"the SGLang server's answer does not fit: {where or 'it'}: {first['msg']}: "
            f"{excerpt(json.dumps(answer, default=str))}"
        ) from None
