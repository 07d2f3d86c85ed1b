"""A batch for the trainer: episodes, each with its part in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from ..trajectory import Trajectory
from .curriculum import Choice

Role = Literal["root", "fork", "partner", "greedy"]


@dataclass(frozen=True, eq=False)
class BatchEpisode:
    """An episode of a batch, and its part in it."""

    trajectory: Trajectory  #: as it was played, with the rewards that it earned
    credited: Trajectory  #: the same with the turn rewards that the estimator is to see
    #: ``root``: a member of its group, played from where the group begins; ``fork``: begun in a state of a root;
    #: ``partner``: another role of a root's episode, also of an attempt that failed;
    #: ``greedy``: what its group's roots are compared with, not to train on
    role: Role = "root"
    group: int = 0  #: the number of its group in the run
    choice: Choice = Choice("", 0)  #: what its group played
    agent: str = ""  #: the name of its role in the environment; empty where the environment has one role

    def changed(self, trajectory: Trajectory) -> BatchEpisode:
        """Return the same part of the batch with another trajectory, credited with what it earned."""
        return replace(self, trajectory=trajectory, credited=trajectory)


def roots_and_forks(trajectories: Iterable[Trajectory]) -> list[BatchEpisode]:
    """Return the episodes of a batch without partners and greedy episodes."""
    return [BatchEpisode(t, t, "fork" if t.forked_from else "root") for t in trajectories]


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch for the trainer: its episodes, and statistics."""

    number: int  #: of this batch in the run, from 0
    version: int  #: the weights it is to be trained on: no token is more than ``staleness`` versions older
    #: Roots, then forks, then partners, then greedy ones; each group by group in order of admission, siblings in order
    #: (fewer where some failed for good)
    episodes: Sequence[BatchEpisode]
    #: Numbers worth reporting, see :meth:`Collector.stats`; those that count do so since the batch before
    stats: dict[str, float]
    #: Why episodes ended badly since the batch before: for each ``<status>_<cause>``, the last message
    problems: Mapping[str, str] = field(default_factory=dict)

    def of(self, *roles: Role) -> list[Trajectory]:
        """Return the episodes with one of these roles."""
        return [episode.trajectory for episode in self.episodes if episode.role in roles]

    @property
    def trajectories(self) -> list[Trajectory]:
        """The roots, group by group."""
        return self.of("root")

    @property
    def by_agent(self) -> dict[str, list[Trajectory]]:
        """The roots and partners of each role, by its name; empty where the environment has one role."""
        episodes = [one for one in self.episodes if one.role in ("root", "partner") and one.agent]
        agents = sorted({one.agent for one in episodes})
        return {agent: [one.trajectory for one in episodes if one.agent == agent] for agent in agents}

    @property
    def trained(self) -> list[Trajectory]:
        """All episodes to train on."""
        return self.of("root", "fork", "partner")

    @property
    def groups(self) -> list[list[Trajectory]]:
        """The roots of each group."""
        roots = (episode for episode in self.episodes if episode.role == "root")
        return [[root.trajectory for root in siblings] for _, siblings in groupby(roots, lambda root: root.group)]

    @property
    def choices(self) -> list[Choice]:
        """The choice of each of the :attr:`groups`."""
        return list({episode.group: episode.choice for episode in self.episodes if episode.role == "root"}.values())
