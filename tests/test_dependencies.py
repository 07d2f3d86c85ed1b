"""What `make` installs: locked, hashed, as pyproject.toml asks, and under licences that go with this one's."""

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
    found = {}
    text = re.sub(r"\\\n", " ", (ROOT / "requirements" / lock).read_text())
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        requirement, *hashes = line.split(" --hash=")
        each = Requirement(requirement.strip())
        (pin,) = each.specifier
        assert pin.operator == "==", line
        assert hashes, f"{lock}: {each.name} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one.strip()) for one in hashes), line
        if each.marker is None or each.marker.evaluate():
            found[canonicalize_name(each.name)] = pin.version
    return found


def asked(extras: tuple[str, ...]) -> list[Requirement]:
    """The requirements of the project with these extras; extras that name extras are followed."""
    lines, todo = list(PROJECT["dependencies"]), list(extras)
    while todo:
        for line in PROJECT["optional-dependencies"][todo.pop()]:
            each = Requirement(line)
            if each.name == PROJECT["name"]:
                todo += each.extras
            else:
                lines.append(line)
    return [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate()]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_pinned_and_hashed(lock):
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
    for each in asked(extras):
        version = locked.get(canonicalize_name(each.name))
        assert version is not None, f"{lock} lacks {each.name}: make lock"
        assert each.specifier.contains(version), f"{lock} has {each.name} {version}, not {each.specifier}: make lock"


def test_the_quick_installation_has_the_tested_versions():
    everything = pins("dev.lock")
    assert {name: everything.get(name) for name in pins("train.lock")} == pins("train.lock")


def test_nothing_under_the_gpl_is_required_but_by_the_extras_of_games():
    """Walks what is installed, from the extras that a user may take; the LGPL suits a library that is imported."""
    extras = [extra for extra in PROJECT["optional-dependencies"] if extra not in GAMES]
    seen, todo = set(), [(each.name, extra) for each in asked(tuple(extras)) for extra in ("", *each.extras)]
    while todo:
        name, extra = key = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # vLLM and SGLang have environments of their own
        licence = found.metadata.get("License-Expression") or ""
        licence += "".join(one for one in found.metadata.get_all("Classifier") or () if one.startswith("License"))
        assert not re.search(r"(?<!L)A?GPL-|(?<!Lesser )General Public License", licence), f"{name}: {licence}"
        for line in found.requires or ():
            each = Requirement(line)
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                todo += [(each.name, wanted) for wanted in ("", *each.extras)]
    assert len(seen) > 60
