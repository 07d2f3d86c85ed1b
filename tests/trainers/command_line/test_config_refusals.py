"""Refusals of keys and values: each rule once, with the words of its error.

Conflicts of keys are here, whatever part reads the keys. What files, models and machines decide is tested with the code
that reads these, and `test_refusals_at_commands` shows that every command passes refusals on.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trainers.command_line import ConfigError, resolve
from trainers.config import PPOConfig, SFTConfig
from trainers.config.commands import EvaluateConfig, GenerateConfig
from trainers.config.describe import all_keys
from trainers.section import Section

#: Arguments, and words of their only problem. Words in capitals stand for the arguments in `NAMES`.
PPO = r"""
# No key, no value, no file
actor.lrr=1 -> actor.lrr: unknown key; did you mean actor.lr?
actr.lr=1 -> did you mean actor.lr
actr={} -> actr: unknown key
adv_estimator=grpo -> did you mean algorithm.adv_estimator?
rollout.max_respons_length=3 -> did you mean rollout.max_response_length?
qqqq=1 -> qqqq: unknown key  [command line]
engine.vllm.pyhton=x -> did you mean engine.vllm.python?
actor=5 -> is a section, not a key; it has actor.lr
actor.lr.x=1 -> actor.lr is a value (a number > 0)
actor -> expected key=value, --config FILE, --dry-run [--plan-for GPUS@GIB] or --help
--verbose -> expected key=value, --config FILE, --dry-run [--plan-for GPUS@GIB] or --help
--config -> needs a value after it
--config=nowhere.yaml -> nowhere.yaml: no such file
'env.kwargs={a: ' -> is not YAML
'env.kwargs={a: 1, a: 2}' -> 'a' stands twice
data.train_files=nowhere.jsonl -> data.train_files: there is no file nowhere.jsonl
data.val_files=model/config.json -> neither .jsonl nor .parquet
model.path=nowhere -> model.path: nowhere is not a folder with a config.json
algorithm.reward_credit=none/there.py:f -> there is no file none/there.py
algorithm.reward_credit=score.py:nobody -> score.py has no function nobody
algorithm.reward_credit=rows.jsonl:f -> rows.jsonl cannot be read as Python
algorithm.reward_credit=sideways -> must be one of as_earned, last, spread, discounted, or FILE.py:FUNCTION

# A value of another kind or range
actor.lr=fast -> actor.lr: fast is not allowed; it must be a number > 0
actor.lr=0 -> actor.lr: 0 is not allowed; it must be a number > 0
actor.lr=.inf -> it must be a number > 0
actor.lr=true -> it must be a number > 0
rollout.n=2.0 -> it must be an integer >= 1
rollout.n=1000000000000 -> it must be an integer >= 1 and <= 65536
rollout.max_response_tokens=1000000000000 -> is not allowed; an integer is at most 2147483647
rollout.step_timeout_s=1e300 -> is not allowed; at most 1,000,000,000 seconds are possible
rollout.top_p=1.5 -> it must be a number > 0 and <= 1
rollout.max_running=many -> it must be an integer >= 1 and <= 1048576, or auto, or null
rollout.max_running=0 -> it must be an integer >= 1 and <= 1048576, or auto, or null
trainer.test_freq=0 -> it must be -1, or an integer >= 1
trainer.logger=[console,swanlab] -> [console, swanlab] is not allowed; it must be one of console, jsonl
actor.betas=[0.9] -> [0.9] is not allowed; it must be a list of 2: a number >= 0 and < 1; a number >= 0
actor.betas=[0.9,1] -> [0.9, 1] is not allowed; it must be a list of 2
algorithm.adv_estimator=ppo -> one of gae, turn_gae, bilevel_gae, grpo
algorithm.adv_estimator=fork algorithm.baseline=shrunk -> algorithm.baseline: shrunk is not allowed
env.kwargs=5 -> env.kwargs: 5 is not allowed; it must be a mapping
engine.name=vlm -> it must be one of torch, vllm, sglang
engine.name=[vllm] -> engine.name: [vllm] is not allowed; it must be one of torch, vllm, sglang

