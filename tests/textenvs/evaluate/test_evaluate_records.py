"""The folder of an evaluation: nothing lost, nothing twice, whatever happened to the process before."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.evaluate.records import RESULTS, SUMMARY, Folder, FolderError, Record, write_json
from textenvs.messages import clean_text

CONFIGURATION = {"environment": {"id": "say", "options": {"level": "easy"}}, "samples": 2, "seed": 0}

texts = st.text(st.characters() | st.characters(categories=["Cs"])).map(clean_text)
numbers = st.floats(allow_nan=False, allow_infinity=False)
records = st.builds(
    Record,
    task=st.integers(0, 9),
    sample=st.integers(0, 9),
    seed=st.integers(0, 2**31 - 1),
    task_index=st.integers(0, 2**31),
    task_key=texts,
    data_source=texts,
    success=st.booleans(),
    turn_rewards=st.lists(numbers).map(tuple),
    terms=st.dictionaries(texts, numbers),
    metrics=st.dictionaries(texts, numbers),
    terminated=st.booleans(),
    stop=st.none() | texts,
    failed=st.booleans(),
    failure=st.none() | texts,
    prompt_tokens=st.none() | st.integers(0),
    cost=st.none() | numbers,
    messages=st.lists(st.builds(lambda text: {"role": "user", "content": text}, texts)).map(tuple),
)


def record(task, sample=0, **changes):
    return Record(task, sample, seed=1, task_index=task, task_key=f"k{task}", data_source="s", **changes)


@given(records)
def test_a_record_survives_its_line(record):
    line = record.to_json()
    assert "\n" not in line
    assert Record.from_json(line) == record


@pytest.mark.parametrize("line", ["", "{}", "[]", "3", '{"task": 1}', record(1).to_json()[:-1]])
def test_a_line_that_is_no_record(line):
    with pytest.raises(ValueError, match=r"."):
        Record.from_json(line)


def test_folder_is_resumed(tmp_path):
    with Folder(tmp_path / "new" / "run", CONFIGURATION) as folder:
        folder.add(record(0))
        folder.add(record(1, success=True))
        with pytest.raises(ValueError, match="task 1, sample 0 has a record already"):
            folder.add(record(1))
    with Folder(tmp_path / "new" / "run", CONFIGURATION) as folder:
        assert folder.records == {(0, 0): record(0), (1, 0): record(1, success=True)}
        assert not folder.repaired
        folder.add(record(1, 1))
    assert len((tmp_path / "new" / "run" / "episodes.jsonl").read_text().splitlines()) == 3


def test_torn_last_line_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # hundreds of them take seconds
    whole = [record(task, messages=({"role": "user", "content": "é\n🙂"},)) for task in range(2)]
    with Folder(tmp_path, CONFIGURATION) as folder:
        for written_record in whole:
            folder.add(written_record)
    path = tmp_path / "episodes.jsonl"
    content = path.read_bytes()
    ends = range(len(content) + 1)
    for end in sorted({*ends[::7], *ends[:3], *ends[-60:]}):
        path.write_bytes(content[:end])
        with Folder(tmp_path, CONFIGURATION) as folder:
            complete = content[: end + 1].count(b"\n")  # a line that lacks only its end is there
            assert set(folder.records) == {(task, 0) for task in range(complete)}
            assert folder.repaired == (end != 0 and b"\n" not in content[end - 1 : end + 1])
            for written_record in whole[complete:]:
                folder.add(written_record)
        assert path.read_bytes() == content


def test_damaged_line_is_named(tmp_path):
    with Folder(tmp_path, CONFIGURATION) as folder:
        for task in range(3):
            folder.add(record(task))
    path = tmp_path / "episodes.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for bad in ("{}\n", "\n", "\0\0\n", lines[1].replace('"turn_rewards":[]', '"turn_rewards":3')):
        path.write_text("".join([lines[0], bad, lines[2]]))
        with pytest.raises(FolderError, match="episodes.jsonl: line 2 is damaged"):
            Folder(tmp_path, CONFIGURATION)
    path.write_text("".join([*lines, lines[0]]))
    with pytest.raises(FolderError, match="line 4 is the second one of task 0, sample 0"):
        Folder(tmp_path, CONFIGURATION)


def test_concurrent_starts_write_one_manifest(tmp_path, monkeypatch):
    def while_another_begins(path, value, write=write_json):
        monkeypatch.undo()
        with pytest.raises(FolderError, match="another process is evaluating"):
            Folder(tmp_path, {**CONFIGURATION, "seed": 1})
        return write(path, value)

    monkeypatch.setattr("textenvs.evaluate.records.write_json", while_another_begins)
    with Folder(tmp_path, CONFIGURATION):
        assert json.loads((tmp_path / "manifest.json").read_text()) == CONFIGURATION


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({**CONFIGURATION, "samples": 3}, r"samples: it has 2, the command 3"),
        (
            {**CONFIGURATION, "environment": {"id": "say", "options": {"level": "hard"}}},
            r'environment.options.level: it has "easy", the command "hard"',
        ),
        (
            {**CONFIGURATION, "environment": {"id": "say", "options": {}}},
            r'options.level: it has "easy", the command null',
        ),
        ({**CONFIGURATION, "seed": None}, r"seed: it has 0, the command null"),
        ({**CONFIGURATION, "policy": None}, r"policy: it has null, the command null"),
        ({**CONFIGURATION, "samples": 3, "seed": 1}, r"(?s)samples: .*seed: it has 0, the command 1"),
    ],
)
def test_other_evaluation_is_refused_with_differences(tmp_path, changed, message):
    with Folder(tmp_path, CONFIGURATION) as folder:
        folder.add(record(0))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FolderError, match=message):
        Folder(tmp_path, changed)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with Folder(tmp_path, CONFIGURATION) as folder:  # and the folder is free
        assert set(folder.records) == {(0, 0)}


def test_folder_without_evaluation_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match="is a file"):
        Folder(tmp_path / "file", CONFIGURATION)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(FolderError, match="no manifest.json"):
        Folder(tmp_path / "a", CONFIGURATION)
    for content in ("{", "7"):
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b" / "manifest.json").write_text(content)
        with pytest.raises(FolderError, match=r"manifest.json is not"):
            Folder(tmp_path / "b", CONFIGURATION)


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_one_process_at_a_time(tmp_path):
    with Folder(tmp_path, CONFIGURATION) as folder:
        folder.add(record(0))
        with pytest.raises(FolderError, match="another process is evaluating"):
            Folder(tmp_path, CONFIGURATION)
    Folder(tmp_path, CONFIGURATION).close()


def test_failed_episodes_are_forgotten_where_asked(tmp_path):
    with Folder(tmp_path, CONFIGURATION) as folder:
        for task in range(4):
            folder.add(record(task, failed=task % 2 == 0, failure="down" if task % 2 == 0 else None))
    with Folder(tmp_path, CONFIGURATION) as folder:
        assert len(folder.records) == 4
        write_json(folder.path / SUMMARY, {})
        folder.write_results()
    with Folder(tmp_path, CONFIGURATION, retry_failed=True) as folder:
        assert set(folder.records) == {(1, 0), (3, 0)}
        # Numbers of other episodes than those that are there would be shown as theirs.
        assert not [name for name in (SUMMARY, RESULTS) if (folder.path / name).exists()]
        folder.add(record(0))
        with pytest.raises(FolderError, match="another process"):
            Folder(tmp_path, CONFIGURATION)
    with Folder(tmp_path, CONFIGURATION) as folder:
        assert set(folder.records) == {(0, 0), (1, 0), (3, 0)}


def test_added_record_survives_kill(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from textenvs.evaluate.records import Folder, Record\n"
        "folder = Folder(sys.argv[1], {})\n"
        "folder.add(Record(0, 0, 1, 0, 'k', 's'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert done.returncode == -9
    with Folder(tmp_path, {}) as folder:  # the lock is gone with its process
        assert set(folder.records) == {(0, 0)}


def test_results_as_a_table(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'data'")
    with Folder(tmp_path, CONFIGURATION) as folder:
        folder.add(record(1, terms={"b": 2.0}, messages=({"role": "user", "content": "hi"},)))
        folder.add(record(0, 1, turn_rewards=(0.5, 1.0), terms={"a": 1.5}, metrics={"m": 3.0}, prompt_tokens=7))
        folder.add(record(0, 0, failed=True, failure="down"))
        path = folder.write_results()
        write_json(tmp_path / "summary.json", {"x": 1})
    rows = parquet.read_table(path).to_pylist()
    assert [(row["task"], row["sample"]) for row in rows] == [(0, 0), (0, 1), (1, 0)]
    assert [row["return"] for row in rows] == [0.0, 1.5, 0.0]
    assert rows[1]["turn_rewards"] == [0.5, 1.0]
    assert [(row["term/a"], row["term/b"], row["metric/m"]) for row in rows] == [
        (None, None, None),
        (1.5, None, 3.0),
        (None, 2.0, None),
    ]
    assert json.loads(rows[2]["messages"]) == [{"role": "user", "content": "hi"}]
    assert json.loads((tmp_path / "summary.json").read_text()) == {"x": 1}
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json",
        "episodes.jsonl",
        "results.parquet",
        "summary.json",
    }


def test_file_write_is_atomic(tmp_path, monkeypatch):
    path = write_json(tmp_path / "x.json", {"old": 1})
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"new": float("nan")})

    def broken(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"new": 1})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_partial_write_is_an_error(tmp_path, monkeypatch):
    real = os.write
    with Folder(tmp_path, CONFIGURATION) as folder:
        folder.add(record(0))
        monkeypatch.setattr(os, "write", lambda handle, line: real(handle, line[:20]))
        with pytest.raises(OSError, match="could only be written in part"):
            folder.add(record(1))
    monkeypatch.undo()
    with Folder(tmp_path, CONFIGURATION) as folder:
        assert folder.repaired
        assert folder.records == {(0, 0): replace(record(0))}
