"""A language model that judges conversations by a rubric, behind any OpenAI-compatible chat service.

Its verdict is read as strictly as all judges' here (:mod:`textenvs.judges.llm`): one JSON object and nothing else, with
the code of the data that it is about. A judge that answers in prose is asked once more, with what was wrong; after that
the request has no score. No number is ever looked for inside of a text.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from textenvs.chat import (
    BudgetExceeded,
    CacheError,
    ChatClient,
    ChatSpec,
    InvalidReply,
    PromptTooLong,
    SpecLike,
    client_for,
)
from textenvs.chat.spec import LONGEST_WAIT_S
from textenvs.env import EnvironmentFailure
from textenvs.judges.llm import LLMJudge, conversation_data
from textenvs.options import PositiveInt, Weight, checked

from ..service import BackendError, ModelOptions, OutageError, ScoringRequest
from .conversation import replies

#: Rubrics that have a name.
RUBRICS = {path.stem: path for path in sorted((Path(__file__).parent / "rubrics").glob("*.txt"))}


class JudgeBackend:
    """Scores conversations with a judge.

    Args:
        model: A :class:`~textenvs.chat.ChatSpec`, a mapping of its options, or a model's name.
        rubric: A name in :data:`RUBRICS`, or a text file with instructions; ``{low}`` and ``{high}`` in it stand for
            the range. It speaks of ``"conversation"``, and of ``"reference"`` if it is to see the ground truth.
        low: The worst score.
        high: The best score.
        votes: Verdicts on each request; all must be had.
        vote: What becomes of them: their ``mean`` or their ``median``.
        tools: Whether the judge sees tool calls and their results.
        tries: How often the model is asked for one verdict, at most.

    Attributes:
        needs_reference: Whether the rubric compares with the task's ground truth.

    Raises:
        ValueError: An option outside the above, no such rubric, several votes at a temperature of 0 (which are one), or
            no key where one is needed.
        ImportError: The extra ``chat`` is not installed.
    """

    @checked
    def __init__(
        self,
        model: SpecLike,
        *,
        rubric: str = "helpful",
        low: Weight = 0.0,
        high: Weight = 1.0,
        votes: PositiveInt = 1,
        vote: Literal["mean", "median"] = "mean",
        tools: bool = False,
        tries: int = 2,
    ) -> None:
        self._spec = ChatSpec.of(model)
        if not low < high:
            raise ValueError(f"low ({low}) must be below high ({high})")
        if votes > 1 and self._spec.temperature == 0:
            raise ValueError(f"{votes} votes at a temperature of 0 are one; raise the judge's temperature, or votes=1")
        self.low, self.high = float(low), float(high)
        self._votes, self._vote, self._tools = votes, vote, tools
        text = _rubric(rubric)
        self.needs_reference = '"reference"' in text
        instructions = text.replace("{low}", f"{low:g}").replace("{high}", f"{high:g}")
        ChatClient(self._spec)  # a key that is missing is found now
        # Several votes are worth asking for only where they may differ.
        self._judge = LLMJudge(
            self._spec,
            instructions,
            _verdict(self.low, self.high),
            tries=tries,
            temperature=0.0 if votes == 1 else 1.0,
        )

    def model_options(self, **changes: Any) -> ModelOptions:
        """How the service had best ask: each request by itself, many at a time; and the range."""
        spec = self._spec
        longest = (spec.max_retries + 1) * (spec.timeout_s + LONGEST_WAIT_S) * self._judge.tries
        best = ModelOptions(
            max_batch_size=1,
            max_wait_s=0.0,
            concurrency=spec.concurrency,
            timeout_s=longest,
            low=self.low,
            high=self.high,
        )
        return dataclasses.replace(best, **changes)

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        """See :class:`~trainers.rewards.RewardBackend`."""
        return await asyncio.gather(*map(self._one, requests))

    async def _one(self, request: ScoringRequest) -> float | BackendError:
        try:
            data = self._data(request)
            # A vote's tries are samples of their own, so the votes' first ones are that far apart.
            verdicts = [self._judge.judge(data, sample=vote * self._judge.tries) for vote in range(self._votes)]
            scores = [verdict.score for verdict in await asyncio.gather(*verdicts)]
        except BackendError as error:
            return error
        except EnvironmentFailure as error:
            if isinstance(error.__cause__, InvalidReply | PromptTooLong):
                return BackendError(f"the judge gave no verdict: {error}", final=True)
            return OutageError(f"the judge could not be asked: {error}")
        except (BudgetExceeded, CacheError, ValueError) as error:  # nothing of this passes with time
            return BackendError(f"{type(error).__name__}: {error}", final=True)
        return statistics.fmean(scores) if self._vote == "mean" else statistics.median(scores)

    def _data(self, request: ScoringRequest) -> dict[str, Any]:
        last = replies(request)[-1]
        # A whole conversation is judged with what the user said in the end; a turn, by what was known then.
        messages = request.messages if request.turn is None else request.messages[: last + 1]
        data: dict[str, Any] = {"conversation": conversation_data(messages, tools=self._tools)}
        if self.needs_reference:
            if request.ground_truth is None:
                raise BackendError("the rubric compares with a reference, and the task has no ground truth", final=True)
            data["reference"] = request.ground_truth
        return data

    async def healthy(self) -> bool:
        """Whether the service answers at all."""
        return await (await client_for(self._spec)).answers()

    async def close(self) -> None:
        """Nothing: the client is shared, and closed with the event loop."""


def _rubric(rubric: str) -> str:
    path = RUBRICS.get(rubric) or Path(rubric).expanduser()
    if not path.is_file():
        raise ValueError(f"rubric must be one of {', '.join(RUBRICS)}, or a file; there is no file {rubric}")
    text = path.read_text(encoding="utf-8").removesuffix("\n")
    if not text.strip():
        raise ValueError(f"rubric: {path} is empty")
    return text


class _Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="why, in one to three sentences")
    score: float


@functools.lru_cache(maxsize=64)
def _verdict(low: float, high: float) -> type[_Verdict]:
    bounds: Any = (float, Field(ge=low, le=high, description=f"from {low:g} to {high:g}"))
    return create_model("Verdict", __base__=_Verdict, score=bounds)
