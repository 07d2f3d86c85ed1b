"""`textenvs leaderboard` and `--policy attack:NAME`: rows from evaluations, and the page that they make."""

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import textenvs
from textenvs.cli import main
from textenvs.evaluate.baselines import play_attack
from textenvs.evaluate.leaderboard import command_of, marginal_bytes, page, read_rows, row_of
from textenvs.evaluate.records import read_folder
from textenvs.evaluate.summary import summarize
from textenvs.messages import assistant, user
from textenvs.tools import call

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "textenvs" / "chat"))


@pytest.fixture(autouse=True)
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(out, *words, env="textenv/clarify", tasks="6"):
    return main(["evaluate", env, *words, "--num-tasks", tasks, "--out", out, "--quiet"])


def test_docs_page_matches_its_rows():
    rows = read_rows(ROOT / "docs" / "leaderboard.jsonl")
    text = (ROOT / "docs" / "leaderboard.md").read_text("utf-8")
    assert text == page(rows), "run `textenvs leaderboard` and commit docs/leaderboard.md"
    played = {row["environment"]["id"] for row in rows}
    missing = [env_id for env_id in textenvs.list_environments(with_arguments=True) if env_id not in played]
    assert all(f"`{env_id}` was not played" in text for env_id in missing)


def test_named_attack_plays_as_in_audit():
    attack = next(candidate for candidate in textenvs.make("textenv/clarify").attacks() if candidate.name == "memory")
    assert evaluate("memory", "--policy", "attack:memory") == 0
    played = play_attack(lambda: textenvs.make("textenv/clarify"), attack, 6)
    assert [record.messages for record in read_folder("memory")[1]] == [record.messages for record in played]


