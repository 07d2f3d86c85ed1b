"""Which faults pass, and how long is waited."""

import random
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.chat.retry import Backoff, Fault, retry_after_s

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize("code", range(400, 600))
def test_what_is_tried_again(code):
    assert Fault("x", status=code).passing == (code in (408, 409, 429) or code >= 500)


def test_an_empty_account_is_not_waited_for():
    assert not Fault("x", status=429, code="insufficient_quota").passing
    assert Fault("x", status=429, code="rate_limit_exceeded").passing
    assert Fault("the connection broke").passing


@given(
    retry=st.integers(0, 2000),
    first=st.floats(0.01, 5),
    factor=st.floats(1, 100),
    asked=st.none() | st.floats(0, 1000),
    seed=st.integers(0, 9),
)
def test_waits_double_stay_below_the_longest_and_never_undercut_the_service(retry, first, factor, asked, seed):
    backoff = Backoff(first, first * factor)
    wait = backoff.wait_s(retry, Fault("x", 429, retry_after_s=asked), random.Random(seed))
    if asked is not None and asked > backoff.longest_s:
        assert wait is None
        return
    usual = min(backoff.longest_s, first * 2 ** min(retry, 60))
    assert wait >= usual / 2
    assert wait >= (asked or 0)
    assert wait <= max(usual, (asked or 0) + first)


def test_clients_that_failed_together_do_not_come_back_together():
    rng = random.Random(0)
    assert len({Backoff(1.0, 60.0).wait_s(3, Fault("x"), rng) for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": format_datetime(NOW.replace(minute=1), usegmt=True)}, 60.0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 -0000"}, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_reading_what_the_service_asks_for(headers, seconds):
    assert retry_after_s(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("fault", "too_long"),
    [
        (Fault("HTTP 400: no", 400, "context_length_exceeded"), True),
        (Fault("HTTP 400: This model's maximum context length is 4096 tokens. However, you requested 5000", 400), True),
        (
            Fault("HTTP 400: The input (5000 tokens) is longer than the model's context length (4096 tokens).", 400),
            True,
        ),
        (Fault("HTTP 400: the request exceeds the available context size", 400), True),
        (Fault("HTTP 422: `inputs` must have less than 4096 tokens", 422), True),
        (Fault("HTTP 413: prompt is too long: 5000 tokens > 4096 maximum", 413), True),
        (Fault("HTTP 400: max_tokens must be at least 1", 400), False),
        (Fault("HTTP 500: context length", 500), False),
        (Fault("the connection failed: context length"), False),
    ],
)
def test_a_conversation_that_is_too_long_is_told_apart(fault, too_long):
    assert fault.too_long == too_long
