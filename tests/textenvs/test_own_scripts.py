"""The families' scripts: they know the wordings of training tasks, and test tasks have others."""

import functools
import importlib
import importlib.util
from pathlib import Path

import pytest

import textenvs
from textenvs import task, text
from textenvs.envs import __path__ as families
from textenvs.envs.collab import script as collab_script
from textenvs.envs.collab_document import tasks as document_tasks
from textenvs.envs.collab_math import tasks as math_tasks
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


@pytest.mark.parametrize("path", sorted(Path(families[0]).glob("*/script.py")), ids=lambda path: path.parent.name)
def test_import_of_a_script_builds_no_table(monkeypatch, path):
    def built(*arguments, **options):
        raise AssertionError("a table is built at import")

    importlib.import_module(f"textenvs.envs.{path.parent.name}.script")  # with all that it imports
    tables = (task, "split_choices"), (text, "load_yaml"), (math_tasks, "grammar"), (document_tasks, "_kinds")
    for module, function in (*tables, (collab_script, "Words")):
        monkeypatch.setattr(module, function, built)
    spec = importlib.util.spec_from_file_location(f"textenvs.envs.{path.parent.name}.again", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


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
