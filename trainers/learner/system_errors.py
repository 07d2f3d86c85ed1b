"""Errors of the system that libraries in Rust say in words alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Turn what a library in Rust says of the system (safetensors, tokenizers) into OSError with errno and ``path``."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error
