"""Engines that cannot serve are refused with the reason, before any training."""

from __future__ import annotations

import pytest

from trainers.builders import SetupError
from trainers.builders.engines import check_engine
from trainers.command_line.load import resolve
from trainers.config import PPOConfig


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
