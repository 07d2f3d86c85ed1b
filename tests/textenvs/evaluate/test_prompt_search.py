"""The search for a system prompt: its budget, resuming, disjoint tasks, what reflection reads, and what cannot win."""

import itertools
import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs import Task
from textenvs.evaluate.plan import jobs
from textenvs.evaluate.policies import Stopped
from textenvs.evaluate.prompt_search import (
    LONGEST,
    MOST_USELESS,
    NO_ROOM,
    TRANSCRIPT,
    Search,
    compare,
    disjoint_tasks,
    feedback,
    scores,
)
from textenvs.evaluate.records import Record
from textenvs.messages import assistant, system, user
from textenvs.task import Rows

pytest.importorskip("gepa", reason="needs the extra 'prompts'")

TRAIN, VALIDATION = [*jobs(range(11), 1, 0)][:6], [*jobs(range(11), 1, 0)][6:]


def record(job, earned=0.0, **fields):
    return Record(
        job.task,
        job.sample,
        job.seed,
        job.task_index,
        f"task-{job.task}",
        "toy",
        **{"turn_rewards": (earned,), **fields},
    )


class World:
    """A policy whose return is how many of the wished words its prompt has, and a reflection model that adds a word."""

    def __init__(self, replies=("a", "a b", "c", "a b c", "", "a"), wished="abc"):
        self.replies, self.wished = replies, wished
        self.played, self.replied = {}, {}  # what is stored: returns of (prompt, task), replies by number
        self.cost = 0
        self.requests = []

    def charge(self):
        self.cost += 1

    def play(self, prompt, batch):
        for job in batch:
            if (prompt, job.place) not in self.played:
                self.charge()
                self.played[prompt, job.place] = sum(word in prompt for word in self.wished) + job.task_index / 100
        return [record(job, self.played[prompt, job.place]) for job in batch]

    def reflect(self, number, request):
        if number not in self.replied:
            self.charge()
            self.replied[number] = f"```\n{self.replies[number % len(self.replies)]}\n```"
        self.requests.append(request)
        return self.replied[number]


def search(world, budget=60, **options):
    return Search(world.play, world.reflect, "go", TRAIN, VALIDATION, budget=budget, **options)


def test_best_prompt_on_validation_is_found():
    world = World()
    found = search(world)
    best = found.run()
    assert best.prompt == "a b c"
    assert best.validation == pytest.approx(3 + sum(job.task_index for job in VALIDATION) / 500)
    assert [proposal.candidate for proposal in found.candidates] == list(range(len(found.candidates)))
    assert all(proposal.refused is None for proposal in found.candidates)
    assert found.spent == len(world.played)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(16, 80),
    st.integers(0, 5),
    st.lists(st.sampled_from(["", "a", "b", "a b", "b c", "zz"]), min_size=1, max_size=5),
)
def test_budget_is_never_exceeded(budget, seed, replies):
    world = World(replies)
    found = search(world, budget, seed=seed)
    with suppress(Stopped):  # no usable prompt among the replies
        found.run()
    assert found.spent == len(world.played) <= budget


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_interrupted_search_resumes_exactly(stops):
    whole = World()
    expected = search(whole)
    expected.run()

    class Interrupted(World):
        left = 0

        def charge(self):
            if self.left == 0:
                raise Stopped("interrupted")
            self.left -= 1
            super().charge()

    world = Interrupted()
    for world.left in itertools.chain(stops, itertools.repeat(1000)):
        resumed = search(world)
        with suppress(Stopped):
            resumed.run()
            break
    assert resumed.proposals == expected.proposals
    assert world.cost == whole.cost  # nothing was played or asked twice


def test_larger_budget_continues_the_search():
    world = World(("a", "a b"))
    small = search(world, 20)
    small.run()
    assert [proposal.prompt for proposal in small.candidates] == ["go", "a"]
    large = search(world, 200)
    assert large.run().prompt == "a b"
    assert large.proposals[: len(small.proposals)] == small.proposals
    assert large.spent == len(world.played)


def test_too_small_budget_is_refused():
    with pytest.raises(ValueError, match="a budget of 15 episodes is too small for one proposal; it takes 16"):
        search(World(), 15).run()


def test_prompt_of_training_answers_does_not_win():
    class Remembers(World):
        def play(self, prompt, batch):
            return [record(job, float(f"[{job.task_index}]" in prompt)) for job in batch]

    found = search(Remembers([" ".join(f"[{job.task_index}]" for job in TRAIN)]))
    best = found.run()
    assert len(found.candidates) == 2  # it is better on training tasks, and played on the others
    assert best.prompt == "go"


@pytest.mark.parametrize(
    ("reply", "problem"), [("", "an empty reply"), ("x" * (LONGEST + 1), "characters, and at most")]
)
def test_unusable_replies_end_the_search(reply, problem):
    world = World([reply])
    found = search(world, 1000)
    with pytest.raises(Stopped, match=f"no usable prompt in {MOST_USELESS} replies .*{problem}"):
        found.run()
    assert {prompt for prompt, _ in world.played} == {"go"}


def test_repeated_proposals_end_the_search():
    found = search(World(["a"]), 1000)
    assert found.run().prompt == "a"
    assert found.ended == f"{MOST_USELESS} proposals in a row were of no use (proposed before)"


