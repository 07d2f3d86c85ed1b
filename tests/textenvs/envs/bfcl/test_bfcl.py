"""textenv/bfcl on a small clone of our own, and on a real one where BFCL_CLONE names it."""

import functools
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bfcl_clones import GOLD, REAL, make_clone, needs_clone

import textenvs
from textenvs.audit import Subject, contract
from textenvs.audit.twins import twins
from textenvs.bounded_files import UnreadableFile
from textenvs.envs.bfcl import BFCL, clone, worker
from textenvs.messages import assistant
from textenvs.task import Task, TaskError
from textenvs.tools import call

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return str(make_clone(tmp_path_factory.mktemp("gorilla")))


def made(small, category="base", index=0, **options):
    env = textenvs.make("textenv/bfcl", data=small, category=category, **options)
    env.reset(seed=0, options={"task_index": index})
    return env


def play(env, replies):
    """Play these replies, then the expert's; return the rewards and the last info."""
    rewards, info, replies = [], {}, iter(replies)
    while not env.state.done:
        _, reward, _, _, info = env.step(next(replies, None) or env.demonstration(RNG))
        rewards.append(reward)
    return rewards, info


def calling(*calls):
    return assistant("", calls)


TAKE, PUT = call("take", title="Emma"), call("put", title="Ulysses")


# ------------------------------------------------------------------ the turns


@pytest.mark.parametrize(("category", "index"), [("base", 0), ("base", 1), ("miss_func", 0), ("miss_param", 0)])
def test_expert_solves_every_task(small, category, index):
    rewards, info = play(made(small, category, index), [])
    assert sum(rewards) == pytest.approx(1.0)
    assert info["stop"] == "solved"


def test_each_right_turn_pays_its_share(small):
    env = made(small)
    conversation, *paid = env.step(calling(PUT))
    assert paid[0] == 0.0
    assert conversation[-1]["content"] == "None"
    conversation, reward, *_ = env.step("Done.")
    assert reward == 0.5
    assert conversation[-1] == {"role": "user", "content": "What is 2 + 3? And take 'Emma'."}
    assert play(env, [])[0][-1] == 0.5


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (["All of that is done."], "no_call"),
        ([calling(call("look")), "The shelf now has Ulysses."], "state"),
        ([calling(PUT, call("put", title="Persuasion")), "Done."], "state"),
        ([calling(PUT), "Done.", calling(TAKE), "2 + 3 is 5.0, and {'taken': 'Emma'}."], "response"),
    ],
)
def test_wrong_turn_is_named(small, replies, why):
    env = made(small)
    rewards, info = play(env, replies)
    assert env.state.wrong[0] == why
    assert info["stop"] == "unsolved"
    assert sum(rewards) == 0.5 * info["metrics"]["turns_right"] < 1
    asked = [message["content"] for message in env.state.messages if message["role"] == "user"]
    assert asked == [turn[0].content for turn in env.entry.question]


def test_result_of_an_earlier_turn_counts_later(small):
    """The leaderboard's rule: responses are looked for among all so far."""
    env = made(small)
    rewards, info = play(env, [calling(PUT, call("add", a=2.0, b=3.0)), "Done.", calling(TAKE), "Done."])
    assert info["stop"] == "solved"


def test_undone_work_is_judged_by_its_end(small):
    take = call("take", title="Ulysses")
    assert play(made(small), [calling(PUT, take), "Done."])[1]["stop"] == "unsolved"
    assert play(made(small), [calling(PUT, take, PUT), "Done."])[1]["stop"] == "solved"


def test_withheld_function_is_given_in_its_turn(small):
    env = made(small, "miss_func")
    assert '"name": "take"' not in env.state.messages[0]["content"]
    conversation, *_ = env.step(calling(TAKE))
    assert "There is no tool 'take'" in conversation[-1]["content"]
    assert env.state.turns == ((),)
    conversation, *_ = env.step("I have no function for this.")
    assert '"name": "take"' in conversation[-1]["content"]
    conversation, *_ = env.step(calling(TAKE))
    assert conversation[-1]["content"] == '{"taken": "Emma"}'
    assert env.step("Done.")[4]["stop"] == "solved"


