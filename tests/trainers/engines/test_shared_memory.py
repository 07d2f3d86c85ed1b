"""Buckets in shared memory: what other processes read, who serves whom, and what is left behind."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kits import lively_model
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing import reductions
from weight_workers import WorkerProcess, Workers

from trainers.engines.base import EngineError
from trainers.engines.links import Inlet
from trainers.engines.sender import Sender
from trainers.engines.shared_memory import Buffer, device_at, place_of, tensors_of
from trainers.engines.transport import LocalSource, Wants, plan_of, send, serving
from trainers.engines.weights import ChecksumRule, TensorSpec

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("ranks")]  # one forkserver for all

CPU = torch.device("cpu")
HERE = place_of("cpu")
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8])
SHAPES = st.lists(st.integers(0, 5), max_size=3)


def filled(buffer: Buffer, values: list[torch.Tensor], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    buffer.empty()
    placed = [buffer.place(value, dtype) for value in values]
    buffer.finish()
    return placed


@given(st.lists(st.tuples(SHAPES, DTYPES), max_size=6), st.sampled_from([None, torch.float32, torch.bfloat16]))
def test_references_give_the_placed_tensors(shapes: Any, dtype: Any) -> None:
    values = [torch.randint(0, 100, shape).to(kind) for shape, kind in shapes]
    buffer = Buffer(10_000, CPU)
    placed = filled(buffer, values, dtype)
    named = [(str(number), value) for number, value in enumerate(placed)]
    read = [tensors_of(buffer.references(named)) for _ in range(2)]
    for tensors in read:
        assert [name for name, _ in tensors] == [name for name, _ in named]
        for (_, value), expected in zip(tensors, values, strict=True):
            assert value.dtype == (dtype or expected.dtype)
            assert torch.equal(value, expected.to(value.dtype))


def test_readers_see_the_same_memory() -> None:
    buffer = Buffer(1000, CPU)
    named = [("x", filled(buffer, [torch.zeros(3)])[0])]
    ((_, value),) = tensors_of(buffer.references(named))
    filled(buffer, [torch.ones(3)])
    assert torch.equal(value, torch.ones(3))


class Exploit:
    def __init__(self, run: Any, *arguments: Any) -> None:
        self._reduced = run, arguments

    def __reduce__(self) -> Any:
        return self._reduced


@pytest.mark.parametrize("run", [os.system, exec, torch.load, pickle.loads, getattr])
def test_pickles_of_anything_else_are_refused(run: Any, tmp_path: Path) -> None:
    harmful = base64.b64encode(pickle.dumps([("x", Exploit(run, str(tmp_path / "made")))])).decode()
    with pytest.raises(ValueError, match="references to shared tensors have no"):
        tensors_of(harmful)


def test_first_rank_of_a_place_serves_it() -> None:
    to = {"one": Wants(places=("b", "a", "b")), "other": Wants(places=("c",)), "group": Wants()}
    assert serving(to, ["a", "b", "c", "b"]) == {"one": {1: [0, 2], 0: [1]}, "other": {2: [0]}, "group": {}}


def test_each_rank_serves_the_workers_in_its_place() -> None:
    """Two ranks of a learner, with the same tensors, and three workers on their two devices."""
    weights = {f"layer {number}": torch.randn(50, 3) for number in range(9)}
    specs = [TensorSpec((name,), value.dtype, tuple(value.shape)) for name, value in weights.items()]
    places = ["cpu:first", "cpu:second"]
    wants = Wants(
        workers=3, backend="ipc", places=(places[1], places[0], places[1]), dtype=torch.bfloat16, rule=ChecksumRule()
    )
    plan, senders = plan_of(specs, 1500), [Sender(), Sender()]
    group = senders[0].open("127.0.0.1", 4, "ipc", 60.0)
    results: list[Any] = [None, None]
    inlet: Inlet | None = None

    def serve(rank: int) -> None:
        tensors = (((name,), value) for name, value in weights.items())
        results[rank] = send(senders[rank], {group["name"]: (wants, group)}, plan, tensors, places, rank)

    for _ in range(2):  # updates
        threads = [threading.Thread(target=serve, args=(rank,), daemon=True) for rank in range(2)]
        for thread in threads:
            thread.start()
        inlet = inlet or Inlet(group)
        read: list[dict[str, torch.Tensor]] = [{}, {}, {}]
        for _ in plan:
            for worker, references in enumerate(inlet.references()):
                read[worker].update((name, value.clone()) for name, value in tensors_of(references))
            inlet.done()
        for thread in threads:
            thread.join(60)
        assert len(results[0][group["name"]]) == len(weights)
        assert results[1] == {group["name"]: {}}
        for tensors in read:
            assert tensors.keys() == weights.keys()
            assert all(torch.equal(value, weights[name].bfloat16()) for name, value in tensors.items())
    senders[0].give_up(group["name"], "the update was withdrawn")
    with pytest.raises(RuntimeError, match="the sender has given up"):
        inlet.references()


def test_no_bucket_is_gathered_beside_the_buffers() -> None:
    """A tensor that the learner has gathered or cast is freed before the next one is made."""
    specs = [TensorSpec((f"layer {number}",), torch.float32, (50, 3)) for number in range(9)]
    wants = Wants(workers=1, backend="ipc", places=(HERE,), dtype=torch.bfloat16, rule=ChecksumRule())
    plan, sender = plan_of(specs, 1500), Sender()
    assert len(plan) < len(specs), "a bucket has several"
    group = sender.open("127.0.0.1", 2, "ipc", 60.0)
    gathered: list[weakref.ref[torch.Tensor]] = []
    alive = []

    def tensors() -> Iterator[Any]:
        for spec in specs:
            value = torch.randn(spec.shape)
            gathered.append(weakref.ref(value))
            yield spec.names, value
            del value
            alive.append(sum(reference() is not None for reference in gathered))

    thread = threading.Thread(
        target=send, args=(sender, {group["name"]: (wants, group)}, plan, tensors(), [HERE]), daemon=True
    )
    thread.start()
    inlet = Inlet(group)
    for _ in plan:
        inlet.references()
        inlet.done()
    thread.join(60)
    assert not thread.is_alive()
    assert alive == [0] * (len(specs) - 1)


def test_concurrent_rounds_share_no_buffer() -> None:
    """A second round, of the same form, is sent whole before the workers of the first one have read anything."""
    specs = [TensorSpec((f"layer {number}",), torch.float32, (50, 3)) for number in range(4)]
    wants = Wants(workers=1, backend="ipc", places=(HERE,))
    plan, sender, groups = plan_of(specs, 1500), Sender(), []

    def begin(value: float) -> tuple[threading.Thread, Inlet]:
        group = sender.open("127.0.0.1", 2, "ipc", 60.0)
        groups.append(group["name"])
        tensors = ((spec.names, torch.full(spec.shape, value)) for spec in specs)
        order = (sender, {group["name"]: (wants, group)}, plan, tensors, [HERE])
        thread = threading.Thread(target=send, args=order, daemon=True)
        thread.start()
        return thread, Inlet(group)

    def read(inlet: Inlet) -> set[float]:
        values: set[float] = set()
        for _ in plan:
            for _, tensor in tensors_of(inlet.references()[0]):
                values.update(tensor.flatten().tolist())
            inlet.done()
        return values

    first, slow = begin(1.0)
    (references,) = slow.references()  # the first bucket is there
    second, fast = begin(2.0)
    assert read(fast) == {2.0}
    second.join(60)
    assert {value for _, tensor in tensors_of(references) for value in tensor.flatten().tolist()} == {1.0}
    slow.done()
    slow.references()
    slow.done()
    first.join(60)
    assert not first.is_alive()
    sender.leave(groups[1])
    third, slow = begin(3.0)
    assert read(slow) == {3.0}
    third.join(60)
    assert [len(pair) for past in sender._past for pair in past.pairs.values()] == [2], "rounds in turn have one pair"


def segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")}


async def test_killed_workers_leave_no_further_memory() -> None:
    """A worker that dies in the middle of a bucket; the next one, with a sender of its own, takes the same buffers."""

    async def update(**faults: Any) -> None:
        receiver = Workers(backend="ipc", places=(HERE,), process=WorkerProcess(), **faults)
        try:
            await LocalSource.of(lively_model().state_dict()).broadcast(receiver)
        finally:
            await receiver.abandon()
            receiver.close()

    await update()
    before = segments()
    assert before
    for bucket in (0, 3):
        with pytest.raises(EngineError, match="the worker is gone"):
            await update(die=bucket)
    await update()
    assert segments() == before


SENDS = """
import sys, torch
from trainers.engines.shared_memory import Buffer
buffer = Buffer(10_000, torch.device("cpu"))
print(buffer.references([("x", buffer.place(torch.ones(3), None))]), flush=True)
sys.stdin.read()
"""
READS = """
import sys, torch
from trainers.engines.shared_memory import Buffer, tensors_of
((_, value),) = tensors_of(sys.stdin.readline())
print("mapped", flush=True)
sys.stdin.read()  # until the sender has ended
buffer = Buffer(10_000, torch.device("cpu"))
((_, own),) = tensors_of(buffer.references([("x", buffer.place(torch.zeros(3), None))]))
print(value.tolist(), own.tolist())
"""


def test_reader_outlives_its_sender() -> None:
    """It keeps what it mapped, and makes memory of its own, when the sender and its manager of memory have ended."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes["env"] = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", SENDS], **pipes) as sender:
        assert sender.stdout is not None
        references = sender.stdout.readline()
        with subprocess.Popen([sys.executable, "-c", READS], **pipes) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.write(references)
            reader.stdin.flush()
            assert reader.stdout.readline() == "mapped\n"
            managers = Path(f"/proc/{sender.pid}/task/{sender.pid}/children").read_text().split()
            assert len(managers) == 1
            for pid in (sender.pid, int(managers[0])):
                os.kill(pid, signal.SIGKILL)
            assert reader.communicate()[0] == "[1.0, 1.0, 1.0] [0.0, 0.0, 0.0]\n"


