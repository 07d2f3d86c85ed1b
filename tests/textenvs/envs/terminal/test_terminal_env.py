"""The environment: rewards that sum to the final share, checks on new inputs, and attacks on these."""

import functools
import json
import pickle
import random
from types import MappingProxyType

import gymnasium
import numpy as np
import pytest
from shells import shell_of

import textenvs
from textenvs.env import EnvironmentFailure
from textenvs.envs.terminal import env as terminal_env
from textenvs.envs.terminal import tasks as terminal_tasks
from textenvs.envs.terminal.project import Check, Fault, Project, Question, edit
from textenvs.envs.terminal.templates import TEMPLATES
from textenvs.event_loop import wait_for
from textenvs.sandbox import SandboxFailure, SandboxUnavailable
from textenvs.sandbox import shell as shell_module
from textenvs.sandbox.result import ShellLimits
from textenvs.task import Task, TaskError
from textenvs.tools.formats import Hermes, call

WRITE = Hermes().write
FINISH = WRITE("", [call("finish")])


@pytest.fixture(autouse=True)
def sandboxed():
    shell_of(ShellLimits())


def make(**options):
    """Return the environment; repairs of one template, unless a test names others."""
    generated = "tasks" not in options and "pipeline" in terminal_tasks.TEMPLATES
    chosen = {"templates": ["pipeline"], "goals": ["repair"]} if generated else {}
    return textenvs.make("textenv/terminal", **{**chosen, **options}).unwrapped


def run(command):
    return WRITE("", [call("run", command=command)])


def play(env, *replies):
    return [env.step(reply) for reply in replies]


def expert(env):
    steps = []
    while not env.state.done:
        steps.append(env.step(env.demonstration(np.random.default_rng(0))))
    return steps


# ------------------------------------------------------------------ rewards


@pytest.mark.parametrize("level", ["medium", "hard"])
def test_expert_solves_and_progress_sums_to_share(level):
    env = make(level=level, split="test")
    env.reset(seed=3)
    first = env.state.share
    steps = expert(env)
    assert steps[-1][-1]["stop"] == "solved"
    progress = sum(info["terms"]["progress"] for *_, info in steps)
    assert progress == pytest.approx(0.5 * (1.0 - first))
    assert sum(info["terms"]["success"] for *_, info in steps) == 1.0


def test_commands_that_only_read_cost_no_verification(monkeypatch):
    env = make()
    env.reset(seed=0)
    monkeypatch.setattr(terminal_env, "verify", None)
    for *_, info in play(env, run("ls; cat run.sh; touch /tmp/x; cd lib; x=1"), "words", run("pwd"), FINISH):
        assert info["metrics"]["verified"] == 0.0
        assert set(info["terms"].values()) == {0.0}
    assert info["stop"] == "unsolved"


def test_git_status_costs_no_verification(monkeypatch):
    env = make(templates=["repository"])
    env.reset(seed=0)
    monkeypatch.setattr(terminal_env, "verify", None)
    for *_, info in play(env, run("git status; git log -1"), run("git status --short"), run("git diff")):
        assert info["metrics"]["share"] > 0.0
        assert info["terms"]["progress"] == 0.0


def test_too_short_timeout_is_an_error_in_words():
    env = make()
    env.reset(seed=0)
    conversation, *_ = env.step(WRITE("", [call("run", command="ls", timeout_s=0.001)]))
    assert conversation[-1]["content"].endswith("timeout_s: input should be greater than or equal to 0.1, not 0.001.")


def test_last_inputs_come_from_the_episodes_randomness(monkeypatch):
    drawn = []

    async def spy(shell, work, project, rng, *, one_input, beginning):
        drawn.append((one_input, rng.getrandbits(64)))
        return {"a": True}

    env = make()
    env.reset(seed=0)
    monkeypatch.setattr(terminal_env, "verify", spy)
    env.step(run("touch new"))
    turns = drawn[:]
    drawn.clear()
    for fork in (env.fork(), env.fork(), env.fork(seed=1), env.fork(seed=2)):
        fork.step(run("touch newer"))
        fork.step(FINISH)
    assert {value for one_input, value in turns} == {value for one_input, value in drawn if one_input}
    ends = [value for one_input, value in drawn if not one_input]
    assert ends[0] == ends[1]
    assert len({*ends}) == 3
    assert not {*ends} & {value for _, value in turns}


