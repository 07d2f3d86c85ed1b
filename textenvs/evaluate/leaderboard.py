"""Scores of many policies on many environments: rows from evaluations, kept as JSON lines, and the page made of them.

A row summarizes one folder of ``textenvs evaluate --out``, with everything that its command needs. Its key is the
environment, its options and the policy's name; a row with the same key replaces the earlier one. Two columns say how
much of an environment needs no model: what its script earns on test tasks, and how little its expert's episodes add to
one another (:func:`marginal_bytes`).
"""

from __future__ import annotations

import json
import lzma
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from ..bounded_files import parse_json, read_text
from ..messages import Messages, text_of
from ..registry import describe, list_environments
from ..text import printable
from .records import MANIFEST, FolderError, Manifest, Natural, Record, Strict, in_words, read_folder, write_text
from .summary import summarize

Row = dict[str, Any]
_ROWS_FILE = 64 << 20  # bytes of a file of rows

#: A field of the expert's row alone, where it has episodes enough.
_BYTES = "marginal_bytes"
_COLUMNS = ("expert", "careless", "best attack", "random", "null", "scriptable")
#: Episodes whose replies :func:`marginal_bytes` compresses, and how many of them are the base file.
_EPISODES, _BASE = 200, 100
_SCRIPT, _ATTACK, _MODEL = range(3)
_NULL = "silence"  # the attack that says nothing
_SCRIPTABLE = "script"  # the family's script.py, on test tasks

_HEAD = """# Scores

Success rates and returns of scripts, attacks and models on every environment. `textenvs leaderboard` generates this
page from [leaderboard.jsonl](leaderboard.jsonl); do not edit it. To add a model:

    textenvs evaluate textenv/clarify --model NAME --base-url http://localhost:8000/v1 --num-tasks 64 --out outputs/row
    textenvs leaderboard outputs/row --note "server and machine"

The columns:

- *expert*, *careless* and *random* are the scripts of each environment; *null* replies with nothing.
- *best attack* is, of the attacks that the environment ships ([audit](audit.md)), the one with the highest mean return
  in these same episodes.
- *scriptable* is the family's `script.py`, written in an hour from the wordings of training tasks. It plays test tasks,
  which have other wordings. It is blank if there is no script.
- *marginal bytes* is how many bytes an episode the expert's 101st to 200th episode add to a compressed file of the
  first 100. The files have the expert's replies (texts and calls, one a line), and each is compressed by LZMA
  (`lzma.compress(..., preset=9)`). A small number means that more episodes show little that is new.
- The others are models.

*Solved* is the share of episodes that the environment ended as solved, with Wilson's interval. Mean returns have
bootstrap intervals. Both are at 95 %, clustered by task ([evaluate](cli.md#evaluate)). A cell without a number was not
played; `-`: episodes of the environment cannot be solved.

These commands play all scripts and attacks, and then a model, on every environment, and add their rows to this page
(`textenv/tau2` needs [its data](environments/tau2.md)):

    python -m benchmarks.leaderboard
    python -m benchmarks.leaderboard --model NAME --base-url http://localhost:8000/v1    (or --local FOLDER)

For one environment alone, its script, and its marginal bytes:

    textenvs evaluate textenv/clarify split=test --policy script --num-tasks 100 --out outputs/script
    textenvs evaluate textenv/clarify --policy expert --num-tasks 200 --out outputs/expert
    textenvs leaderboard outputs/script outputs/expert
"""


class _Estimate(Strict):
    value: float
    low: float | None
    high: float | None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = self.low, self.high
        if (low is None) != (high is None) or (low is not None and high is not None and low > high):
            raise ValueError("its low and high are no interval")
        return self


class _Share(_Estimate):
    value: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)


