"""Weights through process groups of real processes, and updates in which one of them fails."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from engine_kits import lively_model
from weight_workers import WorkerProcess, Workers

from trainers.config.engine import VLLMEngineSection, VLLMSection
from trainers.engines import links, sender
from trainers.engines.base import EngineError, SourceLostError, SupersededError
from trainers.engines.process_group import make_group
from trainers.engines.shared_memory import place_of
from trainers.engines.transport import Bucket, LocalSource, Receiver, Wants, WeightSource, exchange
from trainers.engines.transport_choice import choose
from trainers.engines.vllm.engine import VLLMUpdater
from trainers.engines.weight_update import _own_address
from trainers.engines.weights import ChecksumRule, Checksums, Parameters, Sums
from trainers.models.safetensors_file import SafetensorsFile

pytestmark = pytest.mark.xdist_group("ranks")  # one worker process, and one forkserver for all


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    """A worker process shared by tests that do not end it."""
    made = WorkerProcess()
    made.order("leave")  # it is there, and no test waits for its imports
    yield made
    made.end()


@pytest.fixture
async def workers(process: Any) -> AsyncIterator[Any]:
    made: list[Workers] = []

    def one(**options: Any) -> Workers:
        shared = process if not {"die", "stop"} & options.keys() else None
        made.append(Workers(process=shared, **options))
        return made[-1]

    yield one
    for receiver in made:
        if receiver.process is not process:
            receiver.close()
        else:  # as it was
            await receiver.leave_group({})
            await receiver.checksums()


def source(seed: int = 0) -> WeightSource:
    weights = lively_model(seed=seed).state_dict()
    return LocalSource.of(weights, {"lm_head.weight"})


def sums_of(seed: int, dtype: torch.dtype) -> dict[str, tuple[int, ...]]:
    sums = Checksums(ChecksumRule())
    for name, value in lively_model(seed=seed).state_dict().items():
        if name != "lm_head.weight":
            sums.add(name, value.to(dtype))
    return sums.result()


SHARED: dict[str, Any] = {"backend": "ipc", "places": (place_of("cpu"),)}
backends = pytest.mark.parametrize("backend", [{}, SHARED], ids=["gloo", "ipc"])


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_weights_arrive_in_the_requested_type(workers: Any, dtype: torch.dtype, backend: Any) -> None:
    receiver = workers(dtype=dtype, **backend)
    groups = []
    for seed in range(2):
        sums = await source(seed).broadcast(receiver)
        assert sums == await receiver.checksums() == sums_of(seed, dtype)
        groups.append(receiver.group["name"])
    assert receiver.buckets > 10
    assert groups[0] == groups[1]  # which is kept


@backends
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuse", "out of memory"),
        ("die", "the worker is gone"),
        ("stop", "did not take a bucket within 60 s"),
    ],
)
async def test_failing_worker_ends_the_update(
    workers: Any, fault: str, message: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, ahead = workers(**{fault: 3}, **backend), itertools.count(step=20.0)

    def clock() -> float:  # it runs once the worker is stopped
        return time.monotonic() + (next(ahead) if fault == "stop" and receiver.buckets > 3 else 0.0)

    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    if fault == "stop":
        monkeypatch.setattr("trainers.engines.transport._LEAVE_S", 0.1)  # it does not
    await receiver.checksums()  # it is there
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match=message):
            await source().broadcast(receiver)
    assert receiver.group is None
    if fault == "refuse":  # and it can be tried again, in a group of its own
        assert await source().broadcast(receiver) == sums_of(0, torch.float32)


@pytest.mark.parametrize("longest_nap_s", [0.005, 10.0])
async def test_workers_that_never_join_time_out(
    workers: Any, longest_nap_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one message, whoever notices it first: with long naps, that is torch, whose limit is the same."""
    monkeypatch.setattr(links, "_LONGEST_NAP_S", longest_nap_s)
    receiver = workers(timeout_s=1.0)

    async def hang(group: Any) -> None:
        await asyncio.sleep(3600)

    receiver.join_group = hang
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match=r"did not join within 1 s"):
            await source().broadcast(receiver)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (dist.DistStoreError("wait timeout after 30000ms, keys: /cpu//0/1"), "the workers did not join within 30 s"),
        (RuntimeError("[gloo/transport/tcp] Timed out waiting 30000ms"), "the workers did not join within 30 s"),
        (dist.DistNetworkError("connection refused"), "they failed to join: .*refused"),
    ],
)
def test_torch_may_notice_late_workers_first(error: Exception, message: str) -> None:
    """Its clock begins before ours, so that its error can come before our limit."""
    link = links.SharedLink({"timeout_s": 30.0}, dist.HashStore())  # type: ignore[typeddict-item]
    link.fail(error, "join")
    assert re.fullmatch(rf"(?s){message}.*", link.error or "")


