r"""Record the results of tau2-bench's own code for scripted trajectories: the reference for textenv/tau2.

    TAU2_DATA_DIR=tau2-bench/data python3.12 scripts/record_tau2.py tests/data/tau2.json.gz \
        retail:base telecom:small mock:base

Run it with a Python that has tau2 (3.12 or newer; `pip install -e tau2-bench`); this project is not needed. For every
task it plays the task's own actions, and the same with one left out, one twice, all in reverse, or one with a wrong
argument (`variants`), and records, after each call, whether it failed and a hash of both databases' differences
from their files; and at the end the reward and its parts. Assertions in words, which tau2 has a service judge, count as
met.
"""

import copy
import gzip
import hashlib
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Any

Steps = list[dict[str, Any]]


def variants(task: Mapping[str, Any], writes: set[str]) -> Iterator[tuple[str, Steps, bool]]:
    """Yield trajectories of a task: a name, the calls, and whether the agent communicates the required information.

    ``writes`` are the names of the tools that change something; calls of other tools are neither repeated nor left out.
    """
    actions = (task.get("evaluation_criteria") or {}).get("actions") or []
    gold = [
        {"side": action.get("requestor", "assistant"), **{k: action[k] for k in ("name", "arguments")}}
        for action in actions
    ]
    yield "gold", gold, True
    yield "nothing", [], True
    if (task.get("evaluation_criteria") or {}).get("communicate_info"):
        yield "gold, not told", gold, False
    if len(gold) > 1:
        yield "reversed", gold[::-1], True
    for i, step in enumerate(gold):
        if step["name"] not in writes:
            continue
        yield f"without {i}", gold[:i] + gold[i + 1 :], True
        yield f"twice {i}", [*gold[: i + 1], *gold[i:]], True
        names = sorted(step["arguments"])
        for name in names if len(gold) < 3 else names[i % max(1, len(names)) :][:1]:
            wrong = copy.deepcopy(step)
            wrong["arguments"][name] = altered(step["arguments"][name])
            yield f"wrong {i} {name}", [*gold[:i], wrong, *gold[i + 1 :]], True
            yield f"wrong {i} {name}, then right", [*gold[:i], wrong, *gold[i:]], True
        yield f"missing {i}", [*gold[:i], {**step, "arguments": dict(list(step["arguments"].items())[1:])}], True


