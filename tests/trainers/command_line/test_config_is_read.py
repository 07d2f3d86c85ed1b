"""No key does nothing: small runs of every command read every key of its schema, outside of the checks on it."""

import asyncio
import contextlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from fake_pooling import FakePooling, in_a_thread
from fake_service import FakeService
from pyarrow import parquet
from reward_models import save_model
from trajectories import trajectory_of

from textenvs.data.files import write_parquet
from textenvs.data.word_problems import GeneratedMath
from trainers import evaluate, generate, ppo, sft
from trainers.advantages import estimate
from trainers.algorithms.baselines import RoleBaselines
from trainers.algorithms.batch import ActionBatch
from trainers.algorithms.estimators import ESTIMATORS, Estimator
from trainers.algorithms.losses import LOSSES
from trainers.algorithms.reaction import moves_of
from trainers.builders import SetupError
from trainers.builders.engines import check_engine, engine_of, plan_of
from trainers.builders.environments import backend_of, played
from trainers.builders.folder import checkpoint_to_resume, run_folder
from trainers.builders.reward_model import check_rewards, try_served
from trainers.checkpoints import Checkpoint, Checkpoints, refuse_checkpoint
from trainers.command_line import resolve
from trainers.config import PPOConfig, SFTConfig
from trainers.config.alias import Alias
from trainers.config.commands import EvaluateConfig, GenerateConfig
from trainers.config.describe import all_keys
from trainers.config.variants import Variants
from trainers.models import tiny
from trainers.models.policy import Policy
from trainers.rollout.batch import BatchEpisode
from trainers.rollout.forks import ForkPlan
from trainers.rollout.renderer import Renderer
from trainers.section import Section

TRAINERS = Path(inspect.getfile(Section)).parent
#: The code that checks, describes and translates keys; other files there use them.
CONFIG = (*(str(TRAINERS / name) for name in ("config/", "command_line", "compat")), inspect.getfile(Section))
USES = [str(TRAINERS / "config" / name) for name in ("sizes.py", "engine.py", "reward_model.py")]

TINY = [
    *("model.hidden=32", "model.layers=1", "model.heads=2", "model.kv_heads=1", "model.vocab_size=300"),
    *("trainer.threads=1",),
]
SMALL = [
    *TINY,
    *("warm_start.demonstrations=16", "warm_start.steps=1", "warm_start.batch_size=4", "warm_start.careless_steps=1"),
    *("rollout.groups_per_batch=2", "rollout.n=2", "rollout.max_response_length=6", "engine.max_slots=8"),
    *("engine.max_context=192", "engine.threads=1", "data.val_size=2", "trainer.total_iterations=1"),
]


@contextlib.contextmanager
def watched() -> Iterator[set[tuple[type, str]]]:
    """Record the keys that are read, except by the configuration's own code."""
    read: set[tuple[type, str]] = set()
    plain = Section.__getattribute__

    def spying(self, name):
        key, code = name in type(self).model_fields, sys._getframe(1).f_code  # pydantic reads others, for a copy
        own = code.co_filename.startswith(CONFIG) and code.co_filename not in USES
        if key and not own and code.co_name not in ("checks", "sections_of"):
            read.add((type(self), name))
        return plain(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Section, "__getattribute__", spying, raising=False)
        yield read


def unread(schema: type, read: set[tuple[type, str]]) -> list[str]:
    missing = []
    for name in all_keys(schema):
        *sections, last = name.split(".")
        owners = [schema]
        for section in sections:
            owners = [kind for owner in owners for kind in kinds_of(owner, section)]
        if not any((owner, last) in read for owner in owners):
            missing.append(name)
    return missing


def kinds_of(owner: type[Section], name: str) -> list[type[Section]]:
    """The classes that a section may have."""
    if name not in owner.model_fields:  # it may stand for an entry
        mappings = [info for info in owner.model_fields.values() if (alias := Alias.of(info)) and alias.section == name]
        kinds = [get_args(get_args(info.annotation)[1]) for info in mappings]
        return [kind for _, variants in kinds for kind in variants.classes.values()]
    variants = Variants.of(owner.model_fields[name])
    return [owner.model_fields[name].annotation] if variants is None else list(variants.classes.values())