@backends
async def test_failing_rank_0_leaves_no_worker_waiting(workers: Any, backend: Any) -> None:
    receiver = workers(**backend)
    whole = source()

    def read() -> Iterator[Any]:
        tensors = whole.read()
        for _ in range(6):
            yield next(tensors)
        raise SupersededError("the learner has trained on")

    async with asyncio.timeout(60):
        with pytest.raises(SupersededError, match="trained on"):
            await LocalSource(whole.specs, read).broadcast(receiver)
        assert receiver.group is None
        await receiver.checksums()  # the worker answers
        assert await whole.broadcast(receiver) == sums_of(0, torch.float32)


@backends
async def test_cancelled_update_leaves_no_worker_waiting(workers: Any, backend: Any) -> None:
    receiver = workers(**backend)
    update = asyncio.create_task(source().broadcast(receiver))
    while not receiver.buckets:
        await asyncio.sleep(0.01)
    update.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await update
        await receiver.checksums()
        assert await source().broadcast(receiver) == sums_of(0, torch.float32)


async def test_backend_may_change_between_updates(workers: Any) -> None:
    receiver = workers()
    for backend in ({}, SHARED, {}):
        receiver._wants = replace(receiver._wants, **{"backend": "gloo", "places": ()} | backend)
        assert await source().broadcast(receiver) == await receiver.checksums() == sums_of(0, torch.float32)
        assert receiver.group["backend"] == receiver.wants.backend


