"""vLLM beyond the protocol: what goes wrong between two processes, and what must then be true."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SERVED, lively_model
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from some_adapters import adapted, merged
from vllm_kit import VLLM

from trainers.engines.base import EngineDeadError, EngineError, Sampling
from trainers.engines.vllm.checksum import block, checksums, differing
from trainers.engines.vllm.client import VLLMEngine, start_server
from trainers.engines.vllm.frames import Frame, FrameError, read_frame
from trainers.engines.vllm.publish import Payload, Publisher
from trainers.engines.weights import tied_names

GREEDY = Sampling(temperature=0.0, max_new_tokens=16)
NAME = "model.layers.1.mlp.down_proj.weight"

# Frames


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5
)
arrays = st.dictionaries(
    st.text(max_size=5),
    st.tuples(st.sampled_from(["<i4", "<f4", "|u1"]), st.lists(st.integers(0, 255), max_size=9)),
    max_size=3,
)


@given(
    st.lists(st.tuples(st.dictionaries(st.text().filter(lambda name: name != "arrays"), values), arrays), max_size=3)
)
def test_frames_arrive_as_they_were_sent(sent: list[Any]) -> None:
    frames = [
        Frame(header, {name: np.array(numbers, kind) for name, (kind, numbers) in some.items()})
        for header, some in sent
    ]

    async def received() -> list[Frame | None]:
        reader = reader_of(b"".join(frame.encode() for frame in frames))
        return [await read_frame(reader) for _ in range(len(frames) + 1)]

    *got, end = asyncio.run(received())
    assert end is None
    for one, two in zip(frames, got, strict=True):
        assert two is not None
        assert two.header == one.header
        assert {name: (a.dtype, a.tolist()) for name, a in two.arrays.items()} == {
            name: (a.dtype, a.tolist()) for name, a in one.arrays.items()
        }


async def test_a_frame_that_breaks_off_is_the_end_and_garbage_is_an_error() -> None:
    whole = Frame({"op": "done"}, {"tokens": np.arange(3)}).encode()
    for cut in range(len(whole)):
        assert await read_frame(reader_of(whole[:cut])) is None
    with pytest.raises(FrameError):
        await read_frame(reader_of(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(FrameError):
        await read_frame(reader_of(b"\0\0\0\4\0\0\0\0nope"))


# Checksums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checksum_survives_how_vllm_stores_weights_and_sees_any_change(dtype: torch.dtype) -> None:
    state = {name: value.to(dtype) for name, value in lively_model().state_dict().items() if name != "lm_head.weight"}
    sums = checksums(state.items())
    assert set(sums) == {"", "model.layers.0", "model.layers.1"}
    stored = dict(reversed(state.items()))
    at = "model.layers.0.self_attn."
    for kind in ("weight", "bias"):
        stored[f"{at}qkv_proj.{kind}"] = torch.cat([stored.pop(f"{at}{part}_proj.{kind}") for part in "kqv"])
    stored["model.embed_tokens.weight"] = torch.nn.functional.pad(stored["model.embed_tokens.weight"], (0, 0, 0, 9))
    assert checksums(stored.items()) == sums
    for name, value in state.items():
        changed = value.clone()
        changed.view(-1)[-1] += 0.125
        found = checksums({**state, name: changed}.items())
        assert differing(sums, found) == [block(name) or "outside the blocks"]


# Publishing


def test_a_publisher_writes_what_the_engine_holds_and_removes_what_nobody_needs() -> None:
    state = lively_model().state_dict()
    publisher = Publisher(state, torch.bfloat16)
    one, two, three = (publisher.prepare(state, version) for version in range(3))
    paths = [Path(payload.message["path"]) for payload in (one, two, three)]
    held = load_file(paths[0])
    assert tied_names(state) == {"lm_head.weight": "model.embed_tokens.weight"}
    assert held.keys() == state.keys() - {"lm_head.weight"}
    assert all(torch.equal(held[name], state[name].to(torch.bfloat16)) for name in held)
    assert one.message["checksums"] == checksums(held.items())
    publisher.keep(one)
    publisher.drop(two)
    assert [path.exists() for path in paths] == [True, False, True]
    publisher.keep(three)
    assert [path.exists() for path in paths] == [False, False, True]
    publisher.close()
    assert not paths[2].parent.exists()


# Starting and ending


async def test_a_server_that_cannot_start_says_why() -> None:
    model = lively_model()
    with pytest.raises(EngineDeadError, match=r"cannot start /nowhere/python.*make venv-vllm"):
        start_server(model, python="/nowhere/python")
    server = start_server(model, python=sys.executable)  # the tests' own Python has no vLLM
    with pytest.raises(EngineDeadError, match="exited with code 1") as caught:
        await VLLMEngine.connect(server, model, timeout=60)
    assert "No module named 'vllm'" in str(caught.value)
    assert "make venv-vllm" in str(caught.value)
    assert not server.folder.exists()


async def test_a_server_that_is_not_ready_in_time_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\necho still loading\nexec sleep 100\n")
    slow.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    server = start_server(lively_model(), python="./python")
    with pytest.raises(EngineDeadError, match=r"not ready after 0.2 s(.|\n)*still loading"):
        await VLLMEngine.connect(server, lively_model(), timeout=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_server_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    program = (
        "import subprocess, sys, time; from trainers.engines.vllm.server.lifetime import *;"
        "remove_afterwards(sys.argv[1]); follow_the_parent(); child = subprocess.Popen(['sleep', '100']);"
        "print(child.pid, flush=True); time.sleep(100)"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    child = int(server.stdout.readline())
    os.kill(child, 0)
    server.stdin.close()  # as the kernel does when its parent is gone
    assert server.wait(20) == -9
    assert server.stdout.read() == b""  # the child held it open, and is gone too
    assert not folder.exists()


def test_arguments_that_the_protocol_decides_are_not_free() -> None:
    with pytest.raises(ValueError, match=r"engine\.vllm\.args\.logprobs_mode"):
        start_server(lively_model(), args={"logprobs_mode": "raw_logits"})
    with pytest.raises(ValueError, match="max_context"):
        start_server(lively_model(), max_context=100_000)


# Weight updates that fail


@contextlib.asynccontextmanager
async def engine_of(vllm: VLLM) -> AsyncIterator[VLLMEngine]:
    engine = await vllm.engine(vllm.model)
    try:
        async with asyncio.timeout(60):
            yield engine
    finally:
        await engine.close()


def spoil(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Let the next weights be wrong in a way that only the server can see."""
    prepare = engine._publisher.prepare

    def prepare_badly(weights: Any, version: int) -> Payload:
        payload = prepare(weights, version)
        sent = load_file(payload.message["path"])
        if fault == "damaged":
            sent[NAME if NAME in sent else next(iter(sent))][0, 0] += 1.0
        elif fault == "breaks off":  # vLLM's loader fails when it has taken some
            sent[NAME] = sent[NAME][:, :3].contiguous()
        elif fault == "one stays old":
            del sent[NAME]
        save_file(sent, payload.message["path"])
        sums = payload.message["checksums"] if fault == "damaged" else checksums(sent.items())
        return Payload({**payload.message, "checksums": sums})

    monkeypatch.setattr(engine._publisher, "prepare", prepare_badly)


