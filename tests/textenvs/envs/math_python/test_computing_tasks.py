"""Problems for programs: the answer and the program agree, and the splits share nothing."""

import contextlib
import io
import re

import pytest

from textenvs.envs.math_python.tasks import LEVELS, GeneratedComputing

SAMPLE = 60


def printed(program: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    return out.getvalue()


@pytest.mark.parametrize("level", LEVELS)
def test_the_program_prints_the_answer(level):
    """The two are worked out in different ways, so that they check each other."""
    kinds = set()
    for index in range(SAMPLE):
        task = GeneratedComputing(level)[index]
        assert printed(task.extra["program"]) == f"{task.ground_truth}\n", task.question
        kinds.add(re.sub(r"[0-9]+", "", task.extra["program"])[:25])
    assert len(kinds) >= 4


@pytest.mark.parametrize("level", LEVELS)
def test_the_splits_share_no_problem(level):
    train = {GeneratedComputing(level, seed, "train")[i].question for seed in (0, 1) for i in range(300)}
    test = {GeneratedComputing(level, seed, "test")[i].question for seed in (0, 2) for i in range(300)}
    assert len(train) > 500
    assert not train & test


def test_a_problem_depends_on_level_split_seed_and_index_alone():
    base = GeneratedComputing("medium", 3, "test")
    assert base[7] == GeneratedComputing("medium", 3, "test")[7]
    assert len({base[7].question, GeneratedComputing("medium", 4, "test")[7].question, base[8].question}) == 3
    assert base[7].key == "medium/test/3/7"


@pytest.mark.parametrize("wrong", [{"level": "huge"}, {"split": "dev"}, {"seed": 1.5}, {"seed": True}])
def test_unknown_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GeneratedComputing(**wrong)
    with pytest.raises(IndexError, match="negative"):
        GeneratedComputing()[-1]
