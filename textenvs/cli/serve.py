"""``textenvs serve``: environments for other processes and machines, over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..bounded_files import UnreadableFile, read_text
from ..serve.host import Host, Limits, Offer
from ..serve.remote import TOKEN_VARIABLE
from ..serve.server import Server
from ..text import plural
from ..trust import is_loopback
from .common import CommandError, expected_errors, open_environment, parse_options, registered


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
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return asyncio.run(_serve(_server(served, tokens, arguments), served, bool(tokens), arguments))


def read_served(words: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """By their names, the environments of a command line: ``[NAME@]ID`` and the ``key=value`` after each."""
    environments: dict[str, tuple[str, list[str]]] = {}
    options: list[str] | None = None
    for word in words:
        if "=" in word:
            if options is None:
                raise CommandError(f"{word!r} is an option, but of what? It goes behind an id", 2)
            options.append(word)
            continue
        name, _, env_id = word.rpartition("@")
        if (name or env_id) in environments:
            raise CommandError(f"{name or env_id!r} is served twice; give them names: NAME@{env_id}", 2)
        options = []
        environments[name or env_id] = env_id, options
    return {name: (env_id, parse_options(options)) for name, (env_id, options) in environments.items()}


def read_tokens(path: str | None) -> dict[str, str]:
    """Tokens by name: those of a file, or that of the environment variable."""
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        return {"token": token} if token else {}
    with expected_errors(UnreadableFile, where="--token-file: "):
        lines = read_text(path, encoding="utf-8-sig").splitlines()  # some editors put a byte order mark first
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


def _server(
    served: Mapping[str, tuple[str, dict[str, Any]]], tokens: Mapping[str, str], arguments: argparse.Namespace
) -> Server:
    limits = Limits(**{name: getattr(arguments, name) for name in Limits.model_fields})
    message = arguments.max_message_bytes
    offers = {
        name: Offer(
            partial(open_environment, env_id, options),
            nondeterministic=(spec := registered(env_id)) is not None and spec.nondeterministic,
        )
        for name, (env_id, options) in served.items()
    }
    with expected_errors(mistakes=(ValueError,)):
        return Server(Host(offers, limits=limits, allow=arguments.allow), tokens=tokens, max_message_bytes=message)


async def _serve(
    server: Server, served: Mapping[str, tuple[str, Any]], guarded: bool, arguments: argparse.Namespace
) -> int:
    requested, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        (again if requested.is_set() else requested).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # on Windows; Ctrl-C ends it at once there
            loop.add_signal_handler(number, signalled)
    try:
        with expected_errors(OSError, where=f"cannot listen at {arguments.bind}:{arguments.port}: "):
            await server.start(arguments.bind, arguments.port)
        at = f"[{arguments.bind}]" if ":" in arguments.bind else arguments.bind
        for name, (env_id, _) in served.items():
            print(f"offers {name}" + (f" ({env_id})" if name != env_id else ""))
        who = "every process on this machine" if is_loopback(arguments.bind) else "every machine that can reach it"
        needed = "clients need a token" if guarded else f"without a token, to {who}"
        print(f"serving at http://{at}:{server.port}, {needed}", flush=True)
        await requested.wait()
        print(f"shutting down: {plural(server.host.playing, 'episode')}, {arguments.drain:g} s to finish", flush=True)
        ends = [asyncio.create_task(server.drain(arguments.drain)), asyncio.create_task(again.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    finally:
        unfinished = server.host.playing
        for number in (signal.SIGTERM, signal.SIGINT):  # whatever hangs now, the next one ends the process
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
        await server.stop()
    if unfinished:
        print(f"{plural(unfinished, 'episode')} cut off", flush=True)
    return 0
