"""A policy behind the gateway: it answers every call of a session by a function of the call."""

import contextlib
import threading

from textenvs.gateway.channel import Ended
from textenvs.gateway.server import gateway
from textenvs.gateway.session import Session


@contextlib.contextmanager
def answering(policy, **options):
    """Yield a session whose calls ``policy`` answers; its ``observations`` are listed."""
    server = gateway()
    channel = server.open(Session(**options))
    channel.observations = []

    def answer():
        while not isinstance(observation := channel.observe(60), Ended):
            channel.observations.append(observation)
            channel.answer(policy(observation.call))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield channel
    finally:
        server.close(channel.key)
        thread.join(60)
        assert not thread.is_alive()


def echo(text="Yes.", *calls, **fields):
    """Return a policy with one reply."""
    from textenvs.gateway.model_call import ModelReply
    from textenvs.messages import assistant

    message = assistant(text, calls)
    reply = ModelReply(message, "tool_calls" if calls else "stop", **fields)
    return lambda call: reply
