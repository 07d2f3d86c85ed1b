"""The template *packages*: a store of packages with manifests; what has to be installed, an index, and its check.

It needs bash, sh, awk (mawk is enough), Python 3, findutils and coreutils.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, GOODS, SERVICES, asked_together, day, file_in_the_way, lost_permission, notes, person, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import CHOOSE, COMPARE, FIELDS, FORMAT, INDEX, MAIN, MANIFEST, RESOLVE, VERIFY, VERSIONS

_STATUSES = ("yanked", "broken", "beta", "private")
#: A limit: its sign, and a version.
_Limit = tuple[str, str]


@dataclass(frozen=True)
class _Package:
    """A package of a store; ``needs`` and ``optional`` have a name, and perhaps a limit."""

    name: str
    version: str
    size: int = 0
    needs: Sequence[tuple[str, _Limit | None]] = ()
    optional: Sequence[tuple[str, _Limit | None]] = ()
    status: str = ""

    def manifest(self, rng: random.Random, capital: bool) -> str:
        """Return its manifest, in one of the forms in which people write it; ``capital`` is for its keys."""
        needs, optional = (
            [name if limit is None else f"{name} {limit[0]} {limit[1]}" for name, limit in demands]
            for demands in (self.needs, self.optional)
        )
        half = len(needs) // 2
        needs_lines = [f"needs: {', '.join(needs)},"]
        if half:
            needs_lines = [f"needs: {', '.join(needs[:half])},", f"  {', '.join(needs[half:])}"]
        lines = [
            f"name: {self.name}",
            f"api-version: {rng.randint(1, 9)}",
            f"version:  {self.version}",
            f"size: {self.size}",
            f"homepage: https://example.com/{token(rng, 4)}",
            f"description: by {person(rng)}, geprüft",
            f"status: {self.status}",
            f"optional: {', '.join(optional)}",
        ]
        if capital:
            lines = [line[0].upper() + line[1:] for line in lines]
            needs_lines[0] = needs_lines[0].capitalize()
        return "\n".join(lines[:1] + needs_lines + lines[1:]) + "\n"


@dataclass(frozen=True)
class _Resolver:
    """The expected outputs for a store."""

    variant: Variant
    store: Sequence[_Package]

    def rank(self, version: str) -> tuple[list[int], Any]:
        main, _, label = version.partition("-")
        return self.numbers(main), self.variant["prerelease-order"](label)

    @staticmethod
    def numbers(version: str) -> list[int]:
        numbers = [int(part) for part in version.split("-")[0].split(".")]
        while numbers[-1:] == [0]:
            numbers = numbers[:-1]
        return numbers

    def fits(self, version: str, limit: _Limit | None) -> bool:
        if limit is None:
            return True
        sign, bound = limit
        rank, border, same = self.rank(version), self.rank(bound), self.variant["tilde"]
        alike = self.numbers(version)[:same] == self.numbers(bound)[:same]
        return {">=": rank >= border, "<": rank < border, "=": rank == border, "~": alike and rank >= border}[sign]

    def picked(self, name: str, limits: Sequence[_Limit | None]) -> _Package | None:
        candidates = [
            package
            for package in self.store
            if package.name == name
            and package.status != self.variant["status-left-out"]
            and all(self.fits(package.version, limit) for limit in limits)
        ]
        candidates.sort(key=lambda package: self.rank(package.version))
        if not candidates:
            return None
        if self.variant["chosen-version"] == "stable":
            major = min(self.numbers(package.version)[0] for package in candidates)
            candidates = [package for package in candidates if self.numbers(package.version)[0] == major]
        return candidates[0 if self.variant["chosen-version"] == "oldest" else -1]

    def demands(self, package: _Package) -> Sequence[tuple[str, _Limit | None]]:
        return [*package.needs, *(package.optional if self.variant["optional-needs"] else ())]

    def printed(self, roots: Sequence[tuple[str, _Limit | None]]) -> str:
        """Return what is printed for these names, and the status."""
        failed = f"status {self.variant['status-of-missing']}\n"
        chosen = dict[str, _Package]()
        while True:
            limits = dict[str, list[_Limit | None]]()
            for name, limit in [*roots, *(demand for package in chosen.values() for demand in self.demands(package))]:
                limits.setdefault(name, []).append(limit)
            picked = {name: self.picked(name, limits[name]) for name in sorted(limits)}
            for name, package in picked.items():
                if package is None:
                    return f"no {name}\n{failed}"
            following = {name: package for name, package in picked.items() if package is not None}
            if following == chosen:
                break
            chosen = following
        lines = list[str]()
        while chosen:
            free = [name for name, one in chosen.items() if not any(other in chosen for other, _ in self.demands(one))]
            if not free:
                if self.variant["cycle"] is None:
                    return f"circle of {' '.join(sorted(chosen))}\n{failed}"
                free = [self.variant["cycle"](chosen)]
            free.sort(key=lambda name: self.variant["order-of-install"](name, chosen[name].size))
            package = chosen.pop(free[0])
            line = self.variant["install-line"]
            lines.append(line.format(len(lines) + 1, package.name, package.version, package.size))
        return "\n".join([*lines, "status 0"]) + "\n"


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the rules of a store, an example of one, and lists of what was released."""
    names = {"lib": rng.choice(["lib", "tools", "share", "inside"]), "store": rng.choice(["store", "pool", "depot"])}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/resolve": RESOLVE,
        "bin/index": INDEX,
        "bin/verify": VERIFY,
        "@lib@/fields.sh": FIELDS,
        "@lib@/compare.awk": COMPARE,
        "@lib@/manifest.py": MANIFEST,
        "@lib@/versions.py": VERSIONS,
        "@lib@/choose.py": CHOOSE,
        "@lib@/main.py": MAIN,
        "old/compare.awk": COMPARE.replace('$1 " " $2', "$1").replace("changed", "differs"),
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {"docs/store.md": FORMAT, "docs/notes.md": notes(rng, "Notes on the store", 11)}
    for name in rng.sample(GOODS, 4):
        package = _Package(name, f"{rng.randint(1, 3)}.{rng.randint(0, 12)}", rng.randint(100, 9000))
        files |= {f"{names['store']}/{path}": text for path, text in _folder(rng, package, rng.random() < 0.5).items()}
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith((f"{names['store']}/", "lists/", "downloads/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_resolution(fresh, variant), _index(fresh, variant)]

    about = (
        "`bin/resolve` prints which packages of a store have to be installed, `bin/index` prints an index of the "
        f"store, and `bin/verify` compares it with one. `{names['store']}/` is a small store. `docs/store.md` "
        f"describes all that, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -60", "cat bin/* docs/store.md", f"cat {names['lib']}/*"]
    modes = dict.fromkeys(["bin/resolve", "bin/index", "bin/verify"], 0o755)
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    shadow = f"{variant.names['lib']}/types.py"
    return [
        file_in_the_way(
            shadow,
            '"""Types of packages, for a later version."""\n\nTYPES = ("program", "library")\n',
            looks,
            "It ends with an ImportError before it reads a manifest.",
        ),
        lost_permission("bin/index", looks, "Nothing can be compared any more."),
    ]


def _capitals(rng: random.Random, count: int) -> list[bool]:
    """Draw for some packages if the keys of their manifests have capitals: one at least has, and one has not."""
    return rng.sample([True, False, *(rng.random() < 0.5 for _ in range(count - 2))], count)


def _folder(rng: random.Random, package: _Package, capital: bool) -> dict[str, str]:
    """Return the files of a package, by path: names with spaces, upper case, hidden ones, and a manifest."""
    folder = f"{package.name}-{package.version}"
    texts = {
        f"{rng.choice(GOODS)} {token(rng, 3)}.txt": token(rng, 16) * rng.randint(20, 90) + "\n",
        f"Z{token(rng, 4)}": f"{token(rng, 30)}\n",
        f"a{token(rng, 4)}": "ä" * rng.randint(1200, 3000) + "\n",
        f".{token(rng, 5)}": token(rng, 24) * 9 + "\n",
        f"doc/{token(rng, 5)}.md": token(rng, 40) * rng.randint(9, 40) + "\n",
    }
    return {f"{folder}/{path}": text for path, text in {**texts, "manifest": package.manifest(rng, capital)}.items()}


def _resolution(rng: random.Random, variant: Variant) -> Check:
    """Draw a store in which each rule and each limit decides something; some names cannot be installed."""
    words = rng.sample(GOODS, 20)
    words = [f"{word}-{rng.choice(SERVICES)}" if rng.random() < 0.5 else word for word in words]
    top, other, first, second, label, plain, extra, deep, deeper, one, two, *rest = words
    ring, circle, outer, below, zeros, *parts = rest
    minor = rng.randint(2, 8)
    packages = [
        *(_Package(top, version) for version in ("1.0", "1.7", "3.5")),
        _Package(
            top,
            "1.5",
            needs=[
                (one, (">=", f"1.{minor}")),
                (two, ("<", "3")),
                (label, None),
                (plain, (">=", f"1.{minor + 1}")),
                (deep, None),
                *((part, None) for part in parts),
            ],
            optional=[(extra, None)],
        ),
        _Package(other, "2.0", needs=[(one, ("<", "3")), (two, (">=", f"1.{minor}"))]),
        *(_Package(name, version) for name in (one, two) for version in ("1.0", "2.0", "3.1")),
        *(_Package(label, version) for version in ("1.4", "1.4-rc2")),
        *(_Package(plain, version) for version in (f"1.{minor + 1}", f"1.{minor + 10}", "2.3")),
        _Package(extra, "1.1"),
        _Package(deep, "1.2", needs=[(deeper, None)]),
        _Package(deeper, f"0.{rng.randint(1, 9)}"),
        *(
            _Package(part, version, status="" if version == "1.5" else status)
            for part, status in zip(parts, _STATUSES, strict=True)
            for version in ("1.9", "1.5", "1.0")
        ),
        _Package(first, f"2.{rng.randint(4, 9)}"),
        _Package(second, f"2.1.{rng.randint(4, 9)}"),
        _Package(ring, "1.0", needs=[(circle, None)]),
        _Package(circle, "1.3", needs=[(ring, None)]),
        _Package(outer, "1.1", needs=[(circle, None)]),
        *(_Package(name, "2.0") for name in (below, zeros)),
    ]
    sizes = rng.sample(range(100, 9999), len(packages))
    store = [
        _Package(one.name, one.version, size, rng.sample(list(one.needs), len(one.needs)), one.optional, one.status)
        for one, size in zip(packages, sizes, strict=True)
    ]
    missing = token(rng, 6)
    requests: list[list[tuple[str, _Limit | None]]] = [
        [(top, ("=", "1.5")), (other, None), (zeros, ("=", "2"))],
        [(first, ("~", "2.1.3"))],
        [(second, ("~", "2.1.3"))],
        [(below, ("<", "2")), (first, None)],
        [(ring, None)],
        [(outer, None)],
        [(f"x{missing}".translate(str.maketrans("0123456789", "ghijklmnop")), None)],
    ]
    rng.shuffle(requests)
    resolver = _Resolver(variant, store)
    expected = "".join(resolver.printed(roots) for roots in requests)
    commands = (
        " ".join(["bin/resolve $IN/store", *(f"'{name}{''.join(limit or ())}'" for name, limit in roots)])
        for roots in requests
    )
    inputs = {
        f"store/{one.name}-{one.version}/manifest": one.manifest(rng, capital)
        for one, capital in zip(store, _capitals(rng, len(store)), strict=True)
    }
    return Check("resolve", "; ".join(f'{command}; echo "status $?"' for command in commands), expected, inputs)


def _index(rng: random.Random, variant: Variant) -> Check:
    """Draw a store, of which one package changes, one goes, and one comes."""
    one, other, third = rng.sample(GOODS, 3)
    major = rng.randint(11, 19)
    drawn = [
        _Package(one, f"{major}.9"),
        _Package(one, f"{major}.10"),
        _Package(f"{other}-{rng.choice(SERVICES)}", f"1.{rng.randint(0, 9)}"),
        _Package(third, f"3.{rng.randint(0, 9)}"),
    ]
    contents = [
        _folder(rng, package, capital) for package, capital in zip(drawn, [*_capitals(rng, 3), False], strict=True)
    ]
    sizes, sums = zip(*(_figures(variant, files) for files in contents), strict=True)
    lines = [
        (package.name, package.version, f"{package.name} {package.version} {size} {digest}")
        for package, size, digest in zip(drawn, sizes, sums, strict=True)
    ]
    sign, backwards = variant["order-of-index"]
    indexed = sorted(
        lines[:3], key=lambda line: (line[0], [sign * int(part) for part in line[1].split(".")]), reverse=False
    )
    if backwards:
        indexed.sort(key=lambda line: line[0], reverse=True)
    folders = [f"{package.name}-{package.version}" for package in drawn]
    inputs = {f"store/{path}": text for files in contents[:3] for path, text in files.items()}
    inputs |= {f"more/{path}": text for path, text in contents[3].items()}
    # One manifest is of another system, and has a field twice.
    path = f"store/{folders[2]}/manifest"
    inputs[path] = (inputs[path] + "Version: 0.1\n").replace("\n", "\r\n")
    hidden = next(name.removeprefix(f"{folders[0]}/") for name in contents[0] if "/." in name)
    command = (
        "bin/index $IN/store | tee /tmp/index; : > /tmp/none; bin/verify $IN/store /tmp/none; "
        f"mkdir /tmp/w; cp -r $IN/store /tmp/w/store; cd /tmp/w/store; echo {token(rng)} >> {folders[0]}/{hidden}; "
        f"rm -r {folders[2]}; cp -r $IN/more/{folders[3]} .; /project/bin/verify /tmp/w/store /tmp/index"
    )
    new = sorted(f"new {line[0]} {line[1]}" for line in lines[:3])
    changes = sorted(
        f"{word} {drawn[place].name} {drawn[place].version}"
        for word, place in (("changed", 0), ("gone", 2), ("new", 3))
    )
    expected = "\n".join([*(line[2] for line in indexed), *new, *changes])
    return Check("index", command, expected, inputs)


def _figures(variant: Variant, files: Mapping[str, str]) -> tuple[str, str]:
    """Return size and checksum of a package, as the index has them."""
    contents = b"".join(files[path].encode() for path in sorted(files) if not path.endswith("/manifest"))
    return variant["index-size"](len(contents)), hashlib.new(variant["package-digest"], contents).hexdigest()


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw lists of released files and a log of downloads, and ask about them."""
    release_of = dict[str, str]()
    released = [f"{name}-{major}.{rng.randint(0, 9)}" for name in rng.sample(GOODS, 12) for major in (1, 2)]
    for name in released:
        release, lines = token(rng), list[str]()
        for path in dict.fromkeys(f"usr/{rng.choice(GOODS)}/{token(rng, 5)}.so" for _ in range(30)):
            release_of[path] = release
            lines.append(f"{rng.randint(100, 99_999)} {token(rng, 12)} {path}")
        files[f"lists/{name}.list"] = "\n".join([f"# release {release}", *sorted(lines)]) + "\n"
    downloads = dict[str, list[tuple[int, str]]]()
    for month in range(1, 9):
        lines = []
        for size in rng.sample(range(1000, 900_000), 240):
            name, mark = rng.choice(released), token(rng)
            downloads.setdefault(name, []).append((size, mark))
            lines.append(f"{day(rng)} {name} bytes={size} request={mark}")
        files[f"downloads/2025-{month:02}.log"] = "\n".join(lines) + "\n"
    paths = rng.sample(sorted(release_of), ASKED)
    return [
        asked_together([_largest_download(name, max(downloads[name])[1]) for name in rng.sample(released, ASKED)]),
        asked_together([_release_of_path(path, release_of[path]) for path in paths]),
    ]


def _largest_download(name: str, request: str) -> Question:
    command = f"grep -h ' {name} ' downloads/*.log | sed 's/.* bytes=//; s/request=//' | sort -n | tail -1"
    return Question(
        "largest-download",
        f"Which request for {name} had the most bytes, by downloads/?",
        request,
        ["head -3 downloads/2025-01.log", f"{command} | cut -d' ' -f2"],
    )


def _release_of_path(path: str, release: str) -> Question:
    return Question(
        "release-of-path",
        f"Which release has the file {path}, by lists/?",
        release,
        [f"grep -r {path} lists", f"grep -l ' {path}$' lists/* | xargs sed -n 's/^# release //p'"],
    )