async def test_too_little_shared_memory_is_no_servers_fault(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("No space left on device (28)")

    monkeypatch.setattr(sender, "borrowed", full)
    with pytest.raises(SourceLostError, match=r"no 0 MiB in /dev/shm .* bucket_mib, or take .*process_group"):
        await source().broadcast(workers(**SHARED))


@pytest.mark.parametrize(
    ("place", "free", "transport", "reason"),
    [
        (place_of("cpu"), 2**40, "ipc", None),
        (place_of("cpu"), 1000, "process_group", "/dev/shm has 0 MiB"),
        ("cpu:elsewhere", 2**40, "process_group", "computes in cpu:elsewhere, and the learner in "),
        (None, 2**40, "process_group", "computes in a place that it does not tell"),
    ],
)
async def test_facts_decide_between_memory_and_group(
    place: Any, free: int, transport: str, reason: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.engines.weight_update.shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    client: Any = SimpleNamespace(base_url="http://127.0.0.1:1")
    updater = VLLMUpdater(client, VLLMEngineSection(), Parameters({}, False, 1), Path("."))
    updater.connect(device="cpu", ranks=1, dtype=None, label="x", version=0, places=None if place is None else [place])
    choice = choose("auto", await updater._facts(source()))
    assert choice.transport == transport
    assert (reason in choice.excluded["ipc"]) if reason else not choice.excluded


async def test_this_process_joins_as_one_member() -> None:
    """Weights of a learner on Ray for a server with several workers, by value or on a disk."""
    received: list[Wants] = []

    class Elsewhere(WeightSource):
        specs = ()

        async def broadcast(self, receiver: Receiver) -> Sums:
            received.append(receiver.wants)
            return {}

    async def take(bucket: Bucket) -> None: ...

    rule = ChecksumRule("sha256", ranks=2, kv_heads=2)
    original = Wants(workers=2, backend="nccl", rule=rule, bucket_bytes=1000, timeout_s=9.0, address="192.0.2.1")
    await Elsewhere().deliver(original, take)
    assert received == [Wants(workers=1, backend="gloo", rule=rule, bucket_bytes=1000, timeout_s=9.0)]


@pytest.mark.parametrize("address", [None, "192.0.2.7"])
async def test_rank_0_listens_at_its_machines_address(monkeypatch: pytest.MonkeyPatch, address: Any) -> None:
    """With a learner on Ray, rank 0 is on another machine, so this process's address would be wrong."""
    monkeypatch.setattr("trainers.engines.weight_update._own_address", lambda url: "192.0.2.2")
    url = "http://192.0.2.1:8000"
    vllm = VLLMSection(base_url=(url,), master_address=address)
    section = VLLMEngineSection(weight_transport="process_group", vllm=vllm)
    client: Any = SimpleNamespace(base_url=url)
    wants = VLLMUpdater(client, section, Parameters({}, False, 1), Path(".")).wants
    assert wants.address == address
    assert wants.local_address == "192.0.2.2"


@pytest.mark.parametrize(
    ("backend", "configured", "seen"), [("nccl", None, "2"), ("nccl", "1", "1"), ("gloo", None, None)]
)
def test_failing_nccl_group_does_not_abort_process(
    monkeypatch: pytest.MonkeyPatch, backend: str, configured: Any, seen: Any
) -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    monkeypatch.delenv(name, raising=False)
    if configured is not None:
        monkeypatch.setenv(name, configured)
    settings: list[str | None] = []

    def helper(*args: Any, **options: Any) -> tuple[str, None]:
        settings.append(os.environ.get(name))
        return "made", None

    c10d = "torch.distributed.distributed_c10d"
    monkeypatch.setattr(f"{c10d}._new_process_group_helper", helper)
    monkeypatch.setattr(f"{c10d}._world", SimpleNamespace(pg_group_ranks={}))
    make_group({"name": "a", "size": 2, "backend": backend, "timeout_s": 1.0}, 0, dist.HashStore())
    assert settings == [seen]
    assert os.environ.get(name) == configured  # the learner's groups have the default


async def test_blocked_rank_0_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL creates a group with the first broadcast and cannot be interrupted."""
    monkeypatch.setattr("trainers.engines.transport._LEAVE_S", 0.05)
    receiver: Any = SimpleNamespace(given_up=[], abandoned=0)

    async def follow(group: Any, plan: Any) -> None:
        raise EngineError("out of memory")

    async def abandon() -> None:
        receiver.abandoned += 1

    receiver.follow, receiver.abandon = follow, abandon
    sending: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(60):
        outcome = await exchange(sending, {"a": (receiver, {})}, [], lambda *why: receiver.given_up.append(why))
    assert str(outcome["a"]) == "out of memory"
    assert receiver.given_up[0] == ("a", "the workers do not follow: EngineError('out of memory')")
    assert receiver.abandoned == 1


async def test_full_disk_is_not_the_servers_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server must not be replaced: its successor would fail as well."""

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SafetensorsFile, "write", full)
    url, model = "http://127.0.0.1:8000", tmp_path / "model"
    model.mkdir()
    vllm = VLLMSection(base_url=(url,), update_folder=str(tmp_path / "updates"))
    client: Any = SimpleNamespace(base_url=url)
    section = VLLMEngineSection(weight_transport="disk", vllm=vllm)
    updater = VLLMUpdater(client, section, Parameters({}, False, 1), model)
    updater._tested = True
    with pytest.raises(SourceLostError, match=r"updates/weights-.* for the vLLM server: .*No space left.*make room"):
        await updater._send(source(), "weights")
    assert not updater.begun
    assert not list((tmp_path / "updates").iterdir())


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
async def test_server_with_ipv6_address(workers: Any) -> None:
    assert _own_address("http://[::1]:8000") == "::1"
    receiver = workers(local_address=_own_address("http://[::1]:8000"))
    assert await source().broadcast(receiver) == sums_of(0, torch.float32)