@pytest.mark.engines
@pytest.mark.xdist_group("vllm")
@pytest.mark.parametrize("fault", ["damaged", "breaks off", "one stays old"])
async def test_an_update_that_fails_on_the_way_leaves_the_old_weights(
    vllm: VLLM, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    new = lively_model(seed=1, **SERVED).state_dict()
    async with engine_of(vllm) as engine:
        before = await engine.generate([1, 2, 3], GREEDY)
        running = asyncio.create_task(engine.generate([4, 5], Sampling(max_new_tokens=300, seed=1)))
        while engine.stats()["generated_tokens"] < 30:
            await asyncio.sleep(0.001)
        with monkeypatch.context() as patch:
            spoil(engine, patch, fault)
            with pytest.raises(ValueError, match="the old weights stay"):
                await engine.update_weights(new, 1)
        assert engine.version == 0
        after = await engine.generate([1, 2, 3], GREEDY)
        assert after.token_ids.tolist() == before.token_ids.tolist()
        np.testing.assert_allclose(after.logprobs, before.logprobs, atol=1e-5)
        made = await running
        assert len(made.token_ids) == 300
        assert set(made.weight_version) == {0}
        await engine.update_weights(new, 1)
        changed = await engine.generate([1, 2, 3], GREEDY)
        assert set(changed.weight_version) == {1}
        assert changed.token_ids.tolist() != before.token_ids.tolist()


@pytest.mark.engines
@pytest.mark.xdist_group("vllm")
async def test_adapters_alone_give_what_merged_weights_give(vllm: VLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    state = vllm.model.state_dict()
    async with engine_of(vllm) as engine:
        await engine.update_weights(merged(state, seed=2), 1)
        wanted = await engine.generate([1, 2, 3], GREEDY)
        await engine.update_weights(adapted(state, seed=1), 2)
        other = await engine.generate([1, 2, 3], GREEDY)
        assert other.logprobs.tolist() != wanted.logprobs.tolist()
        with monkeypatch.context() as patch:
            spoil(engine, patch, "damaged")
            with pytest.raises(ValueError, match="the adapters were damaged on the way.*the old weights stay"):
                await engine.update_weights(adapted(state, seed=2), 3)
        again = await engine.generate([1, 2, 3], GREEDY)  # gone back to base and adapters
        assert again.logprobs.tolist() == other.logprobs.tolist()
        await engine.update_weights(adapted(state, seed=2), 3)
        made = await engine.generate([1, 2, 3], GREEDY)
        assert set(made.weight_version) == {3}
        assert made.token_ids.tolist() == wanted.token_ids.tolist()
        assert made.logprobs.tolist() == wanted.logprobs.tolist()


@pytest.mark.engines
@pytest.mark.xdist_group("vllm")
async def test_sleeping_holds_requests_until_it_wakes(vllm: VLLM) -> None:
    async with engine_of(vllm) as engine:
        wanted = await engine.generate([1, 2, 3], GREEDY)
        running = asyncio.create_task(engine.generate([7], Sampling(max_new_tokens=300, seed=1)))
        while engine.stats()["generated_tokens"] < 30:
            await asyncio.sleep(0.001)
        await engine.sleep(level=0)
        await engine.sleep(level=0)
        with pytest.raises(EngineError, match="wake it"):
            await engine.update_weights(vllm.model.state_dict(), 1)
        waiting = asyncio.create_task(engine.generate([1, 2, 3], GREEDY))
        await asyncio.wait({running, waiting}, timeout=0.2)
        assert not running.done()
        assert not waiting.done()
        await engine.wake()
        await engine.wake()
        assert (await waiting).token_ids.tolist() == wanted.token_ids.tolist()
        assert len((await running).token_ids) == 300


@pytest.mark.engines
@pytest.mark.xdist_group("vllm")
@pytest.mark.last
@pytest.mark.timeout(900)
async def test_an_engine_that_cannot_go_back_says_that_it_is_dead(vllm: VLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    new = lively_model(seed=1, **SERVED).state_dict()
    async with engine_of(vllm) as engine:

        async def ask() -> None:  # again and again: the fault must find a request under way, however fast the server is
            while True:
                await engine.generate([4, 5], Sampling(max_new_tokens=700, ignore_stop=True))

        running = asyncio.create_task(ask())
        while engine.stats()["generated_tokens"] < 10:
            await asyncio.sleep(0.001)
        for file in engine._publisher._folder.iterdir():  # the weights that it has now
            file.unlink()
        spoil(engine, monkeypatch, "one stays old")
        with pytest.raises(EngineDeadError, match="from before failed too"):
            await engine.update_weights(new, 1)
        with pytest.raises(EngineDeadError, match="from before failed too"):
            await running
        with pytest.raises(EngineDeadError):
            await engine.generate([1], GREEDY)
        await asyncio.to_thread(engine.server.obituary)
        assert not engine.server.running
