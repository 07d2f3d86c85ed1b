"""Engines that cannot serve are refused with the reason, before any training."""

from __future__ import annotations

import pytest

from trainers.builders import SetupError
from trainers.builders.engines import check_engine
from trainers.command_line.load import resolve
from trainers.config import PPOConfig
from trainers.config.engine import VLLM_MIN_TEMPERATURE


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["engine.name=sglang"], "engine.name=sglang: sglang is not installed here.*make venv-sglang"),
        (["engine.name=sglang", "engine.sglang.python=/nowhere"], "there is no Python at /nowhere"),
        (["engine.name=vllm", "engine.vllm.python=/nowhere"], "there is no Python at /nowhere; `make venv-vllm`"),
    ],
)
def test_unusable_engines_are_refused_before_training(arguments: list[str], wrong: str) -> None:
    config, _ = resolve(arguments, PPOConfig)
    with pytest.raises(SetupError, match=wrong):
        check_engine(config)


def test_options_of_another_engine_are_an_error() -> None:
    from trainers.command_line import ConfigError

    for arguments, key in (
        (["engine.sglang.seeds=false"], "engine.sglang.seeds"),
        (
            ["engine.name=vllm", "engine.vllm.base_url=[http://x, host:1]"],
            "engine.vllm.base_url.*must begin with http://",
        ),
        (["engine.name=sglang", "engine.sglang.base_url=http://x", "engine.sglang.python=p"], "engine.sglang.python"),
        (["engine.name=sglang", "rollout.min_p=0.1"], "rollout.min_p"),
        (["engine.name=vllm", f"rollout.temperature={VLLM_MIN_TEMPERATURE / 2}"], "rollout.temperature"),
        (
            ["multiturn_reward.enable=true", "algorithm.gamma=0", "multiturn_reward.temperature=1e-6"],
            "multiturn_reward.temperature",
        ),
        (["engine.name=vllm", f"validation.temperature={VLLM_MIN_TEMPERATURE / 2}"], "validation.temperature"),
    ):
        with pytest.raises(ConfigError, match=key):
            resolve(arguments, PPOConfig)
    resolve(["engine.name=vllm", f"rollout.temperature={VLLM_MIN_TEMPERATURE}", "validation.temperature=0"], PPOConfig)
