"""Tests of adapters whose host library has a virtual environment of its own (`make venv-verl venv-hosts`).

They are collected only there; tests/textenvs/integrations/test_hosts.py runs them from the main environment.
"""

import os
from pathlib import Path

HERE = Path(__file__).parent
INSIDE = os.environ.get("TEXTENVS_HOST")  # the folder that belongs to the environment of this process

collect_ignore = [str(folder) for folder in HERE.iterdir() if folder.is_dir() and folder.name != INSIDE]
