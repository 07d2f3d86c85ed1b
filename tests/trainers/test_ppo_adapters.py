"""``model.lora_publish=adapter``: a run is the same as with merged weights, and much less of it travels."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cluster_runs import OPTIONS, run
from ppo_runs import MODEL, comparable
from transformers import AutoModelForCausalLM

from trainers.cluster.publisher import Publisher
from trainers.command_line import load_config
from trainers.learner import Learner
from trainers.models import tiny
from trainers.ppo import train
from trainers.run import Run, assemble

pytest.importorskip("peft")
LORA = ("model.lora_rank=4", "model.lora_alpha=6")
ADAPTER = (*LORA, "model.lora_publish=adapter")


def of_steps(rows: list[dict[str, Any]]) -> list[float]:
    return [row["perf/published_mib"] for row in rows if "perf/published_mib" in row]


# One worker makes the run that others are compared with.
with_merged = pytest.mark.xdist_group("merged adapters")


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("merged"), *LORA)


@with_merged
def test_run_is_same_to_last_bit(merged: list[dict[str, Any]], tmp_path: Path) -> None:
    rows = run(tmp_path, *ADAPTER)
    assert comparable(rows) == comparable(merged)
    whole, first, later = of_steps(merged)[0], *of_steps(rows)[:2]
    assert of_steps(merged) == [whole] * 3
    assert of_steps(rows) == [first, later, later]
    assert later < 0.4 * whole  # of so small a model; what is below is the same size whatever the rank
    assert whole < first <= whole + later  # matrices and, once, adapters


@with_merged
def test_resumed_run_uses_checkpoint_weights(merged: list[dict[str, Any]], tmp_path: Path) -> None:
    """Make the engine from merged weights, which are not the adapters' base weights."""
    run(tmp_path, *ADAPTER, "trainer.total_iterations=2", "trainer.save_freq=1", "actor.lr_schedule=constant")
    rows = run(tmp_path, *ADAPTER)
    assert comparable(rows)[-2:] == comparable(merged)[-2:]


def test_replicas_receive_the_adapter(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def look(made: Run) -> None:
        engines = [replica.engine for replica in made.collector._engine._replicas]  # type: ignore[attr-defined]
        engine_parameters = [engine._scheduler._decoder.parameters for engine in engines]
        expected = made.learner.weights()
        seen.append(
            all(bool((params[name] == expected[name]).all()) for params in engine_parameters for name in expected)
        )

    run(tmp_path, *ADAPTER, "engine.replicas=2", "trainer.total_iterations=2", then=look)
    assert seen == [True]


@pytest.mark.parametrize(("dtype", "bytes_each"), [("float32", 4), ("bfloat16", 2)])
def test_full_weights_are_sent_in_engine_dtype(dtype: Any, bytes_each: int) -> None:
    learner = Learner(tiny.build_model(64, hidden=32, layers=1, heads=2, kv_heads=1))
    source, size = Publisher(learner, load_config([f"model.dtype={dtype}", "engine.name=vllm"])[0]).take()
    received = {name: value for names, value in source.read() for name in names}  # type: ignore[union-attr]
    assert all(
        torch.equal(received[name], value.to(getattr(torch, dtype))) for name, value in learner.weights().items()
    )
    assert size == bytes_each * sum(value.numel() for value in learner.actor.parameters())


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and an adapter of it that peft made."""
    import peft

    tokenizer = tiny.build_tokenizer(["a b"])
    model = tiny.build_model(len(tokenizer), hidden=32, layers=1, heads=2, kv_heads=1, max_context=192, seed=1)
    folder = tmp_path_factory.mktemp("started")
    tiny.save(folder / "model", model, tokenizer)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    torch.manual_seed(2)
    for name, value in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.3)
    adapted.save_pretrained(folder / "adapter")
    return folder / "model", folder / "adapter"


def beginning_with(model: Path, adapter: Path) -> list[str]:
    """Return a run's arguments."""
    shape = {argument.partition("=")[0] for argument in MODEL}
    options = [option for option in OPTIONS if option.partition("=")[0] not in shape]
    return [*options, *LORA, f"model.path={model}", f"model.lora_adapter_path={adapter}"]


# test_resumed_run_uses_checkpoint_weights publishes merged weights.
@pytest.mark.parametrize("publish", [pytest.param("merged", marks=pytest.mark.slow), "adapter"])
def test_run_begins_with_saved_adapter(publish: str, started: tuple[Path, Path], tmp_path: Path) -> None:
    """Engine and learner alike: what was sampled before any update has the learner's own log-probabilities."""
    model, _ = started
    overrides = [*beginning_with(*started), f"model.lora_publish={publish}"]
    weights: list[Any] = []

    async def go(*extra: str) -> None:
        config, _ = load_config([*overrides, f"trainer.default_local_dir={tmp_path}", *extra])
        async with assemble(config) as made:
            (engine,) = [made.collector._engine]
            params = engine._scheduler._decoder.parameters  # type: ignore[attr-defined]
            learned = made.learner.weights()
            assert all(torch.equal(params[name], learned[name]) for name in learned)
            weights.append(learned)
            if not extra:
                batch = await made.collector.next_batch()
                learner_logprobs = made.learner.logprobs(batch.trajectories)
                for trajectory, logprobs in zip(batch.trajectories, learner_logprobs, strict=True):
                    sampled = trajectory.logprobs[trajectory.action_mask.astype(bool)]
                    np.testing.assert_allclose(logprobs, sampled, atol=1e-4)
            else:
                await train(made)

    asyncio.run(go())
    plain = AutoModelForCausalLM.from_pretrained(model).state_dict()
    name = "model.layers.0.mlp.down_proj.weight"
    assert not torch.equal(weights[0][name], plain[name])
    asyncio.run(go("trainer.total_iterations=1"))
    # Resumed from the checkpoint, not from the initial adapter.
    asyncio.run(go("trainer.total_iterations=2"))
    assert torch.equal(weights[0][name], weights[1][name])
    assert not torch.equal(weights[1][name], weights[2][name])


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_two_ranks_begin_with_saved_adapter(started: tuple[Path, Path], tmp_path: Path) -> None:
    """Each has its shard of it: together they have the weights that one process has, and learn from there."""
    pytest.importorskip("ray").shutdown()  # that of other tests: this run starts its own
    overrides = [*beginning_with(*started), "trainer.total_iterations=1"]
    weights: list[Any] = []

    async def go(ranks: int) -> None:
        place = [f"trainer.default_local_dir={tmp_path}/{ranks}", f"cluster.learner_ranks={ranks}"]
        config, _ = load_config([*overrides, *place])
        async with assemble(config) as made:
            weights.append(dict(made.learner.weights()))
            await train(made)
            weights.append(dict(made.learner.weights()))

    for ranks in (1, 2):
        asyncio.run(go(ranks))
    before, after, before_shared, after_shared = weights
    assert all(torch.equal(before[name], before_shared[name]) for name in before)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    for name in after:
        torch.testing.assert_close(after_shared[name], after[name], atol=1e-5, rtol=1e-4)
