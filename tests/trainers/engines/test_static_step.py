"""Static steps, run one operation at a time on a CPU, against steps of any shape.

More random schedules than the suite has: ``TEXTENVS_SCHEDULES=5000 pytest tests/trainers/engines/test_static_step.py``
plays 10,000.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, MistralConfig, PreTrainedModel

from tests.trainers.engines.engine_kits import VOCAB, enliven, lively_model
from trainers.engines import static_step, torch_engine
from trainers.engines.base import Generation, Sampling
from trainers.engines.block_pool import ROOT
from trainers.engines.decoder import SIZE, Decoder
from trainers.engines.module_decoder import ModuleDecoder
from trainers.engines.sampling import ROW, Kind
from trainers.engines.scheduler import Request, Scheduler, Update
from trainers.engines.static_step import StaticStep

CONTEXT, STOP = 96, 7
SCHEDULES = int(os.environ.get("TEXTENVS_SCHEDULES", "5"))  #: each budget below once


@cache
def model(windows: bool = False, seed: int = 0) -> PreTrainedModel:
    if not windows:
        return lively_model(seed=seed, max_context=CONTEXT)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = MistralConfig(vocab_size=VOCAB, **sizes, num_key_value_heads=2, head_dim=8, sliding_window=24)
    return enliven(AutoModelForCausalLM.from_config(config), seed)


class Recorded(TorchDispatchMode):
    """Records operations as a CUDA graph does: shapes, numbers, and the addresses of memory that was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.record: list[Any] = []
        self._own: list[Tensor] = []  # kept, so that no address is used twice

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments, own = (
            tree_leaves((args, kwargs or {})),
            {tensor.untyped_storage().data_ptr() for tensor in self._own},
        )
        self.record.append((call.name(), [self._describe(value, own) for value in arguments]))
        result = call(*args, **(kwargs or {}))
        before = {value.untyped_storage().data_ptr() for value in arguments if isinstance(value, Tensor)}
        made = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        self._own += [tensor for tensor in made if tensor.untyped_storage().data_ptr() not in before]
        return result

    def _describe(self, value: Any, own: set[int]) -> Any:
        if not isinstance(value, Tensor):
            return value
        address = 0 if value.untyped_storage().data_ptr() in own else value.data_ptr()
        return address, value.shape, value.stride(), value.dtype


class Repeated:
    """Stands in for CUDA graphs: what was captured must do the same on the same memory, whenever it runs again."""

    def __init__(self) -> None:
        self.captures = 0

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        step()
        self.captures += 1
        with Recorded() as captured:
            step()
        captured._own.clear()

        def replay() -> None:
            with Recorded() as now:
                step()
            assert now.record == captured.record, "a graph would do something else, or use memory that is gone"

        return replay


def make(
    static: bool, *, rows: int = 8, blocks: int = 60, of: type[Decoder] = Decoder, recorded: bool = True, **more: Any
) -> Scheduler:
    """Make a scheduler in float64, so that other orders of a sum do not show in the float32 log-probs."""
    decoder = of(model(of is ModuleDecoder), blocks, CONTEXT, dtype=torch.float64, threads=1)
    steps = partial(StaticStep, capture=Repeated() if recorded else None) if static else None
    return Scheduler(decoder, rows, stop_token_ids=(STOP,), unused_token_ids=(3, 5), seed=3, static=steps, **more)


