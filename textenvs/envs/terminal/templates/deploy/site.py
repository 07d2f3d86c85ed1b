"""Hosts, layers and templates of the template `deploy`, and what is rendered by the rules of a project."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..variation import Variant

#: A line of a template, or a part of it: ("if", key, nodes, nodes of else), ("include", name), and so on.
Node = str | tuple[Any, ...]


@dataclass(frozen=True)
class Entry:
    """A line of a layer; the style is how it is written: plain, with quotes, on three lines, or without spaces."""

    key: str
    value: str
    adds: bool = False
    style: str = ""

    @property
    def text(self) -> str:
        sign, value = "+=" if self.adds else "=", f'"{self.value}"' if self.style == "quotes" else self.value
        if self.style == "lines":
            first, second, third = value.split(" ", 2)
            return f"{self.key} {sign} {first} \\\n{second} \\\n   {third}"
        return f"{self.key}{sign}{value}" if self.style == "tight" else f"{self.key} {sign} {value}"


@dataclass(frozen=True)
class Row:
    """A line of the table of hosts."""

    text: str
    names: Sequence[str]
    site: str
    roles: Sequence[str]
    state: str = ""

    @property
    def line(self) -> str:
        remark = f" # {self.state} since May" if self.state else ""
        return f"{self.text}  {self.site}\t{','.join(self.roles)} {self.state}".rstrip() + remark


@dataclass(frozen=True)
class Host:
    """A host of the table."""

    name: str
    site: str
    roles: Sequence[str]


def written(nodes: Sequence[Node]) -> list[str]:
    """Return the lines of a template's file."""
    lines = list[str]()
    for node in nodes:
        if isinstance(node, str):
            lines.append(node)
        elif node[0] in ("if", "unless"):
            lines += [f"%{node[0]} {node[1]}", *written(node[2])]
            lines += ["%else", *written(node[3])] if node[3] else []
            lines.append("%end")
        else:
            lines.append(f"%{' '.join(node)}")
    return lines


