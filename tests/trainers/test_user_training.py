"""Training the user, by the keys of a run: its log-probabilities, what it learns, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_runs import MODEL, SMALL, training_of

from textenvs.messages import assistant
from textenvs.two_sides import TwoSides
from trainers import sft
from trainers.builders.environments import backend_of, played
from trainers.command_line import resolve
from trainers.config import PPOConfig
from trainers.ppo import train
from trainers.rollout.batch import Batch
from trainers.run import Run, assemble

ORDER = [
    *("env.id=program_envs:tests/order", "env.user={prompt: short, tries: 2, may_end: false}", "actor.lr=0.003"),
    *("algorithm.adv_estimator=grpo", "actor.entropy_coeff=0", "env.kwargs.max_assistant_turns=2"),
    *("trainer.logger=jsonl", "trainer.val_before_train=false", "data.val_size=4", "engine.max_context=256"),
]

# One worker trains the model.
pytestmark = pytest.mark.xdist_group("user training")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has imitated users who say "tea" or "coffee", in halves."""
    folder = tmp_path_factory.mktemp("user")
    rows = []
    for seed in range(64):
        env = TwoSides("program_envs:tests/order", {}, user={"prompt": "short", "may_end": False}, fixed="expert")
        request, _ = env.reset(seed=seed)
        rows.append({"messages": [*request, assistant(("tea", "coffee")[seed % 2])]})
    (folder / "talks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fit = ["sft.steps=150", "sft.lr=0.003", "sft.batch_size=16", "trainer.threads=1", "trainer.logger=jsonl"]
    files = [f"sft.files={folder / 'talks.jsonl'}", f"trainer.default_local_dir={folder / 'run'}"]
    assert sft.main([*MODEL, *ORDER[:1], *fit, *files]) == 0
    return folder / "run" / "model"


def trained(folder: Path, model: Path, *words: str, look: Callable[[Run], None] = lambda run: None) -> Run:
    where = [f"model.path={model}", f"trainer.default_local_dir={folder}"]

    async def go() -> Run:
        async with assemble(resolve([*SMALL, *ORDER, *where, *words], PPOConfig)[0]) as run:
            look(run)
            await train(run)
            return run

    return asyncio.run(go())


@pytest.mark.parametrize(("reward", "best"), [("shared", 0.75), pytest.param("opposed", 0.25, marks=pytest.mark.slow)])
def test_user_learns_rewarded_messages(model: Path, tmp_path: Path, reward: str, best: float) -> None:
    overrides = [
        f"env.user_reward={reward}",
        "rollout.groups_per_batch=8",
        "rollout.n=4",
        "trainer.total_iterations=30",
    ]
    trained(tmp_path, model, "env.train_side=user", *overrides, "trainer.seed=1")
    rewards = [row["train/reward"] for row in training_of(tmp_path)]
    assert np.mean(rewards[-3:]) > best - 0.35 > np.mean(rewards[:2])


def test_both_sides_train_on_engine_tokens(model: Path, tmp_path: Path) -> None:
    batches: list[Batch] = []
    models: list[Any] = []

    def look(run: Run) -> None:
        take = run.collector.next_batch

        async def recorded_batch() -> Batch:
            models.append({name: weight.detach().clone() for name, weight in run.learner.actor.state_dict().items()})
            batches.append(await take())
            return batches[-1]

        run.collector.next_batch = recorded_batch  # type: ignore[method-assign]

    run = trained(tmp_path, model, "env.train_side=both", "trainer.total_iterations=2", look=look)
    for version, batch in enumerate(batches):
        run.learner.actor.load_state_dict(models[version])
        assert batch.of("partner")
        for trajectory in batch.trained:
            assert set(trajectory.weight_version[trajectory.action_mask].tolist()) == {version}
            for piece in trajectory.segments():
                ids = torch.from_numpy(trajectory.token_ids[piece].astype(np.int64))
                with torch.no_grad():
                    logits = run.learner.actor.lm(input_ids=ids[None]).logits[0, :-1].float()
                full = logits.log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]].numpy()
                mask = trajectory.action_mask[piece][1:]
                assert np.allclose(full[mask], trajectory.logprobs[piece][1:][mask], atol=1e-4)
    rows = training_of(tmp_path)
    assert all(row["train/user/episodes"] == len(batch.of("partner")) for row, batch in zip(rows, batches, strict=True))
    assert all(row["actor/outside_clip_first"] == 0 for row in rows if "actor/outside_clip_first" in row)


async def test_folder_plays_fixed_assistant(model: Path) -> None:
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    pytest.importorskip("aiohttp", reason="needs the extra 'serve'")
    fixed = ["env.train_side=user", f"env.assistant.model={model}", "env.assistant.max_tokens=8"]
    config, _ = resolve([*ORDER, *fixed, f"model.path={model}"], PPOConfig)
    async with backend_of(config, played(config)[0], validation=False) as backend, backend.lease() as env:
        request, info = await env.reset(1, {})
        assert (info["role"], [m["role"] for m in request]) == ("user", ["system", "user", "assistant", "user"])
        _, reward, _, _, info = await env.step("tea")
    assert info["terms"] == {"answer": reward}
