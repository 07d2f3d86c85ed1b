"""The scaling curve over generated worlds: what is held out, what is counted, and that a stopped command resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.world_scaling import __main__ as command
from benchmarks.world_scaling import report, runs
from benchmarks.world_scaling.scales import AXES, ENV, HELD_OUT, SCALES
from textenvs.envs.worlds.patterns import is_drawn
from textenvs.envs.worlds.tasks import story_of
from textenvs.registry import make
from trainers.command_line import resolve


def stories(options, count):
    tasks = make(ENV, **options).tasks
    return [story_of(tasks[number].key) for number in range(count)]


@pytest.mark.parametrize("name", SCALES)
def test_each_axis_holds_out_one_thing(name: str) -> None:
    scale = SCALES[name]
    trained = stories(scale.training(2, 0), 4)
    assert len({story.world.name for story in trained}) == 2
    for axis in AXES:
        options = scale.played(axis, 2, 0)
        played = stories(options, 4)
        assert len({story.world.name for story in played}) == (2 if axis == "own" else 4)
        common = {story.world.name for story in played} & {story.world.name for story in trained}
        assert bool(common) == (axis == "own")
        assert options["split"] == ("test" if axis == "wordings" else "train")
        goals = "test" if axis == "goals" else "train"
        assert all(is_drawn(story.goal, goals) for story in played)
        for story in played:
            others = {*story.world.schema.applications} - {"personnel"}
            assert others <= {*HELD_OUT} if axis == "applications" else not others & {*HELD_OUT}


@pytest.mark.parametrize("name", SCALES)
def test_settings_are_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.Runs, "start", lambda self, seed: "smollm2")
    monkeypatch.setattr(runs.Runs, "policy", lambda self, *policy: "smollm2")
    work = runs.Runs(SCALES[name], tmp_path)
    assert work.imitation(10, 3, 7).sft.steps == 7
    config = resolve(work.reinforcement(10, 3, tmp_path))[0]
    assert (config.env.kwargs["worlds"], config.env.kwargs["seed"], config.trainer.seed) == (10, 3, 3)


def row(phase: str, worlds: int, seed: int, solved: str, replies: list[list[int]]) -> dict[str, object]:
    return {"phase": phase, "worlds": worlds, "seed": seed, "axes": {"own": {"solved": solved, "replies": replies}}}


def test_shares_are_over_tasks_of_all_seeds() -> None:
    rows = [
        row("imitation", 10, 0, "10-", [[1, 2], [0, 2], [3, 3]]),
        row("imitation", 10, 1, "110", [[2, 2], [1, 2], [0, 1]]),
        row("ppo", 10, 0, "---", []),
    ]
    solved, replies = report.shares(rows, report.SOLVED), report.shares(rows, "replies")
    assert set(solved) == {("imitation", "own", 10)}
    assert solved["imitation", "own", 10]["value"] == pytest.approx(3 / 5)
    assert replies["imitation", "own", 10]["value"] == pytest.approx(7 / 12)
    for share in (*solved.values(), *replies.values()):
        assert 0 <= share["low"] <= share["value"] <= share["high"] <= 1
    assert "| imitation | own, replies | 58.3 (" in report.table(rows)
    assert report.table([]) == "no results"


def test_command_resumes_within_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    played: list[tuple[str, ...]] = []
    interrupted: list[bool] = []

    def score(self, model, axis):
        if len(played) == 8 and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        played.append((model, axis.env, json.dumps(axis.options)))
        return {"solved": "10", "return": 0.5} | ({"replies": [[1, 2], [0, 1]]} if axis.env == ENV else {})

    monkeypatch.setattr(runs.Runs, "policy", lambda self, *policy: "-".join(map(str, policy)))
    monkeypatch.setattr(runs.Runs, "costs", lambda self, *policy: {"tokens": 5})
    monkeypatch.setattr(runs.Runs, "score", score)
    results = tmp_path / "results.jsonl"
    words = ["--results", str(results), "--worlds", "1,10", "--seeds", "0", "--tasks", "2", "--phases", "imitation"]
    words += ["--transfer", 'textenv/service-desk={"level": "easy"}']
    with pytest.raises(KeyboardInterrupt):
        command.main(words)
    command.main(words)
    assert len(played) == len(set(played)) == 1 + 2 * (len(AXES) + 1)
    assert ("start-0-0", "textenv/service-desk", '{"level": "easy"}') in played
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["phase"], line["worlds"], len(line["axes"])) for line in rows] == [
        ("start", 0, 1),
        ("imitation", 1, 6),
        ("imitation", 10, 6),
    ]
    assert (tmp_path / "results-cpu.png").stat().st_size > 1000
    assert "| imitation | textenv/service-desk | " in capsys.readouterr().out
