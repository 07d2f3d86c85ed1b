"""A learner of many ranks behind the methods of one: who uses it does not know.

Every call goes to all ranks with the same arguments; rank 0's result comes back. A rank that raises, dies or hangs is
found by :mod:`.watch`. Where all ranks raised the same way the group goes on, as a Learner would; else it is ended, and
every later call says why. The ranks are Ray actors (:mod:`.ray.ranks`); here is what does not depend on that.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from trainers.cluster.rank import Failure
from trainers.cluster.watch import Verdict, Watch
from trainers.trajectory import Trajectory

_LOOK_S = 0.2  # a rank's silence is noticed so much later at most
_GRACE_S = 3.0  # after a rank's error: the others' errors, or the death that was behind it, are not far


class RankError(RuntimeError):
    """The group of ranks has ended; the message names the rank and says why."""


@dataclass(frozen=True)
class Event:
    """Something that a rank did."""

    rank: int
    kind: Literal["done", "failed", "pulse", "gone"]
    number: int  #: of the call that it belongs to; any for ``gone``
    #: rank 0's result (``done``), a :class:`~trainers.cluster.rank.Failure` (``failed``), a
    #: :class:`~trainers.cluster.watch.Heartbeat` (``pulse``), or how it went, in words (``gone``)
    value: Any = None


class Transport(Protocol):
    """Where the ranks are. All but ``kill`` come from one thread at a time."""

    count: int

    def name(self, rank: int) -> str:
        """Of a rank, for people: ``rank 1 (process 4711)``."""
        ...

    def post(self, number: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Send a call to all ranks; one that cannot be reached becomes an event."""
        ...

    def poll(self, timeout: float) -> list[Event]:
        """What happened, after ``timeout`` seconds at most."""
        ...

    def kill(self) -> None:
        """End all ranks at once; from any thread, and as often as one likes."""
        ...

    def close(self) -> None:
        """Give up what is left after :meth:`kill`."""
        ...