# The model and the learner
model.hidden=100 -> model.hidden: is 100; it must be a multiple of 2 * model.heads = 8
model.kv_heads=3 -> which does not divide model.heads=4
model.path=model model.hidden=64 -> model.hidden: has no effect without model.path=tiny
model.target_modules=[q_proj] -> model.target_modules: has no effect without model.lora_rank
model.lora_publish=adapter -> model.lora_publish: has no effect without model.lora_rank
model.lora_rank=2 model.lora_publish=adapter engine.name=sglang -> engine.name=sglang takes whole weights
model.lora_rank=2 model.target_modules=q_proj -> model.target_modules: is 'q_proj'; it must be a list of names
model.enable_activation_offload=true -> has no effect without model.enable_gradient_checkpointing=true
trainer.offload=true model.device=cpu -> trainer.offload: has no effect with model.device=cpu
trainer.tensor_parallel_size=4 -> trainer.tensor_parallel_size: is 4, which does not divide model.kv_heads=2
cluster.learner_ranks=2 trainer.fsdp=never -> trainer.fsdp: must not be never with cluster.learner_ranks=2
actor.mini_batches=129 -> a batch has only 128 episodes
actor.max_tokens_per_micro_batch=511 -> the longest episode
critic.lr=0.1 -> critic.lr: has no effect with algorithm.adv_estimator=turn_grpo
algorithm.adv_estimator=gae critic.warmup=120 -> critic.warmup: is 120: the policy would not be trained
model.path=model warm_start.steps=3 -> warm_start.steps: has no effect without model.path=tiny or warm_start.enable
warm_start.files=rows.jsonl warm_start.mistake_rate=0 -> warm_start.mistake_rate: has no effect with warm_start.files

# The algorithm
algorithm.lam=0.5 -> has no effect with algorithm.adv_estimator=turn_grpo; it is read with gae, turn_gae
algorithm.turn_gamma=0.5 -> has no effect without algorithm.adv_estimator=bilevel_gae
algorithm.anchor=history -> it is read with gigpo, gagpo, graphgpo
algorithm.distance_discount=0.5 -> has no effect without algorithm.adv_estimator=graphgpo
algorithm.adv_estimator=reinforce_pp algorithm.norm_adv=true -> has no effect with algorithm.adv_estimator=reinforce_pp
algorithm.adv_estimator=fork algorithm.zero_pad=true -> has no effect
algorithm.baseline=optimal_token algorithm.zero_pad=true -> optimal_token
algorithm.baseline=optimal_token algorithm.outcome_mix=0.5 -> optimal_token
algorithm.baseline=optimal_token algorithm.norm_by_std=true -> optimal_token
algorithm.adv_estimator=passk rollout.n=4 -> algorithm.pass_k: is 4; it must be below rollout.n=4
algorithm.gdpo_reward_keys=[a] -> algorithm.gdpo_reward_keys: has no effect without algorithm.adv_estimator=g
GDPO algorithm.gdpo_reward_weights=[1] -> algorithm.gdpo_reward_weights: needs algorithm.gdpo_reward_keys
GDPO algorithm.gdpo_reward_keys=[a,a] -> algorithm.gdpo_reward_keys: names a term twice
GDPO algorithm.use_kl_in_reward=true -> algorithm.use_kl_in_reward: has no effect with gdpo
GDPO algorithm.norm_adv=true -> algorithm.norm_adv: has no effect with algorithm.adv_estimator=gdpo
GDPO algorithm.reward_credit=spread -> algorithm.reward_credit: has no effect with algorithm.adv_estimator=gdpo
algorithm.reward_credit_decay=0.5 -> has no effect without algorithm.reward_credit=discounted
algorithm.gamma=null -> algorithm.gamma: null is not allowed; it must be a number >= 0 and <= 1
algorithm.kl_penalty=k3 -> algorithm.kl_penalty: has no effect without algorithm.use_kl_in_reward=true or
algorithm.kl_ctrl.horizon=5 -> algorithm.kl_ctrl.horizon: has no effect without algorithm.use_kl_in_reward
ADAPTIVE algorithm.kl_ctrl.kl_coef=0 -> algorithm.kl_ctrl.kl_coef: is 0, and
ADAPTIVE algorithm.kl_ctrl.horizon=25.6 -> algorithm.kl_ctrl.horizon: is 25.6; with 128 episodes a batch
fork.samples=2 -> fork.samples: has no effect without algorithm.adv_estimator=fork
FORK algorithm.reward_credit=last -> a fork has but some of its root's
FORK rollout.filter_zero_variance=true -> would drop groups
FORK rollout.filter_variance_top_p=0.9 -> rollout.filter_variance_top_p: ranks groups by total rewards: with
algorithm.adv_estimator=gdpo rollout.filter_variance_top_p=0.9 -> terms differ and add up to the same
rollout.filter_variance_top_p=0.9 rollout.filter_zero_variance=true -> rollout.filter_variance_top_p: drops groups
rollout.filter_variance_top_p=0.9 rollout.groups_per_batch=1 -> rollout.groups_per_batch: must be at least 2 with
rollout.n=1 algorithm.adv_estimator=gae rollout.filter_variance_top_p=0.9 -> rollout.n: must be at least 2 with
FORK actor.policy_loss=gspo -> gspo_token

