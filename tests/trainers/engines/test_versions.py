"""Choice of a server's protocol by its version, and the engines with servers of old and new versions."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from engine_kits import lively_model
from hypothesis import given
from hypothesis import strategies as st
from served_engines import LONG, serving, started

from scripts.engine_versions import REQUIREMENTS, pins, sglang_install, vllm_install
from trainers.engines.base import EngineDeadError, EngineError, Sampling
from trainers.engines.sglang.versions import RELEASES as SGLANG
from trainers.engines.versions import Releases, UnsupportedVersionError
from trainers.engines.vllm.versions import RELEASES as VLLM

SUFFIXES = [
    "",
    "rc1",
    "a2",
    "b1",
    ".post2",
    ".dev3",
    "rc1.dev4",
    "+cpu",
    "+cu132",
    ".post1+cpu",
    ".dev7+g1a2b3c.d20261101",
]
suffixes = st.sampled_from(SUFFIXES)
numbers = st.integers(0, 60)


@given(
    firsts=st.lists(numbers, min_size=1, max_size=5, unique=True),
    newest=numbers,
    release=numbers,
    patch=st.integers(0, 5),
    suffix=suffixes,
)
def test_protocol_is_that_of_the_release(firsts: list[int], newest: int, release: int, patch: int, suffix: str) -> None:
    newest = max([newest, *firsts])
    releases = Releases("X", "x", {f"1.{first}": first for first in firsts}, newest=f"1.{newest}")
    version = f"1.{release}.{patch}{suffix}"
    if release < min(firsts):
        with pytest.raises(UnsupportedVersionError, match=rf"oldest supported version is 1\.{min(firsts)};"):
            releases.choose(version)
        assert not releases._warned
    else:
        assert releases.choose(version) == max(first for first in firsts if first <= release)
        assert releases._warned == ({version} if release > newest else set())


@given(suffix=suffixes, patch=st.integers(0, 60))
def test_sglang_is_known_by_its_patch(suffix: str, patch: int) -> None:
    if patch < 19:
        with pytest.raises(UnsupportedVersionError, match=r"pip install 'sglang>=0\.5\.19'"):
            SGLANG.choose(f"0.5.{patch}{suffix}")
    else:
        assert SGLANG.choose(f"0.5.{patch}{suffix}").has_sessions == (patch >= 21)


@pytest.mark.parametrize("version", ["dev", "0.1.dev1+g7c6b2a9", "0.0.0.dev0", ""])
def test_unnumbered_build_counts_as_newest(version: str, caplog: pytest.LogCaptureFixture) -> None:
    assert VLLM.choose(version) == VLLM.choose(VLLM.newest)
    assert "no version number" in caplog.text


def test_newer_version_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trainers"):
        protocols = {VLLM.choose("7.1.0") for _ in range(3)}
    assert protocols == {VLLM.choose("0.33.0")}
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("vLLM 7.1.0: it is newer than 0.33, the newest known version")
    assert "if it fails" in message


@pytest.mark.parametrize(("name", "version"), [("vllm", "0.25.1"), ("sglang", "0.5.18.post1")])
async def test_older_server_is_refused(folder: Path, name: str, version: str) -> None:
    async with serving(name, folder, faults={"version": version}) as (_, engine):
        with pytest.raises(EngineDeadError, match=rf"{version} is too old: .*pip install '{name}>="):
            await engine.ready()


@pytest.mark.parametrize(
    ("name", "version"), [("vllm", "0.26.0"), ("vllm", "9.0"), ("sglang", "0.5.19"), ("sglang", "9.0")]
)
async def test_tokens_of_any_version_name_their_weights(folder: Path, name: str, version: str) -> None:
    new: Any = lively_model(seed=1).state_dict()
    async with serving(name, folder, faults={"version": version}) as (server, engine):
        running = asyncio.create_task(engine.generate([1], LONG))
        await started(server, tokens=3)
        await engine.update_weights(new, 4)
        versions = (await running).weight_version.tolist()
        assert versions == sorted(versions)
        assert {*versions} == {0, 4}
        await engine.update_weights(new, 9)
        assert {*(await engine.generate([1], Sampling(max_new_tokens=3))).weight_version} == {9}


async def test_weights_of_another_client_are_noticed(folder: Path) -> None:
    """Before vLLM 0.32 their number is all that is known of them."""
    async with serving("vllm", folder, faults={"version": "0.31.0"}) as (server, engine):
        await engine.ready()
        server.label = "other"
        await server._collective_rpc({"method": "count_update"})
        with pytest.raises(EngineError, match="another client"):
            await engine.generate([1], Sampling(max_new_tokens=1))


@pytest.mark.parametrize("mode", ["abort", "keep"])
async def test_request_refused_while_paused_is_aborted(folder: Path, mode: Any) -> None:
    """vLLM 0.33 refuses a request that comes after an update in mode ``abort`` has begun."""
    new: Any = lively_model(seed=1).state_dict()
    async with serving("vllm", folder, faults={"version": "0.33.0"}) as (server, engine):
        await engine.ready()
        server.late = (503, {"error": {"message": "Generation is paused", "code": 503}})
        running = asyncio.create_task(engine.generate([1], LONG))
        while server.generate not in server.paths()[-1:]:
            await asyncio.sleep(0.001)
        await engine.update_weights(new, 1, mode=mode)
        if mode == "abort":
            generation = await running
            assert (len(generation.token_ids), generation.finish_reason) == (0, "abort")
        else:
            with pytest.raises(EngineError, match="answered 503: Generation is paused"):
                await running


def test_environment_of_a_release_has_its_pins() -> None:
    """A wheel's exact versions replace those of the locked release; a marker that does not hold is ignored."""
    install = sglang_install(
        "0.5.99",
        ["torch==2.99.1", "transformers==5.12.1", "xgrammar==0.2.1", "numpy", 'openai==9.9; sys_platform == "win32"'],
    )
    lock = pins(REQUIREMENTS / "sglang-cpu.in")
    assert {"transformers==5.12.1", f"openai=={lock['openai']}", f"numpy=={lock['numpy']}"} <= {*install.requirements}
    assert {"sglang==0.5.99", "xgrammar==0.2.1"} <= {*install.wheels}
    assert install.torch == f"torch=={lock['torch']}"
    assert vllm_install("0.26.0", ["torch==2.11.0+cpu", "torchvision"]).torch == "torch==2.11.0"
