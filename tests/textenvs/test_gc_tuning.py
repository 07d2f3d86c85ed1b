"""The garbage collector's threshold while many episodes are played: raised, shared, put back."""

from __future__ import annotations

import gc
import itertools
from contextlib import ExitStack, aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import textenvs
from textenvs.episodes import play_episodes, rarely_collected


@pytest.fixture(autouse=True)
def _as_it_was():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_few_episodes_change_nothing() -> None:
    with rarely_collected(999):
        assert gc.get_threshold() == (700, 10, 10)


def test_threshold_is_raised_and_always_restored() -> None:
    def fail() -> None:
        with rarely_collected(5000):
            assert gc.get_threshold() == (100_000, 10, 10)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.get_threshold() == (700, 10, 10)


@settings(max_examples=10)
@given(st.lists(st.integers(1000, 9000), min_size=1, max_size=6), st.randoms())
def test_nested_uses_take_the_greatest_threshold(sizes: list[int], random: Any) -> None:
    gc.set_threshold(700, 10, 10)
    stacks = {number: ExitStack() for number in range(len(sizes))}
    for number, stack in stacks.items():
        stack.enter_context(rarely_collected(sizes[number]))
    order = list(stacks)
    random.shuffle(order)
    while order:
        assert gc.get_threshold()[0] == 20 * max(sizes[number] for number in order)
        stacks[order.pop()].close()
    assert gc.get_threshold() == (700, 10, 10)


def test_what_others_chose_stays() -> None:
    for chosen in (0, 10**6):  # off, and more than is wanted here
        gc.set_threshold(chosen, 10, 10)
        with rarely_collected(5000):
            assert gc.get_threshold()[0] == chosen
        assert gc.get_threshold()[0] == chosen
    gc.set_threshold(700, 10, 10)
    with rarely_collected(5000):
        gc.set_threshold(1234, 5, 5)
    assert gc.get_threshold() == (1234, 5, 5)


async def test_it_lasts_as_long_as_the_episodes() -> None:
    env = textenvs.make("textenv/clarify")
    async with aclosing(play_episodes(env, lambda seen: "7", itertools.count(), concurrency=1000)) as episodes:
        async for _ in episodes:
            assert gc.get_threshold()[0] == 20_000
            break
    assert gc.get_threshold()[0] == 700
