import json
import os
from pathlib import Path

settings = {}
for path in sorted(Path(os.environ["SOURCE"]).glob("*.json")):
    settings |= json.loads(path.read_text())
Path("/app/settings.json").write_text(json.dumps(settings))