class _Row(Manifest, extra="forbid"):
    """A row, with the numbers of a finished evaluation."""

    name: str
    note: str
    episodes: Natural
    failed: Natural
    success: _Share | None = None  # absent where episodes cannot succeed
    mean: _Estimate = Field(alias="return")
    marginal_bytes: float | None = None

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        planned = self.tasks.count * self.samples
        if self.episodes != planned:
            raise ValueError(f"it has {self.episodes:.6g} episodes, and its tasks and samples make {planned}")
        if self.failed >= self.episodes:
            raise ValueError(f"{self.failed} of its {self.episodes} episodes failed, so it has no numbers")
        return self


def row_of(folder: str | Path, *, name: str | None = None, note: str = "") -> Row:
    """Return the row of a folder of ``textenvs evaluate --out``.

    ``name`` is for models and functions; by default it is their own. A service's address and an absolute path of a
    model's folder are not kept.

    Raises:
        FolderError: The folder has no evaluation, or one that is not finished, or every episode of it failed; or the
            name is that of a script.
    """
    manifest, records = read_folder(folder)
    planned = manifest["tasks"]["count"] * manifest["samples"]
    if len(records) != planned:
        raise FolderError(f"{folder}: {len(records)} of {planned} episodes are finished; run its command again first")
    numbers = summarize(records)["all"]
    if "return" not in numbers:
        raise FolderError(f"{folder}: every episode failed; `textenvs evaluate ... --retry-failed` plays them again")
    policy = {name: value for name, value in manifest["policy"].items() if value not in (None, {})}
    for text in ("script", "attack", "function", "model", "local"):
        if not isinstance(policy.get(text, ""), str):
            raise FolderError(f"{folder}: the policy's {text!r} in {MANIFEST} is not a text")
    if not policy.keys() & {"script", "attack", "function", "model", "local"}:
        raise FolderError(f"{folder}: {MANIFEST} names no policy")
    if "base_url" in policy:
        policy["base_url"] = "ADDRESS"
    if "local" in policy and Path(policy["local"]).expanduser().is_absolute():
        policy["local"] = Path(policy["local"]).name
    own = policy.get("script") or (f"attack:{policy['attack']}" if "attack" in policy else None)
    if own is None:
        name = name or policy.get("function") or policy.get("model") or Path(policy["local"]).name
        if name in (*_COLUMNS, _SCRIPTABLE) or name.startswith("attack:"):
            raise FolderError(
                f"{folder}: a model called {name!r} would be mistaken for a script; give it another --name"
            )
    if own == _SCRIPTABLE and manifest["environment"]["options"].get("split") != "test":
        raise FolderError(f"{folder}: a script is written from training tasks; evaluate it with split=test")
    enough = own == "expert" and manifest["samples"] == 1 and len(records) >= _EPISODES and not numbers["failed"]
    return {
        "name": own or name,
        "note": " ".join(note.split()),
        **manifest,
        "policy": policy,
        **{key: numbers[key] for key in ("episodes", "failed")},
        **{
            key: {end: None if value is None else round(value, 4) for end, value in numbers[key].items()}
            for key in ("success", "return")
            if key in numbers
        },
        **({_BYTES: marginal_bytes([conversation_of(record) for record in records])} if enough else {}),
    }


def conversation_of(record: Record) -> Messages:
    """Return all messages of an episode, those of contexts that were left first."""
    return tuple(chain(*record.contexts, record.messages))


