"""One rank and two: the same numbers as plain modules, from the same mini-batch."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from learner_helpers import VOCAB, some_trajectories

from trainers.algorithms.policy_losses import gspo
from trainers.learner import Learner, OptimizerSettings
from trainers.learner.fsdp import whole
from trainers.tiny import build_model

TRAJECTORIES = some_trajectories()
COUNTS = [int(t.action_mask.sum()) for t in TRAJECTORIES]


def make_learner(**settings):
    model = build_model(VOCAB, hidden=32, layers=2, seed=3)
    settings = {"optimizer": OptimizerSettings(lr=1e-3), "max_tokens_per_micro_batch": 40} | settings
    return Learner(model, critic=True, reference=True, **settings)


def caught_gradients(optimizer, update):
    caught = {}
    original = optimizer.step

    def step(what):
        caught.update({name: whole(p.grad).clone() for name, p in optimizer.names.items()})
        return original(what)

    optimizer.step = step
    try:
        metrics = update()
    finally:
        optimizer.step = original
    return caught, metrics


def policy_loss(logprobs, entropy, batch):
    """Of tokens, and of whole episodes: none of them may be torn apart."""
    of_tokens = batch["a"] * torch.exp(0.1 * logprobs) + 0.3 * entropy
    of_episodes = gspo(logprobs, 0.9 * logprobs.detach(), batch["a"], batch["trajectory"], clip_low=1.0, clip_high=9.0)
    return (of_tokens + of_episodes.loss).sum(), {"seen": float(len(logprobs))}


def value_loss(values, batch):
    return ((values - batch["a"]) ** 2).sum(), {}


def measure(learner, trajectories=TRAJECTORIES):
    """What a learner computes, and the gradients behind its updates, with everything whole."""
    rng = np.random.default_rng(5)
    numbers = {"a": [rng.normal(size=int(t.action_mask.sum())) for t in trajectories]}
    logprobs, entropies = learner.logprobs(trajectories, entropy=True)
    actor, metrics = caught_gradients(
        learner.actor_optimizer, lambda: learner.update_actor(trajectories, numbers, policy_loss)
    )
    critic, value_metrics = caught_gradients(
        learner.critic_optimizer, lambda: learner.update_critic(trajectories, numbers, value_loss)
    )
    values, bootstrap = learner.values(trajectories)
    return {
        "logprobs": np.concatenate(logprobs),
        "entropies": np.concatenate(entropies),
        "reference": np.concatenate(learner.logprobs(trajectories, model="reference")),
        "values": np.concatenate([*values, bootstrap]),
        "actor": actor,
        "critic": critic,
        "metrics": {name: metrics[name] for name in ("loss", "entropy", "grad_norm", "tokens", "seen")},
        "value_metrics": {name: value_metrics[name] for name in ("loss", "grad_norm")},
    }


def assert_same(ours, theirs, tolerance):
    """Gradients within ``tolerance`` of the norm of the whole gradient; float32 sums differ in their order only."""
    for name in ("actor", "critic"):
        assert ours[name].keys() == theirs[name].keys()
        norm = sum(float(g.double().square().sum()) for g in theirs[name].values()) ** 0.5
        for key, gradient in theirs[name].items():
            assert float((ours[name][key] - gradient).norm()) <= tolerance * norm, (name, key)
    for name in ("logprobs", "entropies", "reference", "values"):
        np.testing.assert_allclose(ours[name], theirs[name], atol=10 * tolerance, err_msg=name)
    for name in ("metrics", "value_metrics"):
        assert ours[name] == pytest.approx(theirs[name], rel=10 * tolerance)


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
    learner = make_learner(fsdp="always", gradient_checkpointing=checkpointing)
    assert dist.is_initialized()
    assert_same(measure(learner), plain, 1e-6)


def test_bfloat16_is_near_and_keeps_float32_where_it_matters(plain, no_process_group):
    learner = make_learner(dtype="bfloat16")
    ours = measure(learner)
    np.testing.assert_allclose(ours["logprobs"], plain["logprobs"], atol=0.1)
    assert not np.array_equal(ours["logprobs"], plain["logprobs"])
    np.testing.assert_array_equal(ours["logprobs"], ours["reference"])  # the same rounding: no KL before an update
    assert ours["metrics"]["grad_norm"] == pytest.approx(plain["metrics"]["grad_norm"], rel=0.05)
    for name, value in learner.weights().items():
        assert value.dtype == torch.float32, name
    assert learner.critic.value_head.weight.dtype == torch.float32


def test_plain_modules_are_refused_where_they_would_be_wrong():
    with pytest.raises(ValueError, match="one rank in float32"):
        make_learner(fsdp="never", dtype="bfloat16")
    with pytest.raises(ValueError, match="fsdp must be"):
        make_learner(fsdp="yes")


def _work(rank, folder, port):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    learner = make_learner()
    results = measure(learner)
    learner.save(f"{folder}/checkpoint", extra={"from": "two ranks"})
    results["weights"] = learner.weights()
    results["next"] = measure(learner)
    learner.load(f"{folder}/checkpoint")
    results["next again"] = measure(learner)
    results["one trajectory"] = measure(make_learner(), TRAJECTORIES[1:2])
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_work, (str(folder), port), nprocs=2)
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_two_ranks_are_one(plain, two_ranks):
    _, (first, second) = two_ranks
    assert_same(first, plain, 1e-6)
    assert_same(second, first, 0.0)


def test_a_rank_without_work_does_not_change_the_result(two_ranks):
    _, (first, _) = two_ranks
    assert_same(first["one trajectory"], measure(make_learner(), TRAJECTORIES[1:2]), 1e-6)


def test_loading_while_parameters_are_gathered_takes_effect(two_ranks):
    _, (first, _) = two_ranks
    assert_same(first["next again"], first["next"], 0.0)


def test_one_rank_goes_on_from_two(two_ranks):
    folder, (first, _) = two_ranks
    learner = make_learner()
    assert learner.load(folder / "checkpoint") == {"from": "two ranks"}
    for name, value in learner.weights().items():
        assert torch.equal(value, first["weights"][name]), name
    assert_same(measure(learner), first["next"], 1e-6)
