"""Small forms of four environments that a model of a million parameters learns within minutes on one CPU thread.

``fork-credit/clarify`` are sums of two numbers, one of which is mostly missing. Its held-out requests are other draws
of the same ones: what a model this small does with sums that it has never seen is not about credit assignment.
``fork-credit/collab-math`` is the code of a lock, which the user holds back: asking decides, not arithmetic, and a
guess ends the talk. ``fork-credit/service-desk`` is the end of a talk, from when the customer is identified: an account
to close or a charge to explain, where the agent must ask for the reason before it hands the case over. Rules and tools
are not in the prompt there, for they would be most of it, and the customer's id is always the same: to copy one takes a
small model thousands of steps. ``fork-credit/tau2`` are those of tau2-bench's small telecom tasks that are solved on
the customer's phone, without the policy and the manual; both splits have all. It needs tau2's data
(docs/environments/tau2.md).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from textenvs.actions import as_reply
from textenvs.env import ResetResult, TextEnv, Turn
from textenvs.envs.clarify.env import Clarify
from textenvs.envs.collab_math import CollabMath
from textenvs.envs.service_desk.env import ServiceDesk
from textenvs.envs.service_desk.expert import call
from textenvs.envs.service_desk.scenario import scenario_of
from textenvs.envs.service_desk.shop_rules import decide
from textenvs.envs.service_desk.tasks import ServiceDeskTasks
from textenvs.envs.tau2.env import Tau2
from textenvs.envs.tau2.user import order_of
from textenvs.messages import Message, user
from textenvs.task import Rows, Split, Task


class Sums(Clarify):
    """`clarify` with one kind of requests, of which both splits have all."""

    def __init__(self, *, split: Split = "train", **options: Any) -> None:
        super().__init__(kinds=["sum"], ambiguous=0.75, seed=int(split == "test"), **options)


class Locks(CollabMath):
    """`collab-math` about codes of one digit."""

    def __init__(self, *, split: Split = "train", **options: Any) -> None:
        rooms = range(20, 60) if split == "train" else range(60, 80)
        tasks = Rows(f"locks ({split})", [_lock(room, code) for room in rooms for code in range(10)])
        super().__init__(tasks, equality="value", patience=1, **options)


def _lock(room: int, code: int) -> Task:
    request, answer = f"Please open the lock of room {room}.", f"The code is {code}."
    piece = {"topic": "code", "keywords": ["code"], "question": "What is the code?", "sayings": [answer]}
    extra = {"single_turn_prompt": f"{request} {answer}", "pieces": [piece]}
    return Task(f"{room}-{code}", "fork-credit/locks", (user(request),), str(code), "math", "rule", extra)


class Handover(ServiceDesk):
    """`service-desk` from when the customer is identified, with a case that is about no order."""

    def __init__(self, *, split: Split = "train", **options: Any) -> None:
        super().__init__(**options, max_assistant_turns=6)
        self.tasks = HandoverTasks("medium", split=split, kinds=["human"])

    def opening(self, task: Task) -> Sequence[Message]:
        """Have the scripted expert play until the customer is identified."""
        state = self.state
        state.messages = tuple(message for message in super().opening(task) if message["role"] != "system")
        while not state.identified:
            reply = as_reply(self.demonstration(np.random.default_rng(0)))
            state.messages = (*state.messages, reply)
            turn = self.respond(reply)
            assert isinstance(turn, Turn)
            state.messages = (*state.messages, *turn.messages)
        return state.messages

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Hand the case over at once, without the reason."""
        wish = self.state.caller.wish
        if wish is None or self.state.caller.disclosed & {"reason"} or self.state.shop.tickets:
            return self.demonstration(rng)
        (act,) = decide(self.state.story.database, self.state.identified, wish).actions
        return self._scripted(lambda _: call(act.name, **act.arguments))

    def _open(self, opening: Sequence[Message]) -> ResetResult:
        return TextEnv._open(self, opening)  # without the description of the tools


class HandoverTasks(ServiceDeskTasks):
    """The tasks without an order."""

    def _generate(self, index: int) -> Task:
        tasks = (super(HandoverTasks, self)._generate(1000 * index + number) for number in itertools.count())
        task = next(task for task in tasks if not scenario_of(task).chain[0].order_id)
        truth, scenario = task.ground_truth, task.extra["scenario"]
        customers = json.loads(scenario)["database"]["customers"]
        for number, name in enumerate(sorted(customers, key=lambda name: name not in truth), 1):
            truth, scenario = (text.replace(f'"{name}"', f'"c{number}"') for text in (truth, scenario))
        return replace(task, ground_truth=truth, extra={"scenario": scenario})


class Phones(Tau2):
    """`tau2`'s small telecom tasks that the customer solves on the phone, by what the agent says."""

    def __init__(self, *, split: Split = "train", **options: Any) -> None:
        super().__init__(domain="telecom", split="small", max_assistant_turns=8, **options)
        tasks = [self.tasks[number] for number in range(self.tasks.size or 0)]
        orders = {task.key: self._orders(task) for task in tasks}
        self.tasks = Rows(f"phones ({split})", [task for task in tasks if orders[task.key]])
        #: What the agent can tell the customer to do: all that solves a task.
        self.orders = sorted({order for own in orders.values() for order in own})

    def opening(self, task: Task) -> Sequence[Message]:
        messages = super().opening(task)
        assert not isinstance(messages, Awaitable)  # the user is scripted
        return [message for message in messages if message["role"] != "system"]

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Tell the customer to do what solves any of the tasks."""
        if len(self.state.messages) == 1:
            return self.demonstration(rng)  # first, who it is
        return self.orders[int(rng.integers(len(self.orders)))]

    def _orders(self, task: Task) -> list[str]:
        """Return what the agent has to tell a task's customer; nothing where it has to do something itself."""
        calls = self._read(task)[1].calls
        return [order_of(call) for call in calls] if all(call.side == "user" for call in calls) else []

    def _open(self, opening: Sequence[Message]) -> ResetResult:
        return TextEnv._open(self, opening)  # without the description of the tools


gymnasium.register("fork-credit/clarify-v0", entry_point=Sums)
gymnasium.register("fork-credit/collab-math-v0", entry_point=Locks)
gymnasium.register("fork-credit/service-desk-v0", entry_point=Handover)
gymnasium.register("fork-credit/tau2-v0", entry_point=Phones)
