"""Tests of /app/report.sh, and a summary of them in pytest's form."""

import os
import subprocess
import tempfile
from pathlib import Path


def mean_of(*numbers):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "numbers.txt")
        path.write_text("".join(f"{number}\n" for number in numbers))
        run = subprocess.run(["/app/report.sh", path], capture_output=True, text=True, timeout=5, cwd="/app")
    return run.stdout.strip()


def test_means():
    assert mean_of(5, 7) == "6.00"
    assert mean_of(1, 1, 2) == "1.33"
    assert mean_of(-3) == "-3.00"


def test_data_unchanged():
    assert Path("/app/data/small.txt").read_text() == "4\n6\n"
    assert Path("/app/data/other.txt").read_text() == "1\n2\n4\n"


results = []
for name, test in list(globals().items()):
    if name.startswith("test_"):
        try:
            test()
            results.append(f"PASSED test_outputs.py::{name}")
        except Exception as error:
            results.append(f"FAILED test_outputs.py::{name} - {type(error).__name__}")
print("=========== short test summary info ===========", *results, sep=os.linesep)
