"""The episodes of an evaluation: a function of settings and numbers."""

import os
import subprocess
import sys

import pytest
from evaluate_envs import Numbers
from hypothesis import given
from hypothesis import strategies as st

from textenvs import Task
from textenvs.data import Rows
from textenvs.evaluate.plan import choose_tasks, fingerprint, jobs
from textenvs.messages import user

seeds = st.integers(0, 2**40)


@given(size=st.none() | st.integers(1, 300), count=st.integers(1, 300), seed=seeds)
def test_seed_draws_tasks_without_repeats(size, count, seed):
    if size is not None and count > size:
        with pytest.raises(ValueError, match=f"cannot play {count} tasks: numbers has {size}"):
            choose_tasks(Numbers(size), count, seed)
        return
    chosen = choose_tasks(Numbers(size), count, seed)
    assert len(chosen) == len(set(chosen)) == count
    assert list(chosen) == sorted(chosen)
    assert all(0 <= index < (size or 2**31) for index in chosen)
    assert choose_tasks(Numbers(size), count, seed) == chosen


def test_another_seed_draws_other_tasks():
    for size in (None, 1000):
        assert choose_tasks(Numbers(size), 20, 1) != choose_tasks(Numbers(size), 20, 2)


def test_all_tasks():
    assert choose_tasks(Numbers(5), None, 3) == (0, 1, 2, 3, 4)
    with pytest.raises(ValueError, match="numbers is endless; say how many"):
        choose_tasks(Numbers(None), None, 0)
    with pytest.raises(ValueError, match="cannot play 0 tasks"):
        choose_tasks(Numbers(None), 0, 0)


@given(seed=seeds, samples=st.integers(1, 5))
def test_episodes_have_unique_places_and_seeds(seed, samples):
    planned = list(jobs((3, 7, 9), samples, seed))
    assert [job.place for job in planned] == [(task, sample) for task in range(3) for sample in range(samples)]
    assert [job.task_index for job in planned] == [index for index in (3, 7, 9) for _ in range(samples)]
    assert len({job.seed for job in planned}) == len(planned)
    assert all(0 <= job.seed < 2**31 for job in planned)


def test_seed_of_episode_ignores_other_episodes():
    alone = {(job.task_index, job.sample): job.seed for job in jobs((7,), 2, 5)}
    among = {(job.task_index, job.sample): job.seed for job in jobs((3, 7, 9), 4, 5)}
    assert alone.items() <= among.items()


def test_a_changed_row_changes_the_fingerprint():
    def rows(answer):
        return Rows(
            "rows", [Task(f"k{i}", "s", (user(str(i)),), ground_truth=answer if i == 1 else i) for i in range(3)]
        )

    assert fingerprint(rows("a"), (0, 1)) == fingerprint(rows("a"), (0, 1))
    assert fingerprint(rows("a"), (0, 1)) != fingerprint(rows("b"), (0, 1))
    assert fingerprint(rows("a"), (0, 2)) == fingerprint(rows("b"), (0, 2))


def test_fingerprint_is_stable_across_processes():
    """A set's order and an object's address differ between processes."""
    code = (
        "from textenvs import Task; from textenvs.data import Rows; from textenvs.messages import user\n"
        "from textenvs.evaluate.plan import fingerprint\n"
        "extra = {'set': {'a', 'b', 'c', 'd'}, 'object': object(), 'nested': [frozenset({'x', 'y'})]}\n"
        "print(fingerprint(Rows('r', [Task('k', 's', (user('?'),), 1, extra=extra)]), (0,)))\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment)
    extra = {"set": {"a", "b", "c", "d"}, "object": object(), "nested": [frozenset({"x", "y"})]}
    assert fingerprint(Rows("r", [Task("k", "s", (user("?"),), 1, extra=extra)]), (0,)) == other.stdout.strip()
