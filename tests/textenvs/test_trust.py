"""Options that a row may choose: harmless ones of shipped environments, and those that the person chose."""

import http.server
import importlib
import inspect
import json
import threading
from contextlib import contextmanager
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import textenvs
from textenvs.cli import main
from textenvs.integrations import EpisodeSpec, SpecError
from textenvs.registry import describe, list_environments
from textenvs.serve.client import Client, RemoteError
from textenvs.task import Task, TaskError
from textenvs.trust import ROW_OPTIONS, Trust, origin

#: What only the person who runs the program chooses; together with ROW_OPTIONS, every option that there is.
PERSON_OPTIONS = frozenset(
    ("cache", "config", "corpus", "data", "dials", "env_kwargs", "equality", "examples", "games", "grader_timeout_s")
    + ("judge", "max_concurrency", "options", "render_mode", "retry_s", "sandbox", "tasks", "timeout_s", "token", "url")
    + ("user",)
    + ("agent", "careless", "command", "expert", "files", "images", "posts", "record", "roles", "scorer", "serve")
    + ("limits", "timeout", "packages", "runtime", "network", "clean_tests")
)


def options_of(env_id):
    """The names of an environment's options, those of base classes with them."""
    module, name = describe(env_id).entry_point.split(":")
    names = set()
    for kind in getattr(importlib.import_module(module), name).__mro__:
        parameters = inspect.signature(kind.__init__).parameters.values() if "__init__" in vars(kind) else ()
        names |= {
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        }
        if kind.__name__ in ("ToolEnv", "TextEnv"):
            break
    return names - {"self"}


def row(env_id, /, **options):
    return json.dumps({"env": env_id, "seed": 0, "env_kwargs": options})


# ------------------------------------------------------------------ rows


@pytest.mark.parametrize("env_id", list_environments(with_arguments=True))
def test_each_option_has_one_owner(env_id):
    """A new option must be put on one side: this fails until it is."""
    names = options_of(env_id)
    assert names <= ROW_OPTIONS | PERSON_OPTIONS
    assert not ROW_OPTIONS & PERSON_OPTIONS
    for name in names & PERSON_OPTIONS:
        with pytest.raises(SpecError, match=f"a row may not set '{name}'"):
            EpisodeSpec.from_row(row(env_id, **{name: "x"}))


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("textenv/service-desk", {"user": {"model": "m", "base_url": "http://evil.test", "api_key_env": "HOME"}}),
        ("textenv/service-desk", {"user": "gpt-5"}),
        ("textenv/collab-math", {"user": {"model": "m", "base_url": "http://evil.test"}}),
        ("textenv/remote", {"url": "http://evil.test"}),
        ("textenv/remote", {"token": "x"}),
        ("textenv/remote", {"env": "textenv/clarify", "env_kwargs": {"tasks": "/etc/passwd"}}),
        ("textenv/gsm8k", {"tasks": "/etc/passwd"}),
        ("textenv/math-python", {"sandbox": {"allow_unsafe": True}}),
        ("textenv/search-qa", {"corpus": "/etc"}),
        ("textenv/tau2", {"data": "/etc"}),
        ("textenv/bfcl", {"data": "/etc"}),
        ("textenv/awm", {"data": "/etc"}),
        ("textenv/awm", {"packages": "/etc"}),
        ("textenv/reasoning-gym", {"config": {"x": 1}}),
        ("textenv/clarify", {"level": {"base_url": "http://evil.test"}}),
        ("textenv/clarify", {"level": "x" * 20_000}),
        ("textenv/clarify", {"no_such_option": 1}),
    ],
)
def test_rows_choose_no_address_or_path(env, options):
    with pytest.raises(SpecError, match="row 7: a row may not set"):
        EpisodeSpec.from_row(row(env, **options), "row 7")


@pytest.mark.parametrize("env", ["os:textenv/clarify", "textenvs.nothing:x", "CartPole-v1", "GymV21Environment-v0"])
def test_a_row_names_no_environment_of_its_own(env):
    with pytest.raises(SpecError, match="a row may not name the environment"):
        EpisodeSpec.from_row(row(env))
    assert EpisodeSpec.from_row(row(env), environments={env: {}}).env == env