class LearnerGroup:
    """A :class:`~trainers.learner.learner.Learner` on several ranks; its methods and arguments are a Learner's.

    ``silence`` and ``stall`` are seconds without a sign of life, and at one place, after which a rank is taken to be
    lost; ``critic`` and ``reference`` are not ``None`` where the ranks have one. Raises as Learner, and RankError: a
    rank died or hung while it started.
    """

    def __init__(
        self,
        transport: Transport,
        model: Any,
        settings: Mapping[str, Any],
        *,
        silence: float = 30.0,
        stall: float = 300.0,
        start_timeout: float = 300.0,
    ) -> None:
        self._transport = transport
        self._silence, self.stall = silence, stall
        self._number = 0
        self._preparations = itertools.count()
        self._calling = threading.Lock()
        self._ended: str | None = None
        self._finalizer = weakref.finalize(self, _end, transport)
        patient = {"silence": start_timeout, "stall": start_timeout}
        try:
            where = self._call("open", **patient)
            built = self._call("build", where, start_timeout, model, dict(settings), **patient)
        except BaseException:
            self.close()
            raise
        self.critic: object | None = "critic" if built["critic"] else None
        self.reference: object | None = "reference" if built["reference"] else None

    @property
    def count(self) -> int:
        return self._transport.count

    # ------------------------------------------------------------------ a Learner's methods

    def logprobs(self, trajectories: Sequence[Trajectory], **options: Any) -> Any:
        return self._do("logprobs", _tokens_of(trajectories), **options)

    def values(self, trajectories: Sequence[Trajectory]) -> Any:
        return self._do("values", _tokens_of(trajectories))

    def update_actor(self, trajectories: Sequence[Trajectory], *numbers_and_loss: Any, **options: Any) -> Any:
        return self._do("update_actor", _tokens_of(trajectories), *numbers_and_loss, **options)

    def update_critic(self, trajectories: Sequence[Trajectory], *numbers_and_loss: Any) -> Any:
        return self._do("update_critic", _tokens_of(trajectories), *numbers_and_loss)

    def update_sft(self, trajectories: Sequence[Trajectory], weights: Any = None) -> Any:
        return self._do("update_sft", _tokens_of(trajectories), weights)

    def export_hf(self, path: str | Path, tokenizer: Any) -> None:
        """See :meth:`trainers.learner.learner.Learner.export_hf`. The ranks write: all must see the folder."""
        self._do("export_hf", Path(path).absolute(), tokenizer)

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """See :meth:`trainers.learner.learner.Learner.save`. Every rank writes: all must see the folder."""
        self._do("save", Path(path).absolute(), extra)

    def prepare_save(self, extra: Mapping[str, Any] | None = None) -> Callable[[str | Path], None]:
        """See :meth:`trainers.learner.learner.Learner.prepare_save`: the ranks take copies now, each of its own part.

        What is returned lets the ranks write them beside other work, and returns when all have; for a thread.
        """
        return self._prepare("prepare_save", extra)

    def prepare_export(self, tokenizer: Any) -> Callable[[str | Path], None]:
        """As :meth:`prepare_save`, for :meth:`export_hf`."""
        return self._prepare("prepare_export", tokenizer)

    def load(self, path: str | Path) -> Any:
        """See :meth:`trainers.learner.learner.Learner.load`. Every rank reads: all must see the folder."""
        return self._do("load", Path(path).absolute())

    # ------------------------------------------------------------------ a group's own

    def capture(self, on: bool) -> None:
        """Begin or end what Nsight captures; see :meth:`trainers.cluster.rank.RankHost.capture`."""
        self._do("capture", on)

    def check_folder(self, folder: Path) -> None:
        """Raise ``ValueError`` where a rank does not see what is written to a folder here, as checkpoints need it."""
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".seen-by-ranks-") as file:
            content = uuid.uuid4().hex
            file.write(content)
            file.flush()
            blind = [rank for rank, seen in enumerate(self._do("all_see", file.name, content)) if not seen]
        if blind:
            raise ValueError(
                f"{', '.join(self._transport.name(rank) for rank in blind)} cannot see {folder}: a learner on several "
                "machines needs a run folder on a file system that they share (trainer.default_local_dir)"
            )

    def _prepare(self, method: str, *args: Any) -> Callable[[str | Path], None]:
        number = next(self._preparations)
        self._do("prepare", number, method, *args)

        def write(path: str | Path) -> None:
            self._do("write_prepared", number, Path(path).absolute())
            while not self._do("is_written"):
                time.sleep(_LOOK_S)

        return write

    def close(self) -> None:
        """End the ranks, also in the middle of a call (which then fails). Safe to call twice."""
        self.end("it was closed")
        with self._calling:
            self._finalizer()

    def _do(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._call(method, *args, silence=self._silence, stall=self.stall, **kwargs)

    def _call(self, method: str, *args: Any, silence: float, stall: float, **kwargs: Any) -> Any:
        with self._calling:
            if self._ended is not None:
                raise RankError(f"the learner has ended: {self._ended}")
            self._number += 1
            self._transport.post(self._number, method, args, kwargs)
            watch = Watch(self.count, time.monotonic(), silence=silence, stall=stall, grace=_GRACE_S)
            failures: dict[int, Failure] = {}
            result = None
            while (verdict := watch.verdict(time.monotonic())) is None:
                for event in self._transport.poll(_LOOK_S):
                    now = time.monotonic()
                    if event.kind == "gone":
                        watch.gone(event.rank, f"{self._transport.name(event.rank)} {event.value}")
                    elif event.number != self._number:  # a pulse of a call that is over
                        continue
                    elif event.kind == "pulse":
                        watch.pulse(event.rank, event.value, now)
                    else:
                        if isinstance(event.value, Failure):
                            failures[event.rank] = event.value
                        elif event.rank == 0:
                            result = event.value
                        watch.answered(event.rank, now, raised=event.kind == "failed")
            if verdict.kind == "done":
                return result
            raise self._problem(method, verdict, failures)

    def end(self, why: str) -> None:
        """Kill all ranks; later calls raise ``RankError`` with the first reason. From any thread."""
        self._ended = self._ended or why
        self._transport.kill()

    def _problem(self, method: str, verdict: Verdict, failures: Mapping[int, Failure]) -> BaseException:
        """The error to raise; where the group is broken, it is ended."""
        failure = None if verdict.rank is None else failures[verdict.rank]
        if verdict.kind == "raised":
            assert failure is not None
            assert verdict.rank is not None
            return _with_traceback(failure, self._transport.name(verdict.rank))
        names = ", ".join(self._transport.name(rank) for rank in verdict.ranks)
        said = verdict.said if names in verdict.said else f"{names} {verdict.said}"
        self.end(f"in {method}, {said}")
        if failure is not None:
            # Of its own type, so that who knows what to do about a full disk or a diverged loss still does.
            error = _with_traceback(failure, names)
            error.add_note("The other ranks were stopped.")
            return error
        error = RankError(f"the learner has ended: {self._ended}")
        for rank, other in failures.items():  # what followed from it
            error.add_note(f"{self._transport.name(rank)} then raised:\n{other.text}")
        return error


def _with_traceback(failure: Failure, name: str) -> BaseException:
    error = failure.error or RankError(f"{name} raised:\n{failure.text}")
    if failure.error is not None:
        error.add_note(f"On {name}:\n{failure.text}")
    return error


def _tokens_of(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [replace(trajectory, messages=(), metrics={}, turn_terms=()) for trajectory in trajectories]


def _end(transport: Transport) -> None:
    transport.kill()
    transport.close()
