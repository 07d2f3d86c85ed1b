"""KV slots: as many as the run can have requests, no more and no fewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ppo_runs import in_process

from trainers.command_line import resolve
from trainers.command_line.load import ConfigError
from trainers.config.sizes import episodes, futures, slots, training_episodes
from trainers.engines.base import Generation
from trainers.engines.torch_engine import TorchEngine
from trainers.rollout.group_scheduler import GroupScheduler


@given(
    groups=st.integers(1, 6),
    n=st.integers(2, 5),
    staleness=st.integers(0, 3),
    window=st.integers(1, 4),
    factor=st.sampled_from([1.0, 1.25, 1.5, 2.0]),
    estimator=st.sampled_from(["rloo", "remax"]),
    limit=st.one_of(st.none(), st.just("auto"), st.integers(1, 80)),
    validated=st.integers(1, 40),
    samples=st.integers(1, 3),
    replicas=st.integers(1, 3),
)
def test_slots_cover_all_running_episodes(
    groups, n, staleness, window, factor, estimator, limit, validated, samples, replicas
):
    given_limit = "null" if limit is None else limit
    try:
        config, _ = resolve(
            [
                *(f"rollout.groups_per_batch={groups}", f"rollout.n={n}", f"rollout.staleness={staleness}"),
                *(f"rollout.window={window}", f"rollout.oversampling_factor={factor}", "actor.mini_batches=1"),
                *(f"algorithm.adv_estimator={estimator}", f"rollout.max_running={given_limit}"),
                *(f"data.val_size={validated}", "multiturn_reward.enable=true", f"multiturn_reward.samples={samples}"),
                *(f"engine.replicas={replicas}", "multiturn_reward.credit=difference"),
            ]
        )
    except ConfigError:  # a window that this staleness does not allow
        return
    books = GroupScheduler(config.rollout, config.algorithm.needs)
    started = 0
    while books.start() is not None:
        started += 1
    # Validation has the places that training leaves.
    together = min(started + validated, episodes(config)) if isinstance(limit, int) else started
    assert together <= episodes(config)
    if isinstance(limit, int):
        assert episodes(config) == min(limit, training_episodes(config) + validated)
    else:
        assert episodes(config) == started
    assert futures(config) == samples * started
    assert slots(config) * replicas >= episodes(config) + futures(config) >= slots(config)


def test_explicit_limits_stay():
    assert slots(resolve(["engine.max_slots=3"])[0]) == 3


@pytest.mark.parametrize(
    "options",
    [
        ("rollout.staleness=1", "trainer.test_freq=1", "data.val_size=6"),
        # What limits the episodes that run is in rollout/test_concurrency.py.
        pytest.param(("rollout.max_running=7", "trainer.test_freq=1", "data.val_size=6"), marks=pytest.mark.slow),
    ],
)
def test_run_fills_slots_without_waiting(tmp_path: Path, monkeypatch: Any, options: tuple[str, ...]) -> None:
    running = most = 0
    generate = TorchEngine.generate

    async def counted(engine: TorchEngine, *arguments: Any, **kwargs: Any) -> Generation:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await generate(engine, *arguments, **kwargs)
        finally:
            running -= 1

    monkeypatch.setattr(TorchEngine, "generate", counted)
    run = in_process(tmp_path, "engine.max_slots=null", "trainer.total_iterations=2", *options)
    assert most == slots(run.config)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(row.get("rollout/queue_engine", 0) == 0 for row in rows)
