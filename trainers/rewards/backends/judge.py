"""A language model that judges conversations by a rubric, behind any OpenAI-compatible chat service.

Its verdict is parsed as strictly as all judges' (:mod:`textenvs.judges.llm`): one JSON object and nothing else, with
the code of its data. A judge that answers in prose is asked once more; then there is no score.
"""

from __future__ import annotations

import asyncio
import functools
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from textenvs.bounded_files import read_text
from textenvs.chat import BudgetExceeded, CacheError, ChatClient, ChatSpec, InvalidReply, PromptTooLong, client_for
from textenvs.chat.spec import LONGEST_WAIT_S
from textenvs.env import EnvironmentFailure
from textenvs.judges.llm import LLMJudge, conversation_data

from ...config.reward_model import AskedModelSection, JudgeSection
from ..service import BackendError, OutageError, ScoringRequest, Traits, UngradableError
from .conversation import replies

#: The named rubrics.
RUBRICS = {path.stem: path for path in sorted((Path(__file__).parent / "rubrics").glob("*.txt"))}


def spec_of(options: AskedModelSection) -> ChatSpec:
    """Return the chat service of a section; ``ValueError``: an option of the client is none, or a key is missing."""
    named = {"model": options.model, "base_url": options.base_url}
    spec = ChatSpec.of({**options.chat, **{name: value for name, value in named.items() if value is not None}})
    ChatClient(spec)  # report a missing key now
    return spec


def traits_of(spec: ChatSpec, tries: int, low: float, high: float) -> Traits:
    """Return the traits of a backend with scores from ``low`` to ``high``: single requests, many at a time."""
    timeout_s = (spec.max_retries + 1) * (spec.timeout_s + LONGEST_WAIT_S) * tries
    return Traits(spec.concurrency, low, high, {"max_batch_size": 1, "max_wait_s": 0.0, "timeout_s": timeout_s})


class AskingBackend(ABC):
    """A backend that asks a chat service about each request by itself."""

    def __init__(self, spec: ChatSpec, traits: Traits) -> None:
        self._spec, self.traits = spec, traits

    @abstractmethod
    async def grade(self, request: ScoringRequest) -> float:
        """Return the score of a request; exceptions are those of :class:`~textenvs.judges.llm.LLMJudge`."""

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        return await asyncio.gather(*map(self._one, requests))

    async def _one(self, request: ScoringRequest) -> float | BackendError:
        try:
            return await self.grade(request)
        except BackendError as error:
            return error
        except EnvironmentFailure as error:
            if isinstance(error.__cause__, InvalidReply | PromptTooLong):
                return UngradableError(f"the judge gave no verdict: {error}")
            return OutageError(f"the judge could not be asked: {error}")
        except (BudgetExceeded, CacheError, ValueError) as error:  # none of these is temporary
            return BackendError(f"{type(error).__name__}: {error}", final=True)

    async def healthy(self) -> bool:
        return await (await client_for(self._spec)).answers()

    async def close(self) -> None:  # noqa: B027 (there is nothing to close, in any of them)
        """Nothing: the client is shared, and closed with the event loop."""


class JudgeBackend(AskingBackend):
    """Scores conversations with a judge.

    ``{low}`` and ``{high}`` in a rubric stand for the range; it mentions ``"conversation"``, and ``"reference"`` if
    it needs the ground truth (``needs_reference``). ``ValueError``: no such rubric or option of the client, several
    votes at a temperature of 0, or no key where one is needed. ImportError: the extra ``chat`` is not installed.
    """

    def __init__(self, options: JudgeSection) -> None:
        if not options.low < options.high:
            raise ValueError(f"low ({options.low}) must be below high ({options.high})")
        text, spec = _rubric(options.rubric), spec_of(options)
        if options.votes > 1 and spec.temperature == 0:
            raise ValueError(
                f"{options.votes} votes at a temperature of 0 are one; raise the judge's temperature, or votes=1"
            )
        self._options = options
        self.needs_reference = '"reference"' in text
        self._judge = LLMJudge(
            spec,
            text.replace("{low}", f"{options.low:g}").replace("{high}", f"{options.high:g}"),
            _verdict(float(options.low), float(options.high)),
            tries=options.tries,
            # Several votes are worth asking for only where they may differ.
            temperature=0.0 if options.votes == 1 else 1.0,
        )
        super().__init__(spec, traits_of(spec, self._judge.tries, options.low, options.high))

    async def grade(self, request: ScoringRequest) -> float:
        data = self._data(request)
        # A vote's tries are samples of their own, so the votes' first ones are that far apart.
        verdicts = [self._judge.judge(data, sample=vote * self._judge.tries) for vote in range(self._options.votes)]
        scores = [verdict.score for verdict in await asyncio.gather(*verdicts)]
        return statistics.fmean(scores) if self._options.vote == "mean" else statistics.median(scores)

    def _data(self, request: ScoringRequest) -> dict[str, Any]:
        last = replies(request)[-1]
        # A whole conversation is judged with the user's last message; a turn, without later messages.
        messages = request.messages if request.turn is None else request.messages[: last + 1]
        data: dict[str, Any] = {"conversation": conversation_data(messages, tools=self._options.tools)}
        if self.needs_reference:
            if request.ground_truth is None:
                raise BackendError("the rubric compares with a reference, and the task has no ground truth", final=True)
            data["reference"] = request.ground_truth
        return data


def _rubric(rubric: str) -> str:
    path = RUBRICS.get(rubric) or Path(rubric).expanduser()
    if not path.is_file():
        raise ValueError(f"rubric must be one of {', '.join(RUBRICS)}, or a file; there is no file {rubric}")
    text = read_text(path).removesuffix("\n")
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
