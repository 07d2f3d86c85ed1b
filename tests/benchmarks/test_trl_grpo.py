"""TRL's trainer on our configuration: same tasks, seeds, learning rates and validation as `ppo`."""

import dataclasses

import pytest
import torch
from ppo_runs import MODEL, QUICK, SMALL, WARM, check_trainer
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

import trainers
from benchmarks.trl_grpo import TRLGRPOTrainer
from benchmarks.trl_grpo import trainer as trl_grpo
from benchmarks.trl_grpo.config import FIELDS, READ, WHY_NOT, grpo_arguments, resolved
from benchmarks.trl_grpo.trainer import training_episodes, validation_episodes
from textenvs.integrations.trl import dataset_of
from trainers.builders import SetupError
from trainers.builders.learner import actor_steps
from trainers.checkpoints import CheckpointError
from trainers.command_line import ConfigError, resolve
from trainers.config import PPOConfig
from trainers.config.describe import all_keys
from trainers.learner.optim import lr_at
from trainers.report.metrics import episode_metrics
from trainers.trajectory import read_parquet

TURNS = "algorithm.adv_estimator=turn_grpo"
USUAL = [*MODEL, *WARM, *SMALL, *QUICK, TURNS, "trainer.total_iterations=2", "data.val_size=3"]


@pytest.mark.slow
def test_run_trains_evaluates_resumes_and_saves_model(tmp_path):
    check_trainer(TRLGRPOTrainer, USUAL, tmp_path)


def test_both_trainers_play_the_same_tasks(tmp_path):
    where = [f"trainer.default_local_dir={tmp_path}/run", f"trainer.rollout_data_dir={tmp_path}/rollouts"]
    extra = [
        "env.id=textenv/gsm8k-interact",
        "env.val_kwargs={split: test}",
        f"trainer.validation_data_dir={tmp_path}/val",
    ]
    arguments = [*USUAL, *extra, "data.train_size=5", "trainer.total_iterations=3"]
    trainers.make("ppo", [*arguments, *where]).fit()
    config = resolve(arguments)[0]
    rows = dataset_of(training_episodes(config))
    for iteration in range(3):
        played = read_parquet(tmp_path / f"rollouts/{iteration + 1:06d}.parquet")
        groups = list(dict.fromkeys(trajectory.group_id for trajectory in played))
        openings = [next(t.messages[0]["content"] for t in played if t.group_id == group) for group in groups]
        assert [rows[2 * iteration + n]["prompt"][0]["content"] for n in range(2)] == openings
    (validated,) = {tuple(t.messages[0]["content"] for t in read_parquet(f)) for f in (tmp_path / "val").glob("*")}
    assert tuple(row["prompt"][0]["content"] for row in dataset_of(validation_episodes(config))) == validated


# ------------------------------------------------------------------ one configuration, two trainers


def test_every_key_is_used_or_refused():
    keys = all_keys(PPOConfig)
    assert set(FIELDS) | set(READ) <= set(keys)
    assert not set(FIELDS) & set(READ)
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    assert {field for field, _ in FIELDS.values()} <= fields
    assert set(grpo_arguments(resolve([])[0])) <= fields
    for start in WHY_NOT:
        assert any(key.startswith(start) for key in set(keys) - set(FIELDS) - READ), start


@pytest.mark.parametrize(
    ("arguments", "key", "why"),
    [
        (["algorithm.adv_estimator=gae", "critic.lr=1e-4"], "critic.lr", "GRPO has no critic"),
        (["rollout.staleness=0"], "rollout.staleness", "TRL generates, then learns"),  # also where it is the default
        (
            ["engine.vllm.args.x=1", "engine.name=vllm"],
            "engine.vllm.args",
            "configure TRL itself",
        ),
        (["algorithm.adv_estimator=gae"], "algorithm.adv_estimator", "gae needs what TRL does not have"),
        (["algorithm.adv_estimator=gdpo"], "algorithm.adv_estimator", "gdpo needs what TRL does not have"),
        (["rollout.keep_sampling_mask=true", "rollout.top_k=9"], "rollout.keep_sampling_mask", "TRL asks for a batch"),
        (["actor.policy_loss=cispo"], "actor.policy_loss", "use ppo or gspo"),
        (["actor.loss_agg_mode=seq-mean-token-sum"], "actor.loss_agg_mode", "use token-mean"),
        (["actor.mini_batches=3"], "actor.mini_batches", "must divide the 128 episodes"),
        (["actor.use_kl_loss=true", "actor.kl_loss_type=k1"], "actor.kl_loss_type", "k3"),
        (["actor.clip_ratio_c=1.1"], "actor.clip_ratio_c", "above 1"),
        (["rollout.n=1", "algorithm.baseline=mixed"], "rollout.n", "at least 2"),
        (["trainer.val_only=false"], "trainer.val_only", "TRL's own loop"),
        (["trainer.time_limit_s=5"], "trainer.time_limit_s", "TRL's own loop"),
        (["model.lora_rank=4"], "model.lora_rank", "train the base first"),
        (["algorithm.truncated=drop", "actor.loss_agg_mode=seq-mean-token-mean"], "algorithm.truncated", "token-mean"),
        (["cluster.learner_ranks=2"], "cluster.learner_ranks", "one process on one device"),
    ],
)
def test_keys_without_effect_in_trl_are_refused(arguments, key, why):
    with pytest.raises(ConfigError) as caught:
        TRLGRPOTrainer(arguments)
    assert any(problem.key == key and why in problem.text for problem in caught.value.problems), str(caught.value)


