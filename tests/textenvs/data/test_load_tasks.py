"""From a name to a task set: dispatch, the default, one reading a file, and `prepare`."""

import json
import logging

import pytest

import textenvs.data.load as load
from textenvs.data import GeneratedMath, Rows, TaskError, TaskSet, load_tasks, prepare, write_parquet
from textenvs.data.gsm8k import INSTRUCTION

GOOD = {"question": "How many?", "answer": "#### 4"}


@pytest.fixture(autouse=True)
def nothing_prepared(tmp_path, monkeypatch):
    """Tests must not see what the machine's user has prepared, nor what an earlier test announced."""
    monkeypatch.setenv("TEXTENVS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(load, "_announced", set())
    return tmp_path / "data"


@pytest.fixture
def files(tmp_path):
    paths = {}
    for split, answer in (("train", "#### 4"), ("test", "#### 5")):
        paths[split] = tmp_path / f"{split}.jsonl"
        paths[split].write_text(json.dumps({**GOOD, "answer": answer}) + "\n")
    return paths


def test_names_of_sources(files, tmp_path):
    assert load_tasks("generated:hard", split="test", seed=3) == GeneratedMath("hard", seed=3, split="test")
    mine = Rows("mine", [GeneratedMath()[0]])
    assert load_tasks(mine) is mine
    assert load_tasks(files["train"])[0].ground_truth == "4"
    assert load_tasks(str(files["test"]))[0].ground_truth == "5"
    path = write_parquet(load_tasks(files["train"]), tmp_path / "x.parquet")
    assert load_tasks(str(path))[0] == load_tasks(files["train"])[0]
    assert load_tasks(str(files["train"]), instruction=None)[0].question == "How many?"
    assert load_tasks(str(files["train"]))[0].question == f"How many? {INSTRUCTION}"


def test_several_files_are_one_set(files, tmp_path):
    both = load_tasks([files["train"], files["test"], files["train"]])
    assert isinstance(both, TaskSet)
    assert [both[i].ground_truth for i in range(both.size)] == ["4", "5", "4"]
    assert len({both[i].key for i in range(3)}) == 3
    assert load_tasks([files["train"]])[0] == load_tasks(files["train"])[0]
    with pytest.raises(ValueError, match="endless and cannot be one of several"):
        load_tasks([files["train"], "generated:easy"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("generated:impossible", "unknown level; known are generated:easy, generated:medium, generated:hard"),
        ("generated", "'generated': unknown level"),
        ("hub:", "name the data set"),
        ("rows.csv", "'rows.csv': not a task source"),
        ("easy", "'easy': not a task source"),
    ],
)
def test_names_of_nothing_are_errors(source, message):
    with pytest.raises(ValueError, match=message):
        load_tasks(source)


def test_a_bad_split_is_an_error():
    with pytest.raises(ValueError, match="split must be one of train, test, not 'val'"):
        load_tasks(None, split="val")


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(TaskError, match="absent.jsonl: no such file"):
        load_tasks(tmp_path / "absent.jsonl")


def test_the_default_is_generated_until_rows_are_prepared(files, nothing_prepared, caplog):
    caplog.set_level(logging.INFO, logger="textenvs")
    assert load_tasks(seed=4) == GeneratedMath("easy", seed=4)
    assert load_tasks(split="test") == GeneratedMath("easy", split="test")
    written = prepare(files)
    assert written == {split: nothing_prepared / "gsm8k" / f"{split}.parquet" for split in ("train", "test")}
    for split, truth in (("train", "4"), ("test", "5")):
        tasks = load_tasks(split=split)
        assert [tasks[i].ground_truth for i in range(tasks.size)] == [truth]
        assert tasks[0].data_source == "openai/gsm8k"
        assert str(written[split]) in tasks.name


def test_one_log_line_a_source(caplog):
    caplog.set_level(logging.INFO, logger="textenvs")
    for _ in range(3):
        load_tasks()
        load_tasks("generated:hard")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "tasks: generated easy problems (train, seed 0), endless",
        "tasks: generated hard problems (train, seed 0), endless",
    ]


def test_a_file_is_read_once_and_again_when_it_changed(files, monkeypatch):
    reads = []
    real = load.read_jsonl
    monkeypatch.setattr(load, "read_jsonl", lambda path, **options: reads.append(path) or real(path, **options))
    load._read.cache_clear()
    first = load_tasks(files["train"])
    assert load_tasks(files["train"]) is first
    assert len(reads) == 1
    files["train"].write_text(json.dumps({**GOOD, "answer": "#### 77"}) + "\n")
    assert load_tasks(files["train"])[0].ground_truth == "77"
    assert len(reads) == 2


def test_rows_of_one_split_only_are_no_silent_mixture(files):
    prepare({"train": files["train"]})
    assert load_tasks(split="train").size == 1
    with pytest.raises(TaskError, match="rows are prepared for train but not for test"):
        load_tasks(split="test")


def test_prepare_writes_nothing_when_a_row_is_bad(files, nothing_prepared):
    files["test"].write_text(json.dumps({"question": "?", "answer": "none"}))
    with pytest.raises(TaskError, match=r"test.jsonl.*\n  row 1: column 'answer' has no '#### N'"):
        prepare(files)
    assert not nothing_prepared.exists()


def test_prepare_refuses_a_worked_answer_that_does_not_end_in_the_truth(tmp_path, nothing_prepared):
    row = GeneratedMath()[0].to_row()
    row["extra_info"] = {**row["extra_info"], "answer": "no answer line"}
    from textenvs.task import Task

    path = write_parquet([Task.from_row(row, key="k")], tmp_path / "x.parquet")
    with pytest.raises(TaskError, match="worked answer does not end in"):
        prepare({"train": path})
    assert not nothing_prepared.exists()


@pytest.mark.parametrize("sources", [{}, {"validation": "x.jsonl"}])
def test_prepare_needs_known_splits(sources):
    with pytest.raises(ValueError, match="sources must map one or more of train, test"):
        prepare(sources)


def test_prepare_takes_no_endless_set():
    with pytest.raises(ValueError, match="endless"):
        prepare({"train": "generated:easy"})


def test_prepare_asks_the_hub_by_default(monkeypatch, tmp_path, files):
    asked = []

    def read_hub(repository, config, *, split, instruction, check):
        asked.append((repository, config, split))
        return load.read_jsonl(files[split], instruction=instruction, check=check)

    monkeypatch.setattr(load, "read_hub", read_hub)
    load._hub.cache_clear()
    written = prepare(directory=tmp_path / "elsewhere")
    load._hub.cache_clear()
    assert asked == [("openai/gsm8k", None, "train"), ("openai/gsm8k", None, "test")]
    assert all(path.is_file() and tmp_path / "elsewhere" in path.parents for path in written.values())
