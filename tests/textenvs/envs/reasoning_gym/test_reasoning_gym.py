"""The bridge to reasoning-gym: every dataset, reproducible, contained, and strict."""

import functools
import json
import logging
import pickle
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from textenvs.data import Task, TaskError
from textenvs.envs.reasoning_gym.env import ReasoningGym
from textenvs.envs.reasoning_gym.tasks import _SET_ORDER, INSTRUCTION, ReasoningGymTasks, datasets
from textenvs.messages import user

RNG = np.random.default_rng(0)
CONFIGS = {"composite": {"datasets": [{"name": "lcm", "weight": 1.0, "config": {}}]}}
NO_ANSWER = {"boxnet", "rush_hour"}
# Some tenths of a second for one item; and for this one, up to a minute.
SLOW = {"needle_haystack", "intermediate_integration", "futoshiki", "advanced_geometry", "zebra_puzzles"}
ENDLESS = {"knight_swap"}


def make(dataset, **options):
    return ReasoningGym(dataset, config=CONFIGS.get(dataset), **{"size": 5, **options})


@pytest.mark.parametrize("dataset", sorted(set(datasets()) - ENDLESS))
def test_every_dataset_can_be_played(dataset, capsys):
    random.seed(3)
    np.random.seed(3)
    outside = random.getstate(), pickle.dumps(np.random.get_state())
    env = make(dataset, attempts=2)
    env.reset(options={"task_index": 2})
    task, before = env.state.task, env.snapshot()
    for garbage in ("", "xyzzy", "None", f"<answer>{'lorem ' * 9}</answer>", "<answer></answer>"):
        env.restore(before)
        assert env.step(garbage)[1] == 0.0, garbage
    if dataset in NO_ANSWER:
        with pytest.raises(NotImplementedError, match=f"{dataset!r} does not say a right answer"):
            env.demonstration(RNG)
    else:
        before, truth, other = env.snapshot(), task.ground_truth, env.tasks[3].ground_truth
        for padded in ("{0} is what I think", "I say {0}", "{0} or {1}", "{1}, {0}", "{0}\n{0}"):
            env.restore(before)
            _, reward, _, _, info = env.step(f"<answer>{padded.format(truth, other)}</answer>")
            assert (reward, info["stop"]) == (-0.1, "wrong"), padded
        env.restore(before)
        _, reward, terminated, _, info = env.step(env.demonstration(RNG))
        assert (reward, terminated, info["stop"]) == (0.9, True, "solved")
        assert info["metrics"] == {"score": 1.0, "well_formed": 1.0, "refused": 0.0, "unread": 0.0}
    if dataset not in SLOW:  # the same item, whatever was drawn before, and however
        random.seed(4)
        np.random.seed(4)
        assert repr(make(dataset).tasks[2]) == repr(task)
        random.setstate(outside[0])
        np.random.set_state(pickle.loads(outside[1]))
    assert (random.getstate(), pickle.dumps(np.random.get_state())) == outside
    assert capsys.readouterr() == ("", "")
    assert pickle.loads(pickle.dumps(env)).tasks == env.tasks


def test_items_are_the_same_in_every_process():
    code = (
        "import json, sys\n"
        "from textenvs.envs.reasoning_gym.tasks import ReasoningGymTasks\n"
        "print(json.dumps({name: repr(ReasoningGymTasks(name, size=5)[1].prompt) for name in sys.argv[1:]}))\n"
    )
    names = sorted(set(datasets()) - SLOW - _SET_ORDER - set(CONFIGS))[::30]
    ran = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)  # hashes of its own
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {name: repr(ReasoningGymTasks(name, size=5)[1].prompt) for name in names}


