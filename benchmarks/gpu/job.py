"""The settings of a part: its device, its sizes, its deadline, and the file of its results."""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TextIO

import torch
import torch.distributed as dist
import transformers

from benchmarks.gpu.results import commit, key_of, now, source

_FRAMES = 6  #: of a traceback that a result shows: the last ones


@dataclass(frozen=True)
class Sizes:
    """The sizes of the work.

    Args:
        lengths: Tokens of the shortest and the longest sequence that is learned from.
        update: Tokens of one update, about.
        forked: Likewise, of episodes that are forks of each other.
        micro: Tokens of a micro-batch.
        updates: Timed ones, after the first.
        chunk: Positions whose logits exist at a time.
        prompt: Tokens of a prompt that is continued.
        new: New tokens of the shorter and of the longer run, whose difference is measured.
        batches: Requests at a time.
        buffer: Bytes of the buffer that is copied to measure the bandwidth.
        matrix: Rows of the square matrices that are multiplied to measure the arithmetic.
        published: Tokens of a sequence of the published configuration (:mod:`benchmarks.gpu.mfu`).
        iterations: Of the learning runs.
        compiled: Whether to measure without and with torch.compile. Compiling for a CPU takes minutes.
    """

    lengths: tuple[int, int]
    update: int
    forked: int
    micro: int
    updates: int
    chunk: int
    prompt: int
    new: tuple[int, int]
    batches: tuple[int, ...]
    buffer: int
    matrix: int
    published: int
    iterations: int
    compiled: tuple[bool, ...] = (False, True)


FULL = Sizes((1024, 8192), 65536, 131072, 16384, 3, 1024, 512, (8, 72), (1, 4, 16, 64, 256), 2**32, 8192, 16384, 20)
TOY = Sizes((8, 32), 128, 1000, 64, 1, 16, 12, (2, 4), (1, 3), 2**20, 64, 32, 2, compiled=(False,))


@dataclass(frozen=True)
class Job:
    """One part's work.

    Args:
        part: Its name.
        device: ``cuda`` or ``cpu``.
        shapes: Of the models; see :mod:`benchmarks.gpu.shapes`.
        sizes: Of the rest.
        until: The deadline, by ``time.monotonic()``.
        out: The file that gets a line of JSON for each result.
        command: The command line.
        vllm: A Python with vLLM; ``None`` if there is none.
        finished: The measurements that have their results already (:func:`benchmarks.gpu.results.key_of`).
        took: The seconds that measurements took the last time; they replace guesses.
        note: Called with the description of a measurement when it begins, and with ``None`` when it has ended.
        faults: Results that are not ``good``, and exceptions of measurements, except out of memory: the part fails if
            there are any.
        missing: Measurements without a result: they are not possible here, or there was no time.
    """

    part: str
    device: torch.device
    shapes: tuple[str, ...]
    sizes: Sizes
    until: float
    out: TextIO
    command: str = ""
    vllm: str | None = None
    finished: frozenset[str] = frozenset()
    took: Mapping[str, float] = field(default_factory=dict)
    note: Callable[[dict[str, Any] | None], object] = lambda what: None
    faults: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def toy(self) -> bool:
        """True for sizes that only show that the part runs."""
        return self.sizes == TOY

    def emit(self, **result: Any) -> dict[str, Any]:
        """Write a result at once, with the machine that it was measured on; one with ``good=False`` is a fault."""
        if not result.get("good", True):
            self.faults.append(f"{result.get('what')} is not good")
        line = {"part": self.part, **result, **about(self.device), "command": self.command}
        self._write(line)
        measured = {name: value for name, value in line.items() if name in result}
        print(f"{self.part}: {json.dumps(measured)}", file=sys.stderr, flush=True)
        return line

    def cannot(self, why: str, **what: Any) -> None:
        """Write that a measurement is not possible here, in one line."""
        self.missing.append(why)
        self.emit(**what, unprovable=why)

    def try_to(self, seconds: float, measure: Callable[[], object], **what: Any) -> None:
        """Measure something if there is time for it, unless it has its results already.

        An exception is its result, and the part continues. Running out of memory is no fault; whatever else is raised
        is one of the ``faults``. A process group that the measurement created is destroyed: one of a sharded rank would
        be another measurement's too.

        Args:
            seconds: The expected time, as a guess: for the first time on such a device.
            measure: Emits its own results.
            what: Describes it; the same description is not measured again, and is in the results of what fails.
        """
        if key_of(self.part, what) in self.finished:
            return
        if time.monotonic() + self.took.get(key_of(self.part, what), seconds) > self.until:
            self.missing.append("out of time")
            self.emit(**what, left_out="out of time")
            return
        self.note(what)
        missing, began = len(self.missing), time.monotonic()
        try:
            with _no_process_group_left():
                measure()
        except torch.OutOfMemoryError as error:
            self.emit(**what, failed=f"out of memory: {str(error).splitlines()[0]}")
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.faults.append(message)
            frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
            self.emit(
                **what, failed=message, frames=[f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
            )
        self.note(None)
        if len(self.missing) == missing:
            self.finish(what, time.monotonic() - began)
        self.free()

    def finish(self, what: dict[str, Any] | None, seconds: float) -> None:
        """Write that a measurement, or with ``None`` the part, has all its results."""
        line = {"part": self.part, "finished": what, "s": round(seconds, 1)}
        self._write(line | {name: about(self.device)[name] for name in ("device", "source", "time")})

    def free(self) -> None:
        """Give the GPU's memory back; models refer to themselves, so they go only when cycles are collected."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def used(self) -> int | None:
        """Return the bytes of the GPU that all processes use; ``None`` on a CPU."""
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def reset_peak(self) -> int | None:
        """Begin to measure the peak memory; return the bytes in use, ``None`` on a CPU: torch does not count them."""
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def peak(self, above: int | None = 0) -> int | None:
        """Return the peak memory since :meth:`reset_peak`, in bytes above those; ``None`` on a CPU."""
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - (above or 0)

    def now(self) -> float:
        """Return seconds, with the device's work done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _write(self, line: dict[str, Any]) -> None:
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()


@contextmanager
def _no_process_group_left() -> Iterator[None]:
    is_own = not dist.is_initialized()
    try:
        yield
    finally:
        if is_own and dist.is_initialized():
            dist.destroy_process_group()


def about(device: torch.device) -> dict[str, Any]:
    """Return the machine, the versions, the commit and the time, for a line of results."""
    return {**_about(device), "time": now()}


@cache
def _about(device: torch.device) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit(),
        "source": source(),
    }
