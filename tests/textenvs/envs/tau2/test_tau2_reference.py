"""textenv/tau2 against tau2-bench's own code: equal databases after every call, and equal rewards.

What tau2's code said of each trajectory is in tests/data/tau2.json.gz, recorded by scripts/record_tau2.py. For the
airline, tests/data/tau2_airline is a small database of our own, which tau2's code played, too.
"""

import gzip
import json
from dataclasses import dataclass, field

import pytest
from tau2_data import DATA, ROOT, SETS, needs_data, recorder

from textenvs.envs.tau2 import Tau2
from textenvs.envs.tau2.world import kind_of, tools_of
from textenvs.messages import assistant
from textenvs.tools import call
from textenvs.users.base import UserTurn

HERE = ROOT / "tests" / "data"
RECORDED = {
    name: recorded
    for file in ("tau2.json.gz", "tau2_airline.json.gz")
    for name, recorded in json.loads(gzip.decompress((HERE / file).read_bytes())).items()
}
PLACES = [
    ("airline", "base", HERE / "tau2_airline"),
    # Retail's calls are of the kinds that the airline's are, over a larger database.
    *(
        pytest.param(domain, split, DATA, marks=[needs_data, *[pytest.mark.slow] * (domain == "retail")])
        for domain, split in SETS
    ),
]
record = recorder()


@dataclass
class Obedient:
    """A user who makes the calls in ``calls``, and leaves when told to."""

    calls: list = field(default_factory=list)
    ends: bool = False

    def speak(self, conversation, goal, rng):
        if self.calls:
            name, arguments = self.calls.pop()
            return UserTurn(f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")
        return UserTurn("Goodbye.", ends=True, why="user_left") if self.ends else UserTurn("Go on.")


def digest(env):
    changes = env.state.db.changes()
    fresh = env.folder.tables
    values = {f"{table}/{key}": record.plain(value) for (table, key), value in changes.items()}
    originals = {f"{table}/{key}": record.plain(fresh[table].get(key) or {}) for table, key in changes}
    return record.digest({key: value for key, value in values.items() if value != originals[key]})


def played(env, index, steps, words):
    """Play an episode of these calls: the databases' hashes, which calls failed, and the sum of the rewards."""
    env.player = Obedient()
    env.reset(options={"task_index": index})
    states, failed, total = [digest(env)], [], 0.0
    for step in steps:
        before = env.state.tool_errors
        if step["side"] == "user":
            env.player.calls = [(step["name"], step["arguments"])]
            reply = "Please do it."
        else:
            reply = assistant("", [call(step["name"], **step["arguments"])])
        total += env.step(reply)[1]
        states.append(digest(env))
        failed.append(env.state.tool_errors > before)
    env.player.ends = True
    _, reward, terminated, _, info = env.step(words)
    assert terminated
    return states, "".join(str(int(failure)) for failure in failed), total + reward, info


@pytest.mark.parametrize(("domain", "split", "data"), PLACES)
def test_databases_and_rewards_match_tau2(domain, split, data):
    env = Tau2(domain=domain, split=split, data=str(data))
    recorded = RECORDED[f"{domain}:{split}"]
    tasks, writes = list(env.folder.tasks(split)), set(recorded["writes"])
    assert {task["id"] for task in tasks} == set(recorded["tasks"])
    compared = 0
    for index, task in enumerate(tasks):
        trajectories = recorded["tasks"][task["id"]]
        for name, steps, communicated in record.variants(task, writes):
            expected, where = trajectories[name], f"{task['id']}: {name}"
            states, failed, total, info = played(env, index, steps, record.words(task, communicated))
            assert states == expected["states"], where
            assert failed == expected["failed"], where
            assert total == pytest.approx(expected["reward"], abs=1e-9), where
            for part, value in expected.get("parts", {}).items():
                assert float(info["metrics"][part] == 1.0) == value, f"{where}: {part}"
            compared += 1
    assert compared == sum(map(len, recorded["tasks"].values()))


@pytest.mark.parametrize(("domain", "split"), [*SETS, ("airline", "base")])
def test_kinds_of_tools_match_tau2(domain, split):
    kinds = RECORDED[f"{domain}:{split}"]["kinds"]
    assert {tool.name for side in ("assistant", "user") for tool in tools_of(domain, side)} == set(kinds)
    for name, kind in kinds.items():
        assert kind in (kind_of(domain, "assistant", name), kind_of(domain, "user", name)), name
