"""A frozen lake with holes: one step a turn, across the ice, after FrozenLake of Gymnasium."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import gymnasium
import numpy as np

from textenvs import EpisodeState, Message, Task, TextEnv, Turn, always, user, visible_text
from textenvs.task import Endless, Split, split_by_hash

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
RULES = (
    "Go from P to G, one step a turn: up, down, left or right. O is a hole. "
    "You see what is up, down, left and right of you."
)

Place = tuple[int, int]
START: Place = (0, 0)


@dataclass(frozen=True)
class Lake:
    """A square of ice with holes; the start is the upper left corner, and the goal the lower right one."""

    size: int
    holes: frozenset[Place]

    @property
    def goal(self) -> Place:
        """The corner to reach."""
        return self.size - 1, self.size - 1

    def after(self, place: Place, move: str) -> Place:
        """Return where a move leads; a move off the lake leads nowhere."""
        row, column = place[0] + MOVES[move][0], place[1] + MOVES[move][1]
        return (row, column) if 0 <= row < self.size and 0 <= column < self.size else place

    def distances(self) -> dict[Place, int]:
        """Return the number of steps to the goal from every place that is connected to it."""
        distances, queue = {self.goal: 0}, deque([self.goal])
        while queue:
            place = queue.popleft()
            for following in (self.after(place, move) for move in MOVES):
                if following not in distances and following not in self.holes:
                    distances[following] = distances[place] + 1
                    queue.append(following)
        return distances

    def map(self) -> str:
        """Return the lake as text, a line for each row."""
        signs = dict.fromkeys(self.holes, "O") | {self.goal: "G", START: "P"}
        rows = range(self.size)
        return "\n".join(" ".join(signs.get((row, column), ".") for column in rows) for row in rows)

    def around(self, place: Place) -> str:
        """Return what is on the four sides of a place, as the player sees it."""
        return " ".join(self._sort(self.after(place, move), place) for move in MOVES)

    def _sort(self, place: Place, before: Place) -> str:
        if place == self.goal:
            return "goal"
        return "edge" if place == before else "hole" if place in self.holes else "ice"


def lake_of(task: Task, *, frozen: bool = False) -> Lake:
    """Return the lake of a task; with ``frozen`` as it would be without holes."""
    holes = [] if frozen else task.extra["holes"]
    return Lake(task.extra["side"], frozenset((row, column) for row, column in holes))


@dataclass(frozen=True)
class Lakes(Endless):
    """Drawn lakes that can be crossed. One lake in eight is held out for the split ``test``."""

    split: Split = "train"
    seed: int = 0
    side: int = 4
    holes: int = 4

    what = "frozen lakes"

    def _generate(self, index: int) -> Task:
        rng = np.random.default_rng([self.seed, index, self.split == "test"])
        while True:
            cells = 1 + rng.permutation(self.side**2 - 2)[: self.holes]  # neither the start nor the goal
            extra = {"side": self.side, "holes": [[int(cell) // self.side, int(cell) % self.side] for cell in cells]}
            task = Task(f"{self.split}/{index}", "frozen-lake", (), ground_truth=None, extra=extra)
            lake = lake_of(task)
            text = lake.map()
            if START in lake.distances() and split_by_hash(text, 8) == self.split:
                return replace(task, prompt=(user(f"{RULES}\n{text}\n{lake.around(START)}"),))


@dataclass
class Crossing(EpisodeState):
    """An episode with the place of the player."""

    place: Place = START


class FrozenLake(TextEnv[Crossing]):
    """Reward terms of every turn: `goal`, 1 for the step that reaches it, and `step`, what every step costs.

    A hole ends the episode. A step off the lake, or a reply that is no step, leaves the player where it is.

    Args:
        side: The length of a side.
        holes: How many holes there are.
        step: What a step earns, at most 0.
        max_assistant_turns: How many steps there are.
        split: ``"train"`` or ``"test"``: no lake is in both.
        render_mode: As in :class:`~textenvs.TextEnv`.
    """

    state_type = Crossing
    own_attacks = (
        always("right", "always goes right", "right"),
        always("all", "names every direction", " ".join(MOVES)),
    )

    def __init__(
        self,
        side: int = 4,
        holes: int = 4,
        step: float = -0.02,
        max_assistant_turns: int = 10,
        split: Split = "train",
        render_mode: str | None = None,
    ) -> None:
        self.step_reward = step
        tasks = Lakes(split, side=side, holes=holes)
        super().__init__(tasks, max_assistant_turns=max_assistant_turns, render_mode=render_mode)

    def respond(self, reply: Message) -> Turn:
        """Take the step, and say what is around."""
        lake, place, move = lake_of(self.task), self.state.place, visible_text(reply).strip()
        if move in MOVES:
            place = self.state.place = lake.after(place, move)
        terms = {"goal": float(place == lake.goal), "step": self.step_reward}
        if place == lake.goal or place in lake.holes:
            return Turn(terms=terms, terminated=True, stop="solved" if place == lake.goal else "fell")
        return Turn([user(lake.around(place))], terms=terms)

    def demonstration(self, rng: np.random.Generator) -> str:
        """Take a step of a shortest way."""
        return self._nearer(lake_of(self.task), rng)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Take a step towards the goal, holes or not."""
        return self._nearer(lake_of(self.task, frozen=True), rng)

    def _nearer(self, lake: Lake, rng: np.random.Generator) -> str:
        place, distances = self.state.place, lake.distances()
        shorter = [move for move in MOVES if distances.get(lake.after(place, move), np.inf) < distances[place]]
        return str(rng.choice(shorter))


gymnasium.register("recipes/frozen-lake", entry_point=f"{__name__}:FrozenLake")
