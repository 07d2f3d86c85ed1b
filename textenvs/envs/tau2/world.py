"""A domain as it is played: both sides' functions over one database, their synchronisation, and the tools."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from pydantic import TypeAdapter

from ...task import TaskError
from ...text import load_yaml
from ...tool_env import ToolState
from ...tools import Tool
from ...users.moves import Move
from .airline import Airline
from .database import Database, Side
from .files import Folder, keyed
from .mock import Mock, MockUser
from .phone import Phone
from .retail import Retail
from .telecom import Telecom

Domain = Literal["retail", "airline", "telecom", "mock"]
DOMAINS: tuple[str, ...] = get_args(Domain)
_SIDES: Mapping[str, Mapping[str, type[Side]]] = {
    "retail": {"assistant": Retail},
    "airline": {"assistant": Airline},
    "telecom": {"assistant": Telecom, "user": Phone},
    "mock": {"assistant": Mock, "user": MockUser},
}
#: The tool by which the assistant hands a user over.
TRANSFER_TOOL = "transfer_to_human_agents"
_TOOLS: Mapping[str, Any] = load_yaml(__package__, "tools.yaml")


@dataclass(frozen=True)
class Call:
    """A tool call of one side, whether it worked or not."""

    side: str
    name: str
    arguments: Mapping[str, Any]

    def __deepcopy__(self, memo: object) -> Call:
        return self

    def writes(self, domain: str) -> bool:
        """Return whether it is a change by the assistant."""
        return self.side == "assistant" and kind_of(domain, self.side, self.name) == "write"

    def matches(self, action: Mapping[str, Any]) -> bool:
        """Return whether it is a task's action: tau2's rule, which compares only the arguments that this call has."""
        if self.name != action["name"]:
            return False
        compared = action.get("compare_args")
        compared = self.arguments if compared is None else compared
        one = {name: value for name, value in self.arguments.items() if name in compared}
        return one == {name: value for name, value in action["arguments"].items() if name in compared}


@dataclass
class Tau2State(ToolState):
    """An episode: the database and its target, the calls and messages, and the user's memory."""

    db: Database = field(default_factory=lambda: Database(Folder("", "mock")))
    gold: Database = field(default_factory=lambda: Database(Folder("", "mock")))
    calls: tuple[Call, ...] = ()
    made: tuple[Call, ...] = ()  # the calls of both sides that changed something, and transfers
    needless: int = 0  # how many of them are none of the task's actions
    trivial: bool = False  # the task's criteria require no action
    communicated: frozenset[str] = frozenset()  # those of ``communicate_info`` that were said
    shares: Mapping[str, float] = field(default_factory=dict)  # of each component, the share that is met
    reward_sum: float = 0.0  # the sum of the turn rewards
    ended: str = ""  # how the user left: "stop", "transfer", or "left", which is none of tau2's ways
    disclosed: tuple[int, ...] = ()  # the sentences of its instructions that the scripted user has said
    known_values: frozenset[str] = frozenset()  # the ids and numbers in what it has read and said
    agreed: tuple[str, ...] = ()  # the proposals that it said yes to
    patience: int = 0
    move: Move | None = None  # what the scripted user did about the last reply; None where it was not addressed
    talk: tuple[Any, ...] = ()  # what a language model as the user has read, said and done


def kind_of(domain: str, side: str, name: str) -> str | None:
    """Return ``"read"``, ``"write"`` or ``"generic"``; ``None`` where the side has no such tool."""
    tools = _TOOLS[domain].get(side, {})
    return tools[name][0] if name in tools else None


def run(db: Database, side: str, name: str, arguments: Mapping[str, Any], *, sync: bool = True) -> Any:
    """Call a function of a side. The caller reports exceptions for bad arguments.

    ``ToolError``: it refuses, or the side has no such function. Either way, what it changed before stays changed.
    """
    sides = _SIDES[db.folder.domain]
    if side not in sides:
        raise TaskError(f"tau2's {db.folder.domain} has no side {side!r}; it has {', '.join(sides)}")
    value = sides[side](db).function(name)(**arguments)
    if sync:
        _synchronise(db)
    return value


