"""Errors of the system that libraries in Rust report only as text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Turn system errors of a library in Rust (safetensors, tokenizers) into OSError with errno and ``path``."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error
