"""Files of the template `packages`; what stands between @ is drawn."""

RESOLVE = """#!/bin/sh
# Prints what has to be installed, in this order. Usage: bin/resolve STORE NAME[LIMIT]...
ROOT=$(cd "$(dirname "$0")/.." && pwd)
exec python3 -S -E "$ROOT/@lib@/main.py" "$@"
"""

INDEX = """#!/bin/bash
# Prints a line for each package of a store: name, version, size, checksum. Usage: bin/index STORE
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/fields.sh"
for manifest in "$1"/*/manifest; do
    folder=${manifest%/manifest}
    echo "$(field name "$manifest") $(field version "$manifest") $(size "$folder") $(checksum "$folder")"
done | LC_ALL=C sort @order_of_index@
"""

VERIFY = """#!/bin/bash
# Prints how a store differs from an index. Usage: bin/verify STORE INDEX
ROOT=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp)
"$ROOT/bin/index" "$1" > "$work"
awk -f "$ROOT/@lib@/compare.awk" "$2" "$work" | LC_ALL=C sort
"""

FIELDS = r"""# Functions on packages.

# Prints a field of a manifest. Some manifests were written on another system.
field() {
    tr -d '\r' < "$2" | sed -n "s/^$1: *//Ip" | head -n 1
}

# Prints the contents of all files but the manifest, in the order of their paths.
contents() {
    (cd "$1" && find . -type f ! -name manifest -print0 | LC_ALL=C sort -z | xargs -0 -r cat)
}

bytes() {
    contents "$1" | wc -c
}

size() {
    @index_size@
}

checksum() {
    contents "$1" | @package_digest@ | cut -d ' ' -f 1
}
"""

COMPARE = """# Compares two indexes: that of before, and that of now.
FILENAME == ARGV[1] {
    before[$1 " " $2] = $0
    next
}
{
    package = $1 " " $2
    if (!(package in before)) print "new", package
    else if (before[package] != $0) print "changed", package
    delete before[package]
}
END {
    for (package in before) print "gone", package
}
"""

MANIFEST = '''"""Manifests: lines of KEY: VALUE; a line that begins with a space continues the value above it."""
import re
from pathlib import Path
from types import SimpleNamespace

NEED = re.compile(r"([a-z][a-z-]*) *(?:(>=|<|=|~) *([0-9][^ ]*))?")


def fields(path):
    entries, key = {}, None
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            entries[key] += line
            continue
        key, _, value = line.partition(":")
        key = key.strip().lower()
        entries[key] = value.strip()
    return entries


def needs(value):
    """Return triples of name, sign and version; without a limit, the sign is None."""
    return [NEED.fullmatch(item.strip()).groups() for item in value.split(",") if item.strip()]


def read(folder):
    """Return the packages of a store, by name."""
    store = {}
    for path in sorted(Path(folder).glob("*/manifest")):
        entries = fields(path)
        package = SimpleNamespace(
            name=entries["name"],
            version=entries["version"],
            size=int(entries["size"]),
            status=entries.get("status", ""),
            needs=needs(entries.get("needs", "")),
            optional=needs(entries.get("optional", "")),
        )
        store.setdefault(package.name, []).append(package)
    return store
'''

VERSIONS = '''"""Versions such as 1.10.2 or 1.4-rc2."""


def numbers(version):
    """Return the numbers of a version; zeros at the end make no difference."""
    result = [int(part) for part in version.partition("-")[0].split(".")]
    while result and result[-1] == 0:
        result.pop()
    return result


def rank(version):
    label = version.partition("-")[2]
    return numbers(version), @prerelease_order@


def fits(version, sign, bound):
    """Tell if a version is within a limit."""
    if sign is None:
        return True
    if sign == ">=":
        return rank(version) >= rank(bound)
    if sign == "<":
        return rank(version) < rank(bound)
    if sign == "~":
        return @tilde@
    return rank(version) == rank(bound)
'''

CHOOSE = '''"""Choose a version of each package, and the order in which they are installed."""
from versions import fits, numbers, rank


class Problem(Exception):
    """An error whose message is printed: these packages cannot be installed."""


def pick(store, name, limits):
    candidates = [
        package
        for package in store.get(name, [])
        if package.status != @status_left_out@ and all(fits(package.version, *limit) for limit in limits)
    ]
    if not candidates:
        raise Problem(f"no {name}")
    return @chosen_version@


def demands(package):
    return @optional_needs@


def choose(store, roots):
    """Return the package of each name; all limits of chosen packages hold."""
    chosen = {}
    while True:
        needed = {}
        for name, *limit in roots:
            needed.setdefault(name, []).append(limit)
        for package in chosen.values():
            for name, *limit in demands(package):
                needed.setdefault(name, []).append(limit)
        picked = {name: pick(store, name, needed[name]) for name in sorted(needed)}
        if picked == chosen:
            return chosen
        chosen = picked


def order(chosen):
    """Return the packages so that each comes after those that it needs."""
    waiting, result = set(chosen), []
    while waiting:
        ready = [name for name in waiting if not any(other in waiting for other, *_ in demands(chosen[name]))]
        if not ready:
            @cycle@
        following = min(ready, key=@order_of_install@)
        waiting.remove(following)
        result.append(chosen[following])
    return result
'''

MAIN = '''"""Print what has to be installed."""
import sys

from choose import Problem, choose, order
from manifest import needs, read


def main():
    store = read(sys.argv[1])
    roots = [need for word in sys.argv[2:] for need in needs(word)]
    try:
        packages = order(choose(store, roots))
    except Problem as problem:
        print(problem)
        @status_of_missing@
    for place, package in enumerate(packages, start=1):
        print(@install_line@)
    return 0


sys.exit(main())
'''

FORMAT = """# The store

A package is a folder of the store with a `manifest` and files. A manifest has lines of `KEY: VALUE`, in any
case of letters; a line that begins with a space continues the value above it, and a value may have colons in
it.

- `name` and `version`: the folder's name is no matter. A version has numbers with dots between them, and
  perhaps a label behind `-`. Zeros at the end make no difference: `2.0` is `2`.
- `size`: of what is installed, in bytes.
- `status`: empty, or why somebody should look at it.
- `needs`: names of other packages, with commas between them, and perhaps a limit: `>= 1.2`, `< 2`, `= 1.5` or
  `~ 2.1.3`.
- `optional`: the same, of what is no must.

`bin/resolve STORE NAME...` chooses one version of each package that is needed, so that the limits of all chosen
packages hold, and prints them; a NAME may have a limit. What cannot be installed is `no NAME`.

`bin/index STORE` prints name, version, size and checksum. The last two are of all files of the package but the
manifest, one behind the other in the order of their paths (that of bytes). `bin/verify STORE INDEX` prints what
is `new`, `gone` or `changed` since the index was made; an empty index is one, too.
"""
