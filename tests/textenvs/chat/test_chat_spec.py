"""Specs are data: JSON, strict, without secrets, and their errors help."""

import copy
import json
import pickle
from pathlib import Path

import pytest

from textenvs.chat import ChatClient, ChatSpec, Price, Usage

FULL = {
    "model": "m",
    "base_url": "http://localhost:8000/v1",
    "api_key_env": "SOME_KEY",
    "temperature": 0.5,
    "max_tokens": 7,
    "seed": 3,
    "price": {"input": 0.15, "output": 0.6},
    "budget": {"dollars": 2.5, "name": "all"},
    "extra": {"top_p": 0.9, "chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.mark.parametrize("options", [{"model": "m"}, FULL])
def test_spec_survives_json_and_pickle(options):
    spec = ChatSpec.of(options)
    assert spec.to_dict() == options
    for other in (
        ChatSpec.of(json.loads(json.dumps(spec.to_dict()))),
        pickle.loads(pickle.dumps(spec)),
        copy.deepcopy(spec),
        ChatSpec.of(spec),
    ):
        assert other == spec
        assert other.key == spec.key
        assert hash(other) == hash(spec)


def test_keys_differ_with_every_option():
    variants = [{"model": "m"}, *({"model": "m", name: value} for name, value in FULL.items() if name != "model")]
    variants[-2:] = [{**variants[-2], "price": FULL["price"]}, variants[-1]]  # dollars need a price
    assert len({ChatSpec.of(options).key for options in variants}) == len(variants)


def test_a_name_alone_and_overrides():
    assert ChatSpec.of("m") == ChatSpec(model="m")
    assert ChatSpec.of({"model": "m", "max_tokens": 5}, max_tokens=6).max_tokens == 6
    assert ChatSpec.of(ChatSpec(model="m"), temperature=0).temperature == 0
    assert ChatSpec(model="m", cache=Path("a") / "b").cache == "a/b"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modle": "m"}, "unknown option 'modle'; did you mean 'model'"),
        ({"model": "m", "xyz": 3}, "unknown option 'xyz'; there are: model"),
        ({}, "model: Field required"),
        ({"model": "m", "temperature": float("nan")}, "temperature"),
        ({"model": "m", "structured": "yaml"}, "structured: .*'json_schema'"),
        ({"model": "m", "base_url": "localhost:8000"}, "base_url: must look like http://host:port/v1"),
        ({"model": "m", "extra": {"temperature": 1}}, "which the client sends by itself"),
        ({"model": "m", "extra": {"x": {1, 2}}}, "extra: must be JSON"),
        ({"model": "m", "budget": {}}, "give 'tokens', 'dollars' or both"),
        ({"model": "m", "budget": {"tokns": 5}}, "budget: .*unknown option 'tokns'; did you mean 'tokens'"),
        ({"model": "m", "budget": {"dollars": 5}}, "needs 'price'"),
    ],
)
def test_errors_name_option_and_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        ChatSpec.of(options)


@pytest.mark.parametrize("value", [None, 3, ["m"], b"m"])
def test_what_is_no_spec(value):
    with pytest.raises(TypeError, match="a chat model is a name, a mapping"):
        ChatSpec.of(value)


SECRET = "sk-abcdefghijklmnop"


@pytest.mark.parametrize(
    "options",
    [{"api_key": SECRET}, {"api_key_env": SECRET}, {"apikey": SECRET}, {"base_url": f"https://me:{SECRET}@host/v1"}],
)
def test_key_in_spec_is_refused_unshown(options):
    with pytest.raises(ValueError, match="environment variable") as caught:
        ChatSpec(model="m", **options)
    error = caught.value
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


def test_where_the_key_comes_from(monkeypatch):
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY has no key"):
        ChatClient("m")
    with pytest.raises(ValueError, match="MY_KEY has no key"):
        ChatClient("m", base_url="http://localhost:1/v1", api_key_env="MY_KEY")
    ChatClient("m", base_url="http://localhost:1/v1")  # a service that needs none


def test_prices():
    price = Price(input=2.0, output=8.0, cached_input=0.5)
    assert price.of(Usage(1_000_000)) == 2.0
    assert price.of(Usage(0, 500_000)) == 4.0
    assert price.of(Usage(1_000_000, 0, cached_tokens=500_000)) == pytest.approx(1.25)
    assert Price(input=2.0, output=8.0).of(Usage(1_000_000, 0, cached_tokens=500_000)) == 2.0
