"""verl's keys and what becomes of each here: a table, no code. :mod:`.translate` reads it, and so does the docs page.

A key is translated (``to``), computed together with others (``joint``), accepted without effect because it has no
meaning here (``moot``), or waits for a key that this version does not have (``later``). A target that the schema has
not is "not in this version" by itself; once the schema gets the key, the same line translates.

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
        to: Our keys that take the value. Where the schema has not the first of them, the key is "not in this version".
        words: Other words for some values, applied to the elements of a list too; all others stay.
        joint: The name of a rule in :mod:`.tables` that computes our keys from several of verl's.
        why: Said beside the key: why it has no meaning, how it is computed, what differs.
        only: The values that are accepted; any other is an error that says ``why``. ``None`` accepts all.
        above: The value must be greater, or it is an error; ``None`` for no bound.
    """

    to: tuple[str, ...] = ()
    words: Mapping[Any, Any] = field(default_factory=dict)
    joint: str | None = None
    why: str = ""
    only: tuple[Any, ...] | None = None
    above: int | None = None


def _to(*keys: str, words: Mapping[Any, Any] | None = None, why: str = "", above: int | None = None) -> Rule:
    return Rule(to=keys, words=words or {}, why=why, above=above)


def _joint(name: str, why: str) -> Rule:
    return Rule(joint=name, why=why)


def _moot(why: str, only: tuple[Any, ...] | None = None, above: int | None = None) -> Rule:
    return Rule(why=why, only=only, above=above)


def _later(key: str, why: str, only: tuple[Any, ...] | None = None, above: int | None = None) -> Rule:
    return Rule(to=(key,), why=why, only=only, above=above)


_OFF = (False, None)
_DRIVER = "the loop's own process runs nothing on a GPU"
_ONE = (1, None)
_KL = {"kl": "k1", "mse": "k2"}
_PACKED = "model.use_remove_padding decides"
_BUDGET = "one budget, actor.max_tokens_per_micro_batch, holds for every pass of every model"
_FSDP = "FSDP2's own choices are kept"
_OFFLOAD = "nothing is moved to the CPU's memory; it changes no result"
_CHAT = "conversations travel as messages anyhow"
_ENTROPY = "the entropy is computed in slices of the packed tokens; it changes no result"
_LOGPROBS = "every token is recorded with its log-probability anyhow"
_SHARE = "engine, learner and reference share the machine anyhow"
_IMAGES = "messages are text"
_ROWS = "rows are read once a process, in its own memory"
_ENGINE = "for the engine that runs: an option of vLLM, a word of SGLang's command line, nothing for torch"

_TEMPLATE = "data.chat_template_kwargs.NAME; one that the template never reads is an error"
_REWARD_MODEL = "a classifier, which scores each episode as it ends; reward_model.classifier.head=value reads a token's"
_REWARD_POOL = "a pool of n_gpus_per_node x nnodes, both above 0, beside the GPUs of the trainer"
_SERVED = "a classifier is computed by transformers; for one that is served give reward_model.kind=service and its url"

