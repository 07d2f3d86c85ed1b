"""A learner on Ray actors: the numbers of one in this process, and the handling of failing ranks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster_helpers as helpers
import numpy as np
import pytest
import torch
from ray_here import local_ray
from weight_workers import Workers

from trainers.checkpoints import Checkpoints
from trainers.cluster.group import Event, LearnerGroup, RankError, RayRanks
from trainers.cluster.memory import Machine
from trainers.cluster.plan import make_plan
from trainers.cluster.ray.runtime import RayCluster
from trainers.command_line import load_config
from trainers.config.running import ClusterSection, RayInitSection
from trainers.engines.base import EngineError, SourceLostError, SupersededError
from trainers.engines.shared_memory import place_of
from trainers.engines.transport import Wants, collect
from trainers.learner import Learner
from trainers.learner.checksums import DamagedError
from trainers.models.tiny import build_tokenizer

# One process of the tests runs all that uses Ray.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return helpers.measure(Learner(helpers.tiny_model(), **helpers.SETTINGS))


Group = Callable[..., LearnerGroup]


@pytest.fixture(scope="module")
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    local_ray(request.config)
    with contextlib.ExitStack() as stack:

        def start(ranks: int, **options: float) -> LearnerGroup:
            backend = ["cluster.backend=ray", f"cluster.learner_ranks={ranks}", "model.device=cpu"]
            plan = make_plan(load_config(backend)[0], Machine(0))
            cluster = RayCluster(plan, RayInitSection(), timeout=300.0)
            stack.enter_context(cluster)
            return LearnerGroup(RayRanks(cluster), ClusterSection(**options), helpers.tiny_model(), **helpers.SETTINGS)

        yield start


def pid(of: LearnerGroup, rank: int) -> int:
    return int(of.ranks.info[rank][1])


@pytest.fixture(scope="module")
def two(group: Group) -> Iterator[LearnerGroup]:
    made = group(2)
    yield made
    made.close()


def update(learner: Any, loss: Any) -> dict[str, float]:
    batch = helpers.trajectories()
    return learner.update_actor(batch, helpers.numbers(batch), loss)


# These use the same two ranks, in this order: a learner has a history, and the last test ends them.


def test_two_ranks_give_a_single_learners_numbers(two, alone):
    assert two.critic is not None
    assert two.reference is not None
    helpers.assert_same(helpers.measure(two), alone, 3e-6)


def test_error_of_all_ranks_keeps_the_group(two):
    with pytest.raises(KeyError, match="not possible") as caught:
        update(two, helpers.raises_everywhere)
    notes = "\n".join(caught.value.__notes__)
    assert "learner rank" in notes
    assert "in raises_everywhere" in notes
    with pytest.raises(ValueError, match="there is no action token|action token"):
        two.update_actor([], {}, helpers.policy_loss)
    assert np.isfinite(update(two, helpers.policy_loss)["loss"])


def test_a_loss_may_close_over_its_settings(two):
    assert np.isfinite(update(two, helpers.scaled(2.0))["loss"])


def test_checkpoints_go_from_two_ranks_to_one_process(two, tmp_path):
    two.check_folder(tmp_path)
    two.save(tmp_path / "learner", {"iteration": 3})
    weights = two.weights()
    tokenizer = build_tokenizer(["What is 3 + 4?"], vocab_size=300)
    two.export_hf(tmp_path / "model", tokenizer)
    assert (tmp_path / "model" / "config.json").is_file()
    assert not list(tmp_path.glob(".*"))
    one = Learner(helpers.tiny_model(), **helpers.SETTINGS)
    assert one.load(tmp_path / "learner") == {"iteration": 3}
    assert two.load(tmp_path / "learner") == {"iteration": 3}
    for name, value in one.weights().items():
        assert torch.equal(value, weights[name]), name


def test_snapshot_is_unchanged_while_the_ranks_learn(two):
    before = two.weights()
    snapshot = two.publication("weights", torch.bfloat16, snapshot=True)
    for _ in range(2):
        update(two, helpers.policy_loss)
        got = asyncio.run(collect(snapshot, Wants(bucket_bytes=2000)))
        assert got.keys() == before.keys()
        assert all(torch.equal(value, before[name].bfloat16()) for name, value in got.items())
    live = two.publication("weights")
    with pytest.raises(SupersededError, match="other weights"):
        asyncio.run(collect(snapshot, Wants()))
    update(two, helpers.policy_loss)
    with pytest.raises(SupersededError, match="trained on"):
        asyncio.run(collect(live, Wants()))
    assert any(not torch.equal(value, before[name]) for name, value in two.weights().items()), "the group continues"


def test_concurrent_receivers_share_a_round_but_not_failures(two):
    rounds = []
    send = two.send

    def counted(*args, **kwargs):
        rounds.append(args)
        return send(*args, **kwargs)

    async def broadcasts(*receivers):
        source = two.publication("weights", snapshot=True)
        await asyncio.gather(*(worker.checksums() for worker in receivers))  # all are there

        async def one(receiver):
            with source.attending():
                await asyncio.sleep(0)  # as an engine, which pauses first
                return await source.broadcast(receiver)

        got = await asyncio.gather(*map(one, receivers), return_exceptions=True)
        return got, [await worker.checksums() for worker in receivers]

    two.send = counted
    shared = {"backend": "ipc", "places": (place_of("cpu"),)}
    receivers = [Workers(), Workers(refuse=2, **shared), Workers(dtype=torch.bfloat16, **shared)]
    try:
        (one, failed, half), received = asyncio.run(broadcasts(*receivers))
        assert one == received[0]
        assert half == received[2] != one
        assert isinstance(failed, EngineError)
        assert "out of memory" in str(failed)
        assert len(rounds) == 1
    finally:
        del two.send
        for worker in receivers:
            worker.close()


def test_weights_are_collected_beside_a_snapshot(two):
    """Twice, in the form of the snapshot, while the engine's worker has not read its bucket."""
    receiver = Workers(backend="ipc", places=(place_of("cpu"),), bucket_bytes=10**9)

    def learn_and_collect():
        update(two, helpers.policy_loss)
        return [two.weights() for _ in range(2)]

    async def broadcast():
        read = receiver.read

        async def read_late(references):
            collected.extend(await asyncio.to_thread(learn_and_collect))
            await read(references)

        receiver.read = read_late
        return await two.publication("weights", snapshot=True).broadcast(receiver), await receiver.checksums()

    collected = []
    try:
        sent, received = asyncio.run(broadcast())
        assert sent == received
        expected = two.weights()
        for weights in collected:
            assert all(torch.equal(value, expected[name]) for name, value in weights.items())
    finally:
        receiver.close()