rollout.n=1 algorithm.adv_estimator=gae rollout.filter_zero_variance=true -> rollout.n: must be at least 2 with

# The loss
actor.policy_loss=gspo -> algorithm.adv_estimator=turn_grpo gives turns or tokens their own
actor.policy_loss=geo_mean -> geo_mean spreads each advantage over its whole episode
GSPO actor.clip_ratio_c=3 -> actor.clip_ratio_c: has no effect with actor.policy_loss=gspo
GSPO RECOMPUTE actor.importance_correction=token_tis -> actor.importance_correction: gspo is of whole episodes
GSPO RECOMPUTE actor.rejection=token -> actor.rejection: gspo is of whole episodes
actor.tau_neg=2 -> actor.tau_neg: has no effect without actor.policy_loss=sapo
actor.clip_cov_ub=2 -> actor.clip_cov_ub: has no effect without actor.policy_loss=clip_cov
actor.ppo_kl_coef=2 -> actor.ppo_kl_coef: has no effect without actor.policy_loss=kl_cov
actor.policy_loss=sapo actor.clip_ratio_high=0.1 -> actor.clip_ratio_high: has no effect with actor.policy_loss=sapo
actor.policy_loss=sapo actor.clip_ratio_c=3 -> actor.clip_ratio_c: has no effect with actor.policy_loss=sapo
actor.policy_loss=clip_cov actor.clip_cov_lb=5 -> actor.clip_cov_lb: is 5; it must be below actor.clip_cov_ub
actor.kl_loss_coef=0.1 -> actor.kl_loss_coef: has no effect without actor.use_kl_loss=true
actor.kl_loss_type=k1 -> actor.kl_loss_type: has no effect without actor.use_kl_loss=true
actor.rejection=token -> needs actor.old_logprobs=recompute
actor.importance_correction=decoupled -> needs actor.old_logprobs=recompute
actor.rejection_high=2 -> has no effect with actor.rejection=none
actor.rejection_kl=2 -> has no effect with actor.rejection=none
actor.importance_batch_normalize=true -> has no effect with actor.importance_correction=none
actor.tis_cap=3 -> has no effect with actor.importance_correction=none
RECOMPUTE actor.rejection=token_k3 -> actor.rejection_kl: is null; actor.rejection=token_k3
RECOMPUTE actor.rejection=token_k2 actor.rejection_kl=1 actor.rejection_low=0.1 -> has no effect with actor.rejection=

