"""The page about these environments: its command runs, and prints what the page shows."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_conversation_on_the_page_is_what_its_command_prints(tmp_path):
    page = (ROOT / "docs" / "environments" / "gsm8k.md").read_text(encoding="utf-8")
    command, shown = re.search(r"```bash\n(.*?)```\s+```text\n(.*?)```", page, re.DOTALL).groups()
    script = re.search(r"<<'END'\n(.*)END\n", command, re.DOTALL).group(1)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=script,
        env={"PYTHONPATH": str(ROOT), "TEXTENVS_DATA": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout == shown
