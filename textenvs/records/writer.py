"""Episodes that no run wrote, as a file that is read like a run's: without tokens, and without what a learner made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..data.files import written_whole
from .schema import ITERATION_KEY, PLAYED, arrow_schema


def write_played(path: Path, rows: Iterable[Mapping[str, Any]], **info: Any) -> None:
    """Write episodes, whole or not at all.

    Args:
        path: The ``.parquet`` file, which is replaced.
        rows: The columns of :data:`~.schema.PLAYED` by name; those of tokens may be left out.
        info: Of the whole file: its ``kind`` (``train`` or ``validation``), its ``iteration``, a ``title`` instead.

    Raises:
        OSError: It cannot be written.
        ImportError: There is no pyarrow.
    """
    import pyarrow as pa
    from pyarrow import parquet

    absent: dict[str, Any] = {name: [] if column.per in ("token", "list") else None for name, column in PLAYED.items()}
    schema = arrow_schema(PLAYED)
    metadata = {**(schema.metadata or {}), ITERATION_KEY: json.dumps(info)}
    table = pa.Table.from_pylist([absent | dict(row) for row in rows], schema.with_metadata(metadata))
    with written_whole(path) as temporary:
        parquet.write_table(table, temporary, compression="zstd")
