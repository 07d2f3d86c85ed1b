"""FSDP2 on one rank and on two started by the environment: the same numbers as plain modules.

What every way to cut the work gives, on more ranks, is in test_ranks.py.
"""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import TRAJECTORIES, assert_same, make_learner, measure, start

from trainers.learner import compiled

pytestmark = pytest.mark.xdist_group("ranks")  # one forkserver for all


@pytest.fixture(scope="module")
def plain():
    return measure(make_learner())


@pytest.fixture
def no_process_group():
    assert not dist.is_initialized()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_sharded_rank_is_plain_modules(plain, no_process_group, checkpointing):
    learner = make_learner(fsdp="always", enable_gradient_checkpointing=checkpointing)
    assert dist.is_initialized()
    assert_same(measure(learner), plain, 1e-6)


def test_single_rank_needs_no_rendezvous(no_process_group, monkeypatch):
    """Build a learner as its only Ray actor does."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    make_learner(fsdp="always")
    assert dist.get_world_size() == 1


@pytest.mark.parametrize("fsdp", ["auto", "always"])
def test_bfloat16_is_near_with_float32_parameters(plain, no_process_group, fsdp):
    learner = make_learner(dtype="bfloat16", fsdp=fsdp)
    assert dist.is_initialized() == (fsdp == "always")
    rounded = measure(learner)
    np.testing.assert_allclose(rounded["logprobs"], plain["logprobs"], atol=0.1)
    assert not np.array_equal(rounded["logprobs"], plain["logprobs"])
    np.testing.assert_array_equal(
        rounded["logprobs"], rounded["reference"]
    )  # the same rounding: no KL before an update
    assert rounded["metrics"]["grad_norm"] == pytest.approx(plain["metrics"]["grad_norm"], rel=0.05)
    for name, value in learner.weights().items():
        assert value.dtype == torch.float32, name
    assert learner.critic.value_head.weight.dtype == torch.float32


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 4])  # with adapters there is more
def test_rounded_copies_compute_what_fsdp_does(no_process_group, rank, tmp_path):
    """Gradients of several micro-batches, what an update makes of them, and what is said after loading."""
    settings = {"dtype": "bfloat16", "lora_rank": rank}
    copies, sharded = measure(learner := make_learner(**settings)), measure(make_learner(fsdp="always", **settings))
    assert_same(copies, sharded, 2e-3)
    learner.save(tmp_path / "saved")
    before = measure(learner)
    learner.load(tmp_path / "saved")
    assert_same(measure(learner), before, 0.0)


# One condition decides for both; test_two_compiled_ranks_are_one compiles.
@pytest.mark.parametrize("again", ["enable_gradient_checkpointing", pytest.param("compile", marks=pytest.mark.slow)])
def test_recomputation_uses_fsdp(no_process_group, again):
    with pytest.raises(ValueError, match="is a part of FSDP2"):
        make_learner(fsdp="never", dtype="bfloat16", **{again: True})
    make_learner(dtype="bfloat16", **{again: True})
    assert dist.is_initialized()


def _measure_few(**keys):
    return measure(make_learner(critic=False, reference=False, shape={"layers": 1}, **keys), TRAJECTORIES[:2])


def _work(rank, folder, port):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    learner = make_learner()
    results = {"first": measure(learner)}
    learner.save(f"{folder}/checkpoint")
    results["next"] = measure(learner)
    learner.load(f"{folder}/checkpoint")
    results["next again"] = measure(learner)
    compiled.BACKEND = "eager"  # traced, without generating code
    results["compiled"] = _measure_few(compile=True)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start(2, _work, str(folder), port)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_two_ranks_are_one(plain, two_ranks):
    first, second = two_ranks
    assert_same(first["first"], plain)
    assert_same(second["first"], first["first"], 0.0)


def test_two_compiled_ranks_are_one(two_ranks):
    plain = _measure_few()
    for results in two_ranks:
        assert_same(results["compiled"], plain)


def test_loading_while_parameters_are_gathered_takes_effect(two_ranks):
    assert_same(two_ranks[0]["next again"], two_ranks[0]["next"], 0.0)
