"""Multi-turn text tasks as Gymnasium environments.

Importing this package registers every environment of ``envs_registry.yaml``::

    import gymnasium
    import textenvs

    env = gymnasium.make("textenv/gsm8k-interact")
    conversation, info = env.reset(seed=0)
    conversation, reward, terminated, truncated, info = env.step("#### 12")
"""

from .env import FAILURE_STOPS, EnvironmentFailure, EpisodeState, TextEnv, Turn
from .messages import Message, Messages
from .registry import EnvironmentSpec, describe, list_environments, make, register_all
from .spaces import AssistantTurn, Conversation, Unicode
from .task import Task, TaskError, TaskSet
from .vector import TextVectorEnv

__all__ = [
    "FAILURE_STOPS",
    "AssistantTurn",
    "Conversation",
    "EnvironmentFailure",
    "EnvironmentSpec",
    "EpisodeState",
    "Message",
    "Messages",
    "Task",
    "TaskError",
    "TaskSet",
    "TextEnv",
    "TextVectorEnv",
    "Turn",
    "Unicode",
    "describe",
    "list_environments",
    "make",
    "register_all",
]

register_all()