def test_process_dependent_dataset_warns(caplog, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with caplog.at_level(logging.WARNING, logger="textenvs"):
        make("ransom_note")
        assert "'ransom_note' draws from sets" in caplog.text
        caplog.clear()
        make("chain_sum")
        monkeypatch.setenv("PYTHONHASHSEED", "0")
        make("ransom_note")
        assert caplog.text == ""


def test_failing_item_is_a_task_error():
    env = ReasoningGym("knight_swap", config={"max_attempts": 1, "min_nodes": 6, "max_nodes": 6, "min_steps": 19})
    with pytest.raises(TaskError, match=r"knight_swap .*: task \d could not be made \(ValueError: .*with config"):
        [env.tasks[index] for index in range(5)]


def test_items_match_package_and_splits_are_disjoint():
    import reasoning_gym

    drawn = {"train": set(), "test": set()}
    for split in drawn:
        for seed in (0, 1, 42):
            tasks = ReasoningGymTasks("leg_counting", size=20, seed=seed, split=split, instruction="")
            dataset = reasoning_gym.create_dataset("leg_counting", seed=seed, size=40)
            for index in range(20):
                task = tasks[index]
                item = task.extra["item"]
                assert (task.question, task.ground_truth) == (dataset[item]["question"], dataset[item]["answer"])
                drawn[split].add(seed + item)
            with pytest.raises(IndexError, match="index 20 is outside its 20 tasks"):
                tasks[20]
    assert not drawn["train"] & drawn["test"]


def test_the_default_is_sums():
    env = ReasoningGym()
    observation, info = env.reset(seed=0)
    assert info["data_source"] == "reasoning_gym/chain_sum"
    assert observation[0]["content"].endswith(f"\n{INSTRUCTION}")
    _, reward, terminated, _, info = env.step(
        f"I think <answer>7</answer> or <answer> {env.state.task.ground_truth} </answer>"
    )
    assert (reward, terminated, info["stop"]) == (1.0, True, "solved")
    assert env.conversation_score() == {"accuracy": 1.0}


def test_padded_answer_earns_only_partial_scores():
    """reasoning-gym's own score of a text that holds the answer is len(answer) / len(text)."""
    for scoring, threshold, reward in (("strict", 1.0, 0.0), ("strict", 0.4, 1.0), ("partial", 1.0, 0.5)):
        env = ReasoningGym("word_sequence_reversal", scoring=scoring, threshold=threshold, answer_format="text")
        observation, _ = env.reset(seed=1)
        truth = env.state.task.ground_truth
        assert observation[0]["content"] == env.state.task.extra["question"]
        assert env.step(truth + "~" * len(truth))[1] == reward


def total(env, reply, tasks=12):
    """The mean return of a reply to tasks: a text, or what is made of the question."""
    earned = 0.0
    for index in range(tasks):
        env.reset(options={"task_index": index})
        text = reply(env.state.task) if callable(reply) else reply
        earned += env.step(f"<answer>{text}</answer>")[1]
    return earned / tasks


def test_copy_of_question_is_no_right_answer():
    """In 93 of 100 items of string_insertion nothing is to be inserted; these are left out."""
    env = ReasoningGym("string_insertion", size=40)
    assert total(env, lambda task: task.extra["question"].split()[-1]) == 0.0
    assert total(env, lambda task: task.ground_truth) == 1.0
    part = {"name": "string_insertion", "weight": 1.0, "config": {}}
    composite = ReasoningGym("composite", config={"datasets": [part]}, size=40)
    assert total(composite, lambda task: task.extra["question"].split()[-1]) == 0.0
    splits = [ReasoningGymTasks("string_insertion", size=20, split=split) for split in ("train", "test")]
    items = [[tasks[index].extra["item"] for index in range(20)] for tasks in splits]
    assert len(set(items[0]) | set(items[1])) == 40


def test_partial_scores_pay_nothing_for_copies():
    """The score of a sudoku's clues is subtracted, whatever fills the blanks."""
    sudoku = ReasoningGym("mini_sudoku", scoring="partial", size=40)
    grid = re.compile(r"(?:^[ \t]*[\d_ ]+\n?){4}", re.MULTILINE)

    def filled(task, digit):
        return grid.search(task.extra["question"])[0].strip("\n").replace("_", digit)

    def three_rows(task):
        rows = task.ground_truth.split("\n")
        return "\n".join([*rows[:3], rows[0]])

    for digit in "1234":
        assert total(sudoku, functools.partial(filled, digit=digit), 5) == 0.0
    assert total(sudoku, lambda task: task.ground_truth, 5) == 1.0
    assert 0.1 < total(sudoku, three_rows, 5) < 0.9


def test_attempts():
    env = ReasoningGym("spell_backward", attempts=3)
    env.reset(seed=1)
    assert env.step("no tag")[0][-1] == user(f"{INSTRUCTION} Try again.")
    observation, reward, terminated, *_ = env.step("<answer>?</answer>")
    assert (observation[-1], reward, terminated) == (user("That is not right. Try again."), -0.1, False)
    again = env.fork()
    assert env.step(env.demonstration(RNG))[1:3] == (0.9, True)
    _, reward, terminated, truncated, info = again.step("<answer>?</answer>")
    assert (reward, terminated, truncated, info["stop"]) == (-0.1, True, False, "wrong")
    assert again.conversation_score() == {"accuracy": 0.0}


def test_partial_attempts_earn_the_best_one():
    env = ReasoningGym("word_sequence_reversal", scoring="partial", attempts=4, extra_turn=0.0, answer_format="text")
    env.reset(seed=1)
    truth = env.state.task.ground_truth
    rewards = [env.step(truth + "~" * extra)[1] for extra in (3 * len(truth), len(truth), 2 * len(truth), 0)]
    assert rewards == pytest.approx([0.25, 0.25, 0.0, 0.5])


def test_scorer_failure_is_judge_failed(monkeypatch):
    env = ReasoningGym()
    env.reset(seed=0)

    def fail(self, answer, entry):
        raise MemoryError("no room")

    monkeypatch.setattr(type(env._scorer), "score_answer", fail)
    _, reward, terminated, truncated, info = env.step("<answer>3</answer>")
    assert (reward, terminated, truncated, info["stop"]) == (0.0, False, True, "judge_failed")
    assert "scorer of 'chain_sum' raised MemoryError: no room" in info["failure"]


def test_tasks_travel_as_rows():
    env = ReasoningGym("leg_counting")
    row = env.tasks[3].to_row()
    assert env.reset(options={"task": json.loads(json.dumps(row))})[1]["task_key"] == "leg_counting/train/0/3"
    assert env.step(env.demonstration(RNG))[1] == 1.0
    grids = ReasoningGym("arc_agi", size=5)
    grids.reset(options={"task": json.loads(json.dumps(grids.tasks[1].to_row()))})
    assert grids.step(grids.demonstration(RNG))[1] == 1.0
    with pytest.raises(TaskError, match="is of the dataset 'leg_counting', not of 'chain_sum'"):
        ReasoningGym().reset(options={"task": row})
    with pytest.raises(TaskError, match="extra_info.metadata must be reasoning-gym's"):
        env.reset(options={"task": Task("k", "s", (user("?"),), "4")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "no dataset 'chain_sums'. Did you mean 'chain_sum'"),
        ({"config": {"min_term": 3}}, "'chain_sum' has no option 'min_term'. Did you mean 'min_terms'"),
        ({"config": {"seed": 3}}, "'chain_sum' has no option 'seed'"),
        ({"config": {"min_terms": 0}}, "refuses config=.*min_terms"),
        ({"config": {"f": print}}, "config must be a mapping as in JSON"),
        ({"dataset": "composite"}, "refuses config={}.*at least one dataset"),
        ({"dataset": "word_ladder", "size": 20_000}, "with 40000 items .*too large"),
    ],
)
def test_bad_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGym(**options)


ENDLESS_NUMBERS = (
    *("1e9999999", "0e9999999", "1e-9999999", "-1E+9,999,999", "0e9,999,999", "1e-9,999,999", "1e9_999_999"),
    *("0.0e99999999", "1/1e9999999", "9**9**9**9", "1 << 99999999999", "[1e9999999]", '{"a": 1e99999999}', "9" * 5000),
    *("U99999999", "A+99999999", "1e\N{FULLWIDTH DIGIT NINE}99,999,999", "(1e9999999, 0)", "10:00:99999999999999"),
)


@pytest.mark.parametrize("dataset", ["coin_flip", "decimal_arithmetic", "power_function", "number_format", "survo"])
def test_endless_numbers_are_wrong(dataset, monkeypatch):
    """Each is refused or read: none is left to the scorer's time limit."""
    monkeypatch.setattr("textenvs.envs.reasoning_gym.sandbox.TIMEOUT_S", 60.0)
    env = make(dataset, attempts=99)
    env.reset(seed=0)
    for answer in ENDLESS_NUMBERS:
        assert env.step(f"<answer>{answer}</answer>")[1] <= 0.0, answer
