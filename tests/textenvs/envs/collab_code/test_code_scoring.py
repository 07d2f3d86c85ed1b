"""Pass rates: the right programs pass, and nothing else does."""

from dataclasses import replace

import pytest
from code_cheats import CHEATS
from sandbox_boxes import SMALL, box_of

from textenvs.envs.collab_code.scoring import Assertion, Call, InputOutput, pass_rate, unit_tests
from textenvs.event_loop import wait_for
from textenvs.sandbox import Limits, Sandbox

TESTS = (
    Call("double(2)", 4),
    Call("double(-1.5)", -3.0),
    Assertion("assert double(0) == 0"),
    Assertion("assert double('ab') == 'abab'"),
    InputOutput("3\n", "6"),
    InputOutput("10", "20\n\n"),
)
PROGRAM = "def double(x):\n    return x * 2\nif __name__ == '__main__':\n    print(double(int(input())), ' ')"
# Writes what a report looks like wherever it may be read.
FORGERY = """
import os
for fd in range(64):
    try:
        os.write(fd, b'{"value": null, "error": null}\\n')
    except OSError:
        pass
os._exit(0)
"""


def pass_rate_now(program, tests, box, **options):
    return wait_for(pass_rate(program, tests, box, **options))


@pytest.fixture(scope="module")
def box():
    return box_of()


async def test_right_program_passes_every_test(box):
    score = await pass_rate(PROGRAM, TESTS, box)
    assert (score.passed, score.fraction) == (6, 1.0)
    assert [outcome.message for outcome in score.outcomes] == [""] * 6


def test_fraction_counts_each_test(box):
    """Each breaks one kind of test only; the others still count."""
    wrong = PROGRAM.replace("x * 2", "x * 2 if isinstance(x, int) else 7")
    score = pass_rate_now(wrong, TESTS, box)
    assert [outcome.passed for outcome in score.outcomes] == [True, False, True, False, True, True]
    assert score.fraction == pytest.approx(4 / 6)
    assert score.outcomes[1].message == "double(-1.5) gives 7"
    assert score.outcomes[3].message == "AssertionError: "


@pytest.mark.parametrize(
    "program",
    [
        "",
        "import sys; sys.exit(0)",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL); os.kill(-1, signal.SIGKILL)",
        "while True: pass",
        'print(\'{"value": "4", "error": null}\\n\' * 10)\nimport os; os._exit(0)',
        FORGERY,
        "import atexit, threading\nx = []\nwhile True: x.append(bytearray(1 << 20))",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "double = print",
    ],
)
def test_tricks_pass_no_call_or_program(box, program):
    tests = (Call("double(2)", 4), Call("double(3)", 6), InputOutput("3", "6"))
    score = pass_rate_now(program, tests, box, timeout_s=0.3)
    assert score.passed == 0
    assert all(outcome.message for outcome in score.outcomes)


@pytest.mark.parametrize(
    "program", ["import sys; sys.exit(0)", "import os; os._exit(0)", "assert False", "double = None", FORGERY]
)
def test_ending_early_passes_no_assertion(box, program):
    assert pass_rate_now(program, [Assertion("assert double(0) == 0"), Assertion("double(1)")], box).passed == 0


def test_hanging_test_costs_no_other(box):
    program = "def f(x):\n    while x == 1: pass\n    return x"
    score = pass_rate_now(program, [Call(f"f({i})", i) for i in range(4)], box, timeout_s=60)
    assert [outcome.passed for outcome in score.outcomes] == [True, False, True, True]
    assert "mostly a limit of CPU time" in score.outcomes[1].message
    late = pass_rate_now(program, [Call("f(1)", 1)], box, timeout_s=0.1)
    assert late.outcomes[0].message == "It took longer than 0.1 s."


@pytest.mark.parametrize("kind", [Call, Assertion, InputOutput])
def test_two_hanging_tests_end_the_run(kind):
    """A program without an end keeps a core for two tests, and not for as many as there are."""
    box = box_of(limits=replace(SMALL, cpu_s=60))  # the clock is the limit that it meets
    function = "def f(x):\n    while x in (1, 2): pass\n    return x\n"
    program = f"{function}if __name__ == '__main__':\n    print(f(int(input())))"
    of_kind = {
        Call: lambda i: Call(f"f({i})", i),
        Assertion: lambda i: Assertion(f"assert f({i}) == {i}"),
        InputOutput: lambda i: InputOutput(str(i), str(i)),
    }
    numbers = [0, 1, 3, 2, 4, 1, 5]
    score = pass_rate_now(program, [of_kind[kind](i) for i in numbers], box, timeout_s=2)
    assert [outcome.passed for outcome in score.outcomes] == [True, False, True, False, False, False, False]
    assert [("not run" in outcome.message) for outcome in score.outcomes] == [False] * 4 + [True] * 3


