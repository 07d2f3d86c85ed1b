"""Benchmark of transfer between users: its users, its statistics, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.user_transfer import __main__ as command
from benchmarks.user_transfer import report, runs
from textenvs.registry import make
from trainers.command_line import resolve


@pytest.mark.parametrize("family", [*runs.TRAINED, *runs.UNSEEN])
def test_every_user_is_solvable_but_not_by_guessing(family: str) -> None:
    env = make(runs.ENV, split="test", **runs.kwargs_of(family, None))
    solved = []
    for task in range(60):
        env.reset(seed=task, options={"task_index": task})
        while not env.state.done:
            env.step(env.demonstration(np.random.default_rng(task)))
        solved.append(env.state.stop == "solved")
    assert all(solved)
    env.reset(seed=0, options={"task_index": 1})
    assert env.step("#### 0")[-1]["stop"] != "solved"  # the code is 1


def test_mixture_holds_families_and_endpoint() -> None:
    config, _ = resolve(runs._environments(runs.TRAINED, None))
    assert {name: part.kwargs for name, part in config.env.mixture.items()} == {
        family: {"manner": family} for family in runs.TRAINED
    }
    user = {"model": "m", "base_url": "http://localhost:1/v1"}
    config, _ = resolve(runs._environments([runs.MODEL], user))
    assert config.env.kwargs == {"user": user}


def cell(policy: str, user: str, *solved: str) -> list[dict[str, object]]:
    return [{"policy": policy, "user": user, "seed": seed, "solved": text} for seed, text in enumerate(solved)]


def test_losses_are_differences_on_equal_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (report, runs):
        monkeypatch.setattr(module, "TRAINED", ("plain", "vague"))
        monkeypatch.setattr(module, "UNSEEN", ("wordy",))
    cells = [
        *cell("plain", "plain", "1111", "1111"),
        *cell("plain", "vague", "0100", "1100"),
        *cell("vague", "vague", "1111", "1110"),
        *cell("vague", "plain", "1100", "11-0"),
        *cell("population", "plain", "1111", "0111"),
        *cell("population", "vague", "1111", "1111"),
    ]
    outcomes = report.outcomes(cells)
    lost = report.losses(outcomes)
    # By task, plain against vague and vague against plain: (0.5, 0), (0, 0), (1, 1), (0.5, 1).
    assert lost["single"][0] == pytest.approx(np.mean([0.25, 0, 1, 0.75]))
    assert lost["plain"][0] == pytest.approx(np.mean([0.5, 0, 1, 0.5]))
    assert lost["population"][0] == pytest.approx(np.mean([0.25, 0, 0, -0.25]))
    assert all(low <= value <= high for value, low, high in lost.values())
    assert "unseen" not in lost
    assert "100% recovered; at most 5 points lost by the population: kept" in report.summary(outcomes)
    assert report.table(outcomes).splitlines()[2].startswith("| plain | 100.0 (")


def test_command_resumes_after_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    done: list[tuple[object, ...]] = []
    interrupted: list[bool] = []

    def train(name, seed, families, user, folder):
        done.append((name, seed, tuple(families)))
        runs.model_of(name, seed, folder).mkdir(parents=True)
        return {"sampled_tokens": 1, "cpu_s": 0.0}

    def score(model, family, user):
        if len(done) == 30 and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        done.append((model.name, family))
        return {"solved": "10", "return": 0.5, "turns": 2.0}

    monkeypatch.setattr(command, "train", train)
    monkeypatch.setattr(command, "score", score)
    results = tmp_path / "results.json"
    words = ["--policies", str(tmp_path / "p"), "--results", str(results), "--picture", str(tmp_path / "a.png")]
    monkeypatch.setattr("sys.argv", ["x", *words])
    with pytest.raises(KeyboardInterrupt):
        command.main()
    command.main()
    assert len(done) == len(set(done)) == 19 * (1 + len(runs.TRAINED) + len(runs.UNSEEN))
    assert ("population", 1, runs.TRAINED) in done
    stored = json.loads(results.read_text())
    assert (len(stored["trained"]), len(stored["cells"])) == (19, 133)
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert "at most 5 points lost by the population: kept" in capsys.readouterr().out
    before = len(done)
    monkeypatch.setattr("sys.argv", ["x", *words[2:], "--policies", str(tmp_path / "elsewhere")])
    command.main()
    assert len(done) == before  # all cells are known; policies that are gone are not trained again
    results.write_text(json.dumps(stored | {"settings": "others"}))
    with pytest.raises(SystemExit, match=r"results\.json is of other settings"):
        command.main()


@pytest.mark.slow  # runs and evaluations as those of test_ppo.py and test_command_evaluate.py
def test_policy_is_trained_saved_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_COMMON", (*runs._COMMON, "rollout.groups_per_batch=2"))
    short = ("warm_start.steps=1", "warm_start.batch_size=4", "warm_start.demonstrations=8")
    shorter = {"_IMITATE": ("warm_start.careless_steps=1", "model.hidden=32", "model.layers=1"), "_READ": ()}
    for name, extra in shorter.items():
        monkeypatch.setattr(runs, name, (*getattr(runs, name), *short, *extra))
    monkeypatch.setattr(runs, "ITERATIONS", 1)
    assert runs.train("vague", 1, ["vague"], None, tmp_path)["sampled_tokens"] > 0
    assert sorted(path.name for path in (tmp_path / runs.SETTINGS).iterdir()) == ["imitation-0", "start-0", "vague-1"]
    monkeypatch.setattr(runs, "jobs", lambda tasks, samples, seed: command_jobs(list(tasks)[:8], samples, seed))
    first, again = (runs.score(runs.model_of("vague", 1, tmp_path), "wordy", None) for _ in range(2))
    assert first == again
    assert len(first["solved"]) == 8


command_jobs = runs.jobs
