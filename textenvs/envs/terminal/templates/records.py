"""Records that questions are about: journals with a file a month, and files with a heading for all of their lines.

Both draw files and return the answers: which line of a subject has the largest number, and which heading an item has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeVar

from .parts import token

Subject = TypeVar("Subject")


def draw_journal(
    rng: random.Random,
    files: MutableMapping[str, str],
    path: str,
    subjects: Sequence[Subject],
    numbers: Sequence[int],
    line: Callable[[int, Subject, int, str], str],
    *,
    months: int = 9,
    lines: int = 200,
) -> dict[Subject, str]:
    """Draw a file a month; each line has a subject, a number and a token.

    Args:
        rng: Draws everything.
        files: The project's files, to which these are added.
        path: Path of a file; ``{:02}`` in it is the month.
        subjects: What lines are about.
        numbers: Numbers that a file's lines have, each at most once.
        line: Writes a line of a month, a subject, a number and a token.
        months: How many files.
        lines: Lines of a file.

    Returns:
        The token of the line with the largest number, by subject; without subjects of which several lines have it.
    """
    rows: dict[Subject, list[tuple[int, str]]] = {}
    for month in range(1, months + 1):
        texts = []
        for number in rng.sample(numbers, lines):
            subject, mark = rng.choice(subjects), token(rng)
            rows.setdefault(subject, []).append((number, mark))
            texts.append(line(month, subject, number, mark))
        files[path.format(month)] = "\n".join(texts) + "\n"
    return {subject: max(own)[1] for subject, own in rows.items() if has_one_largest(own)}


def draw_lists(
    rng: random.Random,
    files: MutableMapping[str, str],
    folder: str,
    heading: str,
    line: Callable[[str], str],
    *,
    counts: tuple[int, int] = (20, 35),
    items: int = 30,
) -> dict[str, str]:
    """Draw files of items, each with a heading and a token of its own in the first line.

    Args:
        rng: Draws everything.
        files: The project's files, to which these are added.
        folder: Where they are.
        heading: The word before a file's token.
        line: Writes the line of an item.
        counts: Bounds of how many files there are.
        items: Items of a file.

    Returns:
        The token of an item's file, by item.
    """
    owners: dict[str, str] = {}
    for number in rng.sample(range(100, 400), rng.randint(*counts)):
        owner, texts = token(rng), list[str]()
        for _ in range(items):
            item = token(rng, 10)
            owners[item] = owner
            texts.append(line(item))
        files[f"{folder}/{number}.txt"] = "\n".join([f"{heading} {owner}", *texts]) + "\n"
    return owners


def has_one_largest(rows: Sequence[tuple[Any, str]]) -> bool:
    """Return whether the largest first value of some rows stands in one of them alone."""
    values = [value for value, _ in rows]
    return values.count(max(values)) == 1