def marginal_bytes(episodes: Sequence[Messages]) -> float:
    """Return what the 101st to 200th episode add to a compressed file of the first hundred, in bytes an episode.

    The file has the assistant's replies, their texts and their calls as JSON, one a line, compressed by LZMA.

    Raises:
        ValueError: There are fewer than 200 episodes.
    """
    if len(episodes) < _EPISODES:
        raise ValueError(f"marginal bytes need {_EPISODES} episodes, not {len(episodes)}")

    def size(count: int) -> int:
        replies = (message for episode in episodes[:count] for message in episode if message["role"] == "assistant")
        lines = (text_of(reply) + json.dumps(reply.get("tool_calls") or "") for reply in replies)
        return len(lzma.compress("\n".join(lines).encode("utf-8", "surrogatepass"), preset=9))

    return (size(_EPISODES) - size(_BASE)) / (_EPISODES - _BASE)


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file, none if it does not exist; ``ValueError`` names an invalid line."""
    rows: list[Row] = []
    text = read_text(path, _ROWS_FILE).removesuffix("\n") if path.exists() else ""
    # Unicode has further line separators, which an option of an environment may contain; "\n" it may not.
    for number, line in enumerate(text.split("\n") if text else (), start=1):
        try:
            row = parse_json(line)
            _Row.model_validate(row)
            page([row])
        except ValidationError as error:
            raise ValueError(
                f"{path}: line {number} is no row of the leaderboard: {in_words(error)}; remove it"
            ) from error
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"{path}: line {number} is no row of the leaderboard: {error}; remove it") from error
        rows.append(row)
    return rows


def merge(rows: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Return all rows in the order of the page; of rows with the same key, the last."""
    return sorted({(_board(row), row["name"]): row for row in (*rows, *new)}.values(), key=_order)


def write(rows: Sequence[Row], path: Path) -> Path:
    """Write the rows, and the page beside them, whose path is returned; each file atomically."""
    text = page(rows)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows))
    return write_text(path.with_suffix(".md"), text)


def command_of(row: Row) -> str:
    """Return the command line that plays the row's episodes again."""
    environment, policy = row["environment"], row["policy"]
    words = ["textenvs", "evaluate", environment["id"], *_pairs(environment["options"])]
    if "script" in policy:
        words += ["--policy", policy["script"]]
    elif "attack" in policy:
        words += ["--policy", f"attack:{policy['attack']}"]
    elif "function" in policy:
        words += ["--policy", policy["function"]]
    else:
        words += ["--local", policy["local"]] if "local" in policy else ["--model", policy["model"]]
        length = policy.get("max_response_length", policy.get("max_tokens"))
        options = {"base-url": policy.get("base_url"), "temperature": policy.get("temperature")}
        for name, value in {**options, "max-response-length": length}.items():
            words += [] if value is None else [f"--{name}", str(value)]
        extra = {"extra": policy["extra"]} if policy.get("extra") else {}
        for flag, values in (("--chat-template", policy.get("chat_template_kwargs", {})), ("--chat", extra)):
            words += [word for pair in _pairs(values) for word in (flag, pair)]
        words += ["--no-request-seed"] if policy.get("request_seed") is False else []
    words += ["--num-tasks", str(row["tasks"]["count"])]
    for name, usual in (("samples", 1), ("seed", 0)):
        words += [] if row[name] == usual else [f"--{name}", str(row[name])]
    return shlex.join(words)


def page(rows: Sequence[Row]) -> str:
    """Return the page, a function of the rows and of the registry: an overview, and a table for each environment."""
    rows = sorted(rows, key=_order)
    boards: dict[str, list[Row]] = {}
    for row in rows:
        boards.setdefault(_board(row), []).append(row)
    columns = (*_COLUMNS, *dict.fromkeys(row["name"] for row in rows if _kind(row) == _MODEL))
    heads = ["", *_COLUMNS, "marginal bytes", *columns[len(_COLUMNS) :]]
    lines = [_HEAD, "## Solved", "", _line(heads), _line(["---"] * len(heads))]
    registered = list_environments(with_arguments=True)
    played = {row["environment"]["id"]: row["environment"]["version"] for row in rows}
    for name, board in boards.items():
        columns_of_board = _by_column(board)
        cells = [
            _share(columns_of_board[column].get("success")) if column in columns_of_board else "" for column in columns
        ]
        added = columns_of_board.get("expert", {}).get(_BYTES)
        cells.insert(len(_COLUMNS), "" if added is None else f"{added:.0f}")
        lines.append(_line([f"`{name}`", *cells]))
    lines += ["", *(f"`{env_id}` was not played{_needs(env_id)}." for env_id in registered if env_id not in played)]
    for name, board in boards.items():
        lines += ["", f"## {name}", ""]
        environment = board[0]["environment"]
        now = describe(environment["id"]).version if environment["id"] in registered else None
        if old := sorted({row["environment"]["version"] for row in board} - {now}, key=str):
            lines += [f"These rows are of version {', '.join(map(str, old))}; the current version is {now}.", ""]
        lines += [_line(["", "episodes", "solved", "mean return", "command"]), "|---|--:|--:|--:|---|"]
        best = sorted(_by_column(board).items(), key=lambda item: -item[1]["return"]["value"])
        lines += [_line(_cells(label, row)) for label, row in best]
    return "\n".join(lines) + "\n"


