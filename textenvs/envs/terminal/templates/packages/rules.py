"""Rules that the programs of the template `packages` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "prerelease-order",
        "@lib@/versions.py",
        "Customers have versions that were not meant for them, or lack some that were.",
        [
            Option('(label == "", label)', "`1.4-rc2` is older than `1.4`.", lambda label: (label == "", label)),
            Option('(label != "", label)', "`1.4-rc2` is newer than `1.4`.", lambda label: (label != "", label)),
        ],
    ),
    Rule(
        "tilde",
        "@lib@/versions.py",
        "Limits with a tilde let in what they should not, or the other way round.",
        [
            Option(
                "numbers(version)[:1] == numbers(bound)[:1] and rank(version) >= rank(bound)",
                "`~ 2.1.3` is `2.1.3` and what is newer, of the same first number.",
                1,
            ),
            Option(
                "numbers(version)[:2] == numbers(bound)[:2] and rank(version) >= rank(bound)",
                "`~ 2.1.3` is `2.1.3` and what is newer, of the same first two numbers.",
                2,
            ),
            Option(
                "numbers(version)[:3] == numbers(bound)[:3] and rank(version) >= rank(bound)",
                "`~ 2.1.3` is `2.1.3` and what is newer, of the same first three numbers.",
                3,
            ),
        ],
    ),
    Rule(
        "status-left-out",
        "@lib@/choose.py",
        "Packages are installed that should have been left out.",
        [
            Option(f'"{status}"', f"Packages of the status `{status}` are never installed; others are.", status)
            for status in ("yanked", "broken", "beta", "private")
        ],
    ),
    Rule(
        "chosen-version",
        "@lib@/choose.py",
        "Hosts have other versions than the plan says.",
        [
            Option(
                "max(candidates, key=lambda package: rank(package.version))",
                "Of the versions that fit, the newest is installed.",
                "newest",
            ),
            Option(
                "min(candidates, key=lambda package: rank(package.version))",
                "Of the versions that fit, the oldest is installed.",
                "oldest",
            ),
            Option(
                "max(candidates, key=lambda package: (-numbers(package.version)[0], rank(package.version)))",
                "Of the versions that fit, the newest of those with the smallest first number is installed.",
                "stable",
            ),
        ],
    ),
    Rule(
        "optional-needs",
        "@lib@/choose.py",
        "Hosts have too many packages, or too few.",
        [
            Option("[*package.needs, *package.optional]", "What is optional is installed as well.", True),
            Option("list(package.needs)", "What is optional is not installed, unless something needs it.", False),
        ],
    ),
    Rule(
        "cycle",
        "@lib@/choose.py",
        "Packages that need each other are not treated as agreed.",
        [
            Option(
                "ready = [min(waiting)]",
                "Where every package that is not in the list yet needs another such package, the first one of them by "
                "name comes next.",
                min,
            ),
            Option(
                "ready = [max(waiting)]",
                "Where every package that is not in the list yet needs another such package, the last one of them by "
                "name comes next.",
                max,
            ),
            Option(
                'raise Problem("circle of " + " ".join(sorted(waiting)))',
                "Where every package that is not in the list yet needs another such package, there is no list: the "
                "answer is `circle of` and the names of these packages, in their order.",
                None,
            ),
        ],
    ),
    Rule(
        "order-of-install",
        "@lib@/choose.py",
        "The installation does not go in the order that was agreed.",
        [
            Option(
                "lambda name: name", "Of packages that can be installed next, the first one by name is.", lambda n, s: n
            ),
            Option(
                "lambda name: name[::-1]",
                "Of packages that can be installed next, it is the first one by name, read from the end.",
                lambda n, s: n[::-1],
            ),
            Option(
                "lambda name: (chosen[name].size, name)",
                "Of packages that can be installed next, the smallest one is.",
                lambda n, s: (s, n),
            ),
            Option(
                "lambda name: (-chosen[name].size, name)",
                "Of packages that can be installed next, the largest one is.",
                lambda n, s: (-s, n),
            ),
        ],
    ),
    numbers(
        "status-of-missing",
        "@lib@/main.py",
        "The job that installs goes on where it should end.",
        (3, 4, 5, 6, 7, 8, 9),
        "return {}",
        "What cannot be installed gives the exit status {}.",
    ),
    Rule(
        "install-line",
        "@lib@/main.py",
        "The installer does not understand the list any more.",
        [
            Option('f"{place}. {package.name} {package.version}"', "A line is such as `1. hinge 2.4`.", "{0}. {1} {2}"),
            Option('f"{package.name}={package.version}"', "A line is such as `hinge=2.4`.", "{1}={2}"),
            Option(
                'f"install {package.name}-{package.version} # {package.size}"',
                "A line is such as `install hinge-2.4 # 512`, with the size.",
                "install {1}-{2} # {3}",
            ),
            Option('f"{package.version}@{package.name}"', "A line is such as `2.4@hinge`.", "{2}@{1}"),
        ],
    ),
    Rule(
        "package-digest",
        "@lib@/fields.sh",
        "No checksum of the index is that of our partners.",
        [
            Option(f"{name}sum", f"Checksums are of the kind {name.upper()}.", name)
            for name in ("sha1", "sha256", "md5", "sha224")
        ],
    ),
    Rule(
        "index-size",
        "@lib@/fields.sh",
        "The sizes in the index are not those that were agreed.",
        [
            Option('bytes "$1"', "The index has sizes in bytes.", lambda size: f"{size}"),
            Option(
                'echo "$((($(bytes "$1") + 1023) / 1024))K"',
                "The index has sizes in KiB, rounded up, such as `3K`.",
                lambda size: f"{-(-size // 1024)}K",
            ),
            Option(
                'echo "$(($(bytes "$1") / 1024))K"',
                "The index has sizes in KiB, rounded down, such as `3K`.",
                lambda size: f"{size // 1024}K",
            ),
            Option(
                'echo "$((($(bytes "$1") + 99) / 100))"',
                "The index has sizes in hundreds of bytes, rounded up.",
                lambda size: f"{-(-size // 100)}",
            ),
        ],
    ),
    Rule(
        "order-of-index",
        "bin/index",
        "The index is sorted in another way than our partners sort it.",
        [
            Option("-k 1,1 -k 2,2V", "The index is in the order of names, the oldest version first.", (1, False)),
            Option("-k 1,1 -k 2,2Vr", "The index is in the order of names, the newest version first.", (-1, False)),
            Option("-k 1,1r -k 2,2V", "The index has the last name first, and its oldest version first.", (1, True)),
        ],
    ),
)

IDENTIFIERS = (
    "fields entries read rank label fits bound candidates limits limit demands roots needed picked order "
    "waiting ready following contents before place packages"
)
