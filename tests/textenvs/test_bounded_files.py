"""Bounds of files that come from elsewhere."""

import contextlib
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs import bounded_files
from textenvs.bounded_files import (
    BoundedLoader,
    UnreadableFile,
    check_json_size,
    parse_json,
    read_bytes,
    read_json_object,
    read_lines,
    read_yaml_mapping,
)
from textenvs.data.parquet_files import open_parquet
from textenvs.data.parquet_footer import read_footer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
)


def size(value):
    """Values of JSON data: those in arrays and objects, names of fields included, and itself."""
    if isinstance(value, list):
        return 1 + sum(map(size, value))
    if isinstance(value, dict):
        return 1 + sum(1 + size(part) for part in value.values())
    return 1


def depth(value):
    below = value if isinstance(value, list) else value.values() if isinstance(value, dict) else None
    return 0 if below is None else 1 + max(map(depth, below), default=0)


@given(JSON, st.sampled_from([None, 1]))
def test_json_within_bounds_is_parsed_exactly(value, indent):
    text = json.dumps(value, indent=indent)
    assert parse_json(text) == value
    assert parse_json(text, values=2 * size(value) + 1, depth=depth(value)) == value


@given(JSON.filter(lambda value: depth(value) > 0), st.booleans())
def test_json_beyond_a_bound_is_refused(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    with pytest.raises(ValueError, match="nested more than"):
        check_json_size(text, depth=depth(value) - 1)
    if size(value) > 2:  # an empty array counts as two: its bracket stands for a value that may be there
        with pytest.raises(ValueError, match="values"):
            check_json_size(text, values=size(value) // 2)


@given(st.text(alphabet='"\\[]{},:ab1 \n', max_size=60))
def test_text_raises_value_error_alone(text):
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match="."):
            parse_json(text)
    else:
        assert parse_json(text) == expected


HOSTILE_JSON = {
    "deep": "[" * 200_000,
    "wide": "[" + "[]," * 1_000_000 + "1]",
    "digits": "1" * 5000,
    "NaN": "NaN",
    "quotes": '"\\"' * 200_000,
    "escapes": '\\"' * 500_000,
}


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_json_is_refused(name):
    with pytest.raises(ValueError, match="."):
        parse_json(HOSTILE_JSON[name])


YAML_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


HOSTILE_YAML = {
    "bomb": (YAML_BOMB, "aliases included"),
    "own alias": ("a: &a [*a]", "alias within its own anchor"),
    "own alias in a mapping": ("a: &a\n  b: *a", "alias within its own anchor"),
    "deep list": ("a: " + "[" * 10_000, "nested more than"),
    "deep mapping": ("a: " + "{a: " * 10_000, "nested more than"),
    "base 60": ("a: " + "1:" * 100_000 + "1", "a number of 200001 characters"),
    "long": ("a: '" + "x" * bounded_files.YAML_FILE + "'", "more than 1 MiB"),
    "date": ("a: 2020-99-99", "value that cannot be read"),
    "python": ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    "list as key": ("? [a]\n: 1", "unhashable"),
    "list": ("- 1", "not a mapping"),
    "number as key": ("1: 2", "not a mapping"),
    "two documents": ("a: 1\n--- {}", "single document"),
}


@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_hostile_yaml_is_refused_in_words(tmp_path, name):
    text, problem = HOSTILE_YAML[name]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UnreadableFile, match=problem) as refusal:
        read_yaml_mapping(path)
    assert str(path) in str(refusal.value)
    assert len(str(refusal.value)) < 1000


@given(JSON)
def test_yaml_within_bounds_is_parsed_as_before(value):
    text = yaml.safe_dump(value, allow_unicode=True)
    assert yaml.load(text, BoundedLoader) == yaml.safe_load(text)


def test_aliases_are_read(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n")
    assert read_yaml_mapping(path) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    cases = (("pipe", "a pipe"), ("", "a folder"), ("absent", "no such file"), ("a\0b", "null"))
    for name, problem in (*cases, ("/dev/zero", "a device")):
        for read in (read_bytes, read_json_object, lambda path: list(read_lines(path))):
            with pytest.raises(UnreadableFile, match=problem):
                read(tmp_path / name)


def test_sizes_are_bounded(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345\n1234567\n1234")
    assert read_bytes(path, 18) == path.read_bytes()
    with pytest.raises(UnreadableFile, match="more than 17 bytes"):
        read_bytes(path, 17)
    assert [line for _, line in read_lines(path, 7)] == [b"12345\n", b"1234567\n", b"1234"]
    with pytest.raises(UnreadableFile, match="line 2 has more than 6 bytes"):
        list(read_lines(path, 6))


def repeated_text():
    return pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["x" * 500_000]))


def repeated_messages():
    message = pa.StructArray.from_arrays([repeated_text()] * 2, ["role", "content"])
    return pa.ListArray.from_arrays(pa.array([0, 2500, 5000], pa.int32()), message)


def repeated_numbers():
    return pa.repeat(7, (1 << 24) + 1)


@pytest.mark.parametrize("column", [repeated_text, repeated_messages, repeated_numbers])
def test_parquet_that_unpacks_to_much_more_is_refused(tmp_path, column):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"column": column()}), path, compression="zstd", row_group_size=1 << 25)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UnreadableFile, match="unpacks to"), open_parquet(path):
        pass


def test_repeated_texts_in_parquet_are_read(tmp_path):
    path = tmp_path / "rows.parquet"
    pairs = pa.array([[("a", "b")]] * 20_000, pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"text": ["hello " * 100] * 20_000, "pairs": pairs}), path)
    with open_parquet(path) as file:
        assert file.read().num_rows == 20_000


COLUMNS = {
    "text": st.text(max_size=5),
    "number": st.integers(-(2**31), 2**31 - 1),
    "list": st.lists(st.text(max_size=3), max_size=3),
    "struct": st.fixed_dictionaries({"a": st.floats(allow_nan=False), "b": st.lists(st.booleans(), max_size=2)}),
}


@given(st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=40), st.integers(1, 50), st.booleans())
@settings(deadline=None, max_examples=30)
def test_footers_are_read_as_by_pyarrow(tmp_path_factory, rows, group, dictionary):
    path = tmp_path_factory.getbasetemp() / "footer.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group, use_dictionary=dictionary)
    metadata = pq.ParquetFile(path).metadata
    groups = read_footer(path)
    assert [group.rows for group in groups] == [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    for number, group in enumerate(groups):
        columns = [metadata.row_group(number).column(n) for n in range(metadata.num_columns)]
        for actual, expected in zip(group.columns, columns, strict=True):
            assert actual.path == expected.path_in_schema
            assert (actual.values, actual.unpacked) == (expected.num_values, expected.total_uncompressed_size)
            assert actual.texts == (expected.physical_type == "BYTE_ARRAY")
            assert actual.dictionary == any("DICTIONARY" in name for name in expected.encodings)


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_damaged_footers_are_refused_or_read(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "list": [[1], [2, 3]]}), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(ValueError):  # anything else, and an end of the process, fails the test
        read_footer(path)
