"""Check whether this tree can be released: `make release-check`.

The version stands in pyproject.toml, CITATION.cff and CHANGELOG.md, and a tag of this commit (``v0.1.0``) says the
same. An sdist is built, and a wheel from the sdist alone; both are installed in fresh environments of each Python that
is named, where the commands run in an empty folder outside of the repository. ``--train`` installs the extra ``train``
as well and trains for one iteration; ``--keep FOLDER`` keeps the files that passed. Needs a package index.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = (
    ("textenvs", "--version"),
    ("textenvs", "list"),
    ("textenvs", "evaluate", "textenv/clarify", "--policy", "expert", "--num-tasks", "8", "--quiet", "--out", "run"),
    ("textenvs", "export", "run", "-o", "log.json"),
    ("textenvs", "new", "word-chain"),
    ("python", "-m", "trainers", "--help"),
    ("python", "-m", "trainers.ppo", "--help"),
)
SMALL = "model.hidden=32 model.layers=1 model.heads=2 model.kv_heads=1 warm_start.demonstrations=32 warm_start.steps=3"
TRAIN = ("python", "-m", "trainers.ppo", *SMALL.split(), "rollout.groups_per_batch=2", "trainer.total_iterations=1")


def problems(root: Path = ROOT, tags: tuple[str, ...] = ()) -> list[str]:
    """Return the errors in the version's places; ``tags`` are those of the commit that is released."""
    version = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    errors = []
    if cited is None or cited[1] != version:
        errors.append(f"CITATION.cff says {cited and cited[1]}, pyproject.toml {version}")
    headings = re.findall(r"^## \[(.+?)\]", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if headings[:1] != ["Unreleased"]:
        errors.append("CHANGELOG.md does not begin with the section [Unreleased]")
    released = [tag.removeprefix("v") for tag in tags if re.match(r"v\d", tag)]
    if released and released != [version]:
        errors.append(f"the commit has the tag v{', v'.join(released)}, pyproject.toml says {version}")
    if released and version not in headings:
        errors.append(f"CHANGELOG.md has no section [{version}]")
    return errors


def built(folder: Path) -> tuple[Path, Path]:
    """Build the sdist of this tree, and the wheel from the sdist alone; return both."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=source)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def smoke(python: str, package: Path, folder: Path, *, train: bool) -> None:
    """Install a package in a fresh environment of this Python, and run the commands in an empty folder."""
    place, empty = folder / "venv", folder / "empty"
    empty.mkdir(parents=True)
    _run(python, "-m", "venv", str(place), cwd=folder)
    pip = (str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # The version of PyTorch that has a build for CPUs here; a newer one may bring gigabytes of CUDA's libraries.
    torch = ("--constraint", str(ROOT / "requirements" / "torch.txt"))
    _run(*pip, *((*torch, f"{package}[train]") if train else (str(package),)), cwd=empty)
    for program, *words in (*SMOKE, TRAIN) if train else SMOKE:
        _run(str(place / "bin" / program), *words, cwd=empty)


def _run(*command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace")
    except OSError as error:
        sys.exit(f"{command[0]} does not run ({error}); name others with PYTHONS=")
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def main() -> None:
    """Check everything, and say what was checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", help="programs, for example python3.11 python3.12 python3.13")
    parser.add_argument("--train", action="store_true", help="the extra `train`, too, and one iteration of it")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="put the checked files there")
    arguments = parser.parse_args()
    listed = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if errors := problems(tags=tuple(listed.stdout.split())):
        sys.exit("\n".join(errors))
    for python in arguments.pythons:  # before anything takes minutes
        _run(python, "-c", "import venv", cwd=ROOT)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sdist, wheel = built(folder)
        print(f"built {sdist.name} and, from it, {wheel.name}", flush=True)
        for number, python in enumerate(arguments.pythons):
            for package in (wheel, sdist):
                where = folder / f"{number}-{package.suffix[1:]}"
                where.mkdir()
                smoke(python, package, where, train=arguments.train and package is wheel)
                print(f"{python}: {package.name} installed, {len(SMOKE) + arguments.train} commands run", flush=True)
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            for package in (sdist, wheel):
                shutil.copy2(package, arguments.keep)


if __name__ == "__main__":
    main()
