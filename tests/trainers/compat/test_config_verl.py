"""verl's keys: its launch commands are accepted, each key is answered, and nothing changes in silence."""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest

from trainers import ppo
from trainers.command_line import ConfigError, load_config, render, resolve
from trainers.compat.verl.rules import TABLES
from trainers.compat.verl.translate import DEFAULT, translate
from trainers.config import PPOConfig
from trainers.config.commands import EvaluateConfig, GenerateConfig
from trainers.config.describe import all_keys
from trainers.config.settings import Setting

ROOT = Path(__file__).resolve().parents[3]


def words(command):
    """A command as its arguments."""
    return command.split()


#: Multi-turn GRPO with a simulated user, as it was published for 4 GPUs.
MULTI_TURN = words(
    """
    algorithm.adv_estimator=grpo data.train_batch_size=256 data.max_prompt_length=1024 data.max_response_length=1024
    data.filter_overlong_prompts=True data.truncation=error data.return_raw_chat=True
    actor_rollout_ref.model.path=model actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.actor.ppo_mini_batch_size=256
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.actor.fsdp_config.param_offload=False
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=sglang_async
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 actor_rollout_ref.rollout.n=16
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 actor_rollout_ref.ref.fsdp_config.param_offload=True
    algorithm.use_kl_in_reward=False trainer.critic_warmup=0 trainer.logger=[console,wandb]
    trainer.project_name=gsm8k_async_rl trainer.experiment_name=NAME trainer.n_gpus_per_node=4 trainer.nnodes=1
    trainer.save_freq=-1 trainer.test_freq=20 trainer.total_epochs=15
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8192
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=8192 critic.ppo_max_token_len_per_gpu=8192
    critic.forward_max_token_len_per_gpu=8192 data.train_files=train.parquet data.val_files=test.parquet
    actor_rollout_ref.rollout.multi_turn.interaction_config_path=interaction.yaml
    actor_rollout_ref.rollout.multi_turn.max_user_turns=1
"""
)

#: PPO with a critic on one GPU.
WITH_CRITIC = words(
    """
    data.train_batch_size=16 data.max_prompt_length=512 data.max_response_length=256 data.train_files=train.parquet
    data.val_files=test.parquet actor_rollout_ref.model.path=model actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.4
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 critic.optim.lr=1e-5 critic.model.path=model
    critic.ppo_micro_batch_size_per_gpu=4 algorithm.kl_ctrl.kl_coef=0.001 trainer.logger=console
    trainer.val_before_train=False trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.save_freq=10
    trainer.test_freq=10 trainer.total_epochs=3
"""
)

GENERATION = words(
    """
    trainer.nnodes=1 trainer.n_gpus_per_node=1 trainer.device=cpu data.path=test.parquet data.prompt_key=prompt
    data.n_samples=5 data.output_path=out.parquet data.batch_size=128 model.path=model model.external_lib=null
    rollout.name=vllm rollout.mode=sync rollout.temperature=1.0 rollout.top_k=50 rollout.top_p=0.7
    rollout.prompt_length=1536 rollout.response_length=512 rollout.dtype=bfloat16 rollout.gpu_memory_utilization=0.5
    rollout.ignore_eos=False rollout.enforce_eager=True rollout.free_cache_engine=True rollout.load_format=auto
    rollout.tensor_model_parallel_size=1 rollout.max_num_batched_tokens=8192 rollout.max_num_seqs=1024
    rollout.log_prob_micro_batch_size_per_gpu=8 rollout.do_sample=True rollout.disable_log_stats=True
    rollout.enable_chunked_prefill=True rollout.n=1 rollout.calculate_log_probs=False actor.strategy=fsdp
    actor.ulysses_sequence_parallel_size=1 actor.entropy_from_logits_with_chunking=False
    actor.entropy_checkpointing=False actor.fsdp_config.fsdp_size=-1 actor.fsdp_config.forward_prefetch=False
    ray_init.num_cpus=null
"""
)

EVALUATION = words(
    """
    data.path=test.parquet data.prompt_key=prompt data.response_key=responses data.data_source_key=data_source
    data.reward_model_key=reward_model custom_reward_function.path=score.py
    custom_reward_function.name=compute_score ray_init.num_cpus=4 ray_init.timeline_json_file=null
"""
)


def problems(*arguments, schema=PPOConfig):
    with pytest.raises(ConfigError) as caught:
        resolve(arguments, schema)
    assert isinstance(caught.value, ValueError)
    return [str(problem) for problem in caught.value.problems]


# --- whole commands


