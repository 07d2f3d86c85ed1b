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
    ("argument", "message"),
    [
        ("actor.lrr=1", "actor.lrr: unknown key; did you mean actor.lr?"),
        ("actr.lr=1", "did you mean actor.lr"),
        ("adv_estimator=grpo", "did you mean algorithm.adv_estimator?"),
        ("rollout.max_respons_length=3", "did you mean rollout.max_response_length?"),
        ("qqqq=1", "qqqq: unknown key  [command line]"),
        ("actor=5", "is a section, not a key; it has actor.lr"),
        ("actor.lr.x=1", "actor.lr is a value (a number > 0)"),
        ("actor.lr=fast", "actor.lr: fast is not allowed; it must be a number > 0"),
        ("actor.lr=0", "actor.lr: 0 is not allowed; it must be a number > 0"),
        ("actor.lr=.inf", "it must be a number > 0"),
        ("actor.lr=true", "it must be a number > 0"),
        ("rollout.n=2.0", "it must be an integer >= 1"),
        ("rollout.top_p=1.5", "it must be a number > 0 and <= 1"),
        ("trainer.test_freq=0", "it must be -1, or an integer >= 1"),
        ("trainer.logger=[console, swanlab]", "[console, swanlab] is not allowed; it must be one of console, jsonl"),
        ("actor.betas=[0.9]", "[0.9] is not allowed; it must be a list of 2: a number >= 0 and < 1; a number >= 0"),
        ("actor.betas=[0.9, 1]", "[0.9, 1] is not allowed; it must be a list of 2"),
        ("algorithm.adv_estimator=ppo", "one of gae, turn_gae, bilevel_gae, grpo"),
        ("env.kwargs=5", "env.kwargs: 5 is not allowed; it must be a mapping"),
        ("engine.name=[vllm]", "engine.name: [vllm] is not allowed; it must be one of torch, vllm, sglang"),
        ("reward_models.a.kind={}", "reward_models.a.kind: {} is not allowed; it must be one of classifier"),
        ("reward_models.a=judge", "reward_models.a: judge is not allowed; it must be a mapping of keys to values"),
        ("env.mixture={a: 3}", "env.mixture.a: 3 is not allowed; it must be a mapping of keys to values"),
        ("reward_models={null: {weight: 2}}", "reward_models..weight: a name in it is empty or null"),
        ("env.mixture={'': {}}", "env.mixture.: a name in it is empty or null"),
        ("reward_models.a.name=null", "reward_models.a.name: null is not allowed; it must be text like"),
        ("reward_models.kind=judge", "the entry's NAME is missing: it is reward_models.NAME.kind"),
        ("reward_models.judge.model=x", "the entry's NAME is missing: it is reward_models.NAME.judge.model"),
        ("env.mixture.kwargs.level=easy", "the entry's NAME is missing: it is env.mixture.NAME.kwargs.level"),
        ("algorithm.gamma=null", "algorithm.gamma: null is not allowed; it must be a number >= 0 and <= 1"),
        ("env.kwargs={a: ", "is not YAML"),
        ("env.kwargs={a: 1, a: 2}", "'a' stands twice"),
        ("actor", "expected key=value, --config FILE, --dry-run [--plan-for GPUS@GIB] or --help"),
        ("--verbose", "expected key=value, --config FILE, --dry-run [--plan-for GPUS@GIB] or --help"),
        ("--config", "needs a value after it"),
        ("--config=nowhere.yaml", "nowhere.yaml: no such file"),
        ("data.train_files=nowhere.jsonl", "data.train_files: there is no file nowhere.jsonl"),
        ("data.val_files=pyproject.toml", "neither .jsonl nor .parquet"),
        ("model.path=nowhere", "model.path: nowhere is not a folder with a config.json"),
        ("model.hidden=100", "model.hidden: is 100; it must be a multiple of 2 * model.heads = 8"),
        ("model.kv_heads=3", "which does not divide model.heads=4"),
        ("rollout.window=2", "rollout.window: is 2; with rollout.staleness=0"),
        ("rollout.max_response_length=512", "leaves no room for a prompt"),
        ("actor.mini_batches=129", "a batch has only 128 episodes"),
        ("actor.max_tokens_per_micro_batch=511", "the longest episode"),
        ("trainer.resume_mode=resume_path", "trainer.resume_from_path: must be given with"),
        ("trainer.resume_from_path=tests", "has no effect without trainer.resume_mode=resume_path"),
        ("engine.name=vlm", "it must be one of torch, vllm, sglang"),
        ("engine.vllm.pyhton=x", "did you mean engine.vllm.python?"),
        ("engine.vllm.python=x", "engine.vllm.python: has no effect without engine.name=vllm"),
        ("engine.sglang.seeds=false", "engine.sglang.seeds: has no effect without engine.name=sglang"),
        ("engine.vllm.block_size=32", "engine.vllm.block_size: has no effect without engine.name=vllm"),
        ("rollout.temperature=1e-6", "with engine.name=torch it is at least 1e-05"),
        ("validation.temperature=1e-6", "it is at least 1e-05, or 0, which is greedy"),
        ("algorithm.turn_gamma=0.5", "has no effect without algorithm.adv_estimator=bilevel_gae"),
        ("algorithm.anchor=history", "without algorithm.adv_estimator=gigpo"),
        ("actor.policy_loss=gspo", "algorithm.adv_estimator=turn_grpo gives turns or tokens their own"),
        ("actor.policy_loss=geo_mean", "geo_mean spreads each advantage over its whole episode"),
        ("actor.tau_neg=2", "actor.tau_neg: has no effect without actor.policy_loss=sapo"),
        ("actor.clip_cov_ub=2", "actor.clip_cov_ub: has no effect without actor.policy_loss=clip_cov"),
        ("actor.ppo_kl_coef=2", "actor.ppo_kl_coef: has no effect without actor.policy_loss=kl_cov"),
        ("actor.rejection=token", "needs actor.old_logprobs=recompute"),
        ("actor.importance_correction=decoupled", "needs actor.old_logprobs=recompute"),
        ("actor.rejection_high=2", "has no effect with actor.rejection=none"),
        ("actor.rejection_kl=2", "has no effect with actor.rejection=none"),
        ("actor.importance_batch_normalize=true", "has no effect with actor.importance_correction=none"),
        ("actor.tis_cap=3", "has no effect with actor.importance_correction=none"),
        ("algorithm.reward_credit=sideways", "must be one of as_earned, last, spread, discounted, or FILE.py:FUNCTION"),
        ("algorithm.reward_credit=none/there.py:f", "there is no file none/there.py"),
        ("algorithm.reward_credit=tests/conftest.py:nobody", "tests/conftest.py has no function nobody"),
        ("algorithm.reward_credit=README.md:f", "README.md cannot be read as Python"),
        ("algorithm.reward_credit_decay=0.5", "has no effect without algorithm.reward_credit=discounted"),
        ("algorithm.lam=0.5", "has no effect with algorithm.adv_estimator=turn_grpo; it is read with gae, turn_gae"),
    ],
)
def test_error_names_key_value_and_allowed(argument, message, monkeypatch):
    monkeypatch.chdir(ROOT)
    (line,) = problems(argument)
    assert message in line
    assert line.endswith("[command line]") or line.startswith("trainer.resume_from_path: must")  # it was not written


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


