"""The scripted user: what each level says, that none says the answer, and configuration by row."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.data import GeneratedMath, Task, TaskError, open_source
from textenvs.data.gsm8k import READER
from textenvs.data.word_problems import LEVELS
from textenvs.envs.gsm8k.user import FEEDBACKS, Gsm8kUser, user_of
from textenvs.messages import assistant, user
from textenvs.scoring.gsm8k import METHODS, normalize

SHARED = Path(__file__).resolve().parents[4].parent / "shared" / "data" / "gsm8k"


def say(simulated, reply):
    return simulated.answer_to(simulated.judge(assistant(reply)))


def numbers_in(text):
    """All numbers that can be read into a text, without signs: every stretch between any two places, by value."""
    places = range(len(text) + 1)
    whole = [
        text[a:b]
        for a in places
        for b in places[a + 1 :]
        if text[a:b].strip("0123456789,.") == "" and not text[a - 1 : a].isdigit() and not text[b : b + 1].isdigit()
    ]
    return {normalize(number.replace(",", "").strip(".") or "x") for number in whole} | {normalize(n) for n in whole}


WORKED = "She sold 48/2 = <<48/2=24>>24 in May.\nSo 48+24 = <<48+24=72>>72.\n#### 72"


@pytest.mark.parametrize(
    ("reply", "none", "form", "direction", "hint"),
    [
        ("It is 72.", "That is not right. Try again.", *["End with #### and the number. Try again."] * 3),
        (
            "#### 71",
            *["That is not right. Try again."] * 2,
            "That is too low. Try again.",
            "That is too low. Start with 48/2. Try again.",
        ),
        (
            "#### 1,000",
            *["That is not right. Try again."] * 2,
            "That is too high. Try again.",
            "That is too high. Start with 48/2. Try again.",
        ),
    ],
)
def test_graded_feedback(reply, none, form, direction, hint):
    messages = [say(Gsm8kUser("72", WORKED, feedback=level), reply) for level in FEEDBACKS]
    assert messages == [none, form, direction, hint]


def test_flexible_user_accepts_a_number_anywhere():
    simulated = Gsm8kUser("72", WORKED, method="flexible")
    assert simulated.judge(assistant("so 72")).correct
    assert say(simulated, "no idea") == "End with the number. Try again."
    assert say(simulated, "#### 72, or 73") == "That is too high. Try again."


def test_private_reasoning_is_not_read():
    simulated = Gsm8kUser("72")
    assert not simulated.judge(assistant("<think>#### 72</think>")).well_formed
    assert simulated.judge(assistant("<think>#### 71</think>#### 72")).correct
    assert not simulated.judge(assistant("<think>#### 72")).well_formed  # cut off while thinking
    assert simulated.judge(assistant("The tag <think> opens it.\n#### 72")).correct  # no leading reasoning


@pytest.mark.parametrize(
    ("solution", "gold", "hint"),
    [
        (WORKED, "72", "48/2"),
        ("13+4=17\n#### 17", "17", "13+4"),
        ("Tom has 3 + 4 = 7.\n#### 7", "7", "3 + 4"),
        ("It is 2 x 3 x 4 = 24.", "24", "2 x 3 x 4"),
        ("$5 \u00d7 $1,200 = $6,000", "6000", "$5 \u00d7 $1,200"),
        ("10+0=10\n#### 10", "10", None),  # the calculation has the answer in it
        ("<<1,000*1=1000>>1000", "1000", None),
        ("3-10=-7; 7", "-7", "3-10"),
        ("7-14=-7", "-7", None),  # the size of a negative answer gives it away too
        ("<<72=72>>72", "72", None),  # no calculation
        ("I see no sum.", "72", None),
        ("", "72", None),
    ],
)
def test_hints(solution, gold, hint):
    simulated = Gsm8kUser(gold, solution, feedback="hint")
    assert simulated.hint() == hint
    message = say(simulated, "#### 123456")
    assert message.startswith("That is too high. ")
    assert ("Start with" in message) == (hint is not None)


@given(
    level=st.sampled_from(LEVELS),
    index=st.integers(0, 10**6),
    feedback=st.sampled_from(FEEDBACKS),
    method=st.sampled_from(METHODS),
    reply=st.one_of(st.text(max_size=30), st.integers(-200, 2000).map("#### {}".format), st.integers().map(str)),
)
def test_no_level_ever_says_the_answer(level, index, feedback, method, reply):
    task = GeneratedMath(level)[index]
    simulated = user_of(task, method=method, feedback=feedback)
    verdict = simulated.judge(assistant(reply))
    if not verdict.correct:
        message = simulated.answer_to(verdict)
        assert normalize(task.ground_truth) not in numbers_in(message)
        assert len(message.split()) <= 20
        if feedback != "hint":
            assert not re.search(r"\d", message)


@given(
    solution=st.text("0123456789+-*/=<>., x$\n", max_size=40),
    gold=st.integers(-60, 60),
    wrong=st.integers(-60, 60),
)
def test_hints_never_contain_the_answer(solution, gold, wrong):
    if wrong != gold:
        message = say(Gsm8kUser(str(gold), solution, feedback="hint"), f"#### {wrong}")
        assert str(abs(gold)) not in numbers_in(message)


@pytest.mark.parametrize("split", ["train", "test"])
def test_no_leak_on_the_real_rows(split):
    path = SHARED / f"{split}.jsonl"
    if not path.exists():
        pytest.skip(f"GSM8K rows are not at {path}")
    tasks, hints = open_source(path, READER, level=None, split="train", seed=0), 0
    places = range(0, tasks.size, 5)
    for index in places:
        simulated = user_of(tasks[index], method="strict", feedback="hint")
        message = say(simulated, "#### 123456789")
        assert tasks[index].ground_truth.lstrip("-") not in numbers_in(message)
        hints += "Start with" in message
    assert hints > 0.9 * len(places)  # most rows do give one


# ------------------------------------------------------------------ by row


def row(**extra):
    return Task("k", "openai/gsm8k", (user("How many?"),), "72", extra={"answer": WORKED, **extra})


def test_a_row_configures_its_user():
    assert user_of(row(), method="strict", feedback="none") == Gsm8kUser("72", WORKED, "strict", "none")
    verl = {"name": "gsm8k", "query": "How many?", "ground_truth": "73"}
    assert user_of(row(interaction_kwargs=verl), method="strict", feedback="none").ground_truth == "73"
    options = {**verl, "method": "flexible", "feedback": "hint"}
    assert user_of(row(interaction_kwargs=options), method="strict", feedback="none") == Gsm8kUser(
        "73", WORKED, "flexible", "hint", query="How many?"
    )
    assert user_of(row(interaction_kwargs=None), method="strict", feedback="none").ground_truth == "72"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"name": "weather"}, "task k: extra_info.interaction_kwargs: name should be 'gsm8k', not 'weather'"),
        ({"name": "gsm8k", "mood": "bad"}, "unexpected keyword argument 'mood'"),
        ({"name": "gsm8k", "solution": "2+3=5"}, "multiple values for keyword argument 'solution'"),
        ("gsm8k", "'str' object is not a mapping"),
        ({"ground_truth": "many"}, "ground_truth 'many' is not a number"),
        ({"feedback": "loud"}, "feedback should be 'none', 'format', 'direction' or 'hint', not 'loud'"),
    ],
)
def test_bad_row_options_are_errors(kwargs, message):
    with pytest.raises(TaskError, match=message):
        user_of(row(interaction_kwargs=kwargs), method="strict", feedback="none")