@dataclass
class Both:
    """The same commands for a scheduler with static steps and one without."""

    schedulers: list[Scheduler]
    requests: list[list[Request]] = field(default_factory=lambda: [[], []])
    outcomes: list[dict[int, Any]] = field(default_factory=lambda: [{}, {}])
    cancelled: set[int] = field(default_factory=set)

    def add(self, prompt: Sequence[int], sampling: Sampling, session: str | None) -> None:
        for scheduler, requests in zip(self.schedulers, self.requests, strict=True):
            requests.append(Request(np.array(prompt, np.int32), sampling, session))
            scheduler.add(requests[-1])

    def cancel(self, number: int) -> None:
        self.cancelled.add(number)
        for scheduler, requests in zip(self.schedulers, self.requests, strict=True):
            scheduler.cancel(requests[number])

    def each(self, command: Callable[[Scheduler], Any]) -> None:
        for scheduler in self.schedulers:
            command(scheduler)

    def step(self) -> None:
        for scheduler, requests, outcomes in zip(self.schedulers, self.requests, self.outcomes, strict=True):
            for item, outcome in scheduler.step():
                if isinstance(item, Request):
                    outcomes[requests.index(item)] = outcome
                else:
                    assert outcome is None, f"an update was refused: {outcome}"
            check_names(scheduler)

    def finish(self) -> None:
        for _ in range(2000):
            if not any(scheduler.has_work for scheduler in self.schedulers):
                return
            self.step()
        raise AssertionError("there is work left after 2,000 steps")


def check_names(scheduler: Scheduler) -> None:
    """Check that blocks are named by the tokens in them, as far as these were read."""
    for row in scheduler._running:
        parent = ROOT
        for block in range(int(scheduler._named[row])):
            tokens = scheduler._ids[row, block * SIZE : (block + 1) * SIZE]
            held, parent = scheduler._pool._named[parent, tokens.tobytes()]
            assert held == scheduler._table[row, block]


def sampling_of(rng: np.random.Generator) -> Sampling:
    temperature = float(rng.choice([0.0, 0.7, 1.0]))
    cuts: dict[str, Any] = {}
    if rng.random() < 0.4:
        cuts = {"top_k": int(rng.integers(1, 20)), "top_p": float(rng.choice([0.6, 1.0])), "min_p": 0.02}
        cuts["return_kept"] = bool(rng.random() < 0.5)
    seed = None if rng.random() < 0.2 else int(rng.integers(2**63))
    return Sampling(temperature=temperature, max_new_tokens=int(rng.integers(1, 30)), seed=seed, **cuts)


def play(both: Both, rng: np.random.Generator, *, operations: int, roomy: bool) -> None:
    """Play a random schedule: requests that come, share prompts, are cancelled; updates, sleep, released sessions."""
    shared = rng.integers(8, 60, 40).tolist()
    version, windows = 0, isinstance(both.schedulers[1]._decoder, ModuleDecoder)
    for _ in range(operations):
        chance = rng.random()
        if chance < 0.25 and len(both.requests[0]) < 8 * (1 if roomy else 3):
            size, own = int(rng.integers(0, 40)), int(rng.integers(1, 20))
            if rng.random() < 0.3:  # one token to compute, which nothing has drawn
                size, own = SIZE * int(rng.integers(0, 3)), 1
            prompt = [*shared[:size], *rng.integers(8, 60, own).tolist()]
            session = str(rng.choice(["a", "b"])) if rng.random() < 0.4 else None
            both.add(prompt, sampling_of(rng), session)
        elif chance < 0.30 and both.requests[0]:
            both.cancel(int(rng.integers(len(both.requests[0]))))
        elif chance < 0.36:
            version += 1
            mode = str(rng.choice(["keep", "wait", "abort"] if roomy else ["keep", "wait"]))
            weights = model(windows, version % 2 if roomy else 0).state_dict()
            both.each(lambda s, v=version, m=mode, w=weights: s.add(Update(w, v, m)))  # type: ignore[misc]
        elif chance < 0.39:
            both.each(lambda s: s.release("a"))
        elif chance < 0.42:
            asleep = bool(rng.random() < 0.5)
            both.each(lambda s, weights=asleep: s.free_memory(weights=weights))  # type: ignore[misc]
            if asleep:
                version += 1
                weights = model(windows, version % 2 if roomy else 0).state_dict()
                both.each(lambda s, v=version, w=weights: s.add(Update(w, v, "keep")))  # type: ignore[misc]
        else:
            both.step()
    both.finish()


