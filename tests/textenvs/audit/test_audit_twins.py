"""Twin tasks: a user whose words depend on the ground truth is found, in toys and in what ships."""

import functools
from dataclasses import replace

import pytest

import textenvs
from textenvs import Task, TextEnv, Turn, user, visible_text
from textenvs.audit import Subject
from textenvs.audit.twins import twins


class Booking(TextEnv):
    """The user is asked for a yes, and then its order is placed; which table is right, only the restaurant knows."""

    def __init__(self):
        tasks = [
            Task(f"task/{n}", "toy", (user(f"A table for {n}."),), ground_truth=f"table {n + 1}") for n in range(9)
        ]
        super().__init__(tasks, max_assistant_turns=4)

    def respond(self, reply):
        text = visible_text(reply)
        if "?" in text:
            return Turn([user(self.answer(text))], reward=0.0)
        return Turn(reward=float(text == self.task.ground_truth), terminated=True, stop="solved")

    def answer(self, text):
        return "Yes, please."

    def demonstration(self, rng):
        has_asked = self.state.assistant_turns > 0
        return self.task.ground_truth if has_asked else f"Shall I book {self.task.ground_truth}?"

    def twin(self, task):
        return replace(task, ground_truth=f"{task.ground_truth}0")


class Oracle(Booking):
    """Says yes to the right table alone."""

    def answer(self, text):
        return "Yes, please." if f" {self.task.ground_truth}?" in text else "No."


class OpensWithIt(Booking):
    def opening(self, task):
        return [user(f"{task.question} My number has {len(task.ground_truth)} letters.")]


class LeavesUnlessRight(Booking):
    """Same words, but only a wrong answer continues the conversation."""

    def respond(self, reply):
        right = self.task.ground_truth in visible_text(reply)
        return Turn([user("Well.")], reward=float(right), terminated=not right, stop=None if right else "left")


class Declared(Oracle):
    def reveals(self, reply):
        return "?" in visible_text(reply)


class NoTwin(Booking):
    def twin(self, task):
        return None


class AnotherPrompt(Booking):
    def twin(self, task):
        return replace(task, prompt=(user("A room."),), ground_truth="room 1")


class SameTask(Booking):
    def twin(self, task):
        return replace(task, key="twin")


class SameReward(Booking):
    """An environment whose twin changes only what is never read."""

    def twin(self, task):
        return replace(task, extra={"truth": 2})


class CannotBePlayed(Booking):
    def opening(self, task):
        assert task.ground_truth[-1] != "0", "no such table"
        return task.prompt


def check(kind):
    return twins(Subject(kind, episodes=9))


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Oracle, "the same replies are answered differently"),
        (OpensWithIt, "the same replies are answered differently"),
        (LeavesUnlessRight, "the same replies are answered differently"),
        (AnotherPrompt, "changes the prompt"),
        (SameTask, "returns the same task"),
        (SameReward, "reward the expert's replies alike"),
        (CannotBePlayed, "no such table"),
    ],
)
def test_planted_oracles_and_wrong_twins_fail(kind, cause):
    verdict = check(kind)
    assert verdict.failed, verdict
    assert cause in verdict.cause


def test_evidence_has_answers_and_question():
    verdict = check(Oracle)
    assert "Yes, please." in verdict.evidence
    assert "No." in verdict.evidence
    assert verdict.evidence.startswith("9 of 9 tasks")
    assert "Shall I book table" in verdict.transcript


@pytest.mark.parametrize(("kind", "status"), [(Booking, "pass"), (NoTwin, "warning"), (Declared, "skipped")])
def test_sound_users_pass_missing_twins_warn(kind, status):
    assert check(kind).status == status


JUDGES = {"gsm8k", "gsm8k-interact", "math-expression"}  # the first says nothing, the third has all in its opening


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in sorted(JUDGES)),
        ("self-correct", {}),
        ("gsm8k-tool", {}),
        *((name, {"level": level}) for name in ("collab-math", "collab-document") for level in ("easy", "hard")),
        *(("clarify", {"level": level}) for level in ("easy", "medium")),
        # The hard level's users hold back what those of the others do.
        *(pytest.param("service-desk", {"level": level}, marks=pytest.mark.slow) for level in ("easy", "medium")),
        ("service-desk", {"level": "hard"}),
        ("math-python", {}),
    ],
)
def test_shipped_users_do_not_know_the_truth(name, options):
    make = functools.partial(textenvs.make, f"textenv/{name}", **options)
    verdict = twins(Subject(make, episodes=8))
    assert verdict.status == ("skipped" if name in JUDGES else "pass"), verdict