def test_rows_import_no_module(tmp_path, monkeypatch):
    (tmp_path / "named_by_a_row.py").write_text(f"open({str(tmp_path / 'proof')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SpecError):
        EpisodeSpec.from_row(row("named_by_a_row:x"))
    assert not (tmp_path / "proof").exists()


def test_rows_may_repeat_only_allowed_options():
    user = {"model": "m", "base_url": "http://localhost:1/v1"}
    allowed = {"textenv/service-desk": {"user": user}, "textenv/gsm8k": [{"tasks": "a"}, {"tasks": "b", "x": 1}]}
    assert EpisodeSpec.from_row(row("textenv/service-desk", user=user, level=None), environments=allowed)
    assert EpisodeSpec.from_row(row("textenv/gsm8k", tasks="b"), environments=allowed)
    for env, options in (
        ("textenv/service-desk", {"user": {**user, "base_url": "http://evil.test"}}),
        ("textenv/service-desk", {"user": {**user, "api_key_env": "HOME"}}),
        ("textenv/gsm8k", {"tasks": "c"}),
        ("textenv/gsm8k", {"x": True}),  # not 1
        ("textenv/clarify", {"user": user}),
    ):
        with pytest.raises(SpecError, match="a row may not set"):
            EpisodeSpec.from_row(row(env, **options), environments=allowed)


def test_options_may_be_any_mapping():
    """Test a library whose mappings are no dict, and whose lists no list."""
    user = MappingProxyType({"model": "m", "stop": ("a", "b")})
    allowed = {"textenv/service-desk": MappingProxyType({"user": user})}
    assert EpisodeSpec.from_row(row("textenv/service-desk", user={"model": "m", "stop": ["a", "b"]}), "", allowed)
    with pytest.raises(SpecError):
        EpisodeSpec.from_row(row("textenv/service-desk", user={"model": "m", "stop": ["a"]}), "", allowed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda values: st.lists(values, max_size=3) |
    st.dictionaries(st.text(max_size=4), values, max_size=3), max_leaves=6
)  # fmt: skip


@given(st.sampled_from(sorted(PERSON_OPTIONS)), JSON)
def test_restricted_option_is_refused_for_any_value(name, value):
    assert Trust().problem("textenv/gsm8k", {name: value})
    assert Trust({"textenv/gsm8k": {name: value}}).problem("textenv/gsm8k", {name: value}) is None


def test_rows_command_names_the_readers_options(tmp_path, capsys):
    arguments = ["-n", "1", "-o", str(tmp_path / "rows.parquet")]
    assert main(["rows", "verl", "textenv/clarify", "level=easy", *arguments]) == 0
    assert "environments=" not in capsys.readouterr().out
    assert main(["rows", "verl", "textenv/clarify", "render_mode=ansi", *arguments]) == 0
    assert 'environments={"textenv/clarify": {"render_mode": "ansi"}}' in capsys.readouterr().out


# ------------------------------------------------------------------ the token


@contextmanager
def listening(location=None):
    """An HTTP server that keeps the headers it was sent, and redirects where ``location`` says."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(dict(self.headers))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(302 if location else 404)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def test_token_goes_to_its_own_server(monkeypatch):
    monkeypatch.setenv("TEXTENVS_TOKEN", "a secret")
    monkeypatch.delenv("TEXTENVS_URL", raising=False)
    with pytest.raises(ValueError, match="set TEXTENVS_URL to it, or give token") as raised:
        textenvs.make("textenv/remote", url="http://192.0.2.1:8123", env="x")
    assert "a secret" not in str(raised.value)
    monkeypatch.setenv("TEXTENVS_URL", "http://192.0.2.1:9")
    with pytest.raises(ValueError, match="another one"):
        textenvs.make("textenv/remote", url="https://192.0.2.1:9", env="x")


def test_a_redirection_carries_no_token_to_another_server():
    with listening() as (other, seen), listening(other) as (first, headers):
        client = Client(first, "a secret", timeout_s=60.0, retry_s=0.1)
        with pytest.raises(RemoteError):
            client.submit("describe").result()
        assert headers[0]["Authorization"] == "Bearer a secret"
        assert not seen


def test_an_origin_is_scheme_host_and_port():
    assert origin("http://a.test/x") == origin("http://A.test:80/y")
    assert origin("http://a.test") != origin("https://a.test")
    assert origin("http://a.test:1") != origin("http://a.test:2")


@pytest.mark.parametrize("row", ["text", 7, [["a"]], True])
def test_row_without_mapping_is_refused(row):
    with pytest.raises(TaskError, match="task row: a .*, not a mapping of columns"):
        Task.from_row(row, key="k")
