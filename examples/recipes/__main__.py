"""Compare a run with the curve of its recipe, or record the curve of a recipe from its runs.

    python -m examples.recipes                         the recipes, one a line
    python -m examples.recipes NAME                    compare the run in outputs/recipes/NAME with the expected curve
    python -m examples.recipes NAME --run FOLDER       compare another run
    python -m examples.recipes NAME --record RUN RUN   write the expected curve from two or more runs with other seeds

The exit code of a comparison is 0 where the run is as expected or better, 1 where it is below, 2 where there is nothing
to compare.

The band: at each validation, from the lowest of the recorded runs at this validation, the one before or the one after,
to the highest likewise (runs learn the same earlier or later), and two standard errors of a validation on either side.
The first validation, which is before any PPO, stands alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.hardware import processor
from trainers.builders.folder import CONFIG_FILE
from trainers.command_line import resolve
from trainers.registry import flattened
from trainers.report.loggers import METRICS_FILE, read_jsonl

FOLDER = Path(__file__).parent
#: The recipe for any model, what the tiny model needs besides, and its curve.
CONFIG, TINY, EXPECTED = "recipe.yaml", "tiny.yaml", "expected.json"
#: Standard errors of a validation on either side of the band.
ERRORS = 2.0
#: Keys that change neither what is trained nor how: a run with others is still a run of the recipe.
_FREE = ("trainer.seed", "trainer.default_local_dir", "trainer.experiment_name", "trainer.project_name")
_FREE += ("trainer.resume_mode", "trainer.logger", "trainer.threads", "engine.threads", "engine.replicas")
_PACKAGES = ("torch", "transformers", "gymnasium")

Curve = Mapping[int, float]


class RecipeError(ValueError):
    """There is nothing to compare or to record; the message says why and what to do."""


@dataclass(frozen=True)
class Point:
    """The expected value of the metric at an iteration: the recorded runs, and the band."""

    iteration: int
    runs: list[float]
    lower: float
    upper: float

    def verdict(self, value: float) -> str:
        """Return ``"within"``, ``"below"`` or ``"above"``."""
        return "below" if value < self.lower else "above" if value > self.upper else "within"


@dataclass(frozen=True)
class Expected:
    """The expected curve of a recipe, and where it comes from."""

    metric: str
    points: list[Point]
    seeds: list[int]
    minutes: list[float]
    command: str
    machine: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Comparison:
    """A run beside the expected curve: a verdict for each point, none where the run has no such validation."""

    points: list[tuple[Point, float | None]]

    @property
    def below(self) -> list[int]:
        """The iterations at which the run is below the band."""
        return [point.iteration for point, value in self.points if value is not None and value < point.lower]

    @property
    def missing(self) -> list[int]:
        """The iterations at which the run was not validated."""
        return [point.iteration for point, value in self.points if value is None]

    @property
    def as_expected(self) -> bool:
        """True if the last point is not below, and at most one other is: one in many may be, by chance."""
        last = self.points[-1][0].iteration
        return not self.missing and len(self.below) <= 1 and last not in self.below


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CONFIG}"))


def command_of(name: str, *overrides: str) -> str:
    """Return the command that trains the tiny model by a recipe."""
    files = [f"examples/recipes/{name}/{file}" for file in (CONFIG, TINY)]
    return shlex.join(["python", "-m", "trainers.ppo", "--config", files[0], "--config", files[1], *overrides])


def expected_of(name: str) -> Expected:
    """Read the expected curve of a recipe."""
    path = FOLDER / name / EXPECTED
    if not path.exists():
        raise RecipeError(f"{path} does not exist: write it with python -m examples.recipes {name} --record RUN RUN")
    saved = json.loads(path.read_text(encoding="utf-8"))
    return Expected(**saved | {"points": [Point(**point) for point in saved["points"]]})


def rows_of(run: Path) -> list[tuple[int, Mapping[str, float]]]:
    """Return the validations of a run, with all their metrics."""
    file = run / METRICS_FILE
    if not file.exists():
        raise RecipeError(f"{run} has no {METRICS_FILE}: train first, or name the folder of a run with --run")
    return [(step, metrics) for step, metrics in read_jsonl(file) if "val/reward" in metrics]


def curve_of(run: Path, metric: str) -> dict[int, float]:
    """Return the value of a metric at each validation of a run."""
    rows = rows_of(run)
    if not rows:
        raise RecipeError(f"{run} has no validation yet")
    if metric not in rows[0][1]:
        metrics = ", ".join(sorted(name for name in rows[0][1] if name.startswith("val/")))
        raise RecipeError(f"{run}: its validations have no {metric!r}, only {metrics}")
    return {step: metrics[metric] for step, metrics in rows if metric in metrics}


def standard_errors(run: Path, metric: str) -> dict[int, float]:
    """Return the standard error of a metric at each validation: the reward's as measured, else that of a share."""
    errors = {}
    for step, metrics in rows_of(run):
        if metric == "val/reward":
            errors[step] = metrics["val/reward_se"]
        else:
            share, episodes = metrics[metric], metrics["val/episodes"]
            if not 0 <= share <= 1:
                raise RecipeError(f"{metric} is no share of episodes ({share:g}): record val/reward instead")
            likely = (share * episodes + 2) / (episodes + 4)  # of Agresti and Coull: above 0 at 0 and 1
            errors[step] = (likely * (1 - likely) / episodes) ** 0.5
    return errors


