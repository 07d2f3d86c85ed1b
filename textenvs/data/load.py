"""From what a user names (a file, ``generated:easy``, ``hub:openai/gsm8k``, nothing) to a task set."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ..task import SPLITS, Rows, Split, TaskError, TaskSet, joined
from .files import Check, read_jsonl, read_parquet
from .gsm8k import INSTRUCTION, problem_with
from .hub import read_hub
from .word_problems import LEVELS, GeneratedMath

log = logging.getLogger("textenvs")

Source = TaskSet | str | Path | Sequence[str | Path] | None

_announced: set[str] = set()


def data_directory() -> Path:
    """Where prepared rows are kept: ``$TEXTENVS_DATA``, or ``~/.cache/textenvs``."""
    return Path(os.environ.get("TEXTENVS_DATA") or Path.home() / ".cache" / "textenvs").expanduser()


def load_tasks(
    source: Source = None,
    *,
    split: Split = "train",
    seed: int = 0,
    instruction: str | None = INSTRUCTION,
    check: Check | None = problem_with,
) -> TaskSet:
    """The tasks that ``source`` names. A file is read once per process, however many environments ask for it.

    Args:
        source: One of

            * a :class:`~textenvs.task.TaskSet`, returned as it is;
            * a ``.jsonl`` file (``question``, ``answer``) or a ``.parquet`` file (verl's schema);
            * ``"generated:easy"``, ``"generated:medium"``, ``"generated:hard"``;
            * ``"hub:openai/gsm8k"``, or ``"hub:REPOSITORY:CONFIGURATION"``;
            * a sequence of these names, for their rows one after the other;
            * ``None``: the rows that :func:`~textenvs.data.prepare.prepare` wrote, if it did, else the generated easy
              problems.

        split: Which half of a generated, prepared or Hub source. A file is one split already.
        seed: The seed of generated problems.
        instruction: Put after the question of JSONL and Hub rows; ``None`` for none.
        check: Says why a task of a file or of the Hub cannot be used; by default GSM8K's check.

    Raises:
        ValueError: An unknown split, level or kind of source.
        TaskError: Rows that cannot be used, listed by file, row and column.
        ImportError: The source needs a library that is not installed; the message names the extra.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if source is None:
        tasks = _default(split, seed, check)
    elif isinstance(source, TaskSet):
        return source
    elif isinstance(source, (str, Path)):
        tasks = _named(source, split, seed, instruction, check)
    else:
        tasks = joined([_named(each, split, seed, instruction, check) for each in source])
    if tasks.name not in _announced:
        _announced.add(tasks.name)
        log.info("tasks: %s, %s", tasks.name, "endless" if tasks.size is None else f"{tasks.size} rows")
    return tasks


def _default(split: Split, seed: int, check: Check | None) -> TaskSet:
    folder = data_directory() / "gsm8k"
    prepared = [name for name in SPLITS if (folder / f"{name}.parquet").is_file()]
    if split in prepared:
        return _file(folder / f"{split}.parquet", None, check)
    if prepared:
        raise TaskError(
            f"{folder}: rows are prepared for {prepared[0]} but not for {split}; prepare both, or name a source "
            "such as 'generated:easy'"
        )
    return GeneratedMath("easy", seed=seed, split=split)


def read_source(
    source: str | Path,
    *,
    split: str,
    instruction: str | None = INSTRUCTION,
    check: Check | None = problem_with,
    rejected: list[str] | None = None,
) -> Rows:
    """Read a file or a data set of the Hub, whatever was read before.

    Args:
        source: A ``.jsonl`` or ``.parquet`` file, or ``"hub:REPOSITORY"``.
        split: Of a Hub source. A file is one split already.
        instruction: As in :func:`load_tasks`, and so is ``check``.
        check: Says why a task cannot be used.
        rejected: Where given, rows that cannot be used are left out and said here, a line each.

    Raises:
        ValueError: An unknown kind of source.
        TaskError: Rows that cannot be used, listed by file, row and column.
        ImportError: The source needs a library that is not installed; the message names the extra.
    """
    kind, _, rest = str(source).partition(":")
    # Only what is asked for is passed on, so that the readers' own defaults hold.
    more: dict[str, list[str]] = {} if rejected is None else {"rejected": rejected}
    if kind == "hub":
        repository, _, config = rest.partition(":")
        if not repository:
            raise ValueError(f"{str(source)!r}: name the data set, for example 'hub:openai/gsm8k'")
        return read_hub(repository, config or None, split=split, instruction=instruction, check=check, **more)
    path = Path(source).expanduser()
    if path.suffix == ".jsonl":
        return read_jsonl(path, instruction=instruction, check=check, **more)
    if path.suffix == ".parquet":
        return read_parquet(path, check=check, **more)
    raise ValueError(
        f"{str(path)!r}: not a task source; it must be a .jsonl or .parquet file, 'generated:LEVEL', "
        "'hub:REPOSITORY' or None"
    )


def _named(source: str | Path, split: str, seed: int, instruction: str | None, check: Check | None) -> TaskSet:
    text = str(source)
    kind, _, rest = text.partition(":")
    if kind == "generated":
        if rest not in LEVELS:
            raise ValueError(f"{text!r}: unknown level; known are {', '.join(f'generated:{name}' for name in LEVELS)}")
        return GeneratedMath(rest, seed=seed, split=split)  # type: ignore[arg-type]
    if kind == "hub":
        return _hub(text, split, instruction, check)
    return _file(Path(source).expanduser(), instruction, check)


def _file(path: Path, instruction: str | None, check: Check | None) -> TaskSet:
    # The file's time and size are part of the key, so that a file written anew is read anew.
    stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
    return _read(path.absolute() if path.suffix in (".jsonl", ".parquet") else path, stamp, instruction, check)


@functools.lru_cache(maxsize=16)
def _read(path: Path, stamp: tuple[int, int] | None, instruction: str | None, check: Check | None) -> Rows:
    return read_source(path, split="train", instruction=instruction, check=check)


@functools.lru_cache(maxsize=16)
def _hub(source: str, split: str, instruction: str | None, check: Check | None) -> Rows:
    return read_source(source, split=split, instruction=instruction, check=check)
