"""Commands of verl's own examples resolve, and mean here what they mean there."""

import contextlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainers.algorithms.kl import kl_estimate
from trainers.command_line import ConfigError, resolve
from trainers.compat.verl.rules import TABLES
from trainers.config import PPOConfig
from trainers.config.commands import EvaluateConfig, GenerateConfig
from trainers.config.describe import all_keys
from trainers.config.yaml12 import dump
from trainers.update import off_policy_correction

DATA = Path(__file__).resolve().parents[2] / "data"
COMMANDS = yaml.safe_load((DATA / "verl_commands.yaml").read_text(encoding="utf-8"))
SCHEMAS = {"ppo": PPOConfig, "generate": GenerateConfig, "evaluate": EvaluateConfig}


def key_of(argument):
    return argument.partition("=")[0].lstrip("+")


def corrected(arguments, refused):
    """The command with what the data file says to write instead."""
    for argument in arguments:
        if key_of(argument) not in refused:
            yield argument
        elif (value := refused[key_of(argument)]) is not None:
            yield f"{argument.partition('=')[0]}={value}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command["script"].replace("examples/", ""))
def test_verl_examples_resolve_or_are_refused_with_advice(inside, command):
    arguments, refused = shlex.split(command["arguments"]), command.get("refused", {})
    schema, keys = SCHEMAS[command["command"]], {key_of(argument) for argument in arguments}
    if refused:
        with pytest.raises(ConfigError) as caught:
            resolve([*arguments, *command.get("add", ())], schema)
        named = [{problem.key.lstrip("+"), *problem.where.split(", ")} & keys for problem in caught.value.problems]
        prefixed = {f"actor_rollout_ref.{problem.key}" for problem in caught.value.problems} & keys
        assert set().union(*named) | prefixed == set(refused)
    config, flags = resolve([*corrected(arguments, refused), *command.get("add", ())], schema)
    assert isinstance(config, schema)
    own = all_keys(schema)
    for key in keys - set(refused) - {"--config-path"}:
        name = key.removeprefix("actor_rollout_ref.") if schema is GenerateConfig else key
        answered = any(re.search(rf"(^|, ){re.escape(name)}( ->|:|,|=)", note) for note in flags.notes)
        assert answered or name in own, key


# --- every key


def leaves(tree, prefix=""):
    """Dotted keys and values of a nested mapping."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


DEFAULTS = {
    key: value
    for version in yaml.safe_load((DATA / "verl_defaults.yaml").read_text(encoding="utf-8")).values()
    for key, value in leaves(version)
}
#: Where a run is and what it is called: a command that leaves these out has this project's defaults.
PLACES = ("model.device", "model.use_remove_padding", "engine.", "cluster.", "trainer.")


@pytest.mark.parametrize("estimator", ["gae", "grpo", "reinforce_plus_plus", "rloo", "opo"])
def test_verls_defaults_written_out_change_nothing(inside, estimator):
    """Each key of verl's configuration is known, and at its default it means what leaving it out means."""
    base = [f"algorithm.adv_estimator={estimator}", "algorithm.norm_adv_by_std_in_grpo=True"]
    base += ["actor_rollout_ref.rollout.n=4", "data.train_batch_size=1024", "actor_rollout_ref.rollout.name=sglang"]
    written = [f"{key}={dump(value)}" for key, value in DEFAULTS.items()]
    left_out, written_out = (dict(leaves(command(*extra, *base).model_dump())) for extra in ((), written))
    assert {key for key in left_out if left_out[key] != written_out[key] and not key.startswith(PLACES)} == set()


