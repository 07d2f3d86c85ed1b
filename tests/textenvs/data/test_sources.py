"""Sources of tasks by name, with MATH's and AIME's rows."""

import json

import pytest

import textenvs
from textenvs.data.files import write_parquet
from textenvs.data.gsm8k import READER as WORDS
from textenvs.data.sources import Reader, open_source
from textenvs.data.word_problems import GeneratedMath
from textenvs.envs.math_python.tasks import COLUMNS, LEVELS, GeneratedComputing, from_problem
from textenvs.messages import user
from textenvs.task import Rows, Task, TaskError

READER = Reader(lambda level, split, seed: GeneratedComputing(level, seed, split), LEVELS, from_problem, COLUMNS, "a/b")

MATH = {
    "problem": "What is $1/2+1/3$?",
    "level": "Level 2",
    "type": "Algebra",
    "solution": r"It is $\frac{3}{6}+\frac{2}{6}=\boxed{\frac{5}{6}}$.",
}
AIME = {"ID": "2024-I-1", "Problem": "Find $m+n$.", "Solution": "We find 204.", "Answer": 204}


def opened(source, **options):
    return open_source(source, READER, **{"level": None, "split": "train", "seed": 0, **options})


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_rows_of_math_and_aime(tmp_path):
    tasks = opened(write(tmp_path / "rows.jsonl", MATH, AIME))
    assert (tasks[0].ground_truth, tasks[0].prompt) == (r"\frac{5}{6}", (user(MATH["problem"]),))
    assert tasks[0].extra == {"level": "Level 2", "type": "Algebra", "solution": MATH["solution"]}
    assert (tasks[1].ground_truth, tasks[1].extra) == ("204", {"id": "2024-I-1"})
    assert [tasks[i].key for i in range(2)] == ["rows/1", "rows/2"]
    assert tasks[0].data_source == "rows"


def test_a_folder_of_the_hub(tmp_path):
    pytest.importorskip("datasets")
    write(tmp_path / "train.jsonl", MATH)
    assert opened(f"hub:{tmp_path}")[0].ground_truth == r"\frac{5}{6}"
    with pytest.raises(TaskError, match="could not be loaded"):
        opened(f"hub:{tmp_path / 'absent'}")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"problem": "p"}, "a row needs 'problem', and 'answer'"),
        ({"solution": "s", "answer": "1"}, "a row needs"),
        ({**MATH, "solution": "no box"}, "has no \\\\boxed"),
        ({**AIME, "Answer": ""}, "'answer' is empty"),
        ({**AIME, "Answer": [1]}, "'answer' must be text or a number, not list"),
        ({**AIME, "Problem": " "}, "'problem' is empty"),
        ({**AIME, "Problem": 5}, "'problem' must be text, not int"),
    ],
)
def test_rows_that_cannot_be_used_are_listed(tmp_path, row, words):
    with pytest.raises(TaskError, match=rf"row 2: .*{words}"):
        opened(write(tmp_path / "bad.jsonl", AIME, row))


def test_generated_tasks_by_name():
    assert opened(None) == opened("generated:easy") == opened(None, level="easy") == GeneratedComputing("easy")
    assert opened(None, level="hard", split="test", seed=5) == GeneratedComputing("hard", 5, "test")
    for wrong in ("generated:", "generated:huge", "hub:", "rows.csv", "rows"):
        with pytest.raises(ValueError, match=r"generated:easy|name the data set|not a task source"):
            opened(wrong)
    for options in ({"level": "easy"}, {"split": "dev"}):
        with pytest.raises(ValueError, match="level|split"):
            opened("generated:hard", **options)


def test_nothing_but_the_argument_decides_what_is_played(tmp_path, monkeypatch):
    """Rows in a folder that older versions looked into change nothing."""
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("TEXTENVS_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    task = Task("k", "mine", (user("q"),), "1")
    for folder in (tmp_path / "gsm8k", tmp_path / ".cache" / "textenvs" / "gsm8k"):
        for split in ("train", "test"):
            write_parquet([task], folder / f"{split}.parquet")
    assert open_source(None, WORDS, level=None, split="train", seed=0) == GeneratedMath("easy")
    assert textenvs.make("textenv/gsm8k").tasks == GeneratedMath("easy")
    assert textenvs.make("textenv/gsm8k", tasks=tmp_path / "gsm8k" / "test.parquet").tasks[0] == task


def test_folder_is_refused_with_advice(tmp_path):
    with pytest.raises(ValueError, match=r"named by their path: tasks='data/train.parquet'"):
        opened(tmp_path)


def test_several_sources_and_task_sets(tmp_path):
    one, two = write(tmp_path / "a.jsonl", MATH), write(tmp_path / "b.jsonl", AIME, MATH)
    both = opened([one, str(two)])
    assert (both.size, [both[i].key for i in range(3)]) == (3, ["0/a/1", "1/b/1", "1/b/2"])
    assert opened([one]) is opened(one)
    with pytest.raises(ValueError, match="endless"):
        opened([one, "generated:easy"])
    with pytest.raises(ValueError, match="empty sequence"):
        opened([])
    rows = Rows("mine", [Task("k", "d", (user("q"),), "1")])
    assert opened(rows) is rows


def test_file_is_reread_only_when_changed(tmp_path):
    path = write(tmp_path / "a.jsonl", MATH)
    first = opened(path)
    assert opened(path) is first
    write(path, MATH, AIME)
    assert opened(path).size == 2
