"""TRL's environment_factory: an environment's tools as methods, through TRL's own loop over tool calls."""

import json
import sys
from pathlib import Path
from typing import Any, Literal

import adapter_kit
import pytest
from transformers.utils import get_json_schema

sys.path.insert(0, str(Path(__file__).parents[2] / "trainers"))  # where TRL's trainer is set up for tests
from trl_runs import Scripted, batch, script, tiny_policy, trl_trainer

import textenvs
from textenvs.env import EnvironmentFailure
from textenvs.integrations import EpisodeSpec, SpecError
from textenvs.integrations.trl import _method, dataset_of, environment_class, environment_reward

NATIVE = {"tools_in_prompt": False}  # the chat template describes them


def called(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def through_trl(folder, plays, factory, replies, reward_funcs):
    """One rollout of TRL's for each play, with scripted words; the environments, the completions and the rewards."""
    from trl.chat_template_utils import qwen3_chat_template

    model, tokenizer = tiny_policy()
    tokenizer.chat_template = qwen3_chat_template
    trainer = trl_trainer(
        folder,
        dataset_of(played.spec for played in plays),
        kind=Scripted,
        policy=(model, tokenizer),
        options={"reward_funcs": reward_funcs, "environment_factory": factory},
        per_device_train_batch_size=2 * len(plays),
    )
    trainer.scripts = [
        script(
            tokenizer,
            played,
            answers,
            tools=trainer.tools,
            chat_template=trainer.chat_template or tokenizer.chat_template,
        )
        for played, answers in zip(plays, replies, strict=True)
    ]
    batch(trainer)
    return trainer


def test_tool_calls_by_trl_equal_direct_calls(tmp_path):
    specs = [EpisodeSpec("textenv/gsm8k-tool", seed, NATIVE) for seed in range(10)]
    plays = [adapter_kit.direct(spec, good=0.5, careless=0.5) for spec in specs]
    factory = environment_class("textenv/gsm8k-tool", env_kwargs=NATIVE)
    trainer = through_trl(tmp_path, plays, factory, [played.replies for played in plays], environment_reward)
    assert {played.stop for played in plays} >= {"solved", "wrong"}
    for number, played in enumerate(plays):
        environment = trainer.environments[2 * number]
        session = environment.session
        assert [turn.text for turn in session.turns] == [
            "\n\n".join(m["content"] for m in messages) for messages in played.observations
        ]
        assert session.turn_rewards == played.rewards
        assert session.stop == played.stop
        last = session.turns[-1]
        assert (last.terminated, last.truncated) == (played.terminated, played.truncated)
        assert trainer._logs["rewards"]["environment_reward"][2 * number] == pytest.approx(sum(played.rewards))
        results = [m["content"] for m in trainer._logs["completion"][2 * number] if m["role"] == "tool"]
        assert results[: len(played.observations)] == [
            messages[0]["content"] for messages in played.observations if messages
        ]
    assert "terms/correct" in trainer._metrics["train"]


@pytest.mark.parametrize("env_id", ["textenv/gsm8k-interact", "textenv/clarify"])
def test_a_simulated_user_is_asked_by_calls(env_id, tmp_path, monkeypatch):
    """The same words give the same answers and rewards; what differs is that words are arguments of a call."""
    # A call within a call's argument is cut at the wrong end by TRL's parser.
    monkeypatch.setattr(
        adapter_kit, "NONSENSE", tuple(nonsense for nonsense in adapter_kit.NONSENSE if "<" not in nonsense)
    )
    plays = [adapter_kit.direct(EpisodeSpec(env_id, seed)) for seed in range(8)]
    replies = [
        [
            called("submit", answer=reply) if "####" in reply else called("ask_user", message=reply)
            for reply in p.replies
        ]
        for p in plays
    ]
    trainer = through_trl(tmp_path, plays, environment_class(env_id), replies, None)
    name = type(trainer.environments[0]).__name__
    for number, played in enumerate(plays):
        session = trainer.environments[2 * number + 1].session
        turns = [played.opening, *played.observations]
        assert [message for message in session.messages if message["role"] != "assistant"] == [
            message for messages in turns for message in messages
        ]
        assert session.turn_rewards == played.rewards
        assert session.stop == played.stop
        assert trainer._logs["rewards"][name][2 * number + 1] == pytest.approx(sum(played.rewards))


# ------------------------------------------------------------------ methods from schemas


@pytest.mark.parametrize("env_id", ["textenv/gsm8k-tool", "textenv/search-qa", "textenv/service-desk"])
def test_method_schemas_equal_environment_schemas(env_id):
    env = textenvs.make(env_id)
    instance = environment_class(env_id)()
    public = {name for name in dir(instance) if not name.startswith("_") and name != "session"}
    assert public == {"reset", *(tool.name for tool in env.tools)}
    for schema in env.tool_schemas:
        expected = schema["function"]
        actual = get_json_schema(getattr(instance, expected["name"]))["function"]
        assert actual["name"] == expected["name"]
        assert actual["description"] == expected["description"]
        properties = expected["parameters"].get("properties", {})
        assert set(actual["parameters"]["properties"]) == set(properties)
        assert set(actual["parameters"].get("required", [])) == set(expected["parameters"].get("required", []))
        for name, described in properties.items():
            property_schema = actual["parameters"]["properties"][name]
            assert property_schema["description"].split() == str(described.get("description") or name).split()
            if isinstance(described.get("type"), str):
                assert property_schema["type"] == described["type"]
    env.close()


def test_types_of_all_sorts_survive():
    parameters = {
        "type": "object",
        "properties": {
            "opt": {"type": "array", "items": {"type": "integer"}, "description": "Some.\nOf them.", "default": [1]},
            "kind": {"enum": ["a", "b"], "type": "string", "description": "Which."},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "both": {"type": ["integer", "string"]},
            "deep": {"type": "object", "additionalProperties": {"type": "integer"}},
            "free": {"description": "Anything."},
        },
        "required": ["kind", "both"],
    }
    method = _method({"name": "f", "description": "Does it.", "parameters": parameters})
    assert method.__annotations__ == {
        "kind": Literal["a", "b"],
        "both": int | str,
        "opt": list[int],
        "either": str | None,
        "deep": dict,
        "free": Any,
        "return": str,
    }
    made = get_json_schema(method.__get__(object()))["function"]["parameters"]
    assert made["required"] == ["kind", "both"]
    assert made["properties"]["opt"] == {"type": "array", "items": {"type": "integer"}, "description": "Some. Of them."}
    assert made["properties"]["kind"]["enum"] == ["a", "b"]


# ------------------------------------------------------------------ the contract


def row_of(spec):
    return dataset_of([spec])[0]


def test_reset_adds_only_a_missing_opening():
    environment = environment_class("textenv/clarify")()
    row = row_of(EpisodeSpec("textenv/clarify", 3))
    assert environment.reset(**row) is None
    opening = environment.reset(**{**row, "prompt": [{"role": "user", "content": ""}]})
    assert opening == row["prompt"][-1]["content"]
    assert environment.session.messages[-1]["content"] == opening


def test_an_environment_begins_anew_and_forgets():
    environment = environment_class("textenv/gsm8k-interact")()
    with pytest.raises(RuntimeError, match="no episode has begun"):
        environment.get_reward()
    environment.reset(**row_of(EpisodeSpec("textenv/gsm8k-interact", 0)))
    assert environment.submit("#### 1")
    first = environment.session
    environment.reset(**row_of(EpisodeSpec("textenv/gsm8k-interact", 1)))
    assert first.closed
    assert environment.get_reward() == 0.0
    environment.reset(**row_of(EpisodeSpec("textenv/gsm8k-interact", 1, {"max_assistant_turns": 1})))
    environment.submit("#### -1")
    assert environment.submit("#### -1") == "The episode is over."
    assert len(environment.session.turns) == 1


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"prompt": []}, "made with textenv_dataset"),
        ({"env": "textenv/clarify", "seed": 0}, "but this factory makes textenv/gsm8k-tool"),
        ({"env": "textenv/gsm8k-tool", "seed": 0}, "the chat template describes the tools here"),
    ],
)
def test_rows_of_something_else_are_refused(row, match):
    with pytest.raises(SpecError, match=match):
        environment_class("textenv/gsm8k-tool")().reset(**row)


