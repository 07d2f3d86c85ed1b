"""Write docs/gpu.md: the claims about GPUs, and what was measured of them.

::

    python scripts/gpu_claims.py docs/gpu.md    # the table between the marks of the page is written anew
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks are not installed

from benchmarks.gpu import results  # noqa: E402
from benchmarks.gpu.claims import table  # noqa: E402

_PLACE = re.compile(r"<!-- claims -->\n.*?<!-- end of claims -->", re.DOTALL)


def write(page: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the table of these results between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    written = f"<!-- claims -->\n{table(lines)}\n<!-- end of claims -->"
    page.write_text(_PLACE.sub(lambda _: written, text), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), list(results.read(results.files())))
