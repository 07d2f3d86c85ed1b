"""A program that stays in a box and runs worlds: a FastAPI application over an SQLite file.

A world is loaded once (its database made, its code executed); every
question about it is answered in a process of its own, which begins with the world's database as it was and makes all
calls so far. So no state is kept here, and a call that hangs or crashes ends that process alone.

The clock stands still and randomness is seeded, for Python and for SQLite: the same calls give the same results.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import datetime
import inspect
import json
import os
import random
import re
import resource
import sqlite3
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from textenvs.sandbox.answering import Answers, message

#: Worlds that are loaded until this program ends, and another is started: what a world leaves in memory stays there.
_WORLDS = 32
#: Bytes of address space: less than the box may have, so that a call that takes too much fails by itself.
_MEMORY = 1536 << 20
_LONGEST = 1 << 20  # characters of a result that are sent
_NOW = datetime.datetime(2026, 1, 1, 12, 0, 0)
_METHODS = ("get", "post", "put", "patch", "delete")
_folder = Path(os.environ.get("HOME", "/tmp"))


def main() -> None:
    import fastapi  # noqa: F401

    with contextlib.suppress(ImportError):
        import sqlalchemy  # type: ignore[import-not-found]  # noqa: F401
    answers, worlds = Answers(), dict[str, World]()

    def answer(question: dict[str, Any]) -> dict[str, Any] | None:
        key = question["key"]
        if key not in worlds:
            if len(worlds) >= _WORLDS:
                return None  # this program ends; the question is asked again elsewhere
            if question.get("world") is None:
                return {"unknown": True}
            worlds[key] = World(key, question["world"])
        return worlds[key].answer(question, answers)

    answers.serve(answer)


class World:
    """A world that is loaded: its initial database, its application, and its operations by their names."""

    def __init__(self, key: str, source: dict[str, Any]) -> None:
        self.folder = _folder / f"world-{key}"
        self.folder.mkdir()
        self.initial, self.final = self.folder / "initial.db", self.folder / "final.db"
        self.name = f"world_{key}"
        _make_database(self.initial, source["tables"], source["samples"])
        self.final.write_bytes(self.initial.read_bytes())
        self.builtins = _builtins(self.final)
        self.address = os.environ["DATABASE_PATH"] = f"sqlite:///{self.final}"
        module = sys.modules[self.name] = types.ModuleType(self.name)
        vars(module)["__builtins__"] = self.builtins
        exec(compile(source["code"], f"{self.name}.py", "exec"), vars(module))
        self.app = module.app
        self.operations = _operations(self.app.openapi())

    def answer(self, question: dict[str, Any], answers: Answers) -> dict[str, Any]:
        if question["ask"] == "tools":
            return {"tools": [operation["tool"] for operation in self.operations.values()]}
        for file in self.folder.glob("final.db*"):
            file.unlink()
        self.final.write_bytes(self.initial.read_bytes())
        return answers.in_a_process(lambda: self._answer(question), question["timeout_s"])

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        os.environ["DATABASE_PATH"] = self.address  # another world may have been loaded since
        _seed_randomness()
        results = asyncio.run(self._calls(question["calls"]))
        if question["ask"] == "verify":
            return self._verify(question["verifier"], question["answer"])
        status, text = results[-1]
        return {"status": status, "text": text[:_LONGEST]}

    async def _calls(self, calls: list[list[str]]) -> list[tuple[int, str]]:
        async with self.app.router.lifespan_context(self.app):
            return [await self._answered(name, arguments) for name, arguments in calls]

    async def _answered(self, name: str, arguments: str) -> tuple[int, str]:
        """Return a call's answer, whatever it is: JSON too deep for this process is no failure of the world."""
        try:
            return await self._call(name, json.loads(arguments))
        except Exception as error:
            return 422, json.dumps({"detail": message(error)})

    async def _call(self, name: str, arguments: dict[str, Any]) -> tuple[int, str]:
        """Make a request to the application; return the status and the body's text."""
        operation = self.operations[name]
        path, query, body = operation["path"], list[tuple[str, str]](), dict[str, Any]()
        if missing := [
            part for part, place in operation["places"].items() if place == "path" and part not in arguments
        ]:
            return 422, json.dumps({"detail": f"{missing[0]} is missing"})
        for argument, value in arguments.items():
            place = operation["places"].get(argument)
            if place == "path":
                path = path.replace("{" + argument + "}", quote(_plain(value), safe=""))
            elif place == "query":
                values = value if isinstance(value, list) else [value]
                query += [(argument, _plain(item)) for item in values if item is not None]
            else:
                body[argument] = value
        content = json.dumps(body).encode() if operation["body"] else b""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": operation["method"].upper(),
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(query).encode(),
            "headers": [(b"host", b"world"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("world", 80),
        }
        status, parts = 500, list[bytes]()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        with contextlib.suppress(Exception):  # an application's error is a response with the status 500
            await self.app(scope, receive, send)
        return status, b"".join(parts).decode("utf-8", "replace")

    def _verify(self, code: str, final_answer: str) -> dict[str, Any]:
        """Return whether the verifier says that the task is complete; ``problem`` where it raised."""
        modules = {"sqlite3": sqlite3, "json": json, "os": os, "re": re}
        namespace: dict[str, Any] = {"__builtins__": self.builtins, **modules}
        inputs = {
            "initial_db_path": str(self.initial),
            "final_db_path": str(self.final),
            "final_answer": final_answer,
        }
        try:
            exec(compile(code, "verifier.py", "exec"), namespace)
            named = re.search(r"^\s*def (verify_\w*)\s*\(", code, re.MULTILINE)
            verify: Callable[..., Any] = namespace[named[1] if named else "verify_task_completion"]
            parameters = inspect.signature(verify).parameters
            names = [name for name in inputs if name in parameters]
            values = list(inputs.values())[: len(parameters)]
            result = verify(**{name: inputs[name] for name in names}) if names else verify(*values)
            return {"complete": isinstance(result, dict) and result.get("result") == "complete"}
        except Exception as error:
            return {"complete": False, "problem": message(error)}


# ------------------------------------------------------------------ tools


def _operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return an application's operations by their ids, with the tool of each: arguments are of path, query and body."""
    operations = {}
    for path, methods in document.get("paths", {}).items():
        for method in _METHODS:
            if method not in methods:
                continue
            operation = methods[method]
            places, properties, required = dict[str, str](), dict[str, Any](), list[str]()
            for parameter in operation.get("parameters", ()):
                name, place = parameter["name"], parameter["in"]
                if place not in ("path", "query"):
                    continue
                places[name] = place
                properties[name] = {**_resolved(parameter.get("schema", {}), document), **_described(parameter)}
                required += [name] * bool(parameter.get("required"))
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                schema = _resolved(content.get("schema", {}), document)
                properties |= {name: part for name, part in schema.get("properties", {}).items() if name not in places}
                required += [name for name in schema.get("required", ()) if name not in places]
            name = operation["operationId"]
            words = [text for text in (operation.get("summary"), operation.get("description")) if text]
            parameters = {"type": "object", "properties": properties, "required": required}
            operations[name] = {
                "method": method,
                "path": path,
                "places": places,
                "body": content is not None,
                "tool": {"name": name, "description": "\n".join(words) or name, "parameters": parameters},
            }
    return operations


def _described(parameter: dict[str, Any]) -> dict[str, Any]:
    return {"description": parameter["description"]} if parameter.get("description") else {}


def _resolved(schema: Any, document: dict[str, Any], depth: int = 0) -> Any:
    """Return a schema with the references of OpenAPI replaced, and without titles and examples."""
    if isinstance(schema, list):
        return [_resolved(part, document, depth) for part in schema]
    if not isinstance(schema, dict) or depth > 16:  # a model that has itself as a part
        return schema if not isinstance(schema, dict) else {}
    if isinstance(reference := schema.get("$ref"), str):
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
        return _resolved(target, document, depth + 1)
    names = {name: part for name, part in schema.items() if name not in ("example", "examples")}
    if isinstance(names.get("title"), str):
        del names["title"]
    return {
        name: {key: _resolved(value, document, depth + 1) for key, value in part.items()}
        if name == "properties" and isinstance(part, dict)
        else _resolved(part, document, depth + 1)
        for name, part in names.items()
    }


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ------------------------------------------------------------------ databases, clocks and randomness


def _make_database(path: Path, tables: list[dict[str, Any]], samples: list[str]) -> None:
    """Make a database as AWM does: a table that fails is left as it is, and a row that fails is left out."""
    connection = sqlite3.connect(path)
    _fix_clock(connection)
    for table in tables:
        with contextlib.suppress(sqlite3.Error, sqlite3.Warning):
            for statement in (table["ddl"], *(table.get("indexes") or ()), *(table.get("examples") or ())):
                connection.execute(statement)
    connection.commit()
    connection.execute("PRAGMA foreign_keys = ON")
    for statement in samples:
        with contextlib.suppress(sqlite3.Error, sqlite3.Warning):
            connection.execute(statement)
    connection.commit()
    connection.close()


def _fix_clock(connection: Any) -> None:
    """Let SQLite's functions of time take :data:`_NOW` for the current time."""
    pristine = sqlite3.connect(":memory:", check_same_thread=False)
    now = _NOW.isoformat(" ")

    def fixed(name: str, first: int) -> Callable[..., Any]:
        def function(*args: Any) -> Any:
            values = [now if value == "now" and place >= first else value for place, value in enumerate(args)]
            values += [now] * (len(values) == first)
            marks = ", ".join("?" * len(values))
            return pristine.execute(f"SELECT {name}({marks})", values).fetchone()[0]

        return function

    for name, first in (("date", 0), ("time", 0), ("datetime", 0), ("julianday", 0), ("strftime", 1)):
        connection.create_function(name, -1, fixed(name, first))
    for name, text in (("timestamp", now), ("date", now[:10]), ("time", now[11:])):
        connection.create_function(f"current_{name}", 0, lambda text=text: text)


class _Kind(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.__mro__[1])


class _Datetime(datetime.datetime, metaclass=_Kind):
    """``datetime.datetime`` whose current time is :data:`_NOW`; what it makes are real ones."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return datetime.datetime(*args, **kwargs)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _NOW if tz is None else _NOW.replace(tzinfo=datetime.UTC).astimezone(tz)

    @classmethod
    def utcnow(cls) -> Any:
        return _NOW

    @classmethod
    def today(cls) -> Any:
        return _NOW

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return handler(datetime.datetime)


class _Date(datetime.date, metaclass=_Kind):
    """``datetime.date`` whose current day is that of :data:`_NOW`; what it makes are real ones."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return datetime.date(*args, **kwargs)

    @classmethod
    def today(cls) -> Any:
        return _NOW.date()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return handler(datetime.date)


class _Stand(types.ModuleType):
    """A module as a world sees it: some names are others, and the rest are those of the real one."""

    def __init__(self, real: Any, **names: Any) -> None:
        super().__init__(real.__name__)
        vars(self).update(names)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _builtins(database: Path) -> dict[str, Any]:
    """Return builtins whose ``import`` gives a world this database, whatever path it names, and a fixed clock.

    Libraries, which import for themselves, see the real modules.
    """
    stands: dict[str, Any] = {
        "datetime": _Stand(datetime, datetime=_Datetime, date=_Date),
        "time": _Stand(time, time=_NOW.replace(tzinfo=datetime.UTC).timestamp),
    }
    if sqlalchemy := sys.modules.get("sqlalchemy"):
        stands["sqlalchemy"] = _Stand(sqlalchemy, create_engine=_engine_of(database, sqlalchemy))
        stands["sqlalchemy.engine"] = _Stand(sqlalchemy.engine, create_engine=_engine_of(database, sqlalchemy))
    real = builtins.__import__

    def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        module = real(name, globals, locals, fromlist, level)
        return stands.get(name if fromlist else name.partition(".")[0], module)

    return {**vars(builtins), "__import__": import_}


def _seed_randomness() -> None:
    """Seed what a world may draw from: ``random``, and the bytes of ``uuid`` and ``secrets``."""
    generator = random.Random(0)
    random.seed(0)
    for module, name in ((os, "urandom"), (random, "_urandom")):
        setattr(module, name, generator.randbytes)


def _engine_of(database: Path, sqlalchemy: Any) -> Callable[..., Any]:
    def create_engine(*args: Any, **kwargs: Any) -> Any:
        # No connection outlives its use: one that is open must not be used on both sides of a fork.
        options = {"connect_args": {"check_same_thread": False}, "poolclass": sqlalchemy.pool.NullPool}
        engine = sqlalchemy.create_engine(f"sqlite:///{database}", **options)
        sqlalchemy.event.listen(engine, "connect", lambda connection, record: _fix_clock(connection))
        return engine

    return create_engine


if __name__ == "__main__":
    main()
