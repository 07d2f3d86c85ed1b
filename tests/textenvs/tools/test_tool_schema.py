"""A tool checks the schema that it shows to the model."""

import copy
import json
import pickle
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from textenvs.env import EpisodeState
from textenvs.tools import Tool, tool
from textenvs.tools.formats import make_call
from textenvs.tools.schema import ArgumentError
from textenvs.tools.toolbox import Toolbox


class Price(BaseModel):
    """A price."""

    amount: float = Field(ge=0)
    title: str = "none"
    currency: Literal["EUR", "USD"] = "EUR"


@tool
def order(
    item: str,
    count: int,
    price: Price,
    tags: list[str] | None = None,
    sizes: dict[str, tuple[int, bool]] = {},  # noqa: B006
    how: Literal["fast", "slow"] = "slow",
    limit: Annotated[int, Field(ge=1, le=10)] = 3,
) -> str:
    """Order something.

    It is sent by post. The title is
    not printed.

    Args:
        item: What to
            order.
        count: How many.
        price: The price of one.
    """
    return json.dumps({"item": item, "price": price.amount})


keys = st.sampled_from(["amount", "title", "currency", "x"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from([0.5, -1.5, 1e300, "EUR", "fast", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)
prices = st.fixed_dictionaries({"amount": st.floats(0, 9)}, optional={"title": st.just("t"), "currency": keys})
good = {
    "item": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "count": st.integers(-5, 5),
    "price": prices,
    "tags": st.none() | st.lists(st.just("t"), max_size=2),
    "sizes": st.dictionaries(st.just("s"), st.tuples(st.integers(0, 3), st.booleans()).map(list)),
    "how": st.sampled_from(["fast", "slow"]),
    "limit": st.integers(0, 11),
    "extra": json_values,
}
arguments = st.fixed_dictionaries({}, optional={name: strategy | json_values for name, strategy in good.items()})


@given(given_arguments=arguments)
def test_schema_and_tool_accept_the_same(given_arguments):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(order.parameters)
    text = json.dumps(given_arguments)
    try:
        kwargs = order.arguments_of(text)
    except ArgumentError:
        accepted = False
    else:
        accepted = True
        assert set(kwargs) == set(given_arguments)
        assert isinstance(kwargs["price"], Price)
    assert accepted == validator.is_valid(given_arguments)


def test_schema_has_openai_form_and_docstring():
    function = order.schema["function"]
    assert order.schema["type"] == "function"
    assert function["name"] == "order"
    assert function["description"] == "Order something.\n\nIt is sent by post. The title is\nnot printed."
    parameters = function["parameters"]
    assert parameters["required"] == ["item", "count", "price"]
    assert parameters["properties"]["item"] == {"type": "string", "description": "What to order."}
    assert parameters["properties"]["how"] == {"type": "string", "enum": ["fast", "slow"], "default": "slow"}
    assert parameters["properties"]["limit"]["default"] == 3
    assert parameters["additionalProperties"] is False
    assert "title" in parameters["$defs"]["Price"]["properties"], "a property called title is not a title"
    assert "title" not in parameters
    assert "title" not in parameters["$defs"]["Price"]
    json.dumps(order.schema)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", ["item is missing", "count is missing", "price is missing"]),
        ('{"item": 1, "count": 2, "price": {"amount": 1}}', ["item: ", "string", "not 1"]),
        ('{"item": "a", "count": "2", "price": {"amount": 1}}', ["count: ", "integer", 'not "2"']),
        ('{"item": "a", "count": 2, "price": {"amount": -1}}', ["price.amount: ", "greater", "not -1"]),
        ('{"item": "a", "count": 2, "price": {"amount": 1}, "sizes": {"s": [1, 2]}}', ["sizes.s[1]", "boolean"]),
        ('{"item": "a", "cuont": 2, "price": {"amount": 1}}', ["'cuont' (did you mean 'count'?)", "count is missing"]),
        ('{"item": "a", "count": 2, "price": {"amount": 1}, "how": "soon"}', ["how: ", "'fast' or 'slow'", '"soon"']),
        ('{"item": "a", "count": 2, "price": {"amount": 1e999}}', ["number"]),
        ("[1]", ["JSON object", "a list"]),
        ('{"item": "a"} and', ["followed by 'and'"]),
        ('{"item": "a', ["not closed"]),
    ],
)
def test_wrong_arguments_are_named(text, words):
    with pytest.raises(ArgumentError) as caught:
        order.arguments_of(text)
    for word in words:
        assert word in caught.value.message


@dataclass
class Basket(EpisodeState):
    items: int = 0


@tool
def put(state: Basket, item: str) -> int:
    """Put something into the basket.

    Args:
        item: What.
    """
    state.items += 1
    return state.items


@tool
def look() -> str:
    """Look around."""
    return "nothing"


def test_model_cannot_pass_the_state():
    assert set(put.parameters["properties"]) == {"item"}
    assert put.state_parameter == "state"
    assert put.state_type is Basket
    with pytest.raises(ArgumentError, match="no argument"):
        put.arguments_of(json.dumps({"item": "x", "state": {}}))


def test_a_tool_without_arguments():
    assert look.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert look.arguments_of("") == look.arguments_of("{}") == {}
    assert look() == "nothing"


def test_copies_share_tools_pickles_name_them():
    assert copy.deepcopy(order) is order
    assert pickle.loads(pickle.dumps(order)) is order
    renamed = order.replace(name="buy", max_chars=100)
    again = pickle.loads(pickle.dumps(renamed))
    assert (again.name, again.max_chars, again.schema) == ("buy", 100, renamed.schema)
    assert pickle.loads(pickle.dumps(Tool(json.dumps, description="d", parameters={}))).name == "dumps"


def no_hint(x):
    """Doc."""


def many(*xs: int):
    """Doc."""


def undocumented(x: int):
    pass


def stranger(x: int):
    """Doc.

    Args:
        y: Not there.
    """


def odd(x: object.__class__.__subclasses__):
    """Doc."""


def two(a: Basket, b: Basket):
    """Doc."""


def timed_state(state: Basket):
    """Doc."""


async def waits():
    """Doc."""


@pytest.mark.parametrize(
    ("function", "options", "error"),
    [
        (no_hint, {}, "'x' has no type hint"),
        (undocumented, {}, "needs a docstring"),
        (stranger, {}, r"describes \['y'\]"),
        (odd, {}, "no JSON schema"),
        (two, {}, "'a' is the state already"),
        (timed_state, {"timeout_s": 1}, "make the function async|Make the function async"),
        (waits, {"blocking": True}, "blocking is for plain functions"),
        (look.function, {"name": "two words"}, "letters, digits"),
    ],
)
def test_invalid_function_is_refused_as_tool(function, options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        tool(**options)(function)


@dataclass
class Counted(EpisodeState):
    count: int = 0


class Adds:
    """A tool's function whose schema comes from elsewhere."""

    def __call__(self, episode: Counted, **arguments: int) -> int:
        episode.count += sum(arguments.values())
        return episode.count


def test_explicit_schema_passes_state_and_unchecked_arguments():
    adds = Tool(Adds(), name="add", description="Add.", parameters={"type": "object", "properties": {"n": {}}})
    assert (adds.state_parameter, adds.state_type) == ("episode", Counted)
    assert "episode" not in json.dumps(adds.schema)
    state, made = Counted(), make_call("add", '{"n": 2, "m": 3}', "call_0")
    (result,) = Toolbox([adds]).run_now([made], state)
    assert (result.content, state.count) == ("5", 5)
