"""One rank of a learner: it joins the others, builds its Learner, and does what it is told. See :mod:`.group`."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life."""

    still: float  #: seconds for which the rank's thread has stood at the same place
    waiting: bool  #: whether that place is inside a collective operation, where it waits for other ranks
    where: str  #: the place, for people


@dataclass(frozen=True)
class Verdict:
    """How a call ended."""

    #: ``done``; ``raised``: by all ranks, which can go on; ``broken``: the group is of no use any more
    kind: Literal["done", "raised", "broken"]
    rank: int | None = None  #: whose error it is, for ``raised``, and for ``broken`` where an error is the cause
    ranks: tuple[int, ...] = ()  #: whose fault it is, where it is broken
    said: str = ""  #: what happened to them, in words, for ``broken``


class Watch:
    """What becomes of one call that ``ranks`` ranks carry out together, from ``now`` (s) on: a pure state machine.

    Ranks wait for each other inside a call, so what is seen first is often not the cause: a survivor's broken
    connection arrives before the news of the death that broke it. The rules, in order:

    1. A rank that is gone ends the call, and is its cause.
    2. All have answered: the call is done; or raised, where *every* rank raised (they are at the same point, so they
       can go on); or the group is broken, because some have done what others have not.
    3. ``grace`` seconds after the first error, with others still at work: broken, by the rank that failed first.
    4. A rank that gives no sign of life for ``silence`` seconds: broken, by it.
    5. A rank that stands still for ``stall`` seconds, or is later than another by that: broken. The cause are those
       that do not wait for others, where there are any.
    """

    def __init__(self, ranks: int, now: float, *, silence: float, stall: float, grace: float) -> None:
        self._silence, self._stall, self._grace = silence, stall, grace
        self._heard = dict.fromkeys(range(ranks), now)
        self._pending = set(range(ranks))
        self._pulses: dict[int, Heartbeat] = {}
        self._failed: dict[int, float] = {}  # in the order of time
        self._gone: dict[int, str] = {}
        self._first: float | None = None  # when the first rank had done it

    def answered(self, rank: int, now: float, *, raised: bool) -> None:
        self._pending.discard(rank)
        if raised:
            self._failed.setdefault(rank, now)
        elif self._first is None:
            self._first = now

    def gone(self, rank: int, how: str) -> None:
        self._gone.setdefault(rank, how)

    def pulse(self, rank: int, pulse: Heartbeat, now: float) -> None:
        self._heard[rank] = now
        self._pulses[rank] = pulse

    def verdict(self, now: float) -> Verdict | None:
        """How the call ended; ``None`` while it may go well."""
        if self._gone:
            return Verdict("broken", ranks=tuple(self._gone), said="; ".join(dict.fromkeys(self._gone.values())))
        if not self._pending:
            if not self._failed:
                return Verdict("done")
            first = next(iter(self._failed))
            if len(self._failed) == len(self._heard):
                return Verdict("raised", rank=first)
            return Verdict("broken", rank=first, ranks=(first,), said="raised, and others did not")
        if self._failed:
            first = next(iter(self._failed))
            if now - self._failed[first] >= self._grace:
                return Verdict("broken", rank=first, ranks=(first,), said="raised, and others wait for it")
            return None  # what held this one up is about to be known
        silent = [rank for rank in sorted(self._pending) if now - self._heard[rank] >= self._silence]
        if silent:
            return Verdict("broken", ranks=tuple(silent), said=f"gave no sign of life for {self._silence:g} s")
        return self._stalled(now)

    def _stalled(self, now: float) -> Verdict | None:
        pending = sorted(self._pending)
        seen = [rank for rank in pending if rank in self._pulses]
        late = self._first is not None and now - self._first >= self._stall
        if not late and not any(self._pulses[rank].still >= self._stall for rank in seen):
            return None
        guilty = [rank for rank in pending if rank not in seen or not self._pulses[rank].waiting] or pending
        places = [f"rank {rank} {self._pulses[rank].where}" for rank in guilty if rank in seen]
        said = f"made no progress for {self._stall:g} s" + (f" ({'; '.join(places)})" if places else "")
        return Verdict("broken", ranks=tuple(guilty), said=said)