@dataclass(frozen=True)
class Site:
    """All that is rendered; ``live`` has files of hosts, by name and path."""

    variant: Variant
    reserved: Sequence[int]
    rows: Sequence[Row]
    layers: Mapping[str, Sequence[Entry]]
    secrets: Mapping[str, str]
    files: Sequence[tuple[str, str, str]]
    templates: Mapping[str, Sequence[Node]]
    foreign: frozenset[str] = frozenset()
    live: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """Keys of all layers."""
        return {entry.key for entries in self.layers.values() for entry in entries}

    @cached_property
    def hosts(self) -> list[Host]:
        skipped = self.variant["skipped-state"]
        return [Host(name, row.site, row.roles) for row in self.rows if row.state != skipped for name in row.names]

    def settings(self, host: Host) -> dict[str, tuple[str, str]]:
        """Return value and origin, by key."""
        roles = [f"role/{role}" for role in self.variant["several-roles"]([*host.roles])]
        kinds = {"common": ["common"], "site": [f"site/{host.site}"], "role": roles, "host": [f"host/{host.name}"]}
        values = {"host": host.name, "site": host.site, "roles": ",".join(host.roles)}
        origins = dict.fromkeys(values, "hosts")
        for layer in (one for kind in self.variant["layer-order"] for one in kinds[kind]):
            own = set[str]()
            for entry in self.layers.get(layer, ()):
                old, new = values.get(entry.key, ""), entry.value
                if entry.adds and old:
                    new = self.variant["appended-values"].format(old, new)
                elif entry.key in own:
                    new = self.variant["key-twice-in-layer"](old, new)
                own.add(entry.key)
                values[entry.key], origins[entry.key] = new, layer
        return {key: (self._referred(value, values), origins[key]) for key, value in values.items()}

    def _referred(self, text: str, values: Mapping[str, str]) -> str:
        parts = re.split(r"\$\{([a-z_]+)\}", text)
        return "".join(
            self._referred(values.get(part, ""), values) if place % 2 else part for place, part in enumerate(parts)
        )

    def lines(self, host: Host, template: str, path: str) -> tuple[list[str], bool]:
        """Return the lines of a rendered file, and whether it has secrets."""
        values = {key: value for key, (value, _) in self.settings(host).items()}
        lines, secret = list[str](), False
        blank = self.variant["empty-lines-of-templates"]

        def revealed(value: str) -> str:
            nonlocal secret
            names = re.split(r"secret\(([a-z0-9-]+)\)", value)
            secret = secret or len(names) > 1
            return "".join(
                self.secrets.get(f"{host.site}/{name}", self.secrets.get(name, "")) if place % 2 else name
                for place, name in enumerate(names)
            )

        def fill(text: str, item: str | None = None) -> None:
            parts, line = re.split(r"\{\{(.*?)\}\}", text), ""
            for place, part in enumerate(parts):
                if place % 2 == 0:
                    line += part
                    continue
                key, mark, default = part.partition(":-")
                value = item if key == "item" else values.get(key)
                if mark and self.variant["default-of-value"](value):
                    line += default
                elif value is not None:
                    line += revealed(value)
                elif self.variant["placeholder-without-value"] is None:
                    return
                else:
                    line += self.variant["placeholder-without-value"].format(key)
            line = line.rstrip() if blank == "all" else line
            if line or blank == "all" or (blank == "one" and lines and lines[-1]):
                lines.append(line)

        def render(nodes: Sequence[Node], depth: int) -> None:
            for node in nodes:
                if isinstance(node, str):
                    fill(node)
                elif node[0] in ("if", "unless"):
                    met = self.variant["condition"](values.get(node[1])) == (node[0] == "if")
                    render(node[2] if met else node[3], depth)
                elif node[0] == "include" and depth < self.variant["include-depth"]:
                    render(self.templates[node[1]], depth + 1)
                elif node[0] == "each":
                    for item in re.split("[ ,]+", values[node[1]]):
                        fill(node[2], item)

        render(self.templates[template], 0)
        return [self.variant["header-line"].format(host.name, path, template), *lines], secret

    @cached_property
    def rendered(self) -> dict[str, dict[str, tuple[list[str], bool]]]:
        """Rendered files, with whether they have secrets, by host and path."""
        return {
            host.name: {
                path: self.lines(host, template, path)
                for roles, template, path in self.files
                if roles == "*" or {*roles.split(",")} & {*host.roles}
            }
            for host in self.hosts
        }

    def printed_files(self) -> list[str]:
        """Return permissions and contents of all rendered files."""
        rows = [
            (f"{name}/{path}", text, secret)
            for name, files in self.rendered.items()
            for path, (text, secret) in files.items()
        ]
        modes = [f"{self.variant['mode-of-secrets'] if secret else 644} {path}" for path, _, secret in sorted(rows)]
        return [*modes, *(line for path, text, _ in sorted(rows) for line in [f"./{path}", *text])]

    def problems(self) -> list[str]:
        """Return the lines of `bin/check`."""
        rows, used = list[str](), set[tuple[str, int]]()
        for host in self.hosts:
            for path, (lines, _) in sorted(self.rendered[host.name].items()):
                path = f"{host.name}/{path}"
                for number, line in enumerate(lines, start=1):
                    texts = ["placeholder"] * ("{{" in line)
                    if match := re.fullmatch(r"\s*(?:port|listen)[ =]+(\d+)\s*", line):
                        port, scopes = int(match[1]), {"host": host.name, "site": host.site, "file": path}
                        key = (scopes[self.variant["port-conflict"]], port)
                        texts += [f"low port {port}"] * (port < self.variant["lowest-port"])
                        texts += [f"reserved port {port}"] * (port in self.reserved)
                        texts += [f"port {port} twice"] * (key in used)
                        used.add(key)
                    rows += [self.variant["problem-line"].format(host.name, path, number, text) for text in texts]
        return sorted(rows)

    def plan(self) -> list[str]:
        """Return the lines of `bin/plan`."""
        variant, lines, numbers = self.variant, list[str](), Counter[str]()
        for host in self.hosts:
            live, rows = self.live.get(host.name, {}), list[str]()
            for path, (text, _) in sorted(self.rendered[host.name].items()):
                normal = variant["ignored-differences"]
                if path not in live:
                    rows.append(variant["plan-line"].format("add", host.name, path, len(text)))
                elif count := _different(normal([*live[path]]), normal(text)):
                    rows.append(variant["plan-line"].format("change", host.name, path, count))
            for path in sorted(live.keys() - self.rendered[host.name].keys()):
                verb = variant["stray-files"]
                count = len(live[path]) if verb == "remove" else 0
                rows += [variant["plan-line"].format(verb, host.name, path, count)] * bool(verb)
            lines += rows
            if rows:
                numbers[host.name] = len(rows)
        order, size = (
            sorted(numbers, key=lambda name: variant["order-of-waves"](numbers[name], name)),
            variant["hosts-of-wave"],
        )
        waves = [order[place : place + size] for place in range(0, len(order), size)]
        return [*lines, *(f"wave {number}: {' '.join(wave)}" for number, wave in enumerate(waves, start=1))]

    def explained(self, host: Host, keys: Sequence[str]) -> list[str]:
        """Return the lines of `bin/explain`."""
        settings, mask = self.settings(host), self.variant["masked-secret"]
        rows = [self.variant["line-of-value"].format(key, *settings[key]) for key in keys if key in settings]
        return [re.sub(r"secret\(([^)]*)\)", mask, row) for row in rows]

    def sources(self, folder: str) -> dict[str, str]:
        """Return the files of all that is rendered from."""
        table = "\r\n".join(["# names, site, roles, state", "", *(row.line for row in self.rows), ""])
        files = {"hosts.txt": table}
        for layer, entries in self.layers.items():
            files[f"layers/{layer}.conf"] = "\n".join(["; a layer", *(entry.text for entry in entries), ""])
        files |= {f"secrets/{name}": f"{text}\nsince 2024\n" for name, text in self.secrets.items()}
        files["files.map"] = "\r\n".join(["# roles, template, path", *("  ".join(row) for row in self.files), ""])
        for name, nodes in self.templates.items():
            end = "\r\n" if name in self.foreign else "\n"
            files[f"templates/{name}"] = end.join([*written(nodes), ""])
        return {f"{folder}/{path}": text for path, text in files.items()}

    def live_files(self, folder: str) -> dict[str, str]:
        """Return the files of hosts."""
        return {
            f"{folder}/{name}/{path}": "".join(f"{line}\n" for line in lines)
            for name, files in self.live.items()
            for path, lines in files.items()
        }


def _different(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many lines are in one of two texts alone, with as few as possible."""
    row = [0] * (len(new) + 1)
    for line in old:
        before = row
        row = [0]
        for place, other in enumerate(new):
            row.append(before[place] + 1 if line == other else max(row[place], before[place + 1]))
    return len(old) + len(new) - 2 * row[-1]