#: Of `python -m trainers.ppo`.
PPO: Mapping[str, Rule] = {
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
    "data.filter_overlong_prompts": _to("data.filter_overlong_prompts", words={None: False}),
    "data.filter_overlong_prompts_workers": _moot("as many openings are measured at a time as env.workers says"),
    "data.truncation": _moot("a prompt is never cut: leave long rows out of the file", only=("error", None)),
    "data.return_raw_chat": _moot(_CHAT),
    "data.return_raw_input_ids": _moot(_CHAT),
    "data.return_full_prompt": _moot(_CHAT),
    "data.return_multi_modal_inputs": _moot(_IMAGES),
    "data.prompt_key": _moot("the column is called prompt", only=("prompt", None)),
    "data.reward_fn_key": _moot("the column is called data_source", only=("data_source", None)),
    "data.image_key": _moot(_IMAGES),
    "data.video_key": _moot(_IMAGES),
    "data.audio_key": _moot(_IMAGES),
    "data.image_patch_size": _moot(_IMAGES),
    "data.mm_processor_kwargs": _moot(_IMAGES, only=({}, None)),
    "data.tokenizer": _moot("the tokenizer is the model's", only=(None,)),
    "data.use_shm": _moot(_ROWS),
    "data.dataloader_num_workers": _moot(_ROWS),
    "data.validation_shuffle": _moot("validations are of the same tasks in the same order"),
    "data.val_batch_size": _moot("a validation is one batch, and the engine has its own limit (engine.max_slots)"),
    "data.train_max_samples": _to("data.train_size", words={-1: None}, why="the first rows, in a new order each epoch"),
    "data.val_max_samples": _joint("validation_rows", "data.val_size; -1 is every row"),
    "data.seed": _moot("trainer.seed decides all randomness", only=(None,)),
    "data.trust_remote_code": _moot("code of a model's folder is never run", only=_OFF),
    "data.custom_cls.path": _moot("tasks are files or an environment's own", only=(None,)),
    "data.custom_cls.name": _moot("tasks are files or an environment's own", only=(None,)),
    "data.apply_chat_template_kwargs": _joint("chat_template", _TEMPLATE),
    "data.apply_chat_template_kwargs.*": _joint("chat_template", _TEMPLATE),
    # ---- model
    "actor_rollout_ref.hybrid_engine": _moot(_SHARE, only=(True, None)),
    "actor_rollout_ref.nccl_timeout": _moot("torch's own time limit holds"),
    "actor_rollout_ref.model.path": _to("model.path"),
    "actor_rollout_ref.model.tokenizer_path": _moot("the tokenizer is the model's", only=(None,)),
    "actor_rollout_ref.model.hf_config_path": _moot("the configuration is the model's", only=(None,)),
    "actor_rollout_ref.model.use_shm": _moot("the model is read from its folder"),
    "actor_rollout_ref.model.external_lib": _moot("nothing is imported on the side", only=(None,)),
    "actor_rollout_ref.model.override_config": _moot("a model is what its folder says", only=({}, None)),
    "actor_rollout_ref.model.custom_chat_template": _moot("the template is the tokenizer's", only=(None,)),
    "actor_rollout_ref.model.trust_remote_code": _moot("code of a model's folder is never run", only=_OFF),
    "actor_rollout_ref.model.use_remove_padding": _to("model.use_remove_padding"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": _to("model.enable_gradient_checkpointing"),
    "actor_rollout_ref.model.enable_activation_offload": _to("model.enable_activation_offload"),
    "actor_rollout_ref.model.use_liger": _moot("transformers' own kernels are used; it changes no result"),
    "actor_rollout_ref.model.use_fused_kernels": _moot("transformers' own kernels are used; it changes no result"),
    "actor_rollout_ref.model.lora_rank": _later("model.lora_rank", "all weights are trained", only=(0, None)),
    "actor_rollout_ref.model.lora_alpha": _later("model.lora_alpha", "all weights are trained"),
    "actor_rollout_ref.model.target_modules": _to("model.target_modules"),
    "actor_rollout_ref.model.exclude_modules": _to("model.exclude_modules", words={None: ()}),
    "actor_rollout_ref.model.lora_adapter_path": _to(
        "model.lora_adapter_path", why="lora_rank and lora_alpha must be the adapter's"
    ),
    # ---- actor
    "actor_rollout_ref.actor.strategy": _moot("FSDP2, by trainer.fsdp", only=("fsdp", "fsdp2", None)),
    "actor_rollout_ref.actor.optim.optimizer": _moot("the optimizer is AdamW", only=("AdamW", None)),
    "actor_rollout_ref.actor.optim.optimizer_impl": _moot("the optimizer is torch's", only=("torch.optim", None)),
    "actor_rollout_ref.actor.optim.lr": _to("actor.lr"),
    "actor_rollout_ref.actor.optim.weight_decay": _to("actor.weight_decay"),
    "actor_rollout_ref.actor.optim.betas": _to("actor.betas"),
    "actor_rollout_ref.actor.optim.clip_grad": _to("actor.grad_clip"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps": _joint("actor_warmup", "-1 takes lr_warmup_steps_ratio"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": _joint(
        "actor_warmup", "the share of all optimizer steps; the division by mini-batches and epochs is done here"
    ),
    "actor_rollout_ref.actor.optim.total_training_steps": _moot("the schedule ends with the run", only=(-1, None)),
    "actor_rollout_ref.actor.optim.lr_scheduler_type": _to(
        "actor.lr_schedule", why="cosine falls to a tenth, not to 0"
    ),
    "actor_rollout_ref.actor.optim.warmup_style": _to("actor.lr_schedule", why="cosine falls to a tenth, not to 0"),
    "actor_rollout_ref.actor.optim.min_lr_ratio": _moot("cosine falls to a tenth", only=(0.0, 0, 0.1, None)),
    "actor_rollout_ref.actor.optim.num_cycles": _moot("half a cycle", only=(0.5, None)),
    "actor_rollout_ref.actor.grad_clip": _to("actor.grad_clip"),
    "actor_rollout_ref.actor.ppo_mini_batch_size": _joint(
        "batch",
        "prompts an optimizer step: actor.mini_batches is train_batch_size / ppo_mini_batch_size, which must be whole. "
        "A mini-batch is as large, of episodes drawn from the whole batch",
    ),
    "actor_rollout_ref.actor.ppo_micro_batch_size": _moot("give ppo_micro_batch_size_per_gpu instead", only=(None,)),
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": _joint(
        "micro", "actor.max_tokens_per_micro_batch: so many sequences of the greatest length"
    ),
    "actor_rollout_ref.actor.use_dynamic_bsz": _joint("micro", "true takes ppo_max_token_len_per_gpu as it is"),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": _joint(
        "micro", "actor.max_tokens_per_micro_batch with use_dynamic_bsz, or where no micro-batch size is given"
    ),
    "actor_rollout_ref.actor.ppo_epochs": _to("actor.ppo_epochs"),
    "actor_rollout_ref.actor.shuffle": _moot("every epoch draws its mini-batches anew"),
    "actor_rollout_ref.actor.data_loader_seed": _moot("trainer.seed decides all randomness"),
    "actor_rollout_ref.actor.clip_ratio": _joint("clip", "both sides, where the two below are not given"),
    "actor_rollout_ref.actor.clip_ratio_low": _joint("clip", "actor.clip_ratio_low"),
    "actor_rollout_ref.actor.clip_ratio_high": _joint("clip", "actor.clip_ratio_high"),
    "actor_rollout_ref.actor.clip_ratio_c": _to("actor.clip_ratio_c"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": _to("actor.policy_loss", words={"vanilla": "ppo"}),
    "actor_rollout_ref.actor.loss_agg_mode": _to("actor.loss_agg_mode"),
    "actor_rollout_ref.actor.loss_scale_factor": _moot(
        "seq-mean-token-sum-norm divides by rollout.max_response_length", only=(None,)
    ),
    "actor_rollout_ref.actor.entropy_coeff": _to("actor.entropy_coeff"),
    "actor_rollout_ref.actor.calculate_entropy": _moot("the entropy is always computed"),
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking": _moot(_ENTROPY),
    "actor_rollout_ref.actor.entropy_checkpointing": _moot(_ENTROPY),
    "actor_rollout_ref.actor.use_kl_loss": _to("actor.use_kl_loss"),
    "actor_rollout_ref.actor.kl_loss_coef": _to("actor.kl_loss_coef"),
    "actor_rollout_ref.actor.kl_loss_type": _to("actor.kl_loss_type", words=_KL),
    "actor_rollout_ref.actor.use_torch_compile": _moot("the model is not compiled; it changes no result"),
    "actor_rollout_ref.actor.use_remove_padding": _moot(_PACKED),
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": _to("trainer.ulysses_sequence_parallel_size"),
    "actor_rollout_ref.actor.checkpoint.save_contents": _moot(
        "a checkpoint has all that going on needs, and the model as a Hugging Face folder"
    ),
    "actor_rollout_ref.actor.checkpoint.load_contents": _moot("a checkpoint is loaded whole"),
    "actor_rollout_ref.actor.checkpoint.async_save": _to("trainer.async_save"),
    "actor_rollout_ref.actor.fsdp_config.param_offload": _joint(
        "offload", "trainer.offload, of parameters, gradients and moments together, where one of them is true"
    ),
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": _joint(
        "offload", "trainer.offload, of parameters, gradients and moments together, where one of them is true"
    ),
    "actor_rollout_ref.actor.fsdp_config.offload_policy": _joint(
        "offload", "trainer.offload, of parameters, gradients and moments together, where one of them is true"
    ),
    "actor_rollout_ref.actor.fsdp_config.fsdp_size": _to("trainer.fsdp_size", words={-1: None}),
    "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": _moot(_FSDP),
    "actor_rollout_ref.actor.fsdp_config.forward_prefetch": _moot(_FSDP),
    "actor_rollout_ref.actor.fsdp_config.wrap_policy.*": _moot(_FSDP),
    "actor_rollout_ref.actor.fsdp_config.use_orig_params": _moot(_FSDP),
    "actor_rollout_ref.actor.fsdp_config.model_dtype": _moot(
        "the weights that are trained are float32; model.dtype is what is computed in", only=("fp32", "float32", None)
    ),
    # ---- reference
    "actor_rollout_ref.ref.strategy": _moot("FSDP2, by trainer.fsdp"),
    "actor_rollout_ref.ref.log_prob_micro_batch_size": _moot(_BUDGET),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": _moot(_BUDGET),
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": _moot(_BUDGET),
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": _moot(_BUDGET),
    "actor_rollout_ref.ref.use_torch_compile": _moot("the model is not compiled; it changes no result"),
    "actor_rollout_ref.ref.ulysses_sequence_parallel_size": _moot("as the actor's"),
    "actor_rollout_ref.ref.fsdp_config.param_offload": _moot("the reference follows trainer.offload"),
    "actor_rollout_ref.ref.fsdp_config.*": _moot(_FSDP),
    # ---- rollout
    "actor_rollout_ref.rollout.name": _joint("engine", "engine.name; sglang_async and vllm_async are the same engines"),
    "actor_rollout_ref.rollout.mode": _moot("requests are always asynchronous"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size": _joint("engine", _ENGINE),
    "actor_rollout_ref.rollout.gpu_memory_utilization": _joint("engine", _ENGINE),
    "actor_rollout_ref.rollout.enforce_eager": _joint("engine", _ENGINE),
    "actor_rollout_ref.rollout.max_num_batched_tokens": _joint("engine", _ENGINE),
    "actor_rollout_ref.rollout.enable_chunked_prefill": _joint("engine", _ENGINE),
    "actor_rollout_ref.rollout.engine_kwargs.vllm.*": _joint("engine", "engine.vllm.args.NAME"),
    "actor_rollout_ref.rollout.max_num_seqs": _to("engine.max_slots"),
    "actor_rollout_ref.rollout.free_cache_engine": _later(
        "cluster.sleep", "the engine keeps its memory while the learner learns; it changes no result"
    ),
    "actor_rollout_ref.rollout.enable_prefix_caching": _moot("turns of an episode always reuse what was computed"),
    "actor_rollout_ref.rollout.data_parallel_size": _to("engine.replicas"),
    "actor_rollout_ref.rollout.pipeline_model_parallel_size": _moot("an engine is not cut by layers", only=_ONE),
    "actor_rollout_ref.rollout.expert_parallel_size": _moot("an engine is not cut by experts", only=_ONE),
    "actor_rollout_ref.rollout.max_model_len": _moot(
        "engine.max_context is max_prompt_length + max_response_length", only=(None,)
    ),
    "actor_rollout_ref.rollout.dtype": _to("model.dtype", why="what learner and engine both compute in"),
    "actor_rollout_ref.rollout.load_format": _moot("the engine starts with the policy's weights"),
    "actor_rollout_ref.rollout.layered_summon": _moot("weights are handed over as they are"),
    "actor_rollout_ref.rollout.disable_log_stats": _moot("the engine's numbers are among the metrics"),
    "actor_rollout_ref.rollout.skip_tokenizer_init": _moot("engines get and give token ids"),
    "actor_rollout_ref.rollout.n": _to("rollout.n"),
    "actor_rollout_ref.rollout.temperature": _to("rollout.temperature"),
    "actor_rollout_ref.rollout.top_k": _to("rollout.top_k", words={-1: 0}),
    "actor_rollout_ref.rollout.top_p": _to("rollout.top_p", words={1: 1.0}),
    "actor_rollout_ref.rollout.do_sample": _moot("training always samples", only=(True, None)),
    "actor_rollout_ref.rollout.ignore_eos": _moot("a reply ends where the model ends it", only=_OFF),
    "actor_rollout_ref.rollout.prompt_length": _moot("give data.max_prompt_length"),
    "actor_rollout_ref.rollout.response_length": _moot("give data.max_response_length"),
    "actor_rollout_ref.rollout.calculate_log_probs": _moot(_LOGPROBS),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": _moot(_BUDGET),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": _moot(_BUDGET),
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": _moot(_BUDGET),
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": _moot(_BUDGET),
    "actor_rollout_ref.rollout.val_kwargs.n": _to("validation.n"),
    "actor_rollout_ref.rollout.val_kwargs.top_p": _to("validation.top_p", words={1: 1.0}),
    "actor_rollout_ref.rollout.val_kwargs.top_k": _moot("validation samples from all tokens", only=(-1, 0, None)),
    "actor_rollout_ref.rollout.val_kwargs.temperature": _joint("validation", "0 without do_sample"),
    "actor_rollout_ref.rollout.val_kwargs.do_sample": _joint("validation", "without it validation is greedy"),
    "actor_rollout_ref.rollout.multi_turn.enable": _moot("the environment decides how many turns there are"),
    "actor_rollout_ref.rollout.multi_turn.interaction_config_path": _joint(
        "environment", "its classes name our environments and their users; see below"
    ),
    "actor_rollout_ref.rollout.multi_turn.max_user_turns": _joint("environment", "env.kwargs.max_user_turns"),
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": _joint("environment", "env.kwargs.max_assistant_turns"),
    "actor_rollout_ref.rollout.multi_turn.max_turns": _joint("environment", "an older name of max_assistant_turns"),
    "actor_rollout_ref.rollout.multi_turn.tool_config_path": _moot("tools belong to environments", only=(None,)),
    "actor_rollout_ref.rollout.multi_turn.function_tool_path": _moot("tools belong to environments", only=(None,)),
    "actor_rollout_ref.rollout.multi_turn.max_parallel_calls": _moot("an environment decides (see docs/tools.md)"),
    "actor_rollout_ref.rollout.multi_turn.max_tool_response_length": _moot(
        "an environment decides (see docs/tools.md)"
    ),
    "actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side": _moot(
        "an environment decides (see docs/tools.md)"
    ),
    "actor_rollout_ref.rollout.multi_turn.format": _moot("an environment reads every common format of tool calls"),
    "actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode": _moot(
        "tokens of a reply are never tokenised again, so there is nothing to compare"
    ),
    "actor_rollout_ref.rollout.multi_turn.use_inference_chat_template": _moot(
        "tokens of a reply are never tokenised again"
    ),
    "actor_rollout_ref.rollout.agent.num_workers": _moot("one event loop plays all episodes; see env.workers"),
    "actor_rollout_ref.rollout.agent.default_agent_loop": _joint(
        "environment", "the environment, where no interaction names one"
    ),
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": _moot("loops are environments", only=(None,)),
    "actor_rollout_ref.rollout.update_weights_bucket_megabytes": _to("engine.sglang.bucket_mib"),
    "actor_rollout_ref.rollout.over_sample_rate": _moot(
        "nothing reads it there; here it is rollout.oversampling_factor", only=(0, 0.0, None)
    ),
    "actor_rollout_ref.rollout.seed": _moot("trainer.seed decides all randomness"),
    "actor_rollout_ref.rollout.full_determinism": _moot("every request has a seed of its own"),
    "actor_rollout_ref.rollout.scheduling_policy": _moot("first come, first served", only=("fcfs", None)),
    "actor_rollout_ref.rollout.logprobs_mode": _moot(
        "log-probabilities are those at the sampling temperature, over the full vocabulary"
    ),
    "actor_rollout_ref.rollout.trace.*": _moot("trainer.trace_file draws every episode"),
    "actor_rollout_ref.rollout.prometheus.*": _moot("the engine's numbers are among the metrics"),
    "actor_rollout_ref.rollout.checkpoint_engine.*": _moot("engine.sglang.transport decides how weights travel"),
    "actor_rollout_ref.rollout.quantization": _moot("weights are as they are trained", only=(None,)),
    "actor_rollout_ref.model.tiled_mlp.*": _moot("layers are computed whole; it changes no result"),
    "actor_rollout_ref.model.fused_kernel_options.*": _moot("transformers' own kernels are used"),
    "data.tool_config_path": _moot("tools belong to environments", only=(None,)),
    "data.function_tool_path": _moot("tools belong to environments", only=(None,)),
    # ---- critic
    "critic.enable": _moot("there is a critic exactly where the estimator needs one"),
    "critic.strategy": _moot("FSDP2, by trainer.fsdp"),
    "critic.optim.lr": _to("critic.lr"),
    "critic.optim.weight_decay": _to("critic.weight_decay"),
    "critic.optim.clip_grad": _to("critic.grad_clip"),
    "critic.optim.betas": _to("critic.betas"),
    "critic.optim.lr_warmup_steps": _joint("critic_warmup", "-1 takes lr_warmup_steps_ratio"),
    "critic.optim.lr_warmup_steps_ratio": _joint("critic_warmup", "the share of all optimizer steps"),
    "critic.optim.lr_scheduler_type": _moot("the critic's learning rate stays", only=("constant", None)),
    "critic.grad_clip": _to("critic.grad_clip"),
    "critic.cliprange_value": _to("critic.cliprange_value"),
    "critic.model.path": _joint("critic_model", "the critic starts from the actor's weights, so it must be its model"),
    "critic.model.tokenizer_path": _moot("the tokenizer is the model's"),
    "critic.model.enable_gradient_checkpointing": _moot("as the actor's"),
    "critic.model.use_remove_padding": _moot("as the actor's"),
    "critic.model.fsdp_config.*": _moot(_FSDP),
    "critic.model.trust_remote_code": _moot("code of a model's folder is never run", only=_OFF),
    "critic.model.lora_rank": _moot("all of the critic's weights are trained", only=(0, None)),
    "critic.fsdp.*": _moot(_FSDP),
    "critic.ppo_mini_batch_size": _joint("critic_batch", "the critic's mini-batches are the actor's"),
    "critic.ppo_epochs": _joint("critic_epochs", "the critic's passes are the actor's"),
    "critic.ppo_micro_batch_size": _moot(_BUDGET),
    "critic.ppo_micro_batch_size_per_gpu": _moot(_BUDGET),
    "critic.forward_micro_batch_size": _moot(_BUDGET),
    "critic.forward_micro_batch_size_per_gpu": _moot(_BUDGET),
    "critic.use_dynamic_bsz": _moot(_BUDGET),
    "critic.ppo_max_token_len_per_gpu": _moot(_BUDGET),
    "critic.forward_max_token_len_per_gpu": _moot(_BUDGET),
    "critic.ulysses_sequence_parallel_size": _moot("a sequence is computed by one process", only=_ONE),
    "critic.shuffle": _moot("every epoch draws its mini-batches anew"),
    "critic.loss_agg_mode": _moot("the critic's loss is the mean over tokens", only=("token-mean", None)),
    # ---- rewards
    "reward.custom_reward_function.path": _to("custom_reward_function.path"),
    "reward.custom_reward_function.name": _to("custom_reward_function.name"),
    "reward_model.enable": _joint("reward_model", _REWARD_MODEL),
    "reward.reward_model.enable": _joint("reward_model", _REWARD_MODEL),
    "reward_model.model.path": _joint("reward_model", "reward_model.classifier.path"),
    "reward.reward_model.model_path": _joint("reward_model", "reward_model.classifier.path"),
    "reward_model.model.input_tokenizer": _moot(_CHAT),
    "reward_model.model.external_lib": _moot("nothing is imported on the side", only=(None,)),
    "reward_model.model.trust_remote_code": _moot("code of a model's folder is never run", only=_OFF),
    "reward_model.model.use_remove_padding": _moot("lengths are padded to reward_model.classifier.bucket"),
    "reward_model.model.fsdp_config.*": _moot("a worker has the whole model"),
    "reward_model.max_length": _joint("reward_model", "reward_model.classifier.max_length"),
    "reward_model.micro_batch_size": _moot("give micro_batch_size_per_gpu instead", only=(None,)),
    "reward_model.micro_batch_size_per_gpu": _joint("reward_model", "reward_model.classifier.rows"),
    "reward_model.use_dynamic_bsz": _moot("reward_model.max_batch_tokens bounds a batch"),
    "reward_model.forward_max_token_len_per_gpu": _joint("reward_model", "reward_model.max_batch_tokens"),
    "reward_model.ulysses_sequence_parallel_size": _moot("a worker has the whole sequence", only=_ONE),
    "reward_model.strategy": _moot("a worker has the whole model"),
    "reward_model.enable_resource_pool": _joint("reward_model", _REWARD_POOL),
    "reward_model.n_gpus_per_node": _joint("reward_model", "above 0 with enable_resource_pool"),
    "reward_model.nnodes": _joint("reward_model", "above 0 with enable_resource_pool"),
    "reward.reward_model.enable_resource_pool": _joint("reward_model", _REWARD_POOL),
    "reward.reward_model.n_gpus_per_node": _joint("reward_model", "above 0 with enable_resource_pool"),
    "reward.reward_model.nnodes": _joint("reward_model", "above 0 with enable_resource_pool"),
    "reward_model.rollout.*": _moot(_SERVED),
    "reward.reward_model.rollout.*": _moot(_SERVED),
    "reward_model.reward_manager": _moot("rewards are scored as each episode ends", only=("naive", None)),
    "reward.reward_manager.name": _moot("rewards are scored as each episode ends", only=("naive", None)),
    "reward_model.num_workers": _to("custom_reward_function.workers"),
    "reward.num_workers": _to("custom_reward_function.workers"),
    "reward_model.launch_reward_fn_async": _moot("rewards are always awaited beside the next turns"),
    # ---- algorithm
    "algorithm.adv_estimator": _to(
        "algorithm.adv_estimator",
        words={"grpo_vectorized": "grpo", "rloo_vectorized": "rloo", "reinforce_plus_plus": "reinforce_pp"},
    ),
    "algorithm.kl_penalty": _to("algorithm.kl_penalty", words=_KL),
    "algorithm.norm_adv_by_std_in_grpo": _joint("norm_by_std", "algorithm.norm_by_std, where the estimator is grpo"),
    "algorithm.filter_groups.enable": _to("rollout.filter_zero_variance"),
    "algorithm.filter_groups.metric": _moot("groups are compared by the sum of their rewards"),
    "algorithm.filter_groups.max_num_gen_batches": _moot(
        "rollout.max_consecutive_filtered counts groups, not batches", only=(0, None)
    ),
    "algorithm.rollout_correction.rollout_is": _to(
        "actor.importance_correction", words={"token": "token_tis", "sequence": "sequence_tis", None: "none"}
    ),
    "algorithm.rollout_correction.rollout_is_threshold": _to("actor.tis_cap"),
    "algorithm.rollout_correction.rollout_rs": _to("actor.rejection", words={None: "none"}),
    "algorithm.rollout_correction.bypass_mode": _to("actor.old_logprobs", words={True: "rollout", False: "recompute"}),
    "algorithm.use_pf_ppo": _moot("batches are used as they are", only=_OFF),
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
    "trainer.max_actor_ckpt_to_keep": _to("trainer.keep_last_n"),
    "trainer.max_critic_ckpt_to_keep": _moot("actor and critic are in one checkpoint"),
    "trainer.default_hdfs_dir": _moot("checkpoints are folders on this disk", only=(None,)),
    "trainer.del_local_ckpt_after_load": _moot("trainer.keep_last_n decides", only=_OFF),
    "trainer.log_val_generations": _moot("sample conversations are shown at the end; see validation_data_dir"),
    "trainer.ray_wait_register_center_timeout": _moot("the trainer is one process, without Ray"),
    "trainer.use_v1": _moot("there is one trainer"),
    "trainer.use_legacy_worker_impl": _moot("there is one trainer"),
    "trainer.v1.trainer_mode": _moot("rollout.staleness makes a run asynchronous", only=("sync", None)),
    "trainer.esi_redundant_time": _moot("a checkpoint is saved when the process is asked to stop"),
    "global_profiler.steps": _to("trainer.profile_steps"),
    "global_profiler.tool": _joint("nsight", "`torch` is the default, and `nsys` sets cluster.nsight"),
    "global_profiler.global_tool_config.nsys.worker_nsight_options.*": _joint("nsight", "cluster.nsight.NAME"),
    "global_profiler.global_tool_config.nsys.controller_nsight_options.*": _moot(_DRIVER),
    "global_profiler.global_tool_config.nsys.discrete": _moot("an iteration is one range", only=_OFF),
    "ray_init.num_cpus": _joint("ray", "ray_init.num_cpus, where Ray is used"),
    "ray_kwargs.ray_init.num_cpus": _joint("ray", "ray_init.num_cpus, where Ray is used"),
    "ray_init.timeline_json_file": _joint("ray", "ray_init.timeline_json_file with Ray, trainer.trace_file without"),
    "ray_kwargs.timeline_json_file": _joint("ray", "ray_init.timeline_json_file with Ray, trainer.trace_file without"),
    "trainer.worker_nsight_options.*": _joint("nsight", "cluster.nsight.NAME"),
    "trainer.controller_nsight_options.*": _moot(_DRIVER),
    "actor_rollout_ref.profiler.*": _moot("trainer.profile_steps profiles the whole process"),
}

#: Of `python -m trainers.generate`.
GENERATE: Mapping[str, Rule] = {
    "trainer.nnodes": _joint("cluster", "engine.replicas, and with several machines cluster.nnodes and backend"),
    "trainer.n_gpus_per_node": _joint("cluster", "engine.replicas: each has as many GPUs as it is cut into"),
    "trainer.device": _to("model.device"),
    "model.external_lib": _moot("nothing is imported on the side", only=(None,)),
    "data.apply_chat_template_kwargs": _joint("chat_template", _TEMPLATE),
    "data.apply_chat_template_kwargs.*": _joint("chat_template", _TEMPLATE),
    "rollout.name": _joint("engine", "engine.name"),
    "rollout.mode": _moot("requests are always asynchronous"),
    "rollout.tensor_model_parallel_size": _joint("engine", _ENGINE),
    "rollout.gpu_memory_utilization": _joint("engine", _ENGINE),
    "rollout.enforce_eager": _joint("engine", _ENGINE),
    "rollout.max_num_batched_tokens": _joint("engine", _ENGINE),
    "rollout.enable_chunked_prefill": _joint("engine", _ENGINE),
    "rollout.max_num_seqs": _to("engine.max_slots"),
    "rollout.max_model_len": _moot("prompt_length + response_length", only=(None,)),
    "rollout.temperature": _to("rollout.temperature"),
    "rollout.top_k": _to("rollout.top_k", words={-1: 0}),
    "rollout.top_p": _to("rollout.top_p", words={1: 1.0}),
    "rollout.dtype": _to("model.dtype"),
    "rollout.do_sample": _moot("rollout.temperature=0 decodes greedily", only=(True, None)),
    "rollout.n": _moot("data.n_samples decides", only=_ONE),
    "rollout.free_cache_engine": _moot("the engine has the machine to itself"),
    "rollout.load_format": _moot("the engine starts with the model's weights"),
    "rollout.disable_log_stats": _moot("the engine's numbers are not shown"),
    "rollout.calculate_log_probs": _moot("the file has texts and lengths"),
    "rollout.log_prob_micro_batch_size": _moot("nothing is computed a second time"),
    "rollout.log_prob_micro_batch_size_per_gpu": _moot("nothing is computed a second time"),
    "actor.*": _moot("nothing is trained"),
    "ray_init.num_cpus": _joint("cluster", "ray_init.num_cpus, where Ray is used"),
    "ray_init.timeline_json_file": _joint("cluster", "ray_init.timeline_json_file, where Ray is used"),
}

#: Of `python -m trainers.evaluate`.
EVALUATE: Mapping[str, Rule] = {
    "data.prompt_key": _moot("prompts are not read: extra_info is what a function gets beside the reply"),
    "ray_init.num_cpus": _to("custom_reward_function.workers", words={None: 2}),
    "ray_kwargs.ray_init.num_cpus": _to("custom_reward_function.workers", words={None: 2}),
    "ray_init.timeline_json_file": _moot("processes of this machine score, without Ray", only=(None,)),
    "ray_kwargs.timeline_json_file": _moot("processes of this machine score, without Ray", only=(None,)),
}

#: What verl does where a command of its own says nothing and our default is another: our keys. Keys that depend on
#: others (lengths, batches, the environment) are computed by the rules of :mod:`.translate` from :data:`VERL_VALUES`.
DEFAULTS: Mapping[str, Any] = {
    "model.dtype": "bfloat16",
    "algorithm.adv_estimator": "gae",
    "rollout.n": 1,
    "actor.lr": 1e-6,
    "actor.lr_warmup_steps": 0,
    "actor.lr_schedule": "constant",
    "actor.betas": [0.9, 0.999],
    "actor.weight_decay": 0.01,
    "actor.clip_ratio_low": 0.2,
    "actor.clip_ratio_high": 0.2,
    "actor.clip_ratio_c": 3.0,
    "actor.old_logprobs": "recompute",
    "actor.entropy_coeff": 0.0,
    "actor.loss_agg_mode": "token-mean",
    "actor.kl_loss_type": "low_var_kl",
    "critic.lr": 1e-5,
    "critic.weight_decay": 0.01,
    "validation.temperature": 0.0,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
}

#: verl's own defaults that a joint rule starts from.
VERL_VALUES: Mapping[str, Any] = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.rollout.agent.default_agent_loop": "single_turn_agent",
    "trainer.total_epochs": 30,
}