def _cells(label: str, row: Row) -> Iterator[str]:
    title = f"{label}: {row['policy']['attack']}" if label == "best attack" else label
    yield title + (f" ({row['note']})" if row["note"] else "")
    yield str(row["episodes"]) + (f" ({row['failed']} failed)" if row["failed"] else "")
    yield _share(row.get("success"))
    value, low, high = (row["return"][name] for name in ("value", "low", "high"))
    yield f"{value:+.3f}" + ("" if low is None else f" ({low:+.3f} to {high:+.3f})")
    yield f"`{command_of(row)}`"


def _by_column(board: Sequence[Row]) -> dict[str, Row]:
    """Return the rows of one environment by their columns."""
    rows = {row["name"]: row for row in board if _kind(row) != _ATTACK}
    if script := rows.pop(_SCRIPTABLE, None):
        rows["scriptable"] = script
    if attacks := [row for row in board if _kind(row) == _ATTACK]:
        rows["best attack"] = max(attacks, key=lambda row: row["return"]["value"])
        silent = [row for row in attacks if row["policy"]["attack"] == _NULL]
        rows |= {"null": silent[0]} if silent else {}
    return rows


def _board(row: Row) -> str:
    """Return the environment and its options, by which rows are compared; a script's without its split."""
    options = row["environment"]["options"]
    if row["policy"].get("script") == _SCRIPTABLE:
        options = {name: value for name, value in options.items() if name != "split"}
    return " ".join([row["environment"]["id"], *_pairs(options)])


def _needs(env_id: str) -> str:
    spec = describe(env_id)
    needs = [f"{name}=..." for name in spec.requires]
    needs += [f"`pip install 'textenvs[{','.join(spec.extras)}]'`"] if spec.extras else []
    return f": it needs {' and '.join(needs)}" if needs else ""


def _kind(row: Row) -> int:
    return _SCRIPT if "script" in row["policy"] else _ATTACK if "attack" in row["policy"] else _MODEL


def _order(row: Row) -> tuple[Any, ...]:
    registered = list_environments(with_arguments=True)
    env_id = row["environment"]["id"]
    return registered.index(env_id) if env_id in registered else len(registered), _board(row), _kind(row), row["name"]


def _pairs(options: Mapping[str, Any]) -> list[str]:
    """Return ``key=value`` as the command line reads it: JSON, or text that is not JSON."""
    return [f"{name}={value if _plain(value) else json.dumps(value)}" for name, value in options.items()]


def _plain(value: Any) -> bool:
    if not isinstance(value, str) or value in ("None", "True", "False"):
        return False
    try:
        json.loads(value)
    except ValueError:
        return True
    return False


def _share(estimate: Mapping[str, Any] | None) -> str:
    """Return a share with its interval; of an environment whose episodes cannot succeed, a dash."""
    if estimate is None:
        return "-"
    return f"{estimate['value']:.1%} ({100 * estimate['low']:.0f} to {100 * estimate['high']:.0f})"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(printable(cell).replace('|', chr(92) + '|') for cell in cells)} |"
