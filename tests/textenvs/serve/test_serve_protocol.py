"""What is a message, and what is not."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.serve.protocol import (
    MAX_REPLAY,
    Refusal,
    Step,
    decode,
    encode,
    fingerprint,
    generator_from,
    generator_state,
    parse_request,
)

any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(
        st.characters() | st.characters(categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
FIELD = st.sampled_from(["id", "op", "session", "turn", "action", "env", "seed", "rng", "replay", "x"])
STEP = {"id": "1", "op": "step", "session": "s", "turn": 0, "action": "x"}


@settings(max_examples=50)
@given(any_json)
def test_a_message_comes_back_as_it_was_sent(value):
    text = encode({"v": value})
    assert text.isascii()
    assert decode(text) == {"v": value}


def test_numpys_numbers_are_numbers():
    message = {"i": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)}
    assert decode(encode(message)) == {"i": 3, "f": 0.5, "b": True}
    with pytest.raises(TypeError, match="object is not JSON"):
        encode({"x": object()})
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON compliant"):
            encode({"x": number})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("NaN", "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"seed": 1e999}', "too large"),
        ("[-1e999]", "too large"),
        ("1" * 5000, "JSON"),
        (b"\xff\xfe\x00", "JSON"),
        ("{} {}", "JSON"),
    ],
)
def test_what_is_not_json_is_refused(text, match):
    with pytest.raises(Refusal, match=match) as raised:
        decode(text)
    assert raised.value.kind == "bad_request"


@settings(max_examples=60)
@given(
    st.dictionaries(FIELD, any_json | st.sampled_from(["open", "step", "close", "score", "careless_reply"])) | any_json
)
def test_garbage_is_a_request_or_a_refusal(message):
    refusal = None
    try:
        parse_request(message)
    except Refusal as raised:
        refusal = raised
    assert refusal is None or (refusal.kind == "bad_request" and json.dumps(refusal.to_json()))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"op": "stepp"}, "'op' must be one of"),
        ({"op": ["step"]}, "'op' must be one of"),
        ({"id": ...}, "id: Field required"),
        ({"id": ""}, "id: "),
        ({"id": "x" * 129}, "id: "),
        ({"id": 7}, "id: "),
        ({"turn": -1}, "turn: "),
        ({"turn": "0"}, "turn: "),
        ({"turn": True}, "turn: "),
        ({"action": None}, "action"),
        ({"extra": 1}, "extra: "),
    ],
)
def test_a_malformed_request_says_where_and_does_not_repeat_what_was_sent(changes, match):
    message = {name: value for name, value in {**STEP, **changes}.items() if value is not ...}
    with pytest.raises(Refusal, match=match) as raised:
        parse_request({**message, "session": 17, "action": {"secret": 1}} if "action" not in changes else message)
    assert "secret" not in str(raised.value)


def test_a_long_name_of_a_field_is_not_repeated_and_a_replay_has_an_end():
    with pytest.raises(Refusal, match="x{64}: Extra inputs") as raised:
        parse_request({**STEP, "x" * 10_000: 1})
    assert len(str(raised.value)) < 1000
    opening = {"id": "1", "op": "open", "env": "e", "seed": 0}
    assert len(parse_request({**opening, "replay": [{"reseed": 1}] * MAX_REPLAY}).replay) == MAX_REPLAY
    with pytest.raises(Refusal, match="replay: "):
        parse_request({**opening, "replay": [{"reseed": 1}] * (MAX_REPLAY + 1)})


def test_a_good_request():
    assert parse_request(STEP) == Step(id="1", op="step", session="s", turn=0, action="x")
    assert fingerprint(STEP) == fingerprint({**dict(reversed(STEP.items())), "id": "2"})
    assert fingerprint(STEP) != fingerprint({**STEP, "action": "y"})


def test_generators_travel_by_their_state():
    rng = np.random.default_rng(3)
    rng.integers(5, size=7)
    moved = generator_from(decode(encode(generator_state(rng))))
    assert moved.integers(10**9, size=5).tolist() == rng.integers(10**9, size=5).tolist()
    with pytest.raises(ValueError, match="PCG64"):
        generator_state(np.random.Generator(np.random.MT19937(0)))
    for wrong in ({}, {"bit_generator": "MT19937"}, {"bit_generator": "PCG64", "state": 3}, {"bit_generator": []}):
        with pytest.raises(Refusal, match="state of a generator"):
            generator_from(wrong)
