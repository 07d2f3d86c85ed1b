"""Tables and a picture."""

from pathlib import Path
from typing import Any


def write(rows: list[dict[str, Any]], folder: Path) -> None:
    pass
