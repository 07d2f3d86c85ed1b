"""The learning curve over sessions: its small environment, what notebooks are worth, and that a command resumes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.imitation import IMITATION, REINFORCEMENT
from benchmarks.sessions_learning import __main__ as command
from benchmarks.sessions_learning import report, runs
from benchmarks.sessions_learning.env import PEOPLE, THINGS, WRITERS, shortened, writing
from benchmarks.sessions_learning.runs import ENV, HELD_OUT, MEASURES, SCRIPT, Policy, Settings
from textenvs.envs.sessions.life import life_of
from textenvs.envs.sessions.regret import bound_of, expected_of_expert
from textenvs.messages import text_of
from textenvs.registry import make
from trainers.command_line import resolve
from trainers.models import tiny

SETTINGS = Settings()
KEY = "easy/train/0/sessions=6+people=2+things=3+capacity=25/7"


def episode(writer: str, index: int = 0) -> tuple[dict[str, float], list[str]]:
    """Play a script; return the metrics at the end, and all that it was shown and replied."""
    env: Any = make(ENV, writer=writer, seed=HELD_OUT)
    rng, texts, info = np.random.default_rng(0), list[str](), dict[str, Any]()
    messages, _ = env.reset(seed=0, options={"task_index": index})
    while not env.state.done:
        reply = env.demonstration(rng)
        texts += [text_of(messages[-1]), reply]
        messages, _, _, _, info = env.step(reply)
    return info["metrics"], texts


def test_short_names_change_nothing_else() -> None:
    life = life_of(KEY)
    short = shortened(life)
    assert (short.people, short.things) == (tuple(PEOPLE), tuple(THINGS))
    assert short.answers == life.answers
    assert [session.protected for session in short.sessions] == [session.protected for session in life.sessions]
    assert bound_of(short) == pytest.approx(bound_of(life), abs=1e-12)
    assert expected_of_expert(short) == pytest.approx(expected_of_expert(life), abs=1e-12)
    assert pickle.loads(pickle.dumps(short)).sessions == short.sessions


def test_sessions_are_short() -> None:
    _, texts = episode("any")
    assert texts[0].startswith("Days 1 6 61 ")
    assert max(map(len, texts)) < 160
    assert texts[-2].split("\n")[-1].split()[1] in PEOPLE


def test_unknown_writers_are_refused() -> None:
    with pytest.raises(ValueError, match="writer: 'careless' is not one of none, any, "):
        make(ENV, writer="careless")


def test_expert_writes_best_and_nothing_is_least() -> None:
    metrics = {writer: [episode(writer, index)[0] for index in range(40)] for writer in WRITERS}
    written = {writer: np.mean([one["written"] for one in lives]) for writer, lives in metrics.items()}
    assert max(written, key=written.__getitem__) == "expert"
    assert min(written, key=written.__getitem__) == "none"
    assert written["expert"] == pytest.approx(np.mean([one["expert"] for one in metrics["expert"]]))
    assert all(one["right"] == 1.0 and one["leaks"] == 0.0 for one in metrics["any"])


def test_only_right_lines_of_notebooks_count() -> None:
    life = shortened(life_of(KEY))
    told = life.sessions[0].statements[0]
    good = f"{told.key[0]}{told.key[1]}{told.value}"
    nothing = [""] * 5
    assert writing(life, [good, *nothing])["right"] == 1.0
    for wrong in (f"{good[:2]}{good[:1:-1]}", f"{'ab'[good[0] == 'a']}{good[1:]}", "unknown"):
        assert writing(life, [wrong, *nothing]) == {**writing(life, ["", *nothing]), "right": 0.0}
    assert writing(life, [f"{good}\nunknown", *nothing])["right"] == 0.5


def test_codes_have_the_same_tokens_everywhere() -> None:
    _, texts = episode("until-full")
    pairs = [f"{first}{second}" for first in "k3f9xq2b" for second in "k3f9xq2b"]
    tokenizer = tiny.build_tokenizer([*texts, *pairs * 9], 2048, words=runs._WORDS)
    code = tokenizer.encode("k3f9xq2b")
    assert len(code) == 4
    for text in ("axk3f9xq2b b", "Now byk3f9xq2b", "a6 k3f9xq2b", "az was k3f9xq2b"):
        tokens = tokenizer.encode(text)
        assert code in [tokens[start : start + 4] for start in range(len(tokens))]


def test_settings_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.Runs, "start", lambda self, seed: "smollm2")
    monkeypatch.setattr(runs.Runs, "model", lambda self, policy: "smollm2")
    work = runs.Runs(SETTINGS, tmp_path)
    assert work.imitation(3, 7).sft.steps == 7
    config: Any = resolve(work.reinforcement(Policy(REINFORCEMENT, 3, "any", 0.0), tmp_path))[0]
    assert (config.env.kwargs, config.trainer.seed, config.algorithm.gamma) == ({"seed": 3}, 3, 0.0)


def score_of(policy: Policy, value: float = 0.5) -> dict[str, object]:
    took = {"curve": [[10, 0.25], [20, 0.5]]} if policy.phase == REINFORCEMENT else {}
    return {"lives": {measure: [value, 0.25] for measure in MEASURES}, "took": took}


def test_intervals_are_over_lives() -> None:
    rows = [{**vars(Policy(IMITATION, seed, "any")), **score_of(Policy(IMITATION, seed, "any"))} for seed in (0, 1)]
    part = report.mean(rows, "written")
    assert part["value"] == pytest.approx(0.375)
    assert part["low"] < 0.3 < 0.45 < part["high"]
    assert "| imitates any | 2 | 0.375 (" in report.table(rows)
    assert report.table([]) == "no results"


def test_command_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scored: list[str] = []

    def score(self: runs.Runs, policy: Policy) -> dict[str, object]:
        if len(scored) == 8 and "interrupted" not in scored:
            scored.append("interrupted")
            raise KeyboardInterrupt
        scored.append(policy.name)
        return score_of(policy)

    monkeypatch.setattr(runs.Runs, "score", score)
    results = tmp_path / "results.jsonl"
    words = ["--results", str(results), "--seeds", "0,1", "--tasks", "2"]
    with pytest.raises(KeyboardInterrupt):
        command.main(words)
    command.main(words)
    scripts = [f"{SCRIPT}-{writer}-1-0" for writer in WRITERS]
    trained = [f"{phase}-any-1-{seed}" for seed in (0, 1) for phase in (IMITATION, REINFORCEMENT)]
    assert sorted({*scored} - {"interrupted"}) == sorted([*scripts, *trained, "ppo-any-0-0"])
    assert len(scored) == 12
    assert len([json.loads(line) for line in results.read_text().splitlines()]) == 11
    assert (tmp_path / "results.png").stat().st_size > 1000
    assert "| any, then PPO with discount 0 | 1 |" in capsys.readouterr().out
