"""Install packages with uv, which takes a tenth of pip's time: ``python scripts/install.py VENV ARGUMENTS...``.

The arguments are those of ``pip install``. The Python that runs this has uv and pip (``make`` keeps one in
``build/installer``). What pip is configured to use (an index of one's own, a certificate, links) holds for uv as well,
unless uv has a setting of its own. Where uv fails, it says so, and pip installs the same.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Settings of pip, with uv's variable and what separates several values there.
SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", ""),
    "proxy": ("ALL_PROXY", ""),
    "default-timeout": ("UV_HTTP_TIMEOUT", ""),
}


def variables(configured: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return what pip is configured to use as variables for uv, but for those that the environment has already.

    Args:
        configured: The lines of ``pip config list``: ``section.name='value'``.
        environment: The variables that are set.
    """
    values = dict[str, str]()
    # What holds for all commands, then for `install`, then variables: the last one counts, as in pip.
    order = ("global", "install", ":env:")
    lines = [line.partition("=") for line in configured if "=" in line]
    for section in order:
        for key, _, value in lines:
            if key.rpartition(".")[0] == section and (name := key.rpartition(".")[2]) in SETTINGS:
                values[name] = str(ast.literal_eval(value))
    chosen = {}
    for name, value in values.items():
        variable, separator = SETTINGS[name]
        if variable not in environment:
            chosen[variable] = separator.join(value.split()) if separator else value
    # pip takes the best version of all its indexes, not that of the first.
    return chosen | ({"UV_INDEX_STRATEGY": "unsafe-best-match"} if "UV_INDEX" in chosen else {})


def main(venv: str, arguments: list[str]) -> int:
    """Install; return the exit status."""
    python = str(Path(venv) / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True).stdout.splitlines()
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", python]
    if subprocess.run([*uv, *arguments], env={**os.environ, **variables(listed, os.environ)}).returncode == 0:
        return 0
    print("uv cannot install this (see above): pip tries it, which takes longer", file=sys.stderr)
    return subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-compile", *arguments]).returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} VENV ARGUMENTS...")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