# Where a thread of a rank stands while it waits for other ranks. FSDP's hooks are in the same package, but they end
# before the layers compute, so only what is innermost counts.
_COLLECTIVE = (os.path.join("torch", "distributed", ""), os.path.join("torch", "_ops.py"))
_INNERMOST = 3
_NO_LIMIT = timedelta(days=1)  # of a collective operation: who watches the ranks knows better which of them hangs


@dataclass(frozen=True)
class Failure:
    """What a rank raised."""

    error: BaseException | None  #: the exception, where it can be pickled
    text: str  #: its traceback

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        text = "".join(traceback.format_exception(error)).rstrip()
        try:
            copy = pickle.loads(pickle.dumps(error))
        except Exception:  # whatever a foreign class's pickling raises
            copy = None
        return cls(copy if type(copy) is type(error) else None, text)


class RankHost:
    """What lives in rank ``rank`` of ``count``; ``address`` is its machine's, as the others know it."""

    def __init__(self, rank: int, count: int, address: str = "127.0.0.1") -> None:
        self.rank, self.count, self.address = rank, count, address
        # What torchrun would set; Learner picks the GPU by LOCAL_RANK, and Ray shows each actor its own GPU alone.
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0"}
        self._store: Any = None
        self.learner: Any = None
        self._prepared: dict[int, Callable[[Path], None]] = {}
        self._writing: Any = None
        self._sender: Any = None  # of rank 0
        self._streams: dict[str, tuple[int, Any]] = {}  # weights that may leave, by what they are
        self._apart: Any = None  # the ranks as snapshots are sent through
        self._sending: Any = None
        self._sent: Any = None
        self._watched = _Watched()

    def open(self) -> tuple[str, int] | None:
        """Let rank 0 say where the others find it. The system chooses the port, so nobody else can take it."""
        if self.rank != 0 or self.count == 1:
            return None
        from torch.distributed import TCPStore

        self._store = TCPStore(self.address, 0, self.count, is_master=True, wait_for_workers=False)
        return self.address, self._store.port

    def build(
        self, where: tuple[str, int] | None, timeout: float, model: Any, settings: Mapping[str, Any]
    ) -> dict[str, bool]:
        """Join the others, at what rank 0's :meth:`open` returned, and make the Learner; says what it has."""
        import torch.distributed as dist

        from trainers.engines.process_group import Sender
        from trainers.learner import Learner
        from trainers.learner.checkpoint import Background
        from trainers.learner.memory import give_back_freed_memory
        from trainers.learner.parallel import backend_of
        from trainers.policy import resolve_device

        give_back_freed_memory()
        device = resolve_device(str(settings.get("device", "cpu")))
        if self.count > 1:
            assert where is not None
            store = self._store or dist.TCPStore(*where, self.count, timeout=timedelta(seconds=timeout))
            backend = backend_of(device)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.count, timeout=_NO_LIMIT)
        self._writing, self._sending, self._sender = Background(), Background(), Sender()
        self.learner = Learner(model, **{**settings, "device": device})
        return {"critic": self.learner.critic is not None, "reference": self.learner.reference is not None}

    def capture(self, on: bool) -> None:
        """Begin or end what a profiler around this process captures (Nsight, waiting for cudaProfilerStart)."""
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                "cluster.nsight.capture-range=cudaProfilerApi needs GPUs, and this rank has none; leave it out to "
                "profile all of its life"
            )
        torch.cuda.synchronize()  # what was begun before belongs to what is before
        (torch.cuda.profiler.start if on else torch.cuda.profiler.stop)()

    def all_see(self, file: str, content: str) -> list[bool]:
        """Whether a file is there with this content, for each rank: whether it shares the folder with who wrote it."""
        import torch.distributed as dist

        try:
            mine = Path(file).read_text() == content
        except OSError:
            mine = False
        everyone = [mine] * self.count
        if self.count > 1:
            dist.all_gather_object(everyone, mine)
        return everyone

    def prepare(self, number: int, method: str, *args: Any) -> None:
        """Take a copy of what is to be written, by one of the Learner's methods that prepare, under a number."""
        self._prepared[number] = getattr(self.learner, method)(*args)

    def write_prepared(self, number: int, path: Path) -> None:
        """Begin to write what was prepared, in a thread beside the one that learns; all ranks in the same order."""
        write = self._prepared.pop(number)
        self._writing.start(lambda: write(path), "prepared")

    def is_written(self) -> bool:
        """Whether the threads of all ranks are done; all ranks ask together. What went wrong is raised once."""
        import torch.distributed as dist

        busy = [self._writing.busy] * self.count
        if self.count > 1:
            dist.all_gather_object(busy, self._writing.busy)
        if any(busy):
            return False
        self._writing.wait()
        return True

    # ------------------------------------------------------------------ weights for engines

    def publication(self, number: int, which: Any, dtype: Any, snapshot: bool, limit: float) -> Any:
        """Make weights ready to leave, until the next of their kind; all ranks together. Returns what will come.

        ``limit``: seconds that ranks wait for each other. See :class:`~trainers.learner.weight_stream.WeightStream`.
        """
        stream = self.learner.publication(which, dtype, snapshot=snapshot)
        if snapshot and self._apart is None:
            self._apart = self.learner.ranks.apart(timedelta(seconds=limit))
        self._streams[which] = number, stream
        return stream.specs

    def open_group(self, address: str | None, size: int, backend: str, timeout_s: float) -> Any:
        """Open a process group for the workers of an engine; on rank 0, in any thread."""
        return self._sender.open(address or self.address, size, backend, timeout_s)

    def give_up(self, name: str, why: str) -> None:
        """Wait no more for a group; on rank 0, in any thread."""
        self._sender.give_up(name, why)

    def publish(self, number: int, bucket_bytes: int, to: Mapping[str, Any], *, apart: bool = False) -> Any:
        """Send to groups that rank 0 opened, all ranks together: :func:`trainers.engines.transport.send`."""
        from trainers.engines.base import SupersededError
        from trainers.engines.transport import plan_of, send

        stream = next((stream for own, stream in self._streams.values() if own == number), None)
        if stream is None:
            raise SupersededError("the learner has published other weights since")
        tensors = stream.read(self._apart if apart else self.learner.ranks)
        try:
            return send(self._sender, to, plan_of(stream.specs, bucket_bytes), tensors) if self.rank == 0 else None
        finally:
            deque(tensors, maxlen=0)  # to the end, whatever happens: all ranks read together

    def start_publishing(self, *order: Any) -> None:
        """As :meth:`publish`, of a snapshot: in a thread beside the one that learns; :meth:`published` has the end."""
        from trainers.learner.checkpoint import Background

        def work() -> None:  # the round before is waited for here: the thread of pulses must not wait
            with contextlib.suppress(Exception):  # of a round that failed: the driver has it from rank 0
                before.wait()
            self._sent = self.publish(*order, apart=True)

        before, self._sending = self._sending, Background()
        self._sending.start(work, "weights")

    def published(self) -> Any:
        """What the thread has sent; ``None`` while it sends. What went wrong in it is raised once."""
        if self._sending.busy:
            return None
        self._sending.wait()
        return self._sent

    def run(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of this class, or else of its Learner; an exception becomes a :class:`Failure`."""
        with self._watched:
            try:
                owner = self if hasattr(type(self), method) else self.learner
                return getattr(owner, method)(*args, **kwargs)
            except BaseException as error:  # even SystemExit: the rank answers
                return Failure.of(error)

    def pulse(self) -> Heartbeat:
        """How it goes; from another thread than :meth:`run`'s."""
        return self._watched.look()


class _Watched:
    """The thread that is inside, seen from another one."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._seen: tuple[Any, ...] = ()
        self._since = 0.0

    def __enter__(self) -> None:
        self._seen, self._since = (), time.monotonic()
        self._thread = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._thread = None

    def look(self) -> Heartbeat:
        now = time.monotonic()
        frame = None if self._thread is None else sys._current_frames().get(self._thread)
        if frame is None:
            return Heartbeat(0.0, False, "is idle")
        code = frame.f_code
        where = f"was in {code.co_name} ({code.co_filename}:{frame.f_lineno})"
        seen: list[Any] = []
        files: list[str] = []
        while frame is not None:
            seen += (id(frame), frame.f_lasti)
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        if tuple(seen) != self._seen:
            self._seen, self._since = tuple(seen), now
        waiting = any(part in file for file in files[:_INNERMOST] for part in _COLLECTIVE)
        return Heartbeat(now - self._since, waiting, where)
