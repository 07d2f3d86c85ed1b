"""Files and the Hub: round trips, and errors that name file, row and column."""

import builtins
import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.data.files import file_rows, write_parquet, write_rows
from textenvs.data.gsm8k import READER, check_problem, from_pair, with_instruction, without_annotations
from textenvs.data.sources import read_source
from textenvs.data.word_problems import GeneratedMath
from textenvs.messages import text_part, user
from textenvs.task import Rows, Task, TaskError, TaskSet

GOOD = {"question": "How many?", "answer": "Two and two is <<2+2=4>>4.\n#### 4"}


def read(source, *, split="train", check=None):
    return read_source(source, replace(READER, check=check), split)


def jsonl(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


# ------------------------------------------------------------------ JSONL


def test_jsonl_rows_become_tasks(tmp_path):
    path = jsonl(tmp_path / "few.jsonl", GOOD, "", {**GOOD, "answer": "#### -1,234.50", "id": 7, "data_source": "mine"})
    tasks = read(path)
    assert isinstance(tasks, TaskSet)
    assert (tasks.size, len(tasks), tasks.name) == (2, 2, str(path))
    first, second = tasks[0], tasks[1]
    assert first.prompt == (user("How many?"),)
    assert first.extra["question"] == "How many?"
    assert (first.key, first.ground_truth, first.data_source) == ("few/1", "4", "openai/gsm8k")
    assert (second.key, second.ground_truth, second.data_source) == ("few/3", "-1234.5", "mine")  # the line's number
    for index in (-1, 2):
        with pytest.raises(IndexError, match="outside its 2 tasks"):
            tasks[index]


def test_row_names_are_encodable_text(tmp_path):
    """A key with half of a pair of surrogates could be in no record of an evaluation."""
    row = {"data_source": "a\ud83d", "prompt": [{"role": "user", "content": "?"}], "extra_info": {"key": "b\ude00"}}
    tasks = read(jsonl(tmp_path / "odd.jsonl", {**row, "reward_model": {"ground_truth": "2"}}, {**GOOD, **row}))
    named = [(task.key, task.data_source) for task in (tasks[0], tasks[1])]
    assert ascii(named) == ascii([("b\ufffd", "a\ufffd"), ("odd/2", "a\ufffd")])


def test_a_key_that_is_null_is_no_key(tmp_path):
    row = {"data_source": "a", "prompt": [user("?")], "reward_model": {"ground_truth": "2"}}
    row["extra_info"] = {"key": None}
    tasks = read(jsonl(tmp_path / "nulls.jsonl", row, row))
    assert [tasks[0].key, tasks[1].key] == ["nulls/1", "nulls/2"]


def test_jsonl_of_other_systems(tmp_path):
    path = tmp_path / "odd.jsonl"
    text = json.dumps({**GOOD, "question": "a\u2028b \U0001f34e \u2212"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n" + text.encode())  # a mark, CRLF, no last newline
    tasks = read(path)
    assert tasks.size == 2  # U+2028 ends no line
    assert tasks[1].question == "a\u2028b \U0001f34e \u2212"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "row 2: not JSON"),
        ("[" * 100_000, "row 2: not JSON"),
        ('{"question": ' + "9" * 5000 + "}", "row 2: not JSON"),
        ("[1]", "row 2: a list, not an object"),
        ({"answer": "#### 1"}, "row 2: column 'question' is missing; the row has \\['answer'\\]"),
        ({"question": "How many?"}, "row 2: column 'answer' is missing"),
        ({**GOOD, "answer": None}, "row 2: column 'answer' must be text, not NoneType"),
        ({**GOOD, "question": 3}, "row 2: column 'question' must be text, not int"),
        ({**GOOD, "answer": " "}, "row 2: column 'answer' is empty"),
        ({**GOOD, "question": ""}, "row 2: column 'question' is empty"),
        ({**GOOD, "answer": "It is 4."}, "row 2: column 'answer' has no '#### N'"),
        ({**GOOD, "answer": "#### four"}, "row 2: column 'answer' has no '#### N'"),
    ],
)
def test_a_bad_row_names_file_row_and_column(tmp_path, row, message):
    path = jsonl(tmp_path / "bad.jsonl", GOOD, row, GOOD)
    with pytest.raises(TaskError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_first_bad_rows_are_listed_together(tmp_path):
    path = jsonl(tmp_path / "bad.jsonl", *([GOOD, {"question": "?"}] * 8))
    with pytest.raises(TaskError) as caught:
        read(path)
    text = str(caught.value)
    assert all(f"row {row}:" in text for row in (2, 4, 6, 8, 10))
    assert "row 12:" not in text
    assert "and 3 more" in text


def test_files_that_are_none(tmp_path):
    for suffix in ("jsonl", "parquet"):
        with pytest.raises(TaskError, match=f"absent.{suffix}: no such file"):
            read(tmp_path / f"absent.{suffix}")
        (tmp_path / f"folder.{suffix}").mkdir()
        with pytest.raises(TaskError, match="is a folder, not a regular file"):
            read(tmp_path / f"folder.{suffix}")
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(TaskError, match="empty.jsonl: the file is empty"):
        read(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}')
    with pytest.raises(TaskError, match="latin.jsonl: not UTF-8"):
        read(tmp_path / "latin.jsonl")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(TaskError, match="text.parquet: not a readable Parquet file"):
        read(tmp_path / "text.parquet")


@pytest.mark.parametrize("name", ["rows.json", "rows.JSONL", "rows"])
def test_unknown_file_type_is_named(tmp_path, name):
    (tmp_path / name).write_text(json.dumps([GOOD]))
    with pytest.raises(TaskError, match=f"{name}: rows are read from .jsonl .* or .parquet files"):
        list(file_rows(tmp_path / name, "text"))


# ------------------------------------------------------------------ Parquet

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
names = st.text("abcdef", min_size=1, max_size=4)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(("system", "user", "assistant")), "content": texts}, optional={"name": texts}
    ),
    min_size=1,
    max_size=3,
).map(tuple)
extras = st.dictionaries(names, st.one_of(texts, st.lists(st.integers(-9, 9), min_size=1, max_size=3)), max_size=3)


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    """Tasks of one file: the same name in ``extra`` has the same type everywhere, as Parquet wants it."""
    fields = draw(extras)
    return [
        Task(
            key=f"row-{i}",
            data_source=draw(texts),
            prompt=draw(messages),
            ground_truth=str(draw(st.integers())),
            ability=draw(texts),
            style=draw(st.sampled_from(("rule", "model"))),
            extra={name: value for name, value in fields.items() if draw(st.booleans())},
            agent_name=draw(st.none() | names),
        )
        for i in range(draw(st.integers(1, 4)))
    ]


