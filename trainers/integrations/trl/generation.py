"""Engines of :class:`.TextEnvRollout`: the embedded engine with TRL's weights, or TRL's own generation.

TRL takes all prompts at once, so the episodes take their turns together: :class:`RoundEngine` collects requests until
every episode that runs waits for one; the thread that called the rollout then generates them all (:func:`answer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...config.engine import TorchEngineSection
from ...engines.base import EngineError, FinishReason, Generation, Sampling, UpdateMode
from ...engines.torch_engine import TorchEngine
from ...learner.fsdp import Ranks
from ...learner.lora import adapter_layers
from ...learner.weight_stream import WeightStream

_OTHERWISE = "use TextEnvRollout(engine='trl'), which generates as TRL does"


def refuse_if_unfit(trainer: Any) -> None:
    """Raise ``ValueError`` where weights are sharded, adapters are not plain LoRA, or the engine cannot sample so."""
    args, peft = trainer.args, adapters_of(trainer)
    layers = [layer for _, layer in adapter_layers(peft)] if peft is not None else []
    dora = any(getattr(layer, "lora_magnitude_vector", None) for layer in layers)
    plain = layers and not dora and all(set(layer.lora_A) <= {"default", "ref"} for layer in layers)
    problems = {
        "needs whole weights, not those of FSDP or DeepSpeed": trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled,
        f"has no repetition_penalty ({args.repetition_penalty})": args.repetition_penalty not in (None, 1.0),
        f"does not take generation_kwargs ({', '.join(args.generation_kwargs or ())})": args.generation_kwargs,
        "cannot stand in where TRL is configured to generate by an engine of its own": own_engine(args),
        "merges plain LoRA adapters of the name 'default' only": peft is not None and not plain,
    }
    for problem, present in problems.items():
        if present:
            raise ValueError(f"the embedded engine {problem}: {_OTHERWISE}")


def own_engine(args: Any) -> bool:
    """Return whether TRL generates by vLLM or transformers' continuous batching."""
    return bool(args.use_vllm or args.use_transformers_continuous_batching)


def adapters_of(trainer: Any) -> Any:
    """Return the peft model that is trained; ``None`` where all parameters are."""
    model = model_of(trainer)
    return model if hasattr(model, "get_base_model") else None


def model_of(trainer: Any) -> Any:
    """Return the model without accelerate's wrappers."""
    return trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)


def weights_of(trainer: Any) -> dict[str, Tensor]:
    """Return the current weights, by the model's own names, adapters merged."""
    if (peft := adapters_of(trainer)) is None:
        return dict(model_of(trainer).state_dict())
    alone = Ranks(None)
    stream = WeightStream(peft.get_base_model(), alone, "weights")
    return {name: value for names, value in stream.read(alone) for name in names}


def engine_for(trainer: Any, *, max_slots: int, max_context: int, threads: int | None) -> TorchEngine:
    """Build an engine with the trainer's weights, in its precision; ``ValueError`` where it cannot serve them."""
    refuse_if_unfit(trainer)
    model = model_of(trainer)
    if adapters_of(trainer) is not None:
        model = copy.deepcopy(model).merge_and_unload()  # for its shape; the weights come with every rollout
    dtype = torch.bfloat16 if trainer.args.bf16 else torch.float16 if trainer.args.fp16 else None
    section = TorchEngineSection(max_slots=max_slots, max_context=max_context, threads=threads)
    try:
        return TorchEngine(model, section, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"the embedded engine does not serve this model: {error}. Otherwise, {_OTHERWISE}") from error


def sampling_of(trainer: Any, max_new_tokens: int) -> Sampling:
    """Convert TRL's sampling to ours: TRL writes ``None`` where nothing is cut, and disables top-k by 0 or -1."""
    return Sampling(
        temperature=trainer.temperature,
        top_p=1.0 if trainer.top_p is None else trainer.top_p,
        top_k=max(trainer.top_k or 0, 0),
        min_p=trainer.min_p or 0.0,
        max_new_tokens=max_new_tokens,
    )


@dataclass(eq=False)
class Request:
    """A waiting request; of ``sampling``, ``max_new_tokens`` and ``stop_token_ids`` count, the rest is TRL's."""

    token_ids: list[int]
    sampling: Sampling
    answer: Future[Generation] = field(default_factory=Future)


class RoundEngine:
    """An :class:`trainers.engines.base.Engine` with TRL's weights; ``rounds`` has what is to be generated."""

    version = 0  # TRL counts its weights itself

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self.rounds = self.open()
        self._unfinished = self._limit = 0

    def open(self) -> queue.SimpleQueue[list[Request] | None]:
        """Drop requests of an earlier batch, and return the queue of this batch's rounds."""
        self._waiting: list[Request] = []
        self.rounds = queue.SimpleQueue()
        return self.rounds

    def begin(self, episodes: int, limit: int) -> None:
        """Start a batch of so many episodes, at most ``limit`` at a time."""
        self._unfinished, self._limit = episodes, limit

    def leave(self) -> None:
        self._unfinished -= 1
        self._start_if_all_wait()

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        request = Request(list(token_ids), sampling)
        self._waiting.append(request)
        self._start_if_all_wait()
        try:
            return await asyncio.wrap_future(request.answer)
        finally:
            if request in self._waiting:  # its episode was given up before the round began
                self._waiting.remove(request)

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        raise ValueError("TRL publishes its weights itself")

    async def release(self, session: str) -> None:
        """Do nothing: no state is stored."""

    def stats(self) -> dict[str, float]:
        return {"waiting": float(len(self._waiting))}

    async def close(self) -> None:
        """Do nothing: no resource is open."""

    def _start_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= min(self._unfinished, self._limit):
            batch, self._waiting = self._waiting, []
            self.rounds.put(batch)


def answer(trainer: Any, batch: Sequence[Request]) -> bool:
    """Generate a round with TRL, cut behind first stop tokens and at lengths; return whether it has logprobs."""
    with _at_most(trainer, max(request.sampling.max_new_tokens for request in batch)):
        completions, logprobs = trainer._generate_single_turn([request.token_ids for request in batch], None, {}, 1)
    for number, request in enumerate(batch):
        if not request.answer.set_running_or_notify_cancel():
            continue
        try:
            token_logprobs = None if logprobs is None else logprobs[number]
            request.answer.set_result(_generation(completions[number], token_logprobs, request.sampling))
        except EngineError as error:
            request.answer.set_exception(error)
    return logprobs is not None


def _generation(token_ids: Sequence[int], logprobs: Sequence[float | None] | None, sampling: Sampling) -> Generation:
    end = sampling.max_new_tokens
    stop = next((i + 1 for i, token in enumerate(token_ids) if token in sampling.stop_token_ids), end + 1)
    ids = np.array(token_ids[: min(stop, end)], np.int32)
    values = np.zeros(len(ids)) if logprobs is None else np.array(logprobs[: len(ids)], np.float64)  # None becomes NaN
    if not np.isfinite(values).all():
        raise EngineError("the engine sampled a token and returned no log-probability for it")
    finish: FinishReason = "stop" if stop <= end and len(ids) == stop else "length"
    return Generation(ids, values.astype(np.float32), np.zeros(len(ids), np.int32), finish)


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
