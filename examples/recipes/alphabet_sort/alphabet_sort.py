"""Names to sort in several turns: each turn brings more, and the reply is the whole list, sorted."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import gymnasium
import numpy as np

from textenvs import EpisodeState, Message, Messages, Task, TextEnv, Turn, always, user, visible_text
from textenvs.attack import user_texts

_NAMES = "Ada Bob Cal Dee Eva Fay Gil Hal Ida Joe Kim Leo Max Ned Pam Ray Sue Ted Una Zoe"
NAMES = _NAMES.split()


class Lists:
    """Drawn lists of names, an endless task set. One list in eight is held out for the split ``test``."""

    size = None

    def __init__(self, sizes: Sequence[int], split: str) -> None:
        self.sizes, self.split = tuple(sizes), split
        self.name = f"lists of names ({split})"

    def __getitem__(self, index: int) -> Task:
        rng = np.random.default_rng([index, self.split == "test"])
        while True:
            drawn = [NAMES[place] for place in rng.permutation(len(NAMES))[: sum(self.sizes)]]
            held_out = zlib.crc32(" ".join(sorted(drawn)).encode()) % 8 == 0
            if held_out == (self.split == "test"):
                break
        parts, start = [], 0
        for size in self.sizes:
            parts.append(drawn[start : start + size])
            start += size
        opening = user(f"Sort by the alphabet: {' '.join(parts[0])}")
        return Task(f"{self.split}/{index}", "alphabet-sort", (opening,), ground_truth=None, extra={"parts": parts})


@dataclass
class Progress(EpisodeState):
    """An episode with the number of lists that were right."""

    right: int = 0


def appended(conversation: Messages) -> str:
    """Return all names so far in the order in which they came."""
    return " ".join(word for text in user_texts(conversation) for word in text.split() if word in NAMES)


class AlphabetSort(TextEnv[Progress]):
    """Reward term of every turn: `sorted`, an equal share of 1, if the reply is the whole list in its order.

    A list that is nearly right earns nothing, so that neither the names as they came nor half a list pays. The episode
    is solved if all lists were right.

    Args:
        sizes: How many names each turn brings.
        split: ``"train"`` or ``"test"``: no set of names is in both.
        render_mode: As in :class:`~textenvs.TextEnv`.
    """

    state_type = Progress
    own_attacks = (
        always("as-they-came", "lists the names in the order in which they came", appended, fakes_solving=False),
        always("all", "lists every name that there is, sorted", " ".join(sorted(NAMES))),
    )

    def __init__(
        self,
        sizes: Sequence[int] = (2, 1),
        split: Literal["train", "test"] = "train",
        render_mode: str | None = None,
    ) -> None:
        self.turns = len(sizes)
        super().__init__(Lists(sizes, split), render_mode=render_mode)

    def _names(self, turns: int) -> list[str]:
        return [name for part in self.task.extra["parts"][:turns] for name in part]

    def respond(self, reply: Message) -> Turn:
        """Judge the list, and bring more names."""
        turn = self.state.assistant_turns
        right = visible_text(reply).split() == sorted(self._names(turn))
        self.state.right += right
        terms = {"sorted": right / self.turns}
        if turn == self.turns:
            return Turn(terms=terms, terminated=True, stop="solved" if self.state.right == self.turns else "wrong")
        return Turn([user(f"And {' '.join(self.task.extra['parts'][turn])}")], terms=terms)

    def demonstration(self, rng: np.random.Generator) -> str:
        """Sort the names so far."""
        return " ".join(sorted(self._names(self.state.assistant_turns + 1)))

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Put the new names at the end of the sorted ones, as they came."""
        turn = self.state.assistant_turns
        before = self._names(turn)
        return " ".join(sorted(before) + self._names(turn + 1)[len(before) :])


gymnasium.register("recipes/alphabet-sort", entry_point=f"{__name__}:AlphabetSort")
