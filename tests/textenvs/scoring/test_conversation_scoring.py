"""The formulas, each against its published form written out, and against each other."""

import math
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from textenvs.messages import assistant, system, user
from textenvs.scoring.conversation import FORMULAS, Formula, count_words, estimate_tokens, formula


class Outcome(NamedTuple):
    scores: dict
    length: float
    interactivity: float | None = None


unit = st.floats(0, 1)
tokens = st.integers(0, 20_000)
several = st.lists(st.tuples(unit, tokens, unit), min_size=1, max_size=5)


def outcomes(rows):
    return [Outcome({"accuracy": s}, t, r) for s, t, r in rows]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


@given(several)
def test_repository(rows):
    """Weights 1, 1 and -0.5 per thousand tokens, summed for each conversation, without any bound."""
    expected = mean(1 * s + 1 * r - 0.5 * (t / 1000) for s, t, r in rows)
    assert sum(formula("repository").terms(outcomes(rows)).values()) == pytest.approx(expected)
    expected = mean(s + r - 0.1 * (t / 1000) for s, t, r in rows)
    assert sum(formula("repository", domain="document").terms(outcomes(rows)).values()) == pytest.approx(expected)


@given(st.sampled_from(sorted(FORMULAS)), tokens, tokens)
def test_more_tokens_never_cost_less(name, few, many):
    assume(few < many)
    chosen = formula(name)
    assert 0 <= chosen.cost(few) <= chosen.cost(many)
    if name in ("linear", "repository"):
        assert chosen.cost(few) < chosen.cost(many)


@given(st.sampled_from(sorted(FORMULAS)), tokens)
def test_one_conversations_cost_is_its_term(name, count):
    chosen = formula(name)
    assert chosen.terms([Outcome({"x": 1.0}, count)])["cost"] == pytest.approx(-chosen.cost(count))


@given(st.sampled_from(sorted(FORMULAS)), st.lists(tokens, max_size=6))
def test_turn_costs_sum_to_the_conversations_cost(name, growth):
    """Charge every turn for its added length, as environments do."""
    chosen, total, charged = formula(name), 0, 0.0
    for added in growth:
        charged += chosen.cost(total + added) - chosen.cost(total)
        total += added
    assert charged == pytest.approx(chosen.cost(total), abs=1e-9)


CONVERSATION = [
    system("A system prompt is nobody's reading."),
    user("one two three"),
    assistant("<think>five words that nobody reads</think>four five"),
    user("six"),
]


def test_who_is_charged_for():
    lengths = {name: formula(name).length(CONVERSATION, count_words) for name in FORMULAS}
    assert lengths == {"textenvs": 6, "linear": 6, "paper": 6, "repository": 2, "recipe": 6}


def test_what_is_in_the_scope():
    assert {name: entry.scope for name, entry in FORMULAS.items()} == {
        "textenvs": "played", "linear": "played", "paper": "all", "repository": "all", "recipe": "future",
    }  # fmt: skip


@given(st.text(max_size=40), st.text(max_size=40))
def test_token_estimates_ignore_spaces_and_add_up(first, second):
    assert estimate_tokens(first) * 4 >= len(first.encode("utf-8", "replace"))
    assert estimate_tokens(first + second) <= estimate_tokens(first) + estimate_tokens(second)
    assert estimate_tokens("x" * 400) == estimate_tokens("x xx " * 80) == 100


def test_weights():
    outcome = Outcome({"bleu": 0.25, "other": 1.0}, 0, 1.0)
    terms = formula().terms([outcome], {"bleu": 2.0, "interactivity": 0.5})
    assert terms == {"bleu": 0.5, "other": 1.0, "cost": 0.0, "interactivity": 0.5}


def test_published_rates():
    assert {domain: formula("paper", domain=domain).rate for domain in ("math", "document", "code")} == {
        "math": 5e-4, "document": 1e-4, "code": 5e-4,
    }  # fmt: skip
    assert formula("recipe", domain="math").rate == formula("recipe", domain="document").rate == 1e-4
    assert formula("recipe", rate=0.0).rate == 0.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: formula(rate=-1.0), "rate"),
        (lambda: formula(rate=True), "rate"),
        (lambda: formula(rate=math.inf), "rate"),
        (lambda: Formula("mine", 1.0, unit="bytes"), "'words' or 'tokens'"),
        (lambda: Formula("mine", 1.0, scope="none"), "scope"),
        (lambda: Formula("mine", 1.0, clamp="all"), "clamp"),
        (lambda: Formula("mine", 1.0, roles=("tool",)), "roles"),
        (lambda: formula().terms([Outcome({"bleu": math.nan}, 1)]), "the term 'bleu' must be a finite number, not nan"),
        (lambda: formula().terms([Outcome({"a": 1}, 0), Outcome({"b": 1}, 0)]), "different scores"),
    ],
)
def test_errors_say_what_is_wrong(make, says):
    with pytest.raises(ValueError, match=says):
        make()
