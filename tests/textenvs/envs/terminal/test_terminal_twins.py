"""Twin worlds: the page of a project states another option of a rule, and nothing else is different."""

import functools
import random

import pytest
from shells import shell_of

import textenvs
from textenvs.audit import Subject
from textenvs.audit.reads import reads
from textenvs.envs.terminal import env as terminal_env
from textenvs.envs.terminal import twins as terminal_twins
from textenvs.envs.terminal.project import _changed
from textenvs.envs.terminal.tasks import TerminalTasks, assignment_of, assignment_of_task, twin_of
from textenvs.envs.terminal.templates import TEMPLATES
from textenvs.envs.terminal.templates.variation import Option, Rule, Variant
from textenvs.sandbox import Tree
from textenvs.sandbox.result import ShellLimits
from textenvs.task import Rows, TaskError, proven_facts

#: Templates whose projects are made without a command.
PLAIN = ["library", "pipeline", "service", "website"]


@pytest.fixture(autouse=True)
def sandboxed():
    shell_of(ShellLimits())


def make(**options):
    return textenvs.make("textenv/terminal", **{"templates": PLAIN, "goals": ["repair"], **options})


def with_twins(env, count):
    """Return the first tasks that have twins, each with its facts."""
    facts = ((task, env.twin_worlds(task)) for task in map(env.tasks.__getitem__, range(200)))
    return [next(pair for pair in facts if pair[1]) for _ in range(count)]


@pytest.mark.parametrize(
    ("templates", "level", "split"),
    [
        (PLAIN, "easy", "test"),
        (PLAIN, "medium", "train"),
        (["ledger"], "easy", "train"),
        (["agenda"], "easy", "train"),
    ],
    ids=["easy", "medium", "ledger", "agenda"],
)
def test_only_the_page_differs_between_twins(templates, level, split):
    env = make(templates=templates, level=level, split=split)
    for task, facts in with_twins(env, 1):
        for _, twins in facts:
            assert twins[0] == task
            assert len({twin.ground_truth for twin in twins}) == len(twins) > 1
            begun = []
            for twin in twins:
                opening, _ = env.reset(seed=1, options={"task": twin.to_row()})
                begun.append(
                    (opening, env.assignment.attempt, env.state.share, env.state.shell.project, env.assignment)
                )
            (*seen, files, own), *others = begun
            (page,) = {fault.page for fault in own.faults if fault.alternatives}
            assert f"`{page}`" in own.project.about
            for *also_seen, other_files, other in others:
                assert also_seen == seen
                assert {path for path in files if files[path] != other_files.get(path)} == {page}
                assert files.keys() == other_files.keys()
                changed = [fault.kind for fault in own.faults if fault.agreed not in other_files.text(page)]
                assert changed == [fault.kind for fault in other.faults if fault.agreed not in files.text(page)]
                assert len(changed) == 1


def test_audit_proves_the_rules(monkeypatch):
    monkeypatch.setattr(terminal_twins, "proven_facts", functools.partial(proven_facts, most=2))  # to take less time
    ((task, _),) = with_twins(make(templates=["pipeline"]), 1)
    verdict = reads(
        Subject(functools.partial(textenvs.make, "textenv/terminal", tasks=Rows("one", [task])), episodes=1)
    )
    assert verdict.status == "pass", verdict
    assert "reads needed: 1.0 a task" in verdict.cause


def test_no_other_file_differs_between_twins(monkeypatch):
    env, made = make(templates=["pipeline"]), terminal_twins._files
    ((task, _),) = with_twins(env, 1)

    async def moved(assignment, shell):
        files = dict(await made(assignment, shell))
        files["docs/elsewhere.md"] = files.pop(assignment.faults[0].page)
        return Tree(files)

    monkeypatch.setattr(terminal_twins, "_files", moved)
    assert not env.twin_worlds(task)


def test_faults_that_cancel_out_have_no_twins(monkeypatch):
    env = make(templates=["pipeline"], level="medium")
    ((task, ((_, twins), *_)),) = with_twins(env, 1)

    async def passing(*arguments, **options):
        return {"a": True}

    monkeypatch.setattr(terminal_twins, "verify", passing)
    assert not env.twin_worlds(task)
    monkeypatch.setattr(terminal_env, "verify", passing)
    with pytest.raises(TaskError, match=r"task .*~.*: the faults of this twin .* leave this row out"):
        env.reset(options={"task": twins[1]})