def check(both: Both, *, versions: bool) -> None:
    static, present = both.outcomes
    assert static.keys() | both.cancelled == present.keys() | both.cancelled
    for number in static.keys() & present.keys():
        one, two = static[number], present[number]
        assert isinstance(one, Generation), one
        assert one.finish_reason == two.finish_reason
        names = ["token_ids", "logprobs", "sampled_logprobs", "kept_ids", "kept_counts"]
        for name in names + ["weight_version"] * versions:
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=f"{name} of {number}")


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_static_steps_change_no_reply(seed: int) -> None:
    """With rows and blocks for all, each token is drawn in the same step, so also by the same weights."""
    budget = (1024, 2, 30, 7, 1)[seed % 5]
    both = Both([make(static, prefill_budget=budget) for static in (True, False)])
    play(both, np.random.default_rng(seed), operations=30, roomy=True)
    check(both, versions=True)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_static_steps_survive_scarcity(seed: int) -> None:
    """Requests wait for rows and lose blocks; a row that ends is known one step later, so steps may differ."""
    budget = (1024, 30, 5)[seed % 3]
    both = Both([make(static, rows=3, blocks=9, recorded=False, prefill_budget=budget) for static in (True, False)])
    play(both, np.random.default_rng([1, seed]), operations=60, roomy=False)
    check(both, versions=False)
    for scheduler in both.schedulers:
        scheduler._pool.forget()
        assert scheduler._pool.free == scheduler._pool.total, "all blocks came back"


