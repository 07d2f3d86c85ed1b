"""The families' scripts: they know the wordings of training tasks, and test tasks have others."""

import functools

import pytest

import textenvs
from textenvs.evaluate.baselines import play_attack
from textenvs.sandbox import SandboxUnavailable
from textenvs.task import split_choices

SCRIPTED = ("textenv/clarify", "textenv/service-desk", "textenv/search-qa", "textenv/math-python")
EPISODES = {"textenv/clarify": 150, "textenv/math-python": 12}


def solved(env_id, split):
    make = functools.partial(textenvs.make, env_id, split=split)
    records = play_attack(make, make().own_script, EPISODES.get(env_id, 40), seed=3)
    assert not [record.failure for record in records if record.failed]
    return sum(record.success for record in records) / len(records)


@pytest.mark.parametrize("env_id", SCRIPTED)
def test_scripts_solve_training_tasks_more_often(env_id):
    try:
        train, test = solved(env_id, "train"), solved(env_id, "test")
    except SandboxUnavailable:
        pytest.skip("no sandbox here")
    assert train >= 0.9
    assert test <= train - 0.05


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 20])
def test_each_wording_is_of_one_split(count):
    wordings = [f"wording {number}" for number in range(count)]
    train, test = split_choices(wordings, "train"), split_choices(wordings, "test")
    if count == 1:
        assert train == test == ("wording 0",)
        return
    assert sorted([*train, *test]) == sorted(wordings)
    assert len(test) == max(1, count // 4)
    assert split_choices(wordings[::-1], "test") == test[::-1], "whatever their order"


@pytest.mark.parametrize("wordings", [[], ["one", "one"]])
def test_no_wordings_and_equal_ones_are_errors(wordings):
    with pytest.raises(ValueError, match="at least one choice and none twice"):
        split_choices(wordings, "train")