@given(task_lists())
def test_parquet_round_trip(tmp_path_factory, tasks):
    path = tmp_path_factory.mktemp("round") / "tasks.parquet"
    assert write_parquet(tasks, path) == path
    back = read(path)
    assert [back[i] for i in range(back.size)] == tasks


def test_parquet_has_verl_columns(tmp_path):
    from pyarrow import parquet

    task = from_pair(GOOD, "k", "here", "openai/gsm8k")
    extra = {**task.extra, "interaction_kwargs": {"name": "gsm8k", "query": "How many?", "ground_truth": "4"}}
    task = Task(**{**task.__dict__, "extra": extra, "agent_name": "tool_agent"})
    path = write_parquet([task], tmp_path / "sub" / "one.parquet")
    (row,) = parquet.read_table(path).to_pylist()
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info", "agent_name"}
    assert row["reward_model"] == {"style": "rule", "ground_truth": "4"}
    assert row["prompt"] == [{"role": "user", "content": "How many?"}]
    assert row["extra_info"]["interaction_kwargs"]["name"] == "gsm8k"
    assert row["agent_name"] == "tool_agent"
    assert read(path)[0] == task


def test_endless_set_is_written_to_count(tmp_path):
    tasks = GeneratedMath("medium")
    with pytest.raises(ValueError, match="endless; say how many"):
        write_parquet(tasks, tmp_path / "x.parquet")
    back = read(write_parquet(tasks, tmp_path / "x.parquet", count=5))
    assert [back[i] for i in range(5)] == [tasks[i] for i in range(5)]
    assert read(write_parquet(back, tmp_path / "y.parquet", count=2)).size == 2
    with pytest.raises(ValueError, match="no tasks to write"):
        write_parquet([], tmp_path / "z.parquet")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    from pyarrow import parquet

    path = write_parquet(GeneratedMath(), tmp_path / "x.parquet", count=2)
    before = path.read_bytes()

    def full(table, target):
        Path(target).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(parquet, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        write_parquet(GeneratedMath(), path, count=3)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.parquet"]


def test_rows_without_a_common_type_are_an_error(tmp_path):
    tasks = [GeneratedMath()[0], Task("k", "s", (user("q"),), ground_truth=3)]
    with pytest.raises(TaskError, match="no common Parquet schema"):
        write_parquet(tasks, tmp_path / "x.parquet")
    with pytest.raises(TaskError, match="Parquet cannot hold these rows"):
        write_parquet([Task("k", "s", (user("q"),), ground_truth="3", extra={"a": {}})], tmp_path / "x.parquet")
    with pytest.raises(TaskError, match="column 'n': Python int too large"):
        write_rows([{"n": 1}, {"n": 2**70}], tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_lone_surrogate_is_written_as_replacement(tmp_path):
    row = {"question": "a\ud83d", "more": [{"b\ude00": ("c\ud83d", "")}]}
    path = write_rows([{"question": "fine"}, row], tmp_path / "x.parquet")
    assert [row for _, row in file_rows(path, "text")] == [
        {"question": "fine"},
        {"question": "a\ufffd", "more": [{"b\ufffd": ["c\ufffd", ""]}]},
    ]


def table(path, rows):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows) if isinstance(rows, list) else rows, path)
    return path