def band(curves: Sequence[Curve], errors: Sequence[Curve], *, is_share: bool = True) -> list[Point]:
    """Return the points of a band around some curves of the same iterations; that of a share ends at 0 and 1."""
    steps = sorted(curves[0])
    if any(sorted(curve) != steps for curve in curves):
        raise RecipeError("the runs were validated at other iterations: train all of them to the end with one recipe")
    points = []
    for place, step in enumerate(steps):
        near = steps[max(0, place - 1) : place + 2]
        if place == 0:
            near = near[:1]  # the start has learned nothing, in any run
        margin = ERRORS * max(error[step] for error in errors)
        values = [curve[other] for curve in curves for other in near]
        now = [round(curve[step], 4) for curve in curves]
        lower, upper = min(values) - margin, max(values) + margin
        if is_share:
            lower, upper = max(lower, 0.0), min(upper, 1.0)
        points.append(Point(step, now, round(lower, 4), round(upper, 4)))
    return points


def compare(expected: Expected, curve: Curve) -> Comparison:
    """Compare the curve of a run with the expected one, at its iterations."""
    return Comparison([(point, curve.get(point.iteration)) for point in expected.points])


def files_of(name: str) -> list[str]:
    """Return the arguments that name the configuration of the tiny model."""
    return ["--config", str(FOLDER / name / CONFIG), "--config", str(FOLDER / name / TINY)]


def settings_of(*arguments: str) -> dict[str, Any]:
    """Return all keys of a configuration but those that may differ, flat."""
    config = resolve([*arguments])[0].model_dump(mode="json")
    return {key: value for key, value in flattened(config) if key not in _FREE}


def differences(name: str, run: Path) -> list[str]:
    """Return the keys by which a run differs from its recipe, as ``key=value (recipe: value)``."""
    recipe, own = settings_of(*files_of(name)), settings_of("--config", str(run / CONFIG_FILE))
    keys = [key for key in sorted({*recipe, *own}) if recipe.get(key) != own.get(key)]
    return [f"{key}={own.get(key)} (recipe: {recipe.get(key)})" for key in keys]


def advice(name: str, run: Path, comparison: Comparison, changed: Sequence[str]) -> list[str]:
    """Return what to do about a run, a paragraph each."""
    points, below = comparison.points, comparison.below
    lines = []
    if changed:
        lines.append("The run is not the recipe's, so its curve may differ: " + "; ".join(changed) + ".")
    if comparison.missing:
        lines.append("The run is not at its end: start the same command again, and it resumes.")
        return lines
    if points[0][0].iteration in below:
        lines.append(
            "It starts lower, before any PPO: the warm start or the environment differs. Compare the versions of the "
            "packages with those above, and read the first conversations in conversations/ of the run."
        )
    if not changed and points[0][1] is not None and points[0][1] > points[0][0].upper:
        lines.append(
            "It starts above the band, before any PPO: probably the bad habit was learned less well with this seed. So "
            "there is less to gain; look at the last point."
        )
    if len(below) > 1 or points[-1][0].iteration in below:
        lines.append(
            f'It learns less. Compare it with "When yours differs" in examples/recipes/{name}/README.md, and ask the '
            f"doctor: python -m trainers.doctor {shlex.quote(str(run))}. Then train another seed, "
            f"{command_of(name, 'trainer.seed=3', f'trainer.experiment_name={name}-3')}, and compare it (--run "
            f"outputs/recipes/{name}-3): if that is within the band, it was this seed. If two seeds are below on "
            "unchanged code and versions, the band or the code is wrong: please report it. docs/not-learning.md goes "
            "on from there."
        )
    elif below:
        lines.append("One point is below and the last is not: noise of one validation, or of this seed.")
    if not below and points[-1][1] is not None and points[-1][1] > points[-1][0].upper:
        lines.append(
            "It ends above the band. If code, versions and settings are the recipe's, read the conversations: either a "
            "change made it better, or the reward can be earned in a cheaper way."
        )
    return lines


