"""A chat service is something to evaluate: it answers, and refuses what training needs, with the reason."""

from __future__ import annotations

import pytest
from fake_service import FakeService

from textenvs.messages import user
from trainers.builders.engines import check_engine
from trainers.builders.errors import SetupError
from trainers.config import PPOConfig
from trainers.config.load import resolve
from trainers.engines.base import EngineError, Sampling
from trainers.engines.openai_compatible import OpenAICompatibleEngine

pytest.importorskip("openai", reason="needs the extra 'chat'")


async def test_it_answers_and_cannot_be_trained_on() -> None:
    with FakeService("forty-two") as service:
        engine = OpenAICompatibleEngine({"model": "tiny", "base_url": service.url})
        sampling = Sampling(temperature=0.5, max_new_tokens=7, seed=3)
        assert await engine.reply([user("six times seven?")], sampling) == "forty-two"
        sent = service.requests[-1]
        assert (sent["temperature"], sent["max_completion_tokens"], sent["seed"]) == (0.5, 7, 3)
        with pytest.raises(ValueError, match="top_k=5"):
            await engine.reply([user("again?")], Sampling(top_k=5))
        with pytest.raises(EngineError, match="without token ids.*textenvs evaluate"):
            await engine.generate([1, 2], Sampling())
        with pytest.raises(EngineError, match="nothing can be trained"):
            await engine.update_weights({}, 1)
        await engine.close()


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["engine.name=openai"], "engine.name=openai: .*without token ids"),
        (["engine.name=sglang"], "engine.name=sglang: SGLang is not installed here.*make venv-sglang"),
        (["engine.name=sglang", "engine.sglang.python=/nowhere"], "there is no Python at /nowhere"),
        (["engine.name=sglang", "engine.sglang.base_url=host:1"], "must begin with http://"),
    ],
)
def test_what_cannot_serve_is_found_before_anything_is_trained(arguments: list[str], wrong: str) -> None:
    config, _ = resolve(arguments, PPOConfig)
    with pytest.raises(SetupError, match=wrong):
        check_engine(config)


def test_options_of_another_engine_are_an_error() -> None:
    from trainers.config import ConfigError

    for arguments, key in (
        (["engine.sglang.seeds=false"], "engine.sglang.seeds"),
        (["engine.name=sglang", "engine.sglang.base_url=http://x", "engine.sglang.python=p"], "engine.sglang.python"),
        (["engine.name=sglang", "rollout.min_p=0.1"], "rollout.min_p"),
    ):
        with pytest.raises(ConfigError, match=key):
            resolve(arguments, PPOConfig)
