"""Everything around the collector fails, one thing at a time: nothing is lost, nothing comes twice, nothing hangs."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from collector_helpers import Characters, collect, collector_of, engine_of, says, slow_env, tokens, wordy
from fake_service import FakeService, garbage
from rollout_fakes import AsyncEnv
from simulated_time import simulated
from test_multiturn import Questions

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from textenvs import Task, TextEnv, Turn
from textenvs.chat import close_clients
from textenvs.messages import Message, user
from textenvs.users.base import take_turn
from textenvs.users.llm import LLMUser
from trainers import ppo
from trainers.chat_template import RendererError
from trainers.engines.base import EngineDeadError, EngineError
from trainers.models.tiny import build_tokenizer
from trainers.report.episodes import EpisodeFiles, Pieces
from trainers.report.loggers import LoggedRun, Reporter
from trainers.rollout.batch import Batch
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec
from trainers.trajectory import Status, Trajectory, read_parquet


def numbers(batches: list[Batch]) -> list[int]:
    return [int(group[0].group_id[1:]) for batch in batches for group in batch.groups]


# ---------------------------------------------------------------- the engine


@pytest.mark.parametrize("seconds", [0.5, 7.0, 23.0])
def test_killed_engine_ends_run_without_loss(seconds: float) -> None:
    async def run() -> tuple[list[Batch], str, float]:
        """Until the engine is killed: the batches, the last checkpoint's frontier, and when it was noticed."""
        engine, batches, saved = engine_of(wordy), [], ""
        asyncio.get_running_loop().call_later(seconds, engine.die)

        async def train(collector: Collector) -> None:
            nonlocal saved
            for version in itertools.count(1):
                saved = json.dumps(collector.frontier())
                batch = await collector.next_batch()
                await collector.update_weights(None, version)
                batches.append(batch)

        async with Backend(slow_env()) as backend, collector_of(engine, backend, staleness=1) as collector:
            with pytest.raises(EngineDeadError, match="died"):
                await train(collector)
            noticed = asyncio.get_running_loop().time()
        assert len(asyncio.all_tasks()) == 1
        return batches, saved, noticed

    async def go_on(saved: str, version: int) -> list[Batch]:
        engine, batches = engine_of(wordy, version=version), []
        async with Backend(slow_env()) as backend, collector_of(engine, backend, staleness=1) as collector:
            collector.restore(json.loads(saved))
            for _ in range(2):
                batches.append(await collector.next_batch())
                await collector.update_weights(None, batches[-1].version + 1)
        return batches

    before, saved, noticed = run_simulated(run())
    assert noticed < seconds + 31, "an episode may be with its user for a while before it asks the engine again"
    after = run_simulated(go_on(saved, len(before)))
    assert numbers(before + after) == list(range(3 * (len(before) + 2)))


def test_paused_engine_changes_no_result() -> None:
    def pausing(call: Call, version: int) -> Reply:
        reply, now = wordy(call, version), asyncio.get_running_loop().time()
        late = 65.0 - now if 5.0 <= now < 65.0 else 0.0
        return Reply(reply.token_ids, latency=reply.latency + late, per_token=reply.per_token)

    smooth = run_simulated(collect(engine_of(wordy), slow_env(), 3, generation_timeout_s=100))
    paused = run_simulated(collect(engine_of(pausing), slow_env(), 3, generation_timeout_s=100))
    for one, other in zip(smooth, paused, strict=True):
        assert all(x == y for x, y in zip(one.trajectories, other.trajectories, strict=True))
    assert sum(b.stats["wait_s"] for b in paused) > sum(b.stats["wait_s"] for b in smooth) + 30


class Fragile(ScriptedEngine):
    """Its first update fails: before anything has changed, or half-way."""

    half_way = False
    failures = 1

    async def update_weights(self, weights: Any, version: int, mode: Any = "keep") -> None:
        if self.failures:
            self.failures -= 1
            if self.half_way:
                self._version = version
            raise ValueError("the shapes do not fit")
        await super().update_weights(weights, version, mode)


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
@simulated
async def test_update_that_is_refused_may_be_tried_again(mode: Any) -> None:
    engine, batches = Fragile(lambda call: wordy(call, engine.version), vocab_size=128), []
    async with Backend(slow_env()) as backend, collector_of(engine, backend, staleness=1) as collector:
        for version in (1, 2, 3):
            batches.append(await collector.next_batch())
            if version == 1:
                with pytest.raises(ValueError, match="the shapes do not fit"):
                    await collector.update_weights(None, version, mode)
                await asyncio.sleep(3.0)  # episodes continue
            await collector.update_weights(None, version, mode)
    assert numbers(batches) == list(range(9))
    assert [b.version for b in batches] == [0, 1, 2]