# Tasks and environments
data.longest_prompt=9 -> no effect without data.filter_overlong_prompts
data.filter_overlong_prompts=true data.longest_prompt=512 -> engine.max_context=512 does not hold
data.chat_template_kwargs.tokenize=true -> data.chat_template_kwargs.tokenize: cannot be given
env.mixture.a.kwarg=1 -> did you mean env.mixture.a.kwargs
env.mixture.a.kwarg={} -> did you mean env.mixture.a.kwargs
'env.mixture={a: 3}' -> env.mixture.a: 3 is not allowed; it must be a mapping of keys to values
"env.mixture={'': {}}" -> env.mixture.: a name in it is empty or null
env.mixture.kwargs.level=easy -> the entry's NAME is missing: it is env.mixture.NAME.kwargs.level
env.mixture.a/b.weight=2 -> env.mixture: names a component 'a/b'; a name has letters
env.mixture.a.weight=0 -> env.mixture.a.weight: 0
MIXTURE env.id=textenv/clarify -> env.id: is of one environment
MIXTURE env.kwargs.level=hard -> give env.mixture.NAME.kwargs
MIXTURE data.train_files=rows.jsonl -> give env.mixture.NAME.kwargs.tasks
MIXTURE data.val_files=rows.jsonl -> give env.mixture.NAME.val_kwargs.tasks
env.mixture.a.kwargs.tasks=rows.jsonl -> validation would be on the tasks
env.kwargs.tasks=rows.jsonl -> env.kwargs.tasks: is a file, rows.jsonl: validation would be on the tasks
env.curriculum.floor=0.2 -> env.curriculum.floor: has no effect
env.mixture.a.success_reward=1 -> success_reward: has no effect
env.curriculum.kind=signal rollout.n=1 algorithm.adv_estimator=remax -> needs rollout.n of at least 2
env.assistant.model=x -> env.assistant: has no effect without env.train_side=user
env.user_reward=opposed -> env.user_reward: has no effect with env.train_side=policy
USER env.kwargs.user.model=x -> env.user has its options
USER env.user.model=x -> known are persona
USER env.user.format=json -> known are persona
env.id=textenv/clarify env.train_side=user warm_start.enable=true -> textenvs users dialogues
BOTH env.backend=thread -> use process
BOTH env.frozen.user.model=x -> env.frozen: does not go with env.train_side=both, which trains every role
USER env.frozen.user.model=x -> which has its own: env.assistant
MIXTURE env.frozen.player-1.model=x -> env.frozen: is of one environment
BOTH rollout.cut_reply_penalty=1 -> assistant's turns
BOTH algorithm.adv_estimator=remax -> only the assistant's side

