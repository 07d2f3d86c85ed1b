"""Collaboration tasks: generated goals, CollabLLM's rows, and requests that come without pieces."""

import ast
import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import textenvs
from textenvs.data import Task, TaskError, write_parquet
from textenvs.data.sources import open_source
from textenvs.envs import collab_code, collab_document, collab_math
from textenvs.envs.collab.tasks import GeneratedGoals, split_request
from textenvs.envs.collab.user import CollabUser, Memory
from textenvs.envs.collab_code.scoring import Assertion, Call, InputOutput
from textenvs.envs.collab_code.tasks import TESTS
from textenvs.envs.collab_code.unit_tests import unit_tests_of
from textenvs.envs.collab_document.tasks import MOST_POINTS, outline
from textenvs.envs.collab_math.tasks import draft_math
from textenvs.messages import user
from textenvs.sandbox import SandboxUnavailable
from textenvs.scoring.documents import respects

FAMILIES = {
    env.family.domain: env.family
    for env in (collab_math.CollabMath, collab_document.CollabDocument, collab_code.CollabCode)
}
DOMAINS = tuple(FAMILIES)
LEVELS = ("easy", "medium", "hard")
generated = pytest.mark.parametrize(("domain", "level"), [(domain, level) for domain in DOMAINS for level in LEVELS])


def made(domain, **options):
    """Return the environment, where this machine can run it."""
    if domain == "math":
        options["equality"] = "value"
    try:
        return textenvs.make(f"textenv/collab-{domain}", **options)
    except SandboxUnavailable as refused:
        pytest.skip(str(refused))


# ------------------------------------------------------------------ generated


@generated
def test_generated_goals_are_well_formed(domain, level):
    tasks = GeneratedGoals(FAMILIES[domain], level)
    drawn = [tasks[i] for i in range(150)]
    for task in drawn:
        goal = FAMILIES[domain].goal(task)
        assert (
            len(goal.pieces)
            == {"easy": 3, "medium": 4 + (domain == "document"), "hard": 5 + 2 * (domain == "document")}[level]
        )
        assert len({piece.topic for piece in goal.pieces}) == len(goal.pieces)
        for number, piece in enumerate(goal.pieces):
            hinted = CollabUser(goal.pieces).inquiry(f"What about the {piece.topic}?", Memory())
            assert hinted.pieces == (number,), "a hint names what can be asked for"
            assert len(set(piece.sayings)) >= 3
            assert all(word == word.lower() and word.isalpha() for word in piece.keywords)
            assert piece.question.endswith("?")
            assert not re.search(r"[{}]", " ".join(piece.sayings)), "a value was left out"
            assert piece.sayings[0] in goal.single_turn_prompt
    contents = {(task.extra["single_turn_prompt"]) for task in drawn}
    assert len(contents) > 135
    assert len({task.prompt[0]["content"] for task in drawn}) > 5


@generated
def test_training_and_test_goals_are_disjoint(domain, level):
    def steps(split):
        """Return what identifies the goals, apart from names and wordings."""
        sets = [GeneratedGoals(FAMILIES[domain], level, seed, split) for seed in (0, 1)]
        if domain == "document":
            return {tasks[i].ground_truth for tasks in sets for i in range(60)}
        if domain == "code":
            return {re.sub(r"def \w+", "def f", tasks[i].ground_truth) for tasks in sets for i in range(60)}
        return {"\n".join(tasks[i].extra["answer"].split("\n")[:-1]) for tasks in sets for i in range(60)}

    assert not steps("train") & steps("test")


@given(st.integers(0, 10**9), st.sampled_from(LEVELS))
def test_problem_is_right_and_hides_answer(seed, level):
    draft = draft_math(random.Random(seed), level)
    if draft is None:
        return
    equations = draft.extra["answer"].split("\n")[:-1]
    result = None
    for equation in equations:
        operation, value = equation.split("=")
        one, sign, two = re.fullmatch(r"(\d+)([-+*/])(\d+)", operation).groups()
        exact = {"+": int(one) + int(two), "-": int(one) - int(two), "*": int(one) * int(two), "/": int(one) / int(two)}
        assert exact[sign] == int(value) > 0
        assert result is None or str(result) in (one, two), "each step goes on from the last"
        result = value
    assert draft.ground_truth == result
    numbers = [number for piece in draft.pieces for number in re.findall(r"\d+", " ".join(piece.sayings))]
    assert draft.ground_truth not in numbers
    for piece in draft.pieces:  # every phrasing says the same number, and it is used
        stated_numbers = {tuple(re.findall(r"\d+", saying)) for saying in piece.sayings}
        assert len(stated_numbers) == 1
        (number,) = stated_numbers.pop()
        assert any(number in re.split(r"\D", equation) for equation in equations)


