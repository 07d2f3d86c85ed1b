"""PPO with its learner and its engine as Ray actors, on two raylets: the metrics of one process; and deaths.

All of it is one run, because what takes the time is starting Ray and its actors: a scenario plays, and the tests check
its results.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_runs import assert_same_metrics, run
from pyarrow import parquet
from ray_here import paths

from textenvs.data.files import write_parquet
from textenvs.data.word_problems import GeneratedMath
from trainers import generate
from trainers.cluster.group import RankError
from trainers.engines.base import RequestError, Sampling
from trainers.models import tiny
from trainers.run import Run

# One process of the tests runs them all, and so one Ray.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]


LORA = ("model.lora_rank=4", "model.lora_alpha=6")


@pytest.fixture(scope="module")
def two_raylets() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
    from ray.cluster_utils import Cluster

    ray.shutdown()  # of other tests
    os.environ.setdefault("RAY_worker_niceness", "0")  # see `local_ray`
    # Places of one rank and the engine (4 CPUs) and of the other rank (2): no raylet has room for both.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 5, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(cluster.address, logging_level=logging.WARNING, log_to_driver=False, runtime_env=paths())
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def played(two_raylets: Any, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("ray")
    seen = SimpleNamespace(timeline=folder / "timeline.json")

    async def afterwards(made: Run) -> None:
        engine, learner = made.collector._engine, made.learner
        table = two_raylets.util.placement_group_table().values()
        seen.groups = sorted(len(group["bundles"]) for group in table if group["state"] == "CREATED")
        ranks = [pid for _, pid, _ in learner.ranks.info]
        seen.nodes_of_ranks = [actor["node_id"] for actor in _actors(two_raylets) if actor["pid"] in ranks]
        seen.version = engine.version
        sampling = Sampling(temperature=0.0, max_new_tokens=5)
        before = await engine.generate([1, 2, 3], sampling)
        with pytest.raises(RequestError, match="outside the vocabulary"):
            await engine.generate([10**6], sampling)
        lost = engine._replicas[0].engine
        os.kill(lost.pid, signal.SIGKILL)
        after = await asyncio.wait_for(engine.generate([1, 2, 3], sampling), 300)
        seen.replies = before, after
        seen.pids = lost.pid, engine._replicas[0].engine.pid
        seen.stats = engine.stats()
        await engine.update_weights(learner.publication("weights"), seen.version + 1)
        seen.merged = await engine.generate([1, 2, 3], sampling)
        os.kill(learner.ranks.info[1][1], signal.SIGKILL)
        with pytest.raises(RankError) as caught:
            learner.weights()
        seen.end = str(caught.value)

    seen.rows = run(
        folder / "ray",
        *("cluster.learner_ranks=2", "cluster.bucket_mib=1", "env.backend=ray", "env.workers=1"),
        *("trainer.save_freq=1", "trainer.async_save=true"),
        *("cluster.cpus_per_actor=2", "cluster.cpus_per_env=0.1", "cluster.start_timeout_s=800"),
        f"ray_init.timeline_json_file={seen.timeline}",
        *(*LORA, "model.lora_publish=adapter"),
        then=afterwards,
    )
    seen.alone = run(folder / "alone", *LORA)
    seen.living_actors = [actor for actor in _actors(two_raylets) if actor["state"] == "ALIVE"]
    seen.resumed = run(folder / "ray", *LORA, "cluster.learner_ranks=1")
    return seen


@pytest.mark.slow
def test_ray_engines_generate_the_same_replies(two_raylets: Any, tmp_path: Path) -> None:
    tokenizer = tiny.build_tokenizer(["a b"])
    model = tiny.build_model(len(tokenizer), hidden=16, layers=1, heads=2, kv_heads=1, max_context=512)
    tiny.save(tmp_path / "model", model, tokenizer)
    prompts = write_parquet(GeneratedMath("easy", seed=0), tmp_path / "prompts.parquet", count=3)

    def replies(name: str, *overrides: str) -> list[Any]:
        small = [
            "rollout.max_response_length=6",
            "rollout.max_prompt_length=300",
            "data.n_samples=2",
            "engine.threads=1",
        ]
        where = [f"model.path={tmp_path}/model", f"data.path={prompts}", f"data.output_path={tmp_path}/{name}"]
        assert generate.main([*where, *small, "trainer.threads=1", *overrides]) == 0
        return list(parquet.read_table(tmp_path / name).column("responses").to_pylist())

    on_ray = replies("ray.parquet", "cluster.backend=ray", "engine.replicas=2", "cluster.start_timeout_s=800")
    assert on_ray == replies("here.parquet")
    assert not [actor for actor in _actors(two_raylets) if actor["state"] == "ALIVE"]


def _actors(ray: Any) -> list[dict[str, Any]]:
    return [
        {"pid": actor["Pid"], "node_id": actor["Address"]["NodeID"], "state": actor["State"]}
        for actor in ray._private.state.actors().values()
    ]


def test_metrics_are_those_of_one_process(played: SimpleNamespace) -> None:
    assert_same_metrics(played.rows, played.alone, 1e-4)


def test_one_process_resumes_what_two_ranks_saved(played: SimpleNamespace) -> None:
    assert [row["step"] for row in played.resumed] == [row["step"] for row in played.rows], "nothing was left to do"


def test_ranks_are_on_two_raylets(played: SimpleNamespace) -> None:
    assert len(set(played.nodes_of_ranks)) == 2
    assert played.groups == [2, 2]  # two places of ranks, two of environments


def test_dead_engine_restarts_with_current_weights(played: SimpleNamespace) -> None:
    before, after = played.replies
    assert played.pids[0] != played.pids[1]
    assert after.token_ids.tolist() == before.token_ids.tolist()
    assert after.logprobs.tolist() == pytest.approx(before.logprobs.tolist(), abs=1e-6)
    assert set(after.weight_version.tolist()) == {played.version} == {3}
    assert played.stats["replicas_lost"] == played.stats["replicas_restarted"] == 1


def test_actor_adapters_equal_merged_weights(played: SimpleNamespace) -> None:
    before, _ = played.replies
    assert played.merged.token_ids.tolist() == before.token_ids.tolist()
    assert played.merged.logprobs.tolist() == pytest.approx(before.logprobs.tolist(), abs=1e-5)  # batches differ
    first, *later = [row["perf/published_mib"] for row in played.rows if "perf/published_mib" in row]
    assert set(later) == {later[0]}
    assert later[0] < 0.4 * first


def test_dead_rank_ends_learner_by_name(played: SimpleNamespace) -> None:
    assert "learner rank 1 (Ray actor on" in played.end
    assert "died" in played.end


def test_timeline_is_written_and_actors_end(played: SimpleNamespace) -> None:
    assert any("run" in event.get("name", "") for event in json.loads(played.timeline.read_text()))
    assert not played.living_actors


@pytest.mark.skipif(shutil.which("nsys") is not None, reason="there is Nsight here")
def test_missing_nsight_is_reported(two_raylets: Any, tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"nsight is not installed.*needs Nsight Systems \(nsys\) on every machine"):
        run(tmp_path, "cluster.backend=ray", "cluster.nsight.t=cuda", "cluster.start_timeout_s=300")