def test_multi_turn_command_plans_for_remote_machines(inside, capsys):
    """The model's folder has only a configuration and a tokenizer."""
    model = inside / "of-3b"
    shutil.copytree(inside / "model", model)
    (model / "model.safetensors").unlink()
    shape = {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16}
    shape |= {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768}
    written = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**written, **shape, "layer_types": None, "head_dim": 128}))
    command = [*MULTI_TURN, f"actor_rollout_ref.model.path={model}", "--dry-run", "--plan-for"]
    with pytest.raises(SystemExit, match="0"):
        ppo.main([*command, "4@80"])
    output = capsys.readouterr().out
    assert "# The plan: cluster.backend=ray, 1 x 4 GPUs." in output
    assert "# memory of each GPU of learner and engine in an iteration, estimated, in GiB; it has 80.0:" in output
    table = output[output.index("rolling out") :]
    assert re.search(r"engine: reserved keys and values( +37\.1){3}\n", table), "SGLang's half, less its weights"
    assert "peak" in table
    assert all(len(line) <= 100 for line in output.splitlines() if line.startswith("#   "))
    for machine, problem in (
        ("1@16", "cluster.n_gpus_per_node=4, but each machine of --plan-for has 1; at most that many do"),
        ("4@16", "learner and engine need at least 2"),
    ):
        with pytest.raises(SystemExit, match="2"):
            ppo.main([*command, machine])
        assert problem in capsys.readouterr().err


