"""Random programs through the gateway, the engine and the learner (benchmarks.random_programs), and a planted fault."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.random_programs import KINDS, TEXTS, VOCABULARY, WAYS, played
from trainers.engines.base import Generation
from trainers.models import tiny
from trainers.rollout.episode_tokens import EpisodeTokens


def test_programs_tokens_are_those_of_the_engine() -> None:
    totals = asyncio.run(played(range(8), 8))
    assert totals.counts["programs"] == 8
    # Every kind of call was made; else these seeds prove less than they seem to.
    assert {*KINDS, *WAYS, "parallel", "cancel", "tool calls"} <= totals.counts.keys()
    assert max(totals.contexts) > 1


@pytest.mark.slow
def test_many_programs_tokens_are_those_of_the_engine() -> None:
    assert asyncio.run(played(range(1000, 1500), 16)).counts["programs"] == 500


def test_tokenised_again_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    original, tokenizer = EpisodeTokens.reply, tiny.build_tokenizer(TEXTS, VOCABULARY)

    def reply(self: EpisodeTokens, generation: Generation, message: Any = None) -> str:
        ids = np.array(tokenizer.encode(tokenizer.decode(generation.token_ids), add_special_tokens=False), np.int32)
        size = min(len(ids), len(generation.token_ids))
        parts = {name: getattr(generation, name)[:size] for name in ("logprobs", "weight_version")}
        return original(self, replace(generation, token_ids=ids[:size], **parts), message)

    monkeypatch.setattr(EpisodeTokens, "reply", reply)
    with pytest.raises(AssertionError, match="sampled tokens differ"):
        asyncio.run(played(range(2), 2))
