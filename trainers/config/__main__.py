"""The parts of docs that are made from the schema and from the table of verl's keys.

``python -m trainers.config [--verl] PAGE.md`` writes the reference of all keys, or of verl's; without PAGE it prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from textenvs.text import reader_may_leave

from .commands import EvaluateConfig, GenerateConfig
from .describe import markdown
from .schema import PPOConfig, RunConfig, SFTConfig
from .verl import NAMES, Rule
from .verl_rules import TABLES
from .yaml12 import dump

COMMANDS: dict[str, type[RunConfig]] = {
    "python -m trainers.ppo": PPOConfig,
    "python -m trainers.sft": SFTConfig,
    "python -m trainers.generate": GenerateConfig,
    "python -m trainers.evaluate": EvaluateConfig,
}
_BEGINS = "<!-- From here on made by `make docs-pages` from trainers/config/verl.yaml; do not edit it here. -->"


def verl_page(page: str) -> str:
    return "\n".join([page.partition(_BEGINS)[0] + _BEGINS, *_tables()]).rstrip() + "\n"


def _tables() -> Iterator[str]:
    for command, schema in COMMANDS.items():
        if (table := TABLES.get(schema)) is None:
            continue
        yield from ("", f"## `{command}`", "", "| verl's key | Here | |", "|---|---|---|")
        yield from (_row(name, rule) for name, rule in table.rules.items())
        if table.defaults:
            yield from ("", "### Defaults", "", "What a command of verl leaves out, where our default is another:", "")
            yield from (f"- `{name}`: `{dump(value)}`" for name, value in table.defaults.items())
            yield from (f"- `{name}` (then translated): `{dump(value)}`" for name, value in NAMES["values"].items())
    yield from ("", "## Interactions and tools", "")
    yield "Classes of an `interaction_config_path` or `tool_config_path`, by their last name; for others name `env.id`."
    yield ""
    for name, found in {**NAMES["interactions"], **NAMES["tools"]}.items():
        options = ", ".join(f"`{key}={dump(value)}`" for key, value in found.get("kwargs", {}).items())
        yield f"- `{name}`: `{found['env']}`{' with ' * bool(options)}{options}: {found['why']}"
    yield from ("", "## Agent loops", "", *(f"- `{name}`: `{env}`" for name, env in NAMES["agent_loops"].items()))


def _row(name: str, rule: Rule) -> str:
    notes = [rule.why] if rule.why else []
    here = f"`{rule.to}`" if rule.to else "computed" if rule.computed else "no meaning"
    if words := [f"{dump(theirs)} is {dump(ours)}" for theirs, ours in rule.words.items()]:
        notes.append("; ".join(words))
    if rule.only is not None:
        notes.append(f"only {' or '.join(f'`{dump(value)}`' for value in (*rule.only, None))}")
    return f"| `{name}` | {here} | {'. '.join(notes)} |".replace("||", "| |")


def main(argv: Sequence[str]) -> int:
    verls = list(argv[:1]) == ["--verl"]
    rest = argv[1:] if verls else argv
    if len(rest) > 1 or any(argument.startswith("-") for argument in rest):
        print("usage: python -m trainers.config [--verl] [PAGE.md]", file=sys.stderr)
        return 2
    path = Path(rest[0]) if rest else None
    before = path.read_text(encoding="utf-8") if path is not None and path.exists() else ""
    text = verl_page(before) if verls else markdown(COMMANDS)
    if path is None:
        with reader_may_leave():
            print(text, end="")
    else:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
