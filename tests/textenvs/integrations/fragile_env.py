"""An environment that breaks when told to, and counts how many are open: what an adapter must not leave behind."""

from contextlib import contextmanager

import gymnasium

from textenvs.env import EnvironmentFailure, TextEnv, Turn
from textenvs.messages import user
from textenvs.task import Rows, Task

ID = "textenv/fragile"


class Fragile(TextEnv):
    """An environment that breaks on request."""

    open = 0

    def __init__(self):
        super().__init__(Rows("one", [Task("0", "test", (user("Well?"),), "yes")]))
        Fragile.open += 1

    def respond(self, reply):
        if reply["content"] == "fail":
            raise EnvironmentFailure("user_failed", "gone")
        if reply["content"] == "crash":
            raise ZeroDivisionError("a bug")
        over = reply["content"] == "end"
        return Turn([] if over else [user("And?")], 0.5, terminated=over, stop="solved" if over else None)

    def cleanup(self):
        Fragile.open -= 1


@contextmanager
def registered():
    gymnasium.register(ID, entry_point=Fragile, disable_env_checker=True)
    Fragile.open = 0
    try:
        yield
    finally:
        del gymnasium.registry[ID]
