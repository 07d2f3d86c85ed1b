"""Rules in dispute: neither files nor reports tell which sentence of the page holds."""

import difflib
import itertools
import os
import random
from collections import Counter

import pytest
from shells import shell_of

from textenvs.envs.terminal.disputes import disputed, draw_form, filled, forms_of, is_disputable, words_of
from textenvs.envs.terminal.project import verify
from textenvs.envs.terminal.tasks import FAULTS, TerminalTasks, assignment_of_task, fit, twin_of
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
        (edit,) = fault.edits
        files = dict(project.files)
        for path, old, new in (
            (edit.path, edit.old, edit.new),
            (fault.page, f"- {fault.agreed}\n", f"- {fault.followed}\n"),
        ):
            files[path] = files[path].replace(old, new)
        assert files == other.files, fault.kind


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
        forms = {*forms_of(words_of(split))}
        for assignment in own:
            faults = {fault.kind: fault for fault in assignment.project.faults}
            broken = {fault.kind for fault in assignment.faults}
            assert FAULTS["hard"][0] <= len(broken) <= FAULTS["hard"][1]
            assert not assignment.forms or 0 < len(broken & assignment.forms.keys()) < len(assignment.forms)
            for kind, form in assignment.forms.items():
                fault = faults[kind]
                assert form in forms
                assert f"- {filled(form, fault)}" in assignment.project.files[fault.page].splitlines()
                assert fault.symptom in assignment.request


def test_chosen_faults_fit_with_disputed_rules(assignments):
    for own in assignments.values():
        for assignment in own:
            faults = {fault.kind: fault for fault in assignment.project.faults}
            for kind in assignment.forms:
                others = [fault for fault in assignment.faults if fault.kind not in assignment.forms]
                assert all(fit(assignment.project, [faults[kind], fault]) for fault in others), kind


def test_broken_rules_are_drawn_by_chance(assignments):
    """One, two or three rules of four are broken, and neither the order of sentences nor other faults tell which."""
    counts, numbers, others = Counter(), Counter(), Counter()
    for assignment in itertools.chain(*assignments.values()):
        broken = {fault.kind for fault in assignment.faults}
        if len(assignment.forms) == 4:
            number = len(broken & assignment.forms.keys())
            numbers[number] += 1
            others[number, len(broken) - number] += 1
        counts.update((form.startswith("{right}"), kind in broken) for kind, form in assignment.forms.items())
    total, tasks = sum(counts.values()), sum(numbers.values())
    assert total > 400
    assert all(abs(count / total - 0.25) < 0.07 for count in counts.values()), counts
    assert {*numbers} == {1, 2, 3}
    assert all(abs(count / tasks - 1 / 3) < 0.15 for count in numbers.values()), numbers
    means = [sum(n * others[m, n] for n in (3, 4, 5)) / numbers[m] for m in (1, 2, 3)]
    assert max(means) - min(means) < 0.6, means


def test_only_what_words_mean_decides():
    """With a word, each place and each negation stand equally often for the first sentence and for the second."""
    assert {*words_of("train")}.isdisjoint(words_of("test"))
    for split in ("train", "test"):
        words = words_of(split)
        assert 2 * sum(words.values()) == len(words) >= 16
        for word, holds in words.items():
            forms = forms_of({word: holds})
            for part in (" above was", " below was", f"not {word}", f" was {word}"):
                firsts = [form.startswith("{right}") for form in forms if part in form]
                assert 2 * sum(firsts) == len(firsts) > 0
            assert {*forms}.isdisjoint(forms_of({word: not holds}))
        assert [form.startswith("{right}") for form in forms_of({"x": True})].count(True) == 8


def grams(word, n):
    return {f"^{word}$"[place : place + n] for place in range(len(word) + 3 - n)}


def overlap(n):
    return lambda one, other: len(grams(one, n) & grams(other, n)) / len(grams(one, n) | grams(other, n))


@pytest.mark.parametrize(
    "similarity",
    [
        *(overlap(n) for n in (1, 2, 3)),
        lambda one, other: difflib.SequenceMatcher(None, one, other).ratio(),
        lambda one, other: len(os.path.commonprefix([one, other])),
        lambda one, other: len(os.path.commonprefix([one[::-1], other[::-1]])),
        lambda one, other: -abs(len(one) - len(other)),
    ],
    ids=["letters", "pairs", "triples", "sequence", "beginning", "end", "length"],
)
def test_letters_do_not_tell_what_words_mean(similarity):
    """The most similar word of the training split means the same as often as the opposite."""
    train, test = words_of("train"), words_of("test")
    right = sum(train[max(sorted(train), key=lambda one: similarity(word, one))] == test[word] for word in test)
    assert abs(right - len(test) / 2) <= 2


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
    assert f"- {filled(own.forms[fault.kind], other)}" in twin.project.files[fault.page].splitlines()


def test_project_without_disputes_is_as_it_was():
    project = TEMPLATES["access"](random.Random(2))
    assert disputed(project, {}).files == project.files
    fault = next(fault for fault in project.faults if is_disputable(project, fault))
    changed = disputed(project, {fault.kind: draw_form(random.Random(1), "train")})
    differing = {path for path, text in project.files.items() if changed.files[path] != text}
    assert differing == {fault.page}
    assert fault.agreed in changed.files[fault.page]
    assert fault.followed in changed.files[fault.page]
    with pytest.raises(ValueError, match="does not state it in one line"):
        disputed(changed, {fault.kind: draw_form(random.Random(1), "train")})
