"""Time limits that are met at once: the clock of an event loop jumps, so a limit can be generous on any machine."""

import asyncio


def skip(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Let the time of ``loop`` jump, from any thread, once what is ready has run: limits that are set by then count."""

    def jump() -> None:
        time = loop.time
        loop.time = lambda: time() + seconds  # type: ignore[method-assign]

    loop.call_soon_threadsafe(jump)
