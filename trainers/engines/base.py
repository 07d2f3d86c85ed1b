"""One protocol for every inference engine: token ids in, token ids out.

Conventions, which the conformance suite checks on every engine:

* **Log-probability.** ``Generation.logprobs[i] = log_softmax(logits_i / T)[token_i]`` over the *full* vocabulary, with
  ``T = temperature`` (1 for greedy decoding), not renormalised after top-k, top-p or min-p: what a learner recomputes.
  An engine that is made with ``unused_token_ids`` (:mod:`trainers.models.vocabulary`) never samples these; its full
  vocabulary is the other ids.
  ``Generation.sampled_logprobs`` is that of the distribution that was sampled from (after the cuts, renormalised):
  equal to ``logprobs`` when nothing is cut, 0 for greedy, ``None`` from engines that cannot say. With
  ``Sampling.return_kept``, ``Generation.kept_ids`` are the tokens that the cuts left; engines that cannot say refuse.
* **Stop tokens** that were sampled are part of ``token_ids`` and have a log-probability; ``finish_reason`` is
  ``"stop"``.
* **Context.** A prompt that leaves no room for a new token within ``max_context`` is a :class:`RequestError`; a
  generation that reaches the end of the context ends there, with ``finish_reason="length"``.
* **Cuts** apply to the probabilities at the temperature, in this order: the ``top_k`` most likely tokens; of those,
  renormalised, the smallest set with probability ``top_p``; of those, the ones with at least ``min_p`` times the
  probability of the most likely.
* **Versions.** Every token carries the version of the weights that computed it.
* **Sessions.** ``session`` names an episode, whose KV cache an engine may keep between calls; it never reuses KV that
  other weights computed. Sessions are a matter of speed alone. A request without one may reuse KV, and an engine may
  keep what it computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trainers.config.engine import MIN_TEMPERATURE

FinishReason = Literal["stop", "length", "abort"]
UpdateMode = Literal["keep", "wait", "abort"]

DEFAULT_SLOTS = 64  #: requests at once of an engine outside a run, if its section has no ``max_slots``


class EngineError(RuntimeError):
    """The engine cannot continue, or cannot serve this request; the message says which."""


class EngineDeadError(EngineError):
    """The engine is dead: every request in flight fails with this within seconds, and no new one is accepted."""


class PartialUpdateError(EngineError):
    """A part of the engine failed to take new weights and was removed (the message says why); the rest has them."""


class SupersededError(EngineError):
    """These weights no longer exist, because the learner has trained further; the next ones will come."""


class SourceLostError(EngineError):
    """The owner of the weights could not send them; the engine is not at fault. The message says why."""


class RequestError(EngineError, ValueError):
    """This request alone is invalid: ids outside the vocabulary, too long, bad sampling parameters."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. Raises ``ValueError``: a value outside its range."""

    temperature: float = 1.0  #: 0 decodes greedily
    top_p: float = 1.0  #: keep the smallest set of tokens with at least this probability; 1 keeps all
    top_k: int = 0  #: keep the k most likely tokens; 0 keeps all
    min_p: float = 0.0  #: drop tokens below ``min_p`` times the most likely one's probability
    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()  #: stop after any of these (the token is kept)
    ignore_stop: bool = False  #: generate exactly ``max_new_tokens`` tokens (benchmarks)
    return_kept: bool = False  #: report which tokens the cuts left at every step
    #: Makes the request's randomness its own: the same ids, weights and seed give the same tokens however requests are
    #: batched. ``None`` draws from the engine's stream.
    seed: int | None = None

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature >= 0.0, "at least 0"),
            ("top_p", 0.0 < self.top_p <= 1.0, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "at least 0 (0 keeps all)"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "in [0, 1]"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
        )
        for name, good, requirement in checks:
            if not good:
                raise ValueError(f"sampling {name} must be {requirement}, not {getattr(self, name)!r}")

    def of_reply(self, room: int, stop_token_ids: Iterable[int], seed: int) -> Sampling:
        """Return these for one reply: at most ``room`` tokens, which ``stop_token_ids`` end too, with its own seed."""
        stops = tuple(dict.fromkeys((*self.stop_token_ids, *stop_token_ids)))
        return replace(self, max_new_tokens=min(self.max_new_tokens, room), stop_token_ids=stops, seed=seed)


@dataclass(frozen=True)
class Generation:
    """The result of one request: ``n`` tokens, possibly none (an abort before the first)."""

    token_ids: NDArray[np.int32]  #: ``[n]``
    logprobs: NDArray[np.float32]  #: ``[n]``; see the module's convention
    weight_version: NDArray[np.int32]  #: ``[n]``
    finish_reason: FinishReason  #: ``stop`` (a stop token), ``length`` (``max_new_tokens``), ``abort``
    sampled_logprobs: NDArray[np.float32] | None = None  #: ``[n]``; see the module's convention
    kept_ids: NDArray[np.int32] | None = None  #: ``[m]``, with ``return_kept``: what could be drawn, step after step
    kept_counts: NDArray[np.int32] | None = None  #: ``[n]``: how many ``kept_ids`` a token has; 0 where nothing was cut
    #: For example ``cached_tokens`` (prompt tokens whose KV was reused) and ``queue_s``.
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def policy_logprobs(self) -> NDArray[np.float32]:
        """``[n]``: ``logprobs``, but over the kept tokens where the engine reports these."""
        if self.kept_counts is None:
            return self.logprobs
        assert self.sampled_logprobs is not None
        return np.where(self.kept_counts > 0, self.sampled_logprobs, self.logprobs)