@pytest.mark.parametrize("level", LEVELS)
def test_function_needs_every_step_to_pass(level):
    tasks = GeneratedGoals(FAMILIES["code"], level)

    def gives(program, task):
        """Return the values of the tests' calls. The programs are this package's own."""
        names = {}
        exec(program, names)
        values = []
        for test in task.extra["tests"]:
            try:
                values.append(eval(test["expression"], names))
            except Exception as error:
                values.append(repr(error))
        return values

    for index in range(80):
        task = tasks[index]
        expected = [ast.literal_eval(test["expected"]) for test in task.extra["tests"]]
        assert len(expected) == TESTS
        assert len({repr(value) for value in expected}) >= 3, "no constant passes them"
        assert gives(task.ground_truth, task) == expected
        lines = task.ground_truth.split("\n")
        for i, line in enumerate(lines):
            if " if " in line and "xs =" in line:  # the condition
                left_out = [*lines[:i], re.sub(r" if .*\]", "]", line), *lines[i + 1 :]]
            elif "xs =" in line or "return" in line[:15] and i < len(lines) - 1:  # the change; the empty case
                left_out = [*lines[: i - ("return" in line)], *lines[i + 1 :]]
            else:
                continue
            assert gives("\n".join(left_out), task) != expected, f"{task.ground_truth}\n\n{left_out}"
        assert len(unit_tests_of(task)) == TESTS


@pytest.mark.parametrize("level", LEVELS)
def test_only_own_document_respects_requirements(level):
    tasks = GeneratedGoals(FAMILIES["document"], level)
    for index in range(80):
        task, other = tasks[index], tasks[index + 1]
        pieces = FAMILIES["document"].goal(task).pieces
        assert all(respects(task.ground_truth, piece.requirement) for piece in pieces)
        assert not all(respects(other.ground_truth, piece.requirement) for piece in pieces)


def test_document_sayings_name_requirements():
    """All sayings together are enough to respect everything."""
    tasks = GeneratedGoals(FAMILIES["document"], "hard")
    for index in range(100):
        for piece in FAMILIES["document"].goal(tasks[index]).pieces:
            required = piece.requirement
            for saying in piece.sayings:
                if required["kind"] in ("contains", "first_line", "line", "opens_line"):
                    assert all(text.lower() in saying.lower() for text in required["texts"])
                elif required["kind"] == "max_words":
                    assert str(required["words"]) in saying


@pytest.mark.parametrize("domain", DOMAINS)
def test_generated_goals_survive_parquet(tmp_path, domain):
    pytest.importorskip("pyarrow")
    tasks = GeneratedGoals(FAMILIES[domain], "hard")
    path = write_parquet(tasks, tmp_path / "goals.parquet", count=10)
    rows = load_goals(path, domain)
    for index in range(10):
        assert FAMILIES[domain].goal(rows[index]) == FAMILIES[domain].goal(tasks[index])
    env, twin = (made(domain, tasks=source) for source in (path, tasks))
    for one in (env, twin):
        one.reset(seed=1, options={"task_index": 7})
    assert env.step("Go on.")[0] == twin.step("Go on.")[0]


# ------------------------------------------------------------------ rows

MATH = {
    "prompt": "A train has 4 cars. Each car seats $30$ people. How many people can sit in 2 trains?",
    "completion": "Each train seats $4\\cdot 30=120$ people, so $\\boxed{240}$ in all.",
    "level": "Level 5",
}
NESTED = {
    "single_turn_prompt": MATH["prompt"],
    "single_turn_completion": MATH["completion"],
    "single_turn_metadata": {"level": "Level 5"},
    "prompt": [user("Hi, can you help me with trains?")],
    "completion": "Sure. How many cars has it?",
    "conv_id": 3,
    "score": 0.7,
}
ARTICLE = (
    "The early bird\n\nEvery morning the blackbird begins to sing before the sun is up, long before other birds.\n\n"
    "Gardeners know the bird well: it eats worms, berries and sometimes the cherries of a whole garden."
)
DOCUMENT = {
    "prompt": f"Please write an article in less than 500 words about:\n\nBirds\n\n{ARTICLE}",
    "completion": ARTICLE,
}


def read(row, domain="math"):
    return FAMILIES[domain].from_single_turn(row, "k", "row 1", "collabllm/test")


def load_goals(source, domain):
    return open_source(source, FAMILIES[domain].reader, level=None, split="train", seed=0)


def test_single_turn_row():
    task = read(MATH)
    assert (task.ground_truth, task.data_source, task.extra["single_turn_metadata"]) == (
        "240", "collabllm/test", {"level": "Level 5"},
    )  # fmt: skip
    goal = FAMILIES["math"].goal(task)
    assert [piece.sayings[0] for piece in goal.pieces] == [
        "A train has 4 cars.", "Each car seats $30$ people.", "How many people can sit in 2 trains?",
    ]  # fmt: skip
    assert "train" not in task.prompt[0]["content"].lower(), "it starts vague"