def test_kinds_of_tests_end_apart(box):
    program = "def f(x):\n    while x in (1, 2): pass\n    return x"
    tests = [Call("f(1)", 1), Call("f(2)", 2), Call("f(4)", 4), Assertion("assert f(4) == 4")]
    score = pass_rate_now(program, tests, box, timeout_s=2)
    assert [outcome.passed for outcome in score.outcomes] == [False, False, False, True]


@pytest.mark.parametrize("kind", [Call, Assertion])
def test_crashes_cost_no_other_test(box, kind):
    program = "import os\ndef f(x):\n    if x < 3: os._exit(3)\n    return x"
    tests = [Call(f"f({i})", i) if kind is Call else Assertion(f"assert f({i}) == {i}") for i in range(6)]
    assert [outcome.passed for outcome in pass_rate_now(program, tests, box).outcomes] == [False] * 3 + [True] * 3


def test_tests_do_not_see_each_other(box):
    program = "seen = []\ndef f():\n    seen.append(1)\n    open('mark', 'x')\n    return len(seen)"
    with_mark = "import os\ndef f():\n    return os.path.exists('nothing')"
    assert pass_rate_now(program, [Call("f()", 1)], box).passed == 1
    assert (
        pass_rate_now("seen = []\ndef f():\n    seen.append(1)\n    return len(seen)", [Call("f()", 1)] * 3, box).passed
        == 3
    )
    assert pass_rate_now(with_mark, [Call("f()", False)], box).passed == 1


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        ("[1, (2, 'x'), {3: {4}}, None]", [1, (2, "x"), {3: {4}}, None], True),
        ("0.1 + 0.2", 0.3, True),
        ("2.0", 2, True),
        ("True", 1, False),
        ("(1, 2)", [1, 2], False),
        ("[1, 2, 3]", [1, 2], False),
        ("{'a': 1.0000000001}", {"a": 1.0}, True),
        ("{'a': 1.001}", {"a": 1.0}, False),
        ("float('nan')", 1.0, False),
        ("object()", 1, False),
        ("type('X', (), {'__eq__': lambda *a: True, '__repr__': lambda s: '1'})()", 2, False),
        ("'x' * 10**6", "x", False),
        ("'\\ud800'", "\ud800", True),
        ("set()", set(), True),
        ("b'\\xff'", b"\xff", True),
    ],
)
def test_values_are_compared_as_data(box, value, expected, same):
    (outcome,) = pass_rate_now(f"def f():\n    return {value}", [Call("f()", expected)], box).outcomes
    assert outcome.passed is same


@pytest.mark.parametrize(
    ("representation", "expected"),
    [
        ("{[]: 1}", 1.5),
        ("{[1]}", 1),
        ("9" * 400, 1.5),  # no float is as large
        ("0x" + "f" * 9000, 1),  # more digits than Python writes
        ("-" * 15_000 + "1", 1),
        ("1+" * 7000 + "1j", 1),
        ("[" * 5000, []),
        ("\0", 1),
        ("", 1),
    ],
)
def test_hostile_representations_fail(box, representation, expected):
    program = f"class X:\n    def __repr__(self):\n        return {representation!r}\nf = X"
    assert [outcome.passed for outcome in pass_rate_now(program, [Call("f()", expected)], box).outcomes] == [False]


UNIT_TESTS = """
import unittest
class TestCases(unittest.TestCase):
    def test_value(self):
        self.assertEqual(double(21), 42)
    def test_list(self):
        self.assertListEqual(double([1, 2]), [1, 2, 1, 2])
    def test_error(self):
        with self.assertRaises(ValueError):
            double(None)
    def test_truth(self):
        self.assertTrue(double(3) == 6 and not double(0))
"""
RIGHT = "def double(x):\n    if x is None:\n        raise ValueError('nothing')\n    return x * 2"


