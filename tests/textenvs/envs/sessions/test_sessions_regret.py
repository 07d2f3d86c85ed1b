"""The bounds: above every notebook that is tried, above all encoders of a small world, and tight."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.sessions import packed, unpacked
from textenvs.envs.sessions.expert import fitting, plan_of, read, updated
from textenvs.envs.sessions.facts import FactStore
from textenvs.envs.sessions.law import demand_of, draw_question
from textenvs.envs.sessions.life import ALPHABET, CODE, key_of, life_of
from textenvs.envs.sessions.regret import (
    best_share,
    bound_of,
    demands,
    expected_of,
    expected_of_expert,
    log_notebooks,
    plain_bound,
)
from textenvs.envs.sessions.view import notebook_of

LOG_CODES = CODE * np.log(len(ALPHABET))


@settings(max_examples=12)
@given(st.integers(0, 30), st.integers(0, 10**6), st.sampled_from([20, 60, 120]))
def test_no_random_notebook_beats_the_bounds(index, seed, capacity):
    own = {"sessions": 8, "people": 3, "things": 3, "capacity": capacity}
    life, rng, notebook, notebooks = life_of(key_of("easy", "train", 0, own, index)), Random(seed), "", []
    for session in life.sessions:
        lines = updated(read(life, notebook), session.statements, session.day)
        rng.shuffle(lines)
        notebook = "\n".join(line.text for line in fitting(lines, capacity))
        notebooks.append(notebook)
    score = expected_of(life, notebooks)
    assert score <= plain_bound(life) + 1e-9
    assert score <= bound_of(life) + 1e-9
    assert expected_of_expert(life) <= min(plain_bound(life), bound_of(life)) + 1e-9


def test_packed_codes_stay_below_the_information_bound():
    """Codes without names, the best for the next question: what only a policy that knows all could write."""
    life = life_of("medium/train/0/3")
    count, total = life.scale.capacity // CODE, 0.0
    for _, store, demand in demands(life):
        chances, free = demand.needed(store)
        total += free + sum(sorted(chances.values(), reverse=True)[:count])
    assert expected_of_expert(life) < total / life.questions <= bound_of(life) < 1.0


def test_packed_notebooks_hold_more_lines_below_the_bound():
    life, notebook, plain = life_of("easy/train/0/3"), "", []
    for session in life.sessions:
        lines = updated(read(life, unpacked(life, notebook, session.day - 1)), session.statements, session.day)
        notebook = packed(life, notebook, session)
        assert notebook_of(notebook, life.scale.capacity) == (notebook, 0)
        plain.append(unpacked(life, notebook, session.day))
        assert plain[-1].split("\n") == [line.text for line in lines if line.text in plain[-1].split("\n")]
    assert expected_of_expert(life) < expected_of(life, plain) <= bound_of(life)


weights_of = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12).map(np.array)


@given(weights_of, st.integers(1, 200))
def test_information_bound_is_tight(weights, capacity):
    """Compare with the best feasible probabilities, on a line of multipliers."""
    log_count = log_notebooks(capacity)
    bound = best_share(weights, log_count)
    multipliers = np.geomspace(1e-5, 1.0, 4000)
    odds = np.minimum(weights / multipliers[:, None] - LOG_CODES - np.log1p(-np.exp(-LOG_CODES)), 700.0)
    chances = np.clip(1.0 / (1.0 + np.exp(-odds)), 1e-300, 1.0 - 1e-16)
    needed = chances * (np.log(chances) + LOG_CODES) + (1.0 - chances) * (
        np.log1p(-chances) - np.log1p(-np.exp(-LOG_CODES))
    )
    feasible = (chances @ weights)[needed.sum(1) <= log_count]
    assert feasible.max(initial=0.0) <= bound + 1e-9
    # A notebook of k codes' bits can hold any k of them.
    held = int(log_count // LOG_CODES)
    assert np.sort(weights)[::-1][:held].sum() <= bound + 1e-9
    assert bound <= weights.sum() + 1e-9
    assert bound <= np.sort(weights)[::-1][: held + 3].sum() + 0.05 * weights.sum()


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.8, 0.2), (1.0, 0.0), (0.6, 0.4)])
@pytest.mark.parametrize("codes", [2, 3])
def test_bound_holds_for_all_encoders(weights, codes):
    """Two facts of two or three values, a notebook of one bit: every encoder, with its best decoder."""
    worlds = list(itertools.product(range(codes), repeat=2))
    best = 0.0
    for notebooks in itertools.product(range(2), repeat=len(worlds)):
        right = 0.0
        for fact, weight in enumerate(weights):
            for notebook in range(2):
                values = [world[fact] for world, own in zip(worlds, notebooks, strict=True) if own == notebook]
                right += weight * max((values.count(value) for value in range(codes)), default=0) / len(worlds)
        best = max(best, right)
    assert best <= best_share(np.array(weights), float(np.log(2)), float(np.log(codes))) + 1e-9


def test_bounds_grow_with_the_notebook():
    lives = [life_of(key_of("easy", "train", 0, {"capacity": size}, 0)) for size in (1, 30, 60, 120, 2000)]
    bounds, plain = [bound_of(life) for life in lives], [plain_bound(life) for life in lives]
    assert bounds == sorted(bounds)
    assert plain == pytest.approx(sorted(plain), abs=0.01)
    assert bounds[-1] == pytest.approx(1.0)


def test_expected_score_is_that_of_drawn_questions():
    life = life_of("easy/train/0/4")
    rng, store = Random(1), FactStore()
    for session in life.sessions:
        for statement in session.statements:
            store.add(statement)
    stated = {statement.key for statement in life.sessions[-1].statements}
    day, phase = len(life.sessions), life.phase(len(life.sessions))
    numbers = {chain[-1].number for chain in store.chains.values()}
    remembered = set(rng.sample(sorted(numbers), len(numbers) // 2))
    expected = demand_of(store, phase, day, stated).expected(store, remembered)
    draws = 4000
    questions = (draw_question(store, phase, day, stated, life.people, 3, rng) for _ in range(draws))
    right = sum(remembered >= {one.number for one in store.needs(question)} for question in questions)
    assert right / draws == pytest.approx(expected, abs=0.03)


def test_experts_notebooks_fit_and_keep_the_law():
    life = life_of("hard/test/0/0")
    plan = plan_of(life)
    assert max(map(len, plan.notebooks)) <= life.scale.capacity
    assert len(plan.notebooks) == len(life.sessions) - 1
    for session, notebook in zip(life.sessions, plan.notebooks, strict=False):
        assert not {line.code for line in read(life, notebook)} & session.forgotten
