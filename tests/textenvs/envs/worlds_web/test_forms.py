"""Forms from JSON schemas: what is filled in becomes the arguments, or a problem beside its field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.worlds_web.forms import arguments_of, hint_of, leaves, text_of_value, typed

WORDS = st.text("abc xyz", min_size=1, max_size=6).filter(str.strip)
SCALARS = {
    "string": ({"type": "string"}, WORDS),
    "integer": ({"type": "integer"}, st.integers(-(10**6), 10**6)),
    "number": ({"type": "number"}, st.floats(-1e6, 1e6)),
    "boolean": ({"type": "boolean"}, st.booleans()),
    "enum": ({"enum": ["red", "green", 3]}, st.sampled_from(["red", "green", 3])),
    "list": ({"type": "array", "items": {"type": "integer"}}, st.lists(st.integers(-9, 9), min_size=1, max_size=3)),
}


@st.composite
def forms(draw, depth=1):
    """Return a schema of arguments, and arguments that fit it."""
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))
    properties, required, value = {}, [], {}
    for name in names:
        if depth and draw(st.booleans()):
            part, inside = draw(forms(depth - 1))
        else:
            part, values = SCALARS[draw(st.sampled_from(sorted(SCALARS)))]
            inside = draw(values)
        properties[name] = part
        if needed := draw(st.booleans()):
            required.append(name)
        if needed or draw(st.booleans()):
            value[name] = inside
    if not value:  # an object without a part is not filled in at all
        value[names[0]] = inside if names[0] == name else draw(st.nothing())
    return {"type": "object", "properties": properties, "required": required}, value


def entries_of(schema, value, path=()):
    """Return what somebody fills in to say a value."""
    entries = {}
    for name, part in schema["properties"].items():
        if name in value:
            inside = value[name]
            entries |= entries_of(part, inside, (*path, name)) if "properties" in part else {(*path, name): inside}
    return entries


@given(st.data())
def test_entries_and_their_texts_say_the_arguments(data):
    schema, value = data.draw(forms().filter(lambda one: one[1]))
    entries = entries_of(schema, value)
    assert set(entries) <= {path for path, _, _ in leaves(schema)}
    assert arguments_of(schema, entries) == (value, {})
    assert arguments_of(schema, {path: text_of_value(entry) for path, entry in entries.items()}) == (value, {})


@given(st.data())
def test_required_field_left_empty_is_the_only_problem(data):
    schema, value = data.draw(forms().filter(lambda one: one[1]))
    entries = entries_of(schema, value)
    needed = [path for path, _, required in leaves(schema) if required]
    for path in needed:
        _, problems = arguments_of(schema, {**entries, path: " "})
        assert problems == {path: "it must be filled"}


@pytest.mark.parametrize(
    ("schema", "entry", "problem"),
    [
        ({"type": "integer"}, "five", "an integer"),
        ({"type": "integer"}, 2.5, "an integer"),
        ({"type": "integer"}, True, "an integer"),
        ({"type": "number"}, "1e999", "a number"),
        ({"type": "number"}, "NaN", "a number"),
        ({"type": "boolean"}, "yes", "true or false"),
        ({"type": "array", "items": {"type": "integer"}}, "a, b", "a JSON list"),
        ({"type": "array", "items": {"type": "integer"}}, ["a"], "an integer"),
        ({"type": "object"}, "[1]", "a JSON object"),
        ({"enum": ["open", "closed"]}, "shut", "open or closed"),
        ({"type": "string"}, ["a"], "a text"),
    ],
)
def test_value_of_another_type_is_a_problem(schema, entry, problem):
    with pytest.raises(ValueError, match=problem):
        typed(entry, schema)


@pytest.mark.parametrize(
    ("schema", "entry", "value"),
    [
        ({"type": "string"}, 12, "12"),
        ({"type": "integer"}, " 12 ", 12),
        ({"type": "integer"}, 12.0, 12),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, 12, 12),
        ({"type": ["integer", "null"]}, "12", 12),
        ({}, {"a": 1}, {"a": 1}),
        ({}, "12", "12"),
    ],
)
def test_entry_is_read_by_its_schema(schema, entry, value):
    assert typed(entry, schema) == value
    assert type(typed(entry, schema)) is type(value)


def test_hints_name_what_a_field_takes():
    assert hint_of({"title": "team id", "type": "string"}) == "team id"
    assert hint_of({"enum": ["open", 3]}) == "open or 3"
    assert hint_of({"type": "array", "items": {"type": "integer"}}) == "list of integer"
    assert hint_of({}) == "any value"
