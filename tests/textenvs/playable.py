"""The environments that the tests of all environments play: those that ship, with what they need installed.

TextWorld compiles a game for every task, and is installed where its own tests run alone (tests/hosts/others). Where it
is installed here, too, its environment is among them.
"""

from importlib.util import find_spec

from textenvs.registry import list_environments

PLAYABLE = tuple(env_id for env_id in list_environments() if env_id != "textenv/textworld" or find_spec("textworld"))
