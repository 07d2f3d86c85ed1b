"""Generated problems: one function of the index, right answers, and splits that share nothing."""

import operator
import pickle
import random
import re
from collections import Counter
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.data.gsm8k import check_problem, without_annotations
from textenvs.data.word_problems import LEVELS, Dials, GeneratedMath, Problem, _Unsuitable, grammar
from textenvs.scoring.gsm8k import extract
from textenvs.task import TaskSet

levels = st.sampled_from(LEVELS)
splits = st.sampled_from(("train", "test"))
indices = st.integers(0, 2**31 - 1)
seeds = st.integers(-5, 2**40)

# With fractions, so that a division that leaves a remainder shows.
EXACTLY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_CALCULATION = re.compile(r"(\d+)([-+*/])(\d+)=(?:<<[^>]*>>)?(\d+)")


#: The distractors, as patterns.
ASIDES = [re.sub(r"\\?\{\w+\\?\}", r"\\w+", re.escape(text)) for text in grammar().distractors]
#: Numbers that a question says in words.
SAID = {
    "half|twice|doubles|again|two be together|metres wide": 2,  # and twice the length and the width of a garden
    "third|three tests": 3,
    "quarter": 4,
    "five-dollar|fifth": 5,
    "weeks and": 7,
    "ten-dollar": 10,
    "dozen": 12,
    " h and ": 60,
    "%": 100,
}


def calculations(answer):
    return [(int(a), sign, int(b), int(c)) for a, sign, b, c in _CALCULATION.findall(answer)]


@given(levels, splits, seeds, indices)
def test_a_task_is_a_function_of_its_index(level, split, seed, index):
    task = GeneratedMath(level, seed=seed, split=split)[index]
    assert task == GeneratedMath(level, seed=seed, split=split)[index]
    assert task == pickle.loads(pickle.dumps(GeneratedMath(level, seed=seed, split=split)))[index]
    assert task.data_source == f"textenvs/generated-{level}"
    assert task.prompt == ({"role": "user", "content": task.extra["question"]},)
    assert task.extra["level"] == level


@given(levels, splits, indices)
def test_the_worked_answer_is_right(level, split, index):
    task = GeneratedMath(level, split=split)[index]
    answer = task.extra["answer"]
    check_problem(task)
    assert extract(answer) == task.ground_truth
    steps = calculations(answer)
    for a, sign, b, c in steps:
        assert EXACTLY[sign](Fraction(a), b) == c >= 0
    assert steps[-1][3] == int(task.ground_truth)
    assert len(steps) in {"easy": (1, 2), "medium": (2, 3), "hard": (3, 4, 5), "expert": (6, 7, 8, 9)}[level]
    assert answer.splitlines()[-1] == f"#### {task.ground_truth}"
    assert len(answer.splitlines()) == len(steps) + 1
    clean = without_annotations(answer)
    assert "<<" not in clean
    assert calculations(clean) == steps


SENTENCES = [(unit, sentence) for unit, listed in grammar().then.items() for sentence in listed]
ROLES = {"name": "Tom", "other": "Ann", "third": "Sam", "thing": "pens", "extra": "toys"}


