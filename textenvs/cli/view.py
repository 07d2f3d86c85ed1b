"""``textenvs view``: a run, a file of episodes or an evaluation as a page, or two of them compared."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from ..records import RecordsError
from ..text import printable
from ..viewer import Document, write_page
from .common import CommandError, expected_errors, open_environment
from .policies import check_policy_arguments, given_policy, policy_of

if TYPE_CHECKING:
    from ..evaluate.policies import Policy
    from ..viewer.server import ViewServer


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.path) > 2:
        raise CommandError(f"one or two are shown, not {len(arguments.path)}", 2)
    if not arguments.serve and (given_policy(arguments) or arguments.port is not None or arguments.trust):
        raise CommandError("a policy, --port and --trust go with --serve", 2)
    if arguments.serve and arguments.output is not None:
        raise CommandError("--output writes a file, --serve does not: which is meant?", 2)
    document = Document(arguments.path, last_iterations(arguments.last))
    try:
        if arguments.serve:
            document.index()  # unreadable files are errors here, not in the page
            return _serve(document, arguments)
        path = write_page(document, _output(arguments))
    except RecordsError as error:
        raise CommandError(str(error)) from error
    except ImportError as error:
        raise CommandError(f"{error}: pip install 'textenvs[data]'") from error
    except OSError as error:
        raise CommandError(f"{arguments.output or arguments.path[0]}: {error}; --output names another file") from error
    print(printable(str(path)))
    if not arguments.no_open:
        webbrowser.open(path.resolve().as_uri())
    return 0


def last_iterations(text: str) -> int | None:
    """Return the value of ``--last``: how many iterations, ``None`` for all."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise CommandError(f"--last must be a positive integer or `all`, not {text!r}", 2)
    return int(text)


def _output(arguments: argparse.Namespace) -> Path:
    if arguments.output is not None:
        return Path(arguments.output).expanduser()
    first = Path(arguments.path[0]).expanduser()
    return first / "view.html" if first.is_dir() else first.with_suffix(".html")


def _serve(document: Document, arguments: argparse.Namespace) -> int:
    from ..viewer.server import ViewServer

    model = _policy(arguments) if given_policy(arguments) else None
    with expected_errors(OSError, where=f"cannot listen at 127.0.0.1:{arguments.port}: "):
        server = ViewServer(document, open_environment, model, port=arguments.port or 0, trusted=arguments.trust)
    return _until_interrupted(server, arguments.no_open)


def _until_interrupted(server: ViewServer, no_open: bool) -> int:
    print(f"{server.url}\nfor this machine alone; Ctrl-C ends it", flush=True)
    if not no_open:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.server_close()
    return 0


def _policy(arguments: argparse.Namespace) -> Policy:
    check_policy_arguments(arguments)
    if arguments.policy is not None and ":" not in arguments.policy:
        raise CommandError("the expert is there without --policy; name a model, or module:function of yours", 2)
    arguments.concurrency = 1
    return policy_of(None, "the episode's environment", arguments)[0]
