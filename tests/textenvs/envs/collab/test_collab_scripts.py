"""Scripts from the phrase tables of training tasks solve the training split, not the test split."""

import functools
import random

import numpy as np
import pytest

import textenvs
from textenvs.audit.subject import mean
from textenvs.envs.collab.script import pattern_of
from textenvs.envs.collab_math.tasks import _story, grammar
from textenvs.evaluate.baselines import play_attack, play_script
from textenvs.task import split_choices

EPISODES = 40


@pytest.mark.parametrize(("env_id", "share"), [("textenv/collab-math", 0.47), ("textenv/collab-document", 0.7)])
def test_script_solves_training_and_not_test_split(env_id, share):
    returns = {}
    for split in ("train", "test"):
        make = functools.partial(textenvs.make, env_id, split=split)
        returns[split] = mean(play_attack(make, make().own_script, EPISODES))
    expert = mean(play_script(make, "expert", EPISODES))
    assert returns["train"] > 0.85 * expert
    assert returns["test"] < share * expert


def test_script_sees_conversation_alone():
    env = textenvs.make("textenv/collab-math")
    env.reset(seed=0)
    reply = env.own_script.start(np.random.default_rng(0), ())
    text = reply(env.state.messages)
    env.reset(seed=0)
    env.state.task = None
    assert env.own_script.start(np.random.default_rng(0), ())(env.state.messages) == text


def test_test_split_has_own_stories():
    def stories(split):
        rng = random.Random(0)
        return {tuple(step["topic"] for step in _story(rng, grammar(split), 3)[0]) for _ in range(20_000)}

    train, test = stories("train"), stories("test")
    assert len(train) > 1000
    assert len(test) > 100
    begins = {step["topic"] for step in grammar("train")["begin"].values()}
    assert not {topic for story in train for topic in story} & {topic for story in test for topic in story} - begins


def test_split_choices_partitions():
    for count in range(2, 30):
        choices = [f"choice {number}" for number in range(count)]
        train, test = split_choices(choices, "train"), split_choices(choices, "test")
        assert sorted((*train, *test)) == sorted(choices)
        assert len(test) == max(1, count // 4)
        assert [choice for choice in choices if choice in train] == list(train), "in the order given"
        assert split_choices(choices[::-1], "test") == test[::-1], "the order given decides nothing"
    assert split_choices(["one"], "train") == split_choices(["one"], "test") == ("one",)
    with pytest.raises(ValueError, match="none twice"):
        split_choices(["a", "a"], "train")
    with pytest.raises(ValueError, match="at least one"):
        split_choices([], "train")


def test_pattern_of_matches_filled_wordings():
    pattern = pattern_of("Each {thing} (of {n}) costs.", {"n": r"(\d+)", "thing": r"\w+"})
    assert pattern.fullmatch("Each apple (of 12) costs.")[1] == "12"
    assert pattern.fullmatch("Each apple (of x) costs.") is None
    with pytest.raises(KeyError, match="thing"):
        pattern_of("{thing}", {})