def test_collabllm_row_continues_its_conversation():
    task = read(NESTED)
    assert task.prompt == tuple(NESTED["prompt"])
    assert task.ground_truth == "240", "and not the reply that was sampled"
    assert read({**NESTED, "single_turn_metadata": '{"level": "Level 5"}'}).extra == task.extra


def test_row_of_verl_recipe():
    row = {
        "data_source": "collabllm",
        "prompt": [{"role": "system", "content": "Be helpful."}, user("Hi, trains!")],
        "reward_model": {"style": "rule", "ground_truth": MATH["completion"]},
        "extra_info": {
            "interaction_kwargs": {"name": "collabllm", "single_turn_prompt": MATH["prompt"], "task_desc": "solving"},
            "single_turn_metadata": {},
        },
        "agent_name": "collabllm_agent",
    }
    task = Task.from_row(row, key="k")
    assert FAMILIES["math"].goal(task).task_desc == "solving"
    env = textenvs.make("textenv/collab-math", token_rate=0.0)
    env.reset(seed=0, options={"task": row})
    assert env.secrets() == ("240",)
    while not env.state.done:
        _, reward, *_ = env.step(env.demonstration(None))
    assert (reward, env.state.stop) == (1.0, "solved")


def test_article():
    task = read(DOCUMENT, "document")
    sayings = " ".join(saying for piece in FAMILIES["document"].goal(task).pieces for saying in piece.sayings)
    assert "Birds" in sayings
    assert "blackbird" in sayings
    assert "cherries" in sayings
    assert not any(sentence in sayings for sentence in ARTICLE.replace("\n\n", ". ").split(". "))
    env = textenvs.make("textenv/collab-document", token_rate=0.0)
    env.reset(seed=0, options={"task": task})
    assert f"<document>{ARTICLE}" not in env.step("<document>Birds</document>")[0][-1]["content"]
    while not env.state.done:
        _, reward, *_ = env.step(env.demonstration(None))
    assert (reward, env.state.stop) == (pytest.approx(1.0), "solved")


@given(
    st.lists(st.lists(st.text("abcdefg ", min_size=3), min_size=1).map(" ".join), max_size=15)
    .map("\n\n".join)
    .filter(str.strip)
)
def test_outline_never_has_a_paragraph(document):
    pieces = outline(f"Write this: {document}", document)
    assert 1 <= len(pieces) <= MOST_POINTS + 2
    assert pieces[-1].sayings


UNITTESTS = """import unittest
class TestCases(unittest.TestCase):
    def test_two(self):
        self.assertEqual(task_func(2), 4)
    def test_three(self):
        self.assertEqual(task_func(3), 9)
"""
PROGRAM = "def task_func(x):\n    return x * x"
CODE = {
    "prompt": "Square a number. It should output:\n    int: The square\nStart with:\n```\ndef task_func(x):\n```",
    "completion": json.dumps({"test": UNITTESTS, "entry_point": "task_func", "answer": PROGRAM}),
    "task_id": "BigCodeBench/0",
    "entry_point": "task_func",
    "test": UNITTESTS,
}


def test_row_of_bigcodebench():
    task = read(CODE, "code")
    assert len(unit_tests_of(task)) == 2
    assert all(isinstance(test, Assertion) for test in unit_tests_of(task))
    assert unit_tests_of(read({"prompt": CODE["prompt"], "completion": CODE["completion"]}, "code")) == unit_tests_of(
        task
    )
    env = made("code", token_rate=0.0)
    for row, score in ((task, 1.0), ({**CODE, "completion": CODE["completion"]}, 1.0)):
        played = row if isinstance(row, Task) else read(row, "code")
        env.reset(seed=0, options={"task": played})
        assert env.secrets() == (PROGRAM,)
        _, reward, *_, info = env.step("```python\ndef task_func(x):\n    return x + 2\n```")
        assert info["metrics"]["score"] == 0.5
        while not env.state.done:
            _, reward, *_, info = env.step(env.demonstration(None))
        assert (info["terms"]["pass_rate"], info["stop"]) == (score, "solved")


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ([], "at least one test"),
        (
            [{"expression": "f(1)", "expected": "f(2)"}],
            "'expected': 'f(2)'}: malformed node",
        ),
        ([{"expression": "f(", "expected": "1"}], "it must be an expression"),
        ([{"code": "def"}], "cannot be parsed"),
        ([{"code": "assert f(1)"}, {"expression": "f(1)"}], "tests[1] has the fields ['expression']"),
        (None, "neither 'tests' nor 'single_turn_metadata.test'"),
    ],
)
def test_malformed_tests_are_named(tests, says):
    extra = {"single_turn_prompt": "Do it.", "tests": tests}
    with pytest.raises(TaskError, match=re.escape(says)):
        unit_tests_of(Task("k", "test", (user("Help!"),), "x", extra=extra))


