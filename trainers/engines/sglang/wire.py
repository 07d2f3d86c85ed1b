"""What SGLang's HTTP server is asked and what it answers: pure functions that know versions 0.5.8 to 0.5.23.

Where versions differ, the reading is tolerant: token ids may stand in ``output_ids`` or only beside their log-probs,
spans of weight versions may be missing, a list of one answer may come for one request, an error may be an object, a
string or plain text. What cannot be read is an error that quotes it, never a guess.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textenvs.text import excerpt
from trainers.engines.base import EngineError, FinishReason, Sampling

_ONLY_THE_BEST = 1e-6  # as top_p: the likeliest of fewer than a million tokens has more


class AnswerError(EngineError):
    """The server answered something that is no answer to what it was asked."""


@dataclass(frozen=True)
class Piece:
    """What one request brought.

    Args:
        token_ids: Of the reply, in order.
        logprobs: One a token.
        reason: Why it ended, in the words of the protocol.
        detail: In the server's words, for errors.
        spans: ``(first token, version)`` in the server's version strings, or ``None`` from servers before 0.5.20.
        cached_tokens: Prompt tokens whose KV was reused.
        retractions: How often its KV was given up and computed again.
    """

    token_ids: list[int]
    logprobs: list[float]
    reason: FinishReason
    detail: str
    spans: list[tuple[int, str]] | None
    cached_tokens: int
    retractions: int


def generate_body(
    rid: str, token_ids: Sequence[int], sampling: Sampling, *, max_new_tokens: int, vocab_size: int, seed: int | None
) -> dict[str, Any]:
    """The body of ``POST /generate``.

    Args:
        rid: Names the request.
        token_ids: The prompt.
        sampling: How to sample; its own seed and ``max_new_tokens`` are not used.
        max_new_tokens: At most so many tokens.
        vocab_size: Of the model; ``top_k`` above it keeps all.
        seed: What the server is to seed the request with; ``None`` sends none.
    """
    top_p, top_k = sampling.top_p, sampling.top_k if 0 < sampling.top_k < vocab_size else -1
    if top_k == 1 and sampling.temperature > 0:
        # SGLang takes a batch of nothing but top_k = 1 for greedy decoding, whose log-probs are without temperature.
        top_p, top_k = _ONLY_THE_BEST, -1
    parameters: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_stop,
        "skip_special_tokens": False,
    }
    if seed is not None:
        parameters["sampling_seed"] = seed
    return {
        "rid": rid,
        "input_ids": list(token_ids),
        "sampling_params": parameters,
        "return_logprob": True,
        "stream": False,
    }


def server_seed(seed: int) -> int:
    """Any integer as one that SGLang takes: 63 bits, different for different seeds (but for a collision)."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "big") >> 1


def read_generation(answer: Any, vocab_size: int) -> Piece:
    """Understand the answer to ``POST /generate``.

    Raises:
        AnswerError: It is none, or its parts contradict each other.
    """
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(meta, Mapping):
        raise _unreadable("has no meta_info", answer)
    entries = meta.get("output_token_logprobs")
    if entries is None and not meta.get("completion_tokens") and not answer.get("output_ids"):
        entries = []  # aborted before its first token
    if not isinstance(entries, list) or not all(isinstance(entry, list) and len(entry) >= 2 for entry in entries):
        raise _unreadable("has no list of output_token_logprobs", answer)
    beside = [entry[1] for entry in entries]
    ids = answer.get("output_ids", beside)
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise _unreadable(f"has output_ids that are no tokens of a vocabulary of {vocab_size}", answer)
    reason, detail = _finish_reason(meta, answer)
    if reason == "abort":  # ended between the two being written down, it may have more of one
        ids, beside = ids[: len(beside)], beside[: len(ids)]
    if ids != beside:
        raise _unreadable("has log-probs of other tokens than it returned", answer)
    logprobs = [entry[0] for entry in entries[: len(ids)]]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in logprobs):
        raise _unreadable("has log-probs that are not finite numbers", answer)
    return Piece(
        token_ids=ids,
        logprobs=[float(value) for value in logprobs],
        reason=reason,
        detail=detail,
        spans=_spans(meta, len(ids), answer),
        cached_tokens=int(meta.get("cached_tokens") or 0),
        retractions=int(meta.get("num_retractions") or meta.get("total_retractions") or 0),
    )


def _finish_reason(meta: Mapping[str, Any], answer: Any) -> tuple[FinishReason, str]:
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, Mapping) else reason
    if kind not in ("stop", "length", "abort"):
        raise _unreadable("has no finish_reason of stop, length or abort", answer)
    return kind, str(reason.get("message") or kind) if isinstance(reason, Mapping) else str(kind)


def _spans(meta: Mapping[str, Any], count: int, answer: Any) -> list[tuple[int, str]] | None:
    spans = meta.get("weight_versions")
    if not spans:
        return None
    try:
        read = [(int(span["start"]), str(span["version"]), int(span["end"])) for span in spans]
    except (TypeError, KeyError, ValueError):
        raise _unreadable("has weight_versions that cannot be read", answer) from None
    ends = [0, *(end for _, _, end in read)]
    if [start for start, _, _ in read] != ends[:-1] or ends[-1] < count:
        raise _unreadable(f"has weight_versions that do not cover its {count} tokens", answer)
    return [(start, version) for start, version, _ in read]


def succeeded(body: Any) -> bool:
    """Whether the answer of a control endpoint says that it did what it was asked; silence counts as a yes."""
    return not isinstance(body, Mapping) or body.get("success", True) is True


def _unreadable(what: str, answer: Any) -> AnswerError:
    return AnswerError(f"the SGLang server's answer {what}: {excerpt(json.dumps(answer, default=str))}")
