"""The example folders of tasks, and small ones that tests write."""

from pathlib import Path

import textenvs
from textenvs.tools.formats import Hermes, call

EXAMPLES = Path(__file__).parents[3] / "data" / "terminal_folders"
FORMATS = ("harbor", "terminal-bench")
WRITE = Hermes().write
FINISH = WRITE("", [call("finish")])
SOLVED = "touch /app/done"
_PAYS_DONE = (
    "#!/bin/bash\n[ -e /app/done ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
)


def run(command, **options):
    return WRITE("", [call("run", command=command, **options)])


def harbor_task(
    folder, *, toml="", dockerfile="FROM ubuntu\nWORKDIR /app\n", tests=_PAYS_DONE, solution=SOLVED, name="one"
):
    """Write a task that is solved where ``/app/done`` is there; return the folder that holds it."""
    root = Path(folder) / name
    files = {
        "task.toml": toml,
        "instruction.md": "Do it.",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": tests,
    }
    if solution is not None:
        files["solution/solve.sh"] = f"#!/bin/bash\n{solution}\n"
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Path(folder)


def bench_task(folder, *, yaml="", dockerfile="FROM debian\nWORKDIR /app\n", tests="", solution=SOLVED, name="one"):
    """Write a task of Terminal-Bench whose tests print ``tests``, a line of shell."""
    root = Path(folder) / name
    root.mkdir(parents=True, exist_ok=True)
    files = {"task.yaml": f"instruction: Do it.\n{yaml}", "Dockerfile": dockerfile, "run-tests.sh": tests}
    if solution is not None:
        files["solution.sh"] = solution
    for path, text in files.items():
        (root / path).write_text(text)
    return Path(folder)


def make(folder, **options):
    return textenvs.make("textenv/terminal", tasks=str(folder), **options)


def play(env, *replies, index=0):
    """Play replies from a reset; return the last step's reward and info."""
    env.reset(seed=0, options={"task_index": index})
    for reply in replies:
        _, reward, _, _, info = env.step(reply)
    return reward, info
