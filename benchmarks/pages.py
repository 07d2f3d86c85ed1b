"""Tables in pages of the documentation, between two marks, made again from stored results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: The lines of a page that stand before and after what is made.
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in ([*head], *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def fill(page: str, text: str) -> str:
    """Return the page with a text between the marks.

    Raises:
        ValueError: The page lacks the marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}, between which the tables stand")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
