"""The trainers of this package by their names: ppo and trl-grpo, on one configuration."""

import dataclasses
import json

import pytest
from ppo_runs import MODEL, QUICK, SMALL, WARM
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

import trainers
from textenvs.adapters.trl import dataset_of
from trainers.__main__ import main
from trainers.catalog.trl_config import FIELDS, READ, WHY_NOT, grpo_arguments, resolved
from trainers.catalog.trl_grpo import training_episodes, validation_episodes
from trainers.checkpoints import CheckpointError
from trainers.config import ConfigError, PPOConfig, resolve
from trainers.config.describe import all_keys
from trainers.trajectory import read_parquet

TURNS = "algorithm.adv_estimator=turn_grpo"
USUAL = [*MODEL, *WARM, *SMALL, *QUICK, TURNS, "trainer.total_iterations=2", "data.val_size=3"]


@pytest.mark.parametrize("name", ["ppo", "trl-grpo"])
def test_a_run_by_name_trains_evaluates_and_leaves_a_model(name, tmp_path):
    with trainers.make(name, [*USUAL, f"trainer.default_local_dir={tmp_path}"]) as trainer:
        assert isinstance(trainer, trainers.Trainer)
        result = trainer.fit()
        assert result.iterations == 2
        assert not result.stopped
        assert {"train/reward", "val/reward"} <= set(result.metrics)
        assert AutoModelForCausalLM.from_pretrained(result.model).config.hidden_size == 32
        assert AutoTokenizer.from_pretrained(result.model).chat_template
        assert result.checkpoint.is_dir()
        assert trainer.evaluate()["val/reward"] == pytest.approx(result.metrics["val/reward"], abs=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rows if "train/reward" in row} == {1, 2}
    # It goes on from there, and a run of something else does not.
    with trainers.make(name, [*USUAL, f"trainer.default_local_dir={tmp_path}", "trainer.total_iterations=3"]) as again:
        last = again.fit()
        assert last.iterations == 3
    with trainers.make(name, [*USUAL, f"trainer.default_local_dir={tmp_path}"]) as later:
        assert later.evaluate()["val/reward"] == pytest.approx(last.metrics["val/reward"], abs=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/reward" in row] == [1, 2, 3]
    other = trainers.make(name, [*USUAL, f"trainer.default_local_dir={tmp_path}", "trainer.seed=5"])
    with other, pytest.raises(CheckpointError, match="trainer.seed was 0 and is now 5"):
        other.fit()


def test_ppo_inside_a_running_event_loop_and_from_a_configuration(tmp_path):
    import asyncio

    config = resolve([*USUAL, f"trainer.default_local_dir={tmp_path}", "trainer.total_iterations=1"])[0]

    async def notebook():
        return trainers.make("ppo", config).fit()

    assert asyncio.run(notebook()).iterations == 1


def test_validation_alone_trains_nothing(tmp_path, capsys):
    def only(folder, *more):
        return [*USUAL, f"trainer.default_local_dir={tmp_path}/{folder}", "trainer.val_only=true", *more]

    assert main(["ppo", *only("new")]) == 0
    assert "val/reward" in (said := capsys.readouterr().out)
    assert "model:" not in said
    assert not (tmp_path / "new/checkpoints").exists()
    trained = trainers.make("ppo", [*USUAL, f"trainer.default_local_dir={tmp_path}/trained"]).fit()
    given = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={trained.checkpoint}"]
    for arguments in (only("trained"), only("elsewhere", *given), only("trained", "trainer.total_iterations=9")):
        result = trainers.make("ppo", arguments).fit()
        assert (result.iterations, result.model, result.checkpoint) == (2, trained.model, trained.checkpoint)
        assert result.metrics["val/reward"] == pytest.approx(trained.metrics["val/reward"], abs=1e-6)
        assert "train/reward" not in result.metrics
    afresh = trainers.make("ppo", only("trained", "trainer.resume_mode=disable")).fit()
    assert (afresh.iterations, afresh.model, afresh.checkpoint) == (0, None, None)


def test_both_play_the_same_tasks_with_the_same_seeds(tmp_path):
    where = [f"trainer.default_local_dir={tmp_path}/run", f"trainer.rollout_data_dir={tmp_path}/rollouts"]
    more = [
        "env.id=textenv/gsm8k-interact",
        "env.val_kwargs={split: test}",
        f"trainer.validation_data_dir={tmp_path}/val",
    ]
    given = [*USUAL, *more, "data.train_size=5", "trainer.total_iterations=3"]
    trainers.make("ppo", [*given, *where]).fit()
    config = resolve(given)[0]
    rows = dataset_of(training_episodes(config))
    for iteration in range(3):
        played = read_parquet(tmp_path / f"rollouts/{iteration + 1:06d}.parquet")
        groups = list(dict.fromkeys(trajectory.group_id for trajectory in played))
        openings = [next(t.messages[0]["content"] for t in played if t.group_id == group) for group in groups]
        assert [rows[2 * iteration + n]["prompt"][0]["content"] for n in range(2)] == openings
    (validated,) = {tuple(t.messages[0]["content"] for t in read_parquet(f)) for f in (tmp_path / "val").glob("*")}
    assert tuple(row["prompt"][0]["content"] for row in dataset_of(validation_episodes(config))) == validated


# ------------------------------------------------------------------ one configuration, two trainers


def test_every_key_is_used_or_refused_by_name():
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
        (["engine.vllm.args.seed=1", "engine.name=vllm"], "engine.vllm.args", "configure TRL itself"),
        (["algorithm.adv_estimator=gae"], "algorithm.adv_estimator", "gae needs what TRL does not have"),
        (["actor.policy_loss=cispo"], "actor.policy_loss", "use ppo or gspo"),
        (["actor.loss_agg_mode=seq-mean-token-sum"], "actor.loss_agg_mode", "use token-mean"),
        (["actor.mini_batches=3"], "actor.mini_batches", "must divide the 128 episodes"),
        (["actor.use_kl_loss=true", "actor.kl_loss_type=k1"], "actor.kl_loss_type", "k3"),
        (["actor.clip_ratio_c=1.1"], "actor.clip_ratio_c", "above 1"),
        (["rollout.n=1", "algorithm.baseline=mixed"], "rollout.n", "at least 2"),
        (["trainer.val_only=false"], "trainer.val_only", "TRL's own loop"),
        (["trainer.time_limit_s=5"], "trainer.time_limit_s", "TRL's own loop"),
    ],
)
def test_what_has_no_meaning_for_trl_is_refused(arguments, key, why):
    with pytest.raises(ConfigError) as caught:
        trainers.make("trl-grpo", arguments)
    assert any(problem.key == key and why in problem.text for problem in caught.value.problems), str(caught.value)


def test_a_ready_configuration_is_held_to_the_same(tmp_path):
    config = resolve(["rollout.staleness=1", "rollout.window=2"])[0]
    with pytest.raises(ConfigError, match="rollout.staleness: has no meaning"):
        resolved(config)
    assert resolved(resolve([])[0]) == resolve([])[0]


def test_the_table_says_what_trl_is_told():
    config = resolve(
        [
            *("rollout.n=4", "rollout.groups_per_batch=6", "actor.mini_batches=3", "actor.ppo_epochs=2"),
            *("engine.max_context=100", "actor.max_tokens_per_micro_batch=450", "trainer.total_iterations=5"),
            *(
                "trainer.test_freq=2",
                "trainer.save_freq=-1",
                "algorithm.adv_estimator=rloo",
                "actor.lr_schedule=constant",
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
    assert (made["max_completion_length"], made["min_p"], made["use_cpu"]) == (70, None, True)
    assert made["lr_scheduler_type"] == "constant_with_warmup"