def test_too_many_steps_end_the_episode(small):
    rewards, info = play(made(small, max_steps=2), [calling(call("look"))] * 3)
    assert (sum(rewards), info["stop"]) == (0.0, "too_many_steps")


def test_needless_calls_cost_what_the_option_says(small):
    env = made(small, needless=-0.125)
    rewards, info = play(env, [calling(call("look"), PUT, call("nothing")), calling(call("look"))])
    assert rewards[:2] == [-0.25, -0.125]
    assert sum(rewards) == pytest.approx(1 - 3 * 0.125)
    assert info["metrics"]["needless"] == 3


def test_expert_keeps_to_few_steps(small):
    assert play(made(small, max_steps=1), [])[1]["stop"] == "solved"


@pytest.mark.parametrize(
    "arguments", [{"titel": "x"}, {"title": "Dune"}, {}, {"self": 1, "title": "Emma"}, {"title": ["Emma"]}]
)
def test_bad_arguments_are_answered(small, arguments):
    env = made(small)
    conversation, *_ = env.step(
        assistant("", [{**TAKE, "function": {"name": "take", "arguments": json.dumps(arguments)}}])
    )
    assert conversation[-1]["role"] == "tool"
    assert play(env, [])[1]["stop"] == "solved"


# ------------------------------------------------------------------ processes


@pytest.mark.parametrize(("name", "reason"), [("wait", "longer than 1 s"), ("burn", "exit code 7")])
def test_call_that_hangs_or_crashes_changes_nothing(small, monkeypatch, name, reason):
    """A policy must not be able to end an episode that it is losing as a failure, which training leaves out."""
    env = made(small, "miss_param")
    with monkeypatch.context() as patch:
        patch.setattr(clone, "TIMEOUT_S", 1.0)
        conversation, *_, info = env.step(calling(call(name)))
    assert f"{name} was stopped" in conversation[-1]["content"]
    assert reason in conversation[-1]["content"]
    assert not info["failed"]
    assert play(env, [])[1]["stop"] == "solved"


def test_task_that_cannot_be_begun_is_a_failure(small):
    env = made(small)
    entry = env.entry.model_copy(update={"config": {"Shelf": {"broken": True}}})
    row = {**env.task.to_row(), "extra_info": {"bfcl": entry.model_dump_json()}}
    env.reset(options={"task": row})
    *_, info = env.step(calling(PUT))
    assert (info["stop"], info["failed"]) == ("tool_failed", True)
    assert "no such shelf" in info["failure"]


def test_worker_ends_with_its_parent(small):
    folder = str(clone.find_clone(small))
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-P", worker.__file__, folder], stdin=pipe, stdout=pipe)
    assert process.stdout.readline() == b"ready\n"
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    process.stdout.close()


def test_forks_and_copies_share_nothing(small):
    env = made(small)
    env.step(calling(PUT))
    other, moved = env.fork(), pickle.loads(pickle.dumps(env))
    env.step(calling(TAKE))
    for copied in (other, moved):
        assert play(copied, [])[1]["stop"] == "solved"
    assert play(env, ["Done."])[1]["stop"] == "unsolved"


# ------------------------------------------------------------------ the audit


def test_contract_of_every_environment(small):
    make = functools.partial(textenvs.make, "textenv/bfcl", data=small, category="miss_func")
    for verdict in contract(Subject(make, episodes=2)):
        assert verdict.status in ("pass", "skipped"), verdict


def test_words_do_not_depend_on_ground_truth(small):
    make = functools.partial(textenvs.make, "textenv/bfcl", data=small)
    verdict = twins(Subject(make, episodes=2))
    assert verdict.status == "pass", verdict


# ------------------------------------------------------------------ the clone and rows


def test_clone_is_found_by_path_or_variable(small, monkeypatch):
    inner = Path(small) / "berkeley-function-call-leaderboard"
    assert {clone.find_clone(str(path)) for path in (small, inner, inner / "bfcl_eval")} == {inner}
    monkeypatch.setenv("BFCL_CLONE", small)
    assert BFCL().root == inner
    with pytest.raises(ValueError, match="git|Clone https://github.com/ShishirPatil/gorilla"):
        BFCL(data="/nowhere")


