"""What vLLM's HTTP server is sent and what it answers (0.32), as pure functions.

Tokens come from ``/inference/v1/generate``; weights, pauses and sleep are vLLM's endpoints for reinforcement learning,
which exist with ``VLLM_SERVER_DEV_MODE=1``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from textenvs.text import excerpt
from trainers.engines.base import EngineError, FinishReason, Sampling
from trainers.engines.http import Answer, error_text
from trainers.engines.remote import Reply

from .options import EXTENSION

#: Prometheus' names of what ``stats`` has.
_METRICS = {
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:iteration_tokens_total_count": "steps",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_use",
}


def generate_body(
    token_ids: Sequence[int], sampling: Sampling, *, stops: Sequence[int], room: int, vocab_size: int
) -> dict[str, Any]:
    """The body of ``POST /inference/v1/generate`` for at most ``room`` tokens up to one of ``stops``."""
    parameters: dict[str, Any] = {
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
        "top_k": min(int(sampling.top_k), vocab_size),
        "min_p": float(sampling.min_p),
        "max_tokens": int(room),
        "stop_token_ids": sorted(map(int, stops)),
        "logprobs": 0,  # that of the sampled token alone
        "detokenize": False,
        "ignore_eos": True,  # stop tokens are those that the request names
    }
    if sampling.seed is not None:
        parameters["seed"] = int(sampling.seed) % 2**63
    return {"token_ids": list(token_ids), "sampling_params": parameters}


def read_reply(body: Any) -> Reply:
    """The answer to ``POST /inference/v1/generate``; EngineError where parts are missing or contradict each other."""
    try:
        (choice,) = body["choices"]
        tokens = [int(token) for token in choice["token_ids"]]
        logprobs = [float(each["logprob"]) for each in choice["logprobs"]["content"] or []]
        spans = choice["weight_versions"] or ()
        labels = [str(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
        reason, details = choice["finish_reason"], body["usage"]["prompt_tokens_details"]
    except (KeyError, TypeError, ValueError):
        raise EngineError(f"vLLM's answer cannot be read: {excerpt(str(body))}") from None
    if details is None:
        raise EngineError("vLLM does not say what it found in its cache; start it with --enable-prompt-tokens-details")
    if len(logprobs) != len(tokens) or len(labels) != len(tokens) or reason not in get_args(FinishReason):
        raise EngineError(f"the parts of vLLM's answer contradict each other: {excerpt(str(body))}")
    return Reply(tokens, logprobs, labels, reason, int(details["cached_tokens"] or 0))


def read_metrics(text: str) -> dict[str, float]:
    """The numbers that ``Engine.stats`` has, of Prometheus' text format."""
    sums: Counter[str] = Counter()
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        if brace and name in _METRICS:
            with contextlib.suppress(ValueError):
                sums[_METRICS[name]] += float(rest.rpartition("} ")[2])  # type: ignore[assignment]
    return dict(sums)


def check_description(answer: Answer, vocab_size: int, max_context: int) -> dict[str, Any]:
    """What the server's first worker says of itself in ``POST /collective_rpc``; EngineError says what it must have."""
    if answer.status == 404:
        raise EngineError("it has no endpoints for weights; start it with VLLM_SERVER_DEV_MODE=1")
    if answer.status != 200 or not isinstance(answer.body, Mapping) or not answer.body.get("results"):
        problem = error_text(answer.body)
        if "describe_to_the_trainer" in problem:
            raise EngineError(f"its workers lack our extension; start it with --worker-extension-cls {EXTENSION}")
        raise EngineError(f"/collective_rpc answers {answer.status}: {problem}")
    described = dict(answer.body["results"][0])
    vocab, context = described["vocab_size"], described["max_context"]
    for good, problem in (
        (described["sampler"], "its sampler is not ours; start it with VLLM_USE_V2_MODEL_RUNNER=0"),
        (described["transfer"], 'start it with --weight-transfer-config \'{"backend": "textenvs"}\''),
        (
            described["reads_prompts"],
            "on a CPU it dies of a seeded prompt that it reads in parts; start it with --no-enable-chunked-prefill "
            f"--max-num-batched-tokens {max(4096, context)}",
        ),
        (
            vocab == vocab_size,
            f"it serves a model with {vocab} tokens, and this one has {vocab_size}; start it with a folder of the same "
            "model",
        ),
        (
            context >= max_context,
            f"its context is {context} tokens, and max_context is {max_context}; start it with "
            f"--max-model-len {max_context}",
        ),
    ):
        if not good:
            raise EngineError(problem)
    return described
