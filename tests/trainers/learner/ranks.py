"""Real gloo process groups for the tests: a few processes that run cases one after another and say what they got."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from forked import forking, without_old_objects
from learner_helpers import VOCAB, caught_gradients, forks, observed, sections, some_masked_trajectories, top_tokens
from safetensors.torch import save_file

from trainers.learner import Learner
from trainers.models.tiny import build_model
from trainers.trajectory import action_offsets, observation_offsets

TRAJECTORIES = observed([*some_masked_trajectories(), *forks(some_masked_trajectories())])
#: Enough where an update shall only change the weights: with more, ranks wait for each other more often.
FEW = TRAJECTORIES[:4]
METRICS = (
    *("loss", "entropy", "grad_norm", "tokens", "seen"),
    *("observation_loss", "observation_nll", "observation_gradient", "observation_share"),
)
#: A case is called on every rank with a folder that all ranks see, and returns what can be pickled.
Case = Callable[[Path], Any]


def run_ranks(world: int, cases: dict[str, Case], folder: Path) -> list[dict[str, Any]]:
    """Return each rank's results of its cases, by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    start(world, _work, world, cases, str(folder))
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]


def start(world: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, *arguments)`` in so many processes."""
    forking()
    mp.start_processes(_begin, (work, *arguments), nprocs=world, start_method="forkserver")


def _begin(rank: int, work: Callable[..., None], *arguments: Any) -> None:
    without_old_objects(work, rank, *arguments)


def _work(rank: int, world: int, cases: dict[str, Case], folder: str) -> None:
    torch.set_num_threads(1)  # several ranks share these cores: more threads make everything far slower
    os.environ.pop("WORLD_SIZE", None)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    results = {}
    for name, case in cases.items():
        results[name] = case(Path(folder))
        dist.barrier()
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def make_learner(family: str = "qwen2", *, shape: dict[str, Any] | None = None, **keys: Any):
    """A tiny learner with a critic and a reference, the same on every rank, read from a folder."""
    shape = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "seed": 3} | (shape or {})
    keys = {"max_tokens_per_micro_batch": 40, "critic": True, "reference": True, "lr": 1e-3} | keys
    with tempfile.TemporaryDirectory() as folder:
        built = build_model(VOCAB, family=family, **shape)  # whose own save_pretrained writes on the first rank alone
        Path(folder, "config.json").write_text(built.config.to_json_string())
        save_file({name: value.clone() for name, value in built.state_dict().items()}, f"{folder}/model.safetensors")
        return Learner(folder, **sections(**keys))


def policy_loss(logprobs, entropy, batch):
    """Not linear, and of the whole sequence: the mean of each trajectory's log-probabilities is in it."""
    number = batch["trajectory"]
    sums = torch.zeros(int(number.max()) + 1).index_add(0, number, logprobs)
    counts = torch.zeros_like(sums).index_add(0, number, torch.ones_like(logprobs))
    mean = (sums / counts.clamp(min=1))[number]
    loss = (batch["a"] * torch.exp(0.1 * logprobs + 0.2 * (mean - mean.detach())) + 0.3 * entropy).sum()
    if "teacher_kl" in batch:
        loss = loss + (batch["a"] * batch["teacher_kl"]).sum()
    return loss, {"seen": float(len(logprobs))}


def value_loss(values, batch):
    return ((values - batch["a"]) ** 2).sum(), {}


def measure(learner, trajectories=TRAJECTORIES):
    """Return a learner's results, and the gradients behind its updates, with everything whole."""
    rng = np.random.default_rng(5)
    numbers = {"a": [rng.normal(size=int(t.action_mask.sum())) for t in trajectories]}
    total = int(observation_offsets(trajectories)[-1])
    observations = rng.random(total) if total else None
    teacher = top_tokens(int(action_offsets(trajectories)[-1]))
    logprobs, entropies = learner.logprobs(trajectories, entropy=True)
    actor, metrics = caught_gradients(
        learner.actor_optimizer,
        lambda: learner.update_actor(trajectories, numbers, policy_loss, observations=observations, teacher=teacher),
    )
    result = {
        "logprobs": np.concatenate(logprobs),
        "entropies": np.concatenate(entropies),
        "actor": actor,
        "metrics": {name: metrics[name] for name in METRICS if name in metrics},
        "after": np.concatenate(learner.logprobs(trajectories)),
    }
    if learner.reference is not None:
        scores = learner.top_logprobs(trajectories, teacher.ids, model="reference")
        result |= {"reference": np.concatenate(scores.logprobs), "top": scores.top.logprobs}
    if learner.critic is not None:
        critic, metrics = caught_gradients(
            learner.critic_optimizer, lambda: learner.update_critic(trajectories, numbers, value_loss)
        )
        values, bootstrap = learner.values(trajectories)
        result |= {
            "critic": critic,
            "value_metrics": {name: metrics[name] for name in ("loss", "grad_norm")},
            "values": np.concatenate([*values, bootstrap]),
        }
    return result


def assert_same(actual, reference, tolerance=1e-6):
    """Gradients within ``tolerance`` of the norm of the whole gradient; float32 sums differ in their order only.

    Numbers within ten times that; those after an update within a hundred times: AdamW's first step is the gradient's
    sign, so where a gradient is nearly 0, its last bits decide.
    """
    assert actual.keys() == reference.keys()
    for name in ("actor", "critic"):
        if name not in reference:
            continue
        assert actual[name].keys() == reference[name].keys()
        norm = sum(float(g.double().square().sum()) for g in reference[name].values()) ** 0.5
        assert norm > 0
        for key, gradient in reference[name].items():
            gap = float((actual[name][key] - gradient).norm())
            assert gap <= tolerance * norm, (name, key, gap / norm)
    for name, factor in {
        "logprobs": 10,
        "entropies": 10,
        "reference": 10,
        "top": 10,
        "after": 100,
        "values": 100,
    }.items():
        if name in reference:
            np.testing.assert_allclose(actual[name], reference[name], atol=factor * tolerance, err_msg=name)
    for name in ("metrics", "value_metrics"):
        if name in reference:
            assert actual[name] == pytest.approx(reference[name], rel=10 * tolerance)