def compute_advantages(estimator: Estimator) -> None:
    """From a batch that has all that estimators need."""
    episode = trajectory_of([-1, 0], [1.0], turn_terms=({"a": 1.0},), group_id="g")
    if "role_baseline" in estimator.needs:
        estimate(estimator, [BatchEpisode(episode, episode)], roles=RoleBaselines())
        return
    episodes = [episode] * 3
    batch = ActionBatch.from_trajectories(episodes, values=np.zeros(3), greedy=np.zeros(3))
    estimator.advantages(estimator.complete(batch, episodes))


def credit_reactions(estimator: Estimator) -> None:
    """From a batch whose turns have moves of the user."""
    episodes = [trajectory_of([-1, 0], [1.0], turn_moves=(move,), group_id="g") for move in ("reveals", "repeats")]
    batch = ActionBatch.from_trajectories(episodes)
    section, result = estimator.reaction_credit, estimator.advantages(batch)
    section.credit(batch, moves_of(episodes), result, np.random.default_rng(0))


def test_watch_sees_exactly_the_read_keys():
    with watched() as read:
        config, _ = resolve(["actor.lr=0.5", "rollout.n=3"])
        assert not read, "loading, checking and showing a configuration is no use of it"
        assert config.actor.lr == 0.5
    missing = unread(PPOConfig, read)
    assert "actor.lr" not in missing
    assert "critic.lr" in missing


def test_every_key_of_ppo_is_read(tmp_path):
    (tmp_path / "reward.py").write_text("def compute_score(**row): return float(len(row['solution_str']))\n")
    judge = save_model(tmp_path / "judge")
    first = [
        *("algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"),
        *("actor.old_logprobs=recompute", "actor.importance_correction=token_tis", "actor.use_kl_loss=true"),
        *("algorithm.reward_credit=discounted", "data.filter_overlong_prompts=true", "data.train_size=4"),
        *(f"custom_reward_function.path={tmp_path}/reward.py", f"trainer.trace_file={tmp_path}/trace.json"),
        *("reward_model.enable=true", f"reward_model.classifier.path={judge}", "reward_model.replace=false"),
        *("multiturn_reward.enable=true", "multiturn_reward.credit=difference", "multiturn_reward.replace=false"),
        *("overlong_buffer.enable=true", "overlong_buffer.len=8", "rollout.max_response_tokens=128"),
        *("relative_length.tokens=0.1", "actor.observation_loss=0.01", "env.curriculum.kind=signal"),
        "actor.distill.teacher=reference",
        f"trainer.default_local_dir={tmp_path}/run",
    ]
    resumed = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}"]
    with watched() as read:
        assert ppo.main([*SMALL, *first]) == 0
        for name in ESTIMATORS:
            compute_advantages(resolve([f"algorithm.adv_estimator={name}"])[0].algorithm)
        credit_reactions(resolve(["algorithm.reaction_credit.weight=1", "algorithm.adv_estimator=rloo"])[0].algorithm)
        ForkPlan(resolve(["algorithm.adv_estimator=fork"])[0].fork, roots=1, seed=0).observe([], [])
        nothing = np.zeros(0)
        for name in LOSSES:
            algorithm = "algorithm.adv_estimator=rloo"  # also for losses of whole episodes
            actor = resolve([f"actor.policy_loss={name}", algorithm])[0].actor
            actor.select(nothing, nothing, np.zeros(0, np.bool_), np.random.default_rng(0))
            actor.token_loss(*[torch.zeros(2)] * 4, selected=torch.zeros(2))
        config, _ = resolve([])
        run_folder(config.trainer)  # of the two names
        with_other_reward_models(judge)
        asyncio.run(with_other_backends())
        asyncio.run(with_other_engines(tmp_path))
        user, _ = resolve(["env.id=textenv/clarify", "env.train_side=user", "warm_start.enable=false"])
        backend_of(user, played(user)[0], validation=False)
        with contextlib.suppress(ValueError):
            checkpoint_to_resume(resolve(resumed)[0].trainer, Checkpoints(tmp_path / "none", 1))
        refuse_checkpoint(config, Checkpoint(tmp_path, 1, {"config": config.model_dump(mode="json")}))
    # Read by the command line, learner ranks, Ray and adapters, and where episodes fail or are cut.
    elsewhere = (
        *("rollout.partial", "rollout.retries", "rollout.max_consecutive_", "reward_model.enable"),
        *("reward_model.retries", "cluster.", "ray_init.", "reward_model.classifier.threads"),
        *("model.lora_", "model.target_modules", "model.exclude_modules"),
    )
    remaining = [name for name in unread(PPOConfig, read) if not name.startswith(elsewhere)]
    assert not remaining, " ".join(remaining)


