"""PPO with the multiturn-aware reward, by its keys alone: what is trained on, what validation shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ppo_runs import in_process, metrics_of, training_of

from textenvs.lookahead import FORMULAS
from trainers.builders.reward_model import reward_problems
from trainers.command_line import resolve
from trainers.config.reward_model import MultiturnRewardSection
from trainers.rollout.play import Player
from trainers.trajectory import Trajectory

CLARIFY = [
    *("env.id=textenv/clarify", "env.val_kwargs={split: test}", "algorithm.adv_estimator=turn_grpo"),
    *("multiturn_reward.enable=true", "trainer.total_iterations=2", "rollout.max_response_length=8"),
]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, Trajectory]]:
    """All episodes of a run, and whether they were for training."""
    episodes: list[tuple[bool, Trajectory]] = []
    play = Player.play

    async def recorded_play(self: Player, backend: Any, episode: Any, *arguments: Any) -> Trajectory:
        trajectory = await play(self, backend, episode, *arguments)
        episodes.append((episode.training, trajectory))
        return trajectory

    monkeypatch.setattr(Player, "play", recorded_play)
    return episodes


@pytest.mark.parametrize(
    "options",
    [
        "algorithm.gamma=0 multiturn_reward.samples=2 multiturn_reward.window=1 multiturn_reward.cost=0.5",
        "multiturn_reward.credit=difference multiturn_reward.replace=false rollout.staleness=1",
        # test_multiturn.py has each formula, and futures in threads and processes.
        *(
            pytest.param(f"multiturn_reward.credit=difference {options}", marks=pytest.mark.slow)
            for options in (
                "algorithm.adv_estimator=gae multiturn_reward.formula=paper",
                "algorithm.adv_estimator=fork env.backend=thread env.workers=8",
            )
        ),
    ],
)
def test_futures_reward_turns_in_training_only(tmp_path: Path, played: Any, options: str) -> None:
    in_process(tmp_path, *CLARIFY, *options.split(" "))
    environments = {"correct", "wrong", "question", "needless"}
    worth = {"accuracy", "cost"}
    training = [trajectory for kind, trajectory in played if kind]
    assert len(training) >= 8
    for trajectory in training:
        for reward, terms in zip(trajectory.turn_rewards, trajectory.turn_terms, strict=True):
            assert worth | environments <= set(terms)
            assert reward == pytest.approx(sum(terms.values()))
            alone = sum(terms[name] for name in worth)
            environment_reward = sum(terms[name] for name in environments)
            assert reward == pytest.approx(alone + environment_reward * ("replace=false" in options))
    validated = [trajectory for kind, trajectory in played if not kind]
    assert validated
    for trajectory in validated:
        assert not any("accuracy" in terms for terms in trajectory.turn_terms)
    rows = training_of(tmp_path)
    for row in rows:
        assert row["reward/multiturn_failures"] == 0
        assert row["reward/multiturn_samples"] >= row["reward/multiturn_turns"]  # none, if it was all played before
    assert sum(row["reward/multiturn_turns"] for row in rows) >= sum(t.num_turns for t in training[:8])
    assert not any("val/terms/accuracy" in row for row in metrics_of(tmp_path))


class Fixed:
    """A judge that is made."""

    def __init__(self, grade: float) -> None:
        self.grade = grade

    def __call__(self, conversation: Any) -> float:
        return self.grade


def test_judge_is_built_from_its_options(tmp_path: Path, played: Any) -> None:
    judge = [f"multiturn_reward.judge={__name__}:Fixed", "multiturn_reward.judge_kwargs={grade: 0.25}"]
    in_process(tmp_path, *CLARIFY, "algorithm.gamma=0", "trainer.total_iterations=1", *judge)
    terms = [terms for training, trajectory in played if training for terms in trajectory.turn_terms]
    assert terms
    assert {term["interactivity"] for term in terms} == {0.25}


@pytest.mark.parametrize(
    ("judge", "kwargs", "message"),
    [
        ("no_such_judges:grade", "{}", "no module 'no_such_judges'"),
        (f"{__name__}:Fixed", "{grad: 1}", "judge=.*Fixed with judge_kwargs: .*unexpected keyword argument 'grad'"),
        ("textenvs.judges:InteractivityJudge", "{model: {base_ur: x}}", "did you mean 'base_url'"),
        ("textenvs.judges:Interactivity", "{reasons: x, score: 1}", "judge must be a callable"),
    ],
)
def test_unusable_judge_is_refused(judge: str, kwargs: str, message: str) -> None:
    options = [f"multiturn_reward.judge={judge}", f"multiturn_reward.judge_kwargs={kwargs}"]
    ((key, problem),) = reward_problems(resolve([*CLARIFY, "algorithm.gamma=0", *options])[0])
    assert key == "multiturn_reward"
    assert re.search(message, problem)


def test_formulas_match_the_schema() -> None:
    allowed = MultiturnRewardSection.model_fields["formula"].annotation
    assert set(allowed.__args__) == set(FORMULAS)  # type: ignore[union-attr]
