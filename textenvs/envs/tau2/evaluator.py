"""tau2's rule: the reward is the product of the components that a task's ``reward_basis`` names, each 0 or 1.

Here each component is the share of it that is met, so that a turn can be paid for its effect; a component
counts as met where the share is 1.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...task import TaskError
from .database import Database
from .world import Call, attempt, run

COMPONENTS: tuple[str, ...] = ("db", "env_assertion", "action", "communicate", "nl_assertion")


@dataclass(frozen=True)
class Criteria:
    """The criteria of a task. ``components`` are those of its basis that can fail."""

    actions: Sequence[Mapping[str, Any]]
    assertions: Sequence[Mapping[str, Any]]
    communicate: Sequence[str]
    nl_assertions: Sequence[str]
    components: frozenset[str]

    @classmethod
    def of(cls, criteria: Mapping[str, Any] | None) -> Criteria:
        """Return the criteria as a task has them; without any, nothing can fail. ``TaskError``: an unknown basis."""
        criteria = criteria or {"reward_basis": []}
        basis = {name.lower() for name in criteria.get("reward_basis") or ("DB", "COMMUNICATE")}
        if "reward_basis" in criteria and not criteria["reward_basis"]:
            basis = set()
        if unknown := basis - set(COMPONENTS):
            raise TaskError(f"reward_basis names {sorted(unknown)}; known are {', '.join(COMPONENTS)}")
        parts: dict[str, Sequence[Any]] = {
            "env_assertion": criteria.get("env_assertions") or (),
            "action": criteria.get("actions") or (),
            "communicate": criteria.get("communicate_info") or (),
            "nl_assertion": criteria.get("nl_assertions") or (),
        }
        # A task that has neither list is not judged by its database.
        judged = criteria.get("actions") is not None or criteria.get("env_assertions") is not None
        can_fail = {component for component in basis if (judged if component == "db" else parts[component])}
        return cls(
            parts["action"], parts["env_assertion"], parts["communicate"], parts["nl_assertion"], frozenset(can_fail)
        )

    @property
    def calls(self) -> list[Call]:
        """The actions that solve the task, in order."""
        return [
            Call(action.get("requestor", "assistant"), action["name"], action["arguments"]) for action in self.actions
        ]

    def gold(self, start: Database) -> Database:
        """Return the database after the actions on ``start``; as in tau2, the sides are not synchronised in between."""
        db = copy.deepcopy(start)
        for call in self.calls:
            attempt(db, call, sync=False)
        return db

    def needless(self, made: Iterable[Call]) -> int:
        """Count the calls that are none of the actions, or one of them once more."""
        remaining, count = list(self.actions), 0
        for call in made:
            match = next(
                (
                    action
                    for action in remaining
                    if action.get("requestor", "assistant") == call.side and call.matches(action)
                ),
                None,
            )
            if match is None:
                count += 1
            else:
                remaining.remove(match)
        return count

    def communicated_in(self, words: str) -> set[str]:
        """Return those of ``communicate`` that a message has; a number is no part of a longer one."""
        text = words.lower().replace(",", "")
        return {info for info in self.communicate if _pattern(info).search(text)}

    def shares(
        self, db: Database, gold: Database, calls: Iterable[Call], communicated: Iterable[str]
    ) -> dict[str, float]:
        """Return the share of each component that is met, from 0 to 1, but for the last; 1 where it cannot fail."""
        made, scratch = tuple(calls), copy.deepcopy(db)  # whatever function a row asserts with, the episode stays
        results = {
            "db": [db.same(gold)],
            "env_assertion": [holds(scratch, assertion) for assertion in self.assertions],
            "action": [any(call.matches(action) for call in made) for action in self.actions],
            "communicate": [info in communicated for info in self.communicate],
        }
        return {name: sum(met) / len(met) if name in self.components and met else 1.0 for name, met in results.items()}


@functools.lru_cache(maxsize=1024)
def _pattern(info: str) -> re.Pattern[str]:
    zeros = "0*" if re.search(r"\.\d+$", info) else ""  # "$180.10" communicates "180.1"
    return re.compile(rf"(?<!\d){re.escape(info.lower())}{zeros}(?!\d)")


def other_criteria(criteria: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return criteria of the same kind by which another outcome is right: the ground truth of a twin task."""
    criteria = dict(criteria or {"reward_basis": ["DB"], "actions": []})
    if actions := criteria.get("actions"):
        criteria["actions"] = [{**item, "arguments": _altered(item["arguments"])} for item in actions]
    if assertions := criteria.get("env_assertions"):
        criteria["env_assertions"] = [
            {**item, "assert_value": not item.get("assert_value", True)} for item in assertions
        ]
    for name in ("communicate_info", "nl_assertions"):
        criteria[name] = [f"{text}, and more" for text in criteria.get(name) or ()] or ["something else"]
    return criteria


def _altered(value: Any) -> Any:
    """Return the value with another text in the place of every text."""
    if isinstance(value, Mapping):
        return {name: _altered(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_altered(item) for item in value]
    return f"{value}0" if isinstance(value, str) else value


@functools.lru_cache(maxsize=4096)
def read_task(text: str) -> tuple[Mapping[str, Any], Criteria]:
    """Return a task of tau2 from its JSON text, shared and not to be changed, and its criteria.

    ``TaskError``: it is none.
    """
    try:
        task = json.loads(text)
        if not isinstance(task["user_scenario"]["instructions"], (str, dict)):
            raise TypeError("user_scenario.instructions is neither text nor an object")
        return task, Criteria.of(task.get("evaluation_criteria"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TaskError(f"extra_info.tau2 is not a task of tau2 as JSON text: {error!r}") from None


def holds(db: Database, assertion: Mapping[str, Any]) -> bool:
    """Return whether a task's assertion is true."""
    try:
        result = run(db, assertion["env_type"], assertion["func_name"], assertion["arguments"], sync=False)
    except Exception:  # tau2's evaluator stops there, without a reward
        return False
    return bool(result == assertion.get("assert_value", True))
