"""Tokens of a micro-batch: as configured, or by free memory; fewer where memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from trainers.learner.fsdp import Ranks
from trainers.learner.memory import free_bytes
from trainers.models.memory import CPU_TOKENS, Computation, ModelShape

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class TokenBudget:
    """The maximum tokens of a micro-batch of this rank, the same on all ranks.

    Args:
        tokens: The configured number; ``None``: on a GPU what fits into the memory that is free when it is first asked
            for, else :data:`~trainers.models.memory.CPU_TOKENS`.
        shape: Of the model, where ``tokens`` is ``None`` on a GPU.
        computation: How it computes.
        ranks: All of them.
        device: This rank's.
        soon: Returns the bytes that an update allocates beside its micro-batches: gradients, gathered parameters.
        recovers: Whether a pass can be given up without a trace.
    """

    def __init__(
        self,
        tokens: int | None,
        shape: ModelShape | None,
        computation: Computation,
        ranks: Ranks,
        device: torch.device,
        soon: Callable[[], int],
        recovers: bool,
    ) -> None:
        self._tokens = tokens
        self._shape, self._computation, self._device = shape, computation, device
        self._ranks, self._soon, self._recovers = ranks, soon, recovers

    @property
    def tokens(self) -> int:
        """The number; all ranks ask for it together."""
        if self._tokens is None:
            fits = CPU_TOKENS
            if self._shape is not None and (free := free_bytes(self._device)) is not None:
                fits = self._computation.tokens_that_fit(self._shape, free - self._soon())
            self._tokens = self._ranks.least(fits)
        return self._tokens

    def attempt(self, compute: Callable[[], _Result], forget: Callable[[], None], largest: int) -> _Result:
        """Return what ``compute`` returns; where a GPU's memory runs out, ``forget`` and compute again with half.

        ``compute`` cuts micro-batches of :attr:`tokens` and starts from nothing each time. Raises OutOfMemoryError with
        the keys that help: there are several ranks, which would not meet again; FSDP2 of this torch cannot give a pass
        up; or an episode of ``largest`` tokens alone is too much.
        """
        while True:
            try:
                return compute()
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                problem = str(error).partition("\n")[0]
            # Outside of the handler: the exception holds the frames of the pass, and these its tensors.
            self._halve(problem, largest)
            forget()

    def _halve(self, problem: str, largest: int) -> None:
        tokens = self.tokens
        if self._ranks.world > 1 or not self._recovers or tokens <= largest:
            few = "" if tokens > largest else f", and an episode, which is never cut, has {largest}"
            raise torch.OutOfMemoryError(
                f"{problem} Micro-batches have up to {tokens} tokens{few}: lower actor.max_tokens_per_micro_batch (or "
                "that of warm_start or sft), or set model.enable_gradient_checkpointing=true"
            )
        self._tokens = tokens // 2
        _LOG.warning(
            "out of memory with micro-batches of %d tokens; computing this pass again with %d. To start with so many: "
            "max_tokens_per_micro_batch=%d",
            *(tokens, self._tokens, self._tokens),
        )


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether a GPU's memory ran out, also where a library or the driver found it first."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "ALLOC_FAILED" in text
