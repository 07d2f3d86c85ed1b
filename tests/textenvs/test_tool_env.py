"""Environments with tools: how a reply is taken, and that tools keep the contract of environments."""

import asyncio
import pickle
from dataclasses import dataclass, field

import pytest
from toy_envs import ToyTasks

from textenvs import EnvironmentFailure, TextVectorEnv, Turn
from textenvs.messages import assistant, system, user
from textenvs.tool_env import ToolEnv, ToolState
from textenvs.tools import FORMATS, ToolError, call, tool


@dataclass
class Chest(ToolState):
    things: list[str] = field(default_factory=list)


@tool
def put(state: Chest, thing: str) -> str:
    """Put something into the chest.

    Args:
        thing: What.
    """
    state.things.append(thing)
    if thing == "bomb":
        raise RuntimeError("boom")
    if thing == "ghost":
        raise ToolError("A ghost does not stay.")
    if thing == "hole":
        raise EnvironmentFailure("tool_failed", "the chest has a hole")
    return ", ".join(state.things)


@tool
async def put_later(state: Chest, thing: str) -> str:
    """Put something into the chest, in a moment.

    Args:
        thing: What.
    """
    await asyncio.sleep(0)
    return put.function(state, thing)


class Treasure(ToolEnv[Chest]):
    """Put the right word into the chest, then say so."""

    state_type = Chest
    term_names = ("correct", "effort")

    def __init__(self, tools=(put, put_later), **options):
        super().__init__(ToyTasks(), tools, **options)

    def answer(self, reply):
        solved = self.state.task.ground_truth in self.state.things
        if self.visible_reply(reply) != "done":
            return Turn([user("Say done.")], terms=self.terms())
        return Turn(terms=self.terms(correct=solved), terminated=True, stop="solved" if solved else "wrong")


class AsyncTreasure(Treasure):
    async def answer(self, reply):
        await asyncio.sleep(0)
        return super().answer(reply)

    async def after_tools(self, reply, results):
        await asyncio.sleep(0)
        return super().after_tools(reply, results)


every_kind = pytest.mark.parametrize("kind", [Treasure, AsyncTreasure])
every_format = pytest.mark.parametrize("name", FORMATS)
every_tool = pytest.mark.parametrize("which", ["put", "put_later"])


def started(kind=Treasure, **options):
    env = kind(**options)
    env.reset(seed=0)
    return env


@every_kind
@every_format
@every_tool
def test_the_same_episode_in_every_format(kind, name, which):
    env = started(kind, call_format=name)
    word = env.state.task.ground_truth
    calls = [call(which, thing="a rope"), call(which, thing=word)]
    conversation, reward, terminated, truncated, info = env.step(env.format.write("Two things.", calls))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["terms"] == {"correct": 0.0, "effort": 0.0}
    assert info["metrics"] == {"tool_calls": 2.0, "tool_errors": 0.0}
    results = [message["content"] for message in conversation[-2:] if message["role"] in ("tool", "user")]
    assert [line for text in results for line in text.replace("Observation: ", "").split("\n")][-2:] == [
        "a rope",
        f"a rope, {word}",
    ]
    assert env.state.calls_made == 2
    _, reward, terminated, _, info = env.step(env.format.write("done"))
    assert (reward, terminated, info["stop"]) == (1.0, True, "solved")
    assert info["metrics"] == {"tool_calls": 0.0, "tool_errors": 0.0}


def test_results_have_call_ids_of_the_episode():
    env = started()
    for turn in range(2):
        reply = env.format.write("", [call("put", thing="a"), call("no_tool")])
        conversation, *_ = env.step(reply + "<tool_call>broken</tool_call>")
        answers = conversation[-3:]
        assert [message["tool_call_id"] for message in answers] == [f"call_{3 * turn + i}" for i in range(3)]
        assert [message.get("name") for message in answers] == ["put", "no_tool", None]
    assert (env.state.calls_made, env.state.tool_errors) == (6, 4)


