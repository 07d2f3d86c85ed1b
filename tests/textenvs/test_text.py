"""Foreign texts in output for a person: no control characters, and no megabytes."""

import copy

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import Guess

import textenvs
from textenvs.sandbox import SandboxUnavailable
from textenvs.text import excerpt, plural, printable, quoted

HOSTILE = "\x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe \x00 \x7f \r over"
anything = st.text() | st.text("\x00\x1b\x9b\u202e\u2066ab\n\t")


@given(anything)
def test_printable_text_escapes_control_characters(text):
    escaped = printable(text)
    assert all(c in "\t\n" or (ord(c) >= 32 and not 127 <= ord(c) < 160) for c in escaped)
    assert not set(escaped) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert printable(escaped) == escaped
    if text.isprintable():
        assert escaped == text


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_unprintable_value_is_quoted_by_type():
    assert quoted(10**5000) == "a value of the type int"
    assert quoted([Unshown()]) == "a value of the type list"


@given(anything | st.binary() | st.lists(anything), st.integers(10, 60))
def test_quotes_are_short_with_full_length(value, most):
    quote = quoted(value, most)
    assert printable(quote) == quote
    assert len(quote) <= 10 * most + 40  # an escaped character takes up to ten
    if len(repr(value)) <= most:
        assert quote == printable(repr(value))


def test_an_excerpt_of_megabytes_is_short():
    assert excerpt("x" * 10**7) == "x" * 300 + "... (10000000 characters)"
    assert len(quoted("x" * 10**7)) < 300
    assert len(quoted(["x" * 10**7])) < 300


@pytest.mark.parametrize("mode", ["ansi", "human"])
def test_rendering_escapes_what_models_and_users_say(mode, capsys):
    class Hostile(Guess):
        def opening(self, task):
            return [{"role": "user", "content": HOSTILE}]

    env = Hostile(render_mode=mode)
    env.reset(seed=0)
    call = {"id": "1", "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    env.step({"role": "assistant", "content": HOSTILE, "tool_calls": (call,)})
    page = env.render() or capsys.readouterr().out
    assert "title" in page
    assert printable(page) == page


def _rows(env):
    """A task of the environment with a megabyte in the place of its ground truth, or in one of its other facts."""
    row = env.tasks[0].to_row()
    for huge in ("7 " * 500_000, "\x1b[2J" * 250_000, ["x" * 10**6], {"target": "x" * 10**6}):
        changed = copy.deepcopy(row)
        changed["reward_model"]["ground_truth"] = huge
        yield changed


@pytest.mark.parametrize("env_id", textenvs.list_environments())
def test_errors_shorten_large_ground_truths(env_id):
    try:
        env = textenvs.make(env_id)
    except (SandboxUnavailable, ImportError, gymnasium.error.Error) as error:
        pytest.skip(str(error)[:200])
    for row in _rows(env):
        message = _error_of(env, row)
        assert len(message) < 2000
        assert printable(message) == message
    env.close()


def _error_of(env, row):
    try:
        env.reset(seed=0, options={"task": row})
        env.step("#### 1")
    except Exception as error:
        return str(error)
    return ""


def test_plural_counts():
    assert [plural(count, "row") for count in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert plural(2, "reply", "replies") == "2 replies"