def test_bad_parquet_names_file_row_and_column(tmp_path):
    good = GeneratedMath()[0].to_row()
    path = tmp_path / "t.parquet"
    for column in ("data_source", "prompt", "reward_model"):
        table(path, [{name: value for name, value in good.items() if name != column}])
        with pytest.raises(TaskError, match=rf"t.parquet: .*\n  row 1: column '{column}' is missing; the row has \["):
            read(path)
        table(path, [good, {**good, column: None, "extra_info": {"key": "b"}}])
        with pytest.raises(TaskError, match=rf"t.parquet: .*\n  row 2: column '{column}' is missing"):
            read(path)
    for truth in (None, " "):
        table(path, [good, {**good, "reward_model": {"style": "rule", "ground_truth": truth}}])
        with pytest.raises(TaskError, match="row 2: column 'reward_model' has no ground_truth"):
            read(path)
    table(path, [good, {**good, "prompt": []}])
    with pytest.raises(TaskError, match="row 2: column 'prompt' is empty"):
        read(path)
    table(path, [good, {**good, "prompt": [{"role": "owner", "content": "x"}]}])
    with pytest.raises(TaskError, match="row 2: column 'prompt': message 0: role is 'owner'"):
        read(path)
    table(path, [{**good, "prompt": "text"}])
    with pytest.raises(TaskError, match="row 1: column 'prompt': expected a sequence of messages, not str"):
        read(path)
    table(path, [{**good, "extra_info": "text"}])
    with pytest.raises(TaskError, match="row 1: column 'extra_info' must be a mapping, not str"):
        read(path)
    table(path, [good, good])
    with pytest.raises(TaskError, match="rows 1 and 2 have the same key 'easy/train/0/0'"):
        read(path)
    import pyarrow

    table(path, pyarrow.Table.from_pylist([good]).slice(0, 0))
    with pytest.raises(TaskError, match="the file is empty; it needs rows"):
        read(path)


def test_unreadable_parquet_values_name_the_file(tmp_path):
    import pyarrow

    raw = pyarrow.array([b"\xff\xfe"], pyarrow.binary())
    for values in (
        pyarrow.Array.from_buffers(pyarrow.string(), 1, raw.buffers()),
        pyarrow.array([2**60], pyarrow.timestamp("us")),
    ):
        path = table(tmp_path / "odd.parquet", pyarrow.table({"question": values, "answer": ["#### 1"]}))
        with pytest.raises(TaskError, match="odd.parquet: not a readable Parquet file"):
            read(path)


