"""Configuration: what a user types arrives, what is wrong is said, what is shown can be read back."""

import runpy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainers.command_line import ConfigError, load_config, render, resolve
from trainers.command_line.unknown import nearest_keys
from trainers.config import PPOConfig, SFTConfig
from trainers.config.commands import GenerateConfig
from trainers.config.describe import all_keys
from trainers.config.yaml12 import Loader, dump

ROOT = Path(__file__).parents[3]


def problems(*arguments, schema=PPOConfig):
    """Return the problems, one line each."""
    with pytest.raises(ConfigError) as caught:
        resolve(arguments, schema)
    return [str(problem) for problem in caught.value.problems]


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


# --- what arrives


@pytest.mark.parametrize("schema", [PPOConfig, SFTConfig])
def test_no_argument_gives_defaults(schema):
    config, flags = resolve([], schema)
    assert config == schema()
    assert flags.sources == {}


@pytest.mark.parametrize(
    ("argument", "path", "expected"),
    [
        ("actor.lr=1e-4", "actor.lr", 1e-4),  # text in YAML 1.1
        ("actor.lr=1", "actor.lr", 1.0),
        ("rollout.n=4", "rollout.n", 4),
        ("trainer.logger=console", "trainer.logger", ("console",)),
        ("trainer.logger=['console', 'jsonl']", "trainer.logger", ("console", "jsonl")),
        ("trainer.logger=[]", "trainer.logger", ()),
        ("trainer.test_freq=-1", "trainer.test_freq", -1),
        ("actor.clip_ratio_c=null", "actor.clip_ratio_c", None),
        ("algorithm.norm_by_std=null", "algorithm.norm_by_std", False),  # its default depends on the estimator
        ("actor.clip_ratio_c=", "actor.clip_ratio_c", None),
        ("trainer.experiment_name=007", "trainer.experiment_name", "007"),
        ("trainer.experiment_name=1e3", "trainer.experiment_name", "1e3"),
        ("trainer.experiment_name=true", "trainer.experiment_name", "true"),
        ("trainer.experiment_name=a=b", "trainer.experiment_name", "a=b"),
        ("actor.betas=[0.8, 0.9]", "actor.betas", (0.8, 0.9)),
        ("algorithm={use_kl_in_reward: true, kl_ctrl: {type: adaptive}}", "algorithm.kl_ctrl.type", "adaptive"),
        ("algorithm={use_kl_in_reward: true, kl_ctrl: {horizon: 9}}", "algorithm.kl_ctrl.horizon", 9.0),
        ("env.kwargs={level: easy}", "env.kwargs", {"level": "easy"}),
        ("env.kwargs.user.patience=3", "env.kwargs", {"user": {"patience": 3}}),
        ("env.kwargs.answer=no", "env.kwargs", {"answer": "no"}),  # false in YAML 1.1
        ("env.kwargs.clock=1:30", "env.kwargs", {"clock": "1:30"}),  # ninety in YAML 1.1
    ],
)
def test_values_parse_as_yaml(argument, path, expected):
    config, _ = resolve([argument])
    value = config
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


def test_arguments_override_files_and_later_wins(tmp_path):
    first = write(tmp_path, "a.yaml", "actor: {lr: 0.1, ppo_epochs: 2}\nrollout.n: 3\n")
    empty = "critic:\n  # nothing set here\nreward_model:\nreward_models:\nenv: {mixture:, kwargs:}\n"
    second = write(tmp_path, "b.yaml", "actor:\n  lr: 0.2\n  mini_batches: 5\n" + empty)
    config, flags = resolve(["actor.mini_batches=6", "--config", first, f"--config={second}", "actor.mini_batches=7"])
    assert (config.actor.lr, config.actor.ppo_epochs, config.actor.mini_batches, config.rollout.n) == (0.2, 2, 7, 3)
    assert flags.sources == {
        "actor.lr": f"{second}:2",
        "actor.ppo_epochs": f"{first}:1",
        "rollout.n": f"{first}:2",
        "actor.mini_batches": "command line",
    }


def test_mapping_replaces_and_its_entries_add():
    config, flags = resolve(["env.kwargs.a=1", "env.kwargs={b: 2}", "env.kwargs.c=3"])
    assert config.env.kwargs == {"b": 2, "c": 3}
    assert set(flags.sources) == {"env.kwargs", "env.kwargs.c"}


def test_configuration_cannot_be_changed_by_accident():
    config, _ = resolve([])
    with pytest.raises(ValueError, match="frozen"):
        config.actor.lr = 1.0


# --- what is wrong


@pytest.mark.parametrize(
    "text",
    [
        "def score(): pass",
        "from json import *",
        "score = len",
        "import x as score",
        "try:\n def score(): pass\nfinally: pass",
    ],
)
def test_dynamically_bound_reward_function_is_accepted(tmp_path, text):
    file = tmp_path / "own.py"
    file.write_text(text)
    path, key = f"custom_reward_function.path={file}", "custom_reward_function.name"
    assert resolve([path, f"{key}=score"])[0].custom_reward_function.name == "score"
    if "def score" in text:
        with pytest.raises(ConfigError, match=r"own\.py has no function scores; it has score"):
            resolve([path, f"{key}=scores"])


