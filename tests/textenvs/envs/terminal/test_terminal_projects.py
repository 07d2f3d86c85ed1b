"""Every fault of every template breaks a check by itself, and its repair mends it."""

import functools
import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
from shells import shell_of

from textenvs.envs.terminal.project import _changed, verify, without_stat_data
from textenvs.envs.terminal.tasks import fit
from textenvs.envs.terminal.templates import TEMPLATES, variation
from textenvs.event_loop import wait_for
from textenvs.sandbox import ShellState, Tree
from textenvs.sandbox.result import ShellLimits


def contents(tree):
    return {path: (entry.kind, entry.content, entry.mode) for path, entry in tree.items()}


def passes(*arguments):
    return all(wait_for(verify(*arguments)).values())


def audit(name, seed, most=None):
    """Check that a healthy project passes, each fault breaks it, its repair mends it, and questions have answers.

    Other tests of this project and seed need not show again that the healthy project passes ``seed + 1``'s checks.
    ``most`` is how many faults are drawn for it; ``None`` for all.
    """
    shell, project = shell_of(ShellLimits()), TEMPLATES[name](random.Random(seed))
    healthy = wait_for(project.state(shell))
    assert passes(shell, healthy.project, project, random.Random(seed + 1))
    for fault in project.faults if most is None else random.Random(name).sample(project.faults, most):
        broken = wait_for(project.state(shell, [fault]))
        assert project.is_kept(broken.project), fault.kind
        assert not passes(shell, broken.project, project, random.Random(seed + 2)), fault.kind
        repaired, _ = shell.run_now(broken, fault.repair)
        # A repair that restores every file needs no second run of the checks.
        if contents(repaired.project) != contents(healthy.project):
            assert passes(shell, repaired.project, project, random.Random(seed + 3)), fault.kind
    for question in project.questions:
        state = ShellState.of(healthy.project)
        for command in question.looks:
            state, result = shell.run_now(state, command)
        assert result.output.strip() == question.answer, question.kind


@pytest.mark.parametrize("name", TEMPLATES)
def test_faults_break_and_repairs_mend(name):
    audit(name, 0, most=3)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TEMPLATES)
def test_healthy_programs_of_other_rules_are_wrong(name, seed, monkeypatch):
    """All names, settings and data are the same: what the documents state alone is different."""
    shell, project = shell_of(ShellLimits()), TEMPLATES[name](random.Random(seed))
    with monkeypatch.context() as patch:
        patch.setattr(variation, "draw_options", functools.partial(other_rules, variation.draw_options))
        other = TEMPLATES[name](random.Random(seed))
    assert project.about == other.about
    assert [fault.kind for fault in project.faults] == [fault.kind for fault in other.faults]
    work = wait_for(project.state(shell)).project
    programs = {path: text for path, text in other.files.items() if path not in project.fixed}
    written = work.changed(dict(Tree.of(programs, modes=other.modes)))
    assert not passes(shell, written, project, random.Random(seed + 1))  # `audit`: the healthy one passes


def other_rules(draw_options, rng, rules):
    return draw_options(random.Random(rng.getrandbits(64) + 1), rules)


def audit_options(name, numbers, monkeypatch):
    """Check that a healthy project passes where each rule has the option of a number, modulo how many it has.

    ``numbers`` are tried in their order, until no rule has so many options.
    """
    shell, most = shell_of(ShellLimits()), 1

    def numbered_options(rng, rules):
        nonlocal most
        rng.getrandbits(64)
        most = max(most, *(len(rule.options) for rule in rules))
        return {rule.name: rule.options[number % len(rule.options)] for rule in rules}

    monkeypatch.setattr(variation, "draw_options", numbered_options)
    for number in numbers:
        project = TEMPLATES[name](random.Random(0))
        if number >= most:
            break
        outcome = wait_for(verify(shell, wait_for(project.state(shell)).project, project, random.Random(number)))
        assert all(outcome.values()), (number, outcome)


