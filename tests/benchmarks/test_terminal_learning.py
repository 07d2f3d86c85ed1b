"""The learning curve in a terminal: its small environment, what is held out, and that a stopped command resumes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import imitation
from benchmarks.imitation import IMITATION, REINFORCEMENT
from benchmarks.terminal_learning import __main__ as command
from benchmarks.terminal_learning import report, runs
from benchmarks.terminal_learning.env import CORRECTIONS, plan
from benchmarks.terminal_learning.runs import HELD_OUT, Policy, Settings
from textenvs.envs.terminal.tasks import assignment_of_task
from textenvs.messages import text_of
from textenvs.registry import make
from textenvs.tools.formats import call
from trainers.command_line import resolve

SETTINGS = Settings()


def environment(seed: int, *, is_checked: bool = True):
    axis = SETTINGS.axis(seed, is_checked=is_checked)
    return make(axis.env, **axis.options)


def test_tasks_have_the_chosen_kinds() -> None:
    trained, held_out = environment(0).tasks, environment(HELD_OUT).tasks
    tasks = [trained[index] for index in range(12)]
    assert {assignment_of_task(task).faults[0].kind for task in tasks} <= {*SETTINGS.kinds}
    assert len({task.key for task in (*tasks, held_out[0], held_out[1])}) == 14


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_expert_repairs_each_kind(kind: str) -> None:
    env = make(runs.ENV, kinds=[kind], seed=HELD_OUT)
    talk = imitation.expert_talk(env, 0)
    assert env.state.share == 1.0
    assert talk.tools == ("run", "run", "run", "finish")
    assert env.state.commands == tuple(plan(env.assignment))
    assert recited(make(runs.ENV, kinds=[kind], seed=HELD_OUT, is_checked=False), kind, 3) == talk


def recited(env, kind: str, count: int):
    env.reset(seed=0, options={"task_index": 0})
    return runs.recited(env, kind, count)


@pytest.mark.parametrize(("kind", "other"), [("figure", "wrong-unit"), ("off-by-one", "ignored-place")])
def test_corrections_of_another_kind_repair_nothing(kind: str, other: str) -> None:
    env = make(runs.ENV, kinds=[kind], seed=HELD_OUT)
    talk = recited(env, other, 3)
    env.reset(seed=0, options={"task_index": 0})
    played = [*env.state.messages]
    for message in (one for one in talk.demonstration.messages if one["role"] == "assistant"):
        conversation, reward, terminated, _, info = env.step(message)
        assert reward <= 0
        played = [*conversation]
    assert (terminated, info["stop"]) == (True, "unsolved")
    assert played == [*talk.demonstration.messages]


def test_careless_conversations_end_early_or_correct_another_kind(tmp_path: Path) -> None:
    talks = runs.Runs(SETTINGS, tmp_path).talks(0, 24, is_careless=True)
    assert {talk.tools[-1] for _, talk in talks} == {"finish"}
    assert {len(talk.tools) for _, talk in talks} == {2, 3, 4}
    expert = runs.Runs(SETTINGS, tmp_path).talks(0, 24)
    whole = [careless == right for (_, careless), (_, right) in zip(talks, expert, strict=True)]
    assert 6 <= sum(whole) < 24


def end_of(env, *commands: str) -> tuple[float, float]:
    """Return the share that is done after some commands, and the last reward of the episode."""
    env.reset(seed=0, options={"task_index": 0})
    for line in commands:
        env.step(env.format.write("", [call("run", command=line)]))
    _, reward, terminated, _, _ = env.step(env.format.write("", [call("finish")]))
    assert terminated
    return env.state.share, reward


@pytest.mark.parametrize("kind", SETTINGS.practised)
class TestVerdictByFiles:
    def test_it_is_that_of_the_checks(self, kind: str) -> None:
        by_files, by_checks = (make(runs.ENV, kinds=[kind], reads_files=reads_files) for reads_files in (True, False))
        by_files.reset(seed=0, options={"task_index": 0})
        commands = plan(by_files.assignment)
        assert end_of(by_files, *commands) == end_of(by_checks, *commands) == (1.0, 1.0)
        assert end_of(by_files, *commands[:-1])[1] == end_of(by_checks, *commands[:-1])[1] == 0.0

    def test_no_check_is_run(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("textenvs.envs.terminal.env.verify", None)
        env = make(runs.ENV, kinds=[kind], reads_files=True)
        env.reset(seed=0, options={"task_index": 0})
        assert end_of(env, *plan(env.assignment)) == (1.0, 1.0)
        assert end_of(env, "touch main.py") == (0.0, 0.0)

    @pytest.mark.parametrize(("command", "share"), [("rm -r data", 0.0), ("echo >>notes", 1.0), ("rm main.py", 0.5)])
    def test_other_files_are_checked(self, kind: str, command: str, share: float) -> None:
        env = make(runs.ENV, kinds=[kind], reads_files=True)
        env.reset(seed=0, options={"task_index": 0})
        assert end_of(env, *plan(env.assignment), command)[0] <= share
        assert (env.state.share == 1.0) == (share == 1.0)


@pytest.mark.parametrize("opens_page", [True, False])
@pytest.mark.parametrize(("hook", "stop", "last"), [("demonstration", "solved", 3), ("careless_reply", "unsolved", 2)])
def test_scripted_replies_with_and_without_page(hook: str, stop: str, last: int, opens_page: bool) -> None:
    env, rng = make(runs.ENV, kinds=SETTINGS.practised, opens_page=opens_page), np.random.default_rng(0)
    env.reset(seed=0, options={"task_index": 0})
    terminated, info = False, {}
    while not terminated:
        _, _, terminated, _, info = env.step(getattr(env, hook)(rng))
    assert env.state.commands == tuple(plan(env.assignment)[0 if opens_page else 1 : last])
    assert info["stop"] == stop


def test_kinds_without_correction_are_refused() -> None:
    with pytest.raises(ValueError, match="kinds: 'permission' is not one of wrong-unit, "):
        make(runs.ENV, kinds=["figure", "permission"])


def test_prompt_names_the_tools() -> None:
    env = environment(0)
    messages, _ = env.reset(seed=0, options={"task_index": 0})
    assert [message["role"] for message in messages] == ["system", "user"]
    assert text_of(messages[0]) == "run(command), finish()"
    assert env.tools_not_in_prompt == []


@pytest.mark.parametrize("model", runs.MODELS)
def test_settings_are_valid(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.Runs, "start", lambda self, seed: "smollm2")
    monkeypatch.setattr(runs.Runs, "model", lambda self, policy: "smollm2")
    work = runs.Runs(runs.MODELS[model], tmp_path)
    assert work.imitation(3, 7).sft.steps == 7
    assert work.carelessness(Policy(REINFORCEMENT, 3, 1000), 5).sft.steps == 5
    for credit in dict(SETTINGS.credit):
        config = resolve(work.reinforcement(Policy(REINFORCEMENT, 3, 1000, 500, credit), tmp_path))[0]
        assert (config.env.kwargs["seed"], config.trainer.seed) == (3, 3)
        assert tuple(config.env.kwargs["kinds"]) == SETTINGS.practised


def test_demonstrations_are_played_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = runs.Runs(SETTINGS, tmp_path)
    played = work.talks(0, 2)
    monkeypatch.setattr(runs, "_played", None)
    assert work.talks(0, 2) == played
    assert [kind in SETTINGS.kinds for kind, _ in played] == [True, True]
    assert played[0][1].tools[-1] == "finish"


def score_of(phase: str, solved: str) -> dict[str, object]:
    took = {"curve": [[10, 0.25], [20, 0.5]]} if phase == REINFORCEMENT else {}
    replies = {"replies": ["1101", "1110"], "tools": [[4, 4], [3, 4]]}
    practised = {"practised": solved[::-1]} if phase == REINFORCEMENT else {}
    return {"kinds": ["figure", "off-by-one"], "solved": solved, **replies, **practised, "took": took}


def row(phase: str, seed: int, solved: str, sampled: int = 0, credit: str = "") -> dict[str, object]:
    place = {"phase": phase, "imitated": 1000, "sampled": sampled, "credit": credit, "seed": seed}
    return place | score_of(phase, solved)


def test_shares_are_over_tasks_of_all_seeds(tmp_path: Path) -> None:
    rows = [row(IMITATION, 0, "10"), row(IMITATION, 1, "1-"), row(REINFORCEMENT, 0, "01")]
    rows.append(row(REINFORCEMENT, 0, "11", 20, "turns"))
    imitated = rows[:2]
    assert report.share(imitated, "repaired")["value"] == pytest.approx(2 / 3)
    assert report.share(imitated, "repaired", "off-by-one")["value"] == 0
    assert report.share(imitated, "repair to the letter")["value"] == 0.5
    assert report.share(imitated, "replies to the letter")["value"] == pytest.approx(6 / 8)
    assert report.share(imitated, "tools")["value"] == pytest.approx(7 / 8)
    assert report.share([], "repaired") is None
    assert report.share(imitated, report.PRACTISED) is None
    assert [report.share([row], report.PRACTISED)["value"] for row in rows[2:]] == [0.5, 1.0]
    assert "| carelessness | 1,000 |" in report.table(rows)
    assert "| ppo, turns | 1,000 | 20 |" in report.table(rows)
    assert "| imitation | 1,000 |  | 2 | 67 (" in report.table(rows)
    assert report.table([]) == "no results"
    report.draw(rows, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 1000


def test_command_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    scored: list[str] = []

    def score(self, policy):
        if len(scored) == 2 and "interrupted" not in scored:
            scored.append("interrupted")
            raise KeyboardInterrupt
        scored.append(policy.name)
        return score_of(policy.phase, "11")

    monkeypatch.setattr(runs.Runs, "score", score)
    results = tmp_path / "results.jsonl"
    words = ["--results", str(results), "--seeds", "0,1", "--tasks", "2", "--imitated", "10,20", "--sampled", "5"]
    words += ["--credit", "turns,forks"]
    with pytest.raises(KeyboardInterrupt):
        command.main(words)
    command.main(words)
    names = [f"imitation-{tokens}-0-{seed}" for seed in (0, 1) for tokens in (10, 20)]
    trained = [f"ppo-20-5-{seed}-{credit}" for seed in (0, 1) for credit in ("turns", "forks")]
    assert sorted({*scored} - {"interrupted"}) == sorted([*names, "ppo-20-0-0", "ppo-20-0-1", *trained])
    assert len(scored) == 11
    assert len([json.loads(line) for line in results.read_text().splitlines()]) == 10
    assert (tmp_path / "results-tiny.png").stat().st_size > 1000
    assert "| ppo, turns | " in capsys.readouterr().out
