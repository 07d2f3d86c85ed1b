"""A newcomer's first hour: the commands as they are typed, what they print, and whether that is what it should be.

Run ``python -m benchmarks.first_hour``. Each command runs in a shell, in a folder with the environment of the tutorial
(``coffee.py``) and a tiny model (``model/``), without a network; it shows what was typed and what was printed, and
below each whether it did what is expected. Exits with 1 when one did not. ``--model FOLDER`` adds a real model,
``--only WORDS`` plays the commands alone whose titles have these words (and whatever files they need).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = 24  # lines of what a command printed

SMALL = (
    "model.hidden=32 model.layers=1 model.heads=2 model.kv_heads=1 model.vocab_size=300 warm_start.demonstrations=32 "
    "warm_start.steps=3 warm_start.batch_size=8 rollout.groups_per_batch=2 rollout.n=2 rollout.max_response_length=16 "
    "trainer.logger=[console,jsonl]"
)
GIVEN = "model.path=model rollout.groups_per_batch=2 rollout.n=2 rollout.max_response_length=8"
MAKE_VEC = """python - <<'END'
import gymnasium, textenvs
if __name__ == "__main__":
    envs = gymnasium.make_vec("textenv/gsm8k", num_envs=2, vectorization_mode="async")
    conversations, _ = envs.reset(seed=0)
    _, rewards, terminated, _, _ = envs.step(("4", "5"))
    print(len(conversations), rewards.shape, terminated.shape)
    envs.close()
