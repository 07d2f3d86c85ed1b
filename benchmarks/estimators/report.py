"""Tables and a picture."""

from typing import Any
from pathlib import Path


def write(rows: list[dict[str, Any]], folder: Path) -> None:
    pass
