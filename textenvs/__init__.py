"""Multi-turn text tasks as Gymnasium environments.

Importing this package registers every environment of ``envs_registry.yaml``::

    import gymnasium
    import textenvs

    env = gymnasium.make("textenv/gsm8k-interact")
    conversation, info = env.reset(seed=0)
    conversation, reward, terminated, truncated, info = env.step("#### 12")
"""

from .startup import end_on_interrupt, is_command

if is_command():  # before the imports that take their time
    end_on_interrupt()

from .attack import COMMON, Attack, always, sequence
from .env import FAILURE_STOPS, NO_ROOM_STOPS, EnvironmentFailure, EpisodeState, NoDemonstration, TextEnv, Turn
from .episodes import play_episodes
from .messages import Message, Messages, assistant, system, user, visible_text
from .play import Episode, play
from .registry import EnvironmentSpec, describe, list_environments, make, register_all
from .spaces import AssistantTurn, Conversation, Unicode
from .task import Task, TaskError, TaskSet
from .tool_env import ToolEnv, ToolState
from .tools import tool
from .tools.formats import call
from .vector import TextVectorEnv

__all__ = [
    "AssistantTurn",
    "Attack",
    "COMMON",
    "Conversation",
    "EnvironmentFailure",
    "EnvironmentSpec",
    "Episode",
    "EpisodeState",
    "FAILURE_STOPS",
    "Message",
    "Messages",
    "NO_ROOM_STOPS",
    "NoDemonstration",
    "Task",
    "TaskError",
    "TaskSet",
    "TextEnv",
    "TextVectorEnv",
    "ToolEnv",
    "ToolState",
    "Turn",
    "Unicode",
    "always",
    "assistant",
    "call",
    "describe",
    "list_environments",
    "make",
    "play",
    "play_episodes",
    "register_all",
    "sequence",
    "system",
    "tool",
    "user",
    "visible_text",
]

register_all()