def report(name: str, run: Path) -> int:
    """Print the comparison of a run; return the exit code."""
    expected = expected_of(name)
    comparison = compare(expected, curve_of(run, expected.metric))
    changed = differences(name, run)
    minutes = " and ".join(f"{value:g}" for value in expected.minutes)
    versions = ", ".join(f"{package} {version}" for package, version in expected.versions.items())
    seeds = ", ".join(map(str, expected.seeds))
    print(
        f"{name}: {expected.metric} of {run}, beside seeds {seeds}: {minutes} minutes on {expected.machine}, {versions}"
    )
    print("iteration     run   expected         runs")
    for point, value in comparison.points:
        shown = f"{value:6.3f}" if value is not None else "     -"
        verdict = "not validated" if value is None else point.verdict(value)
        runs = " ".join(f"{other:.3f}" for other in point.runs)
        print(f"{point.iteration:>9}  {shown}   {point.lower:5.3f} to {point.upper:5.3f}   {runs}   {verdict}")
    print("as expected" if comparison.as_expected else "not as expected")
    for text in advice(name, run, comparison, changed):
        print(text)
    return 2 if comparison.missing else 0 if comparison.as_expected else 1


def record(name: str, runs: Sequence[Path], metric: str) -> None:
    """Write the expected curve of a recipe from finished runs of it, each with a seed of its own."""
    if len(runs) < 2:
        raise RecipeError("a band needs two runs at least, with other seeds")
    seeds, minutes = [], []
    for run in runs:
        curve_of(run, metric)  # or its error
        if changed := differences(name, run):
            raise RecipeError(f"{run} is not a run of {name}: {'; '.join(changed)}")
        config = resolve(["--config", str(run / CONFIG_FILE)])[0]
        if curve_of(run, metric).keys().isdisjoint({config.trainer.total_iterations}):
            raise RecipeError(f"{run} is not at its end: start its command again, and it resumes")
        seeds.append(config.trainer.seed)
        seconds = (run / METRICS_FILE).stat().st_mtime - (run / CONFIG_FILE).stat().st_mtime
        minutes.append(round(seconds / 60, 1))
    if len({*seeds}) < len(seeds):
        raise RecipeError(f"two of the runs have the same seed ({', '.join(map(str, seeds))})")
    curves, errors = [curve_of(run, metric) for run in runs], [standard_errors(run, metric) for run in runs]
    versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in _PACKAGES}
    points = band(curves, errors, is_share=metric != "val/reward")
    expected = Expected(metric, points, seeds, minutes, command_of(name), processor(), versions)
    (FOLDER / name / EXPECTED).write_text(json.dumps(asdict(expected), indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the recipe")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="the run's folder (default: outputs/recipes/NAME)")
    parser.add_argument("--record", type=Path, nargs="+", metavar="RUN", help="write expected.json from these runs")
    parser.add_argument("--metric", default="val/solved", help="with --record: the curve (default: val/solved)")
    options = parser.parse_args(arguments)
    if options.name is None:
        for name in names():
            print(f"{name:<16} {command_of(name)}")
        return 0
    if options.name not in names():
        parser.error(f"there is no recipe {options.name!r}; there are {', '.join(names())}")
    try:
        if options.record:
            record(options.name, options.record, options.metric)
            print(f"wrote {FOLDER / options.name / EXPECTED}")
            return 0
        return report(options.name, options.run or Path("outputs/recipes") / options.name)
    except RecipeError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
