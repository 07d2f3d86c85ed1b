"""Benchmark of fork credit: its environments, its token counts, and resuming."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fork_credit import __main__ as command
from benchmarks.fork_credit import envs, report, runs

#: As tests/textenvs/envs/tau2 have it.
TAU2 = Path(os.environ.get("TAU2_DATA_DIR") or Path(__file__).resolve().parents[3] / "shared" / "data" / "tau2")
SMALL = {"clarify": envs.Sums, "collab-math": envs.Locks, "service-desk": envs.Handover}


@pytest.mark.parametrize("name", list(SMALL))
def test_expert_return_matches_reference(name: str) -> None:
    env = SMALL[name](split="test")
    returns = []
    for task in range(96):
        env.reset(options={"task_index": task})
        while not env.state.done:
            env.step(env.demonstration(np.random.default_rng(task)))
        assert 1 <= env.state.assistant_turns <= 3
        returns.append(env.state.return_so_far)
    assert np.mean(returns) == pytest.approx(runs.FAMILIES[name].expert, abs=0.005)


def curve(*points: tuple[int, float]) -> dict[str, object]:
    return {"family": "service-desk", "curve": points}


@pytest.mark.skipif(not TAU2.is_dir(), reason=f"tau2-bench's data is not at {TAU2}")
def test_phones_are_solved_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expert solves each task by what it says, and the prompt has neither policy nor tools."""
    monkeypatch.setenv("TAU2_DATA_DIR", str(TAU2))
    env = envs.Phones(split="test")
    size = env.tasks.size
    assert size is not None
    assert size > 10
    for task in range(size):
        conversation, _ = env.reset(options={"task_index": task})
        assert [message["role"] for message in conversation] == ["user"]
        while not env.state.done:
            env.step(env.demonstration(np.random.default_rng(task)))
        assert env.state.return_so_far == pytest.approx(runs.FAMILIES["tau2"].expert)
        assert env.state.assistant_turns < 6


def test_tokens_are_counted_to_mean_score() -> None:
    assert report.tokens_to(curve((0, 0.0), (100, 0.8), (200, 1.0), (300, 1.0))) == 200
    assert report.tokens_to(curve((0, 0.0), (100, 1.0), (200, 1.0))) == 180
    assert report.tokens_to(curve((0, 0.0), (100, 1.0), (200, 0.5))) is None
    assert report.tokens_to(curve((0, 0.95), (100, 1.0))) == 0
    words = report.median("service-desk", [300.0, None, 100.0])
    assert words == (300.0, "300 (100 to > 150,000)")
    assert report.median("service-desk", [300.0, None])[0] == float("inf")


def test_command_tunes_on_other_seeds_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    played, tries = [], runs.FAMILIES["clarify"].tries

    def play(family, setting, seed, model):
        if len(played) == 20:
            raise KeyboardInterrupt
        played.append((setting[0], setting[1], seed))
        tokens = dict(zip(tries, (8000, 2000, 4000), strict=True))[setting[1]]
        slower = 1 if setting[0].endswith("=fork") else 2
        return {"curve": [[0, 0.0], [slower * tokens, 1.0], [slower * 2 * tokens, 1.0]], "cpu_s": 0.0}

    def make_start(start, folder):
        start.path(folder).mkdir(parents=True)
        return {"score": 0.0, "cpu_s": 0.0}

    monkeypatch.setattr(runs, "play", play)
    monkeypatch.setattr(runs, "make_start", make_start)
    results = tmp_path / "results.json"
    monkeypatch.setitem(runs.FAMILIES, "clarify", replace(runs.FAMILIES["clarify"], tuning=(7,)))
    words = ["x", "--families", "clarify", "--seeds", "1,2", "--results", str(results)]
    words += ["--starts", str(tmp_path / "starts")]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(KeyboardInterrupt):
        command.main()
    assert len(json.loads(results.read_text())["runs"]) == 20
    played.clear()
    command.main()
    assert played == [(f"algorithm.adv_estimator={name}", tries[1], 2) for name in command.ESTIMATORS]
    assert "| `fork` to the best other | 0.50 |" in capsys.readouterr().out
    assert results.with_suffix(".png").exists()


def test_seeds_wait_for_tuning_and_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runs.FAMILIES, "clarify", replace(runs.FAMILIES["clarify"], tuning=(7,)))
    grpo = [
        {"family": "clarify", "estimator": "grpo", "try": this, "seed": 7} for this in runs.FAMILIES["clarify"].tries
    ]
    score = [{"curve": [[0, 0.0], [1000, last], [2000, last]]} for last in (0.0, 1.0, 0.0)]
    records = [run | curve for run, curve in zip(grpo, score, strict=True)]
    ready = list(command.keys(["clarify"], [1, 2], records))
    assert {key[:2] for key in ready if key[3] == 7} == {("clarify", n) for n in command.ESTIMATORS if n != "grpo"}
    assert [key for key in ready if key[3] != 7] == [
        ("clarify", "grpo", runs.FAMILIES["clarify"].tries[1], seed) for seed in (1, 2)
    ]
    assert not [key for key in command.keys(["clarify"], [1, 2], records[:2]) if key[3] != 7]

    taught = runs.Start("clarify", None)
    assert list(command.started(ready, tmp_path)) == [taught]
    taught.path(tmp_path).mkdir()
    assert list(command.started(ready, tmp_path)) == [runs.Start("clarify", seed) for seed in (7, 1, 2)]
    runs.Start("clarify", 1).path(tmp_path).mkdir()
    assert list(command.started(ready[-2:], tmp_path)) == [ready[-2], runs.Start("clarify", 2)]
