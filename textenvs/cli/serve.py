"""``textenvs serve``: environments for other processes and machines, over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..registry import describe, list_environments
from ..trust import is_loopback
from .common import CommandError, open_environment, parse_options

if TYPE_CHECKING:
    from ..serve.host import Offer
    from ..serve.server import Server

TOKEN_VARIABLE = "TEXTENVS_TOKEN"

EXAMPLES = f"""\
examples:
  textenvs serve textenv/clarify
  {TOKEN_VARIABLE}=... textenvs serve textenv/clarify textenv/gsm8k-interact level=easy --bind 0.0.0.0 --port 8123
  textenvs serve train@textenv/gsm8k test@textenv/gsm8k split=test --token-file tokens.txt

key=value after an id are options of that environment; NAME@ID serves it under a name of its own. Elsewhere:
  textenvs.make("textenv/remote", url="http://HOST:8123", env="textenv/clarify")
SIGTERM or Ctrl-C lets the running episodes end, for --drain seconds; a second one does not, and a
third waits for nothing."""


@dataclass(frozen=True)
class Served:
    """One environment of the command line."""

    name: str  # what clients call it
    env_id: str
    options: Mapping[str, Any]


def add(commands: Any) -> Any:
    parser = commands.add_parser(
        "serve",
        help="offer environments over HTTP",
        usage="textenvs serve [NAME@]ID [key=value ...] [[NAME@]ID [key=value ...] ...] [options]",
        description="Serve environments over HTTP; see docs/serving.md.",
        epilog=EXAMPLES,
    )
    parser.add_argument("what", nargs="+", metavar="ID", help="an id of `textenvs list`, or module:id; and its options")
    where = parser.add_argument_group("where")
    where.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="to listen at (default 127.0.0.1)")
    where.add_argument("--port", type=int, default=8123, metavar="N", help="0 for any that is free (default 8123)")
    who = parser.add_argument_group("who may")
    who.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"tokens, one a line: TOKEN or NAME TOKEN (default: the one in the environment variable {TOKEN_VARIABLE})",
    )
    who.add_argument("--no-token", action="store_true", help="serve everybody, also at other addresses than loopback")
    who.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=["tasks", "expert", "scores"],
        help="also take task rows of clients, show the scripted replies, or give conversation scores; may be repeated",
    )
    limits = parser.add_argument_group("limits")
    for flag, kind, default, text in (
        ("--max-sessions", int, 1024, "sessions at a time"),
        ("--max-message-mb", float, 8.0, "largest request, in MiB"),
        ("--max-reply-mb", float, 1.0, "largest reply of an assistant, in MiB of JSON"),
        ("--max-memory-mb", float, 1024.0, "memory that is held for all clients, in MiB"),
        ("--threads", int, 16, "plain hooks of environments that run at a time"),
        ("--step-timeout", float, 120.0, "seconds that an environment may take over a request"),
        ("--idle", float, 600.0, "seconds after which a session that is not used ends"),
        ("--drain", float, 30.0, "seconds that running episodes have at the end"),
    ):
        text = f"{text} (default {default:g})"
        limits.add_argument(flag, type=_number(kind, zero=flag == "--drain"), default=default, metavar="N", help=text)
    return parser


def run(arguments: argparse.Namespace) -> int:
    served = read_served(arguments.what)
    tokens = read_tokens(arguments.token_file)
    if not tokens and not arguments.no_token and not is_loopback(arguments.bind):
        raise CommandError(
            f"--bind {arguments.bind} can be reached by other machines, and there is no token: set {TOKEN_VARIABLE} or "
            "give --token-file (for example: python -c 'import secrets; print(secrets.token_urlsafe(32))'); or say "
            "--no-token",
            2,
        )
    if tokens and arguments.no_token:
        raise CommandError(f"--no-token, and a token in {arguments.token_file or TOKEN_VARIABLE}: which is meant?", 2)
    if not 0 <= arguments.port < 2**16:
        raise CommandError(f"--port must be from 0 to 65535, not {arguments.port}", 2)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        server = _server(served, tokens, arguments)
    except (ValueError, ImportError) as error:
        raise CommandError(str(error), 2 if isinstance(error, ValueError) else 1) from error
    return asyncio.run(_serve(server, served, bool(tokens), arguments))


def read_served(words: Sequence[str]) -> list[Served]:
    """The environments of a command line: ``[NAME@]ID`` and the ``key=value`` after each."""
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if "=" not in word:
            groups.append((word, []))
        elif not groups:
            raise CommandError(f"{word!r} is an option, but of what? It goes behind an id", 2)
        else:
            groups[-1][1].append(word)
    served = []
    for word, options in groups:
        name, _, env_id = word.rpartition("@")
        served.append(Served(name or env_id, env_id, parse_options(options)))
    names = [each.name for each in served]
    if twice := [name for name in names if names.count(name) > 1]:
        raise CommandError(f"{twice[0]!r} is served twice; give them names: NAME@{served[0].env_id}", 2)
    return served


def read_tokens(path: str | None) -> dict[str, str]:
    """Tokens by name: those of a file, or that of the environment variable."""
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        return {"token": token} if token else {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--token-file {path}: {error}") from error
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, token = (f"line {number}", words[0]) if len(words) == 1 else (words[0], words[-1])
        if len(words) > 2 or name in tokens or token in tokens.values():  # and never say which
            raise CommandError(f"--token-file {path}: line {number} must be TOKEN or NAME TOKEN, each there once", 2)
        tokens[name] = token
    if not tokens:
        raise CommandError(f"--token-file {path}: there is no token in it", 2)
    return tokens


def _number(kind: type[int] | type[float], *, zero: bool) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not 0 <= value < math.inf or (value == 0 and not zero):
            raise argparse.ArgumentTypeError(f"must be a number {'of at least' if zero else 'above'} 0, not {text}")
        return value

    return number


def _server(served: Sequence[Served], tokens: Mapping[str, str], arguments: argparse.Namespace) -> Server:
    from ..serve.host import Host, Limits
    from ..serve.server import Server

    message, reply, memory = (
        math.ceil(mebibytes * 2**20)
        for mebibytes in (arguments.max_message_mb, arguments.max_reply_mb, arguments.max_memory_mb)
    )
    limits = Limits(
        max_sessions=arguments.max_sessions,
        max_reply_bytes=reply,
        max_bytes=memory,
        idle_s=arguments.idle,
        step_timeout_s=arguments.step_timeout,
        threads=arguments.threads,
    )
    host = Host({each.name: _offer(each) for each in served}, limits=limits, allow=arguments.allow)
    return Server(host, tokens=tokens, max_message_bytes=message)


def _offer(served: Served) -> Offer:
    from ..serve.host import Offer

    known = served.env_id in list_environments(with_arguments=True)
    make = partial(open_environment, served.env_id, dict(served.options))
    return Offer(make, nondeterministic=known and describe(served.env_id).nondeterministic)


async def _serve(server: Server, served: Sequence[Served], guarded: bool, arguments: argparse.Namespace) -> int:
    asked, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        (again if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # on Windows; Ctrl-C ends it at once there
            loop.add_signal_handler(number, signalled)
    try:
        try:
            await server.start(arguments.bind, arguments.port)
        except OSError as error:
            raise CommandError(f"cannot listen at {arguments.bind}:{arguments.port}: {error}") from error
        at = f"[{arguments.bind}]" if ":" in arguments.bind else arguments.bind
        for each in served:
            print(f"offers {each.name}" + (f" ({each.env_id})" if each.name != each.env_id else ""))
        who = "with a token" if guarded else "to everybody who can reach it"
        print(f"serving at http://{at}:{server.port}, {who}", flush=True)
        await asked.wait()
        print(f"shutting down: {server.host.playing} episodes have {arguments.drain:g} s", flush=True)
        drain, hurry = asyncio.create_task(server.drain(arguments.drain)), asyncio.create_task(again.wait())
        await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
        drain.cancel()
        hurry.cancel()
    finally:
        left = server.host.playing
        for number in (signal.SIGTERM, signal.SIGINT):  # whatever hangs now, the next one ends the process
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
        await server.stop()
    if left:
        print(f"{left} episodes were cut off", flush=True)
    return 0
