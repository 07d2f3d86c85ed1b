"""verifiers 0.2, which has another interface: its tests, with it on the path before verifiers 0.4."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OLDER = Path(sys.prefix) / "older"


def test_multi_turn_environments_under_their_own_verifiers(tmp_path):
    script = Path(__file__).parent / "played_by_verifiers_0_2.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(script)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(OLDER), str(ROOT)]),
            "HF_DATASETS_CACHE": str(tmp_path),
            "TEXTENVS_HOST": "others",
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    last = done.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"\d+ passed.*", last), last