@every_format
def test_message_calls_keep_their_own_ids(name):
    env = started(call_format=name)
    made = [{**call("put", thing="a"), "id": "mine"}, {**call("put", thing="ghost"), "id": "yours"}]
    conversation, *_, info = env.step(assistant("", made))
    if name != "react":
        assert [message["tool_call_id"] for message in conversation[-2:]] == ["mine", "yours"]
    assert "A ghost does not stay." in conversation[-1]["content"]
    assert info["metrics"] == {"tool_calls": 2.0, "tool_errors": 1.0}


@every_tool
def test_the_chest_belongs_to_the_episode(which):
    env = started()
    put_in = lambda env, thing: env.step(env.format.write("", [call(which, thing=thing)]))[0][-1]["content"]  # noqa: E731
    put_in(env, "a")
    saved, fork = env.snapshot(), env.fork()
    assert put_in(fork, "b") == "a, b"
    assert put_in(env, "c") == "a, c"
    assert put_in(pickle.loads(pickle.dumps(fork)), "d") == "a, b, d"
    env.restore(pickle.loads(pickle.dumps(saved)))
    assert put_in(env, "e") == "a, e"
    env.reset(seed=1)
    assert env.state.things == []


class Fragile(Treasure):
    def after_tools(self, reply, results):
        raise RuntimeError("half-way")


@every_tool
def test_failed_turn_leaves_tools_unchanged(which):
    env = started(Fragile)
    with pytest.raises(RuntimeError, match="half-way"):
        env.step(env.format.write("", [call(which, thing="a")]))
    assert (env.state.things, env.state.calls_made, len(env.state.messages)) == ([], 0, 2)


@every_tool
def test_broken_tool_is_reported_to_the_policy(which):
    env = started()
    conversation, *_, info = env.step(env.format.write("", [call(which, thing="bomb")]))
    assert conversation[-1]["content"] == f"{which} failed: RuntimeError: boom"
    assert not info["failed"]
    _, reward, terminated, truncated, info = env.step(env.format.write("", [call(which, thing="hole")]))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["stop"], info["failed"], info["failure"]) == ("tool_failed", True, "the chest has a hole")


def test_system_prompt_lists_the_tools():
    (first, *_), _ = Treasure(system_prompt="Be brief.").reset(seed=0)
    assert first["role"] == "system"
    assert first["content"].startswith("Be brief.\n\n")
    assert '"name": "put_later"' in first["content"]
    (first, *_), _ = Treasure().reset(seed=0)
    assert first["role"] == "system"
    for options in ({"call_format": "native"}, {"tools_in_prompt": False}, {"tools": ()}):
        (first, *_), _ = Treasure(**options).reset(seed=0)
        assert first["role"] == "user"
    assert [schema["function"]["name"] for schema in Treasure().tool_schemas] == ["put", "put_later"]


def test_an_openings_own_system_message_is_extended():
    class Spoken(Treasure):
        def opening(self, task):
            return [system("You guard a chest."), *task.prompt]

    conversation, _ = Spoken(system_prompt="unused").reset(seed=0)
    assert [message["role"] for message in conversation] == ["system", "user"]
    assert conversation[0]["content"].startswith("You guard a chest.\n\n")
    assert "put_later" in conversation[0]["content"]


def test_results_do_not_use_up_the_users_turns():
    env = started(max_user_turns=1)
    for _ in range(3):
        *_, truncated, info = env.step(env.format.write("", [call("put", thing="a")]))
        assert not truncated
    assert info["user_turns"] == 0


def test_many_environments_together():
    envs = TextVectorEnv.of(Treasure(), 3)
    envs.reset(seed=0)
    write = envs.envs[0].format.write
    replies = [write("", [call(which, thing="a")] * n) for n, which in ((1, "put"), (2, "put_later"), (3, "put"))]
    conversations, *_ = envs.step(replies)
    assert [conversation[-1]["content"] for conversation in conversations] == ["a", "a, a", "a, a, a"]


def test_what_does_not_fit_together_is_refused():
    class Stranger(ToolEnv):
        pass

    with pytest.raises(ValueError, match="'put' is given a Chest.*state_type"):
        Stranger(ToyTasks(), [put])
    with pytest.raises(ValueError, match="call_format must be one of hermes"):
        Treasure(call_format="morse")
    with pytest.raises(ValueError, match="no reward term"):
        started().terms(correkt=1.0)
    env = Stranger(ToyTasks(), [])
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="answer"):
        env.step("done")
