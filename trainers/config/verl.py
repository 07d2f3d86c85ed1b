"""verl's keys and what becomes of each here: a table, no code. :mod:`.translate` reads it, and so does the docs page.

A key is translated (``to``), computed together with others (``joint``), or has no meaning here, and then either all of
its values are accepted or only those that ask for nothing.

Names and defaults are those of verl 0.4 to 0.9 (``verl/trainer/config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rule:
    """What becomes of one of verl's keys.

    Args:
        to: Our keys that take the value.
        words: Other words for some values, applied to the elements of a list too; all others stay.
        joint: The name of a rule in :mod:`.tables` that computes our keys from several of verl's.
        why: Said beside the key: why it has no meaning, how it is computed, what differs.
        only: The values that are accepted; any other is an error that says ``why``. ``None`` accepts all.
    """

    to: tuple[str, ...] = ()
    words: Mapping[Any, Any] = field(default_factory=dict)
    joint: str | None = None
    why: str = ""
    only: tuple[Any, ...] | None = None


def _to(*keys: str, words: Mapping[Any, Any] | None = None, why: str = "") -> Rule:
    return Rule(to=keys, words=words or {}, why=why)


def _joint(name: str, why: str) -> Rule:
    return Rule(joint=name, why=why)


def _moot(why: str, only: tuple[Any, ...] | None = None) -> Rule:
    return Rule(why=why, only=only)


def _each(prefix: str, names: str, rule: Rule) -> dict[str, Rule]:
    """One rule for several keys, whose last parts are separated by spaces."""
    return {f"{prefix}{name}": rule for name in names.split()}


_OFF = (False, None)
_DRIVER = "the loop's own process runs nothing on a GPU"
_ONE = (1, None)
_KL = {"kl": "k1", "mse": "k2", "k3": "low_var_kl"}
# With a `+`: the value is the estimate's, the gradient that of k2; in a reward there is no gradient.
_KL_REWARD = {
    **_KL,
    **{f"{name}+": _KL.get(name, name) for name in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")},
}
_KL_LOSS = {**_KL_REWARD, **{name: "k2" for name in _KL_REWARD if name.endswith("+")}}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
_BUDGET = "one budget, actor.max_tokens_per_micro_batch, holds for every pass of every model"
_FSDP = "FSDP2's own choices are kept"
_ELSEWHERE = "read by that strategy alone; FSDP2 trains here"
_CHAT = "conversations travel as messages anyhow"
_ENTROPY = "the entropy is computed in slices of the packed tokens; it changes no result"
_LOGPROBS = "every token is recorded with its log-probability anyhow"
_SHARE = "engine, learner and reference share the machine anyhow"
_IMAGES = "messages are text"
_ROWS = "rows are read once a process, in its own memory"
_OWN_TASKS = "tasks are files or an environment's own: name the environment with env.id"
_CODE = "code of a model's folder is never run"
_KERNELS = "transformers' own kernels are used; it changes no result"
_FOLDER = "a model is what its folder says: change its config.json"
_DECAY = "cosine falls to a tenth, not to 0"
_OFFLOAD = "trainer.offload, of parameters, gradients and moments together, where one of them is true"
_ENGINE = "for the engine that runs: an option of vLLM, a word of SGLang's command line, nothing for torch"
_CORRECTION = "see *Corrections* below"
_PROFILES = "trainer.profile_steps profiles the whole process"
_NO_MODE = "there is no such mode here"
_SCORER = "rewards are scored as each episode ends, by the environment or custom_reward_function"

_TEMPLATE = "data.chat_template_kwargs.NAME; one that the template never reads is an error"
_REWARD_MODEL = "a classifier, which scores each episode as it ends; reward_model.classifier.head=value reads a token's"
_REWARD_POOL = "a pool of n_gpus_per_node x nnodes, both above 0, beside the GPUs of the trainer"
_SERVED = "a classifier is computed by transformers; for one that is served give reward_model.kind=service and its url"

_LOSS_OPTIONS = ("tau_pos", "tau_neg", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef")
_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."

#: Of every model: `actor_rollout_ref.model`, `critic.model` and `reward_model.model`.
_ANY_MODEL = {
    "tokenizer_path": _moot("the tokenizer is the model's", only=(None,)),
    "hf_config_path": _moot("the configuration is the model's", only=(None,)),
    "use_shm": _moot("the model is read from its folder"),
    "external_lib": _moot("nothing is imported on the side", only=(None,)),
    "override_config": _moot(_FOLDER, only=({}, None)),
    **_each(
        "override_config.",
        "attention_dropout embd_pdrop resid_pdrop",
        _moot("there is no dropout in training", only=(0, 0.0, None)),
    ),
    "custom_chat_template": _moot("the template is the tokenizer's", only=(None,)),
    "trust_remote_code": _moot(_CODE, only=_OFF),
    **_each("", "use_liger use_fused_kernels fused_kernel_options.*", _moot(_KERNELS)),
    "tiled_mlp.*": _moot("layers are computed whole; it changes no result"),
    "mtp.enable": _moot("one token is predicted at a time", only=_OFF),
    "mtp.*": _moot("read with mtp.enable alone"),
    "lora.rank": _moot("of Megatron's adapters: write lora_rank and lora_alpha", only=(0, None)),
    "lora.*": _moot("of Megatron's adapters; what engines get of one is model.lora_publish"),
}
#: Of the actor's optimizer and the critic's.
_ANY_OPTIMIZER = {
    "optimizer": _moot("the optimizer is AdamW", only=("AdamW", None)),
    "optimizer_impl": _moot("the optimizer is torch's", only=("torch.optim", None)),
    "override_optimizer_config": _moot("the optimizer is AdamW as it is", only=({}, None)),
    "total_training_steps": _moot("the schedule ends with the run", only=(-1, None)),
    "min_lr_ratio": _moot("cosine falls to a tenth", only=(0.0, 0, 0.1, None)),
    "num_cycles": _moot("half a cycle", only=(0.5, None)),
    "zero_indexed_step": _moot("the first step has the first learning rate", only=(True, None)),
}

#: Of `python -m trainers.ppo`.
PPO: Mapping[str, Rule] = {
    # ---- Hydra
    "defaults": _moot("what is left out is as in verl", only=(["ppo_trainer", "_self_"], ["ppo_trainer"])),
    "hydra.*": _moot("where Hydra finds files and writes its own"),
    "model_engine": _moot("FSDP2 trains here", only=("dp", None)),
    # ---- data
    "data.train_batch_size": _joint("batch", "prompts an iteration: rollout.groups_per_batch"),
    "data.gen_batch_size": _moot("with filter_groups, groups are replaced one by one, not batch by batch"),
    "data.max_prompt_length": _joint(
        "lengths",
        "engine.max_context is the two lengths together, and with filter_overlong_prompts it is data.longest_prompt. "
        "Without, prompts are not measured beforehand: one that leaves no room ends its episode as truncated_context",
    ),
    "data.max_response_length": _joint(
        "lengths", "rollout.max_response_length (a reply) and rollout.max_response_tokens (the whole episode)"
    ),
    "data.filter_overlong_prompts": _to("data.filter_overlong_prompts"),
    "data.filter_overlong_prompts_workers": _moot("as many openings are measured at a time as env.workers says"),
    "data.truncation": _joint("lengths", "a prompt is never cut: only `error`, or with filter_overlong_prompts=True"),
    **_each("data.", "return_raw_chat return_raw_input_ids return_full_prompt", _moot(_CHAT)),
    **_each("data.", "return_multi_modal_inputs image_key video_key audio_key image_patch_size", _moot(_IMAGES)),
    "data.prompt_key": _moot("the column is called prompt", only=("prompt", None)),
    "data.reward_fn_key": _moot("the column is called data_source", only=("data_source", None)),
    "data.mm_processor_kwargs": _moot(_IMAGES, only=({}, None)),
    "data.tokenizer": _moot("the tokenizer is the model's", only=(None,)),
    **_each("data.", "use_shm dataloader_num_workers", _moot(_ROWS)),
    "data.validation_shuffle": _moot("validations are of the same tasks in the same order"),
    "data.val_batch_size": _moot("a validation is one batch, and the engine has its own limit (engine.max_slots)"),
    "data.train_max_samples": _to("data.train_size", words={-1: None}, why="the first rows, in a new order each epoch"),
    "data.val_max_samples": _joint("validation_rows", "data.val_size; -1 is every row"),
    "data.seed": _moot("trainer.seed decides all randomness", only=(None,)),
    "data.trust_remote_code": _moot(_CODE, only=_OFF),
    "data.custom_cls.*": _moot(_OWN_TASKS, only=(None,)),
    "data.datagen.*": _moot(_OWN_TASKS, only=(None,)),
    "data.continuous_token.*": _moot("tokens of a reply are never tokenised again"),
    "data.sampler.*": _moot("rows come in a new order each epoch", only=(None,)),
    "data.apply_chat_template_kwargs": _joint("chat_template", _TEMPLATE),
    "data.apply_chat_template_kwargs.*": _joint("chat_template", _TEMPLATE),
    # ---- model
    "actor_rollout_ref.hybrid_engine": _moot(_SHARE, only=(True, None)),
    "actor_rollout_ref.nccl_timeout": _moot("torch's own time limit holds"),
    f"{_MODEL}path": _to("model.path"),
    **{f"{_MODEL}{name}": rule for name, rule in _ANY_MODEL.items()},
    f"{_MODEL}use_remove_padding": _to("model.use_remove_padding"),
    f"{_MODEL}enable_gradient_checkpointing": _to("model.enable_gradient_checkpointing"),
    f"{_MODEL}enable_activation_offload": _to("model.enable_activation_offload"),
    f"{_MODEL}lora_rank": _joint("adapter", "model.lora_rank"),
    f"{_MODEL}lora_alpha": _joint("adapter", "model.lora_alpha"),
    f"{_MODEL}lora_adapter_path": _joint("adapter", "model.lora_adapter_path; rank and alpha are the adapter's"),
    f"{_MODEL}target_modules": _to("model.target_modules"),
    f"{_MODEL}exclude_modules": _to("model.exclude_modules"),
    # ---- actor
    f"{_ACTOR}strategy": _moot("FSDP2 trains here, by trainer.fsdp", only=("fsdp", "fsdp2", None)),
    **_each(_ACTOR, "megatron.* veomni.* mindspeed.* torchtitan.* automodel.*", _moot(_ELSEWHERE)),
    **{f"{_ACTOR}optim.{name}": rule for name, rule in _ANY_OPTIMIZER.items()},
    f"{_ACTOR}optim.lr": _to("actor.lr"),
    f"{_ACTOR}optim.weight_decay": _to("actor.weight_decay"),
    f"{_ACTOR}optim.betas": _to("actor.betas"),
    **_each(_ACTOR, "optim.clip_grad grad_clip", _to("actor.grad_clip")),
    f"{_ACTOR}optim.lr_warmup_steps": _joint("actor_warmup", "-1 takes lr_warmup_steps_ratio"),
    f"{_ACTOR}optim.lr_warmup_steps_ratio": _joint(
        "actor_warmup", "the share of all optimizer steps; the division by mini-batches and epochs is done here"
    ),
    **_each(f"{_ACTOR}optim.", "lr_scheduler_type warmup_style lr_decay_style", _to("actor.lr_schedule", why=_DECAY)),
    f"{_ACTOR}ppo_mini_batch_size": _joint(
        "batch",
        "prompts an optimizer step: actor.mini_batches is train_batch_size / ppo_mini_batch_size, which must be whole. "
        "A mini-batch is as large, of episodes drawn from the whole batch",
    ),
    f"{_ACTOR}ppo_micro_batch_size": _joint("micro", "as ppo_micro_batch_size_per_gpu, over all GPUs"),
    f"{_ACTOR}ppo_micro_batch_size_per_gpu": _joint(
        "micro", "actor.max_tokens_per_micro_batch: so many sequences of the greatest length"
    ),
    f"{_ACTOR}use_dynamic_bsz": _joint("micro", "true takes ppo_max_token_len_per_gpu as it is"),
    f"{_ACTOR}ppo_max_token_len_per_gpu": _joint(
        "micro",
        "actor.max_tokens_per_micro_batch with use_dynamic_bsz, or where no micro-batch size is given; times "
        "ulysses_sequence_parallel_size, as there",
    ),
    f"{_ACTOR}ppo_epochs": _to("actor.ppo_epochs"),
    f"{_ACTOR}shuffle": _moot("every epoch draws its mini-batches anew"),
    f"{_ACTOR}data_loader_seed": _moot("trainer.seed decides all randomness"),
    f"{_ACTOR}clip_ratio": _joint("clip", "both sides, where the two below are not given"),
    f"{_ACTOR}clip_ratio_low": _joint("clip", "actor.clip_ratio_low; above 1 it is no limit, which is 1"),
    f"{_ACTOR}clip_ratio_high": _joint("clip", "actor.clip_ratio_high"),
    f"{_ACTOR}clip_ratio_c": _to("actor.clip_ratio_c"),
    f"{_ACTOR}policy_loss.loss_mode": _joint(
        "policy_loss", "actor.policy_loss; vanilla is ppo, and gspo, of each token's own advantage, is gspo_token"
    ),
    **{f"{_ACTOR}policy_loss.{name}": _to(f"actor.{name}") for name in _LOSS_OPTIONS},
    **{f"{_ACTOR}{name}": _to(f"actor.{name}") for name in _LOSS_OPTIONS[:2]},
    f"{_ACTOR}loss_agg_mode": _joint(
        "policy_loss", "actor.loss_agg_mode; gspo, geo_mean and sapo always have seq-mean-token-mean"
    ),
    f"{_ACTOR}loss_scale_factor": _moot("seq-mean-token-sum-norm divides by rollout.max_response_length", only=(None,)),
    f"{_ACTOR}entropy_coeff": _to("actor.entropy_coeff"),
    f"{_ACTOR}calculate_entropy": _moot("the entropy is always computed"),
    **_each(
        _ACTOR,
        "entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing",
        _moot(_ENTROPY),
    ),
    f"{_ACTOR}calculate_sum_pi_squared": _moot("nothing that can be chosen here reads it"),
    f"{_ACTOR}use_kl_loss": _to("actor.use_kl_loss"),
    f"{_ACTOR}kl_loss_coef": _to("actor.kl_loss_coef"),
    f"{_ACTOR}kl_loss_type": _to("actor.kl_loss_type", words=_KL_LOSS, why="k3 is clamped at 10 there"),
    f"{_ACTOR}use_torch_compile": _moot("the model is not compiled; it changes no result"),
    f"{_ACTOR}use_prefix_grouper": _moot("every episode is computed by itself; it changes no result"),
    f"{_ACTOR}use_remove_padding": _moot("model.use_remove_padding decides"),
    f"{_ACTOR}freeze_vision_tower": _moot(_IMAGES),
    **_each(_ACTOR, "qat.enable", _moot("weights are trained as they are", only=_OFF)),
    **_each(_ACTOR, "qat.*", _moot("read with qat.enable alone")),
    f"{_ACTOR}pad_to_length": _moot("no sequence is padded; it changes no result"),
    f"{_ACTOR}policy_loss.dro_beta": _moot("read with loss_mode=dro alone"),
    f"{_ACTOR}router_replay.mode": _moot("experts are chosen anew in training", only=("disabled", None)),
    f"{_ACTOR}router_replay.*": _moot("read with another mode alone"),
    f"{_ACTOR}ulysses_sequence_parallel_size": _to("trainer.ulysses_sequence_parallel_size"),
    f"{_ACTOR}checkpoint.async_save": _to("trainer.async_save"),
    f"{_ACTOR}checkpoint.*": _moot("a checkpoint has all that resuming needs, and the model as a Hugging Face folder"),
    **_each(f"{_ACTOR}fsdp_config.", "param_offload optimizer_offload offload_policy", _joint("offload", _OFFLOAD)),
    f"{_ACTOR}fsdp_config.fsdp_size": _to("trainer.fsdp_size", words={-1: None}),
    f"{_ACTOR}fsdp_config.model_dtype": _moot(
        "the weights that are trained are float32; model.dtype is what is computed in", only=("fp32", "float32", None)
    ),
    **_each(f"{_ACTOR}fsdp_config.", "dtype mixed_precision.param_dtype", _to("model.dtype", words=_DTYPES)),
    **_each(
        f"{_ACTOR}fsdp_config.mixed_precision.",
        "reduce_dtype buffer_dtype",
        _moot("gradients are added up in float32", only=("fp32", "float32", None)),
    ),
    f"{_ACTOR}fsdp_config.ulysses_sequence_parallel_size": _to("trainer.ulysses_sequence_parallel_size"),
    f"{_ACTOR}fsdp_config.*": _moot(_FSDP),
    "actor_rollout_ref.ref.model": _moot("the reference is the model that training starts from", only=(None,)),
    "actor_rollout_ref.ref.*": _moot("the reference is computed as the actor is, with the actor's options"),
    # ---- rollout
    f"{_ROLLOUT}name": _joint("engine", "engine.name; sglang_async and vllm_async are the same engines"),
    f"{_ROLLOUT}mode": _moot("requests are always asynchronous"),
    f"{_ROLLOUT}tensor_model_parallel_size": _joint(
        "engine", "vLLM runs on one GPU: 1 alone, and engine.replicas for more; --tp-size of SGLang"
    ),
    **_each(
        _ROLLOUT,
        "gpu_memory_utilization enforce_eager max_num_batched_tokens enable_chunked_prefill",
        _joint("engine", _ENGINE),
    ),
    f"{_ROLLOUT}engine_kwargs.vllm.*": _joint("engine", "engine.vllm.args.NAME"),
    f"{_ROLLOUT}engine_kwargs.sglang.*": _joint("engine", "a word of SGLang's command line, --NAME"),
    **_each(
        f"{_ROLLOUT}engine_kwargs.",
        "vllm sglang trtllm",
        _moot("give options one by one, as engine_kwargs.ENGINE.NAME", only=({}, None)),
    ),
    f"{_ROLLOUT}engine_kwargs.trtllm.*": _moot("for an engine that is not here"),
    f"{_ROLLOUT}max_num_seqs": _to("engine.max_slots"),
    f"{_ROLLOUT}free_cache_engine": _moot(
        "engine.vllm.sleep_mode and cluster.colocate decide what memory an engine keeps; it changes no result"
    ),
    f"{_ROLLOUT}enable_prefix_caching": _moot("turns of an episode always reuse what was computed"),
    f"{_ROLLOUT}data_parallel_size": _to("engine.replicas"),
    f"{_ROLLOUT}pipeline_model_parallel_size": _moot("an engine is not cut by layers", only=_ONE),
    f"{_ROLLOUT}expert_parallel_size": _moot("an engine is not cut by experts", only=_ONE),
    f"{_ROLLOUT}max_model_len": _joint("lengths", "at least max_prompt_length + max_response_length"),
    f"{_ROLLOUT}dtype": _to("model.dtype", why="what learner and engine both compute in"),
    **_each(
        _ROLLOUT,
        "load_format layered_summon multi_stage_wake_up checkpoint_engine.*",
        _moot("weights travel as engine.sglang.transport and engine.vllm.transport say; it changes no result"),
    ),
    f"{_ROLLOUT}cudagraph_capture_sizes": _moot("the engine's own choice is kept; it changes no result"),
    f"{_ROLLOUT}skip_tokenizer_init": _moot("engines get and give token ids"),
    f"{_ROLLOUT}n": _to("rollout.n"),
    f"{_ROLLOUT}temperature": _to("rollout.temperature"),
    f"{_ROLLOUT}top_k": _to("rollout.top_k", words={-1: 0}),
    f"{_ROLLOUT}top_p": _to("rollout.top_p", words={1: 1.0}),
    f"{_ROLLOUT}do_sample": _moot("training always samples", only=(True, None)),
    f"{_ROLLOUT}ignore_eos": _moot("a reply ends where the model ends it", only=_OFF),
    f"{_ROLLOUT}prompt_length": _moot("give data.max_prompt_length"),
    f"{_ROLLOUT}response_length": _moot("give data.max_response_length"),
    f"{_ROLLOUT}calculate_log_probs": _moot(_LOGPROBS),
    **_each(
        f"{_ROLLOUT}log_prob_",
        "micro_batch_size micro_batch_size_per_gpu use_dynamic_bsz max_token_len_per_gpu",
        _moot(_BUDGET),
    ),
    f"{_ROLLOUT}val_kwargs.n": _to("validation.n"),
    f"{_ROLLOUT}val_kwargs.top_p": _to("validation.top_p", words={1: 1.0}),
    f"{_ROLLOUT}val_kwargs.top_k": _moot("validation samples from all tokens", only=(-1, 0, None)),
    f"{_ROLLOUT}val_kwargs.temperature": _joint("validation", "0 without do_sample"),
    f"{_ROLLOUT}val_kwargs.do_sample": _joint("validation", "without it validation is greedy"),
    f"{_ROLLOUT}multi_turn.enable": _moot("the environment decides how many turns there are"),
    f"{_ROLLOUT}multi_turn.interaction_config_path": _joint(
        "environment", "its classes name our environments and their users; see below"
    ),
    **_each(
        "",
        f"{_ROLLOUT}multi_turn.tool_config_path data.tool_config_path",
        _joint("environment", "its classes name our environments; see below"),
    ),
    **_each(
        "",
        f"{_ROLLOUT}multi_turn.function_tool_path data.function_tool_path",
        _moot("tools belong to environments: name one with env.id (see docs/tools.md)", only=(None,)),
    ),
    f"{_ROLLOUT}multi_turn.max_user_turns": _joint("environment", "env.kwargs.max_user_turns"),
    f"{_ROLLOUT}multi_turn.max_assistant_turns": _joint("environment", "env.kwargs.max_assistant_turns"),
    f"{_ROLLOUT}multi_turn.max_turns": _joint("environment", "an older name of max_assistant_turns"),
    f"{_ROLLOUT}multi_turn.num_repeat_rollouts": _moot("looking ahead is multiturn_reward.samples", only=(None,)),
    **_each(
        f"{_ROLLOUT}multi_turn.",
        "max_parallel_calls max_tool_response_length tool_response_truncate_side",
        _moot("an environment decides (see docs/tools.md)"),
    ),
    f"{_ROLLOUT}multi_turn.format": _moot("an environment reads every common format of tool calls"),
    **_each(
        f"{_ROLLOUT}multi_turn.",
        "tokenization_sanity_check_mode use_inference_chat_template",
        _moot("tokens of a reply are never tokenised again, so there is nothing to compare"),
    ),
    f"{_ROLLOUT}agent.num_workers": _moot("one event loop plays all episodes; see env.workers"),
    f"{_ROLLOUT}agent.default_agent_loop": _joint("environment", "the environment, where no file names one"),
    f"{_ROLLOUT}agent.agent_loop_config_path": _moot("loops are environments: name one with env.id", only=(None,)),
    f"{_ROLLOUT}update_weights_bucket_megabytes": _joint("engine", "engine.sglang.bucket_mib"),
    **_each(_ROLLOUT, "server.* sglang_rollout_mode", _moot("engine.sglang has time limits of its own")),
    f"{_ROLLOUT}over_sample_rate": _moot("write rollout.oversampling_factor=1.1 for 0.1", only=(0, 0.0, None)),
    f"{_ROLLOUT}seed": _moot("trainer.seed decides all randomness"),
    f"{_ROLLOUT}full_determinism": _moot("every request has a seed of its own"),
    f"{_ROLLOUT}scheduling_policy": _moot("first come, first served", only=("fcfs", None)),
    f"{_ROLLOUT}logprobs_mode": _moot(
        "log-probabilities are those at the sampling temperature, over the full vocabulary"
    ),
    f"{_ROLLOUT}trace.*": _moot("trainer.trace_file draws every episode"),
    **_each(_ROLLOUT, "prometheus.* disable_log_stats", _moot("the engine's numbers are among the metrics")),
    **_each(_ROLLOUT, "quantization quantization_config_file", _moot("weights are as they are trained", only=(None,))),
    **_each(_ROLLOUT, "enable_rollout_routing_replay skip_rollout disaggregation.enabled", _moot(_NO_MODE, only=_OFF)),
    **_each(_ROLLOUT, "skip_dump_dir disaggregation.*", _moot("read with that mode alone")),
    f"{_ROLLOUT}moe_load_balance_metrics_interval": _moot("experts are not measured"),
    f"{_ROLLOUT}nnodes": _moot("cluster.colocate=false gives engines GPUs of their own", only=(0, None)),
    f"{_ROLLOUT}agent.custom_async_server.*": _moot("engines are those of engine.name", only=(None,)),
    # ---- critic
    "critic.enable": _moot("there is a critic exactly where the estimator needs one"),
    "critic.strategy": _moot("FSDP2 trains here, by trainer.fsdp", only=("fsdp", "fsdp2", None)),
    "critic.optim.lr": _to("critic.lr"),
    "critic.optim.weight_decay": _to("critic.weight_decay"),
    **_each("critic.", "optim.clip_grad grad_clip", _to("critic.grad_clip")),
    "critic.optim.betas": _to("critic.betas"),
    "critic.optim.lr_warmup_steps": _joint("critic_warmup", "-1 takes lr_warmup_steps_ratio"),
    "critic.optim.lr_warmup_steps_ratio": _joint("critic_warmup", "the share of all optimizer steps"),
    **{f"critic.optim.{name}": rule for name, rule in _ANY_OPTIMIZER.items()},
    **_each(
        "critic.optim.",
        "lr_scheduler_type warmup_style",
        _moot("the critic's learning rate stays", only=("constant", None)),
    ),
    "critic.cliprange_value": _to("critic.cliprange_value"),
    "critic.model.path": _joint("critic_model", "the critic starts from the actor's weights, so it must be its model"),
    **{f"critic.model.{name}": rule for name, rule in _ANY_MODEL.items()},
    **_each(
        "critic.model.",
        "enable_gradient_checkpointing enable_activation_offload use_remove_padding",
        _moot("as the actor's"),
    ),
    **_each("critic.model.", "lora_alpha target_modules exclude_modules", _moot("read with lora_rank alone")),
    "critic.model.lora_adapter_path": _moot("all of the critic's weights are trained", only=(None,)),
    "critic.checkpoint.*": _moot("actor and critic are in one checkpoint"),
    "critic.data_loader_seed": _moot("trainer.seed decides all randomness"),
    **_each("critic.", "model.fsdp_config.* fsdp.*", _moot(_FSDP)),
    "critic.megatron.*": _moot(_ELSEWHERE),
    "critic.model.lora_rank": _moot("all of the critic's weights are trained", only=(0, None)),
    "critic.ppo_mini_batch_size": _joint("critic_batch", "the critic's mini-batches are the actor's"),
    **_each(
        "critic.", "ppo_epochs ulysses_sequence_parallel_size", _joint("as_the_actor", "the critic's are the actor's")
    ),
    **_each(
        "critic.",
        "ppo_micro_batch_size ppo_micro_batch_size_per_gpu forward_micro_batch_size forward_micro_batch_size_per_gpu "
        "use_dynamic_bsz ppo_max_token_len_per_gpu forward_max_token_len_per_gpu",
        _moot(_BUDGET),
    ),
    "critic.shuffle": _moot("every epoch draws its mini-batches anew"),
    "critic.loss_agg_mode": _moot("the critic's loss is the mean over tokens", only=("token-mean", None)),
    # ---- rewards
    "reward.custom_reward_function.path": _to("custom_reward_function.path"),
    "reward.custom_reward_function.name": _to("custom_reward_function.name"),
    "reward_model.enable": _joint("reward_model", _REWARD_MODEL),
    "reward.reward_model.enable": _joint("reward_model", _REWARD_MODEL),
    "reward_model.model.path": _joint("reward_model", "reward_model.classifier.path"),
    "reward.reward_model.model_path": _joint("reward_model", "reward_model.classifier.path"),
    **{f"reward_model.model.{name}": rule for name, rule in _ANY_MODEL.items()},
    "reward_model.model.input_tokenizer": _moot(_CHAT),
    "reward_model.model.use_remove_padding": _moot("lengths are padded to reward_model.classifier.bucket"),
    **_each(
        "reward_model.", "model.fsdp_config.* strategy param_offload megatron.*", _moot("a worker has the whole model")
    ),
    "reward_model.max_length": _joint("reward_model", "reward_model.classifier.max_length"),
    "reward_model.micro_batch_size": _moot("give micro_batch_size_per_gpu instead", only=(None,)),
    "reward_model.micro_batch_size_per_gpu": _joint("reward_model", "reward_model.classifier.rows"),
    "reward_model.use_dynamic_bsz": _moot("reward_model.max_batch_tokens bounds a batch"),
    "reward_model.forward_max_token_len_per_gpu": _joint("reward_model", "reward_model.max_batch_tokens"),
    "reward_model.ulysses_sequence_parallel_size": _moot("a worker has the whole sequence", only=_ONE),
    **_each(
        "",
        "reward_model.enable_resource_pool reward.reward_model.enable_resource_pool",
        _joint("reward_model", _REWARD_POOL),
    ),
    **_each(
        "",
        "reward_model.n_gpus_per_node reward_model.nnodes reward.reward_model.n_gpus_per_node "
        "reward.reward_model.nnodes",
        _joint("reward_model", "above 0 with enable_resource_pool"),
    ),
    **_each("", "reward_model.rollout.* reward.reward_model.rollout.*", _moot(_SERVED)),
    **_each(
        "",
        "reward_model.reward_manager reward.reward_manager.name reward_manager.name",
        _joint("reward_manager", _SCORER),
    ),
    **_each(
        "",
        "reward_model.overlong_buffer.* reward_model.reward_kwargs.* reward.reward_kwargs.*",
        _joint("reward_manager", "overlong_buffer, where the manager is dapo"),
    ),
    **_each(
        "",
        "reward_model.num_workers reward.num_workers",
        _joint("workers", "custom_reward_function.workers, where there is such a function"),
    ),
    **_each(
        "reward_model.",
        "launch_reward_fn_async use_reward_loop",
        _moot("rewards are always awaited beside the next turns"),
    ),
    **_each(
        "",
        "reward_model.sandbox_fusion.url reward.sandbox_fusion.url sandbox_fusion.url",
        _moot("programs run in the sandbox of this machine", only=(None,)),
    ),
    **_each(
        "",
        "reward_model.sandbox_fusion.* reward.sandbox_fusion.* sandbox_fusion.*",
        _moot("read with sandbox_fusion.url alone"),
    ),
    **_each("", "reward.reward_manager.source reward_manager.source", _moot(_SCORER, only=("register", None))),
    **_each("", "reward.reward_manager.module.* reward_manager.module.*", _moot("read with source=importlib alone")),
    "reward_model.reward_loop_source": _moot(_SCORER, only=("register", None)),
    **_each("reward_model.", "reward_loop_module_path reward_loop_class_name", _moot(_SCORER, only=(None,))),
    # ---- algorithm
    "algorithm.adv_estimator": _to(
        "algorithm.adv_estimator",
        words={
            "grpo_vectorized": "grpo",
            "rloo_vectorized": "rloo",
            "reinforce_plus_plus": "reinforce_pp",
            "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
        },
    ),
    "algorithm.kl_penalty": _to("algorithm.kl_penalty", words=_KL_REWARD, why="k3 is clamped at 10 there"),
    "algorithm.norm_adv_by_std_in_grpo": _joint("norm_by_std", "algorithm.norm_by_std, where the estimator is grpo"),
    "algorithm.filter_groups.enable": _to("rollout.filter_zero_variance"),
    "algorithm.filter_groups.metric": _moot("groups are compared by the sum of their rewards"),
    "algorithm.filter_groups.max_num_gen_batches": _joint(
        "filtered", "rollout.max_consecutive_filtered, in prompts: so many generated batches, 0 leaves it as it is"
    ),
    "algorithm.filter_groups.max_inflight_gen_batches": _moot("groups are replaced one by one"),
    "algorithm.rollout_correction.*": _joint("rollout_correction", _CORRECTION),
    "algorithm.use_pf_ppo": _moot("batches are used as they are", only=_OFF),
    "algorithm.pf_ppo.*": _moot("read with use_pf_ppo alone"),
    # ---- trainer
    "trainer.logger": _to("trainer.logger", words={"file": "jsonl"}),
    "trainer.total_epochs": _joint(
        "iterations",
        "trainer.total_iterations: epochs times the rows of data.train_files / train_batch_size; rows that "
        "filter_overlong_prompts leaves out are counted",
    ),
    "trainer.total_training_steps": _joint("iterations", "trainer.total_iterations"),
    "trainer.critic_warmup": _to("critic.warmup"),
    "trainer.n_gpus_per_node": _joint(
        "cluster", "cluster.n_gpus_per_node, and as many learner ranks as there are GPUs in all"
    ),
    "trainer.nnodes": _joint("cluster", "cluster.nnodes; several need cluster.backend=ray"),
    "trainer.device": _to("model.device"),
    "trainer.balance_batch": _moot("processes share every mini-batch by tokens anyhow"),
    "trainer.max_actor_ckpt_to_keep": _to("trainer.keep_last_n", why="all are kept there by default"),
    "trainer.max_critic_ckpt_to_keep": _moot("actor and critic are in one checkpoint"),
    "trainer.default_hdfs_dir": _moot("checkpoints are folders on this disk", only=(None,)),
    "trainer.del_local_ckpt_after_load": _moot("trainer.keep_last_n decides", only=_OFF),
    "trainer.log_val_generations": _moot("sample conversations are shown at the end; see validation_data_dir"),
    "trainer.ray_wait_register_center_timeout": _moot("the trainer is one process, without Ray"),
    **_each("trainer.", "use_v1 use_legacy_worker_impl", _moot("there is one trainer")),
    "trainer.v1.trainer_mode": _moot("rollout.staleness makes a run asynchronous", only=("sync", None)),
    "trainer.v1.sampler.custom_sampler.*": _moot(_OWN_TASKS, only=(None,)),
    "trainer.v1.*": _moot("read in that mode alone"),
    "trainer.v1.sync": _moot("it has no options", only=({}, None)),
    "trainer.esi_redundant_time": _moot("a checkpoint is saved when the process is asked to stop"),
    "distillation.enabled": _moot("there is no distillation from another model", only=_OFF),
    "distillation.*": _moot("read with distillation.enabled alone"),
    **_each("skip.", "rollout.enable rollout_tq.enable async_rollout.enable", _moot(_NO_MODE, only=_OFF)),
    "skip.*": _moot("read with that mode alone"),
    "transfer_queue.*": _moot("batches stay in the trainer's memory"),
    "global_profiler.steps": _to("trainer.profile_steps"),
    "global_profiler.tool": _joint("nsight", "`torch` is the default, and `nsys` sets cluster.nsight"),
    "global_profiler.global_tool_config.nsys.worker_nsight_options.*": _joint("nsight", "cluster.nsight.NAME"),
    "global_profiler.global_tool_config.nsys.controller_nsight_options.*": _moot(_DRIVER),
    "global_profiler.global_tool_config.nsys.discrete": _moot("an iteration is one range", only=_OFF),
    **_each("global_profiler.", "save_path profile_continuous_steps global_tool_config.*", _moot(_PROFILES)),
    **_each(
        "",
        f"{_ACTOR}profiler.* {_ROLLOUT}profiler.* actor_rollout_ref.profiler.* critic.profiler.* "
        "reward_model.profiler.*",
        _moot(_PROFILES),
    ),
    **_each(
        "", "ray_init.num_cpus ray_kwargs.ray_init.num_cpus", _joint("ray", "ray_init.num_cpus, where Ray is used")
    ),
    **_each(
        "",
        "ray_init.timeline_json_file ray_kwargs.timeline_json_file",
        _joint("ray", "ray_init.timeline_json_file with Ray, trainer.trace_file without"),
    ),
    "ray_kwargs.ray_init.runtime_env.*": _moot("processes have the environment of the one that starts them"),
    "trainer.worker_nsight_options.*": _joint("nsight", "cluster.nsight.NAME"),
    "trainer.controller_nsight_options.*": _moot(_DRIVER),
}

#: Of `python -m trainers.generate`. Of `main_generation_server` the keys begin with `actor_rollout_ref.`.
GENERATE: Mapping[str, Rule] = {
    "trainer.nnodes": _joint("cluster", "engine.replicas, and with several machines cluster.nnodes and backend"),
    "trainer.n_gpus_per_node": _joint("cluster", "engine.replicas: each has as many GPUs as it is cut into"),
    "trainer.device": _to("model.device"),
    "data.train_files": _joint("prompts", "data.path: one file"),
    "model.external_lib": _moot("nothing is imported on the side", only=(None,)),
    "model.trust_remote_code": _moot(_CODE, only=_OFF),
    "data.apply_chat_template_kwargs": _joint("chat_template", _TEMPLATE),
    "data.apply_chat_template_kwargs.*": _joint("chat_template", _TEMPLATE),
    "rollout.name": _joint("engine", "engine.name"),
    "rollout.mode": _moot("requests are always asynchronous"),
    **_each(
        "rollout.",
        "tensor_model_parallel_size gpu_memory_utilization enforce_eager max_num_batched_tokens enable_chunked_prefill",
        _joint("engine", _ENGINE),
    ),
    "rollout.data_parallel_size": _moot("trainer.n_gpus_per_node decides how many engines there are", only=_ONE),
    "rollout.max_num_seqs": _to("engine.max_slots"),
    "rollout.prompt_length": _to("rollout.max_prompt_length"),
    "rollout.response_length": _to("rollout.max_response_length"),
    "rollout.max_model_len": _moot("max_prompt_length + max_response_length", only=(None,)),
    "rollout.temperature": _to("rollout.temperature"),
    "rollout.top_k": _to("rollout.top_k", words={-1: 0}),
    "rollout.top_p": _to("rollout.top_p", words={1: 1.0}),
    "rollout.dtype": _to("model.dtype"),
    "rollout.do_sample": _moot("rollout.temperature=0 decodes greedily", only=(True, None)),
    "rollout.n": _joint("prompts", "data.n_samples, where it is above 1"),
    "rollout.free_cache_engine": _moot("the engine has the machine to itself"),
    "rollout.load_format": _moot("the engine starts with the model's weights"),
    "rollout.disable_log_stats": _moot("the engine's numbers are not shown"),
    "rollout.calculate_log_probs": _moot("the file has texts and lengths"),
    **_each(
        "rollout.log_prob_", "micro_batch_size micro_batch_size_per_gpu", _moot("nothing is computed a second time")
    ),
    "actor.*": _moot("nothing is trained"),
    **_each(
        "",
        "ray_init.num_cpus ray_init.timeline_json_file ray_kwargs.ray_init.num_cpus ray_kwargs.timeline_json_file",
        _joint("cluster", "ray_init.NAME, where Ray is used"),
    ),
}

#: Of `python -m trainers.evaluate`.
EVALUATE: Mapping[str, Rule] = {
    "data.prompt_key": _moot("prompts are not read: extra_info is what a function gets beside the reply"),
    "ray_init.num_cpus": _to("custom_reward_function.workers"),
    "ray_kwargs.ray_init.num_cpus": _to("custom_reward_function.workers"),
    "ray_init.timeline_json_file": _moot("processes of this machine score, without Ray", only=(None,)),
    "ray_kwargs.timeline_json_file": _moot("processes of this machine score, without Ray", only=(None,)),
}
