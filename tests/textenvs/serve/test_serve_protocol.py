"""Valid and invalid requests of the protocol."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.serve.protocol import (
    MAX_REPLAY,
    MAX_VALUES,
    OPS,
    Refusal,
    Step,
    decode,
    encode,
    parse_request,
    set_state,
    weigh,
)

any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(
        st.characters() | st.characters(categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
FIELD = st.sampled_from(["session", "sessions", "turn", "action", "env", "seed", "rng", "replay", "index", "x"])
STEP = {"session": "s", "turn": 0, "action": "x"}


@settings(max_examples=10)
@given(any_json)
def test_messages_survive_encoding(value):
    text = encode({"v": value})
    assert text.isascii()
    assert decode(text) == {"v": value}
    assert weigh(text) >= len(text)


def test_numpy_numbers_are_encoded_as_numbers():
    message = {"i": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)}
    assert decode(encode(message)) == {"i": 3, "f": 0.5, "b": True}
    with pytest.raises(TypeError, match="object is not JSON"):
        encode({"x": object()})
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON compliant"):
            encode({"x": number})


@given(st.sampled_from([*OPS, "x"]), st.dictionaries(FIELD, any_json).map(encode) | any_json.map(encode) | st.binary())
def test_garbage_is_request_or_refusal(op, body):
    refusal = None
    try:
        parse_request(op, body)
    except Refusal as raised:
        refusal = raised
    assert refusal is None or (refusal.kind == "bad_request" and json.dumps(refusal.to_json()))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"session": ...}, "session: Field required"),
        ({"session": 7}, "session: "),
        ({"turn": -1}, "turn: "),
        ({"turn": "0"}, "turn: "),
        ({"turn": True}, "turn: "),
        ({"action": None}, "action"),
        ({"extra": 1}, "extra: Extra inputs"),
        ({"x" * 10_000: 1}, "x{64}: Extra inputs"),
    ],
)
def test_malformed_request_names_place_without_content(changes, match):
    message = {"session": 17, "action": {"secret": 1}, "turn": 0, **changes}
    with pytest.raises(Refusal, match=match) as raised:
        parse_request("step", encode({name: value for name, value in message.items() if value is not ...}))
    assert "secret" not in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_a_replay_has_a_limit():
    opening = {"session": "s" * 16, "env": "e", "seed": 0}
    for size in (MAX_REPLAY, MAX_REPLAY + 1):
        body = encode({**opening, "replay": [{"reseed": 1}] * size})
        if size == MAX_REPLAY:
            assert len(parse_request("open", body).replay) == size
            continue
        with pytest.raises(Refusal, match="replay: "):
            parse_request("open", body)
    assert parse_request("step", encode(STEP)) == Step(**STEP)


def test_generator_is_sent_by_state():
    rng, moved = np.random.default_rng(3), np.random.default_rng(4)
    rng.integers(5, size=7)
    set_state(moved, decode(encode(rng.bit_generator.state)))
    assert moved.integers(10**9, size=5).tolist() == rng.integers(10**9, size=5).tolist()
    for wrong in ({}, {"bit_generator": "MT19937"}, {"bit_generator": "PCG64", "state": {"state": -1, "inc": 2**200}}):
        with pytest.raises(Refusal, match="not the state"):
            set_state(rng, wrong)


@given(st.integers(1, 300_000), st.sampled_from(["[]", "{}", "1", '{"a":1}', '"x"']))
@settings(max_examples=10, deadline=None)
def test_requests_with_many_values_are_unparsed(count, value):
    body = ("[" + ",".join([value] * count) + "]").encode()
    size = 1 + count * {'{"a":1}': 3}.get(value, 1)
    if size > 2 * MAX_VALUES:
        with pytest.raises(ValueError, match="more than"):
            decode(body)
    elif size < MAX_VALUES // 2:
        assert len(decode(body)) == count
    assert weigh(body) <= len(body) + 64 * MAX_VALUES
