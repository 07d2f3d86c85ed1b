"""TRL's own generation as an engine: it takes all prompts at once, so the episodes take their turns together.

:class:`RoundEngine` collects requests until every episode that runs waits for one; the thread that called the rollout
then generates them all in one call (:func:`answer`). Whoever finishes early waits for the longest reply of the round:
that is how TRL generates. The embedded engine does not wait, see :mod:`.rollout`.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...engines.base import EngineError, Generation, Sampling, UpdateMode


@dataclass(eq=False)
class Asked:
    """A request that waits.

    Args:
        token_ids: The prompt.
        sampling: Its ``max_new_tokens`` and ``stop_token_ids`` count; the rest is TRL's configuration.
        answer: Who waits, on ``loop``.
        loop: Where.
    """

    token_ids: list[int]
    sampling: Sampling
    answer: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop

    def settle(self, outcome: Generation | BaseException) -> None:
        """Give the answer, from any thread."""

        def give() -> None:
            if self.answer.done():  # cancelled in the meantime
                return
            if isinstance(outcome, BaseException):
                self.answer.set_exception(outcome)
            else:
                self.answer.set_result(outcome)

        self.loop.call_soon_threadsafe(give)


class RoundEngine:
    """See :class:`trainers.engines.base.Engine`; weights are TRL's own, so there is nothing to publish.

    Args:
        max_context: Prompt and reply together.

    Attributes:
        rounds: What is to be generated next; ``None`` when the episodes are over.
    """

    def __init__(self, max_context: int) -> None:
        self.rounds = self.open()
        self._max_context = max_context
        self._unfinished = self._limit = self._served = 0

    @property
    def version(self) -> int:
        """Always 0: TRL counts its weights itself."""
        return 0

    @property
    def max_context(self) -> int:
        """Prompt and new tokens together are at most this."""
        return self._max_context

    def open(self) -> queue.SimpleQueue[list[Asked] | None]:
        """Forget what an earlier batch may have left; its rounds come out of a queue of their own."""
        self._waiting: list[Asked] = []
        self.rounds = queue.SimpleQueue()
        return self.rounds

    def begin(self, episodes: int, limit: int) -> None:
        """So many episodes will be played, at most ``limit`` at a time."""
        self._unfinished, self._limit = episodes, limit

    def leave(self) -> None:
        """An episode is over."""
        self._unfinished -= 1
        self._start_if_all_wait()

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """The next round's answer."""
        loop = asyncio.get_running_loop()
        asked = Asked(list(token_ids), sampling, loop.create_future(), loop)
        self._waiting.append(asked)
        self._start_if_all_wait()
        try:
            return await asked.answer
        finally:
            if asked in self._waiting:  # its episode was given up before the round began
                self._waiting.remove(asked)

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """Refused.

        Raises:
            ValueError: Always.
        """
        raise ValueError("TRL publishes its weights itself")

    async def release(self, session: str) -> None:
        """Nothing is kept."""

    def stats(self) -> dict[str, float]:
        """``requests`` so far, and how many wait."""
        return {"requests": float(self._served), "waiting": float(len(self._waiting))}

    async def close(self) -> None:
        """Nothing is held."""

    def _start_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= min(self._unfinished, self._limit):
            batch, self._waiting = self._waiting, []
            self._served += len(batch)
            self.rounds.put(batch)


def answer(trainer: Any, batch: Sequence[Asked]) -> bool:
    """Generate a round with TRL (``transformers``, its continuous batching, or vLLM, as it is configured).

    Replies are cut behind their first stop token and at their own length: what is left of a sample is one.

    Returns:
        Whether TRL says log-probabilities; otherwise they are given as 0.

    Raises:
        EngineError: This version of TRL cannot be asked.
    """
    generate = getattr(trainer, "_generate_single_turn", None)
    if generate is None:
        raise EngineError(
            "this version of TRL does not generate by _generate_single_turn: use trl>=1.16,<2, or engine='torch'"
        )
    with _at_most(trainer, max(asked.sampling.max_new_tokens for asked in batch)):
        completions, logprobs = generate([asked.token_ids for asked in batch], None, {}, 1)
    for number, asked in enumerate(batch):
        given = None if logprobs is None else logprobs[number]
        asked.settle(_generation(completions[number], given, asked.sampling))
    return logprobs is not None


def _generation(token_ids: Sequence[int], logprobs: Sequence[float | None] | None, sampling: Sampling) -> Any:
    end = sampling.max_new_tokens
    stop = next((i + 1 for i, token in enumerate(token_ids) if token in sampling.stop_token_ids), end + 1)
    ids = np.array(token_ids[: min(stop, end)], np.int32)
    said = np.zeros(len(ids)) if logprobs is None else np.array(logprobs[: len(ids)], np.float64)  # None becomes NaN
    if not np.isfinite(said).all():
        return EngineError("the engine sampled a token and could not say its log-probability")
    finish = "stop" if stop <= end and len(ids) == stop else "length"
    return Generation(ids, said.astype(np.float32), np.zeros(len(ids), np.int32), finish)  # type: ignore[arg-type]


@contextlib.contextmanager
def _at_most(trainer: Any, tokens: int) -> Iterator[None]:
    """Let TRL generate no more than a round can use."""
    owner, name = (
        (trainer.vllm_generation, "max_completion_length")
        if trainer.use_vllm
        else (trainer.generation_config, "max_new_tokens")
    )
    usual = getattr(owner, name)
    setattr(owner, name, min(usual, tokens))
    try:
        yield
    finally:
        setattr(owner, name, usual)
