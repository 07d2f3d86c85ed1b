"""The GSM8K environments: rewards, ends, replay, forks, and nothing that gives the answer away."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.data import GeneratedMath, Task, TaskError
from textenvs.data.gsm8k import INSTRUCTION
from textenvs.data.word_problems import LEVELS
from textenvs.envs.gsm8k.env import Gsm8k, Gsm8kInteract
from textenvs.envs.gsm8k.user import FEEDBACKS
from textenvs.envs.self_correct.env import SelfCorrect
from textenvs.evaluate.baselines import play_attack
from textenvs.messages import assistant, system, user
from textenvs.scoring.gsm8k import METHODS
from textenvs.users.moves import METRIC

RNG = np.random.default_rng(0)
BOTH = (Gsm8k, Gsm8kInteract)


def wrong(task):
    return f"#### {int(task.ground_truth) + 1}"


# ------------------------------------------------------------------ the contract


@given(st.sampled_from(BOTH), st.integers(0, 2**31), st.sampled_from(LEVELS))
def test_expert_solves_every_task_at_once(make, seed, level):
    env = make(level=level)
    observation, info = env.reset(seed=seed)
    assert observation == (user(f"{env.task.question} {INSTRUCTION}"),)
    assert info["data_source"] == f"textenvs/generated-{level}"
    observation, reward, terminated, truncated, info = env.step(env.demonstration(RNG))
    assert (reward, terminated, truncated, info["stop"]) == (1.0, True, False, "solved")
    assert info["terms"]["correct"] == 1.0
    assert len(observation) == 2  # the user has nothing to add
    counts = {name: value for name, value in info["metrics"].items() if name != METRIC}
    assert counts == {"marked": 1.0, "strict": 1.0, "flexible": 1.0, "well_formed": 1.0}


replies = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.integers(-5, 60).map("#### {}".format),
        st.integers(-5, 60).map("\\boxed{{{}}}".format),
        st.just("expert"),
    ),
    min_size=1,
    max_size=6,
)
weights = st.floats(0.5, 2)
costs = st.floats(0, 0.4)


@given(
    replies,
    st.sampled_from(FEEDBACKS),
    weights,
    costs,
    costs,
    st.sampled_from(METHODS),
    st.integers(0, 99),
)
def test_turns_have_the_same_terms_that_sum(actions, feedback, correct, form, dearer, method, seed):
    env = Gsm8kInteract(feedback=feedback, correct=correct, format=form, extra_turn=-form - dearer, method=method)
    env.reset(seed=seed)
    ends = []
    for turn, action in enumerate(actions[: env.max_assistant_turns], start=1):
        observation, reward, terminated, truncated, info = env.step(
            env.demonstration(RNG) if action == "expert" else action
        )
        terms = info["terms"]
        assert set(terms) == {"correct", "format", "extra_turn"}
        assert all(type(value) is float for value in terms.values())
        assert reward == pytest.approx(sum(terms.values()))
        # The formula, written out.
        solved, formed = info["metrics"][method] == 1.0, info["metrics"]["well_formed"] == 1.0
        assert terms["correct"] == (correct if solved else 0.0)
        assert terms["format"] == (form if formed and not solved else 0.0)
        assert terms["extra_turn"] == (0.0 if turn == 1 else -form - dearer)
        assert terminated == solved
        assert info["stop"] == ("solved" if solved else "max_assistant_turns" if turn == 3 else None)
        assert not (terminated and truncated)
        assert observation[-1]["role"] == ("assistant" if solved else "user")
        ends.append(terminated or truncated)
        if ends[-1]:
            break
    assert not any(ends[:-1])


def test_failing_first_never_pays():
    """With any weights that are accepted, solving at once earns the most."""
    for form, extra in ((0.0, 0.0), (0.1, -0.1), (0.4, -0.5), (0.0, -0.3)):
        env = Gsm8kInteract(format=form, extra_turn=extra, max_assistant_turns=4)
        totals = []
        for failures in range(4):
            env.reset(seed=1)
            actions = [wrong(env.state.task)] * failures + [env.demonstration(RNG)]
            totals.append(sum(env.step(action)[1] for action in actions))
        assert totals == sorted(totals, reverse=True)
    with pytest.raises(ValueError, match="answering wrong first would pay"):
        Gsm8kInteract(format=0.2, extra_turn=-0.1)


def test_defaults():
    env = Gsm8kInteract()
    env.reset(seed=0)
    task = env.state.task
    observation, reward, *_ = env.step("I do not know")
    assert (reward, observation[-1]) == (0.0, user("End with #### and the number. Try again."))
    observation, reward, *_ = env.step(wrong(task))
    assert (reward, observation[-1]) == (-0.35, user("That is too high. Try again."))
    _, reward, terminated, _, info = env.step(f"#### {task.ground_truth}")
    assert (reward, terminated, info["stop"], info["user_turns"]) == (0.65, True, "solved", 2)


def test_blind_search_keeps_its_distance():
    """The best search that knows the numbers and the user's feedback, not the story: median first, by likelihood."""
    search = next(attack for attack in Gsm8kInteract().attacks() if attack.name == "sign-search")
    records = play_attack(Gsm8kInteract, search, 600)
    assert all(record.success for record in records)
    assert np.mean([record.total for record in records]) < 1.0 - Gsm8kInteract.attack_margin


