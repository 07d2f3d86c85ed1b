"""Installation with uv: it takes what pip is configured to use."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def install():
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_settings_of_pip_hold_for_uv(install):
    configured = [
        "global.extra-index-url='https://a/simple https://b/simple'",
        ":env:.find-links='/c'",  # a variable counts before files, wherever it is listed
        "global.find-links='/d\\n/e'",
        "install.cert='/f.pem'",
        "download.index-url='https://g'",  # another command's
        "global.require-virtualenv='true'",  # nothing that uv needs
    ]
    assert install.variables(configured, {}) == {
        "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/c",
        "SSL_CERT_FILE": "/f.pem",
    }


def test_settings_of_uv_come_first(install):
    configured = ["global.index-url='https://a'", "global.find-links='/d\\n/e'"]
    assert install.variables(configured, {"UV_DEFAULT_INDEX": "https://own"}) == {"UV_FIND_LINKS": "/d,/e"}


def test_pip_installs_where_uv_fails(install, tmp_path, monkeypatch, capsys):
    (tmp_path / "uv").write_text("#!/bin/sh\necho no >&2\nexit 2\n")
    (tmp_path / "python").write_text(f'#!/bin/sh\n[ "$4" = config ] || echo "$@" >> {tmp_path}/said\n')
    for name in ("uv", "python"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(install.sys, "executable", str(tmp_path / "python"))
    assert install.main("place", ["--no-deps", "something==1"]) == 0
    words = (tmp_path / "said").read_text()
    assert words.startswith("-m pip --disable-pip-version-check --python place/bin/python install")
    assert words.endswith("--no-deps something==1\n")
    assert "pip tries it" in capsys.readouterr().err
