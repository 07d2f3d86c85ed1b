"""docs/coming-from-verl.md: the table of verl's keys as a page, made from the table itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import verl
from .describe import Key
from .translate import Table
from .yaml12 import dump

_HEAD = """\
# Coming from verl

Made by `make docs` from `trainers/config/verl.py`; do not edit it here.

verl's commands run as they stand, with `python -m trainers.ppo` in the place of verl's module, for a model folder and
files that exist. `--dry-run` prints the resolved configuration, which can be fed back with `--config`, and a line for
each of verl's keys: what it became, or why it has no meaning here. Nothing is accepted silently: a key that neither
verl nor this library has is an error that names the nearest, and so is a value that would change what is trained and
cannot be had. What the other keys leave without effect, such as a critic's options beside `grpo`, becomes a line too.

A command with a key of `actor_rollout_ref` is taken as a whole command of verl. What it leaves out is then as in verl:
the keys under *Defaults* below, no warm start, and as many iterations as `total_epochs` of the rows make. Our own keys
may stand beside verl's; the later one wins.

What is the same and what is not:

- A *batch* is `data.train_batch_size` prompts times `rollout.n` episodes, a *mini-batch* `ppo_mini_batch_size` prompts
  as in verl. Mini-batches are drawn from the whole batch, so the episodes of one prompt may be in several.
- *Micro-batches* are counted in tokens, not in sequences. They change memory and speed, never a result: losses are
  normalised over the mini-batch.
- *Rewards* stand on the turn that earned them. With verl's group estimators (`grpo`, `rloo`) an episode counts by their
  sum. `custom_reward_function` scores the policy's words alone; verl's sees those of tools and users too.
- An iteration more or less: an epoch of verl leaves out the rows that fill no batch; here they come in the next epoch.
"""


def page(tables: Mapping[str, tuple[Table, Mapping[str, Key]]]) -> str:
    """The whole page.

    Args:
        tables: By command: its table, and the keys of its schema.
    """
    lines = [_HEAD]
    for command, (table, keys) in tables.items():
        lines += [f"## `{command}`", "", "| verl's key | Here | |", "|---|---|---|"]
        lines += [_row(name, table, keys) for name in table.rules]
        lines.append("")
        if table.defaults:
            lines += ["### Defaults", "", "What a command of verl leaves out, where our default is another:", ""]
            lines += [f"- `{name}`: `{dump(value)}`" for name, value in table.defaults.items()]
            lines += [f"- `{name}` (then translated): `{dump(value)}`" for name, value in verl.VERL_VALUES.items()]
            lines += ["", "### Interactions", "", "Classes of an `interaction_config_path`, by their last name:", ""]
            lines += [*_interactions(), "", "### Agent loops", ""]
            lines += [f"- `{name}`: `{env}`" for name, env in verl.AGENT_LOOPS.items()]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, table: Table, keys: Mapping[str, Key]) -> str:
    rule = table.rules[name]
    notes = [rule.why] if rule.why else []
    if rule.joint is not None:
        here = "computed"
    elif rule.to and rule.to[0] in keys:
        here = ", ".join(f"`{key}`" for key in rule.to)
        if words := [f"{dump(theirs)} is {dump(ours)}" for theirs, ours in rule.words.items()]:
            notes.append("; ".join(words))
    else:
        here = "not in this version" if rule.to else "no meaning"
        if rule.only is not None:
            notes.append(f"only {' or '.join(f'`{dump(value)}`' for value in rule.only)}")
        if rule.above is not None:
            notes.append(f"above {rule.above}")
    return f"| `{name}` | {here} | {'. '.join(notes)} |".replace("||", "| |")


def _interactions() -> Iterator[str]:
    for name, found in verl.INTERACTIONS.items():
        options = ", ".join(f"`{key}={dump(value)}`" for key, value in found.kwargs.items())
        yield f"- `{name}`: `{found.env}` with {options}: {found.why}"
