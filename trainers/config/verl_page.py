"""docs/coming-from-verl.md: the table of verl's keys as a page, made from the table itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import verl
from .describe import Key
from .translate import Table
from .yaml12 import dump

_HEAD = """\
# Coming from verl

Made by `make docs` from `trainers/config/verl.yaml`; do not edit it here.

verl's commands run as they stand, with `python -m trainers.ppo` in the place of verl's module, for a model folder and
files that exist; or they are refused before anything starts, with what to write instead. `--dry-run` prints the
resolved configuration, which can be fed back with `--config`, and a line for each of verl's keys: what it became, or
why it has no meaning here. Nothing is accepted silently: a key that neither verl nor this library has is an error that
names the nearest, and so is a value that would change what is trained and cannot be had. What the other keys leave
without effect, such as a critic's options beside `grpo`, becomes a line too. A list of verl's own example commands is
among the tests.

`--config-path` and `--config-name` are read as Hydra reads them: the YAML file that they name comes before the keys of
the command line. Keys may have Hydra's `+`; values with `${...}` must be written out; `null` is as a key left out.

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


_FILES = (
    "Classes of an `interaction_config_path` or a `tool_config_path`, by their last name. For others name `env.id`."
)

_CORRECTIONS = """\
### Corrections

`algorithm.rollout_correction.` of verl, and what becomes of it:

- `bypass_mode`: `actor.old_logprobs=rollout`, and `recompute` without. With it, `rollout_is` has no effect (the loss's
  ratio is that of learner to engine), and `rollout_rs` and `loss_type=reinforce` are refused.
- `rollout_is`: `actor.importance_correction=token_tis` or `sequence_tis`, with `rollout_is_threshold` as
  `actor.tis_cap`, and `rollout_is_batch_normalize` as `actor.importance_batch_normalize`. A threshold with two bounds
  is refused.
- `rollout_rs`: `actor.rejection`. `token`, `sequence`, `geometric` (0.6, 0.7) bound learner over engine, as here, from
  `rollout_rs_threshold_lower` (or 1 / threshold) to `rollout_rs_threshold`. `token_k1`, `seq_sum_k1`, `seq_mean_k1`
  (0.8, 0.9) bound *engine over learner*: `LOW_HIGH` becomes `rejection_low=1/HIGH` and `rejection_high=1/LOW`. Those of
  k2 and k3 have the same names here, and `rejection_kl`. Several criteria at once are refused.
- `rollout_token_veto_threshold` is refused. What stands at its default, or beside a `null`, becomes a line.
"""


def page(tables: Mapping[str, tuple[Table, Mapping[str, Key]]]) -> str:
    """The whole page.

    Args:
        tables: By command: its table, and the keys of its schema.
    """
    lines = [_HEAD]
    for command, (table, _) in tables.items():
        lines += [f"## `{command}`", "", "| verl's key | Here | |", "|---|---|---|"]
        lines += [_row(name, table) for name in table.rules]
        lines.append("")
        if table.defaults:
            lines += ["### Defaults", "", "What a command of verl leaves out, where our default is another:", ""]
            lines += [f"- `{name}`: `{dump(value)}`" for name, value in table.defaults.items()]
            lines += [f"- `{name}` (then translated): `{dump(value)}`" for name, value in verl.VALUES.items()]
            lines += ["", "### Interactions and tools", "", _FILES, ""]
            lines += [*_classes(), "", "### Agent loops", ""]
            lines += [f"- `{name}`: `{env}`" for name, env in verl.NAMES["agent_loops"].items()]
            lines += ["", _CORRECTIONS]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, table: Table) -> str:
    rule = table.rules[name]
    notes = [rule.why] if rule.why else []
    here = f"`{rule.to}`" if rule.to else "computed" if rule.computed else "no meaning"
    if words := [f"{dump(theirs)} is {dump(ours)}" for theirs, ours in rule.words.items()]:
        notes.append("; ".join(words))
    if rule.only is not None:
        notes.append(f"only {' or '.join(f'`{dump(value)}`' for value in (*rule.only, None))}")
    return f"| `{name}` | {here} | {'. '.join(notes)} |".replace("||", "| |")


def _classes() -> Iterator[str]:
    for name, found in {**verl.INTERACTIONS, **verl.TOOLS}.items():
        options = ", ".join(f"`{key}={dump(value)}`" for key, value in found.kwargs.items())
        yield f"- `{name}`: `{found.env}`{' with ' * bool(options)}{options}: {found.why}"
