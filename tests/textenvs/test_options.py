"""Options are checked by their annotations, and the error names the option, the value and what is allowed."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from playable import PLAYABLE
from pydantic import Field

import textenvs
from textenvs.cli.common import options_of
from textenvs.options import Cost, Gain, PositiveInt, Share, Weight, checked
from textenvs.sandbox import SandboxUnavailable


class Made:
    @checked
    def __init__(
        self,
        tasks: Any = None,
        *,
        level: Literal["easy", "hard"] | None = None,
        turns: PositiveInt | None = 3,
        price: Cost = -0.1,
        gain: Gain = 1.0,
        chance: Share = 0.5,
        few: Annotated[int, Field(ge=1, le=4)] = 2,
        loud: bool = False,
        weights: Mapping[str, Weight] | None = None,
        anything: object = None,
    ) -> None:
        self.turns, self.price = turns, price


def test_what_is_allowed_arrives_unchanged():
    made = Made(object(), level="hard", turns=None, price=0, chance=1, anything=object())
    assert (made.turns, made.price, type(made.price)) == (None, 0, int)
    assert list(inspect.signature(Made).parameters)[:3] == ["tasks", "level", "turns"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"level": "medium"}, "level should be 'easy' or 'hard', not 'medium'"),
        ({"turns": 0}, "turns should be greater than or equal to 1, not 0"),
        ({"turns": True}, "turns should be a valid integer, not True"),
        ({"turns": 2.0}, "turns should be a valid integer, not 2.0"),
        ({"price": 0.5}, "price should be less than or equal to 0, not 0.5"),
        ({"price": float("nan")}, "price should be .*, not nan"),
        ({"gain": 0}, "gain should be greater than 0, not 0"),
        ({"chance": 1.5}, "chance should be less than or equal to 1, not 1.5"),
        ({"few": 5}, "few should be less than or equal to 4, not 5"),
        ({"loud": "yes"}, "loud should be a valid boolean, not 'yes'"),
        ({"weights": {"a": 1.0, "b": float("inf")}}, r"weights\['b'\] should be a finite number, not inf"),
        ({"weights": [1.0]}, r"weights should be a valid dictionary, not \[1.0\]"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_is_not_allowed_is_said(options, problem):
    with pytest.raises(TypeError if "unknown" in options else ValueError, match=problem):
        Made(**options)


@pytest.mark.parametrize("env_id", PLAYABLE)
def test_every_option_of_an_environment_is_checked(env_id):
    """A value of no kind is refused by the option's name."""
    try:
        env = textenvs.make(env_id)
    except SandboxUnavailable:
        pytest.skip("no sandbox here")
    for name in options_of(type(env))[0].keys() - {"render_mode"}:  # which Gymnasium itself looks at
        with pytest.raises((ValueError, TypeError), match=name):
            textenvs.make(env_id, **{name: object()})


@pytest.mark.parametrize(
    ("env_id", "option", "value"),
    [
        ("textenv/clarify", "wrong", 0.5),
        ("textenv/clarify", "question", 0.1),
        ("textenv/gsm8k-interact", "extra_turn", 0.1),
        ("textenv/gsm8k-interact", "max_assistant_turns", 0),
        ("textenv/service-desk", "success", 0),
        ("textenv/service-desk", "turn", 0.1),
        ("textenv/search-qa", "call_cost", 0.1),
        ("textenv/search-qa", "correct", 0),
        ("textenv/math-python", "call_cost", 0.1),
        ("textenv/collab-math", "token_rate", -1.0),
        ("textenv/collab-math", "answers", 0),
    ],
)
def test_costs_and_rewards_keep_their_signs(env_id, option, value):
    with pytest.raises(ValueError, match=f"{option} should be (greater|less) than"):
        textenvs.make(env_id, **{option: value})
