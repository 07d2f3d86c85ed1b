"""CollabLLM's functions: programs in the sandbox."""

import json

import pytest
from code_cheats import CHEATS
from collab_cases import no_sandbox

import textenvs
from textenvs.envs.collab_code.scoring import pass_rate
from textenvs.event_loop import wait_for
from textenvs.sandbox import SandboxFailure
from textenvs.task import TaskError

pytestmark = list(no_sandbox)


def started(**options):
    env = textenvs.make("textenv/collab-code", token_rate=0.0, **options)
    env.reset(seed=0)
    return env


def score(env, program):
    *_, info = env.step(f"Here:\n```python\n{program}\n```\nFine?")
    return info["metrics"]["score"]


def test_score_is_share_of_passed_tests():
    env = started(max_assistant_turns=None, patience=20, deliveries=20)
    name, right = env.state.task.extra["entry_point"], env.state.task.ground_truth
    expected = [test["expected"] for test in env.state.task.extra["tests"]]
    assert score(env, f"def {name}(*args):\n    return None") == 0.0
    assert score(env, "syntax error") == 0.0
    assert score(env, "import os; os._exit(0)") == 0.0
    assert score(env, f"def {name}(*args):\n    raise SystemExit") == 0.0
    assert score(env, f"class Yes:\n    def __eq__(self, other): return True\ndef {name}(*a): return Yes()") == 0.0
    partly = score(env, f"def {name}(*args):\n    return {expected[0]}")
    assert partly == pytest.approx(expected.count(expected[0]) / 6)
    assert env.state.messages[-1]["content"] == f"It passes {round(partly * 6)} of my 6 checks."
    assert score(env, right) == 1.0
    assert env.state.stop == "solved"


def test_only_the_last_block_counts():
    env = started()
    right = env.state.task.ground_truth
    *_, info = env.step(f"```python\n{right}\n```\nor\n```python\nx = 1\n```")
    assert info["metrics"]["score"] == 0.0
    *_, info = env.step(f"No block:\n{right}")
    assert info["metrics"]["delivered"] == 0.0


def test_only_timed_out_programs_are_tested_again(monkeypatch):
    runs = []

    async def counted(program, *arguments, **options):
        runs.append(program)
        return await pass_rate(program, *arguments, **options)

    monkeypatch.setattr("textenvs.envs.collab_code.env.pass_rate", counted)
    cache = {}
    monkeypatch.setattr("textenvs.envs.collab_code.env._tested", cache)
    right = started().state.task.ground_truth
    for timeout_s, count in ((60.0, 1), (60.0, 1), (50.0, 2)):  # other limits are another question
        again = started(timeout_s=timeout_s)
        assert score(again, right) == 1.0
        assert len(runs) == count
    assert score(started(timeout_s=60.0), "x = 1") == score(started(timeout_s=60.0), "x = 1") == 0.0
    assert len(runs) == 3
    env = started(timeout_s=0.1)
    hangs = f"def {env.state.task.extra['entry_point']}(x):\n    while True: pass"
    assert score(env, hangs) == score(started(timeout_s=0.1), hangs) == 0.0
    assert len(runs) == 5
    assert {len(key) for key in cache} == {32}  # however long the programs are


UNITTEST_ROW = {
    "single_turn_prompt": "Write area(w, h): the area of a rectangle. It raises ValueError for a negative side.",
    "single_turn_completion": json.dumps({
        "answer": "import math\ndef area(w, h):\n    if min(w, h) < 0:\n        raise ValueError(w)\n    return w * h",
        "test": (
            "import unittest\nfrom unittest.mock import patch\nclass T(unittest.TestCase):\n"
            "    def test_a(self):\n        self.assertEqual(area(3, 4), int(math.sqrt(144)))\n"
            "    def test_b(self):\n        with self.assertRaises(ValueError):\n            area(-1, 2)\n"
            "    @patch('math.pi', 3)\n    def test_c(self):\n        self.assertIs(area(math, 1), math)\n"
        ),
        "entry_point": "area",
    }),
}  # fmt: skip


def test_unit_test_rows_are_judged_from_outside(tmp_path):
    """Row E of the table: a program that patches ``assert*``, or forges the report, passed everything."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(UNITTEST_ROW))
    env = started(tasks=str(path), max_assistant_turns=None, patience=30, deliveries=30)
    for name in ("patched assertions", "the caller's frame", "a report to every file", "equal to everything"):
        assert score(env, CHEATS[name].replace("double", "area").replace("(x)", "(*x)")) == 0.0
    assert env.state.messages[-1]["content"] == "It passes 0 of my 2 checks."  # the reference fails the third there
    assert score(env, json.loads(UNITTEST_ROW["single_turn_completion"])["answer"]) == 1.0
    assert env.state.stop == "solved"
    only_shared = json.loads(json.dumps(UNITTEST_ROW).replace("test_a", "no_a").replace("test_b", "no_b"))
    path.write_text(json.dumps(only_shared))
    with pytest.raises(TaskError, match="the reference program passes none of its tests"):
        started(tasks=str(path))


def test_slow_reference_keeps_all_tests(tmp_path):
    """Run all tests of the reference, because those that it does not pass are not judged."""
    program = "def f(x):\n    while x < 2: pass\n    return x"
    methods = "".join(f"    def test_{i}(self):\n        self.assertEqual(f({i}), {i})\n" for i in range(5))
    module = f"import unittest\nclass T(unittest.TestCase):\n{methods}"
    completion = {"answer": program, "test": module, "entry_point": "f"}
    row = {"single_turn_prompt": "Write f(x).", "single_turn_completion": json.dumps(completion)}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    env = textenvs.make("textenv/collab-code", tasks=str(path), timeout_s=2.0)
    assert len(wait_for(env._tests_of(env.tasks[0]))) == 3


def test_sandbox_failure_fails_episode(monkeypatch):
    async def fails(*_, **__):
        raise SandboxFailure("no space left")

    env = started()
    monkeypatch.setattr("textenvs.envs.collab_code.env.pass_rate", fails)
    _, reward, _, truncated, info = env.step("```\nx\n```")
    assert (reward, truncated, info["stop"], info["failure"]) == (0.0, True, "tool_failed", "no space left")
