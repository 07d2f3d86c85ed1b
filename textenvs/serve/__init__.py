"""Environments over HTTP, one session an episode, and ``textenv/remote``, which plays them as if they were here.

``protocol`` has the messages, ``host`` the sessions, ``server`` the transport around them. At the other end are
``client`` and the environment (``remote``).
"""

try:
    import aiohttp as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"textenvs serve and textenv/remote need aiohttp ({error}); install it with: pip install 'textenvs[serve]'"
    ) from error