def altered(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return value[1:] if len(value) > 1 else [altered(item) for item in value]
    if isinstance(value, dict):
        return {key: altered(item) for key, item in value.items()}
    return {"no longer needed": "ordered by mistake", "2g_only": "3g_only", "4g_5g_preferred": "3g_only"}.get(
        value, f"{value}0"
    )


def words(task: Mapping[str, Any], communicates: bool) -> str:
    """Return the agent's last message."""
    required = (task.get("evaluation_criteria") or {}).get("communicate_info") or []
    return " ".join(["That has been done.", *(required if communicates else [])])


def plain(value: Any) -> Any:
    """Return a record as plain data: without empty, false and 0 values, numbers as floats, dates in ISO form."""
    if isinstance(value, Mapping):
        items = {getattr(key, "value", key): plain(item) for key, item in value.items()}
        return {key: item for key, item in sorted(items.items()) if item not in (None, False, 0, "", [], {})}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def digest(changes: Mapping[str, Any]) -> str:
    """Return a short hash of the changed records, by "table/key"."""
    text = json.dumps({key: plain(record) for key, record in sorted(changes.items())}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def records(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Return a database as records by "table/key"."""
    by_key: dict[str, Any] = {}
    for table, content in dump.items():
        if isinstance(content, list):
            by_key.update({f"{table}/{record[f'{table[:-1]}_id']}": record for record in content})
        elif table in ("device", "surroundings"):
            by_key[f"{table}/{table}"] = content
        else:
            by_key.update({f"{table}/{key}": record for key, record in content.items()})
    return by_key


class Recorder:
    """A domain of tau2's own code."""

    def __init__(self, domain: str) -> None:
        from tau2.evaluator import evaluator, evaluator_nl_assertions
        from tau2.registry import registry

        self.domain, self.evaluator = domain, evaluator
        self.construct = registry.get_env_constructor(domain)
        self.fresh = {}
        self.fresh = self.changed(self.construct())
        judge = evaluator_nl_assertions.NLAssertionsEvaluator
        checks = evaluator_nl_assertions.NLAssertionCheck
        judge.evaluate_nl_assertions = classmethod(  # no service is asked
            lambda cls, trajectory, assertions: [
                checks(nl_assertion=assertion, met=True, justification="") for assertion in assertions
            ]
        )

    def changed(self, env: Any) -> dict[str, Any]:
        """Return the records of both databases that are not as in their files."""
        sides = [env.tools.db]
        if env.user_tools is not None and env.user_tools.db is not env.tools.db:
            sides.append(env.user_tools.db)
        now = {key: record for side in sides for key, record in records(side.model_dump()).items()}
        return {key: record for key, record in now.items() if self.fresh.get(key) != record}

    def play(self, task_data: Mapping[str, Any], steps: Steps, last_message: str, writes: set[str]) -> dict[str, Any]:
        from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
        from tau2.data_model.simulation import SimulationRun, TerminationReason
        from tau2.data_model.tasks import Task

        task = Task.model_validate(task_data)
        initial = task.initial_state
        history = list(initial.message_history or []) if initial else []
        env = self.construct()
        env.set_state(
            initial.initialization_data if initial else None,
            initial.initialization_actions if initial else None,
            history,
        )
        trajectory, failed, states = history, [], [self.hash(env)]
        for number, step in enumerate(steps):
            call = ToolCall(
                id=f"c{number}", name=step["name"], arguments=copy.deepcopy(step["arguments"]), requestor=step["side"]
            )
            role = AssistantMessage if step["side"] == "assistant" else UserMessage
            trajectory.append(role(role=step["side"], content=None, tool_calls=[call]))
            response = env.get_response(call)
            trajectory.append(response)
            failed.append(bool(response.error))
            states.append(self.hash(env) if step["name"] in writes else states[-1])
        trajectory.append(AssistantMessage(role="assistant", content=last_message))
        trajectory.append(UserMessage(role="user", content="###STOP###"))
        run = SimulationRun(
            id="run",
            task_id=task.id,
            start_time="",
            end_time="",
            duration=0.0,
            termination_reason=TerminationReason.USER_STOP,
            messages=trajectory,
        )
        kind = self.evaluator.EvaluationType.ALL
        played = {"failed": "".join(str(int(failure)) for failure in failed), "states": states}
        try:
            verdict = self.evaluator.evaluate_simulation(run, task, kind, solo_mode=False, domain=self.domain)
        except ValueError as error:  # an assertion about what is not there: tau2 stops, without a reward
            return {"reward": 0.0, "raised": str(error), **played}
        parts = {key.value.lower(): value for key, value in (verdict.reward_breakdown or {}).items()}
        return {"reward": verdict.reward, "parts": parts, **played}

    def hash(self, env: Any) -> str:
        return digest(self.changed(env))


class Pool:
    """A cache of databases: tau2 makes four a trajectory, and reading retail's takes longer than the rest."""

    def __init__(self) -> None:
        from tau2.environment.db import DB

        self.load = DB.load.__func__
        self.packed: dict[Any, bytes] = {}
        self.free: dict[Any, list[Any]] = {}
        self.fresh: dict[Any, tuple[Any, dict[str, Any]]] = {}
        self.in_use: list[tuple[Any, Any]] = []
        DB.load = classmethod(lambda cls, path: self.take(cls, path))

    def take(self, cls: type, path: Any) -> Any:
        if path not in self.packed:
            self.packed[path] = pickle.dumps(self.load(cls, path))
        free = self.free.setdefault(path, [])
        self.in_use.append((path, free.pop() if free else pickle.loads(self.packed[path])))
        return self.in_use[-1][1]

    def give_back(self) -> None:
        """Restore the records that were changed."""
        for path, db in self.in_use:
            if path not in self.fresh:
                model = pickle.loads(self.packed[path])
                self.fresh[path] = model, model.model_dump()
            model, original = self.fresh[path]
            if not all(isinstance(table, dict) for table in vars(db).values()):
                continue
            for name, table in db.model_dump().items():
                for key in table.keys() | original[name].keys():
                    if key not in original[name]:
                        del getattr(db, name)[key]
                    elif table.get(key) != original[name][key]:
                        getattr(db, name)[key] = getattr(model, name)[key].model_copy(deep=True)
            self.free[path].append(db)
        self.in_use.clear()


def main(output: str, *sets: str) -> None:
    from loguru import logger
    from tau2.environment.toolkit import get_tool_types
    from tau2.registry import registry
    from tau2.utils.utils import DATA_DIR, get_tau2_version

    logger.remove()
    pool = Pool()
    recorded: dict[str, Any] = {"tau2": get_tau2_version()}
    for selection in sets:
        domain, split = selection.split(":")
        folder = DATA_DIR / "tau2" / "domains" / domain
        path = folder / f"tasks_{split}.json"
        tasks = json.loads((path if path.is_file() else folder / "tasks.json").read_text(encoding="utf-8"))
        env = registry.get_env_constructor(domain)()
        kinds = {**get_tool_types(env.tools), **(get_tool_types(env.user_tools) if env.user_tools else {})}
        writes = {name for name, kind in kinds.items() if kind.value == "write"}
        recorder, results = Recorder(domain), {}
        for task in tasks:
            played = {}
            for name, steps, communicates in variants(task, writes):
                played[name] = recorder.play(task, steps, words(task, communicates), writes)
                pool.give_back()
            results[task["id"]] = played
            print(selection, task["id"], {name: one["reward"] for name, one in played.items()}, flush=True)
        recorded[selection] = {
            "writes": sorted(writes),
            "kinds": {name: kind.value for name, kind in kinds.items()},
            "tasks": results,
        }
    packed = gzip.compress(json.dumps(recorded, separators=(",", ":")).encode(), 9, mtime=0)
    Path(output).write_bytes(packed)
    print(f"{len(packed)} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
