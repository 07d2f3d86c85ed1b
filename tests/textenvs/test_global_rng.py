"""State changes in contained() do not leave it."""

import ast
import decimal
import random
import re
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import textenvs
from textenvs.global_rng import RandomState, contained


def draws():
    return random.random(), float(np.random.random())  # noqa: NPY002


def test_inner_and_outer_draws_are_independent():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = [draws(), draws()]
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert draws() == expected[0]
    with contained(RandomState.seeded(7)):
        inside = draws()
        random.seed(99)
        np.random.seed(99)  # noqa: NPY002
    assert draws() == expected[1]
    random.seed(5)
    with contained(RandomState.seeded(7)):
        assert draws() == inside


def test_large_seeds_differ_in_both_generators():
    drawn = []
    for seed in (5, 5 + 2**32, 5 + 2**33, 5 + 2**70, 2**32, 0):
        with contained(RandomState.seeded(seed)):
            drawn.append(draws())
    assert len({first for first, _ in drawn}) == len({second for _, second in drawn}) == len(drawn)


def test_state_continues_from_the_last_block():
    with contained(RandomState.seeded(3)):
        whole = [draws() for _ in range(3)]
    state = RandomState.seeded(3)
    parts = []
    for _ in range(3):
        with contained(state):
            parts.append(draws())
        draws()
    assert parts == whole


def test_an_exception_leaves_no_trace_either(capsys):
    random.seed(2)
    before, stream, filters = random.getstate(), sys.stdout, list(warnings.filters)

    def fail():
        random.random()
        print("noise")
        raise KeyError

    with pytest.raises(KeyError), contained(RandomState.seeded(0)):
        fail()
    assert random.getstate() == before
    assert sys.stdout is stream
    assert warnings.filters == filters


def test_only_own_thread_output_is_dropped(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contained(RandomState.seeded(0)):
            print("inside")
            print("inside", file=sys.stderr)
            warnings.warn("inside", stacklevel=1)
            other = threading.Thread(target=print, args=("another thread",))
            other.start()
            other.join()
    print("outside")
    assert capsys.readouterr() == ("another thread\noutside\n", "")


def test_blocks_may_be_nested():
    with contained(RandomState.seeded(1)):
        first = draws()
        with contained(RandomState.seeded(1)):
            assert draws() == first
        second = draws()
    with contained(RandomState.seeded(1)):
        assert (draws(), draws()) == (first, second)


def test_decimal_precision_is_isolated():
    with decimal.localcontext(prec=7):
        with contained(RandomState.seeded(0)):
            assert decimal.getcontext().prec == decimal.DefaultContext.prec
            decimal.getcontext().prec = 3
        assert decimal.getcontext().prec == 7


def test_no_module_uses_the_global_generator():
    """Beside seeded code in another thread, a draw of a retry's jitter would change what that code draws."""
    root = Path(textenvs.__file__).parents[1]
    drawing = {name for name in dir(random) if callable(getattr(random, name)) and name[0].islower()}
    drawing -= {"getstate", "setstate", "seed"}
    for path in [*root.glob("textenvs/**/*.py"), *root.glob("trainers/**/*.py")]:
        if not re.search(r"\b(import|from) random\b", text := path.read_text("utf-8")):
            continue
        for node in ast.walk(ast.parse(text)):
            drawn = isinstance(node, ast.Attribute) and node.attr in drawing and isinstance(node.value, ast.Name)
            assert not (drawn and node.value.id == "random"), f"{path}:{node.lineno}: random.{node.attr}"
            assert not (
                isinstance(node, ast.ImportFrom)
                and node.module == "random"
                and drawing & {name.name for name in node.names}
            ), f"{path}:{node.lineno}"