def test_ready_configuration_is_checked_too(tmp_path):
    config = resolve(["rollout.staleness=1", "rollout.window=2"])[0]
    with pytest.raises(ConfigError, match="rollout.staleness: has no meaning"):
        resolved(config)
    assert resolved(resolve([])[0]) == resolve([])[0]


def test_keys_map_to_trl_arguments():
    config = resolve(
        [
            *("rollout.n=4", "rollout.groups_per_batch=6", "actor.mini_batches=3", "actor.ppo_epochs=2"),
            *("engine.max_context=100", "actor.max_tokens_per_micro_batch=450", "trainer.total_iterations=5"),
            *(
                "trainer.test_freq=2",
                "trainer.save_freq=-1",
                "algorithm.adv_estimator=rloo",
            ),
            *("actor.use_kl_loss=true", "actor.kl_loss_coef=0.5", "actor.policy_loss=gspo", "model.device=cpu"),
            *("rollout.min_p=0", "rollout.max_response_tokens=70", "actor.loss_agg_mode=seq-mean-token-mean"),
        ]
    )[0]
    made = grpo_arguments(config)
    assert made["per_device_train_batch_size"] == 4  # 450 tokens have room for 4 episodes of 100; 4 divides 8
    assert made["gradient_accumulation_steps"] == 2
    assert made["steps_per_generation"] == 6
    assert made["max_steps"] == 30
    assert (made["eval_steps"], made["save_steps"], made["logging_steps"]) == (12, 30, 6)
    assert (made["delta"], made["epsilon"], made["epsilon_high"]) == (None, 0.2, 0.28)
    assert grpo_arguments(resolve(["actor.clip_ratio_c=3"])[0])["delta"] == 3
    assert (made["beta"], made["importance_sampling_level"], made["loss_type"]) == (0.5, "sequence", "grpo")
    default = grpo_arguments(resolve([])[0])
    assert (default["loss_type"], default["entropy_coef"]) == ("dr_grpo", 0.01)
    # Ours divides by a reply's 64 tokens, TRL by an episode's 512: the same clipping is at an eighth of the norm.
    assert default["max_grad_norm"] == 64 / 512
    assert grpo_arguments(resolve(["actor.loss_agg_mode=token-mean"])[0])["max_grad_norm"] == 1.0
    assert (made["max_completion_length"], made["min_p"], made["use_cpu"]) == (70, None, True)


# ------------------------------------------------------------------ what a run of TRL's does as ours


def test_validation_episodes_count_equally(tmp_path, monkeypatch):
    """Use seven episodes, which no batch size divides."""
    played = []

    def remember(episodes, prefix):
        played.append(episodes)
        return episode_metrics(episodes, prefix)

    monkeypatch.setattr(trl_grpo, "episode_metrics", remember)
    extra = ["data.val_size=7", "validation.temperature=0", "engine.max_slots=3", "rollout.top_k=2"]
    with TRLGRPOTrainer([*USUAL, *extra, f"trainer.default_local_dir={tmp_path}"]) as trainer:
        metrics = trainer.evaluate()
        assert trainer.evaluate() == metrics
    greedy = played[0]
    assert len(greedy) == 7
    assert metrics["val/reward"] == pytest.approx(sum(episode.total_reward for episode in greedy) / 7)
    sampled = [*extra, "validation.temperature=1", "validation.n=2"]
    with TRLGRPOTrainer([*USUAL, *sampled, f"trainer.default_local_dir={tmp_path}"]) as trainer:
        trainer.evaluate()
    pairs = played[-1]
    assert len(pairs) == 14
    assert any(a.token_ids.tolist() != b.token_ids.tolist() for a, b in zip(pairs[::2], pairs[1::2], strict=True))
    assert any(a.token_ids.tolist() != b.token_ids.tolist() for a, b in zip(pairs[::2], greedy, strict=True))


def test_failed_validation_does_not_end_the_run(tmp_path):
    broken = ["env.val_kwargs={broken: true}", "trainer.val_before_train=true", "trainer.total_iterations=1"]
    with TRLGRPOTrainer([*USUAL, *broken, f"trainer.default_local_dir={tmp_path}"]) as trainer:
        result = trainer.fit()
    assert result.iterations == 1
    assert result.metrics["val/left_out"] == 1
    assert "val/reward" not in result.metrics


