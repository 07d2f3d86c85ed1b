"""examples/recipes: folders are complete, configurations resolve, and `python -m examples.recipes` judges runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.recipes import __main__ as recipes
from trainers.command_line import resolve
from trainers.ppo import main as train
from trainers.report.loggers import METRICS_FILE, JsonlLogger

ROOT = Path(__file__).parents[1]
NAMES = recipes.names()
INDEX = (recipes.FOLDER / "README.md").read_text(encoding="utf-8")


def config_of(name, *overrides):
    return resolve([*recipes.files_of(name), *overrides])[0]


@pytest.fixture
def in_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("in_repository")
@pytest.mark.parametrize("name", NAMES)
class TestFolder:
    def test_is_complete(self, name):
        page = (recipes.FOLDER / name / "README.md").read_text(encoding="utf-8")
        assert recipes.command_of(name) in page
        assert f"python -m examples.recipes {name}" in page
        assert f"[{name}]({name}/README.md)" in INDEX

    def test_config_resolves(self, name):
        config = config_of(name)
        assert (config.trainer.project_name, config.trainer.experiment_name) == ("recipes", name)
        assert config.model.device == "auto"
        assert f"# {recipes.command_of(name)}\n" in (recipes.FOLDER / name / recipes.CONFIG).read_text(encoding="utf-8")

    def test_another_model_resolves(self, name):
        config = resolve(["--config", str(recipes.FOLDER / name / recipes.CONFIG), "model.path=some/model"])[0]
        assert config.env == config_of(name).env
        assert config.actor.lr == 1e-6

    def test_expected_curve_is_of_its_config(self, name):
        expected, config = recipes.expected_of(name), config_of(name)
        steps = [point.iteration for point in expected.points]
        every, last = config.trainer.test_freq, config.trainer.total_iterations
        assert steps == sorted({*range(0, last + 1, every), last})
        assert len({*expected.seeds}) == len(expected.seeds) == len(expected.minutes) >= 2
        assert expected.command == recipes.command_of(name)
        for point in expected.points:
            assert len(point.runs) == len(expected.seeds)
            is_share = expected.metric != "val/reward"
            assert point.lower < min(point.runs) or (is_share and point.lower == min(point.runs) == 0)
            assert point.upper > max(point.runs) or (is_share and point.upper == max(point.runs) == 1)
            assert not is_share or 0 <= point.lower <= point.upper <= 1

    def test_expected_curve_learns(self, name):
        first, *_, last = recipes.expected_of(name).points
        assert last.lower > first.upper

    def test_pages_have_its_figures(self, name):
        first, *_, last = recipes.expected_of(name).points
        page = (recipes.FOLDER / name / "README.md").read_text(encoding="utf-8")
        for text in (page, next(line for line in INDEX.splitlines() if line.startswith(f"| [{name}]"))):
            for point in (first, last):
                low, high = min(point.runs), max(point.runs)
                assert f"{low:.2f}" in text
                assert f"{high:.2f}" in text


CURVES = st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=4)


def expected_from(curves, error=0.02):
    by_step = [dict(zip((0, 5, 10), curve, strict=True)) for curve in curves]
    errors = [dict.fromkeys((0, 5, 10), error)] * len(curves)
    points = recipes.band(by_step, errors)
    return recipes.Expected("val/solved", points, [*range(len(curves))], [1.0] * len(curves), "", "", {})


class TestBand:
    @given(CURVES)
    def test_recorded_runs_are_within(self, curves):
        expected = expected_from(curves)
        for curve in curves:
            comparison = recipes.compare(expected, dict(zip((0, 5, 10), curve, strict=True)))
            assert comparison.as_expected
            assert [point.verdict(value) for point, value in comparison.points] == ["within"] * 3

    @given(CURVES, st.floats(0, 1))
    def test_another_run_never_narrows_it(self, curves, value):
        fewer, more = expected_from(curves).points, expected_from([*curves, [value] * 3]).points
        for before, after in zip(fewer, more, strict=True):
            assert after.lower <= before.lower
            assert after.upper >= before.upper

    def test_start_has_no_neighbours(self):
        first, second, _ = expected_from([[0.1, 0.5, 0.9], [0.2, 0.6, 0.8]]).points
        assert (first.lower, first.upper) == (0.06, 0.24)
        assert (second.lower, second.upper) == (0.06, 0.94)

    def test_band_of_a_share_has_limits(self):
        curves, errors = [{0: 0.01, 5: 0.99}], [{0: 0.02, 5: 0.02}]
        assert [(point.lower, point.upper) for point in recipes.band(curves, errors)] == [(0.0, 0.05), (0.0, 1.0)]
        [first, _] = recipes.band(curves, errors, is_share=False)
        assert (first.lower, first.upper) == (-0.03, 0.05)

    def test_other_iterations_are_refused(self):
        with pytest.raises(recipes.RecipeError, match="validated at other iterations"):
            recipes.band([{0: 0.1, 5: 0.2}, {0: 0.1}], [{0: 0.1, 5: 0.1}] * 2)


EXPECTED = expected_from([[0.1, 0.5, 0.9], [0.2, 0.6, 0.8]])


@pytest.mark.parametrize(
    ("values", "as_expected", "below"),
    [
        ((0.15, 0.5, 0.85), True, []),
        ((0.15, 0.5, 1.0), True, []),  # above is no fault
        ((0.0, 0.5, 0.85), True, [0]),  # one, and not the last
        ((0.15, 0.5, 0.3), False, [10]),
        ((0.0, 0.0, 0.85), False, [0, 5]),
        ((0.15, 0.15, 0.15), False, [10]),  # a run that does not learn
        ((0.15, 0.5), False, []),  # not at its end
    ],
)
def test_verdict_on_a_curve(values, as_expected, below):
    comparison = recipes.compare(EXPECTED, dict(zip((0, 5, 10), values, strict=False)))
    assert (comparison.as_expected, comparison.below) == (as_expected, below)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A copy of the recipes, whose `higher_lower` has no expected curve, and a function that writes a run of it."""
    folder = tmp_path / "recipes"
    shutil.copytree(recipes.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(recipes, "FOLDER", folder)
    monkeypatch.chdir(ROOT)
    (folder / "higher_lower" / recipes.EXPECTED).unlink(missing_ok=True)

    def write(name, values, *overrides, seed=0):
        from trainers.builders.folder import write_config

        run = tmp_path / name
        run.mkdir()
        config = config_of("higher_lower", f"trainer.seed={seed}", "trainer.total_iterations=10", *overrides)
        write_config(run, config)
        logger = JsonlLogger(run / METRICS_FILE)
        for step, value in zip((0, 5, 10), values, strict=False):
            logger.log(step, {"val/reward": value, "val/reward_se": 0.02, "val/solved": value, "val/episodes": 192})
        logger.close()
        return run

    recipe = folder / "higher_lower" / recipes.CONFIG
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(re.sub(r"total_iterations: \d+", "total_iterations: 10", text), encoding="utf-8")
    return write


class TestCommand:
    def test_records_and_compares(self, runs, capsys):
        first, second = runs("first", [0.1, 0.5, 0.9]), runs("second", [0.2, 0.6, 0.8], seed=1)
        assert recipes.main(["higher_lower", "--record", str(first), str(second)]) == 0
        assert recipes.expected_of("higher_lower").seeds == [0, 1]
        good, bad = runs("good", [0.15, 0.4, 0.8], seed=2), runs("bad", [0.15, 0.2, 0.2], seed=3)
        assert recipes.main(["higher_lower", "--run", str(good)]) == 0
        assert "\nas expected" in capsys.readouterr().out
        assert recipes.main(["higher_lower", "--run", str(bad)]) == 1
        printed = capsys.readouterr().out
        assert "\nnot as expected" in printed
        assert f"python -m trainers.doctor {bad}" in printed
        assert '"When yours differs" in examples/recipes/higher_lower/README.md' in printed

    def test_high_start_is_explained_in_unchanged_runs(self, runs, capsys):
        first, second = runs("first", [0.1, 0.5, 0.9]), runs("second", [0.2, 0.6, 0.8], seed=1)
        recipes.main(["higher_lower", "--record", str(first), str(second)])
        for values, overrides, is_explained in (
            ([0.5, 0.6, 0.9], (), True),
            ([0.5, 0.6, 0.9], ("actor.lr=1e-6",), False),
            ([0.15, 0.4, 0.8], (), False),
        ):
            run = runs(f"run {values} {overrides}", values, *overrides, seed=4)
            assert recipes.main(["higher_lower", "--run", str(run)]) == 0
            assert ("It starts above the band" in capsys.readouterr().out) == is_explained

    def test_names_what_differs(self, runs, capsys):
        first, second = runs("first", [0.1, 0.5, 0.9]), runs("second", [0.2, 0.6, 0.8], seed=1)
        recipes.main(["higher_lower", "--record", str(first), str(second)])
        other = runs("other", [0.1, 0.5, 0.9], "actor.lr=1e-6")
        assert recipes.main(["higher_lower", "--run", str(other)]) == 0
        assert "actor.lr=1e-06 (recipe: " in capsys.readouterr().out

    def test_unfinished_run_resumes(self, runs, capsys):
        first, second = runs("first", [0.1, 0.5, 0.9]), runs("second", [0.2, 0.6, 0.8], seed=1)
        recipes.main(["higher_lower", "--record", str(first), str(second)])
        assert recipes.main(["higher_lower", "--run", str(runs("part", [0.1, 0.5], seed=2))]) == 2
        assert "it resumes" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": 0}, "the same seed"),
            ({"seed": 1, "overrides": ["actor.lr=1e-6"]}, "is not a run of higher_lower"),
            ({"seed": 1, "values": [0.1, 0.2]}, "is not at its end"),
            ({"seed": 1, "values": []}, "no validation yet"),
        ],
    )
    def test_refuses_to_record(self, runs, capsys, change, message):
        first = runs("first", [0.1, 0.5, 0.9])
        second = runs(
            "second", change.get("values", [0.2, 0.6, 0.8]), *change.get("overrides", []), seed=change["seed"]
        )
        assert recipes.main(["higher_lower", "--record", str(first), str(second)]) == 2
        assert message in capsys.readouterr().err

    def test_refuses_without_runs(self, runs, capsys):
        assert recipes.main(["higher_lower"]) == 2
        assert "--record RUN RUN" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            recipes.main(["no_such_recipe"])

    def test_lists_all(self, capsys):
        assert recipes.main([]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES


@pytest.mark.usefixtures("in_repository")
class TestTraining:
    def train(self, name, folder, *overrides):
        return train(
            [
                *(*recipes.files_of(name), f"trainer.default_local_dir={folder}"),
                *("trainer.logger=[jsonl]", "trainer.threads=1", *overrides),
            ]
        )

    def test_one_iteration_of_a_recipe(self, tmp_path):
        small = ("warm_start.steps=2", "warm_start.careless_steps=0", "warm_start.demonstrations=32", "data.val_size=5")
        small += ("warm_start.batch_size=4", "rollout.groups_per_batch=2", "rollout.n=2", "trainer.total_iterations=1")
        assert self.train("higher_lower", tmp_path / "run", *small) == 0
        assert sorted(recipes.curve_of(tmp_path / "run", "val/solved")) == [0, 1]
        assert any("data.val_size=5" in line for line in recipes.differences("higher_lower", tmp_path / "run"))

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("name", NAMES)
    def test_recipe_is_within_its_band(self, name, tmp_path, capsys):
        assert self.train(name, tmp_path / "run", "trainer.seed=5") == 0
        assert recipes.main([name, "--run", str(tmp_path / "run")]) == 0, capsys.readouterr().out