def test_failed_episode_raises_without_reward(monkeypatch):
    environment = environment_class("textenv/gsm8k-interact")()
    row = row_of(EpisodeSpec("textenv/gsm8k-interact", 0))

    def fails(reply):
        raise EnvironmentFailure("user_failed", "gone")

    environment.reset(**row)
    monkeypatch.setattr(environment.session.env, "respond", fails)
    environment.ask_user("What?")
    assert environment.get_reward() is None
    assert environment_reward([[{"role": "assistant", "content": "x"}]], [environment]) == [None]

    def breaks(reply):
        raise KeyError("a bug")

    environment.reset(**row)
    monkeypatch.setattr(environment.session.env, "respond", breaks)
    with pytest.raises(KeyError):
        environment.ask_user("What?")
    with pytest.raises(RuntimeError, match="raised: 'a bug'"):
        environment.get_reward()


def test_the_last_reply_is_played_once():
    factory = environment_class("textenv/gsm8k-tool", env_kwargs=NATIVE)
    environment = factory()
    environment.reset(**row_of(EpisodeSpec("textenv/gsm8k-tool", 0, NATIVE)))
    completion = [{"role": "assistant", "content": "I do not know."}]
    first = environment_reward([completion], [environment])
    assert environment_reward([completion], [environment]) == first
    assert len(environment.session.turns) == 1


def test_names_that_trl_keeps_are_refused(monkeypatch):
    from textenvs.envs.gsm8k_tool import env as gsm8k_tool

    monkeypatch.setattr(gsm8k_tool.Gsm8kTool, "tool_schemas", [{"function": {"name": "reset", "parameters": {}}}])
    with pytest.raises(ValueError, match="no room for a tool of the name 'reset'"):
        environment_class("textenv/gsm8k-tool")
