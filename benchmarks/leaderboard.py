"""Every environment with its scripts and attacks, or with a model: the rows of docs/leaderboard.md.

    python -m benchmarks.leaderboard [--only clarify,...] [--minutes M]                     # scripts and attacks
    python -m benchmarks.leaderboard --local FOLDER | --model NAME [--base-url URL] [...]   # a model

All other options are passed on to `textenvs evaluate`. Each evaluation is a folder in `--out`, and a row of the page
as soon as it is finished. The same command resumes: what is finished there is not played again. What cannot be made
here is named and left out; `textenv/tau2` needs TAU2_DATA_DIR (docs/environments/tau2.md), `textenv/bfcl` BFCL_CLONE,
`textenv/awm` AWM_DATA_DIR, and `textenv/textworld` its package.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from textenvs.cli import main as textenvs
from textenvs.evaluate.baselines import has_script
from textenvs.evaluate.policies import SCRIPTS
from textenvs.registry import list_environments, make

#: Episodes of each script and attack, each of another task; fewer where programs are run or games compiled.
SCRIPTED, FEWER_SCRIPTED = 100, {"collab-code": 60, "math-python": 60, "terminal": 60, "textworld": 24}
#: Episodes of a model, few where conversations are long: for one with 135 million parameters about ten minutes of one
#: thread in all.
PLAYED = 16
OTHERS_PLAYED = {"gsm8k": 64, "clarify": 64, "service-desk": 8, "tau2": 8, "bfcl": 8, "awm": 8, "textworld": 8}
#: In the place of an environment's defaults.
OPTIONS = {
    "worlds": ("", "level=medium", "level=hard"),
    "worlds-web": ("", "level=medium", "level=hard"),
    "terminal": ("", "level=medium", "level=hard"),
    "tau2": ("domain=retail", "domain=telecom split=small", "domain=mock"),
    "bfcl": ("category=base", "category=miss_func", "category=miss_param", "category=long_context"),
}


def boards(only: list[str] | None) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the short name, the id and the options (as words) of each environment, once for each set of options."""
    for env_id in list_environments(with_arguments=True):
        name = env_id.removeprefix("textenv/")
        if name != "remote" and (only is None or name in only):
            for options in OPTIONS.get(name, ("",)):
                yield name, env_id, options.split()


def evaluations(name: str, env_id: str, options: list[str], words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield what is played: a name for its folder, and the words of ``textenvs evaluate`` after the options."""
    kwargs: dict[str, Any] = dict(word.split("=") for word in options)
    with closing(make(env_id, **kwargs)) as env:
        scripts = [name for name in SCRIPTS if has_script(env, name)]
        script = env.own_script
        attacks = [attack for attack in env.attacks() if not attack.rehearse or "expert" in scripts]
        size = env.tasks.size
    target = OTHERS_PLAYED.get(name, PLAYED) if words else FEWER_SCRIPTED.get(name, SCRIPTED)
    # Half of a small set where an attack rehearses on the other half.
    count = {False: min(target, size or target), True: min(target, (size or 2 * target) // 2)}
    if words:
        yield "model", [*words, "--num-tasks", str(count[False])]
        return
    for played in scripts:
        # The expert's marginal bytes are of 200 episodes.
        tasks = min(200, size or 200) if played == "expert" else count[False]
        yield played, ["--policy", played, "--num-tasks", str(tasks)]
    if script is not None:
        yield "script", ["split=test", "--policy", "script", "--num-tasks", str(count[False])]
    for attack in attacks:
        yield (
            f"attack-{attack.name}",
            ["--policy", f"attack:{attack.name}", "--num-tasks", str(count[attack.rehearse > 0])],
        )


def main() -> int:
    """Play what is missing; a row of the page each."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...", help="these environments")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no evaluation after so many")
    parser.add_argument("--out", type=Path, default=Path("outputs/leaderboard"), metavar="DIR")
    parser.add_argument("--rows", default="docs/leaderboard.jsonl", metavar="FILE")
    parser.add_argument("--name", metavar="NAME", help="what the model is called")
    parser.add_argument("--note", default="", metavar="TEXT", help="kept with the rows")
    arguments, words = parser.parse_known_args()
    players = [
        Path(word).name for flag, word in itertools.pairwise(words) if flag in ("--model", "--local", "--policy")
    ]
    player = arguments.name or next(iter(players), "")
    ends, failed = time.monotonic() + 60 * arguments.minutes, 0
    for name, env_id, options in boards(arguments.only):
        try:
            planned = list(evaluations(name, env_id, options, words))
        except (ImportError, ValueError, OSError) as error:
            print(f"{env_id} {' '.join(options)}: left out: {error}", file=sys.stderr)
            continue
        for policy, rest in planned:
            if time.monotonic() > ends:
                print("the minutes are over; the same command resumes", file=sys.stderr)
                return 1
            place = [name, *(word.partition("=")[2] for word in options), player, policy]
            folder = arguments.out / "-".join(filter(None, place))
            began = time.process_time()
            if status := textenvs(["evaluate", env_id, *options, *rest, "--out", str(folder), "--quiet"]):
                if status != 1:  # of a command that makes no sense, or an interrupt
                    return status
                failed += 1
                continue
            named = ["--name", arguments.name] if arguments.name and words else []
            textenvs(["leaderboard", str(folder), "--rows", arguments.rows, "--note", arguments.note, *named])
            print(f"{folder}: {time.process_time() - began:.1f} CPU seconds", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