def test_splits_share_no_task_and_agree_between_categories(small):
    entry = clone.entries(clone.find_clone(small), "base")[0]
    for number in range(40):
        base, other = (entry.model_copy(update={"id": f"multi_turn_{kind}_{number}"}) for kind in ("base", "miss_func"))
        splits = [split for split in ("train", "test") if clone.in_split(base, split)]
        assert splits == [split for split in ("train", "test") if clone.in_split(other, split)]
        assert len(splits) == 1
        assert clone.in_split(base, "all")


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"id": 5}', "null", json.dumps({"id": "multi_turn_base_0"})])
@pytest.mark.parametrize("folder", ["", "possible_answer"])
def test_damaged_file_is_named(small, tmp_path, content, folder):
    shutil.copytree(small, tmp_path / "copy")
    root = clone.find_clone(str(tmp_path / "copy"))
    (root / "bfcl_eval" / "data" / folder / "BFCL_v4_multi_turn_base.json").write_text(content)
    with pytest.raises((UnreadableFile, TaskError), match=r"BFCL_v4_multi_turn_base|no task|BFCL multi_turn_base"):
        BFCL(data=str(root))


def test_class_that_cannot_be_imported_is_named(small):
    with pytest.raises(ValueError, match=r"cannot be imported: ModuleNotFoundError.*absent"):
        clone.documents(clone.find_clone(small), ("Absent",))


@pytest.mark.parametrize("text", ["take", "take(title=name)", "a.take('x')", "take('x'); put('y')", "take(**{})", "1"])
def test_gold_is_calls_with_literal_arguments(small, text):
    env = made(small)
    entry = env.entry.model_copy(update={"gold": ((text,), ())})
    with pytest.raises(TaskError, match="is not a call"):
        clone.read_entry(entry.model_dump_json())


def test_rows_name_no_other_class(small):
    env = made(small)
    row = json.loads(json.dumps(env.task.to_row()))
    env.reset(options={"task": row})
    assert play(env, [])[1]["stop"] == "solved"
    entry = env.entry.model_copy(update={"classes": ("Other",)})
    with pytest.raises(TaskError, match="needs Other; known are Adder, Shelf"):
        env.reset(options={"task": {**row, "extra_info": {"bfcl": entry.model_dump_json()}}})
    with pytest.raises(TaskError, match="not a task of the leaderboard"):
        env.reset(options={"task": Task("x", "bfcl", (textenvs.user("x"),), "x")})


def test_secrets_are_the_right_calls(small):
    assert list(made(small).secrets()) == [text for turn in GOLD["multi_turn_base_0"] for text in turn]


# ------------------------------------------------------------------ a real clone


@needs_clone
@pytest.mark.parametrize("category", clone.CATEGORIES)
def test_real_tasks_are_judged_as_there(category, monkeypatch):
    monkeypatch.syspath_prepend(str(clone.find_clone(REAL)))
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    env = BFCL(data=REAL, category=category)
    rng = np.random.default_rng(1)
    for number, index in enumerate(rng.choice(env.tasks.size, 24, replace=False)):
        env.reset(options={"task_index": int(index)})
        made_calls, haste = [[]], number % 3 * 0.2
        while not env.state.done:
            turns = len(env.state.turns)
            reply = env.careless_reply(rng) if rng.random() < haste else env.demonstration(rng)
            if calls := [one["function"] for one in env.format.parse(reply).calls]:
                arguments = [json.loads(one["arguments"]).items() for one in calls]
                made_calls[-1].append(
                    [
                        f"{one['name']}({', '.join(f'{name}={value!r}' for name, value in named)})"
                        for one, named in zip(calls, arguments, strict=True)
                    ]
                )
            env.step(reply)
            made_calls += [[]] * (len(env.state.turns) > turns)
        if env.task.key == "multi_turn_miss_func_49":  # its calls are of a function that is not given yet
            continue
        assert haste or env.state.stop == "solved", env.task.key
        row = {
            "id": env.entry.id,
            "initial_config": env.entry.config,
            "involved_classes": list(env.entry.classes),
        }
        gold = [list(turn) for turn in env.entry.gold]
        verdict = multi_turn_checker(made_calls, gold, row, category, f"test{category}{number}")
        assert verdict["valid"] == (env.state.stop == "solved"), env.task.key
