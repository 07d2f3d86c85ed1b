"""Generated worlds as text pages: the same tasks, seen and changed by links, fields and buttons."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ...data.sources import Source
from ...env import EpisodeState
from ...messages import Message, system, text_of
from ...options import PositiveInt, checked
from ...task import Task
from ..worlds.env import Worlds
from ..worlds.tools import PAGE, ToolKit, make_kit
from .attacks import ATTACKS
from .browser import INTRODUCTION, TOOLS, WebState, begin
from .expert import actions_for

#: Records on a page of a list, at most.
MAX_PAGE_SIZE = 100
_FEW_TURNS, _MANY_TURNS = 60, 120


class WorldsWeb(Worlds):
    """Serve a user in a world of applications that is seen as text pages, through a small browser.

    The worlds, tasks, users, rewards and ends are those of :class:`~textenvs.envs.worlds.Worlds`. Instead of the tools
    of each world there are five, the same everywhere: ``open`` a link or an address, ``fill`` a field, ``press`` a
    button, ``back``, and ``finish``. To open a list or a record and to press a button are calls of the world's tools,
    so they fail, count and change what those do.

    Args:
        tasks: As in ``Worlds``; rows of ``Worlds`` are tasks here, too.
        page_size: Records on a page of a list, from 1 to 100.
        max_assistant_turns: How many replies there are; ``None`` for no limit; ``"level"`` (the default): 60, or 120
            at the level ``"hard"`` and for ``tasks``.
        **options: As in ``Worlds``. ``call_format`` may be ``"native"``: the tools are the same in all worlds.

    Raises:
        ValueError: As ``Worlds``, or a size outside the above.
    """

    state_type: ClassVar[type[EpisodeState]] = WebState
    own_attacks = ATTACKS
    tools_differ: ClassVar[bool] = False
    state: WebState

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        page_size: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = PAGE,
        max_assistant_turns: PositiveInt | Literal["level"] | None = "level",
        **options: Any,
    ) -> None:
        if max_assistant_turns == "level":
            max_assistant_turns = _FEW_TURNS if tasks is None and options.get("level") != "hard" else _MANY_TURNS
        super().__init__(tasks, max_assistant_turns=max_assistant_turns, **options)
        self.page_size = page_size

    @property
    def kit(self) -> ToolKit:
        """The tools of all worlds."""
        return _kit(self.call_format, self.max_calls_per_turn)

    def opening(self, task: Task) -> Sequence[Message]:
        rules, *messages = super().opening(task)
        self.state.page_size = self.page_size
        introduction = INTRODUCTION if self.prompt == "full" else ""
        return system(f"{text_of(rules)}\n\n{introduction}{begin(self.state)}"), *messages

    def _written(self, move: Any) -> str | Message:
        if isinstance(move, str):
            return move
        return self.format.write("", actions_for(self.state, move)[: self.max_calls_per_turn])


@functools.cache
def _kit(call_format: str, max_calls_per_turn: int) -> ToolKit:
    return make_kit(TOOLS, call_format, max_calls_per_turn)