@pytest.mark.parametrize("name", TEMPLATES)
def test_first_options_of_rules_agree_with_programs(name, monkeypatch):
    audit_options(name, range(2), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_later_options_of_rules_agree_with_programs(name, monkeypatch):
    audit_options(name, itertools.count(2), monkeypatch)


def test_all_files_have_one_time():
    shell, project = shell_of(ShellLimits()), TEMPLATES["repository"](random.Random(0))
    broken = wait_for(project.state(shell, project.faults[:1])).project
    assert len({entry.mtime_ns for entry in broken.values()}) == 1


def test_git_index_is_deterministic():
    project = TEMPLATES["repository"](random.Random(0))
    # Other limits: results of the first shell are not used by the second.
    states = [wait_for(project.state(shell_of(ShellLimits(disk_mb=disk_mb)))) for disk_mb in (60, 61)]
    assert states[0].project == states[1].project
    for command, same in (
        ("git status; git diff --stat", True),
        ("git update-index --assume-unchanged VERSION", False),
    ):
        after, result = shell_of(ShellLimits()).run_now(states[0], command)
        assert result.status == "ok"
        assert (without_stat_data(after.project).digest == without_stat_data(states[0].project).digest) == same


@pytest.mark.parametrize("name", TEMPLATES)
def test_edits_are_undone_in_the_healthy_project_alone(name):
    project = TEMPLATES[name](random.Random(3))
    healthy = Tree.of(project.files, modes=project.modes)
    for fault in project.faults:
        if fault.edits and fault.command == "":
            assert project.has_undone(fault, healthy), fault.kind
            assert not project.has_undone(fault, _changed(healthy, fault)), fault.kind


def test_job_behind_another_comment_is_still_disabled():
    project = TEMPLATES["backups"](random.Random(0))
    fault = next(fault for fault in project.faults if fault.kind == "disabled-job")
    broken = _changed(Tree.of(project.files, modes=project.modes), fault)
    [edit] = fault.edits
    entry = broken[edit.path]
    spaced = replace(entry, content=entry.content.replace(b"\n#", b"\n# "))
    assert spaced != entry
    assert not project.has_undone(fault, broken.changed({edit.path: spaced}))


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_faults_of_many_seeds(name):
    for seed in range(1, 20):
        audit(name, seed)


def test_identifiers_are_drawn_outside_comments():
    program = "count = total = 0\n# count and total\nprint(counter, count, @count@)\nwc --lines -count\n"
    texts = set()
    for seed in range(5):
        variant = variation.Variant.draw(random.Random(seed), [], "count total", {"count": "here"})
        count, total = variant.identifiers["count"], variant.identifiers["total"]
        text = f"{count} = {total} = 0\n# count and total\nprint(counter, {count}, here)\nwc --lines -count\n"
        assert variant.text(program) == variant.text(program) == text
        texts.add(text)
    assert len(texts) == 5


@pytest.mark.parametrize("name", TEMPLATES)
def test_drawing_is_deterministic(name):
    one, other = (TEMPLATES[name](random.Random(5)) for _ in range(2))
    assert (one.files, one.setup, one.faults, one.questions) == (
        other.files,
        other.setup,
        other.faults,
        other.questions,
    )
    assert one.checks(random.Random(6)) == other.checks(random.Random(6)) != one.checks(random.Random(7))
    assert max(Counter(fault.kind for fault in one.faults).values()) == 1
    assert one.files != TEMPLATES[name](random.Random(8)).files


@pytest.mark.parametrize("name", TEMPLATES)
def test_pairs_are_mended_in_either_order(name):
    shell, project, rng = shell_of(ShellLimits()), TEMPLATES[name](random.Random(0)), random.Random(2)
    pairs = (rng.sample(project.faults, 2) for _ in range(20))
    pair = next(pair for pair in pairs if fit(project, pair))
    healthy, broken = (wait_for(project.state(shell, faults)) for faults in ((), pair))
    assert not passes(shell, broken.project, project, random.Random(1))  # `audit`: the healthy one passes
    for order in (pair, pair[::-1]):
        state = broken
        for fault in order:
            state, _ = shell.run_now(state, fault.repair)
        mended = contents(state.project) == contents(healthy.project) or passes(shell, state.project, project, rng)
        assert mended, [fault.kind for fault in order]