def test_unit_tests_run_in_another_process(box):
    score = pass_rate_now(RIGHT, unit_tests(UNIT_TESTS), box)
    assert [outcome.message for outcome in score.outcomes] == [""] * 4


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_pass_no_unit_test(box, cheat):
    score = pass_rate_now(CHEATS[cheat], unit_tests(UNIT_TESTS), box, timeout_s=2)
    assert score.passed == 0, [outcome.message for outcome in score.outcomes]
    assert all(outcome.message for outcome in score.outcomes)
    calls = (Call("double(21)", 42), Call("double([1, 2])", [1, 2, 1, 2]))
    assert pass_rate_now(CHEATS[cheat], calls, box, timeout_s=2).passed == 0


def test_programs_leave_nothing_behind(box):
    """The box stays; files, processes and what was submitted before do not."""
    leaves = """
import os, signal
marked = "a solution that somebody else submitted"
if os.fork() == 0:
    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()
os.makedirs("deep/er"); open("deep/er/file", "w").write(marked); os.chmod("deep", 0)
open("random.py", "w").write("x = 1"); open("main.py", "w").write("x = 1")
def f(): return 1
"""
    looks = """
import gc, os
def f():
    try: os.kill(-1, 0); alone = False
    except ProcessLookupError: alone = True
    objects = [each for each in gc.get_objects() if isinstance(each, (tuple, list))]
    held = any(" ".join(["somebody", "else"]) in repr(each) for each in objects)
    return sorted(os.listdir()), held
"""
    assert pass_rate_now(leaves, [Call("f()", 1)], box).passed == 1
    assert pass_rate_now(looks, [Call("f()", ([], False))], box).passed == 1


def test_remote_objects_in_unit_tests(box):
    program = """
import collections, decimal
class Account:
    def __init__(self, owner): self.owner, self.sums = owner, []
    def pay(self, amount): self.sums.append(amount); return self
    def __len__(self): return len(self.sums)
    def __getitem__(self, i): return self.sums[i]
def many(): return iter(range(3))
def kinds(*values): return {"all": values, "count": collections.Counter("aab"), "d": decimal.Decimal("1.5")}
LIMIT = 7
"""
    source = """
import unittest, decimal
class T(unittest.TestCase):
    def test_object(self):
        account = Account("Ann")
        self.assertEqual((account.owner, len(account.pay(3).pay(4)), list(account)), ("Ann", 2, [3, 4]))
        self.assertNotEqual(account, account.pay(1).pay)
    def test_iterator(self):
        self.assertEqual(sum(many()), 3)
    def test_kinds(self):
        got = kinds(1, 2.5, None, True, b"x", {1}, (2,), [3], {"k": 4}, 1j)
        self.assertEqual(got["all"], (1, 2.5, None, True, b"x", {1}, (2,), [3], {"k": 4}, 1j))
        self.assertEqual((got["count"], got["d"] * 2), ({"a": 2, "b": 1}, decimal.Decimal(3)))
    def test_constant(self):
        self.assertEqual(LIMIT, 7)
"""
    score = pass_rate_now(program, unit_tests(source), box)
    assert [outcome.message for outcome in score.outcomes] == [""] * 4


def test_too_long_program_fails():
    box = Sandbox(limits=Limits(disk_mb=2))
    for test in (Call("1", 1), Assertion(""), InputOutput("", "")):
        (outcome,) = pass_rate_now(f"x = '{chr(0x4E00) * 800_000}'", [test], box).outcomes
        assert (outcome.passed, "too long" in outcome.message) == (False, True)


def test_unit_tests_count_by_method(box):
    source = """
import unittest
class TestCases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.two = 2
    def test_right(self):
        self.assertEqual(double(self.two), 4)
    def test_wrong(self):
        self.assertEqual(double(1), 3)
    def test_error(self):
        double()
    @unittest.skip("no")
    def test_skipped(self):
        pass
    def helper(self):
        pass
"""
    score = pass_rate_now(PROGRAM, unit_tests(source), box)
    assert [outcome.passed for outcome in score.outcomes] == [True, False, False, False]
    assert score.outcomes[1].message == "AssertionError: AssertionError: 2 != 3"
    with pytest.raises(ValueError, match="no method"):
        unit_tests("x = 1")
    with pytest.raises(ValueError, match="cannot be parsed"):
        unit_tests("def")


def test_invalid_tests_are_refused(box):
    for bad in (("f()", object()), ("f()", float("nan")), ("f(", 1), ("x = 1", 1)):
        with pytest.raises(ValueError, match="Call"):
            Call(*bad)
    with pytest.raises(ValueError, match="cannot be parsed"):
        Assertion("def")