def test_last_reply_is_judged_before_truncation():
    for options in ({"max_assistant_turns": 2}, {"max_assistant_turns": None, "max_user_turns": 1}):
        env = Gsm8kInteract(**options)
        for last, expected in (("expert", (True, False, "solved")), ("no", (False, True, next(iter(options))))):
            env.reset(seed=3)
            assert env.step(wrong(env.state.task))[2:4] == (False, False)
            _, _, terminated, truncated, info = env.step(env.demonstration(RNG) if last == "expert" else last)
            stop = "max_user_turns" if expected[1] and "max_user_turns" in options else expected[2]
            assert (terminated, truncated, info["stop"]) == (*expected[:2], stop)


def test_one_turn():
    env = Gsm8k(format=0.25)
    for reply, reward, stop in (("no idea", 0.0, "wrong"), ("wrong", 0.25, "wrong"), ("expert", 1.0, "solved")):
        env.reset(seed=2)
        action = {"wrong": wrong(env.state.task), "expert": env.demonstration(RNG)}.get(reply, reply)
        observation, got, terminated, truncated, info = env.step(assistant(action))
        assert (got, terminated, truncated, info["stop"]) == (reward, True, False, stop)
        assert set(info["terms"]) == {"correct", "format"}
        assert observation[-1] == assistant(action)


@pytest.mark.parametrize("make", BOTH)
def test_strict_and_flexible(make):
    for method, solved in (("strict", False), ("flexible", True)):
        env = make(method=method)
        env.reset(seed=2)
        _, _, terminated, _, info = env.step(f"It is {env.state.task.ground_truth}.")
        assert (info["stop"] == "solved") == solved
        counts = {name: value for name, value in info["metrics"].items() if name != METRIC}
        assert counts == {"marked": 0.0, "strict": 0.0, "flexible": 1.0, "well_formed": 0.0}


ALL = (Gsm8k, Gsm8kInteract, SelfCorrect)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(
    "form",
    ["#### {}", "So it is \\boxed{{{}}}.", "**{}**\n\\[ \\boxed{{{}\\text{{ toys}}}} \\]", "{}", "The answer is {}."],
)
def test_right_answers_in_any_form_are_paid(make, form):
    env = make()
    env.reset(seed=2)
    truth = env.task.ground_truth
    assert env.step(form.format(truth, truth))[4]["terms"]["correct"] == 1.0


@pytest.mark.parametrize("make", ALL)
def test_only_the_last_answer_counts(make):
    env = make()
    for forms, right in (("#### {0}\n\\boxed{{{1}}}", False), ("\\boxed{{{1}}}\n#### {0}", True)):
        env.reset(seed=2)
        truth = int(env.task.ground_truth)
        assert env.step(forms.format(truth, truth + 1))[4]["terms"]["correct"] == float(right)
    for listed in ("#### {0} or {1}", "\\boxed{{{0}, {1}}}", "\\boxed{{{1} \\text{{ or }} {0}}}"):
        env.reset(seed=2)
        assert env.step(listed.format(truth, truth + 1))[4]["terms"]["correct"] == 0.0


@pytest.mark.parametrize("make", ALL)
def test_opening_has_instruction_unless_row_has_one(make):
    def opens(*messages, **options):
        return make(**options).reset(options={"task": Task("k", "s", messages, "4")})[0]

    bare = user("How many?")
    assert opens(bare) == (user(f"How many? {INSTRUCTION}"),)
    assert opens(system("Be brief."), bare)[-1] == user(f"How many? {INSTRUCTION}")
    assert opens(bare, instruction="Say it.") == (user("How many? Say it."),)
    assert opens(bare, instruction=None) == (bare,)
    for instruction in ("How many? Output the final answer after '####'.", "How many? Put it in \\boxed{}."):
        assert opens(user(instruction)) == (user(instruction),)
        assert opens(system(instruction), bare) == (system(instruction), bare)
        assert opens(bare, system_prompt=instruction) == (system(instruction), bare)