def test_writer_reports_an_unusable_folder(two, tmp_path):
    (tmp_path / "x").write_text("in the way")
    write = two.prepare_save()
    with pytest.raises((NotADirectoryError, RuntimeError), match="is a file"):  # of rank 0, or that rank 0 has that
        write(tmp_path / "x")
    two.prepare_save()(tmp_path / "y")  # the group continues
    assert (tmp_path / "y" / "learner.json").is_file()


def test_damaged_file_of_another_rank_prevents_loading(two, tmp_path):
    two.save(tmp_path / "x")
    file = tmp_path / "x" / "tensors" / "rank_00001_000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x40
    file.write_bytes(content)
    before = two.weights()
    with pytest.raises((DamagedError, RuntimeError), match=r"rank_00001_000\.safetensors is damaged"):
        two.load(tmp_path / "x")
    assert all(torch.equal(value, before[name]) for name, value in two.weights().items()), "the group continues"


class Saving:
    """A saver like a run's: state and export, in a thread of the driver."""

    def __init__(self, learner: LearnerGroup, folder: Path) -> None:
        self.learner, self.checkpoints = learner, Checkpoints(folder, keep=1)
        self.tokenizer = build_tokenizer(["What is 3 + 4?"], vocab_size=300)

    def begin(self, iteration: int) -> None:
        state = self.learner.prepare_save({"iteration": iteration})
        model = self.learner.prepare_export(self.tokenizer)
        self.checkpoints.save_in_background(
            iteration, {}, lambda folder: state(folder / "learner"), lambda folder: model(folder / "model")
        )

    def newest(self) -> tuple[int, dict[str, Any]]:
        checkpoint = self.checkpoints.newest()
        assert checkpoint is not None
        one = Learner(helpers.tiny_model(), **helpers.SETTINGS)
        assert one.load(checkpoint.path / "learner") == {"iteration": checkpoint.iteration}
        return checkpoint.iteration, one.weights()


def test_ranks_write_copies_while_they_learn(two, tmp_path):
    from transformers import AutoModelForCausalLM

    saving = Saving(two, tmp_path)
    update(two, helpers.saves_wait_for_a_file)
    copied = two.weights()
    saving.begin(1)
    for _ in range(2):  # while the ranks' threads wait for the file
        update(two, helpers.policy_loss)
    assert saving.checkpoints.newest() is None
    (tmp_path / "go").touch()
    saving.checkpoints.wait()
    iteration, weights = saving.newest()
    assert iteration == 1
    for name, value in weights.items():
        assert torch.equal(value, copied[name]), name
    assert any(not torch.equal(value, copied[name]) for name, value in two.weights().items())
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "iteration_000001" / "model").state_dict()
    for name, value in exported.items():
        assert torch.equal(value, copied[name]), name


