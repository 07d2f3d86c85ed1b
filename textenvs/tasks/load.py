"""From what a user names (a file, ``generated:easy``, ``hub:openai/gsm8k``, nothing) to a task set."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..scoring.gsm8k import score
from .base import SPLITS, Rows, Split, TaskError, TaskSet
from .files import Check, read_jsonl, read_parquet, write_parquet
from .generated import LEVELS, GeneratedMath
from .gsm8k import INSTRUCTION, problem_with
from .hub import read_hub

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

            * a :class:`~textenvs.tasks.base.TaskSet`, returned as it is;
            * a ``.jsonl`` file (``question``, ``answer``) or a ``.parquet`` file (verl's schema);
            * ``"generated:easy"``, ``"generated:medium"``, ``"generated:hard"``;
            * ``"hub:openai/gsm8k"``, or ``"hub:REPOSITORY:CONFIGURATION"``;
            * a sequence of these names, for their rows one after the other;
            * ``None``: the rows that :func:`prepare` wrote, if it did, else the generated easy problems.

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
        tasks = _joined([_named(each, split, seed, instruction, check) for each in source])
    if tasks.name not in _announced:
        _announced.add(tasks.name)
        log.info("tasks: %s, %s", tasks.name, "endless" if tasks.size is None else f"{tasks.size} rows")
    return tasks


def prepare(
    sources: Mapping[str, str | Path] | None = None,
    *,
    directory: str | Path | None = None,
    instruction: str | None = INSTRUCTION,
) -> dict[str, Path]:
    """Write GSM8K rows where :func:`load_tasks` finds them by default, after checking every one.

    Every split is read and every worked answer is scored against its ground truth before the first file is written,
    and a file appears whole or not at all.

    Args:
        sources: For ``"train"`` and ``"test"`` what to read (a file or ``hub:...``); both from ``hub:openai/gsm8k``
            by default.
        directory: The data directory; :func:`data_directory` by default. Files go to ``gsm8k/`` in it.
        instruction: Put after the question of JSONL and Hub rows; ``None`` for none.

    Returns:
        The file of each split.

    Raises:
        ValueError: No source, or an unknown split.
        TaskError: Rows that cannot be used, or a worked answer that its own ground truth refuses.
    """
    sources = dict.fromkeys(SPLITS, "hub:openai/gsm8k") if sources is None else sources
    if not sources or set(sources) - set(SPLITS):
        raise ValueError(f"sources must map one or more of {', '.join(SPLITS)} to a source, not {dict(sources)!r}")
    loaded: dict[str, TaskSet] = {}
    for split, source in sources.items():
        tasks = _named(source, split, 0, instruction, problem_with)
        if tasks.size is None:
            raise ValueError(f"{tasks.name} is endless; generated problems need no preparing")
        for index in range(tasks.size):
            task = tasks[index]
            if "answer" in task.extra and score(task.extra["answer"], task.ground_truth) != 1.0:
                raise TaskError(
                    f"{tasks.name}: task {task.key}: the worked answer does not end in '#### N' with the ground truth"
                )
        loaded[split] = tasks
    folder = Path(directory).expanduser() if directory is not None else data_directory()
    return {split: write_parquet(tasks, folder / "gsm8k" / f"{split}.parquet") for split, tasks in loaded.items()}


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


def _named(source: str | Path, split: str, seed: int, instruction: str | None, check: Check | None) -> TaskSet:
    text = str(source)
    kind, _, rest = text.partition(":")
    if kind == "generated":
        if rest not in LEVELS:
            raise ValueError(f"{text!r}: unknown level; known are {', '.join(f'generated:{name}' for name in LEVELS)}")
        return GeneratedMath(rest, seed=seed, split=split)  # type: ignore[arg-type]
    if kind == "hub":
        repository, _, config = rest.partition(":")
        if not repository:
            raise ValueError(f"{text!r}: name the data set, for example 'hub:openai/gsm8k'")
        return _hub(repository, config or None, split, instruction, check)
    return _file(Path(source).expanduser(), instruction, check)


def _file(path: Path, instruction: str | None, check: Check | None) -> TaskSet:
    if path.suffix not in (".jsonl", ".parquet"):
        raise ValueError(
            f"{str(path)!r}: not a task source; it must be a .jsonl or .parquet file, 'generated:LEVEL', "
            "'hub:REPOSITORY' or None"
        )
    # The file's time and size are part of the key, so that a file written anew is read anew.
    stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
    return _read(path.absolute(), stamp, instruction, check)


@functools.lru_cache(maxsize=16)
def _read(path: Path, stamp: tuple[int, int] | None, instruction: str | None, check: Check | None) -> Rows:
    if path.suffix == ".jsonl":
        return read_jsonl(path, instruction=instruction, check=check)
    return read_parquet(path, check=check)


@functools.lru_cache(maxsize=16)
def _hub(repository: str, config: str | None, split: str, instruction: str | None, check: Check | None) -> Rows:
    return read_hub(repository, config, split=split, instruction=instruction, check=check)


def _joined(parts: Sequence[TaskSet]) -> TaskSet:
    if len(parts) == 1:
        return parts[0]
    if endless := [part.name for part in parts if part.size is None]:
        raise ValueError(f"{endless[0]} is endless and cannot be one of several sources")
    # Keys are unique within a file only; the file's place makes them unique here.
    tasks = [
        replace(part[index], key=f"{place}/{part[index].key}")
        for place, part in enumerate(parts)
        for index in range(part.size or 0)
    ]
    return Rows(" + ".join(part.name for part in parts), tasks)
