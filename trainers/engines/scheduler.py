"""Continuous batching: what the torch engine computes at each step, as a synchronous state machine.

No threads, no asyncio, no clock of its own: :mod:`trainers.engines.torch_engine` drives it. For each slot it knows the
tokens so far (``length``) and how many of them have keys and values (``computed``). One rule makes every step: compute
tokens that are known but not computed, and where the last known token was computed, sample the next. So decoding is one
token to compute, a new prompt is many, a prompt cut in chunks is many over several steps, and an update of the weights
in the middle of a generation is ``computed = 0``.

Requests that ask with the same prompt at the same time, as siblings of a group do, compute it once: the first leads,
the others wait until its keys and values are there, take a copy, and begin at the prompt's last token.

Invariants: a slot that is not busy samples nothing; KV that older weights computed is never read (``computed`` is 0 for
every slot, and no session is remembered, after an update); a request that asks for nothing more leaves at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.engines.base import EngineError, FinishReason, Generation, Sampling, UpdateMode
from trainers.engines.decoder import Chunk, Decoder
from trainers.engines.sampler import SamplingRows, sample, uniforms
from trainers.engines.slots import SlotTable


@dataclass(eq=False)
class Request:
    """One call of ``generate``, by identity.

    Args:
        prompt: int32, not empty.
        sampling: How to sample; its seed is set.
        session: The session's name, if any.
    """

    prompt: NDArray[np.int32]
    sampling: Sampling
    session: str | None = None
    row: int = field(default=-1, init=False)
    cached: int = field(default=0, init=False)
    leader: Request | None = field(default=None, init=False)  # computes the same prompt
    times: list[float] = field(default_factory=list, init=False)  # submitted, admitted, first token


@dataclass(eq=False)
class Update:
    """One call of ``update_weights``, by identity."""

    weights: Mapping[str, Tensor]
    version: int
    mode: UpdateMode


_WORTH_SHARING = 16  # tokens of a prompt; a shorter one is computed again sooner than it is waited for

Outcome = tuple[Request | Update, Generation | BaseException | None]


class Scheduler:
    """Requests in, generations out, one step at a time.

    Args:
        decoder: The model and its KV slots.
        stop_token_ids: Stop tokens of every request, beside its own.
        prefill_budget: At most this many prompt tokens a step, so that long prompts do not hold up those that decode.
        seed: Of the requests that have none.
        version: Of the decoder's weights.
        clock: Seconds, for the metrics.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        stop_token_ids: tuple[int, ...],
        prefill_budget: int,
        seed: int,
        version: int,
        clock: Callable[[], float],
    ) -> None:
        self.version = version
        self.counters = dict.fromkeys(("requests", "generated_tokens", "prefill_tokens", "cached_tokens", "steps"), 0)
        self._decoder = decoder
        self._stop = stop_token_ids
        self._budget = prefill_budget
        self._rng = np.random.default_rng(seed)
        self._clock = clock
        self._slots = SlotTable(decoder.slots)
        self._waiting: deque[Request] = deque()
        self._updates: deque[Update] = deque()
        self._running: dict[int, Request] = {}  # slot -> request, in the order of admission
        self._rows = np.zeros(0, np.int64)  # the keys of _running
        slots, context = decoder.slots, decoder.max_context
        self._ids = np.zeros((slots, context), np.int32)
        self._logprobs = np.zeros((slots, context), np.float32)
        self._sampled = np.zeros((slots, context), np.float32)
        self._versions = np.zeros((slots, context), np.int32)
        self._length = np.zeros(slots, np.int64)  # known tokens
        self._computed = np.zeros(slots, np.int64)  # of those, tokens with keys and values in the slot
        self._prompt = np.zeros(slots, np.int64)
        self._limit = np.zeros(slots, np.int64)  # stop at this length
        self._leaders: dict[bytes, Request] = {}  # by prompt; running
        self._stops = np.full((slots, 1), -1, np.int64)
        self._seed = np.zeros(slots, np.uint64)
        self._temperature = np.zeros(slots, np.float32)
        self._top_k = np.zeros(slots, np.int64)
        self._top_p = np.zeros(slots, np.float32)
        self._min_p = np.zeros(slots, np.float32)
        self._return_kept = np.zeros(slots, np.bool_)
        self._kept: list[list[NDArray[np.int32]]] = [[] for _ in range(slots)]  # of each new token, where asked for

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting or self._updates)

    def gauges(self) -> dict[str, float]:
        """How many are running and waiting, how many slots only keep a session, and the share of slots that run."""
        running = len(self._running)
        return {
            "running": running,
            "waiting": len(self._waiting),
            "idle_sessions": self._slots.idle,
            "kv_use": running / self._slots.count,
        }

    def add(self, request: Request) -> None:
        """Queue a request; it starts at the next step if a slot is free."""
        request.times.append(self._clock())
        self.counters["requests"] += 1
        self._waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Drop a request, wherever it is; one that is done already is fine."""
        if self._running.get(request.row) is request:
            self._leave(request.row)
        elif request in self._waiting:
            self._waiting.remove(request)

    def release(self, session: str) -> None:
        """Forget a session's KV."""
        self._slots.release(session)

    def add_update(self, update: Update) -> None:
        """Queue new weights; updates are applied in order."""
        self._updates.append(update)

    def cancel_update(self, update: Update) -> None:
        """Withdraw an update that was not applied yet."""
        if update in self._updates:
            self._updates.remove(update)

    def step(self) -> list[Outcome]:
        """Apply updates that are due, admit requests, compute once.

        Returns:
            What ended: requests with their generation, updates with ``None`` or the reason they were refused.

        Raises:
            EngineError: The model's output is not finite.
        """
        outcomes = self._apply_updates()
        if not self._updates:  # one that waits for those in flight lets nobody else in
            self._admit()
        if self._running:
            outcomes += self._compute()
        return outcomes

    # Weights

    def _apply_updates(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while self._updates and not (self._updates[0].mode == "wait" and self._running):
            update = self._updates.popleft()
            try:
                if update.version <= self.version:
                    raise ValueError(f"the new version {update.version} must be greater than {self.version}")
                self._decoder.check_weights(update.weights)
            except ValueError as refused:
                outcomes.append((update, refused))
                continue
            if update.mode == "abort":
                outcomes += [self._finish(row, "abort") for row in list(self._running)]
            self._decoder.load_weights(update.weights)
            self.version = update.version
            self._slots.forget_idle()
            self._computed[:] = 0
            outcomes.append((update, None))
        return outcomes

    # Requests

    def _admit(self) -> None:
        while self._waiting:
            taken = self._slots.take(self._waiting[0].session)
            if taken is None:
                break
            request = self._waiting.popleft()
            row, kept = taken
            prompt, sampling = request.prompt, request.sampling
            size = len(prompt)
            if kept:
                # The last token is always computed again: its logits are wanted.
                known = min(int(self._computed[row]), size - 1)
                differ = np.flatnonzero(self._ids[row, :known] != prompt[:known])
                request.cached = int(differ[0]) if len(differ) else known
                self.counters["cached_tokens"] += request.cached
            elif size > _WORTH_SHARING:
                request.leader = self._leaders.setdefault(prompt.tobytes(), request)
                if request.leader is request:
                    request.leader = None
            self._computed[row] = request.cached
            self._ids[row, :size] = prompt
            self._length[row] = self._prompt[row] = size
            self._limit[row] = min(size + sampling.max_new_tokens, self._decoder.max_context)
            self._set_stops(row, () if sampling.ignore_stop else (*self._stop, *sampling.stop_token_ids))
            seed = int(self._rng.integers(2**63)) if sampling.seed is None else sampling.seed
            self._seed[row] = int(seed) % 2**64
            self._temperature[row] = sampling.temperature
            self._top_k[row] = min(sampling.top_k, 2**62)
            self._top_p[row], self._min_p[row] = sampling.top_p, sampling.min_p
            self._return_kept[row] = sampling.return_kept
            self._kept[row] = []
            request.row = row
            request.times.append(self._clock())
            self._running[row] = request
            self._rows = np.fromiter(self._running, np.int64)

    def _set_stops(self, row: int, stops: tuple[int, ...]) -> None:
        missing = len(stops) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[row] = -1
        self._stops[row, : len(stops)] = stops

    def _leave(self, row: int) -> Request:
        request = self._running.pop(row)
        if self._leaders.get(prompt := request.prompt.tobytes()) is request:
            del self._leaders[prompt]
        self._slots.give_back(row)
        self._rows = self._rows[self._rows != row]
        return request

    def _finish(self, row: int, reason: FinishReason) -> Outcome:
        request = self._leave(row)
        new = slice(self._prompt[row], self._length[row])
        submitted, admitted, *first = request.times
        now = self._clock()
        metrics = {"cached_tokens": float(request.cached), "queue_s": admitted - submitted}
        if first:
            metrics |= {"prefill_s": first[0] - admitted, "decode_s": now - first[0]}
        kept = self._kept[row] if self._return_kept[row] else None
        self._kept[row] = []
        return request, Generation(
            token_ids=self._ids[row, new].copy(),
            logprobs=self._logprobs[row, new].copy(),
            weight_version=self._versions[row, new].copy(),
            finish_reason=reason,
            sampled_logprobs=self._sampled[row, new].copy(),
            kept_ids=None if kept is None else np.concatenate([np.zeros(0, np.int32), *kept]),
            kept_counts=None if kept is None else np.array([len(ids) for ids in kept], np.int32),
            metrics=metrics,
        )

    # One step

    def _compute(self) -> list[Outcome]:
        self._follow()
        pending = self._length[self._rows] - self._computed[self._rows]
        decoding = self._rows[pending == 1]
        decoding = decoding[np.argsort(self._length[decoding], kind="stable")]
        chunks = self._chunks() if len(decoding) < len(self._rows) else []
        batch = self._decoder.plan(decoding, self._length, chunks, self._ids)
        logits = self._decoder.logits(batch)
        self.counters["steps"] += 1

        self._computed[decoding] = self._length[decoding]
        rows, whole = decoding, None
        if chunks:
            for chunk in chunks:
                self._computed[chunk.row] = chunk.start + chunk.count
                self.counters["prefill_tokens"] += chunk.count
            chunk_rows = np.array([chunk.row for chunk in chunks])
            ended = self._computed[chunk_rows] == self._length[chunk_rows]
            rows = np.concatenate([decoding, chunk_rows[ended]])
            whole = np.concatenate([np.ones(len(decoding), bool), ended])
        if whole is not None and not whole.all():
            logits = logits[torch.from_numpy(np.flatnonzero(whole)).to(logits.device)]
        return self._sample(rows, logits) if len(rows) else []

    def _follow(self) -> None:
        """Give prompts that were computed to those who wait for them."""
        copies: dict[Request, list[Request]] = {}
        for request in self._running.values():
            if (leader := request.leader) is None:
                continue
            size = len(request.prompt) - 1
            if self._running.get(leader.row) is not leader:  # it was cancelled
                request.leader = None
            elif self._computed[leader.row] >= size:
                copies.setdefault(leader, []).append(request)
                request.leader, request.cached = None, size
                self._computed[request.row] = size
                self.counters["cached_tokens"] += size
        for leader, followers in copies.items():
            rows = np.array([request.row for request in followers])
            self._decoder.copy(leader.row, rows, len(leader.prompt) - 1)

    def _chunks(self) -> list[Chunk]:
        chunks, budget = [], self._budget
        for row, request in self._running.items():  # first come, first served
            if request.leader is not None:
                continue
            start = int(self._computed[row])
            count = min(int(self._length[row]) - start, budget)
            if self._length[row] - start > 1 and count > 0:
                chunks.append(Chunk(row, start, count))
                budget -= count
        return chunks

    def _sample(self, rows: NDArray[np.int64], logits: Tensor) -> list[Outcome]:
        at = self._length[rows]
        parameters = SamplingRows(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            uniform=uniforms(self._seed[rows], at),
            return_kept=self._return_kept[rows],
        )
        tokens, logprobs, sampled, left = (result.cpu().numpy() for result in sample(logits, parameters))
        if not np.isfinite(logprobs).all():
            raise EngineError(f"the model's output with weights of version {self.version} is not finite")
        self._ids[rows, at] = tokens
        self._logprobs[rows, at] = logprobs
        self._sampled[rows, at] = sampled
        for i in np.flatnonzero(self._return_kept[rows]):
            start, stop = np.searchsorted(left[:, 0], (i, i + 1))
            self._kept[rows[i]].append(left[start:stop, 1].astype(np.int32))
        self._versions[rows, at] = self.version
        self._length[rows] = at + 1
        self.counters["generated_tokens"] += len(rows)

        for row in rows[at == self._prompt[rows]]:
            self._running[row].times.append(self._clock())
        stopped = (self._stops[rows] == tokens[:, None]).any(1)
        done = np.flatnonzero(stopped | (at + 1 >= self._limit[rows]))
        if len(done):
            self._follow()  # while the prompts of those that end are still there
        return [self._finish(int(rows[i]), "stop" if stopped[i] else "length") for i in done]
