"""The columns of a file of episodes: one row an episode. docs/records.md has them as a table.

``T`` tokens over all contexts of an episode, ``K`` assistant turns. The first group of columns is what was played, and
is always there; the others say what the learner made of it, and are null where that was not computed (a validation, a
failed episode, an estimator without a baseline). Per-token columns of the learner have one entry a token, null outside
of action tokens and where the learner did not compute the token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow

#: Metadata of the file: the version of the format, bumped when a file written before could be read wrongly; and what
#: holds for the whole iteration, as JSON (:class:`~textenvs.records.reader.Iteration`).
FORMAT_KEY, FORMAT = b"textenvs.trajectory.format", b"1"
ITERATION_KEY = b"textenvs.iteration"

Per = Literal["episode", "turn", "token", "group", "list"]


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        per: What has an entry: the episode has one value; a turn, or a token, has one in a list of ``K`` or ``T``; a
            group's is repeated in the row of each of its episodes; ``list`` has a length of its own.
        type: Arrow's name of an entry's type, or one of ``messages``, ``terms``, ``numbers``, ``checksums``, ``texts``.
        text: What it says.
        bits: Significant bits that are kept of a number; 0 keeps them all.
    """

    per: Per
    type: str
    text: str
    bits: int = 0


_FINE, _CLOSE, _ROUGH = 11, 8, 6  # bits: numbers are off by at most 1 in 2,048, 256, or 64

#: What was played: the fields of ``trainers.trajectory.Trajectory``.
PLAYED: dict[str, Column] = {
    "episode_id": Column("episode", "string", "unique within a run"),
    "group_id": Column("episode", "string", "shared by episodes of one task that are compared"),
    "task_key": Column("episode", "string", "the task's stable name"),
    "data_source": Column("episode", "string", "where the task comes from"),
    "status": Column("episode", "string", "`completed`, `truncated_*`, `error_*` or `aborted`"),
    "stop": Column("episode", "string", "why the environment ended it, in its own word"),
    "error": Column(
        "episode", "string", "what went wrong, where the status is an error; or why the environment ended it"
    ),
    "forked_from": Column("episode", "string", "the root's `episode_id`; empty unless it is a fork"),
    "forked_turn": Column(
        "episode", "int32", "the root's turn before whose reply it began, from 0; of the whole if continued"
    ),
    "terminated": Column("episode", "bool", "the task was over"),
    "truncated": Column("episode", "bool", "a budget ran out"),
    "has_success": Column("episode", "bool", "it could end as solved; false where the environment has no such end"),
    "task_index": Column("episode", "int64", "what the environment was reset with, as `options`; null: another option"),
    "env_seed": Column("episode", "int64", "the seed of the environment's reset"),
    "sampling_seed": Column("episode", "int64", "the seed that each turn's seed of the engine is derived from"),
    "token_ids": Column("token", "int32", "all tokens, as the engine was given and returned them"),
    "action_mask": Column("token", "bool", "the policy sampled it (an action token)"),
    "logprobs": Column("token", "float32", "log-probability in the rollout; 0 outside of action tokens"),
    "weight_version": Column("token", "int32", "of the weights that sampled it; -1 outside of action tokens"),
    "turn_id": Column("token", "int32", "its turn, from 0, in the order of time; -1 outside of action tokens"),
    "turn_rewards": Column("turn", "float64", "as earned"),
    "segment_starts": Column("list", "int32", "where its contexts begin: token sequences that the model sees apart"),
    "kept_ids": Column("list", "int32", "tokens that top-k, top-p and min-p left, of one token after another"),
    "kept_counts": Column("token", "int32", "how many of `kept_ids` each token has; empty: not recorded"),
    "observation_mask": Column("token", "bool", "of a text that answered a reply; empty: not recorded"),
    "teacher_shared": Column(
        "turn", "int32", "tokens that a teacher's context shares with the turn's; -1: it has none"
    ),
    "teacher_counts": Column("turn", "int32", "how many of `teacher_ids` follow these"),
    "teacher_ids": Column("list", "int32", "the rest of the teacher's contexts (`actor.distill.context`); else empty"),
    "turn_terms": Column("turn", "terms", "the named parts of each turn's reward"),
    "turn_moves": Column("turn", "string", "what the user did about each reply; empty: the environment named nothing"),
    "metrics": Column("episode", "numbers", "of the environment; `start_turn`: turns replayed before its own"),
    "messages": Column("episode", "messages", "the conversation, in OpenAI's form"),
    "user_messages": Column("episode", "messages", "the same from the side of a model that plays the user; else empty"),
}

