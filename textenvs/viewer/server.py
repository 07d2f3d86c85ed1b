"""``textenvs view --serve``: the page, the data as it changes, and episodes that are continued; for this machine."""

from __future__ import annotations

import gzip
import hmac
import json
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ..evaluate.policies import Policy
from ..event_loop import submit
from ..records import RecordsError
from ..text import quoted
from ..trust import Trust, person_only
from .branches import Branch, BranchError, MakeEnv, environment_of, reply_of
from .document import Document, branch_folder
from .page import served_page

_MOST_BYTES = 8 * 2**20  # of a request
_MOST_BRANCHES = 16  # that are open; the oldest is closed for a new one
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Refused(Exception):
    """A request that is not answered; its HTTP status and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class ViewServer(ThreadingHTTPServer):
    """A server at 127.0.0.1 for clients that know the token: it is in :attr:`url`.

    A page of another site can neither read nor ask anything: requests name this host and no other origin, and carry the
    token in a header, which a browser sends for no other page. The page's own address has it, too.

    Args:
        document: What is shown.
        make_env: An environment by its id and options; what it refuses is any exception.
        model: A policy that can continue episodes.
        port: 0 for any that is free.
        trusted: The files are of the person who runs this: what they name is made, like what a person names.
    """

    daemon_threads = True

    def __init__(
        self,
        document: Document,
        make_env: MakeEnv,
        model: Policy | None = None,
        *,
        port: int = 0,
        trusted: bool = False,
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.document, self.model = document, model
        self.token = secrets.token_urlsafe(24)
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self._make_env, self._trusted = make_env, trusted
        self._reading = threading.Lock()
        self._branches: dict[str, tuple[Branch, tuple[Path, str, int]]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def index(self, current_stamp: str) -> bytes | None:
        """Return the index with its stamp, or ``None`` where the page has that one already."""
        with self._reading:
            stamp = self.document.stamp()
            if stamp == current_stamp:
                return None
            return _compressed({**self.document.index(), "stamp": stamp, "live": True, "model": self.model is not None})

    def chunk(self, name: str) -> bytes:
        with self._reading:
            try:
                return self.document.chunk(name)
            except (KeyError, IndexError, ValueError) as error:
                raise Refused(404, f"there is no chunk {quoted(name)}; the page loads the index again") from error

    def act(self, action: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Handle a request of the page about a branch: do ``action``, and return the branch's state."""
        if action == "open":
            return self._open(request)
        if (entry := self._branches.get(str(request.get("branch")))) is None:
            raise Refused(404, "this branch is closed; open it again")
        branch, place = entry
        with branch.lock:
            if action == "reply":
                calls = request.get("calls") or []
                branch.reply(reply_of(str(request.get("content", "")), calls, branch.turn + len(branch.rewards)))
            elif action == "play":
                branch.play(str(request.get("policy")), int(request.get("turns", 1)))
            elif action == "save":
                return {"saved": str(branch.save(*place))}
            return branch.view()

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._reading:
            run = self.document.runs()[int(request["run"])]
            kind, number, chunk, place = (
                request["kind"],
                int(request["number"]),
                str(request["chunk"]),
                int(request["place"]),
            )
            iteration, episode = self.document.episode(run, kind, number, chunk, place)
            env_id, options = environment_of(
                run.config if run.kind == "evaluation" else {}, iteration.info, episode.group_id
            )
        if not self._trusted and Trust().problem(env_id, options) is not None:
            named = ", ".join(person_only(options)) or "an id that does not ship"
            raise BranchError(
                f"{env_id}: a file may not choose {named}, because somebody else may have written it. If it is yours, "
                "start `textenvs view --serve --trust`"
            )
        env = self._make_env(env_id, options)
        try:
            branch = Branch(episode, int(request["turn"]), env, self.model)
        except BaseException:
            env.close()
            raise
        name = secrets.token_urlsafe(8)
        self._branches[name] = branch, (branch_folder(run), kind, number)
        while len(self._branches) > _MOST_BRANCHES:
            self._branches.pop(next(iter(self._branches)))[0].close()
        return {"branch": name, "environment": {"id": env_id, "options": options}, **branch.view()}

    def server_close(self) -> None:
        super().server_close()
        if self.model is not None:
            submit(self.model.aclose()).result()
        for branch, _ in self._branches.values():
            branch.close()


def _compressed(value: Any) -> bytes:
    return gzip.compress(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"), 4, mtime=0)


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, handler: Any) -> None:
        try:
            self._check_origin()
            content = handler(urlsplit(self.path))
            self._send(204 if content is None else 200, content or b"")
        except Refused as error:
            self._refuse(error.status, str(error))
        except (RecordsError, BranchError) as error:
            self._refuse(409, str(error))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:  # of an environment's constructor, or of what it imports
            self._refuse(400, f"{type(error).__name__}: {error}")

    def _get(self, url: Any) -> bytes | None:
        query = parse_qs(url.query)
        if url.path == "/":
            self._check_token(query.get("token", [""])[0])
            return gzip.compress(served_page().encode(), 4)
        self._check_token(self._bearer())
        if url.path == "/index":
            return self.server.index(query.get("have", [""])[0])
        if url.path.startswith("/chunk/"):
            return self.server.chunk(unquote(url.path[len("/chunk/") :]))
        raise Refused(404, f"there is no {quoted(url.path)}")

    def _post(self, url: Any) -> bytes:
        self._check_token(self._bearer())
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            raise Refused(413, f"a request has a Content-Length of at most {_MOST_BYTES}")
        request = json.loads(self.rfile.read(int(length)))
        action = url.path.strip("/")
        if action not in ("open", "reply", "play", "save") or not isinstance(request, dict):
            raise Refused(404, f"there is no {quoted(url.path)}")
        return _compressed(self.server.act(action, request))

    def _check_origin(self) -> None:
        """Refuse names that another site points to this machine, and pages of other sites."""
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in self.server.hosts:
            raise Refused(403, f"this server is {self.server.url.split('?')[0]}, and answers to no other name")
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            raise Refused(403, "this server does not answer to pages of other sites")

    def _bearer(self) -> str:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return token if scheme == "Bearer" else ""

    def _check_token(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise Refused(401, "a token is needed: open the address that `textenvs view --serve` printed")

    def _refuse(self, status: int, why: str) -> None:
        self.close_connection = True  # a body may be left unread
        self._send(status, _compressed({"error": why}))

    def _send(self, status: int, content: bytes) -> None:
        page = self.path.split("?")[0] == "/" and status == 200
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if content:
            self.send_header("Content-Type", "text/html; charset=utf-8" if page else "application/json")
            self.send_header("Content-Encoding", "gzip")
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Not on the terminal: an address may have the token."""
