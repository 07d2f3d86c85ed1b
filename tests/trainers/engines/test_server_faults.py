"""Every fault of a server, on fakes of all of them: requests, updates of weights, cancellation, death.

The conformance suite checks replies and the compatibility with real servers.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_kits import lively_model
from served_engines import FAKES, LONG, serving, started
from skip_time import skip

from trainers.engines.base import EngineDeadError, EngineError, RequestError, Sampling

pytestmark = pytest.mark.parametrize("name", FAKES)

SHORT = Sampling(max_new_tokens=4, ignore_stop=True)
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return dict(lively_model(seed=1).state_dict())


def has(server: Any, weights: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(server.weights[name], value) for name, value in weights.items() if name != "lm_head.weight")


# Requests


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((400, {"error": {"message": "too long", "code": 400}}), "too long"),
        ((400, {"error": "unknown field"}), "unknown field"),
        ((400, "plain words"), "plain words"),
        ((400, ""), "nothing"),
        ((400, {"strange": 1}), "strange"),
    ],
)
async def test_errors_of_every_shape_are_quoted(name: str, folder: Path, answer: Any, text: str) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        server.refuse[server.generate] = [answer]
        with pytest.raises(RequestError, match=text):
            await engine.generate([1], SHORT)
        assert len((await engine.generate([1], SHORT)).token_ids) == 4


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("garbage", ["<html>gateway</html>", [], [{}, {}], {}])
async def test_invalid_answers_do_not_stop_the_engine(name: str, folder: Path, status: int, garbage: Any) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        server.refuse[server.generate] = [(status, garbage)]
        with pytest.raises(EngineError, match=f"{engine.kind}(.s| server)") as caught:
            await engine.generate([1], SHORT)
        assert not isinstance(caught.value, EngineDeadError)
        assert len((await engine.generate([1], SHORT)).token_ids) == 4


async def test_broken_connection_costs_one_retry(name: str, folder: Path) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        server.refuse[server.generate] = [None]
        server.log.clear()
        assert len((await engine.generate([1], SHORT)).token_ids) == 4
        assert server.paths().count(server.generate) == 2


async def test_weights_of_another_client_are_an_error(name: str, folder: Path) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        server.label = "a stranger's"
        with pytest.raises(EngineError, match="a stranger's"):
            await engine.generate([1], SHORT)


@pytest.mark.parametrize("moment", [0.0, 0.005, 0.03])
async def test_only_the_cancelled_request_is_aborted(name: str, folder: Path, moment: float) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        siblings = [asyncio.create_task(engine.generate([i], LONG)) for i in range(3)]
        task = asyncio.create_task(engine.generate([9], LONG))
        await asyncio.sleep(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        made = await asyncio.gather(*siblings)
        assert [len(generation.token_ids) for generation in made] == [200] * 3
        assert engine.stats()["running"] == 0
        assert not server.live


async def test_cancel_and_close_end_server_requests(name: str, folder: Path) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        server.hung = True
        tasks = [asyncio.create_task(engine.generate([i], LONG)) for i in range(6)]
        await started(server, 6, tokens=0)
        for task in tasks[:3]:
            task.cancel()
        while len(server.live) > 3:
            await asyncio.sleep(0.001)
        await engine.close()
        while server.live:
            await asyncio.sleep(0.001)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 3 + [EngineDeadError] * 3
        assert all("closed" in str(result) for result in results[3:])


# Updates


@pytest.mark.parametrize("transport", ["http", "disk"])
async def test_weights_arrive_complete(
    name: str, folder: Path, weights: dict[str, torch.Tensor], transport: str, tmp_path: Path
) -> None:
    options: Any = {"transport": transport, "update_folder": str(tmp_path), "bucket_bytes": 2**14}
    async with serving(name, folder, **options) as (server, engine):
        made = await engine.generate([1, 2, 3], SHORT)
        assert made.token_ids.tolist() == [3, 4, 5, 6]
        np.testing.assert_allclose(made.logprobs, [-0.53, -0.54, -0.55, -0.56])
        assert (made.finish_reason, set(made.weight_version)) == ("length", {0})
        for version in (1, 5):
            await engine.update_weights(weights, version)
        assert has(server, weights)
        assert engine.version == 5
        assert set((await engine.generate([1], SHORT)).weight_version) == {5}
        assert transport == "disk" or server.paths().count(server.steps["take"]) > 4
        assert isinstance(server.label, str)
    assert list(tmp_path.iterdir()) == []


async def test_running_server_is_given_the_initial_weights(
    name: str, folder: Path, weights: dict[str, torch.Tensor]
) -> None:
    async with serving(name, folder, weights=weights) as (server, engine):
        made = await engine.generate([1], SHORT)
        assert has(server, weights)
        assert set(made.weight_version) == {0}


async def test_weights_change_between_pause_and_resume(
    name: str, folder: Path, weights: dict[str, torch.Tensor]
) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        task = asyncio.create_task(engine.generate([1], LONG))
        await started(server, tokens=10)
        server.hung = True  # the request is under way when the update comes
        server.log.clear()
        await engine.update_weights(weights, 5)
        server.hung = False
        taken = [path for path in server.paths() if path in server.steps.values()]
        assert [path for path, _ in groupby(taken)] == list(server.steps.values())
        versions = (await task).weight_version
        assert set(versions) == {0, 5}
        assert (np.diff(versions) >= 0).all()


@pytest.mark.parametrize("step", ["pause", "open"])
async def test_update_refused_early_leaves_the_old_weights(
    name: str, folder: Path, weights: dict[str, torch.Tensor], step: str
) -> None:
    async with serving(name, folder) as (server, engine):
        # A session that does not open may be tried again once, after closing what may have been left open.
        server.refuse[server.steps[step]] = ["injected"] * 2
        with pytest.raises(EngineError, match="injected") as caught:
            await engine.update_weights(weights, 1)
        assert not isinstance(caught.value, EngineDeadError)
        assert (engine.version, server.weights) == (0, {})
        assert set((await engine.generate([1], SHORT)).weight_version) == {0}
        server.refuse.clear()
        await engine.update_weights(weights, 1)
        assert set((await engine.generate([1], SHORT)).weight_version) == {1}


@pytest.mark.parametrize("step", ["take", "close", "last"])
async def test_partially_failed_update_is_repeated(
    name: str, folder: Path, weights: dict[str, torch.Tensor], step: str
) -> None:
    async with serving(name, folder, bucket_bytes=2**14) as (server, engine):
        running = asyncio.create_task(engine.generate([1], LONG))
        await started(server)
        step = {"vllm": "compare", "sglang": "flush"}[name] if step == "last" else step
        server.refuse[server.steps[step]] = ["injected"]
        await engine.update_weights(weights, 1)
        assert not server.refuse[server.steps[step]]
        assert has(server, weights)
        assert len((await running).token_ids) == 200
        assert not server.paused


@pytest.mark.parametrize("fault", ["refuses", "loses"])
async def test_mixed_weights_are_never_sampled(
    name: str, folder: Path, weights: dict[str, torch.Tensor], fault: str
) -> None:
    """The engine ends if the server refuses the rest, or silently drops a tensor."""
    async with serving(name, folder, bucket_bytes=2**14) as (server, engine):
        await engine.update_weights(lively_model().state_dict(), 1)
        server.hung = True  # the request is under way whenever the fault comes
        running = asyncio.create_task(engine.generate([1], LONG))
        await started(server, tokens=0)
        if fault == "refuses":
            server.refuse[server.steps["take"]] = ["out of memory"] * 99
        else:
            server.lose = (DOWN,)
        word = "out of memory" if fault == "refuses" else r"down_proj\.weight"
        for waiting in (engine.update_weights(weights, 2), running, engine.generate([1], LONG)):
            with pytest.raises(EngineDeadError, match=f"mixture: .*{word}"):
                await waiting
        assert server.paused


async def test_open_session_of_a_crashed_client_is_closed(
    name: str, folder: Path, weights: dict[str, torch.Tensor]
) -> None:
    async with serving(name, folder) as (server, engine):
        server.in_session = True
        await engine.update_weights(weights, 1)
        assert not server.in_session


async def test_cancelled_update_in_progress_is_completed(
    name: str, folder: Path, weights: dict[str, torch.Tensor]
) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        server.log.clear()
        pause, resume = server.steps["pause"], server.steps["resume"]
        task = asyncio.create_task(engine.update_weights(weights, 1))
        while pause not in server.paths():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = asyncio.create_task(engine.generate([1], SHORT))
        await engine.update_weights(weights, 3)  # waits for the cancelled update
        assert set((await after).weight_version) == {3}
        assert [path for path in server.paths() if path in (pause, resume)] == [pause, resume] * 2
        waits = asyncio.create_task(engine.generate([1], LONG))
        await started(server)
        withdrawn = asyncio.create_task(engine.update_weights(weights, 4, "wait"))
        await asyncio.sleep(0.05)
        withdrawn.cancel()
        await asyncio.gather(withdrawn, return_exceptions=True)
        await waits
        assert engine.version == 3


# The server's end


async def test_unhealthy_server_is_not_awaited_forever(name: str, folder: Path) -> None:
    faults = {"refuse": {FAKES[name].health: [(503, "")] * 999}}
    async with serving(name, folder, faults=faults, start_timeout_s=0.3) as (_, engine):
        with pytest.raises(EngineDeadError, match=r"not ready after 0\.3 s"):
            await engine.ready()


async def test_lost_server_fails_requests_at_once(name: str, folder: Path, weights: dict[str, torch.Tensor]) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        server.hung = True
        tasks = [asyncio.create_task(engine.generate([i], LONG)) for i in range(4)]
        await started(server, 4, tokens=0)
        update = asyncio.create_task(engine.update_weights(weights, 1, "wait"))
        await asyncio.sleep(0)
        await server.stop()
        results = await asyncio.gather(*tasks, update, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) and "is gone" in str(result) for result in results)


@pytest.mark.parametrize("fault", ["does not answer", "is sick"])
async def test_dead_or_hanging_server_is_noticed(name: str, folder: Path, fault: str) -> None:
    async with serving(name, folder) as (server, engine):
        await engine.ready()
        server.hung = True
        tasks = [asyncio.create_task(engine.generate([i], LONG)) for i in range(4)]
        await started(server, 4, tokens=0)
        if fault == "is sick":
            server.refuse[server.health] = [(503, "")] * 999
        server.silent = fault == "does not answer"
        if server.silent:
            engine._health_timeout_s = 0.5  # only now: a busy machine may take its time over what is answered
            skip(asyncio.get_running_loop(), 30.0)  # past a check that is under way
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, EngineDeadError)
            assert "is gone" in str(result)
            assert ("no answer within" if server.silent else "answers 503") in str(result)
        server.silent = False


@pytest.mark.parametrize("device", ["cpu", "cuda"])
async def test_weights_without_checksum_are_named_once(name: str, folder: Path, device: str, caplog: Any) -> None:
    """Experts that a server fuses, say; of a single worker of vLLM these are compared by their total."""
    workers = {"ranks": 2} if name == "vllm" else {}
    async with serving(name, folder, faults={"lose": (DOWN,), **workers}) as (server, engine):
        await engine.ready()
        engine._updater.device = device
        for version in (1, 2):
            await engine.update_weights(lively_model(seed=version).state_dict(), version)
        assert [record.message for record in caplog.records if DOWN in record.message] == [
            f"the {engine.kind} server has no checksum of {DOWN}: these weights are sent, and not compared"
        ]
        gone = DOWN.replace("down_proj", "gate_up_proj")
        server.lose = tuple(DOWN.replace("down_proj", part) for part in ("down_proj", "gate_proj", "up_proj"))
        for lost in server.lose:
            server.weights.pop(lost, None)
        with pytest.raises(EngineDeadError, match=gone):
            await engine.update_weights(lively_model(seed=3).state_dict(), 3)