# Episodes, rewards and the run
rollout.window=2 -> rollout.window: is 2; with rollout.staleness=0
rollout.max_response_length=512 -> leaves no room for a prompt
rollout.max_consecutive_filtered=9 -> has no effect without rollout.filter_zero_variance=true or
rollout.keep_sampling_mask=true -> rollout.top_k: is 0; rollout.keep_sampling_mask=true needs it from 1 to 1024
MASK rollout.top_k=1025 -> rollout.top_k: is 1025; rollout.keep_sampling_mask=true needs it from 1 to 1024
MASK engine.name=vllm -> rollout.keep_sampling_mask: needs engine.name=torch
overlong_buffer.len=8 -> overlong_buffer.len: has no effect without overlong_buffer.enable=true
OVERLONG rollout.max_response_tokens=null -> rollout.max_response_tokens: is null; overlong_buffer
OVERLONG rollout.max_response_tokens=7 -> overlong_buffer.len: is 8; it is at most rollout.max_response_tokens=7
relative_length.tokens=0.1 rollout.n=1 algorithm.adv_estimator=gae -> relative_length.tokens: compares the successes
relative_length.tokens=0.1 rollout.filter_zero_variance=true -> relative_length.tokens: compares groups in which all
relative_length.tokens=0.1 rollout.filter_variance_top_p=0.9 -> relative_length.tokens: compares groups in which all
BOTH actor.observation_loss=0.01 -> actor.observation_loss: does not go with env.train_side=both: there, answers are
relative_length.turns=0.1 algorithm.adv_estimator=gdpo -> relative_length.turns: does not go with
relative_length.turns=0.1 algorithm.adv_estimator=fork -> relative_length.turns: does not go with
OVERLONG rollout.max_response_tokens=8 LOOK -> overlong_buffer.enable: would charge the last turn alone
multiturn_reward.window=3 -> has no effect without multiturn_reward.enable=true
LOOK multiturn_reward.replace=false -> multiturn_reward.replace: is false, and what the environment pays counts
LOOK algorithm.gamma=0.9 -> must not be added up
multiturn_reward.enable=true algorithm.adv_estimator=rloo -> turn_gae, turn_grpo, fork
LOOK algorithm.outcome_mix=0.5 -> algorithm.outcome_mix: adds up
LOOK multiturn_reward.credit=difference custom_reward_function.path=score.py -> both replace
LOOK custom_reward_function.path=score.py custom_reward_function.replace=false -> would pay the last turn alone
LOOK multiturn_reward.credit=difference env.curriculum.reverse_share=0.5 -> begins in the middle would earn
LOOK 'multiturn_reward.judge_kwargs={model: tiny}' -> has no effect without multiturn_reward.judge
LOOK multiturn_reward.temperature=1e-6 -> multiturn_reward.temperature: is 1e-06
LOOK env.val_kwargs.compact.tokens=50 -> multiturn_reward.enable: does not go with env.val_kwargs.compact
env.kwargs.compact.tokens=512 -> env.kwargs.compact.tokens: is 512: a conversation ends at engine.max_context=512
env.mixture.a.kwargs.compact.tokens=600 -> env.mixture.a.kwargs.compact.tokens: is 600
trainer.resume_mode=resume_path -> trainer.resume_from_path: must be given with
trainer.resume_from_path=model -> has no effect without trainer.resume_mode=resume_path
trainer.rollout_data_dir=a trainer.validation_data_dir=./a -> trainer.validation_data_dir: is trainer.rollout_data_dir
trainer.profile_steps=[3,121] -> trainer.profile_steps: has 121, and there are trainer.total_iterations=120

