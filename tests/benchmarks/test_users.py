"""The benchmark of what users give away: it resumes, and its table is of all seeds."""

from pathlib import Path

import pytest

from benchmarks import users
from benchmarks.curves import saved
from textenvs.evaluate.user_report import UserStatistics


def episode(manner, stop, replies, leaks=0):
    stats = UserStatistics(manner=manner, stop=stop, messages=["..."] * replies)
    stats.errors["leak"] = leaks
    return stats


@pytest.fixture
def played(monkeypatch):
    """Replace models and episodes; return the policies that were listened to."""
    calls = []

    def listen(family, policy, episodes):
        calls.append((family, policy))
        return [episode("plain", "solved", 2), episode("vague", "wrong", 4, leaks=2)] * (episodes // 2)

    monkeypatch.setattr(users, "listen", listen)
    monkeypatch.setattr(users, "train", lambda family, manner, seed, options: Path(f"{family}-{manner}-{seed}"))
    monkeypatch.setattr(users.curves, "start_of", lambda family, seed, folder: Path(f"{family}-{seed}"))
    monkeypatch.setattr(users, "LocalPolicy", lambda model, **options: model)
    return calls


def test_second_command_plays_nothing(played, tmp_path, capsys):
    words = [
        "--results",
        str(tmp_path / "users.jsonl"),
        "--families",
        "clarify",
        "--episodes",
        "8",
        "--trained",
        "plain",
    ]
    assert users.main([*words, "--seeds", "0"]) == 0
    first = len(played)
    assert first == 3  # the start, the run and the one that pesters
    assert users.main([*words, "--seeds", "0,1"]) == 0
    assert [policy for _, policy in played[first:]] == ["clarify-1", "clarify-plain-1"]
    rows = saved(tmp_path / "users.jsonl")
    assert {(row["policy"], row["seed"]) for row in rows} == {
        *(("start", seed) for seed in (0, 1)),
        *(("plain", seed) for seed in (0, 1)),
        ("pester", 0),
    }
    assert "| trained on plain | 50 (" in capsys.readouterr().out


def test_cells_count_episodes_with_faults(played, tmp_path):
    words = ["--results", str(tmp_path / "users.jsonl"), "--families", "clarify", "--episodes", "8", "--seeds", "0"]
    users.main(words)
    rows = [row for row in saved(tmp_path / "users.jsonl") if row["policy"] == "start"]
    solved, leak, *_, replies, _ = users.cells(rows, None)
    assert (solved.split()[0], leak.split()[0], replies) == ("50", "50", "2.00 (2.00 to 2.00)")
    assert [users.cells(rows, manner)[1].split()[0] for manner in ("plain", "vague")] == ["0", "100"]
