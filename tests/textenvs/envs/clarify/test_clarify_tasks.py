"""Generated requests: short, reproducible, disjoint between splits, and not to be guessed."""

import itertools
import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.data import Task, TaskError
from textenvs.envs.clarify.tasks import KINDS, LEVELS, MIN_VALUES, GeneratedRequests, Request
from textenvs.envs.clarify.user import is_right, read
from textenvs.messages import assistant, user

ALL = {name: kind for kinds in KINDS.values() for name, kind in kinds.items()}
every_kind = pytest.mark.parametrize("name", ALL)


def level_of(name):
    return next(level for level in LEVELS if name in KINDS[level])


def requests(count=300, **options):
    tasks = GeneratedRequests(**options)
    return [Request.from_task(tasks[i]) for i in range(count)]


def visible(request):
    stated = {name: value for name, value in request.values.items() if name not in request.missing}
    return request.kind.name, request.missing, tuple(sorted(stated.items()))


@given(st.sampled_from(LEVELS), st.integers(0, 10**9), st.floats(0, 1), st.integers(0, 5))
def test_request_states_all_but_missing_slots(level, index, share, seed):
    task = GeneratedRequests(level, share, seed=seed)[index]
    request = Request.from_task(task)
    words = task.question.replace(",", " ").replace(".", " ").split()
    assert len(task.question.split()) <= (25 if level == "easy" else 30)
    for slot in request.kind.slots:
        if slot.name not in request.missing:
            assert str(request.values[slot.name]) in words
    changed = {**request.values, **{s.name: s.values[0] for s in request.kind.slots if s.name in request.missing}}
    assert Request(request.kind, request.name, request.thing, changed, request.missing).text == task.question
    assert bool(request.missing) <= (share > 0)
    assert len(request.missing) <= (1 if level == "easy" else 2)


@every_kind
def test_worked_answer_follows_from_values(name):
    for request in requests(20, level=level_of(name), kinds=[name]):
        equations = request.equations
        assert all(eval(work) == int(result) for work, result in (line.split("=") for line in equations))
        if equations:
            assert request.answer == (equations[-1].split("=")[1],)
            assert int(request.answer[0]) >= 0
            used = " ".join(equations)
            assert all(str(value) in used for value in request.values.values())
        else:
            assert request.answer == tuple(str(request.values[slot]) for slot in request.kind.form.split())


@every_kind
def test_copied_request_is_no_answer(name):
    """The answer's order is never the request's."""
    kind = ALL[name]
    assert bool(kind.work) != bool(kind.order)
    if kind.order:
        assert set(kind.order) == {slot.name for slot in kind.slots}
        assert kind.order != tuple(slot.name for slot in kind.slots)
    for request in requests(20, level=level_of(name), kinds=[name], ambiguous=0):
        reading = read(assistant(f"#### {request.text.rpartition(' Answer with ')[0]}"), request)
        assert not is_right(reading, request) or request.kind.work or len(set(request.answer)) == 1


@every_kind
def test_guesses_are_rarely_right(name):
    """Whatever else is known, for every way to leave something out."""
    kind, rng = ALL[name], random.Random(0)
    assert all(len(set(slot.values)) == len(slot.values) >= MIN_VALUES for slot in kind.slots)
    most = 1 if level_of(name) == "easy" else 2
    for missing in itertools.chain.from_iterable(itertools.combinations(kind.slots, n + 1) for n in range(most)):
        for _ in range(2):
            values = {slot.name: rng.choice(slot.values) for slot in kind.slots}
            answers = Counter()
            for hidden in itertools.product(*(slot.values for slot in missing)):
                guess = values | {slot.name: value for slot, value in zip(missing, hidden, strict=True)}
                answers[Request(kind, "Mia", "apples", guess, ()).answer] += 1
            assert max(answers.values()) * MIN_VALUES <= answers.total()


@every_kind
@pytest.mark.parametrize("split", ["train", "test"])
def test_hidden_values_are_unrestricted_in_both_splits(name, split):
    unseen = {(slot.name, value) for slot in ALL[name].slots for value in slot.values}
    tasks = GeneratedRequests(level_of(name), ambiguous=1, kinds=[name], split=split)
    for index in range(500):
        extra = tasks[index].extra
        unseen -= {(hidden, extra["values"][hidden]) for hidden in extra["missing"]}
        if not unseen:
            return
    raise AssertionError(f"never hidden: {unseen}")


@pytest.mark.parametrize("level", LEVELS)
def test_train_and_test_requests_are_disjoint(level):
    train = {visible(request) for request in requests(300, level=level)}
    test = {visible(request) for seed in (0, 1) for request in requests(200, level=level, split="test", seed=seed)}
    assert train
    assert test
    assert not train & test


@every_kind
def test_splits_share_no_wording(name):
    """Compare the wordings without names and values; every wording of a kind is used, in one split."""

    def wordings(split):
        tasks, matches = GeneratedRequests(level_of(name), 0.0, [name], split=split), set()
        for index in range(40):
            request = Request.from_task(tasks[index])
            matches |= {text for text in ALL[name].requests if like(text, request).fullmatch(tasks[index].question)}
        return matches

    def like(text, request):
        fields = {slot.name: slot.says.format(request.values[slot.name]) for slot in request.kind.slots}
        wording = text.format(name=request.name, thing=request.thing, **fields)
        return re.compile(re.escape(wording) + " Answer with .*")

    train, test = wordings("train"), wordings("test")
    assert train | test == set(ALL[name].requests)
    assert not train & test
    assert len(train) >= 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_share_of_ambiguous_requests(level, split):
    for share in (0.0, 0.25, 1.0):
        drawn = [bool(r.missing) for r in requests(400, level=level, ambiguous=share, split=split)]
        assert sum(drawn) / len(drawn) == pytest.approx(share, abs=0.06)


def test_request_survives_row_conversion():
    for index in range(30):
        task = GeneratedRequests("medium", 1.0)[index]
        again = Task.from_row(task.to_row(), key="row")
        assert Request.from_task(again) == Request.from_task(task)
        assert again.prompt == task.prompt


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "riddle"}, "kind is 'riddle'; it must be one of sum, left"),
        ({"values": {"colour": "red"}}, "values must give colour, size of a 'cap' request"),
        ({"values": {"colour": "red", "size": "3"}}, "values.size must be of type int, not '3'"),
        ({"missing": "size"}, "missing must be a list out of colour, size, not 'size'"),
        ({"missing": ["price"]}, "missing must be a list out of colour, size"),
        ({"values": {"colour": "blue", "size": 3}}, "lead to '3 blue', but the ground truth is '3 red'"),
    ],
)
def test_invalid_request_rows_are_errors(changed, message):
    extra = {"kind": "cap", "name": "Mia", "values": {"colour": "red", "size": 3}, "missing": ["size"]}
    Request.from_task(Task("k", "s", (user("?"),), "3 red", extra=extra))
    with pytest.raises(TaskError, match=message):
        Request.from_task(Task("k", "s", (user("?"),), "3 red", extra={**extra, **changed}))
    with pytest.raises(TaskError, match="kind is None"):
        Request.from_task(Task("k", "s", (user("?"),), "red 3"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "hard"}, "level must be one of easy, medium, not 'hard'"),
        ({"kinds": "sum"}, "kinds must be a list out of sum, left"),
        ({"kinds": ["trip"]}, "kinds must be a list out of sum, left, .*, course, or None, not "),
    ],
)
def test_bad_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        GeneratedRequests(**options)
