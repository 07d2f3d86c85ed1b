"""The environments in other libraries: thin shells on one core, each of which imports its library when it is used."""

from .session import EpisodeSpec, Session, SessionTurn, SpecError, episode_specs

__all__ = ["EpisodeSpec", "Session", "SessionTurn", "SpecError", "episode_specs"]