def test_multi_turn_command(inside):
    config, flags = resolve(MULTI_TURN)
    assert config.env.id == "textenv/gsm8k-interact"
    assert config.env.kwargs["max_user_turns"] == 1
    assert config.env.kwargs["max_assistant_turns"] is None, "no limit, as there"
    rollout = config.rollout
    assert (rollout.groups_per_batch, rollout.n, rollout.max_response_length) == (256, 16, 1024)
    assert rollout.max_response_tokens == 1024, "there the limit is of the whole episode"
    assert config.engine.name == "sglang"
    assert config.engine.max_context == 2048
    assert config.engine.sglang.server_args == ("--mem-fraction-static", "0.5")
    assert (config.engine.tensor_parallel_size, config.engine.replicas) == (2, 2), "engines on all four GPUs"
    actor = config.actor
    assert (actor.lr, actor.mini_batches, actor.entropy_coeff, actor.use_kl_loss) == (1e-6, 1, 0, True)
    assert actor.max_tokens_per_micro_batch == 32 * 2048
    assert config.algorithm.adv_estimator == "grpo"
    assert not config.algorithm.norm_adv
    assert config.trainer.total_iterations == 15 * (600 // 256)
    assert config.trainer.logger == ("console", "wandb")
    assert config.data.val_size == 20
    assert (config.cluster.n_gpus_per_node, config.cluster.learner_ranks) == (4, 4)
    answered(MULTI_TURN, PPOConfig, flags)


def test_command_with_critic(inside):
    config, flags = resolve(WITH_CRITIC)
    assert config.algorithm.adv_estimator == "gae", "verl's default"
    assert config.env.id == "textenv/gsm8k"
    assert (config.actor.mini_batches, config.actor.max_tokens_per_micro_batch) == (4, 4 * 768)
    assert (config.critic.lr, config.critic.weight_decay) == (1e-5, 0.01)
    assert config.trainer.total_iterations == 3 * (600 // 16)
    assert config.validation.temperature == 0.0
    assert flags.sources["actor.clip_ratio_high"] == DEFAULT
    answered(WITH_CRITIC, PPOConfig, flags)


def test_generation_and_evaluation_keys(inside):
    config, flags = resolve(GENERATION, GenerateConfig)
    assert (config.data.n_samples, config.rollout.top_k, config.engine.max_slots) == (5, 50, 1024)
    assert (config.engine.name, config.engine.vllm.enforce_eager) == ("vllm", True)
    assert config.engine.vllm.args["max_num_batched_tokens"] == 8192
    answered(GENERATION, GenerateConfig, flags)
    config, flags = resolve(EVALUATION, EvaluateConfig)
    assert config.custom_reward_function.workers == 4
    answered(EVALUATION, EvaluateConfig, flags)


def answered(command, schema, flags):
    """Each key of the command is one of ours, or stands in a line."""
    own = all_keys(schema)
    for key in (argument.partition("=")[0] for argument in command):
        assert key in own or any(re.search(rf"(^|, ){re.escape(key)}( ->|:|,)", note) for note in flags.notes), key


@pytest.mark.parametrize("command", [MULTI_TURN, WITH_CRITIC])
def test_dry_run_output_reads_back(inside, capsys, command, tmp_path):
    with pytest.raises(SystemExit) as ended:
        load_config([*command, "--dry-run"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "# actor_rollout_ref.actor.optim.lr -> actor.lr=" in out
    (tmp_path / "run.yaml").write_text(out)
    config, _ = resolve(["--config", str(tmp_path / "run.yaml")])
    assert config == resolve(command)[0]
    assert render(config).count("#") < out.count("#")


def test_unread_verl_keys_are_notes_native_errors(inside):
    extra_keys = ["critic.optim.lr=1e-5", "critic.cliprange_value=0.1", "algorithm.kl_ctrl.kl_coef=0.5"]
    command = [*MULTI_TURN, *extra_keys, "actor_rollout_ref.actor.use_kl_loss=False"]
    config, flags = resolve(command)
    assert (config.critic, config.algorithm.kl_ctrl) == (PPOConfig().critic, PPOConfig().algorithm.kl_ctrl)
    assert config.actor.kl_loss_type == PPOConfig().actor.kl_loss_type
    without = "has no effect with algorithm.adv_estimator=grpo; it is read with gae, turn_gae, bilevel_gae"
    for line in (
        f"critic.optim.lr: not used: critic.lr {without}",
        f"critic.cliprange_value: not used: it {without}",
        "algorithm.kl_ctrl.kl_coef: not used: it has no effect without algorithm.use_kl_in_reward=true",
    ):
        assert line in flags.notes
    answered(command, PPOConfig, flags)
    assert any("critic.lr: has no effect with" in line for line in problems(*command, "critic.lr=1e-4"))


ESTIMATORS = {
    *({"gae": "gae", "grpo": "grpo", "rloo": "rloo", "remax": "remax"}).items(),
    *TABLES[PPOConfig].rules["algorithm.adv_estimator"].words.items(),
}


@pytest.mark.parametrize(("estimator", "expected"), sorted(ESTIMATORS))
def test_whole_command_resolves_with_every_estimator(inside, estimator, expected):
    config = resolve([*MULTI_TURN, f"algorithm.adv_estimator={estimator}"])[0].algorithm
    assert (config.adv_estimator, getattr(config, "norm_adv", False)) == (expected, expected == "gae")


def test_later_of_native_and_verl_key_wins(inside):
    config, _ = resolve([*WITH_CRITIC, "actor.lr=0.5", "rollout.n=3", "trainer.total_iterations=2", "env.id=x"])
    assert (config.actor.lr, config.rollout.n, config.trainer.total_iterations, config.env.id) == (0.5, 3, 2, "x")
    config, _ = resolve(["actor.lr=0.5", "actor.weight_decay=0.5", "algorithm.norm_adv=false", *WITH_CRITIC])
    assert (config.actor.lr, config.actor.weight_decay) == (1e-6, 0.5), "a default never wins over what is written"
    assert not config.algorithm.norm_adv
    config, _ = resolve([*MULTI_TURN, "engine.name=torch"])
    assert config.engine.name == "torch", "the options of another engine are left out"


def test_single_key_brings_no_defaults():
    extra_keys = ["data.train_batch_size=4", "++trainer.max_actor_ckpt_to_keep=1", "algorithm.adv_estimator=gae"]
    config, _ = resolve(["trainer.critic_warmup=2", *extra_keys])
    assert (config.critic.warmup, config.rollout.groups_per_batch, config.trainer.keep_last_n) == (2, 4, 1)
    assert config.actor.weight_decay == PPOConfig().actor.weight_decay
    assert config.actor.mini_batches == PPOConfig().actor.mini_batches


def test_generation_starts_engines_for_its_gpus(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    def generating(*options):
        needed = ["data.path=x", "data.output_path=y", f"model.path={tmp_path}"]
        return resolve([*needed, *options], GenerateConfig)[0]

    cut = ["rollout.name=sglang", "rollout.tensor_model_parallel_size=2", "ray_init.num_cpus=5"]
    several = generating("trainer.nnodes=2", "trainer.n_gpus_per_node=4", *cut)
    assert (several.engine.replicas, several.cluster.backend) == (4, "ray")
    assert (several.cluster.nnodes, several.cluster.n_gpus_per_node, several.ray_init.num_cpus) == (2, 4, 5)
    one = generating("trainer.nnodes=1", "trainer.n_gpus_per_node=4", *cut)
    assert (one.engine.replicas, one.cluster.backend, one.ray_init.num_cpus) == (2, "local", None)
    with pytest.raises(ConfigError, match="3 GPUs, which engines of 2 do not share"):
        generating("trainer.nnodes=1", "trainer.n_gpus_per_node=3", *cut)


def test_nsight_merges_verl_defaults_and_given_options():
    worker = "global_profiler.global_tool_config.nsys.worker_nsight_options."
    profiler_keys = ["global_profiler.tool=nsys", "global_profiler.steps=[2]", "cluster.backend=ray"]
    config, _ = resolve([*profiler_keys, f"{worker}trace=cuda", f"{worker}cuda-memory-usage=null"])
    rest = {"cuda-graph-trace": "graph", "capture-range": "cudaProfilerApi", "kill": "none"}
    assert config.cluster.nsight == {"trace": "cuda", **rest}
    assert config.trainer.profile_steps == (2,)
    assert resolve(["global_profiler.tool=torch", "global_profiler.steps=[2]"])[0].cluster.nsight == {}
    assert (
        resolve(["trainer.worker_nsight_options.trace=nvtx", *profiler_keys[1:]])[0].cluster.nsight["trace"] == "nvtx"
    )


@pytest.mark.parametrize(("most", "rows", "train_size"), [("64", 64, 64), ("-1", 600, None), ("9999", 600, 9999)])
def test_epoch_rows_decide_iterations(inside, most, rows, train_size):
    config = resolve([*WITH_CRITIC, f"data.train_max_samples={most}", "critic.optim.betas=[0.5,0.6]"])[0]
    assert config.data.train_size == train_size
    assert config.trainer.total_iterations == 3 * (rows // 16)
    assert config.critic.betas == (0.5, 0.6)


def test_verl_reward_model_becomes_classifier(inside, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    reward_keys = [
        "max_length=99",
        "micro_batch_size_per_gpu=4",
        f"model.path={tmp_path}",
        "n_gpus_per_node=3",
        "nnodes=1",
    ]
    reward_keys = [*WITH_CRITIC, *(f"reward_model.{suffix}" for suffix in [*reward_keys, "enable_resource_pool=True"])]
    assert not resolve(reward_keys)[0].reward_models, "as there, nothing else counts without it"
    model = resolve([*reward_keys, "reward_model.enable=True"])[0].reward_models["reward_model"]
    assert (model.kind, model.classifier.path, model.classifier.rows) == ("classifier", str(tmp_path), 4)
    assert (model.classifier.max_length, model.enable_resource_pool, model.n_gpus_per_node) == (99, True, 3)
    newer = ["enable=True", f"model_path={tmp_path}", "enable_resource_pool=False", "n_gpus_per_node=8", "nnodes=0"]
    newer = [f"reward.reward_model.{suffix}" for suffix in newer]
    model = resolve([*WITH_CRITIC, *newer])[0].reward_models["reward_model"]
    assert (model.classifier.path, model.enable_resource_pool) == (str(tmp_path), False)
    (line,) = problems(*WITH_CRITIC, "reward.reward_model.enable=True")
    assert "reward_model.classifier.path: must be given" in line


def test_verl_distillation_is_teachers_advantage(inside):
    """Its k1 with a policy gradient alone is the same; other losses of it are refused, and off it is nothing."""
    loss = ["loss_mode=k1", "use_policy_gradient=True", "distillation_loss_coef=0.5", "loss_max_clamp=3"]
    keys = ["enabled=True", "teacher_models.teacher_model.model_path=model", "n_gpus_per_node=2"]
    keys = [f"distillation.{word}" for word in [*keys, *(f"distillation_loss.{word}" for word in loss)]]
    distill = resolve([*WITH_CRITIC, *keys])[0].actor.distill
    assert (distill.teacher, distill.coef, distill.clip, distill.rewards) == ("model", 0.5, 3.0, True)
    alone = resolve([*WITH_CRITIC, *keys, "distillation.distillation_loss.use_task_rewards=False"])[0].actor.distill
    assert (alone.coef, alone.rewards) == (1.0, False)
    assert resolve([*WITH_CRITIC, *keys, "distillation.enabled=False"])[0].actor.distill.teacher is None
    (line,) = problems(*WITH_CRITIC, *keys, "distillation.distillation_loss.loss_mode=forward_kl_topk")
    assert "distillation.distillation_loss.loss_mode: a teacher's log-ratios are advantages here" in line
    (line,) = problems(*WITH_CRITIC, "distillation.enabled=True")
    assert "teacher_models.teacher_model.model_path: must be given with distillation.enabled=True" in line


# --- the table


@pytest.mark.parametrize("schema", TABLES)
def test_every_verl_key_is_answered(schema):
    """It becomes a setting of ours, or is in a line, or is refused by name; it never just disappears."""
    table, keys = TABLES[schema], all_keys(schema)
    free = tuple(f"{name}." for name, key in keys.items() if key.free_form)
    for name, value in itertools.product(table.rules, [1, 0, False, None, "text", [1]]):
        key = name.replace("*", "anything")
        refused: list[str] = []
        made, notes = translate(
            [Setting(key, value, "here")], keys, table, lambda key, text, where, refused=refused: refused.append(key)
        )
        made = [setting for setting in made if "here" in setting.where]
        assert refused or any(key in note for note in notes) or (made and key in keys), (key, value)
        assert all(setting.key in keys or setting.key.startswith(free) for setting in made), "keys that are not there"
