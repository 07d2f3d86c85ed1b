"""Environments as interactions of verl 0.7, without verl: the same contract. tests/hosts/verl has it with verl's."""

import asyncio
import gc

import adapter_kit
import fragile_env
import interaction_kit
import pytest
from fragile_env import Fragile

from textenvs.env import EnvironmentFailure
from textenvs.integrations import EpisodeSpec, Session, SpecError
from textenvs.integrations.verl import TextEnvInteraction
from textenvs.messages import user


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_an_interaction_is_the_environment(env_id):
    """All episodes at once, in one interaction: they do not know of each other."""
    interaction = TextEnvInteraction({"name": "textenv"})
    episodes = adapter_kit.episodes(env_id, 12)

    async def together():
        return await asyncio.gather(*(interaction_kit.play(interaction, played) for played in episodes))

    for returned, played in zip(asyncio.run(together()), episodes, strict=True):
        interaction_kit.check(returned, played)


@pytest.fixture
def fragile():
    with fragile_env.registered():
        yield EpisodeSpec(fragile_env.ID, 0).to_row()


def say(interaction, name, text):
    return asyncio.run(interaction.generate_response(name, [{"role": "assistant", "content": text}]))


def test_of_two_that_start_one_name_at_once_one_is_refused(fragile, monkeypatch):
    """And nothing is left open, nor is the name taken by a start that came to nothing."""
    interaction = TextEnvInteraction({"environments": {fragile_env.ID: {}}})
    begin, fails = Session.aof, False

    async def slow(spec):
        await asyncio.sleep(0)
        if fails:
            raise EnvironmentFailure("user_failed", "no simulator")
        return await begin(spec)

    monkeypatch.setattr(Session, "aof", slow)

    async def both():
        starts = [interaction.start_interaction("mine", episode=fragile) for _ in range(2)]
        return await asyncio.gather(*starts, return_exceptions=True)

    first, second = asyncio.run(both())
    assert first == "mine"
    assert isinstance(second, ValueError)
    assert "already" in str(second)
    assert Fragile.open == 1
    asyncio.run(interaction.finalize_interaction("mine"))
    assert Fragile.open == 0
    fails = True
    assert all(isinstance(each, (EnvironmentFailure, ValueError)) for each in asyncio.run(both()))
    fails = False
    assert asyncio.run(interaction.start_interaction("mine", episode=fragile)) == "mine"
    asyncio.run(interaction.finalize_interaction("mine"))


@pytest.mark.parametrize(("word", "error"), [("fail", EnvironmentFailure), ("crash", ZeroDivisionError), ("end", None)])
def test_what_it_holds_is_released_without_being_finalized(word, error, fragile):
    """verl never finalizes an interaction."""
    interaction = TextEnvInteraction({"environments": {fragile_env.ID: {}}})
    name = asyncio.run(interaction.start_interaction(episode=fragile))
    assert say(interaction, name, "more") == (
        False,
        "And?",
        0.5,
        {"terms": {"reward": 0.5}, "stop": None, "terminated": False, "truncated": False},
    )
    assert Fragile.open == 1
    if error is None:
        assert say(interaction, name, word)[:3] == (True, "", 0.5)
        assert asyncio.run(interaction.calculate_score(name)) == 1.0
        with pytest.raises(KeyError, match="is over"):
            say(interaction, name, "more")
    else:
        with pytest.raises(error):
            say(interaction, name, word)
        with pytest.raises(KeyError, match="was never started"):
            say(interaction, name, "more")
    assert Fragile.open == 0
    asyncio.run(interaction.finalize_interaction(name))
    asyncio.run(interaction.finalize_interaction(name))
    with pytest.raises(KeyError, match="there is no interaction"):
        asyncio.run(interaction.calculate_score(name))


def test_episodes_that_verl_stops_by_its_own_limits_are_released_with_the_interaction(fragile):
    interaction = TextEnvInteraction({"environments": {fragile_env.ID: {}}})
    for _ in range(3):
        asyncio.run(interaction.start_interaction(episode=fragile))
    assert Fragile.open == 3
    del interaction
    gc.collect()
    assert Fragile.open == 0


def test_the_last_assistant_message_is_judged_whatever_stands_behind_it(fragile):
    interaction = TextEnvInteraction({"environments": {fragile_env.ID: {}}})
    name = asyncio.run(interaction.start_interaction("mine", episode=fragile, name="textenv"))
    assert name == "mine"
    parts = [{"type": "text", "text": "e"}, {"type": "text", "text": "nd"}]
    messages = [user("Well?"), {"role": "assistant", "content": parts}, user("ignored")]
    assert asyncio.run(interaction.generate_response(name, messages))[0] is True


def test_mistakes_are_named(fragile):
    with pytest.raises(ValueError, match=r"unknown keys \['model'\].*options belong to the rows"):
        TextEnvInteraction({"name": "textenv", "model": "gpt"})
    interaction = TextEnvInteraction({"environments": {fragile_env.ID: {}}})
    with pytest.raises(SpecError, match="interaction_kwargs has no 'episode'"):
        asyncio.run(interaction.start_interaction("a", name="textenv"))
    with pytest.raises(SpecError, match="interaction_kwargs.episode: not JSON"):
        asyncio.run(interaction.start_interaction("a", episode="{"))
    with pytest.raises(SpecError, match="a row may not name the environment"):
        asyncio.run(TextEnvInteraction({}).start_interaction("a", episode=fragile))
    asyncio.run(interaction.start_interaction("a", episode=fragile))
    with pytest.raises(ValueError, match="'a' already"):
        asyncio.run(interaction.start_interaction("a", episode=fragile))
    with pytest.raises(ValueError, match="no assistant message"):
        asyncio.run(interaction.generate_response("a", [user("Hello")]))
    asyncio.run(interaction.finalize_interaction("a"))
    assert Fragile.open == 0