def check_numbers(problem, ask):
    """Every number of the worked answer is in the question, in digits or in words, or was worked out before."""
    question = " ".join([*problem.parts, ask])
    assert not re.search(r"[{}]", " ".join([question, *problem.lines]))
    numbers = {int(number) for number in re.findall(r"\d+", question)}
    numbers |= {number for word, number in SAID.items() if re.search(word, question, re.IGNORECASE)}
    if "full bags" in question:  # how many bags is for the solver to find
        numbers |= {total // size for total in numbers for size in numbers if size}
    for a, _, b, c in calculations("\n".join(problem.lines)):
        assert {a, b} <= numbers
        numbers.add(c)


@pytest.mark.parametrize("story", grammar().stories, ids=lambda story: story.say[:40])
def test_story_gives_all_numbers_of_its_answer(story):
    count = 0
    for seed in range(20):
        problem = Problem()
        with suppress(_Unsuitable):
            ask = problem.tell(story, ROLES, 1 + seed % 4, random.Random(seed))
            check_numbers(problem, ask)
            count += 1
    assert count >= 5


@pytest.mark.parametrize(("unit", "sentence"), SENTENCES, ids=lambda value: getattr(value, "say", value)[:40])
def test_continuation_gives_all_numbers_of_its_answer(unit, sentence):
    count = 0
    for story in grammar().stories:
        for seed in range(12 if story.leaves == unit else 0):
            problem, rng = Problem(), random.Random(seed)
            with suppress(_Unsuitable):
                problem.tell(story, ROLES, 1, rng)
                problem.tell(sentence, ROLES, 1, rng)
                check_numbers(problem, grammar().asks[unit].format(**ROLES))
                count += 1
    assert count >= 5


@given(indices, splits)
def test_easy_is_short_and_small(index, split):
    task = GeneratedMath("easy", split=split)[index]
    assert 12 <= len(task.question.split()) <= 25
    assert len(task.extra["answer"]) <= 30
    assert all(1 <= int(number) <= 20 for number in re.findall(r"\d+", task.question))
    assert 0 <= int(task.ground_truth) <= 60


@pytest.mark.parametrize("level", LEVELS)
def test_splits_share_no_text_or_arithmetic(level):
    seen = {}
    train, test = (1500, 500) if level == "easy" else (250, 100)
    for split, count in (("train", train), ("test", test)):
        tasks = [GeneratedMath(level, seed=seed, split=split)[i] for seed in (0, 1) for i in range(count)]
        questions = {task.question for task in tasks}
        chains = {tuple(calculations(task.extra["answer"])) for task in tasks}
        seen[split] = (questions, chains)
    assert not seen["train"][0] & seen["test"][0]
    assert not seen["train"][1] & seen["test"][1]
    assert len(seen["test"][1]) > 80  # a held-out set of many different calculations
    # Each split has many problems: few of those drawn come twice.
    assert len(seen["train"][0]) > 0.8 * 2 * train


@pytest.mark.parametrize("level", LEVELS)
def test_the_splits_share_no_wording(level):
    """Not one question, whatever its names, things and numbers."""

    def wordings(split):
        words = "|".join((*grammar().names, *grammar().things))
        tasks = GeneratedMath(level, split=split)
        return {re.sub(rf"\b(?:{words})\b|\d+", "#", tasks[i].question) for i in range(400)}

    assert not wordings("train") & wordings("test")


def test_what_problems_are_written_with_is_split():
    whole, (train, test) = grammar(), (grammar(split) for split in ("train", "test"))
    for get in (
        lambda words: [story.say for story in words.stories],
        lambda words: [sentence.say for listed in words.then.values() for sentence in listed],
        lambda words: words.distractors,
    ):
        assert sorted([*get(train), *get(test)]) == sorted(get(whole))
        assert not set(get(train)) & set(get(test))
        assert len(get(test)) >= 5
    assert {story.kind for story in train.stories} == {story.kind for story in test.stories}


@pytest.mark.parametrize("split", ["train", "test"])
def test_no_easy_calculation_dominates(split):
    """A policy that gets a single calculation wrong must not lose a tenth of its score."""
    tasks = GeneratedMath("easy", split=split)
    drawn = Counter(tuple(calculations(tasks[i].extra["answer"])) for i in range(2000))
    assert drawn.most_common(1)[0][1] < 2000 * 0.03
    assert 0.2 < sum(count for chain, count in drawn.items() if len(chain) == 1) / 2000 < 0.3


def test_there_are_many_stories_of_every_kind():
    stories = grammar().stories
    assert len({(story.say, story.ask) for story in stories}) == len(stories) >= 60
    kinds = Counter(story.kind for story in stories)
    assert {"chain", "comparison", "rate", "fraction", "share", "money"} <= set(kinds)
    drawn = {GeneratedMath("hard")[i].extra["kind"] for i in range(300)}
    assert drawn == set(kinds)


@given(st.integers(2, 9), st.integers(0, 4), st.integers(1, 5), st.integers(0, 3), indices)
def test_dials_set_the_difficulty(least, extra, size, aside, index):
    dials = Dials((least, least + extra), size, (aside, aside))
    tasks = GeneratedMath("hard", dials=dials)
    question, answer = (tasks[index].extra[name] for name in ("question", "answer"))
    assert least <= len(calculations(answer)) <= least + extra
    assert len(re.findall("|".join(ASIDES), question)) >= aside
    assert str(dials) in tasks.name


@given(splits, indices)
def test_distractors_differ_and_never_end_a_question(split, index):
    parts = re.split(r"(?<=[.?]) ", GeneratedMath("expert", split=split)[index].question)
    asides = [re.sub(r"\d+", "", part) for part in parts if re.fullmatch("|".join(ASIDES), part)]
    assert 1 <= len(asides) <= 3
    assert len(set(asides)) == len(asides)
    assert parts[-1].endswith("?")


@pytest.mark.parametrize("dials", [((1, 2), 1, (0, 0)), ((3, 2), 1, (0, 0)), ((2, 3), 0, (0, 0)), ((2, 3), 1, (2, 1))])
def test_bad_dials_are_errors(dials):
    with pytest.raises(ValueError, match="dials must be"):
        GeneratedMath("hard", dials=Dials(*dials))


def test_the_sequence_stays_what_it_was():
    """Published results name a level, a seed and an index: these must keep their meaning."""
    task = GeneratedMath("easy", seed=0, split="test")[0]
    assert task.question == "Eva has 5 stamps. Eva finds 2 more. Eva gets 4 more. How many stamps does Eva have now?"
    assert task.extra["answer"] == "5+2=7\n7+4=11\n#### 11"
    assert task.key == "easy/test/0/0"


def test_it_is_a_task_set_without_end():
    tasks = GeneratedMath("hard", seed=3)
    assert isinstance(tasks, TaskSet)
    assert tasks.size is None
    assert "hard" in tasks.name
    with pytest.raises(IndexError, match="negative"):
        tasks[-1]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"level": "trivial"}, "level must be one of easy, medium, hard, expert"),
        ({"split": "val"}, "split must be one of train"),
    ]
    + [({"seed": seed}, "seed must be an integer") for seed in (1.5, "1", True, None)],
)
def test_bad_options_are_errors(kwargs, message):
    with pytest.raises(ValueError, match=message):
        GeneratedMath(**kwargs)