def test_killed_rank_is_named_and_checkpoint_survives(two, tmp_path):
    saving = Saving(two, tmp_path)
    (tmp_path / "go").touch()
    saving.begin(1)
    saving.checkpoints.wait()
    (tmp_path / "go").unlink()
    saving.begin(2)
    while not list(tmp_path.glob(".iteration_000002.partial/**/*.safetensors")):
        time.sleep(0.01)
    pids = [pid(two, rank) for rank in range(2)]
    os.kill(pid(two, 1), signal.SIGKILL)
    with pytest.raises(RankError, match=r"learner rank 1 \(Ray actor on .*, process \d+\) died"):
        update(two, helpers.policy_loss)
    with pytest.raises(RankError, match=r"has ended: in (update_actor|is_written), learner rank 1 .* died"):
        two.weights()
    with pytest.raises(RankError, match="died"):
        saving.checkpoints.wait()
    assert saving.newest()[0] == 1
    two.close()
    two.close()
    assert_gone(*pids)


# Each of these has ranks of its own, because it ends them.


def assert_gone(*pids: int) -> None:
    until = time.monotonic() + 100
    while alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, alive
        time.sleep(0.05)


@pytest.mark.slow  # two ranks give the numbers of one learner, too
def test_one_rank_is_bitwise_equal_until_stopped(group, alone):
    made = group(1)
    try:
        helpers.assert_same(helpers.measure(made), alone, 0.0)
        made._silence = 5.0  # set only now: on a busy machine earlier heartbeats may take longer
        with pytest.raises(RankError, match=r"learner rank 0 .* sent no heartbeat for 5 s"):
            update(made, helpers.stops_the_process)
    finally:
        made.close()


def test_hanging_rank_is_named_not_the_waiting(group):
    made = group(2, stall_s=10.0)
    try:
        with pytest.raises(
            RankError, match=r"learner rank 1 .* made no progress for 10 s .*in hangs_on_rank_1"
        ) as caught:
            update(made, helpers.hangs_on_rank_1)
        assert "rank 0" not in str(caught.value)
        assert_gone(pid(made, 0), pid(made, 1))
    finally:
        made.close()


class DyingRanks:
    """Ranks of which all die while they send, and rank 0 is the first that says so."""

    count = 2

    def name(self, rank: int) -> str:
        return f"learner rank {rank}"

    def post(self, number: int, method: str, args: object, kwargs: object) -> None:
        value = {"critic": False, "reference": False, "places": []}
        self.events = [Event(rank, "done", number, value) for rank in range(2)]

    def poll(self, timeout: float) -> list[Event]:
        return self.events

    def aside(self, method: str, *args: object, ranks: object = (0,)) -> list[object]:
        if method == "published":
            raise RankError("learner rank 0 died: it lost its connection")
        return []

    def deaths(self) -> list[str]:
        return ["learner rank 0 died: it lost its connection", "learner rank 1 died: it was killed"]

    def kill(self) -> None: ...

    def close(self) -> None: ...


def test_every_dead_rank_is_named():
    made = LearnerGroup(DyingRanks(), ClusterSection(), None, None)
    with pytest.raises(SourceLostError, match=r"rank 0 died.*; learner rank 1 died: it was killed"):
        asyncio.run(made.send(0, (), snapshot=True))
    with pytest.raises(RankError, match="learner rank 1 died"):
        made.values([])


@pytest.mark.parametrize("snapshot", [pytest.param(False, marks=pytest.mark.slow), True])
def test_rank_dying_while_sending_weights_is_named(group, snapshot):
    made, receiver = group(2, stall_s=60.0), Workers(bucket_bytes=2000)

    async def broadcast():
        await receiver.checksums()
        receive = receiver.receive

        async def kill_then_receive(*args):
            if receiver.buckets == 2:
                os.kill(pid(made, 1), signal.SIGKILL)
            await receive(*args)

        receiver.receive = kill_then_receive
        async with asyncio.timeout(120):
            with pytest.raises(SourceLostError, match=r"could not send its weights: .*learner rank 1 .* died"):
                await made.publication("weights", snapshot=snapshot).broadcast(receiver)
            await receiver.checksums()  # the worker answers

    try:
        asyncio.run(broadcast())
    finally:
        made.close()
        receiver.close()
