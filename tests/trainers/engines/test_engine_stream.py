"""The engine's stream: two accesses of a tensor, one of which writes, must be ordered, on whichever streams they are.

``torch.cuda``'s streams are replaced by ones that record, on a CPU, what is ordered before what (vector clocks).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainers.engines.engine_kits import lively_model
from trainers.config.engine import TorchEngineSection
from trainers.engines import torch_engine
from trainers.engines.base import Sampling
from trainers.engines.decoder import Decoder
from trainers.engines.static_step import StaticStep
from trainers.engines.stream import EngineStream
from trainers.engines.torch_engine import TorchEngine

Clock = dict[str, int]  # of each stream, how many of its operations are known to have ended


class Race(AssertionError):
    """Two accesses that nothing orders."""


class FakeStream:
    def __init__(self, fake: FakeCuda, name: str) -> None:
        self.fake, self.name, self.clock = fake, name, Clock()

    def record_event(self) -> Clock:
        return dict(self.clock)

    def wait_event(self, event: Clock) -> None:
        merge(self.clock, event)

    def synchronize(self) -> None:
        merge(self.fake.host, self.clock)


def merge(clock: Clock, other: Clock) -> None:
    for name, number in other.items():
        clock[name] = max(clock.get(name, 0), number)


class FakeCuda:
    """The part of ``torch.cuda`` that orders work, and the accesses of all threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = Clock()
        self.main, self._local, self._lock = FakeStream(self, "main"), threading.local(), threading.RLock()
        self._writes: dict[int, tuple[str, int]] = {}  # of a storage, the last one: stream and operation
        self._reads: dict[int, Clock] = {}  # since then
        self._alive: dict[int, torch.UntypedStorage] = {}  # so that no address is used twice
        for name, value in {"Stream": self.make, "stream": self.use, "current_stream": self.current}.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def make(self, _: torch.device) -> FakeStream:
        return FakeStream(self, "engine")

    def current(self, _: torch.device) -> FakeStream:
        return getattr(self._local, "stream", self.main)

    @contextmanager
    def use(self, stream: FakeStream) -> Iterator[None]:
        self._local.stream = stream
        with Accesses(self):
            yield
        self._local.stream = self.main

    def launch(self, name: str, reads: list[Tensor], writes: list[Tensor]) -> None:
        """Run an operation on the current stream; Race if it is not ordered with those before it."""
        with self._lock:
            stream = self.current(torch.device("cuda"))
            merge(stream.clock, self.host)  # the host launches it after what it has waited for
            stream.clock[stream.name] = number = stream.clock.get(stream.name, 0) + 1
            storages = [{self._key(tensor) for tensor in tensors} for tensors in (reads, writes)]
            for key in storages[0] | storages[1]:
                self._check(stream, name, key, dict([self._writes[key]]) if key in self._writes else {})
            for key in storages[1]:
                self._check(stream, name, key, self._reads.pop(key, {}))
                self._writes[key] = (stream.name, number)
            for key in storages[0] - storages[1]:
                self._reads.setdefault(key, {})[stream.name] = number

    def _key(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        self._alive[storage._cdata] = storage
        return storage._cdata

    def _check(self, stream: FakeStream, name: str, key: int, before: Clock) -> None:
        for other, number in before.items():
            if stream.clock.get(other, 0) < number:
                raise Race(f"{name} on {stream.name} is not ordered behind an access on {other}")


class Accesses(TorchDispatchMode):
    def __init__(self, fake: FakeCuda) -> None:
        super().__init__()
        self._fake = fake

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        named = dict(zip([argument.name for argument in call._schema.arguments], args, strict=False)) | (kwargs or {})
        reads: list[Tensor] = []
        writes: list[Tensor] = []
        for argument in call._schema.arguments:
            tensors = [leaf for leaf in tree_leaves(named.get(argument.name)) if isinstance(leaf, Tensor)]
            written = argument.alias_info is not None and argument.alias_info.is_write
            (writes if written else reads).extend(tensors)
        inputs = {tensor.untyped_storage()._cdata for tensor in reads}
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        writes += [tensor for tensor in made if tensor.untyped_storage()._cdata not in inputs]
        self._fake.launch(call.name(), reads, writes)
        return result


def play(monkeypatch: pytest.MonkeyPatch, *, skipped: tuple[str, int] | None) -> None:
    """Let a learner and an engine use the same weights, without one of the engine's calls."""
    fake, calls = FakeCuda(monkeypatch), dict.fromkeys(("wait", "finish"), 0)

    class Stream(EngineStream):
        def __init__(self, _: torch.device) -> None:
            super().__init__(torch.device("cuda"))

        def wait(self, mark: Any) -> None:
            if self._counts("wait"):
                super().wait(mark)

        def finish(self) -> None:
            if self._counts("finish"):
                super().finish()

        def _counts(self, name: str) -> bool:
            calls[name] += 1
            return (name, calls[name]) != skipped

    def free(decoder: Decoder) -> None:
        """Free memory, which torch then gives to others on the stream that it was taken on."""
        stream, fake._local.stream = fake._local.stream, fake.main
        fake.launch("free", [], list(decoder.parameters.values()))
        fake._local.stream = stream
        original(decoder)

    original = Decoder.free_weights
    monkeypatch.setattr(torch_engine, "EngineStream", Stream)
    monkeypatch.setattr(Decoder, "free_weights", free)
    model = lively_model()
    weights = dict(model.named_parameters())

    @torch.no_grad()
    def learn() -> None:
        for value in weights.values():
            value.mul_(1.01)

    async def run() -> None:
        section = TorchEngineSection(max_slots=2, max_context=64, threads=1)
        engine = TorchEngine(model, section, static=StaticStep, sleep_level=2)
        try:
            for version in (1, 2):
                if version == 1:
                    await engine.generate([1, 2, 3], Sampling(max_new_tokens=4, ignore_stop=True))
                learn()
                await engine.update_weights(weights, version)
                learn()
                reply = await engine.generate([1, 2, 3], Sampling(max_new_tokens=4, ignore_stop=True))
                assert np.all(reply.weight_version == version)
                if version == 1:
                    await engine.sleep()
        finally:
            await engine.close()
        fake.launch("free", [], list(engine._scheduler._decoder.parameters.values()))

    with Accesses(fake):
        asyncio.run(run())
    assert calls == {"wait": 3, "finish": 4}


def test_engine_and_learner_are_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, skipped=None)


@pytest.mark.parametrize(
    "skipped",
    [
        pytest.param(("wait", 1), id="start"),
        pytest.param(("wait", 2), id="update"),
        pytest.param(("finish", 1), id="updated"),
        pytest.param(("finish", 2), id="sleep"),
        pytest.param(("finish", 4), id="end"),
    ],
)
def test_each_missing_order_is_a_race(skipped: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((Race, torch_engine.EngineDeadError), match="is not ordered behind"):
        play(monkeypatch, skipped=skipped)
