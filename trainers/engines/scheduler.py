"""Continuous batching: the torch engine's work at each step, as a synchronous state machine.

No threads, no asyncio: :mod:`trainers.engines.torch_engine` drives it. For each running request it stores the tokens so
far (``length``) and the number with keys and values (``computed``). Every step computes tokens that are known but not
computed, and samples the next where the last known one was. So decoding is one token to compute, a new prompt is many,
and a request that lost its keys and values begins at 0 again.

A step is *launched*, and its draws are *read* afterwards. With static steps (:mod:`.static_step`) that is while the
next is under way: of each request that decodes, the last token is then only known where it is computed. A request that
turns out to have ended takes back what was launched for it. Whatever needs the tokens themselves reads the draws first:
updates, cancelling, and taking blocks from a request.

Invariants: only a request with blocks for all its tokens computes; a block is found by its name once it is full and
computed, so siblings that ask together compute a prompt once; KV that older weights computed is never read (after an
update no request and no session has a block, and none has a name); a request that asks for nothing more leaves at once.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.engines.base import EngineError, FinishReason, Generation, Sampling, SupersededError, UpdateMode
from trainers.engines.block_pool import ROOT, BlockPool, Name
from trainers.engines.decoder import SIZE, Decoder, blocks_for, to_device
from trainers.engines.sampling import ROW, Drawn, Draws, Kind, Report, cuts, sample, uniforms
from trainers.engines.static_step import StaticStep
from trainers.engines.stream import EngineStream
from trainers.engines.transport import Weights


@dataclass(eq=False)
class Request:
    """One call of ``generate``, by identity."""

    prompt: NDArray[np.int32]
    sampling: Sampling
    session: Hashable | None = None
    row: int = field(default=-1, init=False)
    cached: int | None = field(default=None, init=False)  # of the prompt's tokens, those that others had computed
    kept_ids: list[NDArray[np.int32]] = field(default_factory=list, init=False)  # of each new token, where asked for
    stops: frozenset[int] = field(default=frozenset(), init=False)
    queued_s: float = field(default=0.0, init=False)  # until it was admitted
    seed: int = field(default=0, init=False)  # its own, or the next one of those that have none


@dataclass(eq=False)
class Update:
    """One call of ``update_weights``, by identity."""

    weights: Weights
    version: int
    mode: UpdateMode


#: Makes the static steps of a decoder, for so many rows and unused ids; ``None``: there are none.
MakeStatic = Callable[[Decoder, int, Tensor | None], StaticStep | None]
Outcome = tuple[Request | Update, Generation | BaseException | None]


@dataclass(frozen=True, eq=False)
class _Launch:
    """Draws that were launched and not yet read: of ``n`` rows, for these requests."""

    rows: NDArray[np.int64]  # [n]
    requests: list[Request]
    at: NDArray[np.int64]  # [n], the position of each draw
    version: int  # of the weights
    reports: NDArray[np.bool_]  # [n], whether the draw says what the cuts left
    drawn: Drawn


class Scheduler:
    """Requests in, generations out, one step at a time; ``rows`` requests run at once.

    It shares blocks that others have, waits for the one that another is about to compute, and takes the rest. Where
    there are too few, the one admitted last loses its blocks (``preemptions``) and computes its tokens again later, in
    the order of admission. A step computes at most ``prefill_budget`` prompt tokens, so that long prompts do not hold
    up those that decode. ``stop_token_ids`` are every request's; ``unused_token_ids`` are never sampled; ``seed`` is of
    the requests that have none; ``static`` makes the static steps, ``None`` for none; ``stream`` is the one that all of
    this is computed on, where it is not the default.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: int,
        *,
        stop_token_ids: tuple[int, ...] = (),
        unused_token_ids: tuple[int, ...] = (),
        prefill_budget: int = 1024,
        seed: int = 0,
        version: int = 0,
        static: MakeStatic | None = None,
        stream: EngineStream | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.version = version
        tokens = ("generated_tokens", "prefill_tokens", "cached_tokens")
        counted = ("requests", *tokens, "preemptions", "steps", "static_steps")
        self.counters = dict.fromkeys(counted, 0)
        self._decoder = decoder
        self._stop = stop_token_ids
        self._unused = torch.tensor(unused_token_ids, device=decoder.device) if unused_token_ids else None
        self._static = static and static(decoder, rows, self._unused)
        self._stream = stream or EngineStream(torch.device("cpu"))
        self._budget = prefill_budget
        self._rng = np.random.default_rng(seed)
        self._clock = clock
        self._pool = BlockPool(decoder.blocks)
        self._waiting: deque[Request] = deque()
        self._updates: deque[Update] = deque()
        self._running: dict[int, Request] = {}  # row -> request, in the order of admission
        self._ready: set[int] = set()  # of those, the ones with blocks for all their tokens
        self._starved = 0  # of those, the ones for which there are too few
        self._free_rows = list(range(rows))  # a heap
        context = decoder.max_context
        self._ids = np.zeros((rows, context), np.int32)
        self._logprobs = np.zeros((rows, context), np.float32)
        self._sampled = np.zeros((rows, context), np.float32)
        self._versions = np.zeros((rows, context), np.int32)
        self._length = np.zeros(rows, np.int64)  # tokens
        self._known = np.zeros(rows, np.int64)  # of those, tokens that were read: all, or all but the last
        self._computed = np.zeros(rows, np.int64)  # tokens with keys and values
        self._prompt = np.zeros(rows, np.int64)
        self._limit = np.zeros(rows, np.int64)  # stop at this length
        self._table = np.zeros((rows, blocks_for(context)), np.int64)  # the blocks of each row
        self._held = np.zeros(rows, np.int64)  # how many it has
        self._named = np.zeros(rows, np.int64)  # of those, how many others can find
        self._parent = [ROOT] * rows  # the number of the last one of them
        self._coming: dict[Name, Request] = {}  # what ready requests are about to compute, a block each
        self._draws = np.zeros(rows, ROW)
        self._launches: list[_Launch] = []  # of the last step
        self._outcomes: list[Outcome] = []  # for the end of a step

    @property
    def has_work(self) -> bool:
        pending = self._updates or self._outcomes or self._launches
        return bool(pending or (self._decoder.has_weights and (self._running or self._waiting)))

    def gauges(self) -> dict[str, float]:
        """Return the running and waiting requests, the sessions with blocks, and the share of blocks in use."""
        held = np.zeros(self._pool.total, np.bool_)
        for row in list(self._running):
            held[self._table[row, : self._held[row]]] = True
        starved = min(self._starved, len(self._running))  # some may have left since
        return {
            "running": len(self._running) - starved,
            "waiting": len(self._waiting) + starved,
            "idle_sessions": self._pool.sessions,
            "kv_use": float(held.mean()),
        }

    def add(self, item: Request | Update) -> None:
        """Queue a request, which starts at the next step if a row is free, or an update; updates keep their order."""
        if isinstance(item, Update):
            self._updates.append(item)
            return
        item.queued_s = -self._clock()
        self.counters["requests"] += 1
        if item.session is None:  # a later turn may reuse its KV, until the memory is needed
            item.session = (self.counters["requests"],)
        seed = item.sampling.seed
        # Here and not on admission: whether a request that is cancelled was admitted decides no other's tokens.
        item.seed = int(self._rng.integers(2**63)) if seed is None else seed
        self._waiting.append(item)

    def cancel(self, item: Request | Update) -> None:
        """Drop a request, wherever it is, or an update that was not applied yet; one that is done already is fine."""
        self._read()
        queue: deque[Any] = self._updates if isinstance(item, Update) else self._waiting
        if item in queue:
            queue.remove(item)
        elif isinstance(item, Request) and self._running.get(item.row) is item:
            self._share_with_waiting()
            self._leave(item.row)

    def release(self, session: str) -> None:
        self._pool.release(session)
        for request in self._running.values():
            if request.session == session:
                request.session = None

    def step(self) -> list[Outcome]:
        """Apply updates that are due, admit requests, compute once; EngineError if the model's output is not finite.

        Without weights it computes nothing, and the next update waits for no request. Returns what ended: requests
        with their generation, updates with ``None`` or the reason they were refused.
        """
        if self._updates:
            self._read()
            self._apply_updates()
        if self._decoder.has_weights:
            if not self._updates:  # one that waits for those in flight admits no others
                self._admit()
            if self._launches and not (self._running and self._can_grow()):
                self._read()
            if self._running:
                self._make_ready()
                self._compute()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # Weights

    def _apply_updates(self) -> None:
        while self._updates:
            if self._updates[0].mode == "wait" and self._running and self._decoder.has_weights:
                break
            update = self._updates.popleft()
            try:
                if update.version <= self.version:
                    raise ValueError(f"the new version {update.version} must be greater than {self.version}")
                tensors = self._decoder.read_weights(update.weights)
            except (ValueError, SupersededError) as refused:
                self._outcomes.append((update, refused))
                continue
            if update.mode == "abort":
                for row in list(self._running):
                    self._finish(row, "abort")
            self._decoder.load_weights(tensors)  # an error ends the engine, which may have some of them
            self._stream.finish()  # their owner may change them from here on
            self.version = update.version
            self._forget()
            self._outcomes.append((update, None))

    def free_memory(self, *, weights: bool) -> None:
        """Release the memory of keys and values, which are recomputed; with ``weights`` also that of the weights."""
        self._read()
        self._forget()
        self._stream.finish()
        if self._static is not None:
            self._static.free()
        self._decoder.free_cache()
        if weights:
            self._decoder.free_weights()
        if self._decoder.device.type == "cuda":
            torch.cuda.empty_cache()  # for other processes: PyTorch would keep it

    def _forget(self) -> None:
        for row in self._running:
            self._drop(row)
        self._pool.forget()

    # Requests

    def _admit(self) -> None:
        while self._waiting and self._free_rows:
            request, row = self._waiting.popleft(), heapq.heappop(self._free_rows)
            prompt, sampling = request.prompt, request.sampling
            size = len(prompt)
            self._ids[row, :size] = prompt
            self._length[row] = self._known[row] = self._prompt[row] = size
            self._limit[row] = min(size + sampling.max_new_tokens, self._decoder.max_context)
            request.stops = frozenset() if sampling.ignore_stop else frozenset((*self._stop, *sampling.stop_token_ids))
            cuts = (sampling.top_p, sampling.min_p, sampling.return_kept, min(sampling.top_k, 2**62))
            self._draws[row] = (sampling.temperature, *cuts, int(request.seed) % 2**64)
            request.row = row
            request.queued_s += self._clock()
            self._running[row] = request

    def _leave(self, row: int) -> Request:
        request = self._running[row]
        named = int(self._named[row]) if request.session is not None else 0
        kept_blocks = self._table[row, :named].tolist()
        self._drop(row, but=named)
        if request.session is not None:
            self._pool.keep(request.session, kept_blocks)
        del self._running[row]
        heapq.heappush(self._free_rows, row)
        return request

    def _finish(self, row: int, reason: FinishReason) -> None:
        request = self._leave(row)
        new = slice(self._prompt[row], self._length[row])
        kept_ids = request.kept_ids if request.sampling.return_kept else None
        generation = Generation(
            token_ids=self._ids[row, new].copy(),
            logprobs=self._logprobs[row, new].copy(),
            weight_version=self._versions[row, new].copy(),
            finish_reason=reason,
            sampled_logprobs=self._sampled[row, new].copy(),
            kept_ids=None if kept_ids is None else np.concatenate([np.zeros(0, np.int32), *kept_ids]),
            kept_counts=None if kept_ids is None else np.array([len(ids) for ids in kept_ids], np.int32),
            metrics={"cached_tokens": float(request.cached or 0), "queue_s": request.queued_s},
        )
        self._outcomes.append((request, generation))

    # Blocks

    def _growing(self) -> NDArray[np.int64]:
        """Return the ready rows whose next token needs a block more."""
        rows = self._ready_rows()
        return rows[(self._held[rows] * SIZE < self._length[rows]) & (self._length[rows] < self._limit[rows])]

    def _can_grow(self) -> bool:
        """Return whether no row need lose its blocks for another."""
        return self._pool.has_room(len(self._growing()))

    def _make_ready(self) -> None:
        """Give blocks to the requests that lack some, in the order of admission, as far as there are any."""
        for row in self._growing().tolist():
            if row in self._ready and not self._grow(row):
                self.counters["preemptions"] += 1
                self._drop(row)
        lacking = [row for row in self._running if row not in self._ready]
        self._starved = 0
        for at, row in enumerate(lacking):
            if not self._settle(row):
                self._starved = len(lacking) - at
                break
        if not self._ready:  # what the first one lacks is held by others that lack more
            for row in lacking[1:]:
                self._drop(row)
            self._settle(lacking[0])
            self._starved -= 1

    def _ready_rows(self) -> NDArray[np.int64]:
        if len(self._ready) == len(self._running):
            return np.fromiter(self._running, np.int64)
        return np.array([row for row in self._running if row in self._ready], np.int64)

    def _grow(self, row: int) -> bool:
        """Add one block to a row, if necessary from a request that was admitted later; false if there is none."""
        for last in (None, *reversed(self._running)):
            if last == row:
                return False
            if last is not None and self._held[last]:
                self.counters["preemptions"] += last in self._ready
                self._drop(last)
            if (granted := self._pool.take(1)) is not None:
                self._table[row, self._held[row]] = granted[0]
                self._held[row] += 1
                return True
        return False

    def _settle(self, row: int) -> bool:
        """Share, wait or take blocks for all tokens of a row; false if there are too few."""
        self._share(row)
        held, length = int(self._held[row]), int(self._length[row])
        if held < (length - 1) // SIZE and self._name(row) in self._coming:
            return True
        lacking = blocks_for(length) - held
        # Beside its own, one for each that may need one more: a request that is preempted at once has computed in vain.
        ready = self._ready_rows()
        spare = int((self._held[ready] * SIZE < self._limit[ready]).sum())
        if (granted := self._pool.take(lacking + spare)) is None:
            return False
        self._pool.give_back(granted[lacking:])
        self._table[row, held : held + lacking] = granted[:lacking]
        self._held[row] += lacking
        self._ready.add(row)
        self._announce(row)
        if (request := self._running[row]).cached is None:
            request.cached = int(self._computed[row])
            self.counters["cached_tokens"] += request.cached
        return True

    def _share(self, row: int) -> None:
        """Share blocks that other requests have; never that of the last token, whose logits are needed."""
        while self._held[row] < (self._length[row] - 1) // SIZE and (entry := self._pool.find(self._name(row))):
            self._table[row, self._held[row]], self._parent[row] = entry
            self._held[row] += 1
            self._named[row] += 1
            self._computed[row] += SIZE

    def _share_with_waiting(self) -> None:
        """Let requests that wait for blocks share those that leave, while they are still there."""
        for row in self._running.keys() - self._ready:
            self._share(row)

    def _name(self, row: int) -> Name:
        """Return the name of a row's first block that other requests cannot find yet."""
        begin = int(self._named[row]) * SIZE
        return self._parent[row], self._ids[row, begin : begin + SIZE].tobytes()

    def _announce(self, row: int) -> None:
        """Announce the block that this row computes next, so that other requests can wait for it."""
        if (self._named[row] + 1) * SIZE <= self._known[row]:
            self._coming.setdefault(self._name(row), self._running[row])

    def _publish(self, rows: NDArray[np.int64]) -> None:
        """Name the blocks of these rows that are full, computed (or about to be) and known."""
        computed = np.minimum(self._computed[rows], self._known[rows])
        publishing = computed // SIZE > self._named[rows]
        for row, size in zip(rows[publishing].tolist(), computed[publishing].tolist(), strict=True):
            while (self._named[row] + 1) * SIZE <= size:
                name = self._name(row)
                if self._coming.get(name) is self._running[row]:
                    del self._coming[name]
                own = int(self._table[row, self._named[row]])
                if (entry := self._pool.find(name)) is not None:  # another computed the same: keep its block alone
                    self._table[row, self._named[row]], self._parent[row] = entry
                    self._pool.give_back([own])
                else:
                    self._parent[row] = self._pool.name(own, name)
                self._named[row] += 1
            self._announce(row)

    def _drop(self, row: int, but: int = 0) -> None:
        """Take a row's blocks away; the references of the first ``but`` pass to the caller."""
        if self._coming.get(name := self._name(row)) is self._running[row]:
            del self._coming[name]
        self._pool.give_back(self._table[row, but : self._held[row]].tolist())
        self._table[row] = self._held[row] = self._named[row] = self._computed[row] = 0
        self._parent[row] = ROOT
        self._ready.discard(row)

    # One step

    def _compute(self) -> None:
        """Launch what the ready rows need, and read the draws of the step before; without static steps, all draws."""
        launched = self._launch()
        before, self._launches = self._launches, launched
        for launch in before:
            self._read_launch(launch)
        if self._static is None:
            self._read()

    def _launch(self) -> list[_Launch]:
        rows = self._ready_rows()
        rows = rows[self._length[rows] < self._limit[rows]]  # the last token of the others was launched
        counts = self._length[rows] - self._computed[rows]
        # Not the chunks of one token that the budget may cut a prompt into: nothing is drawn behind them.
        decoding = counts == 1 if self._static is not None else np.zeros(len(rows), np.bool_)
        if decoding.any() and not self._can_decode(rows[decoding]):
            return self._launch()  # of all that is still running
        if (long := counts > 1).any():  # first come, first served
            counts[long] = np.diff(np.minimum(counts[long].cumsum(), self._budget), prepend=0)
            self.counters["prefill_tokens"] += int(counts[long].sum())
            rows, counts, decoding = rows[counts > 0], counts[counts > 0], decoding[counts > 0]
        decode = rows[decoding]
        launches = []
        self.counters["steps"] += bool(len(rows))
        if len(decode):
            launches.append(self._launch_static(decode))
        if len(decode) < len(rows):
            launches += self._launch_flat(rows[~decoding], counts[~decoding])
        return launches

    def _can_decode(self, rows: NDArray[np.int64]) -> bool:
        """Prepare a static step; where there can be none, read all draws and make no more of them."""
        assert self._static is not None
        if self._static.prepare(Kind.of(self._draws[rows])):
            return True
        static, self._static = self._static, None
        self._read()
        static.free()
        return False

    def _launch_static(self, rows: NDArray[np.int64]) -> _Launch:
        assert self._static is not None
        at = self._computed[rows]
        known = np.where(self._known[rows] > at, self._ids[rows, at], -1).astype(np.int64)
        table = self._table[rows, : int(self._held[rows].max())]
        cells = self._table[rows, at // SIZE] * SIZE + at % SIZE
        drawn = self._static.launch(rows, known, at, cells, table, self._draws[rows])
        self.counters["static_steps"] += 1
        self._computed[rows] += 1
        self._publish(rows)
        return self._launched(rows, drawn)

    def _launch_flat(self, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> list[_Launch]:
        logits = self._decoder.logits(rows, self._computed[rows], counts, self._ids, self._table)
        self._computed[rows] += counts
        self._publish(rows)
        if not (whole := self._computed[rows] == self._length[rows]).all():
            rows, logits = rows[whole], logits.index_select(0, self._put(np.flatnonzero(whole)))
        if not len(rows):
            return []
        if self._unused is not None:
            logits.index_fill_(1, self._unused, -math.inf)
        draws = self._draws[rows]
        columns = Draws(*(self._put(np.ascontiguousarray(draws[name])) for name in Draws._fields))
        uniform = self._put(uniforms(draws["seed"], self._length[rows]))
        cut = self._put(np.flatnonzero(cuts(draws)))
        sampled = sample(logits, columns, uniform, Kind.of(draws), cut)
        if self._static is not None:
            self._static.remember(rows, sampled.tokens)
        report = Report(sampled.survivors, draws, cut_only=True)
        return [self._launched(rows, Drawn(sampled.tokens, sampled.logprobs, sampled.cut_logprobs, report))]

    def _put(self, array: NDArray[Any]) -> Tensor:
        return to_device(array, self._decoder.device)

    def _launched(self, rows: NDArray[np.int64], drawn: Drawn) -> _Launch:
        requests = [self._running[row] for row in rows.tolist()]
        launch = _Launch(rows, requests, self._length[rows], self.version, self._draws["return_kept"][rows], drawn)
        self._length[rows] += 1
        return launch

    def _read(self) -> None:
        """Read all draws that were launched."""
        launches, self._launches = self._launches, []
        for launch in launches:
            self._read_launch(launch)

    def _read_launch(self, launch: _Launch) -> None:
        tokens, logprobs, sampled, survivors = launch.drawn.read()
        for i, ids in zip(np.flatnonzero(launch.reports), survivors, strict=True):
            launch.requests[i].kept_ids.append(ids)
        pairs = zip(launch.rows.tolist(), launch.requests, strict=True)
        running = np.array([self._running.get(row) is request for row, request in pairs])  # others have ended since
        if not np.isfinite(logprobs[running]).all():
            raise EngineError(f"the model's output with weights of version {launch.version} is not finite")
        rows, at, tokens = launch.rows[running], launch.at[running], tokens[running]
        self._ids[rows, at] = tokens
        self._logprobs[rows, at] = logprobs[running]
        self._sampled[rows, at] = sampled[running]
        self._versions[rows, at] = launch.version
        self._known[rows] = at + 1
        self.counters["generated_tokens"] += len(rows)
        drawn = zip(rows.tolist(), tokens.tolist(), strict=True)
        stopped = np.array([token in self._running[row].stops for row, token in drawn], np.bool_)
        done = stopped | (at + 1 >= self._limit[rows])
        ended = rows[done]  # what was launched for them since is void
        self._length[ended] = at[done] + 1
        self._computed[ended] = np.minimum(self._computed[ended], at[done])
        self._publish(rows[~done])
        if len(ended):
            self._share_with_waiting()
        for row, stop in zip(ended.tolist(), stopped[done].tolist(), strict=True):
            self._finish(row, "stop" if stop else "length")
