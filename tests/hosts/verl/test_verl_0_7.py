"""verl 0.7, the last with interactions, with its own base class and loader."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OLDER = Path(sys.prefix) / "older"


def test_interactions_under_their_own_verl(model_folder):
    path = [OLDER, ROOT, ROOT / "tests/textenvs/integrations"]
    script = Path(__file__).parent / "played_by_verl_0_7.py"
    done = subprocess.run(
        [sys.executable, str(script), "examples/verl/interaction.yaml", str(model_folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "18 episodes under verl 0.7.1" in done.stdout
    assert "9 episodes in its agent loop" in done.stdout
