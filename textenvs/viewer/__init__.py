"""``textenvs view``: one page, which opens from disk, for the files that :mod:`textenvs.records` reads.

:mod:`.document` makes the page's data of runs, :mod:`.compare` compares two of them, :mod:`.page` writes the file,
:mod:`.server` serves it during a run, and :mod:`.branches` continues recorded episodes. ``page.html`` is built
by ``make viewer`` from ``frontend/``; viewing needs no npm. docs/viewer.md explains what is shown.
"""

from .document import Document
from .page import write_page

__all__ = ["Document", "write_page"]
