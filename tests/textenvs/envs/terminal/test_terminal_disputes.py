"""Rules in dispute: neither files nor reports tell which sentence of the page holds."""

import random
from collections import Counter

import pytest
from shells import shell_of

from textenvs.envs.terminal.disputes import disputed, draw_form, forms_of, is_disputable
from textenvs.envs.terminal.project import verify
from textenvs.envs.terminal.tasks import FAULTS, TerminalTasks, assignment_of_task, twin_of
from textenvs.envs.terminal.templates import TEMPLATES, variation
from textenvs.event_loop import wait_for
from textenvs.sandbox.result import ShellLimits


def with_option(name, fault, monkeypatch):
    """Draw a project whose rule has the option that a fault follows."""
    real = variation.draw_options

    def options(rng, rules):
        drawn = real(rng, rules)
        (rule,) = (rule for rule in rules if rule.name == fault.kind)
        others = [one for number, one in enumerate(rule.options) if number not in fault.alternatives]
        (drawn[rule.name],) = (option for option in others if option.code != drawn[rule.name].code)
        return drawn

    with monkeypatch.context() as patch:
        patch.setattr(variation, "draw_options", options)
        return TEMPLATES[name](random.Random(1))


def audit_rules(name, monkeypatch, most=None):
    project = TEMPLATES[name](random.Random(1))
    faults = [fault for fault in project.faults if is_disputable(project, fault)]
    for fault in faults if most is None else random.Random(name).sample(faults, min(most, len(faults))):
        other = with_option(name, fault, monkeypatch)
        assert (project.setup, project.later, project.about) == (other.setup, other.later, other.about)
        paths = project.files.keys() | other.files.keys()
        differing = {path for path in paths if project.files.get(path) != other.files.get(path)}
        assert differing == {fault.page, fault.edits[0].path}, fault.kind
        assert fault.followed in other.files[fault.page]


@pytest.mark.parametrize("name", TEMPLATES)
def test_disputed_rules_show_nowhere_else(name, monkeypatch):
    audit_rules(name, monkeypatch, most=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_all_disputed_rules_show_nowhere_else(name, monkeypatch):
    audit_rules(name, monkeypatch)


@pytest.fixture(scope="module")
def assignments():
    return {
        split: [assignment_of_task(TerminalTasks("hard", 3, split, goals=["repair"])[index]) for index in range(60)]
        for split in ("train", "test")
    }


def test_page_states_both_and_reports_name_all(assignments):
    for split, own in assignments.items():
        forms = {order: set(choices) for order, choices in forms_of(split).items()}
        for assignment in own:
            faults = {fault.kind: fault for fault in assignment.project.faults}
            broken = {fault.kind for fault in assignment.faults}
            assert FAULTS["hard"][0] <= len(broken) <= FAULTS["hard"][1]
            assert not assignment.forms or 0 < len(broken & assignment.forms.keys()) < len(assignment.forms)
            for kind, form in assignment.forms.items():
                order = "first" if form.startswith("{right}") else "second"
                words = form.replace("{right}", "{a}" if order == "first" else "{b}")
                assert words.replace("{wrong}", "{b}" if order == "first" else "{a}") in forms[order]
                fault = faults[kind]
                line = form.replace("{right}", fault.agreed).replace("{wrong}", fault.followed)
                assert f"- {line}" in assignment.project.files[fault.page].splitlines()
                assert fault.symptom in assignment.request


def test_order_says_nothing_about_programs(assignments):
    """A broken rule and an intact one have the sentence that holds first equally often."""
    counts = Counter(
        (form.startswith("{right}"), any(fault.kind == kind for fault in assignment.faults))
        for own in assignments.values()
        for assignment in own
        for kind, form in assignment.forms.items()
    )
    total = sum(counts.values())
    assert total > 400
    for first in (True, False):
        rows = [counts[first, broken] for broken in (True, False)]
        assert abs(rows[0] / sum(rows) - 0.5) < 0.1, counts
        assert abs(sum(rows) / total - 0.5) < 0.1, counts


def test_forms_of_splits_are_different():
    train, test = forms_of("train"), forms_of("test")
    assert train.keys() == test.keys() == {"first", "second"}
    for order, forms in train.items():
        assert len(forms) == len(test[order]) >= 16
        assert {*forms}.isdisjoint(test[order])
        assert all(form.index("{a} ") < form.index(" {b}") for form in (*forms, *test[order]))
    assert {*train["first"], *test["first"]}.isdisjoint((*train["second"], *test["second"]))


def test_what_is_reported_and_right_must_stay():
    shell = shell_of(ShellLimits())
    assignment = assignment_of_task(TerminalTasks("medium", 3, templates=["tournament"], goals=["repair"])[0])
    project = assignment.project
    (intact,) = (fault for fault in project.faults if fault.kind in assignment.forms and fault not in assignment.faults)
    for faults, right in (((), True), ((intact,), False)):
        state = wait_for(project.state(shell, faults))
        assert all(wait_for(verify(shell, state.project, project, random.Random(1))).values()) == right


def test_twins_have_the_same_disputes():
    tasks = TerminalTasks("hard", 4, templates=["access"], goals=["repair"])
    task = tasks[0]
    own = assignment_of_task(task)
    fault = next(fault for fault in own.faults if fault.kind in own.forms and fault.alternatives)
    twin = assignment_of_task(twin_of(task, fault.kind, fault.alternatives[0]))
    assert twin.forms == own.forms
    assert twin.request == own.request
    (other,) = (one for one in twin.faults if one.kind == fault.kind)
    assert other.followed == fault.followed
    assert other.agreed != fault.agreed
    line = own.forms[fault.kind].replace("{right}", other.agreed).replace("{wrong}", other.followed)
    assert f"- {line}" in twin.project.files[fault.page].splitlines()


def test_project_without_disputes_is_as_it_was():
    project = TEMPLATES["access"](random.Random(2))
    assert disputed(project, {}).files == project.files
    fault = next(fault for fault in project.faults if is_disputable(project, fault))
    changed = disputed(project, {fault.kind: draw_form(random.Random(1), "train")})
    differing = {path for path, text in project.files.items() if changed.files[path] != text}
    assert differing == {fault.page}
    assert fault.agreed in changed.files[fault.page]
    assert fault.followed in changed.files[fault.page]
