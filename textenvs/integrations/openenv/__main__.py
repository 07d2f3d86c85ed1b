"""``python -m textenvs.integrations.openenv textenv/clarify``: serve an environment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import gymnasium

from ...startup import raise_on_interrupt
from ...text import reader_may_leave


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve an environment until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m textenvs.integrations.openenv", description=main.__doc__)
    parser.add_argument("env", help="the environment's id")
    parser.add_argument("--env-kwargs", type=_mapping, default={}, metavar="JSON", help="arguments of its constructor")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="the port, 0 for any that is free (%(default)s)")
    parser.add_argument("--max-sessions", type=int, default=256, help="sessions at a time (%(default)s)")
    parser.add_argument("--session-timeout", type=float, default=1800.0, help="idle seconds (%(default)s)")
    with reader_may_leave():
        parsed = parser.parse_args(arguments)
    limits = {"max_concurrent_envs": parsed.max_sessions, "session_timeout": parsed.session_timeout}
    try:
        if not 0 <= parsed.port < 2**16:
            raise ValueError(f"--port must be from 0 to 65535, not {parsed.port}")
        from . import create_app

        app = create_app(parsed.env, parsed.env_kwargs, **limits)
    except (ValueError, TypeError, ImportError, OSError, gymnasium.error.Error) as error:
        parser.exit(2, f"{parser.prog}: {' '.join(str(error).split())}\n")
    import uvicorn

    raise_on_interrupt()
    uvicorn.run(app, host=parsed.host, port=parsed.port)


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise argparse.ArgumentTypeError(f"not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is expected, not {text}")
    return value


if __name__ == "__main__":
    main()