def test_learning_rates_match_ppo(tmp_path):
    for schedule in ("constant", "cosine"):
        extra = [f"actor.lr_schedule={schedule}", "actor.lr_warmup_steps=3", "trainer.total_iterations=5"]
        arguments = [*USUAL, *extra, f"trainer.default_local_dir={tmp_path}"]
        with TRLGRPOTrainer(arguments) as grpo:
            trainer = grpo._made()
            trainer.create_optimizer_and_scheduler(trainer.args.max_steps)
            used = []
            for _ in range(10):
                used.append(trainer.optimizer.param_groups[0]["lr"])
                trainer.optimizer.step()
                trainer.lr_scheduler.step()
        config = resolve(arguments)[0]
        assert used == pytest.approx([lr_at(config.actor, step, actor_steps(config)) for step in range(10)])
        assert used[0] == pytest.approx(0.001)


def test_foreign_checkpoint_replaces_no_own_ones(tmp_path):
    for name in ("mine/checkpoint-4", "other/checkpoint-2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "trainer_state.json").write_text("{}")
    back = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/other/checkpoint-2"]
    where = f"trainer.default_local_dir={tmp_path}/mine"
    with TRLGRPOTrainer([*USUAL, where, *back]) as trainer, pytest.raises(SetupError, match="of its own"):
        trainer.fit()
    assert (tmp_path / "mine/checkpoint-4").is_dir()


@pytest.mark.slow
def test_fresh_start_removes_earlier_checkpoints(tmp_path, caplog):
    where = f"trainer.default_local_dir={tmp_path}"
    with TRLGRPOTrainer([*USUAL, where, "trainer.total_iterations=3", "trainer.save_freq=1"]) as first:
        assert first.fit().checkpoint.name == "checkpoint-6"
    afresh = [*USUAL, where, "trainer.resume_mode=disable", "trainer.seed=5", "trainer.total_iterations=1"]
    with TRLGRPOTrainer(afresh) as second:
        second.evaluate()
        assert len(list(tmp_path.glob("checkpoint-*"))) == 2  # nothing was started
        assert second.fit().checkpoint.name == "checkpoint-2"
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert "removed checkpoint-4, checkpoint-6" in caplog.text
    with TRLGRPOTrainer([*USUAL, where, "trainer.seed=5"]) as third:
        assert third.fit().iterations == 2
    # What would make TRL count other batches than were played, or would be without effect, is no resumption.
    for other in ("actor.ppo_epochs=2", "actor.mini_batches=1", "rollout.n=4", "rollout.groups_per_batch=4"):
        fourth = TRLGRPOTrainer([*USUAL, where, "trainer.seed=5", other])
        with fourth, pytest.raises(CheckpointError, match=other.split("=")[0]):
            fourth.fit()
    fifth = TRLGRPOTrainer([*USUAL, where, "trainer.seed=5", "actor.lr=0.1"])
    with fifth, pytest.raises(CheckpointError, match="actor.lr was 0.003 and is now 0.1"):
        fifth.evaluate()


@pytest.mark.slow  # the others here train, resume and save without adapters; test_ppo_adapters.py merges adapters
def test_adapters_resume_and_are_merged(tmp_path):
    with TRLGRPOTrainer([*USUAL, f"trainer.default_local_dir={tmp_path}/base"]) as trainer:
        base = trainer.fit().model
    lora = ["model.lora_rank=2", f"model.path={base}", f"trainer.default_local_dir={tmp_path}/lora", "actor.lr=0.05"]
    arguments = [*[argument for argument in USUAL if argument not in MODEL and "actor.lr=" not in argument], *lora]
    with TRLGRPOTrainer(arguments) as trainer:
        result = trainer.fit()
    with TRLGRPOTrainer([*arguments, "trainer.total_iterations=3"]) as trainer:
        assert trainer.evaluate()["val/reward"] == pytest.approx(result.metrics["val/reward"], abs=1e-6)
        result = trainer.fit()
    plain = AutoModelForCausalLM.from_pretrained(result.model)
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    assert plain.state_dict().keys() == before.keys()
    assert any(not torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    # The merged model plays as the adapters did.
    served = [argument for argument in arguments if "lora" not in argument and "model.path" not in argument]
    with TRLGRPOTrainer([*served, f"model.path={result.model}", f"trainer.default_local_dir={tmp_path}/x"]) as t:
        assert t.evaluate()["val/reward"] == pytest.approx(result.metrics["val/reward"], abs=1e-6)


def test_several_processes_or_gpus_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SetupError, match="one of 2 .*accelerate launch.*trainers.integrations.trl"):
        TRLGRPOTrainer([*USUAL, f"trainer.default_local_dir={tmp_path}"])
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(GRPOConfig, "n_gpu", property(lambda self: 2))
    trainer = TRLGRPOTrainer([*USUAL, f"trainer.default_local_dir={tmp_path}"])
    with trainer, pytest.raises(SetupError, match="torch sees 2: choose one"):
        trainer.fit()
