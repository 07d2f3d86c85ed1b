"""Keys that are read only if another key has certain values; otherwise they would silently do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ..algorithms.estimators import ESTIMATORS
from ..section import Problems, Section, changed, value_of
from .yaml12 import dump

#: Estimators that learn a value function.
WITH_CRITIC = tuple(name for name, kind in ESTIMATORS.items() if "critic" in kind.needs)
#: Estimators that compare with forks of the episodes.
WITH_FORKS = tuple(name for name, kind in ESTIMATORS.items() if "forks" in kind.needs)


@dataclass(frozen=True)
class Not:
    """Every value but this one."""

    value: Any


#: Keys, separated by spaces (`x.` is every key below x), and the condition to read them: one of these keys has one of
#: these values, or any value but one.
Reads: TypeAlias = Mapping[str, Mapping[str, tuple[Any, ...] | Not]]

_ON, _RAY, _GIVEN = (True,), ("ray",), Not(None)

ENGINE: Reads = {
    "engine.stall_timeout_s": {"engine.name": ("vllm", "sglang"), "engine.replicas": Not(1), "cluster.backend": _RAY},
    "engine.vllm.python engine.vllm.gpu_memory_utilization engine.vllm.block_size engine.vllm.enforce_eager "
    "engine.vllm.sleep_mode engine.vllm.args engine.kv_cache_gib engine.tensor_parallel_size engine.threads": {
        "engine.vllm.base_url": (None,)
    },
    "engine.vllm.update_folder engine.sglang.update_folder": {"engine.weight_transport": ("auto", "disk")},
    "engine.vllm.master_address engine.sglang.master_address": {
        "engine.weight_transport": ("auto", "ipc", "process_group")
    },
    "engine.vllm.bucket_mib engine.sglang.bucket_mib": {"engine.weight_transport": Not("disk")},
    "engine.sglang.python engine.sglang.seeds engine.sglang.server_args engine.sglang.sleep_mode "
    "engine.tensor_parallel_size engine.threads": {"engine.sglang.base_url": (None,)},
}
MODEL: Reads = {
    "model.lora_alpha model.target_modules model.exclude_modules model.lora_publish": {"model.lora_rank": Not(0)},
    "model.family model.hidden model.intermediate model.layers model.heads model.kv_heads model.vocab_size "
    "model.copying": {"model.path": ("tiny",)},
    "model.enable_activation_offload": {"model.enable_gradient_checkpointing": _ON},
    # These move data from a GPU to the CPU.
    "model.enable_activation_offload trainer.offload": {"model.device": ("auto", "cuda")},
    "trainer.offload": {"trainer.fsdp": ("auto", "always")},
    "model.attn_implementation": {"trainer.ulysses_sequence_parallel_size": (1,)},  # which brings its own
}
#: A Ray that runs already has the CPUs that it has.
RAY: Reads = {"ray_init.num_cpus": {"ray_init.address": (None, "local")}}
FUNCTION: Reads = {
    "custom_reward_function.name custom_reward_function.replace": {"custom_reward_function.path": _GIVEN}
}
PPO: Reads = {
    **ENGINE,
    **MODEL,
    **FUNCTION,
    **RAY,
    "critic.": {"algorithm.adv_estimator": WITH_CRITIC},
    "fork.": {"algorithm.adv_estimator": WITH_FORKS},
    "algorithm.kl_ctrl.": {"algorithm.use_kl_in_reward": _ON},
    "algorithm.kl_penalty": {"algorithm.use_kl_in_reward": _ON, "actor.use_kl_loss": _ON},  # it is also reported
    "algorithm.reaction_credit.": {"algorithm.reaction_credit.weight": Not(0.0)},
    "algorithm.reward_credit_decay": {"algorithm.reward_credit": ("discounted",)},
    "actor.kl_loss_coef actor.kl_loss_type": {"actor.use_kl_loss": _ON},
    "actor.entropy_step": {"actor.entropy_target": _GIVEN},
    "actor.distill.": {"actor.distill.teacher": _GIVEN},
    "actor.distill.discount actor.distill.clip": {"actor.distill.top_k": (0,)},  # of advantages
    "actor.observation_roles": {"actor.observation_loss": Not(0.0)},
    "actor.tis_cap actor.importance_batch_normalize": {"actor.importance_correction": Not("none")},
    "actor.rejection_low actor.rejection_high": {"actor.rejection": ("token", "sequence", "geometric")},
    "actor.rejection_kl": {
        "actor.rejection": tuple(f"{of}_k{n}" for of in ("token", "seq_sum", "seq_mean", "seq_max") for n in (2, 3))
    },
    "env.assistant": {"env.train_side": ("user",)},
    "env.user env.user_reward env.refused_cost": {"env.train_side": ("user", "both")},
    "env.curriculum.floor env.curriculum.memory": {"env.curriculum.kind": ("signal",)},
    "data.longest_prompt": {"data.filter_overlong_prompts": _ON},
    "engine.vllm.sleep_mode engine.sglang.sleep_mode": {"cluster.colocate": _ON},
    "rollout.window": {"rollout.oversampling_factor": (1.0,)},  # which takes groups as they complete
    "rollout.max_consecutive_filtered": {
        "rollout.filter_zero_variance": _ON,
        "rollout.filter_variance_top_p": Not(1.0),
    },
    "rollout.partial": {"rollout.update_mode": ("abort",)},
    "rollout.partial_max_age": {"rollout.partial": _ON},
    "warm_start.": {"model.path": ("tiny",), "warm_start.enable": _GIVEN},
    "warm_start.demonstrations warm_start.mistake_rate warm_start.mistake_weight": {"warm_start.files": (None,)},
    "custom_reward_function.workers custom_reward_function.timeout_s": {"custom_reward_function.path": _GIVEN},
    "multiturn_reward.": {"multiturn_reward.enable": _ON},
    "multiturn_reward.judge_kwargs": {"multiturn_reward.judge": _GIVEN},
    "overlong_buffer.": {"overlong_buffer.enable": _ON},
    "trainer.resume_from_path": {"trainer.resume_mode": ("resume_path",)},
    "cluster.nnodes cluster.nsight cluster.cpus_per_actor cluster.bucket_mib": {"cluster.backend": _RAY},
    "cluster.silence_s cluster.stall_s": {"cluster.backend": _RAY, "cluster.learner_ranks": Not(1)},
    "cluster.start_timeout_s": {"cluster.backend": _RAY, "env.backend": _RAY},
    "cluster.cpus_per_env": {"env.backend": _RAY},
    "ray_init.": {"cluster.backend": _RAY, "env.backend": _RAY},
}
SFT: Reads = {**MODEL, "sft.demonstrations sft.mistake_rate sft.mistake_weight": {"sft.files": (None,)}}
GENERATE: Reads = {**ENGINE, **RAY, "cluster. ray_init.": {"cluster.backend": _RAY}}


def unread(key: str, value_of: Callable[[str], Any], reads: Reads) -> str | None:
    """Return why a key is not read, given the values of ``value_of``; ``None`` if it is read."""
    for names, switches in reads.items():
        applies = any(key.startswith(name) if name.endswith(".") else key == name for name in names.split())
        if (
            applies
            and key not in switches
            and not any(_reads(value_of(switch), accepted) for switch, accepted in switches.items())
        ):
            return no_effect(switches, value_of)
    return None


def unread_checks(config: Section, reads: Reads) -> Problems:
    for key in _changed(config, ""):
        if (problem := unread(key, partial(value_of, config), reads)) is not None:
            yield key, problem


def _changed(section: Section, prefix: str) -> Iterator[str]:
    for name in type(section).model_fields:
        if isinstance(value := getattr(section, name), Section):
            yield from _changed(value, f"{prefix}{name}.")
        elif changed(section, name):
            yield f"{prefix}{name}"


def _reads(value: Any, accepted: tuple[Any, ...] | Not) -> bool:
    return bool(value != accepted.value) if isinstance(accepted, Not) else value in accepted


def no_effect(switches: Mapping[str, tuple[Any, ...] | Not], value_of: Callable[[str], Any]) -> str:
    """Return why a key is not read, by the keys that decide and the values of ``value_of``."""
    return f"has no effect {_but(switches, value_of)}"


def _but(switches: Mapping[str, tuple[Any, ...] | Not], value_of: Callable[[str], Any]) -> str:
    if len(switches) > 1:
        return f"without {' or '.join(_needed(switch, accepted) for switch, accepted in switches.items())}"
    ((switch, accepted),) = switches.items()
    if accepted not in ((None,), Not("none")) and (isinstance(accepted, Not) or len(accepted) == 1):
        return f"without {_needed(switch, accepted)}"
    alternatives = "; it is read with " + ", ".join(map(dump, accepted)) if isinstance(accepted, tuple) else ""
    return f"with {switch}={dump(value_of(switch))}{alternatives if accepted != (None,) else ''}"


def _needed(switch: str, accepted: tuple[Any, ...] | Not) -> str:
    if isinstance(accepted, Not):
        return f"{switch} above {accepted.value}" if accepted.value else switch
    return f"{switch}={dump(accepted[0])}"
