"""The checks that authors can run: they find planted mistakes, and none in what ships."""

import re
from dataclasses import dataclass

import pytest
from toy_envs import KINDS, ToyTasks

import textenvs
from textenvs import EpisodeState, TextEnv, Turn, user, visible_text
from textenvs.audit import Subject, Verdict, checks
from textenvs.audit.contract import copies, determinism, endings, play_episodes, processes, secrets, terms


class Planted(TextEnv):
    """Nothing is wrong with this one."""

    def __init__(self):
        super().__init__(ToyTasks(), max_assistant_turns=4)
        self.prices = {"hint": 0.1}

    def respond(self, reply):
        return Turn([user("no")], terms={"right": 0.0, "late": -float(self.state.assistant_turns > 1)})


class OtherTerms(Planted):
    def respond(self, reply):
        late = {"late": -0.1} if self.state.assistant_turns > 2 else {}
        return Turn([user("no")], terms={"right": 0.0, **late})


class TermsByOutcome(Planted):
    def respond(self, reply):
        return Turn([user("no")], terms={"empty": 0.0} if not reply["content"] else {"wrong": 0.0})


class CountsOnSelf(Planted):
    tries = 0

    def respond(self, reply):
        self.tries += 1
        return Turn([user(f"{self.tries} tries")], reward=0.0)


class OpensOnSelf(Planted):
    """Reset in the opening, so that episodes played one after the other come out right."""

    def opening(self, task):
        self.secret = task.ground_truth
        return task.prompt

    def respond(self, reply):
        return Turn([user(f"it has {len(self.secret)} letters")], reward=0.0)


class RemembersInAList(Planted):
    def __init__(self):
        super().__init__()
        self.replies = []

    def respond(self, reply):
        self.replies.append(reply["content"])
        return Turn([user("no")], reward=float(len(set(self.replies))))


class SilentOnSelf(Planted):
    """Change state that no reply of the check reads."""

    def respond(self, reply):
        self.last = reply["content"]
        return Turn([user("no")], reward=1.0 if "a rare word" in self.last else 0.0)


class Shared(Planted):
    """State that every copy shares: a fork changes the episode that it was made of."""

    def __init__(self):
        super().__init__()
        self.box = type("Box", (), {"count": 0})()

    def opening(self, task):
        self.box.count = 0
        return task.prompt

    def respond(self, reply):
        self.box.count += 1
        return Turn([user("no")], reward=float(self.box.count))


class Clock(Planted):
    calls = iter(range(10**6))

    def opening(self, task):
        return [user(f"request {next(Clock.calls)}")]


class TermsDoNotSum(Planted):
    def step(self, action):
        conversation, reward, *rest = super().step(action)
        return conversation, reward + 0.5, *rest


class Both(Planted):
    def step(self, action):
        conversation, reward, terminated, truncated, info = super().step(action)
        return conversation, reward, truncated, truncated, info


class SecretInInfo(Planted):
    def respond(self, reply):
        return Turn([user("no")], reward=0.0, metrics={self.task.ground_truth: 1.0})


class HashOrder(Planted):
    """The order of a set, which another process has otherwise."""

    def opening(self, task):
        return [*task.prompt, user(" ".join({f"word{number}" for number in range(20)}))]


class Raises(Planted):
    def respond(self, reply):
        return Turn([user("no")], reward=float(visible_text(reply) or 0))


def failures(make_env) -> list[Verdict]:
    """Return the failures of the contract's checks, without those in another process, which test_audit.py has."""
    subject = Subject(make_env)
    episodes = play_episodes(subject)
    verdicts = [check(subject, episodes) for check in (determinism, copies, terms, endings, secrets)]
    return [verdict for verdict in verdicts if verdict.failed]


@pytest.mark.parametrize(
    ("kind", "check", "cause"),
    [
        (OtherTerms, "terms", r"the names of the terms change \(seed 0, turn 3\)"),
        (TermsByOutcome, "terms", r"Give the same terms on every turn"),
        (TermsDoNotSum, "terms", r"do not sum to its reward"),
        (CountsOnSelf, "copies", r"self.tries changed while.*belongs in self.state.*CountsOnSelf.state_type"),
        (OpensOnSelf, "copies", r"restored in another environment continued differently.*belongs in self.state"),
        (RemembersInAList, "copies", r"self.replies changed while"),
        (SilentOnSelf, "copies", r"self.last changed while an episode was played"),
        (Shared, "copies", r"continued differently .* belongs in self.state"),
        (Clock, "determinism", r"gave two different openings"),
        (Both, "endings", r"terminated and truncated"),
        (SecretInInfo, "secrets", r"info has a secret"),
    ],
)
def test_planted_fault_is_found_and_named(kind, check, cause):
    verdicts = [verdict for verdict in failures(kind) if verdict.check == check]
    assert verdicts
    assert re.search(cause, verdicts[0].cause), verdicts
    assert len(verdicts[0].cause + verdicts[0].evidence) < 1500


def test_state_fields_keep_the_contract():
    @dataclass
    class CountState(EpisodeState):
        tries: int = 0

    class Counts(CountsOnSelf):
        state_type = CountState

        def respond(self, reply):
            self.state.tries += 1
            return Turn([user(f"{self.state.tries} tries")], reward=0.0)

    assert not failures(Counts)
    assert not failures(Planted)


@pytest.mark.parametrize("kind", KINDS)
def test_toys_keep_the_contract(kind):
    assert not failures(kind)


@pytest.mark.parametrize("env_id", ["textenv/gsm8k-tool", "textenv/service-desk"])
def test_what_ships_keeps_the_contract(env_id):
    assert not failures(lambda: textenvs.make(env_id))


def test_set_order_differs_between_processes():
    subject = Subject(HashOrder)
    verdict = processes(subject, play_episodes(subject))
    assert verdict.failed
    assert "depend on no order of a set" in verdict.cause
    unpicklable = Subject(lambda: Planted())
    assert processes(unpicklable, play_episodes(unpicklable)).status == "skipped"


def test_exception_fails_audit_and_closes_environments():
    opened, closed = [], []

    class Counted(Raises):
        def __init__(self):
            super().__init__()
            opened.append(self)

        def cleanup(self):
            closed.append(self)

    (verdict,) = checks(Subject(Counted))
    assert verdict.failed
    assert "a bad reply is something to answer" in verdict.cause
    assert len(opened) == len(closed) == 2
