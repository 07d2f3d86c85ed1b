"""The keyword script of worlds: it takes requests in known wordings apart, and plays by the conversation alone."""

from __future__ import annotations

import datetime

import pytest

import textenvs
from benchmarks.world_script import Chain, Player, number_in, reply_maker


def world_env(level):
    return textenvs.make("textenv/worlds", level=level).unwrapped


@pytest.mark.parametrize(("level", "tasks", "least"), [("easy", 10, 6), ("medium", 5, 3)])
def test_training_wordings_are_solved(level, tasks, least):
    env, solved = world_env(level), 0
    for number in range(tasks):
        conversation, _ = env.reset(seed=number, options={"task_index": number})
        reply = reply_maker(conversation)
        while not env.state.done:
            conversation, *_ = env.step(reply(env.state.messages))
        solved += env.state.stop == "solved"
    assert solved >= least


def test_chains_of_references_are_read_backwards():
    conversation, _ = world_env("easy").reset(seed=0, options={"task_index": 0})
    player = Player(conversation)
    (chain,) = player.chains("close the office of the manager of Jon Li, please")
    assert chain == Chain(
        10, 41, "personnel.person", "Jon Li", [("personnel.person", "manager"), ("personnel.person", "office")]
    )
    assert chain.last == "personnel.office"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8,700 euros", 8700),
        ("11 February 2026", datetime.date(2026, 2, 11).timetuple().tm_yday),
        ("none", None),
    ],
)
def test_numbers_and_dates(text, number):
    assert number_in(text) == number
