"""``data.filter_overlong_prompts``: what is left out, and what of a run that changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ppo_runs import each_batch, in_process
from program_envs import Wordy

from textenvs.messages import user
from trainers.builders import SetupError
from trainers.builders.environments import backend_of, longest_prompt, overlong_of, played
from trainers.command_line import resolve
from trainers.config import PPOConfig
from trainers.models.tiny import build_tokenizer
from trainers.rollout.curriculum import measure_openings
from trainers.rollout.renderer import Renderer

RENDERER = Renderer(build_tokenizer(["word word word"]))
WORDY = ("env.id=program_envs:tests/wordy", "env.val_kwargs={}", "data.filter_overlong_prompts=true")


def length(words: int, renderer: Renderer = RENDERER) -> int:
    return len(renderer.render([user(" ".join(["word"] * words))]))


def config_of(*overrides: str) -> PPOConfig:
    return resolve([*WORDY, "env.kwargs.torn=true", *overrides])[0]


async def overlong_tasks(*overrides: str) -> tuple[set[int], set[int], list[str]]:
    notes: list[str] = []
    overlong = (await overlong_of(config_of(*overrides), RENDERER, notes.append))[""]
    return set(overlong.training), set(overlong.validation), notes


@pytest.mark.parametrize("backend", ["inline", "thread"])
async def test_openings_are_measured_as_they_are_rendered(backend: str) -> None:
    config = config_of(f"env.backend={backend}")
    async with backend_of(config, *played(config), validation=False) as envs:
        lengths, failed = await measure_openings(envs, RENDERER, range(12), seed=0)
    assert lengths == {i: length(max(1, i)) for i in range(12) if i != 5}
    assert list(failed) == [5]
    assert "the page is torn" in failed[5]


async def test_overlong_tasks_are_dropped_and_reported() -> None:
    training, validation, notes = await overlong_tasks(f"data.longest_prompt={length(8)}", "data.val_size=10")
    assert training == {9, 10, 11}, "as long as the limit is not too long, and what cannot be opened stays"
    assert validation == {9}
    assert notes[0] == f"3 of 12 training tasks are left out: their openings have more than {length(8)} tokens"
    assert notes[1].startswith("1 training tasks could not be opened, and stay in; task 5: ")
    assert notes[2].startswith("1 of 10 validation tasks are left out")


async def test_only_tasks_that_are_played_are_measured() -> None:
    training, _, notes = await overlong_tasks(f"data.longest_prompt={length(2)}", "data.train_size=5")
    assert training == {3, 4}
    assert notes[0].startswith("2 of 5 ")
    endless = await overlong_tasks("env.kwargs.tasks=null", f"data.longest_prompt={length(2)}", "data.train_size=5")
    assert endless[0] == training, "of an endless set these are the first"


async def test_without_key_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wordy, "opening", None)
    assert await overlong_tasks("data.filter_overlong_prompts=false") == (set(), set(), [])


async def test_tasks_that_never_end_are_refused() -> None:
    with pytest.raises(SetupError, match=r"never end: give data.train_size=N"):
        await overlong_tasks("env.kwargs.tasks=null")


async def test_all_overlong_error_names_shortest_length() -> None:
    with pytest.raises(SetupError, match=rf"leaves no training task: .* all 5 .* 2 tokens, the shortest {length(1)}:"):
        await overlong_tasks("data.longest_prompt=2", "data.train_size=5")


def test_default_limit_leaves_room_for_reply() -> None:
    config = config_of("engine.max_context=100", "rollout.max_response_length=30")
    assert longest_prompt(config) == 70
    assert longest_prompt(config_of("data.longest_prompt=12")) == 12


def test_verl_keys_set_filter_and_limit() -> None:
    lengths = ["data.max_prompt_length=100", "data.max_response_length=40"]
    on, _ = resolve(["data.filter_overlong_prompts=true", "actor.max_tokens_per_micro_batch=512", *lengths])
    assert (on.data.filter_overlong_prompts, on.data.longest_prompt, on.engine.max_context) == (True, 100, 140)
    for off in ("False", "null"):
        config, _ = resolve([f"data.filter_overlong_prompts={off}", *lengths])
        assert (config.data.filter_overlong_prompts, config.data.longest_prompt) == (False, None)


# ------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def run_renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """Return the runs' renderer, whose tokenizer follows from the environment."""
    few = [*WORDY, "data.filter_overlong_prompts=false", "trainer.total_iterations=1"]
    return Renderer(in_process(tmp_path_factory.mktemp("run"), *few).tokenizer)


def test_run_and_resume_play_remaining_tasks(tmp_path: Path, run_renderer: Renderer) -> None:
    played: set[str] = set()

    def look(run: Any) -> None:
        assert run.validation_tasks == {"": [0, 1, 2]}
        each_batch(lambda batch: played.update(trajectory.task_key for trajectory in batch.trajectories))(run)

    # Tasks 0, 1 and 2 fit, and with two groups a batch three iterations play each of them.
    overrides = [*WORDY, "env.kwargs.tasks=5", f"data.longest_prompt={length(2, run_renderer)}"]
    in_process(tmp_path, *overrides, "trainer.total_iterations=2", look=look)
    assert played <= {f"task/{i}" for i in range(3)}
    in_process(tmp_path, *overrides, "trainer.total_iterations=3", look=look)
    assert played == {f"task/{i}" for i in range(3)}
