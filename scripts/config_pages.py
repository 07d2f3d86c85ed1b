"""Write docs/configuration.md and docs/coming-from-verl.md, from the schema and from the table of verl's keys.

::

    python scripts/config_pages.py docs/configuration.md docs/coming-from-verl.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainers.compat.verl.rules import TABLES
from trainers.compat.verl.translate import NAMES, Rule
from trainers.config.base import RunConfig
from trainers.config.commands import EvaluateConfig, GenerateConfig
from trainers.config.describe import Key, groups
from trainers.config.schema import PPOConfig, SFTConfig
from trainers.config.yaml12 import dump

COMMANDS: dict[str, type[RunConfig]] = {
    "python -m trainers.ppo": PPOConfig,
    "python -m trainers.sft": SFTConfig,
    "python -m trainers.generate": GenerateConfig,
    "python -m trainers.evaluate": EvaluateConfig,
}
_IGNORED = "no meaning"
_BEGINS = "<!-- From here on made by `make docs-pages` from trainers/compat/verl/keys.yaml; do not edit it here. -->"


def markdown(schemas: Mapping[str, type[RunConfig]]) -> str:
    lines = [
        "# Configuration",
        "",
        "Made by `make docs-pages` from `trainers/config/` and `trainers/algorithms/`; do not edit it here.",
        "",
        "Keys are set by `key=value` arguments, whose values are YAML, and by files given with `--config`. Later files",
        "win over earlier ones, arguments over files. `--dry-run` prints what differs from the defaults and where it",
        "came from (with `--all` every key), and what it prints can be given to `--config` again; `--plan-for` places",
        "the run on another machine ([the plan](cluster.md#the-plan)). `--help SECTION` prints a",
        "section of this page for the terminal, `--help --all` the whole.",
        "An unknown key, a value out of range, and values that do not go together are errors, all reported at once.",
        "An integer without an upper bound here is at most 2147483647, and keys in seconds (`..._s`) at most 1e9.",
    ]
    seen: dict[str, str] = {}  # rows of earlier commands, by key
    for command, schema in schemas.items():
        lines += ["", f"## `{command}`"]
        for group in groups(schema):
            rows = {key.name: _row(key) for key in group.keys}
            new = [row for name, row in rows.items() if seen.get(name) != row]
            lines += ["", f"### {group.name}"]
            if any(key.description != group.description for key in group.keys):  # a mapping is one key, described once
                lines += ["", group.description]
            if same := [f"`{name}`" for name, row in rows.items() if seen.get(name) == row]:
                lines += ["", f"As above: {', '.join(same)}."]
            if new:
                lines += ["", "| Key | Allowed | Default | Meaning |", "|---|---|---|---|", *new]
            seen = rows | seen
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    cells = (f"`{key.name}`", key.allowed, f"`{dump(key.default)}`", key.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def verl_page(page: str) -> str:
    return "\n".join([page.partition(_BEGINS)[0] + _BEGINS, *_tables()]).rstrip() + "\n"


def _tables() -> Iterator[str]:
    for command, schema in COMMANDS.items():
        if (table := TABLES.get(schema)) is None:
            continue
        yield from ("", f"## `{command}`", "", "| verl's key | Here | |", "|---|---|---|")
        rows: dict[str, list[str]] = {}
        for name, rule in table.rules.items():
            rows.setdefault(_cells(rule), []).append(f"`{name}`")
        for cells, names in sorted(rows.items(), key=lambda row: row[0].startswith(_IGNORED)):
            yield f"| {', '.join(names)} | {cells} |".replace("||", "| |")
        if table.defaults:
            yield from ("", "### Defaults", "", "What a command of verl leaves out, where our default is another:", "")
            yield from (f"- `{name}`: `{dump(value)}`" for name, value in table.defaults.items())
            yield from (f"- `{name}` (then translated): `{dump(value)}`" for name, value in NAMES["values"].items())
    yield from ("", "## Interactions and tools", "")
    yield "Classes of an `interaction_config_path` or `tool_config_path`, by their last name; for others name `env.id`."
    yield ""
    for name, environment in {**NAMES["interactions"], **NAMES["tools"]}.items():
        options = ", ".join(f"`{key}={dump(value)}`" for key, value in environment.get("kwargs", {}).items())
        yield f"- `{name}`: `{environment['env']}`{' with ' * bool(options)}{options}: {environment['why']}"
    yield from ("", "## Agent loops", "", *(f"- `{name}`: `{env}`" for name, env in NAMES["agent_loops"].items()))


def _cells(rule: Rule) -> str:
    """Return the cells of a key's translation; keys with equal cells share a row."""
    notes = [rule.why] if rule.why else []
    translation = f"`{rule.to}`" if rule.to else "computed" if rule.computed else _IGNORED
    if words := [f"{dump(verl_value)} is {dump(own_value)}" for verl_value, own_value in rule.words.items()]:
        notes.append("; ".join(words))
    if rule.only is not None:
        notes.append(f"only {' or '.join(f'`{dump(value)}`' for value in (*rule.only, None))}")
    return f"{translation} | {'. '.join(notes)}"


if __name__ == "__main__":
    own_page, translation_page = map(Path, sys.argv[1:])
    own_page.write_text(markdown(COMMANDS), encoding="utf-8")
    translation_page.write_text(verl_page(translation_page.read_text(encoding="utf-8")), encoding="utf-8")
