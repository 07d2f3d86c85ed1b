"""One rank of a learner: it joins the process group, builds its Learner, and carries out orders. See :mod:`.group`."""

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
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trainers.config.model import ModelSection


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat of a rank: its place in the code, and for how long."""

    still: float  #: seconds for which the rank's thread has stood at the same place
    waiting: bool  #: whether that place is inside a collective operation, where it waits for other ranks
    where: str  #: the place, for people


@dataclass(frozen=True)
class Verdict:
    """The outcome of a call."""

    #: ``done``; ``raised``: by all ranks, the group stays usable; ``broken``: the group is unusable
    kind: Literal["done", "raised", "broken"]
    rank: int | None = None  #: the rank that raised, for ``raised``, and for ``broken`` if an error is the cause
    ranks: tuple[int, ...] = ()  #: the ranks that caused it, for ``broken``
    message: str = ""  #: what happened to these ranks, for ``broken``


class Watch:
    """A pure state machine that decides how one call of ``ranks`` ranks ends; the call starts at ``now`` (s).

    Ranks wait for each other inside a call, so the first symptom is often not the cause: a survivor's broken
    connection arrives before the news of the death that broke it. The rules, in order:

    1. A rank that died ends the call, and is the cause.
    2. All have answered: the call is done; or raised, if *every* rank raised (all are at the same point, so the
       group stays usable); or broken, because some ranks succeeded and others did not.
    3. ``grace`` seconds after the first error, with ranks still running: broken, caused by the rank that failed first.
    4. A rank without a heartbeat for ``silence`` seconds: broken, caused by that rank.
    5. A rank without progress for ``stall`` seconds, or later than another rank by that: broken. The causes are the
       ranks that do not wait for other ranks, if there are any.
    """

    def __init__(self, ranks: int, now: float, *, silence: float, stall: float, grace: float) -> None:
        self._silence, self._stall, self._grace = silence, stall, grace
        self._last_heartbeat = dict.fromkeys(range(ranks), now)
        self._pending = set(range(ranks))
        self._pulses: dict[int, Heartbeat] = {}
        self._failed: dict[int, float] = {}  # in the order of time
        self._lost: dict[int, str] = {}
        self._first: float | None = None  # when the first rank had done it

    def answered(self, rank: int, now: float, *, raised: bool) -> None:
        self._pending.discard(rank)
        if raised:
            self._failed.setdefault(rank, now)
        elif self._first is None:
            self._first = now

    def lost(self, rank: int, how: str) -> None:
        self._lost.setdefault(rank, how)

    def pulse(self, rank: int, pulse: Heartbeat, now: float) -> None:
        self._last_heartbeat[rank] = now
        self._pulses[rank] = pulse

    def verdict(self, now: float) -> Verdict | None:
        """Return the outcome of the call; ``None`` while it is undecided."""
        if self._lost:
            return Verdict("broken", ranks=tuple(self._lost), message="; ".join(dict.fromkeys(self._lost.values())))
        if not self._pending:
            if not self._failed:
                return Verdict("done")
            first = next(iter(self._failed))
            if len(self._failed) == len(self._last_heartbeat):
                return Verdict("raised", rank=first)
            return Verdict("broken", rank=first, ranks=(first,), message="raised, and others did not")
        if self._failed:
            first = next(iter(self._failed))
            if now - self._failed[first] >= self._grace:
                return Verdict("broken", rank=first, ranks=(first,), message="raised, and others wait for it")
            return None  # the cause may still arrive within the grace period
        silent = [rank for rank in sorted(self._pending) if now - self._last_heartbeat[rank] >= self._silence]
        if silent:
            return Verdict("broken", ranks=tuple(silent), message=f"sent no heartbeat for {self._silence:g} s")
        return self._stalled(now)

    def _stalled(self, now: float) -> Verdict | None:
        pending = sorted(self._pending)
        seen = [rank for rank in pending if rank in self._pulses]
        late = self._first is not None and now - self._first >= self._stall
        if not late and not any(self._pulses[rank].still >= self._stall for rank in seen):
            return None
        guilty = [rank for rank in pending if rank not in seen or not self._pulses[rank].waiting] or pending
        places = [f"rank {rank} {self._pulses[rank].where}" for rank in guilty if rank in seen]
        message = f"made no progress for {self._stall:g} s" + (f" ({'; '.join(places)})" if places else "")
        return Verdict("broken", ranks=tuple(guilty), message=message)


# Where a thread of a rank stands while it waits for other ranks. FSDP's hooks are in the same package, but they end
# before the layers compute, so only the innermost frames count.
_COLLECTIVE = (os.path.join("torch", "distributed", ""), os.path.join("torch", "_ops.py"))
_INNERMOST = 3
_NO_LIMIT = timedelta(days=1)  # of a collective operation: Watch decides which rank hangs


@dataclass(frozen=True)
class Failure:
    """An exception that a rank raised."""

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
    """The process state of rank ``rank`` of ``count``; ``address`` is its machine's, as other ranks reach it."""

    def __init__(self, rank: int, count: int, address: str = "127.0.0.1") -> None:
        self.rank, self.count, self.address = rank, count, address
        # What torchrun would set; Learner picks the GPU by LOCAL_RANK, and Ray shows each actor its own GPU alone.
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0"}
        self._store: Any = None
        self.learner: Any = None
        self._prepared: dict[int, Callable[[Path], None]] = {}
        self._writing: Any = None
        self._sender: Any = None
        self._places: list[str] = []  # of the ranks' memory
        self._streams: dict[str, tuple[int, Any]] = {}  # weights that may leave, by what they are
        self._apart: Any = None  # the ranks as snapshots are sent through
        self._sending: Any = None
        self._sent: Any = None
        self._watched = _Watched()

    def open(self) -> tuple[str, int] | None:
        """Open the store on rank 0 and return its address. The system chooses a free port, without a race."""
        if self.rank != 0 or self.count == 1:
            return None
        from torch.distributed import TCPStore

        self._store = TCPStore(self.address, 0, self.count, is_master=True, wait_for_workers=False)
        return self.address, self._store.port

    def build(
        self,
        where: tuple[str, int] | None,
        timeout: float,
        source: Any,
        model: ModelSection,
        settings: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Join the process group at the address that rank 0's :meth:`open` returned, and build the Learner.

        ``settings`` are its other arguments. Returns whether it has a critic and a reference, and the
        places of all ranks' memory.
        """
        import torch.distributed as dist

        from trainers.engines.sender import Sender
        from trainers.engines.shared_memory import place_of
        from trainers.learner import Learner
        from trainers.learner.checkpoint import Background
        from trainers.learner.memory import give_back_freed_memory
        from trainers.learner.parallel import backend_of
        from trainers.models.policy import resolve_device

        give_back_freed_memory()
        device = resolve_device(model.device)
        if self.count > 1:
            assert where is not None
            store = self._store or dist.TCPStore(*where, self.count, timeout=timedelta(seconds=timeout))
            backend = backend_of(device)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.count, timeout=_NO_LIMIT)
        self._writing, self._sending, self._sender = Background(), Background(), Sender()
        self.learner = Learner(source, model, **settings)
        self._places = [place_of(self.learner.device)] * self.count
        if self.count > 1:
            dist.all_gather_object(self._places, place_of(self.learner.device))
        critic, reference = self.learner.critic is not None, self.learner.reference is not None
        return {"critic": critic, "reference": reference, "places": self._places}

    def capture(self, on: bool) -> None:
        """Start or stop the capture of a profiler around this process (Nsight, waiting for cudaProfilerStart)."""
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                "cluster.nsight.capture-range=cudaProfilerApi needs GPUs, and this rank has none; leave it out to "
                "profile all of its life"
            )
        torch.cuda.synchronize()  # work launched earlier stays outside the capture
        (torch.cuda.profiler.start if on else torch.cuda.profiler.stop)()

    def all_see(self, file: str, content: str) -> list[bool]:
        """Return for each rank whether it sees a file with this content, so shares the writer's file system."""
        import torch.distributed as dist

        try:
            own = Path(file).read_text() == content
        except OSError:
            own = False
        everyone = [own] * self.count
        if self.count > 1:
            dist.all_gather_object(everyone, own)
        return everyone

    def prepare(self, number: int, method: str, *args: Any) -> None:
        """Copy the state to write, by one of the Learner's ``prepare_*`` methods, and store it under a number."""
        self._prepared[number] = getattr(self.learner, method)(*args)

    def write_prepared(self, number: int, path: Path) -> None:
        """Start writing a prepared copy in a background thread; all ranks in the same order."""
        write = self._prepared.pop(number)
        self._writing.start(lambda: write(path), "prepared")

    def is_written(self) -> bool:
        """Return whether the writing threads of all ranks are done; a collective call. Raises a thread's error once."""
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
        """Prepare weights for publication until the next ones of their kind; a collective call. Returns their specs.

        ``limit``: seconds that ranks wait for each other. See :class:`~trainers.learner.weight_stream.WeightStream`.
        """
        stream = self.learner.publication(which, dtype, snapshot=snapshot)
        if snapshot and self._apart is None:
            self._apart = self.learner.ranks.apart(timedelta(seconds=limit))
        self._streams[which] = number, stream
        return stream.specs

    def free_cache(self) -> None:
        """See :meth:`trainers.learner.learner.Learner.free_cache`; with it go the buffers of sent weights."""
        self._sender.free()
        self.learner.free_cache()

    def open_group(self, address: str | None, size: int, backend: str, timeout_s: float) -> Any:
        """Open a process group for the workers of an engine; on rank 0, in any thread."""
        return self._sender.open(address or self.address, size, backend, timeout_s)

    def give_up(self, name: str, why: str) -> None:
        """Stop waiting for a group; in any thread."""
        self._sender.give_up(name, why)

    def publish(self, number: int, bucket_bytes: int, to: Mapping[str, Any], *, apart: bool = False) -> Any:
        """Send to groups that rank 0 opened, all ranks together: :func:`trainers.engines.transport.send`.

        ``to`` has what each group wants, and the group. Ranks that serve workers by shared memory read all tensors.
        """
        from trainers.engines.base import SupersededError
        from trainers.engines.transport import plan_of, send, serving

        stream = next((stream for own, stream in self._streams.values() if own == number), None)
        if stream is None:
            raise SupersededError("the learner has published other weights since")
        served = serving({name: wants for name, (wants, _) in to.items()}, self._places)
        senders = sorted({0}.union(*served.values()))
        tensors = stream.read(self._apart if apart else self.learner.ranks, senders)
        try:
            if self.rank not in senders:
                return None
            plan = plan_of(stream.specs, bucket_bytes)
            own = {name: of for name, of in to.items() if self.rank == 0 or self.rank in served[name]}
            return send(self._sender, own, plan, tensors, self._places, self.rank)
        except BaseException as error:  # other ranks and receivers wait for what this one was to send
            for name in to:
                self._sender.give_up(name, f"rank {self.rank} failed: {error!r}")
            raise
        finally:
            deque(tensors, maxlen=0)  # always exhaust it: reading is a collective operation

    def start_publishing(self, *order: Any) -> None:
        """Start :meth:`publish` of a snapshot in a background thread; :meth:`published` returns the result."""
        from trainers.learner.checkpoint import Background

        def work() -> None:  # wait for the previous round here: the heartbeat thread must not block
            with contextlib.suppress(Exception):  # of a failed round: rank 0 has reported it to the driver
                before.wait()
            self._sent = self.publish(*order, apart=True)

        before, self._sending = self._sending, Background()
        self._sending.start(work, "weights")

    def published(self) -> Any:
        """Return the result of the sending thread; ``None`` while it sends. Raises the thread's error once."""
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
            except BaseException as error:  # even SystemExit: the rank must reply
                return Failure.of(error)

    def pulse(self) -> Heartbeat:
        """Return the heartbeat; called from another thread than :meth:`run`'s."""
        return self._watched.look()


class _Watched:
    """A context manager whose thread can be observed from another thread."""

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
