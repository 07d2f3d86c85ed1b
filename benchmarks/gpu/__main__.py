"""``python -m benchmarks.gpu``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # nothing here needs to be installed

from benchmarks.gpu.run import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
