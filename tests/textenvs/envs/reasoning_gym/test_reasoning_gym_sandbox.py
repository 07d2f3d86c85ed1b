"""No text of a row or of an answer is evaluated outside of the sandbox, and little of it reaches the scorer there."""

import ast
import contextlib
import inspect
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import textenvs
from textenvs.envs.reasoning_gym import env as environment
from textenvs.envs.reasoning_gym import sandbox as reasoning_gym_sandbox
from textenvs.envs.reasoning_gym.sandbox import ProcessScorer, ScoringFailed, evaluates
from textenvs.envs.reasoning_gym.scoring import check_entry, is_integer_arithmetic, score
from textenvs.envs.reasoning_gym.tasks import ReasoningGymTasks, _registered, entry_of
from textenvs.global_rng import RandomState, contained
from textenvs.sandbox import SandboxUnavailable

TOUCH = "__import__('pathlib').Path({!r}).touch()"
# What each dataset evaluates: (where, what stands there beside the code).
EVALUATED = {
    "bitwise_arithmetic": ("problem",),
    "number_sorting": ("answer",),
    "simple_integration": ("integrand", "answer"),
    "intermediate_integration": ("integrand", "answer"),
    "n_queens": ("answer",),
    "countdown": ("answer",),
    "puzzle24": ("answer",),
    "polynomial_multiplication": ("answer",),
    "string_insertion": ("answer",),
    "spiral_matrix": ("answer",),
    "binary_matrix": ("answer",),
}


def hostile_rows(dataset, code):
    """Rows of a dataset with ``code`` where its scorer evaluates."""
    task = ReasoningGymTasks(dataset, size=5)[0]
    for where in EVALUATED[dataset]:
        row = json.loads(json.dumps(task.to_row()))
        if where == "answer":
            row["extra_info"]["answer"] = row["reward_model"]["ground_truth"] = code
        else:
            row["extra_info"]["metadata"][where] = code
        yield row


@pytest.mark.parametrize("dataset", EVALUATED)
def test_row_with_code_is_refused_at_reset(dataset, tmp_path):
    proof = tmp_path / "proof"
    code = TOUCH.format(str(proof))
    env = textenvs.make("textenv/reasoning-gym", dataset=dataset, size=5)
    for row in hostile_rows(dataset, code):
        with pytest.raises(ValueError, match="evaluates"):
            env.reset(seed=0, options={"task": row})
    env.reset(seed=0)
    for answer in (code, f"[{code}]", f"0+{code}"):
        assert env.reset(seed=0) is not None
        assert env.step(f"<answer>{answer}</answer>")[1] == 0
    assert not proof.exists()


def test_unguarded_code_runs_in_the_sandbox(tmp_path, monkeypatch):
    """The second wall: without the guard, the code has neither the host's files nor a second process."""
    dataset = "bitwise_arithmetic"
    proof = tmp_path / "proof"
    tasks = ReasoningGymTasks(dataset, size=5)
    scorer = ProcessScorer(tasks.opening()[:3], sandboxed=True)
    entry = entry_of(tasks[0], dataset)
    entry["metadata"]["problem"] = f"({TOUCH.format(str(proof))}, 1)[1]"
    with contextlib.suppress(ScoringFailed):
        scorer.score_answer("0x1", entry)
    assert not proof.exists()
    # What one question does is not there for the next.
    monkeypatch.setattr(reasoning_gym_sandbox, "TIMEOUT_S", 5.0)
    entry["metadata"]["problem"] = "__import__('os').kill(__import__('os').getppid(), 9)"
    with pytest.raises(ScoringFailed, match="ended its process"):
        scorer.score_answer("0x1", entry)
    entry["metadata"]["problem"] = "__import__('os').fork() and 1"
    assert scorer.score_answer("0x1", entry) == 0.0
    entry["metadata"]["problem"] = "1"
    assert scorer.score_answer("0x1", entry) == 1.0


def test_a_scorer_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(reasoning_gym_sandbox, "TIMEOUT_S", 0.3)
    tasks = ReasoningGymTasks("bitwise_arithmetic", size=5)
    entry = entry_of(tasks[0], "bitwise_arithmetic")
    entry["metadata"]["problem"] = "9**9**9**9"
    with pytest.raises(ScoringFailed, match="longer than"):
        ProcessScorer(tasks.opening()[:3], sandboxed=True).score_answer("0x1", entry)