def test_conflict_names_key_to_change():
    lines = problems(
        "rollout.n=1", "algorithm.adv_estimator=grpo", "rollout.filter_zero_variance=true", "actor.lr=1e-3"
    )
    assert [line.partition(":")[0] for line in lines] == ["rollout.n", "rollout.n"]
    (line,) = problems("model.path=pyproject.toml", "model.hidden=64")
    assert "model.hidden: has no effect without model.path=tiny" in line


VLLM = "engine.name=vllm engine.vllm.args"
MASK = "rollout.keep_sampling_mask=true rollout.top_k=50"
OVERLONG = "overlong_buffer.enable=true overlong_buffer.len=8"
GDPO = "algorithm.adv_estimator=gdpo"
THERE = "engine.threads=2 engine.{}.base_url=http://127.0.0.1:8000"
ADAPTIVE = "algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=adaptive"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("algorithm.adv_estimator=gae critic.warmup=120", "critic.warmup: is 120: the policy would not be trained"),
        ("trainer.rollout_data_dir=a trainer.validation_data_dir=./a", "trainer.validation_data_dir: is trainer.roll"),
        (f"{ADAPTIVE} algorithm.kl_ctrl.kl_coef=0", "algorithm.kl_ctrl.kl_coef: is 0, and"),
        (f"{ADAPTIVE} algorithm.kl_ctrl.horizon=25.6", "algorithm.kl_ctrl.horizon: is 25.6; with 128 episodes a batch"),
        ("algorithm.adv_estimator=passk rollout.n=4", "algorithm.pass_k: is 4; it must be below rollout.n=4"),
        (
            f"{GDPO} algorithm.gdpo_reward_weights=[1]",
            "algorithm.gdpo_reward_weights: needs algorithm.gdpo_reward_keys",
        ),
        (
            "actor.old_logprobs=recompute actor.rejection=token_k3",
            "actor.rejection_kl: is null; actor.rejection=token_k3",
        ),
        (
            "actor.old_logprobs=recompute actor.rejection=token_k2 actor.rejection_kl=1 actor.rejection_low=0.1",
            "actor.rejection_low: has no effect with actor.rejection=token_k2",
        ),
        (f"{GDPO} algorithm.gdpo_reward_keys=[a,a]", "algorithm.gdpo_reward_keys: names a term twice"),
        (f"{GDPO} algorithm.use_kl_in_reward=true", "algorithm.use_kl_in_reward: has no effect with gdpo"),
        (f"{GDPO} algorithm.norm_adv=true", "algorithm.norm_adv: has no effect with algorithm.adv_estimator=gdpo"),
        (f"{GDPO} algorithm.reward_credit=spread", "algorithm.reward_credit: has no effect with algorithm.adv_estim"),
        (
            "algorithm.gdpo_reward_keys=[a]",
            "algorithm.gdpo_reward_keys: has no effect without algorithm.adv_estimator=g",
        ),
        (
            "rollout.keep_sampling_mask=true",
            "rollout.top_k: is 0; rollout.keep_sampling_mask=true needs it from 1 to 1024",
        ),
        (
            f"{MASK} rollout.top_k=1025",
            "rollout.top_k: is 1025; rollout.keep_sampling_mask=true needs it from 1 to 1024",
        ),
        (f"{MASK} engine.name=vllm", "rollout.keep_sampling_mask: needs engine.name=torch"),
        (f"engine.name=vllm {THERE.format('vllm')}", "engine.threads: has no effect with engine.vllm.base_url="),
        (f"engine.name=sglang {THERE.format('sglang')}", "engine.threads: has no effect with engine.sglang.base_url="),
        ("overlong_buffer.len=8", "overlong_buffer.len: has no effect without overlong_buffer.enable=true"),
        (f"{OVERLONG} rollout.max_response_tokens=null", "rollout.max_response_tokens: is null; overlong_buf"),
        (f"{OVERLONG} rollout.max_response_tokens=7", "overlong_buffer.len: is 8; it is at most rollout.max_response"),
        (
            f"{OVERLONG} rollout.max_response_tokens=8 multiturn_reward.enable=true algorithm.gamma=0",
            "overlong_buffer.enable: would charge the last turn alone",
        ),
        (
            "multiturn_reward.enable=true multiturn_reward.replace=false algorithm.gamma=0",
            "multiturn_reward.replace: is false, and what the environment pays counts: a score of the whole",
        ),
        ("actor.policy_loss=sapo actor.clip_ratio_high=0.1", "actor.clip_ratio_high: has no effect with actor.policy_"),
        ("actor.policy_loss=sapo actor.clip_ratio_c=3", "actor.clip_ratio_c: has no effect with actor.policy_loss=sap"),
        ("actor.policy_loss=clip_cov actor.clip_cov_lb=5", "actor.clip_cov_lb: is 5; it must be below actor.clip_cov"),
        ("critic.lr=0.1", "critic.lr: has no effect with algorithm.adv_estimator=turn_grpo"),
        ("actor.kl_loss_coef=0.1", "actor.kl_loss_coef: has no effect without actor.use_kl_loss=true"),
        ("actor.kl_loss_type=k1", "actor.kl_loss_type: has no effect without actor.use_kl_loss=true"),
        ("algorithm.kl_penalty=k3", "algorithm.kl_penalty: has no effect without algorithm.use_kl_in_reward=true or"),
        ("rollout.max_consecutive_filtered=9", "rollout.max_consecutive_filtered: has no effect without rollout.fil"),
        ("cluster.start_timeout_s=9", "cluster.start_timeout_s: has no effect without cluster.backend=ray or env.back"),
        ("algorithm.kl_ctrl.horizon=5", "algorithm.kl_ctrl.horizon: has no effect without algorithm.use_kl_in_reward"),
        ("trainer.profile_steps=[3,121]", "trainer.profile_steps: has 121, and there are trainer.total_iterations=120"),
        (
            "model.path=. warm_start.steps=3",
            "warm_start.steps: has no effect without model.path=tiny or warm_start.enable",
        ),
        ("warm_start.files=a.jsonl warm_start.mistake_rate=0", "warm_start.mistake_rate: has no effect with warm_sta"),
        (f"{VLLM}.tensor_parallel_size=1", f"{VLLM[17:]}.tensor_parallel_size: give engine.tensor_parallel_size"),
        (f"{VLLM}.max_num_seqs=4", f"{VLLM[17:]}.max_num_seqs: is decided by other options"),
    ],
)
def test_ineffective_or_late_failing_keys_are_refused(arguments, message):
    (line,) = problems(*arguments.split(" "))
    assert line.startswith(message)