@simulated
async def test_update_that_fails_half_way_stops_run() -> None:
    engine = Fragile(lambda call: wordy(call, 0), vocab_size=128)
    engine.half_way = True
    async with Backend(slow_env()) as backend, collector_of(engine, backend, staleness=1) as collector:
        await collector.next_batch()
        with pytest.raises(EngineError, match="failed half-way.*unknown; start again from a checkpoint"):
            await collector.update_weights(None, 1)
        with pytest.raises(EngineError, match="half-way"):
            await collector.next_batch()


# ---------------------------------------------------------------- environments and their users


@pytest.mark.parametrize("method", ["render", "bridge"])
async def test_conversation_that_template_rejects_costs_its_episode(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Trajectory] = []
    calls, show = itertools.count(), getattr(Characters, method)

    def reject_first(*args: Any, **kwargs: Any) -> list[int]:
        if next(calls) == 0:
            raise RendererError("roles must alternate")
        ids: list[int] = show(*args, **kwargs)
        return ids

    monkeypatch.setattr(Characters, method, reject_first)
    engine = engine_of(says("1 on"))
    (batch,) = await collect(engine, EnvSpec(AsyncEnv), n=1, groups_per_batch=2, on_trajectory=ended.append)
    (failed,) = [t for t in ended if t.status is not Status.COMPLETED]
    assert (failed.status, failed.error) == (Status.ERROR_ENV, "roles must alternate")
    assert batch.stats["cause_error_env_not_shown"] == 1
    assert [len(group) for group in batch.groups] == [1, 1]


class Helped(TextEnv[Any]):
    """Its user is a model behind a service."""

    def __init__(self, base_url: str) -> None:
        super().__init__(Questions())
        self.user = LLMUser({"model": "tiny", "base_url": base_url, "max_retries": 1})

    def opening(self, task: Task) -> list[Message]:
        return list(task.prompt)

    async def respond(self, reply: Message) -> Turn:
        if reply["content"].endswith("end"):
            return Turn(reward=1.0, terminated=True, stop="solved")
        turn = await take_turn(self.user, self.state.messages, "You want to know what 3 + 4 is.", self.np_random)
        return Turn([user(turn.text)], reward=0.0)


async def test_user_whose_service_returns_garbage_costs_its_episode() -> None:
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    ended: list[Trajectory] = []
    calls = itertools.count()
    engine = engine_of(lambda call, version: Reply(tokens("1 on" if next(calls) == 0 else "1 end")))
    with FakeService(garbage()) as service:
        spec = EnvSpec(Helped, {"base_url": service.url})
        options = {"n": 1, "groups_per_batch": 2, "on_trajectory": ended.append}
        (batch,) = await collect(engine, spec, **options)
        await close_clients()
    (failed,) = [t for t in ended if t.status is not Status.COMPLETED]
    assert (failed.status, failed.stop) == (Status.ERROR_ENV, "user_failed")
    assert batch.stats["cause_error_env_user_failed"] == 1
    assert [len(group) for group in batch.groups] == [1, 1]
    assert all(t.turn_rewards.tolist() == [1.0] for t in batch.trajectories), "no conversation with a 0 for the failure"


# ---------------------------------------------------------------- the disk


def full_disk(path: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_full_disk_dump_warns_without_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import pyarrow.parquet

    (batch,) = run_simulated(collect(engine_of(says("1 end"))))
    pieces = Pieces(build_tokenizer(["1 end"], vocab_size=300))
    files = EpisodeFiles(tmp_path, pieces, 0, {"rollout_data_dir": str(tmp_path / "dumps")})
    reporter = Reporter(LoggedRun(tmp_path), (), episodes=files)

    def half(writer: Any, table: Any, size: int) -> None:
        raise full_disk(writer.where)

    reporter.iteration(1, {}, batch.trajectories)
    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.parquet.ParquetWriter, "write_table", half)
        reporter.iteration(2, {}, batch.trajectories)
    reporter.iteration(3, {}, batch.trajectories)
    reporter.close()
    assert sorted(path.name for path in (tmp_path / "dumps").iterdir()) == ["000001.parquet", "000003.parquet"]
    assert read_parquet(tmp_path / "dumps" / "000003.parquet") == batch.trajectories
    assert "the train episodes of iteration 2 are not written" in caplog.text
    assert "No space left" in caplog.text


def test_full_disk_checkpoint_ends_run_with_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_all(config: Any, interrupts: Any) -> int:
        raise full_disk(tmp_path / "checkpoints")

    monkeypatch.setattr(ppo, "run_all", run_all)
    for has_checkpoint, todo in (
        (False, "it has no checkpoint yet"),
        (True, "resumes from the last intact checkpoint"),
    ):
        if has_checkpoint:
            (tmp_path / "checkpoints" / "iteration_000002").mkdir(parents=True)
        assert ppo.main([f"trainer.default_local_dir={tmp_path}"]) == 1
        output = capsys.readouterr().err
        assert "No space left on device" in output
        assert todo in output
