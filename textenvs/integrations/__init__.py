"""The environments in other libraries: thin shells on one core, each of which imports its library when it is used.

A host library has its own words for an episode. What all of them need is here: :class:`EpisodeSpec` says, as JSON,
which episode a row of a host's dataset stands for, and :class:`Session` plays one, message by message.
"""

from .session import Session, SessionTurn
from .spec import EpisodeSpec, SpecError, episode_specs

__all__ = ["EpisodeSpec", "Session", "SessionTurn", "SpecError", "episode_specs"]