def test_losses_and_estimators_must_suit_each_other():
    corrected = ("actor.old_logprobs=recompute", "actor.importance_correction=token_tis", "actor.rejection=token")
    for loss in ("gspo", "geo_mean"):
        lines = problems(
            f"actor.policy_loss={loss}", "algorithm.adv_estimator=rloo", "actor.clip_ratio_c=3", *corrected
        )
        assert [line.partition(":")[0] for line in lines] == [
            *("actor.clip_ratio_c", "actor.importance_correction", "actor.rejection")
        ]
    (line,) = problems("algorithm.adv_estimator=reinforce_pp", "algorithm.norm_adv=true")
    assert "algorithm.norm_adv: has no effect with algorithm.adv_estimator=reinforce_pp" in line
    for estimator in ("grpo", "dr_grpo", "opo", "gdpo", "grpo_passk", "passk", "reinforce_pp_baseline", "gigpo"):
        (line,) = problems("rollout.n=1", f"algorithm.adv_estimator={estimator}")
        assert "one alone teaches nothing" in line
    load_config(["rollout.n=1", "algorithm.adv_estimator=remax", "rollout.filter_zero_variance=true"])


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


def test_key_of_another_command_is_unknown():
    (line,) = problems("rollout.n=3", schema=SFTConfig)
    assert "rollout.n: unknown key" in line


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


@pytest.mark.parametrize(
    ("chosen", "warned"),
    [
        (["as_earned"], False),
        (["last"], False),
        (["spread"], True),
        (["discounted"], True),
        (["discounted", "algorithm.reward_credit_decay=0"], False),
    ],
)
def test_misleading_reward_credit_is_warned_about(capsys, chosen, warned):
    name, *overrides = chosen
    arguments = [f"algorithm.reward_credit={name}", *overrides]
    load_config(arguments)
    output = capsys.readouterr().err
    assert (f"algorithm.reward_credit={name} learns another policy" in output) == warned == bool(output)
    with pytest.raises(SystemExit):
        load_config([*arguments, "--dry-run"])
    assert ("# warning" in capsys.readouterr().out) == warned


def test_help_dry_run_and_error_exit_codes(capsys):
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

    with pytest.raises(SystemExit) as ended:
        load_config(["actor.lrr=0.5", "--dry-run"])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert "actor.lr?" in captured.err

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
