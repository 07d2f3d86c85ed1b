"""Every file that a command reads, cut, nested, retyped or filled with other values: an error in words, or a result."""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "viewer"))

import synthetic

from textenvs.cli import main
from textenvs.data import GeneratedMath
from textenvs.data.files import write_parquet
from textenvs.evaluate.leaderboard import row_of, write
from textenvs.evaluate.records import Folder, Record, write_json
from textenvs.evaluate.summary import summarize
from textenvs.messages import assistant, user

CONFIGURATION = {
    "environment": {"id": "textenv/gsm8k", "version": 2, "options": {"level": "easy"}},
    "tasks": {"name": "numbers", "count": 2, "fingerprint": "f"},
    "samples": 1,
    "seed": 0,
    "policy": {"script": "expert"},
}

#: What stands where something else is expected.
ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        2**40,
        10**30,
        1.5,
        1e308,
        "",
        "x",
        "NaN",
        "a\x1b[31m",
        [],
        {},
        [1],
        [[]],
        {"a": 1},
        ["x", None],
    ]
)


def places(value, before=()):
    """The path of everything in a JSON value, itself first."""
    yield before
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from places(part, (*before, name))


def changed(value, place, change):
    """The value with what is at ``place`` removed (``...``), nested 200 deep (``"deep"``) or replaced."""
    if not place:
        for _ in range(200 if change == "deep" else 0):
            value = [value]
        return value if change == "deep" else None if change is ... else change[0]
    name, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    if not rest and change is ...:
        del copy[name]
    else:
        copy[name] = changed(copy[name], rest, change)
    return copy


CHANGES = st.just(...) | st.just("deep") | st.tuples(ODD)


@st.composite
def damaged_json(draw, text):
    """A text of JSON that is cut, has bytes exchanged, or has another value at one or two places."""
    if draw(st.integers(0, 3)) == 0:
        end = draw(st.integers(0, len(text)))
        filling = draw(st.sampled_from(["", "\0", "\n\n", "[" * 10_000, '{"a":' * 10_000, "1" * 5000, "\ufeff"]))
        return (text[:end] + filling).encode()
    value = json.loads(text)
    for _ in range(draw(st.integers(1, 2))):
        value = changed(value, draw(st.sampled_from(list(places(value)))), draw(CHANGES))
    return json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


@st.composite
def damaged_lines(draw, text):
    lines = text.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    damaged = [line.encode() for line in lines]
    damaged[number] = draw(damaged_json(lines[number]) | st.sampled_from([b"", b"\xff\xfe", b"{}", damaged[number]]))
    repeated = draw(st.booleans())
    return b"\n".join([*damaged, *damaged[:1]] if repeated else damaged) + draw(st.sampled_from([b"\n", b""]))


@st.composite
def damaged_parquet(draw, path, scratch):
    """A Parquet file with bytes exchanged, a column missing or of another type, or a cell that is null or shorter."""
    content = path.read_bytes()
    kind = draw(st.sampled_from(["bytes", "cut", "drop", "cast", "cell", "metadata"]))
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if kind == "bytes":
        damaged = bytearray(content)
        for _ in range(draw(st.integers(1, 8))):
            damaged[draw(st.integers(0, len(damaged) - 1))] = draw(st.integers(0, 255))
        return bytes(damaged)
    table = pq.read_table(path)
    name = draw(st.sampled_from(table.column_names))
    number = table.column_names.index(name)
    if kind == "drop":
        table = table.drop_columns([name])
    elif kind == "cast":
        other = draw(
            st.sampled_from([pa.array(["x"] * len(table)), pa.array([1.5] * len(table)), pa.nulls(len(table))])
        )
        table = table.set_column(number, name, other)
    elif kind == "metadata":
        info = draw(st.sampled_from([b"[]", b"{", b'{"kind": 3}', b'{"iteration": "x"}', b"[" * 5000, b"\xff"]))
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"textenvs.iteration": info})
    else:
        values = table.column(name).to_pylist()
        row = draw(st.integers(0, len(values) - 1))
        short = isinstance(values[row], list) and draw(st.booleans())
        values[row] = values[row][:-1] if short else None
        table = table.set_column(number, table.schema.field(number), pa.array(values, table.schema.field(number).type))
    pq.write_table(table, scratch)
    return scratch.read_bytes()


