"""How well an assistant works with its user: CollabLLM's interactivity (ITR), in 0..1 (arXiv 2502.00640, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from ..chat.spec import SpecLike
from ..messages import Messages
from .datablock import conversation_data
from .llm import LLMJudge

_INSTRUCTIONS = """\
"conversation" is what a user and an AI assistant said to each other. Judge the assistant's side of it, and only how \
interactive it is: whether it engages with this user, is clear, and finds out what the user needs. Whether its answers \
are right is not the question.

Score from 0 to 1; values in between are welcome:
1: it asks what it has to know, builds on what the user says, and so gets the two of them forward;
0.5: it engages now and then, but misses questions it should ask, or is hard to follow;
0: it does not engage: it ignores what the user says, or answers at length without knowing what is wanted."""


class Interactivity(BaseModel):
    """The verdict."""

    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="why, in one to three sentences")
    score: float = Field(ge=0, le=1, description="interactivity, from 0 to 1")


@dataclass(frozen=True)
class InteractivityJudge:
    """Scores the assistant's side of a conversation in 0..1; called with one, it is a judge for looking ahead.

    Args:
        model: A :class:`~textenvs.chat.spec.ChatSpec`, a mapping of its options, or a model's name.
        tries: How often the model is asked for one verdict, at most.
        tools: Whether the judge sees tool calls and their results.
    """

    model: SpecLike
    tries: int = 3
    tools: bool = False

    def __post_init__(self) -> None:
        self._judge()  # a bad option is found now

    async def score(self, conversation: Messages, *, sample: int = 0) -> float:
        """The interactivity of a conversation; private reasoning and system messages are not shown to the judge.

        Raises:
            EnvironmentFailure: ``"judge_failed"``: no verdict after all tries.
            BudgetExceeded, CacheError: For the run to stop at.
        """
        shown = conversation_data(conversation, tools=self.tools)
        return (await self._judge().judge({"conversation": shown}, sample=sample)).score

    async def __call__(self, conversation: Messages) -> float:
        """As :meth:`score`."""
        return await self.score(conversation)

    def _judge(self) -> LLMJudge[Interactivity]:
        return LLMJudge(self.model, _INSTRUCTIONS, Interactivity, tries=self.tries)
