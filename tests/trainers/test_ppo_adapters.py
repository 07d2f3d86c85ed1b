"""``model.lora_publish=adapter``: a run is the same as with merged weights, and much less of it travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_runs import run
from ppo_runs import comparable

from trainers.assembly.publication import Publisher
from trainers.config.schema import ModelSection
from trainers.run import Run

pytest.importorskip("peft")
LORA = ("model.lora_rank=4", "model.lora_alpha=6")
ADAPTER = (*LORA, "model.lora_publish=adapter")


def of_steps(rows: list[dict[str, Any]]) -> list[float]:
    return [row["perf/published_mib"] for row in rows if "perf/published_mib" in row]


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("merged"), *LORA)


def test_a_run_is_the_same_to_the_last_bit(merged: list[dict[str, Any]], tmp_path: Path) -> None:
    rows = run(tmp_path, *ADAPTER)
    assert comparable(rows) == comparable(merged)
    whole, first, later = of_steps(merged)[0], *of_steps(rows)[:2]
    assert of_steps(merged) == [whole] * 3
    assert of_steps(rows) == [first, later, later]
    assert later < 0.4 * whole  # of so small a model; what is below is the same size whatever the rank
    assert whole < first <= whole + later  # matrices and, once, adapters


def test_a_run_that_is_resumed_stands_on_what_the_checkpoint_has(merged: list[dict[str, Any]], tmp_path: Path) -> None:
    """Its engine is made of merged weights, which are not what adapters stand on."""
    run(tmp_path, *ADAPTER, "trainer.total_iterations=2", "trainer.save_freq=1", "actor.lr_schedule=constant")
    rows = run(tmp_path, *ADAPTER)
    assert comparable(rows)[-2:] == comparable(merged)[-2:]


def test_replicas_have_it_too(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def look(made: Run) -> None:
        engines = [replica.engine for replica in made.collector._engine._replicas]  # type: ignore[attr-defined]
        ours = [engine._scheduler._decoder.parameters for engine in engines]
        wanted = made.learner.weights()
        seen.append(all(bool((params[name] == wanted[name]).all()) for params in ours for name in wanted))

    run(tmp_path, *ADAPTER, "engine.replicas=2", then=look)
    assert seen == [True]


def test_without_adapters_nothing_but_whole_weights_is_asked_for() -> None:
    class Asked:
        def weights(self) -> dict[str, Any]:
            return {}

    assert Publisher(Asked(), ModelSection()).take() == ({}, 0)  # type: ignore[arg-type]