def test_unknown_attack_or_no_rehearsal_is_refused(workdir, capsys):
    assert evaluate("out", "--policy", "attack:memry") == 2
    assert "textenv/clarify has no attack 'memry'; did you mean memory?" in capsys.readouterr().err
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(3)]
    (workdir / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("tasks=rows.jsonl", "--policy", "attack:memoriser")
    assert evaluate("out", *words, env="textenv/gsm8k", tasks="3") == 2
    assert "tasks that are not played" in capsys.readouterr().err
    assert evaluate("out", *words, env="textenv/gsm8k", tasks="2") == 0


def test_rows_match_evaluate_and_commands_replay_them(workdir):
    for name, words in {
        "expert": ("--policy", "expert"),
        "silence": ("--policy", "attack:silence"),
        "copy": ("--policy", "attack:copy", 'kinds=["taxi"]', "--seed", "3", "--samples", "2"),
    }.items():
        assert evaluate(name, *words) == 0
    assert main(["leaderboard", "expert", "silence", "copy", "--rows", "board.jsonl"]) == 0
    rows = read_rows(workdir / "board.jsonl")
    assert [row["name"] for row in rows] == ["expert", "attack:silence", "attack:copy"]  # without options first
    for row in rows:
        program, *words = shlex.split(command_of(row))
        assert program == "textenvs"
        folder = f"again-{row['name']}"
        assert main([*words, "--out", folder, "--quiet"]) == 0
        assert row_of(folder) == row
        expected = summarize(read_folder(folder)[1])["all"]["return"]
        assert row["return"] == pytest.approx(expected, abs=1e-4)
    text = (workdir / "board.md").read_text()
    assert text.count("## textenv/clarify") == 2
    assert "| null | 6 |" in text
    assert "| best attack: silence | 6 |" in text
    before = (workdir / "board.jsonl").read_bytes(), text
    assert main(["leaderboard", "silence", "--rows", "board.jsonl"]) == 0
    assert ((workdir / "board.jsonl").read_bytes(), (workdir / "board.md").read_text()) == before


def test_a_script_is_a_column_beside_training_tasks(workdir, capsys):
    env, words = "textenv/service-desk", ("--policy", "script")
    assert evaluate("expert", "--policy", "expert", env=env) == 0
    assert evaluate("test", "split=test", *words, env=env) == evaluate("train", *words, env=env) == 0
    assert main(["leaderboard", "expert", "test", "--rows", "board.jsonl"]) == 0
    text = (workdir / "board.md").read_text()
    assert text.count("## textenv/service-desk") == 1
    assert "| scriptable | 6 |" in text
    assert "split=test --policy script --num-tasks 6" in text
    assert main(["leaderboard", "train", "--rows", "board.jsonl"]) == 1
    assert "evaluate it with split=test" in capsys.readouterr().err
    assert evaluate("none", *words, env="textenv/self-correct") == 2
    assert "textenv/self-correct has no script.py" in capsys.readouterr().err


def test_marginal_bytes_are_what_later_episodes_add(workdir):
    def episodes(reply):
        return [(user("?"), assistant(reply(number))) for number in range(200)]

    letters = np.random.default_rng(0).integers(97, 123, size=(200, 400), dtype=np.uint8)
    entropy = 400 * np.log2(26) / 8  # bytes of a reply of random letters
    assert marginal_bytes(episodes(lambda number: "the same")) < 1
    assert marginal_bytes(episodes(lambda number: letters[number].tobytes().decode())) == pytest.approx(
        entropy, rel=0.1
    )
    assert marginal_bytes(episodes(lambda number: letters[number % 100].tobytes().decode())) < entropy / 20
    called = [(user("?"), assistant("", [call("f", x=letters[i].tobytes().decode())])) for i in range(200)]
    assert marginal_bytes(called) > entropy / 2
    questions = [(user(letters[i].tobytes().decode()), assistant("yes")) for i in range(200)]
    assert marginal_bytes(questions) < 1
    with pytest.raises(ValueError, match="200 episodes, not 199"):
        marginal_bytes(called[1:])


def test_an_expert_s_row_has_its_marginal_bytes(workdir):
    assert evaluate("few", "--policy", "expert") == evaluate("many", "--policy", "expert", tasks="200") == 0
    assert "marginal_bytes" not in row_of("few")
    row = row_of("many")
    assert row["marginal_bytes"] == marginal_bytes([record.messages for record in read_folder("many")[1]])
    assert main(["leaderboard", "many", "--rows", "board.jsonl"]) == 0
    assert read_rows(workdir / "board.jsonl") == [row]
    lines = [line for line in (workdir / "board.md").read_text().splitlines() if line.startswith("|")]
    head, _, cells = ([cell.strip() for cell in line.split("|")] for line in lines[:3])
    assert cells[head.index("marginal bytes")] == f"{row['marginal_bytes']:.0f}"


def test_row_of_a_model_omits_its_address(workdir):
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    from fake_service import FakeService

    with FakeService("#### 3") as service:
        words = ("--model", "tiny|1", "--base-url", service.url, "--temperature", "0.5", "--max-response-length", "9")
        assert evaluate("model", *words, env="textenv/gsm8k") == 0
    assert main(["leaderboard", "model", "--rows", "board.jsonl", "--note", "a\nstand-in"]) == 0
    assert main(["leaderboard", "model", "--rows", "board.jsonl", "--name", "other"]) == 0
    text = (workdir / "board.md").read_text()
    assert "| `textenv/gsm8k` |  |  |  |  |  | " in text
    assert "tiny\\|1 (a stand-in) | 6 |" in text
    assert "--base-url ADDRESS --temperature 0.5 --max-response-length 9 --num-tasks 6" in text
    assert service.url not in text + (workdir / "board.jsonl").read_text()
    assert len(read_rows(workdir / "board.jsonl")) == 2
    assert main(["leaderboard", "model", "--rows", "board.jsonl", "--name", "expert"]) == 1


def test_option_with_unicode_line_separator_round_trips(workdir):
    assert evaluate("out", "--policy", "expert", "system_prompt=Be\u2028brief.", tasks="1") == 0
    assert main(["leaderboard", "out", "--rows", "board.jsonl"]) == 0
    (row,) = read_rows(workdir / "board.jsonl")
    assert row["environment"]["options"] == {"system_prompt": "Be\u2028brief."}


def test_rows_file_is_not_the_page(workdir, capsys):
    assert evaluate("out", "--policy", "expert", tasks="1") == 0
    assert main(["leaderboard", "out", "--rows", "board.md"]) == 2
    assert "--rows board.md names the page" in capsys.readouterr().err
    assert not (workdir / "board.md").exists()


def test_unfinished_evaluation_or_bad_row_changes_no_file(workdir, capsys):
    assert evaluate("done", "--policy", "expert") == evaluate("half", "--policy", "random") == 0
    episodes = workdir / "half" / "episodes.jsonl"
    episodes.write_text("".join(episodes.read_text().splitlines(keepends=True)[:2]))
    assert main(["leaderboard", "done", "--rows", "board.jsonl"]) == 0
    before = (workdir / "board.jsonl").read_bytes()
    for folders, message in ((["done", "half"], "2 of 6 episodes are finished"), (["absent"], "no folder that")):
        assert main(["leaderboard", *folders, "--rows", "board.jsonl"]) == 1
        assert message in capsys.readouterr().err
        assert (workdir / "board.jsonl").read_bytes() == before
    assert main(["leaderboard", "--rows", "none.jsonl"]) == 2
    for line in ("{", "[]", '{"name": "x"}', before.decode().replace('"value"', '"valu"').strip()):
        (workdir / "board.jsonl").write_bytes(before + line.encode() + b"\n")
        assert main(["leaderboard", "done", "--rows", "board.jsonl"]) == 1
        assert "line 2 is no row of the leaderboard" in capsys.readouterr().err


NO_ROW = {
    "episodes": ({"episodes": 10**30}, {"episodes": 7}, {"episodes": -6}, {"episodes": 6.0}, {"episodes": True}),
    "failed": ({"failed": 10**30}, {"failed": 6}, {"failed": -1}),
    "tasks": ({"tasks": {"name": "x", "count": 10**30, "fingerprint": "f"}}, {"tasks": 6}),
    "samples": ({"samples": 10**30}, {"samples": 0}),
    "seed": ({"seed": 10**400}, {"seed": -1}),
    "success": ({"success": {"value": 1e9, "low": 0.0, "high": 1.0}}, {"success": {"value": 1.0}}),
    "return": ({"return": {"value": 1.0, "low": 2.0, "high": 1.0}}, {"return": {"value": "1", "low": 0, "high": 0}}),
    "marginal_bytes": ({"marginal_bytes": "many"},),
    "name": ({"name": 3},),
    "policy": ({"policy": "expert"},),
    "rank": ({"rank": 1},),
}


@pytest.mark.parametrize(("field", "change"), [(field, change) for field in NO_ROW for change in NO_ROW[field]])
def test_a_row_of_no_evaluation_is_refused(workdir, field, change):
    row = {
        "name": "expert", "note": "", "environment": {"id": "textenv/gsm8k", "version": 3, "options": {}},
        "tasks": {"name": "x", "count": 6, "fingerprint": "f"}, "samples": 1, "seed": 0, "policy": {"script": "expert"},
        "episodes": 6, "failed": 0, "success": {"value": 1.0, "low": 0.6, "high": 1.0},
        "return": {"value": 1, "low": 1, "high": 1},
    }  # fmt: skip
    rows = workdir / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    assert read_rows(rows) == [row]
    rows.write_text(json.dumps(row) + "\n" + json.dumps({**row, **change}) + "\n")
    with pytest.raises(ValueError, match=rf"line 2 is no row of the leaderboard: .*{field}.*; remove it") as caught:
        read_rows(rows)
    assert len(str(caught.value)) < 500