@pytest.mark.parametrize("where", ["play", "reflect", "privileged"])
def test_error_ends_the_search(where):
    calls = []

    def broken(*arguments):
        calls.append(arguments)
        raise Stopped("the service is away")

    world = World()
    found = search(world, privileged=broken if where == "privileged" else None)
    if where != "privileged":
        setattr(found, where, broken)
    with pytest.raises(Stopped, match="the service is away"):
        found.run()
    assert len(calls) == 1


def test_prompt_beyond_the_context_is_refused():
    class Narrow(World):
        def play(self, prompt, batch):
            if prompt in self.full:
                return [record(job, failed=True, stop="policy_failed", failure=f"{NO_ROOM}: 9 tokens") for job in batch]
            return super().play(prompt, batch)

        full = ("a b c",)

    found = search(Narrow())
    assert found.run().prompt == "a b"
    Narrow.full = ("go",)
    with pytest.raises(Stopped, match="9 tokens; begin with a shorter prompt"):
        search(Narrow()).run()


def test_failed_episode_counts_as_the_mean():
    first, second, third = TRAIN[:3]
    broken = record(third, failed=True, stop="user_failed", failure="away")
    assert scores([record(first, 1.0), record(second, 0.5), broken]) == [1.0, 0.5, 0.75]
    with pytest.raises(Stopped, match="1 of 1 episodes failed; the last one: user_failed: away"):
        scores([broken])
    assert scores([record(third, failed=True, failure=f"{NO_ROOM}: 9")]) == [-math.inf]


# ------------------------------------------------------------------ tasks


def task(content, key, truth="1"):
    return Task(key, "toy", (user(content),), ground_truth=truth)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=6, max_size=60), st.integers(0, 3), st.data())
def test_tasks_are_disjoint_by_content(contents, seed, data):
    tasks = Rows("toy", [task(f"What is {content}?", str(index)) for index, content in enumerate(contents)])
    different = len(set(contents))
    counts = data.draw(st.tuples(*[st.integers(1, 6)] * 3))
    if sum(counts) > different:
        with pytest.raises(ValueError, match=f"tasks are needed, and toy has {different} different tasks"):
            disjoint_tasks(tasks, *counts, seed)
        return
    split = disjoint_tasks(tasks, *counts, seed)
    assert tuple(map(len, (split.train, split.validation, split.test))) == counts
    asked = [contents[index] for index in (*split.train, *split.validation, *split.test)]
    assert len(set(asked)) == len(asked)
    assert split == disjoint_tasks(tasks, *counts, seed)


def test_tasks_without_answer_are_different():
    tasks = Rows("games", [task("Play.", str(index), None) for index in range(9)])
    assert len(disjoint_tasks(tasks, 3, 3, 3, 0).test) == 3


# ------------------------------------------------------------------ what the reflection model reads


def test_feedback_has_the_episode_and_its_rewards():
    messages = (system("Be brief. Tools: add."), user("2 + 2?"), assistant("5"), user("No."), assistant("4"))
    played = record(
        TRAIN[0],
        turn_rewards=(0.0, 1.5),
        terms={"correct": 1.5},
        metrics={"asked": 2.0},
        messages=messages,
        stop="solved",
        success=True,
    )
    shown = feedback(played, "Be brief.")
    assert (
        shown["Conversation"]
        == "system: [the instructions] Tools: add.\nuser: 2 + 2?\nassistant: 5\nuser: No.\nassistant: 4"
    )
    for part in ("Return: 1.5; the task was solved", "ended by: solved", "turns: 0, 1.5.", "correct 1.5", "asked 2"):
        assert part in shown["Feedback"]
    assert "Not known to the assistant: 7" in feedback(played, "", "7")["Feedback"]
    long = feedback(record(TRAIN[0], messages=(user("x" * 10 * TRANSCRIPT),)), "")
    assert len(long["Conversation"]) < TRANSCRIPT + 100


def test_hidden_answers_reach_reflection_on_request():
    hidden, shown = World(), World()
    search(hidden).run()
    search(shown, privileged=lambda job: f"answer-{job.task_index}").run()
    assert not any("answer-" in request for request in hidden.requests)
    read = {
        job.task_index
        for job in [*TRAIN, *VALIDATION]
        if any(f"answer-{job.task_index}\n" in r for r in shown.requests)
    }
    assert read <= {job.task_index for job in TRAIN}
    assert read


# ------------------------------------------------------------------ the comparison


def test_prompts_are_compared_by_task():
    start = [record(job, value) for job, value in zip(TRAIN, (0, 1, 0, 1, 0, 1), strict=True)]
    found = [record(job, value, success=True) for job, value in zip(TRAIN, (1, 2, 1, 2, 1, 2), strict=True)]
    result = compare(start, found)
    assert result["difference"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert result["start"]["low"] < result["start"]["high"]  # pairing removes what the tasks differ by
    assert (result["tasks"], result["solved"]) == (6, {"start": 0, "found": 1})
    failed = [record(TRAIN[0], failed=True), *found[1:]]
    assert compare(start, failed)["tasks"] == 5
    with pytest.raises(Stopped, match="no held-out task was played"):
        compare(start[:1], failed[:1])
