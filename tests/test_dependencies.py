"""Dependencies that `make` installs: locked, hashed, as pyproject.toml requires, and under compatible licences."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Whose packages require some under the GPL, and what has these extras.
GAMES = ("textarena", "textworld", "dev", "docs", "bench")
LOCKS = sorted(path.name for path in (ROOT / "requirements").glob("*.lock"))


def pins(lock: str) -> dict[str, str]:
    """Version by canonical name; fails where a line is neither pinned nor hashed."""
    pins = {}
    text = re.sub(r"\\\n", " ", (ROOT / "requirements" / lock).read_text())
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        requirement, *hashes = line.split(" --hash=")
        parsed = Requirement(requirement.strip())
        (pin,) = parsed.specifier
        assert pin.operator == "==", line
        assert hashes, f"{lock}: {parsed.name} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one.strip()) for one in hashes), line
        if parsed.marker is None or parsed.marker.evaluate():
            pins[canonicalize_name(parsed.name)] = pin.version
    return pins


def requirements_of(extras: tuple[str, ...]) -> list[Requirement]:
    """The requirements of the project with these extras; extras that name extras are followed."""
    lines, todo = list(PROJECT["dependencies"]), list(extras)
    while todo:
        for line in PROJECT["optional-dependencies"][todo.pop()]:
            requirement = Requirement(line)
            if requirement.name == PROJECT["name"]:
                todo += requirement.extras
            else:
                lines.append(line)
    return [
        requirement
        for requirement in map(Requirement, lines)
        if requirement.marker is None or requirement.marker.evaluate()
    ]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_lines_are_pinned_and_hashed(lock):
    assert pins(lock)


@pytest.mark.parametrize(
    ("lock", "extras"), [("train.lock", ("train",)), ("dev.lock", ("train", "envs", "dev")), ("docs.lock", ("docs",))]
)
def test_a_lock_satisfies_pyproject(lock, extras):
    locked = pins(lock)
    for line in (ROOT / "requirements" / "torch.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            (pin,) = Requirement(line).specifier
            locked[Requirement(line).name] = pin.version
    for requirement in requirements_of(extras):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{lock} lacks {requirement.name}: make lock"
        assert requirement.specifier.contains(version), (
            f"{lock} has {requirement.name} {version}, not {requirement.specifier}: make lock"
        )


def test_the_quick_installation_has_the_tested_versions():
    everything = pins("dev.lock")
    assert {name: everything.get(name) for name in pins("train.lock")} == pins("train.lock")


def test_only_extras_of_games_require_gpl_packages():
    """Walks what is installed, from the extras that a user may take; the LGPL suits a library that is imported."""
    extras = [extra for extra in PROJECT["optional-dependencies"] if extra not in GAMES]
    seen, todo = (
        set(),
        [
            (requirement.name, extra)
            for requirement in requirements_of(tuple(extras))
            for extra in ("", *requirement.extras)
        ],
    )
    while todo:
        name, extra = key = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # vLLM and SGLang have environments of their own
        licence = distribution.metadata.get("License-Expression") or ""
        licence += "".join(
            one for one in distribution.metadata.get_all("Classifier") or () if one.startswith("License")
        )
        assert not re.search(r"(?<!L)A?GPL-|(?<!Lesser )General Public License", licence), f"{name}: {licence}"
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                todo += [(requirement.name, part) for part in ("", *requirement.extras)]
    assert len(seen) > 60
