"""From the keys of a reward model to the options of what scores; nothing is loaded or asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textenvs.chat import ChatSpec

from ..config.reward_model import JudgeSection, RewardModelSection
from ..config.section import Section
from ..rewards.backends import ClassifierOptions, JudgeBackend, PoolingOptions


def backend_options(section: RewardModelSection, device: str) -> ClassifierOptions | PoolingOptions | JudgeBackend:
    """The options of a classifier or a service; a judge, which is nothing else.

    Raises:
        ValueError: They do not go together, or a judge has no key or no such rubric.
        ImportError: What a judge needs is not installed.
    """
    match section.kind:
        case "classifier":
            its = _values(section.classifier, without=("head", "replicas", "threads"))
            return ClassifierOptions(kind=section.classifier.head, device=device, **its)
        case "service":
            return PoolingOptions(**_values(section.service))
        case "judge":
            return _judge(section.judge)


def changes(section: RewardModelSection) -> dict[str, Any]:
    """How the service is to ask, where that is configured."""
    names = ("max_batch_size", "max_batch_tokens", "max_wait_s", "timeout_s", "retries", "patience_s", "cache_size")
    return {name: value for name in names if (value := getattr(section, name)) is not None}


def _judge(section: JudgeSection) -> JudgeBackend:
    said = {"model": section.model, "base_url": section.base_url}
    spec = ChatSpec.of({**section.chat, **{name: value for name, value in said.items() if value is not None}})
    return JudgeBackend(spec, **_values(section, without=("model", "base_url", "chat")))


def _values(section: Section, without: Sequence[str] = ()) -> dict[str, Any]:
    """The keys of a section, which are named as what reads them names them."""
    return {name: getattr(section, name) for name in type(section).model_fields if name not in without}