#: What the learner made of it.
EXPLAINED: dict[str, Column] = {
    "vocabulary": Column("episode", "texts", "in the first row: the text that each token id of the file adds"),
    "token_text": Column("token", "string", "the text that each token adds, where that depends on others; else null"),
    "advantage": Column("token", "float32", "what the loss was given", _FINE),
    "return": Column("token", "float32", "what the estimator compares: earned from here on, or in all", _FINE),
    "baseline": Column("token", "float32", "what it is compared with; null where there is no one number", _FINE),
    "teacher_advantage": Column("token", "float32", "what a teacher added to the advantage; null without one", _FINE),
    "importance_weight": Column("token", "float32", "of the off-policy correction, which multiplies its loss", _CLOSE),
    "loss_weight": Column("token", "float32", "of its loss in the sum over the mini-batch", _FINE),
    "mismatch": Column("token", "float32", "the learner's log-probability, at first, minus `logprobs`", _ROUGH),
    "ratio": Column("token", "float32", "of the policy in training to the one before, in its first loss", _FINE),
    "clipped": Column("token", "bool", "the clip took its gradient then"),
    "entropy": Column("token", "float32", "nats, of the learner's distribution then", _CLOSE),
    "loss": Column("token", "float32", "its loss then, before `loss_weight`", _ROUGH),
    "credit_moved": Column("turn", "float64", "the turn's reward after credit assignment; null: as earned"),
    "reaction_credit": Column("turn", "float64", "what the user's move added to the advantage; null without"),
    "fork_value": Column("turn", "float64", "value of the state before the turn, by its forks; null without"),
    "group_mean": Column("group", "float64", "of its episodes' total rewards, forks aside"),
    "group_std": Column("group", "float64", "of the same, population"),
    "greedy_reward": Column("group", "float64", "what greedy decoding earned on the task, where the estimator asks"),
    "signal": Column(
        "group",
        "string",
        "`tied`: as in `train/groups_tied`; `masked`: none counts; `zero`: no advantage; else `signal`",
    ),
    "checksums": Column("episode", "checksums", "of columns before they were rounded, by name; for `trainers.replay`"),
}

COLUMNS = PLAYED | EXPLAINED


def arrow_schema(*parts: dict[str, Column]) -> pyarrow.Schema:
    """Return the schema of a file with these columns; needs pyarrow."""
    import pyarrow as pa

    text = pa.string()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function)])
    optional = [("name", text), ("reasoning_content", text), ("tool_calls", pa.list_(call)), ("tool_call_id", text)]
    types = {
        "bool": pa.bool_(),
        "messages": pa.list_(pa.struct([("role", text), ("content", text), *optional])),  # null: a key not there
        "terms": pa.map_(text, pa.float64()),
        "numbers": pa.map_(text, pa.float64()),
        "checksums": pa.map_(text, pa.int64()),
        "texts": pa.map_(pa.int32(), text),
    }

    def type_of(column: Column) -> pyarrow.DataType:
        entry = types.get(column.type) or pa.type_for_alias(column.type)
        return entry if column.per in ("episode", "group") else pa.list_(entry)

    fields = [(name, type_of(column)) for part in parts for name, column in part.items()]
    return pa.schema(fields, metadata={FORMAT_KEY: FORMAT})