#: Gauges of ``stats``, which describe the present; all others are counters since the start.
GAUGES = frozenset({"running", "waiting", "kv_use", "idle_sessions"})


@runtime_checkable
class Engine(Protocol):
    """An inference engine. All methods are called from one event loop; none blocks it."""

    @property
    def version(self) -> int:
        """The version of the weights that the next token will be computed with."""

    @property
    def max_context(self) -> int:
        """The maximum of prompt and new tokens together."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """Continue ``token_ids``. Cancelling the awaiting task aborts the request and frees what it held.

        Raises RequestError: the request is invalid. EngineDeadError: the engine is dead.
        """

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """Take new weights.

        They are a mapping of parameter names to tensors in the model's own naming (``state_dict``), or for
        out-of-process engines the form of their publisher. ``version`` is greater than the current one. Under the
        mode ``keep`` requests in flight take the new weights (their KV is recomputed); ``wait``: those in flight
        finish first, new ones wait; ``abort``: those in flight end now, with ``finish_reason="abort"`` and the tokens
        they have. Raises ``ValueError``: names or shapes do not fit, or the version does not grow; the old weights then
        stay. PartialUpdateError: only a part of the engine took them, and continues without the rest. EngineDeadError:
        the engine is gone.
        """

    async def release(self, session: str) -> None:
        """Forget what is kept for a session; unknown names are fine."""

    def stats(self) -> dict[str, float]:
        """Counters since the start, and gauges (:data:`GAUGES`). An engine gives those that it can.

        Counters are ``requests``, ``generated_tokens``, ``prefill_tokens``, ``cached_tokens`` and ``preemptions``
        (requests that lost their work for lack of KV memory); gauges are ``running`` and ``waiting`` (requests), and
        ``kv_use`` (the share of the KV memory that running requests hold, from 0 to 1).
        """

    async def close(self) -> None:
        """Stop; requests in flight fail with :class:`EngineDeadError`. Safe to call twice."""


async def probe(engine: Engine) -> int:
    """Have an engine compute a token, or call its own ``probe``; raises ``EngineError`` if it does not compute.

    Returns the number of tokens in ``stats`` that were computed for this.
    """
    if (own := getattr(engine, "probe", None)) is not None:
        tokens: int = await own()
        return tokens
    # With a seed, so that it draws nothing from the engine's own stream.
    reply = await engine.generate([0], Sampling(temperature=0.0, max_new_tokens=1, seed=0))
    return len(reply.token_ids)


def default_kv_bytes(gpu: int | None, steps: int = 0) -> int:
    """Return the default memory for keys and values: 1 GiB on a CPU (``None``).

    On a GPU it is a quarter of the (free) memory that an embedded engine's ``steps`` leave
    (:func:`trainers.engines.step_memory.engine_bytes`).
    """
    return 2**30 if gpu is None else max(gpu - steps, 0) // 4


def check_mode(mode: str) -> None:
    if mode not in get_args(UpdateMode):
        raise ValueError(f"update mode must be keep, wait or abort, not {mode!r}")


def check_sizes(config: Any, max_context: int, stop_token_ids: Sequence[int]) -> None:
    """Check sizes. ``ValueError``: the model has fewer positions, or the stop tokens are outside its vocabulary."""
    if not 2 <= max_context <= config.max_position_embeddings:
        raise ValueError(
            f"max_context must be from 2 to the model's {config.max_position_embeddings}, not {max_context}"
        )
    sampling = Sampling(stop_token_ids=tuple(stop_token_ids))
    check_request([0], sampling, vocab_size=config.vocab_size, max_context=max_context)


def check_unused(unused_token_ids: Sequence[int], vocab_size: int) -> None:
    """Check the ids. ``ValueError``: one is outside the vocabulary, or no other id remains."""
    unused = set(unused_token_ids)
    if unused and not 0 <= min(unused) <= max(unused) < vocab_size:
        raise ValueError(f"unused_token_ids must be ids below {vocab_size}, not {min(unused)} to {max(unused)}")
    if len(unused) == vocab_size:
        raise ValueError(f"unused_token_ids are the whole vocabulary of {vocab_size}: nothing could be sampled")


def check_request(
    token_ids: Sequence[int], sampling: Sampling, *, vocab_size: int, max_context: int, reports_kept: bool = False
) -> NDArray[np.int32]:
    """Return the prompt, int32 ``[n]``, ``n >= 1``; RequestError. ``reports_kept``: it supports ``return_kept``."""
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or len(ids) == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise RequestError(f"token_ids must be a non-empty flat sequence of integers, not {ids.dtype} {ids.shape}")
    # A list is searched in place: for a few hundred entries Python is faster than NumPy.
    some: Any = token_ids if isinstance(token_ids, list) else ids.tolist()
    stops = sampling.stop_token_ids or (0,)
    for name, low, high in (("token id", min(some), max(some)), ("stop token id", min(stops), max(stops))):
        if not 0 <= low <= high < vocab_size:
            raise RequestError(f"{name} {low if low < 0 else high} is outside the vocabulary of {vocab_size}")
    if sampling.return_kept and not reports_kept:
        raise RequestError("return_kept: this engine does not report which tokens the cuts left; the torch engine does")
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        raise RequestError(f"temperature {sampling.temperature} is too small; 0 decodes greedily")
    if len(ids) >= max_context:
        raise RequestError(
            f"the prompt of {len(ids)} tokens leaves no room for a new one in max_context={max_context}; "
            "shorten it or make the engine with a larger max_context"
        )
    return ids.astype(np.int32)