# The engine
engine.vllm.python=x -> engine.vllm.python: has no effect without engine.name=vllm
engine.vllm.block_size=32 -> engine.vllm.block_size: has no effect without engine.name=vllm
engine.vllm.base_url=http://x -> engine.vllm.base_url: has no effect without engine.name=vllm
engine.sglang.seeds=false -> engine.sglang.seeds: has no effect without engine.name=sglang
engine.tensor_parallel_size=2 -> engine.tensor_parallel_size: has no effect
rollout.temperature=1e-6 -> with engine.name=torch it is at least 1e-05
validation.temperature=1e-6 -> it is at least 1e-05, or 0, which is greedy
engine.name=vllm rollout.temperature=0.005 -> rollout.temperature: is 0.005
engine.name=vllm validation.temperature=0.005 -> validation.temperature: is 0.005
engine.name=sglang rollout.min_p=0.1 -> only where engine.sglang.seeds=false
engine.name=sglang engine.sglang.server_args=[--tp=2] -> give engine.tensor_parallel_size instead
VLLM engine.vllm.args.tensor_parallel_size=1 -> args.tensor_parallel_size: give engine.tensor_parallel_size
VLLM engine.vllm.args.max_num_seqs=4 -> engine.vllm.args.max_num_seqs: is decided by other options
VLLM engine.weight_transport=ipc engine.vllm.update_folder=x -> engine.vllm.update_folder: has no effect
VLLM engine.vllm.base_url=[http://x,host:1] -> must begin with http://
VLLM engine.vllm.base_url=[http://x,http://x] -> engine.vllm.base_url: names a server twice
VLLM engine.vllm.base_url=[http://x,http://y] engine.replicas=2 -> engine.replicas: is 2; each address
VLLM engine.vllm.base_url=http://x engine.threads=2 -> engine.threads: has no effect with engine.vllm.base_url=
VLLM engine.vllm.base_url=http://x engine.vllm.python=p -> engine.vllm.python: has no effect
VLLM engine.vllm.base_url=http://x engine.vllm.args.x=1 -> engine.vllm.args: has no effect
engine.name=sglang engine.sglang.base_url=http://x engine.threads=2 -> has no effect with engine.sglang.base_url=
engine.name=sglang engine.sglang.base_url=http://x engine.sglang.python=p -> engine.sglang.python: has no effect
engine.name=sglang engine.sglang.base_url=http://x engine.sglang.server_args=[x] -> server_args: has no effect

# The cluster
cluster.learner_ranks=2 cluster.backend=local -> cluster.backend: is local, which is one learner rank in this process
cluster.bucket_mib=1 -> cluster.bucket_mib: has no effect
cluster.cpus_per_env=1 -> cluster.cpus_per_env: has no effect
cluster.start_timeout_s=9 -> cluster.start_timeout_s: has no effect without cluster.backend=ray or env.backend
cluster.nsight.t=cuda -> has no effect without cluster.backend=ray
RAY cluster.nsight.capture-range=cudaProfilerApi -> trainer.profile_steps: is empty
RAY cluster.nsight.capture-range=cudaProfilerApi trainer.profile_steps=[1] model.device=cpu -> calls no CUDA
ray_init.num_cpus=4 -> ray_init.num_cpus: has no effect
RAY ray_init.address=auto ray_init.num_cpus=4 -> ray_init.num_cpus: has no effect

# Reward models, as the section of one and as entries
reward_model.enable_resource_pool=true -> has no effect without reward_model.enable=true
reward_model.enable=true -> reward_model.classifier.path: must be given
reward_model.enable=true reward_model.kind=service -> reward_model.service.url: must be given
reward_model.enable=true reward_model.kind=judge -> reward_model.judge.model: must be given
reward_model.enable=1 -> reward_model.enable: 1 is not allowed; it must be true or false
JUDGE 'reward_model.name=two words' -> reward_model.name: two words is not allowed
JUDGE reward_model.wieght=1 -> reward_model.wieght: unknown key; did you mean reward_model.weight?
JUDGE reward_model.nnodes=2 -> reward_model.nnodes: has no effect without reward_model.enable_resource_pool=true
JUDGE POOL reward_model.nnodes=2 -> reward_model.nnodes: is 2; several machines need
JUDGE POOL reward_model.classifier.replicas=2 -> has no effect without reward_model.enable_resource_pool=false
JUDGE POOL reward_model.learner_spans_pool=true rollout.staleness=1 -> needs rollout.staleness=0, not 1
JUDGE POOL reward_model.learner_spans_pool=true cluster.colocate=false -> needs cluster.colocate=true
JUDGE reward_model.judge.model=m -> reward_model.judge.model: has no effect without
JUDGE reward_model.classifier.threads=2 -> has no effect without cluster.backend=ray
JUDGE reward_model.weight=0 -> no score would count
JUDGE reward_model.name=custom -> the name of another reward's term
JUDGE custom_reward_function.path=score.py -> would both replace the environment's reward
reward_models.a=judge -> reward_models.a: judge is not allowed; it must be a mapping of keys to values
reward_models.a.name=null -> reward_models.a.name: null is not allowed; it must be text like
'reward_models={null: {weight: 2}}' -> reward_models..weight: a name in it is empty or null
reward_models.kind=judge -> the entry's NAME is missing: it is reward_models.NAME.kind
reward_models.judge.model=x -> the entry's NAME is missing: it is reward_models.NAME.judge.model
reward_models.a.kind={} -> reward_models.a.kind: {} is not allowed; it must be one of classifier
reward_models.three={} -> reward_models.three.classifier.path: must be given
TWO reward_models.one.enable=false -> enable: is false, and what is in reward_models is in use
TWO reward_models.one.enable_resource_pool=true reward_models.two.enable_resource_pool=true -> as well; one
TWO reward_models.one.enable_resource_pool=true reward_models.one.learner_spans_pool=true -> leaves no place for
TWO reward_models.one.replace=false -> must be the same for all reward models (reward_models.one.replace=f
TWO reward_models.one.name=three -> reward_models.one.name: is three, and it is named by its key
TWO reward_models.one.weight=0 -> reward_models.one.weight: is 0: no score would count
TWO reward_models.one.knd=judge -> did you mean reward_models.one.kind?
TWO reward_models.one.kind=jugde -> one of classifier, service, judge
TWO reward_models.one.classifier.rows=0 -> reward_models.one.classifier.rows: 0 is not allowed
TWO reward_models.one.classifier=3 -> unknown key of reward_models.one
TWO reward_models.one.classifier.path=nowhere -> not a folder with a config.json
TWO reward_models.one.judge.chat.seed=1 -> has no effect without reward_models.one.kind=judge
reward_models.custom.kind=judge reward_models.custom.judge.model=m -> the name of another reward's term
"""

SFT = """
sft.stepps=3 -> sft.stepps: unknown key; did you mean sft.steps
sft.files=none.jsonl -> sft.files: there is no file none.jsonl
model.path=nowhere -> model.path: nowhere is not a folder
rollout.n=3 -> rollout.n: unknown key
data.chat_template_kwargs.tokenize=true -> data.chat_template_kwargs.tokenize: cannot be given
env.mixture.a.val_kwargs.split=test -> env.mixture.a.val_kwargs
MIXTURE env.id=textenv/clarify -> env.id: is of one environment
"""

#: Neighbours of refused arguments.
ACCEPTED = """
rollout.n=1 algorithm.adv_estimator=remax rollout.filter_zero_variance=true
FORK rollout.n=1 fork.samples=2 fork.where=variance fork.budget=1000 algorithm.gamma=0.9
LOOK env.backend=process
LOOK multiturn_reward.credit=difference custom_reward_function.path=score.py custom_reward_function.replace=false
multiturn_reward.enable=true multiturn_reward.credit=difference algorithm.adv_estimator=rloo
VLLM rollout.temperature=0.01 validation.temperature=0
env.kwargs.tasks=rows.jsonl env.val_kwargs.tasks=rows.jsonl
"""

GENERATE = """
data.path=x data.output_path=y model.path=tiny -> model.path: must be given
data.path= data.output_path=y model.path=model -> data.path: must be given
GENERATE data.chat_template_kwargs.tokenize=true -> data.chat_template_kwargs.tokenize: cannot be given
GENERATE data.n_samples=3 rollout.n=2 -> is 2, and data.n_samples is 3: write one of them
"""

NAMES = {
    "ADAPTIVE": "algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=adaptive",
    "BOTH": "env.id=textenv/clarify warm_start.enable=false env.train_side=both",
    "FORK": "algorithm.adv_estimator=fork",
    "GDPO": "algorithm.adv_estimator=gdpo",
    "GENERATE": "data.path=x data.output_path=y model.path=model",
    "GSPO": "actor.policy_loss=gspo algorithm.adv_estimator=rloo",
    "JUDGE": "reward_model.enable=true reward_model.classifier.path=model",
    "LOOK": "multiturn_reward.enable=true algorithm.gamma=0",
    "MASK": "rollout.keep_sampling_mask=true rollout.top_k=50",
    "MIXTURE": "env.mixture.a.kwargs.level=easy",
    "OVERLONG": "overlong_buffer.enable=true overlong_buffer.len=8",
    "POOL": "reward_model.enable_resource_pool=true",
    "RAY": "cluster.backend=ray",
    "RECOMPUTE": "actor.old_logprobs=recompute",
    "TWO": "reward_models.one.classifier.path=model reward_models.two.classifier.path=model",
    "USER": "env.id=textenv/clarify warm_start.enable=false env.train_side=user",
    "VLLM": "engine.name=vllm",
}


def words(line: str) -> list[str]:
    return shlex.split(re.sub(r"\b[A-Z]+\b", lambda name: NAMES.get(name[0], name[0]), line))


def rows(schema: type, table: str) -> Iterator[Any]:
    for line in table.splitlines():
        if line and not line.startswith("#"):
            arguments, _, message = line.partition(" -> ")
            yield pytest.param(schema, words(arguments), message, id=arguments.partition("=")[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the tables name."""
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "rows.jsonl").write_text("{} {}")
    (folder / "score.py").write_text("def compute_score(**row): return 1.0\n")
    return folder


@pytest.mark.parametrize(
    ("schema", "arguments", "message"),
    [*rows(PPOConfig, PPO), *rows(SFTConfig, SFT), *rows(GenerateConfig, GENERATE)],
)
def test_error_names_key_and_reason(folder, monkeypatch, schema, arguments, message):
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError) as caught:
        resolve(arguments, schema)
    (problem,) = caught.value.problems
    assert message in str(problem)
    assert problem.where == "command line" or not any(word.startswith(f"{problem.key}=") for word in arguments)


@pytest.mark.parametrize("line", ACCEPTED.strip().splitlines(), ids=lambda line: line.partition("=")[0])
def test_neighbour_of_refused_arguments_is_accepted(folder, monkeypatch, line):
    monkeypatch.chdir(folder)
    resolve(words(line))


@pytest.mark.parametrize(
    "estimator",
    ["grpo", "dr_grpo", "opo", "gdpo", "grpo_passk", "passk", "reinforce_pp_baseline", "gigpo", "gagpo", "maxrl"],
)
def test_estimator_of_siblings_needs_two(estimator):
    with pytest.raises(ConfigError, match="one alone teaches nothing"):
        resolve(["rollout.n=1", f"algorithm.adv_estimator={estimator}"])


# --- ranges


def sections(kind: type[Section] = Section) -> set[type[Section]]:
    """All sections that a configuration may have."""
    below = set().union(*map(sections, kind.__subclasses__()))
    whole = kind.__module__.startswith("trainers.") and not any(key.is_required() for key in kind.model_fields.values())
    return below | {kind} if whole else below


RANGE = re.compile(r"(an integer|a number)(?: (>=|>) (\S+?))?(?: and (<=|<) (\S+?))?(, or null)?")


def cases(allowed: str) -> list[tuple[Any, bool]]:
    """Values around a described range, and whether they are within."""
    if allowed == "true or false":
        return [(True, True), (False, True), (1, False), ("true", False), (None, False)]
    if re.fullmatch(r"one of [\w.-]+(, [\w.-]+)+|[\w.-]+ or [\w.-]+", allowed):
        choices = re.split(", | or ", allowed.removeprefix("one of "))
        return [*((choice, True) for choice in choices), ("another", False), (None, False)]
    if not (match := RANGE.fullmatch(allowed)):
        return []
    kind, low, lowest, high, highest, null = match.groups()
    whole = kind == "an integer"
    number, step = (int, 1) if whole else (float, 1e-6)
    values: list[tuple[Any, bool]] = [("text", False), (True, False), (float("nan"), False), (None, bool(null))]
    values += [(float("inf"), False), (float("-inf"), False)] + [(2.5, False)] * whole
    if low:
        end = number(lowest)
        values += [(end - step, False), (end, low == ">="), (end + step, True)]
    if high:
        end = number(highest)
        values += [(end + step, False), (end, high == "<="), (end - step, True)]
    elif whole:  # no integer is without a bound
        values += [(2**31 - 1, True), (2**31, False)]
    return values


def test_section_enforces_its_described_ranges():
    """`--help` and the reference page tell the range that the section has, of every number, switch and choice."""
    checked, wrong = 0, []
    for section in sections():
        for key in all_keys(section).values():
            for value, within in cases(key.allowed) if key.name in section.model_fields else ():
                try:
                    section.model_validate({key.name: value})
                    errors = set()
                except ValidationError as error:
                    errors = {detail["loc"][:1] for detail in error.errors()}
                checked += 1
                if ((key.name,) in errors) == within:
                    wrong.append(f"{section.__name__}.{key.name}={value!r}: {key.allowed}")
    assert not wrong
    assert checked > 1500


@pytest.mark.parametrize("schema", [PPOConfig, SFTConfig, GenerateConfig, EvaluateConfig])
def test_most_ranges_are_recognised(schema):
    ranges = [key.allowed for key in all_keys(schema).values() if key.allowed.startswith(("a number", "an integer"))]
    assert sum(map(bool, map(cases, ranges))) >= 0.9 * len(ranges)
