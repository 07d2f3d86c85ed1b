"""tau2's rule: the reward is the product of the components that a task's ``reward_basis`` names, each 0 or 1.

Here each component is the share of it that is met, so that a turn can be paid for what it brought about; a component
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
    """What a task is judged by. ``components`` are those of its basis that can fail."""

    actions: Sequence[Mapping[str, Any]]
    assertions: Sequence[Mapping[str, Any]]
    communicate: Sequence[str]
    nl_assertions: Sequence[str]
    components: frozenset[str]

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Criteria:
        """The criteria as a task has them; without any, nothing can fail. ``TaskError``: an unknown basis."""
        given = given or {"reward_basis": []}
        basis = {each.lower() for each in given.get("reward_basis") or ("DB", "COMMUNICATE")}
        if "reward_basis" in given and not given["reward_basis"]:
            basis = set()
        if unknown := basis - set(COMPONENTS):
            raise TaskError(f"reward_basis names {sorted(unknown)}; known are {', '.join(COMPONENTS)}")
        parts: dict[str, Sequence[Any]] = {
            "env_assertion": given.get("env_assertions") or (),
            "action": given.get("actions") or (),
            "communicate": given.get("communicate_info") or (),
            "nl_assertion": given.get("nl_assertions") or (),
        }
        # A task that has neither list is not judged by its database.
        judged = given.get("actions") is not None or given.get("env_assertions") is not None
        can_fail = {each for each in basis if (judged if each == "db" else parts[each])}
        return cls(
            parts["action"], parts["env_assertion"], parts["communicate"], parts["nl_assertion"], frozenset(can_fail)
        )

    @property
    def calls(self) -> list[Call]:
        """The actions that solve the task, in order."""
        return [Call(each.get("requestor", "assistant"), each["name"], each["arguments"]) for each in self.actions]

    def gold(self, start: Database) -> Database:
        """The database that the actions make of ``start``; as in tau2, the sides are not synchronised in between."""
        db = copy.deepcopy(start)
        for call in self.calls:
            attempt(db, call, sync=False)
        return db

    def needless(self, made: Iterable[Call]) -> int:
        """Count the calls that are none of the actions, or one of them once more."""
        left, count = list(self.actions), 0
        for call in made:
            match = next(
                (each for each in left if each.get("requestor", "assistant") == call.side and call.matches(each)), None
            )
            if match is None:
                count += 1
            else:
                left.remove(match)
        return count

    def heard(self, words: str) -> set[str]:
        """Return those of ``communicate`` that stand in a message; a number is no part of a longer one."""
        text = words.lower().replace(",", "")
        return {each for each in self.communicate if _pattern(each).search(text)}

    def shares(self, db: Database, gold: Database, calls: Iterable[Call], told: Iterable[str]) -> dict[str, float]:
        """How much of each component is met, from 0 to 1, by ``COMPONENTS`` but the last; 1 where it cannot fail."""
        made, scratch = tuple(calls), copy.deepcopy(db)  # whatever function a row asserts with, the episode stays
        found = {
            "db": [db.same(gold)],
            "env_assertion": [holds(scratch, each) for each in self.assertions],
            "action": [any(call.matches(action) for call in made) for action in self.actions],
            "communicate": [each in told for each in self.communicate],
        }
        return {name: sum(met) / len(met) if name in self.components and met else 1.0 for name, met in found.items()}


@functools.lru_cache(maxsize=1024)
def _pattern(told: str) -> re.Pattern[str]:
    zeros = "0*" if re.search(r"\.\d+$", told) else ""  # "180.1" is told by "$180.10"
    return re.compile(rf"(?<!\d){re.escape(told.lower())}{zeros}(?!\d)")


def other_criteria(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return criteria of the same kind by which another outcome is right: the ground truth of a twin task."""
    given = dict(given or {"reward_basis": ["DB"], "actions": []})
    if actions := given.get("actions"):
        given["actions"] = [{**each, "arguments": _others(each["arguments"])} for each in actions]
    if assertions := given.get("env_assertions"):
        given["env_assertions"] = [{**each, "assert_value": not each.get("assert_value", True)} for each in assertions]
    for name in ("communicate_info", "nl_assertions"):
        given[name] = [f"{each}, and more" for each in given.get(name) or ()] or ["something else"]
    return given


def _others(value: Any) -> Any:
    """Return the value with another text in the place of every text."""
    if isinstance(value, Mapping):
        return {name: _others(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_others(each) for each in value]
    return f"{value}0" if isinstance(value, str) else value


@functools.lru_cache(maxsize=4096)
def read_task(text: str) -> tuple[Mapping[str, Any], Criteria]:
    """A task of tau2 from its JSON text, shared and not to be changed, and what it is judged by.

    ``TaskError``: it is none.
    """
    try:
        found = json.loads(text)
        if not isinstance(found["user_scenario"]["instructions"], (str, dict)):
            raise TypeError("user_scenario.instructions is neither text nor an object")
        return found, Criteria.of(found.get("evaluation_criteria"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TaskError(f"extra_info.tau2 is not a task of tau2 as JSON text: {error!r}") from None


def holds(db: Database, assertion: Mapping[str, Any]) -> bool:
    """Whether what a task asserts is so."""
    try:
        found = run(db, assertion["env_type"], assertion["func_name"], assertion["arguments"], sync=False)
    except Exception:  # tau2's evaluator stops there, without a reward
        return False
    return bool(found == assertion.get("assert_value", True))