END"""


@dataclass(frozen=True)
class Step:
    """One command.

    Args:
        title: What a newcomer wants.
        typed: What is typed, for a shell.
        says: Regular expressions that must match what is printed (stdout and stderr together).
        status: The exit status.
        never: Regular expressions that must not match.
            creates: Files that must be there afterwards (globs).
        also: One more condition on what is printed and the folder; returns what is wrong, or nothing.
    """

    title: str
    typed: str
    says: tuple[str, ...] = ()
    status: int = 0
    never: tuple[str, ...] = ()
    creates: tuple[str, ...] = ()
    also: Callable[[str, Path], str] | None = None


def _no_checkpoint_of_the_given_model(printed: str, folder: Path) -> str:
    names = [path.name for path in (folder / "outputs/textenvs/given/checkpoints").iterdir()]
    return f"a checkpoint of the untouched model: {names}" if "iteration_000000" in names else ""


def _few_lines(printed: str, folder: Path) -> str:
    lines = [line for line in printed.splitlines() if line and not line.startswith("#")]
    return f"{len(lines)} lines that are no comments" if len(lines) > 6 else ""


STEPS = (
    # Memory and slots.
    Step(
        "what a run would need",
        "python -m trainers.ppo --dry-run model.path=model rollout.groups_per_batch=1 rollout.n=2 actor.mini_batches=1",
        says=(r"keys and values \d", "memory of the engine"),
    ),
    Step(
        "a plan beyond the machine's memory",
        "python -m trainers.ppo --dry-run model.hidden=2048 model.layers=48 model.heads=16 engine.max_context=8192 "
        "actor.max_tokens_per_micro_batch=8192 engine.max_slots=4096",
        says=(r"learner and engine need .* GiB", r"largest parts: engine: keys and values", r"engine\.max_slots \(now"),
        status=2,
    ),
    # What a dry run finds.
    Step("a dry run", "python -m trainers.ppo --dry-run actor.lr=5e-4", says=(r"lr: 0\.0005",), also=_few_lines),
    Step("all keys", "python -m trainers.ppo --dry-run --all", says=("save_freq: ", "max_slots: null")),
    Step(
        "an id that does not exist",
        "python -m trainers.ppo --dry-run env.id=textenv/gsm8k-interakt",
        says=("Did you mean 'textenv/gsm8k-interact'", "Nothing was started"),
        status=2,
    ),
    Step(
        "an option that does not exist",
        "python -m trainers.ppo --dry-run env.kwargs.levl=easy",
        says=("has no option 'levl'; did you mean level",),
        status=2,
    ),
    Step(
        "an opening that does not fit",
        "python -m trainers.ppo --dry-run env.id=textenv/service-desk warm_start.enable=false",
        says=(r"has [\d,]+ tokens", r"engine\.max_context=512", r"raise engine\.max_context"),
        status=2,
    ),
    # A user's own environment.
    Step(
        "the tutorial's environment, tried",
        "python -m trainers.ppo --dry-run env.id=coffee:my/coffee",
        says=("the opening of training task 0", "which are trained on, too"),
    ),
    Step(
        "the tutorial's environment trains",
        f"python -m trainers.ppo env.id=coffee:my/coffee {SMALL} data.train_size=14 trainer.total_iterations=1",
        says=("validation is on tasks 14 to 17", "curves: "),
        creates=("outputs/textenvs/run/config.yaml", "outputs/textenvs/run/conversations/000001.txt"),
    ),
    # Names on the hub.
    Step(
        "a model by its name on the hub, offline",
        "python -m trainers.ppo --dry-run model.path=HuggingFaceTB/SmolLM2-135M-Instruct",
        says=(r"run: hf download HuggingFaceTB/SmolLM2-135M-Instruct$",),
        status=2,
    ),
    # A run's folder.
    Step(
        "a given model",
        f"python -m trainers.ppo {GIVEN} trainer.experiment_name=given trainer.total_iterations=1 data.val_size=2",
        creates=("outputs/textenvs/given/checkpoints/iteration_000001/model/config.json",),
        also=_no_checkpoint_of_the_given_model,
    ),
    Step(
        "the same from its own config.yaml, with another learning rate",
        "python -m trainers.ppo --config outputs/textenvs/given/config.yaml actor.lr=5e-4 trainer.total_iterations=2",
        says=(r"differs from the checkpoint's: actor\.lr: \S+ -> 0\.0005", r"total_iterations: 1 -> 2"),
    ),
    Step(
        "weights alone",
        f"python -m trainers.ppo {GIVEN} trainer.experiment_name=small trainer.total_iterations=1 data.val_size=2 "
        "trainer.save_weights_only=true && ls outputs/textenvs/small/checkpoints/iteration_000001",
        says=(r"model\nstate\.json",),
        never=(r"^learner$",),
    ),
    Step(
        "weights alone are not resumed from",
        f"python -m trainers.ppo {GIVEN} trainer.experiment_name=small trainer.total_iterations=2 data.val_size=2 "
        "trainer.save_weights_only=true",
        says=(r"has the model alone", r"model\.path=outputs/textenvs/small/checkpoints/iteration_000001/model"),
        status=1,
    ),
    # Evaluation.
    Step(
        "an evaluation of a local model",
        "textenvs evaluate textenv/gsm8k-interact --local model --num-tasks 4 --max-response-length 8 --out results",
        says=(r"4 tasks x 1 = 4 episodes", "assistant turns"),
        creates=("results/episodes.jsonl",),
    ),
    Step(
        "rows, replies to them, and their scores",
        "textenvs rows verl textenv/gsm8k -n 4 -o rows.parquet && "
        "python -m trainers.generate data.path=rows.parquet data.output_path=replies.parquet model.path=model "
        "data.n_samples=2 rollout.response_length=8 && python -m trainers.evaluate data.path=replies.parquet",
        says=("replies: replies.parquet", "mean|pass"),
        creates=("replies.parquet",),
    ),
    Step("help of the environments", "textenvs --help | head -3", says=("usage: textenvs",), never=("BrokenPipe",)),
    Step(
        "help of the trainer",
        "python -m trainers.ppo --help | head -3",
        says=(r"usage: python -m trainers\.ppo",),
        never=("BrokenPipe", "Traceback"),
    ),
    Step("environments in processes", MAKE_VEC, says=(r"^2 \(2,\) \(2,\)$",)),
)


def real_model(folder: str) -> tuple[Step, ...]:
    """Return the steps of a real model of some hundred million parameters on a small machine."""
    argv = f"model.path={folder} engine.max_context=256 actor.max_tokens_per_micro_batch=256"
    few = "rollout.groups_per_batch=1 rollout.n=2 actor.mini_batches=1 rollout.max_response_length=16 data.val_size=2"
    return (
        Step("a real model, tried", f"python -m trainers.ppo --dry-run {argv}", says=("memory of the learner",)),
        Step(
            "a real model, one iteration",
            f"python -m trainers.ppo {argv} {few} trainer.total_iterations=1 trainer.experiment_name=real "
            "trainer.val_before_train=false",
            says=("run: ",),
            creates=("outputs/textenvs/real/checkpoints/iteration_000001/model/model.safetensors",),
        ),
    )


def prepare(folder: Path) -> None:
    """Write the files of the tutorial, and a tiny model."""
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"^```python (\S+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text, encoding="utf-8")
    from trainers.models import tiny

    tokenizer = tiny.build_tokenizer(["user: What is 2 + 3? assistant: 2 + 3 = 5 #### 5"])
    model = tiny.build_model(len(tokenizer), hidden=32, layers=1, heads=2, kv_heads=1)
    tiny.save(folder / "model", model, tokenizer)


def play(step: Step, folder: Path) -> list[str]:
    """Run one command and show it; return what is wrong with its output."""
    # As if the package's commands were installed, by the interpreter that runs this.
    tools = folder / ".bin"
    tools.mkdir(exist_ok=True)
    for name, words in (("python", ""), ("textenvs", "-m textenvs")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / ".hf"),
        "COLUMNS": "120",
    }
    print(f"\n## {step.title}\n$ {step.typed}", flush=True)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", step.typed] if "| head" not in step.typed else ["bash", "-c", step.typed],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    lines = done.stdout.splitlines()
    cut = [f"... {len(lines) - SHOWN} lines ..."] if len(lines) > SHOWN else []
    print("\n".join([*lines[: SHOWN // 2], *cut, *lines[-(SHOWN - SHOWN // 2) :]] if cut else lines))
    wrong = [f"exit status {done.returncode}, not {step.status}"] if done.returncode != step.status else []
    wrong += [f"does not say {pattern!r}" for pattern in step.says if not re.search(pattern, done.stdout, re.MULTILINE)]
    wrong += [f"says {pattern!r}" for pattern in step.never if re.search(pattern, done.stdout, re.MULTILINE)]
    wrong += ["a traceback"] if "Traceback (most recent call last)" in done.stdout else []
    wrong += [f"there is no {pattern}" for pattern in step.creates if not list(folder.glob(pattern))]
    if not wrong and step.also is not None and (problem := step.also(done.stdout, folder)):
        wrong.append(problem)
    print(f"-> {'as expected' if not wrong else 'NOT AS EXPECTED: ' + '; '.join(wrong)}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a real model")
    parser.add_argument("--only", default="", help="words of the titles to play")
    arguments = parser.parse_args()
    steps = (*STEPS, *(real_model(str(Path(arguments.model).resolve())) if arguments.model else ()))
    chosen = [step for step in steps if all(word in step.title for word in arguments.only.split())]
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        folder = Path(name)
        prepare(folder)
        failed = [step.title for step in chosen if play(step, folder)]
    print(
        f"\n{len(chosen) - len(failed)} of {len(chosen)} as expected" + "".join(f"\n  not: {title}" for title in failed)
    )
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    raise SystemExit(main())