@pytest.mark.parametrize("make", ALL)
def test_examples_precede_the_question(make):
    rows = [{"question": "1+1?", "answer": "1+1=<<1+1=2>>2\n#### 2"}, {"question": "2+2?", "answer": "#### 4"}]
    examples = (
        user(f"1+1? {INSTRUCTION}"),
        assistant("1+1=2\n#### 2"),
        user(f"2+2? {INSTRUCTION}"),
        assistant("#### 4"),
    )
    question = user(f"How many? {INSTRUCTION}")
    for before in ((), (system("Be brief."),)):
        env = make(examples=rows)
        task = Task("k", "s", (*before, user("How many?")), "4")
        assert env.reset(options={"task": task})[0] == (*before, *examples, question)
        env.step("#### 4")
        assert env.state.assistant_turns == 1
    with pytest.raises(TaskError, match="examples: row 0: .*'answer'"):
        make(examples=[{"question": "1+1?", "answer": "2"}])


# ------------------------------------------------------------------ replay, snapshots, forks


def play(env, actions):
    results = []
    for action in actions:
        if env.state.done:
            break
        results.append(env.step(action))
    return results


# ------------------------------------------------------------------ no leak


@given(
    gold=st.integers(1, 500),
    other=st.integers(1, 500),
    feedback=st.sampled_from(FEEDBACKS),
    actions=st.lists(st.one_of(st.integers(501, 900).map("#### {}".format), st.text("abc #", max_size=9)), max_size=3),
)
def test_nothing_seen_depends_on_the_answer(gold, other, feedback, actions):
    """Two tasks that differ in their answer alone, and replies on the same side of both: the same is seen."""

    def seen(truth):
        task = Task("k", "s", (user("How many?"),), str(truth), extra={"answer": f"7000+8000=15000\n#### {truth}"})
        env = Gsm8kInteract(feedback=feedback)
        return [env.reset(seed=0, options={"task": task}), *play(env, actions)]

    assert seen(gold) == seen(other)


# ------------------------------------------------------------------ tasks and options


def test_rows_from_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    answer = "It lost 5-12=<<5-12=-7>>-7, or \u2212$1,007.50 in all.\n#### -1,007.50"
    path.write_text(json.dumps({"question": "How much?", "answer": answer}), encoding="utf-8")
    env = Gsm8kInteract(str(path))
    observation, info = env.reset(seed=0)
    assert observation[0]["content"].startswith("How much? ")
    assert info == {"task_key": "rows/1", "task_index": 0, "data_source": "openai/gsm8k"}
    expert = env.demonstration(RNG)
    assert "<<" not in expert
    assert env.step(expert)[1] == 1.0
    env.reset(seed=0)
    assert env.step("#### \u2212$1007.5")[1] == 1.0
    env = Gsm8kInteract(str(path), system_prompt="Be brief.")
    assert env.reset(seed=0)[0][0] == {"role": "system", "content": "Be brief."}


def test_a_row_brings_its_own_user():
    env = Gsm8kInteract(feedback="none")
    row = GeneratedMath()[0].to_row()
    row["extra_info"]["interaction_kwargs"] = {
        "name": "gsm8k",
        "query": "?",
        "ground_truth": "7",
        "feedback": "direction",
    }
    env.reset(options={"task": row})
    assert env.step("#### 8")[0][-1] == user("That is too high. Try again.")
    assert env.step(env.demonstration(RNG))[4]["stop"] == "solved"  # what this user takes for right
    row["extra_info"]["interaction_kwargs"] = {"name": "weather"}
    with pytest.raises(TaskError, match="name should be 'gsm8k', not 'weather'"):
        env.reset(options={"task": row})


def test_expert_without_a_worked_answer():
    env = Gsm8kInteract()
    env.reset(options={"task": Task("k", "s", (user("How many?"),), "4")})
    assert env.demonstration(RNG) == "#### 4"


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": "generated:easy", "level": "easy"}, "give either tasks or level, not both"),
        ({"split": "val"}, "split should be 'train' or 'test', not 'val'"),
        ({"method": "loose"}, "method should be 'marked', 'strict' or 'flexible', not 'loose'"),
        ({"format": 1.0, "correct": 1.0}, "must be less than correct"),
    ],
)
def test_bad_options_are_errors(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
