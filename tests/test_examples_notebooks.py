"""The notebooks of examples/notebooks run from top to bottom, as in Jupyter: within a running event loop."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
RUNNER = """
import ast, asyncio, inspect, json, sys

async def main(path):
    names = {"__name__": "__main__"}
    for number, cell in enumerate(json.load(open(path, encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            place = f"{path}, cell {number}"
            code = compile("".join(cell["source"]), place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waited = eval(code, names)
            if inspect.isawaitable(waited):
                await waited
    print("all cells ran")

asyncio.run(main(sys.argv[1]))
"""


def test_there_are_three():
    assert [path.stem for path in BOOKS] == ["collabllm", "environments", "training"]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])


@pytest.mark.parametrize(
    "name", ["environments", *(pytest.param(name, marks=pytest.mark.slow) for name in ("training", "collabllm"))]
)
@pytest.mark.timeout(510)  # a notebook trains where other work takes most of the machine
def test_a_notebook_runs(name, tmp_path):
    path = ROOT / "examples" / "notebooks" / f"{name}.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.endswith("all cells ran\n")
    assert "\ufffd" not in done.stdout
    if name == "training":
        before, after = map(int, re.search(r"^right: (\d+)% -> (\d+)%$", done.stdout, re.MULTILINE).groups())
        assert before < 65
        assert after > 90
