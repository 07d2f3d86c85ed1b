"""A language model that names what the user did about the assistant's last reply, for users that do not say it.

Its score is the number of the move (:data:`textenvs.users.moves.MOVES`), which the trainer does not add to a reward: it
is the turn's move (:class:`trainers.rollout.rewards.NamedMove`). The verdict is parsed as strictly as all judges'.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from textenvs.judges.llm import LLMJudge, conversation_data
from textenvs.users.moves import MEANING, MOVES, Move

from ...config.reward_model import MoveJudgeSection
from ..service import ScoringRequest, UngradableError
from .judge import AskingBackend, spec_of, traits_of

_INSTRUCTIONS = "\n".join(
    (
        '"conversation" is what a user and an AI assistant said to each other. It ends with a message of the user. Name'
        " what the user does in that last message, about what the assistant said before it, in the user's own view:",
        "",
        *(f"{move}: {meaning};" for move, meaning in MEANING.items()),
        "",
        "Where several apply, name the one that the message is mainly about.",
    )
)


class _Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="why, in one sentence")
    move: Move = Field(description="what the user does, in one of these words")


class MoveBackend(AskingBackend):
    """Names the move of a conversation's last user message; what follows it is not shown.

    ``ValueError``: no such option of the client, or no key where one is needed. ImportError: the extra ``chat`` is not
    installed.
    """

    def __init__(self, options: MoveJudgeSection) -> None:
        spec = spec_of(options)
        judge = LLMJudge(spec, _INSTRUCTIONS, _Verdict, tries=options.tries, temperature=0.0)
        super().__init__(spec, traits_of(spec, judge.tries, 0.0, len(MOVES) - 1.0))
        self._judge = judge

    async def grade(self, request: ScoringRequest) -> float:
        roles = [message["role"] for message in request.messages]
        end = next((place for place in reversed(range(1, len(roles))) if roles[place] == "user"), 0)
        if "assistant" not in roles[:end]:
            raise UngradableError("no message of the user's answers the assistant, so it has no move")
        verdict = await self._judge.judge({"conversation": conversation_data(request.messages[: end + 1])})
        return float(MOVES.index(verdict.move))