class Watch(TorchDispatchMode):
    """Refuses what would make the host wait for a GPU: values that the host asks for, and masks as an index."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique2", "masked_select")

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call.name().split(".")[0].removeprefix("aten::")
        assert name not in self.WAITS, f"{name} would wait for the GPU"
        if name in ("index", "index_put", "index_put_"):
            assert all(index.dtype != torch.bool for index in args[1] if index is not None), "its size is a value"
        return call(*args, **(kwargs or {}))


@torch.inference_mode()
def test_steps_never_wait_for_the_device() -> None:
    """Neither prompts nor decoding, nor cuts that are reported; only the draws that were copied are read."""
    scheduler = make(True, recorded=False, prefill_budget=24)
    cut: dict[str, Any] = {"temperature": 0.7, "top_p": 0.6, "return_kept": True}
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"top_k": 5}, cut]
    for number, options in enumerate(kinds):
        prompt = np.arange(8, 28 + 3 * number).astype(np.int32)
        scheduler.add(Request(prompt, Sampling(max_new_tokens=20, ignore_stop=True, **options)))
    ended = []
    with Watch():
        while scheduler.has_work:
            ended += scheduler.step()
    assert len(ended) == 4
    assert 0 < scheduler.counters["static_steps"] < scheduler.counters["steps"]


class FakeCuda:
    """The part of ``torch.cuda`` that captures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[Any] = []
        self.pools = 0
        for name in ("CUDAGraph", "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            monkeypatch.setattr(torch._C, name, lambda *call, name=name: self.log.append((name, *call)), raising=False)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.log.append("empty cache"))

    def CUDAGraph(self) -> Any:  # noqa: N802
        return SimpleNamespace(
            capture_begin=self.capture_begin,
            capture_end=lambda: self.log.append("end"),
            replay=lambda: self.log.append("replay"),
        )

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.log.append(f"capture into pool {pool}")

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools


def test_graphs_share_a_pool_until_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    graphs = static_step._Graphs(torch.device("cpu"))
    for pool in (1, 2):
        fake.log.clear()
        for replay in [graphs(lambda: fake.log.append("step")) for _ in range(2)]:
            replay()
        assert fake.log == ["step", f"capture into pool {pool}", "step", "end"] * 2 + ["replay"] * 2
        graphs.free()
        assert fake.log[-1] == "empty cache"


def test_failing_capture_leaves_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, runs = FakeCuda(monkeypatch), iter(range(2))

    def step() -> None:
        if next(runs) == 1:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        static_step._Graphs(torch.device("cpu"))(step)
    assert fake.log[-3:] == ["end", ("_cuda_endAllocateToPool", 0, 1), ("_cuda_releasePool", 0, 1)]
    assert fake.pools == 2, "the next capture has memory of its own"


@pytest.mark.parametrize(("rows", "sizes"), [(6, [6, 4, 2, 1]), (4, [4, 2, 1]), (1, [1])])
def test_kind_is_captured_whole_largest_first(rows: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes when a kind first comes, and again in new memory."""
    decoder, captured = Decoder(model(), 20, CONTEXT, threads=1), list[int]()
    monkeypatch.setattr(StaticStep, "_compute", lambda steps, buffers, kind: captured.append(buffers.size))
    steps = StaticStep(decoder, rows)
    greedy, other = np.zeros(1, ROW), np.ones(1, ROW)
    for kind, expected in ((greedy, sizes), (greedy, []), (other, sizes), (greedy, [])):
        captured.clear()
        assert steps.prepare(Kind.of(kind))
        assert captured == expected
    decoder.free_cache()
    steps.prepare(Kind.of(greedy))
    assert captured == sizes


def test_failing_capture_falls_back_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    decoder = Decoder(model(), 60, CONTEXT, dtype=torch.float64, threads=1)
    failing = Scheduler(
        decoder, 8, stop_token_ids=(STOP,), unused_token_ids=(3, 5), seed=3,
        static=partial(StaticStep, capture=fail),
    )  # fmt: skip
    both = Both([failing, make(False)])
    play(both, np.random.default_rng(0), operations=40, roomy=True)
    check(both, versions=True)
    assert failing.counters["static_steps"] == 0
    (message,) = [record.getMessage() for record in caplog.records]
    assert "engine.cuda_graphs" in message
    assert "not permitted when stream is capturing" in message


def test_capture_that_fails_later_loses_nothing() -> None:
    """The tokens that are under way are read before steps go on without graphs."""
    decoder = Decoder(model(), 60, CONTEXT, dtype=torch.float64, threads=1)
    captures = iter(range(6))

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        next(captures)  # StopIteration at the second kind's third of four sizes
        return step

    failing = Scheduler(
        decoder, 8, stop_token_ids=(STOP,), unused_token_ids=(3, 5), seed=3,
        static=partial(StaticStep, capture=capture),
    )  # fmt: skip
    both = Both([failing, make(False)])
    play(both, np.random.default_rng(1), operations=60, roomy=True)
    check(both, versions=True)
    assert 0 < failing.counters["static_steps"] < failing.counters["steps"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_static_steps_of_transformers_modules(seed: int) -> None:
    """A family without fused layers, with a sliding window."""
    both = Both([make(static, of=ModuleDecoder) for static in (True, False)])
    play(both, np.random.default_rng([2, seed]), operations=30, roomy=True)
    check(both, versions=True)
    assert both.schedulers[0].counters["static_steps"] > 0


async def test_missing_triton_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """On CUDA without Triton the engine works, says what is slower, and names the package."""

    def missing() -> None:
        raise ModuleNotFoundError("decoding on CUDA needs Triton: pip install triton", name="triton")

    monkeypatch.setattr(static_step, "load_kernel", missing)
    with pytest.raises(ValueError, match="pip install triton"):
        static_step._check_kernel(torch.bfloat16)
    with pytest.raises(ValueError, match="float64"):
        static_step._check_kernel(torch.float64)

    def refuse(*_: object) -> None:
        static_step._check_kernel(torch.bfloat16)

    monkeypatch.setattr(torch_engine, "StaticStep", refuse)
    assert torch_engine._cuda_graphs(Decoder(model(), 20, CONTEXT, threads=1), 4, None) is None
    (message,) = [record.getMessage() for record in caplog.records]
    assert "without graphs, which is slower" in message
    assert "pip install triton" in message