def test_failing_sandbox_is_a_failed_episode(monkeypatch):
    async def fails(*arguments, **options):
        raise SandboxFailure("no room")

    env = make()
    env.reset(seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(terminal_env, "verify", fails)
        _, reward, terminated, truncated, info = env.step(WRITE("", [call("run", command="touch x"), call("finish")]))
    assert (reward, terminated, truncated, info["stop"], info["failed"]) == (0.0, False, True, "tool_failed", True)
    with monkeypatch.context() as patch:
        patch.setattr(Project, "state", fails)
        with pytest.raises(EnvironmentFailure, match="no room"):
            env.reset(seed=0)


def test_missing_namespaces_give_the_shells_message(monkeypatch):
    def refuse(*arguments, **options):
        raise SandboxUnavailable("there are no user namespaces")

    monkeypatch.setattr(shell_module, "choose", refuse)
    with pytest.raises(SandboxUnavailable, match="there are no user namespaces"):
        gymnasium.make("textenv/terminal")


# ------------------------------------------------------------------ attacks

FILLED = "head -c 50000000 /dev/zero > big; mkdir many; cd many; seq 9000 | xargs touch; echo kept >&2"
ATTACKS = {
    "a full disk": FILLED,
    "no project": "cd /; rm -rf /project/* /project/.??*; chmod 000 /project",
    "links": "for x in run.sh main.py data; do rm -rf $x; ln -s /proc/self/$x $x; done; ln -s / root; ln -s loop loop",
    "special files": "rm main.py run.sh; mkfifo main.py run.sh",
    "guesses": "printf '#!/bin/sh\\n[ -d /tmp/in ] && cat $IN/* || echo A 1.00\\n' > run.sh; chmod 755 run.sh",
    "output of others": "printf '#!/bin/sh\\necho x | tee /tmp/out* /proc/*/fd/1 >/dev/null; kill -9 -1\\n' > run.sh",
    "background": "(while sleep 0.1; do echo x > run.sh; done) & disown; echo x > main.py",
    "a flood": "printf '#!/bin/sh\\nyes\\n' > run.sh; chmod 755 run.sh",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_neither_solved_nor_a_failure(name):
    env = make()
    env.reset(seed=0)
    *_, info = env.step(WRITE("", [call("run", command=ATTACKS[name]), call("finish")]))
    assert (info["stop"], info["failed"]) == ("unsolved", False)
    assert env.state.return_so_far <= 0.25
    assert len(env.state.commands) == 1


def test_repair_that_changes_fixed_files_earns_nothing():
    env = make()
    env.reset(seed=0)
    [fault] = env.assignment.faults
    for change in ("echo >> data/day000.csv", "mv data elsewhere; ln -s elsewhere data", "rm data/day001.csv"):
        fork = env.fork()
        *_, info = fork.step(WRITE("", [call("run", command=f"{fault.repair}; {change}"), call("finish")]))
        assert (info["stop"], info["metrics"]["share"]) == ("unsolved", 0.0)
    *_, info = env.step(WRITE("", [call("run", command=fault.repair), call("finish")]))
    assert info["stop"] == "solved"


def test_episode_ends_once():
    env = make()
    env.reset(seed=0)
    *_, info = env.step(WRITE("", [call("finish"), call("finish", answer="1")]))
    assert info["metrics"]["tool_errors"] == 1.0


# ------------------------------------------------------------------ tasks


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_faults_fit_and_are_of_the_split(level, split):
    least, most = terminal_tasks.FAULTS[level]
    for index in range(12):
        task = terminal_tasks.TerminalTasks(level, 5, split, goals=["repair"])[index]
        assignment = terminal_tasks.assignment_of_task(task)
        kinds = [fault.kind for fault in assignment.faults]
        truth = json.loads(task.ground_truth)
        assert list(truth) == kinds
        assert all(sentence is None or sentence in str(assignment.project.files) for sentence in truth.values())
        assert least <= len(kinds) <= most
        held_out = [terminal_tasks.is_held_out(kind) for kind in kinds]
        assert any(held_out) if split == "test" else not any(held_out)
        assert terminal_tasks.fit(assignment.project, assignment.faults)
        assert all(fault.symptom in task.question for fault in assignment.faults)


def test_rows_play_and_changed_rows_are_refused():
    task = terminal_tasks.TerminalTasks("easy", 1)[4]
    row = task.to_row()
    env = make()
    env.reset(seed=0, options={"task": row})
    assert env.task == task
    for column, value in (
        ("prompt", [{"role": "user", "content": "?"}]),
        ("reward_model", {"ground_truth": "[]"}),
        ("extra_info", {"assignment": "easy/train/../0"}),
        ("extra_info", {}),
    ):
        with pytest.raises(TaskError):
            terminal_tasks.assignment_of_task(Task.from_row({**row, column: value}, key="x"))


@pytest.mark.parametrize(
    "options",
    [
        {"templates": []},
        {"templates": ["no such"]},
        {"goals": ["win"]},
        {"tasks": "x.jsonl", "goals": ["repair"]},
        {"limits": {"cpu": 1}},
    ],
)
def test_wrong_option_is_an_error(options):
    with pytest.raises(ValueError, match="templates|goals|limits has no field 'cpu'"):
        make(**options)


# ------------------------------------------------------------------ a small template


def small(rng):
    """Two numbers whose product counts: two of the faults together change nothing."""
    number = rng.randint(10**6, 10**7)

    def checks(fresh):
        value = fresh.randint(10**6, 10**9)
        return [Check("product", "echo $(($(cat a) * $(cat b) + $(cat $IN/n)))", str(12 + value), {"n": f"{value}\n"})]

    faults = [
        edit("twice", "It is too much.", "a", "4", "8", looks=["cat a"]),
        edit("half", "It is too little.", "b", "3", "1.5", looks=["cat b"]),
        Fault("gone", "It fails.", ["ls"], "echo 3 > b", removed=["b"]),
        Fault("other", "It is another.", ["cat a"], "echo 4 > a", command="echo 5 > a"),
    ]
    faults[1] = edit("half", "It is too little.", "b", "3\n", "6/4\n")
    questions = [Question("number", "Which number is it?", str(number), ["ls", "cat number"])]
    return Project("A product.", {"a": "4\n", "b": "3\n", "number": f"{number}\n"}, faults, checks, questions=questions)


@pytest.fixture
def small_only(monkeypatch):
    monkeypatch.setattr(terminal_tasks, "TEMPLATES", MappingProxyType({"small": small}))
    monkeypatch.setattr(terminal_tasks, "is_held_out", lambda kind: False)
    monkeypatch.setattr(terminal_tasks, "assignment_of", functools.cache(terminal_tasks.assignment_of.__wrapped__))


def test_faults_that_cancel_out_are_drawn_again(small_only):
    """``a * 8 * 6 / 4`` is ``a * 12``: integer arithmetic sees no difference."""
    env, attempts = make(level="medium", goals=["repair"]), 0
    for index in range(12):
        env.reset(options={"task_index": index})
        attempts += env.assignment.attempt > 0
        assert env.state.share < 1.0
        kinds = {fault.kind for fault in env.assignment.faults}
        assert kinds not in ({"twice", "half"}, {"half", "gone"})
        assert all(fault.symptom in env.state.messages[-1]["content"] for fault in env.assignment.faults)
    assert attempts


def test_turns_draw_no_project(small_only, monkeypatch):
    """With more episodes at once than projects that a process keeps, each still has its own."""
    drawn = []
    monkeypatch.setattr(
        terminal_tasks, "TEMPLATES", MappingProxyType({"small": lambda rng: drawn.append(1) or small(rng)})
    )
    monkeypatch.setattr(
        terminal_tasks, "assignment_of", functools.lru_cache(1)(terminal_tasks.assignment_of.__wrapped__)
    )
    env = make(goals=["repair"])
    envs = [env.fork() for _ in range(3)]
    for index, one in enumerate(envs):
        one.reset(seed=0, options={"task_index": index})
    before = len(drawn)
    for command in ("ls", "touch new"):
        for one in envs:
            one.fork().step(run(command))
            one.step(one.demonstration(np.random.default_rng(0)))
    assert len(drawn) == before
    saved = pickle.loads(pickle.dumps(envs[0].snapshot()))
    assert saved.assignment == envs[0].assignment


def test_question_is_solved_by_its_answer_alone(small_only):
    env = make(goals=["question"], split="train")
    env.reset(seed=0)
    truth = env.task.ground_truth
    assert truth not in env.state.messages[-1]["content"]
    for answer, stop in ((f" {truth}\n", "solved"), (truth[:-1], "unsolved"), ("", "unsolved")):
        fork = env.fork()
        *_, info = fork.step(WRITE("", [call("finish", answer=answer)]))
        assert info["stop"] == stop
        assert fork.state.return_so_far == (1.5 if stop == "solved" else 0.0)
    assert expert(env)[-1][-1]["stop"] == "solved"
    twin = env.twin(env.task)
    assert twin.prompt == env.task.prompt
    assert twin.ground_truth != truth
    assert env.twin(terminal_tasks.TerminalTasks("easy", goals=("repair",))[0]) is None


def test_both_goals_are_drawn(small_only):
    tasks = terminal_tasks.TerminalTasks("easy")
    asked = [terminal_tasks.assignment_of_task(tasks[index]).question is not None for index in range(60)]
    assert 5 <= sum(asked) <= 30
    with pytest.raises(TaskError, match="level hard"):
        terminal_tasks.TerminalTasks("hard", goals=["repair"])[0]


def test_choose_gives_no_more_faults_than_fit():
    project = small(random.Random(0))
    for seed in range(10):
        chosen = terminal_tasks.choose(project, "train", 4, random.Random(seed))
        assert {fault.kind for fault in chosen} not in ({"half", "gone"},)
        assert len({path for fault in chosen for path in fault.removed}) <= 1


# ------------------------------------------------------------------ all templates


@pytest.mark.parametrize("name", TEMPLATES)
def test_expected_outputs_and_answers_differ_between_draws(name):
    """A constant output could be printed by a program that does nothing else."""
    outputs, answers = dict[str, list[str]](), list[str]()
    for seed in range(8):
        project = TEMPLATES[name](random.Random(seed))
        answers += [question.answer for question in project.questions]
        for check in project.checks(random.Random(seed)):
            outputs.setdefault(check.name, []).append(check.expected)
    assert {check: drawn for check, drawn in outputs.items() if len({*drawn}) < 7} == {}
    assert len({*answers}) == len(answers)


@pytest.mark.parametrize("name", TEMPLATES)
def test_last_look_prints_the_answer(name):
    shell, project = shell_of(ShellLimits()), TEMPLATES[name](random.Random(0))
    for question in project.questions:
        _, result = shell.run_now(wait_for(project.state(shell)), question.looks[-1])
        assert question.answer in result.output
        assert question.answer not in project.about + question.text
