"""PPO with ``algorithm.adv_estimator=fork``, by its keys alone: what is trained on and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ppo_runs import in_process, training_of

from trainers import update
from trainers.algorithms.losses import token_weights
from trainers.run import Run
from trainers.trajectory import read_parquet

FORK = [
    *("env.id=textenv/clarify", "env.val_kwargs={split: test}", "algorithm.adv_estimator=fork"),
    *("trainer.total_iterations=2", "rollout.max_response_length=8", "trainer.val_before_train=false"),
]


@pytest.mark.parametrize(
    "options", ["", "fork.where=variance fork.budget=200 fork.samples=2 rollout.staleness=1 engine.replicas=2"]
)
def test_forks_are_trained_and_reported_separately(
    tmp_path: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, parts = tmp_path / "episodes", list[Any]()

    def weights(*arguments: Any, tree: Any, weights: Any, **kwargs: Any) -> Any:
        parts.append(tree)
        return token_weights(*arguments, tree=tree, weights=weights, **kwargs)

    monkeypatch.setattr(update, "token_weights", weights)
    in_process(tmp_path, *FORK, f"trainer.rollout_data_dir={folder}", *options.split())
    for row, file in zip(training_of(tmp_path), sorted(folder.glob("*.parquet")), strict=True):
        episodes = read_parquet(file)
        roots, forks = ([t for t in episodes if bool(t.forked_from) is kind] for kind in (False, True))
        assert row["train/episodes"] == len(roots) == 4
        assert row["train/reward"] == pytest.approx(np.mean([t.total_reward for t in roots]))
        if not options:
            assert len(forks) == sum(t.num_turns for t in roots)
        assert np.isfinite(row["actor/grad_norm"])
        first, second = (set(parts.pop(0)) for _ in range(2))  # mini-batches
        assert not first & second, "a tree is never cut"
        assert first | second == set(range(4)), "roots come first"
        for fork in forks:
            root = next(t for t in roots if t.episode_id == fork.forked_from)
            assert fork.oldest_version is not None
            assert fork.turn_id[fork.action_mask].max() + 1 == fork.num_turns
            assert fork.forked_turn < root.num_turns
    if options:
        assert not any(t.forked_from for t in read_parquet(sorted(folder.glob("*.parquet"))[0]))


def test_embedded_engine_computes_no_prefix_twice(tmp_path: Path) -> None:
    """Each root's prompt is computed once, and of a fork's context at most the block in which its reply begins.

    (Where a turn ends, its last sampled token is computed with what the environment said.)
    """
    counts: list[tuple[float, int, int]] = []

    def look(run: Run) -> None:
        next_batch = run.collector.next_batch

        async def counted() -> Any:
            batch = await next_batch()
            once = sum(int((~t.action_mask).sum()) + t.num_turns for t in batch.trajectories)
            shared = 0
            for fork in batch.of("fork"):
                start = int(np.flatnonzero(fork.action_mask)[0])
                once += 16 + int((~fork.action_mask[start:]).sum()) + fork.num_turns
                shared += start - 16
            counts.append((run.collector._engine.stats()["prefill_tokens"], once, shared))
            return batch

        run.collector.next_batch = counted  # type: ignore[method-assign]

    once = ["trainer.total_iterations=1", "rollout.n=1", "fork.samples=3", "trainer.test_freq=-1"]
    in_process(tmp_path, *FORK, *once, look=look)
    ((computed, once_each, shared),) = counts
    assert computed <= once_each
    assert shared > 100, "otherwise this test shows nothing"
