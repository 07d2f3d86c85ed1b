"""Pay the share of settings that are right, and nothing where one is too many."""

import json
import os
from pathlib import Path

expected = json.loads(Path(os.environ["EXPECTED"]).read_text())
try:
    settings = json.loads(Path("/app/settings.json").read_text())
    right = sum(settings.get(name) == value for name, value in expected.items())
    reward = right / len(expected) if set(settings) <= set(expected) else 0.0
except (OSError, ValueError, AttributeError):
    reward = 0.0
Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": reward, "settings": len(expected)}))