def begin(folder: Folder, initial: Mapping[str, Any], calls: Iterable[Call]) -> Database:
    """Return the database at the start of a task: its data, its actions, and the calls of its message history.

    Raises:
        TaskError: One of its actions cannot be carried out.
    """
    db = Database(folder)
    for side, update in (("assistant", "agent_data"), ("user", "user_data")):
        if data := (initial.get("initialization_data") or {}).get(update):
            for table, records in keyed(_merged(folder.raw(side), data)).items():
                for key, record in records.items():
                    db.put(table, key, record)
    for action in initial.get("initialization_actions") or ():
        try:
            run(db, action["env_type"], action["func_name"], action["arguments"])
        except Exception as error:
            raise TaskError(f"initialization action {action['func_name']!r} failed: {error}") from error
    for call in calls:
        if kind_of(folder.domain, call.side, call.name) == "write":
            attempt(db, call)
    return db


def attempt(db: Database, call: Call, *, sync: bool = True) -> bool:
    """Carry out a call; return whether it worked. As in tau2, one that fails keeps its changes so far."""
    try:
        run(db, call.side, call.name, call.arguments, sync=sync)
    except Exception:  # whatever a row's arguments may lead to
        return False
    return True


def carry_out(state: Tau2State, call: Call) -> Any:
    """Make a call of an episode, and note it; raises what :func:`run` raises."""
    state.calls = (*state.calls, call)
    before = state.db.changes()
    try:
        return run(state.db, call.side, call.name, call.arguments)
    finally:  # what fails may have changed something before
        if call.name == TRANSFER_TOOL or state.db.changes() != before:
            state.made = (*state.made, call)


def _merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return copy.deepcopy(new)
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _synchronise(db: Database) -> None:
    """Send the state of the network and the billing to the phone, and payments to the billing; only in telecom."""
    if db.folder.domain != "telecom":
        return
    telecom, phone = Telecom(db), Phone(db)
    around = phone.surroundings
    if (number := around.get("phone_number")) is None:
        return
    line = next(line for _, line in db.all("lines") if line["phone_number"] == number)
    plan = telecom.get_details_by_id(line["plan_id"])
    updates = {
        "line_active": line["status"] == "Active",
        "roaming_allowed": line["roaming_enabled"],
        "mobile_data_usage_exceeded": line["data_used_gb"] >= plan["data_limit_gb"] + line["data_refueling_gb"],
    }
    request = around.get("payment_request")
    if request is not None and request["paid"]:
        db.edit("bills", request["bill_id"])["status"] = "Paid"
        request = None
    if request is None and (bills := telecom.bills_awaiting_payment(telecom.get_customer_by_phone(number))):
        request = {"bill_id": bills[0]["bill_id"], "amount_due": bills[0]["total_due"], "paid": False}
    updates["payment_request"] = request
    if any(around.get(name) != value for name, value in updates.items()):
        db.edit("surroundings", "surroundings").update(updates)


class _Function:
    """A tool's function: picklable; its calls are noted in the state."""

    def __init__(self, side: str, name: str) -> None:
        self.side, self.name = side, name

    def __call__(self, tau2_state: Tau2State, **arguments: Any) -> Any:
        # ``tau2_state`` is a name that no tool has for an argument
        return carry_out(tau2_state, Call(self.side, self.name, arguments))


def tools_of(domain: str, side: str) -> Sequence[Tool[..., Any]]:
    """Return the tools of a side. Their arguments are passed as they were written, unchecked, as tau2 does it."""
    return [_tool(domain, side, name) for name in _TOOLS[domain].get(side, ())]


@functools.cache
def _tool(domain: str, side: str, name: str) -> Tool[..., Any]:
    method = getattr(_SIDES[domain][side], name)
    hints = get_type_hints(method)
    described = _TOOLS[domain]["arguments"]
    arguments = [parameter for parameter in inspect.signature(method).parameters.values() if parameter.name != "self"]
    parameters = {
        "type": "object",
        "properties": {
            parameter.name: {
                **TypeAdapter(hints[parameter.name]).json_schema(),
                "description": described[parameter.name],
            }
            for parameter in arguments
        },
        "required": [parameter.name for parameter in arguments if parameter.default is parameter.empty],
    }
    says = _TOOLS[domain][side][name][1]
    return Tool(_Function(side, name), name=name, description=says, parameters=parameters, max_chars=40_000)
