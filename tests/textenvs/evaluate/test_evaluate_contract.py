"""The checks that authors can run: they find planted mistakes, and none in what ships."""

import re
from dataclasses import dataclass

import pytest
from toy_envs import KINDS, ToyTasks

import textenvs
from textenvs import EpisodeState, TextEnv, Turn
from textenvs.evaluate.contract import ContractError, check_contract
from textenvs.messages import user


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
        self.said = []

    def respond(self, reply):
        self.said.append(reply["content"])
        return Turn([user("no")], reward=float(len(set(self.said))))


class SilentOnSelf(Planted):
    """What is kept is read only where no reply of the check leads."""

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


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OtherTerms, r"has the terms \['late', 'right'\], another's had \['right'\] \(seed 0, turn 3\)"),
        (TermsByOutcome, r"Give the same terms on every turn"),
        (CountsOnSelf, r"self.tries changed during the episode.*belongs in self.state.*CountsOnSelf.state_type"),
        (OpensOnSelf, r"restored in another environment raised AttributeError.*'secret'.*belongs in self.state"),
        (RemembersInAList, r"self.said changed during the episode"),
        (SilentOnSelf, r"self.last changed while an episode was played"),
        (Shared, r"gave another reward: .* belongs in self.state"),
        (Clock, r"gave two different openings"),
    ],
)
def test_a_planted_mistake_is_found_and_named(kind, said):
    with pytest.raises(ContractError) as raised:
        check_contract(kind)
    assert re.search(said, str(raised.value)), str(raised.value)
    assert len(str(raised.value)) < 1500


def test_the_same_environment_with_a_state_keeps_the_contract():
    @dataclass
    class CountState(EpisodeState):
        tries: int = 0

    class Counts(CountsOnSelf):
        state_type = CountState

        def respond(self, reply):
            self.state.tries += 1
            return Turn([user(f"{self.state.tries} tries")], reward=0.0)

    check_contract(Counts)
    check_contract(Planted)


@pytest.mark.parametrize("kind", KINDS)
def test_toys_keep_the_contract(kind):
    check_contract(kind)


@pytest.mark.parametrize("env_id", ["textenv/gsm8k", "textenv/gsm8k-tool", "textenv/clarify", "textenv/service-desk"])
def test_what_ships_keeps_the_contract(env_id):
    check_contract(lambda: textenvs.make(env_id), seeds=range(4))
