"""Read structured replies: the whole reply or nothing, strictly, and errors quote nothing of it."""

import json
from enum import Enum
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from textenvs.chat.schema import strict_schema
from textenvs.chat.structured import parse_reply


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reasons: str
    score: float = Field(ge=0, le=1)


class Colour(Enum):
    RED = "red"


class Deep(BaseModel):
    inner: Verdict
    many: list[Verdict] = []
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    title: str | None = None  # a field that is called like a keyword of JSON schema
    default: int = 3


GOOD = '{"reasons": "ok", "score": 0.5}'


@given(reasons=st.text(), score=st.floats(0, 1))
def test_what_was_written_is_read(reasons, score):
    verdict = Verdict(reasons=reasons.encode("utf-8", "replace").decode(), score=score)
    text = verdict.model_dump_json()
    for wrapped in (
        text,
        f"  \n{text}\n",
        f"```json\n{text}\n```",
        f"```\n{text}\n```\n",
        json.dumps(json.loads(text)),
    ):
        assert parse_reply(wrapped, Verdict) == verdict


def test_integers_enums_and_nested_models():
    assert parse_reply('{"reasons": "", "score": 1}', Verdict).score == 1.0
    deep = parse_reply(f'{{"inner": {GOOD}, "many": [{GOOD}], "colour": "red", "kind": "b"}}', Deep)
    assert (deep.inner.score, deep.many[0].score, deep.colour, deep.kind) == (0.5, 0.5, Colour.RED, "b")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not one JSON object"),
        ("I give it 0.5", "not one JSON object"),
        (f"My verdict: {GOOD}", "not one JSON object"),
        (f"{GOOD}\n{GOOD}", "not one JSON object"),
        (f"```json\n{GOOD}\n```\nor\n```json\n{GOOD}\n```", "not one JSON object"),
        (GOOD[:-1], "not one JSON object"),
        (GOOD.replace('"', "'"), "not one JSON object"),
        ("[" * 100_000, "not one JSON object"),
        (f"[{GOOD}]", "not an object"),
        (json.dumps(GOOD), "not an object"),
        ('{"reasons": "ok", "score": 0, "score": 1}', "a name occurs twice"),
        ('{"reasons": "ok", "score": NaN}', "not finite"),
        ('{"reasons": "ok", "score": 1e999}', "not finite"),
        ('{"reasons": "ok", "score": 1.01}', "score: Input should be less than or equal to 1"),
        ('{"reasons": "ok", "score": "1"}', "score: Input should be a valid number"),
        ('{"reasons": "ok", "score": true}', "score: Input should be a valid number"),
        ('{"reasons": "ok"}', "score: Field required"),
        ('{"reasons": "\\ud800", "score": 1}', "the object"),
        ('{"reasons": "ok", "score": 1, "SECRET": 2}', "a field that was not asked for"),
    ],
)
def test_what_cannot_be_read(text, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        parse_reply(text, Verdict)
    assert "SECRET" not in str(caught.value)


@given(st.text())
def test_parser_neither_crashes_nor_quotes_text(text):
    marked = f'{{"reasons": "SECRET", "score": "SECRET", "SECRET": {text}'
    for reply in (text, marked):
        with pytest.raises(ValueError) as caught:  # noqa: PT011  any problem will do
            parse_reply(reply, Verdict)
        assert "SECRET" not in str(caught.value)


def objects(schema):
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def test_sent_schema_is_strict_throughout():
    schema = strict_schema(Deep)
    subschemas = list(objects(schema))
    assert len(subschemas) == 2
    for subschema in subschemas:
        assert subschema["required"] == list(subschema["properties"])
        assert subschema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Deep.model_fields)
    assert "default" not in schema["properties"]["default"]
    assert schema["$defs"]["Verdict"]["properties"]["score"] == {"minimum": 0, "maximum": 1, "type": "number"}