def test_twins_are_checked_on_equal_inputs(monkeypatch):
    env, drawn = make(templates=["pipeline"]), []

    async def spy(shell, work, project, rng, **options):
        drawn.append(rng.getstate())
        return {"a": False}

    ((_, ((_, twins), *_)),) = with_twins(env, 1)
    monkeypatch.setattr(terminal_env, "verify", spy)
    for twin in twins:
        env.reset(seed=0, options={"task": twin})
    assert len(drawn) == len(twins)
    assert all(state == drawn[0] for state in drawn)


@pytest.mark.parametrize("name", TEMPLATES)
def test_faulty_programs_follow_no_page(name):
    """Whatever option of a rule a project's page states, the program that goes against the rule is the same."""
    project = TEMPLATES[name](random.Random(4))
    faults = [fault for fault in project.faults if fault.edits and fault.alternatives]
    assert bool(faults) != (name == "repository")  # whose faults are commits
    for fault in random.Random(name).sample(faults, min(2, len(faults))):
        (edit,) = fault.edits
        for option in fault.alternatives[:2]:
            other = TEMPLATES[name](random.Random(4), {fault.kind: option})
            (same,) = [one for one in other.faults if one.kind == fault.kind]
            broken = [_changed(Tree.of(one.files), of) for one, of in ((project, fault), (other, same))]
            assert broken[0].text(edit.path) == broken[1].text(edit.path)
            assert fault.agreed != same.agreed
            assert fault.symptom == same.symptom
            assert fault.repair != same.repair


@pytest.mark.parametrize(
    ("name", "rule"),
    [("repository", None), ("website", "bold-mark")],
    ids=["history", "data"],
)
def test_rules_that_other_files_show_have_no_twins(name, rule):
    env = make(templates=[name], level="hard")
    for index in range(40):
        task = env.tasks[index]
        kinds = {fault.kind for fault in assignment_of_task(task).faults if fault.alternatives}
        if rule in kinds or (rule is None and kinds):
            assert f"the rule {rule}" not in [fact for fact, _ in env.twin_worlds(task)]
            assert rule is not None or not env.twin_worlds(task)
            return
    pytest.fail("no task has such a fault")


def test_questions_and_twins_have_no_twins():
    env = make(templates=["pipeline"])
    ((_, ((_, twins), *_)),) = with_twins(env, 1)
    assert not env.twin_worlds(twins[1])
    assert not env.twin_worlds(TerminalTasks(templates=["pipeline"], goals=["question"])[0])


def test_keys_of_twins_are_validated():
    env = make(templates=["pipeline"])
    ((task, ((_, twins), *_)),) = with_twins(env, 1)
    key = twins[1].extra["assignment"]
    own, _, rule = key.rpartition("~")
    (fault,) = assignment_of_task(task).faults
    assert fault.alternatives
    wrong = {*range(9)} - {*fault.alternatives}
    ends = ["", "~", f"~{fault.kind}", f"~{fault.kind}=", f"~{fault.kind}=x", "~no-rule=0", "~=0", f"~{rule}~{rule}"]
    for end in [*ends[1:], *(f"~{fault.kind}={option}" for option in wrong)]:
        with pytest.raises(ValueError, match=r"no key of a generated task|no fault of the rule"):
            assignment_of(own + end)
    row = twins[1].to_row()
    with pytest.raises(TaskError, match="its faults are not those"):
        assignment_of_task(
            textenvs.Task.from_row({**row, "reward_model": {"ground_truth": task.ground_truth}}, key="x")
        )
    with pytest.raises(ValueError, match="no fault of the rule"):
        twin_of(task, fault.kind, min(wrong))


def test_stated_options_must_be_of_rules():
    options = [Option(f"x = {n}", f"It is {n}.", n) for n in range(3)]
    rules = [Rule("number", "a.py", "It is wrong.", options)]
    drawn = Variant.draw(random.Random(0), rules, "value").drawn["number"]
    for number, option in enumerate(options):
        variant = Variant.draw(random.Random(0), rules, "value", stated={"number": number})
        assert (variant["number"], variant.drawn["number"]) == (number, drawn)
        assert option.statement in str(variant.document(random.Random(0)))
    with pytest.raises(ValueError, match="'length' is no rule of this template; it has number"):
        Variant.draw(random.Random(0), rules, "value", stated={"length": 0})
