"""Token ids that end a reply, and ids without a token: in the policy, the engine, the learner and a run."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_runs import QUICK, SMALL, training_of
from trajectories import trajectory_of, turns_of
from transformers import AutoModelForCausalLM

from trainers.builders.policy import renderer_of
from trainers.command_line import load_config
from trainers.config.engine import TorchEngineSection
from trainers.config.model import ModelSection
from trainers.engines.base import Sampling
from trainers.engines.torch_engine import TorchEngine
from trainers.learner import Learner
from trainers.learner.logprobs import Support, token_logprobs
from trainers.models import tiny
from trainers.models.policy import Policy, PolicyError, end_token_ids_of, load
from trainers.models.vocabulary import unused_token_ids
from trainers.ppo import train
from trainers.run import Run, assemble
from trainers.serving.chat_server import engine_policy
from trainers.trajectory import Trajectory, read_parquet

TEXTS = ["How many apples are there? There are 12 apples.", "user\nassistant\n"] * 3
SIZE = 340  #: of the model's vocabulary; its tokenizer has some 280 tokens


def folder_of(path: Path, ends: Any = None, config_ends: Any = None) -> Path:
    """A model whose vocabulary is larger than its tokenizer's, with ``eos_token_id`` of its two files."""
    tokenizer = tiny.build_tokenizer(TEXTS, 300)
    model = tiny.build_model(SIZE, hidden=32, layers=1, heads=2, kv_heads=1, max_context=192, seed=1)
    tiny.save(path, model, tokenizer)
    for name, value in (("generation_config.json", ends), ("config.json", config_ends)):
        content = json.loads((path / name).read_text())
        content.pop("eos_token_id", None)
        (path / name).write_text(json.dumps(content if value is None else {**content, "eos_token_id": value}))
    return path


def policy_in(path: Path) -> Policy:
    return load(ModelSection(path=str(path)), lambda: (), max_context=0, seed=0)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [([2, 100, 101], (2, 100, 101)), (7, (7,)), ([], ()), (None, ()), ([3, 3, 5000], (3,)), (0, (0,))],
)
def test_ends_are_those_of_generation_config(tmp_path, caplog, ends, expected):
    folder = folder_of(tmp_path, ends)
    with caplog.at_level(logging.WARNING):
        policy = policy_in(folder)
    assert policy.end_token_ids == end_token_ids_of(ModelSection(path=str(folder))) == expected
    assert set(expected) <= set(renderer_of(policy, {}).stop_token_ids)
    assert ("5000" in caplog.text) == (ends == [3, 3, 5000])


def test_without_generation_config_ends_are_of_configuration(tmp_path):
    folder = folder_of(tmp_path, config_ends=[2, 100])
    (folder / "generation_config.json").unlink()
    assert policy_in(folder).end_token_ids == (2, 100)


@pytest.mark.parametrize("ends", ["</s>", [[1]], -1, 2.5, True, [1, None], {"a": 1}])
def test_end_that_is_no_id_is_refused(tmp_path, ends):
    with pytest.raises(PolicyError, match="eos_token_id"):
        policy_in(folder_of(tmp_path, ends))


async def test_replies_end_where_transformers_ends_them(tmp_path):
    free = policy_in(folder_of(tmp_path / "free"))
    used = [token_id for token_id in range(SIZE) if token_id not in free.unused_token_ids]
    prompt = free.tokenizer.encode("How many apples?")
    engine = TorchEngine(free.model, TorchEngineSection(max_context=192), unused_token_ids=free.unused_token_ids)
    long = (await engine.generate(prompt, Sampling(temperature=1.0, seed=3, max_new_tokens=40))).token_ids.tolist()
    await engine.close()
    end = next(token for at, token in enumerate(long) if at > 3 and token not in long[:at])
    other = next(token for token in used if token not in long)
    policy = engine_policy(
        str(folder_of(tmp_path / "ended", [other, end])),
        Sampling(temperature=1.0, seed=3, max_new_tokens=40),
        concurrency=1,
        device="cpu",
    )
    reply = await policy.engine.generate(prompt, policy.sampling)
    await policy.engine.close()
    assert reply.finish_reason == "stop"
    assert reply.token_ids.tolist() == long[: long.index(end) + 1]
    assert policy.renderer.decode(reply.token_ids) == free.tokenizer.decode(long[: long.index(end)])


def test_unused_ids_are_those_without_token():
    tokenizer = tiny.build_tokenizer(TEXTS, 300)
    size = len(tokenizer)
    assert unused_token_ids(tokenizer, size) == ()
    assert unused_token_ids(tokenizer, size + 3, ends=[size + 1]) == (size, size + 2)
    tokenizer.add_tokens(["<|far|>"])
    tokens = {token: number for token, number in tokenizer.get_vocab().items() if number != 17}  # a hole
    tokenizer.get_vocab = lambda: tokens
    assert unused_token_ids(tokenizer, size + 2) == (17, size + 1)


