"""What happens in contained() stays there."""

import decimal
import random
import sys
import threading
import warnings

import numpy as np
import pytest

from textenvs.global_rng import RandomState, contained


def draws():
    return random.random(), float(np.random.random())  # noqa: NPY002


def test_draws_inside_depend_on_the_given_state_alone_and_draws_outside_on_their_own():
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


def test_seeds_that_numpy_has_no_room_for_differ_in_both_generators():
    drawn = []
    for seed in (5, 5 + 2**32, 5 + 2**33, 5 + 2**70, 2**32, 0):
        with contained(RandomState.seeded(seed)):
            drawn.append(draws())
    assert len({first for first, _ in drawn}) == len({second for _, second in drawn}) == len(drawn)


def test_a_state_goes_on_where_the_last_block_ended():
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


def test_prints_and_warnings_of_this_thread_are_dropped_and_those_of_others_are_not(capsys):
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


def test_the_precision_of_decimals_is_neither_let_in_nor_out():
    with decimal.localcontext(prec=7):
        with contained(RandomState.seeded(0)):
            assert decimal.getcontext().prec == decimal.DefaultContext.prec
            decimal.getcontext().prec = 3
        assert decimal.getcontext().prec == 7
