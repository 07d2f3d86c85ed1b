"""PPO in several environments at once, by its keys alone: what is played, reported, resumed and shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ppo_runs import arguments, comparable, each_batch, in_process, metrics_of, training_of

from trainers.builders import SetupError
from trainers.builders.environments import Component, described, played, shares
from trainers.builders.policy import demonstrations_of, experts_of, tokenizer_texts, with_available_scripts
from trainers.builders.rehearsal import rehearse
from trainers.command_line import resolve
from trainers.config import PPOConfig
from trainers.rollout.demonstrations import DemonstrationError

BYTES = "program_envs:tests/bytes"
MIXTURE = [
    *("env.id=textenv/gsm8k-interact", f"env.mixture.few.id={BYTES}", "env.mixture.few.kwargs.tasks=3"),
    *("env.mixture.talk.id=textenv/clarify", "env.mixture.talk.weight=3", "rollout.groups_per_batch=4"),
    *("env.curriculum.kind=signal", "env.curriculum.reverse_share=0.4", "algorithm.adv_estimator=grpo"),
]


def test_mixture_reports_by_component_and_resumes_exactly(tmp_path: Path) -> None:
    overrides = [*MIXTURE, "trainer.total_iterations=5", "rollout.max_running=1", "trainer.save_freq=1"]
    whole: list[Any] = []
    parts: list[Any] = []

    in_process(tmp_path / "whole", *overrides, look=each_batch(whole.append))
    in_process(tmp_path / "parts", *overrides, look=each_batch(parts.append), stop_after=2)
    in_process(tmp_path / "parts", *overrides, look=each_batch(parts.append))
    choices = [choice for batch in whole for choice in batch.choices]
    assert choices == [choice for batch in parts for choice in batch.choices]
    assert comparable(training_of(tmp_path / "whole")) == comparable(training_of(tmp_path / "parts"))
    assert any(choice.start is not None for choice in choices), "otherwise this test shows little"
    for number, row in enumerate(training_of(tmp_path / "whole")):
        played = Counter(choice.component for choice in choices[4 * number : 4 * number + 4])
        for name in ("few", "talk"):
            assert row[f"train/mixture/{name}/share"] == played[name] / 4
            assert f"rollout/curriculum/{name}/share" in row
            assert (f"train/mixture/{name}/reward" in row) == bool(played[name])
        assert sum(row.get(f"train/begun/{where}/share", 0.0) for where in ("opening", "middle")) == 1
    last = [row for row in metrics_of(tmp_path / "whole") if "val/reward" in row][-1]
    assert last["val/episodes"] == 6, "three tasks of each"
    assert last["val/mixture/few/share"] == last["val/mixture/talk/share"] == 0.5


def test_mixture_with_staleness_filters_replicas_and_threads(tmp_path: Path) -> None:
    overrides = ["rollout.staleness=1", "rollout.filter_zero_variance=true", "engine.replicas=2", "env.backend=thread"]
    in_process(tmp_path, *MIXTURE, *overrides, "env.workers=2", "trainer.total_iterations=2")
    assert len(training_of(tmp_path)) == 2


def config_of(*overrides: str) -> PPOConfig:
    return resolve([*MIXTURE, *overrides])[0]


def test_dry_run_prints_mixture(tmp_path: Path) -> None:
    output = rehearse(resolve([*arguments(tmp_path), *MIXTURE])[0])
    assert "env.mixture.few: program_envs:tests/bytes {'tasks': 3}, 25% of the groups at first" in output
    assert "the opening of training task 0 of env.mixture.talk.id=textenv/clarify has " in output
    assert "validation (env.mixture.few) is on tasks 0 to 2, which are trained on, too" in output
    assert not described(resolve([])[0])


def test_warm_start_shows_each_component_by_weight() -> None:
    config = config_of("warm_start.demonstrations=10", "warm_start.mistake_rate=0")
    assert experts_of(config) == played(config)
    counts = Counter(component.name for component, _ in demonstrations_of(played(config), config.warm_start, seed=0))
    assert counts == {"few": 3, "talk": 7}
    silent = "env.mixture.mute.id=program_envs:tests/silent"
    config = config_of(silent, "warm_start.demonstrations=10")
    available, notes = with_available_scripts(config)
    assert available.warm_start.enable is None
    assert any("does not show env.mixture.mute" in note for note in notes)
    assert any("no mistakes (env.mixture.few)" in note for note in notes)
    assert [expert.name for expert in experts_of(available)] == ["few", "talk"]
    texts = [*tokenizer_texts(played(config), available.warm_start, seed=0)]
    assert any("Say 0." in text for text in texts), "the tokenizer is made for those as well"
    requested = config_of(silent, "warm_start.enable=true", "warm_start.demonstrations=9", "warm_start.mistake_rate=0")
    with pytest.raises(DemonstrationError, match=r"env\.mixture\.mute: .*no scripted demonstrations"):
        [*demonstrations_of(experts_of(requested), requested.warm_start, seed=0)]


@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_shares_are_whole_and_sum_up(count: int) -> None:
    parts = [Component(str(weight), "x", {}, weight=weight) for weight in (1.0, 2.5, 0.1)]
    numbers = shares(parts, count)
    assert sum(numbers) == count
    assert all(abs(number - count * part.weight / 3.6) < 1 for number, part in zip(numbers, parts, strict=True))


def test_signal_curriculum_without_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="chooses components of env.mixture, and tasks that repeat"):
        in_process(tmp_path, "env.curriculum.kind=signal", "trainer.total_iterations=1")