@pytest.mark.parametrize("name", [b"/../../etc/passwd", b"/", b"..", b"/a/b"])
def test_references_name_nothing_but_segments(name: bytes) -> None:
    stored = Exploit(reductions.rebuild_storage_filename, torch.UntypedStorage, b"", name, 8)
    with pytest.raises(ValueError, match="name no segment"):
        tensors_of(base64.b64encode(pickle.dumps(stored)).decode())


HOLDS = """
import os, sys, torch
from trainers.engines.shared_memory import Buffer
buffer = Buffer(10_000, torch.device("cpu"))
buffer.references([("x", buffer.place(torch.ones(3), None))])
print(buffer._memory.untyped_storage()._share_filename_cpu_()[1].decode(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_ended_senders_leave_no_memory(killed: bool) -> None:
    """Also with references that nobody has read."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", HOLDS], env=environment, **pipes) as process:
        assert process.stdout is not None
        segment = Path("/dev/shm" + process.stdout.readline().strip())
        assert segment.exists()
        if killed:
            process.kill()
        else:
            process.communicate()
    deadline = time.monotonic() + 120
    while segment.exists():  # PyTorch's own process removes it, when this one has ended
        assert time.monotonic() < deadline, "it is left"
        time.sleep(0.05)


def test_places_name_devices() -> None:
    assert place_of("cpu") == HERE
    assert device_at(HERE) == CPU
    assert device_at("cuda:GPU-that-is-not-here") is None


def test_freed_buffers_are_those_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between rounds, and only where no group has failed: its workers may still read."""
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    sender, gpu, pair = Sender(), torch.device("cuda", 0), [Buffer(1000, CPU) for _ in range(2)]
    group = sender.open("127.0.0.1", 2, "ipc", 60.0)
    with sender.round([group["name"]]) as past:
        past.pairs = {(None, CPU): list(pair), (None, gpu): list(pair)}
    with sender.round([]):
        sender.free()
        assert len(past.pairs) == 2
    sender._links[group["name"]].error = "late"
    sender.free()
    assert len(past.pairs) == 2
    sender._links[group["name"]].error = None
    sender.free()
    assert list(past.pairs) == [(None, CPU)]
    assert emptied == [1]
    sender.leave(group["name"])
