"""Data sets with a name: what is checked when they come, and that families play them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import textenvs
from textenvs.cli import main
from textenvs.data.catalogue import DataSet, catalogue, digest_of, import_file
from textenvs.data.files import write_rows
from textenvs.envs.collab_code.tasks import FAMILY as CODE
from textenvs.envs.collab_document.tasks import FAMILY as DOCUMENT
from textenvs.envs.collab_math.tasks import FAMILY as MATH
from textenvs.task import SPLITS, TaskError

GSM8K = Path(__file__).resolve().parents[4] / "shared" / "data" / "gsm8k"
ROWS: Mapping[str, Sequence[dict[str, Any]]] = {
    "gsm8k": [{"question": "Tim has 2 pens and buys 3. How many has he?", "answer": "2+3=<<2+3=5>>5\n#### 5"}],
    "math": [{"problem": "What is $1+1$?", "level": "Level 1", "type": "Algebra", "solution": r"It is $\boxed{2}$."}],
    "mbpp": [
        {
            "task_id": 1,
            "text": "Write a function to add one to a number.",
            "code": "def add_one(x):\n    return x + 1",
            "test_list": ["assert add_one(1) == 2", "assert add_one(-1) == 0"],
            "test_setup_code": "",
        }
    ],
    "hotpotqa": [
        {
            "question": "Which river flows through the town where Ada Brenn was born?",
            "answer": "Lirre",
            "context": {
                "title": ["Ada Brenn", "Ostrel", "Nothing"],
                "sentences": [["Ada Brenn was born in Ostrel."], ["Ostrel lies on the ", "Lirre."], []],
            },
        }
    ],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEXTENVS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def installed(name: str, split: str = "test") -> DataSet:
    entry = catalogue()[name]
    entry.install(split, enumerate(ROWS[name], start=1), "here", partial=True)
    return entry


def test_entries_have_families_and_splits() -> None:
    shapes = {"worked", "problem", "question", *(family.reader.shape for family in (MATH, DOCUMENT, CODE))}
    for entry in catalogue().values():
        assert set(entry.splits) <= set(SPLITS)
        assert entry.shapes
        assert set(entry.shapes) <= shapes
        for shape in entry.shapes:
            entry.reader(shape)


def test_installed_rows_round_trip_with_facts(tmp_path: Path) -> None:
    entry, file = catalogue()["gsm8k"], tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS["gsm8k"]))
    with pytest.raises(TaskError, match="not on this machine.*textenvs data import gsm8k FILE --split test"):
        entry.installed("test")
    assert import_file(entry, "test", file, partial=True)["rows"] == 1
    facts = entry.facts("test")
    assert facts is not None
    assert facts["origin"] == str(file)
    assert facts["sha256"] == digest_of(ROWS["gsm8k"], entry.columns)
    write_rows(ROWS["gsm8k"], tmp_path / "rows.parquet")
    import_file(entry, "test", tmp_path / "rows.parquet", partial=True)
    assert (entry.facts("test") or {})["sha256"] == facts["sha256"], "the file's format makes no difference"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS["gsm8k"], "1 row, and the split has 1319"),
        ([{"question": "How many?"}], "row 1: column 'answer' is missing"),
        ([], "the file is empty"),
    ],
)
def test_foreign_rows_are_refused_without_changes(rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    entry, file = installed("gsm8k"), tmp_path / "rows.jsonl"
    before = entry.installed("test").read_bytes()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(TaskError, match=message):
        import_file(entry, "test", file)
    assert entry.installed("test").read_bytes() == before


def test_unwritable_rows_change_nothing(tmp_path: Path) -> None:
    entry, file = installed("gsm8k"), tmp_path / "rows.jsonl"
    before = entry.installed("test").read_bytes()
    file.write_text("".join(json.dumps({**ROWS["gsm8k"][0], "id": value}) + "\n" for value in ("a", 1)))
    with pytest.raises(TaskError, match=r"rows\.jsonl: the rows have no common Parquet schema \(column 'id'"):
        import_file(entry, "test", file, partial=True)
    assert entry.installed("test").read_bytes() == before
    assert len(list(entry.path("test").parent.iterdir())) == 2, "nothing half written is left"


def test_columns_of_bytes_are_refused_in_words(tmp_path: Path) -> None:
    write_rows([{"question": b"How many?", "answer": b"#### 5"}], tmp_path / "rows.parquet")
    with pytest.raises(TaskError, match=r"rows\.parquet: a column of 'question', 'answer' has values that are no JSON"):
        import_file(catalogue()["gsm8k"], "test", tmp_path / "rows.parquet", partial=True)


@pytest.mark.parametrize(
    ("name", "id_", "changed"),
    [
        ("mbpp", "textenv/collab-code", {"test_list": []}),
        ("hotpotqa", "textenv/search-qa", {"context": "Ada Brenn was born in Ostrel."}),
        ("hotpotqa", "textenv/search-qa", {"context": {"title": ["Ada Brenn"], "sentences": []}}),
    ],
)
def test_malformed_column_names_the_row(name: str, id_: str, changed: dict[str, Any]) -> None:
    entry = catalogue()[name]
    entry.install("test", enumerate([ROWS[name][0] | changed], start=1), "here", partial=True)
    with pytest.raises(TaskError, match=f"row 1: its columns are not those of {name} on the Hub"):
        textenvs.make(id_, tasks=name, split="test")


def test_unknown_split_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "math-500", "--split", "train"]) == 2
    assert "math-500 has no split 'train'; it has test" in capsys.readouterr().err


def test_failed_download_names_the_import_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object) -> None:
        raise TaskError("no route")

    monkeypatch.setattr("textenvs.data.catalogue.hub_rows", offline)
    with pytest.raises(TaskError, match=r"no route\. From a file: textenvs data import gsm8k FILE --split test"):
        catalogue()["gsm8k"].download("test")


def test_other_rows_of_the_right_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalogue()["gsm8k"]
    split = entry.splits["test"].model_copy(update={"rows": 1, "sha256": "0" * 64})
    entry = entry.model_copy(update={"splits": {"test": split}})
    with pytest.raises(TaskError, match="the rows have the digest"):
        entry.install("test", enumerate(ROWS["gsm8k"], start=1), "here")


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("gsm8k", "textenv/gsm8k"),
        ("gsm8k", "textenv/gsm8k-interact"),
        ("gsm8k", "textenv/collab-math"),
        ("mbpp", "textenv/collab-code"),
    ],
)
def test_expert_solves_data_sets_by_name(name: str, id_: str) -> None:
    installed(name)
    with textenvs.make(id_, tasks=name, split="test") as env:
        env.reset(seed=0)
        done = False
        while not done:
            reply = env.unwrapped.demonstration(env.unwrapped.np_random)
            _, _, terminated, truncated, info = env.step(reply)
            done = terminated or truncated
        assert info["stop"] == "solved"
        assert env.unwrapped.task.data_source == catalogue()[name].hub


def test_a_question_searches_the_paragraphs_of_its_row() -> None:
    installed("hotpotqa")
    with textenvs.make("textenv/search-qa", tasks="hotpotqa", split="test") as env:
        env.reset(seed=0)
        call = '<tool_call>{"name": "search", "arguments": {"query": "Ostrel lies"}}</tool_call>'
        conversation, *_ = env.step(call)
        assert "Lirre." in str(conversation[-1]["content"])
        *_, info = env.step("Answer: Lirre")
        assert info["stop"] == "solved"


def test_unfit_data_set_names_fitting_ones() -> None:
    installed("math")
    with pytest.raises(ValueError, match="'math' is not for this environment; data sets that are: gsm8k"):
        textenvs.make("textenv/gsm8k", tasks="math", split="test")
    with pytest.raises(ValueError, match="aime24 has no split 'train'"):
        textenvs.make("textenv/math-python", tasks="aime24", split="train")


def test_command_lists_imports_and_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROWS["gsm8k"][0]) + "\n")
    assert main(["data", "import", "gsm8k", str(file), "--split", "test"]) == 1
    assert main(["data", "import", "gsm8k", str(file), "--split", "test", "--partial"]) == 0
    assert main(["data", "import", "gsm8k", str(file)]) == 2
    assert main(["data", "get", "gsm9k"]) == 2
    out, err = capsys.readouterr()
    assert "tasks=gsm8k split=test" in out
    assert "--partial" in err
    assert "--split train or --split test" in err
    assert "there is no data set 'gsm9k'; there are gsm8k," in err
    assert main(["data", "list"]) == 0
    assert f"test: 1319 rows; here: 1 row from {file}" in capsys.readouterr().out


@pytest.mark.skipif(not GSM8K.is_dir(), reason="needs GSM8K's rows in ../shared/data/gsm8k, beside the repository")
def test_expert_solves_real_gsm8k_rows() -> None:
    entry = catalogue()["gsm8k"]
    assert import_file(entry, "train", GSM8K / "train.jsonl")["rows"] == 7473
    with textenvs.make("textenv/gsm8k-interact", tasks="gsm8k", split="train") as env:
        for index in range(0, 7473, 500):
            env.reset(seed=0, options={"task_index": index})
            *_, info = env.step(env.unwrapped.demonstration(env.unwrapped.np_random))
            assert info["stop"] == "solved"