def test_kinds_of_tests():
    listed = [
        {"expression": "f(1)", "expected": "(1, None)"},
        {"code": "assert f(1)"},
        {"stdin": "1", "stdout": "2"},
    ]
    task = Task("k", "test", (user("Help!"),), "x", extra={"tests": listed})
    assert unit_tests_of(task) == (Call("f(1)", (1, None)), Assertion("assert f(1)"), InputOutput("1", "2"))


def test_code_without_tests_is_refused():
    with pytest.raises(TaskError, match="has no tests"):
        read({"prompt": "Write it.", "completion": "def f(): pass"}, "code")
    with pytest.raises(TaskError, match="cannot be parsed"):
        unit_tests_of(read({**CODE, "test": "class ("}, "code"))


FILES = {"math": [MATH, NESTED, {**NESTED, "completion": "Another sample."}], "document": [DOCUMENT], "code": [CODE]}


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_of_files(tmp_path, domain, kind):
    rows = FILES[domain] if kind == "jsonl" else FILES[domain][-1:]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    tasks = load_goals(path, domain)
    assert tasks.size == len(rows) - (len(rows) == 3), "a conversation that was sampled from twice is one task"
    assert load_goals([path, path], domain).size == 2 * tasks.size
    env = made(domain, tasks=str(path))
    env.reset(seed=0)
    assert env.step("What is it about?")[0][-1]["role"] == "user"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "x"}, "column 'completion' is missing"),
        ({"prompt": "x", "completion": 5}, "column 'completion' must be text"),
        ({"prompt": " ", "completion": "5"}, "column 'prompt' is empty"),
        ({"prompt": "x", "completion": "It is the sum. " * 9}, "has no final answer"),
        ({**NESTED, "prompt": [user("a"), {"role": "assistant", "content": "b"}]}, "must end in a user's message"),
        ({**NESTED, "prompt": []}, "must end in a user's message"),
        ({**NESTED, "single_turn_metadata": "{"}, "not JSON"),
        ({**NESTED, "single_turn_completion": None}, "column 'single_turn_completion' must be text, not NoneType"),
    ],
)
def test_invalid_rows_are_refused(tmp_path, row, says):
    with pytest.raises(TaskError, match=re.escape(says)):
        read(row)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(MATH) + "\n" + json.dumps(row), encoding="utf-8")
    with pytest.raises(TaskError, match="row 2"):
        load_goals(path, "math")


# ------------------------------------------------------------------ pieces

MALFORMED = (
    "c",
    {},
    {"kind": "has", "texts": ["a"]},
    {"kind": "contains"},
    {"kind": "contains", "texts": []},
    {"kind": "contains", "texts": [" "]},
    {"kind": "line", "texts": ["a"], "rivals": "b"},
    {"kind": "line", "texts": ["a"], "rivals": [""]},
    {"kind": "max_words"},
    {"kind": "max_words", "words": 0},
    {"kind": "max_words", "words": True},
)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([], "pieces: Tuple should have at least 1 item"),
        ([{"topic": "a", "sayings": ["b"]}, {"sayings": ["a"]}], "pieces[1].topic: Field required"),
        ([{"topic": "a", "sayings": []}], "pieces[0].sayings: "),
        ([{"topic": "a", "sayings": [" "]}], "pieces[0].sayings[0]: "),
        ([{"topic": "a", "sayings": ["b"], "keywords": [1]}], "pieces[0].keywords[0]: "),
        *(([{"topic": "a", "sayings": ["b"], "requirement": wrong}], "pieces[0].requirement") for wrong in MALFORMED),
    ],
)
def test_malformed_pieces_are_named(pieces, says):
    extra = {"single_turn_prompt": "Do it.", "pieces": pieces}
    with pytest.raises(TaskError, match=re.escape(says)):
        FAMILIES["math"].goal(Task("k", "test", (user("Help!"),), "5", extra=extra))


@given(st.text(max_size=200))
def test_split_request_keeps_all_text(text):
    parts = [piece.sayings[0] for piece in split_request(text)]
    assert "".join("".join(parts).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Apples. Pears! Plums? Figs", 4),
        ("It is 2.5 m, e.g. Long. Right", 2),
        ("Take apples. $y=2$. Compute $z$.", 2),  # nothing could ask for an equation alone
        ("$y=2$. Find $z$.", 1),
        ("Title\n\nText. Chapters.", 3),
        ("Write it. Start with:\n```python\ndef f():\n    x. Y\n\n    return 1. Z\n```\nThen test it.", 4),
        ("```\nopen. Fence", 1),
        ("just one thing", 1),
        ("", 0),
    ],
)
def test_number_of_request_parts(text, parts):
    assert len(split_request(text)) == parts
