"""The registry file: found, checked and registered with Gymnasium."""

import importlib
import json
import re
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from toy_envs import Guess

import textenvs
from textenvs import registry
from textenvs.registry import EnvironmentSpec, RegistryError

ROOT = Path(__file__).resolve().parents[2]
GOOD = "environments: {textenv/a-1: {version: 2, entry_point: 'toy_envs:Guess', description: A toy., kwargs: {x: [1]}}}"


def written(tmp_path, text):
    path = tmp_path / "envs_registry.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# ------------------------------------------------------------------ the file


def test_a_good_file(tmp_path):
    spec = EnvironmentSpec("textenv/a-1", 2, "toy_envs:Guess", "A toy.", {"x": [1]})
    assert registry.load(written(tmp_path, GOOD)) == {"textenv/a-1": spec}


def entry(**changes):
    fields = {"version": 1, "entry_point": "toy_envs:Guess", "description": "A toy."} | changes
    return json.dumps({"environments": {"textenv/a": {k: v for k, v in fields.items() if v is not ...}}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("environments: [", "expected the node content"),
        ("", "not subscriptable"),
        ("environments: [a]", "has no attribute 'items'"),
        ("environments: {a: {}}", "a: .*id\n.*match pattern"),
        ("environments: {textenv/a: 3}", "textenv/a: .*not a mapping"),
        (entry(max_episode_steps=5), "max_episode_steps\n.*Unexpected keyword"),
        (entry(version=...), "version\n.*required"),
        (entry(version="1"), "version\n.*valid integer"),
        (entry(entry_point="toy_envs:Guess()"), "entry_point\n.*should match pattern"),
        (entry(description=" "), "description"),
        (entry(extras=[1]), "extras"),
        (GOOD.replace("[1]", ".nan"), "JSON compliant"),
        ("environments: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_bad_file_names_path_and_entry(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(RegistryError, match=f"(?s){path}.*{message}"):
        registry.load(path)


def test_ids_are_unique_and_unversioned():
    path = next(place for place in registry.PLACES if place.is_file())
    ids = [
        line.strip(" :\n") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("  textenv/")
    ]
    assert len(ids) == len(set(ids)) == len(textenvs.list_environments(with_arguments=True))
    assert not [env_id for env_id in ids if re.fullmatch(r".*-v\d+", env_id)]


def test_missing_file_names_searched_places(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PLACES", (tmp_path / "in" / "x.yaml", tmp_path / "x.yaml"))
    with pytest.raises(RegistryError, match=f"looked at {tmp_path / 'in' / 'x.yaml'} and {tmp_path / 'x.yaml'}"):
        registry._shipped.__wrapped__()


# ------------------------------------------------------------------ registration


def test_entries_are_registered_without_step_limit():
    assert textenvs.list_environments()
    for env_id in textenvs.list_environments():
        spec, entry = gymnasium.spec(env_id), textenvs.describe(env_id)
        assert spec.entry_point == entry.entry_point
        assert spec.kwargs == entry.kwargs
        assert spec.nondeterministic == entry.nondeterministic
        assert spec.max_episode_steps is None
        assert EnvSpec.from_json(spec.to_json()) == spec


def test_registering_again_is_harmless_and_silent():
    before = dict(gymnasium.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        textenvs.register_all()
        importlib.reload(textenvs)
    assert dict(gymnasium.registry) == before


def test_taken_id_is_not_replaced_silently():
    spec = EnvironmentSpec("textenv/taken", 1, "toy_envs:Guess", "Mine.")
    gymnasium.register("textenv/taken", "somebody.elses:Environment")
    try:
        with pytest.warns(UserWarning, match="Overriding environment textenv/taken"):
            textenvs.register_all({spec.id: spec})
    finally:
        del gymnasium.registry["textenv/taken"]


def test_arguments_of_the_registry_and_of_make():
    spec = EnvironmentSpec(
        "textenv/toy", 1, "toy_envs:Guess", "A toy.", {"max_assistant_turns": 2, "max_user_turns": 1}
    )
    textenvs.register_all({spec.id: spec})
    try:
        env = textenvs.make("textenv/toy", max_user_turns=3)
        assert type(env) is Guess
        assert (env.max_assistant_turns, env.max_user_turns) == (2, 3)
        assert env.spec.id == "textenv/toy"
        vector = gymnasium.make_vec("textenv/toy", num_envs=2, max_user_turns=3)
        assert [(e.max_assistant_turns, e.max_user_turns) for e in vector.envs] == [(2, 3)] * 2
    finally:
        del gymnasium.registry["textenv/toy"]


def test_unknown_ids_name_the_nearest():
    ids = {
        name: EnvironmentSpec(name, 1, "toy_envs:Guess", "A toy.")
        for name in ("textenv/near-one", "textenv/far-away-and-different")
    }
    textenvs.register_all(ids)
    try:
        for wrong in ("textenv/nearone", "textenv/near-on", "near-one"):
            with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean 'textenv/near-one'"):
                textenvs.make(wrong)
    finally:
        for name in ids:
            del gymnasium.registry[name]
    for ask in (textenvs.make, textenvs.describe):
        with pytest.raises(gymnasium.error.NameNotFound, match=textenvs.list_environments()[0]):
            ask("zzz")


def test_make_refuses_what_is_no_text_environment():
    with pytest.raises(TypeError, match="CartPoleEnv, not a TextEnv"):
        textenvs.make("CartPole-v1")