def test_the_check_of_gsm8k_rows(tmp_path):
    good = GeneratedMath()[0].to_row()
    bad = {
        **good,
        "reward_model": {"style": "rule", "ground_truth": "x^2"},
        "extra_info": {**good["extra_info"], "key": "b"},
    }
    wrong = {
        **bad,
        "reward_model": {"style": "rule", "ground_truth": "99"},
        "extra_info": {**good["extra_info"], "key": "c"},
    }
    path = table(tmp_path / "t.parquet", [good, bad, wrong])
    assert read(path).size == 3  # other environments may have such rows
    with pytest.raises(TaskError) as caught:
        read(path, check=check_problem)
    assert "row 2: column 'reward_model': ground_truth 'x^2' is not a number" in str(caught.value)
    assert "row 3: column 'extra_info': the worked answer ends in" in str(caught.value)


def test_missing_libraries_name_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] in ("pyarrow", "datasets"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for call, extra in (
        (lambda: read(tmp_path / "x.parquet"), "data"),
        (lambda: write_parquet(GeneratedMath(), tmp_path / "x.parquet", count=1), "data"),
        (lambda: read("hub:openai/gsm8k"), "hub"),
    ):
        with pytest.raises(ImportError, match=rf"pip install 'textenvs\[{extra}\]'"):
            call()


# ------------------------------------------------------------------ the Hub


@pytest.fixture
def hub(monkeypatch):
    calls = []
    module = types.ModuleType("datasets")
    module.rows = [GOOD, {**GOOD, "answer": "#### 1,000"}]

    def load_dataset(repository, config=None, *, split):
        calls.append((repository, config, split))
        if isinstance(module.rows, Exception):
            raise module.rows
        return module.rows

    module.load_dataset = load_dataset
    module.calls = calls
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_hub_rows(hub):
    tasks = read("hub:openai/gsm8k", split="test")
    assert hub.calls == [("openai/gsm8k", "main", "test")]
    assert [tasks[i].ground_truth for i in range(2)] == ["4", "1000"]
    assert tasks[1].key == "test/2"
    assert tasks[0].data_source == "openai/gsm8k"
    assert read("hub:some/other:fancy")[0].data_source == "some/other"
    assert hub.calls[-1] == ("some/other", "fancy", "train")
    read("hub:some/other")
    assert hub.calls[-1] == ("some/other", None, "train")


def test_hub_errors(hub):
    hub.rows = ConnectionError("no route")
    with pytest.raises(TaskError, match=r"hub:openai/gsm8k:main \(train\): could not be loaded .*no route.*network"):
        read("hub:openai/gsm8k")
    hub.rows = []
    with pytest.raises(TaskError, match="has no rows"):
        read("hub:openai/gsm8k")
    hub.rows = [GOOD, {**GOOD, "answer": "?"}]
    with pytest.raises(TaskError, match=r"hub:openai/gsm8k:main \(train\): .*\n  row 2: column 'answer' has no"):
        read("hub:openai/gsm8k")
    hub.rows = [{"text": "x"}]
    with pytest.raises(TaskError, match=r"row 1: column 'question' is missing; the row has \['text'\]"):
        read("hub:openai/gsm8k")


def test_the_real_datasets_library_reads_a_local_folder(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    jsonl(folder / "train.jsonl", GOOD)
    jsonl(folder / "test.jsonl", GOOD, {**GOOD, "answer": "#### 9"})
    tasks = read(f"hub:{folder}", split="test")
    assert [tasks[i].ground_truth for i in range(tasks.size)] == ["4", "9"]
    with pytest.raises(TaskError, match="could not be loaded"):
        read(f"hub:{folder}", split="validation")


# ------------------------------------------------------------------ rows


def test_rows_must_be_some_and_differ():
    task = GeneratedMath()[0]
    with pytest.raises(TaskError, match="mine: there is no task"):
        Rows("mine", [])
    with pytest.raises(TaskError, match="mine: rows 1 and 2 have the same key"):
        Rows("mine", [task, task])


def test_instruction_extends_content_in_parts():
    prompt = with_instruction(({"role": "user", "content": [text_part("How many?")]},), "Say it.")
    assert prompt == ({"role": "user", "content": (text_part("How many?"), text_part("Say it."))},)


def test_annotations_go():
    assert without_annotations("48/2 = <<48/2=24>>24, then <<1+1=2>>2\n#### 2") == "48/2 = 24, then 2\n#### 2"
    assert without_annotations("a << b and c >> d") == "a << b and c >> d"  # no calculation
