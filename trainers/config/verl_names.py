"""verl's defaults, and its names for what is called otherwise here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: What verl does where a command of its own says nothing and our default is another: our keys. Keys that depend on
#: others (lengths, batches, the environment) are computed by joint rules from :data:`VERL_VALUES`.
DEFAULTS: Mapping[str, Any] = {
    "model.dtype": "bfloat16",
    "model.enable_gradient_checkpointing": True,
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

#: verl's policy losses by our names, where they differ. The same name is the same loss.
LOSSES: Mapping[str, str] = {"vanilla": "ppo", "gspo": "gspo_token"}
#: verl's losses whose clipping range is of the ratio itself.
OF_RATIOS = ("vanilla", "gspo", "cispo", "clip_cov")
#: verl's losses that are a mean over episodes, whatever `loss_agg_mode` says.
OF_EPISODES = ("gspo", "geo_mean", "sapo")

#: verl's rejections by ours; those that end in k1 are bounded by engine over learner there, the others as here.
REJECTIONS: Mapping[str, str] = {
    "token": "token",
    "sequence": "sequence",
    "geometric": "geometric",
    "token_k1": "token",
    "seq_sum_k1": "sequence",
    "seq_mean_k1": "geometric",
}

#: verl's own configurations, which its commands name with `--config-name`: what is left out is then as there anyhow.
CONFIGS = ("ppo_trainer", "_generated_ppo_trainer", "generation", "evaluation")

#: Environments among these that have one turn, and so no limit of turns.
SINGLE_TURN = ("textenv/gsm8k",)

#: The environment that plays what one of verl's loops plays, by ``agent_name``.
AGENT_LOOPS: Mapping[str, str] = {
    "single_turn_agent": "textenv/gsm8k",
    "tool_agent": "textenv/gsm8k-tool",
    "react_agent": "textenv/math-expression",
    "math_expression": "textenv/math-expression",
}


@dataclass(frozen=True)
class Interaction:
    """The environment that one of verl's interaction or tool classes is, and options it needs to be like it."""

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
#: Of tools, likewise.
TOOLS: Mapping[str, Interaction] = {
    "Gsm8kTool": Interaction("textenv/gsm8k-tool", {}, "answers whether a number is right")
}
