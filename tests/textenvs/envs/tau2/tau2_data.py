"""tau2-bench's data folder for tests: what TAU2_DATA_DIR names, or `shared/data/tau2` beside the checkout."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
DATA = Path(os.environ.get("TAU2_DATA_DIR") or ROOT.parent / "shared" / "data" / "tau2")
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"tau2-bench's data is not at {DATA}; set TAU2_DATA_DIR to the data folder of a clone"
)
SETS = (("retail", "base"), ("telecom", "small"), ("mock", "base"))


def recorder():
    """scripts/record_tau2.py as a module: which trajectories it played, and how it hashes."""
    spec = importlib.util.spec_from_file_location("record_tau2", ROOT / "scripts" / "record_tau2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