def test_all_mistakes_are_listed_with_origin(tmp_path):
    file = write(tmp_path, "run.yaml", "# a comment\nactor:\n  lr: slow\n  speed: 3\nrollout: 7\n")
    lines = problems("--config", file, "critic.lr=-1", "x")
    assert len(lines) == 5
    for message, place in [
        ("actor.lr: slow", f"[{file}:3]"),
        ("actor.speed: unknown key", f"[{file}:4]"),
        ("rollout: is a section", f"[{file}:5]"),
        ("critic.lr: -1", "[command line]"),
        ("x: expected key=value", "[command line]"),
    ]:
        assert any(message in line and line.endswith(place) for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [("- 1\n- 2\n", "must be a mapping"), ("actor: {lr: 1\n", "is not YAML"), ("a: 1\na: 2\n", "'a' stands twice")],
)
def test_invalid_configuration_file_is_refused(tmp_path, text, message):
    file = write(tmp_path, "bad.yaml", text)
    (line,) = problems("--config", file)
    assert message in line
    assert file in line


@given(st.sampled_from(sorted(all_keys(PPOConfig))), st.data())
def test_one_wrong_letter_still_finds_key(name, data):
    """Dropping any one character of a key that is not very short leaves it among the keys suggested."""
    if len(name.rpartition(".")[2]) < 4:
        return
    at = data.draw(st.integers(0, len(name) - 1))
    typo = name[:at] + name[at + 1 :]
    assert typo in all_keys(PPOConfig) or name in nearest_keys(typo, all_keys(PPOConfig))


# --- what is shown


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(
        ["1e-4", "no", "on", "1:30", "0x1f", "1_000", "2024-01-01", "~", "null", "", " x", "a: b # c", "<<"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(PLAIN)
def test_dumped_value_round_trips_on_one_line(value):
    text = dump(value)
    assert "\n" not in text
    assert yaml.load(text, Loader) == value


@given(
    st.dictionaries(st.text("abcxyz_", min_size=1, max_size=5), PLAIN, max_size=3),
    st.floats(1e-12, 1e12),
    st.text(min_size=1, max_size=10),
)
def test_rendered_configuration_loads_back(tmp_path_factory, kwargs, lr, name):
    config = PPOConfig(env={"kwargs": kwargs}, actor={"lr": lr}, trainer={"experiment_name": name})
    file = tmp_path_factory.mktemp("render") / "config.yaml"
    file.write_text(render(config), encoding="utf-8")
    again, flags = resolve(["--config", str(file)])
    assert again == config
    keys = all_keys(PPOConfig)
    chosen = {config.algorithm.adv_estimator, config.actor.policy_loss, config.engine.name}
    own = {name: key for name, key in keys.items() if not name.startswith("reward_model.")}  # of an entry, not of all
    assert set(flags.sources) == {name for name, key in own.items() if not key.readers or chosen & {*key.readers}}


@pytest.mark.parametrize("schema", [PPOConfig, SFTConfig, GenerateConfig])
def test_every_default_can_be_written(tmp_path, schema):
    """Also those of other variants of a section, which older versions wrote out."""
    (tmp_path / "config.json").write_text("{}")
    needed = ["data.path=x", "data.output_path=y", f"model.path={tmp_path}"] if schema is GenerateConfig else []
    plain, flags = resolve(needed, schema)
    left_out = {*flags.chosen, "algorithm.norm_by_std"}  # whose defaults depend on other keys
    defaults = {name: key.default for name, key in all_keys(schema).items() if name not in left_out}
    lines = [f"{name}: {dump(value)}" for name, value in defaults.items() if value is not None]
    config, _ = resolve(["--config", write(tmp_path, "all.yaml", "\n".join(lines)), *needed], schema)
    assert config == plain


def test_render_shows_origin_of_set_values_only(tmp_path):
    file = write(tmp_path, "run.yaml", "actor:\n  lr: 0.5\n  ppo_epochs: 1\n")
    config, flags = resolve(["--config", file, "env.kwargs.x=1"])
    marked = [line.strip() for line in render(config, flags.sources).splitlines()[1:] if "(default" in line]
    assert marked == ["kwargs: {x: 1}  # command line (default {})", f"lr: 0.5  # {file}:2 (default 0.0001)"]


def test_help_and_dry_run_exit_codes(capsys):
    with pytest.raises(SystemExit) as ended:
        load_config(["--help"], schema=SFTConfig, usage="python -m trainers.sft")
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "usage: python -m trainers.sft" in out

    with pytest.raises(SystemExit) as ended:
        load_config(["actor.lr=0.5", "--dry-run"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert yaml.load(out, Loader)["actor"]["lr"] == 0.5

    config, flags = load_config(["actor.lr=0.5"])
    assert (config.actor.lr, flags.sources) == (0.5, {"actor.lr": "command line"})


def test_reference_pages_are_up_to_date():
    """Run `make docs-pages` when this fails."""
    made = runpy.run_path(str(ROOT / "scripts" / "config_pages.py"), run_name="pages")
    configuration, verl = (
        (ROOT / "docs" / name).read_text("utf-8") for name in ("configuration.md", "coming-from-verl.md")
    )
    assert made["markdown"](made["COMMANDS"]) == configuration
    assert made["verl_page"](verl.partition("| verl's key")[0]) == verl