#: What Nsight is told there of a worker.
NSIGHT: Mapping[str, Any] = {
    "trace": "cuda,nvtx,cublas,ucx",
    "cuda-memory-usage": "true",
    "cuda-graph-trace": "graph",
    "capture-range": "cudaProfilerApi",
    "kill": "none",
}

#: verl's engines, by ``rollout.name``.
ENGINES: Mapping[str, str] = {
    "vllm": "vllm",
    "vllm_async": "vllm",
    "sglang": "sglang",
    "sglang_async": "sglang",
    "hf": "torch",
    "torch": "torch",
}

#: The environment that plays what one of verl's loops plays, by ``agent_name``.
AGENT_LOOPS: Mapping[str, str] = {
    "single_turn_agent": "textenv/gsm8k",
    "tool_agent": "textenv/gsm8k-tool",
    "react_agent": "textenv/math-expression",
    "math_expression": "textenv/math-expression",
}


@dataclass(frozen=True)
class Interaction:
    """The environment with the user that one of verl's interaction classes is, and options it needs to be like it."""

    env: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


#: By the last part of ``class_name``.
INTERACTIONS: Mapping[str, Interaction] = {
    "Gsm8kInteraction": Interaction(
        "textenv/gsm8k-interact",
        {"method": "strict", "feedback": "none", "extra_turn": 0.0},
        "says only that a reply is wrong; a right reply pays 1 at any turn",
    ),
}
