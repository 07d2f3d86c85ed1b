"""``python -m textenvs``: the same as the command ``textenvs``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
