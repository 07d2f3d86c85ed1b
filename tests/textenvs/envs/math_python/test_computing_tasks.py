"""Problems for programs: the answers are right, and the splits share nothing."""

import re

import pytest

from textenvs.envs.math_python.tasks import LEVELS, GeneratedComputing

# One problem of each kind, by index; the answers were worked out in other ways than by the program: closed forms, a
# sieve, totients, powers of a matrix, inclusion and exclusion over paths, the recurrence of Josephus.
ANSWERS = {
    "easy": {0: 4405, 3: 91078295, 6: 3687057454, 7: 451},
    "medium": {0: 13638, 2: 2880, 6: 307, 7: 2331},
    "hard": {0: 9153, 1: 6705, 3: 144, 10: 950},
}


@pytest.mark.parametrize("level", LEVELS)
def test_answers_are_those_of_other_methods(level):
    tasks = GeneratedComputing(level)
    assert {index: int(tasks[index].ground_truth) for index in ANSWERS[level]} == ANSWERS[level]
    assert len({tasks[index].extra["program"][:12] for index in ANSWERS[level]}) == 4


@pytest.mark.parametrize("level", LEVELS)
def test_the_splits_share_no_problem(level):
    train = {GeneratedComputing(level, seed, "train")[i].question for seed in (0, 1) for i in range(20)}
    test = {GeneratedComputing(level, seed, "test")[i].question for seed in (0, 2) for i in range(20)}
    assert len(train) > 30
    assert not train & test


@pytest.mark.parametrize("level", LEVELS)
def test_the_splits_share_no_wording(level):
    def wordings(split):
        questions = (GeneratedComputing(level, split=split)[i].question for i in range(60))
        return {re.sub(r"\d+", "0", re.sub(r"\(\d+, \d+\)", "(x, y)", question)) for question in questions}

    train, test = wordings("train"), wordings("test")
    assert len(train) >= 10
    assert len(test) == 4  # one of each kind
    assert not train & test


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_wordings_name_all_that_is_drawn(level, split):
    """Two problems with one question have one answer."""
    answers = {}
    for seed in range(2):
        tasks = GeneratedComputing(level, seed, split)
        for i in range(25):
            task = tasks[i]
            assert "$" not in task.question
            assert answers.setdefault(task.question, task.ground_truth) == task.ground_truth
            numbers = set(re.findall(r"\d+", task.question))
            drawn = set(re.findall(r"\b\d{3,}\b", task.extra["program"]))
            assert drawn <= numbers | {str(int(number) + 1) for number in numbers}