def command(*words):
    """Run a command; return its status and output. An exception, a traceback to a person, fails the test."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    assert status in (0, 1, 2)
    assert status == 0 or len(output.getvalue()) > 20
    return status, output.getvalue()


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A run, an evaluation, rows of a leaderboard and files of tasks, as commands write them."""
    folder = tmp_path_factory.mktemp("originals")
    synthetic.write_run(folder / "run", 1, 1, 2)
    with Folder(folder / "evaluation", CONFIGURATION) as evaluation:
        for task in range(2):
            messages = (user("What is 2 + 2?"), assistant("#### 4"))
            record = Record(
                task, 0, seed=task, task_index=task, task_key=f"k{task}", data_source="s", success=True,
                turn_rewards=(1.0,), terms={"correct": 1.0}, metrics={"words": 2.0}, assistant_turns=1,
                terminated=True, stop="solved", messages=messages,
            )  # fmt: skip
            evaluation.add(record)
        summary = summarize(evaluation.records.values())
    write_json(folder / "evaluation" / "summary.json", {**CONFIGURATION, **summary})
    write([row_of(folder / "evaluation")], folder / "rows.jsonl")
    write_parquet(GeneratedMath(), folder / "tasks.parquet", count=2)
    rows = pq.read_table(folder / "tasks.parquet").to_pylist()
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def play(originals, scratch, name, content, *words):
    """Run a command on a copy in which one file has this content."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(originals, scratch)
    (scratch / name).write_bytes(content)
    return command(*(word.replace("HERE", str(scratch)) for word in words))


COMMANDS = {
    "run/config.yaml": [("view", "HERE/run", "--no-open", "--last", "all")],
    "run/metrics.jsonl": [("view", "HERE/run", "--no-open")],
    "run/rollouts/train/000001.parquet": [
        ("view", "HERE/run", "--no-open"),
        ("view", "HERE/run/rollouts/train/000001.parquet", "--no-open"),
    ],
    "evaluation/manifest.json": [
        ("view", "HERE/evaluation", "--no-open"),
        ("export", "HERE/evaluation", "-o", "HERE/log.json"),
        ("leaderboard", "HERE/evaluation", "--rows", "HERE/new.jsonl"),
    ],
    "evaluation/episodes.jsonl": [
        ("view", "HERE/evaluation", "--no-open"),
        ("export", "HERE/evaluation", "-o", "HERE/log.json"),
        ("leaderboard", "HERE/evaluation", "--rows", "HERE/new.jsonl"),
    ],
    "evaluation/summary.json": [("view", "HERE/evaluation", "--no-open")],
    "rows.jsonl": [("leaderboard", "HERE/evaluation", "--rows", "HERE/rows.jsonl")],
    "tasks.jsonl": [
        ("prepare", "HERE/tasks.jsonl", "-o", "HERE/prepared"),
        ("describe", "textenv/gsm8k", "tasks=HERE/tasks.jsonl", "--episodes", "1"),
    ],
    "tasks.parquet": [("prepare", "HERE/tasks.parquet", "-o", "HERE/prepared")],
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_undamaged_files_are_read(originals, tmp_path, name):
    for words in COMMANDS[name]:
        assert play(originals, tmp_path / "copy", name, (originals / name).read_bytes(), *words)[0] == 0


@pytest.mark.parametrize("name", COMMANDS)
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_files_are_refused_in_words(originals, tmp_path_factory, name, data):
    scratch = tmp_path_factory.getbasetemp() / "damaged" / name.replace("/", "-")
    path = originals / name
    if path.suffix == ".parquet":
        content = data.draw(damaged_parquet(path, originals / "scratch.parquet"))
    elif path.suffix == ".jsonl":
        content = data.draw(damaged_lines(path.read_text()))
    elif path.suffix == ".yaml":
        value = json.dumps(yaml.safe_load(path.read_text()))
        content = data.draw(damaged_json(value))  # JSON is YAML
    else:
        content = data.draw(damaged_json(path.read_text()))
    play(originals, scratch, name, content, *data.draw(st.sampled_from(COMMANDS[name])))
