"""Imports of the tests' ranks: trajectories, losses that fail on one rank, and measurements of a learner."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import torch.distributed as dist
from trajectories import trajectory_of, turns_of

from trainers.config.learning import CriticSection
from trainers.config.model import ModelSection
from trainers.config.running import RunSection
from trainers.models.tiny import build_model
from trainers.section import ActorSection
from trainers.trajectory import Trajectory

VOCAB = 61
SETTINGS: dict[str, Any] = {
    "model": ModelSection(device="cpu"),
    "run": RunSection(threads=1),
    "actor": ActorSection(lr=1e-3, max_tokens_per_micro_batch=40),
    "critic": CriticSection(),
    "reference": True,
}


def tiny_model() -> Any:
    return build_model(VOCAB, hidden=32, layers=2, seed=3)


def trajectories(count: int = 6) -> list[Trajectory]:
    """Return trajectories of one or two turns and different lengths."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        turns = turns_of(*((rng.integers(1, 8), rng.integers(1, 9)) for _ in range(1 + number % 2)))
        ids, messages = rng.integers(0, VOCAB, len(turns)), ({"role": "user", "content": "only people read this"},)
        made.append(trajectory_of(turns, token_ids=ids, episode_id=f"episode-{number}", messages=messages))
    return made


def numbers(batch: list[Trajectory]) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {"a": [rng.normal(size=int(t.action_mask.sum())) for t in batch]}


def policy_loss(logprobs: Any, entropy: Any, batch: Any) -> Any:
    return (batch["a"] * (0.1 * logprobs).exp() + 0.3 * entropy).sum(), {"seen": float(len(logprobs))}


def value_loss(values: Any, batch: Any) -> Any:
    return ((values - batch["a"]) ** 2).sum(), {}


def scaled(scale: float) -> Any:
    """Return a loss that closes over a number, so it cannot be pickled."""
    return lambda logprobs, entropy, batch: (scale * batch["a"] * logprobs).sum() and ((scale * logprobs).sum(), {})


def raises_everywhere(logprobs: Any, entropy: Any, batch: Any) -> Any:
    raise KeyError("not possible")


def hangs_on_rank_1(logprobs: Any, entropy: Any, batch: Any) -> Any:
    if dist.get_rank() == 1:
        time.sleep(1000)
    return policy_loss(logprobs, entropy, batch)


def stops_the_process(logprobs: Any, entropy: Any, batch: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)
    return policy_loss(logprobs, entropy, batch)


def saves_wait_for_a_file(logprobs: Any, entropy: Any, batch: Any) -> Any:
    """Delay this rank's writes until the file ``go`` exists in a parent folder."""
    from trainers.learner import state

    write = state.write_tensors

    def slow(folder: Any, *rest: Any) -> None:
        write(folder, *rest)
        until = time.monotonic() + 60
        while not any((above / "go").exists() for above in folder.parents) and time.monotonic() < until:
            time.sleep(0.01)

    state.write_tensors = slow
    return policy_loss(logprobs, entropy, batch)


def recorded(logprobs: Any, entropy: Any, batch: Any) -> Any:
    loss, sums = policy_loss(logprobs, entropy, batch)
    return loss, {**sums, "token_twice": 2.0 * logprobs.detach()}


def measure(learner: Any) -> dict[str, Any]:
    """Update each model twice; return all results before and after."""
    batch = trajectories()
    scores, spread = learner.logprobs(batch, entropy=True)
    result = {"logprobs": np.concatenate(scores), "entropies": np.concatenate(spread)}
    for step in range(2):
        names = ("token_logprobs", "token_entropy", "token_twice")
        actor = learner.update_actor(batch, numbers(batch), recorded, record=names)
        result |= {f"{name} {step}": actor[name] for name in names}
        critic = learner.update_critic(batch, numbers(batch), value_loss)
        for name, metrics in (("actor", actor), ("critic", critic)):
            reported = ("loss", "grad_norm", "lr", "tokens", "entropy", "seen")
            result[f"{name} {step}"] = np.array([metrics[key] for key in reported if key in metrics])
    np.testing.assert_allclose(result["token_logprobs 0"], result["logprobs"], atol=1e-5)
    np.testing.assert_allclose(result["token_entropy 0"], result["entropies"], atol=1e-5)
    np.testing.assert_array_equal(result["token_twice 1"], 2.0 * result["token_logprobs 1"])
    values, bootstrap = learner.values(batch)
    result["values"] = np.concatenate([*values, bootstrap])
    result["reference"] = np.concatenate(learner.logprobs(batch, model="reference"))
    result["after"] = np.concatenate(learner.logprobs(batch))
    result |= {f"weight {name}": value.numpy() for name, value in learner.weights().items()}
    return result


def assert_same(actual: dict[str, Any], expected: dict[str, Any], atol: float) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, atol=atol, rtol=atol, err_msg=name)