def test_comparing_scorer_that_hangs_is_killed(monkeypatch):
    """An answer that only coin_flip's own reader sees: no guard stands before it here."""
    scorer = ProcessScorer(("coin_flip", "{}", 0), sandboxed=False)
    entry = entry_of(ReasoningGymTasks("coin_flip", size=5)[0], "coin_flip")
    assert scorer.score_answer(entry["answer"], entry) == 1.0
    monkeypatch.setattr(reasoning_gym_sandbox, "TIMEOUT_S", 0.3)
    with pytest.raises(ScoringFailed, match="longer than"):
        scorer.score_answer("1e999999999", entry)
    monkeypatch.undo()
    assert scorer.score_answer(entry["answer"], entry) == 1.0


@pytest.mark.parametrize("dataset", EVALUATED)
def test_own_answers_pass_guard_and_score_as_package(dataset):
    tasks = ReasoningGymTasks(dataset, size=5)
    scorer = ProcessScorer(tasks.opening()[:3], sandboxed=True)
    for index in range(2):
        entry = entry_of(tasks[index], dataset)
        assert check_entry(entry) == dataset
        with contained(RandomState.seeded(0)):
            direct = score(tasks.opened(), entry["answer"], entry)
        assert score(scorer, entry["answer"], entry) == direct
        assert direct.value == 1.0


def test_every_scorer_that_evaluates_is_sandboxed():
    """Read from the package's own code, method by method: what calls eval, exec or sympy's parser while it scores."""
    evaluating = set()
    for name, (kind, _) in _registered().items():
        for base in kind.__mro__:
            module = sys.modules[base.__module__]
            if not module.__name__.startswith("reasoning_gym."):
                continue
            tree = ast.parse(inspect.getsource(module))
            called = {
                getattr(node.func, "id", getattr(node.func, "attr", None))
                for node in ast.walk(tree)
                if isinstance(node, ast.Call)
            }
            if called & {"eval", "exec", "parse_expr", "sympify"}:
                evaluating.add(name)
    # It has a parser of its own with this name, which evaluates nothing.
    evaluating -= {"propositional_logic"}
    assert evaluating >= set(EVALUATED) - {"puzzle24"}
    for name in evaluating:
        assert reasoning_gym_sandbox._evaluates(_registered()[name][0].__module__), name
    assert evaluates(
        ReasoningGymTasks("composite", {"datasets": [{"name": "n_queens", "weight": 1, "config": {}}]}, 5).opened()
    )
    assert not evaluates(ReasoningGymTasks("chain_sum", size=5).opened())


def test_evaluating_datasets_need_a_sandbox(monkeypatch):
    def unavailable():
        raise SandboxUnavailable("No Python sandbox holds on this machine")

    monkeypatch.setattr(environment, "sandbox", unavailable)
    with pytest.raises(ValueError, match="evaluates text, so it runs in the sandbox only. No Python sandbox"):
        textenvs.make("textenv/reasoning-gym", dataset="bitwise_arithmetic")
    textenvs.make("textenv/reasoning-gym", dataset="chain_sum").reset(seed=0)


@given(st.text(alphabet="0123456789xabcdef+-*/%&|^~<>() ", max_size=40))
def test_integer_arithmetic_calls_nothing_and_ends(text):
    if is_integer_arithmetic(text):
        tree = ast.parse(text.strip(), mode="eval")
        assert not any(isinstance(node, (ast.Call, ast.Name, ast.Attribute, ast.Pow)) for node in ast.walk(tree))


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("((0x7d65 >> 0x2) << 0x1)", True),
        ("~0xff & 0x0f | 3 ^ 2", True),
        ("2**10**10", False),
        ("1 << 10**9", False),
        ("1 << 100000", False),
        ("1 << (1 << 40)", False),
        ("f(1)", False),
        ("x", False),
        ("[1][0]", False),
        ("'a' * 9", False),
        ("1.5", False),
        ("(" * 3000 + ")" * 3000, False),
    ],
)
def test_integer_arithmetic(text, harmless):
    assert is_integer_arithmetic(text) is harmless
