"""Twin worlds: what a solution must read is proven where it is so, and faults of the twins are found."""

import functools
from dataclasses import replace

import pytest

import textenvs
from textenvs import Task, TextEnv, Turn, user, visible_text
from textenvs.audit import Subject
from textenvs.audit.reads import reads


class Box(TextEnv):
    """A box has a number: whoever looks is told, and says it."""

    def __init__(self):
        super().__init__([Task(f"task/{n}", "toy", (user("How many?"),), str(n)) for n in range(3)])

    def respond(self, reply):
        text = visible_text(reply)
        if text == "look":
            return Turn([user(self.inside())], reward=0.0)
        solved = self.is_right(text)
        return Turn(reward=float(solved), terminated=True, stop="solved" if solved else "wrong")

    def inside(self):
        return str(self.task.ground_truth)

    def is_right(self, text):
        return text == self.task.ground_truth

    def demonstration(self, rng):
        return "look" if self.state.assistant_turns == 0 else str(self.task.ground_truth)

    def twin_worlds(self, task):
        others = (str(int(task.ground_truth) + more) for more in range(1, 7))
        return [("the number", [task, *(replace(task, key=f"{task.key}~{n}", ground_truth=n) for n in others)])]


class OpensWithIt(Box):
    def opening(self, task):
        return [user(f"It has {task.ground_truth}.")]


class Clairvoyant(Box):
    """The expert looks, because the audit wants it to, and already asks for what it will see."""

    def respond(self, reply):
        return Turn([user(self.inside())], reward=0.0) if "look" in visible_text(reply) else super().respond(reply)

    def demonstration(self, rng):
        return f"look {self.task.ground_truth}" if self.state.assistant_turns == 0 else str(self.task.ground_truth)


class ShowsNothing(Box):
    def inside(self):
        return "It is dark."

    def demonstration(self, rng):
        return "look" if self.state.assistant_turns == 0 else str(self.task.ground_truth)


class TakesAnything(Box):
    def is_right(self, text):
        return text.isdecimal()


class SameEnds(Box):
    def twin_worlds(self, task):
        return [("the number", [task, replace(task, key="twin")])]


class Unsolved(Box):
    def is_right(self, text):
        return False


class NoTwins(Box):
    def twin_worlds(self, task):
        return ()


@pytest.mark.parametrize(
    ("env", "status", "cause"),
    [
        (Box, "pass", "right in 0.143 of the twins"),
        (OpensWithIt, "fail", "different openings"),
        (Clairvoyant, "fail", "knows what it has not read"),
        (ShowsNothing, "fail", "knows what it has not read|show nothing that differs"),
        (TakesAnything, "fail", "the same replies solve two twins"),
        (SameEnds, "fail", "the same ground truth"),
        (Unsolved, "fail", "does not solve a twin"),
        (NoTwins, "skipped", "offers no twin worlds"),
    ],
)
def test_faults_of_twins_are_found(env, status, cause):
    verdict = reads(Subject(env, episodes=3))
    assert verdict.status == status
    assert any(one in verdict.cause for one in cause.split("|")), verdict.cause


@pytest.mark.parametrize(("name", "level"), [("clarify", "medium"), ("collab-math", "hard")])
def test_what_users_hold_back_is_proven(name, level):
    verdict = reads(Subject(functools.partial(textenvs.make, f"textenv/{name}", level=level), episodes=6))
    assert verdict.status == "pass", verdict
    assert "0.143" in verdict.cause
