"""PPO with a reward model whose workers are Ray actors: in a pool of their own, and in one that the learner spans."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_runs import run
from ray_here import local_ray
from reward_models import save_model

from textenvs.messages import assistant, user
from trainers.config.reward_model import ClassifierSection
from trainers.rewards import ScoringRequest
from trainers.rewards.backends.classifier import Classifier
from trainers.run import Run

# One process of the tests runs all that use Ray, and so one Ray.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def ray(request: pytest.FixtureRequest) -> Any:
    return local_ray(request.config)


@pytest.mark.slow  # test_ppo_ray restarts a lost actor, too
@pytest.mark.parametrize("spanned", [False, True])
def test_ray_scores_match_and_lost_actor_restarts(ray, tmp_path, spanned):
    folder = save_model(tmp_path / "judge")
    seen: dict[str, Any] = {}
    talks = [(user("what is the sum"), assistant(f"the sum is {number}")) for number in range(4)]

    async def afterwards(made: Run) -> None:
        assert made.reward_models is not None
        service, pool = made.reward_models.service, made.reward_models.pools["helpful"]
        table = ray.util.placement_group_table().values()
        seen["groups"] = sorted(len(group["bundles"]) for group in table if group["state"] == "CREATED")
        before = [await service.score("helpful", ScoringRequest(talk)) for talk in talks[:2]]
        ray.kill(pool._ready[0].actor)
        after = [await asyncio.wait_for(service.score("helpful", ScoringRequest(talk)), 300) for talk in talks[2:]]
        seen["scores"] = list(before + after)
        seen["lost"] = made.reward_models.stats("helpful")["lost_workers"]

    rows = run(
        tmp_path / "run",
        *(
            "cluster.backend=ray",
            "cluster.start_timeout_s=800",
            "actor.use_kl_loss=false",
            "trainer.total_iterations=2",
        ),
        *("reward_model.enable=true", f"reward_model.classifier.path={folder}", "reward_model.name=helpful"),
        *("reward_model.enable_resource_pool=true", f"reward_model.learner_spans_pool={str(spanned).lower()}"),
        *(["cluster.learner_ranks=2"] if spanned else []),
        then=afterwards,
    )
    assert seen["groups"] == ([2] if spanned else [1, 1])
    assert seen["scores"] == Classifier(ClassifierSection(path=folder), device="cpu").score(talks), "to the last bit"
    assert seen["lost"] == 1
    trained = [row for row in rows if "train/reward" in row]
    assert len(trained) == 2
    for row in trained:
        assert row["reward/helpful_requests"] > 0
        assert row["reward/helpful_unscored"] == 0
        assert row["time/sleep_s"] > 0, "the engine shares its CPUs with the learner"
