"""A virtual environment over another: ``.venv/bin/python scripts/overlay.py .venv-verl requirements/verl.txt``.

Some host libraries pin versions that the rest does not take. Their environment sees all packages of the one that runs
this, so that torch is not installed a second time, and installs only what differs before them.

Beside the requirements may be another file, ``verl-alone.txt``: it is installed without requirements of its own.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def main(place: Path, requirements: Path) -> None:
    """Make the environment at ``place``, and install there what the requirements and the file beside them say."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    inside = place / "bin" / "python"
    own = Path(
        subprocess.run(
            [str(inside), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    )
    # site.addsitedir, not the bare path: the editable installation below is a .pth file of its own.
    below = sysconfig.get_path("purelib")
    (own / "_below.pth").write_text(f"import site; site.addsitedir({below!r})\n", encoding="utf-8")
    pip = [str(inside), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-compile"]
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    alone = requirements.with_name(f"{requirements.stem}-alone.txt")
    if alone.exists():
        subprocess.run([*pip, "--no-deps", "-r", str(alone)], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} VENV REQUIREMENTS")
    if sys.prefix == sys.base_prefix:
        sys.exit("this Python is of no virtual environment; `make dev` makes one")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
