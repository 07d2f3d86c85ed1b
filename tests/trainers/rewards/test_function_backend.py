"""A user's function behind the service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from textenvs.messages import assistant, user
from trainers.rewards import FunctionPool, RewardService, ScoringRequest, UnscoredError
from trainers.rewards.backends import FunctionBackend

FUNCTION = """
import os, time

def compute_score(data_source, solution_str, ground_truth, extra_info):
    if "die" in solution_str:
        os._exit(3)
    if "hang" in solution_str:
        time.sleep(1000)
    if "raise" in solution_str:
        raise KeyError("no such answer")
    if "nan" in solution_str:
        return float("nan")
    return {"score": len(solution_str) + 100 * len(extra_info["messages"]) + 1000 * extra_info.get("k", 0), "more": 1}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "score.py").write_text(FUNCTION)
    return tmp_path / "score.py"


def request(*replies: str, **more: Any) -> ScoringRequest:
    messages = [message for reply in replies for message in (user("question"), assistant(reply))]
    return ScoringRequest(tuple(messages), **more)


async def test_it_scores_the_policys_words_and_what_breaks_harms_itself_alone(path: Path) -> None:
    backend = FunctionBackend(FunctionPool(path, workers=2, timeout_s=1.0))
    settings = backend.model_options(retries=1)
    assert settings.concurrency == 2
    async with RewardService({"f": backend}, {"f": settings}) as service:
        asked = [
            request("ab", "cde"),
            request("ab", "cde", turn=0),
            request("ab", extra={"k": 2}),
            *map(request, ("die", "hang", "raise", "nan")),
            request("ab", turn=3),
        ]
        *good, died, hung, raised, nan, absent = await asyncio.gather(
            *(service.score("f", each) for each in asked), return_exceptions=True
        )
        assert good == [{"score": 2 + 2 + 3 + 400}, {"score": 2 + 400}, {"score": 2 + 200 + 2000}]
        for error, said in ((died, "exit code 3"), (hung, "1 s"), (raised, "no such answer"), (nan, "finite")):
            assert isinstance(error, UnscoredError)
            assert said in str(error)
        assert "tried 2 times" in str(died)
        assert "tried" not in str(hung), "it would take as long again"
        assert "no turn 3" in str(absent)
        assert await backend.healthy()
    assert not await backend.healthy()