def with_other_reward_models(judge):
    """A service, a judge, one of several, and one with a pool of its own."""

    def verdict(body):
        code = re.search(r"<data (\w+)>", body["messages"][-1]["content"])[1]
        fields = {"move": "answers"} if "about what the assistant said" in str(body["messages"]) else {"score": 0.5}
        return {"data_code": code, "reasons": "r", **fields}

    with in_a_thread(FakePooling()) as url, FakeService(verdict) as graded:
        for options in (
            ["kind=service", f"service.url={url}", "service.input=messages"],
            ["kind=judge", "judge.model=m", f"judge.base_url={graded.url}"],
            ["kind=moves", "moves.model=m", f"moves.base_url={graded.url}"],
        ):
            credit = ["algorithm.reaction_credit.weight=1"] if "kind=moves" in options else []
            config, _ = resolve([*credit, *(f"reward_model.{option}" for option in ("enable=true", *options))])
            check_rewards(config)
            asyncio.run(try_served(config))
    named = ["named.kind=judge", "named.judge.model=m", "named.judge.base_url=http://127.0.0.1:1"]
    check_rewards(resolve([f"reward_models.{option}" for option in named])[0])
    pool = ["enable=true", f"classifier.path={judge}", "enable_resource_pool=true"]
    plan_of(resolve([f"reward_model.{option}" for option in pool])[0])


async def with_other_backends():
    config, _ = resolve(["env.backend=thread", "env.workers=1"])
    async with backend_of(config, *played(config), validation=False):
        pass


async def with_other_engines(folder):
    """Run up to the servers, which end at once."""
    tokenizer = tiny.build_tokenizer(["a b"])
    policy = Policy(tiny.build_model(len(tokenizer), hidden=32, layers=1, heads=2, kv_heads=1), tokenizer)
    renderer = Renderer(tokenizer)
    python = folder / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    for name in ("vllm", "sglang"):
        server = [f"engine.name={name}", f"engine.{name}.python={python}", f"trainer.default_local_dir={folder}"]
        with pytest.raises(SetupError, match="exited with code 1"):
            await engine_of(resolve(server)[0], policy, renderer)
    check_engine(resolve(["engine.name=sglang", "engine.sglang.base_url=http://127.0.0.1:1"])[0])


def test_every_key_of_sft_is_read(tmp_path):
    overrides = ["sft.demonstrations=8", "sft.steps=1", "sft.batch_size=4", f"trainer.default_local_dir={tmp_path}/run"]
    with watched() as read:
        assert sft.main([*TINY, *overrides]) == 0
        run_folder(resolve([], SFTConfig)[0].trainer)
    adapters = ("model.lora_", "model.target_modules", "model.exclude_modules")  # with lora_rank, as above
    assert [name for name in unread(SFTConfig, read) if not name.startswith(adapters)] == []


def test_every_key_of_generate_is_read(tmp_path):
    tokenizer = tiny.build_tokenizer(["a b"])
    tiny.save(tmp_path / "model", tiny.build_model(len(tokenizer), hidden=32, layers=1, heads=2), tokenizer)
    write_parquet(GeneratedMath("easy", seed=0), tmp_path / "prompts.parquet", count=1)
    where = [f"model.path={tmp_path}/model", f"data.path={tmp_path}/prompts.parquet", "rollout.max_response_length=4"]
    with watched() as read:
        assert generate.main([*where, f"data.output_path={tmp_path}/out.parquet", "trainer.threads=1"]) == 0
    # Those of servers and of Ray are read where a run's are, as above.
    served = ("engine.vllm", "engine.sglang", "engine.weight_transport", "engine.tensor_parallel_size")
    elsewhere = (*served, "cluster.", "ray_init.")
    assert [name for name in unread(GenerateConfig, read) if not name.startswith(elsewhere)] == []


def test_every_key_of_evaluate_is_read(tmp_path):
    columns = {"responses": ["#### 1"], "data_source": ["openai/gsm8k"], "reward_model": [{"ground_truth": "1"}]}
    parquet.write_table(pa.table(columns), tmp_path / "replies.parquet")
    with watched() as read:
        where = [f"data.path={tmp_path}/replies.parquet", f"report.output_path={tmp_path}/scores.jsonl"]
        assert evaluate.main(where) == 0
    assert json.loads((tmp_path / "scores.jsonl").read_text())["score"] == 1.0
    assert unread(EvaluateConfig, read) == []