@given(st.data())
def test_no_verl_value_crashes(workplace, data):
    odd = [1, 0, -1, True, False, None, "text", "0.5_2", [1], [], {}, {"a": 1}, 0.5, 1e400, "${x}"]
    keys = st.sampled_from(sorted({*DEFAULTS, *TABLES[PPOConfig].rules}))
    pairs = data.draw(st.lists(st.tuples(keys, st.sampled_from(odd)), min_size=1, max_size=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace)
        with contextlib.suppress(ConfigError):
            command(*(f"{key.replace('*', 'any')}={dump(value)}" for key, value in pairs))


# --- what a command must become


def command(*extra_keys):
    """A whole command of verl's, with defaults for all else."""
    model = ["actor_rollout_ref.model.path=model", "data.train_files=train.parquet", "data.train_batch_size=16"]
    return resolve([*model, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", *extra_keys])[0]


#: Arguments behind `command()`'s, and words of their only problem; `ACTOR.` and other names stand for sections.
REFUSED = r"""
ACTOR.ppo_mini_batch_size=5 -> is 5, which does not divide data.train_batch_size=16
data.train_batch_size=0 -> data.train_batch_size: is 0; it must be an integer >= 1
data.train_batch_sze=1 -> did you mean data.train_batch_size
data.truncation=left -> a prompt is never cut: write error, or leave long ones out
trainer.nnodes=0 -> trainer.nnodes: is 0; it must be an integer >= 1
trainer.n_gpus_per_node=-1 -> must be an integer >= 1
trainer.logger=[console,swanlab] -> must be one of console
global_profiler.tool=npu -> profilers are torch and nsys
actor_rollout_ref.model.path=${model} -> write the value
ACTOR.optim.lrr=1 -> unknown key; did you mean actor_rollout_ref.actor.optim.lr
ACTOR.optim.lr=fast -> actor.lr: fast is not allowed; it must be a number > 0
CRITIC critic.model.path=other -> another model than the actor's
CRITIC ACTOR.ppo_mini_batch_size=4 critic.ppo_mini_batch_size=8 -> the critic's is the actor's: write 4
ROLLOUT.name=tgi -> it must be one of vllm
ROLLOUT.do_sample=False -> false is unsupported: training always samples; leave it at true
ROLLOUT.agent.default_agent_loop=mine -> known are single_turn_agent
ROLLOUT.name=vllm ROLLOUT.tensor_model_parallel_size=3 FOUR -> 4 GPUs, which engines of 3 do not share
ROLLOUT.multi_turn.tool_config_path=tools/search_tool_config.yaml -> Name the environment with env.id
TOOL ROLLOUT.multi_turn.interaction_config_path=interaction.yaml -> is another environment
ROLLOUT.multi_turn.interaction_config_path=nowhere.yaml -> nowhere.yaml: no such file
ROLLOUT.multi_turn.interaction_config_path=score.py -> needs a list 'interaction'
ROLLOUT.multi_turn.interaction_config_path=weather.yaml -> known are Gsm8kInteraction
CORRECTION.rollout_rs=token_k1,seq_max_k2 CORRECTION.rollout_rs_threshold=2 -> it must be null or one of token, sequence
CORRECTION.rollout_rs=token_k1 -> rollout_rs_threshold: must be given with rollout_rs=token_k1
CORRECTION.rollout_rs=token CORRECTION.rollout_rs_threshold=0.5_2 -> it must be a number
CORRECTION.rollout_rs=token_k1 CORRECTION.rollout_rs_threshold=0_2 -> it must be a positive number
CORRECTION.rollout_rs=token CORRECTION.rollout_rs_threshold=2 CORRECTION.bypass_mode=true -> write bypass_mode=false
CORRECTION.rollout_is=token CORRECTION.rollout_is_threshold=0.5_2 -> write the upper one
CORRECTION.loss_type=reinforce CORRECTION.bypass_mode=true -> write ppo_clip
POOL reward_model.n_gpus_per_node=0 -> reward_model.n_gpus_per_node: is 0
POOL reward_model.nnodes=null -> reward_model.nnodes: must be given with
DAPO +reward.reward_kwargs.max_resp_len=400 -> the penalty ends at data.max_response_length here: write that
--config-path=config --config-name=none -> there is no file config/none.yaml: give its folder
--config-name=ppo_megatron_trainer.yaml -> ppo_megatron_trainer is unsupported: FSDP2 trains here
--config-path=config --config-name=megatron -> leave it at [ppo_trainer, _self_]
--config-name -> needs a value after it
"""
SECTIONS = {
    "ACTOR": "actor_rollout_ref.actor",
    "ROLLOUT": "actor_rollout_ref.rollout",
    "CRITIC": "algorithm.adv_estimator=gae",
    "CORRECTION": "algorithm.rollout_correction",
    "FOUR": "trainer.n_gpus_per_node=4 trainer.nnodes=1",
    "TOOL": "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools/gsm8k_tool_config.yaml",
    "POOL": "reward_model.enable_resource_pool=True reward_model.n_gpus_per_node=1 reward_model.nnodes=1",
    "DAPO": "reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=128 "
    "reward_model.reward_manager=dapo",
}


@pytest.mark.parametrize("line", REFUSED.strip().splitlines(), ids=lambda line: line.partition("=")[0])
def test_refusal_names_verls_key_and_reason(inside, line):
    arguments, _, message = line.partition(" -> ")
    for name, section in SECTIONS.items():
        arguments = re.sub(rf"\b{name}\b", section, arguments)
    with pytest.raises(ConfigError) as caught:
        command(*arguments.split())
    problem, *_ = caught.value.problems
    assert message in str(problem)


_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
_CORRECTION = "algorithm.rollout_correction."
_FOUR = ("trainer.n_gpus_per_node=4", "trainer.nnodes=1")


@pytest.mark.parametrize("explicit", [(), (f"{_ACTOR}clip_ratio_c=3.0", f"{_ACTOR}loss_agg_mode=token-mean")])
@pytest.mark.parametrize(
    ("verl_loss", "expected", "dual", "aggregation"),
    [
        ("vanilla", "ppo", 3.0, "token-mean"),
        ("gspo", "gspo_token", None, "seq-mean-token-mean"),
        ("cispo", "cispo", None, "token-mean"),
        ("geo_mean", "geo_mean", None, "seq-mean-token-mean"),
        ("sapo", "sapo", None, "seq-mean-token-mean"),
        ("dppo_tv", "dppo_tv", 3.0, "token-mean"),
        ("dppo_kl", "dppo_kl", 3.0, "token-mean"),
        ("clip_cov", "clip_cov", None, "token-mean"),
        ("kl_cov", "kl_cov", None, "token-mean"),
    ],
)
def test_loss_beside_verls_defaults(inside, verl_loss, expected, dual, aggregation, explicit):
    actor = command(f"{_ACTOR}policy_loss.loss_mode={verl_loss}", *explicit).actor
    assert (actor.policy_loss, getattr(actor, "clip_ratio_c", None), actor.loss_agg_mode) == (
        expected,
        dual,
        aggregation,
    )


def test_unreachable_lower_clip_is_no_limit(inside):
    actor = command(f"{_ACTOR}policy_loss.loss_mode=cispo", f"{_ACTOR}clip_ratio_low=10").actor
    assert actor.clip_ratio_low == 1.0


def verls_kl(logprobs, reference, kind):
    """verl's estimates from their formulas; with a ``+`` the value is kept, and the gradient is that of k2."""
    gap = reference - logprobs
    k3 = (gap.clamp(-20, 20).exp() - gap.clamp(-20, 20) - 1).clamp(-10, 10)
    k2 = 0.5 * gap.square()
    value = {"kl": -gap, "k1": -gap, "abs": gap.abs(), "mse": k2, "k2": k2, "k3": k3, "low_var_kl": k3}[
        kind.rstrip("+")
    ]
    return k2 - k2.detach() + value.detach() if kind.endswith("+") else value


@pytest.mark.parametrize("plus", ["", "+"])
@pytest.mark.parametrize("kind", ["kl", "k1", "abs", "mse", "k2", "k3", "low_var_kl"])
def test_kl_estimators_match_verl_value_and_gradient(inside, kind, plus):
    penalty = command("algorithm.use_kl_in_reward=True", f"algorithm.kl_penalty={kind}{plus}").algorithm.kl_penalty
    loss = command(f"{_ACTOR}use_kl_loss=True", f"{_ACTOR}kl_loss_type={kind}{plus}").actor.kl_loss_type
    reference = torch.zeros(5, dtype=torch.float64)
    gradients = []
    for estimate in (lambda x: verls_kl(x, reference, kind + plus), lambda x: kl_estimate(x, reference, loss)):
        logprobs = torch.tensor([-4.0, -1.0, -0.1, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
        gradients += torch.autograd.grad(estimate(logprobs).sum(), logprobs)
    assert torch.allclose(*gradients)
    far = logprobs.detach()
    assert torch.allclose(verls_kl(far, reference, kind + plus), kl_estimate(far, reference, penalty))


def verl_keeps(log_ratio, lengths, criterion, low, high):
    """verl's criteria of the tokens of a batch: k1 is log(engine / learner), the older names are learner / engine."""
    episodes = np.split(log_ratio, np.cumsum(lengths)[:-1])
    masks = []
    for one in episodes:
        k1, k2, k3 = -one, 0.5 * one**2, np.exp(one) - 1 - one
        statistic = {
            "token": one, "sequence": one.sum(), "geometric": one.mean(),
            "token_k1": k1, "seq_sum_k1": k1.sum(), "seq_mean_k1": k1.mean(),
            "token_k3": k3, "seq_sum_k2": k2.sum(), "seq_mean_k3": k3.mean(), "seq_max_k2": k2.max(),
        }[criterion]  # fmt: skip
        band = (-1.0, high) if criterion.endswith(("k2", "k3")) else (np.log(low), np.log(high))
        masks.append(np.broadcast_to((statistic >= band[0]) & (statistic <= band[1]), one.shape))
    return np.concatenate(masks)


_BANDS = {
    **dict.fromkeys(("token", "sequence", "geometric"), ("rollout_rs_threshold=1.3", "rollout_rs_threshold_lower=0.9")),
    **dict.fromkeys(("token_k1", "seq_sum_k1", "seq_mean_k1"), ("rollout_rs_threshold=0.9_1.3",)),
    **dict.fromkeys(("token_k3", "seq_sum_k2", "seq_mean_k3", "seq_max_k2"), ("rollout_rs_threshold=1.3",)),
}


@pytest.fixture(scope="module")
def rejecting(workplace):
    """By criterion, the section of a run that rejects by it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace)
        return {
            criterion: command(*(f"{_CORRECTION}{suffix}" for suffix in (f"rollout_rs={criterion}", *band))).actor
            for criterion, band in _BANDS.items()
        }


@given(st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=4), min_size=1, max_size=4))
def test_rejection_keeps_what_verl_keeps(rejecting, episodes):
    log_ratio, lengths = np.array(sum(episodes, [])), [len(one) for one in episodes]
    for criterion, actor in rejecting.items():
        _, mask, _ = off_policy_correction(actor, log_ratio, 0 * log_ratio, np.cumsum([0, *lengths]))
        assert (mask == verl_keeps(log_ratio, lengths, criterion, 0.9, 1.3)).all(), criterion


def test_default_corrections_change_nothing(inside):
    neutral = ["rollout_is=null", "rollout_is_threshold=5.0", "rollout_rs=null", "rollout_rs_threshold=1.01"]
    neutral += ["rollout_is_batch_normalize=false", "loss_type=ppo_clip", "rollout_token_veto_threshold=null"]
    assert command(*(f"{_CORRECTION}{suffix}" for suffix in neutral)) == command()


def test_weights_of_verls_correction(inside):
    keys = ["rollout_is=sequence", "rollout_is_threshold=3", "rollout_is_batch_normalize=true"]
    actor = command(*(f"{_CORRECTION}{suffix}" for suffix in keys)).actor
    assert (actor.importance_correction, actor.tis_cap, actor.importance_batch_normalize) == ("sequence_tis", 3, True)
    actor = command(*(f"{_CORRECTION}{suffix}" for suffix in [*keys, "bypass_mode=true"])).actor
    assert (actor.old_logprobs, actor.importance_correction, actor.tis_cap) == ("rollout", "none", 2)


def test_engines_are_split_and_replicated_over_gpus(inside):
    parallel = f"{_ROLLOUT}tensor_model_parallel_size"
    for name in ("vllm", "sglang"):
        one, two = (command(f"{_ROLLOUT}name={name}", f"{parallel}={size}", *_FOUR).engine for size in (1, 2))
        assert (one.tensor_parallel_size, one.replicas) == (1, 4)
        assert (two.tensor_parallel_size, two.replicas) == (2, 2)
    embedded = command(f"{_ROLLOUT}name=hf", f"{parallel}=2", *_FOUR).engine
    assert (embedded.gpus, embedded.replicas) == (1, 4), "it is not split"


def test_sglang_options_become_server_args(inside):
    own = f"{_ROLLOUT}engine_kwargs.sglang."
    options = [f"{own}attention_backend=triton", f"+{own}enable_dp_attention=False", f"{own}log_level=null"]
    config = command(f"{_ROLLOUT}name=sglang", *options, f"{own}enable_metrics=True")
    assert config.engine.sglang.server_args == ("--attention-backend", "triton", "--enable-metrics")


def test_micro_batch_budget_counts_sequence_ranks(inside):
    extra_keys = [f"{_ACTOR}use_dynamic_bsz=True", f"{_ACTOR}ppo_max_token_len_per_gpu=700"]
    config = command(*extra_keys, f"{_ACTOR}ulysses_sequence_parallel_size=2", "trainer.n_gpus_per_node=2")
    assert config.actor.max_tokens_per_micro_batch == 1400


def test_tools_and_interactions_name_environment(inside):
    tools = f"{_ROLLOUT}multi_turn.tool_config_path"
    gsm8k = f"{tools}=tools/gsm8k_tool_config.yaml"
    config = command(gsm8k, f"{_ROLLOUT}multi_turn.max_assistant_turns=5")
    assert (config.env.id, config.env.kwargs) == ("textenv/gsm8k-tool", {"max_assistant_turns": 5})
    config = command(f"{tools}=nowhere.yaml", "env.id=textenv/search-qa")
    assert config.env.id == "textenv/search-qa"
    limited = command(f"{_ROLLOUT}multi_turn.max_assistant_turns=5").env
    assert (limited.id, limited.kwargs) == ("textenv/gsm8k", {}), "its one turn needs no limit"


@pytest.mark.parametrize(
    "flags", [("--config-path=config", "--config-name=base"), ("-cp", "config", "-cn", "base.yaml")]
)
def test_command_line_overrides_hydra_config_file(workplace, inside, flags):
    text = (
        "defaults: [ppo_trainer, _self_]\ndata: {train_batch_size: 8}\nactor_rollout_ref: {actor: {entropy_coeff: 0.5}}"
    )
    (workplace / "config" / "base.yaml").write_text(text)
    config = command(*flags)
    assert (config.rollout.groups_per_batch, config.actor.entropy_coeff) == (16, 0.5)
    assert command("--config-name=ppo_trainer") == command()


def test_adapter_defaults_rank_and_alpha_to_saved(inside):
    model = command("actor_rollout_ref.model.lora_adapter_path=adapter").model
    assert (model.lora_adapter_path, model.lora_rank, model.lora_alpha) == ("adapter", 8, 16)


def test_unread_keys_become_notes(inside):
    unread = ["actor_rollout_ref.model.lora_alpha=64", "algorithm.lam=0.95", "reward_model.num_workers=8"]
    assert command(*unread, "trainer.resume_from_path=x") == command()


def test_prompt_truncation_needs_overlong_filter(inside):
    assert command("data.truncation=left", "data.filter_overlong_prompts=True").data.longest_prompt == 512


@pytest.mark.parametrize("section", ["reward_model.overlong_buffer.", "+reward.reward_kwargs.overlong_buffer_cfg."])
def test_dapos_penalty_for_long_replies(inside, section):
    buffer_keys = [f"{section}enable=True", f"{section}len=128", f"{section}penalty_factor=0.5", f"{section}log=False"]
    assert not command(*buffer_keys).overlong_buffer.enable, "as there, another manager does not read it"
    dapo = [*buffer_keys, "reward_model.reward_manager=dapo"]
    buffer = command(*dapo, "+reward.reward_kwargs.max_resp_len=512").overlong_buffer
    assert (buffer.enable, buffer.len, buffer.penalty_factor) == (True, 128, 0.5)
    assert not command(*dapo, f"{section}enable=False").overlong_buffer.enable


def test_generation_of_newer_command(inside):
    arguments = [
        "actor_rollout_ref.model.path=model",
        "data.train_files=[test.parquet]",
        "+data.output_path=out.parquet",
    ]
    extra_keys = ["actor_rollout_ref.rollout.n=3", "actor_rollout_ref.rollout.response_length=7"]
    config, _ = resolve([*arguments, *extra_keys], GenerateConfig)
    assert (config.model.path, config.data.path, config.data.n_samples) == ("model", "test.parquet", 3)
    assert config.rollout.max_response_length == 7
    with pytest.raises(ConfigError, match="write one of them"):
        resolve([*arguments, *extra_keys, "data.n_samples=2"], GenerateConfig)
