"""Trainers by name: what there is, how others plug in, and what is said where it goes wrong."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainers
from trainers import TrainerNotFoundError, registry
from trainers.__main__ import main
from trainers.builders import SetupError
from trainers.command_line import resolve
from trainers.ppo_trainer import PPOTrainer

ROOT = Path(__file__).parents[2]

PLUGIN = '''
from trainers import Result

class Lucky:
    """Guesses."""

    def __init__(self, config):
        self.config = config
        self.closed = False

    def fit(self):
        return Result(metrics={"train/reward": float(len(self.config))}, model="nowhere")

    def evaluate(self):
        return {"val/reward": 0.5}

    def close(self):
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def half(config):
    return object()
'''


def package(folder, name, **points):
    """An installed package, as `pip install` leaves one: a module and its metadata."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {target}" for point, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[textenvs.trainers]", *lines, ""]))
    (folder / f"{name}.py").write_text(PLUGIN)
    return folder


def run(code, *paths):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *map(str, paths)])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=env)


def test_package_plugs_in_with_one_class(tmp_path):
    folder = package(tmp_path / "site", "casino", lucky="casino:Lucky", broken="casino:Missing")
    code = """
import sys, trainers
assert "casino" not in sys.modules and "torch" not in sys.modules
print(trainers.names()["lucky"])
assert "casino" not in sys.modules
with trainers.make("lucky", {"env": {"id": "x"}, "rollout.n": 4}) as made:
    assert isinstance(made, trainers.Trainer)
    print(made.config, made.fit().metrics, dict(made.evaluate()))
assert made.closed
try:
    trainers.make("broken")
except trainers.TrainerNotFoundError as error:
    print(error)
"""
    done = run(code, folder)
    assert done.returncode == 0, done.stderr
    listed, used, broken = done.stdout.splitlines()
    assert listed == "of the package casino (casino:Lucky)"
    assert used == """('env.id="x"', 'rollout.n=4') {'train/reward': 2.0} {'val/reward': 0.5}"""
    assert broken.startswith("the trainer 'broken' of the package casino (casino:Missing) cannot be imported: ")


def test_importing_trainers_is_light():
    code = """
import sys, trainers
heavy = {"torch", "transformers", "pydantic", "numpy", "trl", "gymnasium", "yaml", "ray"} & set(sys.modules)
assert not heavy, heavy
trainers.names()
assert not {"torch", "transformers", "trl"} & set(sys.modules)
import textenvs.integrations.trl
hosts = {"trl", "datasets", "torch", "transformers"} & set(sys.modules)
assert not hosts, hosts
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def installed(tmp_path, monkeypatch):
    def install(name, **points):
        monkeypatch.syspath_prepend(str(package(tmp_path / name, name, **points)))

    return install


def test_ambiguous_trainer_name_is_refused(installed):
    installed("one", same="one:Lucky")
    installed("two", same="two:Lucky", ppo="two:Lucky", half="two:half")
    with pytest.raises(TrainerNotFoundError, match="several packages offer a trainer 'same': one, two"):
        trainers.make("same")
    with pytest.raises(TrainerNotFoundError, match="one of textenvs, and the package two offers another"):
        trainers.make("ppo")
    with pytest.raises(TrainerNotFoundError, match="'half' is a object without fit, evaluate, close"):
        trainers.make("half")


@pytest.mark.parametrize(("name", "suggestion"), [("pppo", "'ppo'"), ("zzz", None)])
def test_unknown_trainer_lists_available_ones(name, suggestion):
    with pytest.raises(TrainerNotFoundError) as caught:
        trainers.make(name)
    message = str(caught.value)
    assert message.startswith(f"there is no trainer {name!r}")
    assert ("did you mean" in message) == (suggestion is not None)
    assert (suggestion or "") in message
    assert "ppo" in message


leaves = (
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8) | st.lists(st.integers(), max_size=3)
)
keys = st.text("abcdefg_", min_size=1, max_size=5)


@given(st.dictionaries(keys, leaves | st.dictionaries(keys, leaves, max_size=3), max_size=4))
def test_mapping_becomes_equivalent_arguments(tree):
    made = {}
    for text in registry.arguments(tree):
        name, _, value = text.partition("=")
        *above, last = name.split(".")
        node = made
        for part in above:
            node = node.setdefault(part, {})
        node[last] = json.loads(value)
    assert made == tree


def test_mapping_equals_command_line():
    nested = {"env": {"kwargs": {"level": "easy"}}, "rollout": {"n": 4}, "trainer": {"logger": ["jsonl"]}}
    line = ["env.kwargs.level=easy", "rollout.n=4", "trainer.logger=jsonl", "actor.lr=1e-3", "data.train_size=null"]
    arguments = registry.arguments({**nested, "actor.lr": 1e-3, "data.train_size": None})
    assert resolve(arguments)[0] == resolve(line)[0]


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ("rollout.n=4", "a list of arguments"),
        ([1], "texts"),
        ({1: 2}, "keys are texts"),
        ({"a": {"b": object()}}, "a.b: Object of type object"),
    ],
)
def test_configurations_of_wrong_kind(config, match):
    with pytest.raises(TypeError, match=match):
        trainers.make("ppo", config)


def test_command_lists_and_refuses(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(trainers.names())
    assert main(["--help"]) == 0
    assert "usage" in capsys.readouterr().out
    for wrong, message in ((["--nope"], "usage"), (["pppo"], "did you mean"), (["ppo", "actor.lrr=1"], "actor.lr")):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "stopped at once"),
        (SetupError("no such thing"), 1, "error: no such thing"),
        (OSError(errno.ENOSPC, "no room"), 1, "error: [Errno 28] no room"),
        (ZeroDivisionError("a bug"), None, ""),
    ],
)
def test_how_command_ends_when_training_fails(raised, code, message, capsys, monkeypatch):
    def fit(self):
        raise raised

    monkeypatch.setattr(PPOTrainer, "fit", fit)
    if code is None:
        with pytest.raises(ZeroDivisionError):
            main(["ppo"])
    else:
        assert main(["ppo"]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--help", "--dry-run"])
def test_foreign_flags_point_to_their_command(flag, capsys):
    assert main(["ppo", flag]) == 2
    assert "python -m trainers.ppo --help" in capsys.readouterr().err