# ------------------ the learner


def over_used(model: Any, item: Trajectory, unused: list[int], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(torch.from_numpy(item.token_ids.astype(np.int64))[None]).logits[0] / temperature
    used = [token_id for token_id in range(logits.shape[1]) if token_id not in unused]
    at = np.flatnonzero(item.action_mask)
    log_p = logits[at - 1][:, used].log_softmax(-1)
    targets = torch.tensor([used.index(token) for token in item.token_ids[at]])
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("chunk", [None, 2])
def test_learner_leaves_unused_ids_out(chunk):
    unused = [1, *range(50, 61)]
    model = tiny.build_model(61, hidden=32, layers=2, heads=2, kv_heads=1, seed=5)
    learner = Learner(model, reference=True, temperature=0.7, unused_token_ids=unused, chunk_size=chunk)
    item = trajectory_of(turns_of((4, 5)), token_ids=[5, 9, 30, 44, 12, 8, 49, 0, 2])
    with torch.no_grad():
        expected, spread = over_used(model, item, unused, 0.7)
    logprobs, entropies = learner.logprobs([item], entropy=True)
    np.testing.assert_allclose(logprobs[0], expected, atol=1e-5)
    np.testing.assert_allclose(entropies[0], spread, atol=1e-5)
    np.testing.assert_allclose(learner.logprobs([item], model="reference")[0], expected, atol=1e-5)

    def loss(logprobs: torch.Tensor, entropy: torch.Tensor, tokens: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return (logprobs.exp() + entropy).sum(), {}

    seen: dict[str, torch.Tensor] = {}
    step = learner.actor_optimizer.step

    def look(what: str) -> dict[str, float]:
        seen.update({name: value.grad.clone() for name, value in learner.actor.lm.named_parameters()})
        return step(what)

    learner.actor_optimizer.step = look  # type: ignore[method-assign]
    learner.update_actor([item], {}, loss)
    logprobs, entropy = over_used(model, item, unused, 0.7)
    (logprobs.exp() + entropy).sum().backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(seen[name], value.grad, atol=1e-5, rtol=1e-4)


def test_unused_id_among_actions_is_refused():
    model = tiny.build_model(61, hidden=32, layers=1, heads=2, kv_heads=1)
    learner = Learner(model, unused_token_ids=[60])
    with pytest.raises(ValueError, match="action token 60"):
        learner.logprobs([trajectory_of(turns_of((4, 2)), token_ids=[1, 2, 3, 4, 5, 60])])
    learner.logprobs([trajectory_of(turns_of((4, 2)), token_ids=[1, 60, 3, 4, 5, 6])])  # observed


def test_sampling_mask_works_with_unused_ids():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (2, 9))
    support = Support(torch.tensor([1, 4]), np.array([2, 0]))
    logprobs, _ = token_logprobs(hidden, weight, torch.tensor([4, 0]), support=support, unused=torch.tensor([7, 8]))
    logits = hidden @ weight.T
    assert logprobs[0] == pytest.approx(float(logits[0, [1, 4]].log_softmax(0)[1]))
    assert logprobs[1] == pytest.approx(float(logits[1, :7].log_softmax(0)[0]))


# ------------------ a run


def test_run_samples_no_unused_id(tmp_path):
    folder = folder_of(tmp_path / "model", ends=[2, 338])
    policy = policy_in(folder)
    unused = set(policy.unused_token_ids)
    assert len(unused) > 30
    assert 338 not in unused, "it ends replies"
    options = [
        *(f"model.path={folder}", "model.dtype=float32", f"trainer.default_local_dir={tmp_path / 'run'}"),
        *("rollout.max_response_length=24", "trainer.total_iterations=2", "actor.old_logprobs=recompute"),
    ]
    argv = [item for item in (*SMALL, *QUICK) if not item.startswith("warm_start.")]

    async def go() -> Run:
        async with assemble(load_config([*argv, *options])[0]) as run:
            await train(run)
            return run

    run = asyncio.run(go())
    assert {2, 338} <= set(run.stop_token_ids)
    rows = training_of(tmp_path / "run")
    assert len(rows) == 2
    # Engine and learner mean the same by a log-probability.
    assert max(row["actor/mismatch_kl"] for row in rows) < 1e-6
    assert max(row["actor/engine_logprob_gap"] for row in rows) < 1e-3
    saved = AutoModelForCausalLM.from_pretrained(run.saved.newest_path() / "model")
    assert saved.generation_config.eos_token_id == [2, 338]
    episodes = [trajectory for path in (tmp_path / "run").rglob("*.parquet") for trajectory in read_parquet(path)]
    sampled = np.concatenate([item.token_ids[item.action_mask] for item in episodes])
    assert len(sampled) > 50
    assert unused.isdisjoint(sampled.tolist())
